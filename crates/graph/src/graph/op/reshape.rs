//! Reshape: the same elements in the same order under another shape.

use super::sample::Sample;
use super::{Backward, OpDef, OpError, attribute};
use crate::dim::{Dim, product};
use crate::graph::build::Builder;
use crate::graph::op::Op;
use crate::graph::{GraphError, Type, Value};
use crate::spec::{Part, Spec, SpecError};
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// To this shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reshape {
    /// The new extents; their product must equal that of the old ones.
    pub shape: Vec<Dim>,
}

impl Reshape {
    /// Matches runs of old and new dimensions with equal products. One dimension against several is a
    /// merge, which may be cut along its outermost axis; several against several must stay whole.
    fn line(&self, old: &[Dim]) -> String {
        let (mut left, mut right, mut with) = (Vec::new(), Vec::new(), Vec::new());
        let one = Dim::from(1);
        let (mut i, mut j, mut count) = (0, 0, 0);
        loop {
            while old.get(i) == Some(&one) {
                left.push("1".to_string());
                i += 1;
            }
            while self.shape.get(j) == Some(&one) {
                right.push("1".to_string());
                j += 1;
            }
            let (start_i, start_j) = (i, j);
            let (Some(a), Some(b)) = (old.get(i), self.shape.get(j)) else { break };
            let (mut p, mut q) = (a.clone(), b.clone());
            (i, j) = (i + 1, j + 1);
            while p != q {
                let grow_left = q.exact_div(&p).is_some() || p.exact_div(&q).is_none();
                let grow_right = !grow_left || (q.exact_div(&p).is_none() && p.exact_div(&q).is_none());
                if grow_left && i < old.len() {
                    p = p * &old[i];
                    i += 1;
                } else if grow_right && j < self.shape.len() {
                    q = q * &self.shape[j];
                    j += 1;
                } else if i < old.len() {
                    p = p * &old[i];
                    i += 1;
                } else if j < self.shape.len() {
                    q = q * &self.shape[j];
                    j += 1;
                } else {
                    break;
                }
            }
            let mut names = |dims: &[Dim], mark: &str| -> Vec<String> {
                dims.iter()
                    .map(|d| {
                        count += 1;
                        with.push(format!("x{count}={d}"));
                        format!("x{count}{mark}")
                    })
                    .collect()
            };
            let (olds, news) = (&old[start_i..i], &self.shape[start_j..j]);
            match (olds.len(), news.len()) {
                (1, 1) => {
                    let axis = names(olds, "");
                    left.extend(axis.clone());
                    right.extend(axis);
                }
                (1, _) => {
                    let axes = names(news, "");
                    left.push(format!("({})", axes.join(" ")));
                    right.extend(axes);
                }
                (_, 1) => {
                    let axes = names(olds, "");
                    right.push(format!("({})", axes.join(" ")));
                    left.extend(axes);
                }
                _ => {
                    left.extend(names(olds, "!"));
                    right.extend(names(news, "!"));
                }
            }
        }
        let side = |words: Vec<String>| if words.is_empty() { "[]".into() } else { words.join(" ") };
        let with = if with.is_empty() { String::new() } else { format!(" with {}", with.join(" ")) };
        format!("{} -> {}{with}", side(left), side(right))
    }
}

impl OpDef for Reshape {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        let [x] = ins else { return Err(SpecError::Arity { expected: 1, got: ins.len() }.into()) };
        let (old, new) = (product(&x.shape), product(&self.shape));
        if old != new {
            return attribute(format!("cannot reshape {old} elements {x} into {new} {:?}", self.shape));
        }
        Ok(self.line(&x.shape).parse()?)
    }

    fn grad(&self, g: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        let shape = g.shape(at.ins[0]).to_vec();
        Ok(vec![Some(g.reshape(at.dout()?, &shape)?)])
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        outs[0].data.copy_from_slice(&ins[0].data);
    }

    fn flops_per_point(&self) -> u64 {
        0
    }

    fn part(&self, part: &Part) -> Option<Op> {
        Some(Reshape { shape: part.outputs[0].iter().map(|r| r.len().into()).collect() }.into())
    }

    fn is_view(&self) -> bool {
        true
    }

    fn samples() -> Vec<Sample> {
        let to = |shape: &[usize]| Reshape { shape: shape.iter().map(|&d| d.into()).collect() };
        vec![
            Sample::normal(to(&[2, 12]), &[&[2, 3, 4]]),
            Sample::normal(to(&[6, 2, 2]), &[&[6, 4]]),
            Sample::normal(to(&[2, 1, 3, 4]), &[&[2, 12, 1]]),
            Sample::normal(to(&[4, 6]), &[&[6, 4]]),
            Sample::normal(to(&[]), &[&[1, 1]]),
            Sample::normal(to(&[4, 9, 2]), &[&[6, 6, 2]]),
        ]
    }
}
