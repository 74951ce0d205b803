//! The plans of one device of a job: where its weights and states reside, decided once for the largest input, and a
//! plan for every input size.

mod need;
mod partitions;
mod side;

use crate::budget::bound::STATE;
use crate::budget::planner::StepPlanner;
use crate::budget::residences::all_away;
use crate::devices::collectives::take_turns;
use crate::devices::options::{DeviceOptions, PlanWatch};
use crate::document::collectives::exchanged;
use crate::document::error::{Holders, PlanError};
use crate::document::job::{DevicePlan, PlanSource, Purpose, SizedPlan};
use crate::document::ledger::Ledger;
use crate::document::plan::{Act, Plan, Tier};
use crate::document::residence::Persistent;
use crate::document::shard::Shard;
use crate::step::base::Base;
use crate::step::options::PlanOptions;
use crate::step::order::{OrderRule, PartialTurn};
use crate::step::outline::slice_of;
use crate::time::cost::{Curves, Rates, TierLimits};
use crate::time::simulate::{Timing, simulate};
use gulliver_graph::dim::{BATCH, Bindings};
use gulliver_graph::graph::{Graph, Node, NodeId};
pub(crate) use partitions::Partitions;
use side::Side;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Assumed shares of the time of moves that kernels do not hide. Each is tried on the largest input, and the one with
/// the shortest step is kept.
const UNHIDDEN: [f64; 3] = [0.1, 0.4, 1.0];

/// One graph of one device.
pub(crate) struct DeviceGraph {
    /// The device's own graph.
    pub(crate) graph: Graph,
    /// The turns of its nodes, if a schedule has them.
    pub(crate) turns: Option<Vec<PartialTurn>>,
    /// The job's graph, undivided.
    pub(crate) whole: Arc<Graph>,
}

/// Seconds of a device by node.
pub(crate) struct NodePrices {
    /// While all devices compute. For a collective, the seconds of its bytes in memory, whatever links they pass.
    pub(crate) crowded: Vec<f64>,
    /// While the other devices are idle, if that is known.
    pub(crate) alone: Option<Vec<f64>>,
    /// Of collectives beside kernels: seconds that kernels lose, and seconds that they take.
    pub(crate) met: Vec<[f64; 2]>,
}

/// Plans one device of a job.
#[derive(Clone)]
pub struct Planner {
    train: Side,
    evaluate: Option<Side>,
    options: DeviceOptions,
    persistent: Persistent,
    /// The shards of weights and states that reside here, by name; those not listed are whole.
    shards: HashMap<String, Shard>,
    unhidden: f64,
    grouped: bool,
    /// Plans that were not handed out yet.
    ready: Vec<(Purpose, Bindings, SizedPlan)>,
    /// Seconds of each kind of node by rates, for the inputs measured last.
    expected: Option<(Purpose, Bindings, Vec<f64>)>,
}

impl Planner {
    /// Decides where weights and states reside. With a budget and a largest input, they leave the device if they must,
    /// both graphs are proven to fit (evaluation takes as many examples at once as a partial of training), and plans for
    /// smaller inputs are prepared.
    pub fn new(train: Graph, evaluate: Option<Graph>, options: DeviceOptions) -> Result<Planner, PlanError> {
        Planner::unsettled(train, evaluate, options)?.settled()
    }

    /// A planner for [bounds](Planner::bound) and [estimates](Planner::try_out) only; weights and states are on the
    /// device.
    pub fn unsettled(
        train: Graph,
        evaluate: Option<Graph>,
        options: DeviceOptions,
    ) -> Result<Planner, PlanError> {
        let persistent = first_residences(&train, &options)?;
        Ok(Planner::with_residences(train, evaluate, options, persistent))
    }

    /// Replaces the watcher of planning.
    pub fn set_watch(&mut self, watch: Option<Arc<dyn PlanWatch>>) {
        self.options.watch = watch;
    }

