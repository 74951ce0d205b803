//! Scores of predictions against measurements: error, order, regret, and memory.

use gulliver_oracle::estimate::Interval;
use serde::Serialize;
use std::collections::BTreeMap;

/// A measurement and what was predicted for it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedRow {
    /// The row, for people.
    pub label: String,
    /// Rows between which a user would choose: the same model, devices and batch.
    pub group: String,
    /// Measured seconds (or bytes), if it ran.
    pub measured: Option<f64>,
    /// Predicted.
    pub predicted: f64,
    /// Between which eight of ten should lie.
    pub interval: Option<Interval>,
    /// Another oracle's prediction for the same row.
    pub peer: Option<f64>,
    /// Whether it ran out of memory, measured and predicted, where that is known.
    pub out_of_memory: Option<(bool, bool)>,
}

impl ComparedRow {
    /// Share by which the prediction is off, with its sign.
    pub fn error(&self) -> Option<f64> {
        self.measured.filter(|m| *m > 0.0).map(|measured| self.predicted / measured - 1.0)
    }
}

/// The score of a set of cases.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Score {
    /// Cases with a measured time.
    pub rows: usize,
    /// Mean absolute error, as a share.
    pub error: Option<f64>,
    /// Mean error with its sign.
    pub bias: Option<f64>,
    /// Share of cases that lie within their interval.
    pub within: Option<f64>,
    /// Kendall's τ within groups, averaged over those with something to order.
    pub tau: Option<f64>,
    /// By how much the choice of each group is slower than its best, averaged.
    pub regret: Option<f64>,
    /// Of those predicted to run out of memory, the share that did.
    pub precision: Option<f64>,
    /// Of those that ran out of memory, the share that was predicted.
    pub recall: Option<f64>,
    /// Mean absolute error of the other oracle and of this one on the rows it predicted, and how many.
    pub peer: Option<(f64, f64, usize)>,
}

/// Scores cases.
pub fn score(cases: &[ComparedRow]) -> Score {
    let errors: Vec<f64> = cases.iter().filter_map(ComparedRow::error).collect();
    let held: Vec<bool> =
        cases.iter().filter_map(|case| Some(case.interval?.contains(case.measured?))).collect();
    let mut groups: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for case in cases {
        if let Some(measured) = case.measured.filter(|_| !case.group.is_empty()) {
            groups.entry(&case.group).or_default().push((measured, case.predicted));
        }
    }
    let taus: Vec<f64> = groups.values().filter_map(|group| tau(group)).collect();
    let regrets: Vec<f64> =
        groups.values().filter(|group| group.len() > 1).filter_map(|group| regret(group)).collect();
    let memory: Vec<(bool, bool)> = cases.iter().filter_map(|case| case.out_of_memory).collect();
    let share = |of: usize, all: usize| (all > 0).then(|| of as f64 / all as f64);
    let both = memory.iter().filter(|(measured, predicted)| *measured && *predicted).count();
    let compared: Vec<(f64, f64)> = cases
        .iter()
        .filter_map(|case| {
            let (measured, peer) = (case.measured?, case.peer?);
            Some(((peer / measured - 1.0).abs(), case.error()?.abs()))
        })
        .collect();
    let peer = mean(compared.iter().map(|c| c.0)).zip(mean(compared.iter().map(|c| c.1)));
    Score {
        rows: errors.len(),
        error: mean(errors.iter().map(|e| e.abs())),
        bias: mean(errors.iter().copied()),
        within: share(held.iter().filter(|held| **held).count(), held.len()),
        tau: mean(taus.iter().copied()),
        regret: mean(regrets.iter().copied()),
        precision: share(both, memory.iter().filter(|(_, predicted)| *predicted).count()),
        recall: share(both, memory.iter().filter(|(measured, _)| *measured).count()),
        peer: peer.map(|(theirs, ours)| (theirs, ours, compared.len())),
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0usize), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / count as f64)
}

/// Pairs in the right order less those in the wrong one, as a share of all pairs that differ.
fn tau(group: &[(f64, f64)]) -> Option<f64> {
    let (mut agreed, mut pairs) = (0.0, 0.0);
    for (i, a) in group.iter().enumerate() {
        for b in &group[..i] {
            let (measured, predicted) = (a.0.total_cmp(&b.0), a.1.total_cmp(&b.1));
            if measured.is_ne() {
                pairs += 1.0;
                agreed += if measured == predicted {
                    1.0
                } else if predicted.is_eq() {
                    0.0
                } else {
                    -1.0
                };
            }
        }
    }
    (pairs > 0.0).then(|| agreed / pairs)
}

fn regret(group: &[(f64, f64)]) -> Option<f64> {
    let chosen = group.iter().min_by(|a, b| a.1.total_cmp(&b.1))?.0;
    let best = group.iter().map(|one| one.0).fold(f64::INFINITY, f64::min);
    (best > 0.0).then(|| chosen / best - 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(group: &str, measured: f64, predicted: f64) -> ComparedRow {
        ComparedRow {
            label: String::new(),
            group: group.into(),
            measured: Some(measured),
            predicted,
            interval: Some(Interval { low: 0.6 * predicted, high: 1.6 * predicted }),
            peer: Some(2.0 * measured),
            out_of_memory: None,
        }
    }

    #[test]
    fn scores_by_hand() {
        // In group a the order of three is right but for one pair; in b the choice is twice as slow.
        let mut cases = vec![
            case("a", 1.0, 1.1),
            case("a", 2.0, 1.0),
            case("a", 4.0, 4.0),
            case("b", 1.0, 2.0),
            case("b", 2.0, 1.0),
        ];
        let score_of = score(&cases);
        assert_eq!((score_of.rows, score_of.within), (5, Some(0.4)));
        let error = (0.1 + 0.5 + 0.0 + 1.0 + 0.5) / 5.0;
        assert!((score_of.error.unwrap() - error).abs() < 1e-12);
        assert!((score_of.tau.unwrap() - (1.0 / 3.0 - 1.0) / 2.0).abs() < 1e-12);
        assert!((score_of.regret.unwrap() - 1.0).abs() < 1e-12, "2/1 - 1 in both");
        let (theirs, ours, count) = score_of.peer.unwrap();
        assert_eq!((theirs, count), (1.0, 5));
        assert!((ours - error).abs() < 1e-12);
        for (measured, predicted) in
            [(true, true), (true, false), (false, true), (false, false), (true, true)]
        {
            cases.push(ComparedRow {
                measured: None,
                out_of_memory: Some((measured, predicted)),
                ..case("", 1.0, 1.0)
            });
        }
        let score_of = score(&cases);
        assert_eq!((score_of.precision, score_of.recall), (Some(2.0 / 3.0), Some(2.0 / 3.0)));
        assert_eq!(score(&[]), Score::default());
    }
}
