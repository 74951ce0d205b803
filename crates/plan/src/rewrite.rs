//! A script in which chosen values do not stay: between two of their uses they are forgotten and computed
//! again, or wait in another tier. What is needed for a computation is brought back just before it,
//! however far that reaches.

use crate::plan::{Choice, Tier};
use crate::script::{Script, Version, VersionId, What};
use gulliver_graph::graph::{Graph, Phase};

/// No act.
pub const NEVER: u32 = u32::MAX;

/// A script and what may be done with its versions.
pub struct Base<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// Everything stays where it is made.
    pub script: &'a Script,
    /// The acts that touch each version, one list after the other.
    pub uses: Vec<u32>,
    /// Where the list of a version begins.
    pub first: Vec<u32>,
    /// The act that makes a version; [`NEVER`] for inputs.
    pub producer: Vec<u32>,
    /// Whether it can be computed again: no sum, and no result of an update.
    pub again: Vec<bool>,
    /// The act that overwrites an input, or [`NEVER`].
    pub overwritten: Vec<u32>,
    /// Is read after the step.
    pub output: Vec<bool>,
    /// Weight or state.
    pub persistent: Vec<bool>,
}

/// What is done with every version after every use, and where inputs are between steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Choices {
    /// By index into [`Base::uses`]: what happens between that use and the next of the same version.
    pub gaps: Vec<Choice>,
    /// By version: whether it is let go again when it was brought back for the sake of another.
    pub fleeting: Vec<bool>,
    /// By version: the tier in which a weight or state waits for the next step.
    pub homes: Vec<Tier>,
}

impl<'a> Base<'a> {
    /// In time linear in the script.
    pub fn of(graph: &'a Graph, script: &'a Script, is_persistent: impl Fn(Version) -> bool) -> Base<'a> {
        let count = script.versions.len();
        let touched = |act: usize, visit: &mut dyn FnMut(usize)| {
            let refs = script.refs(act);
            for (i, v) in refs.iter().enumerate() {
                if !refs[..i].contains(v) {
                    visit(*v as usize);
                }
            }
        };
        let mut first = vec![0u32; count + 1];
        for act in 0..script.acts.len() {
            touched(act, &mut |v| first[v + 1] += 1);
        }
        for v in 0..count {
            first[v + 1] += first[v];
        }
        let mut uses = vec![0; first[count] as usize];
        let mut next = first.clone();
        for act in 0..script.acts.len() {
            touched(act, &mut |v| {
                uses[next[v] as usize] = act as u32;
                next[v] += 1;
            });
        }
        let mut base = Base {
            graph,
            script,
            uses,
            first,
            producer: vec![NEVER; count],
            again: vec![false; count],
            overwritten: vec![NEVER; count],
            output: vec![false; count],
            persistent: script.versions.iter().map(|v| v.input && is_persistent(*v)).collect(),
        };
        for (t, act) in script.acts.iter().enumerate() {
            let refs = script.refs(t);
            match act.what {
                What::Run(id, _) => {
                    let pure = graph.nodes[id.index()].phase != Phase::Update;
                    for &v in script.sides(graph, t).1 {
                        base.producer[v as usize] = t as u32;
                        base.again[v as usize] = pure;
                    }
                }
                What::Add => base.again[refs[1] as usize] = false,
                What::Carry => {
                    let when = &mut base.overwritten[refs[1] as usize];
                    *when = (*when).min(t as u32);
                }
                What::Move => {}
            }
        }
        for &v in &script.outputs {
            base.output[v as usize] = true;
        }
        base
    }

    /// The acts that touch a version, in order.
    pub fn uses(&self, v: VersionId) -> &[u32] {
        &self.uses[self.first[v as usize] as usize..self.first[v as usize + 1] as usize]
    }

    /// Everything stays; inputs are at home in their tiers.
    pub fn keep(&self, homes: Vec<Tier>) -> Choices {
        Choices { gaps: vec![Choice::Keep; self.uses.len()], fleeting: vec![false; homes.len()], homes }
    }

    /// Whether a version is used at or before an act, and at or after it.
    pub fn spans(&self, v: VersionId, act: u32) -> bool {
        let uses = self.uses(v);
        self.script.versions[v as usize].input && uses.last().is_some_and(|last| *last >= act)
            || self.output[v as usize]
            || uses.first().is_some_and(|first| *first <= act) && uses.last().is_some_and(|last| *last >= act)
    }
}

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
    rewrite_or_all(base, choices).map_err(|all| all[0])
}

