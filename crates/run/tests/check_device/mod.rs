//! A device that trusts nobody: it checks every access against the plan, poisons what is freed, and computes with the
//! reference kernels. Made from the public trait alone, it shows that nothing above it knows CPUs.

use gulliver_graph::dtype::DType;
use gulliver_graph::graph::{Graph, Value};
use gulliver_graph::tensor::Tensor;
use gulliver_plan::document::collectives::collective_of;
use gulliver_plan::document::ledger::Ledger;
use gulliver_plan::document::plan::{Act, BufferId, BufferRange, Plan, TIERS, Tier};
use gulliver_run::device::{Device, LoadedProgram, Observe, ProgramId, RunError, StepTime};
use gulliver_run::lower::KernelError;
use gulliver_run::peers::{ExchangeBuffer, Peers};
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// The contents of freed memory: not a number in every float, far out of range as an index.
const POISON: u8 = 0xff;

/// What is known of a byte.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Byte {
    Free,
    /// In use, and not written yet.
    Allocated,
    Written,
}

#[derive(Default)]
pub struct CheckDevice {
    memory: [Vec<u8>; TIERS.len()],
    known: [Vec<Byte>; TIERS.len()],
    programs: Vec<(Arc<Graph>, Arc<Plan>)>,
    peers: Option<(u32, Arc<dyn Peers>)>,
    moved: Ledger,
    live: [u64; TIERS.len()],
    run_peak: [u64; TIERS.len()],
    peak: [u64; TIERS.len()],
}

/// The bytes of a place: its tier and range there.
fn range_of(plan: &Plan, place: &BufferRange) -> (usize, Range<usize>) {
    let buffer = plan.buffer(place.buffer);
    let start = (buffer.offset + place.start) as usize;
    assert!(place.start + place.bytes <= buffer.bytes, "{place:?} ends beyond its buffer");
    (plan.spaces[buffer.space as usize].tier as usize, start..start + place.bytes as usize)
}

impl CheckDevice {
    fn get(&self, plan: &Plan, place: &BufferRange, step: usize) -> Vec<u8> {
        let (tier, range) = range_of(plan, place);
        let fine = self.known[tier][range.clone()].iter().all(|byte| *byte == Byte::Written);
        assert!(fine, "step {step} reads bytes that are not live and written: {place:?}");
        self.memory[tier][range].to_vec()
    }

    fn put(&mut self, plan: &Plan, place: &BufferRange, bytes: &[u8], step: usize) {
        let (tier, range) = range_of(plan, place);
        assert_eq!(range.len(), bytes.len(), "step {step} writes as many bytes as there are");
        let fine = self.known[tier][range.clone()].iter().all(|byte| *byte != Byte::Free);
        assert!(fine, "step {step} writes bytes that are not live: {place:?}");
        self.memory[tier][range.clone()].copy_from_slice(bytes);
        self.known[tier][range].fill(Byte::Written);
    }

    /// Before a step only inputs hold anything; all other memory is poison.
    fn begin(&mut self, plan: &Plan) {
        let mut inputs: [Vec<Range<usize>>; TIERS.len()] = Default::default();
        for input in &plan.inputs {
            let (tier, range) = range_of(plan, &input.place);
            let fed = self.known[tier][range.clone()].iter().all(|byte| *byte == Byte::Written);
            assert!(fed, "an input was not written before the step: {:?}", input.value);
            inputs[tier].push(range);
        }
        for (tier, inputs) in inputs.into_iter().enumerate() {
            let mut kept = vec![false; self.memory[tier].len()];
            inputs.into_iter().for_each(|range| kept[range].fill(true));
            for (at, kept) in kept.into_iter().enumerate().filter(|(_, kept)| !kept) {
                debug_assert!(!kept);
                (self.memory[tier][at], self.known[tier][at]) = (POISON, Byte::Free);
            }
        }
        (self.live, self.run_peak) = Default::default();
    }

