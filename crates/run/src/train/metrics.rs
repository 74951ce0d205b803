//! Metrics of an evaluation, from sums over its batches. The division into batches affects only the rounding of the loss.

use crate::data::Batch;
use crate::session::{Evaluated, Scalar, Scalars};
use gulliver_graph::graph::Graph;
use gulliver_graph::role::OutputRole;
use std::collections::{BTreeMap, BTreeSet};

/// Most classes of a confusion matrix.
pub const MATRIX_CLASSES: usize = 1000;

/// The metrics that an evaluation of this graph reports. `perplexity` as in [`super::TrainOptions`].
pub fn metric_names(evaluation: &Graph, perplexity: bool) -> Vec<String> {
    let has = |role: OutputRole| evaluation.output_of(role).is_some();
    let losses = evaluation.outputs.iter().filter(|output| output.role == OutputRole::Loss);
    let mut names: Vec<String> = losses.map(|output| output.name.clone()).collect();
    for (metric, there) in [
        ("accuracy", has(OutputRole::Correct) && has(OutputRole::Count)),
        ("perplexity", names.len() == 1 && perplexity),
        ("macro_f1", has(OutputRole::Guess)),
        ("mae", has(OutputRole::Prediction)),
        ("rmse", has(OutputRole::Prediction)),
        ("r2", has(OutputRole::Prediction)),
    ] {
        names.extend(there.then(|| metric.to_string()));
    }
    names.sort();
    names
}

/// The share of predictions that were right, of models that count them.
pub(super) fn accuracy(scalars: &Scalars) -> Option<f64> {
    Some(scalars.of(OutputRole::Correct)? / scalars.of(OutputRole::Count)?)
}

/// The metrics of an evaluation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores {
    /// By name: `loss`; `accuracy` and `macro_f1` for classes; `mae`, `rmse` and `r2` for numbers; `perplexity` for
    /// tokens.
    pub metrics: BTreeMap<String, f64>,
    /// Confusion matrix: examples of each class (row) predicted as each class (column), for up to [`MATRIX_CLASSES`].
    pub confusion: Option<Vec<Vec<u64>>>,
}

/// Sums over the batches of an evaluation.
#[derive(Debug, Default)]
pub struct Tally {
    sums: Scalars,
    /// Divisor of the losses.
    weight: f64,
    /// Number of examples by (class, predicted class).
    pairs: BTreeMap<(usize, usize), u64>,
    /// For each predicted number.
    numbers: Vec<Numbers>,
}

/// Statistics of one predicted number.
#[derive(Clone, Copy, Debug, Default)]
struct Numbers {
    count: f64,
    mean: f64,
    /// Sum of squared distances of the targets from their mean.
    spread: f64,
    squared_errors: f64,
    absolute_errors: f64,
}

impl Numbers {
    fn add(&mut self, target: f64, predicted: f64) {
        self.count += 1.0;
        let off = target - self.mean;
        self.mean += off / self.count;
        self.spread += off * (target - self.mean);
        self.squared_errors += (predicted - target) * (predicted - target);
        self.absolute_errors += (predicted - target).abs();
    }

    /// Coefficient of determination. For constant targets 1 if all predictions are exact, else 0.
    fn r2(&self) -> f64 {
        match (self.spread > 0.0, self.squared_errors > 0.0) {
            (true, _) => 1.0 - self.squared_errors / self.spread,
            (false, wrong) => f64::from(!wrong),
        }
    }
}

impl Tally {
    /// Adds an evaluated batch.
    pub fn add(&mut self, batch: &Batch, evaluated: &Evaluated) {
        let scalars = &evaluated.scalars;
        let count = scalars.of(OutputRole::Count).unwrap_or(batch.rows() as f64);
        self.weight += scalars.of(OutputRole::Weight).unwrap_or(count);
        for (name, scalar) in scalars.iter() {
            let share = if scalar.role == OutputRole::Loss { scalar.value * count } else { scalar.value };
            let value = self.sums.get(name).unwrap_or_default() + share;
            self.sums.insert(name, Scalar { value, ..scalar });
        }
        let (Some(y), Some(predicted)) = (batch.get("y"), &evaluated.predicted) else { return };
        if let (Some(classes), Some(guesses)) = (y.as_i64(), predicted.as_i64()) {
            for (&class, &guess) in classes.iter().zip(guesses) {
                if let (Ok(class), Ok(guess)) = (usize::try_from(class), usize::try_from(guess)) {
                    *self.pairs.entry((class, guess)).or_default() += 1;
                }
            }
        }
        if let (Some(targets), Some(numbers)) = (y.as_f32(), predicted.as_f32()) {
            let width = predicted.shape().last().copied().unwrap_or(1).max(1);
            self.numbers.resize(width.max(self.numbers.len()), Numbers::default());
            for (i, (&target, &number)) in targets.iter().zip(numbers).enumerate() {
                self.numbers[i % width].add(f64::from(target), f64::from(number));
            }
        }
    }

