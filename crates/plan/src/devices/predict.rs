//! What the plans of several devices come to before any of them runs: all simulated together, over the links between
//! them.

use crate::devices::error::JobPlanError;
use crate::devices::options::ForEach;
use crate::devices::planner::Planner;
use crate::document::job::Purpose;
use crate::document::plan::Plan;
use crate::document::topology::Topology;
use crate::document::verify::verify;
use crate::time::cost::Curves;
use crate::time::simulate::{RankPlan, Together, Uneven, together};
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::NodeId;
use std::sync::{Mutex, PoisonError};

/// The plans of all devices, and how long they take together.
pub struct PredictedStep {
    /// By device.
    pub plans: Vec<Plan>,
    /// Time, and bytes over links.
    pub together: Together,
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

/// What `make` gives for each, several at a time; the first error in their order, if there are any.
pub(crate) fn each<A: Send, T: Send, E: Send>(
    for_each: &ForEach,
    all: Vec<A>,
    make: impl Fn(A) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    let slots: Vec<Mutex<(Option<A>, Option<Result<T, E>>)>> =
        all.into_iter().map(|one| Mutex::new((Some(one), None))).collect();
    for_each(slots.len(), &|i| {
        let mut slot = slots[i].lock().unwrap_or_else(PoisonError::into_inner);
        let one = slot.0.take().expect("each is made once");
        slot.1 = Some(make(one));
    });
    let made = slots.into_iter().map(|slot| slot.into_inner().unwrap_or_else(PoisonError::into_inner).1);
    made.map(|one| one.expect("each was made")).collect()
}

/// How long plans take together that these planners have made for inputs of these sizes, at prices they have now.
pub fn timed(planners: &mut [Planner], sizes: &Bindings, plans: &[Plan]) -> Result<Together, JobPlanError> {
    let curves = planners.first().and_then(|planner| planner.options().curves.as_ref());
    let uneven = curves.map(|curves| unevenness(curves));
    Priced::new(planners, sizes, plans)?.together(uneven.unwrap_or_default())
}

/// How uneven curves say that devices are.
pub fn unevenness(curves: &Curves) -> Uneven {
    Uneven { share: curves.uneven, fades: curves.fades, resumes: curves.resumes }
}

/// Bytes that are fed to a device before every step.
pub fn fed(plan: &Plan) -> u64 {
    let inputs = plan.inputs.iter().filter(|input| !input.persistent);
    inputs.map(|input| input.place.bytes).sum()
}

/// Seconds of a device by node.
struct Prices {
    /// While all devices are at work.
    crowded: Vec<f64>,
    /// While the others are at rest, if that is known.
    alone: Option<Vec<f64>>,
    /// Of collectives beside kernels: those that kernels lose, and those that they take.
    met: Vec<[f64; 2]>,
}

/// Plans of several devices with seconds for all they do.
pub struct Priced<'a> {
    planners: &'a [Planner],
    plans: &'a [Plan],
    /// By device.
    prices: Vec<Prices>,
    /// Whether there are no cores for who holds collectives.
    crowded: bool,
    topology: Topology,
}

impl<'a> Priced<'a> {
    /// Of plans that these planners have made for inputs of these sizes.
    pub fn new(
        planners: &'a mut [Planner],
        sizes: &Bindings,
        plans: &'a [Plan],
    ) -> Result<Priced<'a>, JobPlanError> {
        let price = |planner: &mut Planner| -> Result<Prices, JobPlanError> {
            let crowded = planner.seconds(Purpose::Train, sizes)?;
            let alone = planner.seconds_alone(Purpose::Train, sizes)?;
            Ok(Prices { crowded, alone, met: planner.seconds_met(Purpose::Train, sizes)? })
        };
        let prices = planners.iter_mut().map(price).collect::<Result<Vec<_>, _>>()?;
        let threads: usize = planners.iter().map(|planner| planner.options().threads).sum();
        let first = planners.first().map(|planner| planner.options());
        let crowded = first.is_some_and(|options| threads >= options.cores);
        let topology = first.and_then(|options| options.topology.as_deref().cloned());
        let topology = topology.unwrap_or_else(Topology::alone);
        Ok(Priced { planners, plans, prices, crowded, topology })
    }

    /// How long they take together if devices are so uneven.
    pub fn together(&self, uneven: Uneven) -> Result<Together, JobPlanError> {
        let mut found = self.steps(uneven)?;
        found.seconds += self.around();
        Ok(found)
    }

    /// Seconds in which inputs are fed and results read.
    fn around(&self) -> f64 {
        let curves = self.planners.first().and_then(|planner| planner.options().curves.as_ref());
        let [call, byte] = curves.map_or([0.0; 2], |curves| curves.around);
        call + byte * self.plans.iter().map(fed).sum::<u64>() as f64
    }

    /// The same without what is around their plans.
    pub fn steps(&self, uneven: Uneven) -> Result<Together, JobPlanError> {
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
