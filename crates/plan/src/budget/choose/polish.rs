//! Simulated annealing of choices, for scripts so short that thousands of variants can be evaluated. Single choices are
//! changed at random with a fixed seed; worse variants are accepted less and less often. The cheapest variant within the
//! target is the result.

use super::search::{GapCandidate, Search};
use crate::budget::choices::Choices;
use crate::document::plan::{Choice, Tier};
use crate::step::layout::aligned;
use crate::step::progress::Activity;

/// Acts evaluated in one run, over all variants.
const ACTS: usize = 600_000;
/// Most runs, each with another seed, and the acts of all of them together.
const RUNS: (u64, usize) = (4, 240);
/// Fewest variants that are worth a run.
const LEAST: usize = 2_000;
/// Temperature at the start and at the end, as a share of the step's seconds.
const HEAT: (f64, f64) = (0.1, 0.002);
/// Penalty, in steps, for an excess as large as the memory beyond weights and states.
const EXCESS: f64 = 3.0;
/// Most acts by which a value may be brought back before its use.
const SOONER: u32 = 4;

/// Pseudo-random numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % n.max(1)
    }

    fn share(&mut self) -> f64 {
        self.below(1 << 24) as f64 / f64::from(1 << 24)
    }
}

/// Whether a script of `acts` is short enough to polish.
pub(crate) fn worthwhile(acts: usize) -> bool {
    ACTS / acts.max(1) >= LEAST
}

impl Search<'_> {
    /// The cheapest choices within the target that were found, and their seconds.
    pub(super) fn polish(&mut self) -> Option<(f64, Choices)> {
        let from = self.choices.clone();
        let runs = (RUNS.1 / self.base.script.acts.len().max(1)).max(1) as u64;
        let runs = (1..=runs.min(RUNS.0)).filter_map(|run| {
            copy(&from, &mut self.choices);
            self.polish_once(Dice(run))
        });
        runs.min_by(|a, b| a.0.total_cmp(&b.0))
    }

    fn polish_once(&mut self, mut dice: Dice) -> Option<(f64, Choices)> {
        let looks = ACTS / self.base.script.acts.len().max(1);
        if looks < LEAST {
            return None;
        }
        let mut open: Vec<GapCandidate> = self.candidates.clone();
        open.retain(|c| {
            self.prices(c).iter().any(Option::is_some) || self.choices.gaps[c.gap] != Choice::Keep
        });
        if open.is_empty() {
            return None;
        }
        let (base, terms) = (self.base, self.terms);
        let beyond = self.target.saturating_sub(self.state()).max(1) as f64;
        let step: f64 = terms.seconds.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        let mut best: Option<(f64, Choices)> = None;
        let (mut held, mut now) = (self.choices.clone(), f64::INFINITY);
        for look in 0..looks {
            if !self.terms.go_on(Activity::Polish, look, looks) {
                break;
            }
            if look > 0 {
                self.change(&open, &mut dice);
            }
            let energy = if self.work.of(base, terms.sharing, &self.choices, terms.bytes, terms.scratch) {
                let cost = self.cost();
                let excess = self.work.peak().saturating_sub(self.target) as f64 / beyond;
                if excess == 0.0 && best.as_ref().is_none_or(|(least, _)| cost < *least) {
                    best = Some((cost, self.choices.clone()));
                }
                cost / step + EXCESS * excess
            } else {
                f64::INFINITY
            };
            let heat = HEAT.0 * (HEAT.1 / HEAT.0).powf(look as f64 / looks as f64);
            if energy <= now || dice.share() < ((now - energy) / heat).exp() {
                now = energy;
                copy(&self.choices, &mut held);
            } else {
                copy(&held, &mut self.choices);
            }
        }
        best
    }

    /// Bytes of weights and states that reside on the device.
    fn state(&self) -> u64 {
        let here = |v: &usize| self.base.persistent[*v] && self.choices.residences[*v] == Tier::Device;
        let bytes = |v: usize| aligned(self.terms.bytes[self.base.script.versions[v].of.value.index()]);
        (0..self.base.persistent.len()).filter(here).map(bytes).fold(0, u64::saturating_add)
    }

    fn change(&mut self, open: &[GapCandidate], dice: &mut Dice) {
        match dice.below(8) {
            0 => {
                let v = open[dice.below(open.len())].version as usize;
                self.choices.fleeting[v] ^= true;
            }
            1 => {
                let c = open[dice.below(open.len())];
                match self.choices.early.iter().position(|(_, v)| *v == c.version) {
                    Some(at) => {
                        self.choices.early.remove(at);
                    }
                    None => {
                        let act = c.to - 1 - dice.below(SOONER.min(c.to - c.from - 1) as usize) as u32;
                        let at = self.choices.early.partition_point(|(other, _)| *other <= act);
                        self.choices.early.insert(at, (act, c.version));
                    }
                }
            }
            2 | 3 => {
                self.turn(&open[dice.below(open.len())], dice);
                self.turn(&open[dice.below(open.len())], dice);
            }
            _ => self.turn(&open[dice.below(open.len())], dice),
        }
    }

    /// Makes another choice for one gap. Tiers with a limit are not chosen.
    fn turn(&mut self, c: &GapCandidate, dice: &mut Dice) {
        let (v, now) = (c.version as usize, self.choices.gaps[c.gap]);
        let again = (self.terms.recompute && self.base.again[v]).then_some(Choice::Recompute);
        let residence = Choice::from(self.choices.residences[v]);
        let (terms, persistent) = (self.terms, self.base.persistent[v]);
        let away = terms.away.iter().zip(terms.room).filter_map(|(away, room)| {
            let choice = (*away)?.0;
            let open = if persistent { choice == residence } else { room == u64::MAX };
            open.then_some(choice)
        });
        let others = [Choice::Keep].into_iter().chain(again).chain(away).filter(|other| *other != now);
        if let Some(other) = others.clone().nth(dice.below(others.count())) {
            self.choices.gaps[c.gap] = other;
        }
    }
}

/// Copies choices without allocating.
fn copy(from: &Choices, to: &mut Choices) {
    to.gaps.clone_from(&from.gaps);
    to.fleeting.clone_from(&from.fleeting);
    to.early.clone_from(&from.early);
}
