//! The other devices of a job. [`Peers`] is all that one device knows of them; [`local::LocalGroup`] joins the devices of
//! one process, [`link`] makes their transfers take as long as stated links would.

pub mod link;
pub mod local;

use gulliver_graph::dtype::DType;
use gulliver_graph::graph::op::exchange::{Exchange, Piece};
use link::Throttle;
use std::sync::Arc;

/// Another device has left, and will take part in no further collective.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("device {rank} stopped: {why}")]
pub struct PeerLost {
    /// Its rank.
    pub rank: u32,
    /// Its reason.
    pub why: String,
}

/// Bytes of a device's memory that take part in a collective.
pub trait ExchangeBuffer: Sync {
    /// Number of bytes.
    fn bytes(&self) -> usize;

    /// Copies bytes out, from byte `first` on.
    fn read(&self, first: usize, into: &mut [u8]);

    /// Copies bytes in, from byte `first` on.
    fn write(&self, first: usize, from: &[u8]);

    /// The bytes as host memory, where threads of the host can use them directly.
    fn host(&self) -> Option<HostBuffer> {
        None
    }
}

/// An [`ExchangeBuffer`] in host memory.
#[derive(Clone, Copy)]
pub struct HostBuffer {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the caller of `HostBuffer::new` is responsible for the bytes.
unsafe impl Send for HostBuffer {}
// SAFETY: as above.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// # Safety
    /// While the buffer is in use, its bytes are initialised memory. An operand is not written meanwhile; a result is
    /// touched by nothing else.
    pub unsafe fn new(start: *mut u8, bytes: usize) -> HostBuffer {
        HostBuffer { start, bytes }
    }

    /// # Safety
    /// Nothing writes the bytes during `'a`.
    unsafe fn slice<'a>(self) -> &'a [u8] {
        // SAFETY: the contracts of `new` and of this function.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }

    /// # Safety
    /// Nothing else touches the bytes during `'a`.
    unsafe fn slice_mut<'a>(self) -> &'a mut [u8] {
        // SAFETY: the contracts of `new` and of this function.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl ExchangeBuffer for HostBuffer {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn read(&self, first: usize, into: &mut [u8]) {
        // SAFETY: an operand is not written while it is in use.
        into.copy_from_slice(&unsafe { self.slice() }[first..first + into.len()]);
    }

    fn write(&self, first: usize, from: &[u8]) {
        // SAFETY: a result is touched by its collective alone.
        let bytes = unsafe { self.slice_mut() };
        bytes[first..first + from.len()].copy_from_slice(from);
    }

    fn host(&self) -> Option<HostBuffer> {
        Some(*self)
    }
}

/// The other devices, as one of them sees them. All take part in the same collectives in the same order.
pub trait Peers: Send + Sync {
    /// Takes part in a collective with an operand, if it has one to give, and gets all bytes of the result. Sums are
    /// taken in the order of the pieces, whichever device is first. `idle` says that the core has nothing else to do
    /// while it waits.
    fn exchange(
        &self,
        what: &Exchange,
        own: Option<&dyn ExchangeBuffer>,
        result: &dyn ExchangeBuffer,
        idle: bool,
    ) -> Result<(), PeerLost>;

    /// The numbers of all devices, by rank.
    fn share(&self, rank: u32, numbers: &[f32]) -> Result<Vec<Vec<f32>>, PeerLost>;

    /// Leaves for good. Devices that wait for this rank, now or later, are told. Only the first reason counts.
    fn leave(&self, rank: u32, why: &str);

    /// The first device that has left, if any.
    fn lost(&self) -> Option<PeerLost>;

    /// Bytes that a rank has taken from each of the others so far, by rank.
    fn taken(&self, rank: u32) -> Vec<u64>;

    /// Exchanges from now on take as long as they would over these links.
    fn over(&self, throttle: &Arc<Throttle>);
}

/// Puts a piece of an operand where it belongs in the result. Panics if the bytes are not those that were announced.
pub fn put(what: &Exchange, piece: &Piece, from: &dyn ExchangeBuffer, result: &dyn ExchangeBuffer) {
    match (from.host(), result.host()) {
        (Some(from), Some(result)) => {
            // SAFETY: the operand is not written, and the result is touched by this collective alone.
            put_bytes(what, piece, unsafe { from.slice() }, unsafe { result.slice_mut() });
        }
        // Through host memory, as a whole: devices that can do better have peers of their own.
        _ => {
            let mut operand = vec![0; from.bytes()];
            let mut sum = vec![0; result.bytes()];
            from.read(0, &mut operand);
            result.read(0, &mut sum);
            put_bytes(what, piece, &operand, &mut sum);
            result.write(0, &sum);
        }
    }
}

fn put_bytes(what: &Exchange, piece: &Piece, from: &[u8], result: &mut [u8]) {
    let size = what.dtype.size();
    if !piece.add {
        return piece.rows(&what.shape, |source, target, length| {
            let (source, target) = (source * size..(source + length) * size, target * size);
            result[target..target + length * size].copy_from_slice(&from[source]);
        });
    }
    assert_eq!(what.dtype, DType::F32, "only f32 is added");
    let float = size_of::<f32>();
    piece.rows(&what.shape, |source, target, length| {
        let from = &from[source * float..(source + length) * float];
        let sums = &mut result[target * float..(target + length) * float];
        for (sum, x) in sums.as_chunks_mut::<4>().0.iter_mut().zip(from.as_chunks::<4>().0) {
            *sum = (f32::from_le_bytes(*sum) + f32::from_le_bytes(*x)).to_le_bytes();
        }
    });
}
