//! RMSprop.

use super::sample::Sample;
use super::update::{self, Update};
use serde::{Deserialize, Serialize};

/// Divides by the root of a running mean of squared gradients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UpdateRmsprop {
    /// Divides by the standard deviation instead: one more state, the running mean of the gradient.
    pub centered: bool,
    /// Whether there is a momentum buffer, one more state.
    pub momentum: bool,
}

impl Update for UpdateRmsprop {
    fn flops_per_point(&self) -> u64 {
        16
    }

    fn states(&self) -> Vec<&'static str> {
        let mut states = vec!["square_avg"];
        states.extend(self.centered.then_some("grad_avg"));
        states.extend(self.momentum.then_some("momentum_buffer"));
        states
    }

    fn hypers(&self) -> Vec<&'static str> {
        let mut hypers = vec!["lr", "alpha", "eps", "weight_decay"];
        hypers.extend(self.momentum.then_some("momentum"));
        hypers
    }

    fn rule(&self, w: f64, g: f64, states: &mut [f64], hypers: &[f64]) -> f64 {
        let (lr, alpha, eps, weight_decay) = (hypers[0], hypers[1], hypers[2], hypers[3]);
        let g = g + weight_decay * w;
        states[0] = alpha * states[0] + (1.0 - alpha) * g * g;
        let mut square = states[0];
        if self.centered {
            states[1] += (1.0 - alpha) * (g - states[1]);
            square -= states[1] * states[1];
            // A variance that rounding made negative is zero; a NaN stays.
            square = if square < 0.0 { 0.0 } else { square };
        }
        let step = g / (square.sqrt() + eps);
        if !self.momentum {
            return w - lr * step;
        }
        let buffer = &mut states[1 + usize::from(self.centered)];
        *buffer = hypers[4] * *buffer + step;
        w - lr * *buffer
    }

    fn samples() -> Vec<Sample> {
        let base = [0.01, 0.9, 1e-8, 0.01];
        let heavy = [0.01, 0.9, 1e-8, 0.01, 0.8];
        [
            update::samples(UpdateRmsprop { centered: false, momentum: false }, &base),
            update::samples(UpdateRmsprop { centered: true, momentum: false }, &base),
            update::samples(UpdateRmsprop { centered: false, momentum: true }, &heavy),
            update::samples(UpdateRmsprop { centered: true, momentum: true }, &heavy),
        ]
        .concat()
    }
}
