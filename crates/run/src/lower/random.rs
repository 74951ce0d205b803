//! Dropout: the numbers depend on an element's place in the whole value only, wherever a part of it lies.

use super::broadcast::GRAIN;
use super::index::{Integer, by_integer};
use super::{Lowered, TensorType};
use crate::kernel::random;
use crate::team::SharedMut;
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::op::dropout::Dropout;

/// Elements of a row that a thread takes at once.
const CHUNK: usize = 1 << 14;

pub(super) fn dropout(op: &Dropout, ins: &[TensorType]) -> Option<Lowered> {
    if ins[0].dtype != DType::F32 {
        return None;
    }
    by_integer!(ins[1].dtype, dropout_as(op, &ins[0].shape))
}

fn dropout_as<I: Integer>(op: &Dropout, shape: &[usize]) -> Lowered {
    let (op, frame) = (op.clone(), op.frame(shape));
    // Dimensions from `split` on are one run in the whole: all but the first of them are complete.
    let complete = (0..shape.len()).rev().take_while(|&d| shape[d] == frame.shape[d]).count();
    let split = shape.len().saturating_sub(complete + 1);
    let outer = shape[..split].to_vec();
    let (rows, run): (usize, usize) = (outer.iter().product(), shape[split..].iter().product());
    let chunks = run.div_ceil(CHUNK);
    // Distances in the whole, and where the part's first element lies in it.
    let step = |d: usize| frame.shape[d + 1..].iter().map(|&e| e as u64).product::<u64>();
    let steps: Vec<u64> = (0..split).map(step).collect();
    let origin = frame.index(&vec![0; shape.len()]);
    Lowered::plain(move |call| {
        let isa = call.team.isa();
        let [seed, step, partial] = [0, 1, 2].map(|i| call.input::<I>(1)[i].wide());
        let numbers = op.numbers(seed, step);
        let first = (partial as u64).wrapping_mul(frame.elements());
        let x = (!call.in_place(0, 0)).then(|| call.input::<f32>(0));
        let y = SharedMut::new(call.output::<f32>(0));
        let work = |units: std::ops::Range<usize>| {
            for unit in units {
                let (row, start) = (unit / chunks, unit % chunks * CHUNK);
                let (mut rest, mut place) = (row, origin + start as u64);
                for (extent, step) in outer.iter().zip(&steps).rev() {
                    place += (rest % extent) as u64 * step;
                    rest /= extent;
                }
                let range = row * run + start..row * run + (start + CHUNK).min(run);
                // SAFETY: chunks of rows are disjoint.
                let y = unsafe { y.slice(range.clone()) };
                if let Some(x) = x {
                    y.copy_from_slice(&x[range]);
                }
                random::dropout(isa, &numbers, first.wrapping_add(place), op.rate, op.scale(), y);
            }
        };
        if rows * run < 2 * GRAIN {
            work(0..rows * chunks)
        } else {
            call.team.split(rows * chunks, 1, &work)
        }
        Ok(())
    })
}
