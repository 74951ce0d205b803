//! Scaled dot-product attention and its gradient in tiles: memory linear in the lengths, the score
//! matrix never stored. One (batch, head) pair is the unit of work.
//!
//! Order of sums, for tiles of [`TILE`] keys and queries counted from 0. Scores are matrix products
//! over the head dimension. Forward, a query takes its key tiles in order: `m' = max(m, tile)`,
//! `c = exp(m - m')`, `p = exp(score - m')`, `l = fma(l, c, sum p)` with the sum in lane order, and
//! `o = fma(o, c, P·V + 0.0)` with one chain over the tile; a tile without a visible key is passed over. At
//! the end `o / l` and `lse = m + ln l`. Backward, the gradient of a query adds one chain per key
//! tile, that of a key one chain per query tile, in order from +0.0. Hidden keys have weight exactly 0:
//! adding +0.0 to what may be -0.0 lets kernels leave them out.

use crate::kernel::pack::{Operand, Strided};
use crate::kernel::tile::{Left, MR, NR, Right, Store, Target, multiply};
use crate::kernel::{K_BLOCK, math, reduce};
use crate::team::isa::{Isa, simd};
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

    /// Elements of slivers of the head dimension over `len` rows; none where the rows serve as they are.
    fn along(&self, len: usize) -> usize {
        if self.d.is_multiple_of(NR) { 0 } else { self.d.next_multiple_of(NR) * len }
    }

    fn forward_each(&self) -> usize {
        self.across() + self.along(self.s) + MR * TILE + MR * self.d
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

/// The rows of a head as the right operand of products over those rows, from row 0 on: in place where
/// the head dimension is whole slivers, otherwise packed to `to`.
fn along<'a>(x: &'a [f32], shape: &AttentionShape, len: usize, to: &'a mut [f32]) -> Along<'a> {
    if shape.d.is_multiple_of(NR) {
        return Along { data: x, sliver: NR, step: shape.row() };
    }
    if len > 0 {
        Strided { data: x, outer: 1, reduced: shape.row() }.pack(0..shape.d, 0..len, NR, to);
    }
    Along { data: to, sliver: len * NR, step: NR }
}

/// See [`along`].
#[derive(Clone, Copy)]
struct Along<'a> {
    data: &'a [f32],
    sliver: usize,
    step: usize,
}

impl Along<'_> {
    /// From a row on.
    fn from(self, row: usize) -> Right {
        Right { ptr: self.data.as_ptr().wrapping_add(row * self.step), sliver: self.sliver, step: self.step }
    }
}

/// Products of the rows `queries` of `x` with packed keys from `key` on, in whole slivers that cover
/// `count` of them, to rows of a tile.
///
/// # Safety
/// `x` starts at row 0 of a head with `shape.t` rows, `across` was packed for `shape.s` keys, `key` is
/// the first of a tile of at least `count` keys, and `to` has [`TILE`] elements per query.
unsafe fn scores(
    isa: Isa,
    shape: &AttentionShape,
    x: &[f32],
    across: &[f32],
    queries: Range<usize>,
    (key, count): (usize, usize),
    to: &mut [f32],
) {
    let (row, wide) = (shape.row(), shape.s.next_multiple_of(NR));
    let to = Target::rows(to.as_mut_ptr(), TILE);
    for d0 in (0..shape.d.max(1)).step_by(K_BLOCK) {
        let len = shape.d.min(d0 + K_BLOCK) - d0;
        let store = if d0 == 0 { Store::Set } else { Store::Add };
        let ptr = x.as_ptr().wrapping_add(queries.start * row + d0);
        let a = Left { ptr, sliver: MR * row, row, step: 1 };
        let ptr = across.as_ptr().wrapping_add(d0 * wide + key * len);
        let b = Right { ptr, sliver: NR * len, step: NR };
        // SAFETY: the caller's promise; tiles start at whole slivers, and the last sliver is padded.
        unsafe { multiply(isa, 0..queries.len(), 0..count.next_multiple_of(NR), len, a, b, to, store) };
    }
}

/// What hides keys of one tile: added to a score it changes nothing or makes it -infinity.
struct Veil {
    hide: [f32; TILE],
    /// The first visible key, or [`TILE`].
    first: usize,
    /// Whether the mask hides none.
    clear: bool,
}

