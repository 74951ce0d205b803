//! Which values share storage and how long each storage is needed. Views live where their operand
//! does; a result takes the place of an operand that is used for the last time, where the operator
//! allows it; carried inputs are updated in place where nothing reads the old value afterwards.

use gulliver_graph::graph::{Graph, NodeId, Origin, Phase, Role, Value};
use std::collections::HashMap;

/// One occurrence of a value in a step: computed values exist once per partial, all else once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Instance {
    /// The value.
    pub value: Value,
    /// The slice of the batch; 0 for what exists once.
    pub partial: u32,
}

/// Something that happens, in order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Task {
    /// A node runs for one partial.
    Run(NodeId, u32),
    /// A partial result is added to the sum over the partials.
    Accumulate(Value, u32),
    /// A carried input takes its next value.
    Carry(Value, Instance),
}

/// A piece of memory shared by instances, and the tasks between which it is needed.
#[derive(Clone, Debug, PartialEq)]
pub struct Storage {
    /// Number of bytes.
    pub bytes: u64,
    /// First task.
    pub start: u32,
    /// Last task.
    pub end: u32,
    /// The value it was made for.
    pub value: Value,
    /// Stays from step to step.
    pub persistent: bool,
    /// Holds an input: nothing but its own carry may overwrite it.
    pub input: bool,
}

/// Where instances live.
#[derive(Debug)]
pub struct Lifetimes {
    /// The tasks.
    pub tasks: Vec<Task>,
    /// The storages.
    pub storages: Vec<Storage>,
    /// Storage and first byte of every instance.
    pub homes: HashMap<Instance, (usize, u64)>,
}

/// Node runs once per partial.
fn repeats(graph: &Graph, v: Value) -> bool {
    match graph.value(v).origin {
        Origin::Node { node, .. } => graph.nodes[node.index()].phase != Phase::Update,
        Origin::Input(role) => matches!(role, Role::Data | Role::Random),
    }
}

/// The instance of an operand that a node sees when it runs for a partial.
pub fn seen(graph: &Graph, v: Value, partial: u32) -> Instance {
    Instance { value: v, partial: if repeats(graph, v) { partial } else { 0 } }
}

/// Values computed once per partial whose sum over the partials is wanted: by the update, or as output.
pub fn summed(graph: &Graph) -> Vec<bool> {
    let mut summed = vec![false; graph.values.len()];
    for node in graph.nodes.iter().filter(|n| n.phase == Phase::Update) {
        for v in &node.ins {
            summed[v.index()] |= repeats(graph, *v);
        }
    }
    for (_, v) in &graph.outputs {
        summed[v.index()] |= repeats(graph, *v);
    }
    summed
}

/// The order of work: per objective, forward and backward of each partial, then the update.
pub fn tasks(graph: &Graph, partials: u32) -> Vec<Task> {
    let stages = graph.nodes.iter().map(|n| n.stage + 1).max().unwrap_or(0);
    let summed = summed(graph);
    let mut tasks = Vec::new();
    for stage in 0..stages {
        let nodes = |update: bool| {
            let all = graph.nodes.iter().enumerate();
            all.filter(move |(_, n)| n.stage == stage && (n.phase == Phase::Update) == update)
        };
        for partial in 0..partials {
            for (id, node) in nodes(false) {
                tasks.push(Task::Run(NodeId(id as u32), partial));
                if partial > 0 {
                    let sums = node.outs.iter().filter(|v| summed[v.index()]);
                    tasks.extend(sums.map(|v| Task::Accumulate(*v, partial)));
                }
            }
            tasks.extend(carries(graph, stage, false, partial));
        }
        tasks.extend(nodes(true).map(|(id, _)| Task::Run(NodeId(id as u32), 0)));
        tasks.extend(carries(graph, stage, true, 0));
    }
    tasks
}

fn carries(graph: &Graph, stage: u32, update: bool, partial: u32) -> Vec<Task> {
    let belongs = |next: Value| match graph.value(next).origin {
        Origin::Node { node, .. } => {
            let node = &graph.nodes[node.index()];
            node.stage == stage && (node.phase == Phase::Update) == update
        }
        Origin::Input(_) => false,
    };
    let carried = graph.carries.iter().filter(|(_, next)| belongs(*next));
    carried.map(|(input, next)| Task::Carry(*input, Instance { value: *next, partial })).collect()
}

