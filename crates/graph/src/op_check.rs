//! Checks of an operator on one sample: its gradient against finite differences, its spec against the elements that
//! the reference kernel reads, every legal cut against the whole. Tests loop over the table with it; users check
//! their own operators.

use crate::autodiff::differentiate;
use crate::dim::Bindings;
use crate::dtype::DType;
use crate::graph::build::Builder;
use crate::graph::op::sample::{Sample, SampleFill};
use crate::graph::{Graph, GraphError, Init, Role, Type, Value};
use crate::interpret::interpret;
use crate::random::RandomStream;
use crate::role::DataRole;
use crate::spec::{Combine, ReduceKind, Region};
use crate::tensor::{Tensor, positions};

/// A property that an operator lacks.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum OpDefect {
    /// The sample cannot even be built or differentiated.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A check failed.
    #[error("{0}")]
    Wrong(String),
}

/// Runs all checks below; the number of derivatives, regions and outputs that were compared.
pub fn all(sample: &Sample) -> Result<usize, OpDefect> {
    Ok(gradient(sample)? + reads(sample)? + cuts(sample)?)
}

fn wrong<T>(sample: &Sample, why: impl std::fmt::Display) -> Result<T, OpDefect> {
    Err(OpDefect::Wrong(format!("{:?}: {why}", sample.op)))
}

fn weighted_sum(outs: &[Tensor], weights: &[Tensor]) -> f64 {
    // Elements without weight may be infinite.
    let term = |(x, y): (&f64, &f64)| if *y == 0.0 { 0.0 } else { x * y };
    let dot = |(a, b): (&Tensor, &Tensor)| a.data.iter().zip(&b.data).map(term).sum::<f64>();
    outs.iter().zip(weights).map(dot).sum()
}

/// The sample in a graph, with the gradients of Σ out·r for fixed random r, so that every output element
/// matters.
struct Differentiated {
    graph: Graph,
    weights: Vec<Tensor>,
    /// The inputs that are differentiated, and the gradient of each.
    grads: Vec<(usize, Option<Value>)>,
}

fn differentiated(sample: &Sample, inputs: &[Tensor]) -> Result<Differentiated, GraphError> {
    let mut g = Builder::new(true);
    let (mut ins, mut wrt) = (Vec::new(), Vec::new());
    for (i, input) in sample.inputs.iter().enumerate() {
        let differentiable = input.dtype == DType::F32 && !matches!(input.fill, SampleFill::Constant(_));
        let role =
            if differentiable { Role::Weight(Init::Constant(0.0)) } else { Role::Data(DataRole::Example) };
        ins.push(g.input(&format!("in{i}"), role, Type::new(input.dtype, &input.shape))?);
        if differentiable {
            wrt.push(i);
        }
    }
    let outs = g.push(sample.op.clone(), &ins)?;
    let values = sample.eval(inputs);
    let mut weights = Vec::new();
    let mut loss = g.scalar(0.0)?;
    for (i, out) in outs.iter().enumerate() {
        let shape = &values[i].shape;
        if !g.ty(*out).dtype.is_float() || i >= sample.op.def().results() {
            weights.push(Tensor::zeros(shape));
            continue;
        }
        let stream = RandomStream::new(11, i as u64, 0);
        let r = (0..values[i].len() as u64).map(|j| f64::from(stream.normal_at(j))).collect();
        weights.push(Tensor::new(shape, r));
        let r = g.data(&format!("r{i}"), DType::F32, shape)?;
        let term = g.mul(*out, r)?;
        let term = g.sum_all(term)?;
        loss = g.add(loss, term)?;
    }
    let values: Vec<Value> = wrt.iter().map(|&i| ins[i]).collect();
    let grads = differentiate(&mut g, loss, &values, 0)?;
    Ok(Differentiated { graph: g.finish(), weights, grads: wrt.into_iter().zip(grads).collect() })
}

/// Compares the gradient by every float input with finite differences of the reference kernel; how many
/// derivatives were compared.
pub fn gradient(sample: &Sample) -> Result<usize, OpDefect> {
    let inputs = sample.tensors(7);
    let Differentiated { graph, weights, grads } = differentiated(sample, &inputs)?;
    let values = interpret(&graph, &Bindings::new(), |v, shape| {
        let name = &graph.value(v).name;
        let numbered = |prefix| name.strip_prefix(prefix).and_then(|i| i.parse::<usize>().ok());
        match (numbered("in"), numbered("r")) {
            (Some(i), _) => inputs[i].clone(),
            (_, Some(i)) => weights[i].clone(),
            _ => Tensor { shape: shape.to_vec(), data: vec![1.0; shape.iter().product()] },
        }
    });
    let Ok(values) = values else { return wrong(sample, "a sample must have constant sizes") };
    let mut checked = 0;
    for (at, grad) in grads {
        let shape = &inputs[at].shape;
        let analytic = grad.map_or_else(|| Tensor::zeros(shape), |v| values[v.index()].clone());
        if analytic.shape != *shape {
            return wrong(sample, format!("input {at} is {shape:?}, its gradient {:?}", analytic.shape));
        }
        for (j, derivative) in analytic.data.iter().enumerate() {
            let eps = 1e-5;
            let mut moved = inputs.clone();
            moved[at].data[j] += eps;
            let up = weighted_sum(&sample.eval(&moved), &weights);
            moved[at].data[j] -= 2.0 * eps;
            let down = weighted_sum(&sample.eval(&moved), &weights);
            let numeric = (up - down) / (2.0 * eps);
            let close = (numeric - derivative).abs() <= 1e-5 * (1.0 + numeric.abs());
            if !close {
                let why = format!("input {at}[{j}]: finite difference {numeric}, gradient {derivative}");
                return wrong(sample, why);
            }
            checked += 1;
        }
    }
    Ok(checked)
}

