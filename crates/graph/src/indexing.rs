//! Short names for operators that choose, move and count elements, as methods of [`Builder`]: slices,
//! concatenation, table lookups, cumulative sums, sorting out the largest.

use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::build::Builder;
use crate::graph::op::argmax::Argmax;
use crate::graph::op::concat::Concat;
use crate::graph::op::cumsum::Cumsum;
use crate::graph::op::gather::Gather;
use crate::graph::op::iota::Iota;
use crate::graph::op::pad::Pad;
use crate::graph::op::scatter_add::ScatterAdd;
use crate::graph::op::slice::Slice;
use crate::graph::op::take::Take;
use crate::graph::op::top_k::TopK;
use crate::graph::{GraphError, Value};

type Built = Result<Value, GraphError>;

impl Builder {
    /// `x` padded with `value`: (before, after) elements in each dimension; negative numbers crop.
    pub fn pad(&mut self, x: Value, low: &[i64], high: &[i64], value: f32) -> Built {
        self.push1(Pad { low: low.to_vec(), high: high.to_vec(), value }, &[x])
    }

    /// `len` elements along a dimension from `start` on; nothing is added if that is all of them.
    pub fn slice(&mut self, x: Value, axis: usize, start: usize, len: impl Into<Dim>) -> Built {
        let len = len.into();
        if start == 0 && self.shape(x).get(axis) == Some(&len) {
            return Ok(x);
        }
        self.push1(Slice { axis, start, len, step: 1 }, &[x])
    }

    /// Consecutive slices of these lengths, which must add up to the dimension's extent.
    pub fn split(&mut self, x: Value, axis: usize, lens: &[usize]) -> Result<Vec<Value>, GraphError> {
        let total: usize = lens.iter().sum();
        if self.shape(x).get(axis) != Some(&Dim::from(total)) {
            let message = format!("lengths {lens:?} do not add up to dimension {axis}");
            return Err(self.refuse("split", &[x], message));
        }
        let mut start = 0;
        let mut parts = Vec::with_capacity(lens.len());
        for &len in lens {
            parts.push(self.slice(x, axis, start, len)?);
            start += len;
        }
        Ok(parts)
    }

    /// Values one after another along a dimension.
    pub fn concat(&mut self, values: &[Value], axis: usize) -> Built {
        self.push1(Concat { axis }, values)
    }

    /// Rows of `table` [v, d…] by `index` [n…]: [n…, d…].
    pub fn gather(&mut self, table: Value, index: Value) -> Built {
        self.embedding(table, index, None)
    }

    /// Rows of a trained table; the row of number `padding` receives no gradient.
    pub fn embedding(&mut self, table: Value, index: Value, padding: Option<i64>) -> Built {
        self.push1(Gather { padding }, &[table, index])
    }

    /// Adds `rows` [n…, d…] into zeros [count, d…], each where `index` [n…] says.
    pub fn scatter_add(&mut self, index: Value, rows: Value, count: impl Into<Dim>) -> Built {
        self.push1(ScatterAdd { rows: count.into(), padding: None }, &[index, rows])
    }

    /// One element of each row of `x` [n…, v] by `index` [n…].
    pub fn take(&mut self, x: Value, index: Value) -> Built {
        self.push1(Take {}, &[x, index])
    }

    /// Cumulative sum along a dimension.
    pub fn cumsum(&mut self, x: Value, axis: usize) -> Built {
        self.push1(Cumsum { axis, reverse: false }, &[x])
    }

    /// The index (i64) of the largest element along a dimension.
    pub fn argmax(&mut self, x: Value, axis: usize) -> Built {
        self.push1(Argmax { axis }, &[x])
    }

    /// The `k` largest elements of each row, largest first, and their indices (i64).
    pub fn top_k(&mut self, x: Value, k: usize) -> Result<(Value, Value), GraphError> {
        let outs = self.push(TopK { k }, &[x])?;
        Ok((outs[0], outs[1]))
    }

