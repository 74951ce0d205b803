//! The plan of a job before anything runs, as `gulliver plan` shows it: memory, time and transfers on one device, or the
//! strategies of several devices compared.

use crate::error::{Error, Proposal};
use crate::event::{Event, EventHandler};
use crate::job::Job;
use crate::local::device_set;
use crate::machine::{self, KnownMachine};
use crate::setup::{PlanningOptions, Setup, measured, place, setup};
use crate::watch::watched;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;
use gulliver_plan::devices::error::JobPlanError;
use gulliver_plan::devices::options::{DeviceOptions, PlanWatch};
use gulliver_plan::devices::planner::Planner;
use gulliver_plan::devices::strategy::{Candidate, Strategy, Unable, ranking};
use gulliver_plan::document::collectives::exchanged;
use gulliver_plan::document::error::PlanError;
use gulliver_plan::document::job::Purpose;
use gulliver_plan::document::plan::{Choice, Plan, Tier};
use gulliver_plan::document::verify::verify;
use gulliver_plan::step::outline::slice_of;
use gulliver_plan::time::cost::MachineProfile;
use gulliver_plan::time::simulate::Timing;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// How a job is planned.
#[derive(Clone, Debug, Default)]
pub struct PlanRequest {
    /// The profile of the machine; its usual file if not given.
    pub profile: Option<PathBuf>,
    /// On several devices: plan the strategy of the job alone instead of comparing all.
    pub one_strategy: bool,
    /// Ends planning with [`Error::PlanningInterrupted`] once it is true.
    pub stop: Arc<AtomicBool>,
}

/// The plan of a job.
pub enum Planned {
    /// On one device.
    Device(Box<PlannedDevice>),
    /// On several devices.
    Devices(PlannedDevices),
}

/// The plan of one device for the largest input.
pub struct PlannedDevice {
    /// Devices of the job.
    pub devices: u64,
    /// One line: where predicted times come from.
    pub machine: String,
    /// The graph of a training step.
    pub graph: Graph,
    /// Bytes that the device may use.
    pub budget: Option<u64>,
    /// The plan, with its passes.
    pub plan: Plan,
    /// The plan in numbers.
    pub figures: PlanFigures,
    /// Bytes received from other devices in a step.
    pub from_peers: u64,
}

/// A plan in numbers.
#[derive(Clone, Debug, Serialize)]
pub struct PlanFigures {
    /// Sizes of the input it is for.
    pub sizes: BTreeMap<String, usize>,
    /// By tier: its bytes, and the most of them in use at once.
    pub spaces: BTreeMap<Tier, [u64; 2]>,
    /// Predicted times.
    pub timing: Timing,
    /// Number of values by what is decided about them.
    pub decided: BTreeMap<String, usize>,
}

/// Strategies for several devices.
pub struct PlannedDevices {
    /// Strategies that can be used, fastest first.
    pub candidates: Vec<Candidate>,
    /// The fastest that gives the numbers of one device, or the only one: its index.
    pub chosen: usize,
    /// Strategies that cannot be used, with the reason.
    pub impossible: Unable,
}

/// The plan within one budget.
#[derive(Clone, Debug, Serialize)]
pub struct BudgetPoint {
    /// Bytes of the device.
    pub budget: u64,
    /// The plan in numbers.
    #[serde(flatten)]
    pub figures: PlanFigures,
}

impl Planned {
    /// Everything as `gulliver plan --json` prints it.
    pub fn to_json(&self) -> Value {
        match self {
            Planned::Device(planned) => planned.to_json(),
            Planned::Devices(planned) => planned.to_json(),
        }
    }

    /// Predicted seconds of a training step.
    pub fn step_seconds(&self) -> f64 {
        match self {
            Planned::Device(planned) => planned.figures.timing.seconds,
            Planned::Devices(planned) => planned.chosen().prediction.together.seconds,
        }
    }

    /// The most bytes in use at once, by device.
    pub fn peak_bytes(&self) -> Vec<u64> {
        match self {
            Planned::Device(planned) => vec![planned.plan.spaces[0].live],
            Planned::Devices(planned) => peaks(planned.chosen()),
        }
    }
}

