//! Group and batch normalisation and their gradients: each channel of each sample is one run. Sums of batch
//! normalisation go on by lanes from sample to sample, those of others take the samples in order; without
//! positions a batch is a matrix whose columns are summed in lane order.

use super::reduce::over_rows;
use super::{Lowered, TensorType, all_f32};
use crate::kernel::norm::{self, Affine, Columns, Moments, Pairs, Slopes, Totals};
use crate::kernel::{math, reduce};
use crate::lower::call::Call;
use crate::team::SharedMut;
use gulliver_graph::graph::op::batch_norm::BatchNorm;
use gulliver_graph::graph::op::batch_norm_grad::BatchNormGrad;
use gulliver_graph::graph::op::group_norm::GroupNorm;
use gulliver_graph::graph::op::group_norm_grad::GroupNormGrad;
use std::ops::Range;

/// Extents of `x[n, c, spatial…]`.
#[derive(Clone, Copy)]
struct Extents {
    n: usize,
    c: usize,
    space: usize,
}

impl Extents {
    fn of(x: &TensorType) -> Extents {
        Extents { n: x.shape[0], c: x.shape[1], space: x.shape[2..].iter().product() }
    }

    fn len(self) -> usize {
        self.n * self.c * self.space
    }

    /// The run of one channel of one sample.
    fn run(self, sample: usize, channel: usize) -> Range<usize> {
        let at = (sample * self.c + channel) * self.space;
        at..at + self.space
    }

    /// Divides the channels over the team and calls `f` with blocks of at most [`BLOCK`] of them, several
    /// where the run of one would leave most of a page unread.
    fn channel_blocks(self, call: &Call<'_>, f: &(dyn Fn(Range<usize>) + Sync)) {
        const NEAR: usize = 1024;
        let step = (NEAR / self.space.max(1)).clamp(1, BLOCK);
        over_rows(call, self.c, self.len(), &|range| {
            for first in range.clone().step_by(step) {
                f(first..range.end.min(first + step));
            }
        });
    }

    /// Where the runs of a block of channels lie, sample by sample.
    fn runs(self, block: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let block = block.clone();
        (0..self.n).map(move |n| self.run(n, block.start).start..self.run(n, block.end).start)
    }
}

/// Most channels whose statistics are gathered at once.
const BLOCK: usize = 64;

pub(super) fn group_norm(op: &GroupNorm, ins: &[TensorType]) -> Option<Lowered> {
    let (e, groups, eps) = (Extents::of(&ins[0]), op.groups, op.eps);
    let channels = e.c / groups;
    all_f32(ins).then(|| {
        Lowered::plain(move |call| {
            let isa = call.team.isa();
            let [x, gamma, beta] = [0, 1, 2].map(|i| call.input::<f32>(i));
            let [y, mean, rstd] = [0, 1, 2].map(|o| SharedMut::new(call.output::<f32>(o)));
            over_rows(call, e.n * groups, e.len(), &|range| {
                for set in range {
                    let (first, size) = (set % groups * channels, channels * e.space);
                    let at = set * size..(set + 1) * size;
                    let x = &x[at.clone()];
                    let m = norm::moments(isa, x, eps);
                    // SAFETY: sets are disjoint.
                    let (y, mean, rstd) =
                        unsafe { (y.slice(at), mean.slice(set..set + 1), rstd.slice(set..set + 1)) };
                    (mean[0], rstd[0]) = (m.mean, m.rstd);
                    let (gamma, beta) = (&gamma[first..][..channels], &beta[first..][..channels]);
                    if e.space == 1 {
                        norm::normalize(isa, x, m, Affine::Each(gamma, beta), y);
                        continue;
                    }
                    let space = e.space.max(1);
                    let runs = x.chunks_exact(space).zip(y.chunks_exact_mut(space));
                    for ((x, y), (&gamma, &beta)) in runs.zip(gamma.iter().zip(beta)) {
                        norm::normalize(isa, x, m, Affine::Same(gamma, beta), y);
                    }
                }
            });
            Ok(())
        })
    })
}

