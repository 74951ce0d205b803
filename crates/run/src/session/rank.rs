//! One device of a job: its share of weights and states, its programs, and their measurements.

use super::SessionError;
use super::programs::{LIMIT, Loaded, Output, Programs, Reuse, first_updates, outputs};
use super::residences::carried;
use super::trace::Traced;
use crate::collector::{Alarm, Amounts, Collector};
use crate::device::{Device, Observe, RunError, Spot};
use crate::host::HostTensor;
use crate::peers::Peers;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, Node, Phase, Role, Value};
use gulliver_plan::document::collectives::collectives;
use gulliver_plan::document::job::{DevicePlan, Purpose, SizedPlan};
use gulliver_plan::document::ledger::Ledger;
use gulliver_plan::document::plan::{Plan, TIERS, Tier};
use gulliver_plan::document::residence::Residence;
use gulliver_plan::document::verify::verify;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Runs of every new program whose kernels are timed.
const TIMED: u32 = 2;

/// One device of a job.
pub struct RankSession {
    pub(super) plan: DevicePlan,
    pub(super) device: Box<dyn Device>,
    /// The other devices, if there are any.
    pub(super) peers: Option<Arc<dyn Peers>>,
    /// Jobs that are trained together; one, unless this is an array.
    pub(super) members: usize,
    /// Values of members lie one after the other, along a first dimension of their own.
    pub(super) array: bool,
    /// The states that the forward pass changes.
    pub(super) forward: Vec<Residence>,
    /// Their values before the step.
    pub(super) undo: Vec<u8>,
    pub(super) programs: Programs,
    pub(super) collector: Collector,
    /// Bytes fed and fetched; the device counts the bytes that plans move.
    pub(super) ledger: Ledger,
    /// Times of the steps of the last training step, if they are recorded.
    pub(super) traced: Option<Traced>,
}

impl RankSession {
    /// The device with memory for its weights and states, at their first values.
    pub(super) fn new(
        plan: DevicePlan,
        device: Box<dyn Device>,
        peers: Option<Arc<dyn Peers>>,
        seeds: &[u64],
        array: bool,
    ) -> Result<RankSession, SessionError> {
        let passing = |node: Option<&Node>| node.is_none_or(|n| n.phase != Phase::Update);
        let forward = carried(&plan.graph, &plan.residences, passing);
        let mut session = RankSession {
            undo: vec![0; forward.iter().map(|residence| residence.bytes as usize).sum()],
            forward,
            members: seeds.len(),
            array,
            plan,
            device,
            peers,
            programs: Programs::new(LIMIT),
            collector: Collector::default(),
            ledger: Ledger::default(),
            traced: None,
        };
        session.device.grow(Tier::Device, session.plan.first_bytes)?;
        session.make_room(session.plan.residences.ends)?;
        session.initialise(seeds, true)?;
        Ok(session)
    }

    /// Number of jobs that are trained together.
    pub fn members(&self) -> usize {
        self.members
    }

    /// The device's training graph; where nodes are divided, for one input size.
    pub fn graph(&self) -> &Graph {
        &self.plan.graph
    }

    /// Bytes moved so far.
    pub fn ledger(&self) -> Ledger {
        let mut ledger = self.ledger;
        ledger += self.device.moved();
        ledger
    }

    /// Planned and measured amounts.
    pub fn collector(&self) -> &Collector {
        &self.collector
    }

    pub(super) fn take_alarms(&mut self) -> Vec<Alarm> {
        self.collector.take_alarms()
    }

    /// Hits and misses of the cache of programs.
    pub fn reuse(&self) -> Reuse {
        self.programs.reuse
    }

    /// Name of the device.
    pub fn device_name(&self) -> &str {
        self.device.name()
    }

    /// Peak bytes of a tier.
    pub fn peak_of(&self, tier: Tier) -> u64 {
        self.device.peaks()[tier as usize]
    }

    /// Bytes of device and host memory.
    pub fn memory(&self) -> u64 {
        self.device.bytes(Tier::Device) + self.device.bytes(Tier::Host)
    }

    pub(super) fn slow_operators(&self) -> Vec<&'static str> {
        let mut all: Vec<&'static str> = self.programs.all().flat_map(|l| l.slow.clone()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Gets and verifies the plan for inputs of these sizes and loads its program, which replaces an earlier one.
    pub(super) fn plan(&mut self, purpose: Purpose, sizes: &Bindings) -> Result<Arc<Plan>, SessionError> {
        let began = Instant::now();
        let made = self.plan.source.plan(purpose, sizes)?;
        let SizedPlan { graph, plan, .. } = &made;
        verify(graph, plan)?;
        self.make_room(TIERS.map(|tier| plan.spaces[tier as usize].bytes))?;
        let program = self.device.load(graph, plan)?;
        let peaks = TIERS.map(|tier| plan.spaces[tier as usize].live);
        let planned = Amounts { peaks, moved: made.ledger, seconds: made.seconds };
        let record = self.collector.record(purpose, sizes);
        let mut inputs: Vec<(Value, Spot)> =
            plan.inputs.iter().map(|input| (input.value, Spot::of(plan, &input.place))).collect();
        inputs.sort_by_key(|(value, _)| *value);
        let fed = graph.inputs().filter(|(_, role, _)| !matches!(role, Role::Weight(_) | Role::State(_)));
        let plan = Arc::clone(plan);
        let loaded = Loaded {
            program: program.id,
            bytes: program.bytes,
            slow: program.slow,
            sizes: sizes.clone(),
            fed: fed.map(|(value, ..)| value).collect(),
            inputs,
            outputs: outputs(graph, &plan)?,
            updates: first_updates(graph, &plan),
            collectives: collectives(graph, &plan),
            planned,
            record,
            to_time: if made.learns { TIMED } else { 0 },
            made,
        };
        for gone in self.programs.insert(purpose, sizes, loaded) {
            self.device.unload(gone);
        }
        self.programs.reuse.seconds += began.elapsed().as_secs_f64();
        Ok(plan)
    }

