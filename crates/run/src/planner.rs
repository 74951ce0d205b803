//! The plans of a job: where its weights and states are between steps, settled once for the largest input,
//! and a plan for every size of input that is met. Knows the kernels' needs, touches no memory.

mod need;
mod side;

use crate::boxed::Boxed;
use crate::deals::Deals;
use crate::lower::lower_node;
use crate::session::{PlanWatch, SessionOptions, Which};
use gulliver_graph::dim::BATCH;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, Node, NodeId};
use gulliver_plan::budget::bound::STATE;
use gulliver_plan::budget::planner::StepPlanner;
use gulliver_plan::budget::residences::all_away;
use gulliver_plan::comparator::Case;
use gulliver_plan::comparator::paging;
use gulliver_plan::devices::collectives::take_turns;
use gulliver_plan::document::error::{Holders, PlanError};
use gulliver_plan::document::plan::{Plan, Tier};
use gulliver_plan::document::residence::Persistent;
use gulliver_plan::step::base::Base;
use gulliver_plan::step::options::PlanOptions;
use gulliver_plan::step::order::{Rule, Turn};
use gulliver_plan::time::cost::{Beside, Curves, Rates};
use gulliver_plan::time::simulate::{Timing, simulate};
pub(crate) use need::with_slack;
pub(crate) use side::Side;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Shares of the time of moves that may turn out not to be hidden: how dear moves are thought to be.
/// Each is tried on the largest input, and the one with the shortest step is kept.
const UNHIDDEN: [f64; 3] = [0.1, 0.4, 1.0];

/// What one of several devices does of a graph.
pub struct Part {
    /// Its own graph.
    pub graph: Graph,
    /// The turns of its nodes, if a schedule has given them any.
    pub turns: Option<Vec<Turn>>,
    /// The job's graph.
    pub whole: Arc<Graph>,
}

/// See the top of this file.
#[derive(Clone)]
pub struct Planner {
    train: Side,
    evaluate: Option<Side>,
    options: SessionOptions,
    persistent: Persistent,
    /// The boxes of weights and states that are resident here, if nodes are divided or others have the rest.
    boxes: HashMap<String, Boxed>,
    unhidden: f64,
    grouped: bool,
}

impl Planner {
    /// Settles where weights and states are. With a budget and a largest input, they leave the device if
    /// they must, both graphs are proven to fit (evaluation with as many examples at once as a partial of
    /// training has), and plans for smaller inputs are prepared for.
    pub fn new(train: Graph, evaluate: Option<Graph>, options: SessionOptions) -> Result<Planner, PlanError> {
        Planner::unsettled(train, evaluate, options)?.settled()
    }

    /// A planner that has settled nothing, to ask for [bounds](Planner::bound) and
    /// [estimates](Planner::try_out); weights and states are on the device.
    pub fn unsettled(
        train: Graph,
        evaluate: Option<Graph>,
        options: SessionOptions,
    ) -> Result<Planner, PlanError> {
        let persistent = first_residences(&train, &options)?;
        Ok(Planner::with_residences(train, evaluate, options, persistent))
    }

    /// Has another see how planning goes, or nobody.
    pub fn set_watch(&mut self, watch: Option<Arc<dyn PlanWatch>>) {
        self.options.watch = watch;
    }

    /// The same for one of several devices.
    pub fn of_part(
        train: Part,
        evaluate: Option<Part>,
        options: SessionOptions,
    ) -> Result<Planner, PlanError> {
        Planner::of_shards(train, evaluate, HashMap::new(), options)
    }

    /// The same for one that has but these boxes of some weights and states.
    pub(crate) fn of_shards(
        train: Part,
        evaluate: Option<Part>,
        boxes: HashMap<String, Boxed>,
        options: SessionOptions,
    ) -> Result<Planner, PlanError> {
        let persistent = first_residences(&train.graph, &options)?;
        let (graph, whole) = evaluate.map(|part| (part.graph, part.whole)).unzip();
        let mut planner = Planner::with_residences(train.graph, graph, options, persistent);
        (planner.train.turns, planner.train.whole) = (train.turns, Some(train.whole));
        planner.boxes = boxes;
        if let Some(side) = &mut planner.evaluate {
            side.whole = whole;
        }
        planner.settled()
    }

