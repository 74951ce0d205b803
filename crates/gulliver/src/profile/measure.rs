//! One network run again and again while each of its kernels is timed: on one device an instruction at a time, on
//! several in whole steps, in which devices meet and wait for each other as in training.

use super::ProfileError;
use super::probes::Probe;
use crate::local::{LocalDevice, device_set, session, together as started};
use gulliver_graph::dim::{Bindings, DimError};
use gulliver_graph::graph::Graph;
use gulliver_graph::work::{Load, Work};
use gulliver_plan::devices::cut::{CutDevice, CutMachine, named_cut};
use gulliver_plan::devices::error::JobPlanError;
use gulliver_plan::devices::planner::Planner;
use gulliver_plan::devices::predict::{Priced, fed, predict, unevenness};
use gulliver_plan::devices::strategy::{divided, replicated};
use gulliver_plan::document::collectives::collective_of;
use gulliver_plan::document::collectives::held_here;
use gulliver_plan::document::job::Purpose;
use gulliver_plan::document::links::Links;
use gulliver_plan::document::plan::{Act, Plan, Stream};
use gulliver_plan::document::timeline::Span;
use gulliver_plan::document::topology::{Device, Topology, Wiring};
use gulliver_plan::time::cost::{Curves, Point};
use gulliver_plan::time::simulate::{Together, Uneven, crowds};
use gulliver_run::data::Batch;
use gulliver_run::peers::link::Throttle;
use gulliver_run::profile::trimmed_mean;
use gulliver_run::session::{Session, SessionError, StepKey, TimedWork};
use gulliver_run::team::side_by_side;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// Seconds at the beginning of a turn that do not count, of devices with one thread and with several: steps find the caches
/// of others, and the system has not yet put threads that were asleep on cores of their own. Networks of two threads and
/// ten milliseconds were up to 70 % slower in turns of 50 milliseconds than in those of 400.
const SETTLES: [f64; 2] = [0.03, 0.1];
/// Bytes a second of links that hold nothing up.
const FAST: f64 = 1e12;
/// Most repetitions of a step in one turn.
const REPETITIONS: usize = 100;

/// The share of repetitions that are taken for undisturbed: others use the machine too.
pub(super) const UNDISTURBED: f64 = 0.1;

/// What running a probe gave.
pub struct Measured {
    /// Points by family.
    pub families: BTreeMap<String, Vec<Point>>,
    /// Of every round, the seconds of all kernels of its repetitions, and those they take as a rule.
    pub rounds: Vec<[f64; 2]>,
    /// Seconds that passed between two instructions.
    pub between: f64,
    /// Of every collective that several devices only wait for, the bytes it brings each of them, and its seconds once all
    /// had come.
    pub met: Vec<[f64; 2]>,
    /// The same of those that are held beside kernels.
    pub beside: Vec<[f64; 2]>,
    /// Of steps of several devices, the bytes fed to them and the seconds around what their plans do.
    pub around: Option<[f64; 2]>,
    /// Whole steps of several devices, if there are any.
    pub stepped: Option<Stepped>,
}

/// Whole steps of several devices.
#[derive(Clone)]
pub struct Stepped {
    /// What each device does.
    planners: Vec<Planner>,
    plans: Vec<Plan>,
    /// Of what one device gets.
    sizes: Bindings,
    /// The share of their time in which devices computed nothing, on average over devices, in rounds as a rule.
    pub waits: f64,
}

