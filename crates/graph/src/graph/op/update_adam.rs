//! Adam and AdamW.

use super::sample::Sample;
use super::update::{self, Update};
use serde::{Deserialize, Serialize};

/// `m` and `v` are running means of the gradient and its square, both corrected for starting at zero;
/// `w -= lr·m̂/(√v̂ + eps)`. The step is counted from one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UpdateAdam {
    /// AdamW: the weight decays by itself, `w -= lr·weight_decay·w`, instead of through the gradient.
    pub decoupled: bool,
    /// Divides by the largest v so far, a third state.
    pub amsgrad: bool,
}

impl Update for UpdateAdam {
    fn flops_per_point(&self) -> u64 {
        16
    }

    fn states(&self) -> Vec<&'static str> {
        if self.amsgrad {
            vec!["exp_avg", "exp_avg_sq", "max_exp_avg_sq"]
        } else {
            vec!["exp_avg", "exp_avg_sq"]
        }
    }

    fn hypers(&self) -> Vec<&'static str> {
        vec!["lr", "beta1", "beta2", "eps", "weight_decay", "step"]
    }

    fn rule(&self, w: f64, g: f64, states: &mut [f64], hypers: &[f64]) -> f64 {
        let [lr, beta1, beta2, eps, weight_decay, step] = hypers[..] else {
            unreachable!("six hyper-parameters")
        };
        let (w, g) = match self.decoupled {
            true => (w - lr * weight_decay * w, g),
            false => (w, g + weight_decay * w),
        };
        states[0] += (1.0 - beta1) * (g - states[0]);
        states[1] = beta2 * states[1] + (1.0 - beta2) * g * g;
        let mut square = states[1];
        if let Some(largest) = states.get_mut(2) {
            // A NaN must show, so it is not `f64::max`.
            *largest = if *largest >= square { *largest } else { square };
            square = *largest;
        }
        let denominator = (square / (1.0 - beta2.powf(step))).sqrt() + eps;
        w - lr / (1.0 - beta1.powf(step)) * states[0] / denominator
    }

    fn samples() -> Vec<Sample> {
        let adam = |decoupled, amsgrad| {
            update::samples(UpdateAdam { decoupled, amsgrad }, &[0.01, 0.9, 0.99, 1e-8, 0.1, 3.0])
        };
        [adam(false, false), adam(true, false), adam(false, true), adam(true, true)].concat()
    }
}
