//! Every operator of the table on its kernel, by looping over samples: against the reference kernel;
//! the same bits for any number of threads and any instruction set; every cut along an output axis the
//! same bits as the whole; written over an operand the same bits as written apart.

use gulliver_graph::dtype::DType;
use gulliver_graph::graph::op::Op;
use gulliver_graph::graph::op::sample::Sample;
use gulliver_graph::spec::Combine;
use gulliver_graph::tensor::Tensor;
use gulliver_run::host::{HostData, HostTensor};
use gulliver_run::lower::call::{Call, Slot};
use gulliver_run::lower::{Kernels, TensorType, lower};
use gulliver_run::team::Team;
use gulliver_run::team::isa::Isa;

mod samples;

/// The operators' own samples, and some that keep several threads busy.
fn samples() -> Vec<Sample> {
    Op::samples().into_iter().chain(samples::large()).collect()
}

fn host(t: &Tensor, dtype: DType) -> HostTensor {
    let data = match dtype {
        DType::F32 => HostData::F32(t.data.iter().map(|&x| x as f32).collect()),
        DType::I64 => HostData::I64(t.data.iter().map(|&x| x as i64).collect()),
        DType::I32 => HostData::I32(t.data.iter().map(|&x| x as i32).collect()),
        DType::U8 => HostData::U8(t.data.iter().map(|&x| x as u8).collect()),
        DType::Bool => HostData::Bool(t.data.iter().map(|&x| x as u8).collect()),
        other => panic!("no sample is {other}"),
    };
    HostTensor::new(&t.shape, data).unwrap()
}

fn wide(t: &HostTensor) -> Tensor {
    let data = match t.data() {
        HostData::F32(v) => v.iter().map(|&x| f64::from(x)).collect(),
        HostData::I64(v) => v.iter().map(|&x| x as f64).collect(),
        HostData::I32(v) => v.iter().map(|&x| f64::from(x)).collect(),
        HostData::U8(v) | HostData::Bool(v) => v.iter().map(|&x| f64::from(x)).collect(),
        other => panic!("no operator makes {other:?}"),
    };
    Tensor::new(t.shape(), data)
}

/// Types of operands and results.
fn types(sample: &Sample) -> (Vec<TensorType>, Vec<TensorType>) {
    let ins: Vec<TensorType> =
        sample.inputs.iter().map(|i| TensorType { dtype: i.dtype, shape: i.shape.clone() }).collect();
    let shapes = sample.output_shapes();
    let dtypes = sample.op.def().dtypes(&sample.types(), shapes.len());
    let outs = shapes.into_iter().zip(dtypes).map(|(shape, dtype)| TensorType { dtype, shape }).collect();
    (ins, outs)
}

/// Runs the sample's operator on its kernel; `over` writes an output over an input.
fn run(sample: &Sample, inputs: &[Tensor], team: &Team, over: Option<(usize, usize)>) -> Vec<Tensor> {
    let (ins, outs) = types(sample);
    let lowered = lower(&sample.op, &ins, &outs, team.threads(), &Kernels::default());
    let mut operands: Vec<HostTensor> = inputs.iter().zip(&ins).map(|(t, ty)| host(t, ty.dtype)).collect();
    // Results start as garbage: a kernel must write every element.
    let mut results: Vec<HostTensor> = outs.iter().map(|ty| HostTensor::zeros(ty.dtype, &ty.shape)).collect();
    results.iter_mut().for_each(|r| r.as_bytes_mut().fill(0x5a));
    let mut scratch = vec![f32::NAN; lowered.scratch as usize / 4];
    let slot = |t: &mut HostTensor| {
        let bytes = t.as_bytes_mut();
        Slot { start: bytes.as_mut_ptr(), bytes: bytes.len() }
    };
    let in_slots: Vec<Slot> = operands.iter_mut().map(slot).collect();
    let mut out_slots: Vec<Slot> = results.iter_mut().map(slot).collect();
    if let Some((i, o)) = over {
        out_slots[o] = in_slots[i];
    }
    let scratch = Slot { start: scratch.as_mut_ptr().cast(), bytes: scratch.len() * 4 };
    // SAFETY: all slots are distinct vectors, save the one that is written over an operand of its type.
    let mut call = unsafe { Call::new(team, &in_slots, &out_slots, Some(scratch)) };
    (lowered.run)(&mut call).unwrap_or_else(|e| panic!("{:?}: {e}", sample.op));
    if let Some((i, o)) = over {
        results[o] = operands[i].clone();
    }
    results.iter().map(wide).collect()
}

