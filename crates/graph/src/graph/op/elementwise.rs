//! Several element-wise operators over broadcast operands, with reductions of their results: one loop over memory
//! instead of one per operator. [`crate::fuse_elementwise`] makes it from neighbouring nodes.

use super::cast::Cast;
use super::map::{Function, Map};
use super::map_grad::MapGrad;
use super::reduce::Reduce;
use super::sample::{Sample, SampleFill, SampleInput};
use super::select::Select;
use super::zip::{Binary, Zip, broadcast_at, broadcast_spec};
use super::{Op, OpDef, OpError, attribute};
use crate::dtype::DType;
use crate::graph::Type;
use crate::spec::{AxisId, Index, ReduceKind, Spec, SpecError};
use crate::tensor::{Tensor, positions};
use serde::{Deserialize, Serialize};

/// A straight-line program. Its values are numbered: first the operands, then the result of every step;
/// all have the shape to which the operands broadcast together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Elementwise {
    /// The number of operands.
    pub operands: usize,
    /// The steps, in order.
    pub steps: Vec<ElementwiseStep>,
    /// The results.
    pub results: Vec<ElementwiseResult>,
}

/// One element-wise operator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ElementwiseStep {
    /// The operator.
    pub apply: Apply,
    /// The values it reads.
    pub of: Vec<usize>,
}

/// The element-wise operators.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Apply {
    /// [`Map`].
    Map(Function),
    /// [`MapGrad`].
    MapGrad(Function),
    /// [`Zip`].
    Zip(Binary),
    /// [`Select`].
    Select,
    /// [`Cast`].
    Cast(DType),
}

impl Apply {
    /// The element-wise step that an operator is, if it is one.
    pub fn of(op: &Op) -> Option<Apply> {
        match op {
            Op::Map(map) => Some(Apply::Map(map.0)),
            Op::MapGrad(grad) => Some(Apply::MapGrad(grad.0)),
            Op::Zip(zip) => Some(Apply::Zip(zip.0)),
            Op::Select(_) => Some(Apply::Select),
            Op::Cast(cast) => Some(Apply::Cast(cast.to)),
            _ => None,
        }
    }

    /// The operator that does this step alone.
    pub fn op(self) -> Op {
        match self {
            Apply::Map(f) => Map(f).into(),
            Apply::MapGrad(f) => MapGrad(f).into(),
            Apply::Zip(f) => Zip(f).into(),
            Apply::Select => Select {}.into(),
            Apply::Cast(to) => Cast { to }.into(),
        }
    }
}

/// A result: a value, or a reduction of one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ElementwiseResult {
    /// The value.
    pub value: usize,
    /// How it is reduced. All reduced results have the same kind and axes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reduce: Option<Reduce>,
}

impl Elementwise {
    /// Element types of all values, operands first.
    pub fn value_types(&self, ins: &[DType]) -> Result<Vec<DType>, OpError> {
        if ins.len() != self.operands {
            return Err(SpecError::Arity { expected: self.operands, got: ins.len() }.into());
        }
        let mut types = ins.to_vec();
        for step in &self.steps {
            if let Some(v) = step.of.iter().find(|&&v| v >= types.len()) {
                return attribute(format!(
                    "step {} reads value {v} before it is made",
                    types.len() - ins.len()
                ));
            }
            let scalars: Vec<Type> = step.of.iter().map(|&v| Type::new::<usize>(types[v], &[])).collect();
            let op = step.apply.op();
            op.def().spec(&scalars)?;
            types.push(op.def().dtypes(&scalars, 1)[0]);
        }
        Ok(types)
    }

    /// How results are reduced, where some are.
    pub fn reduction(&self) -> Option<&Reduce> {
        self.results.iter().find_map(|kept| kept.reduce.as_ref())
    }

