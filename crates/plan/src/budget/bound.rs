//! A lower bound of device memory, found without any search: in one pass over the acts of an outline, the bytes
//! that must be on the device at once whatever is recomputed or moved. A budget below it is refused at once.

use crate::budget::problem::Problem;
use crate::document::error::{Holders, PlanError};
use crate::document::plan::Tier;
use crate::step::layout::aligned;
use crate::step::script::{ScriptOp, VersionId};

/// Device bytes that no plan can do without.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryBound {
    /// Never more than the arena of any plan of the outline.
    pub bytes: u64,
    /// What has to be there at once, by name, largest first.
    pub holders: Vec<(String, u64)>,
}

impl MemoryBound {
    /// The error of a budget that is smaller.
    pub fn exceeds(&self, budget: u64) -> PlanError {
        let holders = Holders(self.holders.iter().take(Holders::NAMED).cloned().collect());
        PlanError::DoesNotFit { needed: self.bytes, proven: true, budget, holders }
    }
}

/// Name of the entry that sums up weights and optimizer state.
pub const STATE: &str = "weights and optimizer state";
/// Name of the entry for a kernel's working memory.
pub const SCRATCH: &str = "working memory of the kernel";

/// What has to be on the device during every act, beside what the act itself touches.
struct Constant<'a> {
    problem: &'a Problem<'a>,
    /// By version: it is on the device during the acts of this range.
    stays: Vec<Option<(u32, u32)>>,
    /// By version: its bytes are among those of resident weights and states.
    resident: Vec<bool>,
    /// Bytes of those.
    state: u64,
    /// Data inputs: name, bytes, last act that reads them.
    inputs: Vec<(String, u64, u32)>,
}

/// The bound with weights and states where the options say they are.
pub(crate) fn bound(problem: &Problem) -> MemoryBound {
    let residences = problem.residences();
    bound_at(problem, |v| residences[v as usize] == Tier::Device)
}

/// The bound wherever weights and states are between steps; with no tier beside the device they are on it.
pub(crate) fn bound_anywhere(problem: &Problem) -> MemoryBound {
    let beside = &problem.options.beside;
    let elsewhere = beside.host != Some(0) || beside.disk.is_some();
    bound_at(problem, |_| !elsewhere)
}

/// The bound where `resident` says which weights and states never leave the device.
fn bound_at(problem: &Problem, resident: impl Fn(VersionId) -> bool) -> MemoryBound {
    let constant = Constant::of(problem, resident);
    let base = problem.base();
    let acts = base.script.acts.len();
    let mut changes = vec![0i64; acts + 1];
    for (v, range) in constant.stays.iter().enumerate() {
        if let Some((from, to)) = range {
            let bytes = size(problem, v as VersionId) as i64;
            changes[*from as usize] += bytes;
            changes[*to as usize + 1] -= bytes;
        }
    }
    for (_, bytes, last) in &constant.inputs {
        changes[0] += *bytes as i64;
        changes[*last as usize + 1] -= *bytes as i64;
    }
    let (mut most, mut worst, mut now) = (constant.state, None, 0i64);
    for (t, change) in changes[..acts].iter().enumerate() {
        now = now.saturating_add(*change);
        let own: u64 = constant.own(t).map(|(_, bytes)| bytes).fold(0, u64::saturating_add);
        let all = constant.state.saturating_add(now.max(0) as u64).saturating_add(own);
        if all > most {
            (most, worst) = (all, Some(t));
        }
    }
    let mut holders: Vec<(String, u64)> = Vec::new();
    if let Some(t) = worst {
        let name = |v: Option<VersionId>| v.map_or(SCRATCH.to_string(), |v| problem.name(&base, v));
        holders.extend(constant.own(t).map(|(v, bytes)| (name(v), bytes)));
        let now = t as u32;
        let inputs = constant.inputs.iter().filter(|(.., last)| now <= *last);
        holders.extend(inputs.map(|(name, bytes, _)| (name.clone(), *bytes)));
        let stays =
            |v: &VersionId| constant.stays[*v as usize].is_some_and(|(from, to)| from <= now && now <= to);
        let kept = (0..constant.stays.len() as u32).filter(stays);
        holders.extend(kept.map(|v| (problem.name(&base, v), size(problem, v))));
    }
    holders.push((STATE.to_string(), constant.state));
    holders.retain(|(_, bytes)| *bytes > 0);
    holders.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    MemoryBound { bytes: most, holders }
}

