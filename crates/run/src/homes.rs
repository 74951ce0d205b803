//! Persistent values where they live, whatever the tier: which of them a step changes, and copies of them to
//! be put back.

use crate::executor::{Cpu, RunError};
use gulliver_graph::graph::{Graph, Node, Origin};
use gulliver_plan::step::make::{Home, Persistent};

/// Where the values are whose next ones these nodes make; none stands for a next value that is an input.
pub(crate) fn carried(
    graph: &Graph,
    persistent: &Persistent,
    by: impl Fn(Option<&Node>) -> bool,
) -> Vec<Home> {
    let chosen = graph.carries.iter().filter(|(_, next)| match graph.value(*next).origin {
        Origin::Node { node, .. } => by(Some(&graph.nodes[node.index()])),
        Origin::Input(_) => by(None),
    });
    chosen.map(|(input, _)| persistent.homes[&graph.value(*input).name]).collect()
}

/// Copies values, one after the other, from where they are.
pub(crate) fn fetch(cpu: &Cpu, homes: &[Home], mut bytes: &mut [u8]) -> Result<(), RunError> {
    for home in homes {
        let (value, rest) = bytes.split_at_mut(home.bytes as usize);
        cpu.read(home.tier, home.offset, value)?;
        bytes = rest;
    }
    Ok(())
}

/// The reverse of [`fetch`].
pub(crate) fn put_back(cpu: &mut Cpu, homes: &[Home], mut bytes: &[u8]) -> Result<(), RunError> {
    for home in homes {
        let (value, rest) = bytes.split_at(home.bytes as usize);
        cpu.write(home.tier, home.offset, value)?;
        bytes = rest;
    }
    Ok(())
}
