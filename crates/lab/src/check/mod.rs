//! Predictions held against what happens here: jobs that no profile is made from, trained with every strategy, and
//! their step times, peaks and bytes over links compared with those foreseen.

pub mod cases;
pub mod part;
pub mod report;

use crate::accuracy::accuracy;
use crate::error::LabError;
use cases::{CheckCase, SlowLinks};
use gulliver::local::{LocalDevice, LocalError, device_set, together};
use gulliver::profile::{Meanwhile, shares};
use gulliver_plan::devices::planner::Planner;
use gulliver_plan::devices::predict::{PredictedStep, timed};
use gulliver_plan::devices::strategy::{ALONE, Candidate, JobGraphs, STRATEGIES, Strategy, largest};
use gulliver_plan::document::collectives::exchanged;
use gulliver_plan::document::job::Purpose;
use gulliver_plan::document::ledger::Ledger;
use gulliver_plan::document::topology::{Device, Topology, TopologyError};
use gulliver_plan::time::cost::Profile;
use gulliver_plan::time::simulate::LinkUse;
use gulliver_run::data::Batch;
use gulliver_run::peers::link::Throttle;
use gulliver_run::profile::{trimmed, trimmed_mean};
use gulliver_run::session::{Session, StepKey};
use part::{StepPart, StepParts};
use serde::Serialize;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Instant;

/// Steps that find cold caches and memory that was never touched.
const WARM_UP: usize = 2;
/// A turn of a job is steps of so many seconds, and so many of them at least: seldom and long would not do, as the
/// machine's speed changes within seconds.
const TURN: (f64, usize) = (0.15, 1);

/// One job with one strategy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CheckedStrategy {
    /// Its strategy; `alone` on one device.
    pub strategy: &'static str,
    /// Seconds of a step, predicted.
    pub predicted: f64,
    /// Those measured, [as a rule](usual).
    pub measured: f64,
    /// How far apart the quarters of these lie, as a share of that.
    pub spread: f64,
    /// How far that is from what ever more steps would come to, as a share: one standard error.
    pub unsure: f64,
    /// Largest peak of device memory: planned and measured.
    pub peak: [u64; 2],
    /// Bytes of a step over all links: planned and measured.
    pub bytes: [u64; 2],
    /// Whether peaks of all tiers and bytes over every link are as planned.
    pub exact: bool,
    /// Seconds of every step that counts, as they came.
    pub steps: Vec<f64>,
    /// Where they went, if that was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<StepPart>,
}

impl CheckedStrategy {
    /// How near the prediction is to what was measured.
    pub fn accuracy(&self) -> f64 {
        accuracy(self.predicted, self.measured)
    }
}

/// One job on the same devices and links with every strategy that can be.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CheckedJob {
    /// The job.
    #[serde(flatten)]
    pub case: CheckCase,
    /// By strategy.
    pub all: Vec<CheckedStrategy>,
    /// Strategies that cannot be, and why.
    pub unable: Vec<(&'static str, String)>,
}

impl CheckedJob {
    /// How much longer the strategy predicted to be fastest takes than the one that is, as a share.
    pub fn regret(&self) -> f64 {
        self.ranked().map_or(0.0, |[chosen, fastest]| chosen.measured / fastest.measured - 1.0)
    }

    /// One standard error of that: strategies as fast as each other are seldom measured so.
    pub fn unsure(&self) -> f64 {
        let different = |[a, b]: &[&CheckedStrategy; 2]| a.strategy != b.strategy;
        self.ranked().filter(different).map_or(0.0, |[chosen, fastest]| chosen.unsure.hypot(fastest.unsure))
    }

    /// The strategies that were predicted and measured to be fastest.
    fn ranked(&self) -> Option<[&CheckedStrategy; 2]> {
        let least = |of: fn(&CheckedStrategy) -> f64| self.all.iter().min_by(|a, b| of(a).total_cmp(&of(b)));
        Some([least(|one| one.predicted)?, least(|one| one.measured)?])
    }
}

