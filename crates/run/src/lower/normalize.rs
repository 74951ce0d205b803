//! Layer and RMS normalisation and their gradients: statistics and results of a row while it is in the
//! cache, rows in parallel. Gradients of gain and bias are sums over rows in lane order.

use super::reduce::over_rows;
use super::{Lowered, TensorType, all_f32};
use crate::kernel::LANES;
use crate::kernel::norm::{self, Affine, Moments, Slopes};
use crate::lower::call::Call;
use crate::team::SharedMut;
use gulliver_graph::graph::op::layer_norm::LayerNorm;
use gulliver_graph::graph::op::rms_norm::RmsNorm;

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
            // In the order of memory: the thread's lanes of each group of rows.
            let groups = (0..rows).step_by(LANES);
            for (r, lane) in groups.flat_map(|r| mine.clone().map(move |lane| (r + lane, lane))) {
                if r >= rows {
                    break;
                }
                let (at, own) = (r * width..(r + 1) * width, lane * width..(lane + 1) * width);
                // SAFETY: lanes, and so rows, are disjoint.
                let (dx, gains) = unsafe { (dx.slice(at.clone()), gain_lanes.slice(own.clone())) };
                let (x, dy) = (&self.x[at.clone()], &self.dy[at]);
                let m = Moments { mean: self.mean.map_or(0.0, |mean| mean[r]), rstd: self.rstd[r] };
                let [level, slope] = norm::gained_sums(isa, x, dy, self.gamma, m).map(|s| s / width as f32);
                let level = if self.mean.is_some() { level } else { 0.0 };
                // SAFETY: as above.
                let biases = self.mean.map(|_| unsafe { bias_lanes.slice(own) });
                norm::row_grad(isa, x, dy, m, self.gamma, Slopes { level, slope }, dx, gains, biases);
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
