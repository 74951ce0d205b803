//! Every operator of the table, by looping over its samples: the gradient against finite differences,
//! the spec against what the reference kernel really reads, and every legal cut against the whole.

use gulliver_graph::autodiff::differentiate;
use gulliver_graph::build::Builder;
use gulliver_graph::dim::Bindings;
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::{GraphError, Init, Role, Type, Value};
use gulliver_graph::interpret::interpret;
use gulliver_graph::op::Op;
use gulliver_graph::op::sample::{Fill, Sample};
use gulliver_graph::random::Stream;
use gulliver_graph::spec::{Combine, Reduce};
use gulliver_graph::tensor::{Tensor, positions};

fn weighted_sum(outs: &[Tensor], weights: &[Tensor]) -> f64 {
    // What has no weight may be infinite.
    let term = |(x, y): (&f64, &f64)| if *y == 0.0 { 0.0 } else { x * y };
    let dot = |(a, b): (&Tensor, &Tensor)| a.data.iter().zip(&b.data).map(term).sum::<f64>();
    outs.iter().zip(weights).map(dot).sum()
}

/// Operators without a gradient: those that are gradients themselves, and weight updates.
fn needs_no_gradient(op: &Op) -> bool {
    let name = op.def().name();
    name.ends_with("_grad") || name.starts_with("update_")
}

#[test]
fn gradients_match_finite_differences() {
    let mut checked = 0;
    for sample in Op::samples() {
        let mut g = Builder::new(true);
        let ins: Vec<Value> = sample
            .inputs
            .iter()
            .enumerate()
            .map(|(i, input)| {
                let differentiable = input.dtype == DType::F32 && !matches!(input.fill, Fill::Constant(_));
                let role = if differentiable { Role::Weight(Init::Constant(0.0)) } else { Role::Data };
                g.input(&format!("in{i}"), role, Type::new(input.dtype, &input.shape)).unwrap()
            })
            .collect();
        let outs = g.push(sample.op.clone(), &ins).unwrap();
        // loss = Σ out·r with fixed random r, so that every output element matters.
        let inputs = sample.tensors(7);
        let values = sample.eval(&inputs);
        let mut weights = Vec::new();
        let mut loss = g.scalar(0.0).unwrap();
        for (i, out) in outs.iter().enumerate() {
            let shape = values[i].shape.clone();
            if !g.ty(*out).dtype.is_float() || i >= sample.op.def().results() {
                weights.push(Tensor::zeros(&shape));
                continue;
            }
            let stream = Stream::new(11, i as u64, 0);
            let r = Tensor::new(
                &shape,
                (0..values[i].len() as u64).map(|j| f64::from(stream.normal_at(j))).collect(),
            );
            weights.push(r);
            let r = g.data(&format!("r{i}"), DType::F32, &shape).unwrap();
            let t = g.mul(*out, r).unwrap();
            let t = g.sum_all(t).unwrap();
            loss = g.add(loss, t).unwrap();
        }
        let wrt: Vec<Value> =
            ins.iter().copied().filter(|v| g.graph().weights().any(|(w, _)| w == *v)).collect();
        let grads = match differentiate(&mut g, loss, &wrt, 0) {
            Ok(grads) => grads,
            Err(GraphError::NotDifferentiable(_)) if needs_no_gradient(&sample.op) => continue,
            Err(e) => panic!("{:?}: {e}", sample.op),
        };
        let graph = g.finish();
        let values = interpret(&graph, &Bindings::new(), |v, shape| {
            let name = &graph.value(v).name;
            match (name.strip_prefix("in"), name.strip_prefix('r')) {
                (Some(i), _) => inputs[i.parse::<usize>().unwrap()].clone(),
                (_, Some(i)) => weights[i.parse::<usize>().unwrap()].clone(),
                _ => Tensor { shape: shape.to_vec(), data: vec![1.0; shape.iter().product()] },
            }
        })
        .unwrap();
        for (w, grad) in wrt.iter().zip(grads) {
            let at = ins.iter().position(|v| v == w).unwrap();
            let shape = &inputs[at].shape;
            let analytic = grad.map_or_else(|| Tensor::zeros(shape), |v| values[v.index()].clone());
            assert_eq!(analytic.shape, *shape, "{:?}: gradient of input {at}", sample.op);
            for j in 0..inputs[at].len() {
                let eps = 1e-5;
                let mut moved = inputs.clone();
                moved[at].data[j] += eps;
                let up = weighted_sum(&sample.eval(&moved), &weights);
                moved[at].data[j] -= 2.0 * eps;
                let down = weighted_sum(&sample.eval(&moved), &weights);
                let numeric = (up - down) / (2.0 * eps);
                let error = (numeric - analytic.data[j]).abs();
                assert!(
                    error <= 1e-5 * (1.0 + numeric.abs()),
                    "{:?}: input {at}[{j}]: finite difference {numeric}, gradient {}",
                    sample.op,
                    analytic.data[j]
                );
                checked += 1;
            }
        }
    }
    assert!(checked > 1000, "only {checked} derivatives were compared");
}

