//! Lion.

use super::sample::Sample;
use super::update::{self, Update};
use serde::{Deserialize, Serialize};

/// Moves every weight by `lr` in the direction `sign(beta1·m + (1 - beta1)·g)`; the momentum m follows
/// the gradient at the rate beta2. Weight decay is decoupled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UpdateLion {}

impl Update for UpdateLion {
    fn flops_per_point(&self) -> u64 {
        10
    }

    fn states(&self) -> Vec<&'static str> {
        vec!["exp_avg"]
    }

    fn hypers(&self) -> Vec<&'static str> {
        vec!["lr", "beta1", "beta2", "weight_decay"]
    }

    fn rule(&self, w: f64, g: f64, states: &mut [f64], hypers: &[f64]) -> f64 {
        let [lr, beta1, beta2, weight_decay] = hypers[..] else { unreachable!("four hyper-parameters") };
        let direction = beta1 * states[0] + (1.0 - beta1) * g;
        // Zero has no sign, and a NaN must show.
        let sign = if direction == 0.0 { 0.0 } else { direction.signum() };
        states[0] = beta2 * states[0] + (1.0 - beta2) * g;
        w - lr * weight_decay * w - lr * sign
    }

    fn samples() -> Vec<Sample> {
        update::samples(UpdateLion {}, &[0.01, 0.9, 0.99, 0.1])
    }
}