/// Decides where every instance lives. `bytes` is the size of one instance of a value.
pub fn lifetimes(graph: &Graph, partials: u32, bytes: &[u64]) -> Lifetimes {
    let tasks = tasks(graph, partials);
    let summed = summed(graph);
    let end_of_step = tasks.len() as u32;

    // The instance whose bytes a view shows.
    let mut shown: HashMap<Instance, Instance> = HashMap::new();
    let root = |shown: &HashMap<Instance, Instance>, i: Instance| shown.get(&i).copied().unwrap_or(i);
    // The last task that reads each root.
    let mut last_read: HashMap<Instance, u32> = HashMap::new();
    for (t, task) in tasks.iter().enumerate() {
        let t = t as u32;
        match *task {
            Task::Run(id, partial) => {
                let node = &graph.nodes[id.index()];
                let reads_sums = node.phase == Phase::Update;
                for &v in &node.ins {
                    let at = if reads_sums { seen(graph, v, 0) } else { seen(graph, v, partial) };
                    last_read.insert(root(&shown, at), t);
                }
                if node.op.def().is_view() {
                    let of = root(&shown, seen(graph, node.ins[0], partial));
                    shown.insert(seen(graph, node.outs[0], partial), of);
                }
            }
            Task::Accumulate(v, partial) => {
                last_read.insert(root(&shown, Instance { value: v, partial }), t);
                last_read.insert(root(&shown, Instance { value: v, partial: 0 }), t);
            }
            Task::Carry(_, next) => {
                last_read.insert(root(&shown, next), t);
            }
        }
    }
    for (_, v) in &graph.outputs {
        last_read.insert(root(&shown, Instance { value: *v, partial: 0 }), end_of_step);
    }

    let mut storages: Vec<Storage> = Vec::new();
    let mut homes: HashMap<Instance, (usize, u64)> = HashMap::new();
    for (v, role, _) in graph.inputs() {
        let sliced = matches!(role, Role::Data | Role::Random);
        let copies = if sliced { partials } else { 1 };
        let size = bytes[v.index()];
        let last = (0..copies).filter_map(|p| last_read.get(&Instance { value: v, partial: p })).max();
        storages.push(Storage {
            bytes: size * u64::from(copies),
            start: 0,
            end: if sliced { last.copied().unwrap_or(0) } else { end_of_step },
            value: v,
            persistent: matches!(role, Role::Weight(_) | Role::State(_)),
            input: true,
        });
        for p in 0..copies {
            homes.insert(Instance { value: v, partial: p }, (storages.len() - 1, size * u64::from(p)));
        }
    }
    let next_of: HashMap<Value, Value> = graph.carries.iter().map(|(i, n)| (*n, *i)).collect();
    for (t, task) in tasks.iter().enumerate() {
        let t = t as u32;
        let Task::Run(id, partial) = *task else { continue };
        let node = &graph.nodes[id.index()];
        let ins: Vec<Instance> = node.ins.iter().map(|v| seen(graph, *v, partial)).collect();
        if node.op.def().is_view() {
            let home = homes[&ins[0]];
            homes.insert(seen(graph, node.outs[0], partial), home);
            continue;
        }
        let mut taken: Vec<usize> = Vec::new();
        for (o, &v) in node.outs.iter().enumerate() {
            let out = seen(graph, v, partial);
            let last = last_read.get(&out).copied().unwrap_or(t).max(t);
            let reuse = node.op.def().in_place().into_iter().filter(|p| p.1 == o).find_map(|(i, _)| {
                let &(home, first) = homes.get(ins.get(i)?)?;
                let operand = root(&shown, ins[i]);
                let storage = &storages[home];
                let alone = ins.iter().filter(|x| homes[x].0 == home).count() == 1 && !taken.contains(&home);
                let same_type = graph.ty(node.ins[i]) == graph.ty(v);
                let finished = last_read.get(&operand).is_none_or(|&l| l <= t);
                let own_carry = next_of.get(&v) == Some(&operand.value);
                let free = if storage.input { own_carry } else { storage.end <= t };
                (alone && same_type && finished && free && first == 0).then_some(home)
            });
            let keep_apart = partials > 1 && summed[v.index()];
            let home = match reuse.filter(|_| !keep_apart) {
                Some(home) => {
                    storages[home].end = storages[home].end.max(last);
                    home
                }
                None => {
                    let bytes = bytes[v.index()];
                    storages.push(Storage {
                        bytes,
                        start: t,
                        end: last,
                        value: v,
                        persistent: false,
                        input: false,
                    });
                    storages.len() - 1
                }
            };
            taken.push(home);
            homes.insert(out, (home, 0));
        }
    }
    Lifetimes { tasks, storages, homes }
}
