//! `cut`: every node divided as a search finds fastest (Tofu).

use super::cuts::{as_cut, machine};
use super::{DeviceSet, JobGraphs, Strategy, quickest};
use crate::devices::cut::{WORTH, worthwhile};
use crate::step::outline::slice_of;

pub(super) static STRATEGY: Strategy = Strategy {
    name: "cut",
    help: "every node is divided as a search finds it fastest, over as many devices as that pays for",
    divides_sums: true,
    plan: |graphs: &JobGraphs, set: &DeviceSet| {
        let slice = slice_of(&graphs.largest, set.first().partials.max(1))?;
        let mut found = worthwhile(&graphs.train, &slice, &machine(set))?;
        if found.len() == 1 {
            return as_cut(graphs, set, found.remove(0).cut);
        }
        quickest(found.into_iter().map(|found| as_cut(graphs, set, found.cut)), graphs, set, WORTH)
    },
};
