//! One network run again and again while each of its kernels is timed: on one device, or on several at once that
//! meet as in training.

use super::ProfileError;
use super::probes::Probe;
use crate::data::Batch;
use crate::executor::Work as Did;
use crate::session::{Key, Session, SessionError, SessionOptions, Which, planners};
use gulliver_graph::dim::Bindings;
use gulliver_graph::work::Work;
use gulliver_plan::cost::Point;
use gulliver_plan::kind::Kinds;
use gulliver_plan::simulate::exchanged;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Steps that find cold caches and memory that was never touched.
const WARM_UP: u64 = 1;
/// Steps at the beginning of a turn that find the caches of others.
const CHANGED: usize = 1;
/// Most repetitions of a step in one turn.
const REPETITIONS: usize = 100;

/// The share of repetitions that are taken for undisturbed: others use the machine too.
pub(super) const UNDISTURBED: f64 = 0.1;

/// What running a probe gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Points by family.
    pub families: BTreeMap<String, Vec<Point>>,
    /// Seconds that passed between two instructions.
    pub between: f64,
    /// How much longer the slowest of several devices took for a kernel than they did on average, as a share.
    pub uneven: f64,
    /// Of whole steps of several devices: seconds in all, those beyond its kernels, meetings, and bytes they bring.
    pub met: Option<[f64; 4]>,
}

impl Measured {
    /// The spread of its points, weighed by their seconds.
    pub fn spread(&self) -> f64 {
        let points = || self.families.values().flatten();
        let all: f64 = points().map(|point| point.seconds).sum();
        points().map(|point| point.seconds * point.spread).sum::<f64>() / all.max(1e-12)
    }
}

/// A probe on so many devices of so many threads each, and what its repetitions have taken so far.
pub struct Bench {
    session: Session,
    devices: usize,
    /// What one device gets, and all of them together.
    batch: Batch,
    whole: Batch,
    /// Of what one device gets.
    sizes: Bindings,
    kinds: Kinds,
    step: u64,
    /// By kind, the mean of its nodes in each repetition; and of each repetition, seconds of all that meets nobody,
    /// and those that passed between two instructions.
    times: Vec<Vec<f64>>,
    sums: Vec<f64>,
    between: Vec<f64>,
    /// Of each repetition, how much longer the slowest of the devices took for its kernels than they did on average.
    uneven: Vec<f64>,
    /// Of whole steps of several devices.
    steps: Vec<f64>,
}

impl Bench {
    /// A probe that was run once, to warm up.
    pub fn new(probe: &Probe, [threads, devices]: [usize; 2]) -> Result<Bench, ProfileError> {
        let (graph, batch) = probe.built()?;
        let options = SessionOptions { threads, partials: devices as u32, ..SessionOptions::default() };
        let session = match devices {
            1 => Session::new(graph, None, options, 0)?,
            _ => Session::together(planners(&graph, None, vec![options; devices])?, 0)?,
        };
        let [samples, length] = probe.sizes;
        let (_, whole) = Probe { sizes: [samples * devices, length], ..*probe }.built()?;
        let sizes = session.share(session.sizes(Which::Train, &whole)?)?;
        let kinds = Kinds::of(session.graph());
        let times = vec![Vec::new(); kinds.nodes.len()];
        let [sums, between, uneven, steps] = [const { Vec::new() }; 4];
        let mut bench = Bench {
            session,
            devices,
            batch,
            whole,
            sizes,
            kinds,
            step: 0,
            times,
            sums,
            between,
            uneven,
            steps,
        };
        for _ in 0..WARM_UP {
            bench.repeat(false)?;
        }
        Ok(bench)
    }

    /// Forgets what repetitions have taken so far.
    pub fn forget(&mut self) {
        let lists = [&mut self.sums, &mut self.between, &mut self.uneven, &mut self.steps];
        lists.into_iter().chain(&mut self.times).for_each(Vec::clear);
    }

    /// Repeats steps for about so many seconds, and so often at least; without seconds, once: enough to see that it
    /// works.
    pub fn turn(&mut self, seconds: f64, least: usize) -> Result<(), ProfileError> {
        let begin = Instant::now();
        let [changed, most] = if seconds > 0.0 { [CHANGED, REPETITIONS] } else { [0, 1] };
        for _ in 0..changed {
            self.repeat(false)?;
        }
        for done in 0..most {
            if done >= least && begin.elapsed().as_secs_f64() >= seconds {
                break;
            }
            self.repeat(true)?;
            if self.devices > 1 {
                let (key, start) = (self.key(), Instant::now());
                self.session.step(&self.whole, key, &key.number())?;
                self.steps.push(start.elapsed().as_secs_f64());
            }
        }
        Ok(())
    }

