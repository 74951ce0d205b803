//! Sum, maximum or minimum over axes. Means and variances are built from sums.

use super::sample::Sample;
use super::zip::{Binary, Zip};
use super::{Backward, OpDef, OpError, OpName, attribute, check};
use crate::graph::build::Builder;
use crate::graph::{GraphError, Type, Value};
use crate::spec::{ReduceKind, Spec};
use crate::tensor::{Tensor, positions};
use serde::{Deserialize, Serialize};

/// Combines all elements along some axes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reduce {
    /// How elements are combined.
    pub kind: ReduceKind,
    /// Dimensions that are reduced, ascending.
    pub axes: Vec<usize>,
    /// Whether they stay, with extent one.
    pub keep: bool,
}

impl OpName for Reduce {
    fn name(&self) -> &'static str {
        match self.kind {
            ReduceKind::Sum => "sum",
            ReduceKind::Max => "max",
            ReduceKind::Min => "min",
        }
    }

    fn help(&self) -> &'static str {
        "sum, maximum or minimum over axes"
    }
}

impl OpDef for Reduce {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 1, &[])?;
        let rank = ins[0].rank();
        if self.axes.iter().any(|&a| a >= rank) || self.axes.windows(2).any(|w| w[0] >= w[1]) {
            return attribute(format!("axes {:?} are not ascending dimensions below {rank}", self.axes));
        }
        let name = |d: usize| format!("a{d}");
        let join = |words: Vec<String>| if words.is_empty() { "[]".into() } else { words.join(" ") };
        let input = join((0..rank).map(name).collect());
        let kept = (0..rank).filter_map(|d| match (self.axes.contains(&d), self.keep) {
            (false, _) => Some(name(d)),
            (true, true) => Some("1".into()),
            (true, false) => None,
        });
        let out = join(kept.collect());
        let reduced = join(self.axes.iter().map(|&d| name(d)).collect());
        let clause = match self.kind {
            ReduceKind::Max if !self.axes.is_empty() => format!(" max {reduced}"),
            ReduceKind::Min if !self.axes.is_empty() => format!(" min {reduced}"),
            _ => String::new(),
        };
        Ok(format!("{input} -> {out}{clause}").parse()?)
    }

    fn grad(&self, g: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        let x = at.ins[0];
        let shape = g.shape(x).to_vec();
        let mut kept = shape.clone();
        for &a in &self.axes {
            kept[a] = 1.into();
        }
        let dy = g.reshape(at.dout()?, &kept)?;
        if self.kind == ReduceKind::Sum {
            return Ok(vec![Some(g.expand(dy, &shape)?)]);
        }
        // Elements that tie for the extreme share its gradient equally.
        let y = g.reshape(at.outs[0], &kept)?;
        let hit = g.push1(Zip(Binary::Equal), &[x, y])?;
        let hit = g.cast_f32(hit)?;
        let count = g.push1(Reduce { kind: ReduceKind::Sum, axes: self.axes.clone(), keep: true }, &[hit])?;
        let share = g.div(dy, count)?;
        Ok(vec![Some(g.mul(hit, share)?)])
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let start = match self.kind {
            ReduceKind::Sum => 0.0,
            ReduceKind::Max => f64::NEG_INFINITY,
            ReduceKind::Min => f64::INFINITY,
        };
        outs[0].data.fill(start);
        for (p, &x) in positions(&ins[0].shape).zip(&ins[0].data) {
            let place: Vec<usize> = (0..p.len())
                .filter_map(|d| match (self.axes.contains(&d), self.keep) {
                    (false, _) => Some(p[d]),
                    (true, true) => Some(0),
                    (true, false) => None,
                })
                .collect();
            let y = outs[0].at_mut(&place);
            *y = match self.kind {
                ReduceKind::Sum => *y + x,
                ReduceKind::Max => Binary::Max.eval(*y, x),
                ReduceKind::Min => Binary::Min.eval(*y, x),
            };
        }
    }

    fn samples() -> Vec<Sample> {
        let mut all = Vec::new();
        for kind in [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min] {
            for (axes, keep) in [
                (vec![1], false),
                (vec![0, 2], true),
                (vec![0, 1, 2], false),
                (vec![2], true),
                (vec![0], false),
            ] {
                all.push(Sample::normal(Reduce { kind, axes, keep }, &[&[3, 4, 21]]));
            }
        }
        all.push(Sample::normal(Reduce { kind: ReduceKind::Sum, axes: vec![], keep: false }, &[&[5]]));
        all
    }
}
