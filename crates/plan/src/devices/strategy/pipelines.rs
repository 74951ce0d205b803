//! Pipelines: the packs of nodes of each device, their turns, and the planners of the devices.

use super::DeviceSet;
use crate::devices::error::JobPlanError;
use crate::devices::options::DeviceOptions;
use crate::devices::pipeline::{Line, Placement, Style, pipeline, scheduled, spread, turns};
use crate::devices::planner::{DeviceGraph, Planner};
use crate::devices::predict::each;
use crate::devices::schedule::{ScheduleDevice, ScheduleMachine};
use crate::document::job::{Rank, WorkSharing};
use crate::document::topology::Site;
use crate::step::outline::slice_of;
use crate::time::cost::Rates;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, Phase, Value};
use gulliver_graph::kinds::Kinds;
use std::collections::HashMap;
use std::sync::Arc;

/// How a job is laid out as a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pipelined {
    /// Packs of nodes; pack `i` is on device `i` modulo the number of devices.
    pub packs: usize,
    /// In which order a device does its packs.
    pub style: Style,
}

/// The planners of all devices, each with the options of one, for inputs of about these sizes (of the whole
/// batch). Every device takes part in all partials.
pub fn pipelined(
    train: &Graph,
    evaluate: Option<&Graph>,
    set: &DeviceSet,
    sizes: &Bindings,
    how: Pipelined,
) -> Result<Vec<Planner>, JobPlanError> {
    let options = set.first();
    let slice = slice_of(sizes, options.partials.max(1))?;
    let pack_of = evenly(train, how.packs, &slice, &options.rates);
    pipelined_as(train, evaluate, set, sizes, (pack_of, how.style))
}

/// The packs, by node, of the at most `most` pipelines with the fastest predicted steps on these devices, for inputs of
/// about these sizes (of the whole batch).
pub fn packs(
    train: &Graph,
    set: &DeviceSet,
    sizes: &Bindings,
    most: usize,
) -> Result<Vec<Vec<u32>>, JobPlanError> {
    let options = set.first();
    let slice = slice_of(sizes, options.partials.max(1))?;
    if train.nodes.iter().any(|node| node.objective > 0) {
        // Several objectives form no chain of layers: packs go around the devices once, twice, ….
        let around = (1..=most).map(|times| evenly(train, times * set.devices.len(), &slice, &options.rates));
        let mut all: Vec<Vec<u32>> = around.collect();
        all.dedup();
        return Ok(all);
    }
    let search = |lost: u64, besides: u64| {
        let machine = machine(&set.devices, |memory| (memory - memory / 100 * lost).saturating_sub(besides));
        scheduled(train, &slice, &machine, &options.rates, options.partials.max(1), most)
    };
    if set.devices.iter().all(|device| device.memory.is_none()) {
        return Ok(search(0, 0)?);
    }
    // With memory for scratch, gradients and gaps between buffers, which schedules do not count; then without.
    let besides = besides(train, &slice, options)?;
    let found = [(LOST, besides), (0, besides), (0, 0)].map(|(lost, besides)| search(lost, besides));
    // The best of each, then the second of each, ….
    let mut all: Vec<Vec<u32>> = Vec::new();
    let places = (0..most).flat_map(|place| found.iter().flatten().filter_map(move |packs| packs.get(place)));
    for packs in places {
        if !all.contains(packs) {
            all.push(packs.clone());
        }
    }
    all.truncate(most);
    let [.., all_memory] = found;
    if all.is_empty() { Ok(all_memory?) } else { Ok(all) }
}

/// Hundredths of memory that gaps between buffers may take.
const LOST: u64 = 25;

/// Bytes that schedules do not count: the working memory of a kernel, and a gradient that is not summed yet.
fn besides(train: &Graph, slice: &Bindings, options: &DeviceOptions) -> Result<u64, JobPlanError> {
    let mut scratch = 0;
    for id in Kinds::of(train).nodes {
        let node = &train.nodes[id.index()];
        if !node.op.def().is_view() {
            scratch = scratch.max((options.scratch)(train, node, slice, options.threads)?);
        }
    }
    let gradient = train.weights().map(|(_, info)| info.ty.bytes().bind(slice).unwrap_or(0)).max();
    Ok(scratch + gradient.unwrap_or(0) as u64)
}

/// The pack of every node, for packs of about equal time.
fn evenly(train: &Graph, packs: usize, slice: &Bindings, rates: &Rates) -> Vec<u32> {
    let bytes = |v: Value| train.ty(v).bytes().bind(slice).unwrap_or(0) as f64;
    let seconds = rates.of_nodes(train, slice);
    spread(train, packs, |id| seconds[id.index()], bytes)
}

