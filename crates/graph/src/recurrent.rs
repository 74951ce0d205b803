//! Recurrent layers without their weights, as methods of [`Builder`]: whole sequences in one operator.

use crate::dim::Dim;
use crate::graph::build::Builder;
use crate::graph::op::concat::Concat;
use crate::graph::op::gru::Gru;
use crate::graph::op::lstm::Lstm;
use crate::graph::op::slice::Slice;
use crate::graph::{GraphError, Value};

type Built = Result<Value, GraphError>;

impl Builder {
    /// An LSTM over a sequence: gx `[b, t, 4h]` is inputs times weights plus all biases, gates in the
    /// order input, forget, cell, output; h0 and c0 `[b, h]`, w_hh `[4h, h]`. Every hidden state
    /// `[b, t, h]`, of which the last is the final one, and the last cell `[b, h]`.
    pub fn lstm(
        &mut self,
        gx: Value,
        h0: Value,
        c0: Value,
        w_hh: Value,
    ) -> Result<(Value, Value), GraphError> {
        let outs = self.push(Lstm {}, &[gx, h0, c0, w_hh])?;
        Ok((outs[0], outs[1]))
    }

    /// A GRU over a sequence: gx `[b, t, 3h]` is inputs times weights plus all biases but b_hn, gates in
    /// the order reset, update, new; h0 `[b, h]`, w_hh `[3h, h]`, b_hn `[h]`. Every hidden state
    /// `[b, t, h]`.
    pub fn gru(&mut self, gx: Value, h0: Value, w_hh: Value, b_hn: Value) -> Built {
        self.push1(Gru {}, &[gx, h0, w_hh, b_hn])
    }

    /// The state before each step, `[b, t, h]`: h0 `[b, h]`, then all of y `[b, t, h]` but the last.
    pub(crate) fn previous_states(&mut self, h0: Value, y: Value) -> Built {
        let [b, t, h] = self.shape(y) else {
            let ty = self.ty(y);
            return Err(GraphError::Model(format!("hidden states must be [b, t, h], got {ty}")));
        };
        let (first, len) = ([b.clone(), Dim::from(1), h.clone()], t - 1);
        let first = self.reshape(h0, &first)?;
        if len == Dim::from(0) {
            return Ok(first);
        }
        let rest = self.push1(Slice { axis: 1, start: 0, len, step: 1 }, &[y])?;
        self.push1(Concat { axis: 1 }, &[first, rest])
    }

