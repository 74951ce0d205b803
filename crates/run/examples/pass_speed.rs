//! Prints the speed of the passes that are no matrix products, on tensors beyond the caches: bytes read
//! plus bytes written per second against copying, and attention against the peak of multiply-adds; one
//! column per number of threads.
//!
//! `pass_speed [PART OF A NAME] [MEBIBYTES]` shows some rows, or takes another size than 64 MiB.

use gulliver_graph::dtype::DType;
use gulliver_graph::graph::op::Op;
use gulliver_graph::graph::op::adaptive_avg_pool::AdaptiveAvgPool;
use gulliver_graph::graph::op::argmax::Argmax;
use gulliver_graph::graph::op::attention::Attention;
use gulliver_graph::graph::op::attention_grad::AttentionGrad;
use gulliver_graph::graph::op::avg_pool::AvgPool;
use gulliver_graph::graph::op::avg_pool_grad::AvgPoolGrad;
use gulliver_graph::graph::op::batch_norm::BatchNorm;
use gulliver_graph::graph::op::batch_norm_grad::BatchNormGrad;
use gulliver_graph::graph::op::cross_entropy::CrossEntropy;
use gulliver_graph::graph::op::cross_entropy_grad::CrossEntropyGrad;
use gulliver_graph::graph::op::dropout::Dropout;
use gulliver_graph::graph::op::gather::Gather;
use gulliver_graph::graph::op::group_norm::GroupNorm;
use gulliver_graph::graph::op::group_norm_grad::GroupNormGrad;
use gulliver_graph::graph::op::layer_norm::LayerNorm;
use gulliver_graph::graph::op::layer_norm_grad::LayerNormGrad;
use gulliver_graph::graph::op::map::{Function, Map};
use gulliver_graph::graph::op::map_grad::MapGrad;
use gulliver_graph::graph::op::max_pool::MaxPool;
use gulliver_graph::graph::op::max_pool_grad::MaxPoolGrad;
use gulliver_graph::graph::op::reduce::Reduce;
use gulliver_graph::graph::op::rms_norm::RmsNorm;
use gulliver_graph::graph::op::rms_norm_grad::RmsNormGrad;
use gulliver_graph::graph::op::sample::{Sample, SampleInput};
use gulliver_graph::graph::op::scatter_add::ScatterAdd;
use gulliver_graph::graph::op::softmax::Softmax;
use gulliver_graph::graph::op::softmax_grad::SoftmaxGrad;
use gulliver_graph::graph::op::transpose::Transpose;
use gulliver_graph::graph::op::update_adam::UpdateAdam;
use gulliver_graph::graph::op::update_sgd::UpdateSgd;
use gulliver_graph::graph::op::window::{PoolWindow, WindowTarget};
use gulliver_graph::spec::ReduceKind;
use gulliver_run::lower::call::{Call, Slot};
use gulliver_run::lower::{Kernels, TensorType, lower};
use gulliver_run::profile::roofline;
use gulliver_run::team::Team;

/// An operator, what it is called with, and whether results are written over operands.
struct Pass {
    name: String,
    sample: Sample,
    over: bool,
    /// Useful floating-point operations, for rows measured by them.
    flops: f64,
}

/// Memory of one operand or result, filled with numbers every operator accepts.
struct Memory(Vec<u64>);

