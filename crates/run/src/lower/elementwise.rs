//! Chains of element-wise operators: blocks small enough for the first cache go through all steps before the
//! next block is touched, so that memory is read and written once. Reductions are taken of each block.

mod frame;
mod places;

use super::broadcast::{GRAIN, Walk};
use super::{Lowered, TensorType};
use crate::kernel::LANES;
use crate::kernel::block_reduce as lanes;
use crate::lower::call::Call;
use crate::team::{SharedMut, share};
use frame::{Bytes, Frame};
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::op::Op;
use gulliver_graph::graph::op::elementwise::{Apply, Elementwise, ElementwiseStep, keep};
use gulliver_graph::spec::ReduceKind;
use places::{Place, Places};
use std::ops::Range;

/// Elements of a block: 4 KiB of floats, so that the blocks of several values share the first cache.
const BLOCK: usize = 1024;
/// Elements of a block of a short loop.
const LEAST_BLOCK: usize = 256;
/// Elements of a block of a single operator, which keeps nothing.
const LONG_BLOCK: usize = 16 * 1024;
/// Runs shorter than this are put together in a block even for a single operator.
const SHORT_RUN: usize = 32;
/// Columns whose lanes are held at once.
const COLUMNS: usize = 2048;
/// Operands and results of a chain at most; longer ones run on the reference kernel.
const MOST: usize = 16;

/// A chain with its shapes settled.
pub(super) struct Program {
    /// Elements of the loop.
    len: usize,
    operands: Vec<Operand>,
    steps: Vec<Step>,
    /// Values kept in a temporary that are results.
    copies: Vec<(Place, usize)>,
    /// Bytes of an element of each result.
    widths: Vec<usize>,
    blocks: Blocks,
    temporaries: usize,
    reduction: Option<Reduction>,
}

struct Operand {
    dtype: DType,
    walk: Walk,
    /// Must be laid out where it is broadcast: a step that reads it knows runs only.
    flat: bool,
    /// The temporary in which it is laid out, if it may have to be.
    laid_out: Option<usize>,
}

/// One step and where its operands and its result are.
struct Step {
    apply: Apply,
    of: Vec<Place>,
    /// Element type of the first operand.
    from: DType,
    to: Place,
}

/// How the elements are cut into blocks: whole units together, or a unit in pieces.
#[derive(Clone, Copy, Debug)]
struct Blocks {
    /// Elements between whose multiples a block lies or which it consists of.
    unit: usize,
    /// Units of a block; zero where a unit has several.
    group: usize,
    /// Elements of a block at most.
    most: usize,
}

/// What is reduced of the values.
struct Reduction {
    kind: ReduceKind,
    /// Value and result.
    of: Vec<(Place, usize)>,
    order: Order,
}

/// Which elements belong to one result.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    /// Rows of neighbours; those of `outer` equal parts of the loop are joined in order.
    Rows { outer: usize },
    /// Down the rows of a matrix.
    Columns,
}

impl Blocks {
    fn new(len: usize, unit: usize, most: usize, together: bool) -> Blocks {
        let unit = unit.max(1);
        if unit > most {
            let pieces = unit.div_ceil(most);
            return Blocks { unit, group: 0, most: unit.div_ceil(pieces).next_multiple_of(LANES) };
        }
        let group = if together { (most / unit).max(1) } else { 1 };
        Blocks { unit, group, most: (group * unit).min(len.max(1)) }
    }

    fn pieces(&self) -> usize {
        if self.group == 0 { self.unit.div_ceil(self.most) } else { 1 }
    }

    /// The number of blocks of so many elements.
    fn count(&self, len: usize) -> usize {
        match self.group {
            0 => len / self.unit * self.pieces(),
            group => len.div_ceil(group * self.unit),
        }
    }

    fn range(&self, len: usize, block: usize) -> Range<usize> {
        if self.group > 0 {
            let size = self.group * self.unit;
            return block * size..((block + 1) * size).min(len);
        }
        let (unit, piece) = (block / self.pieces(), block % self.pieces());
        let start = unit * self.unit + piece * self.most;
        start..(start + self.most).min((unit + 1) * self.unit)
    }

    /// Whether some block goes beyond one run of the operand.
    fn straddle(&self, walk: &Walk) -> bool {
        self.group > 1 || !walk.run.is_multiple_of(self.unit)
    }
}

