//! How fast this machine is, measured: every kernel of some small networks while they are trained, alone and
//! beside others; what more threads bring; copies between tiers; the disk.

pub mod check;
pub mod measure;
pub mod probes;

use crate::disk::DiskError;
use crate::probe;
use crate::session::SessionError;
use crate::team::Team;
use gulliver_graph::graph::GraphError;
use gulliver_plan::cost::{Curves, Links, Profile, Rates, Scaling};
use measure::{Measured, measure, sorted};
use probes::PROBES;
use std::collections::BTreeMap;
use std::path::Path;

/// Seconds of all probes together, in all ways of using the machine.
const SECONDS: f64 = 45.0;
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

/// Measures a machine of so many cores, in about a minute; files of the disk tier are made in `dir`.
pub fn profile(
    cores: usize,
    dir: &Path,
    processor: String,
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
    let seconds = SECONDS / (ways.len() * PROBES.len()) as f64;
    let mut curves = Vec::new();
    for [threads, devices] in ways {
        let mut families: BTreeMap<String, Vec<_>> = BTreeMap::new();
        let mut between = Vec::new();
        for probe in PROBES {
            doing(format!("{}, {devices} × {threads} threads", probe.model));
            match measure(probe, [threads, devices], seconds) {
                Ok(Measured { families: more, between: passed }) => {
                    between.push(passed);
                    more.into_iter()
                        .for_each(|(family, points)| families.entry(family).or_default().extend(points));
                }
                // Not everything can be shared by devices.
                Err(ProfileError::Session(SessionError::Replicate(_))) => {}
                Err(e) => return Err(e),
            }
        }
        let Scaling { flops, bytes, .. } = scaling[(threads * devices).clamp(1, scaling.len()) - 1];
        let each = |rate: f64| rate / devices as f64;
        let rates = Rates { flops: each(flops), bytes: each(bytes), ..Rates::default() };
        curves.push(Curves { threads, devices, between: sorted(between, 0.5), rates, families });
    }
    Ok(Profile { cores, processor, links, scaling, curves })
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
