//! A training step as a problem for a solver, with our answers: `cargo run --release -p gulliver-plan --example
//! optimum_case MODEL BATCH LENGTH SHARES [NAME=NUMBER…]` prints JSON. Each share, in hundredths of what the
//! step needs beyond weights and states, is a budget of bytes in use. `bench/optimum` reads this.

use gulliver_graph::dim::Bindings;
use gulliver_graph::model::model;
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::optim::Optimizer;
use gulliver_graph::training::training_graph;
use gulliver_plan::base::{Base, NEVER};
use gulliver_plan::budget::{Terms, fit};
use gulliver_plan::comparator::Case;
use gulliver_plan::cost::Beside;
use gulliver_plan::make::{Options, Persistent};
use gulliver_plan::outline::Outline;
use gulliver_plan::plan::Tier;
use gulliver_plan::script::What;
use serde::Serialize;

#[derive(Serialize)]
struct Act {
    reads: Vec<u32>,
    writes: Vec<u32>,
    seconds: f64,
    /// The last act before which it may be run again.
    until: usize,
    /// Operands whose place the result may take.
    in_place: Vec<u32>,
}

#[derive(Serialize)]
struct Row {
    share: u64,
    budget: u64,
    /// Seconds computed again in our plan; none if we have none.
    ours: Option<f64>,
}

#[derive(Serialize)]
struct Problem {
    /// Bytes that are there all the time.
    fixed: u64,
    /// Bytes by version; none for what is there all the time.
    bytes: Vec<u64>,
    outputs: Vec<u32>,
    acts: Vec<Act>,
    rows: Vec<Row>,
}

fn act(case: &Case, t: usize) -> Act {
    let base: &Base = case.base;
    let (reads, writes) = base.script.split(t);
    let made = |v: &u32| !base.script.versions[*v as usize].input;
    let pure = writes.iter().all(|w| base.again[*w as usize]) && !writes.is_empty();
    let overwritten = reads.iter().map(|r| base.overwritten[*r as usize]).min().unwrap_or(NEVER);
    let last = base.script.acts.len();
    let in_place = match base.script.acts[t].what {
        What::Run(id, _) => {
            let node = &base.graph.nodes[id.index()];
            let may = |&(i, o): &(usize, usize)| {
                let alone = reads.iter().filter(|r| **r == reads[i]).count() == 1;
                o == 0
                    && alone
                    && made(&reads[i])
                    && base.graph.ty(node.ins[i]) == base.graph.ty(node.outs[o])
            };
            node.op.def().in_place().into_iter().filter(may).map(|(i, _)| reads[i]).collect()
        }
        _ => Vec::new(),
    };
    Act {
        reads: reads.iter().copied().filter(made).collect(),
        writes: writes.to_vec(),
        seconds: case.seconds(t as u32),
        until: if pure { last.min(overwritten as usize) } else { t },
        in_place,
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, batch, length, shares, settings @ ..] = &arguments[..] else {
        return Err("MODEL BATCH LENGTH SHARES [NAME=NUMBER…]".into());
    };
    let setting = |text: &String| -> Result<(String, ParamValue), Box<dyn std::error::Error>> {
        let (name, number) = text.split_once('=').ok_or("settings are NAME=NUMBER")?;
        Ok((name.to_string(), ParamValue::Int(number.parse()?)))
    };
    let settings = settings.iter().map(setting).collect::<Result<Vec<_>, _>>()?;
    let graph = training_graph(model(name, &settings)?.as_ref(), &[Optimizer::new("sgd", &[])?], None)?;
    let sizes = Bindings::new().with("batch", batch.parse()?).with("length", length.parse()?);
    let persistent = Persistent::of(&graph)?;
    let options = Options { beside: Beside { host: Some(0), disk: None }, ..Options::new(&persistent) };
    let outline = Outline::new(&graph, &sizes, &options)?;
    let bound = outline.sizes(&graph, &sizes, &options)?;
    let base = outline.base(&graph);
    let case = Case::new(&outline, &base, &bound);
    let seconds: Vec<f64> = (0..base.script.acts.len() as u32).map(|act| case.seconds(act)).collect();
    let terms = Terms {
        sharing: &outline.sharing,
        bytes: &case.bytes,
        scratch: &|_| 0,
        seconds: &seconds,
        node: &|node| case.node[node],
        away: [None, None],
        recompute: true,
        room: [0, 0],
    };
    let versions = 0..base.script.versions.len() as u32;
    // What a weight or state becomes lies where it was.
    let carried = |v: u32| {
        base.uses(v).iter().any(|&t| {
            base.script.acts[t as usize].what == What::Carry && base.script.refs(t as usize)[0] == v
        })
    };
    let input = |v: u32| base.script.versions[v as usize].input;
    let bytes = versions.clone().map(|v| if input(v) || carried(v) { 0 } else { case.size(v) }).collect();
    let fixed = versions.filter(|v| input(*v)).map(|v| case.size(v)).sum();
    let (state, whole) = (persistent.ends[0], case.outcome(&outline.script).peak);
    let start = base.keep(vec![Tier::Device; base.script.versions.len()]);
    let mut rows = Vec::new();
    for share in shares.split(',') {
        let share: u64 = share.parse()?;
        let budget = state + (whole - state) / 100 * share;
        let chosen = fit(&base, &terms, &start, budget, true).ok();
        rows.push(Row { share, budget, ours: chosen.map(|c| case.outcome(&c.known.script).again) });
    }
    let acts = (0..base.script.acts.len()).map(|t| act(&case, t)).collect();
    let outputs = base.script.outputs.clone();
    println!("{}", serde_json::to_string(&Problem { fixed, bytes, outputs, acts, rows })?);
    Ok(())
}
