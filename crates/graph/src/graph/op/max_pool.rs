//! Max pooling over one to three spatial dimensions. Padding counts as minus infinity.

use super::max_pool_grad::MaxPoolGrad;
use super::pool::{PoolText, loop_extents, pool_cases, pool_indices, pool_source};
use super::product::locate;
use super::sample::Sample;
use super::window::PoolWindow;
use super::zip::Binary;
use super::{Backward, Op, OpDef, OpError, check};
use crate::graph::build::Builder;
use crate::graph::{GraphError, Type, Value};
use crate::spec::{Part, Spec};
use crate::tensor::{Tensor, positions};
use serde::{Deserialize, Serialize};

/// The largest element of each window; a NaN in the window is the result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MaxPool {
    /// One per spatial dimension.
    pub window: Vec<PoolWindow>,
}

impl OpDef for MaxPool {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 1, &[])?;
        let PoolText { axes, taps, with } = PoolText::new(&self.window)?;
        let x = pool_indices(&self.window, None)?;
        Ok(format!("n c {x} -> n c {axes} max {taps} with {with}").parse()?)
    }

    fn grad(&self, g: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        let x = at.ins[0];
        let op = MaxPoolGrad { window: self.window.clone(), into: pool_source(&self.window, g.shape(x)) };
        Ok(vec![Some(g.push1(op, &[x, at.outs[0], at.dout()?])?)])
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let spec = self.spec(&[Type::f32(&ins[0].shape)]).expect("checked when the node was built");
        let extents = loop_extents(&spec, ins);
        outs[0].data.fill(f64::NEG_INFINITY);
        let shape = outs[0].shape.clone();
        for loops in positions(&extents) {
            let i = locate(&spec.inputs[0], &loops, &extents, &ins[0].shape);
            let o = locate(&spec.outputs[0], &loops, &extents, &shape);
            if let (Some(i), Some(o)) = (i, o) {
                outs[0].data[o] = Binary::Max.eval(outs[0].data[o], ins[0].data[i]);
            }
        }
    }

    fn part(&self, part: &Part) -> Option<Op> {
        let seen = &part.input_windows[0][2..];
        Some(MaxPool { window: self.window.iter().zip(seen).map(|(w, s)| w.within(*s)).collect() }.into())
    }

    fn samples() -> Vec<Sample> {
        pool_cases().into_iter().map(|(window, x)| Sample::normal(MaxPool { window }, &[&x])).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_shapes_are_named() {
        let window =
            |kernel, stride| MaxPool { window: vec![PoolWindow { kernel, stride, low: 0, high: 0 }; 2] };
        for (op, x, expected) in [
            (window(9, 1), vec![1, 3, 8, 8], "window along h needs 9 elements, input 0 has 8 with padding"),
            (window(2, 1), vec![1, 3, 8], "input 0 has 3 dimensions, expected 4 (n c h+r! w+s!)"),
            (window(0, 1), vec![1, 3, 8, 8], "stride 1 and kernel 0 must be above 0"),
        ] {
            let x = Type::f32(&x);
            let error = op.spec(std::slice::from_ref(&x)).and_then(|s| Ok(s.infer(&[&x.shape])?));
            assert_eq!(error.unwrap_err().to_string(), expected);
        }
    }
}
