//! A look at a graph: parameters, work and traffic of a training step of gpt-nano as formulas of batch and
//! length, then the graph itself as text:  cargo run --release --example look_at_a_graph

use gulliver::prelude::*;
use std::collections::BTreeMap;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let gpt = model("gpt-nano", &[])?;
    let graph = training_graph(gpt.as_ref(), &[Optimizer::new("adamw", &[])?], Some(Clip::Norm(1.0)))?;
    println!("{} parameters\n", graph.parameters());

    let mut kinds: BTreeMap<&str, (usize, Dim, Dim)> = BTreeMap::new();
    for node in &graph.nodes {
        let (count, flops, bytes) =
            kinds.entry(node.op.def().name()).or_insert((0, Dim::from(0), Dim::from(0)));
        *count += 1;
        *flops = &*flops + graph.flops(node)?;
        *bytes = &*bytes + graph.bytes(node);
    }
    let sizes = Bindings::new().with("batch", 8).with("length", 128);
    for (name, (count, flops, bytes)) in &kinds {
        println!("{name}: {count} nodes");
        println!("  flops {flops} = {} for 8 x 128 tokens", flops.bind(&sizes)?);
        println!("  bytes {bytes} = {}", bytes.bind(&sizes)?);
    }
    println!("\n{graph}");
    Ok(())
}
