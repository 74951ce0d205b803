//! How long the search for a schedule takes, and what it finds:
//! `cargo run --release -p gulliver-plan --example schedule_speed`.
//!
//! Each row is a GPT-2 XL with so many blocks over four devices that share the host's link; the time is that of
//! making the chain from the graph, and of the search.

use gulliver_graph::dim::Bindings;
use gulliver_graph::model::model;
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::optim::Optimizer;
use gulliver_graph::training::training_graph;
use gulliver_plan::devices::schedule::{ScheduleMachine, ScheduleOptions, linearise, search};
use gulliver_plan::time::cost::Rates;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Rates { flops: 11.3e12, bytes: 484e9, call: 5e-6 };
    let host = Rates { flops: 1e12, bytes: 40e9, call: 1e-6 };
    let machine = ScheduleMachine { uplink: Some(12e9), ..ScheduleMachine::even(4, 10 << 30, 12e9) };
    for layers in [12, 24, 48, 96] {
        let settings = [("layers".to_string(), ParamValue::Int(layers))];
        let optimizer = Optimizer::new("adam", &[])?;
        let graph = training_graph(model("gpt2-xl", &settings)?.as_ref(), &[optimizer], None)?;
        let sizes = Bindings::new().with("batch", 1).with("length", 1024);
        let begin = Instant::now();
        let linear = linearise(&graph, &sizes, &device, &host, 2 * layers as usize)?;
        let made = begin.elapsed().as_secs_f64();
        let begin = Instant::now();
        let found = search(&linear.chain, &machine, &ScheduleOptions::new(32))?;
        let searched = begin.elapsed().as_secs_f64();
        let best = &found[0];
        println!(
            "{layers:3} blocks, {:3} layers: chain {made:.3} s, search {searched:.3} s; step {:.2} s, idle {:.0} %, {:?}, \
             {} devices, micro-batches of {} and {}, {} + {} packs, {:?}",
            linear.chain.layers.len(),
            best.outcome.seconds,
            100.0 * best.outcome.idle(),
            best.schedule.mode,
            best.schedule.devices,
            best.schedule.forward_size,
            best.schedule.backward_size,
            best.schedule.forward.len(),
            best.schedule.backward.len(),
            best.schedule.update,
        );
    }
    Ok(())
}