    /// The number of the program for inputs of these sizes.
    pub(super) fn load(&mut self, purpose: Purpose, sizes: &Bindings) -> Result<usize, SessionError> {
        if let Some(at) = self.programs.find(purpose, sizes) {
            return Ok(at);
        }
        self.plan(purpose, sizes)?;
        Ok(self.programs.last())
    }

    /// Makes tiers at least this large, within their limits. Drops programs if memory moves.
    fn make_room(&mut self, needed: [u64; TIERS.len()]) -> Result<(), RunError> {
        for (tier, needed) in TIERS.into_iter().zip(needed) {
            if needed <= self.device.bytes(tier) {
                continue;
            }
            let limit = self.plan.limits.of(tier);
            if let Some(available) = limit.filter(|&limit| needed > limit) {
                return Err(RunError::Space { tier, needed, available });
            }
            if tier != Tier::Disk {
                self.programs.clear();
            }
            // A reserve, so that memory seldom grows; untouched pages cost nothing.
            let bytes = match limit {
                Some(limit) if tier == Tier::Device => needed.saturating_add(needed / 4).min(limit),
                _ => needed,
            };
            self.device.grow(tier, bytes)?;
        }
        Ok(())
    }

    /// Starts to measure a run of a program; kernel by kernel if runs are still to be timed.
    pub(super) fn begin(&mut self, at: usize) -> Stopwatch {
        let Loaded { made, to_time, .. } = self.programs.get(at);
        // In the first run of all, memory is touched for the first time.
        let timed = *to_time > 0 && self.collector.runs() > 0;
        let times = timed.then(|| self.collector.lend_times(made.plan.steps.len()));
        Stopwatch { began: Instant::now(), moved: self.device.moved(), times }
    }

    /// Runs a range of a program's steps.
    pub(super) fn run(
        &mut self,
        at: usize,
        steps: Range<usize>,
        watch: &mut Stopwatch,
    ) -> Result<(), RunError> {
        let observe = watch.times.as_mut().map_or(Observe::Nothing, |times| Observe::Times(times));
        self.device.run(self.programs.get(at).program, steps, observe)
    }

    /// Records a finished run and reports kernel times to the source of plans.
    pub(super) fn end(&mut self, purpose: Purpose, at: usize, watch: Stopwatch) {
        let seconds = watch.began.elapsed().as_secs_f64();
        let moved = self.device.moved() - watch.moved;
        let loaded = self.programs.get_mut(at);
        let measured = Amounts { peaks: self.device.run_peaks(), moved, seconds };
        self.collector.ran(loaded.record, &loaded.planned, &measured);
        if self.device.records() && purpose == Purpose::Train {
            let (graph, plan) = (Arc::clone(&loaded.made.graph), Arc::clone(&loaded.made.plan));
            self.traced = Some(Traced { graph, plan, times: self.device.recorded().to_vec() });
        }
        if let Some(times) = watch.times {
            loaded.to_time -= 1;
            let seconds: Vec<f64> = times.iter().map(Duration::as_secs_f64).collect();
            self.plan.source.measured(purpose, &loaded.sizes, &loaded.made.plan, &seconds);
            self.collector.give_back(times);
        }
    }

    /// An output of the last run.
    pub(super) fn output(&self, output: &Output) -> Result<HostTensor, RunError> {
        let mut tensor = HostTensor::zeros(output.dtype, &output.shape);
        self.device.read(output.spot.tier, output.spot.offset, tensor.as_bytes_mut())?;
        Ok(tensor)
    }

    /// The losses of an objective that are checked before its updates.
    pub(super) fn losses(&self, at: usize, objective: u32) -> Result<Vec<f32>, RunError> {
        let mut losses = Vec::new();
        let all = self.programs.get(at).outputs.iter();
        for output in all.filter(|output| output.place.is_early_loss() && output.objective == objective) {
            losses.extend_from_slice(self.output(output)?.as_f32().unwrap_or_default());
        }
        Ok(losses)
    }
}

/// A run being measured.
pub(super) struct Stopwatch {
    began: Instant,
    /// Bytes moved before.
    moved: Ledger,
    /// By step of the plan, if kernels are timed.
    times: Option<Vec<Duration>>,
}
