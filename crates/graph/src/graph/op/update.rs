//! Shared by the weight updates: one element's rule applied to every element. Inputs are the weight,
//! its gradient, the optimizer's states of the same shape, and each hyper-parameter as a scalar, so that
//! every member of a fused array can have its own. Outputs are the new weight and the new states.

use super::sample::{Sample, SampleInput};
use super::{Op, OpDef, OpError, OpName, check};
use crate::graph::Type;
use crate::spec::{Spec, expand_ellipsis};
use crate::tensor::Tensor;

/// A rule that updates a weight element by element. Every type with a rule is an operator.
pub trait Update: OpName {
    /// As [`OpDef::flops_per_point`].
    fn flops_per_point(&self) -> u64;

    /// As [`OpDef::samples`].
    fn samples() -> Vec<Sample>
    where
        Self: Sized;

    /// The optimizer's memory of each weight, in order of the operands.
    fn states(&self) -> Vec<&'static str>;

    /// The scalar operands after the states, in order.
    fn hypers(&self) -> Vec<&'static str>;

    /// One element: its weight and gradient, states to be changed, hyper-parameters; the new weight.
    fn rule(&self, w: f64, g: f64, states: &mut [f64], hypers: &[f64]) -> f64;
}

impl<U: Update> OpDef for U {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        let (states, hypers) = (self.states().len(), self.hypers().len());
        check(ins, 2 + states + hypers, &[])?;
        let tensors = |n: usize| vec!["..."; n].join(", ");
        let scalars = vec!["[]"; hypers].join(", ");
        let line = format!("{}, {scalars} -> {}", tensors(2 + states), tensors(1 + states));
        Ok(expand_ellipsis(&line, ins[0].rank()).parse()?)
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let count = self.states().len();
        let hypers: Vec<f64> = ins[2 + count..].iter().map(|t| t.data[0]).collect();
        for i in 0..ins[0].len() {
            let mut states: Vec<f64> = ins[2..2 + count].iter().map(|t| t.data[i]).collect();
            outs[0].data[i] = self.rule(ins[0].data[i], ins[1].data[i], &mut states, &hypers);
            for (out, state) in outs[1..].iter_mut().zip(states) {
                out.data[i] = state;
            }
        }
    }

    fn flops_per_point(&self) -> u64 {
        Update::flops_per_point(self)
    }

    /// Weight and states are replaced where they are.
    fn in_place(&self) -> Vec<(usize, usize)> {
        let states = (0..self.states().len()).map(|i| (2 + i, 1 + i));
        std::iter::once((0, 0)).chain(states).collect()
    }

    fn samples() -> Vec<Sample> {
        <U as Update>::samples()
    }
}

/// Cases of two ranks, with positive states and these hyper-parameters.
pub(crate) fn samples<U: Update + Clone + Into<Op>>(update: U, hypers: &[f64]) -> Vec<Sample> {
    let shapes: [&[usize]; 2] = [&[3, 17], &[5]];
    let case = |shape: &&[usize]| {
        let mut inputs = vec![SampleInput::normal(shape), SampleInput::normal(shape)];
        inputs.extend(update.states().iter().map(|_| SampleInput::uniform(shape, 0.1, 1.0)));
        inputs.extend(hypers.iter().map(|&h| SampleInput::scalar(h)));
        Sample::new(update.clone(), inputs)
    };
    shapes.iter().map(case).collect()
}
