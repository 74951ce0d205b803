//! The part of a cut node on each device: the boxes it reads and writes, and the sharding of the results. All of it
//! follows from the node's spec; illegal combinations are errors.

use super::mesh::{DeviceMesh, area, held_box, intersect, split_range, whole_box};
use super::sized::{NodeKind, SUMS};
use super::{CutDevice, Sharding, device_at};
use gulliver_graph::spec::{AxisId, Combine, Index, Region, Spec};
use std::ops::Range;

/// How the groups of one level share a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeCut {
    /// Each computes the whole node.
    Repeat,
    /// Each computes its share along an axis.
    Axis(AxisId),
    /// Each computes the whole node on partial sums; the results are partial sums.
    Unreduced,
}

/// The box of a value that each device needs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NeededBoxes {
    /// By device.
    pub boxes: Vec<Region>,
    /// Bit `l`: partial sums over the groups of level `l` are needed unreduced.
    pub unreduced: u64,
}

/// The parts of a node on all devices.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeParts {
    /// What it reads, by operand.
    pub ins: Vec<NeededBoxes>,
    /// What it writes, by result, then device: the box that the device holds by the sharding.
    pub outs: Vec<Vec<Region>>,
    /// Of the results, by result, then level.
    pub shardings: Vec<Vec<Sharding>>,
    /// The share of the work, by device.
    pub share: Vec<f64>,
}

impl NodeParts {
    /// Bytes of the operands and results on a device.
    pub(crate) fn bytes(&self, kind: &NodeKind, device: usize) -> u64 {
        let reads = self.ins.iter().map(|need| area(&need.boxes[device]));
        let writes = self.outs.iter().map(|boxes| area(&boxes[device]));
        reads.chain(writes).zip(&kind.element).map(|(n, e)| n * e).sum()
    }
}

/// The parts of a node with these choices by level, or why they are illegal.
pub fn node_parts(kind: &NodeKind, choices: &[NodeCut], mesh: &DeviceMesh) -> Result<NodeParts, String> {
    let spec = &kind.spec;
    let shardings = shardings(kind, choices)?;
    let unreduced = choices.iter().enumerate().filter(|(_, c)| **c == NodeCut::Unreduced);
    let unreduced = unreduced.fold(0, |bits, (l, _)| bits | 1 << l);
    let ins: Vec<&[usize]> = kind.ins.iter().map(Vec::as_slice).collect();
    let outs: Vec<&[usize]> = kind.outs.iter().map(Vec::as_slice).collect();
    let mut parts = NodeParts {
        ins: vec![NeededBoxes { boxes: Vec::new(), unreduced }; ins.len()],
        outs: vec![Vec::new(); outs.len()],
        shardings,
        share: Vec::new(),
    };
    for device in 0..mesh.devices() {
        let mut reads: Vec<Region> = ins.iter().map(|s| whole_box(s)).collect();
        let mut writes: Vec<Region> = outs.iter().map(|s| whole_box(s)).collect();
        let mut share = 1.0;
        for (axis, range, extent) in ranges(kind, choices, mesh, device) {
            if range.is_empty() {
                let name = &spec.axes[axis.0].name;
                return Err(format!("axis {name} has fewer positions than parts"));
            }
            share *= range.len() as f64 / extent.max(1) as f64;
            let part = spec.part(axis, range, &kind.extents, &ins, &outs);
            reads.iter_mut().zip(&part.inputs).for_each(|(all, part)| intersect(all, part));
            writes.iter_mut().zip(&part.outputs).for_each(|(all, part)| intersect(all, part));
        }
        for (o, region) in writes.into_iter().enumerate() {
            // Parts of merged dimensions may differ from equal shares of the dimension.
            if region != held_box(&kind.outs[o], &parts.shardings[o], mesh, device) {
                return Err(format!("result {o} is not divided in proportion to the shares"));
            }
            parts.outs[o].push(region);
        }
        parts.ins.iter_mut().zip(reads).for_each(|(need, region)| need.boxes.push(region));
        parts.share.push(share);
    }
    Ok(parts)
}

/// The sharding of every result at every level.
fn shardings(kind: &NodeKind, choices: &[NodeCut]) -> Result<Vec<Vec<Sharding>>, String> {
    let mut shardings = vec![Vec::with_capacity(choices.len()); kind.outs.len()];
    for choice in choices {
        let all = match choice {
            NodeCut::Repeat => vec![Sharding::Replicated; kind.outs.len()],
            NodeCut::Unreduced if kind.linear => vec![Sharding::Partial(SUMS); kind.outs.len()],
            NodeCut::Unreduced => return Err("it is not linear in its operands".into()),
            NodeCut::Axis(axis) => {
                let name = |a: AxisId| kind.spec.axes.get(a.0).map_or("unknown", |x| &x.name).to_string();
                let cut = Some(axis).filter(|a| kind.axes.contains(a)).and_then(|a| kind.spec.cut(*a));
                let Some(cut) = cut else { return Err(format!("axis {} is not to be cut", name(*axis))) };
                let sharding = |c: &Combine| match c {
                    Combine::Concat(d) => Sharding::Split(*d),
                    Combine::Reduce(r) => Sharding::Partial(*r),
                };
                cut.outputs.iter().map(sharding).collect()
            }
        };
        shardings.iter_mut().zip(all).for_each(|(list, sharding)| list.push(sharding));
    }
    Ok(shardings)
}

