//! What every device does of a node that is cut at several levels: the boxes it reads and writes, and the
//! spread of the results. All follows from the node's spec; illegal combinations have no parts.

use super::bound::{NodeKind, SUMS};
use super::region::{Grid, area, held, intersect, split, whole};
use super::{Spread, Unit, unit};
use gulliver_graph::spec::{AxisId, Combine, Index, Region, Spec};
use std::ops::Range;

/// What the groups of one level do of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Choice {
    /// Each does all of it.
    All,
    /// Its share along an axis.
    Axis(AxisId),
    /// All of it, on operands that are partial sums; so are the results.
    Unreduced,
}

/// What the devices need of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Need {
    /// By device.
    pub boxes: Vec<Region>,
    /// Bit `l`: partial sums over the groups of level `l` are wanted as they are.
    pub unreduced: u64,
}

/// A node over all devices.
#[derive(Clone, Debug, PartialEq)]
pub struct Parts {
    /// By operand.
    pub ins: Vec<Need>,
    /// By result, then device: what it writes. Equal to what it holds by the spreads.
    pub outs: Vec<Vec<Region>>,
    /// By result, then level.
    pub spreads: Vec<Vec<Spread>>,
    /// By device, the share of all points.
    pub share: Vec<f64>,
}

/// The parts of a node that is cut so at every level, or why it cannot be.
pub fn parts_of(kind: &NodeKind, choices: &[Choice], grid: &Grid) -> Result<Parts, String> {
    let spec = &kind.spec;
    let spreads = spreads(kind, choices)?;
    let unreduced = choices.iter().enumerate().filter(|(_, c)| **c == Choice::Unreduced);
    let unreduced = unreduced.fold(0, |bits, (l, _)| bits | 1 << l);
    let ins: Vec<&[usize]> = kind.ins.iter().map(Vec::as_slice).collect();
    let outs: Vec<&[usize]> = kind.outs.iter().map(Vec::as_slice).collect();
    let mut parts = Parts {
        ins: vec![Need { boxes: Vec::new(), unreduced }; ins.len()],
        outs: vec![Vec::new(); outs.len()],
        spreads,
        share: Vec::new(),
    };
    for device in 0..grid.devices() {
        let mut reads: Vec<Region> = ins.iter().map(|s| whole(s)).collect();
        let mut writes: Vec<Region> = outs.iter().map(|s| whole(s)).collect();
        let mut share = 1.0;
        for (axis, range, extent) in ranges(kind, choices, grid, device) {
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
            if region != held(&kind.outs[o], &parts.spreads[o], grid, device) {
                return Err(format!("result {o} is not divided in proportion to the shares"));
            }
            parts.outs[o].push(region);
        }
        parts.ins.iter_mut().zip(reads).for_each(|(need, region)| need.boxes.push(region));
        parts.share.push(share);
    }
    Ok(parts)
}

/// The spread of every result at every level.
fn spreads(kind: &NodeKind, choices: &[Choice]) -> Result<Vec<Vec<Spread>>, String> {
    let mut spreads = vec![Vec::with_capacity(choices.len()); kind.outs.len()];
    for choice in choices {
        let all = match choice {
            Choice::All => vec![Spread::Whole; kind.outs.len()],
            Choice::Unreduced if kind.linear => vec![Spread::Partial(SUMS); kind.outs.len()],
            Choice::Unreduced => return Err("it is not linear in its operands".into()),
            Choice::Axis(axis) => {
                let name = |a: AxisId| kind.spec.axes.get(a.0).map_or("unknown", |x| &x.name).to_string();
                let cut = Some(axis).filter(|a| kind.axes.contains(a)).and_then(|a| kind.spec.cut(*a));
                let Some(cut) = cut else { return Err(format!("axis {} is not to be cut", name(*axis))) };
                let spread = |c: &Combine| match c {
                    Combine::Concat(d) => Spread::Along(*d),
                    Combine::Reduce(r) => Spread::Partial(*r),
                };
                cut.outputs.iter().map(spread).collect()
            }
        };
        spreads.iter_mut().zip(all).for_each(|(list, spread)| list.push(spread));
    }
    Ok(spreads)
}

