//! Samples large enough that kernels divide them over threads and into blocks, where the operators' own
//! samples are too small for that.

use gulliver_graph::dtype::DType;
use gulliver_graph::graph::op::adaptive_avg_pool::AdaptiveAvgPool;
use gulliver_graph::graph::op::adaptive_avg_pool_grad::AdaptiveAvgPoolGrad;
use gulliver_graph::graph::op::argmax::Argmax;
use gulliver_graph::graph::op::avg_pool::AvgPool;
use gulliver_graph::graph::op::avg_pool_grad::AvgPoolGrad;
use gulliver_graph::graph::op::bilinear::{Bilinear, Stretch};
use gulliver_graph::graph::op::bilinear_grad::BilinearGrad;
use gulliver_graph::graph::op::concat::Concat;
use gulliver_graph::graph::op::contract::Contract;
use gulliver_graph::graph::op::cumsum::Cumsum;
use gulliver_graph::graph::op::dropout::Dropout;
use gulliver_graph::graph::op::elementwise::{Apply, ElementwiseResult, elementwise, keep, sum};
use gulliver_graph::graph::op::gather::Gather;
use gulliver_graph::graph::op::gru::Gru;
use gulliver_graph::graph::op::gru_grad::GruGrad;
use gulliver_graph::graph::op::lstm::Lstm;
use gulliver_graph::graph::op::lstm_grad::LstmGrad;
use gulliver_graph::graph::op::map::{Function, Map};
use gulliver_graph::graph::op::max_pool::MaxPool;
use gulliver_graph::graph::op::max_pool_grad::MaxPoolGrad;
use gulliver_graph::graph::op::pad::Pad;
use gulliver_graph::graph::op::reduce::Reduce;
use gulliver_graph::graph::op::sample::{Sample, SampleFill, SampleInput};
use gulliver_graph::graph::op::scatter_add::ScatterAdd;
use gulliver_graph::graph::op::select::Select;
use gulliver_graph::graph::op::slice::Slice;
use gulliver_graph::graph::op::slice_grad::SliceGrad;
use gulliver_graph::graph::op::take_grad::TakeGrad;
use gulliver_graph::graph::op::top_k::TopK;
use gulliver_graph::graph::op::upsample::Upsample;
use gulliver_graph::graph::op::window::{PoolWindow, WindowTarget};
use gulliver_graph::graph::op::zip::{Binary, Zip};
use gulliver_graph::spec::ReduceKind;

/// The large samples.
pub fn large() -> Vec<Sample> {
    let mut all = products();
    all.extend(pools());
    all.extend(movement());
    all.extend(indexed());
    all.extend(recurrent());
    all.extend(chains());
    all
}