impl Veil {
    fn new(mask: Option<&[u8]>, keys: &Range<usize>) -> Veil {
        let mut hide = [f32::NEG_INFINITY; TILE];
        for (j, hide) in keys.clone().zip(&mut hide) {
            *hide = if mask.is_none_or(|m| m[j] != 0) { 0.0 } else { f32::NEG_INFINITY };
        }
        let first = hide.iter().position(|&h| h == 0.0).unwrap_or(TILE);
        Veil { hide, first, clear: hide[..keys.len()].iter().all(|&h| h == 0.0) }
    }
}

/// Rows of scores, of which the first `W` keys of the tile count, times the scale; those from `seen` on
/// and those behind the veil become -infinity.
#[inline(always)]
fn scale_rows<const W: usize>(tile: &mut [f32], veil: &Veil, seen: &[usize], scale: f32) {
    for (row, &seen) in tile.chunks_exact_mut(TILE).zip(seen) {
        let Some(row) = row.first_chunk_mut::<W>() else { continue };
        for x in row.iter_mut() {
            *x *= scale;
        }
        if !veil.clear || seen < W {
            for (j, (x, &hide)) in row.iter_mut().zip(&veil.hide).enumerate() {
                *x = if j < seen && hide == 0.0 { *x } else { f32::NEG_INFINITY };
            }
        }
    }
}

/// Weights relative to the maximum of each row; the hidden become zero.
#[inline(always)]
fn weigh_rows<const W: usize>(tile: &mut [f32], most: &[f32; MR]) {
    for (row, &most) in tile.chunks_exact_mut(TILE).zip(most) {
        let Some(row) = row.first_chunk_mut::<W>() else { continue };
        for x in row.iter_mut() {
            *x = math::exp_normal(*x - most);
        }
    }
}

/// A panel of scores to weights; `state` has a row's maximum and sum and gets the factor for what came
/// before. Rows that see nothing keep their state and become zero.
#[inline(always)]
fn soften_body(
    tile: &mut [f32],
    width: usize,
    veil: &Veil,
    seen: &[usize],
    scale: f32,
    state: &mut [[f32; 3]],
) {
    match width.div_ceil(NR) {
        1 => scale_rows::<NR>(tile, veil, seen, scale),
        2 => scale_rows::<{ 2 * NR }>(tile, veil, seen, scale),
        _ => scale_rows::<TILE>(tile, veil, seen, scale),
    }
    let wide = width.next_multiple_of(NR);
    // Zero is larger than what a row that sees nothing has, so that its weights become zero.
    let mut most = [0.0; MR];
    for ((most, state), row) in most.iter_mut().zip(&*state).zip(tile.chunks_exact(TILE)) {
        // A NaN may hide from the maximum but not from the sum.
        let greater = |a: f32, b: f32| if b > a { b } else { a };
        let found = reduce::fold(&row[..wide], state[0], greater, greater);
        *most = if found == f32::NEG_INFINITY { 0.0 } else { found };
    }
    match width.div_ceil(NR) {
        1 => weigh_rows::<NR>(tile, &most),
        2 => weigh_rows::<{ 2 * NR }>(tile, &most),
        _ => weigh_rows::<TILE>(tile, &most),
    }
    for (((&most, state), row), &seen) in most.iter().zip(state).zip(tile.chunks_exact(TILE)).zip(seen) {
        // Hidden keys add exact zeros, so the sum over whole slivers is the sum over the tile's keys.
        let sum = reduce::fold(&row[..wide], 0.0, reduce::add, reduce::add);
        let factor = math::exp_normal(state[0] - most);
        if veil.first < seen {
            *state = [most, state[1].mul_add(factor, sum), factor];
        }
    }
}

#[inline(always)]
fn rescale_body(o: &mut [f32], factor: f32, more: &[f32]) {
    for (o, &x) in o.iter_mut().zip(more) {
        *o = o.mul_add(factor, x + 0.0);
    }
}

#[inline(always)]
fn divide_body(o: &mut [f32], by: f32) {
    for o in o {
        *o /= by;
    }
}

