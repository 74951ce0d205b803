//! How long it takes to find the program for a batch whose size was met before, among programs for many
//! sizes:  cargo run --release -p gulliver-run --example lookup_speed

use gulliver::local::{LocalDevice, session};
use gulliver_graph::dtype::DType;
use gulliver_graph::model::model;
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::optim::Optimizer;
use gulliver_graph::training::training_graph;
use gulliver_plan::document::job::Purpose;
use gulliver_run::data::Batch;
use gulliver_run::host::HostTensor;
use std::time::Instant;

const SIZES: usize = 48;
const REPEATS: usize = 2000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let params = [("width", 32), ("heads", 2), ("layers", 2), ("context", SIZES as i64), ("vocab", 30)];
    let params = params.map(|(name, value)| (name.to_string(), ParamValue::Int(value)));
    let graph = training_graph(model("gpt", &params)?.as_ref(), &[Optimizer::new("adamw", &[])?], None)?;
    let options = LocalDevice { threads: 1, memory: Some(1 << 30), ..LocalDevice::default() };
    let mut session = session(graph, None, &options, 0)?;
    let batch = |length: usize| {
        let tokens = || HostTensor::zeros(DType::I64, &[4, length]);
        Batch { fields: vec![("x".into(), tokens()), ("y".into(), tokens())] }
    };
    let batches: Vec<Batch> = (1..=SIZES).map(batch).collect();
    let sizes = batches.iter().map(|b| session.sizes(Purpose::Train, b)).collect::<Result<Vec<_>, _>>()?;
    sizes.iter().try_for_each(|sizes| session.ready(Purpose::Train, sizes))?;
    let made = session.reuse();

    let (mut best, mut best_sized) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..REPEATS {
        let start = Instant::now();
        sizes.iter().try_for_each(|sizes| session.ready(Purpose::Train, sizes))?;
        best = best.min(start.elapsed().as_secs_f64());
        let start = Instant::now();
        for batch in &batches {
            let sizes = session.sizes(Purpose::Train, batch)?;
            session.ready(Purpose::Train, &sizes)?;
        }
        best_sized = best_sized.min(start.elapsed().as_secs_f64());
    }
    assert_eq!(session.reuse().misses, made.misses, "all were there");
    let each = |seconds: f64| 1e9 * seconds / SIZES as f64;
    println!(
        "{SIZES} sizes: a plan {:.0} us, looked up again {:.0} ns, with the sizes of the batch {:.0} ns",
        1e6 * made.seconds / made.misses as f64,
        each(best),
        each(best_sized)
    );
    Ok(())
}
