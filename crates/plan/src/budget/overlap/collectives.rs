//! Computation beside collectives: acts that need the result of a collective are delayed until it should end, while there
//! are other acts to compute and memory for the operands of the delayed ones.

use super::OverlapTerms;
use crate::step::lifetime::{Lifetimes, profile};
use crate::step::script::{Script, ScriptOp};
use gulliver_graph::graph::{Graph, Node, Phase};

/// The state of a walk through the acts.
struct Walk<'a> {
    graph: &'a Graph,
    script: &'a Script,
    room: &'a OverlapTerms<'a>,
    /// Device bytes in use during each act if none is delayed.
    used: Vec<u64>,
    /// Delayed acts, in the script's order, and the bytes that they read.
    held: Vec<usize>,
    bytes: u64,
    /// By version: how many delayed acts read it, and how many make or change it.
    read: Vec<u32>,
    written: Vec<u32>,
    /// Delayed collectives; collectives keep their order.
    collectives: u32,
    /// By version: when it is available.
    there: Vec<f64>,
    /// When the computation and the collectives have done the acts given so far.
    computed: f64,
    met: f64,
    order: Vec<usize>,
}

/// The script in which acts that wait for collectives come after acts that do not, with at most `most` acts delayed at a
/// time. No act passes the first update of an objective, or the end of an objective.
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

    /// Whether an act must not come before a delayed one.
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

    /// Whether the computation would have to wait for its operands.
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

    /// An upper bound of the bytes that delaying an act keeps in use.
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

    /// Releases delayed acts whose operands are available, unless one before them is still delayed.
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
