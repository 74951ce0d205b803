//! A clock for things that happen beside each other: each stream does its operations in order, each as soon as
//! what it waits for is done. Moves over the same link share it while they last.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// What an operation takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum EngineWork {
    Seconds(f64),
    /// Bytes over a device's host link.
    Move {
        bytes: f64,
        link: u32,
    },
}

/// Links that moves share. Each belongs to a trunk, which all links of one direction share.
#[derive(Clone, Debug)]
pub(crate) struct EngineLinks {
    /// By link: bytes a second, and its trunk.
    pub(crate) links: Vec<(f64, u32)>,
    /// By trunk: bytes a second.
    pub(crate) trunks: Vec<f64>,
}

/// Operations and what each waits for.
#[derive(Debug, Default)]
pub(crate) struct Engine {
    work: Vec<EngineWork>,
    waits: Vec<u32>,
    /// By operation: the first of those that wait for it, in `edges`.
    first: Vec<u32>,
    /// (who waits, next edge).
    edges: Vec<(u32, u32)>,
    /// By stream: its last operation.
    last: Vec<u32>,
}

/// No operation.
pub(crate) const NONE: u32 = u32::MAX;

impl Engine {
    pub(crate) fn new(streams: usize) -> Engine {
        Engine { last: vec![NONE; streams], ..Engine::default() }
    }

    /// Appends an operation to a stream; [`NONE`] among the dependencies is ignored.
    pub(crate) fn add(&mut self, stream: usize, work: EngineWork, after: &[u32]) -> u32 {
        let op = self.work.len() as u32;
        self.work.push(work);
        self.waits.push(0);
        self.first.push(NONE);
        let before = self.last[stream];
        self.last[stream] = op;
        for &other in after.iter().chain([&before]).filter(|o| **o != NONE) {
            self.wait(op, other);
        }
        op
    }

    /// One operation waits for another, of which there may be later ones too.
    pub(crate) fn wait(&mut self, op: u32, other: u32) {
        self.edges.push((op, self.first[other as usize]));
        self.first[other as usize] = self.edges.len() as u32 - 1;
        self.waits[op as usize] += 1;
    }

    /// When each operation ends; none if they wait for each other for ever.
    pub(crate) fn run(&self, wires: &EngineLinks) -> Option<Vec<f64>> {
        let mut waits = self.waits.clone();
        let mut ends = vec![f64::INFINITY; self.work.len()];
        let mut heap: BinaryHeap<End> = BinaryHeap::new();
        let mut moves: Vec<Moving> = Vec::new();
        let mut ready: Vec<u32> = (0..self.work.len() as u32).filter(|op| waits[*op as usize] == 0).collect();
        let (mut now, mut done) = (0.0f64, 0usize);
        let mut changed;
        loop {
            changed = false;
            while let Some(op) = ready.pop() {
                match self.work[op as usize] {
                    EngineWork::Move { bytes, link } if bytes > 0.0 => {
                        moves.push(Moving { op, link, left: bytes, rate: 0.0 });
                        changed = true;
                    }
                    EngineWork::Move { .. } => heap.push(End { at: now, op }),
                    EngineWork::Seconds(seconds) => heap.push(End { at: now + seconds, op }),
                }
            }
            if changed {
                share(&mut moves, wires);
            }
            let arrival = moves.iter().map(|m| now + m.left / m.rate).fold(f64::INFINITY, f64::min);
            let next = heap.peek().map_or(arrival, |end| end.at.min(arrival));
            if !next.is_finite() {
                break;
            }
            let passed = next - now;
            now = next;
            let mut finish = |op: u32, ready: &mut Vec<u32>| {
                ends[op as usize] = now;
                done += 1;
                let mut edge = self.first[op as usize];
                while edge != NONE {
                    let (waiting, next) = self.edges[edge as usize];
                    waits[waiting as usize] -= 1;
                    if waits[waiting as usize] == 0 {
                        ready.push(waiting);
                    }
                    edge = next;
                }
            };
            let under_way = moves.len();
            let due = arrival <= next;
            moves.retain_mut(|m| {
                // What would end now is done whatever rounding says.
                let over = due && m.left / m.rate <= passed;
                m.left -= m.rate * passed;
                let over = over || m.left <= m.rate * now * 1e-15;
                if over {
                    finish(m.op, &mut ready);
                }
                !over
            });
            if moves.len() != under_way {
                share(&mut moves, wires);
            }
            while heap.peek().is_some_and(|end| end.at <= now) {
                if let Some(end) = heap.pop() {
                    finish(end.op, &mut ready);
                }
            }
        }
        (done == self.work.len()).then_some(ends)
    }
}

struct Moving {
    op: u32,
    link: u32,
    left: f64,
    rate: f64,
}

/// A link is shared evenly by its moves, a trunk by all moves on it.
fn share(moves: &mut [Moving], wires: &EngineLinks) {
    let on = |moves: &[Moving], link: u32| moves.iter().filter(|m| m.link == link).count() as f64;
    let busy = |moves: &[Moving], trunk: u32| {
        moves.iter().filter(|m| wires.links[m.link as usize].1 == trunk).count() as f64
    };
    for i in 0..moves.len() {
        let (rate, trunk) = wires.links[moves[i].link as usize];
        let own = rate / on(moves, moves[i].link);
        moves[i].rate = own.min(wires.trunks[trunk as usize] / busy(moves, trunk));
    }
}

struct End {
    at: f64,
    op: u32,
}

impl Ord for End {
    /// The earliest first; of those at one time, the one that was added first.
    fn cmp(&self, other: &End) -> Ordering {
        other.at.total_cmp(&self.at).then(other.op.cmp(&self.op))
    }
}

impl PartialOrd for End {
    fn partial_cmp(&self, other: &End) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for End {
    fn eq(&self, other: &End) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for End {}

#[cfg(test)]
mod tests {
    use super::*;

    fn wires(link: f64, trunk: f64) -> EngineLinks {
        EngineLinks { links: vec![(link, 0), (link, 0)], trunks: vec![trunk] }
    }

    #[test]
    fn streams_wait_and_links_are_shared() {
        let mut engine = Engine::new(3);
        let a = engine.add(0, EngineWork::Seconds(1.0), &[]);
        let b = engine.add(1, EngineWork::Seconds(2.0), &[]);
        let c = engine.add(0, EngineWork::Seconds(1.0), &[b, NONE]);
        assert_eq!(engine.run(&wires(1.0, 1.0)), Some(vec![1.0, 2.0, 3.0]));
        let two = |link, trunk| {
            let mut engine = Engine::new(2);
            engine.add(0, EngineWork::Move { bytes: 6.0, link: 0 }, &[]);
            engine.add(1, EngineWork::Move { bytes: 2.0, link: 1 }, &[]);
            engine.run(&wires(link, trunk))
        };
        // Alone a link gives its own rate; together no more than the trunk.
        assert_eq!(two(2.0, 4.0), Some(vec![3.0, 1.0]));
        assert_eq!(two(2.0, 2.0), Some(vec![4.0, 2.0]));
        assert_eq!((a, c), (0, 2));
    }

    #[test]
    fn what_waits_for_ever_has_no_end() {
        let mut engine = Engine::new(2);
        let a = engine.add(0, EngineWork::Seconds(1.0), &[]);
        let b = engine.add(1, EngineWork::Seconds(1.0), &[a]);
        engine.wait(a, b);
        assert_eq!(engine.run(&wires(1.0, 1.0)), None);
    }
}
