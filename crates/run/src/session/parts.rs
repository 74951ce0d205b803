//! One job on several devices, each of which does its part of every node: the graphs are those that a cut was
//! dealt into, for inputs of one size. Weights and states lie where the cut says; from outside they are whole.

use super::crew::{hypers, room, step_all};
use super::{Key, Ledger, Outcome, Session, SessionError, SessionOptions};
use crate::collector::Alarm;
use crate::data::Batch;
use crate::host::{HostData, HostTensor};
use crate::initial::pieces;
use crate::peers::{Seat, Takes};
use gulliver_graph::dim::Bindings;
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::{Graph, Init, Origin, Role};
use gulliver_graph::op::exchange::Piece;
use gulliver_graph::spec::Region;
use gulliver_plan::cut::Share;
use std::collections::BTreeMap;
use std::sync::Arc;

/// See the top of this file.
pub struct Parts {
    devices: Vec<Session>,
    /// By device, then input.
    inputs: Vec<Vec<Input>>,
    partials: usize,
}

/// What a device has of an input.
struct Input {
    name: String,
    role: Role,
    dtype: DType,
    region: Region,
    whole: Vec<usize>,
}

impl Input {
    /// The box, as a piece of all of it.
    fn piece(&self) -> Piece {
        let first: Vec<usize> = self.region.iter().map(|r| r.start).collect();
        let extent: Vec<usize> = self.region.iter().map(|r| r.len()).collect();
        Piece {
            from: 0,
            of: self.whole.clone(),
            source: first,
            target: vec![0; extent.len()],
            extent,
            add: false,
        }
    }

    fn part(&self) -> HostTensor {
        HostTensor::zeros(self.dtype, &self.piece().extent)
    }

    /// Copies the box out of all bytes, or into them.
    fn copy(&self, all: &mut [u8], part: &mut [u8], into: bool) {
        let (piece, size) = (self.piece(), self.dtype.size());
        piece.rows(&piece.extent, |from, to, length| {
            let (from, to) = (from * size..(from + length) * size, to * size..(to + length) * size);
            match into {
                true => all[from].copy_from_slice(&part[to]),
                false => part[to].copy_from_slice(&all[from]),
            }
        });
    }
}

impl Parts {
    /// All devices, each with options of its own, with weights and states at their first values. `partials` is
    /// the job's; everyone takes part in each.
    pub fn new(shares: Vec<Share>, devices: Vec<SessionOptions>, seed: u64) -> Result<Parts, SessionError> {
        let parties = devices.len() as u32;
        let room = room(&devices);
        let partials = devices.first().map_or(1, |options| options.partials as usize);
        let inputs = shares.iter().map(inputs).collect();
        let session = |((party, options), share): ((u32, SessionOptions), Share)| {
            let seat = Seat { party, parties, takes: Takes::Parts, peers: Arc::clone(&room) };
            let options = SessionOptions {
                kernels: options.kernels.clone().among(Arc::clone(&room)),
                seat: Some(seat),
                largest: options.memory.map(|_| Bindings::new()),
                ..options
            };
            Session::new(share.graph, None, options, seed)
        };
        let sessions = (0..parties).zip(devices).zip(shares).map(session);
        let devices = sessions.collect::<Result<Vec<Session>, SessionError>>()?;
        let mut parts = Parts { devices, inputs, partials };
        parts.initialise(seed)?;
        Ok(parts)
    }

    fn initialise(&mut self, seed: u64) -> Result<(), SessionError> {
        for i in 0..self.inputs.first().map_or(0, Vec::len) {
            let Input { name, role, whole, .. } = &self.inputs[0][i];
            let (Role::Weight(init) | Role::State(init)) = *role else { continue };
            let all = first_values(seed, name, init, whole);
            self.set(&name.clone(), &all)?;
        }
        Ok(())
    }

    /// One training step; see [`Session::step`].
    pub fn step(
        &mut self,
        batch: &Batch,
        key: Key,
        hyper: &dyn Fn(&str) -> Option<f32>,
    ) -> Result<Outcome, SessionError> {
        let set = hypers(self.devices[0].graph(), hyper);
        let batches: Vec<Batch> = self.inputs.iter().map(|inputs| self.share(inputs, batch)).collect();
        let outcomes = step_all(self.devices.iter_mut().zip(&batches).collect(), key, &set)?;
        // Everyone has the same.
        let mut outcome = outcomes.into_iter().next().expect("there is a first device");
        outcome.average(self.partials as u32);
        Ok(outcome)
    }