    fn alloc(&mut self, plan: &Plan, id: BufferId, step: usize, inputs: bool) {
        let buffer = plan.buffer(id);
        let tier = plan.spaces[buffer.space as usize].tier as usize;
        let range = buffer.offset as usize..(buffer.offset + buffer.bytes) as usize;
        for byte in &mut self.known[tier][range] {
            // The first buffers of a step are those that were fed.
            assert!(inputs || *byte == Byte::Free, "step {step} allocates bytes that are in use: {buffer:?}");
            if *byte == Byte::Free {
                *byte = Byte::Allocated;
            }
        }
        self.live[tier] += buffer.bytes;
        self.run_peak[tier] = self.run_peak[tier].max(self.live[tier]);
        self.peak[tier] = self.peak[tier].max(self.live[tier]);
    }

    fn free(&mut self, plan: &Plan, id: BufferId) {
        let buffer = plan.buffer(id);
        let tier = plan.spaces[buffer.space as usize].tier as usize;
        let range = buffer.offset as usize..(buffer.offset + buffer.bytes) as usize;
        self.memory[tier][range.clone()].fill(POISON);
        self.known[tier][range].fill(Byte::Free);
        self.live[tier] -= buffer.bytes;
    }

    fn act(&mut self, graph: &Graph, plan: &Plan, step: usize) -> Result<Option<Value>, RunError> {
        match &plan.steps[step].act {
            Act::Alloc(id) => {
                let inputs = plan.steps[..step].iter().all(|step| matches!(step.act, Act::Alloc(_)));
                self.alloc(plan, *id, step, inputs);
            }
            Act::Free(id) => self.free(plan, *id),
            Act::Copy { from, to } => {
                let bytes = self.get(plan, from, step);
                self.put(plan, to, &bytes, step);
            }
            Act::Add { from, into } => {
                let (from, into_bytes) = (self.get(plan, from, step), self.get(plan, into, step));
                let sum = floats(&into_bytes).zip(floats(&from)).flat_map(|(a, b)| (a + b).to_le_bytes());
                self.put(plan, into, &sum.collect::<Vec<u8>>(), step);
            }
            Act::Move { from, to } => {
                let bytes = self.get(plan, from, step);
                let (from, _) = range_of(plan, from);
                let (other, _) = range_of(plan, to);
                *self.moved.link(TIERS[from], TIERS[other]) += bytes.len() as u64;
                self.put(plan, to, &bytes, step);
            }
            Act::Run { node: id, ins, outs, .. } => {
                let (node, sizes) = (&graph.nodes[id.index()], plan.bindings());
                let tensor = |(v, place): (&Value, &BufferRange)| {
                    let ty = graph.ty(*v);
                    let data = widen(ty.dtype, &self.get(plan, place, step));
                    Tensor::new(&ty.bind(&sizes).unwrap(), data)
                };
                let operands: Vec<Tensor> = node.ins.iter().zip(ins).map(tensor).collect();
                let shapes = node.outs.iter().map(|v| graph.ty(*v).bind(&sizes).unwrap());
                let mut results: Vec<Tensor> = shapes.map(|shape| Tensor::zeros(&shape)).collect();
                let bound = node.op.def().bind(&sizes)?;
                let op = bound.as_ref().unwrap_or(&node.op);
                op.def().eval(&operands.iter().collect::<Vec<_>>(), &mut results);
                for ((v, place), result) in node.outs.iter().zip(outs).zip(&results) {
                    self.put(plan, place, &narrow(graph.ty(*v).dtype, &result.data), step);
                }
                let finite = results.iter().all(|result| result.data.iter().all(|x| x.is_finite()));
                return Ok((!finite).then_some(node.outs[0]));
            }
            Act::Exchange { node: id, own, result, .. } => {
                let node = &graph.nodes[id.index()];
                let what = collective_of(node, &plan.bindings()).expect("only collectives are exchanged");
                let own = own.as_ref().map(|own| Buffer(Mutex::new(self.get(plan, own, step))));
                let into = Buffer(Mutex::new(vec![0; result.bytes as usize]));
                let (_, peers) = self.peers.as_ref().expect("a device with collectives is connected");
                let own = own.as_ref().map(|own| own as &dyn ExchangeBuffer);
                peers.exchange(&what, own, &into, true).map_err(|lost| RunError::Kernel {
                    value: graph.value(node.outs[0]).name.clone(),
                    source: KernelError::PeerLost(lost),
                })?;
                let bytes = into.0.into_inner().unwrap();
                self.put(plan, result, &bytes, step);
            }
        }
        Ok(None)
    }
}

