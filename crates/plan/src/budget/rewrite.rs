//! The script that carries out choices: between two of their uses values are recomputed or wait in another tier. The
//! operands of a recompute are brought back just before it, recursively.

use crate::budget::choices::Choices;
use crate::document::plan::{Choice, Tier};
use crate::step::base::{Base, Fate, NEVER};
use crate::step::script::{Script, ScriptOp, Version, VersionId};

/// A recompute that is impossible: an operand has been overwritten, or is gone and cannot be recomputed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Impossible {
    /// What should have stayed: of all that was to be recomputed one from the other, the first.
    pub wanted: VersionId,
    /// The gap before its next use, as an index into [`Base::uses`].
    pub gap: usize,
}

/// Writes the script in which the choices are carried out, or says what first stands in the way.
pub fn rewrite(base: &Base, choices: &Choices) -> Result<Script, Impossible> {
    let mut writer = Writer::default();
    match writer.write(base, choices) {
        true => Ok(writer.script),
        false => Err(writer.failed[0]),
    }
}

/// Writes scripts, one after the other, without new memory for each.
#[derive(Default)]
pub struct Writer {
    /// The script that was written last.
    pub script: Script,
    /// All that stood in the way, each as if those before had stayed; empty if nothing did.
    pub failed: Vec<Impossible>,
    /// The version of the new script on the device that holds a version of the old, if any does.
    here: Vec<VersionId>,
    /// Likewise in another tier.
    copy: Vec<VersionId>,
    /// What holds an input between steps.
    residences: Vec<VersionId>,
    /// The use of each version that comes next.
    next: Vec<u32>,
    /// Brought back for others' sake.
    borrowed: Vec<VersionId>,
    stack: Vec<(VersionId, bool)>,
    /// The act of the old script.
    now: u32,
}

impl Writer {
    /// Writes the script in which the choices are carried out; false if something stood in the way.
    pub fn write(&mut self, base: &Base, choices: &Choices) -> bool {
        let count = base.script.versions.len();
        self.script.versions.clear();
        self.script.acts.clear();
        self.script.refs.clear();
        self.script.outputs.clear();
        self.failed.clear();
        self.borrowed.clear();
        for versions in [&mut self.here, &mut self.copy, &mut self.residences] {
            versions.clear();
            versions.resize(count, NEVER);
        }
        self.next.clear();
        self.next.extend_from_slice(&base.first[..count]);
        for (v, version) in base.script.versions.iter().enumerate().filter(|(_, v)| v.input) {
            let tier = choices.residences[v];
            let new = self.script.version(Version { tier, ..*version });
            *(if tier == Tier::Device { &mut self.here[v] } else { &mut self.copy[v] }) = new;
            self.residences[v] = new;
        }
        let mut early = choices.early.iter().peekable();
        for t in 0..base.script.acts.len() {
            self.now = t as u32;
            while let Some(&(_, v)) = early.next_if(|(act, _)| *act <= self.now) {
                self.want(base, choices, v);
                self.borrowed.retain(|other| *other != v);
            }
            self.act(base, choices, t);
        }
        if !self.failed.is_empty() {
            return false;
        }
        for &v in &base.script.outputs {
            let here = self.here[v as usize];
            self.script.outputs.push(if here == NEVER { self.residences[v as usize] } else { here });
        }
        true
    }

