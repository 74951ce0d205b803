//! Choices that keep every act within the budget: between two of its uses each value is kept, recomputed, or waits in
//! another tier. The search takes the candidate with the least seconds per byte at the act that exceeds the budget most,
//! and at the end withdraws choices that are not needed.

mod polish;
mod price;
mod reach;
mod search;

use crate::budget::choices::Choices;
use crate::budget::evaluate::ScriptEvaluation;
use crate::document::plan::{Choice, Decision};
use crate::step::base::Base;
use crate::step::lifetime::{Lifetimes, StorageSharing};
use crate::step::progress::{Activity, Progress};
use crate::step::script::{Script, ScriptOp, VersionId};
pub(crate) use polish::worthwhile as is_polished;
use reach::by_reach;
use search::{Search, SearchWay};

/// Most rounds of choosing and evaluating the result.
const ROUNDS: usize = 64;
/// Most rounds when known choices are adapted.
const FEW_ROUNDS: usize = 6;
/// A search is given up after this many rounds without improvement.
const IDLE: usize = 6;

/// Scripts with more acts are too long for choices and plans to be compared.
pub(crate) const LONG: usize = 6000;

/// Searches in the order they are tried, each with the share of added seconds up to which no other is tried.
const STARTS: [(SearchWay, f64); 5] = [
    (SearchWay { near: false, flat: false, riders: true }, 0.02),
    (SearchWay { near: false, flat: false, riders: false }, 0.08),
    (SearchWay { near: true, flat: false, riders: true }, 0.0),
    (SearchWay { near: false, flat: true, riders: true }, 0.0),
    (SearchWay { near: true, flat: true, riders: true }, 0.0),
];

/// Bytes, seconds and limits that choices depend on.
pub struct ChoiceTerms<'a> {
    /// What may share storage.
    pub sharing: &'a StorageSharing,
    /// Bytes of one instance of each value.
    pub bytes: &'a [u64],
    /// Working memory by node.
    pub scratch: &'a dyn Fn(usize) -> u64,
    /// Seconds by act of the base.
    pub seconds: &'a [f64],
    /// Seconds by node.
    pub node: &'a dyn Fn(usize) -> f64,
    /// Seconds to move a byte to host memory and back, and to disk and back; none where there is no such tier. Seconds
    /// that kernels hide do not count.
    pub away: [Option<(Choice, f64)>; 2],
    /// Whether values may be recomputed.
    pub recompute: bool,
    /// Bytes of the other tiers, host first.
    pub room: [u64; 2],
    /// Called with the progress of the search. If it returns false the search ends, and its result must not be used.
    pub go_on: &'a dyn Fn(Progress) -> bool,
}

impl ChoiceTerms<'_> {
    fn go_on(&self, activity: Activity, done: usize, of: usize) -> bool {
        (self.go_on)(Progress { activity, done, of })
    }
}

/// Choices and the script that follows from them, for any sizes.
#[derive(Clone, Default)]
pub struct Rewritten {
    /// The choice for every version.
    pub choices: Choices,
    /// The script that carries them out.
    pub script: Script,
    /// Where its versions live.
    pub life: Lifetimes,
}

/// The choices for some sizes.
#[derive(Default)]
pub struct Selection {
    /// The choices.
    pub rewritten: Rewritten,
    /// The reason of each.
    pub decisions: Vec<Decision>,
    /// Most device bytes in use at once.
    pub peak: u64,
}

/// The budget cannot be met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortfall {
    /// Bytes that would be enough.
    pub enough: u64,
}

/// Adds to `choices` until no act needs more than `target` bytes. The best result of several searches is taken; with
/// `at_leisure` the choices of a short script are polished.
pub fn fit(
    base: &Base,
    terms: &ChoiceTerms,
    choices: &Choices,
    target: u64,
    at_leisure: bool,
) -> Result<Selection, Shortfall> {
    let mut work = ScriptEvaluation::default();
    let mut best: Result<(f64, Choices), Shortfall> = Err(Shortfall { enough: u64::MAX });
    if base.script.acts.len() > LONG {
        let choices = by_reach(base, terms, choices, target, &mut work)?;
        return Ok(chosen(base, terms, choices, target, work));
    }
    for (way, little) in STARTS {
        let found = fit_one(base, terms, choices.clone(), target, way, &mut work);
        best = match (best, found) {
            (Ok(a), Ok(b)) => Ok(if b.0 < a.0 { b } else { a }),
            (Ok(found), Err(_)) | (Err(_), Ok(found)) => Ok(found),
            (Err(a), Err(b)) => Err(Shortfall { enough: a.enough.min(b.enough) }),
        };
        let least: f64 = terms.seconds.iter().sum();
        if !terms.recompute || best.as_ref().is_ok_and(|(cost, _)| *cost <= least * (1.0 + little)) {
            break;
        }
    }
    let from = best.as_ref().map_or(choices, |(_, choices)| choices).clone();
    let mut search = Search::new(base, terms, from, target, STARTS[0].0, &mut work);
    if let Some(found) = at_leisure.then(|| search.polish()).flatten() {
        best = Ok(found);
    }
    best.map(|(_, choices)| chosen(base, terms, choices, target, work))
}

