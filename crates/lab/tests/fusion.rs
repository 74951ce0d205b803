//! Element-wise fusion: random graphs and every model mean the same before and after, the graph stays valid
//! and readable, and a small model is looked at line by line.

use gulliver_graph::autodiff::differentiate;
use gulliver_graph::dim::{Bindings, Dim};
use gulliver_graph::dtype::DType;
use gulliver_graph::fuse_elementwise::fuse_elementwise;
use gulliver_graph::graph::build::Builder;
use gulliver_graph::graph::op::Op;
use gulliver_graph::graph::op::map::Function;
use gulliver_graph::graph::op::zip::{Binary, Zip};
use gulliver_graph::graph::{Graph, GraphError, Init, Origin, Value};
use gulliver_graph::interpret::interpret;
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::model::{MODELS, gpt, model};
use gulliver_graph::optim::Optimizer;
use gulliver_graph::random::{RandomStream, hash_name};
use gulliver_graph::role::OutputRole;
use gulliver_graph::tensor::Tensor;
use gulliver_graph::training::{Clip, plain_training_graph, training_graph};
use gulliver_graph::verify::verify;
use gulliver_lab::traffic::{explain, traffic};
use proptest::prelude::*;

/// Builds a graph, with its gradients, from a list of numbers: each picks an operation and its operands.
fn grow(genome: &[(u8, u8, u8)]) -> Result<Graph, GraphError> {
    let mut g = Builder::new(true);
    let (batch, width) = (Dim::symbol("batch"), Dim::from(6));
    let mut values = vec![g.data("x", DType::F32, &[batch.clone(), width.clone()])?];
    let mut weights = Vec::new();
    for (step, &(kind, a, b)) in genome.iter().enumerate() {
        let x = values[a as usize % values.len()];
        let y = values[b as usize % values.len()];
        let value = g.scope(format!("op{step}"), |g| match kind % 14 {
            0 => g.map(Function::Relu, x),
            1 => g.tanh(x),
            2 => g.add(x, y),
            3 => g.mul(x, y),
            4 => g.sub(x, y),
            5 => {
                let w = g.weight("bias", std::slice::from_ref(&width), Init::Normal(0.5))?;
                weights.push(w);
                g.add(x, w)
            }
            6 => {
                let w = g.weight("scale", &[1usize, 1], Init::Normal(0.5))?;
                weights.push(w);
                g.mul(w, x)
            }
            7 => {
                let less = g.push1(Zip(Binary::Less), &[x, y])?;
                g.select(less, x, y)
            }
            8 => {
                let total = g.sum(x, &[b as usize % 2], true)?;
                let shape = g.shape(x).to_vec();
                let wide = g.expand(total, &shape)?;
                g.mul(wide, y)
            }
            9 => {
                let flat = g.reshape(x, &[batch.clone() * &width])?;
                let flat = g.square(flat)?;
                g.reshape(flat, &[batch.clone(), width.clone()])
            }
            10 => {
                let equal = g.push1(Zip(Binary::GreaterEqual), &[x, y])?;
                let equal = g.cast_f32(equal)?;
                g.add(equal, x)
            }
            11 => {
                let most = g.max(x, &[1], true)?;
                g.sub(x, most)
            }
            12 => g.softmax(x, 1),
            _ => g.affine(x, 0.5, 0.1),
        })?;
        values.push(value);
    }
    let last = values[values.len() - 1];
    let squares = g.square(last)?;
    let loss = g.sum_all(squares)?;
    let grads = differentiate(&mut g, loss, &weights, 0)?;
    g.output("loss", OutputRole::Loss, loss);
    g.output("last", OutputRole::Metric, last);
    for (i, grad) in grads.into_iter().enumerate() {
        if let Some(grad) = grad {
            g.output(&format!("grad{i}"), OutputRole::Metric, grad);
        }
    }
    Ok(g.finish())
}

/// The outputs of a graph, by name, on inputs made from their names.
fn outputs(graph: &Graph, sizes: &Bindings) -> Vec<(String, Vec<u64>)> {
    let feed = |v: Value, shape: &[usize]| {
        let stream = RandomStream::new(5, hash_name(&graph.value(v).name), 0);
        let data = (0..shape.iter().product::<usize>() as u64).map(|i| f64::from(stream.normal_at(i)));
        Tensor::new(shape, data.collect())
    };
    let values = interpret(graph, sizes, feed).unwrap();
    let bits = |v: &Value| values[v.index()].data.iter().map(|x| x.to_bits()).collect();
    graph.outputs.iter().map(|o| (o.name.clone(), bits(&o.value))).collect()
}

