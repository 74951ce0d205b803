//! Measures the speed of this machine: kernels of small networks during training, on one device and on several; scaling
//! with threads; copies between tiers; the disk.

pub mod measure;
pub mod probes;

use crate::local::LocalError;
use gulliver_graph::graph::GraphError;
use gulliver_plan::devices::error::JobPlanError;
use gulliver_plan::document::links::Links;
use gulliver_plan::document::topology::TopologyError;
use gulliver_plan::time::cost::{CollectivePrice, Curves, MachineProfile, Rates, Scaling, explained};
use gulliver_run::device::cpu::disk::DiskError;
use gulliver_run::profile::evenness::Evenness;
use gulliver_run::profile::resume_delay::ResumeDelay;
use gulliver_run::profile::{roofline, trimmed_mean};
use gulliver_run::session::SessionError;
use gulliver_run::team::Team;
use measure::{JointSteps, ProbeBench, ProbeResult, interleaved_probes, quantile, run_interleaved};
use probes::{Probe, probes};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Seconds of all probes in all layouts together for a good profile. Slow machines need more, for the least repetitions.
pub const SECONDS: f64 = 10.0;
/// The share of the time in which every probe is run once.
const FIRST: f64 = 0.6;
/// Least repetitions of each probe.
const LEAST: usize = 3;
/// A probe with less spread than this is not run again.
const CALM: f64 = 0.1;
/// Most runs of a probe.
const RUNS: u32 = 3;
/// Repetitions of other measurements, and the seconds of each.
const REPEATED: (usize, f64) = (5, 0.03);
/// Turns that measure all cores at once.
const EVENNESS: usize = 6;
/// Bytes copied at once: more than the caches of most machines.
const COPIED: usize = 64 << 20;
/// Bytes written to and read from the disk at once.
const ON_DISK: usize = 32 << 20;