/// Blocks of rows, rows of several blocks, short and long runs of broadcast operands, results over operands.
fn chains() -> Vec<Sample> {
    let (add, mul) = (Apply::Zip(Binary::Add), Apply::Zip(Binary::Mul));
    let steps = |last: Apply| {
        [(add, [0, 1].as_slice()), (mul, &[3, 2]), (Apply::Map(Function::Tanh), &[4]), (last, &[5, 0])]
    };
    let results = |axes: &[usize]| match axes {
        [] => vec![keep(3), keep(6)],
        _ => vec![keep(6), sum(5, axes), sum(6, axes)],
    };
    let plain = |axes: &[usize], shapes: [&[usize]; 3]| {
        Sample::normal(elementwise(3, &steps(add), results(axes)), &shapes)
    };
    let tested: [(Apply, &[usize]); 4] = [
        (Apply::Zip(Binary::Less), &[0, 1]),
        (Apply::Select, &[3, 2, 0]),
        (Apply::Cast(DType::F32), &[3]),
        (Apply::MapGrad(Function::Gelu), &[4, 5]),
    ];
    let tested = |axes: &[usize]| {
        let reduced = (!axes.is_empty()).then(|| sum(6, axes));
        elementwise(3, &tested, [keep(3), keep(6)].into_iter().chain(reduced).collect())
    };
    let largest = ElementwiseResult {
        value: 2,
        reduce: Some(Reduce { kind: ReduceKind::Max, axes: vec![1], keep: true }),
    };
    let square = [(Apply::Map(Function::Square), [0].as_slice())];
    let difference: [(Apply, &[usize]); 1] = [(Apply::Zip(Binary::Sub), &[0, 1])];
    vec![
        plain(&[], [&[40, 300], &[300], &[40, 300]]),
        plain(&[], [&[7, 5, 700], &[5, 1], &[7, 1, 1]]),
        plain(&[], [&[3, 9000], &[], &[3, 1]]),
        plain(&[], [&[500, 3, 9], &[3, 1], &[9]]),
        plain(&[0], [&[133, 90], &[90], &[133, 90]]),
        plain(&[0], [&[35, 5000], &[5000], &[35, 1]]),
        plain(&[0, 1], [&[5, 37, 66], &[5, 37, 66], &[37, 1]]),
        plain(&[1], [&[40, 300], &[300], &[40, 300]]),
        plain(&[1], [&[4, 5003], &[4, 1], &[4, 5003]]),
        plain(&[0, 2], [&[6, 7, 250], &[7, 1], &[6, 7, 250]]),
        plain(&[0, 2], [&[3, 2, 2100], &[2, 1], &[3, 2, 1]]),
        Sample::normal(tested(&[]), &[&[60, 200], &[60, 1], &[60, 200]]),
        Sample::normal(tested(&[0]), &[&[60, 200], &[60, 200], &[]]),
        Sample::normal(tested(&[1]), &[&[60, 200], &[200], &[60, 1]]),
        Sample::normal(elementwise(2, &difference, vec![keep(2), largest]), &[&[30, 1500], &[30, 1]]),
        Sample::normal(elementwise(1, &square, vec![sum(1, &[0, 1])]), &[&[30, 1501]]),
        Sample::normal(Zip(Binary::GreaterEqual), &[&[90, 200], &[90, 1]]),
        Sample::normal(Zip(Binary::Mul), &[&[90, 20, 11], &[20, 1]]),
        Sample::normal(Map(Function::Relu), &[&[50_000]]),
        Sample::new(
            Zip(Binary::Equal),
            vec![SampleInput::below(&[90, 200], 3), SampleInput::below(&[200], 3)],
        ),
        Sample::new(
            Select {},
            vec![SampleInput::mask(&[90, 1]), SampleInput::normal(&[]), SampleInput::normal(&[90, 200])],
        ),
    ]
}

fn products() -> Vec<Sample> {
    let line = |line: &str, a: &[usize], b: &[usize]| Sample::normal(Contract::new(line), &[a, b]);
    vec![
        line("b m t, b n t -> m n", &[6, 50, 60], &[6, 45, 60]),
        line("b m k, b n k -> m n b", &[5, 40, 70], &[5, 33, 70]),
        line("b m k, b k n -> b m n", &[3, 40, 50], &[3, 50, 33]),
        line("i k j, l n k -> l i n j", &[7, 40, 20], &[5, 18, 40]),
    ]
}

fn pools() -> Vec<Sample> {
    let window = vec![PoolWindow { kernel: 3, stride: 2, low: 1, high: 1 }; 2];
    let (x, y): ([usize; 4], [usize; 4]) = ([2, 3, 40, 50], [2, 3, 20, 25]);
    let into = vec![WindowTarget { low: 1, size: x[2].into() }, WindowTarget { low: 1, size: x[3].into() }];
    let few = |shape: &[usize]| SampleInput { fill: SampleFill::Below(3), ..SampleInput::normal(shape) };
    let back = MaxPoolGrad { window: window.clone(), into: into.clone() };
    let (rows, columns) = (Stretch::new(2), Stretch::new(3));
    vec![
        Sample::normal(MaxPool { window: window.clone() }, &[&x]),
        Sample::new(back, vec![few(&x), few(&y), SampleInput::normal(&y)]),
        Sample::normal(AvgPool { window: window.clone(), divisor: 9.0 }, &[&x]),
        Sample::normal(AvgPoolGrad { window, divisor: 9.0, into }, &[&y]),
        Sample::normal(AdaptiveAvgPool { size: vec![7, 6] }, &[&x]),
        Sample::normal(AdaptiveAvgPoolGrad { size: vec![40.into(), 50.into()] }, &[&[2, 3, 7, 6]]),
        Sample::normal(Upsample { factor: vec![2, 3] }, &[&[2, 3, 20, 20]]),
        Sample::normal(Bilinear { rows, columns }, &[&[2, 3, 20, 20]]),
        Sample::normal(BilinearGrad { rows, columns, size: [40.into(), 50.into()] }, &[&[1, 3, 80, 150]]),
    ]
}

