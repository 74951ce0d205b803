//! One search for choices, in rounds: candidates are ranked by seconds per byte at the act that exceeds the target most,
//! the best are taken, and the resulting script is evaluated.

use super::ChoiceTerms;
use crate::budget::choices::Choices;
use crate::budget::evaluate::ScriptEvaluation;
use crate::document::plan::{Choice, Tier};
use crate::step::base::{Base, NEVER};
use crate::step::layout::aligned;
use crate::step::progress::Activity;
use crate::step::script::VersionId;

/// Values of fewer bytes stay: they free next to nothing, and each costs an act.
pub(super) const TINY: u64 = 256;
/// Most far-reaching candidates that are tried.
const TRIES: usize = 16;
/// Seconds that order candidates which cost nothing by their bytes.
const MARK: f64 = 1e-9;

/// How a search weighs candidates.
#[derive(Clone, Copy)]
pub(super) struct SearchWay {
    /// Whether a recompute may not include nodes that are recomputed later anyway: it would recompute a longer part of
    /// the graph at once.
    pub(super) near: bool,
    /// Whether all acts above the target count the same, or in proportion to their excess.
    pub(super) flat: bool,
    /// Whether other results of a rerun act count for a candidate.
    pub(super) riders: bool,
}

/// A way to free bytes: a version between two of its uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct GapCandidate {
    pub(super) version: VersionId,
    /// Index into [`Base::uses`].
    pub(super) gap: usize,
    /// Acts between which the bytes are free, both exclusive.
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) bytes: u64,
    pub(super) taken: bool,
    pub(super) barred: bool,
}

pub(super) struct Search<'a> {
    pub(super) base: &'a Base<'a>,
    pub(super) terms: &'a ChoiceTerms<'a>,
    pub(super) choices: Choices,
    pub(super) target: u64,
    pub(super) work: &'a mut ScriptEvaluation,
    pub(super) candidates: Vec<GapCandidate>,
    /// Bytes above the target at each act of the base; negative below it.
    pub(super) over: Vec<i64>,
    /// Sum of the excess of all acts before each act.
    pub(super) wanting: Vec<f64>,
    /// By act: its outputs that are recomputed.
    pub(super) reran: Vec<u32>,
    /// By act: the first act before which that happens.
    pub(super) revived: Vec<u32>,
    /// Bytes in use in host memory and on disk at each act.
    pub(super) beside: [Vec<u64>; 2],
    /// An upper bound of these.
    pub(super) most_beside: [u64; 2],
    pub(super) way: SearchWay,
    /// By candidate: its least seconds when it was last priced, and its gain relative to that of its own bytes.
    pub(super) costs: Vec<Option<(f64, f64)>>,
    /// Where the candidates of each version begin.
    pub(super) offered: Vec<u32>,
    /// The acts that a recompute of the candidate priced last reruns.
    pub(super) closure: Vec<u32>,
    /// Candidates that this recompute frees at no cost.
    pub(super) riders: Vec<usize>,
    pub(super) seen: Vec<u32>,
    pub(super) mark: u32,
    pub(super) stack: Vec<VersionId>,
}

impl<'a> Search<'a> {
    pub(super) fn new(
        base: &'a Base<'a>,
        terms: &'a ChoiceTerms<'a>,
        choices: Choices,
        target: u64,
        way: SearchWay,
        work: &'a mut ScriptEvaluation,
    ) -> Search<'a> {
        let acts = base.script.acts.len();
        let mut search = Search {
            base,
            terms,
            choices,
            target,
            work,
            candidates: Vec::new(),
            over: vec![0; acts],
            wanting: vec![0.0; acts + 1],
            reran: vec![0; acts],
            revived: vec![NEVER; acts],
            beside: [vec![0; acts + 1], vec![0; acts + 1]],
            most_beside: [0; 2],
            way,
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
        let residence = self.choices.residences[i];
        if version.input && (!base.persistent[i] || residence == Tier::Device) {
            return;
        }
        let uses = base.uses(v);
        for (k, pair) in uses.windows(2).enumerate() {
            let gap = base.first[i] as usize + k;
            let (from, to) = (pair[0], pair[1]);
            let taken = self.choices.gaps[gap] != Choice::Keep;
            if to - from > 1 {
                self.candidates.push(GapCandidate { version: v, gap, from, to, bytes, taken, barred: false });
                if taken {
                    self.count(self.candidates.len() - 1, true);
                }
            }
        }
        if base.persistent[i] {
            let all = 0..=base.script.acts.len() as u32;
            self.hold(residence, all, bytes, true);
        }
    }

