//! A job's values on a device: weights and states that stay, and a program per input size, made when a
//! size is first met. Knows nothing of data sets, schedules or files.

use crate::checkpoint::Described;
use crate::data::Batch;
use crate::executor::{Cpu, CpuOptions, RunError, Work};
use crate::homes::{carried, fetch, put_back};
use crate::host::HostTensor;
use crate::initial::{noise, pieces};
use crate::lower::Kernels;
use crate::planner::{Planner, Side};
use crate::program::Program;
pub use crate::stream::Ledger;
use gulliver_graph::dim::{Bindings, Dim};
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::{Graph, Init, Node, Origin, Phase, Role, Value};
use gulliver_plan::cost::{Links, Rates};
use gulliver_plan::make::{BATCH, Home, PlanError};
use gulliver_plan::plan::{Plan, TIERS, Tier};
use gulliver_plan::simulate::moved;
use gulliver_plan::verify::{Broken, verify};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::Duration;

/// Which graph of a job a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Which {
    /// Training.
    Train,
    /// Evaluation.
    Evaluate,
}

/// Where and how a job runs.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Threads of the device.
    pub threads: usize,
    /// Hard limit of device memory; without one the device grows as plans need it.
    pub memory: Option<u64>,
    /// Hard limit of host memory for what does not stay on the device.
    pub host_memory: Option<u64>,
    /// Hard limit of the disk tier; there is none without one.
    pub disk: Option<u64>,
    /// Where the file of the disk tier is made; the system's place for temporary files if not given.
    pub disk_dir: Option<PathBuf>,
    /// Bytes per second between host and device, each way, to be like a device behind a slow link.
    pub link: Option<f64>,
    /// The largest input there will be. With it a budget is proven before the first step, and weights
    /// and states leave the device if they must.
    pub largest: Option<Bindings>,
    /// Whether values may be computed again to save memory.
    pub recompute: bool,
    /// How fast kernels are thought to be.
    pub rates: Rates,
    /// How fast links are thought to be.
    pub links: Links,
    /// Slices of a training batch whose gradients are added in order.
    pub partials: u32,
    /// Fast kernels of operators from outside.
    pub kernels: Kernels,
}

impl Default for SessionOptions {
    /// All cores, no limit, the batch in one piece.
    fn default() -> SessionOptions {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        SessionOptions {
            threads,
            memory: None,
            host_memory: None,
            disk: None,
            disk_dir: None,
            link: None,
            largest: None,
            recompute: true,
            rates: Rates { flops: threads as f64 * Rates::default().flops, ..Rates::default() },
            links: Links::default(),
            partials: 1,
            kernels: Kernels::default(),
        }
    }
}

/// Why a session cannot do what it is asked.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// No plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A plan that does not pass verification: a defect of this program.
    #[error("the plan is broken ({0}); please report this")]
    Broken(#[from] Broken),
    /// The device failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The batch lacks something the model reads.
    #[error("the data has no `{wanted}`, which the model reads; it has {found}")]
    MissingField {
        /// The model's input.
        wanted: String,
        /// What the batch has.
        found: String,
    },
}

impl From<gulliver_graph::dim::DimError> for SessionError {
    fn from(e: gulliver_graph::dim::DimError) -> SessionError {
        SessionError::Plan(PlanError::Size(e))
    }
}

struct Loaded {
    program: Program,
    plan: Plan,
    moves: Ledger,
    /// How long it is thought to take; only asked where there is a budget.
    seconds: f64,
}

type Programs = HashMap<(Which, Bindings), Loaded>;

/// See the top of this file.
pub struct Session {
    planner: Planner,
    /// The states that the forward pass changes.
    forward: Vec<Home>,
    /// What they were before the step.
    undo: Vec<u8>,
    cpu: Cpu,
    loaded: Programs,
    /// What was fed and fetched; what plans move, the device counts.
    ledger: Ledger,
    planned: Planned,
}

