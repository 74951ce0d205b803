//! Operators at sizes where work is divided over threads: the same bits for every team and when weights
//! and states are all written in place, close to the reference, and bad labels are refused.

use gulliver_graph::dtype::DType;
use gulliver_graph::graph::op::Op;
use gulliver_graph::graph::op::attention::Attention;
use gulliver_graph::graph::op::attention_grad::AttentionGrad;
use gulliver_graph::graph::op::batch_norm::BatchNorm;
use gulliver_graph::graph::op::batch_norm_grad::BatchNormGrad;
use gulliver_graph::graph::op::conv::{Conv, ConvRotation};
use gulliver_graph::graph::op::cross_entropy::CrossEntropy;
use gulliver_graph::graph::op::cross_entropy_grad::CrossEntropyGrad;
use gulliver_graph::graph::op::group_norm::GroupNorm;
use gulliver_graph::graph::op::group_norm_grad::GroupNormGrad;
use gulliver_graph::graph::op::layer_norm::LayerNorm;
use gulliver_graph::graph::op::layer_norm_grad::LayerNormGrad;
use gulliver_graph::graph::op::log_softmax::LogSoftmax;
use gulliver_graph::graph::op::log_softmax_grad::LogSoftmaxGrad;
use gulliver_graph::graph::op::map::Function;
use gulliver_graph::graph::op::map_grad::MapGrad;
use gulliver_graph::graph::op::rms_norm::RmsNorm;
use gulliver_graph::graph::op::rms_norm_grad::RmsNormGrad;
use gulliver_graph::graph::op::sample::{Sample, SampleInput};
use gulliver_graph::graph::op::softmax::Softmax;
use gulliver_graph::graph::op::softmax_grad::SoftmaxGrad;
use gulliver_graph::graph::op::update_adam::UpdateAdam;
use gulliver_graph::graph::op::update_rmsprop::UpdateRmsprop;
use gulliver_graph::graph::op::window::ConvWindow;
use gulliver_graph::tensor::Tensor;
use gulliver_run::lower::call::{Call, Slot};
use gulliver_run::lower::{KernelError, Kernels, TensorType, lower};
use gulliver_run::team::Team;
use gulliver_run::team::isa::Isa;

/// One operand: floats, labels or a mask.
#[derive(Clone)]
enum Buffer {
    F32(Vec<f32>),
    I64(Vec<i64>),
    U8(Vec<u8>),
}

impl Buffer {
    fn of(t: &Tensor, dtype: DType) -> Buffer {
        match dtype {
            DType::F32 => Buffer::F32(t.data.iter().map(|&x| x as f32).collect()),
            DType::I64 => Buffer::I64(t.data.iter().map(|&x| x as i64).collect()),
            _ => Buffer::U8(t.data.iter().map(|&x| x as u8).collect()),
        }
    }

    fn slot(&mut self) -> Slot {
        match self {
            Buffer::F32(v) => Slot { start: v.as_mut_ptr().cast(), bytes: v.len() * 4 },
            Buffer::I64(v) => Slot { start: v.as_mut_ptr().cast(), bytes: v.len() * 8 },
            Buffer::U8(v) => Slot { start: v.as_mut_ptr(), bytes: v.len() },
        }
    }
}

