//! The last pass: a script becomes a plan. Every storage gets its bytes and offset, every act its steps, and every step
//! the steps of other streams that it waits for.

use crate::document::error::{Holders, PlanError};
use crate::document::plan::{
    Act, Buffer, BufferId, BufferRange, InputPlace, OutputPlace, Plan, Space, Step, TIERS, Tier,
};
use crate::document::residence::Residence;
use crate::step::layout::{Lifespan, pack};
use crate::step::lifetime::Lifetimes;
use crate::step::outline::{BoundSizes, Outline};
use crate::step::script::{Script, ScriptOp, VersionId};
use crate::step::wait::add_waits;
use gulliver_graph::graph::{Graph, NodeId, Value};
use std::iter::Peekable;

/// Memory that a script is laid out in.
pub struct LayoutArena<'a> {
    /// Where persistent inputs reside, in the graph's order of all inputs.
    pub residences: &'a [Option<Residence>],
    /// First byte after them in each tier.
    pub ends: [u64; TIERS.len()],
    /// Bytes of the device that a layout should keep within, if it can.
    pub limit: Option<u64>,
    /// Whether layouts that take long to find are worth it.
    pub thorough: bool,
}

/// The plan of a script: every buffer with its bytes and offset, every step with its waits.
pub fn lay_out(
    outline: &Outline,
    graph: &Graph,
    (script, life): (&Script, &Lifetimes),
    sizes: &BoundSizes,
    arena: &LayoutArena,
) -> Result<Plan, PlanError> {
    let bytes = |v: Value| sizes.bytes[outline.kinds.type_of[v.index()] as usize];
    let storages = &life.storages;
    let mut buffers: Vec<Buffer> = Vec::with_capacity(storages.len() + script.acts.len());
    let mut spans: [Vec<Lifespan>; TIERS.len()] = Default::default();
    let mut moving: [Vec<usize>; TIERS.len()] = Default::default();
    for (i, s) in storages.iter().enumerate() {
        let total = bytes(s.value) * u64::from(s.copies);
        let space = s.tier as usize;
        let mut buffer = Buffer { space: space as u32, offset: 0, bytes: total, value: Some(s.value) };
        if s.persistent {
            // The first storages are those of the inputs, in order.
            match arena.residences.get(i).copied().flatten() {
                Some(residence) if residence.bytes == total && residence.tier == s.tier => {
                    buffer.offset = residence.offset
                }
                _ => return Err(PlanError::NotPersistent(graph.value(s.value).name.clone())),
            }
        } else {
            let bytes = total.next_multiple_of(s.tier.grain());
            spans[space].push(Lifespan { bytes, start: s.start, end: s.end });
            moving[space].push(i);
        }
        buffers.push(buffer);
    }
    let mut scratch_of = vec![None; script.acts.len()];
    for (t, act) in script.acts.iter().enumerate() {
        let ScriptOp::Run(id, _) = act.what else { continue };
        let bytes = sizes.scratch[outline.kinds.kind_of[id.index()] as usize];
        if bytes > 0 {
            scratch_of[t] = Some(BufferId(buffers.len() as u32));
            moving[0].push(buffers.len());
            spans[0].push(Lifespan { bytes, start: t as u32, end: t as u32 });
            buffers.push(Buffer { space: 0, offset: 0, bytes, value: None });
        }
    }
    let mut ends = arena.ends;
    for space in 0..TIERS.len() {
        let limit = arena.limit.filter(|_| space == Tier::Device as usize);
        let (offsets, end) = pack(&spans[space], ends[space], limit, arena.thorough);
        ends[space] = end;
        for (&i, &offset) in moving[space].iter().zip(&offsets) {
            buffers[i].offset = offset;
        }
    }
    let place = |v: VersionId| {
        let (residence, bytes) = (life.slots[v as usize], bytes(script.versions[v as usize].of.value));
        BufferRange { buffer: BufferId(residence.storage), start: bytes * u64::from(residence.slice), bytes }
    };
    let whole = |id: BufferId| BufferRange { buffer: id, start: 0, bytes: buffers[id.0 as usize].bytes };
    let inputs = graph.inputs().enumerate().map(|(storage, (value, role, _))| InputPlace {
        value,
        place: whole(BufferId(storage as u32)),
        persistent: role.persists(),
    });
    let inputs = inputs.collect();
    let outputs = graph.outputs.iter().zip(&script.outputs).map(|(output, v)| OutputPlace {
        name: output.name.clone(),
        role: output.role,
        scope: output.scope,
        value: output.value,
        place: place(*v),
    });
    let outputs = outputs.collect();
    let meets = |id: NodeId| graph.nodes[id.index()].op.def().meets();
    let steps = steps(script, life, &scratch_of, meets, place, whole);
    let mut plan = Plan {
        sizes: sizes.slice.iter().map(|(s, v)| (s.to_string(), v)).collect(),
        partials: outline.partials,
        spaces: spaces(ends),
        buffers,
        inputs,
        outputs,
        steps,
        decisions: Vec::new(),
        passes: Vec::new(),
    };
    for (space, live) in plan.live_peaks().into_iter().enumerate() {
        plan.spaces[space].live = live;
    }
    add_waits(&mut plan);
    Ok(plan)
}

