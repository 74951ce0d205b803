//! How long nodes take by what was measured of nodes like them: of the same family, with nearly as much to do.
//! Between points it is not seconds that are averaged but how far they are from a [`Roofline`], so that small sizes,
//! caches and tiles show in the points and size itself in the roofline.

use super::Rates;
use super::roofline::{Roofline, is_narrow};
use gulliver_graph::work::Load;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What one kind of node was measured to take.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "[f64; 10]", into = "[f64; 10]")]
pub struct Point {
    /// What it had to do.
    pub load: Load,
    /// Seconds when nothing disturbs it: a tenth of the repetitions were as fast.
    pub seconds: f64,
    /// How much longer the median took, as a share.
    pub spread: f64,
}

impl Point {
    /// Seconds as a rule: the median.
    pub fn typical(&self) -> f64 {
        self.seconds * (1.0 + self.spread)
    }
}

impl From<[f64; 10]> for Point {
    fn from([flops, bytes, a, b, c, d, e, f, seconds, spread]: [f64; 10]) -> Point {
        Point { load: Load { flops, bytes, extents: [a, b, c, d, e, f] }, seconds, spread }
    }
}

impl From<Point> for [f64; 10] {
    fn from(point: Point) -> [f64; 10] {
        let Load { flops, bytes, extents: [a, b, c, d, e, f] } = point.load;
        [flops, bytes, a, b, c, d, e, f, point.seconds, point.spread]
    }
}

/// What a meeting costs whoever comes to it, however fast the links are: threads are woken up, and bytes are copied
/// and added by the cores that compute.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Meeting {
    /// Seconds of one at which next to nothing is exchanged.
    pub call: f64,
    /// Seconds for each byte taken from others.
    pub byte: f64,
}

impl Meeting {
    /// Seconds of one that brings so many bytes.
    pub fn seconds(&self, bytes: f64) -> f64 {
        self.call + self.byte * bytes
    }

    /// What explains best how much longer steps took than their kernels: of each, the seconds it took in all, those
    /// beyond its kernels, its meetings, and the bytes they brought. Least squares of shares of the step.
    pub fn fitted(steps: &[[f64; 4]]) -> Meeting {
        let scaled =
            steps.iter().map(|[all, beyond, meetings, bytes]| [beyond / all, meetings / all, bytes / all]);
        let scaled: Vec<[f64; 3]> = scaled.collect();
        let sum = |i: usize, j: usize| scaled.iter().map(|row| row[i] * row[j]).sum::<f64>();
        let [nn, nb, bb, en, eb] = [sum(1, 1), sum(1, 2), sum(2, 2), sum(0, 1), sum(0, 2)];
        let alone = |e: f64, x: f64| if x > 0.0 { (e / x).max(0.0) } else { 0.0 };
        let both = nn * bb - nb * nb;
        let [call, byte] = [(en * bb - eb * nb) / both, (eb * nn - en * nb) / both];
        match (call > 0.0, byte > 0.0) {
            (true, true) => Meeting { call, byte },
            (false, true) => Meeting { call: 0.0, byte: alone(eb, bb) },
            (true, false) => Meeting { call: alone(en, nn), byte: 0.0 },
            // Neither, or they cannot be told apart.
            (false, false) => Meeting { call: 0.0, byte: alone(eb, bb) },
        }
    }
}

/// Points of one way to use the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curves {
    /// Threads of a device.
    pub threads: usize,
    /// Devices at work at once.
    pub devices: usize,
    /// Seconds that pass between two nodes.
    pub between: f64,
    /// What a meeting with other devices takes of a device's time, if that was measured.
    #[serde(default)]
    pub meeting: Option<Meeting>,
    /// How much longer the slowest of several devices takes for a kernel than they do on average, as a share.
    #[serde(default)]
    pub uneven: f64,
    /// The roofline.
    pub rates: Rates,
    /// By family.
    pub families: BTreeMap<String, Vec<Point>>,
    /// The same device while the others are at rest, if that was measured.
    #[serde(skip)]
    pub alone: Option<Box<Curves>>,
    /// Rooflines of families that have one of their own; see [`Curves::fitted`].
    #[serde(skip)]
    pub rooflines: BTreeMap<String, Roofline>,
}

