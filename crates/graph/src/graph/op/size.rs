//! A size of the input (an extent, or a product of extents) as a number the graph can compute with:
//! the divisor of a mean, for any part of the mean that a device computes.

use super::sample::Sample;
use super::{Backward, OpDef, OpError, check};
use crate::dim::{Bindings, Dim, DimError};
use crate::graph::build::Builder;
use crate::graph::op::Op;
use crate::graph::{GraphError, Type, Value};
use crate::spec::Spec;
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// The value of an extent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Size {
    /// The formula.
    pub of: Dim,
}

impl OpDef for Size {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 0, &[])?;
        Ok("-> []".parse()?)
    }

    fn grad(&self, _g: &mut Builder, _at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        Ok(Vec::new())
    }

    fn bind(&self, sizes: &Bindings) -> Result<Option<Op>, DimError> {
        Ok(Some(Size { of: self.of.bind(sizes)?.into() }.into()))
    }

    fn eval(&self, _ins: &[&Tensor], outs: &mut [Tensor]) {
        outs[0].data[0] = self.of.as_const().expect("bound before it runs") as f64;
    }

    fn flops_per_point(&self) -> u64 {
        0
    }

    fn samples() -> Vec<Sample> {
        vec![Sample::normal(Size { of: 12.into() }, &[])]
    }
}