/// The range of a device and the extent, for each axis that some level divides; for one whole axis if none does.
pub(crate) fn ranges(
    kind: &NodeKind,
    choices: &[NodeCut],
    mesh: &DeviceMesh,
    device: usize,
) -> Vec<(AxisId, Range<usize>, usize)> {
    let outs: Vec<&[usize]> = kind.outs.iter().map(Vec::as_slice).collect();
    let mut ranges: Vec<(AxisId, Range<usize>, usize)> = Vec::new();
    for ((choice, level), &group) in choices.iter().zip(mesh.levels).zip(&mesh.groups[device]) {
        let NodeCut::Axis(axis) = choice else { continue };
        let at = ranges.iter().position(|(a, ..)| a == axis).unwrap_or_else(|| {
            let extent = kind.spec.cut_extent(*axis, &kind.extents, &outs);
            ranges.push((*axis, 0..extent, extent));
            ranges.len() - 1
        });
        ranges[at].1 = split_range(&ranges[at].1, &level.shares, group);
    }
    // A whole axis is a part too: elements that no position reads are not needed.
    if let (true, Some(&axis)) = (ranges.is_empty(), kind.axes.first()) {
        let extent = kind.spec.cut_extent(axis, &kind.extents, &outs);
        if extent > 0 {
            ranges.push((axis, 0..extent, extent));
        }
    }
    ranges
}

/// Seconds of a node on the slowest device.
pub(crate) fn seconds(kind: &NodeKind, parts: &NodeParts, devices: &[CutDevice], mesh: &DeviceMesh) -> f64 {
    if kind.view {
        return 0.0;
    }
    let on = |device: usize| {
        let rates = device_at(devices, device).rates;
        rates.seconds(kind.flops * parts.share[device], parts.bytes(kind, device) as f64)
    };
    (0..mesh.devices()).map(on).fold(0.0, f64::max)
}

/// The legal choices of a node at one level, given its choices at the others. Without `repeat`, groups repeat it only if
/// it cannot be divided. Never empty if the other levels are legal.
pub(crate) fn options_at(
    kind: &NodeKind,
    choices: &[NodeCut],
    level: usize,
    mesh: &DeviceMesh,
    repeat: bool,
) -> Vec<(NodeCut, NodeParts)> {
    let with = |choice: NodeCut| {
        let mut choices = choices.to_vec();
        choices[level] = choice;
        node_parts(kind, &choices, mesh).ok().map(|parts| (choice, parts))
    };
    let divided: Vec<_> = kind.axes.iter().filter_map(|a| with(NodeCut::Axis(*a))).collect();
    let all = if repeat || divided.is_empty() { with(NodeCut::Repeat) } else { None };
    let linear = if kind.linear { with(NodeCut::Unreduced) } else { None };
    all.into_iter().chain(divided).chain(linear).collect()
}

/// Shardings of a weight or state, each with the boxes of the devices.
pub(crate) type ResidenceChoices = Vec<(Vec<Sharding>, NeededBoxes)>;

/// The legal shardings of a weight or state at one level, given those at the others.
pub(crate) fn residences_at(
    shape: &[usize],
    shardings: &[Sharding],
    level: usize,
    mesh: &DeviceMesh,
) -> ResidenceChoices {
    let all = std::iter::once(Sharding::Replicated).chain((0..shape.len()).map(Sharding::Split));
    let with = |sharding: Sharding| {
        let mut shardings = shardings.to_vec();
        shardings[level] = sharding;
        let boxes: Vec<Region> = (0..mesh.devices()).map(|d| held_box(shape, &shardings, mesh, d)).collect();
        let divided = shardings.iter().any(|s| *s != Sharding::Replicated);
        let empty = divided && boxes.iter().any(|b| area(b) == 0);
        (!empty).then_some((shardings, NeededBoxes { boxes, unreduced: 0 }))
    };
    all.filter_map(with).collect()
}

/// The axis in the spec of a part that corresponds to `axis` of the whole spec, found by its position in the operands:
/// numbers of axes differ where an extent became one.
pub(crate) fn same_axis(spec: &Spec, axis: AxisId, part: &Spec) -> Option<AxisId> {
    let pairs = |a: &[Vec<Index>], b: &[Vec<Index>]| {
        let operands = a.iter().zip(b).flat_map(|(a, b)| a.iter().zip(b));
        operands.filter(|(a, _)| first_axis(a) == Some(axis)).find_map(|(_, b)| first_axis(b))
    };
    pairs(&spec.inputs, &part.inputs).or_else(|| pairs(&spec.outputs, &part.outputs))
}

/// The first axis of an index expression.
pub(crate) fn first_axis(index: &Index) -> Option<AxisId> {
    match index {
        Index::Axis(axis) => Some(*axis),
        Index::One => None,
        Index::Merge(axes) => axes.first().copied(),
        Index::Affine { terms, .. } => terms.first().map(|term| term.1),
    }
}
