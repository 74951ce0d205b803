//! Seconds or bytes of one layer as a function of the micro-batch size: measured points with straight lines
//! between them.

/// A function of the micro-batch size.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SizeCurve {
    /// (size, amount), sorted by size.
    points: Vec<(u32, f64)>,
}

impl SizeCurve {
    /// Through these points, in any order; of several for one size the last counts.
    pub fn new(mut points: Vec<(u32, f64)>) -> SizeCurve {
        points.reverse();
        points.sort_by_key(|(size, _)| *size);
        points.dedup_by_key(|(size, _)| *size);
        SizeCurve { points }
    }

    /// `fixed + each * size`.
    pub fn line(fixed: f64, each: f64) -> SizeCurve {
        SizeCurve { points: vec![(0, fixed), (1, fixed + each)] }
    }

    /// The amount for a size; beyond the points the nearest line goes on, but never below zero. A single
    /// point is a share per sample, no point is zero.
    pub fn at(&self, size: u32) -> f64 {
        let (low, high) = match self.points.as_slice() {
            [] => return 0.0,
            [(one, amount)] => return amount * f64::from(size) / f64::from((*one).max(1)),
            points => {
                let after = points.partition_point(|(s, _)| *s < size).clamp(1, points.len() - 1);
                (points[after - 1], points[after])
            }
        };
        let slope = (high.1 - low.1) / f64::from(high.0 - low.0);
        (low.1 + slope * (f64::from(size) - f64::from(low.0))).max(0.0)
    }

    /// The largest size for which there is a point.
    pub fn last(&self) -> u32 {
        self.points.last().map_or(0, |(size, _)| *size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_and_beyond_its_points() {
        let measured = SizeCurve::new(vec![(4, 10.0), (1, 9.0), (1, 4.0), (8, 30.0)]);
        for (curve, size, want) in [
            (&measured, 1, 4.0),
            (&measured, 2, 6.0),
            (&measured, 4, 10.0),
            (&measured, 6, 20.0),
            (&measured, 10, 40.0),
            (&measured, 0, 2.0),
            (&SizeCurve::line(1.0, 2.0), 5, 11.0),
            (&SizeCurve::new(vec![(2, 3.0)]), 6, 9.0),
            (&SizeCurve::default(), 3, 0.0),
            (&SizeCurve::new(vec![(2, 1.0), (3, 5.0)]), 0, 0.0),
        ] {
            assert_eq!(curve.at(size), want, "{curve:?} at {size}");
        }
    }
}
