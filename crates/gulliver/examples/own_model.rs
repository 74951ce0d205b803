//! A model of one's own: two convolutions with batch normalisation learn the built-in digits. Model,
//! graph, plan, run:  cargo run --release --example own_model

use gulliver::prelude::*;
use std::sync::atomic::AtomicBool;

/// From 16x16 images to the logits of ten classes.
fn net(g: &mut Builder) -> Result<Value, GraphError> {
    let mut x = images(g, 1, 16)?;
    for (name, channels) in [("block1", 8), ("block2", 16)] {
        let same = ConvOptions::new(2).padding(1);
        x = g.scope(name, |g| g.conv_layer(x, channels, &[3, 3], &same, false))?;
        x = g.scope(format!("{name}.norm"), |g| g.batch_norm_layer(x))?;
        x = g.relu(x)?;
        x = g.max_pool(x, &[2, 2], &[2, 2], &[0, 0])?;
    }
    let x = g.flatten(x)?;
    g.scope("fc", |g| g.linear(x, 10, true))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (net, batch, seed) = (Classifier(net), 32, 0);
    let graph = training_graph(&net, &[Optimizer::new("adamw", &[])?], None)?;
    println!("{} parameters, {} nodes", graph.parameters(), graph.nodes.len());

    let mut session = session(graph, Some(evaluation_graph(&net)?), &LocalDevice::default(), seed)?;
    let plan = session.plan(Purpose::Train, &Bindings::new().with("batch", batch))?;
    println!("{} steps in {} bytes", plan.steps.len(), plan.spaces[0].bytes);

    let digits = DataOptions { size: Some([16, 16]), examples: Some(3200), ..DataOptions::default() };
    let sources = Sources::new(data::open(&digits)?, batch, seed)?;
    let options = TrainOptions { steps: 100, base_lr: 3e-3, ..TrainOptions::default() };
    let (mut rate, never) = (LrSchedule::constant(), AtomicBool::new(false));
    let done =
        train(&mut session, &mut rate, &sources, &options, &Resumed::default(), &never, &mut |notice| {
            if let Notice::Step { step, loss, .. } = notice {
                println!("step {step:3}  loss {loss:.3}");
            }
        })?;
    println!("on digits it has not seen: {:?}", done.metrics);
    Ok(())
}
