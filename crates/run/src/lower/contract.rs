//! Contractions as matrix products: axes are sorted into batch, rows, columns and reduced. Neighbours
//! that are one stride apart become one index; a group of rows or of columns that is left over becomes
//! an outer loop, and the reduced index may be a nest of loops.

use super::{Lowered, TensorType};
use crate::kernel::gemm::{self, Output};
use crate::kernel::pack::Nested;
use crate::lower::call::Call;
use crate::team::{SharedMut, share};
use gulliver_graph::graph::op::contract::Contract;

/// An axis with its extent and its distance between neighbours in each operand (0 if absent).
#[derive(Clone, Copy, Debug)]
struct Axis {
    extent: usize,
    a: usize,
    b: usize,
    c: usize,
}

const UNIT: Axis = Axis { extent: 1, a: 0, b: 0, c: 0 };

/// Left operand `a`, right operand `b`; columns contiguous in the result unless it has none such.
#[derive(Clone, Debug)]
struct Product {
    batch: Vec<Axis>,
    m: Axis,
    n: Axis,
    k: Vec<Axis>,
}

pub(super) fn contract(op: &Contract, ins: &[TensorType], outs: &[TensorType], threads: usize) -> Lowered {
    // The operand whose axis is innermost in the result gives the columns.
    let last = names(&op.out).pop();
    let flip = last.is_some_and(|l| names(&op.a).contains(&l) && !names(&op.b).contains(&l));
    let mut product = arrange(op, &ins[0].shape, &ins[1].shape, &outs[0].shape, flip);
    product.batch.retain(|x| x.extent != 1);
    let Product { batch, m, n, k } = product;
    let (x, y) = if flip { (1, 0) } else { (0, 1) };
    let loops_a: Vec<(usize, usize)> = k.iter().map(|k| (k.extent, k.a)).collect();
    let loops_b: Vec<(usize, usize)> = k.iter().map(|k| (k.extent, k.b)).collect();
    let shape = [m.extent, n.extent, k.iter().map(|k| k.extent).product()];
    let batches: usize = batch.iter().map(|x| x.extent).product();
    let [gm, gn, gk] = shape;
    // Many small products are divided over threads whole; few large ones are divided inside.
    let whole =
        batches >= threads && (batches > 1) && (gm * gn * gk < 1 << 22 || batches.is_multiple_of(threads));
    let each = gemm::serial_scratch_len(gm, gn, gk);
    let scratch = if whole { each * threads } else { gemm::scratch_len(gm, gn, gk, threads) };
    let (inner, outer) = if n.c == 1 || gn == 1 { (usize::MAX, 0) } else { (1, n.c) };
    Lowered::with_scratch(scratch, move |call: &mut Call<'_>| {
        let (a, b) = (call.input::<f32>(x), call.input::<f32>(y));
        let c = call.output::<f32>(0);
        let scratch = call.scratch::<f32>();
        if c.is_empty() {
            return Ok(());
        }
        let operands = |at: [usize; 3]| {
            let left = Nested { data: &a[at[0].min(a.len())..], outer: m.a, loops: &loops_a };
            let right = Nested { data: &b[at[1].min(b.len())..], outer: n.b, loops: &loops_b };
            (left, right)
        };
        if !whole {
            for i in 0..batches {
                let at = origin(&batch, i);
                let (left, right) = operands(at);
                let c = Output::runs(&mut c[at[2]..], m.c, inner, outer);
                gemm::gemm(call.team, shape, &left, &right, c, false, scratch);
            }
            return Ok(());
        }
        let isa = call.team.isa();
        let parts = call.team.threads();
        let (c, scratch) = (SharedMut::new(c), SharedMut::new(scratch));
        call.team.run(parts, &|part| {
            // SAFETY: each part has its own stretch of scratch.
            let scratch = unsafe { scratch.slice(part * each..(part + 1) * each) };
            for i in share(batches, 1, parts, part) {
                let at = origin(&batch, i);
                let (left, right) = operands(at);
                // SAFETY: every axis of the result is a row, a column or a batch axis, so each element
                // belongs to one batch index, and each batch index to one part.
                let c = unsafe { Output::shared(&c, at[2], m.c, inner, outer) };
                gemm::serial(isa, shape, &left, &right, c, false, scratch);
            }
        });
        Ok(())
    })
}

/// Where batch index `i` starts in each operand.
fn origin(batch: &[Axis], mut i: usize) -> [usize; 3] {
    let mut at = [0; 3];
    for x in batch.iter().rev() {
        let p = i % x.extent;
        i /= x.extent;
        at = [at[0] + p * x.a, at[1] + p * x.b, at[2] + p * x.c];
    }
    at
}

fn names(operand: &str) -> Vec<&str> {
    operand.split_whitespace().filter(|w| *w != "[]").collect()
}

/// Sorts the axes. The reduced index follows the order of the line whatever the strides are, as that
/// is the order of the sum. With `flip` the second operand gives the rows.
fn arrange(op: &Contract, a: &[usize], b: &[usize], c: &[usize], flip: bool) -> Product {
    let (na, nb, nc) = (names(&op.a), names(&op.b), names(&op.out));
    // Extent and distance of an axis in an operand that has it.
    let look = |names: &[&str], shape: &[usize], axis: &str| {
        let d = names.iter().position(|n| *n == axis)?;
        Some((shape[d], shape[d + 1..].iter().product::<usize>()))
    };
    let (mut batch, mut rows, mut cols, mut reduced) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let lost = na.iter().filter(|n| !nc.contains(n));
    for axis in nc.iter().chain(lost) {
        let (ia, ib, ic) = (look(&na, a, axis), look(&nb, b, axis), look(&nc, c, axis));
        let (ia, ib) = if flip { (ib, ia) } else { (ia, ib) };
        let extent = ia.or(ib).map_or(1, |i| i.0);
        let step = |i: Option<(usize, usize)>| i.map_or(0, |i| i.1);
        let found = Axis { extent, a: step(ia), b: step(ib), c: step(ic) };
        match (ia, ib, ic) {
            (_, _, None) => reduced.push(found),
            (Some(_), None, _) => rows.push(found),
            (None, _, _) => cols.push(found),
            _ => batch.push(found),
        }
    }
    let (mut rows, mut cols) = (merge(rows), merge(cols));
    // The kernel writes rows of contiguous columns fastest; else the widest group serves.
    let contiguous = cols.iter().position(|n| n.c == 1);
    let columns = contiguous.or_else(|| widest(&cols));
    let n = columns.map_or(UNIT, |i| cols.remove(i));
    let m = widest(&rows).map_or(UNIT, |i| rows.remove(i));
    batch.extend(rows);
    batch.extend(cols);
    Product { batch, m, n, k: merge(reduced) }
}

fn widest(axes: &[Axis]) -> Option<usize> {
    (0..axes.len()).max_by_key(|&i| axes[i].extent)
}

/// Joins neighbours that are one stride apart in every operand.
fn merge(axes: Vec<Axis>) -> Vec<Axis> {
    let mut out: Vec<Axis> = Vec::new();
    for x in axes.into_iter().filter(|x| x.extent != 1) {
        match out.last_mut() {
            Some(last)
                if last.a == x.a * x.extent && last.b == x.b * x.extent && last.c == x.c * x.extent =>
            {
                *last = Axis { extent: last.extent * x.extent, ..x };
            }
            _ => out.push(x),
        }
    }
    out
}
