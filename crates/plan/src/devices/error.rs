//! Why a job has no plan for its devices.

use crate::devices::cut::CutError;
use crate::devices::pipeline::PipelineError;
use crate::devices::replicate::ReplicateError;
use crate::devices::schedule::ScheduleError;
use crate::document::collectives::Deadlock;
use crate::document::error::PlanError;
use crate::document::verify::Broken;
use crate::time::simulate::Stuck;
use gulliver_graph::dim::DimError;

/// Why a job has no plan for its devices.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum JobPlanError {
    /// One device has no plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A plan that does not pass verification: a defect of this program.
    #[error("the plan is broken ({0}); please report this")]
    Broken(#[from] Broken),
    /// Too few or too many partials.
    #[error(
        "train.partials = {partials}, and there are {devices} devices: data parallel needs as many for each, 1 or more"
    )]
    Partials {
        /// Slices of a batch.
        partials: u32,
        /// Devices.
        devices: u32,
    },
    /// The batch cannot be shared.
    #[error(transparent)]
    Replicate(#[from] ReplicateError),
    /// There is no schedule.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// The layers cannot be a pipeline.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// Nodes cannot be cut like that.
    #[error(transparent)]
    Cut(#[from] CutError),
    /// A cut for other devices than there are.
    #[error("the cut is for {parts} devices, and there are {devices}")]
    CutDevices {
        /// Devices of the cut.
        parts: usize,
        /// Devices.
        devices: usize,
    },
    /// Devices would wait for each other.
    #[error(transparent)]
    Deadlock(#[from] Deadlock),
    /// Devices would wait for each other, as simulated.
    #[error(transparent)]
    Waiting(Stuck),
}

impl From<DimError> for JobPlanError {
    fn from(e: DimError) -> JobPlanError {
        JobPlanError::Plan(PlanError::Size(e))
    }
}

impl JobPlanError {
    /// Whether planning was told to stop.
    pub fn is_interrupted(&self) -> bool {
        matches!(self, JobPlanError::Plan(PlanError::Interrupted))
    }
}