    fn act(&mut self, base: &Base, choices: &Choices, t: usize) {
        let what = base.script.acts[t].what;
        let (reads, writes) = base.script.split(t);
        for &v in reads {
            self.want(base, choices, v);
        }
        self.begin(what, reads.len());
        for &v in reads {
            self.script.refs.push(self.here[v as usize]);
        }
        for &v in writes {
            self.make(base, v);
        }
        match what {
            ScriptOp::Add => self.copy[reads[1] as usize] = NEVER,
            ScriptOp::Carry => {
                let input = base.script.refs(t)[1] as usize;
                self.script.refs.push(self.residences[input]);
                // Later readers must see its next value.
                if choices.residences[input] != Tier::Device {
                    (self.here[input], self.copy[input]) = (NEVER, self.residences[input]);
                }
            }
            _ => {}
        }
        for i in 0..self.borrowed.len() {
            self.here[self.borrowed[i] as usize] = NEVER;
        }
        self.borrowed.clear();
        let begin = base.script.acts[t].refs as usize;
        for (i, &v) in base.script.refs(t).iter().enumerate() {
            let gap = base.at[begin + i];
            if gap == NEVER {
                continue;
            }
            self.next[v as usize] = gap + 1;
            let (fate, choice) = (base.fates[gap as usize], choices.gaps[gap as usize]);
            // The input that a carry overwrites is where it always is.
            if (fate != Fate::Stays || choice != Choice::Keep) && !(what == ScriptOp::Carry && i == 1) {
                self.after(base, choices, v, fate, choice);
            }
        }
    }

    #[inline]
    fn want(&mut self, base: &Base, choices: &Choices, v: VersionId) {
        if self.here[v as usize] != NEVER {
            return;
        }
        while let Err(impossible) = self.bring(base, choices, v) {
            self.failed.push(impossible);
            // As if it had stayed; the script is not used.
            self.here[impossible.wanted as usize] = impossible.wanted;
        }
    }

    fn begin(&mut self, what: ScriptOp, reads: usize) {
        self.script.act(what, reads, self.now);
    }

    /// A new version on the device, by the act that has begun.
    fn make(&mut self, base: &Base, v: VersionId) {
        let of = base.script.versions[v as usize].of;
        let new = self.script.version(Version { of, tier: Tier::Device, input: false });
        self.script.refs.push(new);
        self.here[v as usize] = new;
    }

    /// What becomes of a version after a use.
    fn after(&mut self, base: &Base, choices: &Choices, v: VersionId, fate: Fate, choice: Choice) {
        let i = v as usize;
        if fate == Fate::Ends {
            self.here[i] = NEVER;
            return;
        }
        // After its last use an input is let go if it waits elsewhere for the next step.
        let choice = match choice {
            Choice::Keep if fate == Fate::Leaves => choices.residences[i].into(),
            choice => choice,
        };
        let tier = match choice.tier() {
            Some(Tier::Device) => return,
            Some(tier) => tier,
            None => {
                self.here[i] = NEVER;
                return;
            }
        };
        let from = std::mem::replace(&mut self.here[i], NEVER);
        if from != NEVER && self.copy[i] == NEVER {
            self.begin(ScriptOp::Move, 1);
            let of = base.script.versions[i].of;
            let to = self.script.version(Version { of, tier, input: false });
            self.script.refs.extend([from, to]);
            self.copy[i] = to;
        }
    }

    /// Makes sure that a version is on the device, whatever has to be computed for it.
    fn bring(&mut self, base: &Base, choices: &Choices, v: VersionId) -> Result<(), Impossible> {
        let wanted = v;
        self.stack.clear();
        self.stack.push((v, false));
        while let Some((v, ready)) = self.stack.pop() {
            let i = v as usize;
            if self.here[i] != NEVER {
                continue;
            }
            if self.copy[i] != NEVER {
                self.begin(ScriptOp::Move, 1);
                self.script.refs.push(self.copy[i]);
                self.make(base, v);
                self.borrow(base, choices, v);
                continue;
            }
            let act = base.producer[i];
            if act == NEVER || !base.again[i] {
                return Err(self.impossible(base, choices, wanted));
            }
            let (reads, writes) = base.script.split(act as usize);
            if !ready {
                self.stack.push((v, true));
                if reads.iter().any(|&r| base.overwritten[r as usize] < self.now) {
                    return Err(self.impossible(base, choices, wanted));
                }
                self.stack.extend(reads.iter().map(|&r| (r, false)));
                continue;
            }
            self.begin(base.script.acts[act as usize].what, reads.len());
            for &r in reads {
                self.script.refs.push(self.here[r as usize]);
            }
            for &w in writes {
                let kept = self.here[w as usize];
                self.make(base, w);
                match kept {
                    NEVER => self.borrow(base, choices, w),
                    // It was there all the time; the second one is of no use.
                    _ => self.here[w as usize] = kept,
                }
            }
        }
        Ok(())
    }

