//! What stays on the device and what does not, so that no act needs more than the budget: for every value
//! between two of its uses, keep it, compute it again, or let it wait in another tier, whichever frees
//! the bytes at least cost. Where most is wanting the cheapest seconds per byte are spent first; then
//! what turned out not to be needed is taken back.

mod price;

use crate::layout::aligned;
use crate::lifetime::{Lifetimes, lifetimes};
use crate::order::Readers;
use crate::outline::profile;
use crate::plan::{Choice, Decision, Tier};
use crate::rewrite::{Base, Choices, NEVER, rewrite_or_all};
use crate::script::{Script, VersionId, What};

/// Smaller values stay: they free next to nothing, and each costs an act.
const TINY: u64 = 256;
/// Rounds of choosing and looking at the result.
const ROUNDS: usize = 64;

/// Far-reaching candidates that are tried before giving up.
const TRIES: usize = 16;
/// Seconds, so small that they only tell candidates apart that cost nothing.
const MARK: f64 = 1e-9;

/// Ways to look at it: whether to leave alone what would have others computed sooner than they are needed,
/// whether all acts at which something is wanting count the same, whether what comes for free counts; and the
/// share added to the step up to which no further way is tried.
const STARTS: [(Way, f64); 5] = [
    (Way { near: false, flat: false, riders: true }, 0.02),
    (Way { near: false, flat: false, riders: false }, 0.08),
    (Way { near: true, flat: false, riders: true }, 0.0),
    (Way { near: false, flat: true, riders: true }, 0.0),
    (Way { near: true, flat: true, riders: true }, 0.0),
];

/// See [`STARTS`].
#[derive(Clone, Copy)]
struct Way {
    near: bool,
    flat: bool,
    riders: bool,
}

/// What the choice is made with.
pub struct Terms<'a> {
    /// Who reads what.
    pub readers: &'a Readers,
    /// Slices of the batch.
    pub partials: u32,
    /// Bytes of one instance of each value.
    pub bytes: &'a [u64],
    /// Working memory by node.
    pub scratch: &'a dyn Fn(usize) -> u64,
    /// Seconds by act of the base.
    pub seconds: &'a [f64],
    /// Seconds by node.
    pub node: &'a dyn Fn(usize) -> f64,
    /// Seconds to let a byte wait in host memory and have it back, and likewise on disk; none where there
    /// is no such tier. Only what cannot be hidden behind kernels should count.
    pub away: [Option<(Choice, f64)>; 2],
    /// Whether values may be computed again.
    pub recompute: bool,
    /// Bytes of the other tiers, host first.
    pub room: [u64; 2],
}

/// What was chosen, and the script that carries it out.
pub struct Chosen {
    /// What is done with every version.
    pub choices: Choices,
    /// With what reason.
    pub decisions: Vec<Decision>,
    /// The script.
    pub script: Script,
    /// Where its versions live.
    pub life: Lifetimes,
    /// Device bytes in use during each of its acts.
    pub profile: Vec<u64>,
}

/// The budget cannot be met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short {
    /// Bytes that would be enough.
    pub enough: u64,
}

/// A way to free bytes: a version between two of its uses, or a weight or state whenever it is not used.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    version: VersionId,
    /// Index into [`Base::uses`].
    gap: usize,
    /// Acts between which the bytes are free, both exclusive.
    from: u32,
    to: u32,
    bytes: u64,
    taken: bool,
    barred: bool,
}

/// Chooses from `choices` on, which may already say something, until no act needs more than `target`.
/// Several ways of looking at costs are tried, and the best result is taken.
pub fn fit(base: &Base, terms: &Terms, choices: &Choices, target: u64) -> Result<Chosen, Short> {
    let mut best: Result<(f64, Chosen), Short> = Err(Short { enough: u64::MAX });
    for (way, little) in STARTS {
        let found = fit_one(base, terms, choices.clone(), target, way);
        best = match (best, found) {
            (Ok(a), Ok(b)) => Ok(if b.0 < a.0 { b } else { a }),
            (Ok(found), Err(_)) | (Err(_), Ok(found)) => Ok(found),
            (Err(a), Err(b)) => Err(Short { enough: a.enough.min(b.enough) }),
        };
        let least: f64 = terms.seconds.iter().sum();
        if !terms.recompute || best.as_ref().is_ok_and(|(cost, _)| *cost <= least * (1.0 + little)) {
            break;
        }
    }
    best.map(|(_, chosen)| chosen)
}

