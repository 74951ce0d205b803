//! Pad: a constant around a value; negative padding crops.

use super::sample::Sample;
use super::{Backward, Op, OpDef, OpError, attribute};
use crate::graph::build::Builder;
use crate::graph::{GraphError, Type, Value};
use crate::spec::{Part, Spec, SpecError};
use crate::tensor::{Tensor, positions};
use serde::{Deserialize, Serialize};

/// Padding per dimension.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pad {
    /// Elements added before the first; negative removes some.
    pub low: Vec<i64>,
    /// Elements added after the last; negative removes some.
    pub high: Vec<i64>,
    /// The constant.
    pub value: f32,
}

impl OpDef for Pad {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        let [x] = ins else { return Err(SpecError::Arity { expected: 1, got: ins.len() }.into()) };
        if self.low.len() != x.rank() || self.high.len() != x.rank() {
            let (low, high) = (&self.low, &self.high);
            return attribute(format!("padding {low:?} and {high:?} for {} dimensions", x.rank()));
        }
        if x.rank() == 0 {
            return Ok("[] -> []".parse()?);
        }
        let index = |d: usize| match (self.low[d], self.high[d]) {
            (0, 0) => format!("a{d}"),
            (low, high) => format!("a{d}{:+}|{high}", -low),
        };
        let left: Vec<String> = (0..x.rank()).map(index).collect();
        let right: Vec<String> = (0..x.rank()).map(|d| format!("a{d}")).collect();
        Ok(format!("{} -> {}", left.join(" "), right.join(" ")).parse()?)
    }

    fn grad(&self, g: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        let opposite = |padding: &[i64]| padding.iter().map(|p| -p).collect();
        let op = Pad { low: opposite(&self.low), high: opposite(&self.high), value: 0.0 };
        Ok(vec![Some(g.push1(op, &[at.dout()?])?)])
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let shape = outs[0].shape.clone();
        for (y, p) in outs[0].data.iter_mut().zip(positions(&shape)) {
            let place = (0..p.len()).map(|d| {
                let at = p[d] as i64 - self.low[d];
                usize::try_from(at).ok().filter(|&i| i < ins[0].shape[d])
            });
            let place: Option<Vec<usize>> = place.collect();
            *y = place.map_or(f64::from(self.value), |place| ins[0].at(&place));
        }
    }

    fn flops_per_point(&self) -> u64 {
        0
    }

    fn part(&self, part: &Part) -> Option<Op> {
        let seen = &part.input_windows[0];
        let low = seen.iter().map(|w| w.map_or(0, |w| w.low)).collect();
        let high = seen.iter().map(|w| w.map_or(0, |w| w.high)).collect();
        Some(Pad { low, high, value: self.value }.into())
    }

    fn samples() -> Vec<Sample> {
        let pad = |low: &[i64], high: &[i64], value| Pad { low: low.to_vec(), high: high.to_vec(), value };
        vec![
            Sample::normal(pad(&[2, 0], &[1, 0], 0.5), &[&[4, 5]]),
            Sample::normal(pad(&[0, 3], &[0, 4], 0.0), &[&[3, 2]]),
            Sample::normal(pad(&[-2, 1], &[1, -3], 0.0), &[&[6, 7]]),
            Sample::normal(pad(&[0, -1, 0], &[2, 1, 0], -1.0), &[&[2, 3, 5]]),
            Sample::normal(pad(&[], &[], 1.0), &[&[]]),
        ]
    }
}