impl Stepped {
    /// The share of their time in which devices are predicted to compute nothing, for each of several guesses of how
    /// uneven they are.
    pub fn predicted(&mut self, curves: &Arc<Curves>, unevens: &[f64]) -> Result<Vec<f64>, JobPlanError> {
        let Stepped { planners, plans, sizes, .. } = self;
        planners.iter_mut().for_each(|planner| planner.set_curves(Some(Arc::clone(curves))));
        let priced = Priced::new(planners, sizes, plans)?;
        let waits = |uneven: &f64| {
            let uneven = Uneven { share: *uneven, ..unevenness(curves) };
            let Together { seconds, devices, .. } = priced.steps(uneven)?;
            let busy: f64 = devices.iter().map(|timing| timing.busy[Stream::Compute as usize]).sum();
            Ok(1.0 - busy / devices.len() as f64 / seconds)
        };
        unevens.iter().map(waits).collect()
    }
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
    /// What all devices get together.
    batch: Batch,
    step: u64,
    /// Seconds of a turn that do not count.
    settles: f64,
    kernels: Vec<Kernel>,
    /// By device and node of its graph, the place among kernels.
    kernel_of: Vec<Vec<Option<usize>>>,
    /// Of each repetition, the seconds of all kernels of a device, and on one device those that passed between two
    /// instructions.
    all: Vec<f64>,
    between: Vec<f64>,
    /// How many repetitions there were before every round.
    rounds: Vec<usize>,
    /// Of several devices.
    together: Option<Joint>,
}

/// Nodes of one family with as much to do.
struct Kernel {
    family: String,
    load: Load,
    /// How many a device runs in a repetition, on average over devices, and what one took in each.
    count: f64,
    times: Vec<f64>,
}

/// How much a kernel counts that runs while the other devices are at rest, where it is asked how long it takes while they
/// are at work.
const AT_REST: f64 = 0.05;

/// What is seen of whole steps of several devices.
struct Joint {
    stepped: Stepped,
    /// By device and step of its plan that is a collective, which.
    at_step: HashMap<(u32, u32), usize>,
    /// By collective: bytes it brings to a device, whether devices only wait for it, and its seconds in every repetition
    /// once all had come.
    met: Vec<(f64, bool, Vec<f64>)>,
    /// Of every repetition, the share of its time in which devices computed nothing, and the seconds around it.
    waits: Vec<f64>,
    around: Vec<f64>,
}

impl Joint {
    fn new(mut planners: Vec<Planner>, sizes: &Bindings) -> Result<Joint, JobPlanError> {
        let plans = predict(&side_by_side, &mut planners, sizes)?.plans;
        let (mut at_step, mut met) = (HashMap::new(), Vec::new());
        let mut numbers: HashMap<u32, usize> = HashMap::new();
        for (device, (planner, plan)) in (0..).zip(planners.iter().zip(&plans)) {
            let (graph, here) = (planner.graph(Purpose::Train), held_here(plan));
            for (step, act) in (0..).zip(plan.steps.iter().map(|step| &step.act)) {
                let Act::Exchange { node, .. } = act else { continue };
                let Some(what) = collective_of(&graph.nodes[node.index()], sizes) else { continue };
                let at = *numbers.entry(what.collective).or_insert(met.len());
                if at == met.len() {
                    met.push((what.bytes() as f64, true, Vec::new()));
                }
                met[at].1 &= here[step as usize];
                at_step.insert((device, step), at);
            }
        }
        let stepped = Stepped { planners, plans, sizes: sizes.clone(), waits: 0.0 };
        Ok(Joint { stepped, at_step, met, waits: Vec::new(), around: Vec::new() })
    }

    /// Notes what was seen of a step that took so long.
    fn note(&mut self, spans: &[Span], seconds: f64) {
        let computed = spans.iter().filter(|span| span.stream == Stream::Compute);
        let busy: f64 = computed.map(|span| span.end - span.start).sum();
        let all = spans.iter().map(|span| span.end).fold(0.0, f64::max);
        self.around.push((seconds - all).max(0.0));
        self.waits.push(1.0 - busy / self.stepped.planners.len() as f64 / all.max(1e-9));
        // By collective, when the last came and when it was over.
        let mut times: HashMap<usize, [f64; 2]> = HashMap::new();
        for span in spans.iter().filter(|span| span.stream == Stream::Exchange) {
            let Some(collective) = self.at_step.get(&(span.device, span.step)) else { continue };
            let [came, over] = times.entry(*collective).or_insert([0.0; 2]);
            (*came, *over) = (came.max(span.start), over.max(span.end));
        }
        times.into_iter().for_each(|(collective, [came, over])| self.met[collective].2.push(over - came));
    }