/// The shape to which operands broadcast together.
fn loop_shape(ins: &[TensorType]) -> Vec<usize> {
    let rank = ins.iter().map(|t| t.shape.len()).max().unwrap_or(0);
    let extent = |d: usize| {
        let of = |t: &TensorType| (d + t.shape.len()).checked_sub(rank).map_or(1, |i| t.shape[i]);
        ins.iter().map(of).find(|&e| e != 1).unwrap_or(1)
    };
    (0..rank).map(extent).collect()
}

/// A single element-wise operator, as a program of one step.
pub(super) fn single(op: &Op, ins: &[TensorType], outs: &[TensorType], threads: usize) -> Option<Lowered> {
    let step = ElementwiseStep { apply: Apply::of(op)?, of: (0..ins.len()).collect() };
    let alone = Elementwise { operands: ins.len(), steps: vec![step], results: vec![keep(ins.len())] };
    fused(&alone, ins, outs, threads)
}

pub(super) fn fused(
    op: &Elementwise,
    ins: &[TensorType],
    outs: &[TensorType],
    threads: usize,
) -> Option<Lowered> {
    let dtypes: Vec<DType> = ins.iter().map(|t| t.dtype).collect();
    let types = op.value_types(&dtypes).ok()?;
    if ins.len() > MOST
        || outs.len() > MOST
        || !op.steps.iter().all(|step| known(step.apply, &step.of, &types))
    {
        return None;
    }
    let shape = loop_shape(ins);
    let len: usize = shape.iter().product();
    let walks: Vec<Walk> = ins.iter().map(|t| Walk::new(&t.shape, &shape)).collect();
    let alone = op.steps.len() == 1 && op.reduction().is_none();
    let (order, unit) = match op.reduction() {
        None => (None, walks.iter().filter(|w| !w.whole).map(|w| w.run).min().unwrap_or(len)),
        Some(reduce) => {
            let (order, unit) = order(&reduce.axes, &shape)?;
            (Some((reduce.kind, order)), unit)
        }
    };
    // Only floats and bytes are laid out in temporaries: others are met within their runs.
    let wide = |i: usize| !walks[i].whole && !matches!(dtypes[i], DType::F32 | DType::Bool | DType::U8);
    let runs_only = (0..ins.len()).any(wide);
    if runs_only && !alone {
        return None;
    }
    // Binary loops know an operand that stays; others read runs.
    let zips = |step: &ElementwiseStep| matches!(step.apply, Apply::Zip(_));
    let flat = |i: usize| op.steps.iter().any(|step| step.of.contains(&i) && !zips(step));
    let laid_out = (0..ins.len()).any(|i| !walks[i].whole && flat(i));
    let together = !(alone && unit >= SHORT_RUN || runs_only);
    // Where there is little to do, temporaries stay a fraction of the values they stand for.
    let block = BLOCK.min((len / 4).max(LEAST_BLOCK));
    let most = if alone && !together && !laid_out { LONG_BLOCK } else { block };
    let blocks = Blocks::new(len, unit, most, together);

    let Places { steps, copies, results, temporaries } = Places::of(op, &types, ins, outs);
    let mut temporaries = temporaries;
    let operands = walks.into_iter().enumerate().map(|(i, walk)| {
        let flat = flat(i);
        let laid_out = (!walk.whole && !runs_only && (flat || blocks.straddle(&walk))).then(|| {
            temporaries += 1;
            temporaries - 1
        });
        Operand { dtype: dtypes[i], walk, flat, laid_out }
    });
    let operands = operands.collect();
    let reduction = order.map(|(kind, order)| {
        let of = results.iter().filter(|(o, _)| op.results[*o].reduce.is_some());
        Reduction { kind, of: of.map(|&(o, place)| (place, o)).collect(), order }
    });
    let widths = outs.iter().map(|t| t.dtype.size()).collect();
    let program = Program { len, operands, steps, copies, widths, blocks, temporaries, reduction };
    let scratch = program.scratch(threads);
    Some(Lowered::with_scratch(scratch, move |call| {
        program.run(call);
        Ok(())
    }))
}

/// Whether there is a loop for a step.
fn known(apply: Apply, of: &[usize], types: &[DType]) -> bool {
    let float = |v: &usize| types[*v] == DType::F32;
    match apply {
        Apply::Cast(to) => {
            to == DType::F32
                && matches!(types[of[0]], DType::F32 | DType::Bool | DType::U8 | DType::I64 | DType::I32)
        }
        Apply::Zip(f) if f.compares() => matches!(types[of[0]], DType::F32 | DType::I64),
        Apply::Select => of[1..].iter().all(float),
        _ => of.iter().all(float),
    }
}

