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
pub struct CurvePoint {
    /// What it had to do.
    pub load: Load,
    /// Seconds when nothing disturbs it: a tenth of the repetitions were as fast.
    pub seconds: f64,
    /// How much longer it takes as a rule, as a share.
    pub spread: f64,
}

impl CurvePoint {
    /// Seconds as a rule.
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

/// How much more than its own time a collective takes from kernels whose core it has: they find the cache full of what it has
/// copied. Seven networks, in turns with and without collectives beside kernels, lost 2.06 times as much to them.
const LEAVES: f64 = 2.0;

/// What a collective costs whoever comes to it, however fast the links are: threads are woken up, and bytes are copied
/// and added by the cores that compute.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CollectivePrice {
    /// Seconds of one at which next to nothing is exchanged.
    pub call: f64,
    /// Seconds for each byte taken from others.
    pub byte: f64,
    /// Seconds more of one that is held beside kernels which have all cores: its thread has to get one of them.
    #[serde(default)]
    pub beside: f64,
}

impl CollectivePrice {
    /// Seconds of one that brings so many bytes.
    pub fn seconds(&self, bytes: f64) -> f64 {
        self.call + self.byte * bytes
    }

    /// Seconds that kernels lose to one that is held beside them, on the cores they have.
    pub fn lost(&self, bytes: f64) -> f64 {
        LEAVES * self.seconds(bytes)
    }

    /// What explains best how long collectives took: of each, the bytes it brought and its seconds once all had come, of
    /// those that devices only waited for, and of those that were beside kernels: what these took beyond that, on
    /// average.
    pub fn fitted(met: &[[f64; 2]], beside: &[[f64; 2]]) -> CollectivePrice {
        let [call, byte] = explained(if met.is_empty() { beside } else { met });
        let more: f64 = beside.iter().map(|[bytes, seconds]| seconds - call - byte * bytes).sum();
        CollectivePrice { call, byte, beside: (more / beside.len().max(1) as f64).max(0.0) }
    }
}

/// Rounds in which what was explained before says how much each counts.
const WEIGHED: usize = 20;

/// Seconds of a call and of each byte that explain best what took how long: of each, bytes and seconds. Least squares,
/// each over the seconds explained: small ones count beside large ones, and all of them together are explained to take
/// as long as they did. Shares of the seconds taken would be met best by what the quickest took.
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
        // Also if they cannot be told apart.
        _ => [0.0, alone(s, b)],
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
    /// What a collective with other devices takes of a device's time, if that was measured.
    #[serde(default)]
    pub collective: Option<CollectivePrice>,
    /// How much longer the slowest of several devices takes for a little work than they do on average, as a share.
    #[serde(default)]
    pub uneven: f64,
    /// The power of its length by which longer work is less uneven.
    #[serde(default = "at_random")]
    pub fades: f64,
    /// Seconds by which devices that waited for a link for long go on later than it lets them.
    #[serde(default)]
    pub resumes: f64,
    /// Seconds around the steps of several devices, in which inputs are fed and results read: of a step, and of each
    /// byte fed.
    #[serde(default)]
    pub around: [f64; 2],
    /// The roofline.
    pub rates: Rates,
    /// By family.
    pub families: BTreeMap<String, Vec<CurvePoint>>,
    /// The same device while the others are at rest, if that was measured.
    #[serde(skip)]
    pub alone: Option<Box<Curves>>,
    /// Rooflines of families that have one of their own; see [`Curves::fitted`].
    #[serde(skip)]
    pub rooflines: BTreeMap<String, Roofline>,
}

/// As noise fades that has nothing to do with that of a moment before.
fn at_random() -> f64 {
    0.5
}

/// Points that are averaged, nearest first.
const NEAREST: usize = 8;
/// Square of a distance, in logarithms of sizes, below which points are as good as the same.
const SAME: f64 = 0.01;
/// Elements of a row beyond which a larger power of two makes no difference: a page.
const EVEN: u64 = 1024;
/// How much more than of another size it counts what the rows of a node that sums no products are: each is a loop of its
/// own. Normalising rows of 2 numbers takes ten times as long for a number as those of 48, however many there are.
const ROWS: f64 = 10.0;

impl Curves {
    /// Of so many devices of so many threads, with points by family, and nothing known yet of what is between and around
    /// them.
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

/// Sizes as logarithms, and how evenly rows fall into the sets of a cache: rows as long as a large power of two share
/// few of them.
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
