//! Weights and states of a session: their first values, and access to them in pieces, without copies of whole tensors.
//! Callers see whole tensors even if devices have shards of them.

use super::{RankSession, Session};
use crate::checkpoint::{PIECE, TensorInfo};
use crate::device::RunError;
use crate::host::initial::pieces;
use crate::host::{HostTensor, all_finite, as_bytes};
use gulliver_graph::dim::Bindings;
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::{Graph, Init, Role};
use gulliver_plan::document::plan::Tier;
use gulliver_plan::document::residence::Residence;
use gulliver_plan::document::shard::Shard;
use std::collections::BTreeMap;

/// A weight or state of one member: its name, first values and shape.
type Persistent = (String, Init, Vec<usize>);

/// The weights and states of a graph; of an array, those of one member.
fn persistent_inputs(graph: &Graph, array: bool) -> Vec<Persistent> {
    let inputs = graph.inputs().filter_map(|(_, role, info)| match role {
        Role::Weight(init) | Role::State(init) => {
            let mut shape = info.ty.bind(&Bindings::new()).expect("persistent values have fixed shapes");
            if array {
                shape.remove(0);
            }
            Some((info.name.clone(), init, shape))
        }
        _ => None,
    });
    inputs.collect()
}

/// Names, types and shapes of the weights and states of one member.
fn described(graph: &Graph, array: bool) -> Vec<TensorInfo> {
    let all = persistent_inputs(graph, array).into_iter();
    all.map(|(name, _, shape)| (name, DType::F32, shape)).collect()
}

/// The first of these weights and states that holds a number that is not finite, as `read` gives their bytes.
fn first_not_finite(
    layout: &[TensorInfo],
    mut read: impl FnMut(&str, u64, &mut [u8]) -> Result<bool, RunError>,
) -> Result<Option<String>, RunError> {
    let mut piece = Vec::new();
    for (name, dtype, shape) in layout {
        let bytes = shape.iter().product::<usize>() * dtype.size();
        for first in (0..bytes).step_by(PIECE) {
            piece.resize(PIECE.min(bytes - first), 0);
            read(name, first as u64, &mut piece)?;
            if !all_finite(*dtype, &piece) {
                return Ok(Some(name.clone()));
            }
        }
    }
    Ok(None)
}

impl Session {
    /// Gives all weights and states their first values again, those of another seed.
    pub fn reset(&mut self, seed: u64) -> Result<(), RunError> {
        let seeds = vec![seed; self.members()];
        self.ranks.iter_mut().try_for_each(|rank| rank.initialise(&seeds, false))
    }

    /// Names, types and shapes of everything that a checkpoint of one member must hold, on all devices.
    pub fn layout(&self) -> Vec<TensorInfo> {
        described(&self.train, self.ranks[0].array)
    }

    /// Puts the bytes of all weights and states of the only, or first, member into a buffer, in the order of the
    /// layout.
    pub fn state(&mut self, bytes: &mut Vec<u8>) -> Result<(), RunError> {
        let layout = self.layout();
        let sizes = layout.iter().map(|(_, dtype, shape)| dtype.size() * shape.iter().product::<usize>());
        bytes.resize(sizes.clone().sum(), 0);
        let mut rest = bytes.as_mut_slice();
        for ((name, ..), size) in layout.iter().zip(sizes) {
            let (own, after) = rest.split_at_mut(size);
            self.read(0, name, 0, own)?;
            rest = after;
        }
        Ok(())
    }

    /// The reverse of [`Session::state`]. Panics if the bytes are not those of such a session.
    pub fn set_state(&mut self, mut bytes: &[u8]) -> Result<(), RunError> {
        for (name, dtype, shape) in self.layout() {
            let (own, rest) = bytes.split_at(dtype.size() * shape.iter().product::<usize>());
            self.write(0, &name, 0, own)?;
            bytes = rest;
        }
        assert!(bytes.is_empty(), "bytes beyond the last state");
        Ok(())
    }

