//! The best evaluation of a run by one metric, and the number of evaluations since.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Metrics to maximise; all others are minimised.
const RISING: [&str; 3] = ["accuracy", "macro_f1", "r2"];

/// The best evaluation so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// The metric.
    pub metric: String,
    /// Its best value.
    pub value: f64,
    /// The step after which it was measured.
    pub step: u64,
    /// Evaluations since then.
    pub stale: u64,
}

impl Best {
    /// Records an evaluation and returns whether it is the best so far. A missing or non-finite metric is no improvement.
    /// A best by another metric is discarded.
    pub fn note(best: &mut Option<Best>, metric: &str, metrics: &BTreeMap<String, f64>, step: u64) -> bool {
        let value = metrics.get(metric).copied().filter(|value| value.is_finite());
        let last = best.take().filter(|last| last.metric == metric);
        let better = |value: f64, last: &Best| match rises(metric) {
            true => value > last.value,
            false => value < last.value,
        };
        let improved = value.filter(|&value| last.as_ref().is_none_or(|last| better(value, last)));
        *best = match improved {
            Some(value) => Some(Best { metric: metric.to_string(), value, step, stale: 0 }),
            None => last.map(|last| Best { stale: last.stale + 1, ..last }),
        };
        improved.is_some()
    }
}

/// Whether a metric is to be maximised.
pub fn rises(metric: &str) -> bool {
    RISING.contains(&metric.rsplit('.').next().unwrap_or(metric))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_is_kept_and_counted_from() {
        for (metric, values, expected) in [
            ("loss", &[2.0, 1.0, 1.0, 3.0][..], Some((1.0, 1, 2))),
            ("accuracy", &[0.1, 0.4, 0.3], Some((0.4, 1, 1))),
            ("loss", &[f64::NAN, 5.0, f64::NAN], Some((5.0, 1, 1))),
            ("loss", &[f64::NAN], None),
        ] {
            let mut best = None;
            for (step, value) in values.iter().enumerate() {
                let metrics = BTreeMap::from([(metric.to_string(), *value)]);
                Best::note(&mut best, metric, &metrics, step as u64);
            }
            assert_eq!(best.map(|best| (best.value, best.step, best.stale)), expected, "{metric} {values:?}");
        }
    }

    #[test]
    fn a_best_of_another_metric_does_not_count() {
        let metrics = BTreeMap::from([("accuracy".to_string(), 0.5)]);
        let mut best = Some(Best { metric: "loss".into(), value: 0.1, step: 3, stale: 1 });
        assert!(Best::note(&mut best, "accuracy", &metrics, 4));
        assert!(!Best::note(&mut best, "loss", &metrics, 5) && best.is_none());
    }
}
