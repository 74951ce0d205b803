//! The least that must be computed again under a budget, as an LP file for a solver, and what we choose:
//! `cargo run --release -p gulliver-plan --example optimum_lp GRAPH PERCENT FILE [forward]`.
//!
//! The budget is a share of what is needed beyond weights and states. Whatever is made before the update may be
//! computed again, or only what the forward pass makes; we may do the former either way. Printed is a line of JSON:
//! acts, columns of the program and how many are whole numbers, bytes of weights and states, of the unlimited peak
//! and of the budget, microseconds of the step, and those we compute again with the peak then, or null if we find
//! nothing. Without arguments, the names of the graphs.

#[path = "../tests/small_graphs/mod.rs"]
mod small_graphs;

use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;
use gulliver_graph::model::model;
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::optim::Optimizer;
use gulliver_graph::training::training_graph;
use gulliver_lab::comparator::ComparedStep;
use gulliver_plan::budget::choices::Choices;
use gulliver_plan::document::plan::Tier;
use small_graphs::choice::recompute;
use small_graphs::problem::Problem;
use small_graphs::program::Program;
use small_graphs::{Outlined, chain, layer, residual, trained};
use std::fmt::Write;

type Failure = Box<dyn std::error::Error>;

type Make = fn() -> Result<Graph, Failure>;

/// Graphs by name; those come first that are solved in minutes.
const GRAPHS: [(&str, Make); 10] = [
    ("chain-6", || Ok(chain(&[32; 6]))),
    ("uneven-6", || Ok(chain(&[64, 16, 128, 32, 64, 24]))),
    ("residual-4", || Ok(residual(4))),
    ("unet-2", || Ok(unet(&[64, 32]))),
    ("chain-8", || Ok(chain(&[32; 8]))),
    ("uneven-8", || Ok(chain(&[64, 16, 128, 32, 64, 24, 96, 48]))),
    ("residual-6", || Ok(residual(6))),
    ("unet-3", || Ok(unet(&[96, 64, 32]))),
    ("gpt-1", || gpt(1)),
    ("gpt-2", || gpt(2)),
];

/// Narrower and narrower, and back: what comes back is added to what went.
fn unet(widths: &[usize]) -> Graph {
    trained(|g, mut x| {
        let mut went = Vec::new();
        for (k, width) in widths.iter().enumerate() {
            x = layer(g, 2 * k, x, *width)?;
            x = layer(g, 2 * k + 1, x, *width)?;
            went.push(x);
        }
        went.pop();
        for (k, skipped) in went.into_iter().enumerate().rev() {
            x = layer(g, 100 + 2 * k, x, widths[k])?;
            x = g.add(x, skipped)?;
            x = layer(g, 101 + 2 * k, x, widths[k])?;
        }
        Ok(x)
    })
}

/// A whole training step, updates included.
fn gpt(layers: i64) -> Result<Graph, Failure> {
    let settings = [("width", 32), ("layers", layers), ("heads", 2), ("vocab", 50), ("context", 32)];
    let settings = settings.map(|(name, value)| (name.to_string(), ParamValue::Int(value)));
    let optimizer = Optimizer::new("sgd", &[])?;
    Ok(training_graph(model("gpt", &settings)?.as_ref(), &[optimizer], None)?)
}

/// A program in the LP format of CPLEX.
fn text(program: &Program) -> Result<String, std::fmt::Error> {
    let mut text = String::from("minimize\n cost:\n");
    for (column, cost) in program.costs.iter().enumerate().filter(|(_, cost)| **cost > 0.0) {
        writeln!(text, " + {cost} x{column}")?;
    }
    text += "subject to\n";
    for (k, (terms, most)) in program.rows.iter().enumerate() {
        writeln!(text, " r{k}:")?;
        for (column, factor) in terms {
            writeln!(text, " {} {} x{column}", if *factor < 0.0 { '-' } else { '+' }, factor.abs())?;
        }
        writeln!(text, " <= {most}")?;
    }
    text += "bounds\n";
    for column in 0..program.costs.len() {
        writeln!(text, " 0 <= x{column} <= 1")?;
    }
    // Those that need not be are whole numbers in some least solution; solvers cut more if they know.
    text += "general\n";
    for column in 0..program.costs.len() {
        writeln!(text, " x{column}")?;
    }
    Ok(text + "end\n")
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, share, file, more @ ..] = &arguments[..] else {
        GRAPHS.iter().for_each(|(name, _)| println!("{name}"));
        return Ok(());
    };
    let forward = more.iter().any(|word| word == "forward");
    let (_, make) = GRAPHS.iter().find(|(known, _)| known == name).ok_or("there is no such graph")?;
    let sizes = Bindings::new().with("batch", 4).with("length", 32);
    let outlined = Outlined::new(make()?, &sizes);
    let base = outlined.outline.base(&outlined.graph);
    let case = ComparedStep::new(&outlined.outline, &base, &outlined.sizes);
    let problem = Problem::new(&case);
    let whole = case.outcome(base.script).peak;
    let budget = outlined.budget(whole, share.parse()?);
    let program = Program::new(&problem, budget, |act| act.again && (act.forward || !forward));
    std::fs::write(file, text(&program)?)?;
    let start = Choices::keep(&base, vec![Tier::Device; base.script.versions.len()]);
    let ours = recompute(&case, &start, budget, true).ok();
    let ours = ours.map(|chosen| case.outcome(&chosen.rewritten.script));
    let report = serde_json::json!({
        "graph": name,
        "acts": problem.moves.len(),
        "columns": program.costs.len(),
        "whole": program.whole.iter().filter(|whole| **whole).count(),
        "impossible": program.impossible,
        "state": outlined.state,
        "unlimited": whole,
        "budget": budget,
        "step": 1e6 * problem.moves.iter().map(|act| act.seconds).sum::<f64>(),
        "again": ours.map(|outcome| 1e6 * outcome.again),
        "peak": ours.map(|outcome| outcome.peak),
    });
    println!("{report}");
    Ok(())
}
