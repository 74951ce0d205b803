//! Exchange: a collective of several ranks. Each rank brings an operand and gets a result put together from boxes of
//! the operands of others. All-gather, reduce-scatter, halos and copies are all exchanges. The session that runs the
//! graph decides what a rank is.

use super::sample::{Sample, SampleFill, SampleInput};
use super::{OpDef, OpError, attribute};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::Type;
use crate::spec::{Spec, SpecError};
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// One rank's side of a collective. It has one operand, or none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchange {
    /// The number of the collective: the same for all its ranks, and unique in the step.
    pub collective: u32,
    /// This rank.
    pub rank: u32,
    /// All ranks of the collective, this one included.
    pub ranks: Vec<u32>,
    /// Element type of the result; that of all operands.
    pub dtype: DType,
    /// Extents of the result.
    pub shape: Vec<usize>,
    /// The pieces of the result, in order.
    pub pieces: Vec<Piece>,
}

/// A box of a rank's operand, and its position in the result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// The rank whose operand it is.
    pub from: u32,
    /// Extents of that operand.
    pub of: Vec<usize>,
    /// First position of the box there.
    pub source: Vec<usize>,
    /// First position of the box in the result.
    pub target: Vec<usize>,
    /// Extents of the box.
    pub extent: Vec<usize>,
    /// Whether it is added to the pieces before it.
    pub add: bool,
}

impl Piece {
    /// All of an operand with these extents, which are also those of the result.
    pub fn all(from: u32, extents: &[usize]) -> Piece {
        let (of, none) = (extents.to_vec(), vec![0; extents.len()]);
        Piece { from, extent: of.clone(), of, source: none.clone(), target: none, add: false }
    }

    /// A box of an operand with these extents, as all of the result.
    pub fn of(from: u32, extents: &[usize], region: &[Range<usize>]) -> Piece {
        Piece {
            from,
            of: extents.to_vec(),
            source: region.iter().map(|range| range.start).collect(),
            target: vec![0; extents.len()],
            extent: region.iter().map(Range::len).collect(),
            add: false,
        }
    }

    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.extent.iter().product()
    }

    fn fits(&self, shape: &[usize]) -> bool {
        let inside = |first: &[usize], whole: &[usize]| {
            let ends = first.iter().zip(&self.extent).map(|(a, n)| a.checked_add(*n));
            first.len() == whole.len()
                && self.extent.len() == whole.len()
                && ends.zip(whole).all(|(end, whole)| end.is_some_and(|end| end <= *whole))
        };
        inside(&self.source, &self.of) && inside(&self.target, shape)
    }

    /// Calls `row` with the first element, in the operand and in the result, of every row of neighbours, and
    /// the length of the rows.
    pub fn rows(&self, shape: &[usize], mut row: impl FnMut(usize, usize, usize)) {
        if self.elements() == 0 {
            return;
        }
        // Dimensions that the box fills in both make its rows longer.
        let rank = shape.len();
        let mut inner = rank;
        let mut length = 1;
        while inner > 0 {
            inner -= 1;
            length *= self.extent[inner];
            if self.extent[inner] != shape[inner] || self.extent[inner] != self.of[inner] {
                break;
            }
        }
        let flat = |first: &[usize], whole: &[usize]| (0..rank).fold(0, |sum, d| sum * whole[d] + first[d]);
        let stride = |d: usize, whole: &[usize]| whole[d + 1..].iter().product::<usize>();
        // By dimension: positions, positions done, and the stride of one position in both.
        let further = |d: usize| (self.extent[d], 0, stride(d, &self.of), stride(d, shape));
        let mut dimensions: Vec<(usize, usize, usize, usize)> = (0..inner).map(further).collect();
        let (mut from, mut to) = (flat(&self.source, &self.of), flat(&self.target, shape));
        loop {
            row(from, to, length);
            // Advance the last dimension that has a position left; restart those after it.
            let left = dimensions.iter_mut().rev().find_map(|(extent, at, of, result)| {
                *at += 1;
                (from, to) = (from + *of, to + *result);
                if at < extent {
                    return Some(());
                }
                (from, to) = (from - *extent * *of, to - *extent * *result);
                *at = 0;
                None
            });
            if left.is_none() {
                return;
            }
        }
    }
}

