//! How cost grows: building, planning and running a GPT of more and more layers, a step of more and more
//! samples, and what the executor itself takes for a node.

use crate::error::LabError;
use gulliver::local::{LocalDevice, session};
use gulliver::report::table::{self, Column};
use gulliver_graph::dim::Bindings;
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::build::Builder;
use gulliver_graph::graph::{Graph, GraphError, Node};
use gulliver_graph::model::model;
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::optim::Optimizer;
use gulliver_graph::role::OutputRole;
use gulliver_graph::training::training_graph;
use gulliver_plan::budget::planner::StepPlanner;
use gulliver_plan::document::error::PlanError;
use gulliver_plan::document::residence::Persistent;
use gulliver_plan::document::verify::verify;
use gulliver_plan::step::options::PlanOptions;
use gulliver_run::data::Batch;
use gulliver_run::host::{HostData, HostTensor};
use gulliver_run::lower::{Kernels, lower_node};
use gulliver_run::session::StepKey;
use serde::Serialize;
use std::time::Instant;

/// Layers of the GPT whose parts are timed.
const LAYERS: [usize; 4] = [12, 24, 48, 96];
/// Samples of a step.
const SAMPLES: [usize; 4] = [1, 4, 16, 64];
/// Nodes that do next to nothing.
const NODES: [usize; 2] = [1000, 8000];
/// Tokens of a sample.
const LENGTH: usize = 64;
/// Everything is done at least so often, and the fastest counts.
const REPEATS: usize = 5;

/// What one size costs; times are of the fastest of several runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScalingRow {
    /// What grows: `layers`, `samples` or `nodes`.
    pub axis: &'static str,
    /// To how many.
    pub count: usize,
    /// Nodes of the graph.
    pub nodes: usize,
    /// Building and differentiating the graph.
    pub build_seconds: f64,
    /// What is planned once for all input sizes.
    pub outline_seconds: f64,
    /// A plan for a new input size.
    pub plan_seconds: f64,
    /// Checking it.
    pub verify_seconds: f64,
    /// A step.
    pub step_seconds: f64,
    /// Bytes the layout loses, as a share of those in use at once.
    pub layout_waste: f64,
}

/// Measures everything; each size runs for about `seconds`.
pub fn measure(
    threads: usize,
    seconds: f64,
    mut done: impl FnMut(&ScalingRow) -> Result<(), LabError>,
) -> Result<(), LabError> {
    for layers in LAYERS {
        done(&row("layers", layers, &|| gpt(layers, 64), &tokens(2), threads, seconds)?)?;
    }
    for samples in SAMPLES {
        done(&row("samples", samples, &|| gpt(4, 256), &tokens(samples), threads, seconds)?)?;
    }
    for nodes in NODES {
        done(&row("nodes", nodes, &|| chain(nodes), &square(), 1, seconds)?)?;
    }
    Ok(())
}

/// A small GPT with its training step.
fn gpt(layers: usize, width: i64) -> Result<Graph, GraphError> {
    let params = [("layers", layers as i64), ("width", width), ("heads", 2), ("context", LENGTH as i64)];
    let params = params.map(|(name, value)| (name.to_string(), ParamValue::Int(value)));
    training_graph(model("gpt", &params)?.as_ref(), &[Optimizer::new("adam", &[])?], None)
}

fn tokens(samples: usize) -> Batch {
    let ids = |shift: usize| {
        let data = (0..samples * LENGTH).map(|i| ((i * 7 + shift) % 50) as i64).collect();
        HostTensor::new(&[samples, LENGTH], HostData::I64(data)).expect("as many as the shape says")
    };
    Batch { fields: vec![("x".into(), ids(0)), ("y".into(), ids(3))] }
}

/// A few numbers that change places again and again.
fn chain(nodes: usize) -> Result<Graph, GraphError> {
    let mut g = Builder::new(false);
    let mut x = g.data("x", DType::F32, &["batch", "batch"])?;
    for _ in 0..nodes {
        x = g.transpose(x, &[1, 0])?;
    }
    g.output("result", OutputRole::Metric, x);
    Ok(g.finish())
}

fn square() -> Batch {
    let x = HostTensor::new(&[4, 4], HostData::F32(vec![1.0; 16])).expect("as many as the shape says");
    Batch { fields: vec![("x".into(), x)] }
}

