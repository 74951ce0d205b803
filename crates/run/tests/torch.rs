//! Whole models against PyTorch, on the executor in f32: the loss, every gradient and the running
//! statistics of one training step, and the losses of a short training run.

#[path = "../../../fixtures/torch/fixture.rs"]
#[allow(dead_code)]
mod fixture;

mod check_device;
mod direct;

use check_device::CheckDevice;
use direct::{Direct, cpu};
use gulliver::local::{LocalDevice, session};
use gulliver_graph::dim::Bindings;
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::Graph;
use gulliver_graph::graph::GraphOutput;
use gulliver_graph::model::model;
use gulliver_graph::optim::Optimizer;
use gulliver_graph::role::{HyperRole, OutputRole};
use gulliver_graph::training::training_graph;
use gulliver_plan::budget::planner::StepPlanner;
use gulliver_plan::document::residence::Persistent;
use gulliver_plan::document::verify::verify;
use gulliver_plan::step::options::PlanOptions;
use gulliver_run::data::Batch;
use gulliver_run::device::Device;
use gulliver_run::host::{HostData, HostTensor};
use gulliver_run::lower::{Kernels, lower_node};
use gulliver_run::session::StepKey;

const THREADS: usize = 2;

fn tensor(dtype: DType, shape: &[usize], data: &[f64]) -> HostTensor {
    let data = match dtype {
        DType::F32 => HostData::F32(data.iter().map(|&x| x as f32).collect()),
        DType::I64 => HostData::I64(data.iter().map(|&x| x as i64).collect()),
        DType::U8 => HostData::U8(data.iter().map(|&x| x as u8).collect()),
        DType::Bool => HostData::Bool(data.iter().map(|&x| x as u8).collect()),
        other => panic!("no fixture has {other}"),
    };
    HostTensor::new(shape, data).unwrap()
}

/// Runs one step of the graph on a plan and gives the outputs by name.
fn execute<D: Device>(
    device: D,
    graph: &Graph,
    sizes: &Bindings,
    feed: impl Fn(gulliver_graph::graph::Value, &[usize]) -> Vec<f64>,
) -> impl Fn(&str) -> Vec<f64> {
    let persistent = Persistent::of(graph).unwrap();
    let scratch = |g: &Graph, n: &gulliver_graph::graph::Node, s: &Bindings| {
        Ok(lower_node(g, n, s, THREADS, &Kernels::default())?.scratch)
    };
    let options = PlanOptions { scratch: &scratch, ..PlanOptions::new(&persistent) };
    let plan = StepPlanner::new(graph, sizes, &options).unwrap().plan(graph, sizes, &options).unwrap();
    verify(graph, &plan).unwrap();
    let mut direct = Direct::new(device, graph, &plan);
    for (value, _, info) in graph.inputs() {
        let shape = info.ty.bind(sizes).unwrap();
        let t = tensor(info.ty.dtype, &shape, &feed(value, &shape));
        direct.feed(value, t.as_bytes()).unwrap();
    }
    direct.run_all().unwrap();
    move |name| {
        let t = direct.output(name).unwrap_or_else(|| panic!("no output {name}"));
        t.as_f32().unwrap().iter().map(|&x| f64::from(x)).collect()
    }
}

#[test]
fn losses_gradients_and_statistics() {
    let names = fixture::names();
    assert!(names.len() >= 15, "{names:?}");
    for name in names {
        let fixture = fixture::read(&name);
        if fixture.training.is_some() {
            continue;
        }
        let mut step = fixture.step().unwrap_or_else(|e| panic!("{name}: {e}"));
        let wanted = step.losses.iter().chain(step.gradients.iter().chain(&step.states).map(|(_, v)| v));
        step.graph.outputs =
            wanted.map(|v| GraphOutput::new(format!("%{}", v.0), OutputRole::Metric, *v)).collect();
        let feed = |v, shape: &[usize]| fixture.feed(&step.graph, v, shape);
        let fast = execute(cpu(THREADS), &step.graph, &step.sizes, feed);
        fixture.compare(&step, 1e-4, |v| fast(&format!("%{}", v.0)));
        let checked = execute(CheckDevice::default(), &step.graph, &step.sizes, feed);
        fixture.compare(&step, 1e-4, |v| checked(&format!("%{}", v.0)));
    }
}

#[test]
fn training_runs() {
    let mut runs = 0;
    for name in fixture::names() {
        let fixture = fixture::read(&name);
        let Some(training) = &fixture.training else { continue };
        runs += 1;
        let given: Vec<_> = fixture.parameters.iter().map(|(n, v)| (n.clone(), v.clone())).collect();
        let model = model(&fixture.model, &given).unwrap();
        let optimizer = Optimizer::new("adamw", &training.settings()).unwrap();
        let graph = training_graph(model.as_ref(), &[optimizer], None).unwrap();
        let options = LocalDevice { threads: THREADS, ..LocalDevice::default() };
        let mut session = session(graph, None, &options, 0).unwrap();
        for weight in &fixture.weights {
            let t = tensor(DType::F32, &weight.shape, &weight.data());
            assert!(session.set(&weight.name, &t).unwrap(), "{}", weight.name);
        }
        let ids = training.ids();
        for (i, &want) in training.losses.iter().enumerate() {
            let shape = [training.batch, training.length];
            let [x, y] = training.batch(&ids, i).map(|data| tensor(DType::I64, &shape, &data));
            let batch = Batch { fields: vec![("x".into(), x), ("y".into(), y)] };
            let step = |role: HyperRole, _: &str| (role == HyperRole::Step).then_some((i + 1) as f32);
            let outcome = session.step(&batch, StepKey { seed: 0, step: i as u64 }, &step).unwrap();
            let got = outcome.scalars["loss"];
            assert!(
                (got - want).abs() <= 1e-3 * want.abs(),
                "{name}: loss of step {i} is {got}, PyTorch {want}"
            );
        }
    }
    assert!(runs > 0, "no training fixture");
}