    /// A planner of one of several devices, which holds these shards of some weights and states.
    pub(crate) fn of_graphs(
        train: DeviceGraph,
        evaluate: Option<DeviceGraph>,
        shards: HashMap<String, Shard>,
        options: DeviceOptions,
    ) -> Result<Planner, PlanError> {
        let persistent = first_residences(&train.graph, &options)?;
        let (graph, whole) = evaluate.map(|part| (part.graph, part.whole)).unzip();
        let mut planner = Planner::with_residences(train.graph, graph, options, persistent);
        (planner.train.turns, planner.train.whole) = (train.turns, Some(train.whole));
        planner.shards = shards;
        if let Some(side) = &mut planner.evaluate {
            side.whole = whole;
        }
        planner.settled()
    }

    /// The same for one of several devices that share nodes, first for inputs of these sizes (of one partial, and of one
    /// evaluation).
    pub(crate) fn of_cut(
        train: (Arc<Partitions>, Bindings),
        evaluate: Option<(Arc<Partitions>, Bindings)>,
        device: usize,
        options: DeviceOptions,
    ) -> Result<Planner, PlanError> {
        let shards = train.0.share(device, &train.1)?.residences();
        let side = |(deals, sizes), partials| Side::of_cut(deals, device, sizes, partials);
        let train = side(train, options.partials)?;
        let evaluate = evaluate.map(|evaluate| side(evaluate, 1)).transpose()?;
        let persistent = Persistent::of(&train.graph)?;
        let (unhidden, grouped) = (UNHIDDEN[1], false);
        let (ready, expected) = (Vec::new(), None);
        Planner { train, evaluate, options, persistent, shards, unhidden, grouped, ready, expected }.settled()
    }

    fn settled(self) -> Result<Planner, PlanError> {
        let mut planner = self;
        if let (Some(_), Some(largest)) = (planner.options.memory, planner.options.largest.clone()) {
            planner.settle(&largest)?;
            // If only the batch varies there are few other sizes; graphs of one size learn nothing.
            if !planner.train.is_for_one_size() && largest.iter().any(|(symbol, _)| symbol != BATCH) {
                planner.with(Purpose::Train, &largest, |graph, steps, options| {
                    steps.learn(graph, &largest, options)
                })?;
            }
        }
        let needed = planner.persistent.ends[0];
        if let Some(budget) = planner.options.memory.filter(|&memory| memory < needed) {
            return Err(PlanError::DoesNotFit {
                needed,
                proven: true,
                budget,
                holders: Holders(vec![(STATE.to_string(), needed)]),
            });
        }
        Ok(planner)
    }

    /// A planner with given residences of weights and states.
    pub fn with_residences(
        train: Graph,
        evaluate: Option<Graph>,
        options: DeviceOptions,
        persistent: Persistent,
    ) -> Planner {
        Planner {
            grouped: options.grouped,
            train: Side::new(train, options.partials),
            evaluate: evaluate.map(|graph| Side::new(graph, 1)),
            options,
            persistent,
            shards: HashMap::new(),
            unhidden: UNHIDDEN[1],
            ready: Vec::new(),
            expected: None,
        }
    }

    /// Places weights and states for partials one after another. If weights have to leave the device, also for partials
    /// that take turns layer by layer; the faster order is kept.
    fn settle(&mut self, largest: &Bindings) -> Result<(), PlanError> {
        let one_by_one = self.settle_in_order(largest);
        if matches!(one_by_one, Err(PlanError::Interrupted)) {
            return one_by_one.map(|_| ());
        }
        let weights: Vec<String> = self.train.graph.weights().map(|(_, info)| info.name.clone()).collect();
        let here = weights.iter().all(|name| self.persistent.residences[name].tier == Tier::Device);
        let scheduled = self.train.turns.is_some();
        if self.train.partials == 1 || scheduled || self.grouped || one_by_one.is_ok() && here {
            return one_by_one.map(|_| ());
        }
        let before = (self.persistent.clone(), self.unhidden, self.train.steps.take());
        self.grouped = true;
        let in_turn = self.settle_in_order(largest);
        if matches!(in_turn, Err(PlanError::Interrupted)) {
            return in_turn.map(|_| ());
        }
        let better = match (&one_by_one, &in_turn) {
            (Ok(seconds), Ok(fewer)) => fewer < seconds,
            (_, turn) => turn.is_ok(),
        };
        if better {
            return Ok(());
        }
        let failed = match (one_by_one, in_turn) {
            (Err(one), Err(other)) => Err(likelier(one, other)),
            (one, _) => one,
        };
        (self.persistent, self.unhidden, self.train.steps) = before;
        self.grouped = false;
        failed.map(|_| ())
    }

