//! Legal cuts of an operator and the region of every operand that one part touches, by interval
//! analysis of the index expressions. Any number of parts, even or uneven.

use super::{AxisId, Index, ReduceKind, Spec};
use std::ops::Range;

/// How one output of the parts is recombined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Combine {
    /// Side by side along this dimension: the same bits as the whole.
    Concat(usize),
    /// Every part holds a partial result of the whole output.
    Reduce(ReduceKind),
}

/// A way to cut an operator.
#[derive(Clone, Debug, PartialEq)]
pub struct AxisCut {
    /// The loop that is divided.
    pub axis: AxisId,
    /// Per output, what recombines the parts.
    pub outputs: Vec<Combine>,
    /// Neighbouring parts read common input elements.
    pub halo: bool,
}

impl AxisCut {
    /// Every output is put side by side, so no sum is re-associated.
    pub fn keeps_bits(&self) -> bool {
        self.outputs.iter().all(|c| matches!(c, Combine::Concat(_)))
    }
}

/// A box inside an operand, one range per dimension.
pub type Region = Vec<Range<usize>>;

/// The padding of a window as one part sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowPadding {
    /// Padding before the part's first element.
    pub low: i64,
    /// Padding after the part's last element.
    pub high: i64,
}

/// One part of a cut operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// The loop that is divided.
    pub axis: AxisId,
    /// The positions of [`Spec::cut_extent`] of this part.
    pub range: Range<usize>,
    /// The region of each input that it reads.
    pub inputs: Vec<Region>,
    /// The region of each output that it writes (the whole where partial results are combined).
    pub outputs: Vec<Region>,
    /// Shapes of the whole outputs.
    pub whole: Vec<Vec<usize>>,
    /// Per input and dimension, the padding of windows seen from inside the part.
    pub input_windows: Vec<Vec<Option<WindowPadding>>>,
    /// Per output and dimension, likewise for outputs that are windows.
    pub output_windows: Vec<Vec<Option<WindowPadding>>>,
}

impl Spec {
    /// Every legal cut. Whole axes and axes with shared statistics are never cut; neither is the inner
    /// axis of a merge, whose parts would not be boxes, nor the taps of a scattered output.
    pub fn cuts(&self) -> Vec<AxisCut> {
        (0..self.axes.len()).map(AxisId).filter_map(|axis| self.cut(axis)).collect()
    }

    /// The cut along one axis, if it is legal.
    pub fn cut(&self, axis: AxisId) -> Option<AxisCut> {
        let info = &self.axes[axis.0];
        if info.whole || info.statistics {
            return None;
        }
        let operands = || self.inputs.iter().chain(&self.outputs);
        let inner = |i: &Index| matches!(i, Index::Merge(axes) if axes[1..].contains(&axis));
        if operands().flatten().any(inner) {
            return None;
        }
        let tap =
            |i: &Index| matches!(i, Index::Affine { terms, .. } if terms[1..].iter().any(|t| t.1 == axis));
        if self.outputs.iter().flatten().any(tap) {
            return None;
        }
        if self.scattered(axis)
            && self.outputs.iter().flatten().any(|i| matches!(i, Index::Axis(a) if *a == axis))
        {
            return None;
        }
        let combine = |o: &Vec<Index>| match o.iter().position(|i| i.has(axis)) {
            Some(dimension) => Combine::Concat(dimension),
            None => Combine::Reduce(info.reduce),
        };
        let window = |i: &Index| matches!(i, Index::Affine { terms, .. } if terms.len() > 1 && i.has(axis));
        Some(AxisCut {
            axis,
            outputs: self.outputs.iter().map(combine).collect(),
            halo: operands().flatten().any(window),
        })
    }

    /// Whether an output is a window that slides along the axis.
    fn scattered(&self, axis: AxisId) -> bool {
        let scatter = |i: &Index| matches!(i, Index::Affine { terms, .. } if terms[0].1 == axis);
        self.outputs.iter().flatten().any(scatter)
    }

