//! A session's weights and states, wherever they live: their first values, and reading and writing them, a
//! piece at a time where copies of whole tensors would be too much.

use super::Session;
use crate::checkpoint::{Described, PIECE};
use crate::executor::RunError;
use crate::host::{HostTensor, all_finite};
use crate::initial::pieces;
use gulliver_graph::dim::Bindings;
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::{Init, Role};
use gulliver_plan::make::Home;
use gulliver_plan::plan::Tier;
use std::collections::BTreeMap;

impl Session {
    pub(super) fn initialise(&mut self, seed: u64) -> Result<(), RunError> {
        // Many pieces at a time: a disk is slow with small ones.
        const TOGETHER: usize = 1 << 18;
        let mut together: Vec<f32> = Vec::new();
        for (name, init, shape) in self.persistent_inputs() {
            let Home { tier, offset, .. } = self.planner.persistent().homes[&name];
            // New memory is all zeros; a new file is not to be read before it is written.
            if tier != Tier::Disk && matches!(init, Init::Constant(c) if c.to_bits() == 0) {
                continue;
            }
            let (mut result, mut at) = (Ok(()), offset);
            let count: usize = shape.iter().product();
            pieces(seed, &name, init, count, |first, piece| {
                together.extend_from_slice(piece);
                if result.is_ok() && (together.len() >= TOGETHER || first + piece.len() == count) {
                    result = self.cpu.write_floats(tier, at, &together);
                    at += size_of_val(together.as_slice()) as u64;
                    together.clear();
                }
            });
            result?;
        }
        Ok(())
    }

    fn persistent_inputs(&self) -> Vec<(String, Init, Vec<usize>)> {
        let inputs = self.graph().inputs().filter_map(|(_, role, info)| match role {
            Role::Weight(init) | Role::State(init) => {
                let shape = info.ty.bind(&Bindings::new()).expect("persistent values have fixed shapes");
                Some((info.name.clone(), init, shape))
            }
            _ => None,
        });
        inputs.collect()
    }

    /// Names, types and shapes of everything that a checkpoint must hold.
    pub fn layout(&self) -> Vec<Described> {
        self.persistent_inputs().into_iter().map(|(name, _, shape)| (name, DType::F32, shape)).collect()
    }

    /// Copies of all weights and states.
    pub fn tensors(&mut self) -> Result<BTreeMap<String, HostTensor>, RunError> {
        self.layout().into_iter().map(|one| Ok((one.0.clone(), self.tensor(&one)?))).collect()
    }

    /// A copy of a weight or state, as [`Session::layout`] describes it.
    pub fn tensor(&mut self, (name, dtype, shape): &Described) -> Result<HostTensor, RunError> {
        let mut tensor = HostTensor::zeros(*dtype, shape);
        self.read(name, 0, tensor.as_bytes_mut())?;
        Ok(tensor)
    }

    /// Copies bytes of a weight or state, from byte `first` of it on; false if it has not as many, or if
    /// there is none of that name.
    pub fn read(&mut self, name: &str, first: u64, bytes: &mut [u8]) -> Result<bool, RunError> {
        let Some((tier, offset)) = self.part(name, first, bytes.len()) else { return Ok(false) };
        self.cpu.read(tier, offset, bytes)?;
        match tier {
            Tier::Device => self.ledger.to_host += bytes.len() as u64,
            Tier::Host => {}
            Tier::Disk => self.ledger.disk_read += bytes.len() as u64,
        }
        Ok(true)
    }

    /// Reads what a [layout](Session::layout) of this session describes.
    pub fn reader<'s>(
        &'s mut self,
        layout: &'s [Described],
    ) -> impl FnMut(usize, u64, &mut [u8]) -> Result<(), RunError> + 's {
        |i, first, bytes| self.read(&layout[i].0, first, bytes).map(|_| ())
    }

    /// Replaces bytes of a weight or state, from byte `first` of it on, a multiple of [`PIECE`]; false if
    /// it has not as many, or if there is none of that name.
    pub fn write(&mut self, name: &str, first: u64, bytes: &[u8]) -> Result<bool, RunError> {
        let part = self.part(name, first, bytes.len()).filter(|_| first.is_multiple_of(PIECE as u64));
        let Some((tier, offset)) = part else { return Ok(false) };
        self.cpu.write(tier, offset, bytes)?;
        match tier {
            Tier::Device => self.ledger.to_device += bytes.len() as u64,
            Tier::Host => {}
            Tier::Disk => self.ledger.disk_written += bytes.len() as u64,
        }
        Ok(true)
    }

    /// Where such bytes are.
    fn part(&self, name: &str, first: u64, bytes: usize) -> Option<(Tier, u64)> {
        let home = self.planner.persistent().homes.get(name)?;
        let end = first.checked_add(bytes as u64)?;
        (end <= home.bytes).then_some((home.tier, home.offset + first))
    }

    /// Replaces a weight or state; false if there is none of that name and size.
    pub fn set(&mut self, name: &str, tensor: &HostTensor) -> Result<bool, RunError> {
        let home = self.planner.persistent().homes.get(name);
        if home.is_none_or(|home| home.bytes != tensor.as_bytes().len() as u64) {
            return Ok(false);
        }
        self.write(name, 0, tensor.as_bytes())
    }

    /// The first of these weights and states that holds a number that is not finite.
    pub fn first_not_finite(&mut self, layout: &[Described]) -> Result<Option<String>, RunError> {
        let mut piece = Vec::new();
        for (name, dtype, shape) in layout {
            let bytes = shape.iter().product::<usize>() * dtype.size();
            for first in (0..bytes).step_by(PIECE) {
                piece.resize(PIECE.min(bytes - first), 0);
                self.read(name, first as u64, &mut piece)?;
                if !all_finite(*dtype, &piece) {
                    return Ok(Some(name.clone()));
                }
            }
        }
        Ok(None)
    }
}
