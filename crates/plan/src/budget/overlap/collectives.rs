//! Computation beside collectives: what needs the result of a collective is put off while there is something else
//! to compute, until the collective should be over, as far as there is room for what it reads.

use super::OverlapTerms;
use crate::step::lifetime::{Lifetimes, profile};
use crate::step::script::{Script, ScriptOp};
use gulliver_graph::graph::{Graph, Node, Phase};

/// Where time and acts have got to.
struct Walk<'a> {
    graph: &'a Graph,
    script: &'a Script,
    room: &'a OverlapTerms<'a>,
    /// Device bytes in use during each act if nothing is put off.
    used: Vec<u64>,
    /// What is put off, in the script's order, and the bytes that it reads.
    held: Vec<usize>,
    bytes: u64,
    /// By version, how many of those held read it, and how many make or change it.
    read: Vec<u32>,
    written: Vec<u32>,
    /// Collectives among them, as they keep their order.
    collectives: u32,
    /// When each version is there.
    there: Vec<f64>,
    /// When the computation and the collectives are done with what they were given.
    computed: f64,
    met: f64,
    order: Vec<usize>,
}

/// The script with what waits for collectives put off behind what does not, with at most so many acts put off at
/// a time. Nothing passes the first update of an objective, or from one objective to another.
pub fn put_off(
    graph: &Graph,
    (script, life): (&Script, &Lifetimes),
    room: &OverlapTerms,
    most: usize,
) -> Script {
    let versions = script.versions.len();
    let mut walk = Walk {
        graph,
        script,
        room,
        used: profile(script, life, room.bytes, room.scratch),
        held: Vec::new(),
        bytes: 0,
        read: vec![0; versions],
        written: vec![0; versions],
        collectives: 0,
        there: vec![0.0; versions],
        computed: 0.0,
        met: 0.0,
        order: Vec::with_capacity(script.acts.len()),
    };
    let (mut objective, mut updating) = (0, false);
    for t in 0..script.acts.len() {
        if let Some(node) = walk.node(t) {
            let begins = node.phase == Phase::Update && !updating || node.objective != objective;
            (objective, updating) =
                (node.objective, node.phase == Phase::Update || updating && node.objective == objective);
            if begins {
                walk.release_all();
            }
        }
        if walk.used[t].saturating_add(walk.bytes) > room.target {
            walk.release_all();
        }
        walk.release_ready();
        if !(walk.blocked(t) || walk.late(t)) {
            walk.give(t);
        } else if walk.held.len() < most
            && walk.used[t].saturating_add(walk.bytes + walk.bytes_read(t)) <= room.target
        {
            walk.hold(t);
        } else {
            walk.release_all();
            walk.give(t);
        }
    }
    walk.release_all();
    script.reordered(walk.order.into_iter())
}

impl Walk<'_> {
    fn node(&self, t: usize) -> Option<&Node> {
        match self.script.acts[t].what {
            ScriptOp::Run(id, _) => Some(&self.graph.nodes[id.index()]),
            _ => None,
        }
    }

    fn meets(&self, t: usize) -> bool {
        self.node(t).is_some_and(|node| node.op.def().meets())
    }

    /// The version that an act changes, if it changes one that was there before.
    fn changes(&self, t: usize) -> Option<usize> {
        matches!(self.script.acts[t].what, ScriptOp::Add | ScriptOp::Carry)
            .then(|| self.script.refs(t)[1] as usize)
    }

    /// Whether it must not come before those held.
    fn blocked(&self, t: usize) -> bool {
        let (reads, makes) = self.script.split(t);
        let both = |v: usize| self.read[v] > 0 || self.written[v] > 0;
        self.collectives > 0 && self.meets(t)
            || reads.iter().any(|&v| self.written[v as usize] > 0)
            || makes.iter().any(|&v| both(v as usize))
            || self.changes(t).is_some_and(both)
    }

    fn ready(&self, t: usize) -> f64 {
        self.script.split(t).0.iter().map(|&v| self.there[v as usize]).fold(0.0, f64::max)
    }

    /// Whether the computation would have to wait for it.
    fn late(&self, t: usize) -> bool {
        !self.meets(t) && self.ready(t) > self.computed
    }

    fn count(&mut self, t: usize, more: bool) {
        let add = |count: &mut u32| *count = if more { *count + 1 } else { *count - 1 };
        let (reads, makes) = self.script.split(t);
        reads.iter().for_each(|&v| add(&mut self.read[v as usize]));
        makes.iter().for_each(|&v| add(&mut self.written[v as usize]));
        if let Some(v) = self.changes(t) {
            add(&mut self.written[v]);
        }
        if self.meets(t) {
            add(&mut self.collectives);
        }
    }

    /// Bytes of what an act reads that would not have to be there otherwise, at most.
    fn bytes_read(&self, t: usize) -> u64 {
        let reads = self.script.split(t).0.iter();
        let made = reads.filter(|&&v| !self.script.versions[v as usize].input);
        made.map(|&v| self.room.size(self.script, v)).sum()
    }

    fn hold(&mut self, t: usize) {
        self.count(t, true);
        self.bytes += self.bytes_read(t);
        self.held.push(t);
    }

    /// Puts an act next in the order.
    fn give(&mut self, t: usize) {
        let ready = self.ready(t);
        let seconds = match self.script.acts[t].what {
            ScriptOp::Run(id, _) => (self.room.seconds)(id.index()),
            _ => 0.0,
        };
        let clock = if self.meets(t) { &mut self.met } else { &mut self.computed };
        *clock = clock.max(ready) + seconds;
        let done = *clock;
        self.script.split(t).1.iter().for_each(|&v| self.there[v as usize] = done);
        if let Some(v) = self.changes(t) {
            self.there[v] = done;
        }
        self.order.push(t);
    }

    fn release_all(&mut self) {
        self.bytes = 0;
        for t in std::mem::take(&mut self.held) {
            self.count(t, false);
            self.give(t);
        }
    }

    /// Lets go of those whose time has come, unless one that is still held comes before them.
    fn release_ready(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let held = std::mem::take(&mut self.held);
        held.iter().for_each(|&t| self.count(t, false));
        self.bytes = 0;
        for t in held {
            if self.blocked(t) || self.late(t) {
                self.hold(t);
            } else {
                self.give(t);
            }
        }
    }
}