fn movement() -> Vec<Sample> {
    let pad = Pad { low: vec![1, -2, 3], high: vec![0, 5, -1], value: 0.5 };
    let grad = |axis, start, step, size: usize| SliceGrad { axis, start, step, size: size.into() };
    let slice = |axis, start, len: usize, step| Slice { axis, start, len: len.into(), step };
    let random = SampleInput::below(&[3], 1000);
    vec![
        Sample::normal(pad, &[&[4, 60, 50]]),
        Sample::normal(Pad { low: vec![9000], high: vec![3], value: 1.0 }, &[&[900]]),
        Sample::normal(slice(0, 5, 300, 1), &[&[310, 40]]),
        Sample::normal(slice(1, 3, 60, 2), &[&[3, 130, 50]]),
        Sample::normal(grad(0, 5, 1, 310), &[&[300, 40]]),
        Sample::normal(grad(1, 3, 2, 130), &[&[3, 60, 50]]),
        Sample::normal(Concat { axis: 0 }, &[&[150, 70], &[100, 70]]),
        Sample::normal(Concat { axis: 1 }, &[&[4, 50, 50], &[4, 1, 50], &[4, 40, 50]]),
        Sample::normal(Cumsum { axis: 1, reverse: true }, &[&[5, 50, 40]]),
        Sample::normal(Argmax { axis: 1 }, &[&[5, 50, 40]]),
        Sample::normal(Argmax { axis: 1 }, &[&[50, 200]]),
        Sample::normal(TopK { k: 7 }, &[&[50, 200]]),
        Sample::new(
            Dropout { rate: 0.4, stream: 5, frame: None },
            vec![SampleInput::normal(&[2, 2, 17_000]), random],
        ),
    ]
}

fn indexed() -> Vec<Sample> {
    let n = SampleInput::normal;
    let below = |shape: &[usize], bound| SampleInput::below(shape, bound);
    let scatter = |rows: usize| ScatterAdd { rows: rows.into(), padding: Some(1) };
    vec![
        Sample::new(Gather { padding: None }, vec![n(&[90, 70]), below(&[150], 90)]),
        Sample::new(scatter(40), vec![below(&[60], 40), n(&[60, 200])]),
        Sample::new(scatter(900), vec![below(&[1000], 900), n(&[1000, 8])]),
        Sample::new(TakeGrad { size: 100.into() }, vec![below(&[90], 100), n(&[90])]),
    ]
}

fn recurrent() -> Vec<Sample> {
    let n = SampleInput::normal;
    let small = |shape: &[usize]| SampleInput::uniform(shape, -0.1, 0.1);
    let mut all = Vec::new();
    for (b, t, h) in [(40, 3, 60), (9, 2, 300)] {
        let gates = |count: usize| SampleInput::uniform(&[b, t, count * h], 0.1, 0.9);
        let (sequence, state) = (n(&[b, t, h]), n(&[b, h]));
        all.extend([
            Sample::new(Lstm {}, vec![n(&[b, t, 4 * h]), state.clone(), state.clone(), small(&[4 * h, h])]),
            Sample::new(
                LstmGrad {},
                vec![
                    sequence.clone(),
                    state.clone(),
                    small(&[4 * h, h]),
                    gates(4),
                    sequence.clone(),
                    state.clone(),
                ],
            ),
            Sample::new(Gru {}, vec![n(&[b, t, 3 * h]), state.clone(), small(&[3 * h, h]), n(&[h])]),
            Sample::new(
                GruGrad {},
                vec![sequence.clone(), small(&[3 * h, h]), gates(3), sequence.clone(), state, sequence],
            ),
        ]);
    }
    all
}
