//! Shapes and work derived from a spec.

use super::{AxisId, Index, Spec, SpecError};
use crate::dim::{Dim, product};

impl Spec {
    /// The extent of every axis, or where and how the inputs disagree.
    pub fn extents(&self, inputs: &[&[Dim]]) -> Result<Vec<Dim>, SpecError> {
        if inputs.len() != self.inputs.len() {
            return Err(SpecError::Arity { expected: self.inputs.len(), got: inputs.len() });
        }
        for (i, (shape, indices)) in inputs.iter().zip(&self.inputs).enumerate() {
            if shape.len() != indices.len() {
                return Err(SpecError::Rank {
                    input: i,
                    expected: indices.len(),
                    got: shape.len(),
                    indices: self.operand_text(indices),
                });
            }
        }
        let mut extents: Vec<Option<Dim>> = self.axes.iter().map(|a| a.extent.clone()).collect();
        let places = || {
            let operands = self.inputs.iter().zip(inputs).enumerate();
            operands.flat_map(|(i, (ix, shape))| {
                ix.iter().zip(shape.iter()).enumerate().map(move |(d, (x, dim))| (i, d, x, dim))
            })
        };
        for (input, dimension, index, dim) in places() {
            if let Index::Axis(a) = index {
                self.settle(&mut extents, *a, dim.clone(), input, dimension)?;
            }
        }
        // Merges and windows need the other axes first; one pass per axis is always enough.
        for _ in 0..self.axes.len() {
            let before = extents.iter().flatten().count();
            for (input, dimension, index, dim) in places() {
                if let Some((axis, extent)) = self.solve(&extents, index, dim, input)? {
                    self.settle(&mut extents, axis, extent, input, dimension)?;
                }
            }
            if extents.iter().flatten().count() == before {
                break;
            }
        }
        let missing = self.axes.iter().zip(&extents).find(|(_, e)| e.is_none());
        if let Some((axis, _)) = missing {
            return Err(SpecError::Undetermined(axis.name.clone()));
        }
        let extents: Vec<Dim> = extents.into_iter().flatten().collect();
        for (input, dimension, index, dim) in places() {
            let expected = match index {
                Index::One => Dim::from(1),
                Index::Merge(axes) => product(axes.iter().map(|a| &extents[a.0])),
                Index::Affine { size: Some(size), .. } => size.clone(),
                _ => continue,
            };
            if expected != *dim {
                let axis = self.operand_text(std::slice::from_ref(index));
                return Err(SpecError::Mismatch {
                    axis,
                    left: expected,
                    right: dim.clone(),
                    input,
                    dimension,
                });
            }
        }
        Ok(extents)
    }

    fn settle(
        &self,
        extents: &mut [Option<Dim>],
        axis: AxisId,
        extent: Dim,
        input: usize,
        dimension: usize,
    ) -> Result<(), SpecError> {
        match &extents[axis.0] {
            Some(known) if *known != extent => Err(SpecError::Mismatch {
                axis: self.axes[axis.0].name.clone(),
                left: known.clone(),
                right: extent,
                input,
                dimension,
            }),
            _ => {
                extents[axis.0] = Some(extent);
                Ok(())
            }
        }
    }

    /// The extent of the one unknown axis of a merge, or of the sliding axis of a window.
    fn solve(
        &self,
        extents: &[Option<Dim>],
        index: &Index,
        dim: &Dim,
        input: usize,
    ) -> Result<Option<(AxisId, Dim)>, SpecError> {
        match index {
            Index::Merge(axes) => {
                let mut unknown = axes.iter().filter(|a| extents[a.0].is_none());
                let (Some(&axis), None) = (unknown.next(), unknown.next()) else { return Ok(None) };
                let known = product(axes.iter().filter_map(|a| extents[a.0].as_ref()));
                match dim.exact_div(&known) {
                    Some(extent) => Ok(Some((axis, extent))),
                    None => Ok(None),
                }
            }
            Index::Affine { terms, low, high, size: None } => {
                let (stride, axis) = terms[0];
                let mut span = Dim::from(1);
                for (s, a) in &terms[1..] {
                    let Some(e) = &extents[a.0] else { return Ok(None) };
                    span = span + (e - 1) * *s;
                }
                let room = dim + *low + *high - &span;
                if let (Some(room), Some(needed)) = (room.as_const(), span.as_const())
                    && room < 0
                {
                    let axis = self.axes[axis.0].name.clone();
                    return Err(SpecError::Window { axis, needed, got: room + needed, input });
                }
                Ok(Some((axis, room.floor_div(stride) + 1)))
            }
            _ => Ok(None),
        }
    }

