//! Send and receive: one rank sends a whole value of any size to another, as an [exchange](super::exchange) of two.

use super::exchange::{Exchange, Piece};
use super::sample::{Sample, SampleFill, SampleInput};
use super::{OpDef, OpError, attribute};
use crate::dim::{Bindings, Dim, DimError};
use crate::dtype::DType;
use crate::graph::Type;
use crate::graph::op::Op;
use crate::spec::{Spec, SpecError};
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// One rank's side. The sender has an operand and an empty result, the receiver no operand and the value as result.
/// A rank that sends to itself has both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SendReceive {
    /// The number of the collective: the same for both ranks, and unique in the step.
    pub collective: u32,
    /// This rank.
    pub rank: u32,
    /// The sender.
    pub from: u32,
    /// The receiver.
    pub to: u32,
    /// Element type of the value.
    pub dtype: DType,
    /// Extents of the value.
    pub shape: Vec<Dim>,
}

impl SendReceive {
    /// Extents of the result.
    pub fn result(&self) -> Vec<Dim> {
        if self.rank == self.to { self.shape.clone() } else { vec![0.into()] }
    }
}

impl OpDef for SendReceive {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        if self.rank != self.from && self.rank != self.to {
            return attribute(format!("rank {} neither gives nor takes", self.rank));
        }
        let expected = usize::from(self.rank == self.from);
        if ins.len() != expected {
            return Err(SpecError::Arity { expected, got: ins.len() }.into());
        }
        if let Some(own) = ins.first()
            && (own.dtype != self.dtype || own.shape != self.shape)
        {
            return attribute(format!("the operand is {own}, not what was announced"));
        }
        let axes = |name: &str, rank: usize| match rank {
            0 => "[]".to_string(),
            _ => (0..rank).map(|d| format!("{name}{d}!")).collect::<Vec<_>>().join(" "),
        };
        let result = self.result();
        let operand = ins.first().map_or(String::new(), |own| axes("x", own.rank()));
        let with: Vec<String> = result.iter().enumerate().map(|(d, n)| format!("y{d}={n}")).collect();
        let with = if with.is_empty() { String::new() } else { format!(" with {}", with.join(" ")) };
        Ok(format!("{operand} -> {}{with}", axes("y", result.len())).parse()?)
    }

    fn dtypes(&self, _ins: &[Type], _outputs: usize) -> Vec<DType> {
        vec![self.dtype]
    }

    fn bind(&self, sizes: &Bindings) -> Result<Option<Op>, DimError> {
        let bind =
            |dims: &[Dim]| dims.iter().map(|d| d.bind(sizes)).collect::<Result<Vec<usize>, DimError>>();
        let (of, shape) = (bind(&self.shape)?, bind(&self.result())?);
        let pieces = if self.rank == self.to { vec![Piece::all(self.from, &of)] } else { Vec::new() };
        let mut ranks = vec![self.from, self.to];
        ranks.dedup();
        let SendReceive { collective, rank, dtype, .. } = *self;
        Ok(Some(Exchange { collective, rank, ranks, dtype, shape, pieces }.into()))
    }

    /// Run alone, a value that another rank would send counts as zeros.
    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        if let (true, Some(own)) = (self.rank == self.to, ins.first()) {
            outs[0].data.copy_from_slice(&own.data);
        }
    }

    fn flops_per_point(&self) -> u64 {
        0
    }

    fn meets(&self) -> bool {
        true
    }

    fn collective(&self) -> Option<(u32, Vec<u32>)> {
        Some((self.collective, vec![self.from, self.to]))
    }

    fn samples() -> Vec<Sample> {
        let to_itself = |dtype, shape: &[usize]| {
            let dims = shape.iter().map(|&n| n.into()).collect();
            let op = SendReceive { collective: 0, rank: 0, from: 0, to: 0, dtype, shape: dims };
            Sample::new(op, vec![SampleInput { dtype, shape: shape.to_vec(), fill: SampleFill::Below(9) }])
        };
        vec![to_itself(DType::I64, &[3, 4]), to_itself(DType::I64, &[])]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(rank: u32) -> SendReceive {
        let shape = vec![Dim::symbol("batch"), 3.into()];
        SendReceive { collective: 5, rank, from: 0, to: 2, dtype: DType::F32, shape }
    }

    #[test]
    fn both_ends_agree_on_what_is_passed() {
        let mut sizes = Bindings::new();
        sizes.set("batch", 4);
        let bound = |rank| match pass(rank).bind(&sizes).unwrap() {
            Some(Op::Exchange(op)) => op,
            other => panic!("{other:?}"),
        };
        let (gives, takes) = (bound(0), bound(2));
        assert_eq!((gives.collective, takes.collective), (5, 5));
        assert_eq!((gives.ranks.clone(), gives.bytes()), (vec![0, 2], 0));
        assert_eq!((takes.ranks.as_slice(), takes.bytes()), ([0, 2].as_slice(), 48));
        assert_eq!(takes.shape, [4, 3]);
    }

    #[test]
    fn what_was_not_announced_is_refused() {
        let own = Type { dtype: DType::F32, shape: pass(0).shape };
        let own = std::slice::from_ref(&own);
        assert!(pass(0).spec(own).is_ok());
        assert!(pass(2).spec(&[]).is_ok());
        for (wrong, ins, expected) in [
            (pass(1), own, "rank 1 neither gives nor takes"),
            (pass(0), &[], "1"),
            (pass(2), own, "0"),
            (SendReceive { dtype: DType::I64, ..pass(0) }, own, "not what was announced"),
        ] {
            let said = wrong.spec(ins).unwrap_err().to_string();
            assert!(said.contains(expected), "{said}");
        }
    }
}
