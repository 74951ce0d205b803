//! Scaled dot-product attention and its gradient in tiles: memory linear in the lengths, the score
//! matrix never stored. One (batch, head) pair is the unit of work.
//!
//! Order of sums, for tiles of [`TILE`] keys and queries counted from 0. Scores are matrix products
//! over the head dimension. Forward, a query takes its key tiles in order: `m' = max(m, tile)`,
//! `c = exp(m - m')`, `p = exp(score - m')`, `l = fma(l, c, sum p)` with the sum in lane order, and
//! `o = fma(o, c, P·V)` with one chain over the tile; a tile without a visible key is passed over. At
//! the end `o / l` and `lse = m + ln l`. Backward, the gradient of a query adds one chain per key
//! tile, that of a key one chain per query tile, in order from +0.0. Hidden keys have weight exactly 0.

use crate::kernel::isa::{Isa, simd};
use crate::kernel::pack::{Operand, Strided};
use crate::kernel::tile::{Left, MR, NR, Right, Store, Target, multiply};
use crate::kernel::{K_BLOCK, LANES, math, reduce};
use crate::team::{SharedMut, Team, share};
use std::ops::Range;

/// Keys, and in the gradient queries, taken at a time: whole slivers of both operands.
pub const TILE: usize = 48;

/// Extents and options. Layouts, row-major: `q[b, t, h, d]`, `k, v[b, s, h, d]`, `o[b, t, h, d]`,
/// `lse[b, h, t]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Batch.
    pub b: usize,
    /// Queries.
    pub t: usize,
    /// Keys.
    pub s: usize,
    /// Heads.
    pub h: usize,
    /// Head dimension.
    pub d: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// Whether query `i` sees only keys `j <= i + (s - t)`.
    pub causal: bool,
}

impl AttentionShape {
    fn row(&self) -> usize {
        self.h * self.d
    }

    /// How many keys, from 0, query `i` may see.
    fn seen_by(&self, i: usize) -> usize {
        if self.causal { (i + 1 + self.s).saturating_sub(self.t).min(self.s) } else { self.s }
    }

    fn check(&self, queries: &[usize], keys: &[usize], lse: usize, mask: Option<&[u8]>) {
        let (q, k) = (self.b * self.t * self.row(), self.b * self.s * self.row());
        let fits = queries.iter().all(|&len| len == q) && keys.iter().all(|&len| len == k);
        assert!(fits && lse == self.b * self.h * self.t, "slices do not match {self:?}");
        assert!(mask.is_none_or(|m| m.len() == self.b * self.s), "mask does not match {self:?}");
    }

    /// Elements of transposed slivers: all keys over the head dimension.
    fn across(&self) -> usize {
        self.s.next_multiple_of(NR) * self.d
    }

    /// Elements of slivers of the head dimension over `len` rows.
    fn along(&self, len: usize) -> usize {
        self.d.next_multiple_of(NR) * len
    }

    fn forward_each(&self) -> usize {
        self.across() + self.along(self.s) + TILE * TILE + TILE * self.d
    }

    fn backward_each(&self) -> usize {
        2 * self.across() + self.along(self.s) + 2 * self.along(self.t) + 2 * TILE * TILE + self.t
    }
}

/// Floats of scratch [`forward`] needs.
pub fn forward_scratch_len(shape: &AttentionShape, threads: usize) -> usize {
    threads * shape.forward_each()
}

/// Floats of scratch [`backward`] needs.
pub fn backward_scratch_len(shape: &AttentionShape, threads: usize) -> usize {
    threads * shape.backward_each()
}

/// The attention output `o` and, per query, the logarithm of the sum of exponentials. Only keys with a
/// nonzero `mask[b, s]` are visible. A query that sees no key gets 0 and `lse = -infinity`. Panics if
/// a slice does not match the shape.
#[allow(clippy::too_many_arguments)]
pub fn forward(
    team: &Team,
    shape: &AttentionShape,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    mask: Option<&[u8]>,
    o: &mut [f32],
    lse: &mut [f32],
    scratch: &mut [f32],
) {
    shape.check(&[q.len(), o.len()], &[k.len(), v.len()], lse.len(), mask);
    let (o, lse) = (SharedMut::new(o), SharedMut::new(lse));
    heads(team, shape, shape.forward_each(), scratch, &|head, scratch| {
        // SAFETY: each head has its own row of lse.
        let lse = unsafe { lse.slice(head.index * shape.t..(head.index + 1) * shape.t) };
        let o = Rows { ptr: o.as_ptr(), row: shape.row() }.at(head.query);
        // SAFETY: `check` covers every row of this head, and heads write disjoint elements.
        unsafe { forward_head(team.isa(), shape, &head, [q, k, v], head.mask(mask, shape), o, lse, scratch) };
    });
}

