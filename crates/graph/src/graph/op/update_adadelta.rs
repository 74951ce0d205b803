//! Adadelta.

use super::sample::Sample;
use super::update::{self, Update};
use serde::{Deserialize, Serialize};

/// Steps as large as earlier steps were, relative to the gradient: running means of the squares of
/// both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UpdateAdadelta {}

impl Update for UpdateAdadelta {
    fn flops_per_point(&self) -> u64 {
        18
    }

    fn states(&self) -> Vec<&'static str> {
        vec!["square_avg", "acc_delta"]
    }

    fn hypers(&self) -> Vec<&'static str> {
        vec!["lr", "rho", "eps", "weight_decay"]
    }

    fn rule(&self, w: f64, g: f64, states: &mut [f64], hypers: &[f64]) -> f64 {
        let [lr, rho, eps, weight_decay] = hypers[..] else { unreachable!("four hyper-parameters") };
        let g = g + weight_decay * w;
        states[0] = rho * states[0] + (1.0 - rho) * g * g;
        let delta = (states[1] + eps).sqrt() / (states[0] + eps).sqrt() * g;
        states[1] = rho * states[1] + (1.0 - rho) * delta * delta;
        w - lr * delta
    }

    fn samples() -> Vec<Sample> {
        update::samples(UpdateAdadelta {}, &[1.0, 0.9, 1e-6, 0.01])
    }
}
