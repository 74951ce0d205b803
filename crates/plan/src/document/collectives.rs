//! Collectives of plans: their order on every device, the check that no device waits forever, and which of them
//! run inline with the computation. Shares no code with the planner.

use crate::document::plan::{Act, Plan, PlanStream};
use gulliver_graph::dim::{Bindings, DimError};
use gulliver_graph::graph::op::Op;
use gulliver_graph::graph::op::exchange::Exchange;
use gulliver_graph::graph::{Graph, Node, Phase};

/// A collective and all who come to it.
pub type Collective = (u32, Vec<u32>);

/// Devices that wait for each other forever.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "device {device} waits at collective {collective} for one who is never there: this is a bug in the planner"
)]
pub struct Deadlock {
    /// Who waits.
    pub device: u32,
    /// Where.
    pub collective: u32,
}

/// The collectives of one device, in the order in which its plan comes to them.
pub fn collectives(graph: &Graph, plan: &Plan) -> Vec<Collective> {
    let ran = plan.steps.iter().filter_map(|step| match &step.act {
        Act::Exchange { node, .. } => graph.nodes[node.index()].op.def().collective(),
        _ => None,
    });
    // A collective of one rank waits for no other.
    ran.filter(|(_, ranks)| ranks.iter().any(|rank| *rank != ranks[0])).collect()
}

/// Checks that every device gets through its collectives; devices are given by rank.
pub fn all_get_through(devices: &[Vec<Collective>]) -> Result<(), Deadlock> {
    let mut at = vec![0; devices.len()];
    let mut moved: Vec<usize> = (0..devices.len()).collect();
    while let Some(device) = moved.pop() {
        let Some((number, ranks)) = devices[device].get(at[device]) else { continue };
        let there = |rank: &u32| {
            let list = devices.get(*rank as usize);
            list.and_then(|list| list.get(at[*rank as usize])).is_some_and(|next| next.0 == *number)
        };
        if ranks.iter().all(there) {
            for &rank in ranks {
                at[rank as usize] += 1;
                moved.push(rank as usize);
            }
        }
    }
    match devices.iter().zip(&at).position(|(list, at)| *at < list.len()) {
        Some(device) => Err(Deadlock { device: device as u32, collective: devices[device][at[device]].0 }),
        None => Ok(()),
    }
}

/// By step: whether it is a collective with no compute step between its last input and its first use. Such collectives
/// run inline: handing them to another thread would only add the time to wake it, and back.
pub fn inline_collectives(plan: &Plan) -> Vec<bool> {
    let mut here = vec![false; plan.steps.len()];
    let streams: Vec<Option<PlanStream>> = plan.steps.iter().map(|step| plan.stream(&step.act)).collect();
    // The last step of the computation, the last that a collective has waited for, and collectives since that wait for both.
    let (mut last, mut needed) = (None, None);
    let mut open: Vec<usize> = Vec::new();
    for (i, step) in plan.steps.iter().enumerate() {
        let latest =
            |of: PlanStream| step.after.iter().copied().filter(|&s| streams[s as usize] == Some(of)).max();
        match streams[i] {
            Some(PlanStream::Exchange) => {
                needed = needed.max(latest(PlanStream::Compute));
                if needed == last {
                    open.push(i);
                }
            }
            Some(PlanStream::Compute) => {
                if let Some(until) = latest(PlanStream::Exchange) {
                    open.iter().filter(|&&meet| meet <= until as usize).for_each(|&meet| here[meet] = true);
                }
                open.clear();
                last = Some(i as u32);
            }
            _ => {}
        }
    }
    // Nothing is left to compute.
    open.into_iter().for_each(|meet| here[meet] = true);
    here
}

/// What a node does when it meets others, for these sizes of one partial; none if it meets nobody.
pub fn collective_of(node: &Node, sizes: &Bindings) -> Option<Exchange> {
    with_collective(node, sizes, Exchange::clone)
}

/// [`collective_of`], looked at where it is.
pub(crate) fn with_collective<R>(
    node: &Node,
    sizes: &Bindings,
    look: impl FnOnce(&Exchange) -> R,
) -> Option<R> {
    if !node.op.def().meets() {
        return None;
    }
    match node.op.def().bind(sizes).ok()?.as_ref().unwrap_or(&node.op) {
        Op::Exchange(what) => Some(look(what)),
        _ => None,
    }
}

/// Bytes that the collectives of a graph bring from other devices in one step; the sizes are of one partial.
pub fn exchanged(graph: &Graph, sizes: &Bindings, partials: u32) -> Result<u64, DimError> {
    let mut sum = 0;
    for node in graph.nodes.iter().filter(|node| node.op.def().meets()) {
        let bound = node.op.def().bind(sizes)?;
        if let Op::Exchange(op) = bound.as_ref().unwrap_or(&node.op) {
            sum += op.bytes() * if node.phase == Phase::Update { 1 } else { u64::from(partials) };
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circles_are_found() {
        let pair = |number, a, b| (number, vec![a, b]);
        for (devices, stuck) in [
            (vec![vec![], vec![]], None),
            (vec![vec![pair(0, 0, 1), pair(1, 0, 1)], vec![pair(0, 0, 1), pair(1, 0, 1)]], None),
            (vec![vec![pair(0, 0, 1), pair(1, 0, 1)], vec![pair(1, 0, 1), pair(0, 0, 1)]], Some(0)),
            (vec![vec![pair(0, 0, 1)], vec![]], Some(0)),
            // The same collective for two partials, a third device in between.
            (
                vec![
                    vec![pair(0, 0, 1), pair(2, 0, 2), pair(0, 0, 1)],
                    vec![pair(0, 0, 1), pair(1, 1, 2), pair(0, 0, 1)],
                    vec![pair(1, 1, 2), pair(2, 0, 2)],
                ],
                None,
            ),
            (
                vec![
                    vec![pair(2, 0, 2), pair(0, 0, 1)],
                    vec![pair(0, 0, 1), pair(1, 1, 2)],
                    vec![pair(1, 1, 2), pair(2, 0, 2)],
                ],
                Some(0),
            ),
        ] {
            let found = all_get_through(&devices).err().map(|stuck| stuck.device);
            assert_eq!(found, stuck, "{devices:?}");
        }
    }
}
