//! Persistent values in their tiers: the values that a step changes, and copies of them to restore.

use crate::device::{Device, RunError};
use gulliver_graph::graph::{Graph, Node, Origin};
use gulliver_plan::document::residence::{Persistent, Residence};

/// Residences of the values that these nodes update; `None` stands for a next value that is an input.
pub(super) fn carried(
    graph: &Graph,
    persistent: &Persistent,
    by: impl Fn(Option<&Node>) -> bool,
) -> Vec<Residence> {
    let chosen = graph.carries.iter().filter(|(_, next)| match graph.value(*next).origin {
        Origin::Node { node, .. } => by(Some(&graph.nodes[node.index()])),
        Origin::Input(_) => by(None),
    });
    chosen.map(|(input, _)| persistent.residences[&graph.value(*input).name]).collect()
}

/// Copies values, one after the other, from their residences.
pub(super) fn fetch(
    device: &dyn Device,
    residences: &[Residence],
    mut bytes: &mut [u8],
) -> Result<(), RunError> {
    for residence in residences {
        let (value, rest) = bytes.split_at_mut(residence.bytes as usize);
        device.read(residence.tier, residence.offset, value)?;
        bytes = rest;
    }
    Ok(())
}

/// The reverse of [`fetch`].
pub(super) fn put_back(
    device: &mut dyn Device,
    residences: &[Residence],
    mut bytes: &[u8],
) -> Result<(), RunError> {
    for residence in residences {
        let (value, rest) = bytes.split_at(residence.bytes as usize);
        device.write(residence.tier, residence.offset, value)?;
        bytes = rest;
    }
    Ok(())
}
