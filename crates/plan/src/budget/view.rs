//! A graph, the sizes of an input and what a plan is made for, put together: choosing under a budget, and
//! laying out what was chosen.

use crate::budget::base::{Base, Choices};
use crate::budget::choose::{Chosen, Known, Short, Terms, fit, refine, seconds};
use crate::budget::evaluate::profile;
use crate::budget::overlap::{Room, fetch_early, put_off, store_late};
use crate::budget::wait::add_waits;
use crate::document::collectives::collective_of;
use crate::document::error::PlanError;
use crate::document::links::Links;
use crate::document::plan::{Choice, Plan, Tier};
use crate::document::residence::Residence;
use crate::step::lifetime::{Lifetimes, lifetimes};
use crate::step::make::Options;
use crate::step::outline::{Outline, Sizes};
use crate::step::script::{Script, VersionId, What, copies};
use crate::time::cost::CollectivePrice;
use crate::time::simulate::{per_byte, simulate};
use gulliver_graph::graph::{Graph, NodeId, Role, Value, ValueInfo};
use std::cell::Cell;

/// What is used again within so many times the seconds of its fetch is not sent away without need.
const SOON: f64 = 16.0;
/// Acts that may be put off at a time because they wait for collectives; fewer where there is no room for more.
const PUT_OFF: [usize; 3] = [64, 16, 4];

/// All that choosing for one size of input needs.
pub(crate) struct View<'a> {
    pub(crate) outline: &'a Outline,
    pub(crate) graph: &'a Graph,
    sizes: &'a Sizes,
    pub(crate) options: &'a Options<'a>,
    /// Whether there is time to spare.
    pub(crate) at_leisure: bool,
    /// Where persistent inputs are between steps, in the graph's order.
    pub(crate) places: Vec<Option<Residence>>,
    pub(crate) bytes: Vec<u64>,
    /// Seconds by act of the outline's script.
    seconds: Vec<f64>,
    /// The observer said stop.
    stopped: Cell<bool>,
}

impl Outline {
    /// Seconds of a node, whose collectives take as long as their bytes over the links.
    pub fn seconds_over(&self, graph: &Graph, sizes: &Sizes, links: &Links, node: usize) -> f64 {
        match collective_of(&graph.nodes[node], &sizes.slice) {
            Some(what) => {
                let bytes = what.bytes() as f64;
                (bytes / links.from_peers)
                    .max(sizes.collective.map_or(0.0, |collective| collective.seconds(bytes)))
            }
            None => self.seconds(sizes, node),
        }
    }

    /// Seconds of a node while other devices are at rest, if that is known.
    pub fn seconds_alone(&self, sizes: &Sizes, node: usize) -> Option<f64> {
        sizes.alone.get(self.kinds.kind_of[node] as usize).copied()
    }

    /// Of a collective held beside kernels that have all cores: seconds that these lose to it, whatever the links, and seconds it
    /// takes. None for other nodes.
    pub fn seconds_met(&self, graph: &Graph, sizes: &Sizes, node: usize) -> [f64; 2] {
        let bytes = collective_of(&graph.nodes[node], &sizes.slice).map(|what| what.bytes() as f64);
        let of = |(bytes, collective): (f64, CollectivePrice)| {
            [collective.lost(bytes), collective.seconds(bytes) + collective.beside]
        };
        bytes.zip(sizes.collective).map_or([0.0; 2], of)
    }
}