/// Which elements are reduced together, and how many form a row or lie between two rows of a column.
fn order(axes: &[usize], shape: &[usize]) -> Option<(Order, usize)> {
    let reduced = |d: &usize| axes.contains(d);
    let before = (0..shape.len()).take_while(reduced).count();
    if before == shape.len() {
        return Some((Order::Rows { outer: 1 }, shape.iter().product()));
    }
    let after = (0..shape.len()).rev().take_while(reduced).count();
    if before + after != axes.len() || axes.is_empty() {
        return None;
    }
    if after == 0 {
        return Some((Order::Columns, shape[before..].iter().product()));
    }
    let row = shape[shape.len() - after..].iter().product();
    Some((Order::Rows { outer: shape[..before].iter().product() }, row))
}

impl Program {
    /// Threads that share the work: few elements are not worth a second one.
    fn parts(&self, threads: usize) -> usize {
        if self.len < 2 * GRAIN { 1 } else { threads.max(1) }
    }

    /// Floats of one temporary.
    fn temporary(&self) -> usize {
        self.blocks.most.next_multiple_of(LANES)
    }

    /// Floats that a reduction keeps per result.
    fn kept(&self) -> usize {
        let unit = self.blocks.unit;
        match &self.reduction {
            Some(Reduction { order: Order::Columns, .. }) => LANES * unit.min(COLUMNS),
            Some(Reduction { order: Order::Rows { outer }, .. }) if *outer > 1 => self.len / unit,
            _ => 0,
        }
    }

    fn scratch(&self, threads: usize) -> usize {
        let reduced = self.reduction.as_ref().map_or(0, |r| r.of.len());
        self.parts(threads) * self.temporaries * self.temporary() + reduced * self.kept()
    }

    fn run(&self, call: &mut Call<'_>) {
        let mut ins = [Bytes::NOWHERE; MOST];
        let mut outs = [Bytes::NOWHERE; MOST];
        for (o, out) in outs.iter_mut().enumerate().take(self.widths.len()) {
            let under = |i: &usize| call.in_place(*i, o);
            let under = (0..self.operands.len()).find(under);
            *out = Bytes::of(call.output::<u8>(o));
            if let Some(i) = under {
                ins[i] = *out;
            }
        }
        for (i, bytes) in ins.iter_mut().enumerate().take(self.operands.len()) {
            if bytes.is_nowhere() {
                *bytes = Bytes::of_shared(call.input::<u8>(i));
            }
        }
        let scratch = call.scratch::<f32>();
        let parts = self.parts(call.team.threads()).min(call.team.threads());
        let (temporaries, kept) = scratch.split_at_mut(parts * self.temporaries * self.temporary());
        let temporaries = Bytes::of_floats(temporaries);
        let frame = |part: usize| {
            let own = temporaries.at(part * self.temporaries * self.temporary() * size_of::<f32>());
            Frame::new(self, &ins, &outs, own, call.team.isa())
        };
        match &self.reduction {
            None => {
                let blocks = self.blocks.count(self.len);
                let parts = parts.min(blocks);
                call.team.run(parts, &|part| {
                    let mut frame = frame(part);
                    for block in share(blocks, 1, parts, part) {
                        frame.block(self.blocks.range(self.len, block));
                    }
                });
            }
            Some(reduction) if self.len == 0 => {
                for &(_, o) in &reduction.of {
                    outs[o].floats_mut().fill(lanes::neutral(reduction.kind));
                }
            }
            Some(reduction) => match reduction.order {
                Order::Rows { outer } => self.rows(call, reduction, outer, parts, &frame, &outs, kept),
                Order::Columns => self.columns(call, reduction, parts, &frame, &outs, kept),
            },
        }
    }