/// The results, all of which must be floats; `over` writes them over operands wherever that is allowed.
fn run(sample: &Sample, inputs: &[Tensor], team: &Team, over: bool) -> Result<Vec<Vec<f32>>, KernelError> {
    let ins: Vec<TensorType> =
        sample.inputs.iter().map(|i| TensorType { dtype: i.dtype, shape: i.shape.clone() }).collect();
    let outs: Vec<TensorType> =
        sample.output_shapes().into_iter().map(|shape| TensorType { dtype: DType::F32, shape }).collect();
    let lowered = lower(&sample.op, &ins, &outs, team.threads(), &Kernels::default());
    assert!(!lowered.reference, "{:?} has no kernel of its own", sample.op);
    let mut operands: Vec<Buffer> = inputs.iter().zip(&ins).map(|(t, ty)| Buffer::of(t, ty.dtype)).collect();
    let mut results: Vec<Vec<f32>> = outs.iter().map(|ty| vec![f32::NAN; ty.len()]).collect();
    let mut scratch = vec![f32::NAN; lowered.scratch as usize / 4];
    let in_slots: Vec<Slot> = operands.iter_mut().map(Buffer::slot).collect();
    let mut out_slots: Vec<Slot> =
        results.iter_mut().map(|r| Slot { start: r.as_mut_ptr().cast(), bytes: r.len() * 4 }).collect();
    let mut pairs = if over { sample.op.def().in_place() } else { Vec::new() };
    // A result lies over one operand only.
    pairs.reverse();
    pairs.dedup_by_key(|p| p.1);
    for &(i, o) in &pairs {
        out_slots[o] = in_slots[i];
    }
    let scratch = Slot { start: scratch.as_mut_ptr().cast(), bytes: scratch.len() * 4 };
    // SAFETY: all slots are distinct vectors, save results written over operands of their type.
    let mut call = unsafe { Call::new(team, &in_slots, &out_slots, Some(scratch)) };
    (lowered.run)(&mut call)?;
    for (i, o) in pairs {
        if let Buffer::F32(data) = &operands[i] {
            results[o].clone_from(data);
        }
    }
    Ok(results)
}

fn samples() -> Vec<Sample> {
    let n = SampleInput::normal;
    let positive = |shape: &[usize]| SampleInput::uniform(shape, 0.5, 2.0);
    let mut all = Vec::new();
    let mut add = |op: Op, inputs: Vec<SampleInput>| all.push(Sample::new(op, inputs));
    for (axis, x) in [(1, [50, 333]), (0, [333, 50])] {
        let probabilities = SampleInput::uniform(&x, 0.0, 0.01);
        add(Softmax { axis }.into(), vec![n(&x)]);
        add(LogSoftmax { axis }.into(), vec![n(&x)]);
        add(SoftmaxGrad { axis }.into(), vec![probabilities, n(&x)]);
        add(LogSoftmaxGrad { axis }.into(), vec![SampleInput::uniform(&x, -9.0, -3.0), n(&x)]);
    }
    let (x, rows, cols) = ([77, 130], [77], [130]);
    add(LayerNorm { axes: 1, eps: 1e-5 }.into(), vec![n(&x), n(&cols), n(&cols)]);
    add(LayerNormGrad { axes: 1 }.into(), vec![n(&x), n(&cols), n(&rows), positive(&rows), n(&x)]);
    add(RmsNorm { eps: 1e-6 }.into(), vec![n(&x), n(&cols)]);
    add(RmsNormGrad {}.into(), vec![n(&x), n(&cols), positive(&rows), n(&x)]);
    let (few, wide) = ([3, 5000], [5000]);
    add(LayerNormGrad { axes: 1 }.into(), vec![n(&few), n(&wide), n(&[3]), positive(&[3]), n(&few)]);
    for x in [vec![5, 12, 9, 17], vec![900, 12]] {
        let (c, sets) = ([12], [x[0], 4]);
        add(BatchNorm { eps: 1e-5 }.into(), vec![n(&x), n(&c), n(&c)]);
        add(BatchNormGrad { eps: 1e-5 }.into(), vec![n(&x), n(&c), n(&c), positive(&c), n(&x)]);
        add(GroupNorm { groups: 4, eps: 1e-5 }.into(), vec![n(&x), n(&c), n(&c)]);
        add(GroupNormGrad { groups: 4 }.into(), vec![n(&x), n(&c), n(&sets), positive(&sets), n(&x)]);
    }
    let (logits, rows) = ([100, 130], [100]);
    let targets = || SampleInput::below(&rows, 130);
    let (ignore, smoothing) = (Some(7), 0.1);
    add(CrossEntropy { ignore, smoothing }.into(), vec![n(&logits), targets()]);
    let saved = SampleInput::uniform(&rows, 4.0, 6.0);
    add(CrossEntropyGrad { ignore, smoothing }.into(), vec![n(&logits), targets(), saved, n(&rows)]);
    let w = [9001];
    let hypers = |h: &[f64]| h.iter().map(|&h| SampleInput::scalar(h)).collect::<Vec<_>>();
    let states = |count: usize| vec![SampleInput::uniform(&w, 0.1, 1.0); count];
    let adam = UpdateAdam { decoupled: true, amsgrad: true };
    let tensors = [n(&w), n(&w)];
    add(adam.into(), [&tensors[..], &states(3), &hypers(&[0.01, 0.9, 0.99, 1e-8, 0.1, 3.0])].concat());
    let rmsprop = UpdateRmsprop { centered: true, momentum: true };
    add(rmsprop.into(), [&tensors[..], &states(3), &hypers(&[0.01, 0.9, 1e-8, 0.01, 0.8])].concat());
    for f in Function::ALL {
        let (low, high) = if f.derivative_of_result() { (0.1, 0.9) } else { f.domain() };
        add(MapGrad(f).into(), vec![SampleInput::uniform(&w, low, high), n(&w)]);
    }
    let (q, k, lse) = ([2, 60, 3, 8], [2, 70, 3, 8], [2, 3, 60]);
    let attention = Attention { causal: true, scale: 0.3, masked: true };
    let operands = [n(&q), n(&k), n(&k), SampleInput::mask(&[2, 70])];
    add(attention.clone().into(), operands.to_vec());
    let saved = [n(&q), SampleInput::uniform(&lse, 3.0, 5.0), n(&q)];
    add(AttentionGrad(attention).into(), [&operands[..], &saved].concat());
    let window = vec![ConvWindow { stride: 2, dilation: 1, low: 1, high: 0 }; 2];
    for groups in [1, 2, 4] {
        let conv = Conv { rotation: ConvRotation::Forward, window: window.clone(), groups };
        add(conv.into(), vec![n(&[2, 4, 21, 20]), n(&[8, 4 / groups, 3, 3])]);
    }
    all
}