/// What the plans that were run said would happen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Planned {
    /// Bytes over the links.
    pub moved: Ledger,
    /// Seconds of training steps; zero without a budget.
    pub seconds: f64,
    /// Most bytes of each tier in use at once.
    pub peaks: [u64; TIERS.len()],
}

/// What one step gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Scalar outputs by name, averaged (losses, norms) or summed (counts) over the partials.
    pub scalars: BTreeMap<String, f64>,
    /// If a loss was not finite: the name of the first value that was not.
    pub not_finite: Option<String>,
}

/// What keys the random numbers of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// The job's seed.
    pub seed: u64,
    /// The step, counted from zero.
    pub step: u64,
}

impl Session {
    /// A session with all weights and states at their first values.
    pub fn new(
        train: Graph,
        evaluate: Option<Graph>,
        options: SessionOptions,
        seed: u64,
    ) -> Result<Session, SessionError> {
        Session::with(Planner::new(train, evaluate, options)?, seed)
    }

    /// A session with all weights and states at their first values, where the planner has settled them.
    pub fn with(planner: Planner, seed: u64) -> Result<Session, SessionError> {
        let (options, persistent) = (planner.options(), planner.persistent());
        let cpu = CpuOptions {
            threads: options.threads,
            bytes: options.memory.unwrap_or(persistent.ends[0]),
            disk_dir: options.disk_dir.clone().unwrap_or_else(std::env::temp_dir),
            link: options.link,
        };
        let cpu = Cpu::with(cpu).map_err(RunError::from)?;
        let passing = |node: Option<&Node>| node.is_none_or(|n| n.phase != Phase::Update);
        let forward = carried(planner.graph(Which::Train), persistent, passing);
        let mut session = Session {
            undo: vec![0; forward.iter().map(|home| home.bytes as usize).sum()],
            forward,
            planner,
            cpu,
            loaded: HashMap::new(),
            ledger: Ledger::default(),
            planned: Planned::default(),
        };
        let needed = session.planner.persistent().ends;
        make_room(&mut session.cpu, session.planner.options(), &mut session.loaded, needed)?;
        session.initialise(seed)?;
        Ok(session)
    }

    fn initialise(&mut self, seed: u64) -> Result<(), RunError> {
        // Many pieces at a time: a disk is slow with small ones.
        const TOGETHER: usize = 1 << 18;
        let mut together: Vec<f32> = Vec::new();
        for (name, init, shape) in self.persistent_inputs() {
            let Home { tier, offset, .. } = self.planner.persistent().homes[&name];
            // New memory is all zeros; a new file is not to be read before it is written.
            if tier != Tier::Disk && matches!(init, Init::Constant(c) if c.to_bits() == 0) {
                continue;
            }
            let (mut result, mut at) = (Ok(()), offset);
            let count: usize = shape.iter().product();
            pieces(seed, &name, init, count, |first, piece| {
                together.extend_from_slice(piece);
                if result.is_ok() && (together.len() >= TOGETHER || first + piece.len() == count) {
                    result = self.cpu.write_floats(tier, at, &together);
                    at += size_of_val(together.as_slice()) as u64;
                    together.clear();
                }
            });
            result?;
        }
        Ok(())
    }

    fn persistent_inputs(&self) -> Vec<(String, Init, Vec<usize>)> {
        let inputs = self.graph().inputs().filter_map(|(_, role, info)| match role {
            Role::Weight(init) | Role::State(init) => {
                let shape = info.ty.bind(&Bindings::new()).expect("persistent values have fixed shapes");
                Some((info.name.clone(), init, shape))
            }
            _ => None,
        });
        inputs.collect()
    }

    /// The training graph.
    pub fn graph(&self) -> &Graph {
        self.planner.graph(Which::Train)
    }

    /// What makes the plans.
    pub fn planner(&mut self) -> &mut Planner {
        &mut self.planner
    }

