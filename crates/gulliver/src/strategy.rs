//! Ways to train a job on several devices, by name, and what each would come to. All but those that divide sums
//! leave the numbers as they are on one device.

use crate::setup::Graphs;
use gulliver_graph::dim::Bindings;
use gulliver_plan::devices::cut::{self, Cut, Spread, Unit, WORTH, named, thrifty, worthwhile};
use gulliver_plan::devices::pipeline::Style;
use gulliver_plan::document::error::PlanError;
use gulliver_plan::step::outline::slice_of;
use gulliver_run::planner::Planner;
use gulliver_run::session::{
    Foreseen, Pipelined, SessionError, SessionOptions, divided, foresee, packs, pipelined, pipelined_as,
    planners, sharded,
};

/// The name that leaves the choice to us.
pub const AUTO: &str = "auto";

/// What one device does that shares with nobody.
pub const ALONE: &str = "alone";

/// Names, each with what the devices do.
pub const STRATEGIES: [(&str, &str); 12] = [
    (AUTO, "whichever is thought to be fastest and leaves the numbers as they are on one device"),
    ("data", "every device has all weights and takes partials of its own"),
    (
        "harmony-dp",
        "the same, all partials of some layers before those of the next: weights are fetched once for all",
    ),
    (
        "zero",
        "every device takes partials of its own and has a share of every large weight, gradient and state",
    ),
    ("pipeline", "every device has some neighbouring layers; one partial goes forward, one back"),
    ("harmony-pp", "layers go around the devices in packs, all partials of a pack before those of the next"),
    ("filter", "every node is divided along the outputs of its weights"),
    ("channel", "every node is divided along the inputs of its weights; sums are divided"),
    ("spatial", "images are divided along their first dimension in space"),
    ("data+filter", "the batch between groups of devices, filters within them"),
    ("data+spatial", "the batch between groups of devices, space within them"),
    ("cut", "every node is divided as a search finds it fastest, over as many devices as that pays for"),
];

/// What a strategy comes to.
pub struct Judged {
    /// Its name.
    pub name: &'static str,
    /// The planners of its devices.
    pub planners: Vec<Planner>,
    /// Of how many devices it could use.
    pub of: usize,
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
        "harmony-pp" => return wrapped(graphs, &devices),
        "zero" => return shards(graphs, &devices),
        _ => return shared(name, graphs, &devices),
    };
    Ok((all, true))
}

/// Nodes that are divided, over all devices; or as the search finds fastest, over as many as that pays for.
fn shared(
    name: &str,
    graphs: &Graphs,
    devices: &[SessionOptions],
) -> Result<(Vec<Planner>, bool), SessionError> {
    let (train, evaluation, sizes) = (&graphs.train, Some(&graphs.evaluation), &graphs.largest);
    let slice = slice_of(sizes, devices[0].partials.max(1))?;
    let machine = cut::Devices {
        units: (0..).zip(devices).map(|(rank, device)| unit(rank, device)).collect(),
        bandwidth: devices[0].links.from_peers,
        topology: devices[0].throttle.as_ref().map(|throttle| throttle.topology().clone()),
    };
    let of = |cut: Cut| -> Result<_, SessionError> {
        let whole = !cut.values.iter().flatten().any(|spread| matches!(spread, Spread::Partial(_)));
        let some = devices[..cut.devices()].to_vec();
        Ok((divided(train, evaluation, some, sizes, cut)?, whole))
    };
    if name != "cut" {
        return of(named(train, &slice, &machine, name)?);
    }
    let mut found = worthwhile(train, &slice, &machine)?;
    let best = match found.len() {
        1 => of(found.remove(0).cut),
        _ => quickest(found.into_iter().map(|found| of(found.cut)), graphs),
    };
    let Err(SessionError::Plan(mut failed)) = best else { return best };
    if needed(&failed).is_none() {
        return Err(failed.into());
    }
    for cut in thrifty(train, &slice, &machine)? {
        match of(cut) {
            Err(SessionError::Plan(e)) if needed(&e).is_some() => {
                failed = if needed(&e) < needed(&failed) { e } else { failed };
            }
            made => return made,
        }
    }
    Err(failed.into())
}

/// The bytes of device memory that a plan lacks the room for, or as many as can be if other tiers are too small.
fn needed(error: &PlanError) -> Option<u64> {
    match error {
        PlanError::DoesNotFit { needed, .. } => Some(*needed),
        PlanError::TierFull { .. } | PlanError::NoRoom => Some(u64::MAX),
        _ => None,
    }
}

/// A device as the search for cuts sees it. Bytes beyond its memory are written to the host and read once a step.
fn unit(rank: u32, device: &SessionOptions) -> Unit {
    let throttle = device.throttle.as_ref();
    let links = throttle.map_or(device.links, |throttle| throttle.topology().seen_by(rank, device.links));
    Unit { rates: device.rates, memory: device.memory, spill: 1.0 / links.to_host + 1.0 / links.to_device }
}

