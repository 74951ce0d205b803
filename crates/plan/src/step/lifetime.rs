//! Which versions share storage and how long each storage is needed. Views live where their operand does;
//! a result takes the place of an operand that is used for the last time, where the operator allows it;
//! carried inputs are updated in place where nothing reads the old value afterwards. Sizes play no part.

use crate::document::plan::Tier;
use crate::step::layout::aligned;
use crate::step::readers::Readers;
use crate::step::script::{Script, ScriptOp, VersionId, copies};
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
pub struct VersionSlot {
    /// Index of the storage.
    pub storage: u32,
    /// Instances before it.
    pub slice: u32,
}

/// Where versions live.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lifetimes {
    /// The storages.
    pub storages: Vec<Storage>,
    /// By version.
    pub slots: Vec<VersionSlot>,
}

/// What a graph says about sharing, whatever is done with its values; found once.
#[derive(Clone, Debug)]
pub struct StorageSharing {
    /// Slices of the batch.
    pub partials: u32,
    /// Inputs in the graph's order, with their numbers of instances and roles.
    inputs: Vec<(Value, u32, Role)>,
    /// (operand, result) pairs of a node where the result may take the operand's place, one list after the
    /// other; and where the list of a node begins.
    pairs: Vec<(u32, u32)>,
    first: Vec<u32>,
    /// The input whose next value a root is.
    carried: Vec<Option<Value>>,
    /// Values that exist beside the sum they are added to.
    apart: Vec<bool>,
}

impl StorageSharing {
    /// In time linear in the graph.
    pub fn of(graph: &Graph, readers: &Readers, partials: u32) -> StorageSharing {
        let mut carried: Vec<Option<Value>> = vec![None; graph.values.len()];
        for (input, next) in &graph.carries {
            carried[readers.root[next.index()].index()] = Some(*input);
        }
        let (mut pairs, mut first) = (Vec::new(), vec![0]);
        for node in &graph.nodes {
            let may = |&(i, o): &(usize, usize)| {
                i < node.ins.len() && o < node.outs.len() && {
                    let out = readers.root[node.outs[o].index()];
                    graph.ty(node.ins[i]) == graph.ty(out)
                }
            };
            let here = node.op.def().in_place();
            pairs.extend(here.into_iter().filter(may).map(|(i, o)| (i as u32, o as u32)));
            first.push(pairs.len() as u32);
        }
        let inputs = graph.inputs().map(|(value, role, _)| (value, copies(role, partials), role));
        let apart = readers.summed.iter().map(|summed| partials > 1 && *summed);
        StorageSharing { partials, inputs: inputs.collect(), pairs, first, carried, apart: apart.collect() }
    }

    /// Inputs in the graph's order, with their number of instances and their roles.
    pub(crate) fn inputs(&self) -> impl Iterator<Item = (Value, u32, Role)> + '_ {
        self.inputs.iter().copied()
    }

    /// The input whose next value this is, if any.
    pub(crate) fn carried(&self, root: Value) -> Option<Value> {
        self.carried[root.index()]
    }

    /// Whether some result of an act may take the place of one of its operands.
    pub(crate) fn may_replace(&self, what: ScriptOp, result: usize) -> bool {
        self.pairs(what).iter().any(|pair| pair.1 as usize == result)
    }

    fn pairs(&self, what: ScriptOp) -> &[(u32, u32)] {
        match what {
            ScriptOp::Run(id, _) => {
                &self.pairs[self.first[id.index()] as usize..self.first[id.index() + 1] as usize]
            }
            _ => &[],
        }
    }
}

/// Decides where every version lives, in time linear in the acts.
pub fn lifetimes(sharing: &StorageSharing, script: &Script) -> Lifetimes {
    let mut life = Lifetimes::default();
    lifetimes_into(sharing, script, &mut Vec::new(), &mut life);
    life
}

/// No act reads it.
const UNREAD: u32 = u32::MAX;