/// The gradients of `q`, `k` and `v` from the gradient `dout` of the output, given what [`forward`]
/// returned. Panics if a slice does not match the shape.
#[allow(clippy::too_many_arguments)]
pub fn backward(
    team: &Team,
    shape: &AttentionShape,
    [q, k, v]: [&[f32]; 3],
    mask: Option<&[u8]>,
    o: &[f32],
    lse: &[f32],
    dout: &[f32],
    [dq, dk, dv]: [&mut [f32]; 3],
    scratch: &mut [f32],
) {
    let queries = [q.len(), o.len(), dout.len(), dq.len()];
    shape.check(&queries, &[k.len(), v.len(), dk.len(), dv.len()], lse.len(), mask);
    let grads = [SharedMut::new(dq), SharedMut::new(dk), SharedMut::new(dv)];
    heads(team, shape, shape.backward_each(), scratch, &|head, scratch| {
        let row = shape.row();
        let [dq, dk, dv] = &grads;
        let to = [(dq, head.query), (dk, head.key), (dv, head.key)]
            .map(|(g, at)| Rows { ptr: g.as_ptr(), row }.at(at));
        let lse = &lse[head.index * shape.t..(head.index + 1) * shape.t];
        let mask = head.mask(mask, shape);
        // SAFETY: `check` covers every row of this head, and heads write disjoint elements.
        unsafe { backward_head(team.isa(), shape, &head, [q, k, v, o, dout], mask, lse, to, scratch) };
    });
}

/// One (batch, head) pair and where its first rows lie.
struct Head {
    index: usize,
    batch: usize,
    query: usize,
    key: usize,
}

impl Head {
    fn mask<'a>(&self, mask: Option<&'a [u8]>, shape: &AttentionShape) -> Option<&'a [u8]> {
        mask.map(|m| &m[self.batch * shape.s..(self.batch + 1) * shape.s])
    }
}

/// Rows of one head in a tensor that other threads write elsewhere.
#[derive(Clone, Copy)]
struct Rows {
    ptr: *mut f32,
    row: usize,
}

impl Rows {
    fn at(self, offset: usize) -> Rows {
        Rows { ptr: self.ptr.wrapping_add(offset), ..self }
    }

    fn target(self, row: usize) -> Target {
        Target::rows(self.ptr.wrapping_add(row * self.row), self.row)
    }

    /// # Safety
    /// Row `i` has `d` valid elements that nobody else touches meanwhile.
    unsafe fn slice<'a>(self, i: usize, d: usize) -> &'a mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(i * self.row), d) }
    }
}

/// Divides the heads over the team, each thread with its stretch of scratch.
fn heads(
    team: &Team,
    shape: &AttentionShape,
    each: usize,
    scratch: &mut [f32],
    f: &(dyn Fn(Head, &mut [f32]) + Sync),
) {
    let (parts, scratch) = (team.threads(), SharedMut::new(scratch));
    team.run(parts, &|part| {
        // SAFETY: each part has its own stretch of scratch.
        let scratch = unsafe { scratch.slice(part * each..(part + 1) * each) };
        for index in share(shape.b * shape.h, 1, parts, part) {
            let (batch, h) = (index / shape.h, index % shape.h);
            let (query, key) =
                (batch * shape.t * shape.row() + h * shape.d, batch * shape.s * shape.row() + h * shape.d);
            f(Head { index, batch, query, key }, scratch);
        }
    });
}

/// Packs `len` rows of a head as the right operand of products over the head dimension.
fn pack_across(x: &[f32], shape: &AttentionShape, len: usize, to: &mut [f32]) {
    let rows = Strided { data: x, outer: shape.row(), reduced: 1 };
    let wide = len.next_multiple_of(NR);
    for d0 in (0..shape.d).step_by(K_BLOCK) {
        let ds = d0..shape.d.min(d0 + K_BLOCK);
        let to = &mut to[d0 * wide..ds.end * wide];
        if len > 0 {
            rows.pack(0..len, ds, NR, to);
        }
    }
}

