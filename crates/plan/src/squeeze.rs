//! Plans that keep within a budget. What is needed is compared with what there is; if it is too much, the
//! [budget](crate::budget) says what does not stay, [moves](crate::overlap) are put beside kernels, and the
//! result is laid out. Layout loses some bytes; if they break the budget, less is aimed at.

use crate::budget::{Chosen, Short, Terms, fit, seconds};
use crate::lifetime::lifetimes;
use crate::make::{Options, Persistent, PlanError, holders};
use crate::outline::{Outline, Sizes, profile};
use crate::overlap::{Room, fetch_early, store_late};
use crate::plan::{Act, Choice, Decision, Plan, Tier};
use crate::rewrite::{Base, Choices, rewrite};
use crate::script::{Script, Version, VersionId, What};
use crate::simulate::{per_byte, simulate};
use crate::wait::add_waits;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, NodeId, Origin, Role, Value, ValueInfo};

/// Moves that start early need room; where it is scarce they start when they must. What is chosen for less
/// than the budget, in hundredths, may fit where what was chosen for all of it does not.
const WAYS: [(bool, u64); 7] =
    [(true, 100), (false, 100), (false, 97), (false, 93), (false, 87), (false, 80), (false, 70)];
/// What is used again within so many times the seconds of its fetch is not sent away without need.
const SOON: f64 = 16.0;
/// What is kept on the device may leave room for moves that start early: shares of the budget that are filled
/// with what is kept, and with moves too, in hundredths.
const ROOMY: [(u64, u64); 4] = [(88, 100), (88, 94), (75, 100), (75, 90)];
/// Attempts to lay a script out in less than it needs at least.
const ATTEMPTS: usize = 12;

impl Outline {
    /// The plan for inputs of these sizes (of the whole batch), within the budgets. Graph and partials must
    /// be those the outline was made for.
    pub fn plan(&self, graph: &Graph, sizes: &Bindings, options: &Options) -> Result<Plan, PlanError> {
        let sizes = self.sizes(graph, sizes, options)?;
        let all_here = options.persistent.homes.values().all(|home| home.tier == Tier::Device);
        let budget = options.memory.unwrap_or(u64::MAX);
        if all_here {
            let plan = self.lay(graph, &self.script, &self.life, &sizes, options)?;
            if plan.spaces[Tier::Device as usize].bytes <= budget {
                return Ok(plan);
            }
        }
        let plan = self.squeeze(graph, &sizes, options, budget)?;
        match plan.steps.iter().any(|step| matches!(step.act, Act::Move { .. })) {
            true => self.roomier(graph, &sizes, options, budget, plan),
            false => Ok(plan),
        }
    }

    /// The plan, or one that keeps less so that moves can start earlier, if it takes less time.
    fn roomier(
        &self,
        graph: &Graph,
        sizes: &Sizes,
        options: &Options,
        budget: u64,
        plan: Plan,
    ) -> Result<Plan, PlanError> {
        let view = View::new(self, graph, sizes, options);
        let base = view.base();
        let start = view.away_at_first(&base, view.homes(&base, options.persistent)?);
        let beside = [options.beside.host.unwrap_or(u64::MAX), options.beside.disk.unwrap_or(0)];
        let limits = [budget, beside[0], beside[1]];
        let seconds = |plan: &Plan| {
            simulate(plan, |id: NodeId| self.seconds(sizes, id.index()), &options.links).seconds
        };
        let mut best = (seconds(&plan), plan);
        for (kept, used) in ROOMY {
            let share = |hundredths: u64| (u128::from(budget) * u128::from(hundredths) / 100) as u64;
            let Ok(chosen) = view.fit(&base, &start, share(kept), beside) else { continue };
            let plan = view.finish(chosen.script, chosen.decisions, share(used), true)?;
            let fits = plan.spaces.iter().zip(limits).all(|(space, limit)| space.bytes <= limit);
            let taken = seconds(&plan);
            if fits && taken < best.0 {
                best = (taken, plan);
            }
        }
        Ok(best.1)
    }