    /// What a device needs of a batch: its box of every partial, one after the other.
    fn share(&self, inputs: &[Input], batch: &Batch) -> Batch {
        let data = inputs.iter().filter(|input| input.role == Role::Data);
        let fields = data.filter_map(|input| {
            let mut all = batch.get(&input.name)?.clone();
            let one = input.whole.iter().product::<usize>() * input.dtype.size();
            let mut shape = input.piece().extent;
            if let Some(rows) = shape.first_mut() {
                *rows *= self.partials;
            }
            let mut part = HostTensor::zeros(input.dtype, &shape);
            let own = part.as_bytes().len() / self.partials;
            for partial in 0..self.partials {
                let all = &mut all.as_bytes_mut()[partial * one..][..one];
                input.copy(all, &mut part.as_bytes_mut()[partial * own..][..own], false);
            }
            Some((input.name.clone(), part))
        });
        Batch { fields: fields.collect() }
    }

    /// Copies of all weights and states.
    pub fn tensors(&mut self) -> Result<BTreeMap<String, HostTensor>, SessionError> {
        let mut all = BTreeMap::new();
        for (device, inputs) in self.devices.iter_mut().zip(&self.inputs) {
            for input in inputs.iter().filter(|input| kept(input.role)) {
                let new = || HostTensor::zeros(input.dtype, &input.whole);
                let tensor: &mut HostTensor = all.entry(input.name.clone()).or_insert_with(new);
                let mut part = input.part();
                device.read(0, &input.name, 0, part.as_bytes_mut())?;
                input.copy(tensor.as_bytes_mut(), part.as_bytes_mut(), true);
            }
        }
        Ok(all)
    }

    /// Replaces a weight or state on every device; false if there is none of that name and size.
    pub fn set(&mut self, name: &str, tensor: &HostTensor) -> Result<bool, SessionError> {
        let mut found = false;
        let mut all = tensor.clone();
        for (device, inputs) in self.devices.iter_mut().zip(&self.inputs) {
            let fits =
                |input: &&Input| input.name == name && input.whole == tensor.shape() && kept(input.role);
            if let Some(input) = inputs.iter().find(fits) {
                let mut part = input.part();
                input.copy(all.as_bytes_mut(), part.as_bytes_mut(), false);
                found = device.set(name, &part)?;
            }
        }
        Ok(found)
    }

    /// Bytes moved so far, on all devices.
    pub fn ledger(&self) -> Ledger {
        let mut ledger = Ledger::default();
        self.devices.iter().for_each(|device| ledger += device.ledger());
        ledger
    }

    /// Most bytes of device memory in use at once so far, by device.
    pub fn peaks(&self) -> Vec<u64> {
        self.devices.iter().map(|device| device.peak()).collect()
    }

    /// Alarms that nobody has taken yet.
    pub fn take_alarms(&mut self) -> Vec<Alarm> {
        self.devices.iter_mut().flat_map(|device| device.take_alarms()).collect()
    }
}

fn kept(role: Role) -> bool {
    matches!(role, Role::Weight(_) | Role::State(_))
}

fn inputs(share: &Share) -> Vec<Input> {
    let graph: &Graph = &share.graph;
    let input = |(v, region, whole): &(_, Region, Vec<usize>)| {
        let info = graph.value(*v);
        let Origin::Input(role) = info.origin else { unreachable!("inputs are inputs") };
        let (name, dtype) = (info.name.clone(), info.ty.dtype);
        Input { name, role, dtype, region: region.clone(), whole: whole.clone() }
    };
    share.inputs.iter().map(input).collect()
}

fn first_values(seed: u64, name: &str, init: Init, shape: &[usize]) -> HostTensor {
    let mut all = Vec::with_capacity(shape.iter().product());
    pieces(seed, name, init, all.capacity(), |_, piece| all.extend_from_slice(piece));
    HostTensor::new(shape, HostData::F32(all)).expect("as many as the shape says")
}
