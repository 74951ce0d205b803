//! A session's weights and states, wherever they live: their first values, and reading and writing them, a
//! piece at a time where copies of whole tensors would be too much.

use super::Session;
use crate::checkpoint::{Described, PIECE};
use crate::executor::RunError;
use crate::host::initial::pieces;
use crate::host::{HostTensor, all_finite};
use gulliver_graph::dim::Bindings;
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::{Graph, Init, Role};
use gulliver_plan::document::plan::Tier;
use gulliver_plan::document::residence::Residence;
use std::collections::BTreeMap;

impl Session {
    /// Gives all weights and states their first values again, those of another seed.
    pub fn reset(&mut self, seed: u64) -> Result<(), RunError> {
        self.initialise(&vec![seed; self.members], false)
    }

    /// Gives all weights and states their first values, each member those of its seed; `new` says that
    /// memory was never written.
    pub(super) fn initialise(&mut self, seeds: &[u64], new: bool) -> Result<(), RunError> {
        for other in &mut self.others {
            other.initialise(seeds, new)?;
        }
        // Many pieces at a time: a disk is slow with small ones.
        const TOGETHER: usize = 1 << 18;
        let mut together: Vec<f32> = Vec::new();
        for (name, init, shape) in self.persistent_inputs(self.graph()) {
            let Residence { tier, offset, .. } = self.planner.persistent().residences[&name];
            // New memory is all zeros; a new file is not to be read before it is written.
            if new && tier != Tier::Disk && matches!(init, Init::Constant(c) if c.to_bits() == 0) {
                continue;
            }
            let (mut result, mut at) = (Ok(()), offset);
            let mut write = |floats: &[f32]| {
                if result.is_ok() {
                    result = self.cpu.write_floats(tier, at, floats);
                }
                at += size_of_val(floats) as u64;
            };
            let boxed = self.planner.boxed(&name);
            let count = boxed.map_or(shape.iter().product(), |boxed| boxed.whole().iter().product());
            for &seed in seeds {
                pieces(seed, &name, init, count, |first, piece| {
                    match boxed {
                        Some(boxed) => {
                            let float = size_of::<f32>();
                            boxed.runs(first * float..(first + piece.len()) * float, |place, _, length| {
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

    /// Names, first values and shapes of weights and states, those of one member.
    fn persistent_inputs(&self, graph: &Graph) -> Vec<(String, Init, Vec<usize>)> {
        let inputs = graph.inputs().filter_map(|(_, role, info)| match role {
            Role::Weight(init) | Role::State(init) => {
                let mut shape = info.ty.bind(&Bindings::new()).expect("persistent values have fixed shapes");
                if self.array {
                    shape.remove(0);
                }
                Some((info.name.clone(), init, shape))
            }
            _ => None,
        });
        inputs.collect()
    }

    /// Names, types and shapes of everything that a checkpoint of one member must hold, whichever devices it
    /// is on.
    pub fn layout(&self) -> Vec<Described> {
        self.persistent_inputs(self.whole())
            .into_iter()
            .map(|(name, _, shape)| (name, DType::F32, shape))
            .collect()
    }

    /// Puts the bytes of all weights and states of the only, or first, member into a buffer, in the order of
    /// the layout.
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
    pub fn tensor(&mut self, described: &Described) -> Result<HostTensor, RunError> {
        self.tensor_of(0, described)
    }

    /// A copy of a weight or state of a member, as [`Session::layout`] describes it.
    pub fn tensor_of(
        &mut self,
        member: usize,
        (name, dtype, shape): &Described,
    ) -> Result<HostTensor, RunError> {
        let mut tensor = HostTensor::zeros(*dtype, shape);
        self.read(member, name, 0, tensor.as_bytes_mut())?;
        Ok(tensor)
    }

    /// Copies bytes of a member's weight or state, from byte `first` of it on; false if it has not as many,
    /// or if there is none of that name.
    pub fn read(
        &mut self,
        member: usize,
        name: &str,
        first: u64,
        bytes: &mut [u8],
    ) -> Result<bool, RunError> {
        if let Some(read) = self.read_boxes(name, first, bytes)? {
            return Ok(read);
        }
        let Some((tier, offset)) = self.part(member, name, first, bytes.len()) else {
            for other in &mut self.others {
                if other.read(member, name, first, bytes)? {
                    return Ok(true);
                }
            }
            return Ok(false);
        };
        self.cpu.read(tier, offset, bytes)?;
        match tier {
            Tier::Device => self.ledger.to_host += bytes.len() as u64,
            Tier::Host => {}
            Tier::Disk => self.ledger.disk_read += bytes.len() as u64,
        }
        Ok(true)
    }

    /// Reads what a [layout](Session::layout) of this session describes, of one member.
    pub fn reader<'s>(
        &'s mut self,
        member: usize,
        layout: &'s [Described],
    ) -> impl FnMut(usize, u64, &mut [u8]) -> Result<(), RunError> + 's {
        move |i, first, bytes| self.read(member, &layout[i].0, first, bytes).map(|_| ())
    }

    /// Replaces bytes of a member's weight or state, from byte `first` of it on, a multiple of [`PIECE`];
    /// false if it has not as many, or if there is none of that name.
    pub fn write(&mut self, member: usize, name: &str, first: u64, bytes: &[u8]) -> Result<bool, RunError> {
        if let Some(written) = self.write_boxes(name, first, bytes)? {
            return Ok(written);
        }
        let mut found = false;
        for other in &mut self.others {
            found |= other.write(member, name, first, bytes)?;
        }
        let part = self.part(member, name, first, bytes.len());
        let Some((tier, offset)) = part.filter(|_| first.is_multiple_of(PIECE as u64)) else {
            return Ok(found);
        };
        match tier {
            Tier::Device => self.ledger.to_device += bytes.len() as u64,
            Tier::Host => {}
            Tier::Disk => self.ledger.disk_written += bytes.len() as u64,
        }
        let residence = self.planner.persistent().residences[name];
        if tier == Tier::Disk && self.array {
            self.write_within(residence, offset, bytes)?;
        } else {
            self.cpu.write(tier, offset, bytes)?;
        }
        Ok(true)
    }

    /// Writes bytes of a value on disk that need not begin or end where its pieces do.
    pub(super) fn write_within(
        &mut self,
        residence: Residence,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), RunError> {
        let (start, end) = (offset - residence.offset, offset - residence.offset + bytes.len() as u64);
        let mut piece = vec![0; PIECE];
        for first in (start / PIECE as u64 * PIECE as u64..end).step_by(PIECE) {
            let piece = &mut piece[..(residence.bytes - first).min(PIECE as u64) as usize];
            self.cpu.read(residence.tier, residence.offset + first, piece)?;
            let (from, to) = (start.max(first), end.min(first + piece.len() as u64));
            piece[(from - first) as usize..(to - first) as usize]
                .copy_from_slice(&bytes[(from - start) as usize..(to - start) as usize]);
            self.cpu.write(residence.tier, residence.offset + first, piece)?;
        }
        Ok(())
    }

    /// Where such bytes are.
    fn part(&self, member: usize, name: &str, first: u64, bytes: usize) -> Option<(Tier, u64)> {
        let residence = self.planner.persistent().residences.get(name)?;
        let each = residence.bytes / self.members as u64;
        let end = first.checked_add(bytes as u64)?;
        (member < self.members && end <= each)
            .then_some((residence.tier, residence.offset + member as u64 * each + first))
    }

    /// Replaces a weight or state of the only, or first, member; false if there is none of that name and
    /// size.
    pub fn set(&mut self, name: &str, tensor: &HostTensor) -> Result<bool, RunError> {
        self.set_of(0, name, tensor)
    }

    /// Replaces a weight or state of a member; false if there is none of that name and size.
    pub fn set_of(&mut self, member: usize, name: &str, tensor: &HostTensor) -> Result<bool, RunError> {
        let residence = self.devices().find_map(|device| device.planner.persistent().residences.get(name));
        let each = residence.map(|residence| residence.bytes / self.members as u64);
        let each = self.planner.boxed(name).map(|boxed| boxed.whole_bytes() as u64).or(each);
        if each != Some(tensor.as_bytes().len() as u64) {
            return Ok(false);
        }
        self.write(member, name, 0, tensor.as_bytes())
    }

    /// The first of these weights and states of a member that holds a number that is not finite.
    pub fn first_not_finite(
        &mut self,
        member: usize,
        layout: &[Described],
    ) -> Result<Option<String>, RunError> {
        let mut piece = Vec::new();
        for (name, dtype, shape) in layout {
            let bytes = shape.iter().product::<usize>() * dtype.size();
            for first in (0..bytes).step_by(PIECE) {
                piece.resize(PIECE.min(bytes - first), 0);
                self.read(member, name, first as u64, &mut piece)?;
                if !all_finite(*dtype, &piece) {
                    return Ok(Some(name.clone()));
                }
            }
        }
        Ok(None)
    }
}