/// As [`rewrite`], but says all that stands in the way, each as if those before had stayed; at least one.
pub fn rewrite_or_all(base: &Base, choices: &Choices) -> Result<Script, Vec<Impossible>> {
    let count = base.script.versions.len();
    let mut writer = Writer {
        base,
        choices,
        out: Script::default(),
        here: vec![None; count],
        copy: vec![None; count],
        used: vec![0; count],
        borrowed: Vec::new(),
        stack: Vec::new(),
        failed: Vec::new(),
        now: 0,
    };
    for (v, version) in base.script.versions.iter().enumerate().filter(|(_, v)| v.input) {
        let tier = choices.homes[v];
        let new = writer.out.version(Version { tier, ..*version });
        *(if tier == Tier::Device { &mut writer.here[v] } else { &mut writer.copy[v] }) = Some(new);
    }
    let homes: Vec<VersionId> =
        (0..count).map(|v| writer.here[v].or(writer.copy[v]).unwrap_or(NEVER)).collect();
    for t in 0..base.script.acts.len() {
        writer.act(t, &homes);
    }
    if !writer.failed.is_empty() {
        return Err(writer.failed);
    }
    let outputs = base.script.outputs.iter().map(|&v| writer.here[v as usize].unwrap_or(homes[v as usize]));
    writer.out.outputs = outputs.collect();
    Ok(writer.out)
}

struct Writer<'a> {
    base: &'a Base<'a>,
    choices: &'a Choices,
    out: Script,
    /// The version of the new script on the device that holds a version of the old, if any does.
    here: Vec<Option<VersionId>>,
    /// Likewise in another tier.
    copy: Vec<Option<VersionId>>,
    /// How many uses of a version have passed.
    used: Vec<u32>,
    /// Brought back for others' sake.
    borrowed: Vec<VersionId>,
    stack: Vec<(VersionId, bool)>,
    failed: Vec<Impossible>,
    /// The act of the old script.
    now: u32,
}

