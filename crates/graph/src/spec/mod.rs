//! The spec language: one line that says which output element reads which input elements.
//!
//! ```text
//! m k, k n -> m n                                     k is summed
//! b x! -> b x!                                        x must stay whole
//! n c 2*h+r-1 2*w+s-1, o c r s -> n o h w             windows: stride 2, padding 1
//! n (g c) h+r, (g o) c r -> n (g o) h with g=4        merged dimensions: four groups
//! n c 2*h+r -> n c h max r with r=3                   combined by maximum
//! n c h w, c, c -> n c h w over n h w                 statistics over axes
//! n o h, o c r -> n c 2*h+r-1{hin}                    scatter: the output is the window
//! a b, [], [] -> a b                                  [] is a scalar operand
//! opaque b t! g!, g! k! -> b t! k!                    only b may be cut; the rest is unsaid
//! ```
//!
//! An operand is a list of indices, one per dimension. An index is an axis, `1` (a dimension of
//! extent one that is broadcast), a merge `(g c)` of several axes in row-major order, or an affine
//! window `2*h+3*r-1|0`: reads position `2h + 3r - 1`, positions outside the operand count as
//! padding; the trailing `|p` gives the padding at the far end where it differs from the near one,
//! `{d}` the dimension's extent where it does not follow from the axes.
//!
//! From the line follow shapes and their errors ([`Spec::infer`]), work ([`Spec::points`]), the legal
//! cuts and what recombines them ([`Spec::cuts`]) and the region of every operand that a part touches
//! ([`Spec::part`]).

mod cut;
mod shape;
mod text;

pub use cut::{AxisCut, Combine, Part, Region, WindowPadding};

use crate::dim::Dim;
use serde::{Deserialize, Serialize};

/// Index of an axis within one spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AxisId(pub usize);

/// How values along an axis that the output lacks are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReduceKind {
    /// Added.
    Sum,
    /// The largest.
    Max,
    /// The smallest.
    Min,
}

/// One loop of the operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// A short name, unique in the spec.
    pub name: String,
    /// Marked `!`: every element along it may depend on every other.
    pub whole: bool,
    /// Named in `over`: results along it share statistics over it.
    pub statistics: bool,
    /// How it is combined if no output has it.
    pub reduce: ReduceKind,
    /// Extent given by the operator rather than found in an input.
    pub extent: Option<Dim>,
}

/// One dimension of an operand.
#[derive(Clone, Debug, PartialEq)]
pub enum Index {
    /// The position along an axis.
    Axis(AxisId),
    /// Extent one, read for every position.
    One,
    /// Several axes in row-major order.
    Merge(Vec<AxisId>),
    /// Position `Σ stride·axis - low`.
    Affine {
        /// (stride, axis); the first is the axis that walks along the dimension.
        terms: Vec<(i64, AxisId)>,
        /// Padding before the first element; negative skips elements.
        low: i64,
        /// Padding after the last element; negative leaves elements unread.
        high: i64,
        /// The extent, where the axes do not determine it.
        size: Option<Dim>,
    },
}

/// A parsed spec line.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// The loops, in order of first appearance.
    pub axes: Vec<Axis>,
    /// Indices per dimension, per input.
    pub inputs: Vec<Vec<Index>>,
    /// Indices per dimension, per output.
    pub outputs: Vec<Vec<Index>>,
    /// The relation between whole axes is not described; the operator states its work.
    pub opaque: bool,
}

