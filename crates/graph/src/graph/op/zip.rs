//! Element-wise functions of two values, with broadcasting.

use super::sample::{Sample, SampleInput};
use super::{Backward, OpDef, OpError, OpName, check};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::build::Builder;
use crate::graph::{GraphError, Type, Value};
use crate::spec::Spec;
use crate::tensor::{Tensor, positions};
use serde::{Deserialize, Serialize};

/// `z = f(x, y)`; extents of one, and missing leading dimensions, are broadcast.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Zip(pub Binary);

/// A function of two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // each is the function of its name
pub enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Max,
    Min,
    Pow,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

impl Binary {
    /// All of them.
    pub const ALL: [Binary; 13] = [
        Binary::Add,
        Binary::Sub,
        Binary::Mul,
        Binary::Div,
        Binary::Max,
        Binary::Min,
        Binary::Pow,
        Binary::Equal,
        Binary::NotEqual,
        Binary::Less,
        Binary::LessEqual,
        Binary::Greater,
        Binary::GreaterEqual,
    ];

    /// The function's name.
    pub fn name(self) -> &'static str {
        match self {
            Binary::Add => "add",
            Binary::Sub => "sub",
            Binary::Mul => "mul",
            Binary::Div => "div",
            Binary::Max => "maximum",
            Binary::Min => "minimum",
            Binary::Pow => "power",
            Binary::Equal => "equal",
            Binary::NotEqual => "not_equal",
            Binary::Less => "less",
            Binary::LessEqual => "less_equal",
            Binary::Greater => "greater",
            Binary::GreaterEqual => "greater_equal",
        }
    }

    /// Whether the result is a truth value.
    pub fn compares(self) -> bool {
        matches!(
            self,
            Binary::Equal
                | Binary::NotEqual
                | Binary::Less
                | Binary::LessEqual
                | Binary::Greater
                | Binary::GreaterEqual
        )
    }

    /// The value; comparisons give 0 or 1.
    pub fn eval(self, x: f64, y: f64) -> f64 {
        let truth = |t: bool| if t { 1.0 } else { 0.0 };
        match self {
            Binary::Add => x + y,
            Binary::Sub => x - y,
            Binary::Mul => x * y,
            Binary::Div => x / y,
            // A NaN on either side is the result, as a diverging run must not hide.
            Binary::Max => {
                if x >= y || x.is_nan() {
                    x
                } else {
                    y
                }
            }
            Binary::Min => {
                if x <= y || x.is_nan() {
                    x
                } else {
                    y
                }
            }
            Binary::Pow => x.powf(y),
            Binary::Equal => truth(x == y),
            Binary::NotEqual => truth(x != y),
            Binary::Less => truth(x < y),
            Binary::LessEqual => truth(x <= y),
            Binary::Greater => truth(x > y),
            Binary::GreaterEqual => truth(x >= y),
        }
    }
}

/// The spec of an element-wise operator over broadcast operands.
pub fn broadcast_spec(ins: &[Type]) -> Result<Spec, OpError> {
    let rank = ins.iter().map(Type::rank).max().unwrap_or(0);
    let one = Dim::from(1);
    let at = |t: &Type, d: usize| (d + t.rank()).checked_sub(rank).map(|i| t.shape[i].clone());
    let wide: Vec<bool> =
        (0..rank).map(|d| ins.iter().any(|t| at(t, d).is_some_and(|extent| extent != one))).collect();
    let operand = |t: &Type| {
        let indices: Vec<String> = (0..rank)
            .filter_map(|d| at(t, d).map(|extent| (d, extent)))
            .map(|(d, extent)| if extent == one && wide[d] { "1".into() } else { format!("a{d}") })
            .collect();
        if indices.is_empty() { "[]".into() } else { indices.join(" ") }
    };
    let out: Vec<String> = (0..rank).map(|d| format!("a{d}")).collect();
    let out = if out.is_empty() { "[]".into() } else { out.join(" ") };
    let ins: Vec<String> = ins.iter().map(operand).collect();
    Ok(format!("{} -> {out}", ins.join(", ")).parse()?)
}

