//! Seconds of nodes by measurements of similar nodes: of the same family, with about the same load. Between points the
//! ratio to a [`Roofline`] is averaged, not the seconds: the roofline scales with size, and the points add the effects
//! of caches and tiles.

use super::Rates;
use super::roofline::{Roofline, is_narrow};
use gulliver_graph::work::Load;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A measurement of one kind of node.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "[f64; 10]", into = "[f64; 10]")]
pub struct CurvePoint {
    /// Its load.
    pub load: Load,
    /// Undisturbed seconds: the fastest tenth of the repetitions.
    pub seconds: f64,
    /// The share by which it typically takes longer.
    pub spread: f64,
}

impl CurvePoint {
    /// Typical seconds.
    pub fn typical(&self) -> f64 {
        self.seconds * (1.0 + self.spread)
    }
}

impl From<[f64; 10]> for CurvePoint {
    fn from([flops, bytes, a, b, c, d, e, f, seconds, spread]: [f64; 10]) -> CurvePoint {
        CurvePoint { load: Load { flops, bytes, extents: [a, b, c, d, e, f] }, seconds, spread }
    }
}

impl From<CurvePoint> for [f64; 10] {
    fn from(point: CurvePoint) -> [f64; 10] {
        let Load { flops, bytes, extents: [a, b, c, d, e, f] } = point.load;
        [flops, bytes, a, b, c, d, e, f, point.seconds, point.spread]
    }
}

/// Seconds that kernels lose per second of a collective on their core, which also evicts their data from the cache.
const LEAVES: f64 = 2.0;

/// The time of a device that a collective takes, whatever the links: threads are woken, and the cores that compute copy
/// and add bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CollectivePrice {
    /// Seconds of a collective without bytes.
    pub call: f64,
    /// Seconds per byte received.
    pub byte: f64,
    /// Additional seconds beside kernels that use all cores: its thread has to get one of them.
    #[serde(default)]
    pub beside: f64,
}

impl CollectivePrice {
    /// Seconds of a collective that receives this many bytes.
    pub fn seconds(&self, bytes: f64) -> f64 {
        self.call + self.byte * bytes
    }

    /// Seconds that kernels lose to a collective on their cores.
    pub fn lost(&self, bytes: f64) -> f64 {
        LEAVES * self.seconds(bytes)
    }

    /// Fits measured (bytes, seconds) of collectives that devices waited for, and of those beside kernels: `beside` is the
    /// mean of the additional seconds of the latter. Seconds count from when all devices have come.
    pub fn fitted(met: &[[f64; 2]], beside: &[[f64; 2]]) -> CollectivePrice {
        let [call, byte] = explained(if met.is_empty() { beside } else { met });
        let more: f64 = beside.iter().map(|[bytes, seconds]| seconds - call - byte * bytes).sum();
        CollectivePrice { call, byte, beside: (more / beside.len().max(1) as f64).max(0.0) }
    }
}

/// Rounds of reweighting.
const WEIGHED: usize = 20;

/// Fits seconds of a call and per byte to (bytes, seconds), by least squares weighted with the inverse of the fitted
/// seconds: small rows count beside large ones, and the sum of the fitted seconds is that of the measured ones.
pub fn explained(taken: &[[f64; 2]]) -> [f64; 2] {
    let mut found = weighed(taken, |_| 1.0);
    for _ in 0..WEIGHED {
        let [call, byte] = found;
        found = weighed(taken, |[bytes, _]| 1.0 / (call + byte * bytes).max(1e-9));
    }
    found
}

