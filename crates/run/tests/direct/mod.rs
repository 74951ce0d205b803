//! A plan run on a device directly, without a session.
#![allow(dead_code, reason = "each test uses some of it")]

use gulliver_graph::graph::{Graph, Value};
use gulliver_plan::document::plan::{Place, Plan, TIERS, Tier};
use gulliver_run::device::cpu::{Cpu, CpuOptions};
use gulliver_run::device::{Device, Observe, ProgramId, RunError};
use gulliver_run::host::{HostTensor, as_bytes};
use std::ops::Range;
use std::sync::Arc;

pub struct Direct<D = Cpu> {
    pub device: D,
    pub graph: Arc<Graph>,
    pub plan: Arc<Plan>,
    program: ProgramId,
}

/// A CPU device of so many threads.
pub fn cpu(threads: usize) -> Cpu {
    Cpu::new(CpuOptions { threads, ..CpuOptions::default() }).unwrap()
}

impl<D: Device> Direct<D> {
    /// Loads a plan on a device, which gets the memory that it needs.
    pub fn new(mut device: D, graph: &Graph, plan: &Plan) -> Direct<D> {
        for tier in TIERS {
            device.grow(tier, plan.spaces[tier as usize].bytes).unwrap();
        }
        let (graph, plan) = (Arc::new(graph.clone()), Arc::new(plan.clone()));
        let program = device.load(&graph, &plan).unwrap().id;
        Direct { device, graph, plan, program }
    }

    fn place(&self, place: &Place) -> (Tier, u64) {
        let buffer = self.plan.buffer(place.buffer);
        (self.plan.spaces[buffer.space as usize].tier, buffer.offset + place.start)
    }

    pub fn feed(&mut self, value: Value, bytes: &[u8]) -> Result<(), RunError> {
        let input = self.plan.inputs.iter().find(|input| input.value == value).unwrap();
        assert_eq!(input.place.bytes, bytes.len() as u64, "{}", self.graph.value(value).name);
        let (tier, offset) = self.place(&input.place);
        self.device.write(tier, offset, bytes)
    }

    pub fn write_floats(&mut self, tier: Tier, offset: u64, floats: &[f32]) {
        self.device.write(tier, offset, as_bytes(floats)).unwrap();
    }

    /// Runs a range of the plan's steps.
    pub fn run(&mut self, steps: Range<usize>) -> Result<(), RunError> {
        self.device.run(self.program, steps, Observe::Nothing)
    }

    /// Runs the whole plan.
    pub fn run_all(&mut self) -> Result<(), RunError> {
        self.run(0..self.plan.steps.len())
    }

    pub fn output_names(&self) -> Vec<String> {
        self.plan.outputs.iter().map(|output| output.name.clone()).collect()
    }

    pub fn output(&self, name: &str) -> Option<HostTensor> {
        let output = self.plan.outputs.iter().find(|output| output.name == name)?;
        let ty = self.graph.ty(output.value);
        let mut tensor = HostTensor::zeros(ty.dtype, &ty.bind(&self.plan.bindings()).unwrap());
        let (tier, offset) = self.place(&output.place);
        self.device.read(tier, offset, tensor.as_bytes_mut()).unwrap();
        Some(tensor)
    }
}
