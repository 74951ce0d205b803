//! Shared by the normalising operators: statistics of sets of elements, and the gradient through
//! them. Operators differ only in which elements form a set and which share a gain and a bias.

use crate::tensor::Tensor;

/// The sets of an element: the one it is normalised with, and that of its gain and bias.
#[derive(Clone, Copy, Debug)]
pub struct NormSlot {
    /// Index of its mean and variance.
    pub set: usize,
    /// Index of its gain and bias.
    pub channel: usize,
}

/// `count` axis names with a common prefix, each followed by `mark`; to be joined into operands.
pub(crate) fn axis_names(prefix: &str, count: usize, mark: &str) -> Vec<String> {
    (0..count).map(|i| format!("{prefix}{i}{mark}")).collect()
}

/// An operand of a spec line.
pub(crate) fn operand(axes: &[String]) -> String {
    if axes.is_empty() { "[]".into() } else { axes.join(" ") }
}

/// Mean and biased variance of each set, sums running in order of the elements.
pub(crate) fn moments(x: &Tensor, slot: impl Fn(usize) -> NormSlot, sets: usize) -> (Vec<f64>, Vec<f64>) {
    let (mut count, mut mean, mut variance) = (vec![0.0; sets], vec![0.0; sets], vec![0.0; sets]);
    for (i, x) in x.data.iter().enumerate() {
        mean[slot(i).set] += x;
        count[slot(i).set] += 1.0;
    }
    for (m, n) in mean.iter_mut().zip(&count) {
        *m /= n;
    }
    for (i, x) in x.data.iter().enumerate() {
        let s = slot(i).set;
        variance[s] += (x - mean[s]) * (x - mean[s]);
    }
    for (v, n) in variance.iter_mut().zip(&count) {
        *v /= n;
    }
    (mean, variance)
}

/// `y = (x - mean)·rstd·gamma + beta`.
pub(crate) fn normalize(
    [x, gamma, beta]: [&Tensor; 3],
    mean: &[f64],
    rstd: &[f64],
    slot: impl Fn(usize) -> NormSlot,
    y: &mut Tensor,
) {
    for (i, (y, x)) in y.data.iter_mut().zip(&x.data).enumerate() {
        let NormSlot { set, channel } = slot(i);
        *y = (x - mean[set]) * rstd[set] * gamma.data[channel] + beta.data[channel];
    }
}

/// The gradient of [`normalize`] where mean and rstd are those of `x` itself; outputs dx, dgamma and
/// dbeta, which start as zeros.
pub(crate) fn normalize_grad(
    [x, gamma, dy]: [&Tensor; 3],
    mean: &[f64],
    rstd: &[f64],
    slot: impl Fn(usize) -> NormSlot,
    outs: &mut [Tensor],
) {
    let sets = mean.len();
    // Per set: the number of elements, and the means of d and of d·x̂, where d = dy·gamma.
    let (mut count, mut level, mut slope) = (vec![0.0; sets], vec![0.0; sets], vec![0.0; sets]);
    for (i, (x, dy)) in x.data.iter().zip(&dy.data).enumerate() {
        let NormSlot { set, channel } = slot(i);
        let normal = (x - mean[set]) * rstd[set];
        count[set] += 1.0;
        level[set] += dy * gamma.data[channel];
        slope[set] += dy * gamma.data[channel] * normal;
        outs[1].data[channel] += dy * normal;
        outs[2].data[channel] += dy;
    }
    for (i, (x, dy)) in x.data.iter().zip(&dy.data).enumerate() {
        let NormSlot { set, channel } = slot(i);
        let normal = (x - mean[set]) * rstd[set];
        let centered = dy * gamma.data[channel] - level[set] / count[set];
        outs[0].data[i] = rstd[set] * (centered - normal * slope[set] / count[set]);
    }
}