/// Packs `len` rows of a head as the right operand of products over those rows.
fn pack_along(x: &[f32], shape: &AttentionShape, len: usize, to: &mut [f32]) {
    if len * shape.d > 0 {
        Strided { data: x, outer: 1, reduced: shape.row() }.pack(0..shape.d, 0..len, NR, to);
    }
}

/// Products of the rows `queries` of `x` with the packed keys `keys`, to a tile.
///
/// # Safety
/// `x` starts at row 0 of a head with `shape.t` rows, `across` was packed for `shape.s` keys, and the
/// tile holds [`TILE`] rows of [`TILE`].
unsafe fn scores(
    isa: Isa,
    shape: &AttentionShape,
    x: &[f32],
    across: &[f32],
    queries: Range<usize>,
    keys: Range<usize>,
    tile: &mut [f32],
) {
    let (row, wide) = (shape.row(), shape.s.next_multiple_of(NR));
    let to = Target::rows(tile.as_mut_ptr(), TILE);
    for d0 in (0..shape.d.max(1)).step_by(K_BLOCK) {
        let len = shape.d.min(d0 + K_BLOCK) - d0;
        let store = if d0 == 0 { Store::Set } else { Store::Add };
        let ptr = x.as_ptr().wrapping_add(queries.start * row + d0);
        let a = Left { ptr, sliver: MR * row, row, step: 1 };
        let ptr = across.as_ptr().wrapping_add(d0 * wide + keys.start * len);
        let b = Right { ptr, sliver: NR * len, step: NR };
        // SAFETY: the caller's promise; tiles start at whole slivers.
        unsafe { multiply(isa, 0..queries.len(), 0..keys.len(), len, a, b, to, store) };
    }
}

/// The keys of one tile that the mask shows, as 1 or 0, and the first of them.
fn shown(mask: Option<&[u8]>, keys: &Range<usize>) -> ([f32; TILE], usize) {
    let mut keep = [0.0; TILE];
    for (j, keep) in keys.clone().zip(&mut keep) {
        *keep = if mask.is_none_or(|m| m[j] != 0) { 1.0 } else { 0.0 };
    }
    (keep, keep.iter().position(|&k| k > 0.0).unwrap_or(TILE))
}

/// One row of scores to weights: returns the new maximum, the factor for what came before, and the
/// sum of the weights. `seen` is how many keys of the tile may be seen.
#[inline(always)]
fn soften_body(row: &mut [f32], keep: &[f32; TILE], seen: usize, scale: f32, m: f32) -> (f32, f32, f32) {
    let (mut t, mut lanes) = ([f32::NEG_INFINITY; TILE], [m; LANES]);
    for (j, &x) in row.iter().enumerate() {
        t[j] = if j < seen && keep[j] > 0.0 { x * scale } else { f32::NEG_INFINITY };
    }
    for t in t.chunks_exact(LANES) {
        for l in 0..LANES {
            lanes[l] = if t[l] > lanes[l] || t[l].is_nan() { t[l] } else { lanes[l] };
        }
    }
    let most = lanes.into_iter().fold(m, |a, b| if b > a || b.is_nan() { b } else { a });
    for j in 0..TILE {
        let p = math::exp(t[j] - most);
        t[j] = if j < seen && j < row.len() && keep[j] > 0.0 { p } else { 0.0 };
    }
    row.copy_from_slice(&t[..row.len()]);
    // Hidden keys add exact zeros, so the sum over the whole tile is the sum over its keys.
    let mut lanes = [0.0f32; LANES];
    for t in t.chunks_exact(LANES) {
        for l in 0..LANES {
            lanes[l] += t[l];
        }
    }
    for half in [8, 4, 2, 1] {
        for l in 0..half {
            lanes[l] += lanes[l + half];
        }
    }
    (most, math::exp(m - most), lanes[0])
}

#[inline(always)]
fn rescale_body(o: &mut [f32], factor: f32, more: &[f32]) {
    for (o, &x) in o.iter_mut().zip(more) {
        *o = o.mul_add(factor, x);
    }
}

