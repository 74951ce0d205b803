//! The order of all tasks of a step. Forward nodes keep the graph's order; backward and update nodes may move, as long as
//! no update comes before its objective's loss. An order never changes a result.

use crate::step::arrange::{ArrangeInput, arrange};
use crate::step::readers::{Instance, Readers, for_each_root};
use gulliver_graph::graph::{Graph, Node, NodeId, Origin, Phase, Role, Value};

/// A task of a step. Views are no tasks: they are where their operand is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OrderedTask {
    /// A node runs for one partial.
    Run(NodeId, u32),
    /// A partial result is added to the sum over the partials.
    Accumulate(Value, u32),
    /// A carried input takes its next value.
    Carry(Value, Instance),
}

/// Nodes of a schedule that run for one partial, in order, without views and updates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartialTurn {
    /// What runs.
    pub nodes: Vec<NodeId>,
    /// For which slice of the batch.
    pub partial: u32,
}

/// How backward and update nodes are put in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderRule {
    /// As in the graph, all updates last.
    Plain,
    /// As in the graph, each update as soon as its gradient is there and nothing reads the weight.
    UpdateEarly,
    /// What frees most, or takes least, comes first.
    LeastGrowth,
    /// The same, but values that only updates read are computed last, unless that frees memory.
    GradientsLate,
    /// All partials of a few layers, then of the next few, each update as soon as its gradient is there: weights off the
    /// device are fetched once for all partials.
    Grouped,
}

impl OrderRule {
    /// The order in words.
    pub fn words(self) -> &'static str {
        match self {
            OrderRule::Plain => "the graph's own order, all updates last",
            OrderRule::UpdateEarly => "each update as soon as its gradient is there",
            OrderRule::LeastGrowth => "operators that free most memory, or take least, run first",
            OrderRule::GradientsLate => {
                "operators that free most memory run first, gradients of weights when they must"
            }
            OrderRule::Grouped => {
                "all partials of a few layers after each other, so that their weights are fetched once"
            }
        }
    }
}

/// Every rule that needs little memory, simplest first.
pub const RULES: [OrderRule; 4] =
    [OrderRule::Plain, OrderRule::UpdateEarly, OrderRule::LeastGrowth, OrderRule::GradientsLate];

/// All tasks of a step. `bytes` is the size of one instance of each value, for the rules that weigh memory.
pub fn tasks(
    graph: &Graph,
    readers: &Readers,
    partials: u32,
    rule: OrderRule,
    bytes: &[u64],
) -> Vec<OrderedTask> {
    let objectives = graph.nodes.iter().map(|n| n.objective as usize + 1).max().unwrap_or(0);
    let mut forward: Vec<Vec<NodeId>> = vec![Vec::new(); objectives];
    let mut rest: Vec<Vec<NodeId>> = vec![Vec::new(); objectives];
    for (id, node) in graph.nodes.iter().enumerate().filter(|(_, n)| !n.op.def().is_view()) {
        let objective = node.objective as usize;
        let early = node.phase == Phase::Forward && rest[objective].is_empty();
        if early { &mut forward[objective] } else { &mut rest[objective] }.push(NodeId(id as u32));
    }
    let mut out = Emitter::new(graph, readers, partials);
    // Other devices in a collective may have other packs.
    let meets = |n: &Node| n.op.def().meets() && n.phase != Phase::Update;
    if rule == OrderRule::Grouped && !graph.nodes.iter().any(meets) && out.all_carry_early() {
        out.grouped(&forward, &rest, bytes);
        return out.tasks;
    }
    for (objective, (forward, rest)) in forward.iter().zip(&rest).enumerate() {
        let is_update = |id: &NodeId| graph.nodes[id.index()].phase == Phase::Update;
        let last = partials - 1;
        for partial in 0..last {
            forward
                .iter()
                .chain(rest.iter().filter(|id| !is_update(id)))
                .for_each(|&id| out.run(id, partial));
            out.forward_carries(objective as u32, partial);
        }
        forward.iter().for_each(|&id| out.run(id, last));
        // A loss that only later nodes make must still come before every update.
        let late_loss = rest.iter().any(|id| {
            let node = &graph.nodes[id.index()];
            node.phase == Phase::Forward && node.outs.iter().any(|v| readers.output[v.index()])
        });
        let order = match rule {
            OrderRule::UpdateEarly | OrderRule::LeastGrowth | OrderRule::GradientsLate if !late_loss => {
                let scene = ArrangeInput {
                    graph,
                    readers,
                    sums_exist: partials > 1,
                    remaining: &out.remaining,
                    carries: &out.update,
                    bytes: (rule != OrderRule::UpdateEarly).then_some(bytes),
                    gradients_late: rule == OrderRule::GradientsLate,
                };
                arrange(&scene, rest)
            }
            // Collectives keep the graph's order.
            _ if meets_early(graph, rest) => rest.clone(),
            _ => {
                let (updates, others): (Vec<NodeId>, Vec<NodeId>) = rest.iter().partition(|id| is_update(id));
                others.into_iter().chain(updates).collect()
            }
        };
        let mut before = order.iter().filter(|id| !is_update(id)).count();
        if before == 0 {
            out.forward_carries(objective as u32, last);
        }
        for &id in &order {
            if is_update(&id) {
                out.run(id, 0);
                out.update_carries(id);
            } else {
                out.run(id, last);
                before -= 1;
                if before == 0 {
                    out.forward_carries(objective as u32, last);
                }
            }
        }
        out.late_carries(false);
    }
    out.late_carries(true);
    out.tasks
}