    fn check_results(&self, values: usize, rank: usize) -> Result<(), OpError> {
        if self.results.is_empty() {
            return attribute("an element-wise program has at least one result");
        }
        for kept in &self.results {
            if !(self.operands..values).contains(&kept.value) {
                return attribute(format!("value {} is not made by a step", kept.value));
            }
            let Some(reduce) = &kept.reduce else { continue };
            if reduce.axes.iter().any(|&a| a >= rank) || reduce.axes.windows(2).any(|w| w[0] >= w[1]) {
                return attribute(format!(
                    "axes {:?} are not ascending dimensions below {rank}",
                    reduce.axes
                ));
            }
            let first = self.reduction().unwrap_or(reduce);
            if (reduce.kind, &reduce.axes) != (first.kind, &first.axes) {
                return attribute("results are reduced over different axes or in different ways");
            }
        }
        Ok(())
    }
}

impl OpDef for Elementwise {
    fn family(&self) -> String {
        let mut words: Vec<String> = self.steps.iter().map(|step| step.apply.op().def().family()).collect();
        words.sort_unstable();
        words.dedup();
        let sums = if self.reduction().is_some() { " reduced" } else { "" };
        format!("elementwise{sums} {}", words.join(" "))
    }

    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        let types = self.value_types(&ins.iter().map(|t| t.dtype).collect::<Vec<_>>())?;
        let mut spec = broadcast_spec(ins)?;
        let whole = std::mem::take(&mut spec.outputs).swap_remove(0);
        self.check_results(types.len(), whole.len())?;
        for kept in &self.results {
            let Some(reduce) = &kept.reduce else {
                spec.outputs.push(whole.clone());
                continue;
            };
            if !types[kept.value].is_float() {
                return Err(OpError::DType {
                    input: kept.value,
                    expected: "a float type",
                    got: types[kept.value],
                });
            }
            let left = whole.iter().enumerate().filter_map(|(d, index)| {
                match (reduce.axes.contains(&d), reduce.keep) {
                    (false, _) => Some(index.clone()),
                    (true, true) => Some(Index::One),
                    (true, false) => None,
                }
            });
            spec.outputs.push(left.collect());
            for &d in &reduce.axes {
                if let Index::Axis(AxisId(axis)) = whole[d] {
                    spec.axes[axis].reduce = reduce.kind;
                }
            }
        }
        Ok(spec)
    }

    fn dtypes(&self, ins: &[Type], _outputs: usize) -> Vec<DType> {
        let types = self.value_types(&ins.iter().map(|t| t.dtype).collect::<Vec<_>>()).unwrap_or_default();
        self.results.iter().map(|kept| types.get(kept.value).copied().unwrap_or(DType::F32)).collect()
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let rank = ins.iter().map(|t| t.shape.len()).max().unwrap_or(0);
        let extent = |d: usize| {
            let of = |t: &&Tensor| (d + t.shape.len()).checked_sub(rank).map_or(1, |i| t.shape[i]);
            // Extents are one or equal: one that is not one counts, even zero.
            ins.iter().map(of).find(|&e| e != 1).unwrap_or(1)
        };
        let shape: Vec<usize> = (0..rank).map(extent).collect();
        let widened =
            |t: &&Tensor| Tensor::new(&shape, positions(&shape).map(|p| broadcast_at(t, &p)).collect());
        let mut values: Vec<Tensor> = ins.iter().map(widened).collect();
        for step in &self.steps {
            let mut result = [Tensor::zeros(&shape)];
            let of: Vec<&Tensor> = step.of.iter().map(|&v| &values[v]).collect();
            step.apply.op().def().eval(&of, &mut result);
            values.extend(result);
        }
        for (kept, out) in self.results.iter().zip(outs) {
            let value = &values[kept.value];
            match &kept.reduce {
                None => out.data.copy_from_slice(&value.data),
                Some(reduce) => reduce.eval(&[value], std::slice::from_mut(out)),
            }
        }
    }

    fn flops_per_point(&self) -> u64 {
        let reduced = self.results.iter().filter(|kept| kept.reduce.is_some()).count();
        (self.steps.len() + reduced) as u64
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        let whole = self.results.iter().enumerate().filter(|(_, kept)| kept.reduce.is_none());
        whole.flat_map(|(o, _)| (0..self.operands).map(move |i| (i, o))).collect()
    }

    fn samples() -> Vec<Sample> {
        let n = SampleInput::normal;
        let biased = |results| {
            elementwise(
                2,
                &[(Apply::Zip(Binary::Add), &[0, 1]), (Apply::Map(Function::GeluTanh), &[2])],
                results,
            )
        };
        let backward = |axes: &[usize]| {
            let steps: [(Apply, &[usize]); 2] =
                [(Apply::Zip(Binary::Add), &[1, 2]), (Apply::MapGrad(Function::Relu), &[0, 3])];
            elementwise(3, &steps, vec![keep(4), sum(4, axes)])
        };
        let matches = elementwise(
            2,
            &[(Apply::Zip(Binary::Equal), &[0, 1]), (Apply::Cast(DType::F32), &[2])],
            vec![keep(3), sum(3, &[2])],
        );
        let chosen = elementwise(
            3,
            &[(Apply::Zip(Binary::Less), &[1, 2]), (Apply::Select, &[3, 1, 2]), (Apply::Select, &[0, 4, 1])],
            vec![keep(4), keep(5), keep(3)],
        );
        let many = elementwise(
            4,
            &[
                (Apply::Zip(Binary::Mul), &[0, 1]),
                (Apply::Zip(Binary::Sub), &[4, 2]),
                (Apply::Map(Function::Square), &[5]),
                (Apply::Zip(Binary::Mul), &[6, 3]),
                (Apply::Zip(Binary::Add), &[7, 0]),
            ],
            vec![keep(8)],
        );
        let wide = [(Apply::Map(Function::Tanh), [0].as_slice())];
        let largest = ElementwiseResult {
            value: 1,
            reduce: Some(Reduce { kind: ReduceKind::Max, axes: vec![1], keep: true }),
        };
        let square: [(Apply, &[usize]); 1] = [(Apply::Map(Function::Square), &[0])];
        vec![
            Sample::normal(biased(vec![keep(3)]), &[&[4, 19], &[19]]),
            Sample::normal(biased(vec![keep(2), keep(3)]), &[&[2, 3, 4, 5], &[3, 1, 1]]),
            Sample::normal(backward(&[0]), &[&[21, 7], &[21, 7], &[7]]),
            Sample::normal(backward(&[0, 1]), &[&[3, 8, 6], &[3, 8, 6], &[1, 8, 1]]),
            Sample::normal(backward(&[0, 2]), &[&[3, 5, 18], &[3, 5, 18], &[3, 5, 1]]),
            Sample::new(matches, vec![few(&[2, 5, 33]), few(&[2, 5, 1])]),
            Sample::new(chosen, vec![SampleInput::mask(&[4, 1]), n(&[4, 9]), n(&[4, 9])]),
            Sample::normal(many, &[&[3, 40], &[3, 1], &[], &[3, 40]]),
            Sample::normal(elementwise(1, &wide, vec![keep(1), largest]), &[&[6, 37]]),
            Sample::normal(elementwise(1, &square, vec![sum(1, &[0, 1])]), &[&[6, 37]]),
        ]
    }
}

/// Standard normal numbers would hardly ever be equal.
fn few(shape: &[usize]) -> SampleInput {
    SampleInput { fill: SampleFill::Below(3), ..SampleInput::normal(shape) }
}

/// The operator from (step, values it reads).
pub fn elementwise(
    operands: usize,
    steps: &[(Apply, &[usize])],
    results: Vec<ElementwiseResult>,
) -> Elementwise {
    let steps = steps.iter().map(|(apply, of)| ElementwiseStep { apply: *apply, of: of.to_vec() }).collect();
    Elementwise { operands, steps, results }
}

/// A value as it is.
pub fn keep(value: usize) -> ElementwiseResult {
    ElementwiseResult { value, reduce: None }
}

/// The sum of a value over axes, which are dropped.
pub fn sum(value: usize, axes: &[usize]) -> ElementwiseResult {
    ElementwiseResult {
        value,
        reduce: Some(Reduce { kind: ReduceKind::Sum, axes: axes.to_vec(), keep: false }),
    }
}