    /// Seconds of the best step.
    fn settle_in_order(&mut self, largest: &Bindings) -> Result<f64, PlanError> {
        self.check_bound(largest)?;
        let mut best: Option<(f64, f64, Persistent)> = None;
        let mut reason = PlanError::NoRoom;
        let mut trained = false;
        // Moves at several prices, then the least on the device.
        for (unhidden, bare) in UNHIDDEN.map(|share| (share, false)).into_iter().chain([(UNHIDDEN[1], true)])
        {
            // If training does not fit at all, the least on the device was tried.
            if bare && (best.is_some() || !trained && matches!(reason, PlanError::DoesNotFit { .. })) {
                break;
            }
            // Whether it fits hardly depends on prices.
            if !bare && best.is_none() && matches!(reason, PlanError::DoesNotFit { .. }) {
                continue;
            }
            self.unhidden = unhidden;
            let found = self.with(Purpose::Train, largest, |graph, steps, options| {
                let persistent = match bare {
                    true => all_away(graph, options)?.ok_or(PlanError::NoRoom)?,
                    false => steps.place_weights(graph, largest, options)?,
                };
                let options = PlanOptions { persistent: &persistent, ..*options };
                let plan = steps.plan(graph, largest, &options)?;
                let seconds = timing(graph, steps, &plan, largest, &options)?.seconds;
                Ok((seconds, persistent))
            });
            let found = found.and_then(|(seconds, persistent)| {
                trained = true;
                let before = std::mem::replace(&mut self.persistent, persistent.clone());
                let slice = self.evaluated_at(largest);
                let evaluated = self.evaluate.is_some().then(|| self.plan(Purpose::Evaluate, &slice));
                self.persistent = before;
                evaluated.transpose()?;
                Ok((seconds, persistent))
            });
            match found {
                Ok((seconds, persistent)) => {
                    if best.as_ref().is_none_or(|(least, ..)| seconds < *least) {
                        best = Some((seconds, unhidden, persistent));
                    }
                }
                Err(e @ (PlanError::DoesNotFit { .. } | PlanError::TierFull { .. })) => reason = e,
                Err(PlanError::NoRoom) => {}
                Err(e) => return Err(e),
            }
            // Without other tiers there is no choice; long plans are compared once.
            let long = self.steps(Purpose::Train).is_some_and(StepPlanner::is_long);
            if !self.elsewhere() || long && best.is_some() {
                break;
            }
        }
        let (seconds, unhidden, persistent) = best.ok_or(reason)?;
        (self.unhidden, self.persistent) = (unhidden, persistent);
        Ok(seconds)
    }

    /// The largest input of evaluation, given that of training.
    pub fn evaluated_at(&self, largest: &Bindings) -> Bindings {
        evaluated_sizes(largest, self.train.partials)
    }

    fn elsewhere(&self) -> bool {
        self.options.host_memory != Some(0) || self.options.disk.is_some()
    }

    /// Whether there is an evaluation graph.
    pub fn evaluates(&self) -> bool {
        self.evaluate.is_some()
    }

    /// Where weights and states reside between steps.
    pub fn persistent(&self) -> &Persistent {
        &self.persistent
    }

    /// Replaces the graph by that for inputs of these sizes, where it depends on them.
    fn fit_to(&mut self, purpose: Purpose, sizes: &Bindings) -> Result<(), PlanError> {
        self.side_mut(purpose).fit_to(sizes)
    }

