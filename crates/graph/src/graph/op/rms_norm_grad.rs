//! The gradient of root-mean-square normalisation in one operator.

use super::rms_norm::rows_spec;
use super::sample::{Sample, SampleInput};
use super::{OpDef, OpError, check};
use crate::graph::Type;
use crate::spec::Spec;
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// Inputs x, gamma, rstd, dy; outputs dx, dgamma. Rows may be cut: then dgamma is a partial sum.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RmsNormGrad {}

impl OpDef for RmsNormGrad {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 4, &[])?;
        rows_spec("... x!, x!, ..., ... x! -> ... x!, x!", &ins[0])
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let gamma = &ins[1].data;
        let width = gamma.len().max(1);
        let [dx, dgamma] = outs else { unreachable!("two outputs") };
        for (row, (x, dy)) in ins[0].data.chunks(width).zip(ins[3].data.chunks(width)).enumerate() {
            let rstd = ins[2].data[row];
            let normal: Vec<f64> = x.iter().map(|x| x * rstd).collect();
            let slope = (0..x.len()).map(|i| dy[i] * gamma[i] * normal[i]).sum::<f64>() / width as f64;
            for i in 0..x.len() {
                dx.data[row * width + i] = rstd * (dy[i] * gamma[i] - normal[i] * slope);
                dgamma.data[i] += dy[i] * normal[i];
            }
        }
    }

    fn flops_per_point(&self) -> u64 {
        10
    }

    fn samples() -> Vec<Sample> {
        let sample = |x: &[usize]| {
            let (rows, width) = x.split_at(x.len() - 1);
            let n = SampleInput::normal;
            let rstd = SampleInput::uniform(rows, 0.5, 2.0);
            Sample::new(RmsNormGrad {}, vec![n(x), n(width), rstd, n(x)])
        };
        vec![sample(&[4, 17]), sample(&[2, 3, 5]), sample(&[9])]
    }
}
