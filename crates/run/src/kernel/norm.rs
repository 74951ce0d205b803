//! The loops of layer, RMS, group and batch normalisation and of their gradients, on one contiguous run
//! at a time, or on one run for each of several channels. Gain and bias are one per element or one for the
//! run; both give the same bits for the same numbers. Sums are in lane order; how runs are combined is the
//! caller's business, except that the lanes of a channel go on from run to run.
//!
//! `x̂ = (x - mean)·rstd`, `y = fma(x̂, gamma, beta)`, and with `d = fma(dy, gamma, -level)`,
//! `dx = rstd·fma(-x̂, slope, d)`, where level and slope are the means of dy·gamma and dy·gamma·x̂.

use crate::kernel::reduce::{self, Matrix, add, fold_columns, tree};
use crate::kernel::{LANES, math};
use crate::team::isa::{Isa, simd};
use std::ops::Range;

/// Gain and bias along a run.
#[derive(Clone, Copy, Debug)]
pub enum Affine<'a> {
    /// A gain and a bias per element.
    Each(&'a [f32], &'a [f32]),
    /// A gain per element and no bias.
    EachGain(&'a [f32]),
    /// The same gain and bias for all.
    Same(f32, f32),
}

/// Mean and inverse standard deviation of the set a run belongs to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moments {
    /// The mean; zero for RMS normalisation.
    pub mean: f32,
    /// `1/√(variance + eps)`.
    pub rstd: f32,
}

/// The means over a set of dy·gamma (zero for RMS normalisation) and of dy·gamma·x̂.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slopes {
    /// The mean of dy·gamma.
    pub level: f32,
    /// The mean of dy·gamma·x̂.
    pub slope: f32,
}

#[inline(always)]
fn normal(x: f32, m: Moments) -> f32 {
    (x - m.mean) * m.rstd
}

#[inline(always)]
fn normalize_body(x: &[f32], m: Moments, affine: Affine<'_>, y: &mut [f32]) {
    match affine {
        Affine::Each(gamma, beta) => {
            for (((y, &x), &gamma), &beta) in y.iter_mut().zip(x).zip(gamma).zip(beta) {
                *y = normal(x, m).mul_add(gamma, beta);
            }
        }
        Affine::EachGain(gamma) => {
            for ((y, &x), &gamma) in y.iter_mut().zip(x).zip(gamma) {
                *y = normal(x, m) * gamma;
            }
        }
        Affine::Same(gamma, beta) => {
            for (y, &x) in y.iter_mut().zip(x) {
                *y = normal(x, m).mul_add(gamma, beta);
            }
        }
    }
}

#[inline(always)]
fn sums_body(x: &[f32], dy: &[f32], m: Moments) -> [f32; 2] {
    let mut pairs = [Pairs::ZERO];
    add_pairs_body(x, dy, x.len(), &[m], &mut pairs);
    pairs[0].sums()
}

#[inline(always)]
fn gained_sums_body(x: &[f32], dy: &[f32], gamma: &[f32], m: Moments) -> [f32; 2] {
    let (xs, rest) = x.as_chunks::<LANES>();
    let dys = &dy.as_chunks::<LANES>().0[..xs.len()];
    let gammas = &gamma.as_chunks::<LANES>().0[..xs.len()];
    let mut t = Pairs::ZERO;
    let gained = |dy: &[f32; LANES], gamma: &[f32; LANES]| std::array::from_fn(|l| dy[l] * gamma[l]);
    for i in 0..xs.len() {
        add_to_pairs(&mut t, &xs[i], &gained(&dys[i], &gammas[i]), m);
    }
    if !rest.is_empty() {
        let [x, dy, gamma] = [x, dy, gamma].map(|of| filled(of, x.len() - rest.len()..x.len()));
        add_to_pairs(&mut t, &x, &gained(&dy, &gamma), m);
    }
    t.sums()
}

