//! TPE, the tree-structured Parzen estimator (Bergstra and others, NIPS 2011). The best few trials are good, the others
//! bad. For each parameter, candidates are drawn from the density of the good ones, and the candidate with the highest
//! ratio of good to bad density is taken. Libraries of it carry the state of a random generator; this one is a pure
//! function of the known trials.
//!
//! Every parameter is mapped to a share of its range, so one estimator serves all kinds. Its kernels are logistic:
//! nearly normal, with a distribution function that can be inverted in closed form.

use super::{Ask, Trial, random};
use crate::sweep::file::Sweep;
use crate::sweep::space::{Parameter, ParameterKind, SearchSpace, TrialPoint, draw};

/// Trials at random before anything is estimated.
pub const STARTUP: u64 = 10;

/// Candidates a parameter is chosen from.
const CANDIDATES: u64 = 24;

/// One trial in this many is good…
const GOOD: usize = 10;

/// …but no more than this.
const MOST_GOOD: usize = 25;

/// See [`super::next`].
pub fn next(sweep: &Sweep, trials: &[Trial]) -> Vec<Ask> {
    let known = trials.len() as u64;
    if known < STARTUP {
        return random::new(sweep, known..sweep.trials.min(STARTUP), sweep.top());
    }
    // A failed trial has the worst score.
    let score =
        |t: &Trial| t.scores.get(&sweep.top()).copied().filter(|_| !t.failed).unwrap_or(f64::INFINITY);
    let seen: Vec<(&TrialPoint, f64)> = trials.iter().map(|t| (&t.point, score(t))).collect();
    let propose =
        |trial| Ask { trial, point: propose(&sweep.space, sweep.seed, trial, &seen), level: sweep.top() };
    (known..sweep.trials.min(known + sweep.width)).map(propose).collect()
}

/// The point of a trial, given points and their scores; lower is better.
pub fn propose(space: &SearchSpace, seed: u64, trial: u64, seen: &[(&TrialPoint, f64)]) -> TrialPoint {
    let mut order: Vec<usize> = (0..seen.len()).collect();
    order.sort_by(|&a, &b| seen[a].1.total_cmp(&seen[b].1).then(a.cmp(&b)));
    let finite = seen.iter().filter(|(_, score)| score.is_finite()).count();
    let good = seen.len().div_ceil(GOOD).min(MOST_GOOD).min(finite);
    let (good, bad) = order.split_at(good);
    space.point(|parameter| {
        let codes = |of: &[usize]| -> Vec<f64> {
            of.iter().filter_map(|&i| seen[i].0.get(&parameter.field).copied()).collect()
        };
        choose(parameter, seed, trial, &codes(good), &codes(bad))
    })
}

fn choose(parameter: &Parameter, seed: u64, trial: u64, good: &[f64], bad: &[f64]) -> f64 {
    let (like_good, like_bad) = (Estimate::of(&parameter.kind, good), Estimate::of(&parameter.kind, bad));
    let mut best: Option<(f64, f64)> = None;
    for i in 0..CANDIDATES {
        let random = |j: u64| draw(seed, &parameter.field, trial, 1 + 2 * i + j);
        let code = parameter.kind.at(like_good.draw(random(0), random(1)));
        let share = parameter.kind.share(code);
        let gain = like_good.density(share).ln() - like_bad.density(share).ln();
        if best.is_none_or(|(most, _)| gain > most) {
            best = Some((gain, code));
        }
    }
    best.map_or(0.0, |(_, code)| code)
}

/// A density over shares from 0 to 1.
enum Estimate {
    /// Logistic kernels, cut off at the ends: centre, scale, and the mass below 0 and below 1.
    Kernels(Vec<(f64, f64, f64, f64)>),
    /// As many equal parts as there are choices, with their probabilities.
    Parts(Vec<f64>),
}

impl Estimate {
    fn of(kind: &ParameterKind, codes: &[f64]) -> Estimate {
        if let ParameterKind::Choice(values) = kind {
            let mut counts = vec![1.0; values.len()];
            codes.iter().for_each(|&code| counts[(code as usize).min(values.len() - 1)] += 1.0);
            let sum: f64 = counts.iter().sum();
            return Estimate::Parts(counts.into_iter().map(|n| n / sum).collect());
        }
        // One wide kernel in the middle is the prior: it keeps every value possible.
        let mut centres: Vec<(f64, bool)> = codes.iter().map(|&code| (kind.share(code), false)).collect();
        centres.push((0.5, true));
        centres.sort_by(|a, b| a.0.total_cmp(&b.0));
        let least = 1.0 / (centres.len() as f64).min(100.0);
        let kernel = |i: usize| {
            let (centre, middle) = centres[i];
            let left = i.checked_sub(1).map(|j| centre - centres[j].0);
            let right = centres.get(i + 1).map(|next| next.0 - centre);
            let width = left.into_iter().chain(right).fold(0.0, f64::max).clamp(least, 1.0);
            // The scale of the logistic distribution with this standard deviation.
            let scale = if middle { 1.0 } else { width } * 3f64.sqrt() / std::f64::consts::PI;
            (centre, scale, below((0.0 - centre) / scale), below((1.0 - centre) / scale))
        };
        Estimate::Kernels((0..centres.len()).map(kernel).collect())
    }

    /// A share, from two random numbers from 0 to below 1.
    fn draw(&self, which: f64, place: f64) -> f64 {
        match self {
            Estimate::Kernels(kernels) => {
                let index = ((which * kernels.len() as f64) as usize).min(kernels.len() - 1);
                let (centre, scale, low, high) = kernels[index];
                let mass = low + place * (high - low);
                (centre + scale * (mass / (1.0 - mass)).ln()).clamp(0.0, 1.0 - f64::EPSILON)
            }
            Estimate::Parts(parts) => {
                let mut sum = 0.0;
                let index = parts.iter().position(|p| {
                    sum += p;
                    which < sum
                });
                (index.unwrap_or(parts.len() - 1) as f64 + 0.5) / parts.len() as f64
            }
        }
    }

    fn density(&self, share: f64) -> f64 {
        match self {
            Estimate::Kernels(kernels) => {
                let one = |(centre, scale, low, high): &(f64, f64, f64, f64)| {
                    let p = below((share - centre) / scale);
                    p * (1.0 - p) / scale / (high - low)
                };
                kernels.iter().map(one).sum::<f64>() / kernels.len() as f64
            }
            Estimate::Parts(parts) => {
                let index = ((share * parts.len() as f64) as usize).min(parts.len() - 1);
                parts[index] * parts.len() as f64
            }
        }
    }
}

/// The distribution function of the logistic distribution.
fn below(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}