    /// The options of the plans.
    pub fn options(&self) -> &DeviceOptions {
        &self.options
    }

    /// Sets assumed speeds of kernels for later plans. Weights and states stay where they reside.
    pub fn set_rates(&mut self, rates: Rates) {
        self.options.rates = rates;
    }

    /// Sets measured speeds of kernels for later plans, or none. Weights and states stay where they reside.
    pub fn set_curves(&mut self, curves: Option<Arc<Curves>>) {
        self.options.curves = curves;
    }

    fn side(&self, purpose: Purpose) -> &Side {
        match (purpose, &self.evaluate) {
            (Purpose::Evaluate, Some(side)) => side,
            _ => &self.train,
        }
    }

    /// A graph of the job, or this device's share of it.
    pub fn graph(&self, purpose: Purpose) -> &Graph {
        &self.side(purpose).graph
    }

    /// A graph of the job, all of it.
    pub fn whole(&self, purpose: Purpose) -> &Graph {
        self.side(purpose).whole()
    }

    /// The planner of a graph's steps, if a plan of it has been made.
    pub fn steps(&self, purpose: Purpose) -> Option<&StepPlanner> {
        self.side(purpose).steps.as_ref()
    }

    /// The plan for inputs of these sizes.
    pub fn plan(&mut self, purpose: Purpose, sizes: &Bindings) -> Result<Plan, PlanError> {
        self.plan_by(purpose, sizes, StepPlanner::plan)
    }

    /// The same plan with a record of its passes.
    pub fn plan_with_passes(&mut self, purpose: Purpose, sizes: &Bindings) -> Result<Plan, PlanError> {
        self.plan_by(purpose, sizes, StepPlanner::plan_with_passes)
    }

    fn plan_by(
        &mut self,
        purpose: Purpose,
        sizes: &Bindings,
        by: fn(&StepPlanner, &Graph, &Bindings, &PlanOptions) -> Result<Plan, PlanError>,
    ) -> Result<Plan, PlanError> {
        self.fit_to(purpose, sizes)?;
        if let Some(writer) = self.options.writer.clone() {
            return self.with(purpose, sizes, |graph, steps, options| {
                let bound = steps.outline.sizes(graph, sizes, options)?;
                let write = |base: &Base| writer.write(&steps.outline, base, &bound);
                steps.plan_script(graph, sizes, options, write)?.ok_or(PlanError::NoRoom)
            });
        }
        let new = self.steps(purpose).is_none();
        let made = self.with(purpose, sizes, |graph, steps, options| by(steps, graph, sizes, options));
        let mut plan = match made {
            // The order chosen for other sizes may need too much memory for these.
            Err(PlanError::DoesNotFit { .. }) if !new => {
                self.side_mut(purpose).steps = None;
                self.with(purpose, sizes, |graph, steps, options| by(steps, graph, sizes, options))
            }
            made => made,
        }?;
        if self.options.exchanges_inline() {
            take_turns(&mut plan);
        }
        Ok(plan)
    }

    /// A plan for inputs of these sizes, with everything else that a runner needs.
    fn sized(&mut self, purpose: Purpose, sizes: &Bindings, plan: Plan) -> Result<SizedPlan, PlanError> {
        let learns = self.options.memory.is_some();
        // Time matters only under a budget.
        let seconds = if learns { self.timing(purpose, sizes, &plan)?.seconds } else { 0.0 };
        let side = self.side(purpose);
        let from_peers = exchanged(&side.graph, &slice_of(sizes, plan.partials)?, plan.partials)?;
        Ok(SizedPlan {
            graph: Arc::clone(&side.graph),
            shards: side.shards(),
            ledger: Ledger { from_peers, ..Ledger::of(&plan) },
            plan: Arc::new(plan),
            seconds,
            learns,
        })
    }

    /// Keeps a plan for inputs of these sizes until it is requested.
    pub fn keep(&mut self, purpose: Purpose, sizes: &Bindings, plan: Plan) -> Result<(), PlanError> {
        let made = self.sized(purpose, sizes, plan)?;
        self.ready.push((purpose, sizes.clone(), made));
        Ok(())
    }