fn steps(
    script: &Script,
    life: &Lifetimes,
    scratch_of: &[Option<BufferId>],
    meets: impl Fn(NodeId) -> bool,
    place: impl Fn(VersionId) -> BufferRange,
    whole: impl Fn(BufferId) -> BufferRange,
) -> Vec<Step> {
    let storages = &life.storages;
    let acts = script.acts.len();
    // Inputs are allocated before the first act, other storages at the act that makes them.
    let made = (0..storages.len() as u32).filter(|&s| !storages[s as usize].input);
    let mut starts = sorted(made, |s| storages[s].start);
    let mut ends = sorted(0..storages.len() as u32, |s| storages[s].end);
    let mut steps: Vec<Step> = Vec::with_capacity(acts * 3 + storages.len());
    let inputs = (0..storages.len()).filter(|&s| storages[s].input);
    steps.extend(inputs.map(|s| Act::Alloc(BufferId(s as u32)).into()));
    for (t, scratch) in scratch_of.iter().enumerate() {
        while let Some((_, s)) = starts.next_if(|(start, _)| *start as usize == t) {
            steps.push(Act::Alloc(BufferId(s)).into());
        }
        let (ins, outs) = script.split(t);
        let at =
            |versions: &[VersionId]| -> Vec<BufferRange> { versions.iter().map(|v| place(*v)).collect() };
        match script.acts[t].what {
            ScriptOp::Run(node, partial) if meets(node) => {
                let (own, result) = (ins.first().map(|v| place(*v)), place(outs[0]));
                steps.push(Act::Exchange { node, partial, own, result }.into());
            }
            ScriptOp::Run(node, partial) => {
                steps.extend(scratch.map(|b| Act::Alloc(b).into()));
                let at_work = scratch.map(&whole);
                steps.push(Act::Run { node, partial, ins: at(ins), outs: at(outs), scratch: at_work }.into());
                steps.extend(scratch.map(|b| Act::Free(b).into()));
            }
            ScriptOp::Add => steps.push(Act::Add { from: place(ins[0]), into: place(ins[1]) }.into()),
            ScriptOp::Carry => {
                let [next, input] = [0, 1].map(|i| script.refs(t)[i]);
                let (from, to) = (place(next), place(input));
                let tier = |v: VersionId| script.versions[v as usize].tier;
                if tier(next) != tier(input) {
                    steps.push(Act::Move { from, to }.into());
                } else if from != to {
                    steps.push(Act::Copy { from, to }.into());
                }
            }
            ScriptOp::Move => steps.push(Act::Move { from: place(ins[0]), to: place(outs[0]) }.into()),
        }
        while let Some((_, s)) = ends.next_if(|(end, _)| *end as usize == t) {
            steps.push(Act::Free(BufferId(s)).into());
        }
    }
    steps
}

/// (act, storage) in order.
fn sorted(
    storages: impl Iterator<Item = u32>,
    act: impl Fn(usize) -> u32,
) -> Peekable<std::vec::IntoIter<(u32, u32)>> {
    let mut all: Vec<(u32, u32)> = storages.map(|s| (act(s as usize), s)).collect();
    all.sort_unstable();
    all.into_iter().peekable()
}

/// The spaces of a plan for one device.
fn spaces(bytes: [u64; TIERS.len()]) -> Vec<Space> {
    TIERS.map(|tier| Space { tier, bytes: bytes[tier as usize], live: 0 }).into()
}

/// The largest buffers in use when most bytes are.
pub(crate) fn holders(graph: &Graph, plan: &Plan) -> Holders {
    let name = |b: &BufferId| {
        let buffer = plan.buffer(*b);
        let name = buffer.value.map_or("scratch", |v| graph.value(v).name.as_str());
        (name.to_string(), buffer.bytes)
    };
    Holders(plan.at_peak().1.iter().take(Holders::NAMED).map(name).collect())
}
