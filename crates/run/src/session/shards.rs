//! One job on several devices that share a batch, each with its shards of weights and states alone: the planners
//! that follow from that. From outside weights are whole ([`super::cuts`]).

use super::crew::{at_once, planners, seated};
use super::{SessionError, SessionOptions};
use crate::boxed::Boxed;
use crate::peers::Takes;
use crate::planner::{Part, Planner};
use gulliver_graph::graph::Graph;
use gulliver_plan::devices::replicate::{Sharded, evaluating, sharded as sharded_graph};
use std::sync::Arc;

/// The planners of all devices, each with the options of one, in which batch and partials are those of the whole
/// job. `keep` has weights stay whole from the forward to the backward pass. The first evaluates, and the others
/// bring it their weights.
pub fn sharded(
    train: &Graph,
    evaluate: Option<&Graph>,
    devices: Vec<SessionOptions>,
    keep: bool,
) -> Result<Vec<Planner>, SessionError> {
    let ranks = devices.len() as u32;
    if ranks < 2 {
        return planners(train, evaluate, devices);
    }
    let whole = Arc::new(train.clone());
    let whole_evaluation = evaluate.map(|graph| Arc::new(graph.clone()));
    let planner = |(rank, options): (u32, SessionOptions)| {
        let seat = (rank, ranks);
        let Sharded { graph, boxes } = sharded_graph(train, seat, options.partials, keep)?;
        let part = |whole: &Arc<Graph>| -> Result<Part, SessionError> {
            Ok(Part { graph: evaluating(whole, seat, &boxes)?, turns: None, whole: Arc::clone(whole) })
        };
        let evaluate = whole_evaluation.as_ref().map(part).transpose()?;
        let boxed = |(name, region, whole): &(String, Vec<_>, Vec<usize>)| {
            (name.clone(), Boxed::new(whole, region, size_of::<f32>()))
        };
        let boxes = boxes.iter().map(boxed).collect();
        let train = Part { graph, turns: None, whole: Arc::clone(&whole) };
        Ok(Planner::of_shards(train, evaluate, boxes, options)?)
    };
    at_once((0..).zip(seated(devices, Takes::Shards)?).collect(), planner)
}