/// How jobs are checked.
pub struct CheckOptions {
    /// How many turns every job of a group has.
    pub rounds: usize,
    /// Whether it is noted where steps go.
    pub parts: bool,
    /// What the machine is measured with in turns with jobs, if it is.
    pub fresh: Option<FreshCurves>,
}

/// A job ready to be stepped, and what is known of its steps.
struct Running {
    strategy: &'static str,
    foreseen: PredictedStep,
    /// As the session's own, to look at it again.
    planners: Vec<Planner>,
    session: Session,
    throttle: Option<Arc<Throttle>>,
    /// Steps done, and seconds of those that count.
    steps: u64,
    times: Vec<f64>,
    /// Planned from other devices in a step.
    from_peers: u64,
    /// Where steps go, if somebody wants to know.
    parts: Option<StepParts>,
}

/// Seconds that every probe is run for in a round: in every third of them only, predictions were 7 % too high.
const FRESH: f64 = 0.05;

/// Ways of using the machine that are measured while jobs are checked, by threads of a device and devices.
#[derive(Default)]
pub struct FreshCurves {
    ways: BTreeMap<[usize; 2], Meanwhile>,
}

/// Families that are a smaller share of a job's work are taken as the profile has them.
const OF_INTEREST: f64 = 0.02;

impl FreshCurves {
    /// Begins anew for a job in all these cases.
    fn begin(&mut self, cases: &[CheckCase], graphs: &JobGraphs, profile: &Profile) -> Result<(), LabError> {
        for case in cases {
            // Several devices are as fast as one while the others are at rest.
            for way in [[case.threads, case.devices], [case.threads, 1]] {
                if let Entry::Vacant(vacant) = self.ways.entry(way) {
                    vacant.insert(Meanwhile::new(way)?);
                }
            }
        }
        for ([threads, devices], meanwhile) in &mut self.ways {
            let curves = profile.at(*threads, *devices);
            let shares = shares(&graphs.train, &graphs.largest, curves.as_ref())?;
            meanwhile.begin(&|family: &str| shares.get(family).is_some_and(|share| *share >= OF_INTEREST))?;
        }
        Ok(())
    }

    /// Runs those of all probes that have this one of so many turns of a round.
    fn turn(&mut self, turn: (usize, usize)) -> Result<(), LabError> {
        for meanwhile in self.ways.values_mut() {
            meanwhile.turn(FRESH, turn)?;
        }
        Ok(())
    }

    /// The profile with what was measured since it began.
    fn renewed(&self, profile: &Profile) -> Result<Profile, LabError> {
        let mut profile = profile.clone();
        for (&[threads, devices], meanwhile) in &self.ways {
            if let Some(place) = profile.nearest(threads, devices) {
                meanwhile.renew(&mut profile.curves[place])?;
            }
        }
        for meanwhile in self.ways.values() {
            meanwhile.settle(&mut profile)?;
        }
        Ok(profile)
    }
}

