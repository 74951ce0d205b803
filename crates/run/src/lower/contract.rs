//! Contractions as matrix products: axes are sorted into batch, rows, columns and reduced; each group
//! that is one stride apart becomes one index, any left over becomes an outer loop.

use super::{Lowered, TensorType};
use crate::call::Call;
use crate::kernel::gemm::{self, Output};
use crate::kernel::pack::Strided;
use crate::team::SharedMut;
use gulliver_graph::op::contract::Contract;

/// An axis with its extent and its distance between neighbours in each operand (0 if absent).
#[derive(Clone, Copy, Debug)]
struct Axis {
    extent: usize,
    a: usize,
    b: usize,
    c: usize,
}

#[derive(Clone, Debug)]
struct Product {
    batch: Vec<Axis>,
    m: Axis,
    n: Axis,
    k: Axis,
}

pub(super) fn contract(
    op: &Contract,
    ins: &[TensorType],
    outs: &[TensorType],
    threads: usize,
) -> Option<Lowered> {
    // The operand whose axis is innermost in the result gives the columns.
    let words = |s: &str| s.split_whitespace().map(String::from).collect::<Vec<_>>();
    let last = words(&op.out).pop();
    let flip = last.is_some_and(|l| words(&op.a).contains(&l) && !words(&op.b).contains(&l));
    let (op, x, y) = if flip {
        (&Contract { a: op.b.clone(), b: op.a.clone(), out: op.out.clone() }, 1, 0)
    } else {
        (op, 0, 1)
    };
    let product = arrange(op, &ins[x].shape, &ins[y].shape, &outs[0].shape)?;
    let Product { batch, m, n, k } = product;
    let shape = [m.extent, n.extent, k.extent];
    let batches: usize = batch.iter().map(|x| x.extent).product();
    let [gm, gn, gk] = shape;
    // Many small products are divided over threads whole; few large ones are divided inside.
    let whole = batches >= threads && (batches > 1) && (gm * gn * gk < 1 << 22 || batches % threads == 0);
    let each = gemm::serial_scratch_len(gm, gn, gk);
    let scratch = if whole { each * threads } else { gemm::scratch_len(gm, gn, gk, threads) };
    let run = move |call: &mut Call<'_>| {
        let (a, b) = (call.input::<f32>(x), call.input::<f32>(y));
        let c = call.output::<f32>(0);
        let scratch = call.scratch::<f32>();
        let operands = |at: [usize; 3]| {
            let left = Strided { data: &a[at[0].min(a.len())..], outer: m.a, reduced: k.a };
            let right = Strided { data: &b[at[1].min(b.len())..], outer: n.b, reduced: k.b };
            (left, right)
        };
        if !whole {
            for i in 0..batches {
                let at = origin(&batch, i);
                let (left, right) = operands(at);
                gemm::gemm(
                    call.team,
                    shape,
                    &left,
                    &right,
                    Output::rows(&mut c[at[2]..], m.c),
                    false,
                    scratch,
                );
            }
            return Ok(());
        }
        let isa = call.team.isa();
        let parts = call.team.threads();
        let (c, scratch) = (SharedMut::new(c), SharedMut::new(scratch));
        call.team.run(parts, &|part| {
            // SAFETY: each part has its own stretch of scratch.
            let scratch = unsafe { scratch.slice(part * each..(part + 1) * each) };
            for i in crate::team::share(batches, 1, parts, part) {
                let at = origin(&batch, i);
                let (left, right) = operands(at);
                // SAFETY: the elements written for one batch index are written by this part only; the
                // slice is wider, but elements outside the product's rows and columns are not touched.
                let c = unsafe { c.slice(at[2]..c.len()) };
                gemm::serial(isa, shape, &left, &right, Output::rows(c, m.c), false, scratch);
            }
        });
        Ok(())
    };
    Some(Lowered::with_scratch(scratch, run))
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

/// `None` if the result's columns are not contiguous in either operand order.
fn arrange(op: &Contract, a: &[usize], b: &[usize], c: &[usize]) -> Option<Product> {
    let names =
        |s: &str| -> Vec<String> { s.split_whitespace().filter(|w| *w != "[]").map(String::from).collect() };
    let (na, nb, nc) = (names(&op.a), names(&op.b), names(&op.out));
    let strides = |shape: &[usize]| -> Vec<usize> {
        (0..shape.len()).map(|d| shape[d + 1..].iter().product()).collect()
    };
    let (sa, sb, sc) = (strides(a), strides(b), strides(c));
    let mut all: Vec<String> = nc.clone();
    all.extend(na.iter().chain(&nb).filter(|n| !nc.contains(n)).cloned());
    all.dedup();
    let find = |names: &[String], n: &String| names.iter().position(|x| x == n);
    let (mut batch, mut rows, mut cols, mut reduced) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut seen: Vec<&String> = Vec::new();
    for n in &all {
        if seen.contains(&n) {
            continue;
        }
        seen.push(n);
        let (ia, ib, ic) = (find(&na, n), find(&nb, n), find(&nc, n));
        let extent = ia.map(|i| a[i]).or(ib.map(|i| b[i]))?;
        let stride = |i: Option<usize>, s: &[usize]| i.map_or(0, |i| s[i]);
        let axis = Axis { extent, a: stride(ia, &sa), b: stride(ib, &sb), c: stride(ic, &sc) };
        match (ia.is_some(), ib.is_some(), ic.is_some()) {
            (true, true, true) => batch.push(axis),
            (true, false, true) => rows.push(axis),
            (false, true, true) => cols.push(axis),
            (true, true, false) => reduced.push(axis),
            _ => return None,
        }
    }
    let reduced = merge(reduced);
    let [k] = reduced.as_slice() else {
        return if reduced.is_empty() {
            finish(batch, rows, cols, Axis { extent: 1, a: 0, b: 0, c: 0 })
        } else {
            None
        };
    };
    let k = *k;
    finish(batch, rows, cols, k)
}

fn finish(mut batch: Vec<Axis>, rows: Vec<Axis>, cols: Vec<Axis>, k: Axis) -> Option<Product> {
    let unit = Axis { extent: 1, a: 0, b: 0, c: 1 };
    let (mut rows, mut cols) = (merge(rows), merge(cols));
    // Columns must be contiguous in the result: the kernel writes rows of them.
    let n = match cols.pop() {
        Some(n) if n.c == 1 || n.extent == 1 => n,
        Some(n) => {
            cols.push(n);
            unit
        }
        None => unit,
    };
    // Of the rows, the widest group is the matrix dimension; others are loops.
    let widest = (0..rows.len()).max_by_key(|&i| rows[i].extent);
    let m = widest.map_or(Axis { c: 0, ..unit }, |i| rows.remove(i));
    batch.extend(rows);
    batch.extend(cols);
    Some(Product { batch, m, n, k })
}

/// Joins neighbours that are one stride apart in every operand.
fn merge(axes: Vec<Axis>) -> Vec<Axis> {
    let mut out: Vec<Axis> = Vec::new();
    for x in axes.into_iter() {
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
