//! The gradient of bilinear upsampling.

use super::bilinear::Stretch;
use super::sample::Sample;
use super::{Op, OpDef, OpError, check};
use crate::dim::Dim;
use crate::graph::Type;
use crate::spec::{Part, Spec};
use crate::tensor::{Tensor, positions};
use serde::{Deserialize, Serialize};

/// Input dy [n, c, h·f, w·g]; result dx [n, c, h, w].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BilinearGrad {
    /// How the height grew. `low` and `high` are 1 at the image's border, where what falls beyond it is
    /// given to the border element; 2 inside a part, where it belongs to a neighbour.
    pub rows: Stretch,
    /// How the width grew, likewise.
    pub columns: Stretch,
    /// Height and width of dx.
    pub size: [Dim; 2],
}

/// The element of dx that neighbour `r` of output `i` stands for, if it is here.
pub fn lands(s: &Stretch, i: usize, r: usize, extent: usize) -> Option<usize> {
    let (mut place, last) = ((i / s.factor + r) as i64 - s.low, extent as i64 - 1);
    if s.low == 1 {
        place = place.max(0);
    }
    if s.high == 1 {
        place = place.min(last);
    }
    (0..=last).contains(&place).then_some(place as usize)
}

impl OpDef for BilinearGrad {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 1, &[])?;
        self.rows.check()?;
        self.columns.check()?;
        let index = |s: &Stretch, axis, tap, size| format!("{axis}+{tap}!{:+}|{}{{{size}}}", -s.low, s.high);
        let rows = index(&self.rows, "h", "r", &self.size[0]);
        let columns = index(&self.columns, "w", "s", &self.size[1]);
        let (f, g) = (self.rows.factor, self.columns.factor);
        Ok(format!("n c (h f) (w g) -> n c {rows} {columns} with r=3 s=3 f={f} g={g}").parse()?)
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let dx = &mut outs[0];
        let (height, width) = (dx.shape[2], dx.shape[3]);
        for (p, dy) in positions(&ins[0].shape).zip(&ins[0].data) {
            for (r, a) in self.rows.taps(p[2]) {
                for (s, b) in self.columns.taps(p[3]) {
                    let row = lands(&self.rows, p[2], r, height);
                    let column = lands(&self.columns, p[3], s, width);
                    if let (Some(i), Some(j)) = (row, column) {
                        *dx.at_mut(&[p[0], p[1], i, j]) += a * b * dy;
                    }
                }
            }
        }
    }

    fn part(&self, part: &Part) -> Option<Op> {
        let within = |s: Stretch, d: usize| match part.output_windows[0][d] {
            Some(seen) => Stretch { low: seen.low, high: seen.high, ..s },
            None => s,
        };
        let size = [part.outputs[0][2].len().into(), part.outputs[0][3].len().into()];
        Some(BilinearGrad { rows: within(self.rows, 2), columns: within(self.columns, 3), size }.into())
    }

    fn samples() -> Vec<Sample> {
        let to = |f: usize, g: usize, h: usize, w: usize| {
            let op =
                BilinearGrad { rows: Stretch::new(f), columns: Stretch::new(g), size: [h.into(), w.into()] };
            Sample::normal(op, &[&[2, 2, h * f, w * g]])
        };
        vec![to(2, 2, 4, 3), to(3, 1, 5, 2), to(2, 4, 1, 6)]
    }
}
