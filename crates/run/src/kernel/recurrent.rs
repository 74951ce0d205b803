//! Recurrent layers over whole sequences, forward and backward: per step one matrix product with the
//! recurrent weight and one pass over the gates. Sequences are [batch, time, …], states [batch, hidden].
//! Panics if a slice is too short for its extents.

use crate::kernel::gemm::{OutputMatrix, Panels};
use crate::kernel::math::{sigmoid, tanh};
use crate::kernel::pack::Strided;
use crate::kernel::reduce;
use crate::team::isa::simd;
use crate::team::{SharedMut, Team};

/// Extents of a recurrent layer.
#[derive(Clone, Copy, Debug)]
pub struct Extents {
    /// Sequences.
    pub batch: usize,
    /// Steps.
    pub time: usize,
    /// Width of the state.
    pub hidden: usize,
    /// Gates: 4 of an LSTM, 3 of a GRU.
    pub gates: usize,
}

impl Extents {
    fn wide(&self) -> usize {
        self.gates * self.hidden
    }

    /// Floats of scratch [`lstm`] and [`gru`] need.
    pub fn scratch(&self) -> usize {
        Panels::len(self.wide(), self.hidden) + self.wide() * self.batch
    }

    /// Floats of scratch [`lstm_grad`] and [`gru_grad`] need.
    pub fn grad_scratch(&self) -> usize {
        self.wide() + Panels::len(self.hidden, self.wide())
    }

    /// Where step `t` of sequence `b` starts among steps of `width` elements.
    fn at(&self, b: usize, t: usize, width: usize) -> usize {
        (b * self.time + t) * width
    }

    /// Runs `f(b)` for every sequence, over threads if a step has enough elements.
    fn each(&self, team: &Team, f: &(dyn Fn(usize) + Sync)) {
        if self.batch * self.wide() < 8192 {
            (0..self.batch).for_each(f);
        } else {
            team.split(self.batch, 1, &|range| range.for_each(f));
        }
    }
}

/// Elements of a state processed at a time, in separate arrays that cannot overlap. The bodies below avoid closures,
/// which might be compiled separately, without the instruction set.
const CHUNK: usize = 64;

#[inline(always)]
fn load(from: &[f32], at: usize, n: usize) -> [f32; CHUNK] {
    let mut to = [0.0; CHUNK];
    to[..n].copy_from_slice(&from[at..at + n]);
    to
}

/// Stores one chunk of each gate; gates are `h` elements apart.
#[inline(always)]
fn store<const G: usize>(to: &mut [f32], h: usize, at: usize, n: usize, gates: [&[f32; CHUNK]; G]) {
    for (q, gate) in gates.into_iter().enumerate() {
        to[q * h + at..][..n].copy_from_slice(&gate[..n]);
    }
}

/// Applies a function in a separate loop, which the compiler vectorises more reliably than a loop with several.
#[inline(always)]
fn apply(f: impl Fn(f32) -> f32, x: &mut [f32; CHUNK]) {
    for x in x {
        *x = f(*x);
    }
}

#[inline(always)]
fn lstm_gates_body(gates: &mut [f32], before: &[f32], cell: &mut [f32], y: &mut [f32]) {
    let h = y.len();
    for at in (0..h).step_by(CHUNK) {
        let n = CHUNK.min(h - at);
        let (mut i, mut f) = (load(gates, at, n), load(gates, h + at, n));
        let (mut g, mut o) = (load(gates, 2 * h + at, n), load(gates, 3 * h + at, n));
        apply(sigmoid, &mut i);
        apply(sigmoid, &mut f);
        apply(sigmoid, &mut o);
        apply(tanh, &mut g);
        let mut c = load(before, at, n);
        for l in 0..CHUNK {
            c[l] = f[l].mul_add(c[l], i[l] * g[l]);
        }
        let mut out = c;
        apply(tanh, &mut out);
        for l in 0..CHUNK {
            out[l] *= o[l];
        }
        store(gates, h, at, n, [&i, &f, &g, &o]);
        cell[at..at + n].copy_from_slice(&c[..n]);
        y[at..at + n].copy_from_slice(&out[..n]);
    }
}

