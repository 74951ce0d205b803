//! A job's values on a device, or on several: weights and states that stay, and a program per input size,
//! made when a size is first met. Knows nothing of data sets, schedules or files.

mod crew;
mod cuts;
mod evaluate;
mod feed;
mod foresee;
mod lines;
mod options;
mod programs;
mod scalars;
mod shards;
mod trace;
mod values;

pub use crew::planners;
pub use cuts::divided;
pub use evaluate::Evaluated;
pub use feed::sizes_of;
pub use foresee::{Foreseen, Priced, fed, foresee, timed, unevenness};
pub use gulliver_plan::document::ledger::Ledger;
pub use lines::{Pipelined, packs, pipelined, pipelined_as};
pub use options::{PlanWatch, SessionOptions};
pub use programs::Reuse;
pub use scalars::{Scalar, Scalars};
pub use shards::sharded;

use crate::collector::{Alarm, Amounts, Collector};
use crate::data::Batch;
use crate::executor::{Cpu, CpuOptions, RunError, Work};
use crate::host::HostTensor;
use crate::planner::{Planner, with_slack};
use crate::program::Program;
use crate::residences::{carried, fetch, put_back};
use crate::team::Team;
use feed::feed;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, Node, Phase, Value};
use gulliver_graph::role::{HyperRole, OutputRole, OutputScope};
use gulliver_plan::devices::cut::CutError;
use gulliver_plan::devices::pipeline::PipelineError;
use gulliver_plan::devices::replicate::ReplicateError;
use gulliver_plan::devices::schedule::ScheduleError;
use gulliver_plan::document::collectives::exchanged;
use gulliver_plan::document::collectives::{Deadlock, collectives};
use gulliver_plan::document::error::PlanError;
use gulliver_plan::document::plan::{Plan, TIERS, Tier};
use gulliver_plan::document::residence::Residence;
use gulliver_plan::document::verify::{Broken, verify};
use gulliver_plan::step::outline::slice_of;
use programs::{LIMIT, Loaded, Programs};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trace::Traced;

/// Runs of every new program whose kernels are timed.
const TIMED: u32 = 2;