/// `dx` of a row with a gain per element, which also adds dy·x̂ to dgamma and dy to dbeta.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn row_grad_body(
    x: &[f32],
    dy: &[f32],
    m: Moments,
    gamma: &[f32],
    s: Slopes,
    dx: &mut [f32],
    dgamma: &mut [f32],
    dbeta: Option<&mut [f32]>,
) {
    let n = dx.len();
    let (x, dy, gamma, dgamma) = (&x[..n], &dy[..n], &gamma[..n], &mut dgamma[..n]);
    let hat = |i: usize| normal(x[i], m);
    let slope = |i: usize, hat: f32| m.rstd * (-hat).mul_add(s.slope, dy[i].mul_add(gamma[i], -s.level));
    match dbeta {
        Some(dbeta) => {
            let dbeta = &mut dbeta[..n];
            for i in 0..n {
                let hat = hat(i);
                dx[i] = slope(i, hat);
                dgamma[i] = dy[i].mul_add(hat, dgamma[i]);
                dbeta[i] += dy[i];
            }
        }
        None => {
            for i in 0..n {
                let hat = hat(i);
                dx[i] = slope(i, hat);
                dgamma[i] = dy[i].mul_add(hat, dgamma[i]);
            }
        }
    }
}

#[inline(always)]
fn fold_lanes_body(lanes: &mut [f32], width: usize) {
    let used = lanes.len() / width;
    let mut half = LANES / 2;
    while half > 0 {
        for l in 0..half.min(used.saturating_sub(half)) {
            let (low, high) = lanes.split_at_mut((l + half) * width);
            for (a, &b) in low[l * width..][..width].iter_mut().zip(&high[..width]) {
                *a += b;
            }
        }
        half /= 2;
    }
    // What adding an unused lane does: a negative zero becomes a positive one.
    if used < LANES {
        lanes[..width].iter_mut().for_each(|a| *a += 0.0);
    }
}

