//! Average pooling over one to three spatial dimensions: the sum of each window over a fixed divisor.
//! An average that leaves the padding out divides by the counted elements afterwards, see
//! [`crate::graph::build::Builder::avg_pool`].

use super::avg_pool_grad::AvgPoolGrad;
use super::pool::{PoolText, loop_extents, pool_cases, pool_indices, pool_source};
use super::product::locate;
use super::sample::Sample;
use super::window::PoolWindow;
use super::{Backward, Op, OpDef, OpError, check};
use crate::graph::build::Builder;
use crate::graph::{GraphError, Type, Value};
use crate::spec::{Part, Spec};
use crate::tensor::{Tensor, positions};
use serde::{Deserialize, Serialize};

/// `y = Σ window / divisor`; padding counts as zero.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AvgPool {
    /// One per spatial dimension.
    pub window: Vec<PoolWindow>,
    /// The number of elements of a window, or one for a plain sum.
    pub divisor: f32,
}

impl OpDef for AvgPool {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 1, &[])?;
        let PoolText { axes, with, .. } = PoolText::new(&self.window)?;
        let x = pool_indices(&self.window, None)?;
        Ok(format!("n c {x} -> n c {axes} with {with}").parse()?)
    }

    fn grad(&self, g: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        let into = pool_source(&self.window, g.shape(at.ins[0]));
        let op = AvgPoolGrad { window: self.window.clone(), divisor: self.divisor, into };
        Ok(vec![Some(g.push1(op, &[at.dout()?])?)])
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let spec = self.spec(&[Type::f32(&ins[0].shape)]).expect("checked when the node was built");
        let extents = loop_extents(&spec, ins);
        let shape = outs[0].shape.clone();
        for loops in positions(&extents) {
            let i = locate(&spec.inputs[0], &loops, &extents, &ins[0].shape);
            let o = locate(&spec.outputs[0], &loops, &extents, &shape);
            if let (Some(i), Some(o)) = (i, o) {
                outs[0].data[o] += ins[0].data[i];
            }
        }
        for y in &mut outs[0].data {
            *y /= f64::from(self.divisor);
        }
    }

    fn part(&self, part: &Part) -> Option<Op> {
        let seen = &part.input_windows[0][2..];
        let window = self.window.iter().zip(seen).map(|(w, s)| w.within(*s)).collect();
        Some(AvgPool { window, divisor: self.divisor }.into())
    }

    fn samples() -> Vec<Sample> {
        let sample = |(window, x): (Vec<PoolWindow>, Vec<usize>)| {
            let divisor = window.iter().map(|w| w.kernel).product::<usize>() as f32;
            Sample::normal(AvgPool { window, divisor }, &[&x])
        };
        pool_cases().into_iter().map(sample).collect()
    }
}