    fn forget(&mut self) {
        self.waits.clear();
        self.around.clear();
        self.met.iter_mut().for_each(|(.., times)| times.clear());
    }
}

impl Bench {
    /// A probe that has not been run yet.
    pub fn new(probe: &Probe, [threads, devices]: [usize; 2]) -> Result<Bench, ProfileError> {
        let (graph, batch) = probe.built()?;
        let wiring = Wiring { peer: Some(FAST), ..Wiring::default() };
        let links = || Topology::wired(vec![Device::default(); devices], &wiring).map(Throttle::new);
        let links = if probe.wired && devices > 1 { Some(Arc::new(links()?)) } else { None };
        let throttle = links.as_ref();
        let options = |partials| LocalDevice {
            threads,
            partials,
            throttle: throttle.cloned(),
            ..LocalDevice::default()
        };
        let [samples, length] = probe.sizes;
        let (mut session, planners, batch) = match (devices, probe.cut) {
            (1, _) => (session(graph, None, &options(1), 0)?, None, batch),
            (_, Some(rule)) => {
                let devices = vec![options(1); devices];
                let planners = cut_by(rule, &graph, &devices, &probe.bindings())?;
                (started(rule, planners.clone(), &devices, 0)?, Some(planners), batch)
            }
            (_, None) => {
                let all = vec![options(devices as u32); devices];
                let planners = replicated(&graph, None, &device_set(&all))?;
                let (_, whole) = Probe { sizes: [samples * devices, length], ..*probe }.built()?;
                (started("data", planners.clone(), &all, 0)?, Some(planners), whole)
            }
        };
        let sizes = session.share(session.sizes(Purpose::Train, &batch)?)?;
        let together = planners.map(|planners| Joint::new(planners, &sizes)).transpose()?;
        if together.is_some() {
            session.record();
        }
        let (mut kernels, mut kernel_of) = (Vec::new(), Vec::new());
        for device in session.ranks() {
            kernel_of.push(place(&mut kernels, device.graph(), &sizes).map_err(SessionError::from)?);
        }
        let (all, between, rounds) = (Vec::new(), Vec::new(), vec![0]);
        let (step, settles) = (0, SETTLES[usize::from(threads > 1)]);
        Ok(Bench { session, batch, step, settles, kernels, kernel_of, all, between, rounds, together })
    }

    /// Forgets what repetitions have taken so far.
    pub fn forget(&mut self) {
        self.between.clear();
        self.all.clear();
        self.rounds = vec![0];
        self.kernels.iter_mut().for_each(|kernel| kernel.times.clear());
        self.together.iter_mut().for_each(Joint::forget);
    }

    /// What follows is another round.
    pub fn next_round(&mut self) {
        self.rounds.push(self.all.len());
    }

    /// A step, of which it is noted what took how long if it counts.
    fn repeat(&mut self, counts: bool) -> Result<(), ProfileError> {
        self.step += 1;
        let (key, start) = (StepKey { seed: 0, step: self.step }, Instant::now());
        let mut sums = vec![Sum::default(); self.kernels.len()];
        match &mut self.together {
            None => {
                let run = self.session.profile(&self.batch, key, &key.number())?;
                let taken = start.elapsed().as_secs_f64();
                let inside: f64 = run.iter().map(|(_, time)| time.as_secs_f64()).sum();
                if counts {
                    self.between.push((taken - inside) / run.len().max(1) as f64);
                }
                for (did, time) in run {
                    if let TimedWork::Node(node) = did
                        && let Some(kernel) = self.kernel_of[0][node.index()]
                    {
                        sums[kernel].add(time.as_secs_f64(), 1.0);
                    }
                }
            }
            Some(together) => {
                self.session.step(&self.batch, key, &key.number())?;
                let (spans, taken) = (self.session.recorded(), start.elapsed().as_secs_f64());
                if counts {
                    together.note(&spans, taken);
                }
                let plans = &together.stepped.plans;
                let crowds = crowds(&plans.iter().map(|plan| plan.steps.len()).collect::<Vec<_>>(), &spans);
                for Span { device, step, start, end, .. } in spans {
                    let [device, step] = [device as usize, step as usize];
                    if let Act::Run { node, .. } = plans[device].steps[step].act
                        && let Some(kernel) = self.kernel_of[device][node.index()]
                    {
                        let crowd = f64::from(crowds[device][step]);
                        sums[kernel].add(end - start, AT_REST + (1.0 - AT_REST) * crowd);
                    }
                }
            }
        }
        if counts {
            let devices = self.kernel_of.len() as f64;
            let mut all = 0.0;
            for (kernel, sum) in self.kernels.iter_mut().zip(sums).filter(|(_, sum)| sum.count > 0) {
                kernel.count = f64::from(sum.count) / devices;
                kernel.times.push(sum.seconds / sum.weight);
                all += kernel.count * sum.seconds / sum.weight;
            }
            self.all.push(all);
        }
        Ok(())
    }

