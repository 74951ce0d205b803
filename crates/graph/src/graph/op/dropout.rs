//! Dropout: elements are dropped at random and the others scaled up, by numbers that depend on the
//! element's place in the whole value only, so that parts, recomputation and resumption agree.

use super::sample::{Sample, SampleInput};
use super::{Backward, INTEGER, Op, OpDef, OpError, attribute, check};
use crate::graph::build::Builder;
use crate::graph::{GraphError, Type, Value};
use crate::random::RandomStream;
use crate::spec::{Part, Spec, expand_ellipsis};
use crate::tensor::{Tensor, positions};
use serde::{Deserialize, Serialize};

/// Inputs: x and the graph's random input (seed, step, partial). Element `i` of a value of `n` elements
/// is kept iff number `partial·n + i` of the stream is at least `rate`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dropout {
    /// The probability of being dropped, from 0 up to, not including, 1.
    pub rate: f32,
    /// Tells this dropout's numbers from those of others.
    pub stream: u64,
    /// In a part, where it lies in the whole.
    pub frame: Option<PartFrame>,
}

/// The place of a part in the whole value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartFrame {
    /// Extents of the whole value.
    pub shape: Vec<usize>,
    /// Position of the part's first element.
    pub offset: Vec<usize>,
}

impl PartFrame {
    /// The row-major index in the whole of a position in the part.
    pub fn index(&self, position: &[usize]) -> u64 {
        let places = position.iter().zip(&self.offset).zip(&self.shape);
        places.fold(0, |i, ((p, o), d)| i * *d as u64 + (p + o) as u64)
    }

    /// Elements of the whole.
    pub fn elements(&self) -> u64 {
        self.shape.iter().map(|&d| d as u64).product()
    }
}

impl Dropout {
    /// The factor of elements that are kept.
    pub fn scale(&self) -> f32 {
        1.0 / (1.0 - self.rate)
    }

    /// The frame of a value of this shape.
    pub fn frame(&self, shape: &[usize]) -> PartFrame {
        let whole = || PartFrame { shape: shape.to_vec(), offset: vec![0; shape.len()] };
        self.frame.clone().unwrap_or_else(whole)
    }

    /// The numbers that decide, for these three random integers.
    pub fn numbers(&self, seed: i64, step: i64) -> RandomStream {
        RandomStream::new(seed as u64, self.stream, step as u64)
    }
}

impl OpDef for Dropout {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 2, &[(1, INTEGER)])?;
        if !(0.0..1.0).contains(&self.rate) {
            return attribute(format!("rate {} is not in 0..1", self.rate));
        }
        let line = expand_ellipsis("..., k! -> ...", ins[0].rank());
        Ok(format!("{line} with k=3").parse()?)
    }

    fn grad(&self, g: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        Ok(vec![Some(g.push1(self.clone(), &[at.dout()?, at.ins[1]])?), None])
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let [seed, step, partial] = [0, 1, 2].map(|i| ins[1].data[i] as i64);
        let numbers = self.numbers(seed, step);
        let frame = self.frame(&ins[0].shape);
        let first = partial as u64 * frame.elements();
        for (at, p) in positions(&ins[0].shape).enumerate() {
            let kept = numbers.uniform_at(first + frame.index(&p)) >= self.rate;
            outs[0].data[at] = if kept { ins[0].data[at] * f64::from(self.scale()) } else { 0.0 };
        }
    }

    // Ten rounds of the generator per four elements, spread over the nest's three points per element.
    fn flops_per_point(&self) -> u64 {
        8
    }

    fn part(&self, part: &Part) -> Option<Op> {
        let mut frame = self.frame(&part.whole[0]);
        for (offset, region) in frame.offset.iter_mut().zip(&part.outputs[0]) {
            *offset += region.start;
        }
        Some(Dropout { frame: Some(frame), ..self.clone() }.into())
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![(0, 0)]
    }

    fn samples() -> Vec<Sample> {
        let sample = |rate, stream, shape: &[usize]| {
            let inputs = vec![SampleInput::normal(shape), SampleInput::below(&[3], 1000)];
            Sample::new(Dropout { rate, stream, frame: None }, inputs)
        };
        let mut inner = sample(0.25, 3, &[3, 4]);
        let frame = Some(PartFrame { shape: vec![6, 9], offset: vec![2, 5] });
        inner.op = Dropout { rate: 0.25, stream: 3, frame }.into();
        vec![sample(0.1, 1, &[5, 17]), sample(0.5, 2, &[2, 3, 7]), sample(0.9, u64::MAX, &[]), inner]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_the_stated_share_is_dropped_and_partials_differ() {
        let op = Dropout { rate: 0.3, stream: 9, frame: None };
        let x = Tensor::new(&[10_000], vec![1.0; 10_000]);
        let run = |random: [f64; 3]| {
            let mut y = [Tensor::zeros(&[10_000])];
            op.eval(&[&x, &Tensor::new(&[3], random.to_vec())], &mut y);
            y[0].data.clone()
        };
        let first = run([1.0, 2.0, 0.0]);
        let dropped = first.iter().filter(|y| **y == 0.0).count();
        assert!((2800..3200).contains(&dropped), "{dropped} of 10000");
        for other in [[2.0, 2.0, 0.0], [1.0, 3.0, 0.0], [1.0, 2.0, 1.0]] {
            assert_ne!(first, run(other));
        }
        assert_eq!(first, run([1.0, 2.0, 0.0]));
    }

    #[test]
    fn rates_are_checked() {
        let op = Dropout { rate: 1.0, stream: 9, frame: None };
        let error = op.spec(&[Type::f32(&[2]), Type::new(crate::dtype::DType::I64, &[3])]).unwrap_err();
        assert_eq!(error.to_string(), "rate 1 is not in 0..1");
    }
}