/// As [`lifetimes`], without new memory: `last` is overwritten by the last act that reads each version.
pub fn lifetimes_into(sharing: &StorageSharing, script: &Script, last: &mut Vec<u32>, life: &mut Lifetimes) {
    let end_of_step = script.acts.len() as u32;
    last_refs(script, last);
    let Lifetimes { storages, slots } = life;
    storages.clear();
    slots.clear();
    slots.resize(script.versions.len(), VersionSlot { storage: u32::MAX, slice: 0 });
    let mut input: VersionId = 0;
    for &(value, copies, role) in &sharing.inputs {
        let first = input;
        input += copies;
        for slice in 0..copies {
            slots[(first + slice) as usize] = VersionSlot { storage: storages.len() as u32, slice };
        }
        let sliced = role.repeats();
        let used = last[first as usize..input as usize].iter().filter(|l| **l != UNREAD).max();
        storages.push(Storage {
            value,
            copies,
            tier: script.versions[first as usize].tier,
            start: 0,
            end: if sliced { used.copied().unwrap_or(0) } else { end_of_step },
            persistent: role.persists(),
            input: true,
        });
    }
    for (t, act) in script.acts.iter().enumerate() {
        let (ins, outs) = script.split(t);
        let pairs = sharing.pairs(act.what);
        let now = t as u32;
        for (o, &out) in outs.iter().enumerate() {
            let version = script.versions[out as usize];
            let until = if last[out as usize] == UNREAD { now } else { last[out as usize].max(now) };
            let value = version.of.value;
            let candidates = pairs.iter().filter(|p| p.1 as usize == o && !sharing.apart[value.index()]);
            let reuse = candidates.map(|p| p.0 as usize).find(|&i| {
                let operand = ins[i] as usize;
                let residence = slots[operand];
                let storage = &storages[residence.storage as usize];
                let finished = last[operand] == UNREAD || last[operand] <= now;
                let free = || match storage.input {
                    true => sharing.carried[value.index()] == Some(script.versions[operand].of.value),
                    false => storage.end <= now,
                };
                let lives_there = |v: &VersionId| slots[*v as usize].storage == residence.storage;
                let alone = || {
                    ins.iter().filter(|v| lives_there(v)).count() == 1 && !outs[..o].iter().any(lives_there)
                };
                finished && storage.copies == 1 && free() && alone()
            });
            slots[out as usize] = match reuse {
                Some(i) => {
                    let residence = slots[ins[i] as usize];
                    let storage = &mut storages[residence.storage as usize];
                    storage.end = storage.end.max(until);
                    residence
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
                    VersionSlot { storage: storages.len() as u32 - 1, slice: 0 }
                }
            };
        }
    }
}

/// The last act that reads each version; outputs are read at the end of the step.
fn last_refs(script: &Script, last: &mut Vec<u32>) {
    last.clear();
    last.resize(script.versions.len(), UNREAD);
    for (t, act) in script.acts.iter().enumerate() {
        for &v in &script.refs[act.refs as usize..(act.refs + act.reads) as usize] {
            last[v as usize] = t as u32;
        }
    }
    for &v in &script.outputs {
        last[v as usize] = script.acts.len() as u32;
    }
}

/// Aligned bytes of device memory in use during each act, scratch space included.
pub fn profile(script: &Script, life: &Lifetimes, bytes: &[u64], scratch: impl Fn(usize) -> u64) -> Vec<u64> {
    let mut profile = Vec::new();
    profile_into(script, life, bytes, &scratch, &mut profile, &mut Vec::new());
    profile
}

/// As [`profile`], without new memory.
pub(crate) fn profile_into(
    script: &Script,
    life: &Lifetimes,
    bytes: &[u64],
    scratch: &dyn Fn(usize) -> u64,
    during: &mut Vec<u64>,
    freed: &mut Vec<u64>,
) {
    for counts in [&mut *during, &mut *freed] {
        counts.clear();
        counts.resize(script.acts.len() + 1, 0);
    }
    for s in life.storages.iter().filter(|s| s.tier == Tier::Device) {
        let size = aligned(bytes[s.value.index()]).saturating_mul(s.copies.into());
        let start = &mut during[s.start as usize];
        *start = start.saturating_add(size);
        let end = &mut freed[s.end as usize];
        *end = end.saturating_add(size);
    }
    during.pop();
    let mut now = 0u64;
    for ((act, during), freed) in script.acts.iter().zip(during).zip(freed) {
        now = now.saturating_add(*during);
        let more = match act.what {
            ScriptOp::Run(id, _) => scratch(id.index()),
            _ => 0,
        };
        *during = now.saturating_add(more);
        now = now.saturating_sub(*freed);
    }
}
