//! Concurrent streams of operations: each stream runs its operations in order, each as soon as those it waits for are
//! done. Concurrent moves over one link share it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The work of an operation.
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

/// Operations and their dependencies.
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

    /// Adds a dependency; `other` may be a later operation.
    pub(crate) fn wait(&mut self, op: u32, other: u32) {
        self.edges.push((op, self.first[other as usize]));
        self.first[other as usize] = self.edges.len() as u32 - 1;
        self.waits[op as usize] += 1;
    }

    /// When each operation ends; none if there is a deadlock.
    pub(crate) fn run(&self, wires: &EngineLinks) -> Option<Vec<f64>> {
        let mut waits = self.waits.clone();
        let mut ends = vec![f64::INFINITY; self.work.len()];
        // When operations end, and which; times are not negative, so their bits have the same order.
        let mut heap: BinaryHeap<Reverse<(u64, u32)>> = BinaryHeap::new();
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
                    EngineWork::Move { .. } => heap.push(Reverse((now.to_bits(), op))),
                    EngineWork::Seconds(seconds) => heap.push(Reverse(((now + seconds).to_bits(), op))),
                }
            }
            if changed {
                share(&mut moves, wires);
            }
            let arrival = moves.iter().map(|m| now + m.left / m.rate).fold(f64::INFINITY, f64::min);
            let next = heap.peek().map_or(arrival, |Reverse((end, _))| f64::from_bits(*end).min(arrival));
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
                // A move that should end now has ended, whatever the rounding.
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
            while let Some(&Reverse((end, op))) = heap.peek()
                && end <= now.to_bits()
            {
                heap.pop();
                finish(op, &mut ready);
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