#[inline(always)]
fn lstm_gates_grad_body(
    gates: &[f32],
    cell: &[f32],
    before: &[f32],
    dy: &[f32],
    dh: &[f32],
    dc: &mut [f32],
    dgates: &mut [f32],
) {
    let h = dc.len();
    for at in (0..h).step_by(CHUNK) {
        let n = CHUNK.min(h - at);
        let (mut i, mut f) = (load(gates, at, n), load(gates, h + at, n));
        let (mut g, mut o) = (load(gates, 2 * h + at, n), load(gates, 3 * h + at, n));
        let (mut squashed, before) = (load(cell, at, n), load(before, at, n));
        let (dy, dh, mut dcell) = (load(dy, at, n), load(dh, at, n), load(dc, at, n));
        apply(tanh, &mut squashed);
        for l in 0..CHUNK {
            let (squashed, dh) = (squashed[l], dh[l] + dy[l]);
            let d = (dh * o[l]).mul_add((-squashed).mul_add(squashed, 1.0), dcell[l]);
            let (gi, gf, gg, go) = (i[l], f[l], g[l], o[l]);
            dcell[l] = d * gf;
            i[l] = d * gg * gi * (1.0 - gi);
            f[l] = d * before[l] * gf * (1.0 - gf);
            g[l] = d * gi * (-gg).mul_add(gg, 1.0);
            o[l] = dh * squashed * go * (1.0 - go);
        }
        store(dgates, h, at, n, [&i, &f, &g, &o]);
        dc[at..at + n].copy_from_slice(&dcell[..n]);
    }
}

#[inline(always)]
fn gru_gates_body(
    gx: &[f32],
    gh: &[f32],
    bias: &[f32],
    before: &[f32],
    gates: &mut [f32],
    inner: &mut [f32],
    y: &mut [f32],
) {
    let h = y.len();
    for at in (0..h).step_by(CHUNK) {
        let n = CHUNK.min(h - at);
        let (mut r, mut z) = (load(gx, at, n), load(gx, h + at, n));
        let mut new = load(gx, 2 * h + at, n);
        let (hr, hz) = (load(gh, at, n), load(gh, h + at, n));
        let mut hn = load(gh, 2 * h + at, n);
        let (bias, mut state) = (load(bias, at, n), load(before, at, n));
        for l in 0..CHUNK {
            r[l] += hr[l];
            z[l] += hz[l];
            hn[l] += bias[l];
        }
        apply(sigmoid, &mut r);
        apply(sigmoid, &mut z);
        for l in 0..CHUNK {
            new[l] = r[l].mul_add(hn[l], new[l]);
        }
        apply(tanh, &mut new);
        for l in 0..CHUNK {
            state[l] = z[l].mul_add(state[l] - new[l], new[l]);
        }
        store(gates, h, at, n, [&r, &z, &new]);
        inner[at..at + n].copy_from_slice(&hn[..n]);
        y[at..at + n].copy_from_slice(&state[..n]);
    }
}

#[inline(always)]
fn gru_gates_grad_body(
    gates: &[f32],
    inner: &[f32],
    before: &[f32],
    dy: &[f32],
    dh: &mut [f32],
    dgx: &mut [f32],
    dgh: &mut [f32],
) {
    let h = dh.len();
    for at in (0..h).step_by(CHUNK) {
        let n = CHUNK.min(h - at);
        let (mut r, mut z) = (load(gates, at, n), load(gates, h + at, n));
        let mut new = load(gates, 2 * h + at, n);
        let (inner, before, dy) = (load(inner, at, n), load(before, at, n), load(dy, at, n));
        let (mut dstate, mut reset) = (load(dh, at, n), [0.0; CHUNK]);
        for l in 0..CHUNK {
            let (gr, gz, gn) = (r[l], z[l], new[l]);
            let d = dstate[l] + dy[l];
            let dnew = d * (1.0 - gz) * (-gn).mul_add(gn, 1.0);
            dstate[l] = d * gz;
            r[l] = dnew * inner[l] * gr * (1.0 - gr);
            z[l] = d * (before[l] - gn) * gz * (1.0 - gz);
            new[l] = dnew;
            reset[l] = dnew * gr;
        }
        store(dgx, h, at, n, [&r, &z, &new]);
        store(dgh, h, at, n, [&r, &z, &reset]);
        dh[at..at + n].copy_from_slice(&dstate[..n]);
    }
}

