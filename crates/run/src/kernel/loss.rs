//! Cross entropy of one row of logits and its gradient. That a target is one of the classes is the
//! caller's promise; a class that is not there panics.

use crate::kernel::math::exp_normal;
use crate::kernel::reduce;
use crate::kernel::softmax::log_sum_exp;
use crate::team::isa::{Isa, simd};

/// The loss `(1-s)·(lse - x[target]) + s·mean(lse - x)` of a row, and its `lse = ln Σ eˣ`. A row
/// without a target has loss 0.
pub fn cross_entropy(isa: Isa, x: &[f32], target: Option<usize>, smoothing: f32) -> (f32, f32) {
    let (largest, rest) = log_sum_exp(isa, x);
    let lse = largest + rest;
    let Some(target) = target else { return (0.0, lse) };
    // The differences to the largest are exact or nearly so, those to the rounded lse are not.
    let hit = largest - x[target] + rest;
    if smoothing == 0.0 {
        return (hit, lse);
    }
    let spread = rest - sum_of_differences(isa, x, largest) / x.len() as f32;
    ((1.0 - smoothing) * hit + smoothing * spread, lse)
}

/// `dx = drow·(e^(x - lse) - (1-s)·[target] - s/c)`, or 0 without a target; logits that are not given lie
/// in `dx`.
pub fn cross_entropy_grad(
    isa: Isa,
    x: Option<&[f32]>,
    dx: &mut [f32],
    target: Option<usize>,
    smoothing: f32,
    lse: f32,
    drow: f32,
) {
    let Some(target) = target else { return dx.fill(0.0) };
    let share = smoothing / dx.len() as f32;
    let hit = drow * (exp_normal(x.unwrap_or(dx)[target] - lse) - (1.0 - smoothing) - share);
    probabilities(isa, x, dx, lse, share, drow);
    dx[target] = hit;
}

#[inline(always)]
fn probabilities_body(x: Option<&[f32]>, dx: &mut [f32], lse: f32, share: f32, drow: f32) {
    let slope = |x: f32| drow * (exp_normal(x - lse) - share);
    match x {
        Some(x) => {
            for (dx, &x) in dx.iter_mut().zip(x) {
                *dx = slope(x);
            }
        }
        None => dx.iter_mut().for_each(|dx| *dx = slope(*dx)),
    }
}

#[inline(always)]
fn sum_of_differences_body(x: &[f32], from: f32) -> f32 {
    reduce::fold(x, 0.0, |lane, x| lane + (x - from), reduce::add)
}

simd! {
    fn probabilities(x: Option<&[f32]>, dx: &mut [f32], lse: f32, share: f32, drow: f32) = probabilities_body;
    fn sum_of_differences(x: &[f32], from: f32) -> f32 = sum_of_differences_body;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::testing::{bits, noise};

    #[test]
    fn losses_and_gradients_are_those_of_the_definition() {
        for (classes, target, smoothing, offset) in
            [(1, 0, 0.0, 0.0), (7, 3, 0.0, 1000.0), (50, 49, 0.1, -30.0), (300, 0, 1.0, 0.0)]
        {
            let x: Vec<f32> = noise(classes, 5).iter().map(|v| 4.0 * v + offset).collect();
            let wide: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
            let largest = wide.iter().fold(f64::NEG_INFINITY, |m, &v| m.max(v));
            let lse = largest + wide.iter().map(|v| (v - largest).exp()).sum::<f64>().ln();
            let spread = wide.iter().map(|v| lse - v).sum::<f64>() / classes as f64;
            let s = f64::from(smoothing);
            let want = (1.0 - s) * (lse - wide[target]) + s * spread;
            for isa in Isa::all() {
                let (loss, got) = cross_entropy(isa, &x, Some(target), smoothing);
                assert!((f64::from(loss) - want).abs() < 2e-6 * want.abs().max(1.0), "{loss} {want}");
                assert!((f64::from(got) - lse).abs() < 1e-6 * lse.abs().max(1.0));
                let mut dx = x.clone();
                cross_entropy_grad(isa, None, &mut dx, Some(target), smoothing, got, 2.0);
                let mut apart = vec![f32::NAN; classes];
                cross_entropy_grad(isa, Some(&x), &mut apart, Some(target), smoothing, got, 2.0);
                assert_eq!(bits(&apart), bits(&dx), "{classes} classes");
                for (i, dx) in dx.iter().enumerate() {
                    let hit = if i == target { 1.0 - s } else { 0.0 };
                    let want = 2.0 * ((wide[i] - f64::from(got)).exp() - hit - s / classes as f64);
                    assert!((f64::from(*dx) - want).abs() < 1e-6, "class {i}: {dx} {want}");
                }
            }
        }
    }

    #[test]
    fn rows_without_a_target_count_for_nothing() {
        let mut x = [1.0, f32::INFINITY, f32::NAN];
        assert_eq!(cross_entropy(Isa::detect(), &x, None, 0.5).0, 0.0);
        cross_entropy_grad(Isa::detect(), None, &mut x, None, 0.5, f32::NAN, f32::NAN);
        assert_eq!(x, [0.0; 3]);
    }

    #[test]
    fn classes_ruled_out_do_not_matter_without_smoothing() {
        let (loss, lse) = cross_entropy(Isa::detect(), &[0.0, f32::NEG_INFINITY, 0.0], Some(2), 0.0);
        assert!((loss - std::f32::consts::LN_2).abs() < 1e-6 && loss == lse);
    }
}
