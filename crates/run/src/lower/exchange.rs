//! Meetings of devices: the kernel hands its operand to the others and takes what it needs of theirs.

use super::{KernelError, Kernels, Lowered};
use crate::peers::{Parted, put};
use gulliver_graph::op::exchange::Exchange;

/// Without others to meet, only what a device exchanges with itself can be done.
pub fn exchange(op: &Exchange, kernels: &Kernels) -> Lowered {
    let (op, peers) = (op.clone(), kernels.peers.clone());
    Lowered::plain(move |call| {
        let own: &[u8] = if call.inputs() > 0 { call.input(0) } else { &[] };
        let result = call.output::<u8>(0);
        if op.parties == [op.party] {
            op.pieces.iter().for_each(|piece| put(&op, piece, own, result));
            return Ok(());
        }
        let alone = || Parted { party: op.party, why: "there is nobody to meet".into() };
        let peers = peers.as_ref().ok_or_else(alone).map_err(KernelError::Parted)?;
        peers.exchange(&op, own, result).map_err(KernelError::Parted)
    })
}