/// One row of scores and of output products to weights and score gradients.
#[inline(always)]
fn slopes_row<const W: usize>(
    p: &mut [f32; W],
    ds: &mut [f32; W],
    hide: Option<&[f32; TILE]>,
    seen: usize,
    scale: f32,
    [lse, delta]: [f32; 2],
) {
    for j in 0..W {
        let weight = math::exp_normal(p[j] * scale - lse);
        let slope = weight * (ds[j] - delta) * scale;
        (p[j], ds[j]) = (weight, slope);
    }
    if let Some(hide) = hide {
        for j in 0..W {
            let visible = j < seen && hide[j] == 0.0;
            p[j] = if visible { p[j] } else { 0.0 };
            ds[j] = if visible { ds[j] } else { 0.0 };
        }
    }
}

#[inline(always)]
fn slopes_rows<const W: usize>(
    p: &mut [f32],
    ds: &mut [f32],
    veil: &Veil,
    seen: &[usize],
    scale: f32,
    saved: &[[f32; 2]],
) {
    let rows = p.chunks_exact_mut(TILE).zip(ds.chunks_exact_mut(TILE));
    for (((p, ds), &seen), &saved) in rows.zip(seen).zip(saved) {
        // Products over queries may take in keys that no query of this panel sees.
        p[W..].fill(0.0);
        ds[W..].fill(0.0);
        let (Some(p), Some(ds)) = (p.first_chunk_mut::<W>(), ds.first_chunk_mut::<W>()) else { continue };
        let hide = (!veil.clear || seen < W).then_some(&veil.hide);
        slopes_row(p, ds, hide, seen, scale, saved);
    }
}

#[inline(always)]
fn slopes_body(
    p: &mut [f32],
    ds: &mut [f32],
    width: usize,
    veil: &Veil,
    seen: &[usize],
    scale: f32,
    saved: &[[f32; 2]],
) {
    match width.div_ceil(NR) {
        1 => slopes_rows::<NR>(p, ds, veil, seen, scale, saved),
        2 => slopes_rows::<{ 2 * NR }>(p, ds, veil, seen, scale, saved),
        _ => slopes_rows::<TILE>(p, ds, veil, seen, scale, saved),
    }
}

simd! {
    fn soften(tile: &mut [f32], width: usize, veil: &Veil, seen: &[usize], scale: f32, state: &mut [[f32; 3]]) = soften_body;
    fn rescale(o: &mut [f32], factor: f32, more: &[f32]) = rescale_body;
    fn divide(o: &mut [f32], by: f32) = divide_body;
    fn slopes(p: &mut [f32], ds: &mut [f32], width: usize, veil: &Veil, seen: &[usize], scale: f32, saved: &[[f32; 2]]) = slopes_body;
}

/// Rows of a tile that are treated alike: their keys are hidden in whole slivers where possible.
fn panels(rows: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let rows = rows.clone();
    rows.clone().step_by(MR).map(move |i| i..rows.end.min(i + MR))
}