    /// The plan of the device.
    pub fn into_device_plan(mut self) -> Result<DevicePlan, PlanError> {
        Ok(DevicePlan {
            rank: self.options.rank,
            partials: self.options.partials,
            limits: self.options.limits(),
            first_bytes: self.first_bytes()?,
            graph: Arc::clone(&self.train.graph),
            residences: self.persistent.clone(),
            shards: self.shards.clone(),
            source: Box::new(self),
        })
    }

    /// The plan for inputs of these sizes without limits, with everything on the device.
    pub fn unlimited(&mut self, purpose: Purpose, sizes: &Bindings) -> Result<Plan, PlanError> {
        self.with(purpose, sizes, |graph, steps, options| {
            let persistent = Persistent::of(graph)?;
            steps.plan(graph, sizes, &PlanOptions { memory: None, persistent: &persistent, ..*options })
        })
    }

    /// Seconds of every node.
    pub(crate) fn prices(&mut self, purpose: Purpose, sizes: &Bindings) -> Result<NodePrices, PlanError> {
        let links = self.options.links;
        self.with(purpose, sizes, |graph, steps, options| {
            let (outline, all) = (&steps.outline, 0..graph.nodes.len());
            let bound = outline.sizes(graph, sizes, options)?;
            Ok(NodePrices {
                crowded: all.clone().map(|id| outline.seconds_over(graph, &bound, &links, id)).collect(),
                alone: all.clone().map(|id| outline.seconds_alone(&bound, id)).collect(),
                met: all.map(|id| outline.seconds_met(graph, &bound, id)).collect(),
            })
        })
    }

    /// The predicted time of a plan.
    pub fn timing(&mut self, purpose: Purpose, sizes: &Bindings, plan: &Plan) -> Result<Timing, PlanError> {
        self.with(purpose, sizes, |graph, steps, options| timing(graph, steps, plan, sizes, options))
    }

    /// Seconds of each kind of node by rates, without measurements.
    fn expected_seconds(&mut self, purpose: Purpose, sizes: &Bindings) -> Result<Vec<f64>, PlanError> {
        self.with(purpose, sizes, |graph, steps, options| {
            Ok(steps.outline.sizes(graph, sizes, &PlanOptions { slower: &[], ..*options })?.seconds)
        })
    }

    fn side_mut(&mut self, purpose: Purpose) -> &mut Side {
        match (purpose, &mut self.evaluate) {
            (Purpose::Evaluate, Some(side)) => side,
            _ => &mut self.train,
        }
    }

    /// Calls `f` with the graph, its step planner and the options of plans.
    fn with<T>(
        &mut self,
        purpose: Purpose,
        sizes: &Bindings,
        f: impl FnOnce(&Graph, &mut StepPlanner, &PlanOptions) -> Result<T, PlanError>,
    ) -> Result<T, PlanError> {
        self.fit_to(purpose, sizes)?;
        let Planner { train, evaluate, options: job, persistent, unhidden, grouped, .. } = self;
        let grouped = *grouped && purpose == Purpose::Train;
        let side = match (purpose, evaluate) {
            (Purpose::Evaluate, Some(side)) => side,
            _ => train,
        };
        let scratch =
            |graph: &Graph, node: &Node, sizes: &Bindings| (job.scratch)(graph, node, sizes, job.threads);
        let observe =
            |progress| job.watch.as_ref().map_or(ControlFlow::Continue(()), |watch| watch.see(progress));
        let options = PlanOptions {
            partials: side.partials,
            memory: job.memory,
            beside: TierLimits { host: job.host_memory, disk: job.disk },
            recompute: job.recompute,
            grouped,
            turns: side.turns.as_deref(),
            scratch: &scratch,
            rates: job.rates,
            curves: job.curves.as_deref(),
            slower: side.measured.slower(),
            links: job.stated_links(),
            unhidden: *unhidden,
            persistent,
            observe: &observe,
        };
        let steps = match side.steps.take() {
            Some(steps) => steps,
            None if job.writer.is_some() => {
                StepPlanner::with_rule(&side.graph, sizes, &options, OrderRule::Plain)?
            }
            None => StepPlanner::new(&side.graph, sizes, &options)?,
        };
        f(&side.graph, side.steps.insert(steps), &options)
    }
}