    /// Counts a choice, or its withdrawal.
    fn count(&mut self, candidate: usize, add: bool) {
        let c = self.candidates[candidate];
        let Some(tier) = self.choices.gaps[c.gap].tier() else {
            let act = self.base.producer[c.version as usize] as usize;
            self.reran[act] = if add { self.reran[act] + 1 } else { self.reran[act].saturating_sub(1) };
            self.revived[act] = match self.reran[act] {
                0 => NEVER,
                _ => self.revived[act].min(c.to),
            };
            return;
        };
        if !self.base.persistent[c.version as usize] {
            self.hold(tier, c.from..=c.to, c.bytes, add);
        }
    }

    /// Withdraws a choice; the value stays.
    fn withdraw(&mut self, at: usize) {
        self.count(at, false);
        self.candidates[at].taken = false;
        self.choices.gaps[self.candidates[at].gap] = Choice::Keep;
    }

    fn hold(&mut self, tier: Tier, acts: std::ops::RangeInclusive<u32>, bytes: u64, add: bool) {
        let place = match tier {
            Tier::Device => return,
            Tier::Host => 0,
            Tier::Disk => 1,
        };
        let (held, most) = (&mut self.beside[place], &mut self.most_beside[place]);
        for held in &mut held[*acts.start() as usize..=*acts.end() as usize] {
            *held = if add { *held + bytes } else { held.saturating_sub(bytes) };
            *most = (*most).max(*held);
        }
    }

    /// Writes the script of the choices, barring those that are impossible. The peak in bytes.
    pub(super) fn look(&mut self) -> u64 {
        let (base, terms) = (self.base, self.terms);
        while !self.work.of(base, terms.sharing, &self.choices, terms.bytes, terms.scratch) {
            for k in 0..self.work.writer.failed.len() {
                self.bar(self.work.writer.failed[k].gap);
            }
        }
        self.see()
    }

    /// Computes the excess of every act of the script. The peak in bytes.
    pub(super) fn see(&mut self) -> u64 {
        self.over.fill(i64::MIN / 2);
        for (act, &bytes) in self.work.writer.script.acts.iter().zip(&self.work.profile) {
            let over = &mut self.over[act.base as usize];
            *over = (*over).max(bytes as i64 - self.target as i64);
        }
        self.work.peak()
    }

    /// Bars a choice: the value cannot be brought back in time, so it stays.
    fn bar(&mut self, gap: usize) {
        match self.candidates.iter().position(|c| c.gap == gap && c.taken) {
            Some(at) => {
                self.withdraw(at);
                self.candidates[at].barred = true;
            }
            // One of its operands is missing: nothing is recomputed.
            None => {
                for at in 0..self.candidates.len() {
                    if self.choices.gaps[self.candidates[at].gap] == Choice::Recompute {
                        self.withdraw(at);
                        self.candidates[at].barred = true;
                    }
                }
            }
        }
    }

    /// Takes candidates until no act seems to exceed the target; false if there was none to take.
    pub(super) fn choose(&mut self) -> bool {
        let mut progress = false;
        self.costs.clear();
        self.costs.resize(self.candidates.len(), None);
        let most = self.candidates.len();
        let mut chosen = 0;
        while self.terms.go_on(Activity::Choose, chosen, most) && self.one().is_some() {
            progress = true;
            chosen += 1;
        }
        progress
    }