/// Whether a collective of an update comes before one of another node.
fn meets_early(graph: &Graph, nodes: &[NodeId]) -> bool {
    let node = |id: &NodeId| &graph.nodes[id.index()];
    let mut collectives = nodes.iter().map(node).filter(|node| node.op.def().meets());
    collectives.any(|node| node.phase == Phase::Update) && collectives.any(|node| node.phase != Phase::Update)
}

/// All tasks of a step whose nodes have turns; each update comes as soon as it can. None if a partial would not see the
/// states that the one before it left.
pub fn in_turns(
    graph: &Graph,
    readers: &Readers,
    partials: u32,
    turns: &[PartialTurn],
) -> Option<Vec<OrderedTask>> {
    let mut out = Emitter::new(graph, readers, partials);
    let meets = |id: &NodeId| graph.nodes[id.index()].op.def().meets();
    if !out.all_carry_early() {
        return None;
    }
    let updates = (0..graph.nodes.len() as u32).map(NodeId);
    let updates = updates.filter(|id| graph.nodes[id.index()].phase == Phase::Update);
    let mut updates: Vec<NodeId> = updates.filter(|id| !graph.nodes[id.index()].op.def().is_view()).collect();
    let mut objective = 0;
    // Whether updates may have become ready.
    let mut due = false;
    let mut turns = turns.iter().peekable();
    while let Some(turn) = turns.next() {
        let entered = turn.nodes.first().map_or(objective, |id| graph.nodes[id.index()].objective);
        if entered > objective {
            let (over, later) =
                updates.into_iter().partition(|id| graph.nodes[id.index()].objective < entered);
            out.all_updates(over);
            out.late_carries(false);
            (objective, updates) = (entered, later);
        }
        out.turn(&turn.nodes, turn.partial);
        // Other devices wait for collectives, but not for updates.
        due |= turn.partial + 1 == partials;
        if due && !turns.peek().is_some_and(|next| next.nodes.iter().all(meets)) {
            // Collectives of updates come after all turns, since other devices may be behind.
            out.ready_updates(&mut updates, |id| !meets(id));
            due = false;
        }
    }
    out.all_updates(updates);
    out.late_carries(true);
    Some(out.tasks)
}