    /// The metrics of all batches, given the number of classes and whether losses are per token.
    pub fn scores(&self, classes: Option<usize>, perplexity: bool) -> Scores {
        let mut metrics = BTreeMap::new();
        for (name, sum) in self.sums.losses() {
            metrics.insert(name.to_string(), sum / self.weight);
        }
        if let (1, true, Some(loss)) = (metrics.len(), perplexity, metrics.values().next().copied()) {
            metrics.insert("perplexity".into(), loss.exp());
        }
        if let Some(accuracy) = accuracy(&self.sums) {
            metrics.insert("accuracy".into(), accuracy);
        }
        let confusion = (!self.pairs.is_empty()).then(|| {
            metrics.insert("macro_f1".into(), macro_f1(&self.pairs));
            self.matrix(classes.unwrap_or(0))
        });
        if let Some(first) = self.numbers.first() {
            let all = |sum: fn(&Numbers) -> f64| self.numbers.iter().map(sum).sum::<f64>();
            let count = all(|one| one.count);
            metrics.insert("mae".into(), all(|one| one.absolute_errors) / count);
            metrics.insert("rmse".into(), (all(|one| one.squared_errors) / count).sqrt());
            if first.count > 1.0 {
                metrics.insert("r2".into(), all(Numbers::r2) / self.numbers.len() as f64);
            }
        }
        Scores { metrics, confusion: confusion.flatten() }
    }

    fn matrix(&self, classes: usize) -> Option<Vec<Vec<u64>>> {
        let seen = self.pairs.keys().map(|(class, guess)| 1 + class.max(guess)).max().unwrap_or(0);
        let classes = classes.max(seen);
        if classes > MATRIX_CLASSES {
            return None;
        }
        let mut matrix = vec![vec![0; classes]; classes];
        self.pairs.iter().for_each(|(&(class, guess), n)| matrix[class][guess] = *n);
        Some(matrix)
    }
}

