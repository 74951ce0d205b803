//! Prices of choices: seconds to recompute a value or to fetch it from another tier, given the choices so far; and the
//! reasons that plans report.

use super::search::{GapCandidate, Search};
use crate::document::plan::{Choice, Decision, Tier};
use crate::step::base::NEVER;
use crate::step::script::{ScriptAct, ScriptOp};

impl Search<'_> {
    /// The act before which a candidate's bytes are needed again: its next use, or an earlier recompute of a value made of
    /// it.
    pub(super) fn back(&self, c: &GapCandidate, choice: Choice) -> u32 {
        if choice != Choice::Recompute {
            return c.to;
        }
        let before = self.base.uses(c.version).iter().take_while(|&&act| act <= c.from);
        before.map(|&act| self.revived[act as usize]).fold(c.to, u32::min).max(c.from + 1)
    }

    /// The price of each choice that frees a candidate's bytes: recompute, host memory, disk.
    pub(super) fn prices(&mut self, c: &GapCandidate) -> [Option<(Choice, f64)>; 3] {
        let mut all = [None; 3];
        if self.terms.recompute && self.base.again[c.version as usize] {
            all[0] = self.again(c).map(|seconds| (Choice::Recompute, seconds));
        }
        let persistent = self.base.persistent[c.version as usize];
        for (place, away) in self.terms.away.iter().enumerate() {
            let Some((choice, seconds)) = *away else { continue };
            if persistent {
                let there = choice == Choice::from(self.choices.residences[c.version as usize]);
                // Its bytes are in the tier; it is only fetched.
                all[place + 1] = there.then_some((choice, 0.5 * seconds * c.bytes as f64));
                continue;
            }
            let fits = |held: u64| held.saturating_add(c.bytes) <= self.terms.room[place];
            let held = &self.beside[place][c.from as usize..=c.to as usize];
            // The upper bound decides most cases without a walk.
            let fits = fits(self.most_beside[place]) || held.iter().all(|h| fits(*h));
            all[place + 1] = fits.then_some((choice, seconds * c.bytes as f64));
        }
        all
    }

    /// Seconds to recompute a version just before its use, given the choices so far.
    pub(super) fn again(&mut self, c: &GapCandidate) -> Option<f64> {
        self.mark += 1;
        let base = self.base;
        let back = self.back(c, Choice::Recompute);
        let mut seconds = 0.0;
        self.stack.clear();
        self.closure.clear();
        self.stack.push(c.version);
        while let Some(v) = self.stack.pop() {
            let act = base.producer[v as usize];
            if act == NEVER || !base.again[v as usize] {
                return None;
            }
            if std::mem::replace(&mut self.seen[act as usize], self.mark) == self.mark {
                continue;
            }
            // An act that is rerun by then costs nothing; one that is rerun later would take room earlier.
            if self.reran[act as usize] > 0 {
                if !self.way.near || self.revived[act as usize] <= back {
                    continue;
                }
                if v != c.version {
                    return None;
                }
            }
            seconds += self.terms.seconds[act as usize];
            self.closure.push(act);
            for &r in base.script.split(act as usize).0 {
                if base.overwritten[r as usize] < back {
                    return None;
                }
                let gone = self.way.near
                    && self.reran.get(base.producer[r as usize] as usize).is_some_and(|n| *n > 0);
                if !base.script.versions[r as usize].input && (gone || !base.spans(r, back)) {
                    self.stack.push(r);
                }
            }
        }
        Some(seconds)
    }

    /// Seconds of kernels and moves of the script evaluated last.
    pub(super) fn cost(&self) -> f64 {
        let script = &self.work.writer.script;
        let away = |tier: Tier| {
            let choice = Choice::from(tier);
            self.terms.away.iter().flatten().find(|(other, _)| *other == choice).map_or(0.0, |(_, s)| 0.5 * s)
        };
        let one = |(t, act): (usize, &ScriptAct)| match act.what {
            ScriptOp::Run(id, _) => (self.terms.node)(id.index()),
            ScriptOp::Move => {
                let [from, to] = [0, 1].map(|i| script.versions[script.refs(t)[i] as usize]);
                let bytes = self.terms.bytes[from.of.value.index()] as f64;
                bytes * away(if from.tier == Tier::Device { to.tier } else { from.tier })
            }
            ScriptOp::Add | ScriptOp::Carry => 0.0,
        };
        script.acts.iter().enumerate().map(one).sum()
    }

    /// Every choice with its reason.
    pub(super) fn reasons(&mut self) -> Vec<Decision> {
        let mut decisions = Vec::new();
        for at in 0..self.candidates.len() {
            let c = self.candidates[at];
            let choice = self.choices.gaps[c.gap];
            if choice == Choice::Keep {
                continue;
            }
            let act = self.base.producer[c.version as usize];
            if act != NEVER {
                self.reran[act as usize] = 0;
            }
            let prices = self.prices(&c);
            let seconds = prices.iter().flatten().find(|p| p.0 == choice).map_or(0.0, |p| p.1);
            let others = prices.into_iter().flatten().filter(|p| p.0 != choice);
            let of = self.base.script.versions[c.version as usize].of;
            decisions.push(Decision {
                value: of.value,
                partial: of.partial,
                bytes: c.bytes,
                choice,
                seconds,
                instead: others.min_by(|a, b| a.1.total_cmp(&b.1)),
            });
        }
        decisions
    }
}