fn bits(results: &[Vec<f32>]) -> Vec<u32> {
    results.iter().flatten().map(|x| x.to_bits()).collect()
}

#[test]
fn teams_and_places_do_not_change_bits() {
    let one = Team::with_isa(1, Isa::portable());
    let many = Team::new(3);
    for sample in samples() {
        let inputs = sample.tensors(11);
        let plain = run(&sample, &inputs, &one, false).unwrap();
        for (team, over) in [(&one, true), (&many, false), (&many, true)] {
            let other = run(&sample, &inputs, team, over).unwrap();
            assert!(bits(&plain) == bits(&other), "{:?}, {} threads, over {over}", sample.op, team.threads());
        }
    }
}

#[test]
fn results_are_close_to_the_reference() {
    let team = Team::new(2);
    for sample in samples() {
        let inputs = sample.tensors(12);
        let fast = run(&sample, &inputs, &team, false).unwrap();
        for (o, (fast, plain)) in fast.iter().zip(sample.eval(&inputs)).enumerate() {
            let scale = plain.data.iter().filter(|x| x.is_finite()).fold(1.0f64, |m, x| m.max(x.abs()));
            for (i, (&x, &y)) in fast.iter().zip(&plain.data).enumerate() {
                let fine = f64::from(x) == y || (f64::from(x) - y).abs() <= 1e-5 * scale;
                assert!(fine, "{:?} output {o}[{i}]: kernel {x}, reference {y}", sample.op);
            }
        }
    }
}

#[test]
fn labels_outside_the_classes_are_refused() {
    let team = Team::new(2);
    let (ignore, smoothing) = (Some(-100), 0.0);
    let n = SampleInput::normal;
    let labels = || SampleInput::below(&[6], 3);
    let cases: [(Op, Vec<SampleInput>); 2] = [
        (CrossEntropy { ignore, smoothing }.into(), vec![n(&[6, 3]), labels()]),
        (CrossEntropyGrad { ignore, smoothing }.into(), vec![n(&[6, 3]), labels(), n(&[6]), n(&[6])]),
    ];
    for (op, inputs) in cases {
        let sample = Sample::new(op, inputs);
        for (label, fine) in
            [(2, true), (-100, true), (3, false), (-1, false), (i64::MAX, false), (i64::MIN, false)]
        {
            let mut inputs = sample.tensors(3);
            inputs[1].data[4] = label as f64;
            let result = run(&sample, &inputs, &team, false);
            // The largest label is not a float; it saturates to the same number.
            let refused = KernelError::Index { index: label, position: 4, bound: 3 };
            assert_eq!(result.err(), (!fine).then_some(refused), "{:?} label {label}", sample.op);
        }
    }
}