fn weighed(taken: &[[f64; 2]], weight: impl Fn(&[f64; 2]) -> f64) -> [f64; 2] {
    let sum = |of: &dyn Fn(&[f64; 2]) -> f64| taken.iter().map(|row| weight(row) * of(row)).sum::<f64>();
    let (n, b, bb) = (sum(&|_| 1.0), sum(&|row| row[0]), sum(&|row| row[0] * row[0]));
    let (s, bs) = (sum(&|row| row[1]), sum(&|row| row[0] * row[1]));
    let alone = |e: f64, x: f64| if x > 0.0 { e / x } else { 0.0 };
    let both = n * bb - b * b;
    let [call, byte] = [(s * bb - b * bs) / both, (bs * n - s * b) / both];
    match (call > 0.0, byte > 0.0) {
        (true, true) => [call, byte],
        (true, false) => [alone(s, n), 0.0],
        // Also if the rows do not determine both.
        _ => [0.0, alone(s, b)],
    }
}

/// Measurements for one number of devices and of threads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curves {
    /// Threads of a device.
    pub threads: usize,
    /// Devices at work at once.
    pub devices: usize,
    /// Seconds that pass between two nodes.
    pub between: f64,
    /// The price of collectives, if it was measured.
    #[serde(default)]
    pub collective: Option<CollectivePrice>,
    /// The share by which the slowest of several devices takes longer than the mean for short work.
    #[serde(default)]
    pub uneven: f64,
    /// The power of its length by which longer work is less uneven.
    #[serde(default = "at_random")]
    pub fades: f64,
    /// Seconds by which devices continue late after a long wait for a link.
    #[serde(default)]
    pub resumes: f64,
    /// Seconds to feed inputs and read results: per step, and per byte fed.
    #[serde(default)]
    pub around: [f64; 2],
    /// The roofline.
    pub rates: Rates,
    /// By family.
    pub families: BTreeMap<String, Vec<CurvePoint>>,
    /// The same while the other devices are idle, if that was measured.
    #[serde(skip)]
    pub alone: Option<Box<Curves>>,
    /// Rooflines of families, filled in by [`Curves::fitted`].
    #[serde(skip)]
    pub rooflines: BTreeMap<String, Roofline>,
}

/// The power for independent noise.
fn at_random() -> f64 {
    0.5
}

/// Points that are averaged, nearest first.
const NEAREST: usize = 8;
/// Squared distance, in logarithms of sizes, below which points count about equally.
const SAME: f64 = 0.01;
/// Largest power of two of a row's length that matters: a page.
const EVEN: u64 = 1024;
/// Weight of the row length, relative to other sizes, for nodes that sum no products: each row is a loop of its own.
const ROWS: f64 = 10.0;

impl Curves {
    /// Points by family, without overheads between and around nodes.
    pub fn of(
        [threads, devices]: [usize; 2],
        rates: Rates,
        families: BTreeMap<String, Vec<CurvePoint>>,
    ) -> Curves {
        Curves {
            threads,
            devices,
            between: 0.0,
            collective: None,
            uneven: 0.0,
            fades: at_random(),
            resumes: 0.0,
            around: [0.0; 2],
            rates,
            families,
            alone: None,
            rooflines: BTreeMap::new(),
        }
    }

    /// The curves with a roofline for every family of sums of products.
    pub fn fitted(mut self) -> Curves {
        let products =
            self.families.iter().filter(|(_, points)| points.iter().any(|p| p.load.extents[5] > 1.0));
        let fitted = products.map(|(family, points)| (family.clone(), Roofline::fitted(&self.rates, points)));
        self.rooflines = fitted.collect();
        self
    }

    /// Seconds of a node of this family, if a similar one was measured.
    pub fn seconds(&self, family: &str, load: &Load) -> Option<f64> {
        let mut points = self.like(family)?;
        // Narrow results have kernels of their own.
        if points.iter().any(|point| is_narrow(&point.load) == is_narrow(load)) {
            points.retain(|point| is_narrow(&point.load) == is_narrow(load));
        }
        let plain = Roofline::plain(&self.rates);
        let roofline = self.rooflines.get(family).filter(|_| !is_narrow(load)).unwrap_or(&plain);
        let place = place(load);
        let mut near: Vec<(f64, f64)> = points
            .iter()
            .map(|point| {
                let pairs = place.iter().zip(self::place(&point.load));
                let distance: f64 = pairs.map(|(a, b)| (a - b) * (a - b)).sum();
                (distance, (point.typical() / roofline.seconds(&point.load)).ln())
            })
            .collect();
        near.sort_by(|a, b| a.0.total_cmp(&b.0));
        near.truncate(NEAREST);
        let weight = |distance: f64| 1.0 / (distance + SAME);
        let all: f64 = near.iter().map(|(d, _)| weight(*d)).sum();
        let slower = near.iter().map(|(d, slower)| weight(*d) * slower).sum::<f64>() / all;
        let seconds = roofline.seconds(load) * slower.exp() + self.between;
        seconds.is_finite().then_some(seconds)
    }