simd! {
    /// `y = fma(x̂, gamma, beta)` along a run.
    pub fn normalize(x: &[f32], m: Moments, affine: Affine<'_>, y: &mut [f32]) = normalize_body;
    /// The sums of dy and of dy·x̂ over a run.
    pub fn sums(x: &[f32], dy: &[f32], m: Moments) -> [f32; 2] = sums_body;
    /// The sums of dy·gamma and of dy·gamma·x̂ over a run.
    pub fn gained_sums(x: &[f32], dy: &[f32], gamma: &[f32], m: Moments) -> [f32; 2] = gained_sums_body;
    /// `dx` of a row with a gain per element, which also adds dy·x̂ to dgamma and dy to dbeta.
    pub fn row_grad(x: &[f32], dy: &[f32], m: Moments, gamma: &[f32], s: Slopes, dx: &mut [f32], dgamma: &mut [f32], dbeta: Option<&mut [f32]>) = row_grad_body;
    /// Combines lanes of `width` elements each, the first of [`LANES`], by the fixed tree into lane 0.
    pub fn fold_lanes(lanes: &mut [f32], width: usize) = fold_lanes_body;
}

/// Sums of one channel in double precision, by lanes that go on from run to run.
#[derive(Clone, Copy, Debug)]
pub struct Totals([f64; LANES]);

impl Totals {
    /// Of nothing.
    pub const ZERO: Totals = Totals([0.0; LANES]);

    /// The mean of `count` elements.
    pub fn mean(&self, count: usize) -> f32 {
        let mut lanes = self.0;
        for half in [8, 4, 2, 1] {
            for l in 0..half {
                lanes[l] += lanes[l + half];
            }
        }
        (lanes[0] / count as f64) as f32
    }
}

/// Sums of dy and of dy·x̂ of one channel, by lanes that go on from run to run.
#[derive(Clone, Copy, Debug)]
pub struct Pairs {
    plain: [f32; LANES],
    weighted: [f32; LANES],
}

impl Pairs {
    /// Of nothing.
    pub const ZERO: Pairs = Pairs { plain: [0.0; LANES], weighted: [0.0; LANES] };

    /// Both sums.
    pub fn sums(&self) -> [f32; 2] {
        [tree(self.plain, add), tree(self.weighted, add)]
    }
}

/// The elements `at` of `x`, fewer than there are lanes, filled up with zeros, which add nothing.
#[inline(always)]
fn filled(x: &[f32], at: Range<usize>) -> [f32; LANES] {
    let mut all = [0.0; LANES];
    match x.get(at.start..at.start + LANES) {
        // Reading on and choosing is faster than copying a few.
        Some(more) => {
            let n = at.len() as u32;
            for l in 0..LANES {
                all[l] = if (l as u32) < n { more[l] } else { 0.0 };
            }
        }
        None => all[..at.len()].copy_from_slice(&x[at]),
    }
    all
}

#[inline(always)]
fn add_totals_body(x: &[f32], space: usize, totals: &mut [Totals]) {
    for (c, to) in totals.iter_mut().enumerate() {
        let (start, end) = (c * space, (c + 1) * space);
        let (whole, rest) = x[start..end].as_chunks::<LANES>();
        let mut t = to.0;
        for x in whole {
            for l in 0..LANES {
                t[l] += f64::from(x[l]);
            }
        }
        if !rest.is_empty() {
            let x = filled(x, end - rest.len()..end);
            for l in 0..LANES {
                t[l] += f64::from(x[l]);
            }
        }
        to.0 = t;
    }
}

#[inline(always)]
fn add_squares_body(x: &[f32], space: usize, means: &[f32], totals: &mut [Totals]) {
    for (c, &mean) in means.iter().enumerate() {
        let (start, end) = (c * space, (c + 1) * space);
        let (whole, rest) = x[start..end].as_chunks::<LANES>();
        let mut t = totals[c].0;
        for x in whole {
            for l in 0..LANES {
                let d = f64::from(x[l] - mean);
                t[l] = d.mul_add(d, t[l]);
            }
        }
        for (t, &x) in t.iter_mut().zip(rest) {
            let d = f64::from(x - mean);
            *t = d.mul_add(d, *t);
        }
        totals[c].0 = t;
    }
}

#[inline(always)]
fn add_to_pairs(t: &mut Pairs, x: &[f32; LANES], dy: &[f32; LANES], m: Moments) {
    for l in 0..LANES {
        t.plain[l] += dy[l];
        t.weighted[l] = dy[l].mul_add(normal(x[l], m), t.weighted[l]);
    }
}

#[inline(always)]
fn add_pairs_body(x: &[f32], dy: &[f32], space: usize, moments: &[Moments], pairs: &mut [Pairs]) {
    for c in 0..pairs.len() {
        let (start, end) = (c * space, (c + 1) * space);
        let (xs, rest) = x[start..end].as_chunks::<LANES>();
        let dys = &dy[start..end].as_chunks::<LANES>().0[..xs.len()];
        let (mut t, m) = (pairs[c], moments[c]);
        for i in 0..xs.len() {
            add_to_pairs(&mut t, &xs[i], &dys[i], m);
        }
        if !rest.is_empty() {
            let rest = end - rest.len()..end;
            add_to_pairs(&mut t, &filled(x, rest.clone()), &filled(dy, rest), m);
        }
        pairs[c] = t;
    }
}

/// Runs shorter than this go by whole lanes, because loops of known length cost nothing to start.
const SHORT: usize = 64;

/// How many elements of a run go by lanes.
#[inline(always)]
fn by_lanes(space: usize) -> usize {
    if space < SHORT { space / LANES * LANES } else { 0 }
}

#[inline(always)]
fn normalize_runs_body(x: &[f32], space: usize, channels: &[(Moments, f32, f32)], y: &mut [f32]) {
    let whole = by_lanes(space);
    for (c, &(m, gamma, beta)) in channels.iter().enumerate() {
        let element = |x: f32| normal(x, m).mul_add(gamma, beta);
        let at = c * space..(c + 1) * space;
        let ((xs, x), (ys, y)) = (x[at.clone()].split_at(whole), y[at].split_at_mut(whole));
        let (xs, ys) = (xs.as_chunks::<LANES>().0, ys.as_chunks_mut::<LANES>().0);
        let (xs, x) = (&xs[..ys.len()], &x[..y.len()]);
        for i in 0..ys.len() {
            for l in 0..LANES {
                ys[i][l] = element(xs[i][l]);
            }
        }
        for i in 0..y.len() {
            y[i] = element(x[i]);
        }
    }
}

#[inline(always)]
fn input_grad_runs_body(
    x: &[f32],
    dy: &[f32],
    space: usize,
    channels: &[(Moments, f32, Slopes)],
    dx: &mut [f32],
) {
    let whole = by_lanes(space);
    for (c, &(m, gamma, s)) in channels.iter().enumerate() {
        let element =
            |x: f32, dy: f32| m.rstd * (-normal(x, m)).mul_add(s.slope, dy.mul_add(gamma, -s.level));
        let at = c * space..(c + 1) * space;
        let ((xs, x), (dys, dy)) = (x[at.clone()].split_at(whole), dy[at.clone()].split_at(whole));
        let (dxs, dx) = dx[at].split_at_mut(whole);
        let dxs = dxs.as_chunks_mut::<LANES>().0;
        let [xs, dys] = [xs, dys].map(|of| &of.as_chunks::<LANES>().0[..dxs.len()]);
        let (x, dy) = (&x[..dx.len()], &dy[..dx.len()]);
        for i in 0..dxs.len() {
            for l in 0..LANES {
                dxs[i][l] = element(xs[i][l], dys[i][l]);
            }
        }
        for i in 0..dx.len() {
            dx[i] = element(x[i], dy[i]);
        }
    }
}

simd! {
    /// Takes one run of `space` elements for each channel into its totals.
    pub fn add_totals(x: &[f32], space: usize, totals: &mut [Totals]) = add_totals_body;
    /// As [`add_totals`], of the squares of the distances from each channel's mean.
    pub fn add_squares(x: &[f32], space: usize, means: &[f32], totals: &mut [Totals]) = add_squares_body;
    /// Takes one run of `space` elements for each channel into its sums of dy and dy·x̂.
    pub fn add_pairs(x: &[f32], dy: &[f32], space: usize, moments: &[Moments], pairs: &mut [Pairs]) = add_pairs_body;
    /// [`normalize`] of one run for each channel, given its moments, gain and bias.
    pub fn normalize_runs(x: &[f32], space: usize, channels: &[(Moments, f32, f32)], y: &mut [f32]) = normalize_runs_body;
    /// `dx` of one run for each channel, given its moments, gain and slopes.
    pub fn input_grad_runs(x: &[f32], dy: &[f32], space: usize, channels: &[(Moments, f32, Slopes)], dx: &mut [f32]) = input_grad_runs_body;
}

/// Mean and inverse standard deviation of one run, in two passes over it.
pub fn moments(isa: Isa, x: &[f32], eps: f32) -> Moments {
    let count = x.len() as f32;
    let mean = reduce::sum(isa, x) / count;
    Moments { mean, rstd: math::rsqrt(reduce::sum_sq_diff(isa, x, mean) / count + eps) }
}

/// The inverse root mean square of one run, with a mean of zero.
pub fn root_mean_square(isa: Isa, x: &[f32], eps: f32) -> Moments {
    let square = reduce::sum_sq_diff(isa, x, 0.0) / x.len() as f32;
    Moments { mean: 0.0, rstd: math::rsqrt(square + eps) }
}

/// Per-column numbers of one row of a matrix whose columns are normalised.
#[derive(Clone, Copy, Debug)]
pub struct Columns<'a> {
    /// The means.
    pub mean: &'a [f32],
    /// The inverse standard deviations.
    pub rstd: &'a [f32],
    /// The gains.
    pub gamma: &'a [f32],
}