/// The mean F1 score over the classes that occur among targets or predictions.
fn macro_f1(pairs: &BTreeMap<(usize, usize), u64>) -> f64 {
    let (mut in_class, mut guessed) = (BTreeMap::<usize, u64>::new(), BTreeMap::<usize, u64>::new());
    for (&(class, guess), n) in pairs {
        *in_class.entry(class).or_default() += n;
        *guessed.entry(guess).or_default() += n;
    }
    let all: BTreeSet<&usize> = in_class.keys().chain(guessed.keys()).collect();
    let f1 = |class: &usize| {
        let right = pairs.get(&(*class, *class)).copied().unwrap_or(0);
        let found = in_class.get(class).unwrap_or(&0) + guessed.get(class).unwrap_or(&0);
        2.0 * right as f64 / found as f64
    };
    all.iter().map(|class| f1(class)).sum::<f64>() / all.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{DataOptions, open};
    use crate::device::cpu::{Cpu, CpuOptions};
    use crate::host::{HostData, HostTensor};
    use crate::lower::{Kernels, lower_node};
    use crate::session::Session;
    use crate::train::{Sources, TrainOptions, evaluate};
    use gulliver_graph::dim::Bindings;
    use gulliver_graph::graph::{Graph, Node};
    use gulliver_graph::model::model;
    use gulliver_graph::model::param::{ParamValue, ints};
    use gulliver_graph::optim::Optimizer;
    use gulliver_graph::role::OutputScope;
    use gulliver_graph::training::{evaluation_graph, training_graph};
    use gulliver_plan::devices::options::DeviceOptions;
    use gulliver_plan::devices::planner::Planner;
    use gulliver_plan::devices::strategy::{ALONE, job};
    use std::io::Write;
    use std::sync::Arc;

    #[test]
    fn the_names_are_those_that_an_evaluation_reports() {
        let sgd = Optimizer::new("sgd", &[]).unwrap();
        let digits = DataOptions { kind: "digits".into(), examples: Some(40), ..DataOptions::default() };
        let table = std::env::temp_dir().join(format!("gulliver-metrics-{}.csv", std::process::id()));
        let mut file = std::fs::File::create(&table).unwrap();
        writeln!(file, "a,y").unwrap();
        (0..40).for_each(|i| writeln!(file, "{i},{}", i % 7).unwrap());
        let numbers = DataOptions {
            kind: "csv".into(),
            path: Some(table.clone()),
            label_column: Some("y".into()),
            regression: true,
            ..DataOptions::default()
        };
        let regress =
            [("sizes".to_string(), ints(&[1, 4, 1])), ("head".into(), ParamValue::Text("regress".into()))];
        for (name, settings, data, perplexity, expected) in [
            ("cnn", &[][..], &digits, false, &["accuracy", "loss", "macro_f1"][..]),
            ("cnn", &[], &digits, true, &["accuracy", "loss", "macro_f1", "perplexity"]),
            ("mlp", &regress, &numbers, false, &["loss", "mae", "r2", "rmse"]),
        ] {
            let model = model(name, settings).unwrap();
            let train = training_graph(model.as_ref(), std::slice::from_ref(&sgd), None).unwrap();
            let evaluation = evaluation_graph(model.as_ref()).unwrap();
            let names = metric_names(&evaluation, perplexity);
            assert_eq!(names, expected);
            let sources = Sources::new(open(data).unwrap(), 4, 0).unwrap();
            let (set, sampler) = sources.validation.as_ref().unwrap();
            let scratch = |graph: &Graph, node: &Node, sizes: &Bindings, threads: usize| {
                Ok(lower_node(graph, node, sizes, threads, &Kernels::default())?.scratch)
            };
            let plans = DeviceOptions { scratch: Arc::new(scratch), ..DeviceOptions::default() };
            let planner = Planner::new(train, Some(evaluation), plans).unwrap();
            let device = Box::new(Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap());
            let mut session = Session::new(job(ALONE, vec![planner]).unwrap(), vec![device], 0).unwrap();
            let options = TrainOptions { perplexity, ..TrainOptions::default() };
            let batches = sampler.steps_per_epoch();
            let scores = evaluate(&mut session, set, sampler, batches, &options, &mut |_, _| true).unwrap();
            assert_eq!(names, scores.unwrap().metrics.into_keys().collect::<Vec<_>>());
        }
        std::fs::remove_file(table).unwrap();
        let dcgan = evaluation_graph(model("dcgan", &[]).unwrap().as_ref()).unwrap();
        let names = metric_names(&dcgan, false);
        assert!(names.len() > 1 && names.iter().all(|name| name.ends_with("loss")), "{names:?}");
    }

    fn scalars(entries: &[(OutputRole, f64)]) -> Scalars {
        let mut scalars = Scalars::default();
        for &(role, value) in entries {
            scalars.insert(role.name(), Scalar { role, scope: OutputScope::Device, value });
        }
        scalars
    }

    fn classes(y: &[i64], guess: &[i64]) -> (Batch, Evaluated) {
        let of = |data: &[i64]| HostTensor::new(&[data.len()], HostData::I64(data.to_vec())).unwrap();
        let right = y.iter().zip(guess).filter(|(y, guess)| y == guess).count();
        let scalars = scalars(&[(OutputRole::Correct, right as f64), (OutputRole::Count, y.len() as f64)]);
        (Batch { fields: vec![("y".into(), of(y))] }, Evaluated { scalars, predicted: Some(of(guess)) })
    }

    fn numbers(y: &[f32], predicted: &[f32], width: usize) -> (Batch, Evaluated) {
        let of = |data: &[f32]| {
            HostTensor::new(&[data.len() / width, width], HostData::F32(data.to_vec())).unwrap()
        };
        let squares = y.iter().zip(predicted).map(|(y, p)| f64::from((p - y) * (p - y)));
        let loss = squares.sum::<f64>() / y.len() as f64;
        let scalars = scalars(&[(OutputRole::Loss, loss)]);
        (Batch { fields: vec![("y".into(), of(y))] }, Evaluated { scalars, predicted: Some(of(predicted)) })
    }

    fn tally(batches: &[(Batch, Evaluated)]) -> Tally {
        let mut tally = Tally::default();
        batches.iter().for_each(|(batch, evaluated)| tally.add(batch, evaluated));
        tally
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-6 * b.abs().max(1.0)
    }

    /// Expected numbers are those of scikit-learn's `f1_score(average="macro")`.
    #[test]
    fn classes_give_macro_f1_and_a_matrix_whatever_the_batches() {
        let (y, guess) = ([0, 0, 1, 1, 2, 2, 2], [0, 1, 1, 1, 0, 2, 4]);
        let whole = tally(&[classes(&y, &guess)]).scores(Some(4), false);
        let cut = tally(&[classes(&y[..3], &guess[..3]), classes(&y[3..], &guess[3..])]);
        assert_eq!(cut.scores(Some(4), false), whole);
        // F1 of classes 0, 1, 2 and 4; class 3 occurs nowhere.
        let f1 = (0.5 + 0.8 + 0.5 + 0.0) / 4.0;
        assert!(close(whole.metrics["macro_f1"], f1), "{whole:?}");
        assert!(close(whole.metrics["accuracy"], 4.0 / 7.0));
        let matrix = whole.confusion.unwrap();
        assert_eq!(matrix[0], [1, 1, 0, 0, 0]);
        assert_eq!(matrix[1], [0, 2, 0, 0, 0]);
        assert_eq!(matrix[2], [1, 0, 1, 0, 1]);
        assert_eq!(matrix.len(), 5);
        assert_eq!(tally(&[classes(&[0], &[0])]).scores(Some(3), false).confusion.unwrap().len(), 3);
        let many = tally(&[classes(&[0], &[0])]).scores(Some(MATRIX_CLASSES + 1), false);
        assert_eq!((many.confusion, many.metrics["macro_f1"]), (None, 1.0));
    }

    /// Expected numbers are those of scikit-learn's `r2_score`.
    #[test]
    fn numbers_give_errors_and_r2_whatever_the_batches() {
        // A mean far above the spread must not cost digits.
        let (y, p) = ([2001.0, 2003.0, 1999.0, 2002.0], [2001.5, 2002.0, 2000.0, 2002.5]);
        let whole = tally(&[numbers(&y, &p, 1)]).scores(None, false);
        let cut = tally(&[numbers(&y[..3], &p[..3], 1), numbers(&y[3..], &p[3..], 1)]);
        for scores in [whole, cut.scores(None, false)] {
            assert!(close(scores.metrics["loss"], 0.625) && close(scores.metrics["mae"], 0.75), "{scores:?}");
            assert!(close(scores.metrics["rmse"], 0.625f64.sqrt()));
            assert!(close(scores.metrics["r2"], 1.0 - 2.5 / 8.75), "{scores:?}");
            assert_eq!((scores.confusion, scores.metrics.len()), (None, 4));
        }
        let two = tally(&[numbers(&[1.0, 5.0, 3.0, 5.0], &[2.0, 5.0, 3.0, 5.0], 2)]).scores(None, false);
        assert!(close(two.metrics["r2"], (0.5 + 1.0) / 2.0), "{two:?}");
        let one = tally(&[numbers(&[1.0], &[2.0], 1)]).scores(None, false);
        assert_eq!(one.metrics.get("r2"), None);
    }

    #[test]
    fn losses_are_means_over_what_counts() {
        let (count, weight) = (OutputRole::Count, OutputRole::Weight);
        let batch = |rows: usize, entries: &[(OutputRole, f64)]| {
            let scalars = scalars(entries);
            let y = HostTensor::new(&[rows], HostData::I64(vec![0; rows])).unwrap();
            (Batch { fields: vec![("y".into(), y)] }, Evaluated { scalars, predicted: None })
        };
        let loss = |batches: &[(Batch, Evaluated)]| tally(batches).scores(None, true).metrics;
        let tokens = loss(&[
            batch(1, &[(OutputRole::Loss, 1.0), (count, 10.0)]),
            batch(1, &[(OutputRole::Loss, 4.0), (count, 30.0)]),
        ]);
        assert!(close(tokens["loss"], 3.25) && close(tokens["perplexity"], 3.25f64.exp()));
        // Sums of 6 and 2 over weights of 1.5 and 0.5.
        let weighted = loss(&[
            batch(3, &[(OutputRole::Loss, 2.0), (count, 3.0), (weight, 1.5)]),
            batch(1, &[(OutputRole::Loss, 2.0), (count, 1.0), (weight, 0.5)]),
        ]);
        assert!(close(weighted["loss"], 4.0), "{weighted:?}");
    }
}
