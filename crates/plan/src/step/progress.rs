//! Progress of planning: an observer is called many times a second, and may stop planning.

use std::ops::ControlFlow;

/// What planning is busy with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Orders of the graph's nodes are compared.
    Order,
    /// Values are chosen that are recomputed or moved.
    Choose,
    /// The choices of a short plan are improved at random.
    Polish,
    /// Buffers get their offsets.
    Layout,
    /// Plans for smaller inputs are prepared.
    Prepare,
}

/// How far one activity of one attempt has come; there may be many attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The activity.
    pub activity: Activity,
    /// Rounds of it done in this attempt.
    pub done: usize,
    /// Most rounds there will be.
    pub of: usize,
}

/// Called with progress. `Break` ends planning with
/// [`PlanError::Interrupted`](crate::document::error::PlanError::Interrupted).
pub type Observer<'a> = dyn Fn(Progress) -> ControlFlow<()> + 'a;