impl<'a> View<'a> {
    /// Fails if the job does not keep one of the graph's weights or states.
    pub(crate) fn new(
        outline: &'a Outline,
        graph: &'a Graph,
        sizes: &'a Sizes,
        options: &'a Options<'a>,
    ) -> Result<View<'a>, PlanError> {
        let bytes: Vec<u64> = outline.kinds.type_of.iter().map(|&k| sizes.bytes[k as usize]).collect();
        let seconds = seconds(&outline.script, &bytes, |node| outline.seconds(sizes, node));
        let place = |(_, role, info): (Value, Role, &ValueInfo)| match role {
            Role::Weight(_) | Role::State(_) => {
                let residence = options.persistent.residences.get(&info.name);
                residence
                    .map(|residence| Some(*residence))
                    .ok_or_else(|| PlanError::NotPersistent(info.name.clone()))
            }
            _ => Ok(None),
        };
        let places = graph.inputs().map(place).collect::<Result<_, _>>()?;
        let stopped = Cell::new(false);
        Ok(View { outline, graph, sizes, options, at_leisure: true, places, bytes, seconds, stopped })
    }

    pub(crate) fn base(&self) -> Base<'a> {
        self.outline.base(self.graph)
    }

    pub(crate) fn name(&self, base: &Base, v: VersionId) -> String {
        self.graph.value(base.script.versions[v as usize].of.value).name.clone()
    }

    pub(crate) fn scratch(&self, node: usize) -> u64 {
        self.sizes.scratch[self.outline.kinds.kind_of[node] as usize]
    }

    /// The tier in which each version waits for the next step.
    pub(crate) fn residences(&self) -> Vec<Tier> {
        let mut residences = vec![Tier::Device; self.outline.script.versions.len()];
        let mut version = 0;
        // The first versions are those of the inputs, in order.
        for ((_, role, _), place) in self.graph.inputs().zip(&self.places) {
            if let Some(place) = place {
                residences[version] = place.tier;
            }
            version += copies(role, self.outline.partials) as usize;
        }
        residences
    }

    /// What is resident elsewhere is on the device only while it is used, or if it is used again soon,
    /// measured by the time it takes to fetch it.
    pub(crate) fn away_at_first(&self, base: &Base) -> Choices {
        let mut choices = base.keep(self.residences());
        let mut begins = Vec::with_capacity(self.seconds.len());
        let mut now = 0.0;
        for seconds in &self.seconds {
            begins.push(now);
            now += seconds;
        }
        for v in 0..base.script.versions.len() {
            let tier = choices.residences[v];
            let choice = match tier {
                Tier::Device => continue,
                Tier::Host => Choice::Host,
                Tier::Disk => Choice::Disk,
            };
            let bytes = self.bytes[base.script.versions[v].of.value.index()] as f64;
            let fetch = bytes * per_byte(&self.options.links, tier, Tier::Device);
            for gap in base.first[v] as usize..(base.first[v + 1] as usize).saturating_sub(1) {
                let [from, to] = [0, 1].map(|i| base.uses[gap + i] as usize);
                if from + 1 < to && begins[to] - begins[from + 1] > SOON * fetch {
                    choices.gaps[gap] = choice;
                }
            }
        }
        choices
    }

    /// Fails only if the observer said stop meanwhile.
    fn with_terms<T>(&self, room: [u64; 2], call: impl FnOnce(&Terms) -> T) -> Result<T, PlanError> {
        let links = &self.options.links;
        let both = |tier| per_byte(links, Tier::Device, tier) + per_byte(links, tier, Tier::Device);
        let share = self.options.unhidden;
        let beside = &self.options.beside;
        let host = (beside.host != Some(0)).then(|| (Choice::Host, share * both(Tier::Host)));
        let disk = beside.disk.map(|_| (Choice::Disk, share * both(Tier::Disk)));
        let go_on = |progress| {
            let stop = self.stopped.get() || (self.options.observe)(progress).is_break();
            self.stopped.set(stop);
            !stop
        };
        let found = call(&Terms {
            sharing: &self.outline.sharing,
            bytes: &self.bytes,
            scratch: &|node| self.scratch(node),
            seconds: &self.seconds,
            node: &|node| self.outline.seconds(self.sizes, node),
            away: [host, disk],
            recompute: self.options.recompute,
            room,
            go_on: &go_on,
        });
        if self.stopped.get() { Err(PlanError::Interrupted) } else { Ok(found) }
    }

    /// Bytes allowed in host memory and on disk.
    pub(crate) fn beside(&self) -> [u64; 2] {
        [self.options.beside.host.unwrap_or(u64::MAX), self.options.beside.disk.unwrap_or(0)]
    }

    /// Chooses what keeps within the target.
    pub(crate) fn fit(
        &self,
        base: &Base,
        start: &Choices,
        target: u64,
        room: [u64; 2],
        at_leisure: bool,
    ) -> Result<Result<Chosen, Short>, PlanError> {
        self.with_terms(room, |terms| fit(base, terms, start, target, at_leisure))
    }

    /// Adapts choices made for other sizes.
    pub(crate) fn refine(
        &self,
        base: &Base,
        known: &Known,
        target: u64,
        room: [u64; 2],
    ) -> Result<Result<Chosen, Short>, PlanError> {
        self.with_terms(room, |terms| refine(base, terms, known, target))
    }

    /// Most device bytes in use at once if everything stays.
    pub(crate) fn need(&self) -> u64 {
        let needs = profile(&self.outline.script, &self.outline.life, &self.bytes, |node| self.scratch(node));
        needs.into_iter().max().unwrap_or(0)
    }

    /// The choices that need least, as far as they can be found.
    pub(crate) fn least(&self, base: &Base, start: &Choices) -> Result<Chosen, PlanError> {
        let room = self.beside();
        let (mut target, mut best) = (0, None);
        // Each failure says how little was enough on the way to it.
        for _ in 0..8 {
            match self.fit(base, start, target, room, false)? {
                Ok(chosen) => {
                    best = Some(chosen);
                    break;
                }
                Err(Short { enough }) if enough > target => target = enough,
                Err(Short { enough }) => target = enough + enough / 50 + 64,
            }
        }
        if let Some(chosen) = best {
            return Ok(chosen);
        }
        match self.fit(base, start, u64::MAX / 4, room, false)? {
            Ok(chosen) => Ok(chosen),
            Err(_) => unreachable!("nothing is wanting without a limit"),
        }
    }

    /// The plan of a script that was not chosen here.
    pub(crate) fn finish_script(&self, script: Script, target: u64, early: bool) -> Result<Plan, PlanError> {
        let life = lifetimes(&self.outline.sharing, &script);
        let known = Known { script, life, ..Known::default() };
        self.finish(Chosen { known, ..Chosen::default() }, target, early).map(|(plan, _)| plan)
    }

    /// The plan in which everything stays. Collectives are beside kernels if that needs no more than there is,
    /// or, where nothing is limited, hardly more than is needed at least.
    pub(crate) fn lay(&self) -> Result<Plan, PlanError> {
        let (script, life) = (&self.outline.script, &self.outline.life);
        let mut plan = self.outline.lay(self.graph, script, life, self.sizes, self)?;
        add_waits(&mut plan);
        if !self.graph.nodes.iter().any(|node| node.op.def().meets()) {
            return Ok(plan);
        }
        let known = Known { script: script.clone(), life: life.clone(), ..Known::default() };
        let device = Tier::Device as usize;
        let least = plan.spaces[device].bytes;
        let most = self.options.memory.unwrap_or(least + least / 32);
        let (script, life) = self.beside_kernels(&known, self.options.memory.unwrap_or(self.need()));
        // Layout tries harder where there is a limit.
        let limited = Options { memory: Some(most), ..*self.options };
        let view = View::new(self.outline, self.graph, self.sizes, &limited)?;
        let mut beside = self.outline.lay(self.graph, &script, &life, self.sizes, &view)?;
        add_waits(&mut beside);
        let seconds = |plan: &Plan| {
            simulate(plan, |id: NodeId| self.node_seconds(id.index()), &self.options.links).seconds
        };
        let better = beside.spaces[device].bytes <= most && seconds(&beside) < seconds(&plan);
        Ok(if better { beside } else { plan })
    }

    /// Puts moves beside kernels, lays everything out and says who waits for whom; and gives back what was
    /// chosen.
    pub(crate) fn finish(
        &self,
        chosen: Chosen,
        target: u64,
        early: bool,
    ) -> Result<(Plan, Known), PlanError> {
        let Chosen { known, decisions, .. } = chosen;
        let beside = |what: What| match what {
            What::Move => true,
            What::Run(id, _) => self.meets(id.index()),
            _ => false,
        };
        let moves = early && known.script.acts.iter().any(|act| beside(act.what));
        let moved = moves.then(|| self.beside_kernels(&known, target));
        let (script, life) =
            moved.as_ref().map_or((&known.script, &known.life), |(script, life)| (script, life));
        let mut plan = self.outline.lay(self.graph, script, life, self.sizes, self)?;
        plan.decisions = decisions;
        add_waits(&mut plan);
        Ok((plan, known))
    }

    /// Seconds of a node, beside the computation if it meets others.
    pub(crate) fn node_seconds(&self, node: usize) -> f64 {
        self.outline.seconds_over(self.graph, self.sizes, &self.options.links, node)
    }

    fn meets(&self, node: usize) -> bool {
        self.graph.nodes[node].op.def().meets()
    }

    /// Fetches earlier and stores later, and puts off what waits for collectives, where there is room.
    fn beside_kernels(&self, known: &Known, target: u64) -> (Script, Lifetimes) {
        let links = self.options.links;
        let room = Room {
            bytes: &self.bytes,
            scratch: &|node| self.scratch(node),
            seconds: &|node| self.node_seconds(node),
            meets: &|node| self.meets(node),
            link: &|from, to| per_byte(&links, from, to),
            target,
        };
        let within = |script: Script| {
            let life = lifetimes(&self.outline.sharing, &script);
            let used = profile(&script, &life, &self.bytes, room.scratch);
            used.into_iter().all(|bytes| bytes <= target).then_some((script, life))
        };
        let meets = self.graph.nodes.iter().any(|node| node.op.def().meets());
        let ways = PUT_OFF.iter().filter(|_| meets);
        let put_off =
            ways.map(|&most| put_off(self.graph, (&known.script, &known.life), &room, most)).find_map(within);
        let (script, life) = put_off.as_ref().map_or((&known.script, &known.life), |(s, l)| (s, l));
        let early = within(fetch_early(script, life, &room));
        let (script, mut life) = early.unwrap_or_else(|| (script.clone(), life.clone()));
        store_late(&script, &mut life, &room);
        (script, life)
    }
}
