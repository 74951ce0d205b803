//! Layer, RMS, group and batch normalisation and their gradients: statistics and results of a set while
//! it is in the cache, sets in parallel. Gradients of gain and bias are sums over rows in lane order
//! (layer, RMS), or per-sample sums added in order of the samples (group, batch).

use super::reduce::over_rows;
use super::{Lowered, TensorType, all_f32};
use crate::call::Call;
use crate::kernel::norm::{self, Affine, Columns, Gain, Moments, Slopes};
use crate::kernel::{LANES, math, reduce};
use crate::team::SharedMut;
use gulliver_graph::op::batch_norm::BatchNorm;
use gulliver_graph::op::batch_norm_grad::BatchNormGrad;
use gulliver_graph::op::group_norm::GroupNorm;
use gulliver_graph::op::group_norm_grad::GroupNormGrad;
use gulliver_graph::op::layer_norm::LayerNorm;
use gulliver_graph::op::rms_norm::RmsNorm;
use std::ops::Range;

pub(super) fn layer_norm(op: &LayerNorm, ins: &[TensorType]) -> Option<Lowered> {
    let (width, eps) = (ins[1].len(), op.eps);
    all_f32(ins).then(|| {
        Lowered::plain(move |call| {
            let isa = call.team.isa();
            let [x, gamma, beta] = [0, 1, 2].map(|i| call.input::<f32>(i));
            let [y, mean, rstd] = [0, 1, 2].map(|o| SharedMut::new(call.output::<f32>(o)));
            over_rows(call, mean.len(), y.len(), &|range| {
                for r in range {
                    let x = &x[r * width..(r + 1) * width];
                    let m = norm::moments(isa, x, eps);
                    // SAFETY: rows are disjoint.
                    let (y, mean, rstd) = unsafe {
                        (y.slice(r * width..(r + 1) * width), mean.slice(r..r + 1), rstd.slice(r..r + 1))
                    };
                    (mean[0], rstd[0]) = (m.mean, m.rstd);
                    norm::normalize(isa, x, m, Affine::Each(gamma, beta), y);
                }
            });
            Ok(())
        })
    })
}

pub(super) fn rms_norm(op: &RmsNorm, ins: &[TensorType]) -> Option<Lowered> {
    let (width, eps) = (ins[1].len(), op.eps);
    all_f32(ins).then(|| {
        Lowered::plain(move |call| {
            let isa = call.team.isa();
            let [x, gamma] = [0, 1].map(|i| call.input::<f32>(i));
            let [y, rstd] = [0, 1].map(|o| SharedMut::new(call.output::<f32>(o)));
            over_rows(call, rstd.len(), y.len(), &|range| {
                for r in range {
                    let x = &x[r * width..(r + 1) * width];
                    let m = norm::root_mean_square(isa, x, eps);
                    // SAFETY: rows are disjoint.
                    let (y, rstd) = unsafe { (y.slice(r * width..(r + 1) * width), rstd.slice(r..r + 1)) };
                    rstd[0] = m.rstd;
                    norm::normalize(isa, x, m, Affine::EachGain(gamma), y);
                }
            });
            Ok(())
        })
    })
}

pub(super) fn layer_norm_grad(ins: &[TensorType]) -> Option<Lowered> {
    let (width, rows) = (ins[1].len(), ins[2].len());
    all_f32(ins).then(|| {
        Lowered::with_scratch(2 * rows.min(LANES) * width, move |call| {
            let [x, gamma, mean, rstd, dy] = [0, 1, 2, 3, 4].map(|i| call.input::<f32>(i));
            let rows = Rows { x, gamma, mean: Some(mean), rstd, dy };
            rows.grad(call);
            Ok(())
        })
    })
}

pub(super) fn rms_norm_grad(ins: &[TensorType]) -> Option<Lowered> {
    let (width, rows) = (ins[1].len(), ins[2].len());
    all_f32(ins).then(|| {
        Lowered::with_scratch(rows.min(LANES) * width, move |call| {
            let [x, gamma, rstd, dy] = [0, 1, 2, 3].map(|i| call.input::<f32>(i));
            let rows = Rows { x, gamma, mean: None, rstd, dy };
            rows.grad(call);
            Ok(())
        })
    })
}

