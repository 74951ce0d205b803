//! Fetching boxes of values that other devices hold, with as few collectives as possible.

use super::{Partitioner, extents};
use crate::devices::cut::mesh::{area, contains, intersect};
use crate::devices::cut::parts::NeededBoxes;
use crate::devices::cut::traffic::{ShardedLevels, slice_along};
use crate::devices::cut::{CutError, Sharding};
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::op::exchange::{Exchange, Piece};
use gulliver_graph::graph::op::slice::Slice;
use gulliver_graph::graph::{ObjectivePhase, Phase, Value, ValueInfo};
use gulliver_graph::spec::Region;

/// The boxes of one value that devices hold, with partial results at some levels.
#[derive(Clone)]
pub(super) struct Holding {
    values: Vec<Value>,
    boxes: Vec<Region>,
    /// Levels, as bits, at which groups hold different boxes, and partial results.
    along: u64,
    partial: u64,
}

impl Partitioner<'_> {
    /// The box of a value that every device needs, as a local value.
    pub(super) fn fetch(
        &mut self,
        v: Value,
        need: &NeededBoxes,
        at: ObjectivePhase,
    ) -> Result<Vec<Value>, CutError> {
        // An update reads the sum over the partials, which is another value.
        let late = at.0 == Phase::Update;
        if let Some(done) = self.fetched.get(&(v, need.clone(), late)) {
            return Ok(done.clone());
        }
        let holding = self.complete(v, need.unreduced, at)?;
        let has = |d: usize| contains(&holding.boxes[d], &need.boxes[d]);
        let cover = self.cover(v, need, &holding);
        let local = if holding.partial == need.unreduced && (0..self.devices.len()).all(has) {
            let own = |d| self.cropped(d, holding.values[d], &holding.boxes[d], &need.boxes[d], at);
            (0..holding.values.len()).map(own).collect()
        } else if cover == *need {
            self.gather(v, &holding, need, at)
        } else {
            let outer = self.fetch(v, &cover, at)?;
            let crop = |(d, outer): (usize, Value)| match contains(&cover.boxes[d], &need.boxes[d]) {
                true => self.cropped(d, outer, &cover.boxes[d], &need.boxes[d], at),
                false => self.cropped(d, holding.values[d], &holding.boxes[d], &need.boxes[d], at),
            };
            outer.into_iter().enumerate().map(crop).collect::<Vec<Value>>()
        };
        self.fetched.insert((v, need.clone(), late), local.clone());
        Ok(local)
    }

    /// The largest need of the same value that contains this one on every device that lacks its box.
    fn cover(&self, v: Value, need: &NeededBoxes, holding: &Holding) -> NeededBoxes {
        let complete = holding.partial == need.unreduced;
        let inside = |other: &&NeededBoxes| {
            let pairs = other.boxes.iter().zip(&need.boxes).zip(&holding.boxes);
            let covered = |((outer, inner), own): ((&Region, &Region), &Region)| {
                contains(outer, inner) || complete && contains(own, inner)
            };
            other.unreduced == need.unreduced && pairs.into_iter().all(covered)
        };
        self.needs_of[v.index()].iter().find(inside).unwrap_or(need).clone()
    }

    /// The boxes of a value that devices hold. If every device needs at least the box it holds, partial results are
    /// all-reduced, except at the `unreduced` levels.
    fn complete(&mut self, v: Value, unreduced: u64, at: ObjectivePhase) -> Result<Holding, CutError> {
        let late = at.0 == Phase::Update;
        if let Some(done) = self.reduced.get(&(v, unreduced, late)) {
            return Ok(done.clone());
        }
        let fed = self.fed[v.index()].is_some();
        let shardings: &[Sharding] = if fed { &[] } else { &self.cut.values[v.index()] };
        let ShardedLevels { partial, sums, along } = ShardedLevels::of(shardings);
        let summed = partial == 0 || partial == sums && self.sized.graph.ty(v).dtype == DType::F32;
        if !summed || unreduced & !partial != 0 {
            return Err(CutError::Partial(self.sized.graph.value(v).name.clone()));
        }
        let holding = Holding {
            values: self
                .devices
                .iter()
                .map(|d| d.local[v.index()].expect("made before it is read"))
                .collect(),
            boxes: (0..self.devices.len()).map(|d| self.held_box(v, d)).collect(),
            along,
            partial,
        };
        let reduced = partial & !unreduced;
        let needs = || self.needs_of[v.index()].iter().filter(|need| need.unreduced == unreduced);
        let all_contain =
            (0..self.devices.len()).all(|d| needs().any(|need| contains(&need.boxes[d], &holding.boxes[d])));
        if reduced == 0 || !all_contain {
            return Ok(holding);
        }
        let done = self.all_reduce(v, &holding, reduced, at);
        self.reduced.insert((v, unreduced, late), done.clone());
        Ok(done)
    }

    /// All-reduce: each holder of partial results of a box sums a slice of it, then gathers the other slices.
    fn all_reduce(&mut self, v: Value, holding: &Holding, reduced: u64, at: ObjectivePhase) -> Holding {
        let devices = self.devices.len();
        let peers = |d: usize| -> Vec<usize> {
            (0..devices).filter(|&from| self.mesh.differ(d, from) & !reduced == 0).collect()
        };
        let slice = |d: usize, of: usize| slice_along(&holding.boxes[d], &peers(d), of);
        let slices: Vec<Region> = (0..devices).map(|d| slice(d, d)).collect();
        let from = |d: usize| -> Vec<(usize, bool)> {
            peers(d).into_iter().enumerate().map(|(i, from)| (from, i > 0)).collect()
        };
        let sources: Vec<Vec<(usize, bool)>> = (0..devices).map(from).collect();
        let sums = self.exchange(v, &holding.values, &holding.boxes, &slices, &sources, at);
        let from = |d: usize| peers(d).into_iter().map(|from| (from, false)).collect();
        let sources: Vec<Vec<(usize, bool)>> = (0..devices).map(from).collect();
        let values = self.exchange(v, &sums, &slices, &holding.boxes, &sources, at);
        Holding { values, partial: holding.partial & !reduced, ..holding.clone() }
    }

    /// Fetches boxes from the nearest holders; partial results are added in order.
    fn gather(&mut self, v: Value, holding: &Holding, need: &NeededBoxes, at: ObjectivePhase) -> Vec<Value> {
        let adding = holding.partial & !need.unreduced;
        let moving = holding.along | adding;
        let sources = |d: usize| -> Vec<(usize, bool)> {
            let near = |from: &usize| self.mesh.differ(d, *from) & !moving == 0;
            let all: Vec<usize> = (0..self.devices.len()).filter(near).collect();
            // The first source of a box is copied, the others are added.
            let first =
                |i: usize| !all[..i].iter().any(|other| self.mesh.differ(*other, all[i]) & !adding == 0);
            all.iter().enumerate().map(|(i, from)| (*from, !first(i))).collect()
        };
        let sources: Vec<Vec<(usize, bool)>> = (0..self.devices.len()).map(sources).collect();
        // A device that holds its box fetches nothing.
        let wanted: Vec<Region> = (0..self.devices.len())
            .map(|d| match adding == 0 && contains(&holding.boxes[d], &need.boxes[d]) {
                true => vec![0..0; need.boxes[d].len().max(1)],
                false => need.boxes[d].clone(),
            })
            .collect();
        let received = self.exchange(v, &holding.values, &holding.boxes, &wanted, &sources, at);
        let or_own = |(d, received): (usize, Value)| match wanted[d] == need.boxes[d] {
            true => received,
            false => self.cropped(d, holding.values[d], &holding.boxes[d], &need.boxes[d], at),
        };
        received.into_iter().enumerate().map(or_own).collect()
    }

    /// A collective: every device gets a box assembled from those of its sources, in order; `true` marks sources that
    /// are added. Devices that neither send nor receive take no part and keep their value.
    fn exchange(
        &mut self,
        v: Value,
        values: &[Value],
        holds: &[Region],
        wanted: &[Region],
        sources: &[Vec<(usize, bool)>],
        at: ObjectivePhase,
    ) -> Vec<Value> {
        let info = self.sized.graph.value(v);
        let dtype = info.ty.dtype;
        let pieces: Vec<Vec<Piece>> = wanted
            .iter()
            .zip(sources)
            .map(|(wanted, sources)| {
                let pieces = sources.iter().filter_map(|&(from, add)| {
                    let own = &holds[from];
                    if own.len() != wanted.len() {
                        return None;
                    }
                    let mut common = wanted.clone();
                    intersect(&mut common, own);
                    let first = |of: &Region| common.iter().zip(of).map(|(c, r)| c.start - r.start).collect();
                    (area(&common) > 0).then(|| Piece {
                        from: from as u32,
                        of: extents(own),
                        source: first(own),
                        target: first(wanted),
                        extent: extents(&common),
                        add,
                    })
                });
                pieces.collect()
            })
            .collect();
        let gives = |d: usize| {
            pieces.iter().enumerate().any(|(to, list)| to != d && list.iter().any(|p| p.from == d as u32))
        };
        let comes = |d: usize| gives(d) || !pieces[d].is_empty();
        let ranks: Vec<u32> = (0..self.devices.len()).filter(|&d| comes(d)).map(|d| d as u32).collect();
        let collective = self.collectives;
        self.collectives += 1;
        let mut received = Vec::with_capacity(self.devices.len());
        for (d, pieces) in pieces.into_iter().enumerate() {
            if !ranks.contains(&(d as u32)) {
                received.push(values[d]);
                continue;
            }
            let (shape, ranks) = (extents(&wanted[d]), ranks.clone());
            let op = Exchange { collective, rank: d as u32, ranks, dtype, shape, pieces };
            received.push(self.devices[d].to.add(op, vec![values[d]], info.name.clone(), at));
        }
        received
    }

    /// The part `to` of a local value whose box is `from`.
    fn cropped(&mut self, d: usize, v: Value, from: &Region, to: &Region, at: ObjectivePhase) -> Value {
        let (mut v, mut now) = (v, from.clone());
        // An empty box need not lie within `from`.
        if area(to) == 0 && area(from) > 0 {
            let ValueInfo { name, ty, .. } = self.devices[d].to.graph().value(v).clone();
            let (collective, rank, dtype) = (self.collectives, d as u32, ty.dtype);
            self.collectives += 1;
            let (ranks, shape, pieces) = (vec![rank], extents(to), Vec::new());
            let op = Exchange { collective, rank, ranks, dtype, shape, pieces };
            return self.devices[d].to.add(op, vec![v], name, at);
        }
        for axis in 0..from.len() {
            if now[axis] == to[axis] {
                continue;
            }
            let start = to[axis].start - now[axis].start;
            now[axis] = to[axis].clone();
            let op = Slice { axis, start, len: to[axis].len().into(), step: 1 };
            let device = &mut self.devices[d].to;
            v = device.add(op, vec![v], device.graph().value(v).name.clone(), at);
        }
        v
    }
}
