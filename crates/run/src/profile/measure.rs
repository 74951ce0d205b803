//! One network run again and again while each of its kernels is timed: on one device, or on several at once that
//! meet as in training.

use super::ProfileError;
use super::probes::Probe;
use crate::data::Batch;
use crate::executor::Work as Did;
use crate::session::{Key, Session, SessionError, SessionOptions, Which, planners};
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;
use gulliver_graph::work::Work;
use gulliver_plan::cost::Point;
use gulliver_plan::kind::Kinds;
use gulliver_plan::simulate::exchanged;
use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

/// Steps that find cold caches and memory that was never touched.
const WARM_UP: u64 = 1;
/// Fewest and most repetitions of a step.
const REPETITIONS: [usize; 2] = [3, 100];

/// The share of repetitions that are taken for undisturbed: others use the machine too.
pub(super) const UNDISTURBED: f64 = 0.1;

/// What running a probe gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Points by family.
    pub families: BTreeMap<String, Vec<Point>>,
    /// Seconds that passed between two instructions.
    pub between: f64,
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

/// The times of a step's instructions, in order.
type Times = Vec<(Did, Duration)>;

/// Runs a probe on so many devices of so many threads each, for about `seconds`.
pub fn measure(
    probe: &Probe,
    [threads, devices]: [usize; 2],
    seconds: f64,
) -> Result<Measured, ProfileError> {
    let begin = Instant::now();
    let (graph, batch) = probe.built()?;
    let options = SessionOptions { threads, partials: devices as u32, ..SessionOptions::default() };
    let mut sessions = match devices {
        1 => vec![Session::new(graph, None, options, 0)?],
        _ => {
            let planners = planners(&graph, None, vec![options; devices])?;
            let apart = planners.into_iter().map(|planner| Session::with(planner, 0));
            apart.collect::<Result<Vec<Session>, SessionError>>()?
        }
    };
    let mut runs: Vec<Times> = Vec::new();
    let (mut between, mut wanted, mut step) = (Vec::new(), REPETITIONS[0], 0);
    while runs.len() < wanted {
        let start = Instant::now();
        let times = step_of_all(&mut sessions, &batch, step)?;
        let taken = start.elapsed().as_secs_f64();
        if step >= WARM_UP {
            let inside: f64 = times.iter().map(|(_, time)| time.as_secs_f64()).sum();
            between.push((taken - inside) / times.len().max(1) as f64);
            runs.push(times);
        }
        if step == WARM_UP {
            let left = (seconds - begin.elapsed().as_secs_f64()) / taken;
            // Without time there is one repetition: enough to see that it works.
            wanted = if seconds > 0.0 { (left as usize).clamp(REPETITIONS[0], REPETITIONS[1]) } else { 1 };
        }
        step += 1;
    }
    let sizes = sessions[0].sizes(Which::Train, &batch)?;
    let (families, kernels) = points(sessions[0].graph(), &sizes, &runs)?;
    let between = sorted(between, UNDISTURBED);
    let met = (devices > 1).then(|| whole_steps(probe, sessions, kernels)).transpose()?;
    Ok(Measured { families, between, met })
}

/// Whole steps of all devices, which take longer than the kernels of one by what meetings cost.
fn whole_steps(probe: &Probe, sessions: Vec<Session>, kernels: f64) -> Result<[f64; 4], ProfileError> {
    let [batch, length] = probe.sizes;
    let (_, batch) = Probe { sizes: [batch * sessions.len(), length], ..*probe }.built()?;
    let mut session = Session::joined_by(sessions);
    let mut times = Vec::new();
    for step in 0..WARM_UP + REPETITIONS[0] as u64 {
        let (key, start) = (Key { seed: 0, step }, Instant::now());
        session.step(&batch, key, &key.number())?;
        times.push(start.elapsed().as_secs_f64());
    }
    let all = sorted(times.split_off(WARM_UP as usize), 0.5);
    let (graph, own) = (session.graph(), session.share(session.sizes(Which::Train, &batch)?)?);
    let meetings = graph.nodes.iter().filter(|node| node.op.def().meets()).count();
    let bytes = exchanged(graph, &own, 1).map_err(SessionError::from)?;
    Ok([all, all - kernels, meetings as f64, bytes as f64])
}

/// A step of every device at the same time; the times of the first.
fn step_of_all(sessions: &mut [Session], batch: &Batch, step: u64) -> Result<Times, SessionError> {
    let key = Key { seed: 0, step };
    let (first, others) = sessions.split_at_mut(1);
    thread::scope(|scope| {
        let run = |session: &mut Session| session.profile(batch, key, &key.number());
        let others: Vec<_> = others.iter_mut().map(|session| scope.spawn(move || run(session))).collect();
        let times = run(&mut first[0]);
        others.into_iter().filter_map(|other| other.join().ok()).try_for_each(|times| times.map(drop))?;
        times
    })
}

/// One point for each kind of node, the mean of its nodes in a step; and the seconds of all that meet nobody.
fn points(
    graph: &Graph,
    sizes: &Bindings,
    runs: &[Times],
) -> Result<(BTreeMap<String, Vec<Point>>, f64), ProfileError> {
    let kinds = Kinds::of(graph);
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); kinds.nodes.len()];
    for run in runs {
        let mut sums = vec![(0.0, 0u32); kinds.nodes.len()];
        for (did, time) in run {
            if let Did::Node(node) = did {
                let (sum, count) = &mut sums[kinds.kind_of[node.index()] as usize];
                *sum += time.as_secs_f64();
                *count += 1;
            }
        }
        for (times, (sum, count)) in times.iter_mut().zip(sums).filter(|(_, (_, count))| *count > 0) {
            times.push(sum / f64::from(count));
        }
    }
    let mut families: BTreeMap<String, Vec<Point>> = BTreeMap::new();
    let mut kernels = 0.0;
    for (id, times) in kinds.nodes.iter().zip(times).filter(|(_, times)| !times.is_empty()) {
        let work = Work::of(graph, &graph.nodes[id.index()]);
        let load = work.bind(sizes).map_err(SessionError::from)?;
        let [seconds, median] = [UNDISTURBED, 0.5].map(|share| sorted(times.clone(), share).max(1e-9));
        let spread = median / seconds - 1.0;
        let point = Point { load, seconds, spread };
        if !graph.nodes[id.index()].op.def().meets() {
            let kind = kinds.kind_of[id.index()];
            let alike = graph
                .nodes
                .iter()
                .zip(&kinds.kind_of)
                .filter(|(node, k)| **k == kind && !node.op.def().is_view());
            kernels += point.typical() * alike.count() as f64;
        }
        families.entry(work.family).or_default().push(point);
    }
    Ok((families, kernels))
}

/// The number (of some) that this share of them does not exceed.
pub(super) fn sorted(mut numbers: Vec<f64>, share: f64) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[((numbers.len() - 1) as f64 * share).round() as usize]
}
