//! Adagrad.

use super::sample::Sample;
use super::update::{self, Update};
use serde::{Deserialize, Serialize};

/// Divides by the root of the sum of all squared gradients so far; the rate decays as
/// `lr/(1 + (step - 1)·lr_decay)`, the step counted from one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UpdateAdagrad {}

impl Update for UpdateAdagrad {
    fn flops_per_point(&self) -> u64 {
        10
    }

    fn states(&self) -> Vec<&'static str> {
        vec!["sum"]
    }

    fn hypers(&self) -> Vec<&'static str> {
        vec!["lr", "lr_decay", "eps", "weight_decay", "step"]
    }

    fn rule(&self, w: f64, g: f64, states: &mut [f64], hypers: &[f64]) -> f64 {
        let [lr, lr_decay, eps, weight_decay, step] = hypers[..] else {
            unreachable!("five hyper-parameters")
        };
        let g = g + weight_decay * w;
        states[0] += g * g;
        w - lr / (1.0 + (step - 1.0) * lr_decay) * g / (states[0].sqrt() + eps)
    }

    fn samples() -> Vec<Sample> {
        update::samples(UpdateAdagrad {}, &[0.01, 0.1, 1e-10, 0.01, 3.0])
    }
}