    /// The plan that carries out choices made elsewhere, whatever it needs: `choose` is given the script
    /// in which everything stays, with all that is at home elsewhere away while it is not used.
    pub fn plan_with(
        &self,
        graph: &Graph,
        sizes: &Bindings,
        options: &Options,
        choose: impl FnOnce(&Base, Choices) -> Choices,
    ) -> Result<Plan, PlanError> {
        let sizes = self.sizes(graph, sizes, options)?;
        let view = View::new(self, graph, &sizes, options);
        let base = view.base();
        let start = view.away_at_first(&base, view.homes(&base, options.persistent)?);
        let choices = choose(&base, start);
        let script =
            rewrite(&base, &choices).map_err(|e| PlanError::Impossible(view.name(&base, e.wanted)))?;
        view.finish(script, Vec::new(), options.memory.unwrap_or(u64::MAX), true)
    }

    /// The plan of a script written elsewhere from the one in which everything stays, whatever it needs; none
    /// if there is no such script.
    pub fn plan_script(
        &self,
        graph: &Graph,
        sizes: &Bindings,
        options: &Options,
        write: impl FnOnce(&Base) -> Option<Script>,
    ) -> Result<Option<Plan>, PlanError> {
        let sizes = self.sizes(graph, sizes, options)?;
        let view = View::new(self, graph, &sizes, options);
        let script = write(&view.base());
        script.map(|script| view.finish(script, Vec::new(), 0, false)).transpose()
    }

    /// Whether a budget will do must not depend on how fast a machine was measured to be: where the prices
    /// at hand lead nowhere, ordinary ones are tried.
    fn squeeze(
        &self,
        graph: &Graph,
        sizes: &Sizes,
        options: &Options,
        budget: u64,
    ) -> Result<Plan, PlanError> {
        let failed = match self.squeeze_at(graph, sizes, options, budget) {
            Err(e @ (PlanError::DoesNotFit { .. } | PlanError::TierFull { .. })) => e,
            made => return made,
        };
        let ordinary = options.at_ordinary_prices();
        let again = self.squeeze_at(graph, &self.priced(sizes, &ordinary), &ordinary, budget);
        again.map_err(|_| failed)
    }

    fn squeeze_at(
        &self,
        graph: &Graph,
        sizes: &Sizes,
        options: &Options,
        budget: u64,
    ) -> Result<Plan, PlanError> {
        let options = &Options { memory: Some(budget).filter(|b| *b < u64::MAX), ..*options };
        let view = View::new(self, graph, sizes, options);
        let base = view.base();
        let homes = view.homes(&base, options.persistent)?;
        let start = view.away_at_first(&base, homes);
        let beside = [options.beside.host.unwrap_or(u64::MAX), options.beside.disk.unwrap_or(0)];
        let (mut least, mut full) = (u64::MAX, None);
        let mut moves = true;
        for (early, share) in WAYS {
            // Without moves none can start early, and all has been tried.
            if !moves && share == 100 {
                continue;
            }
            let (mut target, mut room) = (budget / 100 * share + budget % 100 * share / 100, beside);
            for _ in 0..ATTEMPTS {
                let (plan, live) = match view.fit(&base, &start, target, room) {
                    Ok(chosen) => {
                        moves = chosen.script.acts.iter().any(|act| act.what == What::Move);
                        let live = chosen.profile.iter().copied().max().unwrap_or(0);
                        (view.finish(chosen.script, chosen.decisions, target, early)?, live)
                    }
                    Err(Short { enough }) => {
                        least = least.min(enough.max(budget + 1));
                        break;
                    }
                };
                let needed: Vec<u64> = plan.spaces.iter().map(|space| space.bytes).collect();
                let over = |place: usize| needed[place + 1].saturating_sub(beside[place]);
                if needed[0] <= budget && over(0) == 0 && over(1) == 0 {
                    return Ok(plan);
                }
                if needed[0] > budget {
                    least = least.min(needed[0]);
                    // Less than what it came to, or the same would be chosen again.
                    target = target.min(live).saturating_sub((needed[0] - budget).max(64));
                }
                for place in [0, 1].into_iter().filter(|&place| over(place) > 0) {
                    let (tier, needed) = (plan.spaces[place + 1].name.clone(), needed[place + 1]);
                    full = Some(PlanError::TierFull { tier, needed, budget: beside[place] });
                    room[place] = room[place].saturating_sub(over(place).max(64));
                }
            }
        }
        // What needs least may do where what was chosen for the budget does not.
        let Chosen { script, decisions, .. } = view.least(&base, &start);
        let plan = view.finish(script, decisions, 0, false)?;
        let needed = |tier: Tier| plan.spaces[tier as usize].bytes;
        if needed(Tier::Device) <= budget
            && needed(Tier::Host) <= beside[0]
            && needed(Tier::Disk) <= beside[1]
        {
            return Ok(plan);
        }
        if let Some(full) = full.filter(|_| least == u64::MAX) {
            return Err(full);
        }
        let least = least.min(needed(Tier::Device).max(budget + 1));
        Err(PlanError::DoesNotFit { needed: least, budget, holders: holders(graph, &plan) })
    }

