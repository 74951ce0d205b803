//! Reductions over axes. The reduced axes form groups of neighbours; the last group is summed in lanes,
//! earlier ones in order, whatever the extents of the other axes are.

use super::broadcast::GRAIN;
use super::{Lowered, TensorType};
use crate::kernel::reduce as lanes;
use crate::lower::call::Call;
use crate::team::SharedMut;
use crate::team::isa::Isa;
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::op::reduce::Reduce;
use gulliver_graph::spec::ReduceKind;

pub(super) fn reduce(op: &Reduce, ins: &[TensorType]) -> Option<Lowered> {
    if ins[0].dtype != DType::F32 {
        return None;
    }
    // Alternating groups of kept and reduced dimensions, by position.
    let mut groups: Vec<(bool, usize)> = Vec::new();
    for (d, &extent) in ins[0].shape.iter().enumerate() {
        let reduced = op.axes.contains(&d);
        match groups.last_mut() {
            Some((r, e)) if *r == reduced => *e *= extent,
            _ => groups.push((reduced, extent)),
        }
    }
    let kind = op.kind;
    match groups.as_slice() {
        [] | [(false, _)] => Some(Lowered::plain(|call| {
            let x = call.input::<f32>(0);
            call.output::<f32>(0).copy_from_slice(x);
            Ok(())
        })),
        &[(true, r)] => Some(rows(kind, 1, r)),
        &[(false, k), (true, r)] => Some(rows(kind, k, r)),
        &[(true, r), (false, k)] => Some(columns(kind, 1, r, k)),
        &[(false, n), (true, r), (false, k)] => Some(columns(kind, n, r, k)),
        &[(true, o), (false, k), (true, r)] => Some(outer_rows(kind, o, k, r)),
        _ => None,
    }
}

fn row(isa: Isa, kind: ReduceKind, x: &[f32]) -> f32 {
    match kind {
        ReduceKind::Sum => lanes::sum(isa, x),
        ReduceKind::Max => lanes::max(isa, x),
        ReduceKind::Min => lanes::min(isa, x),
    }
}

/// Runs `f` on ranges of `0..k`, on one thread if there is little `work` in all.
pub(super) fn over_rows(call: &Call<'_>, k: usize, work: usize, f: &(dyn Fn(std::ops::Range<usize>) + Sync)) {
    if work < 2 * GRAIN { f(0..k) } else { call.team.split(k, 1, f) }
}

fn rows(kind: ReduceKind, k: usize, r: usize) -> Lowered {
    Lowered::plain(move |call| {
        let isa = call.team.isa();
        let x = call.input::<f32>(0);
        let y = SharedMut::new(call.output::<f32>(0));
        over_rows(call, k, k * r, &|range| {
            // SAFETY: ranges are disjoint.
            let y = unsafe { y.slice(range.clone()) };
            for (y, i) in y.iter_mut().zip(range) {
                *y = row(isa, kind, &x[i * r..(i + 1) * r]);
            }
        });
        Ok(())
    })
}

fn columns(kind: ReduceKind, n: usize, r: usize, k: usize) -> Lowered {
    Lowered::plain(move |call| {
        let x = call.input::<f32>(0);
        let y = call.output::<f32>(0);
        let reduce = match kind {
            ReduceKind::Sum => lanes::sum_columns,
            ReduceKind::Max => lanes::max_columns,
            ReduceKind::Min => lanes::min_columns,
        };
        for i in 0..n {
            reduce(call.team, &x[i * r * k..(i + 1) * r * k], r, &mut y[i * k..(i + 1) * k]);
        }
        Ok(())
    })
}

fn outer_rows(kind: ReduceKind, o: usize, k: usize, r: usize) -> Lowered {
    Lowered::plain(move |call| {
        let isa = call.team.isa();
        let x = call.input::<f32>(0);
        let y = SharedMut::new(call.output::<f32>(0));
        over_rows(call, k, o * k * r, &|range| {
            // SAFETY: ranges are disjoint.
            let y = unsafe { y.slice(range.clone()) };
            for (y, i) in y.iter_mut().zip(range) {
                let part = |n: usize| row(isa, kind, &x[(n * k + i) * r..(n * k + i + 1) * r]);
                let join = |a: f32, b: f32| row(Isa::portable(), kind, &[a, b]);
                *y = (0..o).map(part).reduce(join).unwrap_or_else(|| row(isa, kind, &[]));
            }
        });
        Ok(())
    })
}
