//! Collectives of devices: the operand is handed to the others, and what is needed of theirs is taken. Plans have
//! collectives on a stream of their own; called as a kernel, a collective holds up whoever calls it.

use super::{KernelError, Kernels, Lowered};
use crate::peers::{PeerLost, Peers, put};
use gulliver_graph::graph::op::exchange::Exchange;
use std::sync::Arc;

/// What one device does at a collective, and with whom.
pub(crate) struct ExchangeCall {
    what: Exchange,
    peers: Option<Arc<dyn Peers>>,
}

impl ExchangeCall {
    pub(crate) fn new(what: &Exchange, kernels: &Kernels) -> ExchangeCall {
        ExchangeCall { what: what.clone(), peers: kernels.peers.clone() }
    }

    /// Meets the others. Without any, only what a device exchanges with itself can be done. `idle` says that the core
    /// has nothing else to do while others are waited for.
    pub(crate) fn hold(&self, own: &[u8], result: &mut [u8], idle: bool) -> Result<(), KernelError> {
        let what = &self.what;
        if what.ranks == [what.rank] {
            what.pieces.iter().for_each(|piece| put(what, piece, own, result));
            return Ok(());
        }
        let alone = || PeerLost { rank: what.rank, why: "there is nobody to meet".into() };
        let peers = self.peers.as_ref().ok_or_else(alone).map_err(KernelError::PeerLost)?;
        peers.exchange(what, own, result, idle).map_err(KernelError::PeerLost)
    }
}

pub fn exchange(op: &Exchange, kernels: &Kernels) -> Lowered {
    let collective = ExchangeCall::new(op, kernels);
    Lowered::plain(move |call| {
        let own: &[u8] = if call.inputs() > 0 { call.input(0) } else { &[] };
        collective.hold(own, call.output::<u8>(0), true)
    })
}
