//! Why a device could not do something.

use super::cpu::disk::{BLOCK, DiskError};
use super::cpu::memory::OutOfMemory;
use crate::lower::KernelError;
use crate::team::NoThread;
use gulliver_graph::dim::DimError;
use gulliver_plan::document::plan::Tier;

/// Why a step failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RunError {
    /// The machine has not enough memory.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// A size is missing or makes no sense.
    #[error(transparent)]
    Size(#[from] DimError),
    /// A kernel refused its data.
    #[error("{value}: {source}")]
    Kernel {
        /// The value that was being computed.
        value: String,
        /// What was wrong.
        source: KernelError,
    },
    /// A tensor does not match the input it is for.
    #[error("input `{name}` is {expected}, the tensor given for it is {got}")]
    Input {
        /// Name of the input.
        name: String,
        /// Its type.
        expected: String,
        /// The tensor's type.
        got: String,
    },
    /// The plan needs more than there is.
    #[error("the plan needs {needed} bytes of {tier}, which has {available}")]
    Space {
        /// The tier that is too small.
        tier: Tier,
        /// Bytes of the plan.
        needed: u64,
        /// Bytes that are there.
        available: u64,
    },
    /// The plan puts something on disk where no block begins: a defect of this program.
    #[error("the plan puts bytes on disk at offset {offset}, not a multiple of {BLOCK}; please report this")]
    Unaligned {
        /// The offset.
        offset: u64,
    },
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A thread could not be started.
    #[error(transparent)]
    Thread(#[from] NoThread),
}
