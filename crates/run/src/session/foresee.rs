//! What the plans of several devices come to before any of them runs: all of them timed together, over the links
//! between them.

use super::crew::at_once;
use super::{SessionError, Which};
use crate::planner::Planner;
use crate::team::cores;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::NodeId;
use gulliver_plan::document::plan::Plan;
use gulliver_plan::document::topology::Topology;
use gulliver_plan::document::verify::verify;
use gulliver_plan::time::cost::Curves;
use gulliver_plan::time::simulate::{RankPlan, Together, Uneven, together};

/// The plans of all devices, and how long they take together.
pub struct Foreseen {
    /// By device.
    pub plans: Vec<Plan>,
    /// Time, and bytes over links.
    pub together: Together,
}

/// Plans a training step on all devices, each with inputs of these sizes, and times it.
pub fn foresee(planners: &mut [Planner], sizes: &Bindings) -> Result<Foreseen, SessionError> {
    let plans = at_once(planners.iter_mut().collect(), |planner: &mut Planner| {
        let plan = planner.plan(Which::Train, sizes)?;
        verify(planner.graph(Which::Train), &plan)?;
        Ok(plan)
    })?;
    let together = timed(planners, sizes, &plans)?;
    Ok(Foreseen { plans, together })
}

/// How long plans take together that these planners have made for inputs of these sizes, at prices they have now.
pub fn timed(planners: &mut [Planner], sizes: &Bindings, plans: &[Plan]) -> Result<Together, SessionError> {
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
    ) -> Result<Priced<'a>, SessionError> {
        let prices = at_once(planners.iter_mut().collect(), |planner: &mut Planner| {
            let crowded = planner.seconds(Which::Train, sizes)?;
            let alone = planner.seconds_alone(Which::Train, sizes)?;
            Ok(Prices { crowded, alone, met: planner.seconds_met(Which::Train, sizes)? })
        })?;
        let threads: usize = planners.iter().map(|planner| planner.options().threads).sum();
        let crowded = threads >= cores();
        let throttle = planners.first().and_then(|planner| planner.options().throttle.as_ref());
        let topology = throttle.map_or_else(Topology::alone, |throttle| throttle.topology().clone());
        Ok(Priced { planners, plans, prices, crowded, topology })
    }

    /// How long they take together if devices are so uneven.
    pub fn together(&self, uneven: Uneven) -> Result<Together, SessionError> {
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
    pub fn steps(&self, uneven: Uneven) -> Result<Together, SessionError> {
        fn of<T: Copy>(seconds: &[T]) -> impl Fn(NodeId) -> T {
            |id| seconds[id.index()]
        }
        let all = self.prices.iter().map(|p| (of(&p.crowded), p.alone.as_deref().map(of), of(&p.met)));
        let all: Vec<_> = all.collect();
        let ranks = self.planners.iter().zip(self.plans).zip(&all);
        let ranks = ranks.map(|((planner, plan), (seconds, alone, taken))| RankPlan {
            graph: planner.graph(Which::Train),
            plan,
            seconds,
            alone: alone.as_ref().map(|alone| alone as &dyn Fn(NodeId) -> f64),
            taken: self.crowded.then_some(taken as &dyn Fn(NodeId) -> [f64; 2]),
            uneven,
            links: &planner.options().links,
        });
        together(&ranks.collect::<Vec<_>>(), &self.topology).map_err(SessionError::Waiting)
    }
}