    /// The smallest budget of the device that will do for these sizes, with weights and states where they
    /// are; found by trying, to within a hundredth.
    pub fn smallest(&self, graph: &Graph, sizes: &Bindings, options: &Options) -> Result<u64, PlanError> {
        let options = &options.at_ordinary_prices();
        let sizes = self.sizes(graph, sizes, options)?;
        let view = View::new(self, graph, &sizes, options);
        let base = view.base();
        let homes = view.homes(&base, options.persistent)?;
        let start = view.away_at_first(&base, homes);
        let chosen = view.least(&base, &start);
        let mut low = chosen.profile.iter().copied().max().unwrap_or(0) / 2;
        let mut high = view.finish(chosen.script, chosen.decisions, 0, false)?.spaces[0].bytes;
        // Other tiers may be too small for what needs least.
        while let Err(e) = self.squeeze_at(graph, &sizes, options, high) {
            match e {
                PlanError::DoesNotFit { .. } | PlanError::TierFull { .. } if high < u64::MAX / 2 => {
                    (low, high) = (high, high + high / 8 + 64);
                }
                e => return Err(e),
            }
        }
        while high.saturating_sub(low) > (high / 200).max(64) {
            let middle = low + (high - low) / 2;
            match self.squeeze_at(graph, &sizes, options, middle) {
                Ok(_) => high = middle,
                Err(PlanError::DoesNotFit { .. } | PlanError::TierFull { .. }) => low = middle,
                Err(e) => return Err(e),
            }
        }
        Ok(high)
    }

    /// Where weights and states should be between steps, so that inputs of these sizes can be trained on
    /// within the budgets and the step takes least time: all on the device if that is possible, else
    /// optimizer states first, then weights.
    pub fn settle(
        &self,
        graph: &Graph,
        sizes: &Bindings,
        options: &Options,
    ) -> Result<Persistent, PlanError> {
        let all: Vec<Value> = self.leaving(graph);
        let budget = options.memory.unwrap_or(u64::MAX);
        let sizes = self.sizes(graph, sizes, options)?;
        let mut tried: Vec<(usize, Option<(f64, Persistent)>)> = Vec::new();
        let mut reason = None;
        let mut attempt = |away: usize, tried: &mut Vec<(usize, Option<(f64, Persistent)>)>| {
            if let Some((_, known)) = tried.iter().find(|(n, _)| *n == away) {
                return Ok(known.is_some());
            }
            let persistent = self.with_away(graph, &all[..away], options)?;
            let Some(persistent) = persistent else {
                tried.push((away, None));
                return Ok(false);
            };
            let options = Options { persistent: &persistent, ..*options };
            let found = match self.squeeze(graph, &sizes, &options, budget) {
                Ok(plan) => {
                    let node = |id: NodeId| self.seconds(&sizes, id.index());
                    Some((simulate(&plan, node, &options.links).seconds, persistent.clone()))
                }
                Err(e @ PlanError::DoesNotFit { .. }) => {
                    reason = Some(e);
                    None
                }
                Err(e) => return Err(e),
            };
            let fits = found.is_some();
            tried.push((away, found));
            Ok(fits)
        };
        // The fewest that must be away.
        let (mut low, mut high) = (0, all.len());
        if !attempt(0, &mut tried)? {
            let elsewhere = options.beside.host != Some(0) || options.beside.disk.is_some();
            if !elsewhere || !attempt(all.len(), &mut tried)? {
                return Err(reason.unwrap_or(PlanError::NoRoom));
            }
            while high - low > 1 {
                let middle = low.midpoint(high);
                *(if attempt(middle, &mut tried)? { &mut high } else { &mut low }) = middle;
            }
            // More of them away leaves more room for what would be computed again.
            for part in 1..4 {
                attempt(high + (all.len() - high) * part / 4, &mut tried)?;
            }
        }
        let found = tried.into_iter().filter_map(|(_, found)| found);
        let best = found.min_by(|a, b| a.0.total_cmp(&b.0));
        best.map(|(_, persistent)| persistent).ok_or(PlanError::NoRoom)
    }

