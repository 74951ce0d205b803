//! The cost of moving one value for any set of needs. The cost of each need, and which boxes lie within which others, is
//! computed once; the cost of a set is then a few additions.

use super::mesh::{DeviceMesh, area, common, contains};
use super::parts::NeededBoxes;
use super::traffic::{HeldBoxes, all_reduce};

/// At most 64 different needs of a value; sets of them are bits.
pub(crate) struct NeedPool<'a> {
    mesh: &'a DeviceMesh<'a>,
    needs: Vec<&'a NeededBoxes>,
    /// By device, then need: the needs whose boxes contain its box.
    within: Vec<u64>,
    /// The different sets of unreduced levels, each with the needs that have it.
    kept: Vec<(u64, u64)>,
}

impl<'a> NeedPool<'a> {
    /// A pool of different needs.
    pub fn new(needs: Vec<&'a NeededBoxes>, mesh: &'a DeviceMesh<'a>) -> NeedPool<'a> {
        let mut kept: Vec<(u64, u64)> = Vec::new();
        for (i, need) in needs.iter().enumerate() {
            match kept.iter_mut().find(|(unreduced, _)| *unreduced == need.unreduced) {
                Some((_, set)) => *set |= 1 << i,
                None => kept.push((need.unreduced, 1 << i)),
            }
        }
        let mut within = Vec::with_capacity(mesh.devices() * needs.len());
        for d in 0..mesh.devices() {
            for (i, need) in needs.iter().enumerate() {
                let own = &need.boxes[d];
                let holds = |j: &usize| {
                    let other = &needs[*j].boxes[d];
                    let same = needs[*j].unreduced == need.unreduced;
                    *j != i && same && contains(other, own) && (*j < i || !contains(own, other))
                };
                let nothing = area(own) == 0;
                let all = (0..needs.len()).filter(holds).fold(0, |bits, j| bits | 1 << j);
                within.push(if nothing { u64::MAX } else { all });
            }
        }
        NeedPool { mesh, needs, within, kept }
    }
}

/// The cost of moving a value to all devices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MoveCost {
    /// Of all devices together.
    pub sum: f64,
    /// Of the device with most.
    pub most: f64,
}

/// Costs of moving a value with one sharding.
pub(crate) struct MovePrices<'a> {
    pool: &'a NeedPool<'a>,
    /// Needs of partial sums that the value does not have.
    refused: u64,
    /// By device, then need: the cost of fetching it from reduced and from partial results.
    complete: Vec<f64>,
    partial: Vec<f64>,
    /// By set of unreduced levels, then device: the cost of all-reducing partial results, if there are any.
    reducing: Vec<Option<Vec<f64>>>,
    /// By device: the needs whose boxes contain the box that it holds.
    all: Vec<u64>,
}

impl<'a> MovePrices<'a> {
    /// `weights`: the cost of an element over the links of each level.
    pub fn new(pool: &'a NeedPool<'a>, held: &HeldBoxes, weights: &[f64]) -> MovePrices<'a> {
        let (devices, count) = (held.holds.len(), pool.needs.len());
        let weigh = |to: usize, from: usize, n: u64| n as f64 * weights[pool.mesh.link(to, from)];
        let refused = (0..count).filter(|&i| pool.needs[i].unreduced & !held.levels.sums != 0);
        let mut priced = MovePrices {
            pool,
            refused: refused.fold(0, |bits, i| bits | 1 << i),
            complete: vec![0.0; devices * count],
            partial: vec![0.0; devices * count],
            reducing: Vec::new(),
            all: vec![0; devices],
        };
        for (d, own) in held.holds.iter().enumerate() {
            for (i, need) in pool.needs.iter().enumerate() {
                let (needed, reduced) = (&need.boxes[d], held.levels.partial & !need.unreduced);
                priced.all[d] |= u64::from(contains(needed, own)) << i;
                let there = contains(own, needed);
                if there && reduced == 0 {
                    continue;
                }
                for (from, other) in held.holds.iter().enumerate().filter(|(from, _)| *from != d) {
                    let differ = pool.mesh.differ(d, from);
                    if differ & !(held.levels.along | reduced) != 0 {
                        continue;
                    }
                    let cost = weigh(d, from, common(needed, other));
                    priced.partial[d * count + i] += cost;
                    if differ & !held.levels.along == 0 {
                        priced.complete[d * count + i] += cost;
                    }
                }
            }
        }
        for (unreduced, _) in &pool.kept {
            let reduced = held.levels.partial & !unreduced;
            let mut each = vec![0.0; devices];
            if reduced != 0 {
                all_reduce(&held.holds, reduced, pool.mesh, &mut |to, from, n| {
                    each[to] += weigh(to, from, n)
                });
            }
            priced.reducing.push((reduced != 0).then_some(each));
        }
        priced
    }

    /// The cost of a set of needs; `None` if one of them cannot be met.
    pub fn of(&self, set: u64) -> Option<MoveCost> {
        if set & self.refused != 0 {
            return None;
        }
        let count = self.pool.needs.len();
        let (mut sum, mut most) = (0.0, 0.0f64);
        let mut reducing = [None; 64];
        for (k, (each, (_, kind))) in self.reducing.iter().zip(&self.pool.kept).enumerate() {
            let all_contain = || self.all.iter().all(|all| all & kind & set != 0);
            reducing[k] = each.as_ref().filter(|_| all_contain());
        }
        for d in 0..self.all.len() {
            let mut cost = 0.0;
            for (k, (_, kind)) in self.pool.kept.iter().enumerate().filter(|(_, (_, kind))| kind & set != 0) {
                cost += reducing[k].map_or(0.0, |each| each[d]);
                let fetching = if reducing[k].is_some() { &self.complete } else { &self.partial };
                let mut left = kind & set;
                while left != 0 {
                    let i = left.trailing_zeros() as usize;
                    left &= left - 1;
                    if self.pool.within[d * count + i] & set == 0 {
                        cost += fetching[d * count + i];
                    }
                }
            }
            sum += cost;
            most = most.max(cost);
        }
        Some(MoveCost { sum, most })
    }
}