    /// Number of positions that a cut along the axis divides: its extent, or for a scattered output the
    /// extent of that output's dimension.
    pub fn cut_extent(&self, axis: AxisId, extents: &[usize], outputs: &[&[usize]]) -> usize {
        if !self.scattered(axis) {
            return extents[axis.0];
        }
        let mut dims = self.outputs.iter().zip(outputs).flat_map(|(ix, shape)| ix.iter().zip(shape.iter()));
        let found = dims.find(|(i, _)| matches!(i, Index::Affine { terms, .. } if terms[0].1 == axis));
        found.map_or(extents[axis.0], |(_, &extent)| extent)
    }

    /// The part of a legal cut that does `range`; shapes and extents are those of the whole.
    pub fn part(
        &self,
        axis: AxisId,
        range: Range<usize>,
        extents: &[usize],
        inputs: &[&[usize]],
        outputs: &[&[usize]],
    ) -> Part {
        let mut loops: Vec<Range<usize>> = extents.iter().map(|&e| 0..e).collect();
        loops[axis.0] =
            if self.scattered(axis) { self.reaching(axis, &range, extents) } else { range.clone() };
        let mut part = Part {
            axis,
            range: range.clone(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            whole: outputs.iter().map(|s| s.to_vec()).collect(),
            input_windows: Vec::new(),
            output_windows: Vec::new(),
        };
        for (indices, shape) in self.inputs.iter().zip(inputs) {
            let region: Region =
                indices.iter().zip(shape.iter()).map(|(i, &d)| touched(i, d, &loops, extents)).collect();
            let windows = indices.iter().zip(&region).map(|(i, r)| window(i, r, &loops)).collect();
            part.inputs.push(region);
            part.input_windows.push(windows);
        }
        for (indices, shape) in self.outputs.iter().zip(outputs) {
            let region: Region = indices
                .iter()
                .zip(shape.iter())
                .map(|(i, &d)| match i {
                    Index::Affine { terms, .. } if terms[0].1 == axis => range.clone(),
                    // Positions that no tap reaches are written too: they are zero.
                    Index::Affine { .. } => 0..d,
                    _ => touched(i, d, &loops, extents),
                })
                .collect();
            let windows = indices.iter().zip(&region).map(|(i, r)| window(i, r, &loops)).collect();
            part.outputs.push(region);
            part.output_windows.push(windows);
        }
        part
    }

    /// Positions of a scattering axis from which some tap lands in `range` of the output.
    fn reaching(&self, axis: AxisId, range: &Range<usize>, extents: &[usize]) -> Range<usize> {
        let mut reach: Option<Range<usize>> = None;
        for index in self.outputs.iter().flatten() {
            let Index::Affine { terms, low, .. } = index else { continue };
            if terms[0].1 != axis {
                continue;
            }
            let taps: i64 = terms[1..].iter().map(|(s, a)| s * (extents[a.0] as i64 - 1)).sum();
            let stride = terms[0].0;
            let first = -((taps - low - range.start as i64).div_euclid(stride));
            let last = (range.end as i64 - 1 + low).div_euclid(stride);
            let end = extents[axis.0] as i64;
            let start = first.clamp(0, end) as usize;
            let stop = ((last + 1).clamp(0, end) as usize).max(start);
            reach = Some(match reach {
                Some(r) => r.start.min(start)..r.end.max(stop),
                None => start..stop,
            });
        }
        reach.unwrap_or(0..extents[axis.0])
    }
}

/// The positions of one dimension that loops over these ranges touch, within its extent.
fn touched(index: &Index, extent: usize, loops: &[Range<usize>], extents: &[usize]) -> Range<usize> {
    match index {
        Index::Axis(a) => loops[a.0].clone(),
        Index::One => 0..extent,
        Index::Merge(axes) => {
            let inner: usize = axes[1..].iter().map(|a| extents[a.0]).product();
            let outer = &loops[axes[0].0];
            outer.start * inner..outer.end * inner
        }
        Index::Affine { terms, low, .. } => {
            if terms.iter().any(|(_, a)| loops[a.0].is_empty()) {
                return 0..0;
            }
            let first: i64 = terms.iter().map(|(s, a)| s * loops[a.0].start as i64).sum();
            let last: i64 = terms.iter().map(|(s, a)| s * (loops[a.0].end as i64 - 1)).sum();
            let clip = |v: i64| v.clamp(0, extent as i64) as usize;
            let (start, end) = (clip(first - low), clip(last - low + 1));
            start..end.max(start)
        }
    }
}

/// The padding with which the same window expression reads the region as if it were the whole.
fn window(index: &Index, region: &Range<usize>, loops: &[Range<usize>]) -> Option<WindowPadding> {
    let Index::Affine { terms, low, .. } = index else { return None };
    let start: i64 = terms.iter().map(|(s, a)| s * loops[a.0].start as i64).sum();
    let low = low - start + region.start as i64;
    let span: i64 = 1 + terms.iter().map(|(s, a)| s * (loops[a.0].len() as i64 - 1)).sum::<i64>();
    Some(WindowPadding { low, high: span - low - region.len() as i64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(spec: &str) -> String {
        let spec: Spec = spec.parse().unwrap();
        let show = |c: &AxisCut| {
            format!("{}{}{:?}", spec.axes[c.axis.0].name, if c.halo { "~" } else { "" }, c.outputs)
        };
        spec.cuts().iter().map(show).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn cuts_follow_from_the_line() {
        assert_eq!(names("m k, k n -> m n"), "m[Concat(0)] k[Reduce(Sum)] n[Concat(1)]");
        assert_eq!(names("b x! -> b x!"), "b[Concat(0)]");
        assert_eq!(
            names("n (g c) h, (g o) c -> n (g o) h with g=2"),
            "n[Concat(0)] g[Concat(1)] h[Concat(2)]"
        );
        assert_eq!(
            names("n c 2*h+r-1 -> n c h max r with r=3"),
            "n[Concat(0)] c[Concat(1)] h~[Concat(2)] r~[Reduce(Max)]"
        );
        assert_eq!(names("n c, c -> n c over n"), "c[Concat(1)]");
        assert_eq!(names("n d, d -> n d, d"), "n[Concat(0), Reduce(Sum)] d[Concat(1), Concat(0)]");
        assert_eq!(
            names("n o h, o c r -> n c 2*h+r-1"),
            "n[Concat(0)] o[Reduce(Sum)] h~[Concat(2)] c[Concat(1)]"
        );
    }

    #[test]
    fn regions_have_halos_and_borders() {
        let spec: Spec = "n 2*h+r-1, r -> n h".parse().unwrap();
        let h = spec.axis("h").unwrap();
        let part = |range| spec.part(h, range, &[1, 8, 3], &[&[1, 16], &[3]], &[&[1, 8]]);
        let first = part(0..3);
        assert_eq!(first.inputs, vec![vec![0..1, 0..6], vec![0..3]]);
        assert_eq!(first.input_windows[0][1], Some(WindowPadding { low: 1, high: 0 }));
        let last = part(3..8);
        assert_eq!(last.inputs[0], vec![0..1, 5..16]);
        assert_eq!(last.input_windows[0][1], Some(WindowPadding { low: 0, high: 0 }));
        assert_eq!(last.outputs, vec![vec![0..1, 3..8]]);
    }

    #[test]
    fn scattered_outputs_ask_for_the_inputs_that_reach_them() {
        let spec: Spec = "h, r -> 2*h+r-1{16}".parse().unwrap();
        let h = spec.axis("h").unwrap();
        assert_eq!(spec.cut_extent(h, &[8, 3], &[&[16]]), 16);
        let part = spec.part(h, 5..9, &[8, 3], &[&[8], &[3]], &[&[16]]);
        // y = 2h + r - 1 in 5..9  <=>  h in 2..5
        assert_eq!(part.inputs[0], vec![2..5]);
        assert_eq!(part.outputs[0], vec![5..9]);
        assert_eq!(part.output_windows[0][0], Some(WindowPadding { low: 2, high: 1 }));
    }

    #[test]
    fn scattered_outputs_are_written_where_nothing_lands() {
        let spec: Spec = "n h, r -> n 2*h+r{20}".parse().unwrap();
        let part = spec.part(spec.axis("n").unwrap(), 1..3, &[3, 8, 3], &[&[3, 8], &[3]], &[&[3, 20]]);
        assert_eq!(part.outputs[0], vec![1..3, 0..20]);
    }
}
