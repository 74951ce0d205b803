//! Virtual memory for a device: every act needs its operands on the device; on shortage whatever was used
//! least recently goes to the host. There is no prefetch, no knowledge of what comes, and weights and
//! optimizer state are paged like everything else. What frameworks with unified or swapped memory do.

use super::{ComparedStep, highest, segments};
use gulliver_plan::devices::options::ScriptWriter;
use gulliver_plan::document::plan::Tier;
use gulliver_plan::step::base::{Base, VersionFacts};
use gulliver_plan::step::outline::{BoundSizes, Outline};
use gulliver_plan::step::script::{Script, ScriptOp, Version, VersionId};

/// What becomes of bytes that are evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// Written to the host unless they are there already, as pages of an operating system are.
    CleanDropped,
    /// Always written: a tensor is on the device or on the host, never on both. The virtualised memory that
    /// Li et al., "Harmony" (VLDB 2022) count (4m + 2)|W| bytes of weights for: in and out of the device in
    /// the forward and in the backward pass of each of m partials, and once more for the update.
    AlwaysWritten,
}

/// How a device is paged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paged {
    /// Bytes of its memory.
    pub memory: u64,
    /// What becomes of bytes that are evicted.
    pub eviction: Eviction,
    /// Segments of the forward pass of which only what enters them is kept for the backward pass; none computes
    /// nothing again.
    pub segments: Option<usize>,
}

impl ScriptWriter for Paged {
    fn write(&self, outline: &Outline, base: &Base, sizes: &BoundSizes) -> Option<Script> {
        paged(&ComparedStep::new(outline, base, sizes), *self)
    }
}

/// The script of page faults of a device, if there is one.
pub fn paged(case: &ComparedStep, how: Paged) -> Option<Script> {
    let Paged { memory, eviction, segments } = how;
    let Some(segments) = segments else { return script(case, memory, eviction) };
    let again = segments::script(case, segments);
    let facts = VersionFacts::of(case.base.graph, &again);
    let base = facts.base(case.base.graph, &again);
    let (bytes, scratch, node) = (case.bytes.clone(), case.scratch.clone(), case.node.clone());
    script(&ComparedStep { base: &base, sharing: case.sharing, bytes, scratch, node }, memory, eviction)
}

/// The script of page faults that needs at most `budget` on the device, with weights and states resident
/// in host memory; what is new is written there when it is evicted, updated weights at once. None if the
/// operands of some act alone do not fit.
pub fn script(case: &ComparedStep, budget: u64, eviction: Eviction) -> Option<Script> {
    highest(budget / 8, budget.saturating_mul(2), budget, |threshold| {
        let script = Pager::new(case, threshold, eviction).run();
        Some((case.outcome(&script), script))
    })
}

struct Pager<'a> {
    case: &'a ComparedStep<'a>,
    threshold: u64,
    eviction: Eviction,
    out: Script,
    /// The version on the device, while it is resident.
    here: Vec<Option<VersionId>>,
    /// The version on the host, while its bytes are those of the value.
    copy: Vec<Option<VersionId>>,
    /// Resident, least recently used first.
    recent: Vec<VersionId>,
    left: Vec<u32>,
    bytes: u64,
    now: u32,
}

