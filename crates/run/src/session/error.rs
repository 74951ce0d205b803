//! Why a session cannot do what it is asked.

use crate::device::RunError;
use gulliver_graph::dim::DimError;
use gulliver_plan::document::collectives::Deadlock;
use gulliver_plan::document::error::PlanError;
use gulliver_plan::document::verify::Broken;

/// Why a session cannot do what it is asked.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// No plan for inputs of these sizes.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A plan that does not pass verification: a defect of this program.
    #[error("the plan is broken ({0}); please report this")]
    Broken(#[from] Broken),
    /// The device failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// One of several devices failed.
    #[error("step {step}, device {device}: {why}")]
    Device {
        /// Its rank.
        device: u32,
        /// The step, counted from one.
        step: u64,
        /// What it said.
        why: String,
    },
    /// Devices are missing, or there are too many.
    #[error("the job plan is for {planned} devices, and there are {given}")]
    Devices {
        /// Devices of the plan.
        planned: usize,
        /// Devices that were given.
        given: usize,
    },
    /// The graph has no such output.
    #[error("the model has no output `{name}`")]
    NoOutput {
        /// The output asked for.
        name: String,
    },
    /// Devices would wait for each other.
    #[error(transparent)]
    Deadlock(#[from] Deadlock),
    /// The batch lacks something the model reads.
    #[error("the data has no `{wanted}`, which the model reads; it has {found}")]
    MissingField {
        /// The model's input.
        wanted: String,
        /// What the batch has.
        found: String,
    },
}

impl From<DimError> for SessionError {
    fn from(e: DimError) -> SessionError {
        SessionError::Plan(PlanError::Size(e))
    }
}