    /// All weights and states beside the device, if there is room for them.
    pub fn all_away(&self, graph: &Graph, options: &Options) -> Result<Option<Persistent>, PlanError> {
        self.with_away(graph, &self.leaving(graph), options)
    }

    /// Weights and states in the order in which they leave the device: states first, large ones first.
    fn leaving(&self, graph: &Graph) -> Vec<Value> {
        let persistent = graph.inputs().filter_map(|(v, role, info)| match role {
            Role::State(_) => Some((0, v, info)),
            Role::Weight(_) => Some((1, v, info)),
            _ => None,
        });
        let bytes = |info: &ValueInfo| info.ty.bytes().bind(&Bindings::new()).unwrap_or(0);
        let mut all: Vec<(i32, std::cmp::Reverse<usize>, Value)> =
            persistent.map(|(late, v, info)| (late, std::cmp::Reverse(bytes(info)), v)).collect();
        all.sort();
        all.into_iter().map(|(_, _, v)| v).collect()
    }

    /// Those values in host memory as far as there is room, the others on disk; none if there is not.
    fn with_away(
        &self,
        graph: &Graph,
        away: &[Value],
        options: &Options,
    ) -> Result<Option<Persistent>, PlanError> {
        let mut tiers = vec![Tier::Device; graph.values.len()];
        let mut left = [options.beside.host.unwrap_or(u64::MAX), options.beside.disk.unwrap_or(0)];
        for v in away {
            let bytes = graph.ty(*v).bytes().bind(&Bindings::new())? as u64;
            let taken = [Tier::Host, Tier::Disk].map(|tier| (tier, bytes.next_multiple_of(tier.grain())));
            let Some(place) = (0..2).find(|&i| taken[i].1 <= left[i]) else { return Ok(None) };
            left[place] -= taken[place].1;
            tiers[v.index()] = taken[place].0;
        }
        Ok(Some(Persistent::with(graph, |v| tiers[v.index()])?))
    }
}

/// All that choosing for one size of input needs.
struct View<'a> {
    outline: &'a Outline,
    graph: &'a Graph,
    sizes: &'a Sizes,
    options: &'a Options<'a>,
    bytes: Vec<u64>,
    /// Seconds by act of the outline's script.
    seconds: Vec<f64>,
}

impl<'a> View<'a> {
    fn new(outline: &'a Outline, graph: &'a Graph, sizes: &'a Sizes, options: &'a Options<'a>) -> View<'a> {
        let bytes: Vec<u64> = outline.kinds.type_of.iter().map(|&k| sizes.bytes[k as usize]).collect();
        let seconds = seconds(&outline.script, &bytes, |node| outline.seconds(sizes, node));
        View { outline, graph, sizes, options, bytes, seconds }
    }

    fn base(&self) -> Base<'a> {
        let persistent = |of: Value| {
            let origin = self.graph.value(of).origin;
            matches!(origin, Origin::Input(Role::Weight(_) | Role::State(_)))
        };
        Base::of(self.graph, &self.outline.script, |version| persistent(version.of.value))
    }

    fn name(&self, base: &Base, v: VersionId) -> String {
        self.graph.value(base.script.versions[v as usize].of.value).name.clone()
    }

    fn scratch(&self, node: usize) -> u64 {
        self.sizes.scratch[self.outline.kinds.kind_of[node] as usize]
    }