impl PlannedDevice {
    fn new(
        mut planner: Planner,
        largest: &Bindings,
        devices: u64,
        machine: String,
    ) -> Result<PlannedDevice, Error> {
        let plan = planner.plan_with_passes(Purpose::Train, largest)?;
        let graph = planner.graph(Purpose::Train).clone();
        verify(&graph, &plan).map_err(JobPlanError::from)?;
        let timing = planner.timing(Purpose::Train, largest, &plan)?;
        let from_peers =
            exchanged(&graph, &slice_of(largest, plan.partials)?, plan.partials).map_err(PlanError::from)?;
        let figures = PlanFigures::new(&plan, largest, timing);
        let budget = planner.options().memory;
        Ok(PlannedDevice { devices, machine, graph, budget, plan, figures, from_peers })
    }

    /// Everything as `gulliver plan --json` prints it.
    pub fn to_json(&self) -> Value {
        let PlannedDevice { devices, from_peers, machine, figures, plan, .. } = self;
        json!({"devices": devices, "from_peers": from_peers, "machine": machine, "summary": figures, "plan": plan})
    }
}

impl PlanFigures {
    fn new(plan: &Plan, sizes: &Bindings, timing: Timing) -> PlanFigures {
        let mut decided = BTreeMap::new();
        for decision in &plan.decisions {
            *decided.entry(decided_as(decision.choice).to_string()).or_default() += 1;
        }
        PlanFigures {
            sizes: sizes.iter().map(|(symbol, size)| (symbol.to_string(), size)).collect(),
            spaces: plan.spaces.iter().map(|space| (space.tier, [space.bytes, space.live])).collect(),
            timing,
            decided,
        }
    }
}

impl PlannedDevices {
    /// The chosen strategy.
    pub fn chosen(&self) -> &Candidate {
        &self.candidates[self.chosen]
    }

    /// Everything as `gulliver plan --json` prints it.
    pub fn to_json(&self) -> Value {
        let summary = |candidate: &Candidate| {
            let together = &candidate.prediction.together;
            json!({
                "strategy": candidate.name,
                "seconds": together.seconds,
                "peaks": peaks(candidate),
                "devices": together.devices,
                "links": together.links,
                "from_peers": from_peers(candidate),
                "same_numbers": candidate.same_numbers,
                "devices_used": candidate.planners.len(),
            })
        };
        let reason = |(name, why): &(&str, JobPlanError)| json!({"strategy": name, "why": why.to_string()});
        json!({
            "chosen": summary(self.chosen()),
            "ranking": self.candidates.iter().map(summary).collect::<Vec<Value>>(),
            "impossible": self.impossible.iter().map(reason).collect::<Vec<Value>>(),
            "plans": self.chosen().prediction.plans,
        })
    }
}

/// The decision about a value, in words.
pub fn decided_as(choice: Choice) -> &'static str {
    match choice {
        Choice::Keep => "kept",
        Choice::Recompute => "recomputed",
        Choice::Host => "moved to host memory",
        Choice::Disk => "moved to disk",
    }
}

/// The graphs and plans of all devices of a strategy.
pub fn graphs_and_plans(candidate: &Candidate) -> Vec<(&Graph, &Plan)> {
    let graphs = candidate.planners.iter().map(|planner| planner.graph(Purpose::Train));
    graphs.zip(&candidate.prediction.plans).collect()
}

/// Bytes that devices receive from each other in a step, over all of them.
pub fn from_peers(candidate: &Candidate) -> u64 {
    let bytes =
        |(graph, plan): (&Graph, &Plan)| exchanged(graph, &plan.bindings(), plan.partials).unwrap_or(0);
    graphs_and_plans(candidate).into_iter().map(bytes).sum()
}

fn peaks(candidate: &Candidate) -> Vec<u64> {
    candidate.prediction.plans.iter().map(|plan| plan.spaces[0].live).collect()
}

/// Plans a job.
pub fn plan(job: &Job) -> Result<Planned, Error> {
    plan_with(job, &PlanRequest::default(), &mut |_| ControlFlow::Continue(()))
}