impl<'a> Pager<'a> {
    fn new(case: &'a ComparedStep<'a>, threshold: u64, eviction: Eviction) -> Pager<'a> {
        let count = case.base.script.versions.len();
        let left = (0..count as u32).map(|v| case.base.uses(v).len() as u32).collect();
        let (out, recent) = (Script::default(), Vec::new());
        let none = || vec![None; count];
        Pager { case, threshold, eviction, out, here: none(), copy: none(), recent, left, bytes: 0, now: 0 }
    }

    fn run(mut self) -> Script {
        let base = self.case.base;
        for (v, version) in base.script.versions.iter().enumerate().filter(|(_, v)| v.input) {
            let tier = if base.persistent[v] { Tier::Host } else { Tier::Device };
            let new = self.out.version(Version { tier, ..*version });
            if base.persistent[v] {
                self.copy[v] = Some(new);
            } else {
                self.here[v] = Some(new);
                self.bytes += self.case.size(v as u32);
            }
        }
        let residences = self.copy.clone();
        for t in 0..base.script.acts.len() {
            self.now = t as u32;
            let (reads, writes) = base.script.split(t);
            for &v in reads {
                self.fault(v, base.script.refs(t));
            }
            let needed: u64 = writes.iter().map(|&w| self.case.size(w)).sum();
            self.make_room(needed, base.script.refs(t));
            self.begin(base.script.acts[t].what, reads.len());
            for &v in reads {
                self.out.refs.extend(self.here[v as usize]);
                self.touch(v);
            }
            for &v in writes {
                self.arrive(v);
            }
            match base.script.acts[t].what {
                // A sum changes what the host has.
                ScriptOp::Add => self.copy[reads[1] as usize] = None,
                ScriptOp::Carry => {
                    let input = base.script.refs(t)[1] as usize;
                    self.out.refs.extend(residences[input].or(self.here[input]));
                    // What the device has of it is old, and the host has what is new.
                    self.leave(input as u32);
                    self.copy[input] = residences[input];
                }
                _ => {}
            }
            let refs = base.script.refs(t);
            for (_, &v) in refs.iter().enumerate().filter(|(i, v)| !refs[..*i].contains(v)) {
                self.left[v as usize] -= 1;
                if self.left[v as usize] == 0 && !base.output[v as usize] {
                    self.leave(v);
                }
            }
        }
        let output = |&v: &VersionId| self.here[v as usize].or(self.copy[v as usize]).unwrap_or(v);
        self.out.outputs = base.script.outputs.iter().map(output).collect();
        self.out
    }

    fn begin(&mut self, what: ScriptOp, reads: usize) {
        self.out.act(what, reads, self.now);
    }

    /// A new version on the device, by the act that has begun.
    fn arrive(&mut self, v: VersionId) {
        let of = self.case.base.script.versions[v as usize].of;
        let new = self.out.version(Version { of, tier: Tier::Device, input: false });
        self.out.refs.push(new);
        self.here[v as usize] = Some(new);
        self.bytes += self.case.size(v);
        self.recent.push(v);
    }

    fn fault(&mut self, v: VersionId, needed: &[VersionId]) {
        let Some(copy) = self.copy[v as usize].filter(|_| self.here[v as usize].is_none()) else { return };
        self.make_room(self.case.size(v), needed);
        self.begin(ScriptOp::Move, 1);
        self.out.refs.push(copy);
        self.arrive(v);
        if self.eviction == Eviction::AlwaysWritten {
            self.copy[v as usize] = None;
        }
    }

    /// Evicts until so many bytes more fit, but never what the act at hand touches, nor results the step
    /// is run for.
    fn make_room(&mut self, bytes: u64, needed: &[VersionId]) {
        let mut k = 0;
        while self.bytes + bytes > self.threshold && k < self.recent.len() {
            let v = self.recent[k];
            if needed.contains(&v) || self.case.base.output[v as usize] {
                k += 1;
                continue;
            }
            if self.copy[v as usize].is_none() {
                self.begin(ScriptOp::Move, 1);
                let of = self.case.base.script.versions[v as usize].of;
                let to = self.out.version(Version { of, tier: Tier::Host, input: false });
                self.out.refs.extend(self.here[v as usize]);
                self.out.refs.push(to);
                self.copy[v as usize] = Some(to);
            }
            self.leave(v);
        }
    }

    fn touch(&mut self, v: VersionId) {
        if let Some(at) = self.recent.iter().position(|&other| other == v) {
            self.recent.remove(at);
            self.recent.push(v);
        }
    }

    fn leave(&mut self, v: VersionId) {
        let input =
            self.case.base.script.versions[v as usize].input && !self.case.base.persistent[v as usize];
        if !input && self.here[v as usize].take().is_some() {
            self.bytes -= self.case.size(v);
            self.recent.retain(|&other| other != v);
        }
    }
}
