//! Prices: seconds of kernels, assumed and measured, and limits of tiers.

mod curve;
mod profile;
mod roofline;

pub use curve::{CollectivePrice, CurvePoint, Curves, explained};
pub use profile::{MachineProfile, Scaling};

use gulliver_graph::dim::{Bindings, Dim};
use gulliver_graph::graph::{Graph, NodeId};
use gulliver_graph::kinds::Kinds;
use serde::{Deserialize, Serialize};

/// Hard limits of the tiers beside the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierLimits {
    /// Bytes of host memory; none is no limit.
    pub host: Option<u64>,
    /// Bytes on disk; none is no disk.
    pub disk: Option<u64>,
}

/// Assumed speeds of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Floating-point operations per second.
    pub flops: f64,
    /// Bytes read and written per second.
    pub bytes: f64,
    /// Seconds of a call, whatever it does.
    pub call: f64,
}

impl Default for Rates {
    /// One core of an ordinary machine.
    fn default() -> Rates {
        Rates { flops: 60e9, bytes: 10e9, call: 1e-6 }
    }
}

impl Rates {
    /// Seconds of a kernel with this many operations and bytes.
    pub fn seconds(&self, flops: f64, bytes: f64) -> f64 {
        (flops / self.flops).max(bytes / self.bytes) + self.call
    }

    /// Seconds of every node of a graph, for inputs of these sizes. Views take no time; an operator without a number of
    /// FLOPs is priced by its bytes.
    pub(crate) fn of_nodes(&self, graph: &Graph, sizes: &Bindings) -> Vec<f64> {
        let kinds = Kinds::of(graph);
        let amount = |dim: Dim| dim.bind(sizes).unwrap_or(0) as f64;
        let of_kind = |id: &NodeId| {
            let node = &graph.nodes[id.index()];
            let flops = graph.flops(node).map_or(0.0, amount);
            if node.op.def().is_view() { 0.0 } else { self.seconds(flops, amount(graph.bytes(node))) }
        };
        let of_kind: Vec<f64> = kinds.nodes.iter().map(of_kind).collect();
        kinds.kind_of.iter().map(|&kind| of_kind[kind as usize]).collect()
    }
}

/// Measured seconds of the kinds of nodes of one graph, relative to those by [`Rates`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeasuredKinds {
    /// By kind: sums of expected and of measured seconds.
    sums: Vec<[f64; 2]>,
    slower: Vec<f64>,
}

impl MeasuredKinds {
    /// Notes the expected and the measured seconds of a node; values that are not positive and finite are ignored.
    pub fn note(&mut self, kind: usize, expected: f64, measured: f64) {
        let times = [expected, measured];
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

    /// By kind: measured over expected seconds; 1 where nothing was measured.
    pub fn slower(&self) -> &[f64] {
        &self.slower
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_times_correct_expected_ones() {
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