/// One row of scores and of output products to weights and score gradients.
#[inline(always)]
fn slopes_body(
    p: &mut [f32],
    ds: &mut [f32],
    keep: &[f32; TILE],
    seen: usize,
    scale: f32,
    lse: f32,
    delta: f32,
) {
    for (j, (p, ds)) in p.iter_mut().zip(ds).enumerate() {
        let visible = j < seen && keep[j] > 0.0;
        let weight = math::exp(*p * scale - lse);
        let slope = weight * (*ds - delta) * scale;
        *p = if visible { weight } else { 0.0 };
        *ds = if visible { slope } else { 0.0 };
    }
}

simd! {
    fn soften(row: &mut [f32], keep: &[f32; TILE], seen: usize, scale: f32, m: f32) -> (f32, f32, f32) = soften_body;
    fn rescale(o: &mut [f32], factor: f32, more: &[f32]) = rescale_body;
    fn slopes(p: &mut [f32], ds: &mut [f32], keep: &[f32; TILE], seen: usize, scale: f32, lse: f32, delta: f32) = slopes_body;
}

/// # Safety
/// The tensors have the shape's sizes; nobody else touches this head's rows of `o`.
#[allow(clippy::too_many_arguments)]
unsafe fn forward_head(
    isa: Isa,
    shape: &AttentionShape,
    head: &Head,
    [q, k, v]: [&[f32]; 3],
    mask: Option<&[u8]>,
    o: Rows,
    lse: &mut [f32],
    scratch: &mut [f32],
) {
    let (s, d) = (shape.s, shape.d);
    let (keys_across, rest) = scratch.split_at_mut(shape.across());
    let (values, rest) = rest.split_at_mut(shape.along(s));
    let (p, pv) = rest.split_at_mut(TILE * TILE);
    pack_across(tail(k, head.key), shape, s, keys_across);
    pack_along(tail(v, head.key), shape, s, values);
    let q = tail(q, head.query);
    for i0 in (0..shape.t).step_by(TILE) {
        let queries = i0..shape.t.min(i0 + TILE);
        let (mut m, mut l) = ([f32::NEG_INFINITY; TILE], [0.0f32; TILE]);
        for i in queries.clone() {
            // SAFETY: the row is this head's.
            unsafe { o.slice(i, d) }.fill(0.0);
        }
        for j0 in (0..shape.seen_by(queries.end - 1)).step_by(TILE) {
            let keys = j0..s.min(j0 + TILE);
            let (keep, first) = shown(mask, &keys);
            // SAFETY: packed above for these keys; the tile is large enough.
            unsafe { scores(isa, shape, q, keys_across, queries.clone(), keys.clone(), p) };
            let seen = |i: usize| shape.seen_by(i).saturating_sub(j0).min(TILE);
            let mut factor = [1.0; TILE];
            for (r, i) in queries.clone().enumerate().filter(|&(_, i)| first < seen(i)) {
                let row = &mut p[r * TILE..r * TILE + keys.len()];
                let (most, c, sum) = soften(isa, row, &keep, seen(i), shape.scale, m[r]);
                (m[r], l[r], factor[r]) = (most, l[r].mul_add(c, sum), c);
            }
            let a = Left { ptr: p.as_ptr(), sliver: MR * TILE, row: TILE, step: 1 };
            let b = Right { ptr: values.as_ptr().wrapping_add(j0 * NR), sliver: s * NR, step: NR };
            let to = Target::rows(pv.as_mut_ptr(), d);
            // SAFETY: the weights fill these rows; values are packed in slivers over all keys.
            unsafe { multiply(isa, 0..queries.len(), 0..d, keys.len(), a, b, to, Store::Set) };
            for (r, i) in queries.clone().enumerate().filter(|&(_, i)| first < seen(i)) {
                // SAFETY: the row is this head's.
                rescale(isa, unsafe { o.slice(i, d) }, factor[r], &pv[r * d..(r + 1) * d]);
            }
        }
        for (r, i) in queries.enumerate() {
            lse[i] = if l[r] == 0.0 { f32::NEG_INFINITY } else { m[r] + math::ln(l[r]) };
            if l[r] != 0.0 {
                // SAFETY: the row is this head's.
                unsafe { o.slice(i, d) }.iter_mut().for_each(|o| *o /= l[r]);
            }
        }
    }
}