    /// Copies of all weights and states of the only, or first, member.
    pub fn tensors(&mut self) -> Result<BTreeMap<String, HostTensor>, RunError> {
        self.tensors_of(0)
    }

    /// Copies of all weights and states of a member.
    pub fn tensors_of(&mut self, member: usize) -> Result<BTreeMap<String, HostTensor>, RunError> {
        let all = self.layout();
        all.into_iter().map(|one| Ok((one.0.clone(), self.tensor_of(member, &one)?))).collect()
    }

    /// A copy of a weight or state of the only, or first, member, as [`Session::layout`] describes it.
    pub fn tensor(&mut self, described: &TensorInfo) -> Result<HostTensor, RunError> {
        self.tensor_of(0, described)
    }

    /// A copy of a weight or state of a member, as [`Session::layout`] describes it.
    pub fn tensor_of(
        &mut self,
        member: usize,
        (name, dtype, shape): &TensorInfo,
    ) -> Result<HostTensor, RunError> {
        let mut tensor = HostTensor::zeros(*dtype, shape);
        self.read(member, name, 0, tensor.as_bytes_mut())?;
        Ok(tensor)
    }

    /// Copies bytes of a member's weight or state, from byte `first` of it on, from the devices they reside on; false
    /// if it has not as many, or if there is none of that name.
    pub fn read(
        &mut self,
        member: usize,
        name: &str,
        first: u64,
        bytes: &mut [u8],
    ) -> Result<bool, RunError> {
        for rank in &mut self.ranks {
            if let Some(shard) = rank.plan.shards.get(name).cloned() {
                if !rank.read_shard(name, &shard, first as usize, bytes)? {
                    return Ok(false);
                }
                if shard.is_whole() {
                    return Ok(true);
                }
            } else if rank.read(member, name, first, bytes)? {
                return Ok(true);
            }
        }
        Ok(self.is_sharded(name))
    }

    fn is_sharded(&self, name: &str) -> bool {
        self.ranks.iter().any(|rank| rank.plan.shards.contains_key(name))
    }

    /// Reads what a [layout](Session::layout) of this session describes, of one member.
    pub fn reader<'s>(
        &'s mut self,
        member: usize,
        layout: &'s [TensorInfo],
    ) -> impl FnMut(usize, u64, &mut [u8]) -> Result<(), RunError> + 's {
        move |i, first, bytes| self.read(member, &layout[i].0, first, bytes).map(|_| ())
    }

    /// Replaces bytes of a member's weight or state, from byte `first` of it on, a multiple of [`PIECE`], on all
    /// devices they reside on; false if it has not as many, or if there is none of that name.
    pub fn write(&mut self, member: usize, name: &str, first: u64, bytes: &[u8]) -> Result<bool, RunError> {
        let mut found = false;
        for rank in &mut self.ranks {
            found |= match rank.plan.shards.get(name).cloned() {
                Some(shard) => rank.write_shard(name, &shard, first as usize, bytes)?,
                None => rank.write(member, name, first, bytes)?,
            };
        }
        Ok(found)
    }

    /// Replaces a weight or state of the only, or first, member; false if there is none of that name and size.
    pub fn set(&mut self, name: &str, tensor: &HostTensor) -> Result<bool, RunError> {
        self.set_of(0, name, tensor)
    }

    /// Replaces a weight or state of a member; false if there is none of that name and size.
    pub fn set_of(&mut self, member: usize, name: &str, tensor: &HostTensor) -> Result<bool, RunError> {
        let bytes = self.ranks.iter().find_map(|rank| {
            let whole = rank.plan.shards.get(name).map(|shard| shard.whole_bytes() as u64);
            let residence = rank.plan.residences.residences.get(name);
            whole.or(residence.map(|residence| residence.bytes / rank.members as u64))
        });
        if bytes != Some(tensor.as_bytes().len() as u64) {
            return Ok(false);
        }
        self.write(member, name, 0, tensor.as_bytes())
    }

    /// The first of these weights and states of a member that holds a number that is not finite.
    pub fn first_not_finite(
        &mut self,
        member: usize,
        layout: &[TensorInfo],
    ) -> Result<Option<String>, RunError> {
        first_not_finite(layout, |name, first, piece| self.read(member, name, first, piece))
    }
}