    /// The shape of each output.
    pub fn infer(&self, inputs: &[&[Dim]]) -> Result<Vec<Vec<Dim>>, SpecError> {
        let extents = self.extents(inputs)?;
        Ok(self.outputs.iter().map(|o| self.shape(o, &extents)).collect())
    }

    /// The shape of one operand for known extents.
    pub fn shape(&self, indices: &[Index], extents: &[Dim]) -> Vec<Dim> {
        let dim = |index: &Index| match index {
            Index::Axis(a) => extents[a.0].clone(),
            Index::One => Dim::from(1),
            Index::Merge(axes) => product(axes.iter().map(|a| &extents[a.0])),
            Index::Affine { size: Some(size), .. } => size.clone(),
            Index::Affine { terms, low, high, size: None } => {
                let span = terms.iter().fold(Dim::from(1), |d, (s, a)| d + (&extents[a.0] - 1) * *s);
                span - *low - *high
            }
        };
        indices.iter().map(dim).collect()
    }

    /// Points of the loop nest: the product of all extents.
    pub fn points(&self, extents: &[Dim]) -> Dim {
        product(extents)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dims(shape: &[&str]) -> Vec<Dim> {
        shape.iter().map(|s| Dim::parse(s).unwrap()).collect()
    }

    fn infer(spec: &str, inputs: &[&[&str]]) -> Result<String, SpecError> {
        let spec: Spec = spec.parse()?;
        assert_eq!(spec.to_string().parse::<Spec>().unwrap(), spec);
        let inputs: Vec<Vec<Dim>> = inputs.iter().map(|s| dims(s)).collect();
        let inputs: Vec<&[Dim]> = inputs.iter().map(Vec::as_slice).collect();
        Ok(format!("{:?}", spec.infer(&inputs)?))
    }

    #[test]
    fn shapes_follow_from_the_line() {
        for (spec, inputs, expected) in [
            ("m k, k n -> m n", vec![vec!["b", "3"], vec!["3", "5"]], "[[b, 5]]"),
            (
                "n c 2*h+r-1 2*w+s-1, o c r s -> n o h w",
                vec![vec!["b", "3", "32", "h"], vec!["8", "3", "3", "3"]],
                "[[b, 8, 16, (1+h)/2]]",
            ),
            (
                "n (g c) h+r, (g o) c r -> n (g o) h with g=2",
                vec![vec!["4", "6", "9"], vec!["8", "3", "2"]],
                "[[4, 8, 8]]",
            ),
            ("n c h -> n c (h f) with f=2", vec![vec!["n", "c", "h"]], "[[n, c, 2*h]]"),
            (
                "n o h, o c r -> n c 2*h+r-1{32}",
                vec![vec!["4", "6", "16"], vec!["6", "3", "3"]],
                "[[4, 3, 32]]",
            ),
            ("i-2|1 -> i", vec![vec!["t"]], "[[3+t]]"),
            ("a b, [] -> a b, []", vec![vec!["2", "3"], vec![]], "[[2, 3], []]"),
            ("-> a b with a=2 b=t", vec![], "[[2, t]]"),
        ] {
            let inputs: Vec<&[&str]> = inputs.iter().map(Vec::as_slice).collect();
            assert_eq!(infer(spec, &inputs).as_deref(), Ok(expected), "{spec}");
        }
    }

    #[test]
    fn disagreements_name_axis_and_both_sizes() {
        for (spec, inputs, expected) in [
            (
                "m k, k n -> m n",
                vec![vec!["2", "3"], vec!["4", "5"]],
                "axis k is both 3 and 4 (input 1, dimension 0)",
            ),
            ("m k, k n -> m n", vec![vec!["2", "3"]], "takes 2 inputs, got 1"),
            ("m k -> m", vec![vec!["2"]], "input 0 has 1 dimensions, expected 2 (m k)"),
            (
                "n h+r, r -> n h",
                vec![vec!["2", "3"], vec!["5"]],
                "window along h needs 5 elements, input 0 has 3 with padding",
            ),
            ("a -> a b", vec![vec!["2"]], "axis b is not determined by the inputs"),
            (
                "n (g c), c -> n with g=2",
                vec![vec!["2", "7"], vec!["3"]],
                "axis (g c) is both 6 and 7 (input 0, dimension 1)",
            ),
        ] {
            let inputs: Vec<&[&str]> = inputs.iter().map(Vec::as_slice).collect();
            assert_eq!(infer(spec, &inputs).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "a",
            "a -> (b",
            "a, -> a",
            "a -> a max",
            "a -> a max z",
            "a -> a with a",
            "0*a -> a",
            "a -> 2*",
            "max -> a",
        ] {
            let parsed = text.parse::<Spec>();
            assert!(parsed.is_err() || text == "a -> a max", "{text}: {parsed:?}");
        }
    }
}