    /// Points of the family, or of the families with the longest common prefix of words.
    fn like(&self, family: &str) -> Option<Vec<&CurvePoint>> {
        let mut prefix = family;
        loop {
            let begins =
                |name: &str| name.strip_prefix(prefix).is_some_and(|r| r.is_empty() || r.starts_with(' '));
            let found: Vec<&CurvePoint> = self
                .families
                .iter()
                .filter(|(name, _)| begins(name))
                .flat_map(|(_, points)| points)
                .collect();
            if !found.is_empty() {
                return Some(found);
            }
            prefix = prefix.rsplit_once(' ')?.0;
        }
    }
}

/// Logarithms of sizes, and of the power of two in the row length: rows of a large power of two share few cache sets.
fn place(load: &Load) -> [f64; 8] {
    let [a, b, c, d, e, columns] = load.extents;
    let row = e.max(1.0) as u64;
    let even = (1u64 << row.trailing_zeros()).min(EVEN) as f64;
    let mut place = [load.flops, load.bytes, a, b, c, d, e, even].map(|size| size.max(1.0).ln());
    if columns <= 1.0 {
        place[6] *= ROWS.sqrt();
    }
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(flops: f64) -> Load {
        Load { flops, bytes: flops / 4.0, extents: [flops, 1.0, flops, 1.0, 8.0, 1.0] }
    }

    fn curves(points: &[(&str, f64, f64)]) -> Curves {
        let mut families: BTreeMap<String, Vec<CurvePoint>> = BTreeMap::new();
        for (family, flops, seconds) in points {
            let point = CurvePoint { load: load(*flops), seconds: *seconds, spread: 0.0 };
            families.entry(family.to_string()).or_default().push(point);
        }
        let rates = Rates { flops: 1e9, bytes: 1e9, call: 1e-6 };
        Curves::of([1, 1], rates, families)
    }

    #[test]
    fn a_point_is_its_own_prediction() {
        let curves = curves(&[("conv 2d", 1e6, 0.5), ("conv 2d", 1e8, 0.75), ("conv 3d", 1e6, 9.0)]);
        for (family, flops, seconds) in [("conv 2d", 1e6, 0.5), ("conv 2d", 1e8, 0.75), ("conv 3d", 1e6, 9.0)]
        {
            let found = curves.seconds(family, &load(flops)).unwrap();
            assert!((found / seconds - 1.0).abs() < 0.02, "{family} {flops}: {found}");
        }
    }

    #[test]
    fn between_points_the_roofline_scales_and_efficiency_is_averaged() {
        // Four times slower than the roofline when small, twice when large.
        let slow = |flops: f64, times: f64| times * (1.25 * flops / 1e9 + 1e-6);
        let curves = curves(&[("map", 1e6, slow(1e6, 4.0)), ("map", 1e8, slow(1e8, 2.0))]);
        let mut before = 0.0;
        for flops in [1e4, 1e6, 3e6, 1e7, 3e7, 1e8, 1e10] {
            let seconds = curves.seconds("map", &load(flops)).unwrap();
            let times = seconds / slow(flops, 1.0);
            assert!((1.99..=4.01).contains(&times), "{flops}: {times}");
            assert!(seconds > before, "more to do takes longer");
            before = seconds;
        }
    }

    #[test]
    fn nodes_with_rows_as_long_are_nearer_than_nodes_as_large() {
        let load = |rows: f64, row: f64| {
            let all = rows * row;
            Load { flops: all, bytes: 8.0 * all, extents: [all, 1.0, all, 1.0, row, 1.0] }
        };
        let mut curves = curves(&[]);
        let point = |rows, row, seconds| CurvePoint { load: load(rows, row), seconds, spread: 0.0 };
        // Four times slower for each number in short rows, which were measured in small nodes only.
        let points =
            vec![point(1e3, 3.0, 4.0 * 2.4e-5), point(1e4, 48.0, 3.84e-3), point(2e4, 48.0, 7.68e-3)];
        curves.families.insert("norm".into(), points);
        let seconds = curves.seconds("norm", &load(1e4, 3.0)).unwrap();
        assert!((2.0..=5.0).contains(&(seconds / 2.4e-4)), "{seconds}");
    }

    #[test]
    fn meetings_are_told_apart_from_bytes() {
        let met = [1e3, 1e5, 1e6, 3e7].map(|bytes| [bytes, 1e-4 + 1e-9 * bytes]);
        let CollectivePrice { call, byte, beside } =
            CollectivePrice::fitted(&met, &met.map(|[bytes, s]| [bytes, s + 1e-5]));
        assert!((call / 1e-4 - 1.0).abs() < 1e-6 && (byte / 1e-9 - 1.0).abs() < 1e-6, "{call} {byte}");
        assert!((beside / 1e-5 - 1.0).abs() < 1e-6, "{beside}");
        // More bytes are never faster, and nothing at all is no time.
        for met in [&[[1e3, 2e-3], [1e6, 1e-4]][..], &[[1e6, 1e-4]], &[[0.0, 1e-4]]] {
            let CollectivePrice { call, byte, .. } = CollectivePrice::fitted(met, &[]);
            assert!(call >= 0.0 && byte >= 0.0 && (call + byte).is_finite(), "{met:?}: {call} {byte}");
        }
        assert_eq!(CollectivePrice::fitted(&[], &[]), CollectivePrice { call: 0.0, byte: 0.0, beside: 0.0 });
        // However unlike they are, together they take as long as they did.
        let met = [[0.0, 1e-6], [0.0, 2e-4], [0.0, 9e-5], [1e6, 4e-4], [4e6, 1.3e-3]];
        let fitted = CollectivePrice::fitted(&met, &[]);
        let [explained, took] =
            met.iter().fold([0.0; 2], |[a, b], row| [a + fitted.seconds(row[0]), b + row[1]]);
        assert!((explained / took - 1.0).abs() < 1e-9, "{explained} {took}");
    }

    #[test]
    fn as_a_rule_kernels_take_longer_than_undisturbed() {
        let point = |spread| CurvePoint { load: load(1e6), seconds: 2.0, spread };
        for (spread, typical) in [(0.0, 2.0), (0.05, 2.1), (0.5, 3.0)] {
            assert!((point(spread).typical() - typical).abs() < 1e-9);
        }
    }

    #[test]
    fn what_was_not_measured_is_taken_for_what_is_most_like_it() {
        let curves = curves(&[
            ("elementwise add exp", 1e6, 1.0),
            ("elementwise add", 1e6, 0.25),
            ("conv 2d", 1e6, 7.0),
        ]);
        for (family, seconds) in [
            ("elementwise add exp", Some(1.0)),
            ("elementwise add exp reduced", Some(1.0)),
            ("elementwise add tanh", Some(0.5)),
            ("elementwise mul", Some(0.5)),
            ("elementwise", Some(0.5)),
            ("elementwises", None),
            ("conv", Some(7.0)),
            ("exchange", None),
        ] {
            let found = curves.seconds(family, &load(1e6));
            let close = match (found, seconds) {
                (Some(found), Some(seconds)) => (found / seconds - 1.0).abs() < 0.02,
                (found, seconds) => found == seconds,
            };
            assert!(close, "{family}: {found:?}, not {seconds:?}");
        }
    }
}