/// For every axis that some level divides, or else for one, the positions that are left for a device, out of
/// how many.
pub(crate) fn ranges(
    kind: &NodeKind,
    choices: &[Choice],
    grid: &Grid,
    device: usize,
) -> Vec<(AxisId, Range<usize>, usize)> {
    let outs: Vec<&[usize]> = kind.outs.iter().map(Vec::as_slice).collect();
    let mut ranges: Vec<(AxisId, Range<usize>, usize)> = Vec::new();
    for ((choice, level), &group) in choices.iter().zip(grid.levels).zip(&grid.groups[device]) {
        let Choice::Axis(axis) = choice else { continue };
        let at = ranges.iter().position(|(a, ..)| a == axis).unwrap_or_else(|| {
            let extent = kind.spec.cut_extent(*axis, &kind.extents, &outs);
            ranges.push((*axis, 0..extent, extent));
            ranges.len() - 1
        });
        ranges[at].1 = split(&ranges[at].1, &level.shares, group);
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
pub(crate) fn seconds(kind: &NodeKind, parts: &Parts, units: &[Unit], grid: &Grid) -> f64 {
    if kind.view {
        return 0.0;
    }
    let on = |device: usize| {
        let reads = parts.ins.iter().map(|need| area(&need.boxes[device]));
        let writes = parts.outs.iter().map(|boxes| area(&boxes[device]));
        let bytes: u64 = reads.chain(writes).zip(&kind.element).map(|(n, e)| n * e).sum();
        unit(units, device).rates.seconds(kind.flops * parts.share[device], bytes as f64)
    };
    (0..grid.devices()).map(on).fold(0.0, f64::max)
}

/// Every choice of a node at one level, where the others are as they are. Without `repeat`, all groups do all
/// of it only if it cannot be divided. Never empty if the others alone are legal.
pub(crate) fn options_at(
    kind: &NodeKind,
    choices: &[Choice],
    level: usize,
    grid: &Grid,
    repeat: bool,
) -> Vec<(Choice, Parts)> {
    let with = |choice: Choice| {
        let mut choices = choices.to_vec();
        choices[level] = choice;
        parts_of(kind, &choices, grid).ok().map(|parts| (choice, parts))
    };
    let divided: Vec<_> = kind.axes.iter().filter_map(|a| with(Choice::Axis(*a))).collect();
    let all = if repeat || divided.is_empty() { with(Choice::All) } else { None };
    let linear = if kind.linear { with(Choice::Unreduced) } else { None };
    all.into_iter().chain(divided).chain(linear).collect()
}

/// Where an input may live, and what its devices then have.
pub(crate) type Homes = Vec<(Vec<Spread>, Need)>;

/// Every place an input may live at one level, where the others are as they are.
pub(crate) fn residences_at(shape: &[usize], spreads: &[Spread], level: usize, grid: &Grid) -> Homes {
    let all = std::iter::once(Spread::Whole).chain((0..shape.len()).map(Spread::Along));
    let with = |spread: Spread| {
        let mut spreads = spreads.to_vec();
        spreads[level] = spread;
        let boxes: Vec<Region> = (0..grid.devices()).map(|d| held(shape, &spreads, grid, d)).collect();
        let divided = spreads.iter().any(|s| *s != Spread::Whole);
        let empty = divided && boxes.iter().any(|b| area(b) == 0);
        (!empty).then_some((spreads, Need { boxes, unreduced: 0 }))
    };
    all.filter_map(with).collect()
}

/// The axis of the spec of a part that is this axis of the whole's spec. The numbers of axes differ where the
/// extent of some axis became one, so it is found by where it stands.
pub fn same_axis(spec: &Spec, axis: AxisId, part: &Spec) -> Option<AxisId> {
    let first = |index: &Index| match index {
        Index::Axis(a) => Some(*a),
        Index::One => None,
        Index::Merge(axes) => axes.first().copied(),
        Index::Affine { terms, .. } => terms.first().map(|t| t.1),
    };
    let pairs = |a: &[Vec<Index>], b: &[Vec<Index>]| {
        let operands = a.iter().zip(b).flat_map(|(a, b)| a.iter().zip(b));
        operands.filter(|(a, _)| first(a) == Some(axis)).find_map(|(_, b)| first(b))
    };
    pairs(&spec.inputs, &part.inputs).or_else(|| pairs(&spec.outputs, &part.outputs))
}