fn same_bits(a: &Tensor, b: &Tensor) -> bool {
    a.shape == b.shape && a.data.iter().zip(&b.data).all(|(x, y)| x.to_bits() == y.to_bits())
}

/// Operators that need no fast kernel: what they make is small or made once.
fn may_be_slow(op: &Op) -> bool {
    matches!(op, Op::Cast(cast) if !cast.to.is_float())
}

#[test]
fn every_operator_has_a_fast_kernel() {
    for sample in samples().iter().filter(|s| !may_be_slow(&s.op)) {
        let (ins, outs) = types(sample);
        let lowered = lower(&sample.op, &ins, &outs, 2, &Kernels::default());
        assert!(!lowered.reference, "{:?} of {ins:?} runs on its reference kernel", sample.op);
    }
}

#[test]
fn kernels_match_the_reference() {
    let team = Team::new(1);
    for sample in samples() {
        for seed in [1, 2] {
            let inputs = sample.tensors(seed);
            let (fast, plain) = (run(&sample, &inputs, &team, None), sample.eval(&inputs));
            for (o, (fast, plain)) in fast.iter().zip(&plain).enumerate() {
                assert_eq!(fast.shape, plain.shape);
                let scale = plain.data.iter().filter(|x| x.is_finite()).fold(1.0f64, |m, x| m.max(x.abs()));
                for (i, (x, y)) in fast.data.iter().zip(&plain.data).enumerate() {
                    let fine = x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= 1e-5 * scale;
                    assert!(fine, "{:?} output {o}[{i}]: kernel {x}, reference {y}", sample.op);
                }
            }
        }
    }
}

#[test]
fn threads_and_instructions_do_not_change_bits() {
    let one = Team::with_isa(1, Isa::portable());
    let teams: Vec<Team> =
        (1..=3).flat_map(|n| Isa::all().into_iter().map(move |isa| Team::with_isa(n, isa))).collect();
    for sample in samples() {
        let inputs = sample.tensors(4);
        let plain = run(&sample, &inputs, &one, None);
        for team in &teams {
            let other = run(&sample, &inputs, team, None);
            let same = plain.iter().zip(&other).all(|(a, b)| same_bits(a, b));
            assert!(same, "{:?} with {} threads, {:?}", sample.op, team.threads(), team.isa());
        }
    }
}

/// Which operands members share: none, the first, and all but the first.
fn shares(operands: usize) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    if operands > 1 {
        all.extend([vec![0], (1..operands).collect()]);
    }
    all
}

