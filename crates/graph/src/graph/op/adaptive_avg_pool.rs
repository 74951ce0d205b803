//! Average pooling to given extents from any input extents: output `i` averages the elements from
//! `⌊i·in/out⌋` up to `⌈(i+1)·in/out⌉`.

use super::adaptive_avg_pool_grad::AdaptiveAvgPoolGrad;
use super::sample::Sample;
use super::window::spatial;
use super::{Backward, OpDef, OpError, attribute, check};
use crate::graph::build::Builder;
use crate::graph::{GraphError, Type, Value};
use crate::spec::Spec;
use crate::tensor::{Tensor, positions};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// To these spatial extents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdaptiveAvgPool {
    /// One per spatial dimension.
    pub size: Vec<usize>,
}

/// The elements that output `i` of `to` averages, out of `from`.
pub fn adaptive_range(i: usize, from: usize, to: usize) -> Range<usize> {
    i * from / to..((i + 1) * from).div_ceil(to)
}

/// Every position of a box, as the sizes and offsets of its ranges say.
pub(crate) fn box_positions(ranges: &[Range<usize>]) -> Vec<Vec<usize>> {
    let lens: Vec<usize> = ranges.iter().map(Range::len).collect();
    positions(&lens).map(|p| p.iter().zip(ranges).map(|(i, r)| i + r.start).collect()).collect()
}

impl OpDef for AdaptiveAvgPool {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 1, &[])?;
        let (axes, taps) = spatial(self.size.len())?;
        if self.size.contains(&0) {
            return attribute(format!("output extents {:?} must be above 0", self.size));
        }
        let whole = |names: &[&str]| names.iter().map(|a| format!("{a}!")).collect::<Vec<_>>().join(" ");
        let with: Vec<String> = taps.iter().zip(&self.size).map(|(r, s)| format!("{r}={s}")).collect();
        Ok(format!("opaque n c {} -> n c {} with {}", whole(axes), whole(taps), with.join(" ")).parse()?)
    }

    fn grad(&self, g: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        let size = g.shape(at.ins[0])[2..].to_vec();
        Ok(vec![Some(g.push1(AdaptiveAvgPoolGrad { size }, &[at.dout()?])?)])
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let shape = outs[0].shape.clone();
        for (y, out) in outs[0].data.iter_mut().zip(positions(&shape)) {
            let range = |d: usize| adaptive_range(out[d], ins[0].shape[d], shape[d]);
            let mut ranges = vec![out[0]..out[0] + 1, out[1]..out[1] + 1];
            ranges.extend((2..shape.len()).map(range));
            let window = box_positions(&ranges);
            *y = window.iter().map(|p| ins[0].at(p)).sum::<f64>() / window.len() as f64;
        }
    }

    // The nest pairs every output with every input; only about one addition per input is done.
    fn flops_per_point(&self) -> u64 {
        0
    }

    fn samples() -> Vec<Sample> {
        let to = |size: &[usize]| AdaptiveAvgPool { size: size.to_vec() };
        vec![
            Sample::normal(to(&[3, 2]), &[&[2, 3, 7, 5]]),
            Sample::normal(to(&[2, 4]), &[&[1, 2, 6, 3]]),
            Sample::normal(to(&[4]), &[&[2, 2, 9]]),
            Sample::normal(to(&[1, 2, 2]), &[&[1, 2, 2, 3, 5]]),
        ]
    }
}
