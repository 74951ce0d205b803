//! Gulliver trains neural networks that are too large for the machine: it plans every byte, says beforehand how a job
//! will run, and trains it within the budget.
//!
//! Programs use the same calls as the command line: [`Job::load`] reads a job file, [`plan()`] says how it would run,
//! [`train()`] trains it and reports [`Event`]s, [`resume`] continues a run, [`sweep()`] trains many variants, and [`Model::load`] uses the result.
//!
//! ```
//! use gulliver::{Event, Job, Model, RunOptions};
//! use std::ops::ControlFlow;
//!
//! # fn main() -> Result<(), gulliver::Error> {
//! let mut job = Job::from_toml("[model]\nname = 'mlp'\n[data]\nkind = 'digits'\nexamples = 64\n")?;
//! job.set("train.steps", 4)?;
//! # let place = std::env::temp_dir().join(format!("gulliver-doc-{}", std::process::id()));
//! # let options = RunOptions { dir: Some(place.clone()), ..RunOptions::default() };
//! # let train = |job: &Job, on_event: &mut gulliver::EventHandler<'_>| gulliver::train_with(job, &options, on_event);
//! let result = train(&job, &mut |event| {
//!     if let Event::Step { step, loss, .. } = event {
//!         println!("step {step}: loss {loss}");
//!     }
//!     ControlFlow::Continue(())
//! })?;
//! let mut model = Model::load(&result.dir)?;
//! let blank = vec![0.0; model.mapping.shape.iter().product()];
//! let (class, probability) = model.predict_values(&blank)?[0].likeliest();
//! println!("{} with probability {probability}", model.class_names()[class]);
//! # std::fs::remove_dir_all(place).ok();
//! # Ok(())
//! # }
//! ```
//!
//! Below that, a model becomes a [`graph`], the graph a plan ([`mod@plan`]), and the plan is [`mod@run`]. The
//! [`prelude`] has the names for models and operators of one's own; `examples/` shows both.
#![forbid(unsafe_code)]

pub use gulliver_graph as graph;
pub use gulliver_plan as plan;
pub use gulliver_run as run;

pub mod command;
pub mod error;
pub mod event;
pub mod files;
pub mod fit;
pub mod history;
pub mod interrupt;
pub mod job;
pub mod local;
pub mod machine;
pub mod model;
pub mod oracle;
pub mod planning;
pub mod prelude;
pub mod profile;
pub mod report;
pub mod run_dir;
pub mod setup;
pub mod sweep;
pub mod train;
pub mod units;
mod watch;

pub use error::Error;
pub use event::{Event, EventHandler};
pub use job::Job;
pub use model::{GenerateOptions, Model, ModelOptions};
pub use planning::{PlanRequest, Planned, plan, plan_with};
pub use sweep::file::Sweep;
pub use sweep::{SweepResult, sweep};
pub use train::{RunOptions, TrainResult, resume, train, train_with};

#[cfg(test)]
mod test_dir;
