//! The planner. Today it makes the plain plan: everything resident, nodes in the graph's order, one
//! device; storage shared over time. Recompute, swapping and cuts will be passes before the layout.

use crate::layout::{Span, aligned, pack};
use crate::lifetime::{Instance, Task, lifetimes, seen};
use crate::plan::{Buffer, BufferId, DevicePlan, InputPlace, OutputPlace, Place, Plan, Step};
use gulliver_graph::dim::{Bindings, DimError};
use gulliver_graph::graph::{Graph, Node, Role, Value};
use std::collections::HashMap;

/// Where persistent values are in the device's arena: the same in every plan of a job, whatever the
/// input sizes, and shared by the training and the evaluation graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Persistent {
    /// Offset and size by input name.
    pub places: HashMap<String, (u64, u64)>,
    /// First byte after them.
    pub end: u64,
}

impl Persistent {
    /// Lays out the weights and states of a graph, in order.
    pub fn of(graph: &Graph) -> Result<Persistent, DimError> {
        let mut layout = Persistent::default();
        for (_, role, info) in graph.inputs() {
            if matches!(role, Role::Weight(_) | Role::State(_)) {
                let bytes = info.ty.bytes().bind(&Bindings::new())? as u64;
                layout.places.insert(info.name.clone(), (layout.end, bytes));
                layout.end += aligned(bytes);
            }
        }
        Ok(layout)
    }
}

/// What a plan is made for.
pub struct Options<'a> {
    /// Where persistent values are.
    pub persistent: &'a Persistent,
    /// Slices of the batch whose gradients are added in order.
    pub partials: u32,
    /// Hard limit of the device's arena, if there is one.
    pub memory: Option<u64>,
    /// Working memory of the kernel that will run a node, for the sizes of one partial.
    pub scratch: &'a dyn Fn(&Graph, &Node, &Bindings) -> Result<u64, DimError>,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// A size is missing or makes no sense.
    #[error(transparent)]
    Size(#[from] DimError),
    /// The batch cannot be sliced as asked.
    #[error("a batch of {batch} cannot be divided into {partials} equal partials")]
    Partials {
        /// Samples in the batch.
        batch: usize,
        /// Slices asked for.
        partials: u32,
    },
    /// An operator that symbolic shapes promised, and these sizes break.
    #[error("{node}: {why}; the input is too long for this model, or the model too small for it")]
    Shape {
        /// The node.
        node: String,
        /// What does not fit.
        why: String,
    },
    /// A weight or state that the job does not keep.
    #[error("`{0}` has no place among the persistent values of this job")]
    NotPersistent(String),
    /// Over the budget.
    #[error(
        "the plan needs {needed} bytes of device memory, the budget is {budget}; largest at the peak: {holders}; raise the budget, or lower train.batch or raise train.partials"
    )]
    DoesNotFit {
        /// Bytes of the arena.
        needed: u64,
        /// Bytes allowed.
        budget: u64,
        /// The largest buffers, by value name.
        holders: String,
    },
}

/// The symbol of the batch dimension, along which data is sliced into partials.
pub const BATCH: &str = "batch";

