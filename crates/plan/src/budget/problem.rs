//! One planning problem: an outline, the sizes of one input and options, with the bytes and seconds that follow from
//! them. Chooses what does not stay; [`finish`](crate::budget::finish) makes a plan of it.

use crate::budget::choices::Choices;
use crate::budget::choose::{ChoiceTerms, Rewritten, Selection, Shortfall, fit, refine, seconds};
use crate::document::error::PlanError;
use crate::document::plan::{Choice, Tier};
use crate::document::residence::Residence;
use crate::step::base::Base;
use crate::step::lifetime::profile;
use crate::step::options::PlanOptions;
use crate::step::outline::{BoundSizes, Outline};
use crate::step::script::{VersionId, copies};
use crate::time::simulate::per_byte;
use gulliver_graph::graph::{Graph, Role, Value, ValueInfo};
use std::cell::Cell;

/// A gap longer than this many times the seconds of a fetch lets a weight leave the device from the start.
const SOON: f64 = 16.0;

/// How long to look for a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// As long as one of many that are compared is worth.
    Quick,
    /// As long as the plan of many steps is worth.
    Thorough,
}

/// See [`Problem::new`].
pub(crate) struct Problem<'a> {
    pub(crate) outline: &'a Outline,
    pub(crate) graph: &'a Graph,
    pub(crate) sizes: &'a BoundSizes,
    pub(crate) options: &'a PlanOptions<'a>,
    /// How long to look for a plan.
    pub(crate) effort: Effort,
    /// Where persistent inputs are between steps, in the graph's order.
    pub(crate) places: Vec<Option<Residence>>,
    pub(crate) bytes: Vec<u64>,
    /// Seconds by act of the outline's script.
    seconds: Vec<f64>,
    /// The observer said stop.
    stopped: Cell<bool>,
}

impl<'a> Problem<'a> {
    /// The problem of planning one step for inputs of these sizes. Fails if the options have no residence for one of the
    /// graph's weights or states.
    pub(crate) fn new(
        outline: &'a Outline,
        graph: &'a Graph,
        sizes: &'a BoundSizes,
        options: &'a PlanOptions<'a>,
    ) -> Result<Problem<'a>, PlanError> {
        let bytes: Vec<u64> = outline.kinds.type_of.iter().map(|&k| sizes.bytes[k as usize]).collect();
        let seconds = seconds(&outline.script, &bytes, |node| outline.seconds(sizes, node));
        let place = |(_, role, info): (Value, Role, &ValueInfo)| {
            let residence = options.persistent.residences.get(&info.name).copied();
            match role.persists() {
                true => residence.map(Some).ok_or_else(|| PlanError::NotPersistent(info.name.clone())),
                false => Ok(None),
            }
        };
        let places = graph.inputs().map(place).collect::<Result<_, _>>()?;
        let stopped = Cell::new(false);
        Ok(Problem {
            outline,
            graph,
            sizes,
            options,
            effort: Effort::Thorough,
            places,
            bytes,
            seconds,
            stopped,
        })
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

    /// Choices in which values that reside elsewhere leave the device, unless their next use is soon relative to the time
    /// of a fetch.
    pub(crate) fn away_at_first(&self, base: &Base) -> Choices {
        let mut choices = Choices::keep(base, self.residences());
        let mut begins = Vec::with_capacity(self.seconds.len());
        let mut now = 0.0;
        for seconds in &self.seconds {
            begins.push(now);
            now += seconds;
        }
        for v in 0..base.script.versions.len() {
            let tier = choices.residences[v];
            if tier == Tier::Device {
                continue;
            }
            let bytes = self.bytes[base.script.versions[v].of.value.index()] as f64;
            let fetch = bytes * per_byte(&self.options.links, tier, Tier::Device);
            for gap in base.first[v] as usize..(base.first[v + 1] as usize).saturating_sub(1) {
                let [from, to] = [0, 1].map(|i| base.uses[gap + i] as usize);
                if from + 1 < to && begins[to] - begins[from + 1] > SOON * fetch {
                    choices.gaps[gap] = tier.into();
                }
            }
        }
        choices
    }

    /// Fails only if the observer said stop meanwhile.
    fn with_terms<T>(&self, room: [u64; 2], call: impl FnOnce(&ChoiceTerms) -> T) -> Result<T, PlanError> {
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
        let found = call(&ChoiceTerms {
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
        polish: bool,
    ) -> Result<Result<Selection, Shortfall>, PlanError> {
        self.with_terms(room, |terms| fit(base, terms, start, target, polish))
    }

    /// Adapts choices made for other sizes.
    pub(crate) fn refine(
        &self,
        base: &Base,
        known: &Rewritten,
        target: u64,
        room: [u64; 2],
    ) -> Result<Result<Selection, Shortfall>, PlanError> {
        self.with_terms(room, |terms| refine(base, terms, known, target))
    }

    /// Most device bytes in use at once if everything stays.
    pub(crate) fn need(&self) -> u64 {
        let needs = profile(&self.outline.script, &self.outline.life, &self.bytes, |node| self.scratch(node));
        needs.into_iter().max().unwrap_or(0)
    }

    /// The choices that need least, as far as they can be found.
    pub(crate) fn least(&self, base: &Base, start: &Choices) -> Result<Selection, PlanError> {
        let room = self.beside();
        let (mut target, mut best) = (0, None);
        // Each failure says how little was enough on the way to it.
        for _ in 0..8 {
            match self.fit(base, start, target, room, false)? {
                Ok(chosen) => {
                    best = Some(chosen);
                    break;
                }
                Err(Shortfall { enough }) if enough > target => target = enough,
                Err(Shortfall { enough }) => target = enough + enough / 50 + 64,
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

    /// Seconds of a node, beside the computation if it meets others.
    pub(crate) fn node_seconds(&self, node: usize) -> f64 {
        self.outline.seconds_over(self.graph, self.sizes, &self.options.links, node)
    }

    /// Whether a node exchanges values with other devices.
    pub(crate) fn meets(&self, node: usize) -> bool {
        self.graph.nodes[node].op.def().meets()
    }
}