pub(super) fn group_norm_grad(op: &GroupNormGrad, ins: &[TensorType]) -> Option<Lowered> {
    let (e, groups) = (Extents::of(&ins[0]), op.groups);
    if !all_f32(ins) {
        return None;
    }
    if e.space == 1 {
        return Some(Lowered::plain(move |call| {
            group_norm_grad_rows(call, e, groups);
            Ok(())
        }));
    }
    let channels = e.c / groups;
    Some(Lowered::with_scratch(2 * e.n * e.c, move |call| {
        let isa = call.team.isa();
        let [x, gamma, mean, rstd, dy] = [0, 1, 2, 3, 4].map(|i| call.input::<f32>(i));
        let dx = SharedMut::new(call.output::<f32>(0));
        let (dgamma, dbeta) = (call.output::<f32>(1), call.output::<f32>(2));
        // Per sample and channel the sums of dy and of dy·x̂.
        let sums = call.scratch::<f32>();
        let shared = SharedMut::new(&mut *sums);
        over_rows(call, e.n * groups, e.len(), &|range| {
            for set in range {
                let (sample, first) = (set / groups, set % groups * channels);
                let m = Moments { mean: mean[set], rstd: rstd[set] };
                let slot = 2 * (sample * e.c + first);
                // SAFETY: sets are disjoint.
                let sums = unsafe { shared.slice(slot..slot + 2 * channels) };
                let blocks =
                    || (first..first + channels).step_by(BLOCK).map(|c| c..(c + BLOCK).min(first + channels));
                let at =
                    |block: &Range<usize>| e.run(sample, block.start).start..e.run(sample, block.end - 1).end;
                for block in blocks() {
                    let mut pairs = [Pairs::ZERO; BLOCK];
                    let pairs = &mut pairs[..block.len()];
                    norm::add_pairs(isa, &x[at(&block)], &dy[at(&block)], e.space, &[m; BLOCK], pairs);
                    let to = sums[2 * (block.start - first)..].chunks_exact_mut(2);
                    to.zip(pairs).for_each(|(to, pair)| to.copy_from_slice(&pair.sums()));
                }
                let (mut level, mut slope) = (0.0, 0.0);
                for (&gamma, pair) in gamma[first..].iter().zip(sums.chunks_exact(2)) {
                    level = gamma.mul_add(pair[0], level);
                    slope = gamma.mul_add(pair[1], slope);
                }
                let count = (channels * e.space) as f32;
                let slopes = Slopes { level: level / count, slope: slope / count };
                for block in blocks() {
                    let mut each = [(m, 0.0, slopes); BLOCK];
                    each.iter_mut().zip(&gamma[block.clone()]).for_each(|(each, &gamma)| each.1 = gamma);
                    // SAFETY: as above.
                    let dx = unsafe { dx.slice(at(&block)) };
                    let each = &each[..block.len()];
                    norm::input_grad_runs(isa, &x[at(&block)], &dy[at(&block)], e.space, each, dx);
                }
            }
        });
        dgamma.fill(0.0);
        dbeta.fill(0.0);
        for sums in sums.chunks_exact(2 * e.c.max(1)) {
            for (c, pair) in sums.chunks_exact(2).enumerate() {
                dbeta[c] += pair[0];
                dgamma[c] += pair[1];
            }
        }
        Ok(())
    }))
}

/// Without positions: every set is a short row with a gain per element.
fn group_norm_grad_rows(call: &mut Call<'_>, e: Extents, groups: usize) {
    let isa = call.team.isa();
    let channels = e.c / groups;
    let [x, gamma, mean, rstd, dy] = [0, 1, 2, 3, 4].map(|i| call.input::<f32>(i));
    let [dx, dgamma, dbeta] = [0, 1, 2].map(|o| SharedMut::new(call.output::<f32>(o)));
    over_rows(call, groups, e.len(), &|range| {
        let own = range.start * channels..range.end * channels;
        // SAFETY: groups are disjoint.
        let (dgamma, dbeta) = unsafe { (dgamma.slice(own.clone()), dbeta.slice(own)) };
        dgamma.fill(0.0);
        dbeta.fill(0.0);
        for (n, group) in (0..e.n).flat_map(|n| range.clone().map(move |group| (n, group))) {
            let set = n * groups + group;
            let at = set * channels..(set + 1) * channels;
            let gamma = &gamma[group * channels..(group + 1) * channels];
            let own = (group - range.start) * channels..(group + 1 - range.start) * channels;
            let (dgamma, dbeta) = (&mut dgamma[own.clone()], &mut dbeta[own]);
            let (x, dy) = (&x[at.clone()], &dy[at.clone()]);
            let m = Moments { mean: mean[set], rstd: rstd[set] };
            let [level, slope] = norm::gained_sums(isa, x, dy, gamma, m).map(|s| s / channels as f32);
            // SAFETY: as above.
            let dx = unsafe { dx.slice(at) };
            norm::row_grad(isa, x, dy, m, gamma, Slopes { level, slope }, dx, dgamma, Some(dbeta));
        }
    });
}

