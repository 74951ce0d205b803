//! Array: one operator applied to every member of an array of jobs. Each member gets the bits it would get alone; all
//! other properties are those of the operator inside.

use super::sample::Sample;
use super::{Op, OpDef, OpError, attribute};
use crate::dim::{Bindings, Dim, DimError};
use crate::dtype::DType;
use crate::graph::Type;
use crate::spec::{AxisId, Part, Spec, SpecError};
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// Operands and results of members lie one after the other, along a first dimension of their own. Shared
/// operands have none: every member reads the same. Arrays are made after differentiation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Array {
    /// The operator of every member.
    pub op: Box<Op>,
    /// The number of members.
    pub members: usize,
    /// For each operand, whether all members read the same.
    pub shared: Vec<bool>,
}

impl Op {
    /// The name of the operator; of an array, that of the operator inside.
    pub fn done(&self) -> &'static str {
        match self {
            Op::Array(array) => array.op.done(),
            op => op.def().name(),
        }
    }
}

impl Array {
    /// For each operand, the type that one member sees.
    pub fn inner<T: Clone>(&self, ins: &[T], member: impl Fn(&T) -> T) -> Vec<T> {
        let own = |(i, t): (usize, &T)| if self.is_shared(i) { t.clone() } else { member(t) };
        ins.iter().enumerate().map(own).collect()
    }

    /// Whether all members read the same operand `i`.
    pub fn is_shared(&self, i: usize) -> bool {
        self.shared.get(i).copied().unwrap_or(false)
    }

    fn with(&self, op: Op) -> Array {
        Array { op: Box::new(op), ..self.clone() }
    }

    /// One member's share of a part that does not divide members.
    fn inner_part(&self, part: &Part) -> Part {
        fn behind<T: Clone>(lists: &[Vec<T>], skip: impl Fn(usize) -> usize) -> Vec<Vec<T>> {
            lists.iter().enumerate().map(|(i, list)| list[skip(i)..].to_vec()).collect()
        }
        let own = |i: usize| usize::from(!self.is_shared(i));
        Part {
            axis: AxisId(part.axis.0 - 1),
            range: part.range.clone(),
            inputs: behind(&part.inputs, own),
            outputs: behind(&part.outputs, |_| 1),
            whole: behind(&part.whole, |_| 1),
            input_windows: behind(&part.input_windows, own),
            output_windows: behind(&part.output_windows, |_| 1),
        }
    }
}

/// The type that one member sees of a stacked value.
fn of_member(ty: &Type) -> Type {
    Type { dtype: ty.dtype, shape: ty.shape[1..].to_vec() }
}

fn member(t: &Tensor, m: usize) -> Tensor {
    let len = t.len() / t.shape[0].max(1);
    Tensor::new(&t.shape[1..], t.data[m * len..][..len].to_vec())
}

impl OpDef for Array {
    fn family(&self) -> String {
        self.op.def().family()
    }

    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        if ins.len() != self.shared.len() {
            return Err(SpecError::Arity { expected: self.shared.len(), got: ins.len() }.into());
        }
        if self.shared.iter().all(|s| *s) {
            return attribute("an array in which all members do the same is no array");
        }
        let members = Dim::from(self.members);
        for (i, ty) in ins.iter().enumerate().filter(|(i, _)| !self.is_shared(*i)) {
            if ty.shape.first() != Some(&members) {
                return attribute(format!("input {i} is {ty}, not one for each of {members} members"));
            }
        }
        Ok(self.op.def().spec(&self.inner(ins, of_member))?.with_member_axis(self.members, &self.shared))
    }

    fn dtypes(&self, ins: &[Type], outputs: usize) -> Vec<DType> {
        self.op.def().dtypes(&self.inner(ins, of_member), outputs)
    }

    fn results(&self) -> usize {
        self.op.def().results()
    }

    fn bind(&self, sizes: &Bindings) -> Result<Option<Op>, DimError> {
        Ok(self.op.def().bind(sizes)?.map(|op| self.with(op).into()))
    }

    fn fits(&self, ins: &[&[usize]], outs: &[&[usize]]) -> Result<(), String> {
        let outs: Vec<&[usize]> = outs.iter().map(|s| &s[1..]).collect();
        self.op.def().fits(&self.inner(ins, |s| &s[1..]), &outs)
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        for m in 0..self.members {
            let one = |(i, t): (usize, &&Tensor)| if self.is_shared(i) { (*t).clone() } else { member(t, m) };
            let own: Vec<Tensor> = ins.iter().enumerate().map(one).collect();
            let mut results: Vec<Tensor> = outs.iter().map(|t| member(t, m)).collect();
            self.op.def().eval(&own.iter().collect::<Vec<_>>(), &mut results);
            for (out, result) in outs.iter_mut().zip(results) {
                let len = result.len();
                out.data[m * len..][..len].copy_from_slice(&result.data);
            }
        }
    }

    fn flops_per_point(&self) -> u64 {
        self.op.def().flops_per_point()
    }

    fn part(&self, part: &Part) -> Option<Op> {
        if part.axis == Spec::MEMBER {
            return Some(Array { members: part.range.len(), ..self.clone() }.into());
        }
        self.op.def().part(&self.inner_part(part)).map(|op| self.with(op).into())
    }

    fn is_view(&self) -> bool {
        self.op.def().is_view() && !self.is_shared(0)
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        self.op.def().in_place().into_iter().filter(|(i, _)| !self.is_shared(*i)).collect()
    }

    fn samples() -> Vec<Sample> {
        let inner = [
            super::contract::Contract::samples(),
            super::batch_norm::BatchNorm::samples(),
            super::gather::Gather::samples(),
            super::conv::Conv::samples(),
        ];
        inner.into_iter().filter_map(|samples| samples.into_iter().next()).map(|s| s.array(3, &[])).collect()
    }
}
