//! How fast this machine is, measured: every kernel of some small networks while they are trained, alone and
//! beside others; what more threads bring; copies between tiers; the disk.

pub mod measure;
pub mod probes;

use crate::local::LocalError;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, GraphError};
use gulliver_graph::work::Work;
use gulliver_plan::devices::error::JobPlanError;
use gulliver_plan::document::links::Links;
use gulliver_plan::document::topology::TopologyError;
use gulliver_plan::time::cost::{CollectivePrice, Curves, Profile, Rates, Scaling, explained};
use gulliver_run::device::cpu::disk::DiskError;
use gulliver_run::profile::evenness::Evenness;
use gulliver_run::profile::resuming::Resuming;
use gulliver_run::profile::{roofline, trimmed_mean};
use gulliver_run::session::SessionError;
use gulliver_run::team::Team;
use measure::{Bench, Measured, Stepped, in_turns, sorted, take_turns};
use probes::{Probe, probes};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Seconds of all probes together, in all ways of using the machine, for a good profile; on slow machines the least
/// repetitions of each take longer than that.
pub const SECONDS: f64 = 10.0;
/// The share of them in which every probe is run once.
const FIRST: f64 = 0.6;
/// Repetitions of each probe at least.
const LEAST: usize = 3;
/// A probe with less spread than this is not run again, and none more often.
const CALM: f64 = 0.1;
const RUNS: u32 = 3;
/// Repetitions of what is measured otherwise, and the seconds of each.
const REPEATED: (usize, f64) = (5, 0.03);
/// Turns in which all cores are at work to see how uneven they are, and how late after waits.
const EVENNESS: usize = 6;
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
    /// A network cannot be planned.
    #[error(transparent)]
    Plan(#[from] JobPlanError),
    /// Links between devices cannot be.
    #[error(transparent)]
    Links(#[from] TopologyError),
    /// The disk.
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
    let all =
        2 + usize::from(cores > 1) + ways.iter().map(|[_, devices]| probes(*devices).count()).sum::<usize>();
    let mut done = 0;
    let mut doing = |what: String| {
        tell(Doing { what, done: [done, all] });
        done += 1;
    };
    doing("arithmetic and copies by number of threads".into());
    let scaling: Vec<Scaling> = (1..=cores).map(scaling).collect();
    doing("copies between tiers and the disk".into());
    let links = links(dir)?;
    let (mut curves, mut stepped) = (Vec::new(), Vec::new());
    for &[threads, devices] in &ways {
        let mut tell = |model: &str| doing(format!("{model}, {devices} × {threads} threads"));
        let Scaling { flops, bytes, .. } = scaling[(threads * devices).clamp(1, scaling.len()) - 1];
        let each = |rate: f64| rate / devices as f64;
        let rates = Rates { flops: each(flops), bytes: each(bytes), ..Rates::default() };
        let way = [threads, devices];
        let mut all = all_probes(way, seconds / ways.len() as f64, &mut tell)?;
        stepped.push(all.iter_mut().filter_map(|measured| measured.stepped.take()).collect::<Vec<_>>());
        let mut measured = joined(way, rates, all);
        // Devices that meet after every node lose time to nobody but the measurement.
        let alone = curves.iter().find(|other: &&Curves| other.threads == threads && other.devices == 1);
        measured.between = alone.map_or(measured.between, |alone| alone.between);
        curves.push(measured);
    }
    if cores > 1 {
        doing("how long cores stay uneven, and how late they are after waits".into());
        let mut cores = Cores::new(cores);
        (0..EVENNESS).for_each(|_| cores.turn());
        curves.iter_mut().filter(|curves| curves.devices > 1).for_each(|curves| cores.tell(curves));
    }
    let mut profile = Profile { cores, processor, links, scaling, curves };
    for (way, mut stepped) in ways.into_iter().zip(stepped) {
        settle(&mut profile, way, &mut stepped)?;
    }
    Ok(profile)
}

/// What is measured of all cores at once, whatever they do.
struct Cores {
    evenness: Evenness,
    resuming: Resuming,
}

impl Cores {
    fn new(cores: usize) -> Cores {
        Cores { evenness: Evenness::new(cores), resuming: Resuming::new(cores) }
    }

    fn forget(&mut self) {
        self.evenness.forget();
        self.resuming.forget();
    }

    fn turn(&mut self) {
        self.evenness.turn();
        self.resuming.turn();
    }

    /// Tells curves of several devices what was seen, if anything was.
    fn tell(&self, curves: &mut Curves) {
        curves.fades = self.evenness.fades().unwrap_or(curves.fades);
        curves.resumes = self.resuming.seconds().unwrap_or(curves.resumes);
    }
}

/// Guesses of how uneven devices are.
const UNEVEN: [f64; 7] = [0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6];

/// Finds how uneven devices are in one way of using the machine: so uneven that they are predicted to wait as much in
/// these steps as they did.
fn settle(
    profile: &mut Profile,
    [threads, devices]: [usize; 2],
    stepped: &mut [Stepped],
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

/// One way of using the machine, measured in turns with what is to be predicted: a machine that others use is then as
/// fast, or slow, for both.
pub struct Meanwhile {
    way: [usize; 2],
    /// Each probe, how much of its work is of which family, and its bench, once it was wanted.
    probes: Vec<(&'static Probe, BTreeMap<String, f64>, Option<Bench>)>,
    /// Those that are wanted now.
    wanted: Vec<usize>,
    /// Of several devices.
    cores: Option<Cores>,
}

/// A probe is of use to who wants to know of families that are this share of its work.
const OF_USE: f64 = 0.1;

impl Meanwhile {
    /// On so many devices of so many threads.
    pub fn new(way: [usize; 2]) -> Result<Meanwhile, ProfileError> {
        let all = probes(way[1]).map(|probe| {
            let (graph, _) = probe.built()?;
            Ok((probe, shares(&graph, &probe.bindings(), None)?, None))
        });
        let probes = all.collect::<Result<_, ProfileError>>()?;
        let cores = (way[1] > 1).then(|| Cores::new(way[0] * way[1]));
        Ok(Meanwhile { way, probes, wanted: Vec::new(), cores })
    }

    /// Forgets all turns so far, and gets ready those probes that tell of such families.
    pub fn begin(&mut self, families: &dyn Fn(&str) -> bool) -> Result<(), ProfileError> {
        self.wanted.clear();
        self.cores.iter_mut().for_each(Cores::forget);
        for (i, (probe, shares, bench)) in self.probes.iter_mut().enumerate() {
            let share: f64 =
                shares.iter().filter(|(family, _)| families(family)).map(|(_, share)| share).sum();
            if share < OF_USE {
                continue;
            }
            match bench {
                Some(bench) => bench.forget(),
                None => *bench = Some(Bench::new(probe, self.way)?),
            }
            self.wanted.push(i);
        }
        Ok(())
    }

    /// Runs some of the probes for as many seconds each: of so many turns that have all of them, this one's.
    pub fn turn(&mut self, seconds: f64, (turn, turns): (usize, usize)) -> Result<(), ProfileError> {
        if turn == 0 {
            self.cores.iter_mut().for_each(Cores::turn);
            self.probes.iter_mut().filter_map(|(.., bench)| bench.as_mut()).for_each(Bench::next_round);
        }
        let (wanted, turns) = (&self.wanted, turns.max(1));
        let mut benches: Vec<&mut Bench> = Vec::new();
        for (i, (.., bench)) in self.probes.iter_mut().enumerate() {
            benches.extend(bench.as_mut().filter(|_| wanted.contains(&i)));
        }
        let in_turns = in_turns(self.way[0]);
        let groups = benches.len().div_ceil(in_turns);
        for (group, benches) in benches.chunks_mut(in_turns).enumerate() {
            if group * turns / groups == turn {
                take_turns(benches, seconds, 1)?;
            }
        }
        Ok(())
    }

    /// These curves, with what all turns have measured instead of what they had of the same families.
    pub fn renew(&self, curves: &mut Curves) -> Result<(), ProfileError> {
        let benches = self.wanted.iter().filter_map(|&i| self.probes[i].2.as_ref());
        let all: Vec<Measured> = benches.map(Bench::measured).collect::<Result<_, _>>()?;
        let Curves { between, collective, around, families, .. } = joined(self.way, curves.rates, all);
        curves.families.extend(families);
        if self.way[1] == 1 {
            curves.between = between;
        }
        self.cores.iter().for_each(|cores| cores.tell(curves));
        if collective.is_some() {
            (curves.collective, curves.around) = (collective, around);
        }
        Ok(())
    }

    /// A profile whose curves were renewed, with devices as uneven as all turns have measured.
    pub fn settle(&self, profile: &mut Profile) -> Result<(), ProfileError> {
        let benches = self.wanted.iter().filter_map(|&i| self.probes[i].2.as_ref());
        let stepped = benches.map(|bench| Ok(bench.measured()?.stepped));
        let stepped: Vec<Option<Stepped>> = stepped.collect::<Result<_, ProfileError>>()?;
        settle(profile, self.way, &mut stepped.into_iter().flatten().collect::<Vec<_>>())
    }
}

/// How much of a graph's work is of which family: as curves have it, or by ordinary rates.
pub fn shares(
    graph: &Graph,
    sizes: &Bindings,
    curves: Option<&Curves>,
) -> Result<BTreeMap<String, f64>, ProfileError> {
    let mut shares: BTreeMap<String, f64> = BTreeMap::new();
    for node in graph.nodes.iter().filter(|node| !node.op.def().is_view()) {
        let work = Work::of(graph, node);
        let load = work.bind(sizes).map_err(SessionError::from)?;
        let known = curves.and_then(|curves| curves.seconds(&work.family, &load));
        let seconds = known.unwrap_or_else(|| Rates::default().seconds(load.flops, load.bytes));
        *shares.entry(work.family).or_default() += seconds;
    }
    let all: f64 = shares.values().sum();
    shares.values_mut().for_each(|share| *share /= all);
    Ok(shares)
}

/// Curves of what was measured in one way of using the machine.
fn joined([threads, devices]: [usize; 2], rates: Rates, all: Vec<Measured>) -> Curves {
    let between: Vec<f64> = all.iter().map(|measured| measured.between).collect();
    let between = sorted(&between, 0.5).unwrap_or(0.0);
    let met: Vec<[f64; 2]> = all.iter().flat_map(|measured| measured.met.iter().copied()).collect();
    let beside: Vec<[f64; 2]> = all.iter().flat_map(|measured| measured.beside.iter().copied()).collect();
    let around: Vec<[f64; 2]> = all.iter().filter_map(|measured| measured.around).collect();
    let collective = (devices > 1).then(|| CollectivePrice::fitted(&met, &beside));
    let slower = disturbed(&all);
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

/// How much longer kernels take in steps of large networks than their repetitions do as a rule. Who takes a core for ten
/// milliseconds hits few repetitions of a small network, which are left out as exceptions, and many steps of a large one.
/// What probes do one after the other is as long as such steps, and it is the slowest of these that are left out here.
fn disturbed(all: &[Measured]) -> f64 {
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
        // A rest that is not much shorter counts as well, and so does all there is.
        if usually > LARGE / 2.0 || slower.is_empty() && usually > 0.0 {
            slower.push(taken / usually);
        }
    }
    trimmed_mean(&slower).unwrap_or(1.0).max(1.0)
}

/// Every probe run this way, in about `seconds`. Those that something disturbed are run again while there is time, and
/// the calmer run counts.
fn all_probes(
    way: [usize; 2],
    seconds: f64,
    tell: &mut dyn FnMut(&str),
) -> Result<Vec<Measured>, ProfileError> {
    let begin = Instant::now();
    let probes: Vec<&Probe> = probes(way[1]).collect();
    let each = FIRST * seconds / probes.len() as f64;
    let measure = |probes: &[&Probe]| -> Result<Vec<Measured>, ProfileError> {
        let begin = Instant::now();
        let benches = probes.iter().map(|probe| Bench::new(probe, way));
        let mut benches: Vec<Bench> = benches.collect::<Result<_, _>>()?;
        let left = each - begin.elapsed().as_secs_f64() / probes.len() as f64;
        let left = if each > 0.0 { left.max(1e-9) } else { 0.0 };
        take_turns(&mut benches.iter_mut().collect::<Vec<_>>(), left, LEAST)?;
        benches.iter().map(Bench::measured).collect()
    };
    let mut all = Vec::new();
    for some in probes.chunks(in_turns(way[0])) {
        some.iter().for_each(|probe| tell(probe.model));
        all.extend(measure(some)?.into_iter().map(|measured| (measured, 1)));
    }
    while begin.elapsed().as_secs_f64() < seconds {
        let noisy = |i: &usize| all[*i].1 < RUNS && all[*i].0.spread() > CALM;
        let mut again: Vec<usize> = (0..all.len()).filter(noisy).collect();
        again.sort_by(|a, b| all[*b].0.spread().total_cmp(&all[*a].0.spread()));
        again.truncate(in_turns(way[0]));
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
        let [low, median, high] = [0.0, 0.5, 1.0].map(|share| sorted(&rates, share).unwrap_or(f64::NAN));
        (median, (high - low) / median)
    };
    let (flops, spread) = repeat(&|| roofline::multiply_adds(&team, seconds));
    let (bytes, other) = repeat(&|| roofline::copies(&team, COPIED, seconds));
    Scaling { threads, flops, bytes, spread: spread.max(other) }
}

fn links(dir: &Path) -> Result<Links, DiskError> {
    let (times, seconds) = REPEATED;
    let median = |rates: Vec<f64>| sorted(&rates, 0.5).unwrap_or(f64::NAN);
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
        let of = |rounds: Vec<[f64; 2]>| Measured {
            families: BTreeMap::new(),
            rounds,
            between: 0.0,
            met: Vec::new(),
            beside: Vec::new(),
            around: None,
            stepped: None,
        };
        assert_eq!(disturbed(&[]), 1.0);
        // One probe or the other is hit in every round, and both together are as long as a large step; one round of ten is
        // an exception.
        let half = LARGE / 2.0;
        let hit = |probe: usize| (0..10).map(move |r| [if r % 2 == probe { 1.4 * half } else { half }, half]);
        let mut all = [of(hit(0).collect()), of(hit(1).collect())];
        assert!((disturbed(&all) - 1.2).abs() < 1e-9);
        all[0].rounds[3][0] = 50.0;
        assert!((disturbed(&all) - 1.2).abs() < 1e-9);
        // Half of the others in the same rounds are not hit at all, and make steps of their own.
        let calm = || of(vec![[half, half]; 10]);
        let [a, b] = all;
        let slower = disturbed(&[a, b, calm(), calm()]);
        assert!((slower - (9.0 * 1.2 + 9.0) / 18.0).abs() < 0.02, "{slower}");
        // Exceptions are never faster, and little is better than nothing.
        assert_eq!(disturbed(&[of(vec![[0.9, 1.0]])]), 1.0);
        assert!((disturbed(&[of(vec![[0.011, 0.01]])]) - 1.1).abs() < 1e-9);
    }
}