/// The element of a broadcast operand that belongs to a position of the result.
pub fn broadcast_at(t: &Tensor, position: &[usize]) -> f64 {
    let skip = position.len() - t.shape.len();
    let own: Vec<usize> =
        position[skip..].iter().zip(&t.shape).map(|(&p, &d)| if d == 1 { 0 } else { p }).collect();
    t.at(&own)
}

impl OpName for Zip {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn help(&self) -> &'static str {
        "element-wise function of two broadcast values"
    }
}

impl OpDef for Zip {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        if self.0.compares() {
            check(ins, 2, &[(0, &DType::ALL), (1, &DType::ALL)])?;
        } else {
            check(ins, 2, &[])?;
        }
        if ins[0].dtype != ins[1].dtype {
            return Err(OpError::DType { input: 1, expected: ins[0].dtype.name(), got: ins[1].dtype });
        }
        broadcast_spec(ins)
    }

    fn dtypes(&self, ins: &[Type], outputs: usize) -> Vec<DType> {
        vec![if self.0.compares() { DType::Bool } else { ins[0].dtype }; outputs]
    }

    fn grad(&self, g: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        if self.0.compares() {
            return Ok(vec![None, None]);
        }
        let (x, y, dz) = (at.ins[0], at.ins[1], at.dout()?);
        let want = at.wants;
        let mut dx = None;
        let mut dy = None;
        match self.0 {
            Binary::Add => (dx, dy) = (Some(dz), Some(dz)),
            Binary::Sub => {
                dx = Some(dz);
                dy = if want[1] { Some(g.neg(dz)?) } else { None };
            }
            Binary::Mul => {
                dx = if want[0] { Some(g.mul(dz, y)?) } else { None };
                dy = if want[1] { Some(g.mul(dz, x)?) } else { None };
            }
            Binary::Div => {
                let scaled = g.div(dz, y)?;
                dx = Some(scaled);
                if want[1] {
                    let t = g.mul(scaled, at.outs[0])?;
                    dy = Some(g.neg(t)?);
                }
            }
            Binary::Max | Binary::Min => {
                let op = if self.0 == Binary::Max { Binary::GreaterEqual } else { Binary::LessEqual };
                let first = g.push1(Zip(op), &[x, y])?;
                let zero = g.scalar(0.0)?;
                dx = if want[0] { Some(g.select(first, dz, zero)?) } else { None };
                dy = if want[1] { Some(g.select(first, zero, dz)?) } else { None };
            }
            Binary::Pow => {
                if want[0] {
                    let one = g.scalar(1.0)?;
                    let less = g.sub(y, one)?;
                    let p = g.push1(Zip(Binary::Pow), &[x, less])?;
                    let t = g.mul(p, y)?;
                    dx = Some(g.mul(dz, t)?);
                }
                if want[1] {
                    let log = g.log(x)?;
                    let t = g.mul(at.outs[0], log)?;
                    dy = Some(g.mul(dz, t)?);
                }
            }
            _ => {}
        }
        let mut fold = |d: Option<Value>, input: Value, want: bool| match d {
            Some(d) if want => g.sum_to(d, input).map(Some),
            _ => Ok(None),
        };
        Ok(vec![fold(dx, x, want[0])?, fold(dy, y, want[1])?])
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let shape = outs[0].shape.clone();
        for (z, p) in outs[0].data.iter_mut().zip(positions(&shape)) {
            *z = self.0.eval(broadcast_at(ins[0], &p), broadcast_at(ins[1], &p));
        }
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![(0, 0), (1, 0)]
    }

    fn samples() -> Vec<Sample> {
        let mut all = Vec::new();
        for f in Binary::ALL {
            let input = |shape: &[usize]| match f {
                Binary::Pow | Binary::Div => SampleInput::uniform(shape, 0.3, 2.0),
                _ => SampleInput::normal(shape),
            };
            all.push(Sample::new(Zip(f), vec![input(&[4, 19]), input(&[4, 19])]));
            all.push(Sample::new(Zip(f), vec![input(&[2, 3, 5]), input(&[3, 1])]));
            all.push(Sample::new(Zip(f), vec![input(&[]), input(&[7])]));
        }
        all
    }
}
