//! Ways to train a job on several devices, by name, and what each would come to. All but those that divide sums
//! leave the numbers as they are on one device.

use crate::setup::Graphs;
use gulliver_plan::cut::{self, Spread, named};
use gulliver_plan::outline::slice_of;
use gulliver_plan::pipeline::Style;
use gulliver_run::planner::Planner;
use gulliver_run::session::{
    Foreseen, Pipelined, SessionError, SessionOptions, divided, foresee, pipelined, planners,
};

/// The name that leaves the choice to us.
pub const AUTO: &str = "auto";

/// Names, each with what the devices do.
pub const STRATEGIES: [(&str, &str); 10] = [
    (AUTO, "whichever is thought to be fastest and leaves the numbers as they are on one device"),
    ("data", "every device has all weights and takes partials of its own"),
    (
        "harmony-dp",
        "the same, all partials of some layers before those of the next: weights are fetched once for all",
    ),
    ("pipeline", "every device has some neighbouring layers; one partial goes forward, one back"),
    ("harmony-pp", "layers go around the devices in packs, all partials of a pack before those of the next"),
    ("filter", "every node is divided along the outputs of its weights"),
    ("channel", "every node is divided along the inputs of its weights; sums are divided"),
    ("spatial", "images are divided along their first dimension in space"),
    ("data+filter", "the batch between groups of devices, filters within them"),
    ("cut", "every node is divided as a search finds it fastest; sums may be divided"),
];

/// What a strategy comes to.
pub struct Judged {
    /// Its name.
    pub name: &'static str,
    /// The planners of its devices.
    pub planners: Vec<Planner>,
    /// Their plans, timed together.
    pub foreseen: Foreseen,
    /// Whether the numbers are those of one device.
    pub same_numbers: bool,
}

/// The planners of a strategy's devices; `auto` is none.
pub fn planned_as(
    name: &str,
    graphs: &Graphs,
    devices: Vec<SessionOptions>,
) -> Result<(Vec<Planner>, bool), SessionError> {
    let (train, evaluation) = (&graphs.train, Some(&graphs.evaluation));
    let (count, sizes) = (devices.len(), &graphs.largest);
    let all = match name {
        "data" => planners(train, evaluation, devices)?,
        "harmony-dp" => {
            let grouped = |options| SessionOptions { grouped: true, ..options };
            planners(train, evaluation, devices.into_iter().map(grouped).collect())?
        }
        "pipeline" => {
            let how = Pipelined { packs: count, style: Style::OneByOne };
            pipelined(train, evaluation, devices, sizes, how)?
        }
        "harmony-pp" => return Ok((wrapped(graphs, devices)?, true)),
        _ => {
            let slice = slice_of(sizes, devices[0].partials.max(1))?;
            let options = &devices[0];
            let machine = cut::Devices {
                count,
                bandwidth: options.links.from_peers,
                rates: options.rates,
                memory: options.memory,
            };
            let cut = named(train, &slice, &machine, name)?;
            let whole = !cut.values.iter().flatten().any(|spread| matches!(spread, Spread::Partial(_)));
            return Ok((divided(train, evaluation, devices, sizes, cut)?, whole));
        }
    };
    Ok((all, true))
}

/// Packs that go around the devices: as many as give the shortest step.
fn wrapped(graphs: &Graphs, devices: Vec<SessionOptions>) -> Result<Vec<Planner>, SessionError> {
    let (train, evaluation, count) = (&graphs.train, Some(&graphs.evaluation), devices.len());
    let mut best: Option<(f64, Vec<Planner>)> = None;
    let mut failed = None;
    // One more than goes around evenly puts the first and the last pack, which may share weights, on one device.
    for packs in [2 * count, 2 * count + 1, 3 * count + 1] {
        let how = Pipelined { packs, style: Style::Grouped };
        let made = pipelined(train, evaluation, devices.clone(), &graphs.largest, how);
        let timed = made.and_then(|mut planners| {
            let foreseen = foresee(&mut planners, &graphs.largest)?;
            Ok((foreseen.together.seconds, planners))
        });
        match timed {
            Ok((seconds, planners)) if best.as_ref().is_none_or(|(least, _)| seconds < *least) => {
                best = Some((seconds, planners));
            }
            Ok(_) => {}
            Err(e) => failed = Some(e),
        }
    }
    best.map(|(_, planners)| planners).ok_or_else(|| failed.expect("several were tried"))
}

/// A strategy's plans, timed.
pub fn judged(
    name: &'static str,
    graphs: &Graphs,
    devices: Vec<SessionOptions>,
) -> Result<Judged, SessionError> {
    let (mut planners, same_numbers) = planned_as(name, graphs, devices)?;
    let largest = planners[0].options().largest.clone().unwrap_or_else(|| graphs.largest.clone());
    let foreseen = foresee(&mut planners, &largest)?;
    Ok(Judged { name, planners, foreseen, same_numbers })
}

/// Every strategy: fastest first, then those that cannot be, with the reason.
pub fn ranking(
    graphs: &Graphs,
    devices: &[SessionOptions],
) -> (Vec<Judged>, Vec<(&'static str, SessionError)>) {
    let (mut able, mut unable) = (Vec::new(), Vec::new());
    for (name, _) in STRATEGIES.iter().filter(|(name, _)| *name != AUTO) {
        match judged(name, graphs, devices.to_vec()) {
            Ok(judged) => able.push(judged),
            Err(e) => unable.push((*name, e)),
        }
    }
    able.sort_by(|a, b| a.foreseen.together.seconds.total_cmp(&b.foreseen.together.seconds));
    (able, unable)
}

/// The fastest strategy that leaves the numbers as they are.
pub fn fastest(graphs: &Graphs, devices: &[SessionOptions]) -> Result<Judged, SessionError> {
    let (able, mut unable) = ranking(graphs, devices);
    let first = able.into_iter().find(|judged| judged.same_numbers);
    first.ok_or_else(|| unable.swap_remove(0).1)
}