    /// Bytes moved so far.
    pub fn ledger(&self) -> Ledger {
        let mut ledger = self.ledger;
        ledger += self.cpu.moved();
        ledger
    }

    /// Bytes moved by plans so far, and what the plans said.
    pub fn moved(&self) -> (Ledger, Planned) {
        (self.cpu.moved(), self.planned)
    }

    fn count(&mut self, which: Which, sizes: &Bindings) {
        let loaded = &self.loaded[&(which, sizes.clone())];
        self.planned.moved += loaded.moves;
        if which == Which::Train {
            self.planned.seconds += loaded.seconds;
        }
        for (peak, space) in self.planned.peaks.iter_mut().zip(&loaded.plan.spaces) {
            *peak = (*peak).max(space.live);
        }
    }

    /// Most bytes of device memory in use at once so far.
    pub fn peak(&self) -> u64 {
        self.peak_of(Tier::Device)
    }

    /// Most bytes of a tier in use at once so far.
    pub fn peak_of(&self, tier: Tier) -> u64 {
        self.cpu.peak(tier)
    }

    /// Names, types and shapes of everything that a checkpoint must hold.
    pub fn layout(&self) -> Vec<Described> {
        self.persistent_inputs().into_iter().map(|(name, _, shape)| (name, DType::F32, shape)).collect()
    }

    /// Copies of all weights and states.
    pub fn tensors(&mut self) -> Result<BTreeMap<String, HostTensor>, RunError> {
        self.layout().into_iter().map(|one| Ok((one.0.clone(), self.tensor(&one)?))).collect()
    }

    /// A copy of a weight or state, as [`Session::layout`] describes it.
    pub fn tensor(&mut self, (name, dtype, shape): &Described) -> Result<HostTensor, RunError> {
        let mut tensor = HostTensor::zeros(*dtype, shape);
        let Home { tier, offset, bytes } = self.planner.persistent().homes[name];
        self.cpu.read(tier, offset, tensor.as_bytes_mut())?;
        match tier {
            Tier::Device => self.ledger.to_host += bytes,
            Tier::Host => {}
            Tier::Disk => self.ledger.disk_read += bytes,
        }
        Ok(tensor)
    }

    /// The first of these weights and states that holds a number that is not finite.
    pub fn first_not_finite(&mut self, layout: &[Described]) -> Result<Option<String>, RunError> {
        for one in layout {
            if !self.tensor(one)?.is_finite() {
                return Ok(Some(one.0.clone()));
            }
        }
        Ok(None)
    }

    /// Replaces a weight or state; false if there is none of that name and shape.
    pub fn set(&mut self, name: &str, tensor: &HostTensor) -> Result<bool, RunError> {
        let Some(&Home { tier, offset, bytes }) = self.planner.persistent().homes.get(name) else {
            return Ok(false);
        };
        if tensor.as_bytes().len() as u64 != bytes {
            return Ok(false);
        }
        self.cpu.write(tier, offset, tensor.as_bytes())?;
        match tier {
            Tier::Device => self.ledger.to_device += bytes,
            Tier::Host => {}
            Tier::Disk => self.ledger.disk_written += bytes,
        }
        Ok(true)
    }

    /// The plan for inputs of these sizes, making and verifying it if it is new.
    pub fn plan(&mut self, which: Which, sizes: &Bindings) -> Result<&Plan, SessionError> {
        self.load(which, sizes)?;
        Ok(&self.loaded[&(which, sizes.clone())].plan)
    }

