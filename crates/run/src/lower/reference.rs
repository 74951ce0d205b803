//! Any operator on its reference kernel: operands widened to f64, results rounded to their type.

use super::{Lowered, TensorType};
use crate::lower::call::Call;
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::op::Op;
use gulliver_graph::tensor::Tensor;

pub(super) fn reference(op: &Op, ins: &[TensorType], outs: &[TensorType]) -> Lowered {
    let (op, ins, outs) = (op.clone(), ins.to_vec(), outs.to_vec());
    let run = move |call: &mut Call<'_>| {
        let operands: Vec<Tensor> =
            ins.iter().enumerate().map(|(i, ty)| Tensor::new(&ty.shape, read(call, i, ty.dtype))).collect();
        let mut results: Vec<Tensor> = outs.iter().map(|ty| Tensor::zeros(&ty.shape)).collect();
        op.def().eval(&operands.iter().collect::<Vec<_>>(), &mut results);
        for (o, (ty, t)) in outs.iter().zip(&results).enumerate() {
            write(call, o, ty.dtype, &t.data);
        }
        Ok(())
    };
    Lowered { run: Box::new(run), scratch: 0, reference: true }
}

fn read(call: &mut Call<'_>, i: usize, dtype: DType) -> Vec<f64> {
    // An operand under a result is read through it before anything is written.
    macro_rules! widen {
        ($t:ty) => {
            call.input_copy::<$t>(i).into_iter().map(|x| x as f64).collect()
        };
    }
    match dtype {
        DType::F32 => widen!(f32),
        DType::I64 => widen!(i64),
        DType::I32 => widen!(i32),
        DType::U8 | DType::Bool => widen!(u8),
        DType::F16 => {
            call.input_copy::<u16>(i).into_iter().map(|b| half::f16::from_bits(b).to_f64()).collect()
        }
        DType::BF16 => {
            call.input_copy::<u16>(i).into_iter().map(|b| half::bf16::from_bits(b).to_f64()).collect()
        }
    }
}

fn write(call: &mut Call<'_>, o: usize, dtype: DType, data: &[f64]) {
    macro_rules! narrow {
        ($t:ty, $f:expr) => {
            for (y, &x) in call.output::<$t>(o).iter_mut().zip(data) {
                *y = $f(x);
            }
        };
    }
    match dtype {
        DType::F32 => narrow!(f32, |x| x as f32),
        DType::I64 => narrow!(i64, |x| x as i64),
        DType::I32 => narrow!(i32, |x| x as i32),
        DType::U8 | DType::Bool => narrow!(u8, |x| x as u8),
        DType::F16 => narrow!(u16, |x| half::f16::from_f64(x).to_bits()),
        DType::BF16 => narrow!(u16, |x| half::bf16::from_f64(x).to_bits()),
    }
}