fn valid_and_readable(graph: &Graph) {
    verify(graph).unwrap_or_else(|e| panic!("{e}\n{graph}"));
    assert_eq!(graph.to_string().parse::<Graph>().unwrap(), *graph);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn random_graphs_mean_the_same(genome in proptest::collection::vec(any::<(u8, u8, u8)>(), 1..24)) {
        let plain = grow(&genome).unwrap();
        let fused = fuse_elementwise(&plain).unwrap();
        valid_and_readable(&fused);
        let (before, after) = (traffic(&plain), traffic(&fused));
        prop_assert!(after.nodes <= before.nodes && after.passes <= before.passes);
        let sizes = Bindings::new().with("batch", 3);
        prop_assert_eq!(outputs(&plain, &sizes), outputs(&fused, &sizes));
    }
}

#[test]
fn every_model_keeps_its_inputs_outputs_and_flops() {
    let adam = || [Optimizer::new("adam", &[]).unwrap()];
    let mut chains = 0;
    // Other rows of GPT have more layers and nothing else that is new.
    for row in MODELS.iter().filter(|row| row.name == "gpt" || !std::ptr::eq(row.family, &gpt::FAMILY)) {
        let model = model(row.name, &[]).unwrap();
        let plain = plain_training_graph(&*model, &adam(), Some(Clip::Norm(1.0))).unwrap();
        let fused = training_graph(&*model, &adam(), Some(Clip::Norm(1.0))).unwrap();
        valid_and_readable(&fused);
        let inputs = |g: &Graph| g.inputs().map(|(_, _, info)| info.clone()).collect::<Vec<_>>();
        let names = |g: &Graph| {
            g.outputs.iter().map(|o| (o.name.clone(), o.role, g.ty(o.value).clone())).collect::<Vec<_>>()
        };
        assert_eq!((inputs(&plain), names(&plain)), (inputs(&fused), names(&fused)), "{}", row.name);
        assert_eq!(plain.carries.len(), fused.carries.len(), "{}", row.name);
        let flops = |g: &Graph| g.nodes.iter().fold(Dim::from(0), |sum, n| sum + g.flops(n).unwrap());
        assert_eq!(flops(&plain), flops(&fused), "{}", row.name);
        let (before, after) = (traffic(&plain), traffic(&fused));
        assert!(after.nodes < before.nodes && after.passes < before.passes, "{}", row.name);
        chains += fused.nodes.iter().filter(|n| matches!(n.op, Op::Elementwise(_))).count();
        // No phase or objective is entered twice because of a chain.
        let order = |g: &Graph| {
            let mut order: Vec<_> = g.nodes.iter().map(|n| (n.phase, n.objective)).collect();
            order.dedup();
            order
        };
        assert_eq!(order(&plain), order(&fused), "{}", row.name);
    }
    assert!(chains > 500, "only {chains} chains");
}

#[test]
fn chains_stop_at_what_is_not_element_wise_and_look_past_expansions() {
    let mut g = Builder::new(false);
    let x = g.data("x", DType::F32, &[4, 5]).unwrap();
    let mean = g.mean(x, &[1], true).unwrap();
    let wide = g.expand(mean, &[4, 5]).unwrap();
    let centred = g.sub(x, wide).unwrap();
    let soft = g.softmax(centred, 1).unwrap();
    let y = g.relu(soft).unwrap();
    g.output("y", OutputRole::Metric, y);
    let fused = fuse_elementwise(&g.finish()).unwrap();
    let names: Vec<&str> = fused.nodes.iter().map(|n| n.op.def().name()).collect();
    assert_eq!(names, ["sum", "size", "div", "elementwise", "softmax", "relu"]);
    assert!(fused.values.iter().all(|info| matches!(info.origin, Origin::Input(_)) || info.name != "expand"));
}

#[test]
fn a_small_model_before_and_after() {
    let given = [("width", 8), ("heads", 2), ("layers", 1), ("vocab", 11), ("context", 16)];
    let given: Vec<_> = given.iter().map(|(n, v)| (n.to_string(), ParamValue::Int(*v))).collect();
    let gpt = model("gpt", &given).unwrap();
    let sgd = || [Optimizer::new("sgd", &[]).unwrap()];
    let before = plain_training_graph(&*gpt, &sgd(), None).unwrap();
    let after = training_graph(&*gpt, &sgd(), None).unwrap();
    let text = explain(&before, &after, &Bindings::new().with("batch", 2).with("length", 4)).unwrap();
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fusion_gpt.txt");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let want = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(text == want, "tests/fusion_gpt.txt differs; UPDATE_EXPECT=1 writes it anew:\n{text}");
}
