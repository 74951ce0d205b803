//! How fast this machine is, measured: every kernel of some small networks while they are trained, alone and
//! beside others; what more threads bring; copies between tiers; the disk.

pub mod measure;
pub mod probes;

use crate::disk::DiskError;
use crate::probe;
use crate::session::SessionError;
use crate::team::Team;
use gulliver_graph::graph::GraphError;
use gulliver_plan::cost::{Curves, Links, Meeting, Profile, Rates, Scaling};
use measure::{Measured, measure, sorted};
use probes::PROBES;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

/// Seconds of all probes together, in all ways of using the machine, for a good profile.
pub const SECONDS: f64 = 36.0;
/// The share of them in which every probe is run once.
const FIRST: f64 = 0.6;
/// A probe with less spread than this is not run again, and none more often.
const CALM: f64 = 0.1;
const RUNS: u32 = 3;
/// Repetitions of what is measured otherwise, and the seconds of each.
const REPEATED: (usize, f64) = (5, 0.03);
/// Copied at once: beyond the caches of most machines.
const COPIED: usize = 64 << 20;
/// Written to disk and read at once.
const ON_DISK: usize = 32 << 20;

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// A network cannot be built.
    #[error("{model}: {source}")]
    Graph {
        /// Which.
        model: &'static str,
        /// What is wrong.
        source: GraphError,
    },
    /// A network cannot be run.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The disk.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// What is being measured, for people who wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doing {
    /// In words.
    pub what: String,
    /// How many measurements are done, of how many.
    pub done: [usize; 2],
}

/// Measures a machine of so many cores; the kernels for about `seconds`, [`SECONDS`] for a good profile. Files of
/// the disk tier are made in `dir`.
pub fn profile(
    cores: usize,
    seconds: f64,
    (dir, processor): (&Path, String),
    tell: &mut dyn FnMut(Doing),
) -> Result<Profile, ProfileError> {
    let ways = ways(cores);
    let all = 2 + ways.len() * PROBES.len();
    let mut done = 0;
    let mut doing = |what: String| {
        tell(Doing { what, done: [done, all] });
        done += 1;
    };
    doing("arithmetic and copies by number of threads".into());
    let scaling: Vec<Scaling> = (1..=cores).map(scaling).collect();
    doing("copies between tiers and the disk".into());
    let links = links(dir)?;
    let mut curves = Vec::new();
    for &[threads, devices] in &ways {
        let mut tell = |model: &str| doing(format!("{model}, {devices} × {threads} threads"));
        let Scaling { flops, bytes, .. } = scaling[(threads * devices).clamp(1, scaling.len()) - 1];
        let each = |rate: f64| rate / devices as f64;
        let rates = Rates { flops: each(flops), bytes: each(bytes), ..Rates::default() };
        let mut measured = measured([threads, devices], rates, seconds / ways.len() as f64, &mut tell)?;
        // Devices that meet after every node lose time to nobody but the measurement.
        let alone = curves.iter().find(|other: &&Curves| other.threads == threads && other.devices == 1);
        measured.between = alone.map_or(measured.between, |alone| alone.between);
        curves.push(measured);
    }
    Ok(Profile { cores, processor, links, scaling, curves })
}

/// Measures one way of using the machine anew: that which predictions for such devices are made from. The profile with
/// it.
pub fn renewed(
    profile: &Profile,
    [threads, devices]: [usize; 2],
    seconds: f64,
) -> Result<Profile, ProfileError> {
    let mut profile = profile.clone();
    if let Some(place) = profile.nearest(threads, devices) {
        let Curves { threads, devices, rates, between, .. } = profile.curves[place];
        let mut curves = measured([threads, devices], rates, seconds, &mut |_| ())?;
        if devices > 1 {
            curves.between = between;
        }
        profile.curves[place] = curves;
    }
    Ok(profile)
}

/// Curves of one way of using the machine, measured for about so many seconds.
fn measured(
    [threads, devices]: [usize; 2],
    rates: Rates,
    seconds: f64,
    tell: &mut dyn FnMut(&str),
) -> Result<Curves, ProfileError> {
    let all = all_probes([threads, devices], seconds, tell)?;
    let between = sorted(all.iter().map(|measured| measured.between).collect(), 0.5);
    let met: Vec<[f64; 4]> = all.iter().filter_map(|measured| measured.met).collect();
    let meeting = (devices > 1).then(|| Meeting::fitted(&met));
    let mut families: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for (family, points) in all.into_iter().flat_map(|measured| measured.families) {
        families.entry(family).or_default().extend(points);
    }
    Ok(Curves { threads, devices, between, meeting, rates, families })
}

/// Every probe run this way, in about `seconds`. Those that something disturbed are run again while there is time, and
/// the calmer run counts.
fn all_probes(
    way: [usize; 2],
    seconds: f64,
    tell: &mut dyn FnMut(&str),
) -> Result<Vec<Measured>, ProfileError> {
    let begin = Instant::now();
    let each = FIRST * seconds / PROBES.len() as f64;
    let mut all = Vec::new();
    for probe in PROBES {
        tell(probe.model);
        all.push((probe, measure(probe, way, each)?, 1));
    }
    while begin.elapsed().as_secs_f64() < seconds {
        let noisy = all.iter_mut().filter(|(_, measured, runs)| *runs < RUNS && measured.spread() > CALM);
        let Some((probe, measured, runs)) = noisy.max_by(|a, b| a.1.spread().total_cmp(&b.1.spread())) else {
            break;
        };
        let again = measure(probe, way, each)?;
        *runs += 1;
        if again.spread() < measured.spread() {
            *measured = again;
        }
    }
    Ok(all.into_iter().map(|(_, measured, _)| measured).collect())
}

/// Ways of using a machine, as threads of a device and devices: one device with all cores or with one, and a
/// device for each core.
fn ways(cores: usize) -> Vec<[usize; 2]> {
    let mut ways = vec![[cores.max(1), 1]];
    if cores > 1 {
        ways.extend([[1, 1], [1, cores.min(8)]]);
    }
    ways
}

fn scaling(threads: usize) -> Scaling {
    let team = Team::new(threads);
    let (times, seconds) = REPEATED;
    let repeat = |one: &dyn Fn() -> f64| {
        let rates: Vec<f64> = (0..times).map(|_| one()).collect();
        let [low, median, high] = [0.0, 0.5, 1.0].map(|share| sorted(rates.clone(), share));
        (median, (high - low) / median)
    };
    let (flops, spread) = repeat(&|| probe::multiply_adds(&team, seconds));
    let (bytes, other) = repeat(&|| probe::copies(&team, COPIED, seconds));
    Scaling { threads, flops, bytes, spread: spread.max(other) }
}

fn links(dir: &Path) -> Result<Links, DiskError> {
    let (times, seconds) = REPEATED;
    let moves = sorted((0..times).map(|_| probe::moves(1 << 20, seconds)).collect(), 0.5);
    let disk: Vec<[f64; 2]> =
        (0..times.div_ceil(2)).map(|_| probe::disk(dir, ON_DISK)).collect::<Result<_, _>>()?;
    let [disk_read, disk_write] = [0, 1].map(|i| sorted(disk.iter().map(|rates| rates[i]).collect(), 0.5));
    Ok(Links { to_device: moves, to_host: moves, from_peers: moves, disk_read, disk_write })
}
