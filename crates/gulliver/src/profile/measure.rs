//! Runs a probe repeatedly and times each of its kernels: on one device instruction by instruction, on several devices in
//! whole steps with collectives and waits as in training.

use super::ProfileError;
use super::probes::Probe;
use crate::local::{LocalDevice, device_set, session, together as started};
use gulliver_graph::dim::{Bindings, DimError};
use gulliver_graph::graph::Graph;
use gulliver_graph::work::{Load, Work};
use gulliver_plan::devices::cut::{CutDevice, CutMachine, CutRule, rule_cut};
use gulliver_plan::devices::error::JobPlanError;
use gulliver_plan::devices::planner::Planner;
use gulliver_plan::devices::predict::{Priced, fed, predict, unevenness};
use gulliver_plan::devices::strategy::{divided, replicated};
use gulliver_plan::document::collectives::collective_of;
use gulliver_plan::document::collectives::inline_collectives;
use gulliver_plan::document::job::Purpose;
use gulliver_plan::document::links::Links;
use gulliver_plan::document::plan::{Act, Plan, PlanStream};
use gulliver_plan::document::timeline::StepSpan;
use gulliver_plan::document::topology::{BoxWiring, DeviceSpec, Topology};
use gulliver_plan::time::cost::{CurvePoint, Curves};
use gulliver_plan::time::simulate::{JointTiming, Unevenness, crowds};
use gulliver_run::data::Batch;
use gulliver_run::peers::link::Throttle;
use gulliver_run::profile::trimmed_mean;
use gulliver_run::session::{Session, SessionError, StepKey, TimedWork};
use gulliver_run::team::side_by_side;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// Seconds of warm-up at the beginning of a turn, for devices with one thread and with several: caches are cold, and the
/// system has not yet placed woken threads on separate cores.
const SETTLES: [f64; 2] = [0.03, 0.1];
/// Bytes per second of links that are never a bottleneck.
const FAST: f64 = 1e12;
/// Most repetitions of a step in one turn.
const REPETITIONS: usize = 100;

/// Quantile of repetitions that is taken as undisturbed by other processes.
pub(super) const UNDISTURBED: f64 = 0.1;

/// The result of a probe.
pub struct ProbeResult {
    /// Points by kernel family.
    pub families: BTreeMap<String, Vec<CurvePoint>>,
    /// For every round: the kernel seconds of its repetitions, and the trimmed mean times their number.
    pub rounds: Vec<[f64; 2]>,
    /// Seconds between two instructions.
    pub between: f64,
    /// For every inline collective: the bytes each device receives, and the seconds from the last arrival to the end.
    pub met: Vec<[f64; 2]>,
    /// The same for collectives that run beside kernels.
    pub beside: Vec<[f64; 2]>,
    /// For steps of several devices: the bytes fed to them, and the seconds of a step outside the plans.
    pub around: Option<[f64; 2]>,
    /// Whole steps of several devices.
    pub stepped: Option<JointSteps>,
}

/// Whole steps of several devices.
#[derive(Clone)]
pub struct JointSteps {
    /// The planner of each device.
    planners: Vec<Planner>,
    plans: Vec<Plan>,
    /// Sizes of the batch of one device.
    sizes: Bindings,
    /// Share of the time in which devices computed nothing: mean over devices, trimmed mean over rounds.
    pub waits: f64,
}

impl JointSteps {
    /// The predicted share of the time in which devices compute nothing, for each of several values of unevenness.
    pub fn predicted(&mut self, curves: &Arc<Curves>, unevens: &[f64]) -> Result<Vec<f64>, JobPlanError> {
        let JointSteps { planners, plans, sizes, .. } = self;
        planners.iter_mut().for_each(|planner| planner.set_curves(Some(Arc::clone(curves))));
        let priced = Priced::new(planners, sizes, plans)?;
        let waits = |uneven: &f64| {
            let uneven = Unevenness { share: *uneven, ..unevenness(curves) };
            let JointTiming { seconds, devices, .. } = priced.steps(uneven)?;
            let busy: f64 = devices.iter().map(|timing| timing.busy[PlanStream::Compute as usize]).sum();
            Ok(1.0 - busy / devices.len() as f64 / seconds)
        };
        unevens.iter().map(waits).collect()
    }
}

impl ProbeResult {
    /// The mean spread of its points, weighted by their seconds.
    pub fn spread(&self) -> f64 {
        let points = || self.families.values().flatten();
        let all: f64 = points().map(|point| point.seconds).sum();
        points().map(|point| point.seconds * point.spread).sum::<f64>() / all.max(1e-12)
    }
}

