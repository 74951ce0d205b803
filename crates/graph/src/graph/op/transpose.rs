//! Transpose: dimensions in another order.

use super::sample::Sample;
use super::{Backward, OpDef, OpError, attribute};
use crate::graph::build::Builder;
use crate::graph::{GraphError, Type, Value};
use crate::spec::{Spec, SpecError};
use crate::tensor::{Tensor, positions};
use serde::{Deserialize, Serialize};

/// Output dimension `d` is input dimension `order[d]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Transpose {
    /// A permutation of the dimensions.
    pub order: Vec<usize>,
}

impl OpDef for Transpose {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        let [x] = ins else { return Err(SpecError::Arity { expected: 1, got: ins.len() }.into()) };
        let mut sorted = self.order.clone();
        sorted.sort_unstable();
        if sorted != (0..x.rank()).collect::<Vec<_>>() {
            return attribute(format!(
                "order {:?} is not a permutation of {} dimensions",
                self.order,
                x.rank()
            ));
        }
        if sorted.is_empty() {
            return Ok("[] -> []".parse()?);
        }
        let names = |order: &[usize]| order.iter().map(|d| format!("a{d}")).collect::<Vec<_>>().join(" ");
        Ok(format!("{} -> {}", names(&sorted), names(&self.order)).parse()?)
    }

    fn grad(&self, g: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        let mut order = vec![0; self.order.len()];
        for (to, &from) in self.order.iter().enumerate() {
            order[from] = to;
        }
        Ok(vec![Some(g.push1(Transpose { order }, &[at.dout()?])?)])
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        for (p, &x) in positions(&ins[0].shape).zip(&ins[0].data) {
            let place: Vec<usize> = self.order.iter().map(|&d| p[d]).collect();
            *outs[0].at_mut(&place) = x;
        }
    }

    fn flops_per_point(&self) -> u64 {
        0
    }

    fn samples() -> Vec<Sample> {
        vec![
            Sample::normal(Transpose { order: vec![1, 0] }, &[&[5, 19]]),
            Sample::normal(Transpose { order: vec![0, 2, 1, 3] }, &[&[2, 3, 4, 5]]),
            Sample::normal(Transpose { order: vec![2, 0, 1] }, &[&[2, 3, 4]]),
        ]
    }
}
