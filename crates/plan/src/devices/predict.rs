//! The predicted step of several devices: their plans, simulated together over the links between them.

use crate::devices::error::JobPlanError;
use crate::devices::options::ForEach;
use crate::devices::planner::{NodePrices, Planner};
use crate::document::job::Purpose;
use crate::document::plan::Plan;
use crate::document::topology::Topology;
use crate::document::verify::verify;
use crate::time::cost::Curves;
use crate::time::simulate::{JointTiming, RankPlan, Unevenness, together};
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::NodeId;
use std::sync::{Mutex, PoisonError};

/// The plans of all devices, and their simulated time.
pub struct PredictedStep {
    /// By device.
    pub plans: Vec<Plan>,
    /// Seconds, and bytes over links.
    pub together: JointTiming,
}

/// Plans a training step on all devices, each with inputs of these sizes, and times it.
pub fn predict(
    for_each: &ForEach,
    planners: &mut [Planner],
    sizes: &Bindings,
) -> Result<PredictedStep, JobPlanError> {
    let plans = each(
        for_each,
        planners.iter_mut().collect(),
        |planner: &mut Planner| -> Result<Plan, JobPlanError> {
            let plan = planner.plan(Purpose::Train, sizes)?;
            verify(planner.graph(Purpose::Train), &plan)?;
            Ok(plan)
        },
    )?;
    let together = timed(planners, sizes, &plans)?;
    Ok(PredictedStep { plans, together })
}

/// Calls `make` for each, several at a time. Returns the first error in their order.
pub(crate) fn each<A: Send, T: Send, E: Send>(
    for_each: &ForEach,
    all: Vec<A>,
    make: impl Fn(A) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    let slots: Vec<_> = all.into_iter().map(|one| Mutex::new((Some(one), None))).collect();
    for_each(slots.len(), &|i| {
        let mut slot = slots[i].lock().unwrap_or_else(PoisonError::into_inner);
        let one = slot.0.take().expect("each is made once");
        slot.1 = Some(make(one));
    });
    let made = slots.into_iter().map(|slot| slot.into_inner().unwrap_or_else(PoisonError::into_inner).1);
    made.map(|one: Option<Result<T, E>>| one.expect("each was made")).collect()
}

/// Simulates plans that these planners made for inputs of these sizes, at their present prices.
pub fn timed(
    planners: &mut [Planner],
    sizes: &Bindings,
    plans: &[Plan],
) -> Result<JointTiming, JobPlanError> {
    let curves = planners.first().and_then(|planner| planner.options().curves.as_ref());
    let uneven = curves.map(|curves| unevenness(curves));
    Priced::new(planners, sizes, plans)?.together(uneven.unwrap_or_default())
}

/// The unevenness of devices by their curves.
pub fn unevenness(curves: &Curves) -> Unevenness {
    Unevenness { share: curves.uneven, fades: curves.fades, resumes: curves.resumes }
}

/// Bytes fed to a device before every step.
pub fn fed(plan: &Plan) -> u64 {
    let inputs = plan.inputs.iter().filter(|input| !input.persistent);
    inputs.map(|input| input.place.bytes).sum()
}

/// Plans of several devices with the seconds of their nodes.
pub struct Priced<'a> {
    planners: &'a [Planner],
    plans: &'a [Plan],
    /// By device.
    prices: Vec<NodePrices>,
    /// Whether kernels use all cores, so that collectives take cores from them.
    crowded: bool,
    topology: Topology,
}

impl<'a> Priced<'a> {
    /// Prices plans that these planners made for inputs of these sizes.
    pub fn new(
        planners: &'a mut [Planner],
        sizes: &Bindings,
        plans: &'a [Plan],
    ) -> Result<Priced<'a>, JobPlanError> {
        let prices = planners.iter_mut().map(|planner| planner.prices(Purpose::Train, sizes));
        let prices = prices.collect::<Result<Vec<_>, _>>()?;
        let threads: usize = planners.iter().map(|planner| planner.options().threads).sum();
        let first = planners.first().map(|planner| planner.options());
        let crowded = first.is_some_and(|options| threads >= options.cores);
        let topology = first.and_then(|options| options.topology.as_deref().cloned());
        let topology = topology.unwrap_or_else(Topology::alone);
        Ok(Priced { planners, plans, prices, crowded, topology })
    }

    /// Simulates all devices, inputs and results included.
    pub fn together(&self, uneven: Unevenness) -> Result<JointTiming, JobPlanError> {
        let mut found = self.steps(uneven)?;
        found.seconds += self.around();
        Ok(found)
    }

    /// Seconds to feed inputs and read results.
    fn around(&self) -> f64 {
        let curves = self.planners.first().and_then(|planner| planner.options().curves.as_ref());
        let [call, byte] = curves.map_or([0.0; 2], |curves| curves.around);
        call + byte * self.plans.iter().map(fed).sum::<u64>() as f64
    }

    /// Simulates the steps of the plans alone.
    pub fn steps(&self, uneven: Unevenness) -> Result<JointTiming, JobPlanError> {
        fn of<T: Copy>(seconds: &[T]) -> impl Fn(NodeId) -> T {
            |id| seconds[id.index()]
        }
        let all = self.prices.iter().map(|p| (of(&p.crowded), p.alone.as_deref().map(of), of(&p.met)));
        let all: Vec<_> = all.collect();
        let ranks = self.planners.iter().zip(self.plans).zip(&all);
        let ranks = ranks.map(|((planner, plan), (seconds, alone, taken))| RankPlan {
            graph: planner.graph(Purpose::Train),
            plan,
            seconds,
            alone: alone.as_ref().map(|alone| alone as &dyn Fn(NodeId) -> f64),
            taken: self.crowded.then_some(taken as &dyn Fn(NodeId) -> [f64; 2]),
            uneven,
            links: &planner.options().links,
        });
        together(&ranks.collect::<Vec<_>>(), &self.topology).map_err(JobPlanError::Waiting)
    }
}
