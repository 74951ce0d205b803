//! Devices: memory by tier and offset, and plans that are loaded and run. Nothing above this trait knows pointers,
//! threads or vendors.

pub mod cpu;
mod error;

pub use error::RunError;

use crate::peers::Peers;
use gulliver_graph::graph::{Graph, Value};
use gulliver_plan::document::ledger::Ledger;
use gulliver_plan::document::plan::{Plan, Stream, TIERS, Tier};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A device that runs plans. It obeys verified plans to the letter and decides nothing.
pub trait Device: Send {
    /// Its name, such as `cpu0`.
    fn name(&self) -> &str;

    /// Threads of the host that it keeps busy while it computes.
    fn host_threads(&self) -> usize;

    /// Makes it one of several devices; plans loaded from now on exchange values with these peers. `crowded` says that
    /// all devices together keep more threads busy than there are cores.
    fn connect(&mut self, rank: u32, peers: Arc<dyn Peers>, crowded: bool);

    /// Bytes of a tier.
    fn bytes(&self, tier: Tier) -> u64;

    /// Gives a tier more bytes, keeping its contents. Loaded programs are dropped if memory moves.
    fn grow(&mut self, tier: Tier, bytes: u64) -> Result<(), RunError>;

    /// Copies bytes into a tier. On disk the offset is a multiple of the tier's grain.
    fn write(&mut self, tier: Tier, offset: u64, bytes: &[u8]) -> Result<(), RunError>;

    /// Copies bytes out of a tier.
    fn read(&self, tier: Tier, offset: u64, bytes: &mut [u8]) -> Result<(), RunError>;

    /// Makes a verified plan ready to run.
    fn load(&mut self, graph: &Arc<Graph>, plan: &Arc<Plan>) -> Result<LoadedProgram, RunError>;

    /// Forgets a program.
    fn unload(&mut self, program: ProgramId);

    /// Runs a range of a plan's steps. All that they move has arrived when it returns.
    fn run(&mut self, program: ProgramId, steps: Range<usize>, observe: Observe<'_>) -> Result<(), RunError>;

    /// Bytes that plans have moved so far.
    fn moved(&self) -> Ledger;

    /// Most bytes of each tier in use at once since step 0 of a program was last run.
    fn run_peaks(&self) -> [u64; TIERS.len()];

    /// Most bytes of each tier in use at once so far.
    fn peaks(&self) -> [u64; TIERS.len()];

    /// Whether to note from now on when each step runs.
    fn record(&mut self, on: bool);

    /// Whether it is noted when steps run.
    fn records(&self) -> bool;

    /// When steps ran since step 0 of a program was last run, if that is noted.
    fn recorded(&self) -> &[StepTime];
}

/// A program that a device has loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProgramId(pub u32);

/// What a device says of a program.
#[derive(Clone, Debug)]
pub struct LoadedProgram {
    /// Its number.
    pub id: ProgramId,
    /// Bytes of host memory it takes itself, roughly.
    pub bytes: usize,
    /// Names of operators that have no fast kernel.
    pub slow: Vec<&'static str>,
}

/// What a run is watched for.
pub enum Observe<'a> {
    /// Nothing.
    Nothing,
    /// How long each step took that computes, by its number in the plan; waits for other streams are not counted.
    Times(&'a mut [Duration]),
    /// The first result that holds a number that is not finite.
    NotFinite(&'a mut Option<Value>),
}

/// When a stream was at work on a step of a plan.
#[derive(Clone, Copy, Debug)]
pub struct StepTime {
    /// The stream.
    pub stream: Stream,
    /// The step.
    pub step: u32,
    /// Its start; a collective starts when this device comes to it.
    pub start: Instant,
    /// Its end.
    pub end: Instant,
}