simd! {
    /// One step of one sequence. `gates` holds the gates before their functions and receives them after.
    fn lstm_gates(gates: &mut [f32], before: &[f32], cell: &mut [f32], y: &mut [f32]) = lstm_gates_body;
    /// `dc` is the gradient of the cell of this step and receives that of the step before.
    fn lstm_gates_grad(gates: &[f32], cell: &[f32], before: &[f32], dy: &[f32], dh: &[f32], dc: &mut [f32], dgates: &mut [f32]) = lstm_gates_grad_body;
    /// One step of one sequence.
    fn gru_gates(gx: &[f32], gh: &[f32], bias: &[f32], before: &[f32], gates: &mut [f32], inner: &mut [f32], y: &mut [f32]) = gru_gates_body;
    /// `dh` is the gradient of the state of this step and receives that of the step before, without the part through the
    /// gates.
    fn gru_gates_grad(gates: &[f32], inner: &[f32], before: &[f32], dy: &[f32], dh: &mut [f32], dgx: &mut [f32], dgh: &mut [f32]) = gru_gates_grad_body;
}

/// The recurrent weight [rows, cols] packed for products with its transpose, or with itself.
fn panels<'a>(team: &Team, w: &[f32], cols: usize, transposed: bool, memory: &'a mut [f32]) -> Panels<'a> {
    let rows = w.len().checked_div(cols).unwrap_or(0);
    if transposed {
        let right = Strided { data: w, outer: cols, reduced: 1 };
        return Panels::pack(team, rows, cols, &right, &mut memory[..Panels::len(rows, cols)]);
    }
    let right = Strided { data: w, outer: 1, reduced: cols };
    Panels::pack(team, cols, rows, &right, &mut memory[..Panels::len(cols, rows)])
}

/// An LSTM: `gx` holds the inputs of the gates [b, t, 4h] in the order input, forget, cell, output; `w` is [4h, h].
/// Writes the states `y`, the last cell, the gates after their functions and the cells.
#[allow(clippy::too_many_arguments)]
pub fn lstm(
    team: &Team,
    e: Extents,
    [gx, h0, c0, w]: [&[f32]; 4],
    y: &mut [f32],
    last: &mut [f32],
    gates: &mut [f32],
    cells: &mut [f32],
    scratch: &mut [f32],
) {
    let (h, wide, isa) = (e.hidden, e.wide(), team.isa());
    let right = panels(team, w, h, true, scratch);
    gates.copy_from_slice(gx);
    for t in 0..e.time {
        let left = previous(e, h0, y, t);
        let to = OutputMatrix::rows(&mut gates[t * wide..], e.time * wide);
        right.multiply(team, e.batch, left, to, true);
        let [ys, gs, cs] = [&mut *y, &mut *gates, &mut *cells].map(SharedMut::new);
        e.each(team, &|b| {
            let (small, large) = (e.at(b, t, h), e.at(b, t, wide));
            // SAFETY: the steps of a sequence are disjoint, and one thread has all of this sequence.
            let (y, cell, gates) = unsafe {
                (ys.slice(small..small + h), cs.slice(small..small + h), gs.slice(large..large + wide))
            };
            // SAFETY: as above; this is the step before.
            let before = if t == 0 { &c0[b * h..][..h] } else { unsafe { &*cs.slice(small - h..small) } };
            lstm_gates(isa, gates, before, cell, y);
        });
    }
    for b in 0..e.batch {
        let at = e.at(b, e.time, h);
        let from = if e.time == 0 { &c0[b * h..][..h] } else { &cells[at - h..at] };
        last[b * h..(b + 1) * h].copy_from_slice(from);
    }
}

/// The states before step `t` as the left operand of a product.
fn previous<'a>(e: Extents, h0: &'a [f32], y: &'a [f32], t: usize) -> Strided<'a> {
    match t.checked_sub(1) {
        None => Strided { data: h0, outer: e.hidden, reduced: 1 },
        Some(t) => Strided { data: &y[t * e.hidden..], outer: e.time * e.hidden, reduced: 1 },
    }
}

