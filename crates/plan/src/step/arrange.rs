//! List scheduling of the backward and update nodes of one objective: of the nodes that can run, the one
//! that leaves least memory in use runs first. Deterministic, in n log n time.

use crate::step::readers::{Readers, for_each_root};
use gulliver_graph::graph::{Graph, Node, NodeId, Phase, Value};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

/// The input of the scheduler.
pub struct ArrangeInput<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// The readers of values.
    pub readers: &'a Readers,
    /// Whether sums over partials exist already, so that gradients take no new memory.
    pub sums_exist: bool,
    /// Readers of each root that have not run.
    pub remaining: &'a [u32],
    /// (input, next value) of the inputs an update node overwrites, by node.
    pub carries: &'a [Vec<(Value, Value)>],
    /// Bytes of one instance of every value; without them nodes keep the graph's order, updates first.
    pub bytes: Option<&'a [u64]>,
    /// Whether values that only updates read are computed last, unless that frees memory.
    pub gradients_late: bool,
}

/// The nodes in their new order. An update that overwrites a weight waits for the weight's other readers, unless no other
/// node can run.
pub fn arrange(scene: &ArrangeInput, nodes: &[NodeId]) -> Vec<NodeId> {
    Arranger::new(scene, nodes).order()
}

/// The node with the smallest key runs first: whether it should wait, and bytes.
type Key = (bool, i64);

struct Arranger<'a> {
    scene: &'a ArrangeInput<'a>,
    remaining: Vec<u32>,
    /// Nodes of the list that have not run.
    open: Vec<bool>,
    /// Operands that are not there yet, by node; an earlier collective counts as one.
    missing: Vec<u32>,
    /// The collective that comes after one, by node.
    next_collective: Vec<Option<NodeId>>,
    /// Inputs a node overwrites that others still read, by node.
    blocked: Vec<u32>,
    /// The update that overwrites an input, and how many readers it leaves: itself or none.
    writer: Vec<Option<(NodeId, u32)>>,
    heap: BinaryHeap<Reverse<(Key, u32)>>,
    /// Nodes whose operands are there but that would overwrite what others read.
    waiting: BTreeSet<NodeId>,
    left: usize,
}

