//! Bilinear upsampling of images by whole factors, with pixel centres aligned as areas
//! (`align_corners = false`).

use super::bilinear_grad::BilinearGrad;
use super::sample::Sample;
use super::{Backward, Op, OpDef, OpError, attribute, check};
use crate::graph::build::Builder;
use crate::graph::{GraphError, Type, Value};
use crate::spec::{Part, Spec};
use crate::tensor::{Tensor, positions};
use serde::{Deserialize, Serialize};

/// Upsampling of [n, c, h, w].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bilinear {
    /// How the height grows.
    pub rows: Stretch,
    /// How the width grows.
    pub columns: Stretch,
}

/// Upsampling along one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stretch {
    /// Output elements per input element.
    pub factor: usize,
    /// Neighbours that are missing before the first element: 1 at the image's border, where the border
    /// element stands in for them, 0 inside a part.
    pub low: i64,
    /// Likewise after the last element.
    pub high: i64,
}

impl Stretch {
    /// Of a whole image.
    pub fn new(factor: usize) -> Stretch {
        Stretch { factor, low: 1, high: 1 }
    }

    /// What output `i` reads, as two (neighbour, weight): neighbour `r` of 0, 1, 2 is the element at
    /// `i / factor + r - low`.
    pub fn taps(&self, i: usize) -> [(usize, f64); 2] {
        let phase = (i % self.factor) as f64;
        let offset = (phase + 0.5) / self.factor as f64 - 0.5;
        if offset < 0.0 { [(0, -offset), (1, 1.0 + offset)] } else { [(1, 1.0 - offset), (2, offset)] }
    }

    /// The input positions and weights of output `i`, clamped into an input of this extent.
    pub fn reads(&self, i: usize, extent: usize) -> [(usize, f64); 2] {
        let place = |r: usize| (i / self.factor + r) as i64 - self.low;
        self.taps(i).map(|(r, weight)| (place(r).clamp(0, extent as i64 - 1) as usize, weight))
    }

    pub(crate) fn check(&self) -> Result<(), OpError> {
        if self.factor == 0 { attribute("factors must be above 0") } else { Ok(()) }
    }
}

impl OpDef for Bilinear {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 1, &[])?;
        self.rows.check()?;
        self.columns.check()?;
        let index = |s: &Stretch, axis, tap| format!("{axis}+{tap}!{:+}|{}", -s.low, s.high);
        let x = format!("n c {} {}", index(&self.rows, "h", "r"), index(&self.columns, "w", "s"));
        let (f, g) = (self.rows.factor, self.columns.factor);
        Ok(format!("{x} -> n c (h f) (w g) with r=3 s=3 f={f} g={g}").parse()?)
    }

    fn grad(&self, g: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        let shape = g.shape(at.ins[0]);
        let size = [shape[2].clone(), shape[3].clone()];
        let op = BilinearGrad { rows: self.rows, columns: self.columns, size };
        Ok(vec![Some(g.push1(op, &[at.dout()?])?)])
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let (x, shape) = (ins[0], outs[0].shape.clone());
        for (y, p) in outs[0].data.iter_mut().zip(positions(&shape)) {
            for (i, a) in self.rows.reads(p[2], x.shape[2]) {
                for (j, b) in self.columns.reads(p[3], x.shape[3]) {
                    *y += a * b * x.at(&[p[0], p[1], i, j]);
                }
            }
        }
    }

    // Nine taps per point, four of which are read, each by two operations.
    fn flops_per_point(&self) -> u64 {
        1
    }

    fn part(&self, part: &Part) -> Option<Op> {
        let within = |s: Stretch, d: usize| match part.input_windows[0][d] {
            Some(seen) => Stretch { low: seen.low, high: seen.high, ..s },
            None => s,
        };
        Some(Bilinear { rows: within(self.rows, 2), columns: within(self.columns, 3) }.into())
    }

    fn samples() -> Vec<Sample> {
        let by = |f, g| Bilinear { rows: Stretch::new(f), columns: Stretch::new(g) };
        vec![
            Sample::normal(by(2, 2), &[&[2, 3, 4, 3]]),
            Sample::normal(by(3, 1), &[&[1, 2, 5, 2]]),
            Sample::normal(by(2, 4), &[&[1, 1, 1, 6]]),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubling_gives_the_well_known_weights() {
        let x = Tensor::new(&[1, 1, 1, 3], vec![0.0, 4.0, 8.0]);
        let mut y = [Tensor::zeros(&[1, 1, 1, 6])];
        Bilinear { rows: Stretch::new(1), columns: Stretch::new(2) }.eval(&[&x], &mut y);
        assert_eq!(y[0].data, [0.0, 1.0, 3.0, 5.0, 7.0, 8.0]);
    }
}
