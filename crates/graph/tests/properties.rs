//! Random graphs: shapes agree with what the reference kernels make, printing and reading are inverse,
//! the verifier accepts them, and gradients agree with finite differences.

use gulliver_graph::autodiff::differentiate;
use gulliver_graph::dim::{Bindings, Dim};
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::build::Builder;
use gulliver_graph::graph::{Graph, GraphError, Init, Role, Value};
use gulliver_graph::interpret::interpret;
use gulliver_graph::random::{RandomStream, hash_name};
use gulliver_graph::role::OutputRole;
use gulliver_graph::tensor::Tensor;
use gulliver_graph::verify::verify;
use proptest::prelude::*;

/// Builds a graph from a list of numbers: each picks an operation and its operands among the values so
/// far, all of shape [batch, extent]. Smooth functions only, so that finite differences are sharp.
fn grow(genome: &[(u8, u8, u8)]) -> Result<(Graph, Value, Vec<Value>), GraphError> {
    let mut g = Builder::new(true);
    let batch = Dim::symbol("batch");
    let mut values = vec![g.data("x", DType::F32, &[batch.clone(), 6.into()])?];
    let mut weights = Vec::new();
    for (step, &(kind, a, b)) in genome.iter().enumerate() {
        let x = values[a as usize % values.len()];
        let y = values[b as usize % values.len()];
        let width = g.shape(x)[1].clone();
        let value = g.scope(format!("op{step}"), |g| match kind % 14 {
            0 => g.tanh(x),
            1 => g.sigmoid(x),
            2 => g.gelu(x),
            3 => g.softplus(x),
            4 | 5 => {
                let w = g.weight("weight", &[Dim::from(1 + i64::from(b) % 5), width], Init::Normal(0.5))?;
                weights.push(w);
                g.contract("b i, o i -> b o", x, w)
            }
            6 => {
                let w = g.weight("bias", &[width], Init::Normal(0.5))?;
                weights.push(w);
                g.add(x, w)
            }
            7 if g.shape(x) == g.shape(y) => g.mul(x, y),
            8 if g.shape(x) == g.shape(y) => g.sub(x, y),
            9 => g.softmax(x, 1),
            10 => {
                let mean = g.mean(x, &[1], true)?;
                g.sub(x, mean)
            }
            11 => g.concat(&[x, y], 1),
            12 => {
                let t = g.transpose(x, &[1, 0])?;
                let t = g.square(t)?;
                g.transpose(t, &[1, 0])
            }
            13 => {
                let total = g.sum(x, &[0], true)?;
                let shape = g.shape(x).to_vec();
                let wide = g.expand(total, &shape)?;
                g.map(gulliver_graph::graph::op::map::Function::Tanh, wide)
            }
            _ => g.affine(x, 0.5, 0.1),
        })?;
        if g.shape(value)[1].as_const().is_some_and(|w| w <= 24) {
            values.push(value);
        }
    }
    let mut loss = g.scalar(0.0)?;
    for v in values {
        let t = g.tanh(v)?;
        let t = g.mean_all(t)?;
        loss = g.add(loss, t)?;
    }
    let grads = differentiate(&mut g, loss, &weights, 0)?;
    g.output("loss", OutputRole::Loss, loss);
    for (w, grad) in weights.iter().zip(&grads) {
        let name = g.graph().value(*w).name.clone();
        let grad = grad.expect("every weight reaches the loss");
        g.output(&format!("grad.{name}"), OutputRole::Metric, grad);
    }
    let grads = grads.into_iter().flatten().collect();
    Ok((g.finish(), loss, grads))
}

fn feed(graph: &Graph, v: Value, shape: &[usize]) -> Tensor {
    let info = graph.value(v);
    let stream = RandomStream::new(1, hash_name(&info.name), 0);
    let count: usize = shape.iter().product();
    let hyper = graph.inputs().any(|(i, role, _)| i == v && matches!(role, Role::Hyper(..)));
    let element = |i: u64| if hyper { 1.0 } else { f64::from(stream.normal_at(i)) };
    Tensor::new(shape, (0..count as u64).map(element).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn random_graphs_keep_the_rules(genome in proptest::collection::vec(any::<(u8, u8, u8)>(), 1..14), batch in 1usize..5) {
        let (graph, loss, grads) = grow(&genome).unwrap();
        verify(&graph).unwrap();
        let text = graph.to_string();
        let read: Graph = text.parse().unwrap();
        prop_assert_eq!(&read, &graph);
        prop_assert_eq!(read.to_string(), text);

        let sizes = Bindings::new().with("batch", batch);
        let values = interpret(&graph, &sizes, |v, shape| feed(&graph, v, shape)).unwrap();
        for (i, info) in graph.values.iter().enumerate() {
            prop_assert_eq!(&values[i].shape, &info.ty.bind(&sizes).unwrap());
            prop_assert!(values[i].data.iter().all(|x| x.is_finite()));
        }
        let weights: Vec<Value> = graph.weights().map(|(v, _)| v).collect();
        for (w, grad) in weights.iter().zip(grads) {
            let len = values[w.index()].len();
            for j in [0, len / 2, len - 1] {
                let loss_at = |delta: f64| {
                    let moved = interpret(&graph, &sizes, |v, shape| {
                        let mut t = feed(&graph, v, shape);
                        if v == *w {
                            t.data[j] += delta;
                        }
                        t
                    });
                    moved.unwrap()[loss.index()].data[0]
                };
                let numeric = (loss_at(1e-5) - loss_at(-1e-5)) / 2e-5;
                let analytic = values[grad.index()].data[j];
                prop_assert!((numeric - analytic).abs() <= 1e-6 * (1.0 + numeric.abs()), "{} against {}", numeric, analytic);
            }
        }
    }

    #[test]
    fn mangled_texts_are_refused_or_read_but_never_crash(genome in proptest::collection::vec(any::<(u8, u8, u8)>(), 1..6), cut in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let (graph, ..) = grow(&genome).unwrap();
        let mut text = graph.to_string().into_bytes();
        let at = cut.index(text.len());
        text[at] = byte;
        if let Ok(text) = String::from_utf8(text) {
            let _ = text.parse::<Graph>();
        }
    }
}
