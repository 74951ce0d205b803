//! Eviction as memory runs short, without looking ahead: whenever a result does not fit, what costs least
//! to compute again per byte and per second since it was last used is let go, and computed again on demand.
//! After Kirisame et al., "Dynamic Tensor Rematerialization" (ICLR 2021).

use super::{ComparedStep, highest};
use gulliver_plan::document::plan::Tier;
use gulliver_plan::step::base::NEVER;
use gulliver_plan::step::script::{Script, ScriptOp, Version, VersionId};

/// The script of evictions that needs at most `budget` with everything counted; the threshold at which
/// evictions begin is the highest that allows that. None if there is none.
pub fn script(case: &ComparedStep, budget: u64) -> Option<Script> {
    let all: u64 = (0..case.base.script.versions.len() as u32).map(|v| case.size(v)).sum();
    highest(budget / 8, all.min(budget.saturating_mul(4)), budget, |threshold| {
        let script = Online::new(case, threshold).run()?;
        Some((case.outcome(&script), script))
    })
}

/// No more than so many acts for each act of the base: beyond, it is thrashing.
const THRASHING: usize = 8;

struct Online<'a> {
    case: &'a ComparedStep<'a>,
    threshold: u64,
    out: Script,
    /// The version of the new script that holds a version of the base, while it is resident.
    here: Vec<Option<VersionId>>,
    /// What may be evicted and is resident.
    resident: Vec<VersionId>,
    /// When each was last used.
    used: Vec<f64>,
    /// Uses left in the base.
    left: Vec<u32>,
    /// How many computations under way need it.
    pinned: Vec<u32>,
    bytes: u64,
    clock: f64,
    mark: u32,
    seen: Vec<u32>,
}

