//! How long the search for a cut takes, and what it finds:
//! `cargo run --release -p gulliver-plan --example cut_speed [MODEL]`.
//!
//! Each row is a graph over two times two times two devices, first for fewest bytes, then for least seconds. The rows of
//! one model differ in their number of layers. An argument selects the models whose names begin with it.

use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;
use gulliver_graph::model::model;
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::optim::Optimizer;
use gulliver_graph::training::training_graph;
use gulliver_plan::devices::cut::{
    CutObjective, CutOptions, CutRule, MeshLevel, SizedGraph, Undivided, cut_by_rules, cut_traffic, find_cut,
};
use std::time::Instant;

type Failure = Box<dyn std::error::Error>;

fn graph(name: &str, settings: &[(&str, ParamValue)]) -> Result<Graph, Failure> {
    let settings: Vec<(String, ParamValue)> =
        settings.iter().map(|(n, v)| (n.to_string(), v.clone())).collect();
    let optimizer = Optimizer::new("adam", &[])?;
    Ok(training_graph(model(name, &settings)?.as_ref(), &[optimizer], None)?)
}

fn row(label: &str, graph: &Graph, sizes: &Bindings) -> Result<(), Failure> {
    if std::env::args().nth(1).is_some_and(|only| !label.starts_with(&only)) {
        return Ok(());
    }
    let levels = [MeshLevel::even(2, 2e9), MeshLevel::even(2, 8e9), MeshLevel::even(2, 8e9)];
    print!("{label:28} {:5} nodes", graph.nodes.len());
    for objective in [CutObjective::Bytes, CutObjective::Seconds] {
        let options = CutOptions { objective, ..CutOptions::default() };
        let begin = Instant::now();
        let found = find_cut(graph, sizes, &levels, &options)?;
        let seconds = begin.elapsed().as_secs_f64();
        let mega = found.cost.bytes.total() as f64 / 1e6;
        print!("  {objective:?}: {seconds:.3} s, {mega:.1} MB, step {:.3} s", found.cost.seconds());
        print!("{}", if found.exact { "" } else { " (limit passed)" });
    }
    let sized = SizedGraph::new(graph, sizes)?;
    let mega = |bytes: u64| bytes as f64 / 1e6;
    for (name, first, others) in [
        ("data", CutRule::Data, CutRule::Data),
        ("filter", CutRule::Filter, CutRule::Filter),
        ("hybrid", CutRule::Data, CutRule::Filter),
    ] {
        let cut = cut_by_rules(&sized, &levels, &[first, others, others], Undivided::AnyAxis)?;
        print!("  {name} {:.1} MB", mega(cut_traffic(graph, sizes, &cut)?.total()));
    }
    // One cut of everything into as many parts as there are devices.
    let options = CutOptions { objective: CutObjective::Bytes, ..CutOptions::default() };
    let chop = find_cut(graph, sizes, &[MeshLevel::even(8, 2e9)], &options)?;
    println!("  chop {:.1} MB", mega(chop.cost.bytes.total()));
    Ok(())
}

fn main() -> Result<(), Failure> {
    let int = ParamValue::Int;
    let images = Bindings::new().with("batch", 32);
    for blocks in [[3, 4, 6, 3], [3, 4, 23, 3], [3, 8, 36, 3]] {
        let settings = [
            ("blocks", ParamValue::Ints(blocks.map(i64::from).to_vec().into())),
            ("width", int(256)),
            ("size", int(224)),
        ];
        let layers = 2 + 3 * blocks.iter().sum::<i32>();
        row(&format!("wresnet-{layers} (width 256)"), &graph("resnet152", &settings)?, &images)?;
    }
    let text = Bindings::new().with("batch", 128).with("length", 20);
    for layers in [2, 5, 10, 20] {
        let settings = [("layers", int(layers)), ("width", int(4096))];
        row(&format!("lstm-{layers} (width 4096)"), &graph("lstm", &settings)?, &text)?;
    }
    let text = Bindings::new().with("batch", 8).with("length", 256);
    for layers in [6, 12, 24] {
        let settings = [("layers", int(layers))];
        row(&format!("gpt2-{layers}"), &graph("gpt2", &settings)?, &text)?;
    }
    Ok(())
}
