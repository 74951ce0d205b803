//! The k largest elements of each row and where they were.

use super::gather::axes;
use super::sample::Sample;
use super::top_k_grad::TopKGrad;
use super::{Backward, OpDef, OpError, attribute, check};
use crate::dtype::DType;
use crate::graph::build::Builder;
use crate::graph::{GraphError, Type, Value};
use crate::spec::Spec;
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// Along the last dimension: values, largest first, and their i64 indices; of equals the lower index
/// comes first, and NaN counts as larger than any number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopK {
    /// Number of elements.
    pub k: usize,
}

impl OpDef for TopK {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 1, &[])?;
        let Some(width) = ins[0].shape.last() else { return attribute("a scalar has no rows") };
        if let Some(have) = width.as_const()
            && have < self.k as i64
        {
            return attribute(format!("{} largest of {have} elements", self.k));
        }
        let n = axes('n', ins[0].rank() - 1);
        Ok(format!("{n}v! -> {n}k!, {n}k! with k={}", self.k).parse()?)
    }

    fn dtypes(&self, ins: &[Type], _outputs: usize) -> Vec<DType> {
        vec![ins[0].dtype, DType::I64]
    }

    fn grad(&self, g: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        let shape = g.shape(at.ins[0]);
        let size = shape[shape.len() - 1].clone();
        Ok(vec![Some(g.push1(TopKGrad { size }, &[at.outs[1], at.dout()?])?)])
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let width = *ins[0].shape.last().expect("a row");
        for (n, row) in ins[0].data.chunks(width.max(1)).enumerate() {
            let mut order: Vec<usize> = (0..width).collect();
            // The sort is stable, so equals stay in the order of their indices.
            order.sort_by(|&i, &j| {
                let nan_first = row[j].is_nan().cmp(&row[i].is_nan());
                nan_first.then(row[j].partial_cmp(&row[i]).unwrap_or(std::cmp::Ordering::Equal))
            });
            for (rank, &i) in order[..self.k].iter().enumerate() {
                outs[0].data[n * self.k + rank] = row[i];
                outs[1].data[n * self.k + rank] = i as f64;
            }
        }
    }

    fn samples() -> Vec<Sample> {
        vec![
            Sample::normal(TopK { k: 3 }, &[&[4, 7]]),
            Sample::normal(TopK { k: 1 }, &[&[2, 3, 5]]),
            Sample::normal(TopK { k: 6 }, &[&[6]]),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_keep_their_order_and_nan_is_largest() {
        let x = Tensor::new(&[1, 5], vec![1.0, 3.0, f64::NAN, 3.0, 2.0]);
        let mut outs = [Tensor::zeros(&[1, 4]), Tensor::zeros(&[1, 4])];
        TopK { k: 4 }.eval(&[&x], &mut outs);
        assert_eq!(outs[1].data, [2.0, 1.0, 3.0, 4.0]);
        assert_eq!(outs[0].data[1..], [3.0, 3.0, 2.0]);
        let error = TopK { k: 9 }.spec(&[Type::f32(&[2, 5])]).unwrap_err();
        assert_eq!(error.to_string(), "9 largest of 5 elements");
    }
}