pub(super) fn batch_norm(op: &BatchNorm, ins: &[TensorType]) -> Option<Lowered> {
    let (e, eps) = (Extents::of(&ins[0]), op.eps);
    if !all_f32(ins) {
        return None;
    }
    if e.space == 1 {
        return Some(Lowered::with_scratch(e.c, move |call| {
            batch_norm_columns(call, e, eps);
            Ok(())
        }));
    }
    Some(Lowered::plain(move |call| {
        let isa = call.team.isa();
        let [x, gamma, beta] = [0, 1, 2].map(|i| call.input::<f32>(i));
        let [y, mean, variance] = [0, 1, 2].map(|o| SharedMut::new(call.output::<f32>(o)));
        e.channel_blocks(call, &|block| {
            // SAFETY: channels are disjoint.
            let (mean, variance) = unsafe { (mean.slice(block.clone()), variance.slice(block.clone())) };
            let (mut sums, mut squares) = ([Totals::ZERO; BLOCK], [Totals::ZERO; BLOCK]);
            let runs = || e.runs(&block).filter(|at| !at.is_empty());
            runs().for_each(|at| norm::add_totals(isa, &x[at], e.space, &mut sums[..block.len()]));
            mean.iter_mut().zip(&sums).for_each(|(mean, sum)| *mean = sum.mean(e.n * e.space));
            runs().for_each(|at| norm::add_squares(isa, &x[at], e.space, mean, &mut squares));
            let mut channels = [(Moments { mean: 0.0, rstd: 0.0 }, 0.0, 0.0); BLOCK];
            for (i, c) in block.clone().enumerate() {
                variance[i] = squares[i].mean(e.n * e.space);
                let rstd = math::rsqrt(variance[i] + eps);
                channels[i] = (Moments { mean: mean[i], rstd }, gamma[c], beta[c]);
            }
            for at in e.runs(&block).filter(|at| !at.is_empty()) {
                // SAFETY: as above.
                let y = unsafe { y.slice(at.clone()) };
                norm::normalize_runs(isa, &x[at], e.space, &channels[..block.len()], y);
            }
        });
        Ok(())
    }))
}

/// Without positions: the columns of a matrix.
fn batch_norm_columns(call: &mut Call<'_>, e: Extents, eps: f32) {
    let [x, gamma, beta] = [0, 1, 2].map(|i| call.input::<f32>(i));
    let (y, mean, variance) = (call.output::<f32>(0), call.output::<f32>(1), call.output::<f32>(2));
    let rstd = call.scratch::<f32>();
    reduce::sum_columns(call.team, x, e.n, mean);
    mean.iter_mut().for_each(|m| *m /= e.n as f32);
    reduce::sum_sq_diff_columns(call.team, x, mean, e.n, variance);
    for (variance, rstd) in variance.iter_mut().zip(&mut *rstd) {
        *variance /= e.n as f32;
        *rstd = math::rsqrt(*variance + eps);
    }
    let columns = Columns { mean, rstd, gamma };
    let (y, isa) = (SharedMut::new(y), call.team.isa());
    over_rows(call, e.n, e.len(), &|range| {
        for n in range {
            let at = n * e.c..(n + 1) * e.c;
            // SAFETY: rows are disjoint.
            let y = unsafe { y.slice(at.clone()) };
            norm::normalize_row(isa, &x[at], columns, beta, y);
        }
    });
}