    /// 0, 1, 2… along one dimension of a value of this shape, as i64 or f32.
    pub fn iota<D: Into<Dim> + Clone>(&mut self, dtype: DType, shape: &[D], axis: usize) -> Built {
        let shape = shape.iter().cloned().map(Into::into).collect();
        self.push1(Iota { dtype, shape, axis, start: 0 }, &[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::autodiff::differentiate;
    use crate::dim::Bindings;
    use crate::graph::{Init, Role};
    use crate::interpret::interpret;
    use crate::tensor::Tensor;

    #[test]
    fn symbolic_slices_of_constant_tables_differentiate() {
        let mut g = Builder::new(true);
        let table = g.weight("positions", &[8, 2], Init::Normal(0.1)).unwrap();
        let x = g.data("x", DType::F32, &[Dim::symbol("t"), 2.into()]).unwrap();
        let some = g.slice(table, 0, 0, "t").unwrap();
        assert_eq!(g.ty(some).to_string(), "f32[t,2]");
        let y = g.mul(x, some).unwrap();
        let loss = g.sum_all(y).unwrap();
        let grad = differentiate(&mut g, loss, &[table], 0).unwrap()[0].unwrap();
        let graph = g.finish();
        let feed = |_, shape: &[usize]| Tensor::new(shape, vec![1.0; shape.iter().product()]);
        let values = interpret(&graph, &Bindings::new().with("t", 3), feed).unwrap();
        assert_eq!(values[grad.index()].shape, [8, 2]);
        assert_eq!(values[grad.index()].data.iter().sum::<f64>(), 6.0);
    }

    #[test]
    fn split_and_concat_are_inverse() {
        let mut g = Builder::new(true);
        let x = g.data("x", DType::F32, &[2, 6]).unwrap();
        let parts = g.split(x, 1, &[1, 2, 3]).unwrap();
        let y = g.concat(&parts, 1).unwrap();
        let feed = |_, shape: &[usize]| Tensor::new(shape, (0..12).map(f64::from).collect());
        let values = interpret(g.graph(), &Bindings::new(), feed).unwrap();
        assert_eq!(values[x.index()], values[y.index()]);
        let error = g.split(x, 1, &[1, 2]).unwrap_err().to_string();
        assert!(error.contains("lengths [1, 2] do not add up to dimension 1"), "{error}");
    }

    #[test]
    fn the_padding_row_receives_no_gradient() {
        let mut g = Builder::new(true);
        let table = g.weight("table", &[3, 2], Init::Normal(0.1)).unwrap();
        let index = g.data("index", DType::I64, &[4]).unwrap();
        let y = g.embedding(table, index, Some(1)).unwrap();
        let loss = g.sum_all(y).unwrap();
        let grad = differentiate(&mut g, loss, &[table], 0).unwrap()[0].unwrap();
        let graph = g.finish();
        let feed = |v, shape: &[usize]| match graph.value(v).ty.dtype {
            DType::I64 => Tensor::new(shape, vec![0.0, 1.0, 2.0, 0.0]),
            _ => Tensor::new(shape, vec![1.0; shape.iter().product()]),
        };
        let values = interpret(&graph, &Bindings::new(), feed).unwrap();
        assert_eq!(values[grad.index()].data, [2.0, 2.0, 0.0, 0.0, 1.0, 1.0]);
    }

    #[test]
    fn indices_must_be_integers() {
        let mut g = Builder::new(true);
        let table = g.weight("table", &[3, 2], Init::Normal(0.1)).unwrap();
        let index = g.data("index", DType::F32, &[4]).unwrap();
        let error = g.gather(table, index).unwrap_err().to_string();
        assert_eq!(error, ": gather(f32[3,2], f32[4]): input 1 is f32, expected an integer type");
    }

    #[test]
    fn dropout_is_absent_from_evaluation_and_distinct_in_training() {
        for training in [false, true] {
            let mut g = Builder::new(training);
            let x = g.data("x", DType::F32, &[4]).unwrap();
            let a = g.scope("a", |g| g.dropout(x, 0.5)).unwrap();
            let b = g.scope("a", |g| g.dropout(x, 0.5)).unwrap();
            let c = g.scope("b", |g| g.dropout(x, 0.5)).unwrap();
            assert_eq!(g.dropout(x, 0.0).unwrap(), x);
            let randoms = g.graph().inputs().filter(|(_, role, _)| *role == Role::Random).count();
            assert_eq!(randoms, usize::from(training));
            if !training {
                assert_eq!([a, b, c], [x; 3]);
                continue;
            }
            let streams: std::collections::HashSet<String> =
                g.graph().nodes.iter().map(|n| format!("{:?}", n.op)).collect();
            assert_eq!(streams.len(), 3);
        }
    }
}