    /// Which repetitions there were in each round.
    fn rounds(&self) -> impl Iterator<Item = Range<usize>> {
        let ends = self.rounds.iter().skip(1).copied().chain([self.all.len()]);
        self.rounds.iter().zip(ends).map(|(&from, to)| from..to)
    }

    /// What all repetitions come to.
    pub fn measured(&self) -> Result<Measured, ProfileError> {
        let mut families: BTreeMap<String, Vec<Point>> = BTreeMap::new();
        // Exceptions of one kernel are in other repetitions than those of another: what is left out of each would be more
        // than what is left out of steps.
        let usually = |kernel: &Kernel| Some(kernel.count * trimmed_mean(&kernel.times)?);
        let sum: f64 = self.kernels.iter().filter_map(usually).sum();
        let more = trimmed_mean(&self.all).filter(|_| sum > 0.0).map_or(1.0, |all| (all / sum).max(1.0));
        for Kernel { family, load, times, .. } in &self.kernels {
            let Some((seconds, usual)) = sorted(times, UNDISTURBED).zip(trimmed_mean(times)) else {
                continue;
            };
            let seconds = seconds.max(1e-9);
            let spread = (more * usual / seconds - 1.0).max(0.0);
            families.entry(family.clone()).or_default().push(Point { load: *load, seconds, spread });
        }
        let each = trimmed_mean(&self.all).unwrap_or(0.0);
        let rounds =
            self.rounds().map(|round| [self.all[round.clone()].iter().sum(), each * round.len() as f64]);
        let rounds = rounds.collect();
        let between = sorted(&self.between, UNDISTURBED).unwrap_or(0.0);
        let met = |waits: bool| {
            let all = self.together.iter().flat_map(|together| &together.met);
            let these = all.filter(|(_, here, _)| *here == waits);
            these.filter_map(|(bytes, _, times)| Some([*bytes, trimmed_mean(times)?.max(1e-9)])).collect()
        };
        // Over links it is above all threads that devices wait for.
        let free = |together: &&Joint| together.stepped.planners[0].options().topology.is_none();
        let stepped = self.together.as_ref().filter(free).and_then(|together| {
            // One who is late for ten milliseconds is so in few short steps and in nearly every long one.
            let all = self.rounds().filter(|round| !round.is_empty()).map(|round| {
                let steps = round.len() as f64;
                together.waits[round].iter().sum::<f64>() / steps
            });
            let waits = trimmed_mean(&all.collect::<Vec<_>>())?;
            Some(Stepped { waits, ..together.stepped.clone() })
        });
        let around = self.together.as_ref().and_then(|together| {
            Some([
                together.stepped.plans.iter().map(fed).sum::<u64>() as f64,
                trimmed_mean(&together.around)?,
            ])
        });
        Ok(Measured { families, rounds, between, met: met(true), beside: met(false), around, stepped })
    }
}

/// Probes that take turns with each other step by step.
const IN_TURNS: usize = 4;

/// How many probes of so many threads [take turns](take_turns) step by step: threads of a team that begin when they are
/// woken up, on a core that another may have, are slower for a while, so that networks of several threads have turns to
/// themselves.
pub fn in_turns(threads: usize) -> usize {
    if threads > 1 { 1 } else { IN_TURNS }
}