/// Plans one step of a graph for inputs of these sizes (of the whole batch).
pub fn make(graph: &Graph, sizes: &Bindings, options: &Options) -> Result<Plan, PlanError> {
    let partials = options.partials.max(1);
    let mut slice = sizes.clone();
    if let Some(batch) = sizes.get(BATCH) {
        if batch == 0 || batch % partials as usize != 0 {
            return Err(PlanError::Partials { batch, partials });
        }
        slice.set(BATCH, batch / partials as usize);
    }
    let mut bytes = Vec::with_capacity(graph.values.len());
    let mut shapes = Vec::with_capacity(graph.values.len());
    for info in &graph.values {
        let shape = info.ty.bind(&slice)?;
        let elements = shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d as u64));
        shapes.push(shape);
        let total = elements.and_then(|n| n.checked_mul(info.ty.dtype.size() as u64));
        let overflow = || DimError::OutOfRange { dim: info.ty.to_string(), value: "too large".into() };
        bytes.push(total.ok_or_else(overflow)?);
    }
    for node in &graph.nodes {
        let concrete =
            |values: &[Value]| values.iter().map(|v| shapes[v.index()].as_slice()).collect::<Vec<_>>();
        let fits = node.op.def().fits(&concrete(&node.ins), &concrete(&node.outs));
        fits.map_err(|why| PlanError::Shape { node: graph.value(node.outs[0]).name.clone(), why })?;
    }
    let life = lifetimes(graph, partials, &bytes);

    let mut offsets = vec![0u64; life.storages.len()];
    for (offset, storage) in offsets.iter_mut().zip(&life.storages).filter(|(_, s)| s.persistent) {
        let name = &graph.value(storage.value).name;
        match options.persistent.places.get(name) {
            Some(&(at, size)) if size == storage.bytes => *offset = at,
            _ => return Err(PlanError::NotPersistent(name.clone())),
        }
    }
    let mut spans = Vec::new();
    let mut moving = Vec::new();
    for (i, s) in life.storages.iter().enumerate().filter(|(_, s)| !s.persistent) {
        spans.push(Span { bytes: s.bytes, start: s.start, end: s.end });
        moving.push(i);
    }
    let mut scratch = Vec::new();
    for (t, task) in life.tasks.iter().enumerate() {
        let Task::Run(id, _) = *task else { continue };
        let node = &graph.nodes[id.index()];
        if node.op.def().is_view() {
            continue;
        }
        let bytes = (options.scratch)(graph, node, &slice)?;
        if bytes > 0 {
            scratch.push((t, spans.len()));
            spans.push(Span { bytes, start: t as u32, end: t as u32 });
        }
    }
    let (packed, arena) = pack(&spans, options.persistent.end);
    for (&i, &offset) in moving.iter().zip(&packed) {
        offsets[i] = offset;
    }
    let mut buffers: Vec<Buffer> = life
        .storages
        .iter()
        .zip(&offsets)
        .map(|(s, &offset)| Buffer { device: 0, offset, bytes: s.bytes, value: Some(s.value) })
        .collect();
    let mut scratch_of = vec![None; life.tasks.len()];
    for (t, span) in scratch {
        scratch_of[t] = Some(BufferId(buffers.len() as u32));
        buffers.push(Buffer { device: 0, offset: packed[span], bytes: spans[span].bytes, value: None });
    }

    let place = |i: Instance| {
        let (home, start) = life.homes[&i];
        Place { buffer: BufferId(home as u32), start, bytes: bytes[i.value.index()] }
    };
    let whole = |id: BufferId| Place { buffer: id, start: 0, bytes: buffers[id.0 as usize].bytes };
    let mut steps = Vec::new();
    // Inputs are there before the first task; results from the task that makes them.
    steps.extend(
        (0..life.storages.len()).filter(|&s| life.storages[s].input).map(|s| Step::Alloc(BufferId(s as u32))),
    );
    let mut starts: Vec<Vec<u32>> = vec![Vec::new(); life.tasks.len() + 1];
    let mut ends: Vec<Vec<u32>> = vec![Vec::new(); life.tasks.len() + 1];
    for (i, s) in life.storages.iter().enumerate() {
        if !s.input {
            starts[s.start as usize].push(i as u32);
        }
        ends[s.end as usize].push(i as u32);
    }
    for (t, task) in life.tasks.iter().enumerate() {
        steps.extend(starts[t].iter().map(|&s| Step::Alloc(BufferId(s))));
        match *task {
            Task::Run(id, partial) => {
                let node = &graph.nodes[id.index()];
                if !node.op.def().is_view() {
                    steps.extend(scratch_of[t].map(Step::Alloc));
                    steps.push(Step::Run {
                        node: id,
                        partial,
                        ins: node.ins.iter().map(|v| place(seen(graph, *v, partial))).collect(),
                        outs: node.outs.iter().map(|v| place(seen(graph, *v, partial))).collect(),
                        scratch: scratch_of[t].map(whole),
                    });
                    steps.extend(scratch_of[t].map(Step::Free));
                }
            }
            Task::Accumulate(value, partial) => {
                let from = place(Instance { value, partial });
                steps.push(Step::Add { from, into: place(Instance { value, partial: 0 }) });
            }
            Task::Carry(input, next) => {
                let (from, to) = (place(next), place(Instance { value: input, partial: 0 }));
                if from != to {
                    steps.push(Step::Copy { from, to });
                }
            }
        }
        steps.extend(ends[t].iter().map(|&s| Step::Free(BufferId(s))));
    }
    let inputs = graph.inputs().map(|(value, role, _)| {
        let (home, _) = life.homes[&Instance { value, partial: 0 }];
        let persistent = matches!(role, Role::Weight(_) | Role::State(_));
        InputPlace { value, place: whole(BufferId(home as u32)), persistent }
    });
    let inputs = inputs.collect();
    let outputs = graph.outputs.iter().map(|(name, value)| {
        let place = place(Instance { value: *value, partial: 0 });
        OutputPlace { name: name.clone(), value: *value, place }
    });
    let outputs = outputs.collect();
    let plan = Plan {
        sizes: slice.iter().map(|(s, v)| (s.to_string(), v)).collect(),
        partials,
        devices: vec![DevicePlan { name: "cpu0".into(), arena }],
        buffers,
        inputs,
        outputs,
        steps,
    };
    match options.memory {
        Some(budget) if arena > budget => {
            Err(PlanError::DoesNotFit { needed: arena, budget, holders: holders(graph, &plan) })
        }
        _ => Ok(plan),
    }
}

/// The largest buffers in use when most bytes are.
fn holders(graph: &Graph, plan: &Plan) -> String {
    let mut live: Vec<BufferId> = Vec::new();
    let (mut now, mut most, mut at_peak) = (0u64, 0u64, Vec::new());
    for step in &plan.steps {
        match step {
            Step::Alloc(b) => {
                live.push(*b);
                now += plan.buffer(*b).bytes;
                if now > most {
                    most = now;
                    at_peak = live.clone();
                }
            }
            Step::Free(b) => {
                live.retain(|x| x != b);
                now -= plan.buffer(*b).bytes;
            }
            _ => {}
        }
    }
    at_peak.sort_by_key(|b| std::cmp::Reverse(plan.buffer(*b).bytes));
    let name = |b: &BufferId| {
        let buffer = plan.buffer(*b);
        let name = buffer.value.map_or("scratch", |v| graph.value(v).name.as_str());
        format!("{name} {}", buffer.bytes)
    };
    at_peak.iter().take(3).map(name).collect::<Vec<_>>().join(", ")
}