impl RankSession {
    /// Gives the weights and states that reside here their first values, each member those of its seed; `new` says
    /// that memory was never written.
    pub(super) fn initialise(&mut self, seeds: &[u64], new: bool) -> Result<(), RunError> {
        // Many pieces at a time: a disk is slow with small ones.
        const TOGETHER: usize = 1 << 18;
        let mut together: Vec<f32> = Vec::new();
        for (name, init, shape) in persistent_inputs(&self.plan.graph, self.array) {
            let Residence { tier, offset, .. } = self.plan.residences.residences[&name];
            // New memory is all zeros; a new file is not to be read before it is written.
            if new && tier != Tier::Disk && matches!(init, Init::Constant(c) if c.to_bits() == 0) {
                continue;
            }
            let (mut result, mut at) = (Ok(()), offset);
            let mut write = |floats: &[f32]| {
                if result.is_ok() {
                    result = self.device.write(tier, at, as_bytes(floats));
                }
                at += size_of_val(floats) as u64;
            };
            let shard = self.plan.shards.get(&name);
            let count = shard.map_or(shape.iter().product(), |shard| shard.whole().iter().product());
            for &seed in seeds {
                pieces(seed, &name, init, count, |first, piece| {
                    match shard {
                        Some(shard) => {
                            let float = size_of::<f32>();
                            shard.runs(first * float..(first + piece.len()) * float, |place, _, length| {
                                let own = &piece[place / float - first..][..length / float];
                                together.extend_from_slice(own);
                            });
                        }
                        None => together.extend_from_slice(piece),
                    }
                    if together.len() >= TOGETHER {
                        write(&together[..TOGETHER]);
                        together.drain(..TOGETHER);
                    }
                });
            }
            write(&together);
            together.clear();
            result?;
        }
        Ok(())
    }

    /// Copies of all weights and states of a member.
    pub(super) fn tensors_of(&mut self, member: usize) -> Result<BTreeMap<String, HostTensor>, RunError> {
        let layout = described(&self.plan.graph, self.array);
        let one = |(name, dtype, shape): TensorInfo| {
            let mut tensor = HostTensor::zeros(dtype, &shape);
            self.read(member, &name, 0, tensor.as_bytes_mut())?;
            Ok((name, tensor))
        };
        layout.into_iter().map(one).collect()
    }

    /// Copies bytes of a member's weight or state that resides here as a whole; false if there are not as many.
    fn read(&mut self, member: usize, name: &str, first: u64, bytes: &mut [u8]) -> Result<bool, RunError> {
        let Some((tier, offset)) = self.place_of(member, name, first, bytes.len()) else { return Ok(false) };
        self.read_at(tier, offset, bytes)?;
        Ok(true)
    }

    fn read_at(&mut self, tier: Tier, offset: u64, bytes: &mut [u8]) -> Result<(), RunError> {
        self.device.read(tier, offset, bytes)?;
        match tier {
            Tier::Device => self.ledger.to_host += bytes.len() as u64,
            Tier::Host => {}
            Tier::Disk => self.ledger.disk_read += bytes.len() as u64,
        }
        Ok(())
    }

    /// Copies the bytes that this device's shard has of a range of the whole; false if the whole has not as many.
    fn read_shard(
        &mut self,
        name: &str,
        shard: &Shard,
        first: usize,
        bytes: &mut [u8],
    ) -> Result<bool, RunError> {
        let range = first..first.saturating_add(bytes.len());
        if range.end > shard.whole_bytes() {
            return Ok(false);
        }
        let within = shard.within(range.clone());
        let residence = self.plan.residences.residences[name];
        let mut own = vec![0; within.len()];
        self.read_at(residence.tier, residence.offset + within.start as u64, &mut own)?;
        shard.runs(range, |place, at, length| {
            bytes[place - first..][..length].copy_from_slice(&own[at - within.start..][..length]);
        });
        Ok(true)
    }