/// Operands of the gradient of a normalisation of rows; RMS normalisation has no mean and no bias.
struct Rows<'a> {
    x: &'a [f32],
    gamma: &'a [f32],
    mean: Option<&'a [f32]>,
    rstd: &'a [f32],
    dy: &'a [f32],
}

impl Rows<'_> {
    /// One pass: a thread takes whole lanes of rows, so that it can also add up the lanes of dgamma and
    /// dbeta in order.
    fn grad(&self, call: &mut Call<'_>) {
        let (width, rows) = (self.gamma.len(), self.rstd.len());
        let lanes = rows.min(LANES);
        let (dx, dgamma) = (call.output::<f32>(0), call.output::<f32>(1));
        let dbeta = self.mean.map(|_| call.output::<f32>(2));
        if width == 0 || rows == 0 {
            dgamma.fill(0.0);
            dbeta.into_iter().for_each(|d| d.fill(0.0));
            return;
        }
        let scratch = call.scratch::<f32>();
        scratch.fill(0.0);
        let (gains, biases) = scratch.split_at_mut(lanes * width);
        let dx = SharedMut::new(dx);
        let (gain_lanes, bias_lanes) = (SharedMut::new(&mut *gains), SharedMut::new(&mut *biases));
        let isa = call.team.isa();
        over_rows(call, lanes, rows * width, &|mine| {
            for lane in mine {
                for r in (lane..rows).step_by(LANES) {
                    let at = r * width..(r + 1) * width;
                    // SAFETY: lanes, and so rows, are disjoint.
                    let (dx, gains) =
                        unsafe { (dx.slice(at.clone()), gain_lanes.slice(lane * width..(lane + 1) * width)) };
                    let (x, dy) = (&self.x[at.clone()], &self.dy[at]);
                    let m = Moments { mean: self.mean.map_or(0.0, |mean| mean[r]), rstd: self.rstd[r] };
                    let [level, slope] =
                        norm::gained_sums(isa, x, dy, self.gamma, m).map(|s| s / width as f32);
                    let level = if self.mean.is_some() { level } else { 0.0 };
                    norm::input_grad(isa, x, dy, m, Gain::Each(self.gamma), Slopes { level, slope }, dx);
                    if self.mean.is_some() {
                        // SAFETY: as above.
                        let biases = unsafe { bias_lanes.slice(lane * width..(lane + 1) * width) };
                        norm::gather(isa, x, dy, m, gains, biases);
                    } else {
                        norm::gather_gain(isa, x, dy, m, gains);
                    }
                }
            }
        });
        norm::fold_lanes(isa, gains, width);
        dgamma.copy_from_slice(&gains[..width]);
        if let Some(dbeta) = dbeta {
            norm::fold_lanes(isa, biases, width);
            dbeta.copy_from_slice(&biases[..width]);
        }
    }
}

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

    /// Divides the channels over the team and calls `f` with blocks of them, several where the run of
    /// one would leave most of a page unread.
    fn channel_blocks(self, call: &Call<'_>, f: &(dyn Fn(Range<usize>) + Sync)) {
        const NEAR: usize = 1024;
        let step = (NEAR / self.space.max(1)).max(1);
        over_rows(call, self.c, self.len(), &|range| {
            for first in range.clone().step_by(step) {
                f(first..range.end.min(first + step));
            }
        });
    }

    /// Sample, then position in the block and channel, in the order of memory.
    fn runs(self, block: &Range<usize>) -> impl Iterator<Item = (usize, (usize, usize))> {
        let block = block.clone();
        (0..self.n).flat_map(move |n| block.clone().enumerate().map(move |channel| (n, channel)))
    }
}

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
                    let (sample, first) = (set / groups, set % groups * channels);
                    let size = channels * e.space;
                    let m = norm::moments(isa, &x[set * size..(set + 1) * size], eps);
                    // SAFETY: sets are disjoint.
                    let (mean, rstd) = unsafe { (mean.slice(set..set + 1), rstd.slice(set..set + 1)) };
                    (mean[0], rstd[0]) = (m.mean, m.rstd);
                    for c in first..first + channels {
                        let at = e.run(sample, c);
                        // SAFETY: as above.
                        let y = unsafe { y.slice(at.clone()) };
                        norm::normalize(isa, &x[at], m, Affine::Same(gamma[c], beta[c]), y);
                    }
                }
            });
            Ok(())
        })
    })
}

