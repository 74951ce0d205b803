//! Losses as methods of [`Builder`]; each is a scalar, the mean over the rows that count.

use crate::graph::build::Builder;
use crate::graph::op::cross_entropy::CrossEntropy;
use crate::graph::{GraphError, Value};

type Built = Result<Value, GraphError>;

impl Builder {
    /// Mean cross entropy of logits `[n…, c]` against classes `[n…]` over the rows whose target is not
    /// `ignore`; zero if none counts. `smoothing` spreads that share of the target over all classes.
    pub fn cross_entropy(
        &mut self,
        logits: Value,
        targets: Value,
        ignore: Option<i64>,
        smoothing: f32,
    ) -> Built {
        let rows = self.push1(CrossEntropy { ignore, smoothing }, &[logits, targets])?;
        let Some(ignore) = ignore else { return self.mean_all(rows) };
        let sum = self.sum_all(rows)?;
        let labels = self.cast_f32(targets)?;
        let nothing = self.scalar(ignore as f32)?;
        let counts = self.not_equal(labels, nothing)?;
        let counts = self.cast_f32(counts)?;
        let count = self.sum_all(counts)?;
        let one = self.scalar(1.0)?;
        let count = self.maximum(count, one)?;
        self.div(sum, count)
    }

    /// Mean over the rows of the cross entropy of logits `[n…, c]` against classes `[n…]` times the row's
    /// weight `[n…]`.
    pub fn weighted_cross_entropy(&mut self, logits: Value, targets: Value, weight: Value) -> Built {
        let rows = self.push1(CrossEntropy { ignore: None, smoothing: 0.0 }, &[logits, targets])?;
        let weighted = self.mul(rows, weight)?;
        self.mean_all(weighted)
    }

    /// Mean squared error.
    pub fn mse(&mut self, x: Value, y: Value) -> Built {
        let difference = self.sub(x, y)?;
        let squares = self.square(difference)?;
        self.mean_all(squares)
    }

    /// Mean absolute error.
    pub fn l1(&mut self, x: Value, y: Value) -> Built {
        let difference = self.sub(x, y)?;
        let sizes = self.abs(difference)?;
        self.mean_all(sizes)
    }