    /// A gradient, or zeros of the shape of `like` where there is none.
    pub(crate) fn or_zeros(&mut self, grad: Option<Value>, like: Value) -> Built {
        match grad {
            Some(grad) => Ok(grad),
            None => {
                let shape = self.shape(like).to_vec();
                self.fill(0.0, &shape)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::autodiff::differentiate;
    use crate::dim::Bindings;
    use crate::graph::Init;
    use crate::interpret::interpret;
    use crate::random::RandomStream;
    use crate::tensor::Tensor;

    const BATCH: usize = 3;
    const TIME: usize = 4;
    const HIDDEN: usize = 5;

    /// Values of a function of weights of these shapes, and its gradients by them, flattened.
    fn run(
        shapes: &[&[usize]],
        build: impl Fn(&mut Builder, &[Value]) -> Result<Vec<Value>, GraphError>,
    ) -> Vec<f64> {
        let mut g = Builder::new(true);
        let ins: Vec<Value> = (0..shapes.len())
            .map(|i| g.weight(&format!("in{i}"), shapes[i], Init::Constant(0.0)).unwrap())
            .collect();
        let outs = build(&mut g, &ins).unwrap();
        // A sum of squares, so that the gradients differ from element to element.
        let mut loss = g.scalar(0.0).unwrap();
        for &out in &outs {
            let squares = g.square(out).unwrap();
            let sum = g.sum_all(squares).unwrap();
            loss = g.add(loss, sum).unwrap();
        }
        let grads = differentiate(&mut g, loss, &ins, 0).unwrap();
        let values = interpret(&g.finish(), &Bindings::new(), |v, shape| {
            if shape.is_empty() {
                return Tensor::scalar(1.0);
            }
            let stream = RandomStream::new(5, v.index() as u64, 0);
            let count = shape.iter().product::<usize>() as u64;
            Tensor::new(shape, (0..count).map(|i| f64::from(stream.normal_at(i))).collect())
        })
        .unwrap();
        let all = outs.into_iter().chain(grads.into_iter().map(|d| d.expect("every input matters")));
        all.flat_map(|v| values[v.index()].data.clone()).collect()
    }

    /// Gates of one step, `[b, gates·h]`, of gx `[b, t, gates·h]`.
    fn at_step(g: &mut Builder, gx: Value, t: usize, gates: usize) -> Built {
        let step = g.push1(Slice { axis: 1, start: t, len: 1.into(), step: 1 }, &[gx])?;
        g.reshape(step, &[BATCH, gates * HIDDEN])
    }

    /// Gate number `gate` of `[b, gates·h]`.
    fn gate(g: &mut Builder, gates: Value, gate: usize) -> Built {
        g.push1(Slice { axis: 1, start: gate * HIDDEN, len: HIDDEN.into(), step: 1 }, &[gates])
    }

    /// One LSTM step of primitives, from gx `[b, 4h]`, h and c `[b, h]`: the new h and c.
    fn lstm_cell(
        builder: &mut Builder,
        gx: Value,
        h: Value,
        c: Value,
        w_hh: Value,
    ) -> Result<(Value, Value), GraphError> {
        let gh = builder.contract("b k, j k -> b j", h, w_hh)?;
        let gates = builder.add(gx, gh)?;
        let mut part = |number: usize| gate(builder, gates, number);
        let (i, f, g, o) = (part(0)?, part(1)?, part(2)?, part(3)?);
        let (i, f, g, o) = (builder.sigmoid(i)?, builder.sigmoid(f)?, builder.tanh(g)?, builder.sigmoid(o)?);
        let kept = builder.mul(f, c)?;
        let added = builder.mul(i, g)?;
        let c = builder.add(kept, added)?;
        let squashed = builder.tanh(c)?;
        Ok((builder.mul(o, squashed)?, c))
    }

    /// One GRU step of primitives, from gx `[b, 3h]` and h `[b, h]`: the new h.
    fn gru_cell(g: &mut Builder, gx: Value, h: Value, w_hh: Value, b_hn: Value) -> Built {
        let gh = g.contract("b k, j k -> b j", h, w_hh)?;
        let mut gates = |side: Value| -> Result<[Value; 3], GraphError> {
            Ok([gate(g, side, 0)?, gate(g, side, 1)?, gate(g, side, 2)?])
        };
        let (x, s) = (gates(gx)?, gates(gh)?);
        let r = g.add(x[0], s[0])?;
        let r = g.sigmoid(r)?;
        let z = g.add(x[1], s[1])?;
        let z = g.sigmoid(z)?;
        let inner = g.add(s[2], b_hn)?;
        let inner = g.mul(r, inner)?;
        let new = g.add(x[2], inner)?;
        let new = g.tanh(new)?;
        // (1 - z)·n + z·h
        let change = g.sub(h, new)?;
        let change = g.mul(z, change)?;
        g.add(new, change)
    }

    /// Steps `[b, h]` side by side, `[b, t, h]`.
    fn sequence(g: &mut Builder, steps: &[Value]) -> Built {
        let steps: Vec<Value> =
            steps.iter().map(|&h| g.reshape(h, &[BATCH, 1, HIDDEN])).collect::<Result<_, _>>()?;
        g.push1(Concat { axis: 1 }, &steps)
    }

    fn assert_close(scan: &[f64], unrolled: &[f64]) {
        assert_eq!(scan.len(), unrolled.len());
        for (a, b) in scan.iter().zip(unrolled) {
            assert!((a - b).abs() <= 1e-10 * (1.0 + b.abs()), "{a} {b}");
        }
    }

    #[test]
    fn lstm_scan_equals_unrolled_cells() {
        let shapes: [&[usize]; 4] =
            [&[BATCH, TIME, 4 * HIDDEN], &[BATCH, HIDDEN], &[BATCH, HIDDEN], &[4 * HIDDEN, HIDDEN]];
        let scan = run(&shapes, |g, ins| {
            let (y, c) = g.lstm(ins[0], ins[1], ins[2], ins[3])?;
            Ok(vec![y, c])
        });
        let unrolled = run(&shapes, |g, ins| {
            let (mut h, mut c) = (ins[1], ins[2]);
            let mut steps = Vec::new();
            for t in 0..TIME {
                let gx = at_step(g, ins[0], t, 4)?;
                (h, c) = lstm_cell(g, gx, h, c, ins[3])?;
                steps.push(h);
            }
            Ok(vec![sequence(g, &steps)?, c])
        });
        assert_close(&scan, &unrolled);
    }

    #[test]
    fn gru_scan_equals_unrolled_cells() {
        let shapes: [&[usize]; 4] =
            [&[BATCH, TIME, 3 * HIDDEN], &[BATCH, HIDDEN], &[3 * HIDDEN, HIDDEN], &[HIDDEN]];
        let scan = run(&shapes, |g, ins| Ok(vec![g.gru(ins[0], ins[1], ins[2], ins[3])?]));
        let unrolled = run(&shapes, |g, ins| {
            let mut h = ins[1];
            let mut steps = Vec::new();
            for t in 0..TIME {
                let gx = at_step(g, ins[0], t, 3)?;
                h = gru_cell(g, gx, h, ins[2], ins[3])?;
                steps.push(h);
            }
            Ok(vec![sequence(g, &steps)?])
        });
        assert_close(&scan, &unrolled);
    }

    #[test]
    fn scans_match_pytorch() {
        // torch.nn.LSTM and GRU in double precision, with unit input weights, on these numbers.
        let numbers = |shape: &[usize], k: usize| {
            let count: usize = shape.iter().product();
            Tensor::new(shape, (0..count).map(|i| (((i * 7 + k * 3) % 11) as f64 - 5.0) / 4.0).collect())
        };
        let eval = |op: crate::graph::op::Op, ins: &[Tensor], outs: &[&[usize]]| -> Vec<f64> {
            let mut outs: Vec<Tensor> = outs.iter().map(|s| Tensor::zeros(s)).collect();
            op.def().eval(&ins.iter().collect::<Vec<_>>(), &mut outs);
            outs.iter().take(op.def().results()).flat_map(|t| t.data.clone()).collect()
        };
        let state = |k| numbers(&[1, 2], k);
        let ins = [numbers(&[1, 2, 8], 0), state(1), state(3), numbers(&[8, 2], 2)];
        let lstm = eval(Lstm {}.into(), &ins, &[&[1, 2, 2], &[1, 2], &[1, 2, 8], &[1, 2, 2]]);
        let expected = [
            0.5446247312315604,
            -0.08333655806133645,
            0.2629650379985038,
            0.022740970352121744,
            0.40728755584672593,
            0.03905538034171849,
        ];
        assert_close(&lstm, &expected);
        let ins = [numbers(&[1, 2, 6], 0), state(1), numbers(&[6, 2], 2), numbers(&[2], 3)];
        let gru = eval(Gru {}.into(), &ins, &[&[1, 2, 2], &[1, 2, 6], &[1, 2, 2]]);
        let expected = [-0.2874050443283142, 0.17329352143993837, 0.07256881592968856, -0.1994365996592672];
        assert_close(&gru, &expected);
    }

    #[test]
    fn the_last_cell_alone_has_a_gradient() {
        let shapes: [&[usize]; 4] = [&[2, 2, 4], &[2, 1], &[2, 1], &[4, 1]];
        let both = run(&shapes, |g, ins| Ok(vec![g.lstm(ins[0], ins[1], ins[2], ins[3])?.1]));
        assert!(both.iter().all(|v| v.is_finite()));
    }

    #[test]
    fn a_recurrent_weight_of_the_wrong_size_is_refused() {
        let mut g = Builder::new(true);
        let mut weight = |name: &str, shape: &[usize]| g.weight(name, shape, Init::Constant(0.0)).unwrap();
        let gx = weight("gx", &[2, 3, 8]);
        let h0 = weight("h0", &[2, 3]);
        let c0 = weight("c0", &[2, 2]);
        let w = weight("w", &[8, 3]);
        let error = g.lstm(gx, h0, c0, w).unwrap_err().to_string();
        assert!(error.contains("w_hh has 8 rows, expected 4 gates of 3"), "{error}");
    }
}