    /// Operators of loaded programs that run on reference kernels.
    pub fn slow_operators(&self) -> Vec<&'static str> {
        let mut all: Vec<&'static str> = self.loaded.values().flat_map(|l| l.program.slow.clone()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    fn load(&mut self, which: Which, sizes: &Bindings) -> Result<(), SessionError> {
        let key = (which, sizes.clone());
        if self.loaded.contains_key(&key) {
            return Ok(());
        }
        let plan = self.planner.plan(which, sizes)?;
        let graph = self.planner.graph(which);
        verify(graph, &plan)?;
        let needed = TIERS.map(|tier| plan.spaces[tier as usize].bytes);
        make_room(&mut self.cpu, self.planner.options(), &mut self.loaded, needed)?;
        let kinds = &self.planner.outline(which).expect("made with the plan").kinds;
        let program = self.cpu.load(graph, kinds, &plan, &self.planner.options().kernels)?;
        let seconds = match self.planner.options().memory {
            Some(_) => self.planner.timing(which, sizes, &plan)?.seconds,
            None => 0.0,
        };
        let moves = moved(&plan).into();
        self.loaded.insert(key, Loaded { program, plan, moves, seconds });
        Ok(())
    }

    /// The sizes that make the graph's data inputs fit a batch.
    pub fn sizes(&self, which: Which, batch: &Batch) -> Result<Bindings, SessionError> {
        Ok(sizes_of(self.planner.graph(which), batch)?)
    }

    /// Loads the program for a batch and feeds everything but the random keys.
    fn prepare(
        &mut self,
        which: Which,
        batch: &Batch,
        key: Key,
        hyper: &dyn Fn(&str) -> Option<f32>,
    ) -> Result<Bindings, SessionError> {
        let sizes = self.sizes(which, batch)?;
        self.load(which, &sizes)?;
        let Side { graph, fed, partials, .. } = self.planner.side(which);
        let program = &self.loaded[&(which, sizes.clone())].program;
        for &value in fed {
            let info = graph.value(value);
            let Origin::Input(role) = info.origin else { continue };
            let mut feed = |bytes: &[u8]| -> Result<(), SessionError> {
                self.ledger.to_device += bytes.len() as u64;
                Ok(self.cpu.feed(graph, program, value, bytes)?)
            };
            match role {
                Role::Data => match batch.get(&info.name) {
                    Some(tensor) => feed(tensor.as_bytes())?,
                    // Inputs that are noise by nature, such as a generator's.
                    None if info.name == "z" => {
                        let shape = info.ty.bind(&sizes)?;
                        feed(noise(key.seed, key.step, &info.name, &shape).as_bytes())?;
                    }
                    // Data without padding need not say so.
                    None if info.name == "mask" => {
                        let count = info.ty.bind(&sizes)?.iter().product();
                        feed(&vec![1; count])?;
                    }
                    None => {
                        let found: Vec<String> = batch.fields.iter().map(|(n, _)| format!("`{n}`")).collect();
                        let found = found.join(", ");
                        return Err(SessionError::MissingField { wanted: info.name.clone(), found });
                    }
                },
                Role::Hyper(default) => feed(&hyper(&info.name).unwrap_or(default).to_le_bytes())?,
                Role::Random => {
                    let rows = (0..*partials).flat_map(|p| [key.seed as i64, key.step as i64, i64::from(p)]);
                    let keys: Vec<u8> = rows.flat_map(i64::to_le_bytes).collect();
                    feed(&keys)?;
                }
                Role::Weight(_) | Role::State(_) => {}
            }
        }
        Ok(sizes)
    }

    /// One training step. If a loss is not finite, its objective leaves weights and states as they were;
    /// updates of objectives before it in the same step stay.
    pub fn step(
        &mut self,
        batch: &Batch,
        key: Key,
        hyper: &dyn Fn(&str) -> Option<f32>,
    ) -> Result<Outcome, SessionError> {
        let partials = f64::from(self.planner.options().partials);
        let loss_scale = Some((1.0 / partials) as f32);
        let with_scale = |name: &str| if name == "loss_scale" { loss_scale } else { hyper(name) };
        let sizes = self.prepare(Which::Train, batch, key, &with_scale)?;
        self.remember()?;
        let loaded = &self.loaded[&(Which::Train, sizes.clone())];
        let mut done = 0;
        for &(stage, update) in loaded.program.updates() {
            self.cpu.run(self.planner.graph(Which::Train), &loaded.program, done..update, None)?;
            done = update;
            if !self.cpu.losses(&loaded.program, stage)?.iter().all(|x| x.is_finite()) {
                // What the batch was fed into may have been used for other things since.
                self.prepare(Which::Train, batch, key, &with_scale)?;
                let name = self.diagnose(&sizes, stage, update)?;
                return Ok(Outcome { scalars: BTreeMap::new(), not_finite: Some(name) });
            }
        }
        let end = loaded.program.len();
        self.cpu.run(self.planner.graph(Which::Train), &loaded.program, done..end, None)?;
        self.count(Which::Train, &sizes);
        let loaded = &self.loaded[&(Which::Train, sizes)];
        let mut scalars = BTreeMap::new();
        for name in loaded.program.output_names() {
            let Some(tensor) = self.cpu.output(&loaded.program, name)? else { continue };
            if let ([], Some(&[x])) = (tensor.shape(), tensor.as_f32()) {
                self.ledger.to_host += 4;
                // Counts are sums over the partials; a loss is defined as their mean.
                let mean = name.ends_with("loss");
                scalars.insert(name.to_string(), f64::from(x) / if mean { partials } else { 1.0 });
            }
        }
        Ok(Outcome { scalars, not_finite: None })
    }

    /// One training step that looks at no loss and times each instruction, in order.
    pub fn profile(
        &mut self,
        batch: &Batch,
        key: Key,
        hyper: &dyn Fn(&str) -> Option<f32>,
    ) -> Result<Vec<(Work, Duration)>, SessionError> {
        let loss_scale = Some((1.0 / f64::from(self.planner.options().partials)) as f32);
        let with_scale = |name: &str| if name == "loss_scale" { loss_scale } else { hyper(name) };
        let sizes = self.prepare(Which::Train, batch, key, &with_scale)?;
        Ok(self
            .cpu
            .profile(self.planner.graph(Which::Train), &self.loaded[&(Which::Train, sizes)].program)?)
    }

    /// Notes the states that the forward pass changes.
    fn remember(&mut self) -> Result<(), RunError> {
        fetch(&self.cpu, &self.forward, &mut self.undo)
    }

    fn undo(&mut self) -> Result<(), RunError> {
        put_back(&mut self.cpu, &self.forward, &self.undo)
    }

    /// Undoes what the forward pass changed and runs it again, up to the first update of the objective that
    /// failed, looking at every value. The batch must have been fed anew.
    fn diagnose(&mut self, sizes: &Bindings, stage: u32, until: usize) -> Result<String, SessionError> {
        self.undo()?;
        if let Some(name) = self.first_not_finite(&self.layout())? {
            return Ok(name);
        }
        let mut first = None;
        let mut watch = |value: Value, data: &[f32]| {
            if first.is_none() && data.iter().any(|x| !x.is_finite()) {
                first = Some(value);
            }
        };
        // Updates of earlier objectives are run again, and must not count twice.
        let earlier = |node: &Node| node.phase == Phase::Update && node.stage < stage;
        let updated = carried(self.planner.graph(Which::Train), self.planner.persistent(), |node| {
            node.is_some_and(earlier)
        });
        let mut kept = vec![0; updated.iter().map(|home| home.bytes as usize).sum()];
        fetch(&self.cpu, &updated, &mut kept)?;
        let loaded = &self.loaded[&(Which::Train, sizes.clone())];
        self.cpu.run(self.planner.graph(Which::Train), &loaded.program, 0..until, Some(&mut watch))?;
        put_back(&mut self.cpu, &updated, &kept)?;
        self.undo()?;
        Ok(first.map_or("loss".into(), |v| self.graph().value(v).name.clone()))
    }

    /// Scalars of the evaluation graph for a batch.
    pub fn evaluate(&mut self, batch: &Batch, key: Key) -> Result<BTreeMap<String, f64>, SessionError> {
        let sizes = self.prepare(Which::Evaluate, batch, key, &|_| None)?;
        self.count(Which::Evaluate, &sizes);
        let graph = self.planner.graph(Which::Evaluate);
        let loaded = &self.loaded[&(Which::Evaluate, sizes)];
        self.cpu.run(graph, &loaded.program, 0..loaded.program.len(), None)?;
        let mut scalars = BTreeMap::new();
        for name in loaded.program.output_names() {
            let Some(tensor) = self.cpu.output(&loaded.program, name)? else { continue };
            if let ([], Some(&[x])) = (tensor.shape(), tensor.as_f32()) {
                self.ledger.to_host += 4;
                scalars.insert(name.to_string(), f64::from(x));
            }
        }
        Ok(scalars)
    }
}

