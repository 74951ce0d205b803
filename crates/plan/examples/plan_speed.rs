//! How long a plan for a new input size takes under a budget: `cargo run --release --example plan_speed`.
//! Each row is a model, the share it may use of what it needs beyond weights and states without a limit, and
//! the best of several runs. An argument selects the models whose names begin with it.

use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;
use gulliver_graph::model::model;
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::optim::Optimizer;
use gulliver_graph::training::training_graph;
use gulliver_plan::cost::Beside;
use gulliver_plan::make::{Options, Persistent};
use gulliver_plan::outline::Outline;
use gulliver_plan::simulate::simulate;
use std::time::Instant;

fn graph(name: &str, settings: &[(&str, i64)]) -> Result<Graph, Box<dyn std::error::Error>> {
    let settings: Vec<(String, ParamValue)> =
        settings.iter().map(|(n, v)| (n.to_string(), ParamValue::Int(*v))).collect();
    let optimizer = Optimizer::new("adam", &[])?;
    Ok(training_graph(model(name, &settings)?.as_ref(), &[optimizer], None)?)
}

fn row(
    label: &str,
    graph: &Graph,
    outlined: &Bindings,
    asked: &Bindings,
) -> Result<(), Box<dyn std::error::Error>> {
    if std::env::args().nth(1).is_some_and(|only| !label.starts_with(&only)) {
        return Ok(());
    }
    let persistent = Persistent::of(graph)?;
    let beside = Beside { host: Some(0), disk: None };
    let options = Options { beside, ..Options::new(&persistent) };
    let outline = Outline::new(graph, outlined, &options)?;
    let free = outline.plan(graph, asked, &options)?;
    let state = persistent.ends[0];
    let moving = free.spaces[0].bytes - state;
    for percent in [80, 60, 40] {
        let options = Options { memory: Some(state + moving / 100 * percent), ..options };
        let mut best = f64::INFINITY;
        let mut last = None;
        for _ in 0..7 {
            let begin = Instant::now();
            last = outline.plan(graph, asked, &options).ok();
            best = best.min(begin.elapsed().as_secs_f64());
        }
        let sizes = outline.sizes(graph, asked, &options)?;
        let again = last.as_ref().map(|plan| {
            let timing = simulate(plan, |id| outline.seconds(&sizes, id.index()), &options.links);
            100.0 * timing.again / (timing.seconds - timing.again)
        });
        println!(
            "{label:<12} {:>6} acts {percent:>3} % {:>9.3} ms   {}",
            outline.script.acts.len(),
            best * 1e3,
            again.map_or("does not fit".into(), |a| format!("{a:.2} % again"))
        );
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let text = |batch, length| Bindings::new().with("batch", batch).with("length", length);
    row("bert-base", &graph("bert-base", &[])?, &text(16, 128), &text(16, 200))?;
    let gpt = [("width", 1600), ("heads", 25), ("layers", 48), ("vocab", 50257), ("context", 1024)];
    row("gpt2-48", &graph("gpt", &gpt)?, &text(1, 512), &text(1, 768))?;
    row("resnet152", &graph("resnet152", &[])?, &text(8, 1), &text(12, 1))?;
    for layers in [12, 24, 48, 96] {
        let gpt = [("width", 256), ("heads", 4), ("layers", layers), ("vocab", 1000), ("context", 256)];
        row(&format!("gpt, {layers}"), &graph("gpt", &gpt)?, &text(4, 128), &text(4, 200))?;
    }
    Ok(())
}