    /// Rows of neighbours: whoever makes a row reduces it.
    #[allow(clippy::too_many_arguments)]
    fn rows<'f>(
        &self,
        call: &Call<'_>,
        reduction: &Reduction,
        outer: usize,
        parts: usize,
        frame: &(dyn Fn(usize) -> Frame<'f> + Sync),
        outs: &[Bytes; MOST],
        kept: &mut [f32],
    ) {
        let (kind, isa, unit) = (reduction.kind, call.team.isa(), self.blocks.unit);
        let rows = self.len / unit;
        let mut targets = [Bytes::NOWHERE; MOST];
        for (r, &(_, o)) in reduction.of.iter().enumerate() {
            let own = if outer > 1 { Bytes::of_floats(&mut kept[r * rows..(r + 1) * rows]) } else { outs[o] };
            targets[r] = own;
        }
        // What one thread takes at least: a row in pieces, or the rows of a block.
        let share_units = if self.blocks.group == 0 { rows } else { self.blocks.count(self.len) };
        let parts = parts.min(share_units);
        call.team.run(parts, &|part| {
            let mut frame = frame(part);
            for at in share(share_units, 1, parts, part) {
                if self.blocks.group > 0 {
                    let range = self.blocks.range(self.len, at);
                    frame.block(range.clone());
                    for (r, &(place, _)) in reduction.of.iter().enumerate() {
                        let values = frame.floats(place, range.clone());
                        for (i, row) in values.chunks_exact(unit).enumerate() {
                            targets[r].set(range.start / unit + i, lanes::row(isa, kind, row));
                        }
                    }
                    continue;
                }
                let mut sums = [[lanes::neutral(kind); LANES]; MOST];
                for piece in at * self.blocks.pieces()..(at + 1) * self.blocks.pieces() {
                    let range = self.blocks.range(self.len, piece);
                    frame.block(range.clone());
                    for (sums, &(place, _)) in sums.iter_mut().zip(&reduction.of) {
                        lanes::take_piece(isa, kind, frame.floats(place, range.clone()), sums);
                    }
                }
                for (r, sums) in sums.iter().enumerate().take(reduction.of.len()) {
                    targets[r].set(at, lanes::finish_row(kind, *sums));
                }
            }
        });
        if outer > 1 {
            let inner = rows / outer;
            for (r, &(_, o)) in reduction.of.iter().enumerate() {
                let partial = &kept[r * rows..(r + 1) * rows];
                for (i, out) in outs[o].floats_mut().iter_mut().enumerate() {
                    let all = (0..outer).map(|n| partial[n * inner + i]);
                    *out = all.reduce(|a, b| lanes::join(kind, a, b)).unwrap_or(lanes::neutral(kind));
                }
            }
        }
    }

    /// Down the rows of a matrix: rows go to threads by their lane, so that each lane stays one sequence.
    fn columns<'f>(
        &self,
        call: &Call<'_>,
        reduction: &Reduction,
        parts: usize,
        frame: &(dyn Fn(usize) -> Frame<'f> + Sync),
        outs: &[Bytes; MOST],
        kept: &mut [f32],
    ) {
        let (kind, isa, width) = (reduction.kind, call.team.isa(), self.blocks.unit);
        let rows = self.len / width;
        let stride = width.min(COLUMNS);
        let parts = parts.min(LANES);
        let rows_at_once = if stride < width { 1 } else { self.blocks.group.max(1) };
        for first in (0..width).step_by(COLUMNS) {
            let chunk = first..(first + COLUMNS).min(width);
            kept.fill(lanes::neutral(kind));
            let shared = SharedMut::new(kept);
            call.team.run(parts, &|part| {
                let mut frame = frame(part);
                let own = share(LANES, 1, parts, part);
                for base in (0..rows).step_by(LANES) {
                    let end = (base + own.end).min(rows);
                    for row in (base + own.start..end).step_by(rows_at_once) {
                        let few = rows_at_once.min(end - row);
                        for start in chunk.clone().step_by(self.blocks.most) {
                            let columns = start..(start + self.blocks.most).min(chunk.end);
                            let range = match few {
                                1 => row * width + columns.start..row * width + columns.end,
                                _ => row * width..(row + few) * width,
                            };
                            frame.block(range.clone());
                            for (r, &(place, _)) in reduction.of.iter().enumerate() {
                                let values = frame.floats(place, range.clone());
                                let columns = if few > 1 { chunk.clone() } else { columns.clone() };
                                for (i, values) in values.chunks_exact(columns.len()).enumerate() {
                                    let lane = (row + i) % LANES;
                                    let at = (r * LANES + lane) * stride + columns.start - first;
                                    // SAFETY: each lane belongs to one thread.
                                    let lane = unsafe { shared.slice(at..at + columns.len()) };
                                    lanes::take_columns(isa, kind, values, lane);
                                }
                            }
                            if few > 1 {
                                break;
                            }
                        }
                    }
                }
            });
            for (r, &(_, o)) in reduction.of.iter().enumerate() {
                let own = &mut kept[r * LANES * stride..(r + 1) * LANES * stride];
                lanes::finish_columns(isa, kind, own, stride, &mut outs[o].floats_mut()[chunk.clone()]);
            }
        }
    }
}
