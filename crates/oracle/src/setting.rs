//! Batch, precision and optimizer of a training, and the software that runs it. Software decides what a launch costs
//! and whether exchanges hide behind the backward pass.

use crate::OracleError;
use crate::from_graph::KernelStyle;
use crate::hardware::Precision;

/// Costs that a framework adds to the hardware.
#[derive(Clone, Debug, PartialEq)]
pub struct Software {
    /// As users name it.
    pub name: &'static str,
    /// Whose kernels run the operators of a graph.
    pub kernels: KernelStyle,
    /// Seconds of the host for each kernel it launches.
    pub dispatch: f64,
    /// Seconds of the host for each step beside its kernels.
    pub step: f64,
    /// Share of the backward pass during which gradients can travel.
    pub overlap: f64,
    /// Seconds each message between stages costs the host.
    pub message: f64,
    /// Bytes a second of exchanges between layers, where they go through host memory.
    pub staging: Option<f64>,
    /// Neighbours pass halos on one pair after the other, as sends wait for their receiver.
    pub blocking: bool,
    /// Seconds for every byte of a sample on its way through host memory, while the device waits.
    pub feed: Feed,
    /// Seconds for every byte of a sample that a process loads, while its device works on the batch before.
    pub read: f64,
    /// Passes over memory of element-wise kernels, relative to fused ones.
    pub passes: f64,
    /// Bytes the update moves for every weight, relative to a fused kernel.
    pub update: f64,
    /// Elements moved for every weight to add the gradients of a micro-batch to the sum; 0 where fitted rates
    /// contain it.
    pub accumulate: f64,
    /// Devices that share layers each pass a part of a result on to the next stage, which gathers it.
    pub scattered: bool,
    /// Relative standard deviation of kernels' times: at least four of five calibration rows lie within their interval;
    /// a guess where there are none.
    pub spread: f64,
    /// Beginnings of the names of accelerators whose kernels were fitted under this software.
    pub seen: &'static [&'static str],
    /// Share of activations and workspace that is lost between buffers.
    pub fragmentation: f64,
    /// Copies of all gradients in one flat buffer, beside the gradients themselves, where states are sharded.
    pub flat: f64,
    /// Weights of a buffer in which sharded gradients and weights travel, held whole whatever the model's size; none
    /// if it is no larger than the model.
    pub bucket: Option<f64>,
    /// Bytes that the library for collectives holds, where there are several devices.
    pub channels: f64,
}

/// Seconds for every byte of a sample that a process loads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Feed {
    /// For its own device.
    pub own: f64,
    /// For a group of devices that share it.
    pub group: f64,
}

/// Weights of a bucket in which sharded gradients and weights travel, as DeepSpeed has it by default.
pub const DEEPSPEED_BUCKET: f64 = 5e8;

/// Assumed: a few communicators (replicas, layers, stages, all), each with some ten rings of buffers of 4 MB for
/// sending and receiving, as NCCL has by default.
const NCCL_BUFFERS: f64 = 4.0 * 10.0 * 2.0 * 4.0 * 1048576.0;

/// No framework: kernels and links as they are.
const IDEAL: Software = Software {
    name: "ideal",
    kernels: KernelStyle::Framework,
    dispatch: 0.0,
    step: 0.0,
    overlap: 0.0,
    message: 0.0,
    staging: None,
    blocking: false,
    feed: Feed { own: 0.0, group: 0.0 },
    read: 0.0,
    passes: 1.0,
    update: 1.0,
    accumulate: 0.0,
    scattered: false,
    spread: 0.0,
    seen: &[""],
    fragmentation: 0.0,
    flat: 0.0,
    bucket: None,
    channels: 0.0,
};

/// Shared by frameworks that run Python for every operator.
const PYTHON: Software = Software {
    dispatch: 46e-6,
    step: 0.3e-3,
    message: 2e-6,
    update: 1.25,
    fragmentation: 0.1,
    channels: NCCL_BUFFERS,
    ..IDEAL
};

/// Shared by frameworks that run a graph of operators.
const COMPILED: Software =
    Software { dispatch: 10e-6, overlap: 0.9, spread: 0.2, seen: &["v100", "a100"], ..PYTHON };