/// A probe on one layout of devices, and the times of its repetitions.
pub struct ProbeBench {
    session: Session,
    /// The batch of all devices together.
    batch: Batch,
    step: u64,
    /// Seconds of warm-up of a turn.
    settles: f64,
    kernels: Vec<Kernel>,
    /// For each device and node of its graph, the index of its kernel.
    kernel_of: Vec<Vec<Option<usize>>>,
    /// For each repetition, the seconds of all kernels of a device.
    all: Vec<f64>,
    /// For each repetition on one device, the seconds between two instructions.
    between: Vec<f64>,
    /// Number of repetitions before each round.
    rounds: Vec<usize>,
    /// For several devices.
    together: Option<Joint>,
}

/// Nodes of one family and load.
struct Kernel {
    family: String,
    load: Load,
    /// Number per repetition and device, as a mean over devices.
    count: f64,
    /// Mean seconds of one in each repetition.
    times: Vec<f64>,
}

/// Weight of a kernel that runs while the other devices are idle; one that runs while they are busy has weight 1.
const AT_REST: f64 = 0.05;

/// Measurements of whole steps of several devices.
struct Joint {
    stepped: JointSteps,
    /// The collective at each device and step of its plan.
    at_step: HashMap<(u32, u32), usize>,
    /// For each collective: the bytes a device receives, whether it runs inline, and in every repetition the seconds from
    /// the last arrival to the end.
    met: Vec<(f64, bool, Vec<f64>)>,
    /// For every repetition, the share of its time in which devices computed nothing.
    waits: Vec<f64>,
    /// For every repetition, the seconds outside the plans.
    around: Vec<f64>,
}

