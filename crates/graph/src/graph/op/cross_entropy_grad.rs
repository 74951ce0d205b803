//! The gradient of cross entropy by its logits.

use super::cross_entropy::CrossEntropy;
use super::rms_norm::rows_spec;
use super::sample::{Sample, SampleInput};
use super::{INTEGER, OpDef, OpError, check};
use crate::graph::Type;
use crate::spec::Spec;
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// Inputs logits, targets, lse and the gradient of each row's loss; output
/// `dx = drow·(e^(x - lse) - (1-s)·[target] - s/c)`, zero in ignored rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CrossEntropyGrad {
    /// The target of rows that do not count.
    pub ignore: Option<i64>,
    /// The share of the target's probability that is spread over all classes.
    pub smoothing: f32,
}

impl OpDef for CrossEntropyGrad {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 4, &[(1, INTEGER)])?;
        CrossEntropy::check_smoothing(self.smoothing)?;
        // Classes are independent of each other here, but a part would not know which ones it holds.
        rows_spec("... c!, ..., ..., ... -> ... c!", &ins[0])
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let classes = ins[0].shape.last().map_or(1, |&c| c.max(1));
        let smoothing = f64::from(self.smoothing);
        for (row, &target) in ins[1].data.iter().enumerate() {
            if self.ignore == Some(target as i64) {
                continue;
            }
            let (lse, drow) = (ins[2].data[row], ins[3].data[row]);
            for c in 0..classes {
                let at = row * classes + c;
                let hit = if target == c as f64 { 1.0 - smoothing } else { 0.0 };
                let probability = (ins[0].data[at] - lse).exp();
                outs[0].data[at] = drow * (probability - hit - smoothing / classes as f64);
            }
        }
    }

    fn flops_per_point(&self) -> u64 {
        10
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![(0, 0)]
    }

    fn samples() -> Vec<Sample> {
        let sample = |ignore, smoothing, logits: &[usize], classes| {
            let rows = &logits[..logits.len() - 1];
            let n = SampleInput::normal;
            let inputs = vec![
                n(logits),
                SampleInput::below(rows, classes),
                SampleInput::uniform(rows, 1.0, 3.0),
                n(rows),
            ];
            Sample::new(CrossEntropyGrad { ignore, smoothing }, inputs)
        };
        vec![
            sample(None, 0.0, &[5, 17], 17),
            sample(Some(1), 0.0, &[9, 3], 3),
            sample(Some(2), 0.1, &[2, 4, 5], 5),
            sample(None, 0.25, &[7], 7),
        ]
    }
}
