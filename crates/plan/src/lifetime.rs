//! Which values share storage and how long each storage is needed, for one order of the tasks. Views
//! live where their operand does; a result takes the place of an operand that is used for the last time,
//! where the operator allows it; carried inputs are updated in place where nothing reads the old value
//! afterwards. Sizes play no part.

use crate::order::{Instance, Readers, Task};
use gulliver_graph::graph::{Graph, Phase, Role, Value};

/// A piece of memory shared by instances, and the tasks between which it is needed.
#[derive(Clone, Debug, PartialEq)]
pub struct Storage {
    /// The value it was made for.
    pub value: Value,
    /// How many instances of it lie one after the other.
    pub copies: u32,
    /// First task.
    pub start: u32,
    /// Last task.
    pub end: u32,
    /// Stays from step to step.
    pub persistent: bool,
    /// Holds an input: nothing but its own carry may overwrite it.
    pub input: bool,
}

/// Where an instance is: its storage, and how many instances lie before it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home {
    /// Index of the storage.
    pub storage: u32,
    /// Instances before it.
    pub slice: u32,
}

/// Where instances live.
#[derive(Clone, Debug, PartialEq)]
pub struct Lifetimes {
    /// The storages.
    pub storages: Vec<Storage>,
    partials: u32,
    homes: Vec<Home>,
}

impl Lifetimes {
    /// Where an instance of a root lives.
    pub fn home(&self, i: Instance) -> Home {
        self.homes[index(self.partials, i)]
    }
}

const NOWHERE: Home = Home { storage: u32::MAX, slice: 0 };

fn index(partials: u32, i: Instance) -> usize {
    i.value.index() * partials as usize + i.partial as usize
}

/// Decides where every instance lives, in time linear in the tasks.
pub fn lifetimes(graph: &Graph, readers: &Readers, tasks: &[Task], partials: u32) -> Lifetimes {
    let end_of_step = tasks.len() as u32;
    let at = |i: Instance| index(partials, i);
    let last_read = last_reads(graph, readers, tasks, partials);
    let mut storages: Vec<Storage> = Vec::new();
    let mut homes = vec![NOWHERE; graph.values.len() * partials as usize];
    for (value, role, _) in graph.inputs() {
        let sliced = matches!(role, Role::Data | Role::Random);
        let copies = if sliced { partials } else { 1 };
        let last = (0..copies).filter_map(|partial| last_read[at(Instance { value, partial })]).max();
        for slice in 0..copies {
            homes[at(Instance { value, partial: slice })] = Home { storage: storages.len() as u32, slice };
        }
        storages.push(Storage {
            value,
            copies,
            start: 0,
            end: if sliced { last.unwrap_or(0) } else { end_of_step },
            persistent: matches!(role, Role::Weight(_) | Role::State(_)),
            input: true,
        });
    }
    // The input whose next value a root is.
    let mut carried: Vec<Option<Value>> = vec![None; graph.values.len()];
    for (input, next) in &graph.carries {
        carried[readers.root[next.index()].index()] = Some(*input);
    }
    for (t, task) in tasks.iter().enumerate() {
        let t = t as u32;
        let Task::Run(id, partial) = *task else { continue };
        let node = &graph.nodes[id.index()];
        let pairs = node.op.def().in_place();
        let operand = |i: usize| readers.seen(node.ins[i], partial);
        for (o, &v) in node.outs.iter().enumerate() {
            let out = readers.seen(v, partial);
            let last = last_read[at(out)].map_or(t, |l| l.max(t));
            let keep_apart = partials > 1 && readers.summed[v.index()];
            let candidates = pairs.iter().filter(|p| p.1 == o && p.0 < node.ins.len() && !keep_apart);
            let reuse = candidates.map(|p| p.0).find(|&i| {
                let home = homes[at(operand(i))];
                let storage = &storages[home.storage as usize];
                let lives_there = |v: Value, p| homes[at(readers.seen(v, p))].storage == home.storage;
                let alone = node.ins.iter().filter(|v| lives_there(**v, partial)).count() == 1
                    && !node.outs[..o].iter().any(|v| lives_there(*v, partial));
                let same_type = graph.ty(node.ins[i]) == graph.ty(v);
                let finished = last_read[at(operand(i))].is_none_or(|l| l <= t);
                let own_carry = carried[v.index()] == Some(operand(i).value);
                let free = if storage.input { own_carry } else { storage.end <= t };
                alone && same_type && finished && free && storage.copies == 1
            });
            let home = match reuse {
                Some(i) => {
                    let home = homes[at(operand(i))];
                    let storage = &mut storages[home.storage as usize];
                    storage.end = storage.end.max(last);
                    home
                }
                None => {
                    let (start, end) = (t, last);
                    storages.push(Storage {
                        value: v,
                        copies: 1,
                        start,
                        end,
                        persistent: false,
                        input: false,
                    });
                    Home { storage: storages.len() as u32 - 1, slice: 0 }
                }
            };
            homes[at(out)] = home;
        }
    }
    Lifetimes { storages, partials, homes }
}

/// The last task that reads each instance.
fn last_reads(graph: &Graph, readers: &Readers, tasks: &[Task], partials: u32) -> Vec<Option<u32>> {
    let mut last: Vec<Option<u32>> = vec![None; graph.values.len() * partials as usize];
    let mut read = |i: Instance, t: u32| last[index(partials, i)] = Some(t);
    for (t, task) in tasks.iter().enumerate() {
        let t = t as u32;
        match *task {
            Task::Run(id, partial) => {
                let node = &graph.nodes[id.index()];
                let partial = if node.phase == Phase::Update { 0 } else { partial };
                node.ins.iter().for_each(|v| read(readers.seen(*v, partial), t));
            }
            Task::Accumulate(value, partial) => {
                read(Instance { value, partial }, t);
                read(Instance { value, partial: 0 }, t);
            }
            Task::Carry(_, next) => read(next, t),
        }
    }
    for (_, v) in &graph.outputs {
        read(readers.seen(*v, 0), tasks.len() as u32);
    }
    last
}