    /// Takes the best candidate at the act with the largest excess, if there is one.
    fn one(&mut self) -> Option<usize> {
        let most = self.over.iter().copied().max().filter(|most| *most > 0)?;
        let worst = self.over.iter().position(|over| *over == most)? as u32;
        let mut sum = 0.0;
        for (before, &over) in self.wanting.iter_mut().zip(&self.over) {
            *before = sum;
            let wanting = over.max(0);
            sum += if self.way.flat { wanting.min(1) } else { wanting } as f64;
        }
        self.wanting[self.over.len()] = sum;
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
            // It is recomputed together with the candidate.
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

    /// Collects the candidates that cover an act and are results of acts that the candidate priced last reruns.
    fn find_riders(&mut self, c: &GapCandidate, worst: u32, back: u32) {
        self.riders.clear();
        if !self.way.riders {
            return;
        }
        let base = self.base;
        for &act in &self.closure {
            let (reads, writes) = base.script.split(act as usize);
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

    /// The candidate that covers an act with the least seconds per byte freed, and its choice.
    fn cheapest(&mut self, worst: u32, most: f64) -> Option<(usize, Choice)> {
        let mut best: Option<(f64, usize, Choice)> = None;
        let covers = |c: &GapCandidate| c.from < worst && worst < c.to && !c.taken && !c.barred;
        let mut next = 0;
        while let Some(skipped) = self.candidates[next..].iter().position(covers) {
            let at = next + skipped;
            next = at + 1;
            let c = self.candidates[at];
            let gain = |search: &Search, c: &GapCandidate, back: u32| {
                let useful = (c.bytes as f64 / most).min(1.0);
                (search.wanting[back as usize] - search.wanting[c.from as usize + 1]) * useful
            };
            // Its price depends on the other choices; it is priced anew only if it may win.
            if let (Some((known, more)), Some((least, ..))) = (self.costs[at], best)
                && known + MARK >= least * (gain(self, &c, c.to) * more)
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

    /// Sum of the excess of all acts.
    pub(super) fn wanting_bytes(&self) -> i64 {
        self.over.iter().map(|&over| over.max(0)).sum()
    }

    /// Takes the cheapest candidate that helps, however long its recompute is.
    pub(super) fn reach_back(&mut self) -> bool {
        let before = self.wanting_bytes();
        let over = self.over.clone();
        for attempt in 0..TRIES {
            if !self.terms.go_on(Activity::Choose, attempt, TRIES) {
                return false;
            }
            let near = std::mem::replace(&mut self.way.near, false);
            self.costs.fill(None);
            let found = self.one();
            self.way.near = near;
            let Some(at) = found else { return false };
            self.look();
            if self.candidates[at].taken && self.wanting_bytes() < before {
                return true;
            }
            if self.candidates[at].taken {
                self.withdraw(at);
            }
            self.candidates[at].barred = true;
            self.over.clone_from(&over);
        }
        false
    }

    /// Marks the largest recomputed value at the peak as fleeting: it is freed again after it served another value.
    pub(super) fn let_go(&mut self) -> bool {
        let most = self.work.profile.iter().enumerate().max_by_key(|(_, bytes)| **bytes);
        let Some((worst, _)) = most else { return false };
        let at = self.work.writer.script.acts[worst].base;
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

    /// Withdraws choices that are not needed, most seconds first; whether there were any. Results of one rerun act are
    /// withdrawn together, since only then the act is not rerun.
    pub(super) fn take_back(&mut self) -> bool {
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
                together.iter().for_each(|&(_, _, at)| self.withdraw(at));
            }
        }
        any
    }

    /// Adds the bytes of a candidate to the acts it covers, or subtracts them; whether none of them exceeds the target.
    fn occupy(&mut self, at: usize, sign: i64) -> bool {
        let c = self.candidates[at];
        let between = &mut self.over[c.from as usize + 1..c.to as usize];
        between.iter_mut().for_each(|over| *over += sign * c.bytes as i64);
        between.iter().all(|over| *over <= 0)
    }
}