impl<'a> Arranger<'a> {
    fn new(scene: &'a ArrangeInput<'a>, nodes: &[NodeId]) -> Arranger<'a> {
        let count = scene.graph.nodes.len();
        let mut a = Arranger {
            scene,
            remaining: scene.remaining.to_vec(),
            open: vec![false; count],
            missing: vec![0; count],
            next_collective: vec![None; count],
            blocked: vec![0; count],
            writer: vec![None; scene.graph.values.len()],
            heap: BinaryHeap::new(),
            waiting: BTreeSet::new(),
            left: nodes.len(),
        };
        nodes.iter().for_each(|id| a.open[id.index()] = true);
        for &id in nodes {
            let ins = &scene.graph.nodes[id.index()].ins;
            for_each_root(&scene.readers.root, ins, |v| {
                a.missing[id.index()] += u32::from(scene.graph.maker(v).is_some_and(|p| a.open[p.index()]));
            });
            for &(input, _) in &scene.carries[id.index()] {
                let itself = u32::from(ins.iter().any(|v| scene.readers.root[v.index()] == input));
                a.writer[input.index()] = Some((id, itself));
                a.blocked[id.index()] += u32::from(a.remaining[input.index()] > itself);
            }
        }
        let collectives = nodes.iter().filter(|id| scene.graph.nodes[id.index()].op.def().meets());
        let collectives: Vec<NodeId> = collectives.copied().collect();
        for pair in collectives.windows(2) {
            a.next_collective[pair[0].index()] = Some(pair[1]);
            a.missing[pair[1].index()] += 1;
        }
        nodes.iter().for_each(|&id| a.offer(id));
        a
    }

    fn order(mut self) -> Vec<NodeId> {
        let mut order = Vec::with_capacity(self.left);
        while self.left > 0 {
            let id = match self.heap.pop() {
                Some(Reverse((key, id))) => {
                    let id = NodeId(id);
                    if !self.open[id.index()] {
                        continue;
                    }
                    let now = self.key(id);
                    if now > key {
                        self.heap.push(Reverse((now, id.0)));
                        continue;
                    }
                    id
                }
                None => match self.waiting.pop_first() {
                    Some(id) => id,
                    None => break,
                },
            };
            self.done(id);
            order.push(id);
        }
        order
    }

    /// Makes a node a candidate if it can run, at its present cost.
    fn offer(&mut self, id: NodeId) {
        let i = id.index();
        if !self.open[i] || self.missing[i] > 0 {
            return;
        }
        if self.blocked[i] > 0 {
            self.waiting.insert(id);
        } else {
            self.waiting.remove(&id);
            let key = self.key(id);
            self.heap.push(Reverse((key, id.0)));
        }
    }

    fn done(&mut self, id: NodeId) {
        let scene = self.scene;
        let node = &scene.graph.nodes[id.index()];
        self.open[id.index()] = false;
        self.left -= 1;
        for_each_root(&scene.readers.root, &node.ins, |v| {
            self.remaining[v.index()] -= 1;
            let readers = self.remaining[v.index()];
            if let Some((writer, itself)) = self.writer[v.index()]
                && readers == itself
                && self.open[writer.index()]
            {
                self.blocked[writer.index()] -= 1;
                self.offer(writer);
                self.offer_gradient_of(writer);
            }
            // Its last reader will free it.
            if readers == 1 && !scene.readers.output[v.index()] {
                let last = scene.readers.of_root(v).iter().find(|r| self.open[r.index()]);
                if let Some(&last) = last {
                    self.offer(last);
                }
            }
        });
        if let Some(next) = self.next_collective[id.index()] {
            self.missing[next.index()] -= 1;
            self.offer(next);
        }
        for v in &node.outs {
            for &reader in scene.readers.of_root(*v) {
                if self.open[reader.index()] {
                    self.missing[reader.index()] -= 1;
                    self.offer(reader);
                    if self.missing[reader.index()] == 1 {
                        self.offer_gradient_of(reader);
                    }
                }
            }
        }
    }

    /// Prices gradients anew whose update can follow at once.
    fn offer_gradient_of(&mut self, update: NodeId) {
        let scene = self.scene;
        for_each_root(&scene.readers.root, &scene.graph.nodes[update.index()].ins, |v| {
            if let Some(producer) = scene.graph.maker(v) {
                self.offer(producer);
            }
        });
    }

    /// The growth of memory by a node; without bytes, updates first and then the graph's order.
    fn key(&self, id: NodeId) -> Key {
        let scene = self.scene;
        let node = &scene.graph.nodes[id.index()];
        let Some(bytes) = scene.bytes else {
            return (false, if node.phase == Phase::Update { -1 } else { i64::from(id.0) });
        };
        let size = |v: Value| i64::try_from(bytes[v.index()]).unwrap_or(i64::MAX / 1024);
        let mut growth = 0i64;
        for &v in &node.outs {
            let overwrites = scene.carries[id.index()].iter().any(|(_, next)| *next == v);
            let sum = scene.sums_exist && scene.readers.summed[v.index()];
            if !overwrites && !sum && !self.passes(v) {
                growth = growth.saturating_add(size(v));
            }
        }
        for_each_root(&scene.readers.root, &node.ins, |v| {
            let last = self.remaining[v.index()] == 1 && !scene.readers.output[v.index()];
            if last && scene.graph.maker(v).is_some() {
                growth = growth.saturating_sub(size(v));
            }
        });
        (scene.gradients_late && growth > 0 && self.only_updates_read(node), growth)
    }

    fn only_updates_read(&self, node: &Node) -> bool {
        let update = |id: &NodeId| self.scene.graph.nodes[id.index()].phase == Phase::Update;
        node.outs.iter().all(|v| self.scene.readers.of_root(*v).iter().all(update))
    }

    /// Whether a result is freed right after it is made: it has no reader, or one update that can run at once.
    fn passes(&self, v: Value) -> bool {
        if self.scene.readers.output[v.index()] {
            return false;
        }
        match self.scene.readers.of_root(v) {
            [] => true,
            [reader] => {
                let i = reader.index();
                let update = self.scene.graph.nodes[i].phase == Phase::Update;
                update && self.open[i] && self.missing[i] == 1 && self.blocked[i] == 0
            }
            _ => false,
        }
    }
}