/// Points that are averaged, nearest first.
const NEAREST: usize = 8;
/// Square of a distance, in logarithms of sizes, below which points are as good as the same.
const SAME: f64 = 0.01;
/// Elements of a row beyond which a larger power of two makes no difference: a page.
const EVEN: u64 = 1024;

impl Curves {
    /// With rooflines fitted to the points of every family of sums of products.
    pub fn fitted(mut self) -> Curves {
        let products =
            self.families.iter().filter(|(_, points)| points.iter().any(|p| p.load.extents[5] > 1.0));
        let fitted = products.map(|(family, points)| (family.clone(), Roofline::fitted(&self.rates, points)));
        self.rooflines = fitted.collect();
        self
    }

    /// Seconds of a node of this family, if anything like it was measured.
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

    /// Points of the family, or of those that have as many words as possible in common with it.
    fn like(&self, family: &str) -> Option<Vec<&Point>> {
        let mut prefix = family;
        loop {
            let begins =
                |name: &str| name.strip_prefix(prefix).is_some_and(|r| r.is_empty() || r.starts_with(' '));
            let found: Vec<&Point> = self
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

/// Sizes as logarithms, and how evenly rows fall into the sets of a cache: rows as long as a large power of two share
/// few of them.
fn place(load: &Load) -> [f64; 8] {
    let [a, b, c, d, e, _] = load.extents;
    let row = e.max(1.0) as u64;
    let even = (1u64 << row.trailing_zeros()).min(EVEN) as f64;
    [load.flops, load.bytes, a, b, c, d, e, even].map(|size| size.max(1.0).ln())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(flops: f64) -> Load {
        Load { flops, bytes: flops / 4.0, extents: [flops, 1.0, flops, 1.0, 8.0, 1.0] }
    }

    fn curves(points: &[(&str, f64, f64)]) -> Curves {
        let mut families: BTreeMap<String, Vec<Point>> = BTreeMap::new();
        for (family, flops, seconds) in points {
            let point = Point { load: load(*flops), seconds: *seconds, spread: 0.0 };
            families.entry(family.to_string()).or_default().push(point);
        }
        let rates = Rates { flops: 1e9, bytes: 1e9, call: 1e-6 };
        let (between, uneven, meeting, alone, rooflines) = (0.0, 0.0, None, None, BTreeMap::new());
        Curves { threads: 1, devices: 1, between, meeting, uneven, rates, families, alone, rooflines }
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
    fn meetings_are_told_apart_from_bytes() {
        let step = |meetings: f64, bytes: f64, off: f64| {
            let beyond = 1e-4 * meetings + 1e-9 * bytes + off;
            [0.05 + beyond, beyond, meetings, bytes]
        };
        let steps = [step(10.0, 1e6, 0.0), step(100.0, 1e7, 0.0), step(5.0, 3e7, 0.0)];
        let Meeting { call, byte } = Meeting::fitted(&steps);
        assert!((call / 1e-4 - 1.0).abs() < 1e-6 && (byte / 1e-9 - 1.0).abs() < 1e-6, "{call} {byte}");
        // Nothing is ever faster for having met, and nothing at all is no time.
        let Meeting { call, byte } = Meeting::fitted(&[step(10.0, 1e6, -0.02), step(300.0, 1e3, -0.03)]);
        assert!(call >= 0.0 && byte >= 0.0 && (call + byte).is_finite());
        assert_eq!(Meeting::fitted(&[]), Meeting { call: 0.0, byte: 0.0 });
    }

    #[test]
    fn as_a_rule_kernels_take_their_median() {
        let point = |spread| Point { load: load(1e6), seconds: 2.0, spread };
        for (spread, typical) in [(0.0, 2.0), (0.05, 2.1), (0.5, 3.0)] {
            assert!((point(spread).typical() - typical).abs() < 1e-9);
        }
    }

    #[test]
    fn what_was_not_measured_is_taken_for_what_is_most_like_it() {
        let curves = curves(&[("chain add exp", 1e6, 1.0), ("chain add", 1e6, 0.25), ("conv 2d", 1e6, 7.0)]);
        for (family, seconds) in [
            ("chain add exp", Some(1.0)),
            ("chain add exp reduced", Some(1.0)),
            ("chain add tanh", Some(0.5)),
            ("chain mul", Some(0.5)),
            ("chain", Some(0.5)),
            ("chains", None),
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