/// Why a spec line cannot be read, or does not fit its operands.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SpecError {
    /// Not a spec.
    #[error("spec `{text}`: {why}")]
    Parse {
        /// The line.
        text: String,
        /// The problem.
        why: String,
    },
    /// Wrong number of operands.
    #[error("takes {expected} inputs, got {got}")]
    Arity {
        /// Inputs in the spec.
        expected: usize,
        /// Inputs given.
        got: usize,
    },
    /// Wrong number of dimensions.
    #[error("input {input} has {got} dimensions, expected {expected} ({indices})")]
    Rank {
        /// Which input.
        input: usize,
        /// Dimensions in the spec.
        expected: usize,
        /// Dimensions of the value.
        got: usize,
        /// The operand as the spec prints it.
        indices: String,
    },
    /// Two operands disagree about an axis.
    #[error("axis {axis} is both {left} and {right} (input {input}, dimension {dimension})")]
    Mismatch {
        /// The axis or window.
        axis: String,
        /// Extent known before.
        left: Dim,
        /// Extent found here.
        right: Dim,
        /// Where the second was found.
        input: usize,
        /// Where the second was found.
        dimension: usize,
    },
    /// The inputs do not determine an axis.
    #[error("axis {0} is not determined by the inputs")]
    Undetermined(String),
    /// A window is larger than what it slides over.
    #[error("window along {axis} needs {needed} elements, input {input} has {got} with padding")]
    Window {
        /// The sliding axis.
        axis: String,
        /// Elements the window spans.
        needed: i64,
        /// Elements there are.
        got: i64,
        /// Which input.
        input: usize,
    },
}

impl Spec {
    /// The axis of that name.
    pub fn axis(&self, name: &str) -> Option<AxisId> {
        self.axes.iter().position(|a| a.name == name).map(AxisId)
    }

    /// Whether some output has the axis.
    pub fn in_outputs(&self, axis: AxisId) -> bool {
        self.outputs.iter().flatten().any(|i| i.has(axis))
    }

    /// The spec of the same work done once per member of an array: an axis of `members` in front of every
    /// result and of every operand that is not `shared`.
    pub fn with_member_axis(mut self, members: usize, shared: &[bool]) -> Spec {
        let mut name = "member".to_string();
        while self.axis(&name).is_some() {
            name.push('_');
        }
        let extent = Some(Dim::from(members));
        self.axes.insert(0, Axis { name, whole: false, statistics: false, reduce: ReduceKind::Sum, extent });
        for index in self.inputs.iter_mut().chain(&mut self.outputs).flatten() {
            index.each_axis(|axis| axis.0 += 1);
        }
        let own =
            self.inputs.iter_mut().zip(shared).filter(|(_, shared)| !**shared).map(|(operand, _)| operand);
        for operand in own.chain(&mut self.outputs) {
            operand.insert(0, Index::Axis(Spec::MEMBER));
        }
        self
    }

    /// The axis that [`Spec::with_member_axis`] adds; it comes before all others.
    pub const MEMBER: AxisId = AxisId(0);
}

impl Index {
    fn each_axis(&mut self, f: impl FnMut(&mut AxisId)) {
        match self {
            Index::Axis(axis) => [axis].into_iter().for_each(f),
            Index::One => {}
            Index::Merge(axes) => axes.iter_mut().for_each(f),
            Index::Affine { terms, .. } => terms.iter_mut().map(|(_, axis)| axis).for_each(f),
        }
    }

    /// Whether the position depends on the axis.
    pub fn has(&self, axis: AxisId) -> bool {
        match self {
            Index::Axis(a) => *a == axis,
            Index::One => false,
            Index::Merge(axes) => axes.contains(&axis),
            Index::Affine { terms, .. } => terms.iter().any(|(_, a)| *a == axis),
        }
    }
}

/// Replaces `...` by `count` axes `a0 a1 …`, so that one line serves every rank.
pub fn expand_ellipsis(text: &str, count: usize) -> String {
    let axes: Vec<String> = (0..count).map(|i| format!("a{i}")).collect();
    let all = if count == 0 { "[]".to_string() } else { axes.join(" ") };
    // A bare `...` operand of rank zero is a scalar; next to other indices it is nothing.
    let mut out = Vec::new();
    for side in text.split("->") {
        let operands = side.split(',').map(|operand| {
            let mut words: Vec<&str> = operand.split_whitespace().collect();
            if count == 0 && words.len() > 1 {
                words.retain(|w| *w != "...");
            }
            words.into_iter().map(|w| if w == "..." { all.as_str() } else { w }).collect::<Vec<_>>().join(" ")
        });
        out.push(operands.collect::<Vec<_>>().join(", "));
    }
    out.join(" -> ")
}