/// The inputs with everything outside the regions replaced: floats by NaN, indices by another index.
fn poisoned(sample: &Sample, inputs: &[Tensor], regions: &[Region]) -> Vec<Tensor> {
    let mut poisoned = inputs.to_vec();
    for ((tensor, region), input) in poisoned.iter_mut().zip(regions).zip(&sample.inputs) {
        for (p, x) in positions(&input.shape).zip(tensor.data.iter_mut()) {
            if !p.iter().zip(region).all(|(i, r)| r.contains(i)) {
                *x = match input.fill {
                    SampleFill::Below(n) => ((*x as u64 + 1) % n) as f64,
                    _ => f64::NAN,
                };
            }
        }
    }
    poisoned
}

fn same_bits(a: &Tensor, b: &Tensor) -> bool {
    a.shape == b.shape && a.data.iter().zip(&b.data).all(|(x, y)| x.to_bits() == y.to_bits())
}

/// Checks that parts of cuts read nothing the spec does not claim; how many output regions were compared.
pub fn reads(sample: &Sample) -> Result<usize, OpDefect> {
    let inputs = sample.tensors(3);
    let whole = sample.eval(&inputs);
    let mut checked = 0;
    for (cut, parts) in sample.cuts(&[2, 3]) {
        if !cut.keeps_bits() {
            continue;
        }
        for part in parts.iter().map(|p| &p.part) {
            let outs = sample.eval(&poisoned(sample, &inputs, &part.inputs));
            for ((out, whole), region) in outs.iter().zip(&whole).zip(&part.outputs) {
                if !same_bits(&out.region(region), &whole.region(region)) {
                    let (axis, range, claimed) = (cut.axis, &part.range, &part.inputs);
                    return wrong(sample, format!("axis {axis:?} {range:?} reads outside {claimed:?}"));
                }
                checked += 1;
            }
        }
    }
    Ok(checked)
}

/// Checks that every legal cut recombines to the whole; how many outputs were compared.
pub fn cuts(sample: &Sample) -> Result<usize, OpDefect> {
    let inputs = sample.tensors(5);
    let whole = sample.eval(&inputs);
    let mut checked = 0;
    for (cut, parts) in sample.cuts(&[1, 2, 3, 4]) {
        let mut joined: Vec<Option<Tensor>> = vec![None; whole.len()];
        for p in &parts {
            let ins: Vec<Tensor> = inputs.iter().zip(&p.part.inputs).map(|(t, r)| t.region(r)).collect();
            let mut piece = sample.clone();
            piece.op = p.op.clone();
            for (input, t) in piece.inputs.iter_mut().zip(&ins) {
                input.shape = t.shape.clone();
            }
            for (i, out) in piece.eval(&ins).into_iter().enumerate() {
                match (cut.outputs[i], &mut joined[i]) {
                    (Combine::Concat(_), all) => {
                        let all = all.get_or_insert_with(|| Tensor::zeros(&whole[i].shape));
                        let region = &p.part.outputs[i];
                        let expected: Vec<usize> = region.iter().map(|r| r.len()).collect();
                        if out.shape != expected {
                            let (axis, got) = (cut.axis, out.shape);
                            let why = format!("a part along {axis:?} is {got:?}, expected {expected:?}");
                            return wrong(sample, why);
                        }
                        all.set_region(region, &out);
                    }
                    (Combine::Reduce(_), all @ None) => *all = Some(out),
                    (Combine::Reduce(kind), Some(all)) => combine(kind, all, &out),
                }
            }
        }
        for ((out, whole), how) in joined.iter().zip(&whole).zip(&cut.outputs) {
            let same = |out: &Tensor| match how {
                Combine::Concat(_) | Combine::Reduce(ReduceKind::Max | ReduceKind::Min) => {
                    same_bits(out, whole)
                }
                Combine::Reduce(ReduceKind::Sum) => out.shape == whole.shape && close(out, whole),
            };
            if !out.as_ref().is_some_and(same) {
                let (axis, n) = (cut.axis, parts.len());
                return wrong(sample, format!("cut along {axis:?} into {n}, the parts are not the whole"));
            }
            checked += 1;
        }
    }
    Ok(checked)
}

fn combine(kind: ReduceKind, all: &mut Tensor, part: &Tensor) {
    for (a, b) in all.data.iter_mut().zip(&part.data) {
        *a = match kind {
            ReduceKind::Sum => *a + b,
            ReduceKind::Max => a.max(*b),
            ReduceKind::Min => a.min(*b),
        };
    }
}

fn close(a: &Tensor, b: &Tensor) -> bool {
    a.data.iter().zip(&b.data).all(|(a, b)| (a - b).abs() <= 1e-9 * (1.0 + b.abs()))
}