impl Writer<'_> {
    fn act(&mut self, t: usize, homes: &[VersionId]) {
        let base = self.base;
        self.now = t as u32;
        let what = base.script.acts[t].what;
        let (reads, writes) = base.script.sides(base.graph, t);
        for &v in reads {
            if let Err(impossible) = self.bring(v) {
                self.failed.push(impossible);
                // As if it had stayed; what is written from here on is not used.
                self.here[v as usize] = Some(v);
            }
        }
        self.begin(what);
        for &v in reads {
            let here = self.here[v as usize].expect("brought");
            self.out.refs.push(here);
        }
        for &v in writes {
            self.make(v);
        }
        match what {
            What::Add => self.copy[reads[1] as usize] = None,
            What::Carry => {
                let input = base.script.refs(t)[1] as usize;
                self.out.refs.push(homes[input]);
                // Whoever reads it next must see what it has become.
                if self.choices.homes[input] != Tier::Device {
                    (self.here[input], self.copy[input]) = (None, Some(homes[input]));
                }
            }
            _ => {}
        }
        for i in 0..self.borrowed.len() {
            self.here[self.borrowed[i] as usize] = None;
        }
        self.borrowed.clear();
        let refs = base.script.refs(t);
        for (i, &v) in refs.iter().enumerate().filter(|(i, v)| !refs[..*i].contains(v)) {
            // The input that a carry overwrites is where it always is.
            if !(what == What::Carry && i == 1) {
                self.after(v);
            }
            self.used[v as usize] += 1;
        }
    }

    fn begin(&mut self, what: What) {
        self.out.act(what);
        if let Some(act) = self.out.acts.last_mut() {
            act.base = self.now;
        }
    }

    /// A new version on the device, by the act that has begun.
    fn make(&mut self, v: VersionId) {
        let of = self.base.script.versions[v as usize].of;
        let new = self.out.version(Version { of, tier: Tier::Device, input: false });
        self.out.refs.push(new);
        self.here[v as usize] = Some(new);
    }

    /// What the choices say after a use.
    fn after(&mut self, v: VersionId) {
        let (base, i) = (self.base, v as usize);
        let gap = base.first[i] + self.used[i];
        let last = gap + 1 == base.first[i + 1];
        if last && !base.output[i] && !base.script.versions[i].input {
            self.here[i] = None;
            return;
        }
        let away = |tier| match tier {
            Tier::Host => Choice::Host,
            Tier::Disk => Choice::Disk,
            Tier::Device => Choice::Keep,
        };
        // After its last use an input is let go if it waits elsewhere for the next step.
        let choice = match self.choices.gaps[gap as usize] {
            Choice::Keep if last && base.persistent[i] => away(self.choices.homes[i]),
            choice => choice,
        };
        let tier = match choice {
            Choice::Keep => return,
            Choice::Recompute => {
                self.here[i] = None;
                return;
            }
            Choice::Host => Tier::Host,
            Choice::Disk => Tier::Disk,
        };
        let Some(from) = self.here[i].take() else { return };
        if self.copy[i].is_none() {
            self.begin(What::Move);
            let of = base.script.versions[i].of;
            let to = self.out.version(Version { of, tier, input: false });
            self.out.refs.extend([from, to]);
            self.copy[i] = Some(to);
        }
    }

    /// Makes sure that a version is on the device, whatever has to be computed for it.
    fn bring(&mut self, v: VersionId) -> Result<(), Impossible> {
        let base = self.base;
        let gap = (base.first[v as usize] + self.used[v as usize]).saturating_sub(1) as usize;
        let impossible = Impossible { wanted: v, gap };
        self.stack.clear();
        self.stack.push((v, false));
        while let Some((v, ready)) = self.stack.pop() {
            let i = v as usize;
            if self.here[i].is_some() {
                continue;
            }
            if let Some(copy) = self.copy[i] {
                self.begin(What::Move);
                self.out.refs.push(copy);
                self.make(v);
                self.borrow(v);
                continue;
            }
            let act = base.producer[i];
            if act == NEVER || !base.again[i] {
                return Err(impossible);
            }
            let (reads, writes) = base.script.sides(base.graph, act as usize);
            if reads.iter().any(|&r| base.overwritten[r as usize] < self.now) {
                return Err(impossible);
            }
            if !ready {
                self.stack.push((v, true));
                self.stack.extend(reads.iter().map(|&r| (r, false)));
                continue;
            }
            self.begin(base.script.acts[act as usize].what);
            for &r in reads {
                let here = self.here[r as usize].expect("brought before");
                self.out.refs.push(here);
            }
            for &w in writes {
                let kept = self.here[w as usize];
                self.make(w);
                match kept {
                    // It was there all the time; the second one is of no use.
                    Some(_) => self.here[w as usize] = kept,
                    None => self.borrow(w),
                }
            }
        }
        Ok(())
    }

    /// Lets go of what was brought back, after this act, if it has no use of its own to wait for.
    fn borrow(&mut self, v: VersionId) {
        let (base, i) = (self.base, v as usize);
        let next = base.first[i] + self.used[i];
        let dead = next >= base.first[i + 1];
        let due = base.uses.get(next as usize).is_some_and(|&t| !dead && t == self.now);
        if (dead || self.choices.fleeting[i]) && !due {
            self.borrowed.push(v);
        }
    }
}