/// The devices as schedules see them; `left` gives the usable part of their memory.
fn machine(devices: &[DeviceOptions], left: impl Fn(u64) -> u64) -> ScheduleMachine {
    let first = &devices[0];
    let box_of = first.topology.as_deref();
    // Bytes per second of one device alone, and of all devices together.
    let rate = |from: Site, to: Site, otherwise: f64| {
        let links = box_of.map_or(&[][..], |topology| topology.route(from, to));
        let alone = links.iter().map(|&link| box_of.map_or(otherwise, |t| t.links()[link as usize].rate));
        let alone = alone.fold(otherwise, f64::min);
        let each = box_of.and_then(|topology| topology.rate(from, to)).map_or(alone, |rate| rate.min(alone));
        (alone, each * devices.len() as f64)
    };
    let (own, links) = (Site::Device(0), first.links);
    let (to_device, down) = rate(Site::Host, own, links.to_device);
    let (to_host, up) = rate(own, Site::Host, links.to_host);
    let peer = rate(own, Site::Device(1.min(devices.len() as u32 - 1)), links.from_peers).0;
    let device = |options: &DeviceOptions| ScheduleDevice {
        memory: options.memory.map_or(u64::MAX / 4, &left),
        speed: options.rates.flops / first.rates.flops,
        to_device,
        to_host,
    };
    ScheduleMachine { devices: devices.iter().map(device).collect(), uplink: down.min(up), peer }
}

/// The planners of all devices, for given packs of nodes.
pub fn pipelined_as(
    train: &Graph,
    evaluate: Option<&Graph>,
    set: &DeviceSet,
    sizes: &Bindings,
    (pack_of, style): (Vec<u32>, Style),
) -> Result<Vec<Planner>, JobPlanError> {
    let ranks = set.devices.len() as u32;
    let options = set.first();
    let slice = slice_of(sizes, options.partials.max(1))?;
    let cost = options.rates.of_nodes(train, &slice);
    let packs = pack_of.iter().max().map_or(1, |last| last + 1);
    let placement = Placement {
        devices: ranks,
        packs: (0..packs).map(|pack| pack % ranks.max(1)).collect(),
        pack_of,
        residences: HashMap::new(),
    };
    let mut seconds_of = vec![[0.0; 2]; packs as usize];
    for (id, (node, pack)) in train.nodes.iter().zip(&placement.pack_of).enumerate() {
        if node.phase != Phase::Update {
            seconds_of[*pack as usize][usize::from(node.phase == Phase::Backward)] += cost[id];
        }
    }
    let lines = pipeline(train, &placement)?;
    let turns = turns(&lines, &placement, options.partials.max(1), style, &seconds_of)?;
    let residences = residences(&lines);
    let evaluated = evaluate.map(|graph| evaluation(graph, &placement, residences)).transpose()?;
    let whole = Arc::new(train.clone());
    let whole_evaluation = evaluate.map(|graph| Arc::new(graph.clone()));
    let mut evaluated = evaluated.map(Vec::into_iter);
    let graphs =
        (0..ranks).zip(&set.devices).zip(lines).zip(turns).map(|(((rank, options), line), turns)| {
            let place = Rank { rank, ranks, sharing: WorkSharing::Layers };
            let options = DeviceOptions { rank: Some(place), ..options.clone() };
            let train = DeviceGraph { graph: line.graph, turns: Some(turns), whole: Arc::clone(&whole) };
            let line = evaluated.as_mut().and_then(Iterator::next);
            let evaluate = line.zip(whole_evaluation.clone());
            let evaluate =
                evaluate.map(|(line, whole)| DeviceGraph { graph: line.graph, turns: None, whole });
            (train, evaluate, options)
        });
    each(&*set.for_each, graphs.collect(), |(train, evaluate, options)| {
        Ok(Planner::of_graphs(train, evaluate, HashMap::new(), options)?)
    })
}

/// The device of every weight and state.
fn residences(lines: &[Line]) -> HashMap<String, u32> {
    let mut residences = HashMap::new();
    for (device, line) in lines.iter().enumerate() {
        for (_, role, info) in line.graph.inputs() {
            if role.persists() {
                residences.insert(info.name.clone(), device as u32);
            }
        }
    }
    residences
}

/// The evaluation graphs: each node is on the device of its weights, or else of its operands.
fn evaluation(
    graph: &Graph,
    trained: &Placement,
    residences: HashMap<String, u32>,
) -> Result<Vec<Line>, JobPlanError> {
    let mut device_of: Vec<u32> = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let weight = node.ins.iter().find_map(|v| residences.get(&graph.value(*v).name));
        let mut made = node.ins.iter().filter_map(|v| Some(device_of[graph.maker(*v)?.index()]));
        device_of.push(weight.copied().or(made.next_back()).unwrap_or(0));
    }
    let packs = (0..trained.devices).collect();
    let placement = Placement { devices: trained.devices, packs, pack_of: device_of, residences };
    Ok(pipeline(graph, &placement)?)
}
