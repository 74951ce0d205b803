//! A cache of programs by the sizes of their inputs. Sizes are exact: a program for larger inputs would compute padding.
//! The least recently used program is dropped when all together exceed a fixed number of bytes.

use crate::collector::Amounts;
use crate::device::{ProgramId, Spot};
use gulliver_graph::dim::{Bindings, DimError};
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::{Graph, Phase, Value};
use gulliver_plan::document::collectives::Collective;
use gulliver_plan::document::job::{Purpose, SizedPlan};
use gulliver_plan::document::plan::{Act, OutputPlace, Plan};
use std::collections::HashMap;

/// Most bytes of all programs together; the newest program always stays.
pub(super) const LIMIT: usize = 24 << 20;

/// (objective, its first update step). Running up to that step yields the objective's loss and changes no weight.
pub(super) fn first_updates(graph: &Graph, plan: &Plan) -> Vec<(u32, usize)> {
    let mut updates: Vec<(u32, usize)> = Vec::new();
    for (i, step) in plan.steps.iter().enumerate() {
        let (Act::Run { node, .. } | Act::Exchange { node, .. }) = &step.act else { continue };
        let node = &graph.nodes[node.index()];
        let known = updates.last().is_some_and(|(objective, _)| *objective == node.objective);
        if node.phase == Phase::Update && !known {
            updates.push((node.objective, i));
        }
    }
    updates
}

/// An output of a program.
pub(super) struct Output {
    /// As the plan has it.
    pub(super) place: OutputPlace,
    /// The objective whose nodes make it.
    pub(super) objective: u32,
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    pub(super) spot: Spot,
}

/// The outputs of a plan.
pub(super) fn outputs(graph: &Graph, plan: &Plan) -> Result<Vec<Output>, DimError> {
    let sizes = plan.bindings();
    let output = |output: &OutputPlace| {
        let ty = graph.ty(output.value);
        Ok(Output {
            place: output.clone(),
            objective: graph.made_in(output.value).1,
            dtype: ty.dtype,
            shape: ty.bind(&sizes)?,
            spot: Spot::of(plan, &output.place),
        })
    };
    plan.outputs.iter().map(output).collect()
}

/// A program that is loaded, with its plan.
pub(super) struct Loaded {
    pub(super) program: ProgramId,
    /// Bytes of host memory it takes.
    pub(super) bytes: usize,
    /// Operators that run on reference kernels.
    pub(super) slow: Vec<&'static str>,
    pub(super) made: SizedPlan,
    /// Sizes of the whole input.
    pub(super) sizes: Bindings,
    /// Inputs that every step feeds.
    pub(super) fed: Vec<Value>,
    /// Places of the inputs, in order of their values.
    pub(super) inputs: Vec<(Value, Spot)>,
    pub(super) outputs: Vec<Output>,
    /// See [`first_updates`].
    pub(super) updates: Vec<(u32, usize)>,
    pub(super) planned: Amounts,
    /// Number of its record in the collector.
    pub(super) record: usize,
    /// Number of runs that are still to be timed kernel by kernel.
    pub(super) to_time: u32,
    /// Its collectives, in order.
    pub(super) collectives: Vec<Collective>,
}

impl Loaded {
    /// The place of an input.
    pub(super) fn input(&self, value: Value) -> Option<Spot> {
        let at = self.inputs.binary_search_by_key(&value, |(v, _)| *v);
        at.ok().map(|i| self.inputs[i].1)
    }
}

/// Hits and misses of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reuse {
    /// Programs found.
    pub hits: u64,
    /// Programs that had to be planned.
    pub misses: u64,
    /// Programs dropped for lack of space or because memory moved.
    pub dropped: u64,
    /// Seconds spent on planning, verifying and loading.
    pub seconds: f64,
}

struct Entry {
    purpose: Purpose,
    sizes: Bindings,
    loaded: Loaded,
    bytes: usize,
    /// When it was last looked up.
    used: u64,
}

/// The programs of one device by the sizes of their inputs.
pub(super) struct Programs {
    entries: Vec<Entry>,
    /// One index for training and one for evaluation.
    index: [HashMap<Bindings, usize>; 2],
    bytes: usize,
    pub(super) limit: usize,
    now: u64,
    pub(super) reuse: Reuse,
}

impl Programs {
    /// An empty cache with a limit in bytes.
    pub(super) fn new(limit: usize) -> Programs {
        let (entries, index, reuse) = (Vec::new(), Default::default(), Reuse::default());
        Programs { entries, index, bytes: 0, limit, now: 0, reuse }
    }

    /// Whether there is a program for inputs of these sizes.
    pub(super) fn has(&self, purpose: Purpose, sizes: &Bindings) -> bool {
        self.index[purpose as usize].contains_key(sizes)
    }

    /// The number of the program for these sizes, valid until the next insertion.
    pub(super) fn find(&mut self, purpose: Purpose, sizes: &Bindings) -> Option<usize> {
        let at = *self.index[purpose as usize].get(sizes)?;
        self.now += 1;
        self.entries[at].used = self.now;
        self.reuse.hits += 1;
        Some(at)
    }

    /// Adds a program, or replaces the one for these sizes. Returns the programs that are dropped.
    pub(super) fn insert(&mut self, purpose: Purpose, sizes: &Bindings, loaded: Loaded) -> Vec<ProgramId> {
        let mut gone = Vec::new();
        if let Some(&at) = self.index[purpose as usize].get(sizes) {
            gone.push(self.remove(at));
        }
        let bytes = loaded.bytes;
        while self.bytes + bytes > self.limit && !self.entries.is_empty() {
            let oldest = (0..self.entries.len()).min_by_key(|&i| self.entries[i].used);
            gone.push(self.remove(oldest.expect("there are some")));
            self.reuse.dropped += 1;
        }
        self.now += 1;
        self.bytes += bytes;
        self.reuse.misses += 1;
        self.index[purpose as usize].insert(sizes.clone(), self.entries.len());
        self.entries.push(Entry { purpose, sizes: sizes.clone(), loaded, bytes, used: self.now });
        gone
    }

    fn remove(&mut self, at: usize) -> ProgramId {
        let gone = self.entries.swap_remove(at);
        self.bytes -= gone.bytes;
        self.index[gone.purpose as usize].remove(&gone.sizes);
        if let Some(moved) = self.entries.get(at) {
            self.index[moved.purpose as usize].insert(moved.sizes.clone(), at);
        }
        gone.loaded.program
    }

    /// Drops all programs.
    pub(super) fn clear(&mut self) {
        self.reuse.dropped += self.entries.len() as u64;
        self.entries.clear();
        self.index.iter_mut().for_each(HashMap::clear);
        self.bytes = 0;
    }

    pub(super) fn get(&self, at: usize) -> &Loaded {
        &self.entries[at].loaded
    }

    pub(super) fn get_mut(&mut self, at: usize) -> &mut Loaded {
        &mut self.entries[at].loaded
    }

    /// The number of the program inserted last.
    pub(super) fn last(&self) -> usize {
        self.entries.len() - 1
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Loaded> {
        self.entries.iter().map(|entry| &entry.loaded)
    }
}