/// One way.
fn fit_one(
    base: &Base,
    terms: &Terms,
    choices: Choices,
    target: u64,
    way: Way,
) -> Result<(f64, Chosen), Short> {
    let mut search = Search::new(base, terms, choices, target, way.near);
    (search.flat, search.riding) = (way.flat, way.riders);
    let mut best: Option<Chosen> = None;
    let mut least = u64::MAX;
    for _ in 0..ROUNDS {
        let now = search.look();
        let peak = now.profile.iter().copied().max().unwrap_or(0);
        if peak <= target {
            best = Some(now);
            break;
        }
        least = least.min(peak);
        if !search.choose() && !search.reach_back() && !search.let_go(&now) {
            return Err(Short { enough: least });
        }
    }
    let Some(found) = best else { return Err(Short { enough: least }) };
    let taken = search.choices.clone();
    if search.take_back() {
        let lean = search.look();
        if lean.profile.iter().all(|&bytes| bytes <= target) {
            return Ok((search.cost(&lean.script), search.explain(lean)));
        }
        search.choices = taken;
    }
    Ok((search.cost(&found.script), search.explain(found)))
}

struct Search<'a> {
    base: &'a Base<'a>,
    terms: &'a Terms<'a>,
    choices: Choices,
    target: u64,
    candidates: Vec<Candidate>,
    /// Bytes wanting at each act of the base; negative where some are to spare.
    over: Vec<i64>,
    /// Sums of what is wanting before each act.
    wanting: Vec<f64>,
    /// How many outputs of an act are to be computed again.
    reran: Vec<u32>,
    /// The act before which that happens first.
    revived: Vec<u32>,
    /// Bytes in use in host memory and on disk at each act.
    beside: [Vec<u64>; 2],
    /// Whether no computation may reach back over others that are done again later, so that a longer
    /// stretch of the graph would be computed at once.
    near: bool,
    /// Whether all acts at which something is wanting count the same, or by how much it is.
    flat: bool,
    /// Whether what comes for free when an act is run again counts for it.
    riding: bool,
    /// The least each candidate cost for what it freed when it was last looked at, and how much more than
    /// its own bytes that was.
    costs: Vec<Option<(f64, f64)>>,
    /// Where the candidates of each version begin.
    offered: Vec<u32>,
    /// The acts that the candidate looked at last has run again.
    closure: Vec<u32>,
    /// What else could be let go for nothing then.
    riders: Vec<usize>,
    seen: Vec<u32>,
    mark: u32,
    stack: Vec<VersionId>,
}