impl Exchange {
    /// Bytes that come from others.
    pub fn bytes(&self) -> u64 {
        let foreign = self.pieces.iter().filter(|p| p.from != self.rank);
        foreign.map(|p| (p.elements() * self.dtype.size()) as u64).sum()
    }

    /// Bytes that come from each of the others, in the order in which the pieces first name them.
    pub fn by_rank(&self) -> Vec<(u32, u64)> {
        let mut all: Vec<(u32, u64)> = Vec::new();
        for piece in self.pieces.iter().filter(|p| p.from != self.rank) {
            let bytes = (piece.elements() * self.dtype.size()) as u64;
            match all.iter_mut().find(|(from, _)| *from == piece.from) {
                Some((_, sum)) => *sum += bytes,
                None => all.push((piece.from, bytes)),
            }
        }
        all
    }
}

impl OpDef for Exchange {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        if ins.len() > 1 {
            return Err(SpecError::Arity { expected: 1, got: ins.len() }.into());
        }
        if let Some(piece) = self.pieces.iter().find(|p| !p.fits(&self.shape)) {
            return attribute(format!("a piece of rank {} does not fit: {piece:?}", piece.from));
        }
        let strangers = self.pieces.iter().map(|p| p.from).chain([self.rank]);
        if let Some(from) = strangers.into_iter().find(|from| !self.ranks.contains(from)) {
            return attribute(format!("rank {from} does not come to the collective"));
        }
        let given: usize = self.pieces.iter().filter(|p| !p.add).map(Piece::elements).sum();
        if given != self.shape.iter().product::<usize>() {
            return attribute(format!("{given} elements are given for {:?}", self.shape));
        }
        if self.pieces.iter().any(|p| p.add) && self.dtype != DType::F32 {
            return attribute(format!("adds f32, not {}", self.dtype));
        }
        if let Some(own) = ins.first() {
            let other = |p: &Piece| {
                let extents = p.of.iter().map(|&d| Dim::from(d));
                p.from == self.rank && !extents.eq(own.shape.iter().cloned())
            };
            if own.dtype != self.dtype || self.pieces.iter().any(other) {
                return attribute(format!("the operand is {own}, not what was announced"));
            }
        }
        let axes = |name: &str, rank: usize| match rank {
            0 => "[]".to_string(),
            _ => (0..rank).map(|d| format!("{name}{d}!")).collect::<Vec<_>>().join(" "),
        };
        let operand = ins.first().map_or(String::new(), |own| axes("x", own.rank()));
        let with: Vec<String> = self.shape.iter().enumerate().map(|(d, n)| format!("y{d}={n}")).collect();
        let with = if with.is_empty() { String::new() } else { format!(" with {}", with.join(" ")) };
        Ok(format!("{operand} -> {}{with}", axes("y", self.shape.len())).parse()?)
    }

    fn dtypes(&self, _ins: &[Type], _outputs: usize) -> Vec<DType> {
        vec![self.dtype]
    }

    /// Run alone, the operands of other ranks count as zeros.
    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let shape = self.shape.clone();
        for piece in self.pieces.iter().filter(|p| p.from == self.rank) {
            piece.rows(&shape, |from, to, length| {
                for i in 0..length {
                    let x = ins[0].data[from + i];
                    let y = &mut outs[0].data[to + i];
                    *y = if piece.add { *y + x } else { x };
                }
            });
        }
    }

    fn flops_per_point(&self) -> u64 {
        0
    }

    fn meets(&self) -> bool {
        true
    }

    fn collective(&self) -> Option<(u32, Vec<u32>)> {
        Some((self.collective, self.ranks.clone()))
    }

    fn samples() -> Vec<Sample> {
        let piece = |of: &[usize], source: &[usize], target: &[usize], extent: &[usize], add| Piece {
            from: 0,
            of: of.to_vec(),
            source: source.to_vec(),
            target: target.to_vec(),
            extent: extent.to_vec(),
            add,
        };
        let exchange = |dtype, shape: &[usize], pieces| Exchange {
            collective: 0,
            rank: 0,
            ranks: vec![0],
            dtype,
            shape: shape.to_vec(),
            pieces,
        };
        let turned = vec![
            piece(&[4, 3], &[2, 0], &[0, 0], &[2, 3], false),
            piece(&[4, 3], &[0, 1], &[2, 0], &[2, 2], false),
            piece(&[4, 3], &[0, 0], &[2, 2], &[2, 1], false),
        ];
        let summed = vec![
            piece(&[2, 5], &[0, 0], &[0, 0], &[1, 5], false),
            piece(&[2, 5], &[1, 1], &[0, 0], &[1, 4], true),
        ];
        let input = |dtype, shape: &[usize], fill| SampleInput { dtype, shape: shape.to_vec(), fill };
        vec![
            Sample::new(
                exchange(DType::I64, &[4, 3], turned),
                vec![input(DType::I64, &[4, 3], SampleFill::Below(9))],
            ),
            Sample::new(
                exchange(DType::F32, &[1, 5], summed),
                vec![input(DType::F32, &[2, 5], SampleFill::Constant(0.5))],
            ),
            Sample::new(
                exchange(DType::I64, &[], vec![piece(&[], &[], &[], &[], false)]),
                vec![input(DType::I64, &[], SampleFill::Below(5))],
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(of: &[usize], shape: &[usize], source: usize, extent: usize) -> Exchange {
        let piece = Piece {
            from: 1,
            of: of.to_vec(),
            source: vec![source],
            target: vec![0],
            extent: vec![extent],
            add: false,
        };
        let ranks = vec![0, 1];
        Exchange {
            collective: 3,
            rank: 0,
            ranks,
            dtype: DType::F32,
            shape: shape.to_vec(),
            pieces: vec![piece],
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let good = one(&[6], &[4], 2, 4);
        assert!(good.spec(&[]).is_ok());
        assert_eq!(good.bytes(), 16);
        let own = Type::f32(&[7]);
        assert!(good.spec(std::slice::from_ref(&own)).is_ok(), "what nobody here takes may have any size");
        let changed = |change: &dyn Fn(&mut Exchange)| {
            let mut op = good.clone();
            change(&mut op);
            op.spec(std::slice::from_ref(&own)).unwrap_err().to_string()
        };
        for (expected, change) in [
            (
                "a piece of rank 1 does not fit",
                (&|op: &mut Exchange| op.pieces[0].source[0] = 3) as &dyn Fn(&mut Exchange),
            ),
            ("rank 2 does not come to the collective", &|op| op.pieces[0].from = 2),
            ("3 elements are given for [4]", &|op| op.pieces[0].extent[0] = 3),
            ("the operand is f32[7], not what was announced", &|op| op.pieces[0].from = 0),
            ("adds f32, not i64", &|op| {
                op.dtype = DType::I64;
                op.pieces.push(Piece { add: true, ..op.pieces[0].clone() });
            }),
        ] {
            let said = changed(change);
            assert!(said.contains(expected), "{said}");
        }
    }

    #[test]
    fn rows_cover_the_box() {
        let (of, shape) = (vec![3, 4, 5], vec![2, 4, 5]);
        let mut piece = Piece {
            from: 0,
            of: of.clone(),
            source: vec![1, 0, 0],
            target: vec![0, 0, 0],
            extent: vec![2, 4, 5],
            add: false,
        };
        let rows = |piece: &Piece| {
            let mut all = Vec::new();
            piece.rows(&shape, |from, to, length| all.push((from, to, length)));
            all
        };
        assert_eq!(rows(&piece), [(20, 0, 40)]);
        piece.extent = vec![1, 2, 5];
        assert_eq!(rows(&piece), [(20, 0, 10)]);
        piece.extent = vec![2, 2, 3];
        piece.target = vec![0, 1, 2];
        assert_eq!(rows(&piece), [(20, 7, 3), (25, 12, 3), (40, 27, 3), (45, 32, 3)]);
        piece.extent = vec![2, 0, 3];
        assert!(rows(&piece).is_empty());
    }
}