#[inline(always)]
fn normalize_row_body(x: &[f32], c: Columns<'_>, beta: &[f32], y: &mut [f32]) {
    let n = y.len();
    let (x, mean, rstd, gamma, beta) = (&x[..n], &c.mean[..n], &c.rstd[..n], &c.gamma[..n], &beta[..n]);
    for i in 0..n {
        let m = Moments { mean: mean[i], rstd: rstd[i] };
        y[i] = normal(x[i], m).mul_add(gamma[i], beta[i]);
    }
}

#[inline(always)]
fn input_grad_row_body(x: &[f32], dy: &[f32], c: Columns<'_>, level: &[f32], slope: &[f32], dx: &mut [f32]) {
    let n = dx.len();
    let (x, dy, mean, rstd, gamma) = (&x[..n], &dy[..n], &c.mean[..n], &c.rstd[..n], &c.gamma[..n]);
    let (level, slope) = (&level[..n], &slope[..n]);
    for i in 0..n {
        let m = Moments { mean: mean[i], rstd: rstd[i] };
        dx[i] = m.rstd * (-normal(x[i], m)).mul_add(slope[i], dy[i].mul_add(gamma[i], -level[i]));
    }
}

#[inline(always)]
fn normal_dots_body(x: &[f32], dy: Matrix<'_>, c: Columns<'_>, c0: usize, out: &mut [f32]) {
    let step = |lanes: &mut [f32], row: &[f32], r: usize, column: usize| {
        let x = &x[r * dy.cols + column..];
        let moments = c.mean[column..].iter().zip(&c.rstd[column..]);
        for (((lane, &dy), &x), (&mean, &rstd)) in lanes.iter_mut().zip(row).zip(x).zip(moments) {
            *lane = dy.mul_add(normal(x, Moments { mean, rstd }), *lane);
        }
    };
    fold_columns(dy, c0, out, 0.0, step, add);
}