/// Adapts choices that were made for other sizes, in a few rounds: adds some if they exceed the target, and withdraws
/// those that are not needed.
pub fn refine(
    base: &Base,
    terms: &ChoiceTerms,
    known: &Rewritten,
    target: u64,
) -> Result<Selection, Shortfall> {
    let mut work = ScriptEvaluation::known(&known.script, &known.life, terms.bytes, terms.scratch);
    let mut search = Search::new(base, terms, known.choices.clone(), target, STARTS[0].0, &mut work);
    let mut peak = search.see();
    for round in 0..FEW_ROUNDS {
        let go_on = terms.go_on(Activity::Choose, round, FEW_ROUNDS);
        if !go_on || peak <= target || !search.choose() {
            break;
        }
        peak = search.look();
    }
    if peak > target {
        return Err(Shortfall { enough: peak });
    }
    let fits = search.choices.clone();
    if search.take_back() {
        peak = search.look();
        if peak > target {
            search.choices = fits;
            peak = search.look();
        }
    }
    let (decisions, choices) = (search.reasons(), search.choices);
    Ok(Selection {
        rewritten: Rewritten { choices, script: work.writer.script, life: work.life },
        decisions,
        peak,
    })
}

fn chosen(
    base: &Base,
    terms: &ChoiceTerms,
    choices: Choices,
    target: u64,
    mut work: ScriptEvaluation,
) -> Selection {
    let written = work.of(base, terms.sharing, &choices, terms.bytes, terms.scratch);
    assert!(written, "these choices were carried out before");
    let peak = work.peak();
    let decisions = Search::new(base, terms, choices.clone(), target, STARTS[0].0, &mut work).reasons();
    Selection {
        rewritten: Rewritten { choices, script: work.writer.script, life: work.life },
        decisions,
        peak,
    }
}

/// One search.
fn fit_one(
    base: &Base,
    terms: &ChoiceTerms,
    choices: Choices,
    target: u64,
    way: SearchWay,
    work: &mut ScriptEvaluation,
) -> Result<(f64, Choices), Shortfall> {
    let mut search = Search::new(base, terms, choices, target, way, work);
    let (mut least, mut wanting) = (u64::MAX, i64::MAX);
    let (mut fits, mut idle) = (false, 0);
    for round in 0..ROUNDS {
        if !terms.go_on(Activity::Choose, round, ROUNDS) {
            break;
        }
        let peak = search.look();
        if peak <= target {
            fits = true;
            break;
        }
        let still = search.wanting_bytes();
        idle = if peak < least || still < wanting { 0 } else { idle + 1 };
        (least, wanting) = (least.min(peak), wanting.min(still));
        if idle == IDLE {
            break;
        }
        if !search.choose() && !search.reach_back() && !search.let_go() {
            break;
        }
    }
    if !fits {
        return Err(Shortfall { enough: least });
    }
    let found = (search.cost(), search.choices.clone());
    if search.take_back() && search.look() <= target {
        return Ok((search.cost(), search.choices));
    }
    Ok(found)
}

/// Seconds of every act of a script: kernels by `node`, sums and copies by their bytes.
pub fn seconds(script: &Script, bytes: &[u64], node: impl Fn(usize) -> f64) -> Vec<f64> {
    let copied = |v: VersionId| bytes[script.versions[v as usize].of.value.index()] as f64 / 8e9;
    let of = |t: usize| match script.acts[t].what {
        ScriptOp::Run(id, _) => node(id.index()),
        ScriptOp::Add | ScriptOp::Carry | ScriptOp::Move => copied(script.refs(t)[0]),
    };
    (0..script.acts.len()).map(of).collect()
}