#[test]
fn members_of_arrays_have_the_bits_they_have_alone() {
    let (one, teams) = (Team::new(1), [1, 2, 3].map(Team::new));
    for sample in samples().iter().filter(|s| !s.inputs.is_empty() && !matches!(s.op, Op::Array(_))) {
        // Some samples keep several threads busy for long; two members are as good as eight there.
        let small = sample.output_shapes().iter().all(|s| s.iter().product::<usize>() < 2000);
        for (members, shared) in [1, 2, 3, 8]
            .into_iter()
            .filter(|m| small || *m == 3)
            .flat_map(|m| shares(sample.inputs.len()).into_iter().map(move |s| (m, s)))
        {
            let own: Vec<Vec<Tensor>> = (0..members)
                .map(|m| {
                    let (mut own, first) = (sample.tensors(20 + m as u64), sample.tensors(20));
                    shared.iter().for_each(|&i| own[i] = first[i].clone());
                    own
                })
                .collect();
            let alone: Vec<Vec<Tensor>> = own.iter().map(|ins| run(sample, ins, &one, None)).collect();
            let array = sample.array(members, &shared);
            let operands: Vec<Tensor> = (0..sample.inputs.len())
                .map(|i| match shared.contains(&i) {
                    true => own[0][i].clone(),
                    false => stack(own.iter().map(|ins| &ins[i])),
                })
                .collect();
            let results: Vec<Tensor> =
                (0..alone[0].len()).map(|o| stack(alone.iter().map(|outs| &outs[o]))).collect();
            let dtypes = sample.op.def().dtypes(&sample.types(), results.len());
            for team in &teams {
                let mut over = vec![None];
                over.extend(array.op.def().in_place().into_iter().map(Some).filter(|_| small));
                for over in over {
                    let differs = |(i, o): (usize, usize)| {
                        operands[i].shape != results[o].shape || sample.inputs[i].dtype != dtypes[o]
                    };
                    if over.is_some_and(differs) {
                        continue;
                    }
                    let together = run(&array, &operands, team, over);
                    let same = together.iter().zip(&results).all(|(a, b)| same_bits(a, b));
                    let threads = team.threads();
                    assert!(
                        same,
                        "{:?}: {members} members, {shared:?} shared, {threads} threads, {over:?}",
                        sample.op
                    );
                }
            }
        }
    }
}

fn stack<'a>(of: impl ExactSizeIterator<Item = &'a Tensor>) -> Tensor {
    let (members, mut shape, mut data) = (of.len(), Vec::new(), Vec::new());
    for t in of {
        shape = [&[members], &t.shape[..]].concat();
        data.extend_from_slice(&t.data);
    }
    Tensor::new(&shape, data)
}

#[test]
fn cuts_along_output_axes_keep_bits() {
    let team = Team::new(2);
    let mut checked = 0;
    for sample in samples() {
        let inputs = sample.tensors(6);
        let whole = run(&sample, &inputs, &team, None);
        for (cut, parts) in sample.cuts(&[2, 3]) {
            for p in &parts {
                let ins: Vec<Tensor> = inputs.iter().zip(&p.part.inputs).map(|(t, r)| t.region(r)).collect();
                let mut piece = sample.clone();
                piece.op = p.op.clone();
                for (input, t) in piece.inputs.iter_mut().zip(&ins) {
                    input.shape = t.shape.clone();
                }
                let outs = run(&piece, &ins, &team, None);
                for (o, combine) in cut.outputs.iter().enumerate() {
                    if matches!(combine, Combine::Concat(_)) {
                        let expected = whole[o].region(&p.part.outputs[o]);
                        assert!(
                            same_bits(&outs[o], &expected),
                            "{:?} cut along axis {:?}, part {:?}, output {o}",
                            sample.op,
                            cut.axis,
                            p.part.range
                        );
                        checked += 1;
                    }
                }
            }
        }
    }
    assert!(checked > 500, "only {checked} parts were compared");
}

#[test]
fn results_over_operands_keep_bits() {
    let team = Team::new(2);
    let mut checked = 0;
    for sample in samples() {
        let inputs = sample.tensors(8);
        let apart = run(&sample, &inputs, &team, None);
        let dtypes = sample.op.def().dtypes(&sample.types(), apart.len());
        for (i, o) in sample.op.def().in_place() {
            let input = &sample.inputs[i];
            if input.shape != apart[o].shape || input.dtype != dtypes[o] {
                continue;
            }
            let over = run(&sample, &inputs, &team, Some((i, o)));
            assert!(over.iter().zip(&apart).all(|(a, b)| same_bits(a, b)), "{:?} {o} over {i}", sample.op);
            checked += 1;
        }
    }
    assert!(checked > 50, "only {checked} operators were run in place");
}