/// Which graph of a job a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Which {
    /// Training.
    Train,
    /// Evaluation.
    Evaluate,
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
    /// One of several devices failed.
    #[error("step {step}, device {device}: {why}")]
    Device {
        /// Which.
        device: u32,
        /// The step, counted from one.
        step: u64,
        /// What it said.
        why: String,
    },
    /// The graph has no such output.
    #[error("the model has no output `{name}`")]
    NoOutput {
        /// The output asked for.
        name: String,
    },
    /// Too few or too many partials.
    #[error(
        "train.partials = {partials}, and there are {devices} devices: data parallel needs as many for each, 1 or more"
    )]
    Partials {
        /// Slices of a batch.
        partials: u32,
        /// Devices.
        devices: u32,
    },
    /// The job cannot be divided like that.
    #[error(transparent)]
    Replicate(#[from] ReplicateError),
    /// There is no schedule.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// The job cannot be a pipeline.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// Nodes cannot be divided like that.
    #[error(transparent)]
    Cut(#[from] CutError),
    /// A cut for other devices than there are.
    #[error("the cut is for {parts} devices, and there are {devices}")]
    Cuts {
        /// Devices of the cut.
        parts: usize,
        /// Devices.
        devices: usize,
    },
    /// Devices would wait for each other.
    #[error(transparent)]
    Deadlock(#[from] Deadlock),
    /// Devices would wait for each other, as simulated.
    #[error(transparent)]
    Waiting(gulliver_plan::time::simulate::Stuck),
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

/// See the top of this file.
pub struct Session {
    planner: Planner,
    /// Jobs that are trained together; one, unless this is an array.
    members: usize,
    /// Values of members lie one after the other, along a first dimension of their own.
    array: bool,
    /// The states that the forward pass changes.
    forward: Vec<Residence>,
    /// What they were before the step.
    undo: Vec<u8>,
    cpu: Cpu,
    programs: Programs,
    collector: Collector,
    /// What was fed and fetched; what plans move, the device counts.
    ledger: Ledger,
    /// Those of the other devices, if this is the first of several.
    others: Vec<Session>,
    /// Threads for all of them, once they were needed.
    crew: Option<Team>,
    /// When the steps of the last training step were done, if that is noted.
    traced: Option<Traced>,
}

/// What one step gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Scalar outputs, averaged (losses, norms) or summed (counts) over the partials.
    pub scalars: Scalars,
    /// If a loss was not finite: the name of the first value that was not.
    pub not_finite: Option<String>,
}

impl Outcome {
    /// Counts are sums over the partials; a loss is defined as their mean.
    fn average(&mut self, partials: u32) {
        let losses = self.scalars.iter_mut().filter(|(_, scalar)| scalar.role == OutputRole::Loss);
        losses.for_each(|(_, loss)| loss.value /= f64::from(partials));
    }

    fn failed(value: String) -> Outcome {
        Outcome { scalars: Scalars::default(), not_finite: Some(value) }
    }
}

/// What a member had before the updates of the objective that failed.
struct Failed {
    member: usize,
    had: BTreeMap<String, HostTensor>,
}

/// The value of a hyper-parameter, by role and name, that is not at its default.
pub type Hyper<'h> = &'h dyn Fn(HyperRole, &str) -> Option<f32>;

/// The same of a member of an array.
pub type MemberHyper<'h> = &'h dyn Fn(usize, HyperRole, &str) -> Option<f32>;

/// What keys the random numbers of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// The job's seed.
    pub seed: u64,
    /// The step, counted from zero.
    pub step: u64,
}

impl Key {
    /// Hyper-parameters of a step where none is set: optimizers that count steps are told which this is, from 1.
    pub fn number(self) -> impl Fn(HyperRole, &str) -> Option<f32> + Copy {
        move |role, _| (role == HyperRole::Step).then_some((self.step + 1) as f32)
    }
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
        Session::start(planner, &[seed], false)
    }

    /// A session of an array, whose graphs are [fused](gulliver_graph::array): one member for each seed.
    pub fn array(planner: Planner, seeds: &[u64]) -> Result<Session, SessionError> {
        Session::start(planner, seeds, true)
    }

    fn start(mut planner: Planner, seeds: &[u64], array: bool) -> Result<Session, SessionError> {
        let bytes = planner.first_bytes()?;
        let (options, persistent) = (planner.options(), planner.persistent());
        let cpu = CpuOptions {
            threads: options.threads,
            bytes,
            disk_dir: options.disk_dir.clone().unwrap_or_else(std::env::temp_dir),
            port: options.port(),
            crowded: options.crowded(),
        };
        if let (Some(seat), Some(throttle)) = (&options.seat, &options.throttle) {
            seat.peers.over(throttle);
        }
        let cpu = Cpu::with(cpu)?;
        let passing = |node: Option<&Node>| node.is_none_or(|n| n.phase != Phase::Update);
        let forward = carried(planner.graph(Which::Train), persistent, passing);
        let mut session = Session {
            undo: vec![0; forward.iter().map(|residence| residence.bytes as usize).sum()],
            forward,
            members: seeds.len(),
            array,
            planner,
            cpu,
            programs: Programs::new(LIMIT),
            collector: Collector::default(),
            ledger: Ledger::default(),
            others: Vec::new(),
            crew: None,
            traced: None,
        };
        let needed = session.planner.persistent().ends;
        make_room(&mut session.cpu, session.planner.options(), &mut session.programs, needed)?;
        session.initialise(seeds, true)?;
        Ok(session)
    }

    /// How many jobs are trained together.
    pub fn members(&self) -> usize {
        self.members
    }

    /// The training graph, or this device's share of it.
    pub fn graph(&self) -> &Graph {
        self.planner.graph(Which::Train)
    }

    /// The training graph, all of it.
    pub fn whole(&self) -> &Graph {
        self.planner.whole(Which::Train)
    }

    /// What makes the plans.
    pub fn planner(&mut self) -> &mut Planner {
        &mut self.planner
    }

    /// Bytes moved so far.
    pub fn ledger(&self) -> Ledger {
        let mut ledger = self.ledger;
        ledger += self.moved();
        self.others.iter().for_each(|other| ledger += other.ledger());
        ledger
    }

    /// Bytes that plans of this device have moved so far.
    fn moved(&self) -> Ledger {
        let seat = self.planner.options().seat.as_ref();
        let from_peers = seat.map_or(0, |seat| seat.peers.taken(seat.rank).iter().sum());
        Ledger { from_peers, ..self.cpu.moved() }
    }

    /// What plans said against what was measured.
    pub fn collector(&self) -> &Collector {
        &self.collector
    }

    /// Alarms that nobody has taken yet: bytes that were not as planned.
    pub fn take_alarms(&mut self) -> Vec<Alarm> {
        let mut alarms = self.collector.take_alarms();
        self.others.iter_mut().for_each(|other| alarms.extend(other.take_alarms()));
        alarms
    }

    /// How often a program was there for the sizes at hand.
    pub fn reuse(&self) -> Reuse {
        self.programs.reuse
    }

    /// Most bytes of device memory in use at once so far.
    pub fn peak(&self) -> u64 {
        self.peak_of(Tier::Device)
    }

    /// Most bytes of a tier in use at once so far, on whichever device it was most.
    pub fn peak_of(&self, tier: Tier) -> u64 {
        self.devices().map(|device| device.cpu.peak(tier)).max().unwrap_or(0)
    }

    /// Makes and verifies the plan for inputs of these sizes and loads its program, whatever there was
    /// before.
    pub fn plan(&mut self, which: Which, sizes: &Bindings) -> Result<Plan, SessionError> {
        let began = Instant::now();
        let plan = self.planner.plan(which, sizes)?;
        let graph = self.planner.graph(which);
        verify(graph, &plan)?;
        let needed = TIERS.map(|tier| plan.spaces[tier as usize].bytes);
        make_room(&mut self.cpu, self.planner.options(), &mut self.programs, needed)?;
        let kinds = &self.planner.outline(which).expect("made with the plan").outline.kinds;
        let program = self.cpu.load(graph, kinds, &plan, &self.planner.options().kernels)?;
        let peaks = TIERS.map(|tier| plan.spaces[tier as usize].live);
        let from_peers = exchanged(graph, &slice_of(sizes, plan.partials)?, plan.partials)?;
        let mut planned = Amounts { peaks, moved: Ledger { from_peers, ..Ledger::of(&plan) }, seconds: 0.0 };
        let mut thought = Vec::new();
        // Only where something must be weighed does time matter.
        if self.planner.options().memory.is_some() {
            planned.seconds = self.planner.timing(which, sizes, &plan)?.seconds;
            thought = self.planner.thought(which, sizes)?;
        }
        let record = self.collector.record(which, sizes);
        let to_time = if thought.is_empty() { 0 } else { TIMED };
        let collectives = collectives(self.planner.graph(which), &plan);
        let noted = self.cpu.records().then(|| Arc::new(plan.clone()));
        let loaded = Loaded { program, planned, record, thought, to_time, collectives, noted };
        self.programs.insert(which, sizes, loaded);
        self.programs.reuse.seconds += began.elapsed().as_secs_f64();
        Ok(plan)
    }

    /// Bytes of device and host memory there are.
    pub fn memory(&self) -> u64 {
        self.devices().map(|device| device.cpu.bytes(Tier::Device) + device.cpu.bytes(Tier::Host)).sum()
    }

    /// Operators of loaded programs that run on reference kernels.
    pub fn slow_operators(&self) -> Vec<&'static str> {
        let mut all: Vec<&'static str> = self.programs.all().flat_map(|l| l.program.slow.clone()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Makes sure that there is a program for inputs of these sizes: a look-up, if there is one.
    pub fn ready(&mut self, which: Which, sizes: &Bindings) -> Result<(), SessionError> {
        self.load(which, sizes).map(|_| ())
    }

    /// The number of the program for inputs of these sizes.
    fn load(&mut self, which: Which, sizes: &Bindings) -> Result<usize, SessionError> {
        if let Some(at) = self.programs.find(which, sizes) {
            self.planner.turn_to(which, sizes)?;
            return Ok(at);
        }
        self.plan(which, sizes)?;
        Ok(self.programs.last())
    }

    /// The sizes that make the graph's data inputs fit a batch.
    pub fn sizes(&self, which: Which, batch: &Batch) -> Result<Bindings, SessionError> {
        Ok(sizes_of(self.planner.whole(which), batch)?)
    }

    /// The number of the program for a batch, with everything fed.
    fn prepare(
        &mut self,
        which: Which,
        batch: &Batch,
        keys: &[Key],
        hyper: MemberHyper<'_>,
    ) -> Result<usize, SessionError> {
        let sizes = self.sizes(which, batch)?;
        let at = self.load(which, &sizes)?;
        let program = &self.programs.get(at).program;
        let side = self.planner.side(which);
        let seat = self.planner.options().own_partials().filter(|_| which == Which::Train);
        self.ledger.to_device += feed(&mut self.cpu, side, program, (batch, &sizes), keys, hyper, seat)?;
        Ok(at)
    }

    /// One training step. If a loss is not finite, its objective leaves weights and states as they were;
    /// updates of objectives before it in the same step stay.
    pub fn step(&mut self, batch: &Batch, key: Key, hyper: Hyper<'_>) -> Result<Outcome, SessionError> {
        if !self.others.is_empty() {
            return self.step_on_all(batch, key, hyper);
        }
        let mut outcomes = self.step_together(batch, &[key], &|_, role, name| hyper(role, name))?;
        Ok(outcomes.remove(0))
    }

    /// One training step of every member, for each of whom it is what [`Session::step`] says.
    pub fn step_together(
        &mut self,
        batch: &Batch,
        keys: &[Key],
        hyper: MemberHyper<'_>,
    ) -> Result<Vec<Outcome>, SessionError> {
        let mut outcomes = self.sums_of_step(batch, keys, hyper)?;
        let partials = self.planner.options().partials;
        outcomes.iter_mut().for_each(|outcome| outcome.average(partials));
        Ok(outcomes)
    }

    /// As [`Session::step_together`]; losses are sums over the partials of this device.
    fn sums_of_step(
        &mut self,
        batch: &Batch,
        keys: &[Key],
        hyper: MemberHyper<'_>,
    ) -> Result<Vec<Outcome>, SessionError> {
        let loss_scale = Some((1.0 / f64::from(self.planner.options().all_partials())) as f32);
        let with_scale = |m: usize, role: HyperRole, name: &str| match role {
            HyperRole::LossScale => loss_scale,
            _ => hyper(m, role, name),
        };
        let at = self.prepare(Which::Train, batch, keys, &with_scale)?;
        self.remember()?;
        let mut watch = self.begin(at);
        let mut failed: Vec<Failed> = Vec::new();
        let (mut done, mut next) = (0, 0);
        loop {
            let Loaded { program, .. } = self.programs.get(at);
            let update = program.updates().get(next).copied();
            let until = update.map_or(program.len(), |(_, update)| update);
            watch.run(&mut self.cpu, self.planner.graph(Which::Train), program, done..until)?;
            let Some((objective, update)) = update else { break };
            (done, next) = (update, next + 1);
            let losses = self.agreed(self.cpu.losses(program, objective)?)?;
            let fails = |m: usize| !losses.iter().skip(m).step_by(self.members).all(|x| x.is_finite());
            let fresh: Vec<usize> =
                (0..self.members).filter(|&m| fails(m) && failed.iter().all(|f| f.member != m)).collect();
            if failed.is_empty() && fresh.len() == self.members {
                // Whoever needs others in the middle of a step would have to meet them again.
                if self.array || self.planner.options().meets_within() {
                    self.come_to_the_rest(at, done)?;
                    self.undo()?;
                    return Ok(vec![Outcome::failed("loss".into()); self.members]);
                }
                // What the batch was fed into may have been used for other things since.
                let at = self.prepare(Which::Train, batch, keys, &with_scale)?;
                return Ok(vec![Outcome::failed(self.diagnose(at, objective, update)?)]);
            }
            for member in fresh {
                failed.push(self.set_aside(member)?);
            }
        }
        self.end(Which::Train, at, watch);
        let mut outcomes = self.scalars(at)?;
        for one in failed {
            outcomes[one.member] = Outcome::failed("loss".into());
            self.put_back(one)?;
        }
        Ok(outcomes)
    }

    /// Scalar outputs of the last run, by member; what does not depend on the member is everyone's.
    fn scalars(&mut self, at: usize) -> Result<Vec<Outcome>, RunError> {
        let Loaded { program, .. } = self.programs.get(at);
        let mut outcomes = vec![Outcome { scalars: Scalars::default(), not_finite: None }; self.members];
        for output in program.outputs.iter().filter(|output| output.scope != OutputScope::Agreed) {
            let tensor = self.cpu.tensor(output)?;
            let own = self.array && tensor.shape() == [self.members];
            let Some(numbers) = tensor.as_f32().filter(|_| own || tensor.shape().is_empty()) else {
                continue;
            };
            self.ledger.to_host += size_of_val(numbers) as u64;
            for (m, outcome) in outcomes.iter_mut().enumerate() {
                let value = f64::from(numbers[if own { m } else { 0 }]);
                let scalar = Scalar { role: output.role, scope: output.scope, value };
                outcome.scalars.insert(&output.name, scalar);
            }
        }
        Ok(outcomes)
    }

    /// Takes a copy of what a member has now.
    fn set_aside(&mut self, member: usize) -> Result<Failed, RunError> {
        Ok(Failed { member, had: self.tensors_of(member)? })
    }

    /// Gives a member what it had; states that the forward pass changes are as before the step.
    fn put_back(&mut self, Failed { member, had }: Failed) -> Result<(), RunError> {
        for (name, mut tensor) in had {
            let residence = self.planner.persistent().residences[&name];
            let own = tensor.as_bytes().len();
            let mut at = member * own;
            for before in &self.forward {
                if (before.tier, before.offset) == (residence.tier, residence.offset) {
                    tensor.as_bytes_mut().copy_from_slice(&self.undo[at..at + own]);
                }
                at += before.bytes as usize;
            }
            self.set_of(member, &name, &tensor)?;
        }
        Ok(())
    }

    /// Starts to measure a run of a program, kernel by kernel if that is still to be done.
    fn begin(&mut self, at: usize) -> Stopwatch {
        let Loaded { program, to_time, .. } = self.programs.get(at);
        // In the first run of all, memory is touched for the first time.
        let timed = *to_time > 0 && self.collector.runs() > 0;
        let times = timed.then(|| self.collector.lend_times(program.len()));
        Stopwatch { began: Instant::now(), moved: self.moved(), times }
    }

    /// Notes a run that is done, and tells the planner how long kernels took.
    fn end(&mut self, which: Which, at: usize, watch: Stopwatch) {
        let seconds = watch.began.elapsed().as_secs_f64();
        let moved = self.moved() - watch.moved;
        let loaded = self.programs.get_mut(at);
        let measured = Amounts { peaks: self.cpu.run_peaks(), moved, seconds };
        self.collector.ran(loaded.record, &loaded.planned, &measured);
        if let Some(plan) = loaded.noted.as_ref().filter(|_| which == Which::Train) {
            self.traced = Some(Traced { plan: Arc::clone(plan), seen: self.cpu.seen().to_vec() });
        }
        if let Some(times) = watch.times {
            loaded.to_time -= 1;
            self.planner.learn(which, &loaded.thought, &loaded.program.seconds_by_kind(&times));
            self.collector.give_back(times);
        }
    }

    /// One training step that looks at no loss and times each instruction, in order.
    pub fn profile(
        &mut self,
        batch: &Batch,
        key: Key,
        hyper: Hyper<'_>,
    ) -> Result<Vec<(Work, Duration)>, SessionError> {
        let loss_scale = Some((1.0 / f64::from(self.planner.options().all_partials())) as f32);
        let with_scale = |_, role: HyperRole, name: &str| match role {
            HyperRole::LossScale => loss_scale,
            _ => hyper(role, name),
        };
        let at = self.prepare(Which::Train, batch, &vec![key; self.members], &with_scale)?;
        Ok(self.cpu.profile(self.planner.graph(Which::Train), &self.programs.get(at).program)?)
    }

    /// Notes the states that the forward pass changes.
    fn remember(&mut self) -> Result<(), RunError> {
        fetch(&self.cpu, &self.forward, &mut self.undo)
    }

    fn undo(&mut self) -> Result<(), RunError> {
        put_back(&mut self.cpu, &self.forward, &self.undo)
    }

    /// Runs what is left of a step that has failed, if others wait for this device at collectives that are still to
    /// come: their updates need not be where its own are. Updates that are run are undone.
    fn come_to_the_rest(&mut self, at: usize, done: usize) -> Result<(), RunError> {
        if !self.planner.options().meets_within() {
            return Ok(());
        }
        let graph = self.planner.graph(Which::Train);
        let updates = |node: Option<&Node>| node.is_some_and(|node| node.phase == Phase::Update);
        let updated = carried(graph, self.planner.persistent(), updates);
        let mut kept = vec![0; updated.iter().map(|residence| residence.bytes as usize).sum()];
        fetch(&self.cpu, &updated, &mut kept)?;
        let Loaded { program, .. } = self.programs.get(at);
        self.cpu.run(graph, program, done..program.len(), None)?;
        put_back(&mut self.cpu, &updated, &kept)
    }

    /// Undoes what the forward pass changed and runs it again, up to the first update of the objective that
    /// failed, looking at every value. The batch must have been fed anew.
    fn diagnose(&mut self, at: usize, objective: u32, until: usize) -> Result<String, SessionError> {
        self.undo()?;
        if let Some(name) = self.first_not_finite(0, &self.layout())? {
            return Ok(name);
        }
        let mut first = None;
        let mut watch = |value: Value, data: &[f32]| {
            if first.is_none() && data.iter().any(|x| !x.is_finite()) {
                first = Some(value);
            }
        };
        // Updates of earlier objectives are run again, and must not count twice.
        let earlier = |node: &Node| node.phase == Phase::Update && node.objective < objective;
        let updated = carried(self.planner.graph(Which::Train), self.planner.persistent(), |node| {
            node.is_some_and(earlier)
        });
        let mut kept = vec![0; updated.iter().map(|residence| residence.bytes as usize).sum()];
        fetch(&self.cpu, &updated, &mut kept)?;
        let Loaded { program, .. } = self.programs.get(at);
        self.cpu.run(self.planner.graph(Which::Train), program, 0..until, Some(&mut watch))?;
        put_back(&mut self.cpu, &updated, &kept)?;
        self.undo()?;
        Ok(first.map_or("loss".into(), |v| self.graph().value(v).name.clone()))
    }
}

/// A run being measured.
struct Stopwatch {
    began: Instant,
    /// Bytes moved before.
    moved: Ledger,
    /// Of each instruction, if they are timed.
    times: Option<Vec<Duration>>,
}

impl Stopwatch {
    fn run(
        &mut self,
        cpu: &mut Cpu,
        graph: &Graph,
        program: &Program,
        range: Range<usize>,
    ) -> Result<(), RunError> {
        match &mut self.times {
            Some(times) => cpu.run_timed(graph, program, range, times),
            None => cpu.run(graph, program, range, None),
        }
    }
}

/// Lets tiers grow to these sizes, within their budgets. Programs for memory that moves are dropped.
fn make_room(
    cpu: &mut Cpu,
    options: &SessionOptions,
    programs: &mut Programs,
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
            programs.clear();
        }
        let bytes = match limit {
            Some(limit) if tier == Tier::Device => with_slack(needed).min(limit),
            _ => needed,
        };
        cpu.grow(tier, bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
