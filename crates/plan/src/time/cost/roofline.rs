//! Seconds of a kernel as a weighted sum of its operations, the elements of its operands and result, and one call. For
//! sums of products the weights are fitted to the points of a family; elsewhere they are those of the machine.

use super::{CurvePoint, Rates};
use gulliver_graph::work::Load;

/// Columns of a product are padded to a multiple of this.
const LANES: f64 = 16.0;
/// A product with fewer columns does not fill vectors and has another kernel.
const NARROW: f64 = 12.0;
/// Weight of the machine's rates in a fit, in points.
const PRIOR: f64 = 0.01;
/// Rounds of coordinate descent.
const ROUNDS: usize = 300;
/// Operations, elements of first operand, second operand and first result, and one call.
const TERMS: usize = 5;

/// Seconds per unit of each term.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Roofline([f64; TERMS]);

/// Whether the columns of a product do not fill vectors.
pub(super) fn is_narrow(load: &Load) -> bool {
    let columns = load.extents[5];
    columns > 1.0 && columns < NARROW
}

fn terms(load: &Load) -> [f64; TERMS] {
    let [first, second, result, _, _, columns] = load.extents;
    let made_up = if columns > 1.0 { (columns / LANES).ceil() * LANES / columns } else { 1.0 };
    [load.flops * made_up, first, second, result, 1.0]
}

impl Roofline {
    /// The roofline of the machine's rates.
    pub(super) fn plain(rates: &Rates) -> Roofline {
        let element = 4.0 / rates.bytes;
        Roofline([1.0 / rates.flops, element, element, element, rates.call])
    }

    /// The roofline that fits the points of a family: nonnegative least squares of relative errors, with the machine's
    /// rates as a weak prior.
    pub(super) fn fitted(rates: &Rates, points: &[CurvePoint]) -> Roofline {
        let plain = Roofline::plain(rates);
        let wide: Vec<&CurvePoint> = points.iter().filter(|point| !is_narrow(&point.load)).collect();
        let mut ratios: Vec<f64> = wide.iter().map(|p| p.typical() / plain.seconds(&p.load)).collect();
        ratios.sort_by(f64::total_cmp);
        let Some(scale) = ratios.get(ratios.len() / 2).copied().filter(|scale| scale.is_finite()) else {
            return plain;
        };
        let start = plain.0.map(|weight| weight * scale);
        // By point: the share of its seconds in each term, at the initial weights. The fit finds factors for the weights.
        let row = |point: &&CurvePoint| {
            let terms = terms(&point.load);
            std::array::from_fn::<f64, TERMS, _>(|i| start[i] * terms[i] / point.typical())
        };
        let rows: Vec<[f64; TERMS]> = wide.iter().map(row).collect();
        let mut factors = [1.0; TERMS];
        for _ in 0..ROUNDS {
            for i in 0..TERMS {
                let missing = |row: &[f64; TERMS]| {
                    1.0 - (0..TERMS).filter(|&j| j != i).map(|j| factors[j] * row[j]).sum::<f64>()
                };
                let above: f64 = rows.iter().map(|row| row[i] * missing(row)).sum::<f64>() + PRIOR;
                let below: f64 = rows.iter().map(|row| row[i] * row[i]).sum::<f64>() + PRIOR;
                factors[i] = (above / below).max(0.0);
            }
        }
        let fitted = Roofline(std::array::from_fn(|i| start[i] * factors[i]));
        if fitted.0.iter().all(|weight| weight.is_finite()) { fitted } else { plain }
    }

    /// Seconds of a kernel with this load.
    pub(super) fn seconds(&self, load: &Load) -> f64 {
        self.0.iter().zip(terms(load)).map(|(weight, term)| weight * term).sum::<f64>().max(1e-9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(rows: f64, columns: f64, depth: f64) -> Load {
        let (first, second, result) = (rows * depth, depth * columns, rows * columns);
        let bytes = 4.0 * (first + second + result);
        Load { flops: 2.0 * depth * result, bytes, extents: [first, second, result, 1.0, columns, columns] }
    }

    #[test]
    fn what_made_the_points_is_found() {
        let rates = Rates { flops: 1e11, bytes: 2e10, call: 1e-6 };
        // Weights are read four times as slowly as the machine can, everything else as fast as it can.
        let truth = |load: &Load| {
            let plain = Roofline::plain(&rates);
            plain.seconds(load) + 3.0 * 4.0 * load.extents[1] / rates.bytes
        };
        let mut points = Vec::new();
        for rows in [16.0, 64.0, 256.0, 1024.0] {
            for columns in [16.0, 64.0, 512.0] {
                for depth in [64.0, 256.0, 2048.0] {
                    let load = load(rows, columns, depth);
                    points.push(CurvePoint { load, seconds: truth(&load), spread: 0.0 });
                }
            }
        }
        let fitted = Roofline::fitted(&rates, &points);
        for (rows, columns, depth) in [(8.0, 1024.0, 4096.0), (4096.0, 32.0, 128.0), (100.0, 96.0, 1000.0)] {
            let load = load(rows, columns, depth);
            let off = fitted.seconds(&load) / truth(&load) - 1.0;
            assert!(off.abs() < 0.03, "{rows} x {columns} x {depth}: {off}");
        }
    }

    #[test]
    fn columns_are_made_up_to_whole_vectors() {
        let rates = Rates { flops: 1e9, bytes: 1e15, call: 1e-12 };
        let plain = Roofline::plain(&rates);
        let [sixteen, seventeen] = [16.0, 17.0].map(|columns| plain.seconds(&load(1000.0, columns, 1000.0)));
        assert!((seventeen / sixteen - 2.0).abs() < 1e-3);
        assert_eq!(
            [1.0, 8.0, 12.0, 64.0].map(|c| is_narrow(&load(1.0, c, 1.0))),
            [false, true, false, false]
        );
    }

    #[test]
    fn few_points_leave_the_machine_s_rates() {
        let rates = Rates { flops: 1e11, bytes: 2e10, call: 1e-6 };
        assert_eq!(Roofline::fitted(&rates, &[]), Roofline::plain(&rates));
        let load = load(64.0, 64.0, 64.0);
        let one = CurvePoint { load, seconds: 3.0 * Roofline::plain(&rates).seconds(&load), spread: 0.0 };
        let (fitted, plain) = (Roofline::fitted(&rates, &[one]), Roofline::plain(&rates));
        fitted.0.iter().zip(plain.0).for_each(|(a, b)| assert!((a / b / 3.0 - 1.0).abs() < 1e-6, "{a} {b}"));
    }
}
