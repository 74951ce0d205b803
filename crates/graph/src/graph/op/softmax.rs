//! Softmax along one axis.

use super::sample::Sample;
use super::softmax_grad::SoftmaxGrad;
use super::{Backward, OpDef, OpError, attribute, check};
use crate::graph::build::Builder;
use crate::graph::{GraphError, Type, Value};
use crate::spec::Spec;
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// `y = eˣ / Σ eˣ`, the sum running along `axis`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Softmax {
    /// The dimension that sums to one.
    pub axis: usize,
}

/// The spec of an operator whose operands and result share one shape and that mixes one axis.
pub(crate) fn whole_axis_spec(ins: &[Type], axis: usize) -> Result<Spec, OpError> {
    check(ins, ins.len(), &[])?;
    let rank = ins.first().map_or(0, Type::rank);
    if axis >= rank {
        return attribute(format!("axis {axis} of a value with {rank} dimensions"));
    }
    let axes: Vec<String> = (0..rank).map(|d| format!("a{d}{}", if d == axis { "!" } else { "" })).collect();
    let operand = axes.join(" ");
    Ok(format!("{} -> {operand}", vec![operand.as_str(); ins.len()].join(", ")).parse()?)
}

/// Calls `f` with the offsets of every line of elements along an axis.
pub(crate) fn for_each_line(t: &Tensor, axis: usize, mut f: impl FnMut(&[usize])) {
    let [before, extent, after] = t.around(axis);
    let mut line = vec![0; extent];
    for outer in 0..before {
        for inner in 0..after {
            for (i, at) in line.iter_mut().enumerate() {
                *at = (outer * extent + i) * after + inner;
            }
            f(&line);
        }
    }
}

/// `log Σ eˣ` of some elements, shifted by the largest so that it does not overflow.
pub(crate) fn log_sum_exp(x: impl Iterator<Item = f64> + Clone) -> f64 {
    let largest = x.clone().fold(f64::NEG_INFINITY, f64::max);
    if largest == f64::NEG_INFINITY {
        // Nothing, or only zeros to add up; a NaN among them must show.
        return x.fold(largest, |sum, v| sum + v);
    }
    largest + x.map(|v| (v - largest).exp()).sum::<f64>().ln()
}

impl OpDef for Softmax {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 1, &[])?;
        whole_axis_spec(ins, self.axis)
    }

    fn grad(&self, g: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        Ok(vec![Some(g.push1(SoftmaxGrad { axis: self.axis }, &[at.outs[0], at.dout()?])?)])
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let x = &ins[0].data;
        for_each_line(ins[0], self.axis, |line| {
            let largest = line.iter().fold(f64::NEG_INFINITY, |m, &i| m.max(x[i]));
            let sum: f64 = line.iter().map(|&i| (x[i] - largest).exp()).sum();
            for &i in line {
                outs[0].data[i] = (x[i] - largest).exp() / sum;
            }
        });
    }

    fn flops_per_point(&self) -> u64 {
        12
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![(0, 0)]
    }

    fn samples() -> Vec<Sample> {
        vec![
            Sample::normal(Softmax { axis: 1 }, &[&[5, 19]]),
            Sample::normal(Softmax { axis: 0 }, &[&[7]]),
            Sample::normal(Softmax { axis: 1 }, &[&[2, 5, 3]]),
            Sample::normal(Softmax { axis: 3 }, &[&[2, 2, 3, 9]]),
        ]
    }
}