    /// Mean binary cross entropy of logits `x` against probabilities `z`:
    /// `log(1 + eˣ) - x·z`, which does not overflow.
    pub fn bce_with_logits(&mut self, x: Value, z: Value) -> Built {
        let both = self.softplus(x)?;
        let hit = self.mul(x, z)?;
        let rows = self.sub(both, hit)?;
        self.mean_all(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::autodiff::differentiate;
    use crate::dim::Bindings;
    use crate::dtype::DType;
    use crate::graph::Init;
    use crate::interpret::interpret;
    use crate::tensor::Tensor;

    const X: [f64; 6] = [0.5, -1.0, 2.0, 1.5, 0.0, -0.5];

    /// The value and the gradient by x of a loss of x and y, both `[3, 2]` unless y is labels.
    fn loss(y: &[f64], labels: bool, build: impl Fn(&mut Builder, Value, Value) -> Built) -> (f64, Vec<f64>) {
        let mut g = Builder::new(true);
        let x = g.weight("x", &[3, 2], Init::Constant(0.0)).unwrap();
        let t = match labels {
            true => g.data("y", DType::I64, &[3]).unwrap(),
            false => g.data("y", DType::F32, &[3, 2]).unwrap(),
        };
        let l = build(&mut g, x, t).unwrap();
        let dx = differentiate(&mut g, l, &[x], 0).unwrap()[0].unwrap();
        let values = interpret(&g.finish(), &Bindings::new(), |v, shape| match v {
            v if v == x => Tensor::new(shape, X.to_vec()),
            v if v == t => Tensor::new(shape, y.to_vec()),
            _ => Tensor::scalar(1.0),
        })
        .unwrap();
        (values[l.index()].data[0], values[dx.index()].data.clone())
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-6
    }

    #[test]
    fn cross_entropy_counts_only_rows_that_are_not_ignored() {
        // -log softmax of [0.5, -1], [2, 1.5], [0, -0.5] at class 0.
        let row = |a: f64, b: f64| (1.0 + (b - a).exp()).ln();
        let (all, _) = loss(&[0.0, 0.0, 0.0], true, |g, x, y| g.cross_entropy(x, y, None, 0.0));
        assert!(close(all, (row(0.5, -1.0) + row(2.0, 1.5) + row(0.0, -0.5)) / 3.0), "{all}");
        let (some, dx) = loss(&[0.0, -100.0, 1.0], true, |g, x, y| g.cross_entropy(x, y, Some(-100), 0.0));
        assert!(close(some, (row(0.5, -1.0) + row(-0.5, 0.0)) / 2.0), "{some}");
        assert_eq!(&dx[2..4], &[0.0, 0.0]);
        let (none, dx) = loss(&[-1.0; 3], true, |g, x, y| g.cross_entropy(x, y, Some(-1), 0.1));
        assert_eq!((none, dx), (0.0, vec![0.0; 6]));
    }

    #[test]
    fn rows_count_as_much_as_their_weight() {
        let row = |a: f64, b: f64| (1.0 + (b - a).exp()).ln();
        let weights = [0.5, 2.0, 0.0];
        let (l, dx) = loss(&[0.0, 0.0, 1.0], true, |g, x, y| {
            let parts = weights.map(|w| g.fill(w, &[1]).unwrap());
            let weight = g.concat(&parts, 0)?;
            g.weighted_cross_entropy(x, y, weight)
        });
        assert!(close(l, (0.5 * row(0.5, -1.0) + 2.0 * row(2.0, 1.5)) / 3.0), "{l}");
        assert_eq!(&dx[4..], &[0.0, 0.0]);
    }

    #[test]
    fn label_smoothing_spreads_over_all_classes() {
        let row = |a: f64, b: f64| (1.0 + (b - a).exp()).ln();
        let smooth = |a: f64, b: f64| 0.8 * row(a, b) + 0.2 * 0.5 * (row(a, b) + row(b, a));
        let (l, _) = loss(&[0.0, 0.0, 1.0], true, |g, x, y| g.cross_entropy(x, y, None, 0.2));
        assert!(close(l, (smooth(0.5, -1.0) + smooth(2.0, 1.5) + smooth(-0.5, 0.0)) / 3.0), "{l}");
    }

    #[test]
    fn a_class_that_does_not_exist_shows() {
        let (l, _) = loss(&[0.0, 2.0, 1.0], true, |g, x, y| g.cross_entropy(x, y, None, 0.0));
        assert!(l.is_nan());
    }

    #[test]
    fn regression_losses_match_their_formulas() {
        let y = [0.0, 1.0, 1.0, 0.0, 1.0, 0.0];
        let mean = |f: &dyn Fn(f64, f64) -> f64| X.iter().zip(y).map(|(x, y)| f(*x, y)).sum::<f64>() / 6.0;
        let (mse, dx) = loss(&y, false, Builder::mse);
        assert!(close(mse, mean(&|x, y| (x - y) * (x - y))), "{mse}");
        assert!(close(dx[0], 2.0 * 0.5 / 6.0));
        let (l1, dx) = loss(&y, false, Builder::l1);
        assert!(close(l1, mean(&|x, y| (x - y).abs())), "{l1}");
        assert!(close(dx[1], -1.0 / 6.0));
        let (bce, dx) = loss(&y, false, Builder::bce_with_logits);
        let p = |x: f64| 1.0 / (1.0 + (-x).exp());
        assert!(close(bce, mean(&|x, y| -y * p(x).ln() - (1.0 - y) * (1.0 - p(x)).ln())), "{bce}");
        assert!(close(dx[2], (p(2.0) - 1.0) / 6.0));
    }
}
