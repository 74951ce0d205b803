//! Measured speeds of a machine: kernels for several numbers of devices and threads, links, and scaling with threads.

use super::Curves;
use crate::document::links::Links;
use serde::{Deserialize, Serialize};

/// Speed of several threads together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scaling {
    /// The number of threads.
    pub threads: usize,
    /// Floating-point operations per second.
    pub flops: f64,
    /// Bytes read and written per second by copies beyond the caches.
    pub bytes: f64,
    /// The range of repetitions as a share of their median; the larger of both.
    pub spread: f64,
}

/// Measured speeds of one machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineProfile {
    /// Cores of the machine.
    pub cores: usize,
    /// Its processor, as it names itself.
    pub processor: String,
    /// Bytes per second over its links.
    pub links: Links,
    /// By number of threads, from 1.
    pub scaling: Vec<Scaling>,
    /// By number of devices and threads.
    pub curves: Vec<Curves>,
}

impl MachineProfile {
    /// The curves for a number of threads and devices, measured or scaled from the nearest measured ones. For several
    /// devices they include the speed while the others are idle.
    pub fn at(&self, threads: usize, devices: usize) -> Option<Curves> {
        let mut curves = self.scaled(threads, devices)?;
        if devices > 1 {
            curves.alone = self.scaled(threads, 1).filter(|alone| *alone != curves).map(Box::new);
        }
        Some(curves)
    }

    fn scaled(&self, threads: usize, devices: usize) -> Option<Curves> {
        let near = &self.curves[self.nearest(threads, devices)?];
        let mut curves = near.clone();
        let faster = self.flops(threads) / self.flops(near.threads);
        if near.threads != threads && faster.is_finite() && faster > 0.0 {
            curves.rates.flops *= faster;
            curves.rates.bytes *= faster;
            let points = curves.families.values_mut().flatten();
            points.for_each(|point| point.seconds /= faster);
        }
        (curves.threads, curves.devices) = (threads, devices);
        Some(curves.fitted())
    }

    /// The index of the nearest measured curves.
    pub fn nearest(&self, threads: usize, devices: usize) -> Option<usize> {
        let apart = |a: usize, b: usize| (a.max(1) as f64 / b.max(1) as f64).ln().abs();
        let distance = |c: &Curves| apart(c.threads, threads) + apart(c.devices, devices);
        let all = 0..self.curves.len();
        all.min_by(|&a, &b| distance(&self.curves[a]).total_cmp(&distance(&self.curves[b])))
    }

    /// Floating-point operations per second of some threads, at most those of all cores.
    fn flops(&self, threads: usize) -> f64 {
        let enough = self.scaling.iter().find(|s| s.threads >= threads);
        enough.or(self.scaling.last()).map_or(f64::NAN, |s| s.flops)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::cost::{CurvePoint, Rates};
    use gulliver_graph::work::Load;

    #[test]
    fn ways_that_were_not_measured_are_scaled_from_the_nearest() {
        let curves = |threads, devices, seconds| {
            let load = Load { flops: 1e6, bytes: 1e6, extents: [1.0; 6] };
            let families = [("conv".to_string(), vec![CurvePoint { load, seconds, spread: 0.0 }])];
            let rates = Rates { flops: 1e9, bytes: 1e9, call: 1e-6 };
            Curves::of([threads, devices], rates, families.into_iter().collect())
        };
        let scaling = |threads: usize| Scaling {
            threads,
            flops: [10.0, 18.0, 24.0, 28.0][threads - 1],
            bytes: 1.0,
            spread: 0.0,
        };
        let profile = MachineProfile {
            cores: 4,
            processor: String::new(),
            links: Links::default(),
            scaling: (1..=4).map(scaling).collect(),
            curves: vec![curves(4, 1, 1.0), curves(1, 1, 2.8), curves(1, 4, 3.5)],
        };
        for (threads, devices, expected) in
            [(4, 1, 1.0), (1, 1, 2.8), (1, 4, 3.5), (3, 1, 28.0 / 24.0), (1, 3, 3.5), (8, 1, 1.0)]
        {
            let found = profile.at(threads, devices).unwrap();
            assert_eq!((found.threads, found.devices), (threads, devices));
            let seconds = found.families["conv"][0].seconds;
            assert!((seconds - expected).abs() < 1e-9, "{devices} of {threads}: {seconds}, not {expected}");
        }
        assert_eq!(MachineProfile { curves: Vec::new(), ..profile }.at(1, 1), None);
    }
}