    /// The same for one of several devices that share nodes, at first for inputs of these sizes (of one partial,
    /// and of what is evaluated at once).
    pub(crate) fn of_cut(
        train: (Arc<Deals>, Bindings),
        evaluate: Option<(Arc<Deals>, Bindings)>,
        device: usize,
        options: SessionOptions,
    ) -> Result<Planner, PlanError> {
        let boxes = train.0.share(device, &train.1)?.residences();
        let side = |(deals, sizes), partials| Side::of_cut(deals, device, sizes, partials);
        let train = side(train, options.partials)?;
        let evaluate = evaluate.map(|evaluate| side(evaluate, 1)).transpose()?;
        let persistent = Persistent::of(&train.graph)?;
        let (unhidden, grouped) = (UNHIDDEN[1], false);
        Planner { train, evaluate, options, persistent, boxes, unhidden, grouped }.settled()
    }

    fn settled(self) -> Result<Planner, PlanError> {
        let mut planner = self;
        if let (Some(_), Some(largest)) = (planner.options.memory, planner.options.largest.clone()) {
            planner.settle(&largest)?;
            // Where only the batch varies, next to no other sizes are met; graphs of one size learn nothing.
            if !planner.train.is_parted() && largest.iter().any(|(symbol, _)| symbol != BATCH) {
                planner.with(Which::Train, &largest, |graph, outline, options| {
                    outline.learn(graph, &largest, options)
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

    /// Weights and states are where they are said to be.
    pub(crate) fn with_residences(
        train: Graph,
        evaluate: Option<Graph>,
        options: SessionOptions,
        persistent: Persistent,
    ) -> Planner {
        Planner {
            grouped: options.grouped,
            train: Side::new(train, options.partials),
            evaluate: evaluate.map(|graph| Side::new(graph, 1)),
            options,
            persistent,
            boxes: HashMap::new(),
            unhidden: UNHIDDEN[1],
        }
    }

    /// Settles weights and states for the order in which partials follow each other; if weights have to
    /// leave the device, also for the one in which they take turns, and keeps the better.
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
        let before = (self.persistent.clone(), self.unhidden, self.train.outline.take());
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
        (self.persistent, self.unhidden, self.train.outline) = before;
        self.grouped = false;
        failed.map(|_| ())
    }

    /// Seconds of the best step.
    fn settle_in_order(&mut self, largest: &Bindings) -> Result<f64, PlanError> {
        self.check_bound(largest)?;
        let mut best: Option<(f64, f64, Persistent)> = None;
        let mut reason = PlanError::NoRoom;
        let mut trained = false;
        // Moves at several prices, and then as little on the device as can be.
        for (unhidden, bare) in UNHIDDEN.map(|share| (share, false)).into_iter().chain([(UNHIDDEN[1], true)])
        {
            // Where training fits in no way, it was tried with as little on the device as can be.
            if bare && (best.is_some() || !trained && matches!(reason, PlanError::DoesNotFit { .. })) {
                break;
            }
            // What does not fit hardly depends on prices.
            if !bare && best.is_none() && matches!(reason, PlanError::DoesNotFit { .. }) {
                continue;
            }
            self.unhidden = unhidden;
            let found = self.with(Which::Train, largest, |graph, outline, options| {
                let persistent = match bare {
                    true => all_away(graph, options)?.ok_or(PlanError::NoRoom)?,
                    false => outline.place_weights(graph, largest, options)?,
                };
                let options = PlanOptions { persistent: &persistent, ..*options };
                let plan = outline.plan(graph, largest, &options)?;
                let seconds = timing(graph, outline, &plan, largest, &options)?.seconds;
                Ok((seconds, persistent))
            });
            let found = found.and_then(|(seconds, persistent)| {
                trained = true;
                let before = std::mem::replace(&mut self.persistent, persistent.clone());
                let slice = self.evaluated_at(largest);
                let evaluated = self.evaluate.is_some().then(|| self.plan(Which::Evaluate, &slice));
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
            // Without other tiers there is nothing to weigh; long plans are weighed once.
            let long = self.outline(Which::Train).is_some_and(StepPlanner::is_long);
            if !self.elsewhere() || long && best.is_some() {
                break;
            }
        }
        let (seconds, unhidden, persistent) = best.ok_or(reason)?;
        (self.unhidden, self.persistent) = (unhidden, persistent);
        Ok(seconds)
    }

    /// The largest input of evaluation, if this is that of training.
    pub fn evaluated_at(&self, largest: &Bindings) -> Bindings {
        let mut slice = largest.clone();
        if let Some(batch) = largest.get(BATCH) {
            slice.set(BATCH, evaluated_at_once(batch, self.train.partials as usize));
        }
        slice
    }

    fn elsewhere(&self) -> bool {
        self.options.host_memory != Some(0) || self.options.disk.is_some()
    }

    /// Where weights and states are between steps.
    pub fn persistent(&self) -> &Persistent {
        &self.persistent
    }

    /// The box of a weight or state that is resident here, if nodes are divided.
    pub(crate) fn boxed(&self, name: &str) -> Option<&Boxed> {
        self.boxes.get(name)
    }

    /// Makes the graph that for inputs of these sizes, where it depends on them.
    pub(crate) fn turn_to(&mut self, which: Which, sizes: &Bindings) -> Result<(), PlanError> {
        self.side_mut(which).turn_to(sizes)
    }

    /// What the plans are made for.
    pub fn options(&self) -> &SessionOptions {
        &self.options
    }

    /// Has plans timed by other speeds of kernels. Where weights and states are stays settled.
    pub fn set_rates(&mut self, rates: Rates) {
        self.options.rates = rates;
    }

    /// Has plans timed by what was measured of kernels like theirs, or by rates alone. Where weights and states
    /// are stays settled.
    pub fn set_curves(&mut self, curves: Option<Arc<Curves>>) {
        self.options.curves = curves;
    }

    pub(crate) fn side(&self, which: Which) -> &Side {
        match (which, &self.evaluate) {
            (Which::Evaluate, Some(side)) => side,
            _ => &self.train,
        }
    }

    /// A graph of the job, or this device's share of it.
    pub fn graph(&self, which: Which) -> &Graph {
        &self.side(which).graph
    }

    /// A graph of the job, all of it.
    pub fn whole(&self, which: Which) -> &Graph {
        self.side(which).whole()
    }

    /// The outline of a graph, if a plan of it has been made.
    pub fn outline(&self, which: Which) -> Option<&StepPlanner> {
        self.side(which).outline.as_ref()
    }

    /// The plan for inputs of these sizes.
    pub fn plan(&mut self, which: Which, sizes: &Bindings) -> Result<Plan, PlanError> {
        self.turn_to(which, sizes)?;
        if let Some(paged) = self.options.paged {
            return self.with(which, sizes, |graph, outline, options| {
                let bound = outline.outline.sizes(graph, sizes, options)?;
                let write = |base: &Base| paging::paged(&Case::new(&outline.outline, base, &bound), paged);
                outline.plan_script(graph, sizes, options, write)?.ok_or(PlanError::NoRoom)
            });
        }
        let new = self.outline(which).is_none();
        let made = self.with(which, sizes, |graph, outline, options| outline.plan(graph, sizes, options));
        let mut plan = match made {
            // What is best for other sizes may not be good enough for these.
            Err(PlanError::DoesNotFit { .. }) if !new => {
                self.side_mut(which).outline = None;
                self.with(which, sizes, |graph, outline, options| outline.plan(graph, sizes, options))
            }
            made => made,
        }?;
        if self.options.meets_in_turn() {
            take_turns(&mut plan);
        }
        Ok(plan)
    }

    /// The plan for inputs of these sizes if nothing were limited and everything stayed on the device.
    pub fn unlimited(&mut self, which: Which, sizes: &Bindings) -> Result<Plan, PlanError> {
        self.with(which, sizes, |graph, outline, options| {
            let persistent = Persistent::of(graph)?;
            outline.plan(graph, sizes, &PlanOptions { memory: None, persistent: &persistent, ..*options })
        })
    }

    /// Seconds of every node by itself; of a collective, those of its bytes in memory, whatever links they pass.
    pub fn seconds(&mut self, which: Which, sizes: &Bindings) -> Result<Vec<f64>, PlanError> {
        let links = self.options.links;
        self.with(which, sizes, |graph, outline, options| {
            let bound = outline.outline.sizes(graph, sizes, options)?;
            let of = |id| outline.outline.seconds_over(graph, &bound, &links, id);
            Ok((0..graph.nodes.len()).map(of).collect())
        })
    }

    /// Seconds of every node by itself while other devices are at rest, if that is known.
    pub fn seconds_alone(&mut self, which: Which, sizes: &Bindings) -> Result<Option<Vec<f64>>, PlanError> {
        self.with(which, sizes, |graph, outline, options| {
            let bound = outline.outline.sizes(graph, sizes, options)?;
            Ok((0..graph.nodes.len()).map(|id| outline.outline.seconds_alone(&bound, id)).collect())
        })
    }

    /// Of each collective held beside kernels: seconds of its own that the device gives to it, and seconds it takes.
    pub fn seconds_met(&mut self, which: Which, sizes: &Bindings) -> Result<Vec<[f64; 2]>, PlanError> {
        self.with(which, sizes, |graph, outline, options| {
            let bound = outline.outline.sizes(graph, sizes, options)?;
            Ok((0..graph.nodes.len()).map(|id| outline.outline.seconds_met(graph, &bound, id)).collect())
        })
    }

    /// How long a plan is thought to take.
    pub fn timing(&mut self, which: Which, sizes: &Bindings, plan: &Plan) -> Result<Timing, PlanError> {
        self.with(which, sizes, |graph, outline, options| timing(graph, outline, plan, sizes, options))
    }

    /// Seconds of each kind of node by rates alone, whatever was measured.
    pub fn thought(&mut self, which: Which, sizes: &Bindings) -> Result<Vec<f64>, PlanError> {
        self.with(which, sizes, |graph, outline, options| {
            Ok(outline.outline.sizes(graph, sizes, &PlanOptions { slower: &[], ..*options })?.seconds)
        })
    }

    /// Has plans made from now on priced by what was measured: seconds of each kind of node, thought and
    /// measured. Where weights and states are stays settled, and so does what fits.
    pub fn learn(&mut self, which: Which, thought: &[f64], measured: &[f64]) {
        let known = &mut self.side_mut(which).measured;
        for (kind, (thought, measured)) in thought.iter().zip(measured).enumerate() {
            known.note(kind, *thought, *measured);
        }
    }

    fn side_mut(&mut self, which: Which) -> &mut Side {
        match (which, &mut self.evaluate) {
            (Which::Evaluate, Some(side)) => side,
            _ => &mut self.train,
        }
    }

    /// Calls `f` with the graph, its outline and what plans are made for.
    fn with<T>(
        &mut self,
        which: Which,
        sizes: &Bindings,
        f: impl FnOnce(&Graph, &mut StepPlanner, &PlanOptions) -> Result<T, PlanError>,
    ) -> Result<T, PlanError> {
        self.turn_to(which, sizes)?;
        let Planner { train, evaluate, options: job, persistent, unhidden, grouped, .. } = self;
        let grouped = *grouped && which == Which::Train;
        let side = match (which, evaluate) {
            (Which::Evaluate, Some(side)) => side,
            _ => train,
        };
        let scratch = |graph: &Graph, node: &Node, sizes: &Bindings| {
            Ok(lower_node(graph, node, sizes, job.threads, &job.kernels)?.scratch)
        };
        let observe =
            |progress| job.watch.as_ref().map_or(ControlFlow::Continue(()), |watch| watch.see(progress));
        let options = PlanOptions {
            partials: side.partials,
            memory: job.memory,
            beside: Beside { host: job.host_memory, disk: job.disk },
            recompute: job.recompute,
            grouped,
            turns: side.turns.as_deref(),
            scratch: &scratch,
            rates: job.rates,
            curves: job.curves.as_deref(),
            slower: side.measured.slower(),
            links: job.held_up(),
            unhidden: *unhidden,
            persistent,
            observe: &observe,
        };
        let outline = match side.outline.take() {
            Some(outline) => outline,
            None if job.paged.is_some() => StepPlanner::with_rule(&side.graph, sizes, &options, Rule::Plain)?,
            None => StepPlanner::new(&side.graph, sizes, &options)?,
        };
        f(&side.graph, side.outline.insert(outline), &options)
    }
}

/// Of the errors of two orders, the one that says how little would do: a bound holds for one order only.
fn likelier(one: PlanError, other: PlanError) -> PlanError {
    match (&one, &other) {
        (
            PlanError::DoesNotFit { proven: true, needed, .. },
            PlanError::DoesNotFit { proven, needed: less, .. },
        ) if !proven || less < needed => other,
        _ => one,
    }
}

/// Where weights and states are before anything is weighed.
fn first_residences(graph: &Graph, options: &SessionOptions) -> Result<Persistent, PlanError> {
    let tier = if options.paged.is_some() { Tier::Host } else { Tier::Device };
    Ok(Persistent::with(graph, |_| tier)?)
}

/// Examples that evaluation takes at once: as many as a partial of training, so that it needs no more memory.
pub fn evaluated_at_once(batch: usize, partials: usize) -> usize {
    batch.div_ceil(partials.max(1))
}

fn timing(
    graph: &Graph,
    outline: &StepPlanner,
    plan: &Plan,
    sizes: &Bindings,
    options: &PlanOptions,
) -> Result<Timing, PlanError> {
    let bound = outline.outline.sizes(graph, sizes, options)?;
    let seconds = |id: NodeId| outline.outline.seconds_over(graph, &bound, &options.links, id.index());
    Ok(simulate(plan, seconds, &options.links))
}
