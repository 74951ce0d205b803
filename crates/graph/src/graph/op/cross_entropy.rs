//! Cross entropy of rows of logits against class labels; the mean over rows is a composition.

use super::cross_entropy_grad::CrossEntropyGrad;
use super::rms_norm::rows_spec;
use super::sample::{Sample, SampleInput};
use super::softmax::log_sum_exp;
use super::{Backward, INTEGER, OpDef, OpError, attribute, check};
use crate::graph::build::Builder;
use crate::graph::{GraphError, Type, Value};
use crate::spec::Spec;
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// Inputs logits `[n…, c]` and targets `[n…]`: `(1-s)·(lse - x[target]) + s·mean(lse - x)` per row, with
/// `lse = log Σ eˣ` and smoothing `s` spread over all classes. Outputs the row losses; for the backward
/// pass the lse of each row. A row whose target is `ignore` has loss 0; any other target outside the
/// classes gives NaN.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CrossEntropy {
    /// The target of rows that do not count.
    pub ignore: Option<i64>,
    /// The share of the target's probability that is spread over all classes.
    pub smoothing: f32,
}

impl CrossEntropy {
    pub(crate) fn check_smoothing(smoothing: f32) -> Result<(), OpError> {
        if (0.0..=1.0).contains(&smoothing) {
            return Ok(());
        }
        attribute(format!("label smoothing {smoothing} is not between 0 and 1"))
    }
}

impl OpDef for CrossEntropy {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 2, &[(1, INTEGER)])?;
        CrossEntropy::check_smoothing(self.smoothing)?;
        rows_spec("... c!, ... -> ..., ...", &ins[0])
    }

    fn results(&self) -> usize {
        1
    }

    fn grad(&self, g: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        let op = CrossEntropyGrad { ignore: self.ignore, smoothing: self.smoothing };
        Ok(vec![Some(g.push1(op, &[at.ins[0], at.ins[1], at.outs[1], at.dout()?])?), None])
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let classes = ins[0].shape.last().map_or(1, |&c| c.max(1));
        let smoothing = f64::from(self.smoothing);
        for (row, (x, &target)) in ins[0].data.chunks(classes).zip(&ins[1].data).enumerate() {
            let lse = log_sum_exp(x.iter().copied());
            outs[1].data[row] = lse;
            if self.ignore == Some(target as i64) {
                continue;
            }
            let hit = usize::try_from(target as i64).ok().and_then(|t| x.get(t)).copied().unwrap_or(f64::NAN);
            let spread = x.iter().map(|x| lse - x).sum::<f64>() / classes as f64;
            outs[0].data[row] = (1.0 - smoothing) * (lse - hit) + smoothing * spread;
        }
    }

    fn flops_per_point(&self) -> u64 {
        10
    }

    fn samples() -> Vec<Sample> {
        let sample = |ignore, smoothing, logits: &[usize], classes| {
            let rows = &logits[..logits.len() - 1];
            let inputs = vec![SampleInput::normal(logits), SampleInput::below(rows, classes)];
            Sample::new(CrossEntropy { ignore, smoothing }, inputs)
        };
        vec![
            sample(None, 0.0, &[5, 17], 17),
            sample(Some(1), 0.0, &[9, 3], 3),
            sample(Some(2), 0.1, &[2, 4, 5], 5),
            sample(None, 0.25, &[7], 7),
        ]
    }
}