pub(super) fn batch_norm_grad(op: &BatchNormGrad, ins: &[TensorType]) -> Option<Lowered> {
    let (e, eps) = (Extents::of(&ins[0]), op.eps);
    if !all_f32(ins) {
        return None;
    }
    if e.space == 1 {
        return Some(Lowered::with_scratch(3 * e.c, move |call| {
            batch_norm_grad_columns(call, e, eps);
            Ok(())
        }));
    }
    Some(Lowered::plain(move |call| {
        let isa = call.team.isa();
        let [x, gamma, mean, variance, dy] = [0, 1, 2, 3, 4].map(|i| call.input::<f32>(i));
        let [dx, dgamma, dbeta] = [0, 1, 2].map(|o| SharedMut::new(call.output::<f32>(o)));
        let count = (e.n * e.space) as f32;
        e.channel_blocks(call, &|block| {
            // SAFETY: channels are disjoint.
            let (dgamma, dbeta) = unsafe { (dgamma.slice(block.clone()), dbeta.slice(block.clone())) };
            let mut moments = [Moments { mean: 0.0, rstd: 0.0 }; BLOCK];
            for (m, c) in moments.iter_mut().zip(block.clone()) {
                *m = Moments { mean: mean[c], rstd: math::rsqrt(variance[c] + eps) };
            }
            let mut pairs = [Pairs::ZERO; BLOCK];
            for at in e.runs(&block).filter(|at| !at.is_empty()) {
                let pairs = &mut pairs[..block.len()];
                norm::add_pairs(isa, &x[at.clone()], &dy[at], e.space, &moments, pairs);
            }
            let mut channels = [(moments[0], 0.0, Slopes { level: 0.0, slope: 0.0 }); BLOCK];
            for (i, c) in block.clone().enumerate() {
                [dbeta[i], dgamma[i]] = pairs[i].sums();
                let level = gamma[c] * dbeta[i] / count;
                channels[i] = (moments[i], gamma[c], Slopes { level, slope: gamma[c] * dgamma[i] / count });
            }
            for at in e.runs(&block).filter(|at| !at.is_empty()) {
                // SAFETY: as above.
                let dx = unsafe { dx.slice(at.clone()) };
                let channels = &channels[..block.len()];
                norm::input_grad_runs(isa, &x[at.clone()], &dy[at], e.space, channels, dx);
            }
        });
        Ok(())
    }))
}

/// Without positions: the columns of a matrix.
fn batch_norm_grad_columns(call: &mut Call<'_>, e: Extents, eps: f32) {
    let [x, gamma, mean, variance, dy] = [0, 1, 2, 3, 4].map(|i| call.input::<f32>(i));
    let (dx, dgamma, dbeta) = (call.output::<f32>(0), call.output::<f32>(1), call.output::<f32>(2));
    let (rstd, rest) = call.scratch::<f32>().split_at_mut(e.c);
    let (level, slope) = rest.split_at_mut(e.c);
    for (rstd, variance) in rstd.iter_mut().zip(variance) {
        *rstd = math::rsqrt(variance + eps);
    }
    let (isa, columns) = (call.team.isa(), Columns { mean, rstd, gamma });
    reduce::sum_columns(call.team, dy, e.n, dbeta);
    let sums = SharedMut::new(&mut *dgamma);
    over_rows(call, e.c, e.len(), &|range| {
        // SAFETY: ranges are disjoint.
        norm::normal_dots(isa, x, dy, columns, range.start, unsafe { sums.slice(range.clone()) });
    });
    for c in 0..e.c {
        level[c] = gamma[c] * dbeta[c] / e.n as f32;
        slope[c] = gamma[c] * dgamma[c] / e.n as f32;
    }
    let dx = SharedMut::new(dx);
    over_rows(call, e.n, e.len(), &|range| {
        for n in range {
            let at = n * e.c..(n + 1) * e.c;
            // SAFETY: rows are disjoint.
            let dx = unsafe { dx.slice(at.clone()) };
            norm::input_grad_row(isa, &x[at.clone()], &dy[at], columns, level, slope, dx);
        }
    });
}
