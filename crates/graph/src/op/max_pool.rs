//! Max pooling over one to three spatial dimensions. Padding counts as minus infinity.

use super::max_pool_grad::MaxPoolGrad;
use super::product::locate;
use super::sample::Sample;
use super::window::{PoolWindow, Target, spatial, window_text};
use super::zip::Binary;
use super::{Backward, Op, OpDef, OpError, check};
use crate::build::Builder;
use crate::dim::Dim;
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

/// What the line of a pooling operator is made of: the windows' indices, the axes they slide along, and
/// the clause that gives the taps their extents. Taps stay whole: parts along them help no one.
pub(crate) struct PoolText {
    pub(crate) axes: String,
    pub(crate) taps: String,
    pub(crate) with: String,
}

impl PoolText {
    pub(crate) fn new(window: &[PoolWindow]) -> Result<PoolText, OpError> {
        let (axes, taps) = spatial(window.len())?;
        for w in window {
            w.check()?;
        }
        let with: Vec<String> = taps.iter().zip(window).map(|(r, w)| format!("{r}={}", w.kernel)).collect();
        Ok(PoolText { axes: axes.join(" "), taps: taps.join(" "), with: with.join(" ") })
    }
}

/// The windows as an operand; each with the extent of its dimension where one is given.
pub(crate) fn pool_indices(window: &[PoolWindow], size: Option<&[Dim]>) -> Result<String, OpError> {
    let (axes, taps) = spatial(window.len())?;
    let index = |(d, w): (usize, &PoolWindow)| {
        let size = size.and_then(|s| s.get(d));
        window_text(&w.steps(), axes[d], &format!("{}!", taps[d]), size)
    };
    Ok(window.iter().enumerate().map(index).collect::<Vec<_>>().join(" "))
}

/// The windows as an operand that they are scattered into.
pub(crate) fn pool_targets(window: &[PoolWindow], into: &[Target]) -> Result<String, OpError> {
    if into.len() != window.len() {
        return super::attribute(format!("{} extents for {} windows", into.len(), window.len()));
    }
    let place = |(w, t): (&PoolWindow, &Target)| PoolWindow { low: t.low, ..*w };
    let placed: Vec<PoolWindow> = window.iter().zip(into).map(place).collect();
    let size: Vec<Dim> = into.iter().map(|t| t.size.clone()).collect();
    pool_indices(&placed, Some(&size))
}

/// Where the gradient of a pooled value [n, c, spatial…] goes: exactly where its windows came from.
pub(crate) fn pool_source(window: &[PoolWindow], shape: &[Dim]) -> Vec<Target> {
    window.iter().zip(&shape[2..]).map(|(w, size)| Target { low: w.low, size: size.clone() }).collect()
}

/// The targets as one part of a cut sees them.
pub(crate) fn pool_targets_within(part: &Part) -> Vec<Target> {
    let seen = part.outputs[0].iter().zip(&part.output_windows[0]);
    seen.filter_map(|(region, w)| w.map(|w| Target { low: w.low, size: region.len().into() })).collect()
}

/// Extents of all loops of a pooling spec whose taps and windows are known.
pub(crate) fn loop_extents(spec: &Spec, ins: &[&Tensor]) -> Vec<usize> {
    let dims: Vec<Vec<Dim>> =
        ins.iter().map(|t| t.shape.iter().map(|&d| Dim::from(d)).collect::<Vec<_>>()).collect();
    let dims: Vec<&[Dim]> = dims.iter().map(Vec::as_slice).collect();
    let extents = spec.extents(&dims).expect("types were checked when the node was built");
    extents.iter().map(|e| e.as_const().expect("bound shapes") as usize).collect()
}

/// Small pooling cases: windows and the shape of x.
pub(crate) fn pool_cases() -> Vec<(Vec<PoolWindow>, Vec<usize>)> {
    let window = |kernel, stride, low, high| PoolWindow { kernel, stride, low, high };
    vec![
        (vec![window(2, 2, 0, 0), window(2, 2, 0, 0)], vec![2, 3, 6, 5]),
        (vec![window(3, 2, 1, 1), window(3, 2, 1, 1)], vec![1, 2, 8, 7]),
        (vec![window(3, 1, 1, 0), window(1, 3, 0, 0)], vec![1, 2, 5, 9]),
        (vec![window(2, 3, -1, 1)], vec![2, 2, 9]),
        (vec![window(2, 1, 1, 0), window(2, 2, 0, 0), window(2, 2, 1, 1)], vec![1, 2, 3, 4, 4]),
    ]
}

impl OpDef for MaxPool {
    fn name(&self) -> &'static str {
        "max_pool"
    }

    fn help(&self) -> &'static str {
        "largest element of each sliding window"
    }

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