/// Trains a job with every strategy, on the devices and links of all these cases, everything in turns, and compares.
/// With `fresh`, the machine is measured in turns with them, and what is predicted goes by that; strategies are planned
/// by the profile. The cases have one network and batch.
pub fn check(
    cases: &[CheckCase],
    profile: &Profile,
    wanted: &mut CheckOptions,
) -> Result<Vec<CheckedJob>, LabError> {
    let CheckOptions { rounds, parts, fresh } = wanted;
    let Some(CheckCase { probe, .. }) = cases.first() else { return Ok(Vec::new()) };
    let (train, batch) = probe.built()?;
    let graphs = JobGraphs { train, evaluation: probe.evaluation()?, largest: cases[0].sizes() };
    let mut groups: Vec<(CheckedJob, Vec<Running>)> = Vec::new();
    for case in cases {
        groups.push(begin_all(case, &graphs, profile, *parts)?);
    }
    let mut running: Vec<&mut Running> = groups.iter_mut().flat_map(|(_, running)| running).collect();
    for one in &mut running {
        one.turn(&batch, (0.0, WARM_UP), false)?;
    }
    if let Some(fresh) = fresh {
        fresh.begin(cases, &graphs, profile)?;
    }
    let turns = running.len();
    for _ in 0..*rounds {
        for (turn, one) in running.iter_mut().enumerate() {
            if let Some(fresh) = fresh {
                fresh.turn((turn, turns))?;
            }
            // The first step finds the caches of another job: it does not count.
            one.turn(&batch, (0.0, 1), false)?;
            one.turn(&batch, TURN, true)?;
        }
    }
    if let Some(fresh) = fresh {
        let profile = fresh.renewed(profile)?;
        for (CheckedJob { case, .. }, running) in &mut groups {
            let curves = profile.at(case.threads, case.devices).map(Arc::new);
            for one in running {
                one.planners.iter_mut().for_each(|planner| planner.set_curves(curves.clone()));
                let sizes = largest(&one.planners, &graphs);
                one.foreseen.together = timed(&mut one.planners, &sizes, &one.foreseen.plans)?;
            }
        }
    }
    let compared = groups.into_iter().map(|(group, running)| {
        let mut all: Vec<CheckedStrategy> = running.into_iter().map(Running::checked).collect();
        if group.case.devices == 1 {
            all.iter_mut().for_each(|one| one.strategy = ALONE);
        }
        CheckedJob { all, ..group }
    });
    Ok(compared.collect())
}

/// A job with every strategy that can be, ready to be stepped.
fn begin_all(
    case: &CheckCase,
    graphs: &JobGraphs,
    profile: &Profile,
    parts: bool,
) -> Result<(CheckedJob, Vec<Running>), LabError> {
    let curves = profile.at(case.threads, case.devices).map(Arc::new);
    let options = LocalDevice {
        threads: case.threads,
        partials: case.partials,
        rates: curves.as_ref().map(|curves| curves.rates).unwrap_or_default(),
        curves,
        links: profile.links,
        largest: Some(graphs.largest.clone()),
        ..LocalDevice::default()
    };
    let strategies: Vec<&'static str> = match case.devices {
        1 => vec!["data"],
        _ => STRATEGIES.iter().map(|strategy| strategy.name).collect(),
    };
    let (mut running, mut unable) = (Vec::new(), Vec::new());
    for name in strategies {
        match begin(name, case, graphs, &options, parts) {
            Ok(one) => running.push(one),
            Err(Refused::Strategy(e)) => unable.push((name, e.to_string())),
            Err(Refused::Links(e)) => return Err(LabError::Argument(e.to_string())),
        }
    }
    Ok((CheckedJob { case: *case, all: Vec::new(), unable }, running))
}

enum Refused {
    Strategy(LocalError),
    Links(TopologyError),
}

impl From<LocalError> for Refused {
    fn from(e: LocalError) -> Refused {
        Refused::Strategy(e)
    }
}