impl<'a> Search<'a> {
    fn new(
        base: &'a Base<'a>,
        terms: &'a Terms<'a>,
        choices: Choices,
        target: u64,
        near: bool,
    ) -> Search<'a> {
        let acts = base.script.acts.len();
        let mut search = Search {
            base,
            terms,
            choices,
            target,
            candidates: Vec::new(),
            over: vec![0; acts],
            wanting: vec![0.0; acts + 1],
            reran: vec![0; acts],
            revived: vec![NEVER; acts],
            beside: [vec![0; acts + 1], vec![0; acts + 1]],
            near,
            flat: false,
            riding: true,
            costs: Vec::new(),
            offered: Vec::with_capacity(base.script.versions.len() + 1),
            closure: Vec::new(),
            riders: Vec::new(),
            seen: vec![0; acts],
            mark: 0,
            stack: Vec::new(),
        };
        for v in 0..base.script.versions.len() as u32 {
            search.offered.push(search.candidates.len() as u32);
            search.offer(v);
        }
        search.offered.push(search.candidates.len() as u32);
        search.costs.resize(search.candidates.len(), None);
        search
    }

    fn offer(&mut self, v: VersionId) {
        let (base, i) = (self.base, v as usize);
        let version = base.script.versions[i];
        let bytes = aligned(self.terms.bytes[version.of.value.index()]);
        if bytes < TINY {
            return;
        }
        let home = self.choices.homes[i];
        if version.input && (!base.persistent[i] || home == Tier::Device) {
            return;
        }
        let uses = base.uses(v);
        for (k, pair) in uses.windows(2).enumerate() {
            let gap = base.first[i] as usize + k;
            let (from, to) = (pair[0], pair[1]);
            let taken = self.choices.gaps[gap] != Choice::Keep;
            if to - from > 1 {
                self.candidates.push(Candidate { version: v, gap, from, to, bytes, taken, barred: false });
                if taken {
                    self.count(self.candidates.len() - 1, true);
                }
            }
        }
        if base.persistent[i] {
            let all = 0..=base.script.acts.len() as u32;
            self.hold(home, all, bytes, true);
        }
    }

    /// Takes note of a choice, or of its withdrawal.
    fn count(&mut self, candidate: usize, add: bool) {
        let c = self.candidates[candidate];
        let tier = match self.choices.gaps[c.gap] {
            Choice::Recompute => {
                let act = self.base.producer[c.version as usize] as usize;
                self.reran[act] = if add { self.reran[act] + 1 } else { self.reran[act].saturating_sub(1) };
                self.revived[act] = match self.reran[act] {
                    0 => NEVER,
                    _ => self.revived[act].min(c.to),
                };
                return;
            }
            Choice::Host => Tier::Host,
            Choice::Disk => Tier::Disk,
            Choice::Keep => return,
        };
        if !self.base.persistent[c.version as usize] {
            self.hold(tier, c.from..=c.to, c.bytes, add);
        }
    }

    fn hold(&mut self, tier: Tier, acts: std::ops::RangeInclusive<u32>, bytes: u64, add: bool) {
        let held = match tier {
            Tier::Device => return,
            Tier::Host => &mut self.beside[0],
            Tier::Disk => &mut self.beside[1],
        };
        for t in acts {
            let held = &mut held[t as usize];
            *held = if add { *held + bytes } else { held.saturating_sub(bytes) };
        }
    }

    /// Carries out the choices, barring what cannot be, and sees what is wanting.
    fn look(&mut self) -> Chosen {
        let (base, terms) = (self.base, self.terms);
        let script = loop {
            match rewrite_or_all(base, &self.choices) {
                Ok(script) => break script,
                Err(all) => all.iter().for_each(|impossible| self.bar(impossible.gap)),
            }
        };
        let life = lifetimes(base.graph, terms.readers, &script, terms.partials);
        let profile = profile(&script, &life, terms.bytes, terms.scratch);
        self.over.fill(i64::MIN / 2);
        for (act, &bytes) in script.acts.iter().zip(&profile) {
            let over = &mut self.over[act.base as usize];
            *over = (*over).max(bytes as i64 - self.target as i64);
        }
        Chosen { choices: self.choices.clone(), decisions: Vec::new(), script, life, profile }
    }

    /// A value that was let go cannot be had back in time: it stays.
    fn bar(&mut self, gap: usize) {
        match self.candidates.iter().position(|c| c.gap == gap && c.taken) {
            Some(at) => {
                self.count(at, false);
                (self.candidates[at].taken, self.candidates[at].barred) = (false, true);
                self.choices.gaps[gap] = Choice::Keep;
            }
            // It is not this value but what it is made of that is missing: nothing is computed again.
            None => {
                for at in 0..self.candidates.len() {
                    let c = self.candidates[at];
                    if self.choices.gaps[c.gap] == Choice::Recompute {
                        self.count(at, false);
                        (self.candidates[at].taken, self.candidates[at].barred) = (false, true);
                        self.choices.gaps[c.gap] = Choice::Keep;
                    }
                }
            }
        }
    }

    /// Chooses until nothing seems to be wanting; false if there was nothing to choose.
    fn choose(&mut self) -> bool {
        let mut progress = false;
        self.costs.clear();
        self.costs.resize(self.candidates.len(), None);
        while self.one().is_some() {
            progress = true;
        }
        progress
    }

    /// Takes the best candidate where most is wanting, if anything is and there is one.
    fn one(&mut self) -> Option<usize> {
        let mut sum = 0.0;
        let (mut worst, mut most) = (0, 0);
        for (t, &over) in self.over.iter().enumerate() {
            self.wanting[t] = sum;
            if over > 0 {
                sum += if self.flat { 1.0 } else { over as f64 };
                if over > most {
                    (worst, most) = (t as u32, over);
                }
            }
        }
        self.wanting[self.over.len()] = sum;
        if most <= 0 {
            return None;
        }
        let (at, choice) = self.cheapest(worst, most as f64)?;
        let c = self.candidates[at];
        let back = self.back(&c, choice);
        self.riders.clear();
        if choice == Choice::Recompute && self.again(&c).is_some() {
            self.find_riders(&c, worst, back);
        }
        self.take(at, choice, back);
        for k in 0..self.riders.len() {
            self.take(self.riders[k], Choice::Recompute, back);
            // It is there again as soon as what it comes with.
            let act = self.base.producer[self.candidates[self.riders[k]].version as usize] as usize;
            self.revived[act] = self.revived[act].min(back);
        }
        Some(at)
    }

    fn take(&mut self, at: usize, choice: Choice, back: u32) {
        let c = self.candidates[at];
        let back = back.min(c.to);
        self.candidates[at].taken = true;
        self.choices.gaps[c.gap] = choice;
        self.count(at, true);
        for over in &mut self.over[c.from as usize + 1..back as usize] {
            *over -= c.bytes as i64;
        }
    }

    /// The candidates that cover an act and are results of what is run again for another, just looked at.
    fn find_riders(&mut self, c: &Candidate, worst: u32, back: u32) {
        self.riders.clear();
        if !self.riding {
            return;
        }
        let base = self.base;
        for &act in &self.closure {
            let (reads, writes) = base.script.sides(base.graph, act as usize);
            let until = reads.iter().map(|&r| base.overwritten[r as usize]).min().unwrap_or(NEVER);
            for &v in writes.iter().filter(|&&v| base.again[v as usize]) {
                for at in self.offered[v as usize] as usize..self.offered[v as usize + 1] as usize {
                    let other = &self.candidates[at];
                    let covers = other.from < worst && worst < other.to && back <= other.to;
                    let free = !other.taken && !other.barred && other.gap != c.gap;
                    if covers && free && other.to <= until {
                        self.riders.push(at);
                    }
                }
            }
        }
    }

    /// The candidate that covers an act and frees what is wanting at least cost, and how.
    fn cheapest(&mut self, worst: u32, most: f64) -> Option<(usize, Choice)> {
        let mut best: Option<(f64, usize, Choice)> = None;
        for at in 0..self.candidates.len() {
            let c = self.candidates[at];
            if c.taken || c.barred || c.from >= worst || worst >= c.to {
                continue;
            }
            let gain = |search: &Search, c: &Candidate, back: u32| {
                let useful = (c.bytes as f64 / most).min(1.0);
                (search.wanting[back as usize] - search.wanting[c.from as usize + 1]) * useful
            };
            // What it costs changes with what else is chosen; it is looked at again if it may win.
            if let (Some((known, more)), Some((least, ..))) = (self.costs[at], best)
                && (known + MARK) / (gain(self, &c, c.to) * more) >= least
            {
                continue;
            }
            let prices = self.prices(&c);
            let own = gain(self, &c, c.to);
            let mut cheapest: Option<(f64, f64)> = None;
            for (choice, seconds) in prices.into_iter().flatten() {
                let back = self.back(&c, choice);
                if worst >= back {
                    continue;
                }
                let mut freed = gain(self, &c, back);
                if choice == Choice::Recompute {
                    self.find_riders(&c, worst, back);
                    freed += self.riders.iter().map(|&r| gain(self, &self.candidates[r], back)).sum::<f64>();
                }
                let rank = (seconds + MARK) / freed;
                if cheapest.is_none_or(|(s, f)| rank < (s + MARK) / (own * f)) {
                    cheapest = Some((seconds, freed / own));
                }
                if best.is_none_or(|(least, ..)| rank < least) {
                    best = Some((rank, at, choice));
                }
            }
            self.costs[at] = cheapest;
        }
        best.map(|(_, at, choice)| (at, choice))
    }

    /// Where nothing near is left to choose: the cheapest that does help, however far it reaches back.
    fn reach_back(&mut self) -> bool {
        let wanting = |over: &[i64]| over.iter().map(|&over| over.max(0)).sum::<i64>();
        let before = wanting(&self.over);
        let over = self.over.clone();
        for _ in 0..TRIES {
            let near = std::mem::replace(&mut self.near, false);
            self.costs.fill(None);
            let found = self.one();
            self.near = near;
            let Some(at) = found else { return false };
            self.look();
            if self.candidates[at].taken && wanting(&self.over) < before {
                return true;
            }
            if self.candidates[at].taken {
                self.count(at, false);
            }
            (self.candidates[at].taken, self.candidates[at].barred) = (false, true);
            self.choices.gaps[self.candidates[at].gap] = Choice::Keep;
            self.over.clone_from(&over);
        }
        false
    }

    /// If too much is brought back at once for the sake of one value, the largest of it is let go again.
    fn let_go(&mut self, now: &Chosen) -> bool {
        let Some((worst, _)) = now.profile.iter().enumerate().max_by_key(|(_, bytes)| **bytes) else {
            return false;
        };
        let at = now.script.acts[worst].base;
        let mut largest: Option<(u64, usize)> = None;
        for c in self.candidates.iter().filter(|c| c.taken && c.from < at && at < c.to) {
            let v = c.version as usize;
            let again = self.choices.gaps[c.gap] == Choice::Recompute;
            if again && !self.choices.fleeting[v] && largest.is_none_or(|(bytes, _)| c.bytes > bytes) {
                largest = Some((c.bytes, v));
            }
        }
        if let Some((_, v)) = largest {
            self.choices.fleeting[v] = true;
        }
        largest.is_some()
    }

    /// Withdraws choices that are not needed, the dearest first; whether there were any. All that is there
    /// again because one act is run again stays together, or nothing is gained.
    fn take_back(&mut self) -> bool {
        let mut dear: Vec<(f64, u32, usize)> = Vec::new();
        for (at, c) in self.candidates.iter().enumerate().filter(|(_, c)| c.taken) {
            let act = self.base.producer[c.version as usize];
            dear.push(match self.choices.gaps[c.gap] {
                Choice::Recompute => (self.terms.seconds[act as usize], act, at),
                choice => {
                    let price = self.terms.away.iter().flatten().find(|(other, _)| *other == choice);
                    (price.map_or(0.0, |(_, seconds)| seconds * c.bytes as f64), NEVER, at)
                }
            });
        }
        dear.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
        let mut any = false;
        for together in dear.chunk_by(|a, b| a.1 == b.1 && a.1 != NEVER) {
            let mut fits = true;
            for (k, &(_, _, at)) in together.iter().enumerate() {
                fits &= self.occupy(at, 1);
                if !fits {
                    together[..=k].iter().for_each(|&(_, _, at)| {
                        self.occupy(at, -1);
                    });
                    break;
                }
            }
            if fits {
                any = true;
                for &(_, _, at) in together {
                    self.count(at, false);
                    self.candidates[at].taken = false;
                    self.choices.gaps[self.candidates[at].gap] = Choice::Keep;
                }
            }
        }
        any
    }

    /// Adds the bytes of a candidate to what is in use, or takes them off; whether nothing is wanting then.
    fn occupy(&mut self, at: usize, sign: i64) -> bool {
        let c = self.candidates[at];
        let between = &mut self.over[c.from as usize + 1..c.to as usize];
        between.iter_mut().for_each(|over| *over += sign * c.bytes as i64);
        between.iter().all(|over| *over <= 0)
    }
}

/// Seconds of every act of a script: kernels by `node`, sums and copies by their bytes.
pub fn seconds(script: &Script, bytes: &[u64], node: impl Fn(usize) -> f64) -> Vec<f64> {
    let copied = |v: VersionId| bytes[script.versions[v as usize].of.value.index()] as f64 / 8e9;
    let of = |t: usize| match script.acts[t].what {
        What::Run(id, _) => node(id.index()),
        What::Add | What::Carry | What::Move => copied(script.refs(t)[0]),
    };
    (0..script.acts.len()).map(of).collect()
}
