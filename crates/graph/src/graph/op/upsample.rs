//! Nearest-neighbour upsampling: every element is repeated a whole number of times along each spatial
//! dimension.

use super::sample::Sample;
use super::window::spatial;
use super::{Backward, OpDef, OpError, attribute, check};
use crate::graph::build::Builder;
use crate::graph::{GraphError, Type, Value};
use crate::spec::Spec;
use crate::tensor::{Tensor, positions};
use serde::{Deserialize, Serialize};

/// By these factors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Upsample {
    /// One per spatial dimension.
    pub factor: Vec<usize>,
}

impl OpDef for Upsample {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 1, &[])?;
        let (axes, taps) = spatial(self.factor.len())?;
        if self.factor.contains(&0) {
            return attribute(format!("factors {:?} must be above 0", self.factor));
        }
        let merged: Vec<String> = axes.iter().zip(taps).map(|(h, r)| format!("({h} {r})")).collect();
        let with: Vec<String> = taps.iter().zip(&self.factor).map(|(r, f)| format!("{r}={f}")).collect();
        Ok(format!("n c {} -> n c {} with {}", axes.join(" "), merged.join(" "), with.join(" ")).parse()?)
    }

    fn grad(&self, g: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        // [n, c, h·f, …] as [n, c, h, f, …], summed over every f.
        let mut split = g.shape(at.ins[0])[..2].to_vec();
        let mut axes = Vec::new();
        for (extent, &f) in g.shape(at.ins[0])[2..].iter().zip(&self.factor) {
            split.extend([extent.clone(), f.into()]);
            axes.push(split.len() - 1);
        }
        let dy = g.reshape(at.dout()?, &split)?;
        Ok(vec![Some(g.sum(dy, &axes, false)?)])
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let shape = outs[0].shape.clone();
        for (y, mut p) in outs[0].data.iter_mut().zip(positions(&shape)) {
            for (i, f) in p[2..].iter_mut().zip(&self.factor) {
                *i /= f;
            }
            *y = ins[0].at(&p);
        }
    }

    fn flops_per_point(&self) -> u64 {
        0
    }

    fn samples() -> Vec<Sample> {
        vec![
            Sample::normal(Upsample { factor: vec![2, 2] }, &[&[2, 3, 4, 3]]),
            Sample::normal(Upsample { factor: vec![1, 3] }, &[&[1, 2, 3, 5]]),
            Sample::normal(Upsample { factor: vec![3] }, &[&[2, 2, 5]]),
            Sample::normal(Upsample { factor: vec![2, 1, 2] }, &[&[1, 2, 2, 3, 3]]),
        ]
    }
}