    /// The first version on the way to `wanted` that was to be recomputed by choice.
    fn impossible(&self, base: &Base, choices: &Choices, wanted: VersionId) -> Impossible {
        let gap = |v: VersionId| self.next[v as usize].saturating_sub(1) as usize;
        let let_go = |v: &VersionId| {
            self.next[*v as usize] > base.first[*v as usize] && choices.gaps[gap(*v)] == Choice::Recompute
        };
        let mut under_way = self.stack.iter().rev().filter(|(_, ready)| *ready).map(|(v, _)| *v);
        let wanted = under_way.find(let_go).unwrap_or(wanted);
        Impossible { wanted, gap: gap(wanted) }
    }

    /// Frees a version that was brought back after this act, if it has no use of its own later.
    fn borrow(&mut self, base: &Base, choices: &Choices, v: VersionId) {
        let i = v as usize;
        let next = self.next[i];
        let dead = next >= base.first[i + 1];
        if dead || choices.fleeting[i] && base.uses[next as usize] != self.now {
            self.borrowed.push(v);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::order::{OrderRule, tasks};
    use crate::step::readers::Readers;
    use gulliver_graph::graph::Phase;
    use gulliver_graph::model::model;
    use gulliver_graph::model::param::ints;
    use gulliver_graph::optim::Optimizer;
    use gulliver_graph::training::training_graph;

    /// A received input blocks the recompute of its direct users only, not of later nodes.
    #[test]
    fn what_is_made_of_what_is_gone_stays_and_nothing_else() {
        let sizes = ("sizes".to_string(), ints(&[4, 8, 8, 8, 8, 3]));
        let optimizer = Optimizer::new("sgd", &[]).unwrap();
        let graph = training_graph(model("mlp", &[sizes]).unwrap().as_ref(), &[optimizer], None).unwrap();
        let readers = Readers::of(&graph);
        let script = Script::of(&graph, &readers, &tasks(&graph, &readers, 1, OrderRule::Plain, &[]), 1);
        let facts = crate::step::base::VersionFacts::of(&graph, &script);
        let base = facts.base(&graph, &script);
        let forward = |act: u32| match script.acts[act as usize].what {
            ScriptOp::Run(id, _) => graph.nodes[id.index()].phase == Phase::Forward,
            _ => false,
        };
        let mut choices = Choices::keep(&base, vec![Tier::Device; script.versions.len()]);
        let mut let_go = Vec::new();
        for v in (0..script.versions.len() as u32).filter(|v| base.again[*v as usize]) {
            for (k, pair) in base.uses(v).windows(2).enumerate() {
                if forward(pair[0]) && !forward(pair[1]) && pair[1] - pair[0] > 1 {
                    let gap = base.first[v as usize] as usize + k;
                    choices.gaps[gap] = Choice::Recompute;
                    let_go.push((v, gap));
                }
            }
        }
        assert!(let_go.len() > 3);
        assert!(rewrite(&base, &choices).is_ok());
        // The first that is used by the forward pass alone, and what is made of it.
        let only_forward = |v: &u32| base.again[*v as usize] && base.uses(*v).iter().all(|act| forward(*act));
        let gone = (0..script.versions.len() as u32).find(only_forward).unwrap();
        let made = |(v, _): &&(VersionId, usize)| {
            let act = base.producer[*v as usize];
            script.split(act as usize).0.contains(&gone)
        };
        let &(first, gap) = let_go.iter().find(made).unwrap();
        let mut again = base.again.to_vec();
        again[gone as usize] = false;
        let base = Base { again: &again, ..base };
        let mut writer = Writer::default();
        assert!(!writer.write(&base, &choices));
        assert_eq!(writer.failed, [Impossible { wanted: first, gap }]);
        choices.gaps[gap] = Choice::Keep;
        assert!(writer.write(&base, &choices));
    }
}