/// Lets tiers grow to these sizes, within their budgets. Programs for memory that moves are dropped.
fn make_room(
    cpu: &mut Cpu,
    options: &SessionOptions,
    loaded: &mut Programs,
    needed: [u64; TIERS.len()],
) -> Result<(), RunError> {
    let limits = [options.memory, options.host_memory, Some(options.disk.unwrap_or(0))];
    for ((tier, needed), limit) in TIERS.into_iter().zip(needed).zip(limits) {
        if needed <= cpu.bytes(tier) {
            continue;
        }
        if let Some(available) = limit.filter(|&limit| needed > limit) {
            let space = format!("{tier:?} memory").to_lowercase();
            return Err(RunError::Space { space, needed, available });
        }
        if tier != Tier::Disk {
            loaded.clear();
        }
        cpu.grow(tier, needed)?;
    }
    Ok(())
}

/// The sizes that make a graph's data inputs fit a batch.
pub fn sizes_of(graph: &Graph, batch: &Batch) -> Result<Bindings, RunError> {
    let mut sizes = Bindings::new();
    let rows = batch.fields.first().and_then(|(_, t)| t.shape().first()).copied().unwrap_or(0);
    sizes.set(BATCH, rows);
    for (value, _, info) in graph.inputs().filter(|(_, role, _)| *role == Role::Data) {
        let Some(tensor) = batch.get(&info.name) else { continue };
        let shape = fitted(tensor.shape(), info.ty.rank());
        for (dim, &extent) in info.ty.shape.iter().zip(&shape) {
            if let Some(symbol) = dim.as_symbol() {
                sizes.set(symbol, extent);
            }
        }
        check_input(graph, value, tensor, &shape, &sizes)?;
    }
    Ok(sizes)
}

/// A batch's shape as a model with fewer dimensions reads it: images as rows of pixels.
fn fitted(shape: &[usize], rank: usize) -> Vec<usize> {
    if shape.len() <= rank || rank == 0 {
        return shape.to_vec();
    }
    let mut out = shape[..rank - 1].to_vec();
    out.push(shape[rank - 1..].iter().product());
    out
}

fn check_input(
    graph: &Graph,
    value: Value,
    tensor: &HostTensor,
    shape: &[usize],
    sizes: &Bindings,
) -> Result<(), RunError> {
    let info = graph.value(value);
    let fits = info.ty.rank() == shape.len()
        && info
            .ty
            .shape
            .iter()
            .zip(shape)
            .all(|(dim, &extent): (&Dim, &usize)| dim.bind(sizes) == Ok(extent));
    let same_width =
        info.ty.dtype == tensor.dtype() || (info.ty.dtype.size() == 1 && tensor.dtype().size() == 1);
    if fits && same_width {
        return Ok(());
    }
    let got = format!("{}{:?}", tensor.dtype(), tensor.shape());
    Err(RunError::Input { name: info.name.clone(), expected: info.ty.to_string(), got })
}

#[cfg(test)]
mod tests;