fn begin(
    name: &'static str,
    case: &CheckCase,
    graphs: &JobGraphs,
    options: &LocalDevice,
    parts: bool,
) -> Result<Running, Refused> {
    let throttle = match case.wires {
        Some(SlowLinks { wiring, .. }) => {
            let topology = Topology::wired(vec![Device::default(); case.devices], &wiring);
            Some(Arc::new(Throttle::new(topology.map_err(Refused::Links)?)))
        }
        None => None,
    };
    let options = LocalDevice { throttle: throttle.clone(), ..options.clone() };
    let devices = vec![options; case.devices];
    let strategy = Strategy::named(name).expect("names are of the table");
    let made = Candidate::new(strategy, graphs, &device_set(&devices)).map_err(LocalError::from)?;
    let planned = made.planners.iter().zip(&made.prediction.plans);
    let taken = planned.map(|(planner, plan)| {
        exchanged(planner.graph(Purpose::Train), &plan.bindings(), plan.partials).unwrap_or(0)
    });
    let from_peers = taken.sum();
    let (planners, foreseen) = (made.planners, made.prediction);
    let mut session = together(name, planners.clone(), &devices, 0)?;
    let plans = planners.iter().map(|planner| planner.graph(Purpose::Train)).zip(&foreseen.plans);
    let parts = parts.then(|| StepParts::of(&plans.collect::<Vec<_>>()));
    if parts.is_some() {
        session.record();
    }
    Ok(Running {
        strategy: name,
        foreseen,
        planners,
        session,
        throttle,
        steps: 0,
        times: Vec::new(),
        from_peers,
        parts,
    })
}

impl Running {
    /// Steps for so many seconds and so often at least; whether they count.
    fn turn(&mut self, batch: &Batch, (seconds, least): (f64, usize), counts: bool) -> Result<(), LabError> {
        let (begin, mut done) = (Instant::now(), 0);
        while done < least || begin.elapsed().as_secs_f64() < seconds {
            let (key, start) = (StepKey { seed: 0, step: self.steps }, Instant::now());
            self.session.step(batch, key, &key.number())?;
            let seconds = start.elapsed().as_secs_f64();
            (self.steps, done) = (self.steps + 1, done + 1);
            let spans = self.parts.as_ref().map(|_| self.session.recorded());
            if !counts {
                continue;
            }
            self.times.push(seconds);
            if let Some((parts, spans)) = self.parts.as_mut().zip(spans) {
                parts.note(&spans, seconds);
            }
        }
        Ok(())
    }

    fn checked(self) -> CheckedStrategy {
        let Running { strategy, foreseen, session, throttle, steps, times, from_peers, parts, .. } = self;
        let mut sorted = times.clone();
        sorted.sort_by(f64::total_cmp);
        let [low, high] =
            [0.25, 0.75].map(|share| sorted[((sorted.len() - 1) as f64 * share).round() as usize]);
        let measured = trimmed_mean(&times).unwrap_or(high);
        let counted = trimmed(&times);
        let squares: f64 = counted.iter().map(|time| (time - measured).powi(2)).sum();
        let unsure = squares.sqrt() / counted.len() as f64 / measured;
        let mut planned = Ledger { from_peers, ..Ledger::default() };
        foreseen.together.devices.iter().for_each(|device| planned += device.moved);
        let mut moved = Ledger::default();
        let mut exact = true;
        let mut peak = [0, 0];
        for (device, plan) in session.ranks().iter().zip(&foreseen.plans) {
            let (_, _, seen) = gulliver_run::collector::total(device.collector().records());
            moved += seen.moved;
            peak = [peak[0].max(plan.spaces[0].live), peak[1].max(seen.peaks[0])];
            exact &= plan.spaces.iter().zip(seen.peaks).all(|(space, peak)| space.live == peak);
        }
        let mut expected = Ledger::default();
        (0..steps).for_each(|_| expected += planned);
        exact &= expected == moved;
        if let Some(throttle) = throttle {
            let over = |link: &LinkUse| link.bytes * steps;
            exact &= foreseen.together.links.iter().map(over).eq(throttle.bytes());
        }
        let bytes = [planned.total(), moved.total() / steps.max(1)];
        let parts = parts.map(|parts| parts.compared(&foreseen.together.spans, foreseen.together.seconds));
        let parts = parts.unwrap_or_default();
        let (predicted, spread) = (foreseen.together.seconds, (high - low) / measured);
        CheckedStrategy {
            strategy,
            predicted,
            measured,
            spread,
            unsure,
            peak,
            bytes,
            exact,
            steps: times,
            parts,
        }
    }
}
