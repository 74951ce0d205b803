//! One job on several devices, each of which does its part of every node: the planners that follow from a cut,
//! and weights and states of which each device has a box. From outside they are whole.

use super::crew::room;
use super::{Session, SessionError, SessionOptions};
use crate::boxed::Boxed;
use crate::deals::Deals;
use crate::executor::RunError;
use crate::peers::{Seat, Takes};
use crate::planner::{Planner, evaluated_at_once};
use gulliver_graph::dim::BATCH;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;
use gulliver_plan::devices::cut::{GraphCut, cut_like};
use gulliver_plan::document::plan::Tier;
use gulliver_plan::step::outline::slice_of;
use std::borrow::Cow;
use std::sync::Arc;

/// The planners of all devices, each with the options of one. The cut is one of the training graph, for inputs of
/// about these sizes (of the whole batch); it is fitted to other sizes when they are met. Every device takes part
/// in all partials, and in evaluation, for which weights lie as in training.
pub fn divided(
    train: &Graph,
    evaluate: Option<&Graph>,
    devices: Vec<SessionOptions>,
    sizes: &Bindings,
    cut: GraphCut,
) -> Result<Vec<Planner>, SessionError> {
    if devices.is_empty() || cut.devices() != devices.len() {
        return Err(SessionError::Cuts { parts: cut.devices(), devices: devices.len() });
    }
    let ranks = devices.len() as u32;
    let partials = devices[0].partials.max(1);
    let slice = slice_of(sizes, partials)?;
    let evaluate = evaluate.map(|graph| -> Result<_, SessionError> {
        let mut at_once = sizes.clone();
        if let Some(batch) = sizes.get(BATCH) {
            at_once.set(BATCH, evaluated_at_once(batch, partials as usize));
        }
        let cut = cut_like(graph, &at_once, (train, &cut))?;
        Ok((Arc::new(Deals::new(graph.clone(), cut)), at_once))
    });
    let evaluate = evaluate.transpose()?;
    let train = (Arc::new(Deals::new(train.clone(), cut)), slice);
    let room = room(&devices);
    let planner = |(rank, options): (u32, SessionOptions)| {
        let seat = Seat { rank, ranks, takes: Takes::Parts, peers: Arc::clone(&room) };
        let kernels = options.kernels.clone().among(Arc::clone(&room));
        let options = SessionOptions { kernels, seat: Some(seat), ..options };
        Ok(Planner::of_cut(train.clone(), evaluate.clone(), rank as usize, options)?)
    };
    (0..ranks).zip(devices).map(planner).collect()
}

/// What a device needs of all bytes of an input: its box of every partial, one after the other.
pub(super) fn own<'b>(boxed: Option<&Boxed>, all: &'b [u8]) -> Cow<'b, [u8]> {
    let Some(boxed) = boxed.filter(|boxed| !boxed.is_whole()) else { return Cow::Borrowed(all) };
    let one = boxed.whole_bytes();
    let mut own = Vec::with_capacity(all.len() / one * boxed.bytes());
    for partial in all.chunks_exact(one) {
        boxed.runs(0..one, |first, _, length| own.extend_from_slice(&partial[first..][..length]));
    }
    Cow::Owned(own)
}

impl Session {
    /// Copies bytes of a weight or state, from byte `first` of the whole on, together from all devices; none if
    /// nodes are not divided, false if it has not as many.
    pub(super) fn read_boxes(
        &mut self,
        name: &str,
        first: u64,
        bytes: &mut [u8],
    ) -> Result<Option<bool>, RunError> {
        let Some(boxed) = self.planner.boxed(name) else { return Ok(None) };
        let first = first as usize;
        let range = first..first.saturating_add(bytes.len());
        if range.end > boxed.whole_bytes() {
            return Ok(Some(false));
        }
        let within = boxed.within(range.clone());
        let residence = self.planner.persistent().residences[name];
        let mut own = vec![0; within.len()];
        self.cpu.read(residence.tier, residence.offset + within.start as u64, &mut own)?;
        match residence.tier {
            Tier::Device => self.ledger.to_host += own.len() as u64,
            Tier::Host => {}
            Tier::Disk => self.ledger.disk_read += own.len() as u64,
        }
        boxed.runs(range, |place, at, length| {
            bytes[place - first..][..length].copy_from_slice(&own[at - within.start..][..length]);
        });
        if !boxed.is_whole() {
            for other in &mut self.others {
                other.read_boxes(name, first as u64, bytes)?;
            }
        }
        Ok(Some(true))
    }

    /// Replaces bytes of a weight or state, from byte `first` of the whole on, on whichever devices they are; none
    /// if nodes are not divided, false if it has not as many.
    pub(super) fn write_boxes(
        &mut self,
        name: &str,
        first: u64,
        bytes: &[u8],
    ) -> Result<Option<bool>, RunError> {
        for other in &mut self.others {
            other.write_boxes(name, first, bytes)?;
        }
        let Some(boxed) = self.planner.boxed(name) else { return Ok(None) };
        let first = first as usize;
        let range = first..first.saturating_add(bytes.len());
        if range.end > boxed.whole_bytes() {
            return Ok(Some(false));
        }
        let within = boxed.within(range.clone());
        let mut own = Vec::with_capacity(within.len());
        boxed.runs(range, |place, _, length| own.extend_from_slice(&bytes[place - first..][..length]));
        let residence = self.planner.persistent().residences[name];
        let offset = residence.offset + within.start as u64;
        match residence.tier {
            Tier::Device => self.ledger.to_device += own.len() as u64,
            Tier::Host => {}
            Tier::Disk => self.ledger.disk_written += own.len() as u64,
        }
        match residence.tier {
            Tier::Disk => self.write_within(residence, offset, &own)?,
            _ => self.cpu.write(residence.tier, offset, &own)?,
        }
        Ok(Some(true))
    }
}