/// Steps of several probes in turns, until those of each have taken about so many seconds and there were so many at
/// least, after some that do not count; without seconds, one of each after one that does not: enough to see that it works.
/// Every step finds the caches full of what others have left, as each layer of a large network does.
pub fn take_turns(benches: &mut [&mut Bench], seconds: f64, least: usize) -> Result<(), ProfileError> {
    let settles = benches.iter().map(|bench| bench.settles).fold(0.0, f64::max);
    let begin = Instant::now();
    loop {
        benches.iter_mut().try_for_each(|bench| bench.repeat(false))?;
        if seconds <= 0.0 || begin.elapsed().as_secs_f64() >= settles {
            break;
        }
    }
    let mut taken = vec![0.0; benches.len()];
    for done in 0..if seconds > 0.0 { REPETITIONS } else { 1 } {
        let mut more = false;
        for (bench, taken) in benches.iter_mut().zip(&mut taken) {
            if done < least || *taken < seconds {
                let start = Instant::now();
                bench.repeat(true)?;
                *taken += start.elapsed().as_secs_f64();
                more = true;
            }
        }
        if !more {
            break;
        }
    }
    Ok(())
}

/// What kernels of one family and load came to in one repetition.
#[derive(Clone, Copy, Default)]
struct Sum {
    count: u32,
    /// Each times how much it counts.
    seconds: f64,
    weight: f64,
}

impl Sum {
    fn add(&mut self, seconds: f64, weight: f64) {
        self.count += 1;
        self.seconds += weight * seconds;
        self.weight += weight;
    }
}

/// Which of the kernels each node of a graph runs, those added that were not among them yet; views run none.
fn place(kernels: &mut Vec<Kernel>, graph: &Graph, sizes: &Bindings) -> Result<Vec<Option<usize>>, DimError> {
    let mut places = Vec::new();
    for node in &graph.nodes {
        if node.op.def().is_view() {
            places.push(None);
            continue;
        }
        let work = Work::of(graph, node);
        let load = work.bind(sizes)?;
        let known = kernels.iter().position(|kernel| kernel.family == work.family && kernel.load == load);
        places.push(Some(known.unwrap_or(kernels.len())));
        if known.is_none() {
            kernels.push(Kernel { family: work.family, load, count: 0.0, times: Vec::new() });
        }
    }
    Ok(places)
}

/// Planners of devices that share every node, as a rule says.
fn cut_by(
    rule: &str,
    graph: &Graph,
    devices: &[LocalDevice],
    sizes: &Bindings,
) -> Result<Vec<Planner>, JobPlanError> {
    let unit = |options: &LocalDevice| CutDevice { rates: options.rates, ..CutDevice::default() };
    let bandwidth = Links::default().from_peers;
    let machine = CutMachine { devices: devices.iter().map(unit).collect(), bandwidth, topology: None };
    let cut = named_cut(graph, sizes, &machine, rule)?;
    divided(graph, None, &device_set(devices), sizes, cut)
}

/// The number (of some) that this share of them does not exceed; none if there are none.
pub(super) fn sorted(numbers: &[f64], share: f64) -> Option<f64> {
    let mut numbers = numbers.to_vec();
    numbers.sort_by(f64::total_cmp);
    numbers.get((numbers.len().saturating_sub(1) as f64 * share).round() as usize).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_exception_is_no_rule_however_few_numbers_there_are() {
        for many in [2, 3, 8, 9, 16] {
            let mut numbers = vec![2.0; many - 1];
            numbers.insert(many / 2, 50.0);
            assert_eq!(trimmed_mean(&numbers), Some(2.0), "{many}");
        }
        assert_eq!(trimmed_mean(&[]), None);
        assert_eq!(trimmed_mean(&[7.0]), Some(7.0));
        // Two speeds, each half of the time, are neither of them.
        let numbers: Vec<f64> = (0..20).map(|i| f64::from(1 + i % 2)).collect();
        assert_eq!(trimmed_mean(&numbers), Some((10.0 + 8.0 * 2.0) / 18.0));
    }
}
