//! The planner: an outline and the sizes of an input become a plan. Everything is resident, on one
//! device, with storage shared over time. Recompute, swapping and cuts will be passes before the layout.

use crate::layout::{Span, aligned, pack};
use crate::order::{Instance, Task};
use crate::outline::Outline;
use crate::plan::{Act, Buffer, BufferId, InputPlace, OutputPlace, Place, Plan, Space, Step, TIERS, Tier};
use gulliver_graph::dim::{Bindings, DimError};
use gulliver_graph::graph::{Graph, Node, Role, Value};
use std::collections::HashMap;

/// Where a persistent value is between steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home {
    /// In which kind of memory.
    pub tier: Tier,
    /// First byte there.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// Where persistent values are between steps: the same in every plan of a job, whatever the input sizes,
/// and shared by the training and the evaluation graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Persistent {
    /// By input name.
    pub homes: HashMap<String, Home>,
    /// First byte after them in each tier.
    pub ends: [u64; TIERS.len()],
}

impl Persistent {
    /// Lays out the weights and states of a graph on the device, in order.
    pub fn of(graph: &Graph) -> Result<Persistent, DimError> {
        Persistent::with(graph, |_| Tier::Device)
    }

    /// Lays out the weights and states of a graph, each in its tier, in order.
    pub fn with(graph: &Graph, tier: impl Fn(Value) -> Tier) -> Result<Persistent, DimError> {
        let mut layout = Persistent::default();
        for (v, role, info) in graph.inputs() {
            if matches!(role, Role::Weight(_) | Role::State(_)) {
                let bytes = info.ty.bytes().bind(&Bindings::new())? as u64;
                let tier = tier(v);
                let end = &mut layout.ends[tier as usize];
                layout.homes.insert(info.name.clone(), Home { tier, offset: *end, bytes });
                *end += aligned(bytes);
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
    /// Working memory of the kernel that will run a node, for the sizes of one partial. Nodes of one
    /// kind need the same.
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
    Outline::new(graph, sizes, options)?.plan(graph, sizes, options)
}

impl Outline {
    /// The plan for inputs of these sizes (of the whole batch). Graph and partials must be those the
    /// outline was made for.
    pub fn plan(&self, graph: &Graph, sizes: &Bindings, options: &Options) -> Result<Plan, PlanError> {
        let sizes = self.sizes(graph, sizes, options)?;
        let bytes = |v: Value| sizes.bytes[self.kinds.type_of[v.index()] as usize];
        let storages = &self.life.storages;
        let mut buffers: Vec<Buffer> = Vec::with_capacity(storages.len() + self.tasks.len());
        for s in storages {
            let total = bytes(s.value) * u64::from(s.copies);
            buffers.push(Buffer { space: 0, offset: 0, bytes: total, value: Some(s.value) });
        }
        let mut spans = Vec::with_capacity(buffers.capacity());
        let mut moving = Vec::with_capacity(buffers.capacity());
        for (i, s) in storages.iter().enumerate() {
            if !s.persistent {
                spans.push(Span { bytes: buffers[i].bytes, start: s.start, end: s.end });
                moving.push(i);
                continue;
            }
            let name = &graph.value(s.value).name;
            match options.persistent.homes.get(name) {
                Some(home) if home.bytes == buffers[i].bytes => buffers[i].offset = home.offset,
                _ => return Err(PlanError::NotPersistent(name.clone())),
            }
        }
        let mut scratch_of = vec![None; self.tasks.len()];
        for (t, task) in self.tasks.iter().enumerate() {
            let Task::Run(id, _) = *task else { continue };
            let bytes = sizes.scratch[self.kinds.kind_of[id.index()] as usize];
            if bytes > 0 {
                scratch_of[t] = Some(BufferId(buffers.len() as u32));
                moving.push(buffers.len());
                spans.push(Span { bytes, start: t as u32, end: t as u32 });
                buffers.push(Buffer { space: 0, offset: 0, bytes, value: None });
            }
        }
        let (offsets, arena) = pack(&spans, options.persistent.ends[0]);
        for (&i, &offset) in moving.iter().zip(&offsets) {
            buffers[i].offset = offset;
        }

        let place = |i: Instance| {
            let (home, bytes) = (self.life.home(i), bytes(i.value));
            Place { buffer: BufferId(home.storage), start: bytes * u64::from(home.slice), bytes }
        };
        let whole = |id: BufferId| Place { buffer: id, start: 0, bytes: buffers[id.0 as usize].bytes };
        let inputs = graph.inputs().map(|(value, role, _)| {
            let home = self.life.home(Instance { value, partial: 0 });
            let persistent = matches!(role, Role::Weight(_) | Role::State(_));
            InputPlace { value, place: whole(BufferId(home.storage)), persistent }
        });
        let inputs = inputs.collect();
        let outputs = graph.outputs.iter().map(|(name, value)| OutputPlace {
            name: name.clone(),
            value: *value,
            place: place(self.readers.seen(*value, 0)),
        });
        let outputs = outputs.collect();
        let steps = self.steps(graph, &scratch_of, place, whole);
        let mut plan = Plan {
            sizes: sizes.slice.iter().map(|(s, v)| (s.to_string(), v)).collect(),
            partials: self.partials,
            spaces: spaces([arena, 0, 0]),
            buffers,
            inputs,
            outputs,
            steps,
            decisions: Vec::new(),
        };
        for (space, live) in plan.live_peaks().into_iter().enumerate() {
            plan.spaces[space].live = live;
        }
        match options.memory {
            Some(budget) if arena > budget => {
                Err(PlanError::DoesNotFit { needed: arena, budget, holders: holders(graph, &plan) })
            }
            _ => Ok(plan),
        }
    }

    fn steps(
        &self,
        graph: &Graph,
        scratch_of: &[Option<BufferId>],
        place: impl Fn(Instance) -> Place,
        whole: impl Fn(BufferId) -> Place,
    ) -> Vec<Step> {
        let storages = &self.life.storages;
        let mut steps = Vec::with_capacity(self.tasks.len() * 3 + storages.len());
        // Inputs are there before the first task; results from the task that makes them.
        let inputs = (0..storages.len()).filter(|&s| storages[s].input);
        steps.extend(inputs.map(|s| Act::Alloc(BufferId(s as u32)).into()));
        for (t, task) in self.tasks.iter().enumerate() {
            steps.extend(self.starts.of(t).iter().map(|&s| Act::Alloc(BufferId(s)).into()));
            match *task {
                Task::Run(id, partial) => {
                    let node = &graph.nodes[id.index()];
                    let at = |v: &Value| place(self.readers.seen(*v, partial));
                    steps.extend(scratch_of[t].map(|b| Act::Alloc(b).into()));
                    steps.push(Step::from(Act::Run {
                        node: id,
                        partial,
                        ins: node.ins.iter().map(at).collect(),
                        outs: node.outs.iter().map(at).collect(),
                        scratch: scratch_of[t].map(&whole),
                    }));
                    steps.extend(scratch_of[t].map(|b| Act::Free(b).into()));
                }
                Task::Accumulate(value, partial) => {
                    let from = place(Instance { value, partial });
                    steps.push(Act::Add { from, into: place(Instance { value, partial: 0 }) }.into());
                }
                Task::Carry(input, next) => {
                    let (from, to) = (place(next), place(Instance { value: input, partial: 0 }));
                    if from != to {
                        steps.push(Act::Copy { from, to }.into());
                    }
                }
            }
            steps.extend(self.ends.of(t).iter().map(|&s| Act::Free(BufferId(s)).into()));
        }
        steps
    }
}

/// The spaces of a plan for one device.
fn spaces(bytes: [u64; TIERS.len()]) -> Vec<Space> {
    let name = |tier| match tier {
        Tier::Device => "cpu0",
        Tier::Host => "host",
        Tier::Disk => "disk",
    };
    let space = |tier| Space { name: String::from(name(tier)), tier, bytes: bytes[tier as usize], live: 0 };
    TIERS.map(space).into()
}

/// The largest buffers in use when most bytes are.
fn holders(graph: &Graph, plan: &Plan) -> String {
    let mut live: Vec<BufferId> = Vec::new();
    let (mut now, mut most, mut at_peak) = (0u64, 0u64, Vec::new());
    for step in &plan.steps {
        match &step.act {
            Act::Alloc(b) => {
                live.push(*b);
                now += plan.buffer(*b).bytes;
                if now > most {
                    most = now;
                    at_peak = live.clone();
                }
            }
            Act::Free(b) => {
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