fn row(
    axis: &'static str,
    count: usize,
    build: &dyn Fn() -> Result<Graph, GraphError>,
    batch: &Batch,
    threads: usize,
    seconds: f64,
) -> Result<ScalingRow, LabError> {
    let graph = build()?;
    let build_seconds = fastest(0.0, || build().map(drop))?;
    let kernels = Kernels::default();
    let scratch = |g: &Graph, n: &Node, s: &Bindings| Ok(lower_node(g, n, s, threads, &kernels)?.scratch);
    let failed = |e: PlanError| LabError::Workload { workload: axis.into(), problem: e.to_string() };
    let persistent = Persistent::of(&graph).map_err(|e| failed(e.into()))?;
    let options = PlanOptions { scratch: &scratch, ..PlanOptions::new(&persistent) };
    let (samples, length) = (batch.fields[0].1.shape()[0], LENGTH);
    let sizes = Bindings::new().with("batch", samples).with("length", length);
    let planner = StepPlanner::new(&graph, &sizes, &options).map_err(failed)?;
    let outline_seconds =
        fastest(0.0, || StepPlanner::new(&graph, &sizes, &options).map(drop).map_err(failed))?;
    let plan = planner.plan(&graph, &sizes, &options).map_err(failed)?;
    let plan_seconds = fastest(0.0, || planner.plan(&graph, &sizes, &options).map(drop).map_err(failed))?;
    let broken = |e| LabError::Workload { workload: axis.into(), problem: format!("{e}") };
    let verify_seconds = fastest(0.0, || verify(&graph, &plan).map_err(broken))?;
    let nodes = graph.nodes.len();
    let options = LocalDevice { threads, ..LocalDevice::default() };
    let mut session = session(graph, None, &options, 0)?;
    let mut step = 0;
    let step_seconds = fastest(seconds, || {
        step += 1;
        session.step(batch, StepKey { seed: 0, step }, &|_, _| None).map(drop)
    })?;
    let device = &plan.spaces[0];
    Ok(ScalingRow {
        axis,
        count,
        nodes,
        build_seconds,
        outline_seconds,
        plan_seconds,
        verify_seconds,
        step_seconds,
        layout_waste: (device.bytes - device.live) as f64 / device.live.max(1) as f64,
    })
}

/// The shortest time of several runs that together take at least so many seconds.
fn fastest<E>(seconds: f64, mut f: impl FnMut() -> Result<(), E>) -> Result<f64, E> {
    let begin = Instant::now();
    let (mut least, mut runs) = (f64::INFINITY, 0);
    while runs < REPEATS || begin.elapsed().as_secs_f64() < seconds {
        let start = Instant::now();
        f()?;
        least = least.min(start.elapsed().as_secs_f64());
        runs += 1;
    }
    Ok(least)
}

/// All rows as a table; times per layer, sample or node beside those of the whole.
pub fn render(rows: &[ScalingRow]) -> String {
    let columns = [
        Column::Right("count"),
        Column::Left("of"),
        Column::Right("nodes"),
        Column::Right("build ms"),
        Column::Right("planner ms"),
        Column::Right("plan ms"),
        Column::Right("verify ms"),
        Column::Right("step ms"),
        Column::Right("planning each µs"),
        Column::Right("step each µs"),
        Column::Right("waste"),
    ];
    let cells = |r: &ScalingRow| {
        let planning = r.build_seconds + r.outline_seconds + r.plan_seconds + r.verify_seconds;
        let ms = |seconds: f64| format!("{:.3}", 1e3 * seconds);
        let each = |seconds: f64| format!("{:.3}", 1e6 * seconds / r.count as f64);
        vec![
            r.count.to_string(),
            r.axis.to_string(),
            r.nodes.to_string(),
            ms(r.build_seconds),
            ms(r.outline_seconds),
            ms(r.plan_seconds),
            ms(r.verify_seconds),
            ms(r.step_seconds),
            each(planning),
            each(r.step_seconds),
            format!("{:.2}%", 100.0 * r.layout_waste),
        ]
    };
    table::render(&columns, &rows.iter().map(cells).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_row_can_be_measured() {
        let rows = [
            row("layers", 1, &|| gpt(1, 16), &tokens(2), 1, 0.0).unwrap(),
            row("nodes", 10, &|| chain(10), &square(), 1, 0.0).unwrap(),
        ];
        assert!(rows[0].nodes > 50 && rows[1].nodes == 10);
        for row in &rows {
            let times = [row.build_seconds, row.outline_seconds, row.plan_seconds, row.step_seconds];
            assert!(times.iter().all(|t| t.is_finite() && *t > 0.0), "{row:?}");
            assert!((0.0..0.5).contains(&row.layout_waste), "{row:?}");
        }
        assert_eq!(render(&rows).lines().count(), 3);
    }
}