    fn key(&mut self) -> Key {
        self.step += 1;
        Key { seed: 0, step: self.step }
    }

    /// A step of every device at the same time, each instruction timed; those of the first device count, if any do.
    fn repeat(&mut self, counts: bool) -> Result<(), ProfileError> {
        let (key, start) = (self.key(), Instant::now());
        let runs = self.session.profile_all(&self.batch, key, &key.number())?;
        let run = &runs[0];
        let taken = start.elapsed().as_secs_f64();
        if !counts {
            return Ok(());
        }
        let inside: f64 = run.iter().map(|(_, time)| time.as_secs_f64()).sum();
        self.between.push((taken - inside) / run.len().max(1) as f64);
        let mut sums = vec![(0.0, 0u32); self.kinds.nodes.len()];
        let mut all = 0.0;
        for (did, time) in run {
            if let Did::Node(node) = did {
                let (sum, count) = &mut sums[self.kinds.kind_of[node.index()] as usize];
                *sum += time.as_secs_f64();
                *count += 1;
                if !self.session.graph().nodes[node.index()].op.def().meets() {
                    all += time.as_secs_f64();
                }
            }
        }
        self.sums.push(all);
        self.uneven.push(self.unevenness(&runs));
        for (times, (sum, count)) in self.times.iter_mut().zip(sums).filter(|(_, (_, count))| *count > 0) {
            times.push(sum / f64::from(count));
        }
        Ok(())
    }

    /// How much longer the slowest of the devices took for each of the kernels than they did on average.
    fn unevenness(&self, runs: &[Vec<(Did, Duration)>]) -> f64 {
        let graph = self.session.graph();
        let kernel = |did: &Did| matches!(did, Did::Node(n) if !graph.nodes[n.index()].op.def().meets());
        let (mut slowest, mut mean) = (0.0, 0.0);
        for (i, (did, _)) in runs[0].iter().enumerate().filter(|(_, (did, _))| kernel(did)) {
            let same = runs.iter().filter_map(|run| run.get(i).filter(|(other, _)| other == did));
            let times: Vec<f64> = same.map(|(_, time)| time.as_secs_f64()).collect();
            slowest += times.iter().copied().fold(0.0, f64::max);
            mean += times.iter().sum::<f64>() / times.len() as f64;
        }
        if mean > 0.0 { slowest / mean - 1.0 } else { 0.0 }
    }

    /// What all repetitions come to.
    pub fn measured(&self) -> Result<Measured, ProfileError> {
        let graph = self.session.graph();
        let meets = |id: usize| graph.nodes[id].op.def().meets();
        let medians: Vec<f64> = self.times.iter().map(|times| sorted(times, 0.5).unwrap_or(0.0)).collect();
        let nodes = (0..graph.nodes.len()).filter(|&id| !meets(id) && !graph.nodes[id].op.def().is_view());
        let apart: f64 = nodes.map(|id| medians[self.kinds.kind_of[id] as usize]).sum();
        let kernels = sorted(&self.sums, 0.5).unwrap_or(apart);
        // Whatever disturbs now this kernel and now that is in every sum and in no median.
        let disturbed = if apart > 0.0 { (kernels / apart).max(1.0) } else { 1.0 };
        let mut families: BTreeMap<String, Vec<Point>> = BTreeMap::new();
        for ((id, times), median) in self.kinds.nodes.iter().zip(&self.times).zip(&medians) {
            let Some(seconds) = sorted(times, UNDISTURBED) else { continue };
            let work = Work::of(graph, &graph.nodes[id.index()]);
            let load = work.bind(&self.sizes).map_err(SessionError::from)?;
            let seconds = seconds.max(1e-9);
            let spread = (median * disturbed / seconds - 1.0).max(0.0);
            families.entry(work.family).or_default().push(Point { load, seconds, spread });
        }
        let between = sorted(&self.between, UNDISTURBED).unwrap_or(0.0);
        let met = sorted(&self.steps, 0.5).map(|all| -> Result<[f64; 4], ProfileError> {
            let meetings = (0..graph.nodes.len()).filter(|&id| meets(id)).count();
            let bytes = exchanged(graph, &self.sizes, 1).map_err(SessionError::from)?;
            Ok([all, all - kernels, meetings as f64, bytes as f64])
        });
        let uneven = sorted(&self.uneven, 0.5).unwrap_or(0.0);
        Ok(Measured { families, between, uneven, met: met.transpose()? })
    }
}

/// The number (of some) that this share of them does not exceed; none if there are none.
pub(super) fn sorted(numbers: &[f64], share: f64) -> Option<f64> {
    let mut numbers = numbers.to_vec();
    numbers.sort_by(f64::total_cmp);
    numbers.get((numbers.len().saturating_sub(1) as f64 * share).round() as usize).copied()
}
