//! The gradient of an element-wise function: `dx = f'(v)·dy` in one pass.

use super::map::Function;
use super::sample::{Sample, SampleInput};
use super::{OpDef, OpError, check};
use crate::graph::Type;
use crate::spec::{Spec, expand_ellipsis};
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// Inputs: the saved argument or result (see [`Function::derivative_of_result`]) and `dy`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MapGrad(pub Function);

impl OpDef for MapGrad {
    fn family(&self) -> String {
        format!("map_grad {}", self.0.name())
    }

    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 2, &[])?;
        Ok(expand_ellipsis("..., ... -> ...", ins[0].rank()).parse()?)
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        for ((dx, v), dy) in outs[0].data.iter_mut().zip(&ins[0].data).zip(&ins[1].data) {
            *dx = self.0.derivative(*v) * dy;
        }
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![(1, 0), (0, 0)]
    }

    fn samples() -> Vec<Sample> {
        let sample = |f: &Function| {
            let (low, high) = if f.derivative_of_result() { (0.1, 0.9) } else { f.domain() };
            let inputs = vec![SampleInput::uniform(&[3, 37], low, high), SampleInput::normal(&[3, 37])];
            Sample::new(MapGrad(*f), inputs)
        };
        Function::ALL.iter().map(sample).collect()
    }
}