impl Device for CheckDevice {
    fn name(&self) -> &str {
        "check0"
    }

    fn host_threads(&self) -> usize {
        1
    }

    fn connect(&mut self, rank: u32, peers: Arc<dyn Peers>, _: bool) {
        self.peers = Some((rank, peers));
    }

    fn bytes(&self, tier: Tier) -> u64 {
        self.memory[tier as usize].len() as u64
    }

    fn grow(&mut self, tier: Tier, bytes: u64) -> Result<(), RunError> {
        if bytes > self.bytes(tier) {
            // New memory is all zeros, and may be taken for written: sessions do not write zeros into it.
            self.memory[tier as usize].resize(bytes as usize, 0);
            self.known[tier as usize].resize(bytes as usize, Byte::Written);
        }
        Ok(())
    }

    fn write(&mut self, tier: Tier, offset: u64, bytes: &[u8]) -> Result<(), RunError> {
        let range = offset as usize..offset as usize + bytes.len();
        self.memory[tier as usize][range.clone()].copy_from_slice(bytes);
        self.known[tier as usize][range].fill(Byte::Written);
        Ok(())
    }

    fn read(&self, tier: Tier, offset: u64, bytes: &mut [u8]) -> Result<(), RunError> {
        let range = offset as usize..offset as usize + bytes.len();
        let fine = self.known[tier as usize][range.clone()].iter().all(|byte| *byte == Byte::Written);
        assert!(fine, "bytes {range:?} of {tier:?} are read and hold nothing");
        bytes.copy_from_slice(&self.memory[tier as usize][range]);
        Ok(())
    }

    fn load(&mut self, graph: &Arc<Graph>, plan: &Arc<Plan>) -> Result<LoadedProgram, RunError> {
        self.programs.push((Arc::clone(graph), Arc::clone(plan)));
        Ok(LoadedProgram { id: ProgramId(self.programs.len() as u32 - 1), bytes: 1, slow: Vec::new() })
    }

    fn unload(&mut self, _: ProgramId) {}

    fn run(&mut self, program: ProgramId, steps: Range<usize>, observe: Observe<'_>) -> Result<(), RunError> {
        let (graph, plan) = self.programs[program.0 as usize].clone();
        if steps.start == 0 {
            self.begin(&plan);
        }
        let mut first = None;
        for step in steps {
            first = first.or(self.act(&graph, &plan, step)?);
        }
        if let Observe::NotFinite(found) = observe {
            *found = first;
        }
        Ok(())
    }

    fn moved(&self) -> Ledger {
        let from_peers = self.peers.as_ref().map_or(0, |(rank, peers)| peers.taken(*rank).iter().sum());
        Ledger { from_peers, ..self.moved }
    }

    fn run_peaks(&self) -> [u64; TIERS.len()] {
        self.run_peak
    }

    fn peaks(&self) -> [u64; TIERS.len()] {
        self.peak
    }

    fn record(&mut self, _: bool) {}

    fn records(&self) -> bool {
        false
    }

    fn recorded(&self) -> &[StepTime] {
        &[]
    }
}

/// Bytes that peers can only copy, like those of a device with memory of its own.
struct Buffer(Mutex<Vec<u8>>);

impl ExchangeBuffer for Buffer {
    fn bytes(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    fn read(&self, first: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.0.lock().unwrap()[first..first + into.len()]);
    }

    fn write(&self, first: usize, from: &[u8]) {
        self.0.lock().unwrap()[first..first + from.len()].copy_from_slice(from);
    }
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b))
}

fn widen(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    match dtype {
        DType::F32 => floats(bytes).map(f64::from).collect(),
        DType::I64 => bytes.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b) as f64).collect(),
        DType::U8 | DType::Bool => bytes.iter().map(|b| f64::from(*b)).collect(),
        other => panic!("no reference model has {other}"),
    }
}

fn narrow(dtype: DType, data: &[f64]) -> Vec<u8> {
    match dtype {
        DType::F32 => data.iter().flat_map(|x| (*x as f32).to_le_bytes()).collect(),
        DType::I64 => data.iter().flat_map(|x| (*x as i64).to_le_bytes()).collect(),
        DType::U8 | DType::Bool => data.iter().map(|x| *x as u8).collect(),
        other => panic!("no reference model has {other}"),
    }
}