/// The gradient of [`lstm`]: writes `dgx` [b, t, 4h], `dh0` and `dc0`.
#[allow(clippy::too_many_arguments)]
pub fn lstm_grad(
    team: &Team,
    e: Extents,
    [dy, dlast, w, gates, cells, c0]: [&[f32]; 6],
    dgx: &mut [f32],
    dh0: &mut [f32],
    dc0: &mut [f32],
    scratch: &mut [f32],
) {
    let (h, wide, isa) = (e.hidden, e.wide(), team.isa());
    let right = panels(team, w, h, false, scratch);
    dh0.fill(0.0);
    dc0.copy_from_slice(dlast);
    for t in (0..e.time).rev() {
        let [ds, dcs] = [&mut *dgx, &mut *dc0].map(SharedMut::new);
        let dh = &*dh0;
        e.each(team, &|b| {
            let (small, large) = (e.at(b, t, h), e.at(b, t, wide));
            // SAFETY: the steps and states of a sequence belong to one thread.
            let (dgx, dc) = unsafe { (ds.slice(large..large + wide), dcs.slice(b * h..(b + 1) * h)) };
            let before = if t == 0 { &c0[b * h..][..h] } else { &cells[small - h..small] };
            let (gates, cell) = (&gates[large..large + wide], &cells[small..small + h]);
            lstm_gates_grad(isa, gates, cell, before, &dy[small..small + h], &dh[b * h..][..h], dc, dgx);
        });
        let left = Strided { data: &dgx[t * wide..], outer: e.time * wide, reduced: 1 };
        right.multiply(team, e.batch, left, OutputMatrix::rows(dh0, h), false);
    }
}

/// A GRU: `gx` holds the inputs of the gates [b, t, 3h] in the order reset, update, new; `w` is [3h, h]. Writes the
/// states `y`, the gates after their functions, and the factor `inner` of the reset gate.
#[allow(clippy::too_many_arguments)]
pub fn gru(
    team: &Team,
    e: Extents,
    [gx, h0, w, bias]: [&[f32]; 4],
    y: &mut [f32],
    gates: &mut [f32],
    inner: &mut [f32],
    scratch: &mut [f32],
) {
    let (h, wide, isa) = (e.hidden, e.wide(), team.isa());
    let (gh, scratch) = scratch.split_at_mut(wide * e.batch);
    let right = panels(team, w, h, true, scratch);
    for t in 0..e.time {
        let left = previous(e, h0, y, t);
        right.multiply(team, e.batch, left, OutputMatrix::rows(gh, wide), false);
        let [ys, gs, ns] = [&mut *y, &mut *gates, &mut *inner].map(SharedMut::new);
        let gh = &*gh;
        e.each(team, &|b| {
            let (small, large) = (e.at(b, t, h), e.at(b, t, wide));
            // SAFETY: the steps of a sequence are disjoint, and one thread has all of this sequence.
            let (y, inner, gates) = unsafe {
                (ys.slice(small..small + h), ns.slice(small..small + h), gs.slice(large..large + wide))
            };
            // SAFETY: as above; this is the step before.
            let before = if t == 0 { &h0[b * h..][..h] } else { unsafe { &*ys.slice(small - h..small) } };
            gru_gates(isa, &gx[large..large + wide], &gh[b * wide..][..wide], bias, before, gates, inner, y);
        });
    }
}

/// The gradient of [`gru`]: writes `dgx` and `dgh`, the gradient of w·h, both [b, t, 3h], `dh0` and `dbias`.
#[allow(clippy::too_many_arguments)]
pub fn gru_grad(
    team: &Team,
    e: Extents,
    [dy, w, gates, inner, h0, y]: [&[f32]; 6],
    dgx: &mut [f32],
    dgh: &mut [f32],
    dh0: &mut [f32],
    dbias: &mut [f32],
    scratch: &mut [f32],
) {
    let (h, wide, isa) = (e.hidden, e.wide(), team.isa());
    let (sums, scratch) = scratch.split_at_mut(wide);
    let right = panels(team, w, h, false, scratch);
    dh0.fill(0.0);
    for t in (0..e.time).rev() {
        let [xs, hs, dhs] = [&mut *dgx, &mut *dgh, &mut *dh0].map(SharedMut::new);
        e.each(team, &|b| {
            let (small, large) = (e.at(b, t, h), e.at(b, t, wide));
            // SAFETY: the steps and states of a sequence belong to one thread.
            let (dgx, dgh, dh) = unsafe {
                (xs.slice(large..large + wide), hs.slice(large..large + wide), dhs.slice(b * h..(b + 1) * h))
            };
            let before = if t == 0 { &h0[b * h..][..h] } else { &y[small - h..small] };
            let (gates, inner) = (&gates[large..large + wide], &inner[small..small + h]);
            gru_gates_grad(isa, gates, inner, before, &dy[small..small + h], dh, dgx, dgh);
        });
        let left = Strided { data: &dgh[t * wide..], outer: e.time * wide, reduced: 1 };
        right.multiply(team, e.batch, left, OutputMatrix::rows(dh0, h), true);
    }
    reduce::sum_columns(team, dgh, e.batch * e.time, sums);
    dbias.copy_from_slice(&sums[wide - h..]);
}