impl Memory {
    fn of(ty: &TensorType, bound: usize) -> Memory {
        let mut words = vec![0u64; (ty.len() * ty.dtype.size()).div_ceil(8)];
        let noise = |i: usize| (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        match ty.dtype {
            DType::F32 => {
                let float = |i: usize| u64::from((0.1 + noise(i) as f32 / (1 << 24) as f32).to_bits());
                for (i, word) in words.iter_mut().enumerate() {
                    *word = float(2 * i) | float(2 * i + 1) << 32;
                }
            }
            DType::I64 => {
                for (i, word) in words.iter_mut().enumerate() {
                    *word = noise(i) % bound as u64;
                }
            }
            _ => words.fill(0x0101_0101_0101_0101),
        }
        Memory(words)
    }

    fn slot(&mut self, ty: &TensorType) -> Slot {
        Slot { start: self.0.as_mut_ptr().cast(), bytes: ty.len() * ty.dtype.size() }
    }
}

/// Seconds of the fastest of several calls, and the bytes one has to read and write.
fn measure(pass: &Pass, team: &Team) -> (f64, f64) {
    let Sample { op, inputs } = &pass.sample;
    let ins: Vec<TensorType> =
        inputs.iter().map(|i| TensorType { dtype: i.dtype, shape: i.shape.clone() }).collect();
    let shapes = pass.sample.output_shapes();
    let dtypes = op.def().dtypes(&pass.sample.types(), shapes.len());
    let outs: Vec<TensorType> =
        shapes.into_iter().zip(dtypes).map(|(shape, dtype)| TensorType { dtype, shape }).collect();
    let bounds = inputs.iter().map(|i| match i.fill {
        gulliver_graph::graph::op::sample::SampleFill::Below(bound) => bound as usize,
        _ => 1,
    });
    let mut operands: Vec<Memory> = ins.iter().zip(bounds).map(|(ty, bound)| Memory::of(ty, bound)).collect();
    let mut results: Vec<Memory> = outs.iter().map(|ty| Memory::of(ty, 1)).collect();
    let lowered = lower(op, &ins, &outs, team.threads(), &Kernels::default());
    let mut scratch = vec![0u64; lowered.scratch.div_ceil(8) as usize];
    let from: Vec<Slot> = operands.iter_mut().zip(&ins).map(|(m, ty)| m.slot(ty)).collect();
    let mut to: Vec<Slot> = results.iter_mut().zip(&outs).map(|(m, ty)| m.slot(ty)).collect();
    if pass.over {
        for (i, o) in op.def().in_place().into_iter().rev() {
            to[o] = from[i];
        }
    }
    let bytes: usize = from.iter().chain(&to).map(|slot| slot.bytes).sum();
    let scratch = Slot { start: scratch.as_mut_ptr().cast(), bytes: scratch.len() * 8 };
    let time = roofline::fastest(0.2, || {
        // SAFETY: all slots are distinct vectors, save results written over operands of their type.
        let mut call = unsafe { Call::new(team, &from, &to, Some(scratch)) };
        (lowered.run)(&mut call).expect("indices are below their bounds");
    });
    (time, bytes as f64)
}

fn n(shape: &[usize]) -> SampleInput {
    SampleInput::normal(shape)
}

fn window(kernel: usize, stride: usize, pad: i64) -> Vec<PoolWindow> {
    vec![PoolWindow { kernel, stride, low: pad, high: pad }; 2]
}

fn normalisations(add: &mut impl FnMut(&str, Op, Vec<SampleInput>), len: usize) {
    for width in [256, 1024] {
        let (rows, cols) = ([len / width], [width]);
        let x = [rows[0], width];
        let eps = 1e-5;
        add("layer_norm", LayerNorm { axes: 1, eps }.into(), vec![n(&x), n(&cols), n(&cols)]);
        let saved = [n(&x), n(&cols), n(&rows), n(&rows), n(&x)];
        add("layer_norm_grad", LayerNormGrad { axes: 1 }.into(), saved.to_vec());
        add("rms_norm", RmsNorm { eps }.into(), vec![n(&x), n(&cols)]);
        add("rms_norm_grad", RmsNormGrad {}.into(), vec![n(&x), n(&cols), n(&rows), n(&x)]);
    }
    for (c, side) in [(64, 32), (64, 56), (512, 4), (1024, 1)] {
        let batch = len / (c * side * side);
        let x = if side == 1 { vec![batch, c] } else { vec![batch, c, side, side] };
        let (channels, sets, eps) = ([c], [batch, 8], 1e-5);
        let affine = || vec![n(&x), n(&channels), n(&channels)];
        add("batch_norm", BatchNorm { eps }.into(), affine());
        let saved = [n(&x), n(&channels), n(&channels), n(&channels), n(&x)];
        add("batch_norm_grad", BatchNormGrad { eps }.into(), saved.to_vec());
        add("group_norm", GroupNorm { groups: 8, eps }.into(), affine());
        let saved = [n(&x), n(&channels), n(&sets), n(&sets), n(&x)];
        add("group_norm_grad", GroupNormGrad { groups: 8 }.into(), saved.to_vec());
    }
}

fn rows_and_columns(add: &mut impl FnMut(&str, Op, Vec<SampleInput>), len: usize) {
    for (axis, x) in [(1, [len / 1024, 1024]), (1, [len / 64, 64]), (0, [1024, len / 1024])] {
        add("softmax", Softmax { axis }.into(), vec![n(&x)]);
        add("softmax_grad", SoftmaxGrad { axis }.into(), vec![n(&x), n(&x)]);
        let sum = Reduce { kind: ReduceKind::Sum, axes: vec![axis], keep: false };
        add("sum", sum.into(), vec![n(&x)]);
        add("argmax", Argmax { axis }.into(), vec![n(&x)]);
    }
    let tall = [len / 768, 768];
    add("sum rows", Reduce { kind: ReduceKind::Sum, axes: vec![0], keep: false }.into(), vec![n(&tall)]);
    add("transpose", Transpose { order: vec![1, 0] }.into(), vec![n(&tall)]);
    for classes in [10, 1000, 50_000] {
        let (x, rows) = ([len / classes, classes], [len / classes]);
        let targets = || SampleInput::below(&rows, classes as u64);
        let (ignore, smoothing) = (None, 0.0);
        add("cross_entropy", CrossEntropy { ignore, smoothing }.into(), vec![n(&x), targets()]);
        let saved = vec![n(&x), targets(), n(&rows), n(&rows)];
        add("cross_entropy_grad", CrossEntropyGrad { ignore, smoothing }.into(), saved);
    }
    let (table, rows) = ([len / 256 / 2, 256], [len / 256]);
    let index = || SampleInput::below(&rows, table[0] as u64);
    add("gather", Gather { padding: None }.into(), vec![n(&table), index()]);
    let scatter = ScatterAdd { rows: table[0].into(), padding: None };
    add("scatter_add", scatter.into(), vec![index(), n(&[rows[0], 256])]);
}

fn pools(add: &mut impl FnMut(&str, Op, Vec<SampleInput>), len: usize) {
    for (side, kernel, stride, pad) in [(112, 3, 2, 1), (32, 2, 2, 0), (16, 3, 1, 1)] {
        let to = (side + 2 * pad as usize - kernel) / stride + 1;
        let (x, y) = ([len / side / side / 64, 64, side, side], [len / side / side / 64, 64, to, to]);
        let w = || window(kernel, stride, pad);
        let into = vec![WindowTarget { low: pad, size: side.into() }; 2];
        let divisor = (kernel * kernel) as f32;
        add("max_pool", MaxPool { window: w() }.into(), vec![n(&x)]);
        let back = MaxPoolGrad { window: w(), into: into.clone() };
        add("max_pool_grad", back.into(), vec![n(&x), n(&y), n(&y)]);
        add("avg_pool", AvgPool { window: w(), divisor }.into(), vec![n(&x)]);
        add("avg_pool_grad", AvgPoolGrad { window: w(), divisor, into }.into(), vec![n(&y)]);
    }
    let x = [len / 64 / 64, 64, 8, 8];
    add("adaptive_avg_pool", AdaptiveAvgPool { size: vec![1, 1] }.into(), vec![n(&x)]);
}

fn passes(len: usize) -> Vec<Pass> {
    let mut all = Vec::new();
    let mut push = |name: &str, op: Op, inputs: Vec<SampleInput>, over: bool, flops: f64| {
        let sample = Sample::new(op, inputs);
        let shape = sample.inputs.iter().map(|i| &i.shape).max_by_key(|s| s.len()).cloned();
        let name = format!("{name} {:?}{}", shape.unwrap_or_default(), if over { " over" } else { "" });
        all.push(Pass { name, sample, over, flops });
    };
    let mut add = |name: &str, op: Op, inputs: Vec<SampleInput>| push(name, op, inputs, false, 0.0);
    normalisations(&mut add, len);
    rows_and_columns(&mut add, len);
    pools(&mut add, len);
    let x = [len];
    for f in
        [Function::Relu, Function::Exp, Function::Tanh, Function::Gelu, Function::GeluTanh, Function::Silu]
    {
        let name = format!("{f:?}").to_lowercase();
        add(&name, Map(f).into(), vec![n(&x)]);
        add(&format!("{name} grad"), MapGrad(f).into(), vec![n(&x), n(&x)]);
    }
    for over in [false, true] {
        let dropout = Dropout { rate: 0.1, stream: 1, frame: None };
        push("dropout", dropout.into(), vec![n(&x), SampleInput::below(&[3], 5)], over, 0.0);
        let hypers = |h: &[f64]| h.iter().map(|&h| SampleInput::scalar(h)).collect::<Vec<_>>();
        let sgd = UpdateSgd { momentum: false, nesterov: false };
        push("sgd", sgd.into(), [vec![n(&x), n(&x)], hypers(&[0.1; 2])].concat(), over, 0.0);
        let heavy = UpdateSgd { momentum: true, nesterov: false };
        push("sgd momentum", heavy.into(), [vec![n(&x); 3], hypers(&[0.1; 5])].concat(), over, 0.0);
        let adam = UpdateAdam { decoupled: true, amsgrad: false };
        push("adam", adam.into(), [vec![n(&x); 4], hypers(&[0.1; 6])].concat(), over, 0.0);
    }
    for [b, h, t, d] in [[16, 4, 64, 32], [4, 6, 256, 64], [1, 12, 1024, 64], [8, 4, 256, 64]] {
        let (q, lse) = ([b, t, h, d], [b, h, t]);
        let causal = b != 8;
        let attention = Attention { causal, scale: 0.2, masked: false };
        let seen = if causal { (t * (t + 1) / 2) as f64 } else { (t * t) as f64 };
        let product = 2.0 * seen * (b * h * d) as f64;
        push("attention", attention.clone().into(), vec![n(&q); 3], false, 2.0 * product);
        let saved = [vec![n(&q); 4], vec![n(&lse), n(&q)]].concat();
        push("attention_grad", AttentionGrad(attention).into(), saved, false, 5.0 * product);
    }
    all
}

fn main() {
    let mut wanted = std::env::args().skip(1);
    let part = wanted.next().unwrap_or_default();
    let mebibytes = wanted.next().and_then(|m| m.parse::<usize>().ok()).unwrap_or(64);
    let teams: Vec<Team> =
        (1..=std::thread::available_parallelism().map_or(1, usize::from)).map(Team::new).collect();
    for pass in passes(mebibytes << 18).iter().filter(|pass| pass.name.contains(&part)) {
        print!("{:<44}", pass.name);
        for team in &teams {
            // What is possible is measured beside every row, as others use the machine too.
            let (mut best, mut time, mut bytes) = (0.0f64, f64::INFINITY, 0.0);
            for _ in 0..3 {
                let possible = if pass.flops > 0.0 {
                    roofline::multiply_adds(team, 0.1)
                } else {
                    roofline::copies(team, mebibytes << 20, 0.4)
                };
                best = best.max(possible);
                let (seconds, moved) = measure(pass, team);
                (time, bytes) = (time.min(seconds), moved);
            }
            let done = if pass.flops > 0.0 { pass.flops } else { bytes };
            let (rate, share) = (done / time / 1e9, 100.0 * done / time / best);
            print!("  {:>8.2} ms {rate:>6.1} of {:>5.1} G/s {share:>4.0} %", time * 1e3, best / 1e9);
        }
        println!();
    }
}