impl<'a> Online<'a> {
    fn new(case: &'a ComparedStep<'a>, threshold: u64) -> Online<'a> {
        let base = case.base;
        let count = base.script.versions.len();
        Online {
            case,
            threshold,
            out: Script::default(),
            here: vec![None; count],
            resident: Vec::new(),
            used: vec![0.0; count],
            left: (0..count as u32).map(|v| base.uses(v).len() as u32).collect(),
            pinned: vec![0; count],
            bytes: 0,
            clock: 0.0,
            mark: 0,
            seen: vec![0; base.script.acts.len()],
        }
    }

    fn run(mut self) -> Option<Script> {
        let base = self.case.base;
        for (v, version) in base.script.versions.iter().enumerate().filter(|(_, v)| v.input) {
            self.here[v] = Some(self.out.version(*version));
            self.bytes += self.case.size(v as u32);
        }
        for t in 0..base.script.acts.len() as u32 {
            let reads = base.script.split(t as usize).0;
            self.obtain(reads, t)?;
            self.perform(t, t);
            let refs = base.script.refs(t as usize);
            for (_, &v) in refs.iter().enumerate().filter(|(i, v)| !refs[..*i].contains(v)) {
                self.left[v as usize] -= 1;
                self.forget_if_dead(v);
            }
            if self.out.acts.len() > THRASHING * base.script.acts.len() {
                return None;
            }
        }
        let output = |&v: &VersionId| self.here[v as usize];
        self.out.outputs = base.script.outputs.iter().map(output).collect::<Option<_>>()?;
        Some(self.out)
    }

    /// Computes again whatever of these is missing, and whatever that takes.
    fn obtain(&mut self, wanted: &[VersionId], now: u32) -> Option<()> {
        let base = self.case.base;
        // Acts to perform, each after what it needs; `true` once that is there.
        let mut stack: Vec<(u32, bool)> = Vec::new();
        let missing = |online: &Self, v: VersionId| online.here[v as usize].is_none();
        for &v in wanted {
            self.pinned[v as usize] += 1;
            if missing(self, v) {
                stack.push((base.producer[v as usize], false));
            }
        }
        while let Some((act, ready)) = stack.pop() {
            if act == NEVER {
                return None;
            }
            let (reads, writes) = base.script.split(act as usize);
            if ready {
                self.perform(act, now);
                reads.iter().for_each(|&r| self.pinned[r as usize] -= 1);
                // What was computed before and is of no further use goes again.
                reads.iter().for_each(|&r| self.forget_if_dead(r));
                continue;
            }
            let wanted_of_it = writes.iter().any(|&w| missing(self, w) && base.again[w as usize]);
            if !wanted_of_it {
                continue;
            }
            if reads.iter().any(|&r| base.overwritten[r as usize] < now) {
                return None;
            }
            stack.push((act, true));
            for &r in reads {
                self.pinned[r as usize] += 1;
                if missing(self, r) {
                    stack.push((base.producer[r as usize], false));
                }
            }
            if stack.len() > 4 * base.script.acts.len() {
                return None;
            }
        }
        wanted.iter().for_each(|&v| self.pinned[v as usize] -= 1);
        wanted.iter().all(|&v| !missing(self, v)).then_some(())
    }

    /// Carries out an act whose operands are resident, evicting until its results fit.
    fn perform(&mut self, act: u32, now: u32) {
        let case = self.case;
        let base = case.base;
        let (reads, writes) = base.script.split(act as usize);
        reads.iter().for_each(|&r| self.pinned[r as usize] += 1);
        let needed: u64 = writes.iter().map(|&w| case.size(w)).sum();
        while self.bytes + needed > self.threshold && self.evict() {}
        self.out.act(base.script.acts[act as usize].what, reads.len(), now);
        self.clock += case.seconds(act) + 1e-7;
        for &r in reads {
            let here = self.here[r as usize].expect("operands are resident");
            self.out.refs.push(here);
            self.used[r as usize] = self.clock;
            self.pinned[r as usize] -= 1;
        }
        for &w in writes {
            let of = base.script.versions[w as usize].of;
            let new = self.out.version(Version { of, tier: Tier::Device, input: false });
            self.out.refs.push(new);
            self.used[w as usize] = self.clock;
            if self.here[w as usize].is_none() {
                self.here[w as usize] = Some(new);
                self.bytes += case.size(w);
                if base.again[w as usize] && !base.output[w as usize] {
                    self.resident.push(w);
                }
            }
        }
        if base.script.acts[act as usize].what == ScriptOp::Carry {
            let input = base.script.refs(act as usize)[1];
            self.out.refs.extend(self.here[input as usize]);
        }
    }

    fn forget_if_dead(&mut self, v: VersionId) {
        let i = v as usize;
        let base = self.case.base;
        let stays = base.output[i] || base.script.versions[i].input || self.pinned[i] > 0;
        if self.left[i] == 0 && !stays {
            self.drop(v);
        }
    }

    fn drop(&mut self, v: VersionId) {
        if self.here[v as usize].take().is_some() {
            self.bytes -= self.case.size(v);
            self.resident.retain(|&other| other != v);
        }
    }

    /// Lets go of the value with the least cost per byte and second of staleness; false if there is none.
    fn evict(&mut self) -> bool {
        let mut best: Option<(f64, VersionId)> = None;
        for k in 0..self.resident.len() {
            let v = self.resident[k];
            if self.pinned[v as usize] > 0 || self.case.size(v) == 0 {
                continue;
            }
            let stale = self.clock - self.used[v as usize] + 1e-7;
            let h = self.cost(v) / (self.case.size(v) as f64 * stale);
            if best.is_none_or(|(least, _)| h < least) {
                best = Some((h, v));
            }
        }
        if let Some((_, v)) = best {
            self.drop(v);
        }
        best.is_some()
    }

    /// Seconds to have a value back: its own act and those of what is evicted among its ancestors.
    fn cost(&mut self, v: VersionId) -> f64 {
        self.mark += 1;
        let base = self.case.base;
        let mut stack = vec![base.producer[v as usize]];
        let mut seconds = 0.0;
        while let Some(act) = stack.pop() {
            if act == NEVER || std::mem::replace(&mut self.seen[act as usize], self.mark) == self.mark {
                continue;
            }
            seconds += self.case.seconds(act);
            let reads = base.script.split(act as usize).0;
            stack.extend(
                reads
                    .iter()
                    .filter(|&&r| self.here[r as usize].is_none())
                    .map(|&r| base.producer[r as usize]),
            );
        }
        seconds
    }
}
