//! Devices: memory by tier and offset, and plans that are loaded and run. Nothing above this trait knows pointers,
//! threads or vendors.

pub mod cpu;
mod error;

pub use error::RunError;

use crate::peers::Peers;
use gulliver_graph::graph::{Graph, Value};
use gulliver_plan::document::ledger::Ledger;
use gulliver_plan::document::plan::{BufferRange, Plan, PlanStream, TIERS, Tier};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A device that runs plans. It obeys verified plans to the letter and decides nothing.
pub trait Device: Send {
    /// Its name for people: its kind and number, such as `cpu0`.
    fn name(&self) -> &str;

    /// Number of host threads that it keeps busy while it computes.
    fn host_threads(&self) -> usize;

    /// Makes it one of several devices; plans loaded from now on exchange values with these peers. `crowded` says that
    /// all devices together keep more threads busy than there are cores.
    fn connect(&mut self, rank: u32, peers: Arc<dyn Peers>, crowded: bool);

    /// Bytes of a tier.
    fn bytes(&self, tier: Tier) -> u64;

    /// Makes a tier larger and keeps its contents. Loaded programs are dropped if memory moves.
    fn grow(&mut self, tier: Tier, bytes: u64) -> Result<(), RunError>;

    /// Copies bytes into a tier. On disk the offset is a multiple of the tier's grain.
    fn write(&mut self, tier: Tier, offset: u64, bytes: &[u8]) -> Result<(), RunError>;

    /// Copies bytes out of a tier.
    fn read(&self, tier: Tier, offset: u64, bytes: &mut [u8]) -> Result<(), RunError>;

    /// Makes a verified plan ready to run.
    fn load(&mut self, graph: &Arc<Graph>, plan: &Arc<Plan>) -> Result<LoadedProgram, RunError>;

    /// Drops a program.
    fn unload(&mut self, program: ProgramId);

    /// Runs a range of a plan's steps. All of their moves are complete when it returns.
    fn run(&mut self, program: ProgramId, steps: Range<usize>, observe: Observe<'_>) -> Result<(), RunError>;

    /// Bytes that plans have moved so far.
    fn moved(&self) -> Ledger;

    /// Most bytes of each tier in use at once since step 0 of a program was last run.
    fn run_peaks(&self) -> [u64; TIERS.len()];

    /// Most bytes of each tier in use at once so far.
    fn peaks(&self) -> [u64; TIERS.len()];

    /// Turns the recording of step times on or off.
    fn record(&mut self, on: bool);

    /// Whether step times are recorded.
    fn records(&self) -> bool;

    /// Recorded times of the steps since step 0 of a program was last run.
    fn recorded(&self) -> &[StepTime];
}

/// Bytes of a tier.
#[derive(Clone, Copy)]
pub(crate) struct Spot {
    pub(crate) tier: Tier,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl Spot {
    /// The place of a range of a buffer.
    pub(crate) fn of(plan: &Plan, range: &BufferRange) -> Spot {
        let buffer = plan.buffer(range.buffer);
        let tier = plan.spaces[buffer.space as usize].tier;
        Spot { tier, offset: buffer.offset + range.start, bytes: range.bytes }
    }
}

/// A program that a device has loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProgramId(pub u32);

/// The answer of a device to [`Device::load`].
#[derive(Clone, Debug)]
pub struct LoadedProgram {
    /// Its number.
    pub id: ProgramId,
    /// Approximate bytes of host memory of the program itself.
    pub bytes: usize,
    /// Names of operators that have no fast kernel.
    pub slow: Vec<&'static str>,
}

/// What to observe during a run.
pub enum Observe<'a> {
    /// Nothing.
    Nothing,
    /// Time of each computing step, by its number in the plan, without waits for other streams.
    Times(&'a mut [Duration]),
    /// The first result with a number that is not finite.
    NotFinite(&'a mut Option<Value>),
}

/// The time of a step of a plan on a stream.
#[derive(Clone, Copy, Debug)]
pub struct StepTime {
    /// The stream.
    pub stream: PlanStream,
    /// The step.
    pub step: u32,
    /// Its start; a collective starts when this device reaches it.
    pub start: Instant,
    /// Its end.
    pub end: Instant,
}