simd! {
    /// [`normalize`] of one row of a matrix whose columns are normalised.
    pub fn normalize_row(x: &[f32], c: Columns<'_>, beta: &[f32], y: &mut [f32]) = normalize_row_body;
    /// `dx` of one row of such a matrix, with the level and slope of each column.
    pub fn input_grad_row(x: &[f32], dy: &[f32], c: Columns<'_>, level: &[f32], slope: &[f32], dx: &mut [f32]) = input_grad_row_body;
    fn normal_dots_range(x: &[f32], dy: Matrix<'_>, c: Columns<'_>, c0: usize, out: &mut [f32]) = normal_dots_body;
}

/// Sums over the rows of dy·x̂ for the columns from `c0` on, as many as `out` holds, of two matrices as
/// wide as the `c` are long.
pub fn normal_dots(isa: Isa, x: &[f32], dy: &[f32], c: Columns<'_>, c0: usize, out: &mut [f32]) {
    let cols = c.mean.len();
    assert!(x.len() == dy.len() && c.rstd.len() == cols, "matrices of different sizes");
    normal_dots_range(isa, x, Matrix { data: dy, rows: dy.len() / cols.max(1), cols }, c, c0, out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::testing::{bits, noise};

    #[test]
    fn sums_have_the_bits_of_the_reductions() {
        for len in [0, 1, 15, 16, 17, 100] {
            let (x, dy, gamma) = (noise(len, 1), noise(len, 2), noise(len, 3));
            let m = Moments { mean: 0.25, rstd: 1.5 };
            let hat: Vec<f32> = x.iter().map(|&x| normal(x, m)).collect();
            let gained: Vec<f32> = dy.iter().zip(&gamma).map(|(a, b)| a * b).collect();
            for isa in Isa::all() {
                let want = [reduce::sum(isa, &dy), reduce::dot(isa, &dy, &hat)];
                assert_eq!(bits(&sums(isa, &x, &dy, m)), bits(&want), "{len} {isa:?}");
                let want = [reduce::sum(isa, &gained), reduce::dot(isa, &gained, &hat)];
                assert_eq!(bits(&gained_sums(isa, &x, &dy, &gamma, m)), bits(&want), "{len} {isa:?}");
            }
        }
    }

    #[test]
    fn runs_of_several_channels_have_the_bits_of_each_alone() {
        let slopes = Slopes { level: 0.1, slope: -0.3 };
        for space in [1, 7, 16, 49, 100] {
            let (x, dy) = (noise(3 * space, 1), noise(3 * space, 2));
            let m = [0.25, 0.5, -1.0].map(|mean| Moments { mean, rstd: 1.5 });
            let mut seen = Vec::new();
            for isa in Isa::all() {
                let (mut totals, mut squares, mut pairs) =
                    ([Totals::ZERO; 3], [Totals::ZERO; 3], [Pairs::ZERO; 3]);
                add_totals(isa, &x, space, &mut totals);
                let means = totals.map(|t| t.mean(space));
                add_squares(isa, &x, space, &means, &mut squares);
                let variances = squares.map(|t| t.mean(space));
                add_pairs(isa, &x, &dy, space, &m, &mut pairs);
                let (mut y, mut dx) = (vec![0.0; 3 * space], vec![0.0; 3 * space]);
                normalize_runs(isa, &x, space, &m.map(|m| (m, 0.7, 0.2)), &mut y);
                input_grad_runs(isa, &x, &dy, space, &m.map(|m| (m, 0.7, slopes)), &mut dx);
                for c in 0..3 {
                    let at = c * space..(c + 1) * space;
                    let (x, dy) = (&x[at.clone()], &dy[at.clone()]);
                    assert_eq!(bits(&pairs[c].sums()), bits(&sums(isa, x, dy, m[c])), "{space} {isa:?}");
                    let mut alone = vec![0.0; space];
                    normalize(isa, x, m[c], Affine::Same(0.7, 0.2), &mut alone);
                    assert_eq!(bits(&alone), bits(&y[at.clone()]), "{space} {isa:?}");
                    let (mut dgamma, gamma) = (vec![0.0; space], vec![0.7; space]);
                    row_grad(isa, x, dy, m[c], &gamma, slopes, &mut alone, &mut dgamma, None);
                    assert_eq!(bits(&alone), bits(&dx[at]), "{space} {isa:?}");
                    let wide = x.iter().map(|&x| f64::from(x));
                    let mean = wide.clone().sum::<f64>() / space as f64;
                    let variance = wide.map(|x| (x - mean).powi(2)).sum::<f64>() / space as f64;
                    assert!((f64::from(means[c]) - mean).abs() < 1e-7);
                    assert!((f64::from(variances[c]) - variance).abs() < 1e-7);
                }
                seen.push([bits(&means), bits(&variances)]);
            }
            assert!(seen.windows(2).all(|w| w[0] == w[1]), "{space}");
        }
    }

    #[test]
    fn lanes_fold_like_the_columns_of_a_matrix() {
        let team = crate::team::Team::new(1);
        for (rows, width) in [(1, 1), (3, 5), (16, 7), (9, 130)] {
            let mut lanes = noise(rows * width, 4);
            let mut want = vec![0.0; width];
            reduce::sum_columns(&team, &lanes, rows, &mut want);
            fold_lanes(team.isa(), &mut lanes, width);
            assert_eq!(bits(&lanes[..width]), bits(&want), "{rows} x {width}");
        }
    }

    #[test]
    fn a_constant_row_and_a_far_mean_keep_their_variance() {
        for isa in Isa::all() {
            let m = moments(isa, &[3.0; 40], 1e-5);
            assert_eq!((m.mean, m.rstd), (3.0, math::rsqrt(1e-5)));
            let far: Vec<f32> = (0..64).map(|i| 4096.0 + (i % 2) as f32).collect();
            assert_eq!(moments(isa, &far, 0.0), Moments { mean: 4096.5, rstd: 2.0 });
        }
    }
}
