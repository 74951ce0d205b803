//! `cut`: every node divided as a search finds fastest (Tofu).

use super::cuts::{as_cut, machine};
use super::{DeviceSet, JobGraphs, Strategy, quickest};
use crate::devices::cut::{cut_candidates, low_memory_cuts};
use crate::devices::error::JobPlanError;
use crate::document::error::PlanError;
use crate::step::outline::slice_of;

pub(super) static STRATEGY: Strategy = Strategy {
    name: "cut",
    help: "every node is divided as a search finds it fastest, over as many devices as that pays for",
    divides_batch: false,
    divides_sums: true,
    plan: |graphs: &JobGraphs, set: &DeviceSet| {
        let slice = slice_of(&graphs.largest, set.first().partials.max(1))?;
        let machine = machine(set);
        let mut found = cut_candidates(&graphs.train, &slice, &machine)?;
        let best = match found.len() {
            1 => as_cut(graphs, set, found.remove(0).cut),
            _ => quickest(found.into_iter().map(|found| as_cut(graphs, set, found.cut)), graphs, set),
        };
        let Err(JobPlanError::Plan(mut failed)) = best else { return best };
        if needed(&failed).is_none() {
            return Err(failed.into());
        }
        for cut in low_memory_cuts(&graphs.train, &slice, &machine)? {
            match as_cut(graphs, set, cut) {
                Err(JobPlanError::Plan(e)) if needed(&e).is_some() => {
                    failed = if needed(&e) < needed(&failed) { e } else { failed };
                }
                made => return made,
            }
        }
        Err(failed.into())
    },
};

/// The device memory that a plan lacks the room for; the largest number if other tiers are too small.
fn needed(error: &PlanError) -> Option<u64> {
    match error {
        PlanError::DoesNotFit { needed, .. } => Some(*needed),
        PlanError::TierFull { .. } | PlanError::NoRoom => Some(u64::MAX),
        _ => None,
    }
}
