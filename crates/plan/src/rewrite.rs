//! A script in which chosen values do not stay: between two of their uses they are forgotten and computed
//! again, or wait in another tier. What is needed for a computation is brought back just before it,
//! however far that reaches.

use crate::base::{Base, Choices, Fate, NEVER};
use crate::plan::{Choice, Tier};
use crate::script::{Script, Version, VersionId, What};

/// Something that cannot be: a version would be computed from an input that has been overwritten, or
/// cannot be computed again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Impossible {
    /// What was to be brought back.
    pub wanted: VersionId,
    /// The gap before the use it was wanted for, as an index into [`Base::uses`].
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
    /// What was written last.
    pub script: Script,
    /// All that stood in the way, each as if those before had stayed; empty if nothing did.
    pub failed: Vec<Impossible>,
    /// The version of the new script on the device that holds a version of the old, if any does.
    here: Vec<VersionId>,
    /// Likewise in another tier.
    copy: Vec<VersionId>,
    /// What holds an input between steps.
    homes: Vec<VersionId>,
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
        for versions in [&mut self.here, &mut self.copy, &mut self.homes] {
            versions.clear();
            versions.resize(count, NEVER);
        }
        self.next.clear();
        self.next.extend_from_slice(&base.first[..count]);
        for (v, version) in base.script.versions.iter().enumerate().filter(|(_, v)| v.input) {
            let tier = choices.homes[v];
            let new = self.script.version(Version { tier, ..*version });
            *(if tier == Tier::Device { &mut self.here[v] } else { &mut self.copy[v] }) = new;
            self.homes[v] = new;
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
            self.script.outputs.push(if here == NEVER { self.homes[v as usize] } else { here });
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
            What::Add => self.copy[reads[1] as usize] = NEVER,
            What::Carry => {
                let input = base.script.refs(t)[1] as usize;
                self.script.refs.push(self.homes[input]);
                // Whoever reads it next must see what it has become.
                if choices.homes[input] != Tier::Device {
                    (self.here[input], self.copy[input]) = (NEVER, self.homes[input]);
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
            if (fate != Fate::Stays || choice != Choice::Keep) && !(what == What::Carry && i == 1) {
                self.after(base, choices, v, fate, choice);
            }
        }
    }

    #[inline]
    fn want(&mut self, base: &Base, choices: &Choices, v: VersionId) {
        if self.here[v as usize] != NEVER {
            return;
        }
        if let Err(impossible) = self.bring(base, choices, v) {
            self.failed.push(impossible);
            // As if it had stayed; what is written from here on is not used.
            self.here[v as usize] = v;
        }
    }

    fn begin(&mut self, what: What, reads: usize) {
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
        let away = |tier| match tier {
            Tier::Host => Choice::Host,
            Tier::Disk => Choice::Disk,
            Tier::Device => Choice::Keep,
        };
        // After its last use an input is let go if it waits elsewhere for the next step.
        let choice = match choice {
            Choice::Keep if fate == Fate::Leaves => away(choices.homes[i]),
            choice => choice,
        };
        let tier = match choice {
            Choice::Keep => return,
            Choice::Recompute => {
                self.here[i] = NEVER;
                return;
            }
            Choice::Host => Tier::Host,
            Choice::Disk => Tier::Disk,
        };
        let from = std::mem::replace(&mut self.here[i], NEVER);
        if from != NEVER && self.copy[i] == NEVER {
            self.begin(What::Move, 1);
            let of = base.script.versions[i].of;
            let to = self.script.version(Version { of, tier, input: false });
            self.script.refs.extend([from, to]);
            self.copy[i] = to;
        }
    }

    /// Makes sure that a version is on the device, whatever has to be computed for it.
    fn bring(&mut self, base: &Base, choices: &Choices, v: VersionId) -> Result<(), Impossible> {
        let gap = (self.next[v as usize]).saturating_sub(1) as usize;
        let impossible = Impossible { wanted: v, gap };
        self.stack.clear();
        self.stack.push((v, false));
        while let Some((v, ready)) = self.stack.pop() {
            let i = v as usize;
            if self.here[i] != NEVER {
                continue;
            }
            if self.copy[i] != NEVER {
                self.begin(What::Move, 1);
                self.script.refs.push(self.copy[i]);
                self.make(base, v);
                self.borrow(base, choices, v);
                continue;
            }
            let act = base.producer[i];
            if act == NEVER || !base.again[i] {
                return Err(impossible);
            }
            let (reads, writes) = base.script.split(act as usize);
            if !ready {
                if reads.iter().any(|&r| base.overwritten[r as usize] < self.now) {
                    return Err(impossible);
                }
                self.stack.push((v, true));
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

    /// Lets go of what was brought back, after this act, if it has no use of its own to wait for.
    fn borrow(&mut self, base: &Base, choices: &Choices, v: VersionId) {
        let i = v as usize;
        let next = self.next[i];
        let dead = next >= base.first[i + 1];
        if dead || choices.fleeting[i] && base.uses[next as usize] != self.now {
            self.borrowed.push(v);
        }
    }
}
