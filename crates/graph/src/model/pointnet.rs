//! PointNet: a classifier of point clouds, plain or with the learned transforms of points and features
//! and the penalty that keeps the latter near a rotation.

use super::head::{CLASSIFY_OR_REGRESS, Head};
use super::param::{Param, Params, flag, float, int, param, text};
use super::{Architecture, Built, Family, ModelInput, batch};
use crate::dtype::DType;
use crate::graph::build::Builder;
use crate::graph::{GraphError, GraphOutput, Value};
use crate::role::OutputRole;
use crate::windows::ConvOptions;

/// Sizes of a PointNet.
#[derive(Clone, Debug, PartialEq)]
pub struct PointNet {
    /// Points of a cloud.
    pub points: usize,
    /// Channels of the first layer; the others are multiples of it.
    pub width: usize,
    /// Classes, or numbers to regress.
    pub classes: usize,
    /// The kind of prediction.
    pub head: Head,
    /// Whether points and features are transformed by networks of their own.
    pub transform: bool,
    /// Share dropped before the last layer.
    pub dropout: f32,
}

/// Parameters of the family.
pub static FAMILY: Family =
    Family { takes: ModelInput::Points, heads: CLASSIFY_OR_REGRESS, params: PARAMS, make };

static PARAMS: &[Param] = &[
    param("points", int(1024), "points of a cloud"),
    param("width", int(64), "channels of the first layer"),
    param("classes", int(40), "classes, or numbers to regress"),
    param("head", text("classify"), "`classify` predicts a class, `regress` numbers"),
    param("transform", flag(false), "learned transforms of points and features"),
    param("dropout", float(0.0), "share dropped before the last layer"),
];

fn make(p: &Params) -> Result<Box<dyn Architecture>, GraphError> {
    Ok(Box::new(PointNet {
        points: p.size("points")?,
        width: p.size("width")?,
        classes: p.size("classes")?,
        head: Head::read(p, CLASSIFY_OR_REGRESS)?,
        transform: p.flag("transform")?,
        dropout: p.rate("dropout")?,
    }))
}

/// Weight of the penalty on the feature transform.
const PENALTY: f32 = 0.001;

/// A convolution over single points, normalised, then relu.
fn points_layer(g: &mut Builder, x: Value, n: usize, out: usize) -> Result<Value, GraphError> {
    let x = g.scope(format!("conv{n}"), |g| g.conv_layer(x, out, &[1], &ConvOptions::new(1), true))?;
    let x = g.scope(format!("bn{n}"), |g| g.batch_norm_layer(x))?;
    g.relu(x)
}

/// A linear layer, normalised, then relu; the norm is counted from `norms`.
fn cloud_layer(g: &mut Builder, x: Value, n: usize, norms: usize, out: usize) -> Result<Value, GraphError> {
    let x = g.scope(format!("fc{n}"), |g| g.linear(x, out, true))?;
    let x = g.scope(format!("bn{}", norms + n), |g| g.batch_norm_layer(x))?;
    g.relu(x)
}

impl PointNet {
    /// From the points `x` `[batch, 3, points]` to the logits `[batch, classes]` and, with transforms,
    /// the penalty.
    pub fn build(&self, g: &mut Builder) -> Result<(Value, Option<Value>), GraphError> {
        let x = g.data("x", DType::F32, &[batch(), 3.into(), self.points.into()])?;
        let (x, penalty) = g.scope("feat", |g| self.features(g, x))?;
        let x = cloud_layer(g, x, 1, 0, 8 * self.width)?;
        let x = g.scope("fc2", |g| g.linear(x, 4 * self.width, true))?;
        let x = g.dropout(x, self.dropout)?;
        let x = g.scope("bn2", |g| g.batch_norm_layer(x))?;
        let x = g.relu(x)?;
        Ok((g.scope("fc3", |g| g.linear(x, self.classes, true))?, penalty))
    }

    /// One vector per cloud.
    fn features(&self, g: &mut Builder, mut x: Value) -> Result<(Value, Option<Value>), GraphError> {
        let mut penalty = None;
        if self.transform {
            let matrix = g.scope("stn", |g| self.transform(g, x, 3))?;
            x = g.contract("b i n, b i j -> b j n", x, matrix)?;
        }
        x = points_layer(g, x, 1, self.width)?;
        if self.transform {
            let matrix = g.scope("fstn", |g| self.transform(g, x, self.width))?;
            x = g.contract("b i n, b i j -> b j n", x, matrix)?;
            penalty = Some(off_rotation(g, matrix, self.width)?);
        }
        x = points_layer(g, x, 2, 2 * self.width)?;
        x = points_layer(g, x, 3, 16 * self.width)?;
        Ok((g.max(x, &[2], false)?, penalty))
    }

    /// A matrix `[batch, k, k]` per cloud, near the identity at first.
    fn transform(&self, g: &mut Builder, x: Value, k: usize) -> Result<Value, GraphError> {
        let x = points_layer(g, x, 1, self.width)?;
        let x = points_layer(g, x, 2, 2 * self.width)?;
        let x = points_layer(g, x, 3, 16 * self.width)?;
        let x = g.max(x, &[2], false)?;
        let x = cloud_layer(g, x, 1, 3, 8 * self.width)?;
        let x = cloud_layer(g, x, 2, 3, 4 * self.width)?;
        let x = g.scope("fc3", |g| g.linear(x, k * k, true))?;
        let x = g.reshape(x, &[batch(), k.into(), k.into()])?;
        let one = identity(g, k)?;
        g.add(x, one)
    }
}

/// The mean over the batch of the squares of `A·Aᵀ - I`.
fn off_rotation(g: &mut Builder, matrix: Value, k: usize) -> Result<Value, GraphError> {
    let gram = g.contract("b i k, b j k -> b i j", matrix, matrix)?;
    let one = identity(g, k)?;
    let off = g.sub(gram, one)?;
    let squares = g.square(off)?;
    let sums = g.sum(squares, &[1, 2], false)?;
    g.mean_all(sums)
}

/// The identity `[k, k]`: a column of ones padded to `k + 1` columns, read as rows of `k`.
fn identity(g: &mut Builder, k: usize) -> Result<Value, GraphError> {
    let ones = g.fill(1.0, &[k, 1])?;
    let wide = g.pad(ones, &[0, 0], &[0, k as i64], 0.0)?;
    let line = g.reshape(wide, &[k * (k + 1)])?;
    let line = g.slice(line, 0, 0, k * k)?;
    g.reshape(line, &[k, k])
}

impl Architecture for PointNet {
    fn objective(&self, _: usize, g: &mut Builder) -> Result<Built, GraphError> {
        let (x, penalty) = self.build(g)?;
        let mut built = self.head.built(g, x)?;
        if let Some(penalty) = penalty {
            let scaled = g.affine(penalty, PENALTY, 0.0)?;
            built.loss = g.add(built.loss, scaled)?;
            built.metrics.push(GraphOutput::new("penalty", OutputRole::Metric, penalty));
        }
        Ok(built)
    }

    fn forward(&self, g: &mut Builder) -> Result<Vec<GraphOutput>, GraphError> {
        Ok(self.head.predicted(self.build(g)?.0))
    }
}