/// Bytes that a version takes on the device by itself.
fn size(problem: &Problem, v: VersionId) -> u64 {
    aligned(problem.bytes[problem.base().script.versions[v as usize].of.value.index()])
}

impl<'a> Constant<'a> {
    fn of(problem: &'a Problem<'a>, resident_here: impl Fn(VersionId) -> bool) -> Constant<'a> {
        let (base, sharing) = (problem.base(), &problem.outline.sharing);
        let beside = &problem.options.beside;
        let elsewhere = beside.host != Some(0) || beside.disk.is_some();
        let count = base.script.versions.len();
        let (mut resident, mut kept) = (vec![false; count], vec![false; problem.graph.values.len()]);
        let (mut state, mut inputs) = (0u64, Vec::new());
        let mut first: VersionId = 0;
        for (value, copies, role) in sharing.inputs() {
            let (from, info) = (first, problem.graph.value(value));
            first += copies;
            let all = aligned(problem.bytes[value.index()].saturating_mul(copies.into()));
            let persistent = role.persists();
            if persistent && !resident_here(from) {
                continue;
            }
            resident[from as usize..first as usize].fill(true);
            kept[value.index()] = true;
            match persistent {
                true => state = state.saturating_add(all),
                false => {
                    let last = (from..first).filter_map(|v| base.uses(v).last()).max();
                    let sliced = role.repeats();
                    let end = base.script.acts.len().saturating_sub(1) as u32;
                    let last = if sliced { last.copied().unwrap_or(0).min(end) } else { end };
                    inputs.push((info.name.clone(), all, last));
                }
            }
        }
        // An update's result may be written over the weight it updates.
        let mut stays = vec![None; count];
        for v in 0..count as u32 {
            let (i, version) = (v as usize, base.script.versions[v as usize]);
            if version.input {
                continue;
            }
            if sharing.carried(version.of.value).is_some_and(|input| kept[input.index()]) {
                resident[i] = true;
                continue;
            }
            let again = problem.options.recompute && base.again[i];
            if elsewhere || again {
                continue;
            }
            // Its maker may write it over an operand, which is counted there.
            if let (Some(&from), Some(&to)) = (base.uses(v).first(), base.uses(v).last())
                && from < to
            {
                stays[i] = Some((from + 1, to));
            }
        }
        Constant { problem, stays, resident, state, inputs }
    }

    /// What an act itself has on the device and is not counted elsewhere: its operands, the results that cannot take
    /// an operand's place, and working memory, which is no version.
    fn own(&self, t: usize) -> impl Iterator<Item = (Option<VersionId>, u64)> + '_ {
        let base = self.problem.base();
        let script = base.script;
        let (reads, writes) = script.split(t);
        let what = script.acts[t].what;
        let now = t as u32;
        let counted = move |v: VersionId| {
            let stays = self.stays[v as usize].is_some_and(|(from, to)| from <= now && now <= to);
            stays || self.resident[v as usize]
        };
        let once = move |i: usize, v: &VersionId| !reads[..i].contains(v);
        let operands = reads.iter().enumerate().filter(move |(i, v)| once(*i, v) && !counted(**v));
        let sharing = &self.problem.outline.sharing;
        let results = writes.iter().enumerate().filter(move |(o, _)| !sharing.may_replace(what, *o));
        let results = results.filter(move |(_, v)| !counted(**v));
        let scratch = match what {
            ScriptOp::Run(id, _) => aligned(self.problem.scratch(id.index())),
            _ => 0,
        };
        let versions = operands.chain(results).map(|(_, &v)| (Some(v), size(self.problem, v)));
        versions.chain([(None, scratch)])
    }
}
