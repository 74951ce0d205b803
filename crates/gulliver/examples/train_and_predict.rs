//! Plans and trains a job file, watches its events, and predicts with the trained model:
//! `cargo run --release -p gulliver --example train_and_predict -- jobs/quickstart.toml images…`

use gulliver::{Error, Event, Job, Model};
use std::ops::ControlFlow;

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let mut job = Job::load(arguments.next().unwrap_or("jobs/quickstart.toml".into()))?;
    job.set("train.steps", 60)?;

    let planned = gulliver::plan(&job)?;
    println!("{:.1} ms a step, {} bytes at once", planned.step_seconds() * 1e3, planned.peak_bytes()[0]);

    let result = gulliver::train(&job, &mut |event| {
        match event {
            Event::Start { parameters, steps, .. } => println!("{parameters} parameters, {steps} steps"),
            Event::Step { step, loss, .. } => println!("step {step}  loss {loss:.4}"),
            Event::Eval { step, metrics } => println!("evaluation after step {step}: {metrics:?}"),
            Event::Warning { message } => println!("warning: {message}"),
            _ => {}
        }
        // Break would stop the run after a checkpoint; `gulliver::resume` goes on from there.
        ControlFlow::Continue(())
    })?;
    println!("{} steps in {}, fingerprint {}", result.steps, result.dir.display(), result.fingerprint);

    let mut model = Model::load(&result.dir)?;
    let names = model.class_names();
    let files: Vec<String> = arguments.collect();
    let predictions = match files.is_empty() {
        // Without files: an empty image, as numbers in memory.
        true => model.predict_values(&vec![0.0; model.mapping.shape.iter().product()])?,
        false => model.predict(&files)?,
    };
    for prediction in predictions {
        let (class, probability) = prediction.likeliest();
        println!("{}: {} with probability {probability:.3}", prediction.input, names[class]);
    }
    Ok(())
}
