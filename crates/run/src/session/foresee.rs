//! What the plans of several devices come to before any of them runs: all of them timed together, over the links
//! between them.

use super::crew::at_once;
use super::{SessionError, Which};
use crate::planner::Planner;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::NodeId;
use gulliver_plan::plan::Plan;
use gulliver_plan::simulate::{Party, Together, together};
use gulliver_plan::topology::Topology;
use gulliver_plan::verify::verify;
use std::sync::Arc;
use std::thread;

/// The plans of all devices, and how long they take together.
pub struct Foreseen {
    /// By device.
    pub plans: Vec<Plan>,
    /// Time, and bytes over links.
    pub together: Together,
}

/// Plans a training step on all devices, each with inputs of these sizes, and times it.
pub fn foresee(planners: &mut [Planner], sizes: &Bindings) -> Result<Foreseen, SessionError> {
    let made = at_once(planners.iter_mut().collect(), |planner: &mut Planner| {
        let plan = planner.plan(Which::Train, sizes)?;
        verify(planner.graph(Which::Train), &plan)?;
        let seconds = planner.seconds(Which::Train, sizes)?;
        let alone = planner.seconds_alone(Which::Train, sizes)?;
        Ok((plan, seconds, alone, planner.seconds_met(Which::Train, sizes)?))
    })?;
    let threads: usize = planners.iter().map(|planner| planner.options().threads).sum();
    let crowded = threads >= thread::available_parallelism().map_or(1, |n| n.get());
    let throttle = planners.first().and_then(|planner| planner.options().throttle.clone());
    let topology = throttle.map_or_else(Topology::alone, |throttle| Arc::clone(&throttle).topology().clone());
    let of: Vec<_> = made.iter().map(|(_, seconds, ..)| |id: NodeId| seconds[id.index()]).collect();
    let alone =
        made.iter().map(|(_, _, alone, _)| alone.as_ref().map(|alone| |id: NodeId| alone[id.index()]));
    let alone: Vec<Option<_>> = alone.collect();
    let taken: Vec<_> = made.iter().map(|(.., met)| |id: NodeId| met[id.index()]).collect();
    let parties = planners.iter().zip(&made).zip(of.iter().zip(alone.iter().zip(&taken)));
    let parties: Vec<Party> = parties
        .map(|((planner, (plan, ..)), (seconds, (alone, taken)))| Party {
            graph: planner.graph(Which::Train),
            plan,
            seconds,
            alone: alone.as_ref().map(|alone| alone as &dyn Fn(NodeId) -> f64),
            taken: crowded.then_some(taken as &dyn Fn(NodeId) -> f64),
            uneven: planner.options().curves.as_ref().map_or(0.0, |curves| curves.uneven),
            links: &planner.options().links,
        })
        .collect();
    let together = together(&parties, &topology).map_err(SessionError::Waiting)?;
    let plans = made.into_iter().map(|(plan, ..)| plan).collect();
    Ok(Foreseen { plans, together })
}