/// Writes tasks, and counts the readers that are left.
struct Emitter<'a> {
    graph: &'a Graph,
    readers: &'a Readers,
    partials: u32,
    tasks: Vec<OrderedTask>,
    /// Readers of each root that have not run for the last time.
    remaining: Vec<u32>,
    /// Carried by forward nodes: (objective, input, next).
    forward: Vec<(u32, Value, Value)>,
    /// Carried by update nodes: (input, next) by node.
    update: Vec<Vec<(Value, Value)>>,
    /// Carries that wait for the last reader of the old value.
    late: Vec<(Value, Value)>,
    /// Carries of values that no update makes.
    last: Vec<(Value, Value)>,
    /// Nodes that have run for the last time.
    ran: Vec<bool>,
}

impl<'a> Emitter<'a> {
    fn new(graph: &'a Graph, readers: &'a Readers, partials: u32) -> Emitter<'a> {
        let (mut forward, mut update, mut last) =
            (Vec::new(), vec![Vec::new(); graph.nodes.len()], Vec::new());
        let producer = |v: Value| graph.maker(v).map(|id| (id, &graph.nodes[id.index()]));
        for &(input, next) in &graph.carries {
            let Some((_, node)) = producer(next) else { continue };
            // A view is carried when its operand is made.
            match producer(readers.root[next.index()]) {
                _ if node.phase != Phase::Update => forward.push((node.objective, input, next)),
                Some((id, node)) if node.phase == Phase::Update => update[id.index()].push((input, next)),
                _ => last.push((input, next)),
            }
        }
        let count = |v: usize| readers.of_root(Value(v as u32)).len() as u32;
        let remaining = (0..graph.values.len()).map(count).collect();
        let (tasks, late, ran) = (Vec::new(), Vec::new(), vec![false; graph.nodes.len()]);
        Emitter { graph, readers, partials, tasks, remaining, forward, update, late, last, ran }
    }

    fn run(&mut self, id: NodeId, partial: u32) {
        let node = &self.graph.nodes[id.index()];
        self.tasks.push(OrderedTask::Run(id, partial));
        if node.phase == Phase::Update || partial + 1 == self.partials {
            self.ran[id.index()] = true;
            for_each_root(&self.readers.root, &node.ins, |v| self.remaining[v.index()] -= 1);
        }
        if node.phase != Phase::Update && partial > 0 {
            let sums = node.outs.iter().filter(|v| self.readers.summed[v.index()]);
            self.tasks.extend(sums.map(|v| OrderedTask::Accumulate(*v, partial)));
        }
    }

    /// The tasks of every objective by [`OrderRule::Grouped`].
    fn grouped(&mut self, forward: &[Vec<NodeId>], rest: &[Vec<NodeId>], bytes: &[u64]) {
        let graph = self.graph;
        for (forward, rest) in forward.iter().zip(rest) {
            let (mut updates, backward): (Vec<NodeId>, Vec<NodeId>) =
                rest.iter().partition(|id| graph.nodes[id.index()].phase == Phase::Update);
            for pack in packs(graph, forward, bytes).chain(packs(graph, &backward, bytes)) {
                for partial in 0..self.partials {
                    self.turn(pack, partial);
                }
                self.ready_updates(&mut updates, |_| true);
            }
            self.all_updates(updates);
            self.late_carries(false);
        }
        self.late_carries(true);
    }

    /// Runs nodes for one partial, and carries the states that they change.
    fn turn(&mut self, nodes: &[NodeId], partial: u32) {
        nodes.iter().for_each(|&id| self.run(id, partial));
        for i in 0..self.forward.len() {
            let (_, input, next) = self.forward[i];
            if self.producer(next).is_some_and(|id| nodes.contains(&id)) {
                self.carry(input, next, partial);
            }
        }
    }

    /// Whether states that the forward pass changes can take their next values as soon as these are made: no node reads
    /// the old ones later.
    fn all_carry_early(&self) -> bool {
        self.forward.iter().all(|(_, input, next)| {
            let made = self.producer(*next);
            let before =
                |id: &NodeId| self.graph.nodes[id.index()].phase == Phase::Forward && Some(*id) <= made;
            self.readers.of_root(*input).iter().all(before)
        })
    }

    /// Runs the updates that are ready; collectives keep the graph's order.
    fn ready_updates(&mut self, updates: &mut Vec<NodeId>, may: impl Fn(&NodeId) -> bool) {
        let mut waiting = false;
        updates.retain(|&id| {
            let meets = self.graph.nodes[id.index()].op.def().meets();
            let ready = may(&id) && !(meets && waiting) && self.ready(id);
            waiting |= meets && !ready;
            if ready {
                self.run(id, 0);
                self.update_carries(id);
            }
            !ready
        });
    }

    fn all_updates(&mut self, updates: Vec<NodeId>) {
        for id in updates {
            self.run(id, 0);
            self.update_carries(id);
        }
    }

    /// The node that makes the bytes of a value.
    fn producer(&self, v: Value) -> Option<NodeId> {
        self.graph.maker(self.readers.root[v.index()])
    }

    /// Whether an update can run: its operands and the losses are there, and no other node will read the inputs that it
    /// overwrites.
    fn ready(&self, id: NodeId) -> bool {
        let (graph, node) = (self.graph, &self.graph.nodes[id.index()]);
        let made = |v: Value| graph.maker(v).is_none_or(|id| self.ran[id.index()]);
        let reads_it = |input: Value| node.ins.iter().any(|v| self.readers.root[v.index()] == input);
        let alone =
            |(input, _): &(Value, Value)| self.remaining[input.index()] <= u32::from(reads_it(*input));
        let is_loss =
            |v: &Value| graph.maker(*v).is_some() && graph.made_in(*v) == (Phase::Forward, node.objective);
        let losses = graph.outputs.iter().map(|output| output.value).filter(is_loss);
        let root = |v: &Value| self.readers.root[v.index()];
        node.ins.iter().all(|v| made(root(v)))
            && losses.into_iter().all(|v| made(root(&v)))
            && self.update[id.index()].iter().all(alone)
    }

    fn carry(&mut self, input: Value, next: Value, partial: u32) {
        self.tasks.push(OrderedTask::Carry(input, self.readers.seen(next, partial)));
    }

    fn forward_carries(&mut self, objective: u32, partial: u32) {
        for i in 0..self.forward.len() {
            let (of, input, next) = self.forward[i];
            if of == objective {
                self.carry(input, next, partial);
            }
        }
    }

    fn update_carries(&mut self, id: NodeId) {
        for (input, next) in std::mem::take(&mut self.update[id.index()]) {
            if self.remaining[input.index()] == 0 {
                self.carry(input, next, 0);
            } else {
                self.late.push((input, next));
            }
        }
    }

    /// Writes waiting carries whose old value has no reader left; with `all`, every one.
    fn late_carries(&mut self, all: bool) {
        if all {
            self.late.append(&mut self.last);
        }
        for (input, next) in std::mem::take(&mut self.late) {
            if all || self.remaining[input.index()] == 0 {
                self.carry(input, next, 0);
            } else {
                self.late.push((input, next));
            }
        }
    }
}

/// About the number of packs of all weights.
const PACKS: u64 = 12;

/// Neighbouring nodes in packs that read about equal bytes of weights.
fn packs<'a>(graph: &Graph, nodes: &'a [NodeId], bytes: &[u64]) -> std::vec::IntoIter<&'a [NodeId]> {
    let weight = |v: &Value| matches!(graph.value(*v).origin, Origin::Input(Role::Weight(_)));
    let all: u64 = graph.weights().map(|(v, _)| bytes[v.index()]).sum();
    let (mut packs, mut first, mut held) = (Vec::new(), 0, Vec::new());
    for (i, id) in nodes.iter().enumerate() {
        let new = graph.nodes[id.index()].ins.iter().filter(|v| weight(v));
        let new: Vec<Value> = new.copied().filter(|v| !held.contains(v)).collect();
        let sum: u64 = held.iter().chain(&new).map(|v| bytes[v.index()]).sum();
        if sum > all / PACKS && first < i && !new.is_empty() {
            packs.push(&nodes[first..i]);
            (first, held) = (i, Vec::new());
        }
        held.extend(new);
    }
    packs.push(&nodes[first..]);
    packs.into_iter()
}