/// Launches and passes of DeepSpeed are fitted on GPT of Megatron-DeepSpeed on two A100. Megatron has the same; the
/// bytes it moves beside were counted, not fitted. PyTorch and Chainer have the same launches. Passes of PyTorch,
/// TensorFlow and MXNet are fitted on single devices; Chainer's are assumed. Overlap and paths through host memory are
/// assumed from how each exchanges gradients and, for Chainer, loads samples and sends arrays; docs/oracle.md says
/// which of its rows had been seen by then.
const TABLE: &[Software] = &[
    Software {
        name: "pytorch",
        overlap: 0.9,
        passes: 1.21,
        accumulate: 3.0,
        spread: 0.2,
        seen: &["v100", "a100"],
        ..PYTHON
    },
    Software {
        name: "deepspeed",
        passes: 0.75,
        spread: 0.05,
        seen: &["a100"],
        flat: 1.0,
        bucket: Some(DEEPSPEED_BUCKET),
        ..PYTHON
    },
    Software {
        name: "megatron",
        passes: 0.75,
        // Gradients are made 32-bit numbers, unscaled, squared for their norm, clipped, used, and set to zero: 60 bytes.
        update: 2.0,
        // Read the sum and the new gradients, write the sum: a kernel of its own, as gradients live in one flat buffer.
        accumulate: 3.0,
        scattered: true,
        spread: 0.05,
        seen: &["a100"],
        ..PYTHON
    },
    Software { name: "tensorflow", passes: 0.785, ..COMPILED },
    Software { name: "mxnet", passes: 0.61, ..COMPILED },
    Software {
        name: "chainer",
        // A pickled header, then the array: two messages from Python, each with a wait for the device.
        message: 300e-6,
        // Pageable copies down and up again, at 6 GB/s each.
        staging: Some(3e9),
        blocking: true,
        // Passes over fresh host memory at 3 GB/s: stacked to a batch, and half of one for the copy to the device.
        // For a group also stacked by the one that loads, and passed on in two rounds of a broadcast.
        feed: Feed { own: 1.5 / 3e9, group: 4.5 / 3e9 },
        // One interpreter decodes and crops a thousand pictures of 224 x 224 a second, however many threads it has.
        read: 1e-3 / (3.0 * 224.0 * 224.0 * 4.0),
        spread: 0.33,
        seen: &[],
        ..PYTHON
    },
    IDEAL,
    Software { name: "gulliver", kernels: KernelStyle::Nodes, spread: 0.1, seen: &["cpu"], ..IDEAL },
];

impl Software {
    /// By name.
    pub fn named(name: &str) -> Result<Software, OracleError> {
        crate::named(TABLE, "software", name, |row| row.name).cloned()
    }
}

/// How weights are trained.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Samples of a step, over all devices.
    pub batch: u32,
    /// The number format.
    pub precision: Precision,
    /// Numbers of optimizer state for every weight: 0, 1 (momentum) or 2 (Adam).
    pub states: f64,
    /// Bytes of each of them.
    pub state_bytes: f64,
    /// The software.
    pub software: Software,
    /// Samples of an epoch.
    pub epoch: f64,
}

impl Setting {
    /// Adam in mixed precision on PyTorch.
    pub fn new(batch: u32) -> Result<Setting, OracleError> {
        Ok(Setting {
            batch,
            precision: Precision::Mixed,
            states: 2.0,
            state_bytes: 4.0,
            software: Software::named("pytorch")?,
            epoch: 1e6,
        })
    }

    /// Bytes of optimizer state for every weight, master copies of half-precision weights included.
    pub fn optimizer_bytes(&self) -> f64 {
        let master = if self.precision == Precision::Mixed { 4.0 } else { 0.0 };
        self.states * self.state_bytes + master
    }

    /// Bytes an update moves for every weight: gradient in, weight and states in and out.
    pub fn update_bytes(&self) -> f64 {
        let element = self.precision.bytes();
        let master = if self.precision == Precision::Mixed { 8.0 } else { 0.0 };
        (3.0 * element + 2.0 * self.states * self.state_bytes + master) * self.software.update
    }
}
