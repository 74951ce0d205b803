//! What every device does of a node that is cut at several levels: the boxes it reads and writes, and the
//! sharding of the results. All follows from the node's spec; illegal combinations have no parts.

use super::mesh::{DeviceMesh, area, held_box, intersect, split_range, whole_box};
use super::sized::{NodeKind, SUMS};
use super::{CutDevice, Sharding, unit};
use gulliver_graph::spec::{AxisId, Combine, Index, Region, Spec};
use std::ops::Range;

/// What the groups of one level do of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeCut {
    /// Each does all of it.
    Repeat,
    /// Its share along an axis.
    Axis(AxisId),
    /// All of it, on operands that are partial sums; so are the results.
    Unreduced,
}

/// What the devices need of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NeededBoxes {
    /// By device.
    pub boxes: Vec<Region>,
    /// Bit `l`: partial sums over the groups of level `l` are wanted as they are.
    pub unreduced: u64,
}

/// A node over all devices.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeParts {
    /// By operand.
    pub ins: Vec<NeededBoxes>,
    /// By result, then device: what it writes. Equal to what it holds by the shardings.
    pub outs: Vec<Vec<Region>>,
    /// By result, then level.
    pub shardings: Vec<Vec<Sharding>>,
    /// By device, the share of all points.
    pub share: Vec<f64>,
}

/// The parts of a node that is cut so at every level, or why it cannot be.
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
            // The groups of merged dimensions need not lie where equal shares of the dimension would.
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

/// For every axis that some level divides, or else for one, the positions that are left for a device, out of
/// how many.
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
    // All positions of an axis are a part too: what no position reads is not asked for.
    if let (true, Some(&axis)) = (ranges.is_empty(), kind.axes.first()) {
        let extent = kind.spec.cut_extent(axis, &kind.extents, &outs);
        if extent > 0 {
            ranges.push((axis, 0..extent, extent));
        }
    }
    ranges
}

/// Seconds of the slowest device.
pub(crate) fn seconds(kind: &NodeKind, parts: &NodeParts, units: &[CutDevice], mesh: &DeviceMesh) -> f64 {
    if kind.view {
        return 0.0;
    }
    let on = |device: usize| {
        let reads = parts.ins.iter().map(|need| area(&need.boxes[device]));
        let writes = parts.outs.iter().map(|boxes| area(&boxes[device]));
        let bytes: u64 = reads.chain(writes).zip(&kind.element).map(|(n, e)| n * e).sum();
        unit(units, device).rates.seconds(kind.flops * parts.share[device], bytes as f64)
    };
    (0..mesh.devices()).map(on).fold(0.0, f64::max)
}

/// Every choice of a node at one level, where the others are as they are. Without `repeat`, all groups do all
/// of it only if it cannot be divided. Never empty if the others alone are legal.
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

/// Where an input may live, and what its devices then have.
pub(crate) type ResidenceChoices = Vec<(Vec<Sharding>, NeededBoxes)>;

/// Every place an input may live at one level, where the others are as they are.
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

/// The axis of the spec of a part that is this axis of the whole's spec. The numbers of axes differ where the
/// extent of some axis became one, so it is found by where it stands.
pub fn same_axis(spec: &Spec, axis: AxisId, part: &Spec) -> Option<AxisId> {
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
