//! Stochastic gradient descent, with or without momentum.

use super::sample::Sample;
use super::update::{self, Update};
use serde::{Deserialize, Serialize};

/// `b = momentum·b + (1 - dampening)·g`, `w -= lr·b`, with the decayed gradient `g + weight_decay·w`
/// for g. In the first step b is g itself; where the momentum is zero, b takes no part in w.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UpdateSgd {
    /// Whether there is a momentum buffer; without, a weight costs no state.
    pub momentum: bool,
    /// Looks ahead: `w -= lr·(g + momentum·b)`.
    pub nesterov: bool,
}

impl Update for UpdateSgd {
    fn flops_per_point(&self) -> u64 {
        if self.momentum { 8 } else { 4 }
    }

    fn states(&self) -> Vec<&'static str> {
        if self.momentum { vec!["momentum_buffer"] } else { vec![] }
    }

    fn hypers(&self) -> Vec<&'static str> {
        if self.momentum {
            vec!["lr", "weight_decay", "momentum", "dampening", "step"]
        } else {
            vec!["lr", "weight_decay"]
        }
    }

    fn rule(&self, w: f64, g: f64, states: &mut [f64], hypers: &[f64]) -> f64 {
        let (lr, weight_decay) = (hypers[0], hypers[1]);
        let g = g + weight_decay * w;
        let [buffer] = states else { return w - lr * g };
        let [momentum, dampening, step] = hypers[2..] else { unreachable!("five hyper-parameters") };
        *buffer = if step <= 1.0 { g } else { momentum * *buffer + (1.0 - dampening) * g };
        let direction = match momentum == 0.0 {
            true => g,
            false if self.nesterov => g + momentum * *buffer,
            false => *buffer,
        };
        w - lr * direction
    }

    fn samples() -> Vec<Sample> {
        let plain = update::samples(UpdateSgd { momentum: false, nesterov: false }, &[0.1, 0.01]);
        let heavy = UpdateSgd { momentum: true, nesterov: false };
        let ahead = UpdateSgd { momentum: true, nesterov: true };
        [
            plain,
            update::samples(heavy.clone(), &[0.1, 0.01, 0.9, 0.1, 3.0]),
            update::samples(heavy, &[0.1, 0.01, 0.9, 0.1, 1.0]),
            update::samples(ahead, &[0.1, 0.01, 0.9, 0.0, 3.0]),
        ]
        .concat()
    }
}
