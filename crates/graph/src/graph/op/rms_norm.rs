//! Normalisation by the root mean square over the last dimension.

use super::rms_norm_grad::RmsNormGrad;
use super::sample::Sample;
use super::{Backward, OpDef, OpError, attribute, check};
use crate::graph::build::Builder;
use crate::graph::{GraphError, Type, Value};
use crate::spec::{Spec, expand_ellipsis};
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// Inputs x, gamma: `y = x·rstd·gamma` with `rstd = 1/√(mean x² + eps)`. Outputs y; for the backward
/// pass rstd, of the shape of the leading dimensions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RmsNorm {
    /// Added to the mean square.
    pub eps: f32,
}

/// The line with `...` standing for all dimensions but the last.
pub(crate) fn rows_spec(line: &str, x: &Type) -> Result<Spec, OpError> {
    match x.rank().checked_sub(1) {
        Some(rows) => Ok(expand_ellipsis(line, rows).parse()?),
        None => attribute("needs at least one dimension"),
    }
}

impl OpDef for RmsNorm {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 2, &[])?;
        rows_spec("... x!, x! -> ... x!, ...", &ins[0])
    }

    fn results(&self) -> usize {
        1
    }

    fn grad(&self, g: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        let ins = [at.ins[0], at.ins[1], at.outs[1], at.dout()?];
        Ok(g.push(RmsNormGrad {}, &ins)?.into_iter().map(Some).collect())
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let gamma = &ins[1].data;
        let width = gamma.len().max(1);
        let [y, saved] = outs else { unreachable!("two outputs") };
        for (row, x) in ins[0].data.chunks(width).enumerate() {
            let square = x.iter().map(|v| v * v).sum::<f64>() / width as f64;
            let rstd = 1.0 / (square + f64::from(self.eps)).sqrt();
            saved.data[row] = rstd;
            for (i, x) in x.iter().enumerate() {
                y.data[row * width + i] = x * rstd * gamma[i];
            }
        }
    }

    fn flops_per_point(&self) -> u64 {
        4
    }

    fn samples() -> Vec<Sample> {
        let norm = || RmsNorm { eps: 1e-6 };
        vec![
            Sample::normal(norm(), &[&[4, 17], &[17]]),
            Sample::normal(norm(), &[&[2, 3, 5], &[5]]),
            Sample::normal(norm(), &[&[9], &[9]]),
        ]
    }
}