    fn homes(&self, base: &Base, persistent: &Persistent) -> Result<Vec<Tier>, PlanError> {
        let home = |(v, version): (usize, &Version)| {
            if !base.persistent[v] {
                return Ok(Tier::Device);
            }
            let name = &self.graph.value(version.of.value).name;
            let home = persistent.homes.get(name);
            home.map(|home| home.tier).ok_or_else(|| PlanError::NotPersistent(name.clone()))
        };
        base.script.versions.iter().enumerate().map(home).collect()
    }

    /// What is at home elsewhere is on the device only while it is used, or if it is used again soon,
    /// measured by the time it takes to fetch it.
    fn away_at_first(&self, base: &Base, homes: Vec<Tier>) -> Choices {
        let mut choices = base.keep(homes);
        let mut begins = Vec::with_capacity(self.seconds.len());
        let mut now = 0.0;
        for seconds in &self.seconds {
            begins.push(now);
            now += seconds;
        }
        for v in 0..base.script.versions.len() {
            let tier = choices.homes[v];
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

    fn fit(&self, base: &Base, start: &Choices, target: u64, room: [u64; 2]) -> Result<Chosen, Short> {
        let links = &self.options.links;
        let both = |tier| per_byte(links, Tier::Device, tier) + per_byte(links, tier, Tier::Device);
        let share = self.options.unhidden;
        let beside = &self.options.beside;
        let host = (beside.host != Some(0)).then(|| (Choice::Host, share * both(Tier::Host)));
        let disk = beside.disk.map(|_| (Choice::Disk, share * both(Tier::Disk)));
        let terms = Terms {
            readers: &self.outline.readers,
            partials: self.outline.partials,
            bytes: &self.bytes,
            scratch: &|node| self.scratch(node),
            seconds: &self.seconds,
            node: &|node| self.outline.seconds(self.sizes, node),
            away: [host, disk],
            recompute: self.options.recompute,
            room,
        };
        fit(base, &terms, start, target)
    }

    /// The choices that need least, as far as they can be found.
    fn least(&self, base: &Base, start: &Choices) -> Chosen {
        let beside = &self.options.beside;
        let room = [beside.host.unwrap_or(u64::MAX), beside.disk.unwrap_or(0)];
        let (mut target, mut best) = (0, None);
        // Each failure says how little was enough on the way to it.
        for _ in 0..8 {
            match self.fit(base, start, target, room) {
                Ok(chosen) => {
                    best = Some(chosen);
                    break;
                }
                Err(Short { enough }) if enough > target => target = enough,
                Err(Short { enough }) => target = enough + enough / 50 + 64,
            }
        }
        best.unwrap_or_else(|| match self.fit(base, start, u64::MAX / 4, room) {
            Ok(chosen) => chosen,
            Err(_) => unreachable!("nothing is wanting without a limit"),
        })
    }

    /// Puts moves beside kernels, lays everything out and says who waits for whom.
    fn finish(
        &self,
        mut script: Script,
        decisions: Vec<Decision>,
        target: u64,
        early: bool,
    ) -> Result<Plan, PlanError> {
        let mut life = lifetimes(self.graph, &self.outline.readers, &script, self.outline.partials);
        let links = self.options.links;
        let room = Room {
            graph: self.graph,
            bytes: &self.bytes,
            scratch: &|node| self.scratch(node),
            seconds: &|node| self.outline.seconds(self.sizes, node),
            link: &|from, to| per_byte(&links, from, to),
            target,
        };
        if early && script.acts.iter().any(|act| act.what == What::Move) {
            let early = fetch_early(&script, &life, &room);
            let lives = lifetimes(self.graph, &self.outline.readers, &early, self.outline.partials);
            let needs = profile(&early, &lives, &self.bytes, room.scratch);
            if needs.into_iter().all(|bytes| bytes <= target) {
                (script, life) = (early, lives);
            }
            store_late(&script, &mut life, &room);
        }
        let mut plan = self.outline.lay(self.graph, &script, &life, self.sizes, self.options)?;
        plan.decisions = decisions;
        add_waits(&mut plan);
        Ok(plan)
    }
}