impl PlanSource for Planner {
    fn plan(&mut self, purpose: Purpose, sizes: &Bindings) -> Result<SizedPlan, PlanError> {
        if let Some(at) = self.ready.iter().position(|(p, s, _)| (*p, s) == (purpose, sizes)) {
            return Ok(self.ready.swap_remove(at).2);
        }
        let plan = Planner::plan(self, purpose, sizes)?;
        self.sized(purpose, sizes, plan)
    }

    fn measured(&mut self, purpose: Purpose, sizes: &Bindings, plan: &Plan, seconds: &[f64]) {
        let known = self.expected.take().filter(|(p, s, _)| (*p, s) == (purpose, sizes));
        let expected = known.map_or_else(|| self.expected_seconds(purpose, sizes), |(.., known)| Ok(known));
        // These sizes were planned before, so there is no error.
        let (Ok(expected), Ok(())) = (expected, self.fit_to(purpose, sizes)) else { return };
        let side = self.side_mut(purpose);
        let Some(steps) = &side.steps else { return };
        let mut sums = vec![(0u32, 0.0); expected.len()];
        for (step, seconds) in plan.steps.iter().zip(seconds) {
            if let Act::Run { node, .. } = &step.act {
                let (calls, sum) = &mut sums[steps.outline.kinds.kind_of[node.index()] as usize];
                *calls += 1;
                *sum += seconds;
            }
        }
        for (kind, ((calls, sum), expected)) in sums.into_iter().zip(&expected).enumerate() {
            side.measured.note(kind, *expected, sum / f64::from(calls.max(1)));
        }
        self.expected = Some((purpose, sizes.clone(), expected));
    }

    fn duplicate(&self) -> Box<dyn PlanSource> {
        Box::new(self.clone())
    }

    fn ready(&self) -> Vec<(Purpose, Bindings, SizedPlan)> {
        self.ready.clone()
    }
}

/// Of the errors of two orders, the one with the smaller need: a bound holds for one order only.
fn likelier(one: PlanError, other: PlanError) -> PlanError {
    match (&one, &other) {
        (
            PlanError::DoesNotFit { proven: true, needed, .. },
            PlanError::DoesNotFit { proven, needed: less, .. },
        ) if !proven || less < needed => other,
        _ => one,
    }
}

/// Where weights and states reside at first.
fn first_residences(graph: &Graph, options: &DeviceOptions) -> Result<Persistent, PlanError> {
    let tier = if options.writer.is_some() { Tier::Host } else { Tier::Device };
    Ok(Persistent::with(graph, |_| tier)?)
}

/// Examples of one evaluation: those of a partial of training, so that it needs no more memory.
pub fn evaluated_at_once(batch: usize, partials: usize) -> usize {
    batch.div_ceil(partials.max(1))
}

/// The largest input of evaluation, given that of training.
pub(crate) fn evaluated_sizes(largest: &Bindings, partials: u32) -> Bindings {
    let mut sizes = largest.clone();
    if let Some(batch) = largest.get(BATCH) {
        sizes.set(BATCH, evaluated_at_once(batch, partials as usize));
    }
    sizes
}

fn timing(
    graph: &Graph,
    steps: &StepPlanner,
    plan: &Plan,
    sizes: &Bindings,
    options: &PlanOptions,
) -> Result<Timing, PlanError> {
    let bound = steps.outline.sizes(graph, sizes, options)?;
    let seconds = |id: NodeId| steps.outline.seconds_over(graph, &bound, &options.links, id.index());
    Ok(simulate(plan, seconds, &options.links))
}