impl Joint {
    fn new(mut planners: Vec<Planner>, sizes: &Bindings) -> Result<Joint, JobPlanError> {
        let plans = predict(&side_by_side, &mut planners, sizes)?.plans;
        let (mut at_step, mut met) = (HashMap::new(), Vec::new());
        let mut numbers: HashMap<u32, usize> = HashMap::new();
        for (device, (planner, plan)) in (0..).zip(planners.iter().zip(&plans)) {
            let (graph, here) = (planner.graph(Purpose::Train), inline_collectives(plan));
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
        let stepped = JointSteps { planners, plans, sizes: sizes.clone(), waits: 0.0 };
        Ok(Joint { stepped, at_step, met, waits: Vec::new(), around: Vec::new() })
    }

    /// Records a step that took `seconds`.
    fn note(&mut self, spans: &[StepSpan], seconds: f64) {
        let computed = spans.iter().filter(|span| span.stream == PlanStream::Compute);
        let busy: f64 = computed.map(|span| span.end - span.start).sum();
        let all = spans.iter().map(|span| span.end).fold(0.0, f64::max);
        self.around.push((seconds - all).max(0.0));
        self.waits.push(1.0 - busy / self.stepped.planners.len() as f64 / all.max(1e-9));
        // For each collective, the last arrival and the end.
        let mut times: HashMap<usize, [f64; 2]> = HashMap::new();
        for span in spans.iter().filter(|span| span.stream == PlanStream::Exchange) {
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

impl ProbeBench {
    /// Builds a probe for a layout: threads per device, and devices.
    pub fn new(probe: &Probe, [threads, devices]: [usize; 2]) -> Result<ProbeBench, ProfileError> {
        let (graph, batch) = probe.built()?;
        let wiring = BoxWiring { peer: Some(FAST), ..BoxWiring::default() };
        let links = || Topology::wired(vec![DeviceSpec::default(); devices], &wiring).map(Throttle::new);
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
                (started(rule.name(), planners.clone(), &devices, 0)?, Some(planners), batch)
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
        Ok(ProbeBench { session, batch, step, settles, kernels, kernel_of, all, between, rounds, together })
    }

    /// Discards all measurements.
    pub fn forget(&mut self) {
        self.between.clear();
        self.all.clear();
        self.rounds = vec![0];
        self.kernels.iter_mut().for_each(|kernel| kernel.times.clear());
        self.together.iter_mut().for_each(Joint::forget);
    }

    /// Begins another round.
    pub fn next_round(&mut self) {
        self.rounds.push(self.all.len());
    }

    /// Runs one step, and records its times if it `counts`.
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
                for StepSpan { device, step, start, end, .. } in spans {
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

    /// The repetitions of each round.
    fn rounds(&self) -> impl Iterator<Item = Range<usize>> {
        let ends = self.rounds.iter().skip(1).copied().chain([self.all.len()]);
        self.rounds.iter().zip(ends).map(|(&from, to)| from..to)
    }

    /// The result of all repetitions.
    pub fn measured(&self) -> Result<ProbeResult, ProfileError> {
        let mut families: BTreeMap<String, Vec<CurvePoint>> = BTreeMap::new();
        // Outliers of different kernels occur in different repetitions, so trimming each kernel drops more than trimming
        // whole steps; `more` corrects for that.
        let usually = |kernel: &Kernel| Some(kernel.count * trimmed_mean(&kernel.times)?);
        let sum: f64 = self.kernels.iter().filter_map(usually).sum();
        let more = trimmed_mean(&self.all).filter(|_| sum > 0.0).map_or(1.0, |all| (all / sum).max(1.0));
        for Kernel { family, load, times, .. } in &self.kernels {
            let Some((seconds, usual)) = quantile(times, UNDISTURBED).zip(trimmed_mean(times)) else {
                continue;
            };
            let seconds = seconds.max(1e-9);
            let spread = (more * usual / seconds - 1.0).max(0.0);
            families.entry(family.clone()).or_default().push(CurvePoint { load: *load, seconds, spread });
        }
        let each = trimmed_mean(&self.all).unwrap_or(0.0);
        let rounds =
            self.rounds().map(|round| [self.all[round.clone()].iter().sum(), each * round.len() as f64]);
        let rounds = rounds.collect();
        let between = quantile(&self.between, UNDISTURBED).unwrap_or(0.0);
        let met = |waits: bool| {
            let all = self.together.iter().flat_map(|together| &together.met);
            let these = all.filter(|(_, here, _)| *here == waits);
            these.filter_map(|(bytes, _, times)| Some([*bytes, trimmed_mean(times)?.max(1e-9)])).collect()
        };
        // Over links, devices mainly wait for the threads of the links.
        let free = |together: &&Joint| together.stepped.planners[0].options().topology.is_none();
        let stepped = self.together.as_ref().filter(free).and_then(|together| {
            // Means of whole rounds: a delay of ten milliseconds occurs in few short steps but in most long ones.
            let all = self.rounds().filter(|round| !round.is_empty()).map(|round| {
                let steps = round.len() as f64;
                together.waits[round].iter().sum::<f64>() / steps
            });
            let waits = trimmed_mean(&all.collect::<Vec<_>>())?;
            Some(JointSteps { waits, ..together.stepped.clone() })
        });
        let around = self.together.as_ref().and_then(|together| {
            Some([
                together.stepped.plans.iter().map(fed).sum::<u64>() as f64,
                trimmed_mean(&together.around)?,
            ])
        });
        Ok(ProbeResult { families, rounds, between, met: met(true), beside: met(false), around, stepped })
    }
}

/// Most probes that are interleaved step by step.
const INTERLEAVED: usize = 4;

/// Number of probes to [interleave](run_interleaved). Probes with several threads run alone: threads that were just woken,
/// on a core that another thread may occupy, are slower for a while.
pub fn interleaved_probes(threads: usize) -> usize {
    if threads > 1 { 1 } else { INTERLEAVED }
}

/// Runs steps of several probes in turn, after a warm-up, until each has taken about `seconds` and at least `least` steps.
/// If `seconds` is 0, runs one step of each after one of warm-up. Every step finds the caches filled by other probes, as
/// each layer of a large network does.
pub fn run_interleaved(
    benches: &mut [&mut ProbeBench],
    seconds: f64,
    least: usize,
) -> Result<(), ProfileError> {
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

/// Sums over the kernels of one family and load in one repetition.
#[derive(Clone, Copy, Default)]
struct Sum {
    count: u32,
    /// Weighted seconds.
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

/// The kernel of each node of a graph; `None` for views. Adds new kernels to `kernels`.
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

/// Planners of devices that divide every node by a rule.
fn cut_by(
    rule: CutRule,
    graph: &Graph,
    devices: &[LocalDevice],
    sizes: &Bindings,
) -> Result<Vec<Planner>, JobPlanError> {
    let unit = |options: &LocalDevice| CutDevice { rates: options.rates, ..CutDevice::default() };
    let bandwidth = Links::default().from_peers;
    let machine = CutMachine { devices: devices.iter().map(unit).collect(), bandwidth, topology: None };
    let cut = rule_cut(graph, sizes, &machine, &[rule])?;
    divided(graph, None, &device_set(devices), sizes, cut)
}

/// The quantile of some numbers at `share`; `None` if there are no numbers.
pub(super) fn quantile(numbers: &[f64], share: f64) -> Option<f64> {
    let mut numbers = numbers.to_vec();
    numbers.sort_by(f64::total_cmp);
    numbers.get((numbers.len().saturating_sub(1) as f64 * share).round() as usize).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_outlier_is_dropped_however_few_numbers_there_are() {
        for many in [2, 3, 8, 9, 16] {
            let mut numbers = vec![2.0; many - 1];
            numbers.insert(many / 2, 50.0);
            assert_eq!(trimmed_mean(&numbers), Some(2.0), "{many}");
        }
        assert_eq!(trimmed_mean(&[]), None);
        assert_eq!(trimmed_mean(&[7.0]), Some(7.0));
        // Two values, each half of the time, give a mean between them.
        let numbers: Vec<f64> = (0..20).map(|i| f64::from(1 + i % 2)).collect();
        assert_eq!(trimmed_mean(&numbers), Some((10.0 + 8.0 * 2.0) / 18.0));
    }
}