pub(super) fn group_norm_grad(op: &GroupNormGrad, ins: &[TensorType]) -> Option<Lowered> {
    let (e, groups) = (Extents::of(&ins[0]), op.groups);
    let channels = e.c / groups;
    all_f32(ins).then(|| {
        Lowered::with_scratch(2 * e.n * e.c, move |call| {
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
                    let (mut level, mut slope) = (0.0, 0.0);
                    for c in first..first + channels {
                        let at = e.run(sample, c);
                        let pair = norm::sums(isa, &x[at.clone()], &dy[at], m);
                        level = gamma[c].mul_add(pair[0], level);
                        slope = gamma[c].mul_add(pair[1], slope);
                        let slot = 2 * (sample * e.c + c);
                        // SAFETY: sets are disjoint.
                        unsafe { shared.slice(slot..slot + 2) }.copy_from_slice(&pair);
                    }
                    let count = (channels * e.space) as f32;
                    let slopes = Slopes { level: level / count, slope: slope / count };
                    for c in first..first + channels {
                        let at = e.run(sample, c);
                        // SAFETY: as above.
                        let dx = unsafe { dx.slice(at.clone()) };
                        norm::input_grad(isa, &x[at.clone()], &dy[at], m, Gain::Same(gamma[c]), slopes, dx);
                    }
                }
            });
            dgamma.fill(0.0);
            dbeta.fill(0.0);
            for sums in sums.chunks_exact(2 * e.c.max(1)) {
                for ((dgamma, dbeta), pair) in
                    dgamma.iter_mut().zip(dbeta.iter_mut()).zip(sums.chunks_exact(2))
                {
                    *dbeta += pair[0];
                    *dgamma += pair[1];
                }
            }
            Ok(())
        })
    })
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
        let count = (e.n * e.space) as f32;
        e.channel_blocks(call, &|block| {
            // SAFETY: channels are disjoint.
            let (mean, variance) = unsafe { (mean.slice(block.clone()), variance.slice(block.clone())) };
            mean.fill(0.0);
            variance.fill(0.0);
            for (n, (i, c)) in e.runs(&block) {
                mean[i] += reduce::sum(isa, &x[e.run(n, c)]);
            }
            mean.iter_mut().for_each(|m| *m /= count);
            for (n, (i, c)) in e.runs(&block) {
                variance[i] += reduce::sum_sq_diff(isa, &x[e.run(n, c)], mean[i]);
            }
            variance.iter_mut().for_each(|v| *v /= count);
            for (n, (i, c)) in e.runs(&block) {
                let m = Moments { mean: mean[i], rstd: math::rsqrt(variance[i] + eps) };
                // SAFETY: as above.
                let y = unsafe { y.slice(e.run(n, c)) };
                norm::normalize(isa, &x[e.run(n, c)], m, Affine::Same(gamma[c], beta[c]), y);
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
            dgamma.fill(0.0);
            dbeta.fill(0.0);
            let moments = |c: usize| Moments { mean: mean[c], rstd: math::rsqrt(variance[c] + eps) };
            for (n, (i, c)) in e.runs(&block) {
                let [level, slope] = norm::sums(isa, &x[e.run(n, c)], &dy[e.run(n, c)], moments(c));
                dbeta[i] += level;
                dgamma[i] += slope;
            }
            for (n, (i, c)) in e.runs(&block) {
                let level = gamma[c] * dbeta[i] / count;
                let slopes = Slopes { level, slope: gamma[c] * dgamma[i] / count };
                let at = e.run(n, c);
                // SAFETY: as above.
                let dx = unsafe { dx.slice(at.clone()) };
                norm::input_grad(isa, &x[at.clone()], &dy[at], moments(c), Gain::Same(gamma[c]), slopes, dx);
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