/// Why measuring failed.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// A network cannot be built.
    #[error("{model}: {source}")]
    Graph {
        /// Its name.
        model: &'static str,
        /// The cause.
        source: GraphError,
    },
    /// A network cannot be run.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// A network cannot be planned.
    #[error(transparent)]
    Plan(#[from] JobPlanError),
    /// Links between devices cannot be made.
    #[error(transparent)]
    Links(#[from] TopologyError),
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl From<LocalError> for ProfileError {
    fn from(e: LocalError) -> ProfileError {
        match e {
            LocalError::Plan(e) => e.into(),
            LocalError::Session(e) => e.into(),
        }
    }
}

/// The measurement in progress, for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileProgress {
    /// Description.
    pub what: String,
    /// Number of measurements done and in all.
    pub done: [usize; 2],
}

/// Measures a machine with `cores` cores; kernels for about `seconds`, [`SECONDS`] for a good profile. Files of the disk
/// tier are made in `dir`.
pub fn profile(
    cores: usize,
    seconds: f64,
    (dir, processor): (&Path, String),
    tell: &mut dyn FnMut(ProfileProgress),
) -> Result<MachineProfile, ProfileError> {
    let layouts = layouts(cores);
    let all = 2
        + usize::from(cores > 1)
        + layouts.iter().map(|[_, devices]| probes(*devices).count()).sum::<usize>();
    let mut done = 0;
    let mut doing = |what: String| {
        tell(ProfileProgress { what, done: [done, all] });
        done += 1;
    };
    doing("arithmetic and copies by number of threads".into());
    let scaling: Vec<Scaling> = (1..=cores).map(scaling).collect();
    doing("copies between tiers and the disk".into());
    let links = links(dir)?;
    let (mut curves, mut stepped) = (Vec::new(), Vec::new());
    for &[threads, devices] in &layouts {
        let mut tell = |model: &str| doing(format!("{model}, {devices} × {threads} threads"));
        let Scaling { flops, bytes, .. } = scaling[(threads * devices).clamp(1, scaling.len()) - 1];
        let each = |rate: f64| rate / devices as f64;
        let rates = Rates { flops: each(flops), bytes: each(bytes), ..Rates::default() };
        let layout = [threads, devices];
        let mut all = all_probes(layout, seconds / layouts.len() as f64, &mut tell)?;
        stepped.push(all.iter_mut().filter_map(|measured| measured.stepped.take()).collect::<Vec<_>>());
        let mut measured = fit_curves(layout, rates, all);
        // On several devices this time includes waits, so that of one device is used.
        let alone = curves.iter().find(|other: &&Curves| other.threads == threads && other.devices == 1);
        measured.between = alone.map_or(measured.between, |alone| alone.between);
        curves.push(measured);
    }
    if cores > 1 {
        doing("how long cores stay uneven, and how late they are after waits".into());
        let mut cores = CoreTimings::new(cores);
        (0..EVENNESS).for_each(|_| cores.turn());
        curves.iter_mut().filter(|curves| curves.devices > 1).for_each(|curves| cores.tell(curves));
    }
    let mut profile = MachineProfile { cores, processor, links, scaling, curves };
    for (layout, mut stepped) in layouts.into_iter().zip(stepped) {
        fit_unevenness(&mut profile, layout, &mut stepped)?;
    }
    Ok(profile)
}

/// Measurements of all cores at once.
pub struct CoreTimings {
    evenness: Evenness,
    resuming: ResumeDelay,
}

impl CoreTimings {
    /// For this many cores.
    pub fn new(cores: usize) -> CoreTimings {
        CoreTimings { evenness: Evenness::new(cores), resuming: ResumeDelay::new(cores) }
    }

    /// Discards all measurements.
    pub fn forget(&mut self) {
        self.evenness.forget();
        self.resuming.forget();
    }

    /// Measures once.
    pub fn turn(&mut self) {
        self.evenness.turn();
        self.resuming.turn();
    }

    /// Writes the results, if there are any, to curves of several devices.
    pub fn tell(&self, curves: &mut Curves) {
        curves.fades = self.evenness.fades().unwrap_or(curves.fades);
        curves.resumes = self.resuming.seconds().unwrap_or(curves.resumes);
    }
}

/// Trial values of the unevenness of devices.
const UNEVEN: [f64; 7] = [0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6];

/// Fits the unevenness of devices in one layout so that the predicted waits in these steps equal the measured ones.
pub fn fit_unevenness(
    profile: &mut MachineProfile,
    [threads, devices]: [usize; 2],
    stepped: &mut [JointSteps],
) -> Result<(), ProfileError> {
    let place = profile.nearest(threads, devices).filter(|_| !stepped.is_empty());
    let Some((place, curves)) = place.zip(profile.at(threads, devices)) else { return Ok(()) };
    let curves = Arc::new(curves);
    let waited: f64 = stepped.iter().map(|stepped| stepped.waits).sum();
    let mut predicted = [0.0; UNEVEN.len()];
    for stepped in stepped {
        let waits = stepped.predicted(&curves, &UNEVEN)?;
        predicted.iter_mut().zip(waits).for_each(|(sum, waits)| *sum += waits);
    }
    let enough = predicted.iter().position(|waits| *waits >= waited).unwrap_or(UNEVEN.len() - 1);
    profile.curves[place].uneven = match enough.checked_sub(1) {
        None => 0.0,
        Some(before) => {
            let [low, high] = [predicted[before], predicted[enough]];
            let share = if high > low { ((waited - low) / (high - low)).min(1.0) } else { 1.0 };
            UNEVEN[before] + share * (UNEVEN[enough] - UNEVEN[before])
        }
    };
    Ok(())
}

/// Cost curves from the probe results of one layout: threads per device, and devices.
pub fn fit_curves([threads, devices]: [usize; 2], rates: Rates, all: Vec<ProbeResult>) -> Curves {
    let between: Vec<f64> = all.iter().map(|measured| measured.between).collect();
    let between = quantile(&between, 0.5).unwrap_or(0.0);
    let met: Vec<[f64; 2]> = all.iter().flat_map(|measured| measured.met.iter().copied()).collect();
    let beside: Vec<[f64; 2]> = all.iter().flat_map(|measured| measured.beside.iter().copied()).collect();
    let around: Vec<[f64; 2]> = all.iter().filter_map(|measured| measured.around).collect();
    let collective = (devices > 1).then(|| CollectivePrice::fitted(&met, &beside));
    let slower = disturbance(&all);
    let mut families: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for (family, mut points) in all.into_iter().flat_map(|measured| measured.families) {
        points.iter_mut().for_each(|point| point.spread = (1.0 + point.spread) * slower - 1.0);
        families.entry(family).or_default().extend(points);
    }
    Curves {
        between,
        collective,
        around: explained(&around),
        ..Curves::of([threads, devices], rates, families)
    }
}

/// Seconds of a step of a large network.
const LARGE: f64 = 0.2;

/// Slowdown of kernels in long steps relative to the trimmed mean of single repetitions. An interruption of ten
/// milliseconds affects few repetitions of a small network, which are dropped as outliers, but many steps of a large one.
/// Consecutive probes are therefore grouped into stretches as long as such a step, and outliers are dropped among these.
fn disturbance(all: &[ProbeResult]) -> f64 {
    let rounds = all.iter().map(|measured| measured.rounds.len()).max().unwrap_or(0);
    let mut slower = Vec::new();
    for round in 0..rounds {
        let [mut taken, mut usually] = [0.0; 2];
        for [took, takes] in all.iter().filter_map(|measured| measured.rounds.get(round)) {
            (taken, usually) = (taken + took, usually + takes);
            if usually >= LARGE {
                slower.push(taken / usually);
                (taken, usually) = (0.0, 0.0);
            }
        }
        // An incomplete stretch counts if it is at least half as long, or if there is no other.
        if usually > LARGE / 2.0 || slower.is_empty() && usually > 0.0 {
            slower.push(taken / usually);
        }
    }
    trimmed_mean(&slower).unwrap_or(1.0).max(1.0)
}

/// Runs every probe in this layout for about `seconds` in all. Probes with a large spread are repeated while there is
/// time, and the run with the least spread counts.
fn all_probes(
    layout: [usize; 2],
    seconds: f64,
    tell: &mut dyn FnMut(&str),
) -> Result<Vec<ProbeResult>, ProfileError> {
    let begin = Instant::now();
    let probes: Vec<&Probe> = probes(layout[1]).collect();
    let each = FIRST * seconds / probes.len() as f64;
    let measure = |probes: &[&Probe]| -> Result<Vec<ProbeResult>, ProfileError> {
        let begin = Instant::now();
        let benches = probes.iter().map(|probe| ProbeBench::new(probe, layout));
        let mut benches: Vec<ProbeBench> = benches.collect::<Result<_, _>>()?;
        let left = each - begin.elapsed().as_secs_f64() / probes.len() as f64;
        let left = if each > 0.0 { left.max(1e-9) } else { 0.0 };
        run_interleaved(&mut benches.iter_mut().collect::<Vec<_>>(), left, LEAST)?;
        benches.iter().map(ProbeBench::measured).collect()
    };
    let mut all = Vec::new();
    for some in probes.chunks(interleaved_probes(layout[0])) {
        some.iter().for_each(|probe| tell(probe.model));
        all.extend(measure(some)?.into_iter().map(|measured| (measured, 1)));
    }
    while begin.elapsed().as_secs_f64() < seconds {
        let noisy = |i: &usize| all[*i].1 < RUNS && all[*i].0.spread() > CALM;
        let mut again: Vec<usize> = (0..all.len()).filter(noisy).collect();
        again.sort_by(|a, b| all[*b].0.spread().total_cmp(&all[*a].0.spread()));
        again.truncate(interleaved_probes(layout[0]));
        if again.is_empty() {
            break;
        }
        let measured = measure(&again.iter().map(|i| probes[*i]).collect::<Vec<_>>())?;
        for (i, measured) in again.into_iter().zip(measured) {
            let (calmest, runs) = &mut all[i];
            *runs += 1;
            if measured.spread() < calmest.spread() {
                *calmest = measured;
            }
        }
    }
    Ok(all.into_iter().map(|(measured, _)| measured).collect())
}

/// Layouts to measure, as threads per device and devices: one device with all cores or one core, and one device per core.
fn layouts(cores: usize) -> Vec<[usize; 2]> {
    let mut layouts = vec![[cores.max(1), 1]];
    if cores > 1 {
        layouts.extend([[1, 1], [1, cores.min(8)]]);
    }
    layouts
}

fn scaling(threads: usize) -> Scaling {
    let team = Team::new(threads);
    let (times, seconds) = REPEATED;
    let repeat = |one: &dyn Fn() -> f64| {
        let rates: Vec<f64> = (0..times).map(|_| one()).collect();
        let [low, median, high] = [0.0, 0.5, 1.0].map(|share| quantile(&rates, share).unwrap_or(f64::NAN));
        (median, (high - low) / median)
    };
    let (flops, spread) = repeat(&|| roofline::multiply_adds(&team, seconds));
    let (bytes, other) = repeat(&|| roofline::copies(&team, COPIED, seconds));
    Scaling { threads, flops, bytes, spread: spread.max(other) }
}

fn links(dir: &Path) -> Result<Links, DiskError> {
    let (times, seconds) = REPEATED;
    let median = |rates: Vec<f64>| quantile(&rates, 0.5).unwrap_or(f64::NAN);
    let moves = median((0..times).map(|_| roofline::moves(1 << 20, seconds)).collect());
    let disk: Vec<[f64; 2]> =
        (0..times.div_ceil(2)).map(|_| roofline::disk(dir, ON_DISK)).collect::<Result<_, _>>()?;
    let [disk_read, disk_write] = [0, 1].map(|i| median(disk.iter().map(|rates| rates[i]).collect()));
    Ok(Links { to_device: moves, to_host: moves, from_peers: moves, disk_read, disk_write })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hits_few_repetitions_counts_as_it_does_in_long_steps() {
        let of = |rounds: Vec<[f64; 2]>| ProbeResult {
            families: BTreeMap::new(),
            rounds,
            between: 0.0,
            met: Vec::new(),
            beside: Vec::new(),
            around: None,
            stepped: None,
        };
        assert_eq!(disturbance(&[]), 1.0);
        // In every round one of the two probes is slowed down, and both together are one stretch; one round of ten is an
        // outlier.
        let half = LARGE / 2.0;
        let hit = |probe: usize| (0..10).map(move |r| [if r % 2 == probe { 1.4 * half } else { half }, half]);
        let mut all = [of(hit(0).collect()), of(hit(1).collect())];
        assert!((disturbance(&all) - 1.2).abs() < 1e-9);
        all[0].rounds[3][0] = 50.0;
        assert!((disturbance(&all) - 1.2).abs() < 1e-9);
        // Two more probes, which are never slowed down, form stretches of their own.
        let calm = || of(vec![[half, half]; 10]);
        let [a, b] = all;
        let slower = disturbance(&[a, b, calm(), calm()]);
        assert!((slower - (9.0 * 1.2 + 9.0) / 18.0).abs() < 0.02, "{slower}");
        // The result is at least one, and a short stretch counts if it is the only one.
        assert_eq!(disturbance(&[of(vec![[0.9, 1.0]])]), 1.0);
        assert!((disturbance(&[of(vec![[0.011, 0.01]])]) - 1.1).abs() < 1e-9);
    }
}