/// How many keys of the tile at `j0` each row of a panel may see.
fn seen_in_tile(shape: &AttentionShape, panel: &Range<usize>, j0: usize) -> [usize; MR] {
    let mut seen = [0; MR];
    for (seen, i) in seen.iter_mut().zip(panel.clone()) {
        *seen = shape.seen_by(i).saturating_sub(j0).min(TILE);
    }
    seen
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
    let (p, pv) = rest.split_at_mut(MR * TILE);
    pack_across(tail(k, head.key), shape, s, keys_across);
    let values = along(tail(v, head.key), shape, s, values);
    let q = tail(q, head.query);
    for i0 in (0..shape.t).step_by(TILE) {
        let queries = i0..shape.t.min(i0 + TILE);
        // Per query the maximum, the sum and the factor of the last tile.
        let mut states = [[f32::NEG_INFINITY, 0.0, 1.0]; TILE];
        for i in queries.clone() {
            // SAFETY: the row is this head's.
            unsafe { o.slice(i, d) }.fill(0.0);
        }
        for j0 in (0..shape.seen_by(queries.end - 1)).step_by(TILE) {
            let keys = j0..s.min(j0 + TILE);
            let veil = Veil::new(mask, &keys);
            for panel in panels(&queries) {
                let (seen, rows) = (seen_in_tile(shape, &panel, j0), panel.len());
                // The last row of a panel sees most.
                let width = keys.len().min(seen[rows - 1]);
                if veil.first >= width {
                    continue;
                }
                let state = &mut states[panel.start - i0..][..rows];
                // SAFETY: packed above for these keys; the rows of weights are whole tile rows.
                unsafe { scores(isa, shape, q, keys_across, panel.clone(), (j0, width), p) };
                soften(isa, &mut p[..rows * TILE], width, &veil, &seen[..rows], shape.scale, state);
                let a = Left { ptr: p.as_ptr(), sliver: 0, row: TILE, step: 1 };
                let to = Target::rows(pv.as_mut_ptr(), d);
                // SAFETY: the weights fill these rows; values are slivers over all keys.
                unsafe { multiply(isa, 0..rows, 0..d, width, a, values.from(j0), to, Store::Set) };
                for (r, i) in panel.enumerate().filter(|&(r, _)| veil.first < seen[r]) {
                    // SAFETY: the row is this head's.
                    rescale(isa, unsafe { o.slice(i, d) }, state[r][2], &pv[r * d..(r + 1) * d]);
                }
            }
        }
        for (i, [most, sum, _]) in queries.zip(states) {
            lse[i] = if sum == 0.0 { f32::NEG_INFINITY } else { most + math::ln(sum) };
            if sum != 0.0 {
                // SAFETY: the row is this head's.
                divide(isa, unsafe { o.slice(i, d) }, sum);
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
    let keys_along = along(k, shape, s, keys_along);
    let queries_along = along(q, shape, t, queries_along);
    let douts_along = along(dout, shape, t, douts_along);
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
        let veil = Veil::new(mask, &keys);
        for i0 in (0..t).step_by(TILE) {
            let queries = i0..t.min(i0 + TILE);
            // A tile nobody sees would add exact zeros to sums that are never -0.0.
            if veil.first == TILE || j0 + veil.first >= shape.seen_by(queries.end - 1) {
                continue;
            }
            for panel in panels(&queries) {
                let (seen, rows) = (seen_in_tile(shape, &panel, j0), panel.len());
                let width = keys.len().min(seen[rows - 1]);
                if width == 0 {
                    continue;
                }
                let at = (panel.start - i0) * TILE..(panel.end - i0) * TILE;
                let (p, ds) = (&mut p[at.clone()], &mut ds[at]);
                let mut saved = [[0.0; 2]; MR];
                for (saved, i) in saved.iter_mut().zip(panel.clone()) {
                    *saved = [lse[i], delta[i]];
                }
                // SAFETY: packed above; the rows are whole tile rows; the gradient rows are this head's.
                unsafe {
                    scores(isa, shape, q, keys_across, panel.clone(), (j0, width), p);
                    scores(isa, shape, dout, values_across, panel.clone(), (j0, width), ds);
                    slopes(isa, p, ds, width, &veil, &seen[..rows], shape.scale, &saved);
                    let by_row = Left { ptr: ds.as_ptr(), sliver: 0, row: TILE, step: 1 };
                    let to = dq.target(panel.start);
                    multiply(isa, 0..rows, 0..d, width, by_row, keys_along.from(j0), to, Store::Add);
                }
            }
            for panel in panels(&keys) {
                // The queries that see the first key of the panel and all after them; the panels of
                // queries before have nothing there.
                let from = queries.clone().position(|i| shape.seen_by(i) > panel.start);
                let Some(from) = from else { break };
                let from = from / MR * MR;
                let (rows, len) = (panel.len(), queries.len() - from);
                let at = from * TILE + panel.start - j0;
                let by_column = |x: &[f32]| Left { ptr: x[at..].as_ptr(), sliver: 0, row: 1, step: TILE };
                // SAFETY: as above; slivers of queries cover these rows.
                unsafe {
                    let (to, b) = (dk.target(panel.start), queries_along.from(i0 + from));
                    multiply(isa, 0..rows, 0..d, len, by_column(ds), b, to, Store::Add);
                    let (to, b) = (dv.target(panel.start), douts_along.from(i0 + from));
                    multiply(isa, 0..rows, 0..d, len, by_column(p), b, to, Store::Add);
                }
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
