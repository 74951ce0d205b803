//! Where weights and states are between steps: on the device if that is possible, else beside it, as few as
//! must be, or more where that takes less time.

use crate::budget::planner::StepPlanner;
use crate::budget::problem::Effort;
use crate::budget::squeeze::{squeeze, squeeze_at};
use crate::document::error::PlanError;
use crate::document::plan::{Plan, Tier};
use crate::document::residence::Persistent;
use crate::step::options::PlanOptions;
use crate::time::simulate::simulate;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, NodeId, Role, Value, ValueInfo};

impl StepPlanner {
    /// Where weights and states should be between steps, so that inputs of these sizes can be trained on
    /// within the budgets and the step takes least time: all on the device if that is possible, else
    /// optimizer states first, then weights.
    pub fn place_weights(
        &self,
        graph: &Graph,
        sizes: &Bindings,
        options: &PlanOptions,
    ) -> Result<Persistent, PlanError> {
        // Many residences are compared: each is worth more time only where none fits otherwise.
        match self.place_weights_at(graph, sizes, options, Effort::Quick) {
            Err(PlanError::DoesNotFit { .. } | PlanError::TierFull { .. } | PlanError::NoRoom) => {
                self.place_weights_at(graph, sizes, options, Effort::Thorough)
            }
            placed => placed,
        }
    }

    /// Places weights and states and plans a step quickly: all of them on the device, or else all beside it.
    pub fn place_weights_simply(
        &self,
        graph: &Graph,
        sizes: &Bindings,
        options: &PlanOptions,
    ) -> Result<(Persistent, Plan), PlanError> {
        let budget = options.memory.unwrap_or(u64::MAX);
        let sizes = self.outline.sizes(graph, sizes, options)?;
        let mut reason = PlanError::NoRoom;
        for persistent in [Some(Persistent::of(graph)?), all_away(graph, options)?].into_iter().flatten() {
            let options = PlanOptions { persistent: &persistent, ..*options };
            match squeeze_at(&self.outline, graph, &sizes, &options, budget, Effort::Quick) {
                Ok(found) => return Ok((persistent, found.plan)),
                Err(e @ (PlanError::DoesNotFit { .. } | PlanError::TierFull { .. })) => reason = e,
                Err(e) => return Err(e),
            }
        }
        Err(reason)
    }

    fn place_weights_at(
        &self,
        graph: &Graph,
        sizes: &Bindings,
        options: &PlanOptions,
        effort: Effort,
    ) -> Result<Persistent, PlanError> {
        let all: Vec<Value> = leaving(graph);
        let budget = options.memory.unwrap_or(u64::MAX);
        let sizes = self.outline.sizes(graph, sizes, options)?;
        let mut tried: Vec<(usize, Option<(f64, Persistent)>)> = Vec::new();
        let mut reason = None;
        let elsewhere = options.beside.host != Some(0) || options.beside.disk.is_some();
        let mut attempt = |away: usize, tried: &mut Vec<(usize, Option<(f64, Persistent)>)>| {
            if let Some((_, known)) = tried.iter().find(|(n, _)| *n == away) {
                return Ok(known.is_some());
            }
            let persistent = with_away(graph, &all[..away], options)?;
            let Some(persistent) = persistent else {
                tried.push((away, None));
                return Ok(false);
            };
            // Resident weights and states stay on the device.
            if elsewhere && persistent.ends[Tier::Device as usize] > budget {
                tried.push((away, None));
                return Ok(false);
            }
            let options = PlanOptions { persistent: &persistent, ..*options };
            let made = match effort {
                Effort::Quick => squeeze_at(&self.outline, graph, &sizes, &options, budget, effort),
                Effort::Thorough => squeeze(&self.outline, graph, &sizes, &options, budget),
            };
            let found = match made {
                Ok(found) => {
                    let node =
                        |id: NodeId| self.outline.seconds_over(graph, &sizes, &options.links, id.index());
                    Some((simulate(&found.plan, node, &options.links).seconds, persistent.clone()))
                }
                Err(e @ PlanError::DoesNotFit { .. }) => {
                    reason = Some(e);
                    None
                }
                Err(e) => return Err(e),
            };
            let fits = found.is_some();
            tried.push((away, found));
            Ok(fits)
        };
        // The fewest that must be away.
        let (mut low, mut high) = (0, all.len());
        if !attempt(0, &mut tried)? {
            if !elsewhere || !attempt(all.len(), &mut tried)? {
                return Err(reason.unwrap_or(PlanError::NoRoom));
            }
            // Each try takes long where scripts are; what can stay does so whatever its residence.
            if self.is_long() {
                low = high;
            }
            while high - low > 1 {
                let middle = low.midpoint(high);
                *(if attempt(middle, &mut tried)? { &mut high } else { &mut low }) = middle;
            }
            // More of them away leaves more room for what would be recomputed.
            for part in (1..4).filter(|_| !self.is_long()) {
                attempt(high + (all.len() - high) * part / 4, &mut tried)?;
            }
        }
        let found = tried.into_iter().filter_map(|(_, found)| found);
        let best = found.min_by(|a, b| a.0.total_cmp(&b.0));
        best.map(|(_, persistent)| persistent).ok_or(PlanError::NoRoom)
    }
}

/// All weights and states beside the device, if there is room for them.
pub fn all_away(graph: &Graph, options: &PlanOptions) -> Result<Option<Persistent>, PlanError> {
    with_away(graph, &leaving(graph), options)
}

/// Weights and states in the order in which they leave the device: states first, large ones first.
fn leaving(graph: &Graph) -> Vec<Value> {
    let persistent = graph.inputs().filter_map(|(v, role, info)| match role {
        Role::State(_) => Some((0, v, info)),
        Role::Weight(_) => Some((1, v, info)),
        _ => None,
    });
    let bytes = |info: &ValueInfo| info.ty.bytes().bind(&Bindings::new()).unwrap_or(0);
    let mut all: Vec<(i32, std::cmp::Reverse<usize>, Value)> =
        persistent.map(|(late, v, info)| (late, std::cmp::Reverse(bytes(info)), v)).collect();
    all.sort();
    all.into_iter().map(|(_, _, v)| v).collect()
}

/// Those values in host memory as far as there is room, the others on disk; none if there is not.
fn with_away(graph: &Graph, away: &[Value], options: &PlanOptions) -> Result<Option<Persistent>, PlanError> {
    let mut tiers = vec![Tier::Device; graph.values.len()];
    let mut left = [options.beside.host.unwrap_or(u64::MAX), options.beside.disk.unwrap_or(0)];
    for v in away {
        let bytes = graph.ty(*v).bytes().bind(&Bindings::new())? as u64;
        let taken = [Tier::Host, Tier::Disk].map(|tier| (tier, bytes.next_multiple_of(tier.grain())));
        let Some(place) = (0..2).find(|&i| taken[i].1 <= left[i]) else { return Ok(None) };
        left[place] -= taken[place].1;
        tiers[v.index()] = taken[place].0;
    }
    Ok(Some(Persistent::with(graph, |v| tiers[v.index()])?))
}
