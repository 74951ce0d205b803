//! Cross entropy and its gradient, rows in parallel. Targets are checked before anything is written.

use super::reduce::over_rows;
use super::{KernelError, Lowered, TensorType};
use crate::kernel::loss;
use crate::lower::call::Call;
use crate::team::SharedMut;
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::op::cross_entropy::CrossEntropy;
use gulliver_graph::graph::op::cross_entropy_grad::CrossEntropyGrad;

pub(super) fn cross_entropy(op: &CrossEntropy, ins: &[TensorType]) -> Option<Lowered> {
    let (classes, smoothing) = (*ins[0].shape.last()?, op.smoothing);
    let targets = Targets { dtype: ins[1].dtype, ignore: op.ignore, classes };
    (ins[0].dtype == DType::F32).then(|| {
        Lowered::plain(move |call| {
            let targets = targets.checked(call)?;
            let isa = call.team.isa();
            let x = call.input::<f32>(0);
            let [losses, lse] = [0, 1].map(|o| SharedMut::new(call.output::<f32>(o)));
            over_rows(call, losses.len(), x.len(), &|range| {
                for r in range {
                    let x = &x[r * classes..(r + 1) * classes];
                    // SAFETY: rows are disjoint.
                    let (to, lse) = unsafe { (losses.slice(r..r + 1), lse.slice(r..r + 1)) };
                    (to[0], lse[0]) = loss::cross_entropy(isa, x, targets.class(r), smoothing);
                }
            });
            Ok(())
        })
    })
}

pub(super) fn cross_entropy_grad(op: &CrossEntropyGrad, ins: &[TensorType]) -> Option<Lowered> {
    let (classes, smoothing) = (*ins[0].shape.last()?, op.smoothing);
    let targets = Targets { dtype: ins[1].dtype, ignore: op.ignore, classes };
    let floats = [0, 2, 3].iter().all(|&i| ins[i].dtype == DType::F32);
    floats.then(|| {
        Lowered::plain(move |call| {
            let targets = targets.checked(call)?;
            let isa = call.team.isa();
            let x = (!call.in_place(0, 0)).then(|| call.input::<f32>(0));
            let [lse, drow] = [2, 3].map(|i| call.input::<f32>(i));
            let dx = SharedMut::new(call.output::<f32>(0));
            over_rows(call, lse.len(), dx.len(), &|range| {
                for r in range {
                    let at = r * classes..(r + 1) * classes;
                    // SAFETY: rows are disjoint.
                    let dx = unsafe { dx.slice(at.clone()) };
                    let x = x.map(|x| &x[at]);
                    loss::cross_entropy_grad(isa, x, dx, targets.class(r), smoothing, lse[r], drow[r]);
                }
            });
            Ok(())
        })
    })
}

/// How class labels are stored and which may occur.
#[derive(Clone, Copy)]
struct Targets {
    dtype: DType,
    ignore: Option<i64>,
    classes: usize,
}

/// Labels that were found to be classes or to be ignored.
struct Checked<'a> {
    labels: Labels<'a>,
    ignore: Option<i64>,
}

#[derive(Clone, Copy)]
enum Labels<'a> {
    I64(&'a [i64]),
    I32(&'a [i32]),
    U8(&'a [u8]),
}

impl Labels<'_> {
    fn len(&self) -> usize {
        match self {
            Labels::I64(t) => t.len(),
            Labels::I32(t) => t.len(),
            Labels::U8(t) => t.len(),
        }
    }

    fn at(&self, row: usize) -> i64 {
        match self {
            Labels::I64(t) => t[row],
            Labels::I32(t) => i64::from(t[row]),
            Labels::U8(t) => i64::from(t[row]),
        }
    }
}

impl Targets {
    fn checked<'a>(&self, call: &Call<'a>) -> Result<Checked<'a>, KernelError> {
        let labels = match self.dtype {
            DType::I64 => Labels::I64(call.input(1)),
            DType::I32 => Labels::I32(call.input(1)),
            _ => Labels::U8(call.input(1)),
        };
        for row in 0..labels.len() {
            let index = labels.at(row);
            let known = usize::try_from(index).is_ok_and(|class| class < self.classes);
            if !known && self.ignore != Some(index) {
                return Err(KernelError::Index { index, position: row, bound: self.classes });
            }
        }
        Ok(Checked { labels, ignore: self.ignore })
    }
}

impl Checked<'_> {
    /// The class of a row that counts.
    fn class(&self, row: usize) -> Option<usize> {
        let label = self.labels.at(row);
        (self.ignore != Some(label)).then_some(label as usize)
    }
}