    /// Replaces bytes of a member's weight or state that resides here as a whole; false if there are not as many.
    pub(super) fn write(
        &mut self,
        member: usize,
        name: &str,
        first: u64,
        bytes: &[u8],
    ) -> Result<bool, RunError> {
        let place = self.place_of(member, name, first, bytes.len());
        let Some((_, offset)) = place.filter(|_| first.is_multiple_of(PIECE as u64)) else {
            return Ok(false);
        };
        self.write_at(self.plan.residences.residences[name], offset, bytes)?;
        Ok(true)
    }

    /// Replaces the bytes that this device's shard has of a range of the whole; false if the whole has not as many.
    fn write_shard(
        &mut self,
        name: &str,
        shard: &Shard,
        first: usize,
        bytes: &[u8],
    ) -> Result<bool, RunError> {
        let range = first..first.saturating_add(bytes.len());
        if range.end > shard.whole_bytes() {
            return Ok(false);
        }
        let within = shard.within(range.clone());
        let mut own = Vec::with_capacity(within.len());
        shard.runs(range, |place, _, length| own.extend_from_slice(&bytes[place - first..][..length]));
        let residence = self.plan.residences.residences[name];
        self.write_at(residence, residence.offset + within.start as u64, &own)?;
        Ok(true)
    }

    /// Replaces bytes of a value where it resides.
    fn write_at(&mut self, residence: Residence, offset: u64, bytes: &[u8]) -> Result<(), RunError> {
        match residence.tier {
            Tier::Device => self.ledger.to_device += bytes.len() as u64,
            Tier::Host => {}
            Tier::Disk => self.ledger.disk_written += bytes.len() as u64,
        }
        let begins = offset == residence.offset && bytes.len() as u64 == residence.bytes;
        let aligned = (offset - residence.offset).is_multiple_of(PIECE as u64);
        let ends = offset + bytes.len() as u64 == residence.offset + residence.bytes;
        match residence.tier {
            Tier::Disk if !begins && !(aligned && (ends || bytes.len().is_multiple_of(PIECE))) => {
                self.write_within(residence, offset, bytes)
            }
            tier => self.device.write(tier, offset, bytes),
        }
    }

    /// Writes bytes of a value on disk that need not begin or end where its pieces do.
    fn write_within(&mut self, residence: Residence, offset: u64, bytes: &[u8]) -> Result<(), RunError> {
        let (start, end) = (offset - residence.offset, offset - residence.offset + bytes.len() as u64);
        let mut piece = vec![0; PIECE];
        for first in (start / PIECE as u64 * PIECE as u64..end).step_by(PIECE) {
            let piece = &mut piece[..(residence.bytes - first).min(PIECE as u64) as usize];
            self.device.read(residence.tier, residence.offset + first, piece)?;
            let (from, to) = (start.max(first), end.min(first + piece.len() as u64));
            piece[(from - first) as usize..(to - first) as usize]
                .copy_from_slice(&bytes[(from - start) as usize..(to - start) as usize]);
            self.device.write(residence.tier, residence.offset + first, piece)?;
        }
        Ok(())
    }

    /// The tier and offset of bytes of a member's weight or state that resides here as a whole.
    fn place_of(&self, member: usize, name: &str, first: u64, bytes: usize) -> Option<(Tier, u64)> {
        let residence = self.plan.residences.residences.get(name)?;
        let each = residence.bytes / self.members as u64;
        let end = first.checked_add(bytes as u64)?;
        (member < self.members && end <= each)
            .then_some((residence.tier, residence.offset + member as u64 * each + first))
    }

    /// The first weight or state that resides here and holds a number that is not finite.
    pub(super) fn first_not_finite(&mut self, member: usize) -> Result<Option<String>, RunError> {
        let layout = described(&self.plan.graph, self.array);
        first_not_finite(&layout, |name, first, piece| self.read(member, name, first, piece))
    }
}