/// The inputs with everything outside the regions replaced: floats by NaN, indices by another index.
fn poisoned(sample: &Sample, inputs: &[Tensor], regions: &[gulliver_graph::spec::Region]) -> Vec<Tensor> {
    let mut poisoned = inputs.to_vec();
    for ((tensor, region), input) in poisoned.iter_mut().zip(regions).zip(&sample.inputs) {
        for (p, x) in positions(&input.shape).zip(tensor.data.iter_mut()) {
            if !p.iter().zip(region).all(|(i, r)| r.contains(i)) {
                *x = match input.fill {
                    Fill::Below(n) => ((*x as u64 + 1) % n) as f64,
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

#[test]
fn specs_claim_every_element_that_is_read() {
    let mut checked = 0;
    for sample in Op::samples() {
        let inputs = sample.tensors(3);
        let whole = sample.eval(&inputs);
        for (cut, parts) in sample.cuts(&[2, 3]) {
            if !cut.keeps_bits() {
                continue;
            }
            for part in parts.iter().map(|p| &p.part) {
                let outs = sample.eval(&poisoned(&sample, &inputs, &part.inputs));
                for ((out, whole), region) in outs.iter().zip(&whole).zip(&part.outputs) {
                    assert!(
                        same_bits(&out.region(region), &whole.region(region)),
                        "{:?}: axis {:?} {:?} reads outside {:?}",
                        sample.op,
                        cut.axis,
                        part.range,
                        part.inputs
                    );
                    checked += 1;
                }
            }
        }
    }
    assert!(checked > 200, "only {checked} regions were poisoned");
}

#[test]
fn cuts_recombine_to_the_whole() {
    let mut checked = 0;
    for sample in Op::samples() {
        let inputs = sample.tensors(5);
        let whole = sample.eval(&inputs);
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
                    match cut.outputs[i] {
                        Combine::Concat(_) => {
                            let all = joined[i].get_or_insert_with(|| Tensor::zeros(&whole[i].shape));
                            let lens: Vec<usize> = p.part.outputs[i].iter().map(|r| r.len()).collect();
                            assert_eq!(out.shape, lens, "{:?} cut along {:?}", sample.op, cut.axis);
                            all.set_region(&p.part.outputs[i], &out);
                        }
                        Combine::Reduce(kind) => match &mut joined[i] {
                            None => joined[i] = Some(out),
                            Some(all) => {
                                for (a, b) in all.data.iter_mut().zip(out.data) {
                                    *a = match kind {
                                        Reduce::Sum => *a + b,
                                        Reduce::Max => a.max(b),
                                        Reduce::Min => a.min(b),
                                    };
                                }
                            }
                        },
                    }
                }
            }
            for ((out, whole), combine) in joined.iter().zip(&whole).zip(&cut.outputs) {
                let out = out.as_ref().expect("every output is produced");
                let close =
                    out.data.iter().zip(&whole.data).all(|(a, b)| (a - b).abs() <= 1e-9 * (1.0 + b.abs()));
                let equal = match combine {
                    Combine::Concat(_) | Combine::Reduce(Reduce::Max | Reduce::Min) => same_bits(out, whole),
                    Combine::Reduce(Reduce::Sum) => out.shape == whole.shape && close,
                };
                assert!(equal, "{:?} cut along {:?} into {}", sample.op, cut.axis, parts.len());
                checked += 1;
            }
        }
    }
    assert!(checked > 300, "only {checked} outputs were recombined");
}

#[test]
fn operators_survive_their_text_form() {
    for sample in Op::samples() {
        let text = serde_json::to_string(&sample.op).unwrap();
        assert_eq!(serde_json::from_str::<Op>(&text).unwrap(), sample.op, "{text}");
        let spec = sample.op.def().spec(&sample.types()).unwrap();
        assert_eq!(spec.to_string().parse::<gulliver_graph::spec::Spec>().unwrap(), spec, "{text}");
    }
}