/// # Safety
/// The tensors have the shape's sizes; nobody else touches this head's rows of the gradients.
#[allow(clippy::too_many_arguments)]
unsafe fn backward_head(
    isa: Isa,
    shape: &AttentionShape,
    head: &Head,
    [q, k, v, o, dout]: [&[f32]; 5],
    mask: Option<&[u8]>,
    lse: &[f32],
    [dq, dk, dv]: [Rows; 3],
    scratch: &mut [f32],
) {
    let (t, s, d) = (shape.t, shape.s, shape.d);
    let (keys_across, rest) = scratch.split_at_mut(shape.across());
    let (values_across, rest) = rest.split_at_mut(shape.across());
    let (keys_along, rest) = rest.split_at_mut(shape.along(s));
    let (queries_along, rest) = rest.split_at_mut(shape.along(t));
    let (douts_along, rest) = rest.split_at_mut(shape.along(t));
    let (p, rest) = rest.split_at_mut(TILE * TILE);
    let (ds, delta) = rest.split_at_mut(TILE * TILE);
    let [q, o, dout] = [q, o, dout].map(|x| tail(x, head.query));
    let [k, v] = [k, v].map(|x| tail(x, head.key));
    pack_across(k, shape, s, keys_across);
    pack_across(v, shape, s, values_across);
    pack_along(k, shape, s, keys_along);
    pack_along(q, shape, t, queries_along);
    pack_along(dout, shape, t, douts_along);
    for (i, delta) in delta.iter_mut().enumerate() {
        let at = i * shape.row()..i * shape.row() + d;
        *delta = reduce::dot(isa, &dout[at.clone()], &o[at]);
        // SAFETY: the row is this head's.
        unsafe { dq.slice(i, d) }.fill(0.0);
    }
    for j in 0..s {
        // SAFETY: the rows are this head's.
        unsafe {
            dk.slice(j, d).fill(0.0);
            dv.slice(j, d).fill(0.0);
        }
    }
    if d == 0 {
        return;
    }
    for j0 in (0..s).step_by(TILE) {
        let keys = j0..s.min(j0 + TILE);
        let (keep, first) = shown(mask, &keys);
        for i0 in (0..t).step_by(TILE) {
            let queries = i0..t.min(i0 + TILE);
            // A tile nobody sees would add exact zeros to sums that are never -0.0.
            if first == TILE || j0 + first >= shape.seen_by(queries.end - 1) {
                continue;
            }
            // SAFETY: packed above; tiles are large enough; the gradient rows are this head's.
            unsafe {
                scores(isa, shape, q, keys_across, queries.clone(), keys.clone(), p);
                scores(isa, shape, dout, values_across, queries.clone(), keys.clone(), ds);
                for (r, i) in queries.clone().enumerate() {
                    let at = r * TILE..r * TILE + keys.len();
                    let seen = shape.seen_by(i).saturating_sub(j0);
                    slopes(isa, &mut p[at.clone()], &mut ds[at], &keep, seen, shape.scale, lse[i], delta[i]);
                }
                let (m, n) = (queries.len(), keys.len());
                let by_row = Left { ptr: ds.as_ptr(), sliver: MR * TILE, row: TILE, step: 1 };
                let along = |x: &[f32], from: usize, len: usize| Right {
                    ptr: x[from * NR..].as_ptr(),
                    sliver: len * NR,
                    step: NR,
                };
                let add = Store::Add;
                multiply(isa, 0..m, 0..d, n, by_row, along(keys_along, j0, s), dq.target(i0), add);
                let by_column = |x: &[f32]| Left { ptr: x.as_ptr(), sliver: MR, row: 1, step: TILE };
                multiply(isa, 0..n, 0..d, m, by_column(ds), along(queries_along, i0, t), dk.target(j0), add);
                multiply(isa, 0..n, 0..d, m, by_column(p), along(douts_along, i0, t), dv.target(j0), add);
            }
        }
    }
}

/// The tensor from a head's first element on; nothing if the tensor is empty.
fn tail(x: &[f32], from: usize) -> &[f32] {
    &x[from.min(x.len())..]
}

#[cfg(test)]
#[path = "attention_tests.rs"]
mod tests;