/// The same with options; `on_event` hears of the progress and may end it.
pub fn plan_with(
    job: &Job,
    request: &PlanRequest,
    on_event: &mut EventHandler<'_>,
) -> Result<Planned, Error> {
    if job.devices.count == 1 {
        return Ok(Planned::Device(Box::new(plan_first_device(job, request, on_event)?)));
    }
    planned(job, request, on_event, |KnownMachine { profile, .. }, watch| {
        let placed = place(job, None, profile.as_ref(), Some(watch))?;
        let (graphs, set) = (&placed.prepared.graphs, device_set(&placed.devices));
        let (candidates, mut impossible) = match Strategy::named(job.train.strategy) {
            Some(strategy) if request.one_strategy => {
                (vec![Candidate::new(strategy, graphs, &set)?], Vec::new())
            }
            _ => ranking(graphs, &set)?,
        };
        let only = request.one_strategy && candidates.len() == 1;
        match candidates.iter().position(|candidate| only || candidate.same_numbers) {
            Some(chosen) => Ok(Planned::Devices(PlannedDevices { candidates, chosen, impossible })),
            None => Err(impossible.swap_remove(0).1.into()),
        }
    })
}

/// Plans the first device of a job.
pub fn plan_first_device(
    job: &Job,
    request: &PlanRequest,
    on_event: &mut EventHandler<'_>,
) -> Result<PlannedDevice, Error> {
    planned(job, request, on_event, |known, watch| {
        let (planner, largest) = first_planner(job, known.profile.as_ref(), watch)?;
        PlannedDevice::new(planner, &largest, job.devices.count, known.about)
    })
}

/// Plans within budgets from the smallest that is possible to all that could be used.
pub fn budget_curve(
    job: &Job,
    request: &PlanRequest,
    on_event: &mut EventHandler<'_>,
) -> Result<Vec<BudgetPoint>, Error> {
    planned(job, request, on_event, |known, watch| {
        let (mut planner, sizes) = first_planner(job, known.profile.as_ref(), watch)?;
        let [graph, evaluation] =
            [Purpose::Train, Purpose::Evaluate].map(|purpose| planner.graph(purpose).clone());
        let options = planner.options().clone();
        let least = planner.smallest(&sizes)?;
        let most = planner.unlimited(Purpose::Train, &sizes)?.spaces[0].bytes;
        let mut points = Vec::new();
        for part in 0..=8 {
            let budget = least + (most - least.min(most)) * part / 8;
            let limited =
                DeviceOptions { memory: Some(budget), largest: Some(sizes.clone()), ..options.clone() };
            let mut planner = Planner::new(graph.clone(), Some(evaluation.clone()), limited)?;
            let plan = planner.plan(Purpose::Train, &sizes)?;
            let timing = planner.timing(Purpose::Train, &sizes, &plan)?;
            points.push(BudgetPoint { budget, figures: PlanFigures::new(&plan, &sizes, timing) });
        }
        Ok(points)
    })
}

/// The cheapest change that makes a job fit; none if it fits as it is.
pub fn cheapest_change(
    job: &Job,
    request: &PlanRequest,
    on_event: &mut EventHandler<'_>,
) -> Result<Option<Proposal>, Error> {
    planned(job, request, on_event, |known, watch| {
        let planning = PlanningOptions { watch: Some(watch), thorough: true };
        match setup(job, None, known.profile.as_ref(), &planning) {
            Ok(_) => Ok(None),
            Err(Error::DoesNotFit(advice)) if advice.change.is_some() => Ok(advice.change),
            Err(error) => Err(error),
        }
    })
}

/// Does the work of a call on the machine that is known, with its progress as events.
fn planned<T: Send>(
    job: &Job,
    request: &PlanRequest,
    on_event: &mut EventHandler<'_>,
    work: impl FnOnce(KnownMachine, Arc<dyn PlanWatch>) -> Result<T, Error> + Send,
) -> Result<T, Error> {
    let known = machine::known(request.profile.as_deref())?;
    let mut tell = |event: Event| {
        if on_event(event).is_break() {
            request.stop.store(true, Ordering::Relaxed);
        }
    };
    watched(job.devices.memory, &request.stop, &mut tell, |watch| work(known, watch))
}

/// The planner of the first device, and the largest input.
fn first_planner(
    job: &Job,
    profile: Option<&MachineProfile>,
    watch: Arc<dyn PlanWatch>,
) -> Result<(Planner, Bindings), Error> {
    let planning = PlanningOptions { watch: Some(Arc::clone(&watch)), thorough: false };
    let Setup { mut planners, largest, .. } = setup(job, None, profile, &planning)?;
    let mut planner = planners.remove(0);
    // Without a budget nothing had to be weighed, and nothing was measured.
    if planner.options().memory.is_none() && profile.is_none() {
        planner.set_rates(measured(planner.options().threads));
    }
    planner.set_watch(Some(watch));
    Ok((planner, largest))
}