/// Schedules that are planned in earnest.
const SCHEDULES: usize = 2;

/// Packs that go around the devices: those that give the shortest step.
fn wrapped(graphs: &Graphs, devices: &[SessionOptions]) -> Result<(Vec<Planner>, bool), SessionError> {
    let (train, evaluation, sizes) = (&graphs.train, Some(&graphs.evaluation), &graphs.largest);
    // One more than goes around evenly puts the first and the last pack, which may share weights, on one device.
    let even = Pipelined { packs: 2 * devices.len() + 1, style: Style::Grouped };
    let found = packs(train, devices, sizes, SCHEDULES).unwrap_or_default();
    let made = |packs| match packs {
        Some(packs) => pipelined_as(train, evaluation, devices.to_vec(), sizes, (packs, Style::Grouped)),
        None => pipelined(train, evaluation, devices.to_vec(), sizes, even),
    };
    quickest(found.into_iter().map(Some).chain([None]).map(|packs| Ok((made(packs)?, true))), graphs)
}

/// Shards of weights, put together for the forward pass and kept for the backward pass, or put together twice:
/// whichever gives the shorter step within the budgets.
fn shards(graphs: &Graphs, devices: &[SessionOptions]) -> Result<(Vec<Planner>, bool), SessionError> {
    let (train, evaluation) = (&graphs.train, Some(&graphs.evaluation));
    let made = |keep| Ok((sharded(train, evaluation, devices.to_vec(), keep)?, true));
    quickest([true, false].into_iter().map(made), graphs)
}

/// Of several ways the one with the shortest step. More devices than the best before must be worth it.
fn quickest(
    ways: impl Iterator<Item = Result<(Vec<Planner>, bool), SessionError>>,
    graphs: &Graphs,
) -> Result<(Vec<Planner>, bool), SessionError> {
    let mut best: Option<(f64, (Vec<Planner>, bool))> = None;
    let mut failed = None;
    for way in ways {
        let timed = way.and_then(|mut made| Ok((simulated(&mut made.0, graphs)?.together.seconds, made)));
        match timed {
            Ok(new) => {
                let worth = |devices: usize| if new.1.0.len() > devices { WORTH } else { 1.0 };
                if best.as_ref().is_none_or(|(least, (made, _))| new.0 * worth(made.len()) < *least) {
                    best = Some(new);
                }
            }
            Err(e @ SessionError::Plan(PlanError::Interrupted)) => return Err(e),
            Err(e) => failed = Some(e),
        }
    }
    best.map(|(_, made)| made).ok_or_else(|| failed.expect("several were tried"))
}

/// The plans for the largest inputs, timed together.
pub fn simulated(planners: &mut [Planner], graphs: &Graphs) -> Result<Foreseen, SessionError> {
    let largest = largest(planners, graphs);
    foresee(planners, &largest)
}

/// The sizes of the largest inputs of a device.
pub fn largest(planners: &[Planner], graphs: &Graphs) -> Bindings {
    planners[0].options().largest.clone().unwrap_or_else(|| graphs.largest.clone())
}

/// A strategy's plans, timed.
pub fn judged(
    name: &'static str,
    graphs: &Graphs,
    devices: Vec<SessionOptions>,
) -> Result<Judged, SessionError> {
    let of = devices.len();
    let (mut planners, same_numbers) = planned_as(name, graphs, devices)?;
    let foreseen = simulated(&mut planners, graphs)?;
    Ok(Judged { name, planners, of, foreseen, same_numbers })
}

/// Strategies that cannot be used for a job, with the reason.
pub type Unable = Vec<(&'static str, SessionError)>;

/// Every strategy: fastest first, then those that cannot be, with the reason. Fails only if planning is interrupted.
pub fn ranking(graphs: &Graphs, devices: &[SessionOptions]) -> Result<(Vec<Judged>, Unable), SessionError> {
    let (mut able, mut unable) = (Vec::new(), Vec::new());
    for (name, _) in STRATEGIES.iter().filter(|(name, _)| *name != AUTO) {
        match judged(name, graphs, devices.to_vec()) {
            Ok(judged) => able.push(judged),
            Err(e @ SessionError::Plan(PlanError::Interrupted)) => return Err(e),
            Err(e) => unable.push((*name, e)),
        }
    }
    able.sort_by(|a, b| a.foreseen.together.seconds.total_cmp(&b.foreseen.together.seconds));
    Ok((able, unable))
}

/// The fastest strategy that leaves the numbers as they are.
pub fn fastest(graphs: &Graphs, devices: &[SessionOptions]) -> Result<Judged, SessionError> {
    let (able, mut unable) = ranking(graphs, devices)?;
    let first = able.into_iter().find(|judged| judged.same_numbers);
    first.ok_or_else(|| unable.swap_remove(0).1)
}
