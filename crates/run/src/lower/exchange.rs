//! Collectives: the operand is handed to the other devices, and the needed pieces of theirs are taken. Plans run them
//! as steps of their own; as a kernel only what a device exchanges with itself can be done.

use super::{KernelError, Lowered};
use crate::lower::call::Slot;
use crate::peers::{ExchangeBuffer, HostBuffer, PeerLost, Peers, put};
use gulliver_graph::graph::op::exchange::Exchange;
use std::sync::Arc;

/// One collective of a device, with its peers.
pub(crate) struct ExchangeCall {
    what: Exchange,
    peers: Option<Arc<dyn Peers>>,
}

impl ExchangeCall {
    pub(crate) fn new(what: &Exchange, peers: Option<&Arc<dyn Peers>>) -> ExchangeCall {
        ExchangeCall { what: what.clone(), peers: peers.cloned() }
    }

    /// Takes part in the collective. `idle` says that the core has nothing else to do while it waits.
    pub(crate) fn hold(
        &self,
        own: Option<&dyn ExchangeBuffer>,
        result: &dyn ExchangeBuffer,
        idle: bool,
    ) -> Result<(), KernelError> {
        let what = &self.what;
        if what.ranks == [what.rank] {
            let own = own.expect("a device alone brings an operand");
            what.pieces.iter().for_each(|piece| put(what, piece, own, result));
            return Ok(());
        }
        let alone = || PeerLost { rank: what.rank, why: "there are no other devices".into() };
        let peers = self.peers.as_ref().ok_or_else(alone).map_err(KernelError::PeerLost)?;
        peers.exchange(what, own, result, idle).map_err(KernelError::PeerLost)
    }
}

pub fn exchange(op: &Exchange) -> Lowered {
    let collective = ExchangeCall::new(op, None);
    Lowered::plain(move |call| {
        let buffer = |slot: Slot| {
            // SAFETY: operands and results of a call are initialised memory that nothing else writes.
            unsafe { HostBuffer::new(slot) }
        };
        let own = (call.inputs() > 0).then(|| {
            let own = call.input::<u8>(0);
            buffer(Slot { start: own.as_ptr().cast_mut(), bytes: own.len() })
        });
        let result = call.output::<u8>(0);
        let result = buffer(Slot { start: result.as_mut_ptr(), bytes: result.len() });
        collective.hold(own.as_ref().map(|own| own as &dyn ExchangeBuffer), &result, true)
    })
}
