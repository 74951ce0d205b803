//! Which versions share storage and how long each storage is needed. Views live where their operand does;
//! a result takes the place of an operand that is used for the last time, where the operator allows it;
//! carried inputs are updated in place where nothing reads the old value afterwards. Sizes play no part.

use crate::order::Readers;
use crate::plan::Tier;
use crate::script::{Script, VersionId, What, copies};
use gulliver_graph::graph::{Graph, Role, Value};

/// A piece of memory shared by versions, and the acts between which it is needed.
#[derive(Clone, Debug, PartialEq)]
pub struct Storage {
    /// The value it was made for.
    pub value: Value,
    /// How many instances of it lie one after the other.
    pub copies: u32,
    /// In which kind of memory.
    pub tier: Tier,
    /// First act.
    pub start: u32,
    /// Last act.
    pub end: u32,
    /// Stays from step to step.
    pub persistent: bool,
    /// Holds an input: nothing but its own carry may overwrite it.
    pub input: bool,
}

/// Where a version is: its storage, and how many instances lie before it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home {
    /// Index of the storage.
    pub storage: u32,
    /// Instances before it.
    pub slice: u32,
}

/// Where versions live.
#[derive(Clone, Debug, PartialEq)]
pub struct Lifetimes {
    /// The storages.
    pub storages: Vec<Storage>,
    /// By version.
    pub homes: Vec<Home>,
}

/// Decides where every version lives, in time linear in the acts.
pub fn lifetimes(graph: &Graph, readers: &Readers, script: &Script, partials: u32) -> Lifetimes {
    let end_of_step = script.acts.len() as u32;
    let last = last_refs(graph, script);
    let mut storages: Vec<Storage> = Vec::new();
    let nowhere = Home { storage: u32::MAX, slice: 0 };
    let mut homes = vec![nowhere; script.versions.len()];
    let mut input: VersionId = 0;
    for (value, role, _) in graph.inputs() {
        let (copies, first) = (copies(role, partials), input);
        input += copies;
        for slice in 0..copies {
            homes[(first + slice) as usize] = Home { storage: storages.len() as u32, slice };
        }
        let sliced = matches!(role, Role::Data | Role::Random);
        let used = (first..input).filter_map(|v| last[v as usize]).max();
        storages.push(Storage {
            value,
            copies,
            tier: script.versions[first as usize].tier,
            start: 0,
            end: if sliced { used.unwrap_or(0) } else { end_of_step },
            persistent: matches!(role, Role::Weight(_) | Role::State(_)),
            input: true,
        });
    }
    // The input whose next value a root is.
    let mut carried: Vec<Option<Value>> = vec![None; graph.values.len()];
    for (input, next) in &graph.carries {
        carried[readers.root[next.index()].index()] = Some(*input);
    }
    for t in 0..script.acts.len() {
        let (ins, outs) = script.sides(graph, t);
        let node = match script.acts[t].what {
            What::Run(id, _) => Some(&graph.nodes[id.index()]),
            _ => None,
        };
        let pairs = node.map_or(Vec::new(), |node| node.op.def().in_place());
        let now = t as u32;
        for (o, &out) in outs.iter().enumerate() {
            let (version, until) =
                (script.versions[out as usize], last[out as usize].map_or(now, |l| l.max(now)));
            let value = version.of.value;
            let keep_apart = partials > 1 && readers.summed[value.index()];
            let candidates = pairs.iter().filter(|p| p.1 == o && p.0 < ins.len() && !keep_apart);
            let reuse = candidates.map(|p| p.0).find(|&i| {
                let operand = ins[i];
                let home = homes[operand as usize];
                let storage = &storages[home.storage as usize];
                let lives_there = |v: &VersionId| homes[*v as usize].storage == home.storage;
                let alone = || {
                    ins.iter().filter(|v| lives_there(v)).count() == 1 && !outs[..o].iter().any(lives_there)
                };
                let from = script.versions[operand as usize].of.value;
                let finished = last[operand as usize].is_none_or(|l| l <= now);
                let free =
                    if storage.input { carried[value.index()] == Some(from) } else { storage.end <= now };
                let same_type = || node.is_some_and(|node| graph.ty(node.ins[i]) == graph.ty(value));
                finished && free && storage.copies == 1 && alone() && same_type()
            });
            homes[out as usize] = match reuse {
                Some(i) => {
                    let home = homes[ins[i] as usize];
                    let storage = &mut storages[home.storage as usize];
                    storage.end = storage.end.max(until);
                    home
                }
                None => {
                    storages.push(Storage {
                        value,
                        copies: 1,
                        tier: version.tier,
                        start: now,
                        end: until,
                        persistent: false,
                        input: false,
                    });
                    Home { storage: storages.len() as u32 - 1, slice: 0 }
                }
            };
        }
    }
    Lifetimes { storages, homes }
}

/// The last act that reads each version; outputs are read at the end of the step.
fn last_refs(graph: &Graph, script: &Script) -> Vec<Option<u32>> {
    let mut last: Vec<Option<u32>> = vec![None; script.versions.len()];
    for t in 0..script.acts.len() {
        for &v in script.sides(graph, t).0 {
            last[v as usize] = Some(t as u32);
        }
    }
    for &v in &script.outputs {
        last[v as usize] = Some(script.acts.len() as u32);
    }
    last
}
