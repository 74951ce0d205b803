//! What things cost: seconds of kernels, thought and measured, and of bytes over links.

mod curve;
mod profile;
mod roofline;

pub use curve::{CollectivePrice, CurvePoint, Curves, explained};
pub use profile::{MachineProfile, Scaling};

use serde::{Deserialize, Serialize};

/// Hard limits of the tiers beside the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierLimits {
    /// Bytes of host memory; none is no limit.
    pub host: Option<u64>,
    /// Bytes on disk; none is no disk.
    pub disk: Option<u64>,
}

/// How fast kernels are.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Floating-point operations a second where arithmetic is what takes time.
    pub flops: f64,
    /// Bytes read and written a second where memory is.
    pub bytes: f64,
    /// Seconds of a call that does next to nothing.
    pub call: f64,
}

impl Default for Rates {
    /// One core of an ordinary machine.
    fn default() -> Rates {
        Rates { flops: 60e9, bytes: 10e9, call: 1e-6 }
    }
}

impl Rates {
    /// Seconds of a kernel that does so much.
    pub fn seconds(&self, flops: f64, bytes: f64) -> f64 {
        (flops / self.flops).max(bytes / self.bytes) + self.call
    }
}

/// Seconds that the kinds of nodes of one graph were measured to take, against what [`Rates`] say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeasuredKinds {
    /// By kind: seconds thought, and seconds measured, of all that was measured.
    sums: Vec<[f64; 2]>,
    slower: Vec<f64>,
}

impl MeasuredKinds {
    /// Notes what one node of a kind was thought to take and what it took; what is not a time is ignored.
    pub fn note(&mut self, kind: usize, thought: f64, measured: f64) {
        let times = [thought, measured];
        if !times.iter().all(|seconds| seconds.is_finite() && *seconds > 0.0) {
            return;
        }
        if self.sums.len() <= kind {
            self.sums.resize(kind + 1, [0.0; 2]);
            self.slower.resize(kind + 1, 1.0);
        }
        let sums = &mut self.sums[kind];
        sums.iter_mut().zip(times).for_each(|(sum, seconds)| *sum += seconds);
        self.slower[kind] = sums[1] / sums[0];
    }

    /// By kind, how many times longer than thought a node takes: 1 where nothing was measured.
    pub fn slower(&self) -> &[f64] {
        &self.slower
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_times_correct_those_thought() {
        let mut measured = MeasuredKinds::default();
        assert!(measured.slower().is_empty());
        for (kind, thought, seconds) in [(2, 1.0, 3.0), (2, 3.0, 3.0), (0, 2.0, 1.0)] {
            measured.note(kind, thought, seconds);
        }
        assert_eq!(measured.slower(), [0.5, 1.0, 1.5]);
        let before = measured.clone();
        for (thought, seconds) in [(0.0, 1.0), (1.0, 0.0), (f64::NAN, 1.0), (1.0, f64::INFINITY)] {
            measured.note(2, thought, seconds);
        }
        assert_eq!(measured, before);
    }
}
