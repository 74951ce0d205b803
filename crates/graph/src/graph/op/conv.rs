//! Convolution over one to three spatial dimensions, with stride, dilation, padding and groups; and
//! its two rotations, which are its gradients: to the input (transposed convolution) and to the weight.

use super::product::sum_of_products;
use super::sample::Sample;
use super::window::{ConvWindow, spatial, window_text};
use super::{Backward, Op, OpDef, OpError, OpName, attribute, check};
use crate::dim::Dim;
use crate::graph::build::Builder;
use crate::graph::{GraphError, Type, Value};
use crate::spec::{Index, Part, Spec};
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// `y[n,o,h…] = Σ x[n,c,stride·h+dilation·r-low…]·w[o,c,r…]`, solved for one of the three.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Conv {
    /// Which operand is the result.
    pub rotation: ConvRotation,
    /// One per spatial dimension.
    pub window: Vec<ConvWindow>,
    /// Channels are split into this many independent groups.
    pub groups: usize,
}

/// Which operand of a convolution is the result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConvRotation {
    /// Inputs x, w; result y.
    Forward,
    /// Inputs y, w; result x.
    InputGrad {
        /// Spatial extents of x.
        size: Vec<Dim>,
    },
    /// Inputs x, y; result w.
    WeightGrad {
        /// Spatial extents of w.
        kernel: Vec<Dim>,
    },
}

impl Conv {
    fn turned(&self, rotation: ConvRotation) -> Conv {
        Conv { rotation, window: self.window.clone(), groups: self.groups }
    }

    /// The line; `ins` are only asked whether a group has one input or one output channel.
    fn line(&self, ins: &[&[Dim]]) -> Result<String, OpError> {
        let (axes, taps) = spatial(self.window.len())?;
        let size = |d: usize| match &self.rotation {
            ConvRotation::InputGrad { size } => size.get(d),
            _ => None,
        };
        let windows: Vec<String> =
            self.window.iter().enumerate().map(|(d, w)| window_text(w, axes[d], taps[d], size(d))).collect();
        let (x, y, (out, c)) = self.channels(ins);
        let x = format!("n {x} {}", windows.join(" "));
        let y = format!("n {y} {}", axes.join(" "));
        let w = format!("{out} {c} {}", taps.join(" "));
        let mut with = if self.groups > 1 { vec![format!("g={}", self.groups)] } else { Vec::new() };
        let line = match &self.rotation {
            ConvRotation::Forward => format!("{x}, {w} -> {y}"),
            ConvRotation::InputGrad { .. } => format!("{y}, {w} -> {x}"),
            ConvRotation::WeightGrad { kernel } => {
                with.extend(taps.iter().zip(kernel).map(|(r, extent)| format!("{r}={extent}")));
                format!("{x}, {y} -> {w}")
            }
        };
        Ok(if with.is_empty() { line } else { format!("{line} with {}", with.join(" ")) })
    }

    /// The channel indices of x, y and w (output and input). A group's only channel needs no axis.
    fn channels(&self, ins: &[&[Dim]]) -> (&'static str, &'static str, (&'static str, &'static str)) {
        if self.groups == 1 {
            return ("c", "o", ("o", "c"));
        }
        let is = |operand: usize, dimension: usize, extent: usize| {
            ins[operand].get(dimension) == Some(&Dim::from(extent))
        };
        let (one_in, one_out) = match self.rotation {
            ConvRotation::WeightGrad { .. } => (is(0, 1, self.groups), is(1, 1, self.groups)),
            _ => (is(1, 1, 1), is(1, 0, self.groups)),
        };
        let (x, c) = if one_in { ("g", "1") } else { ("(g c)", "c") };
        let y = if one_out { "g" } else { "(g o)" };
        (x, y, (y, c))
    }
}

impl OpName for Conv {
    fn name(&self) -> &'static str {
        match self.rotation {
            ConvRotation::Forward => "conv",
            ConvRotation::InputGrad { .. } => "conv_transpose",
            ConvRotation::WeightGrad { .. } => "conv_weight_grad",
        }
    }

    fn help(&self) -> &'static str {
        "convolution with stride, dilation, padding and groups, and its rotations to the input and the weight"
    }
}

impl OpDef for Conv {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 2, &[])?;
        for w in &self.window {
            w.check()?;
        }
        if self.groups == 0 {
            return attribute("groups must be above 0");
        }
        let given = match &self.rotation {
            ConvRotation::Forward => self.window.len(),
            ConvRotation::InputGrad { size } => size.len(),
            ConvRotation::WeightGrad { kernel } => kernel.len(),
        };
        if given != self.window.len() {
            return attribute(format!("{given} extents for {} windows", self.window.len()));
        }
        let shapes: Vec<&[Dim]> = ins.iter().map(|t| t.shape.as_slice()).collect();
        let spec: Spec = self.line(&shapes)?.parse()?;
        // The merged channels would otherwise be reported as an axis that is not determined.
        for (input, indices) in spec.inputs.iter().enumerate() {
            for (dimension, index) in indices.iter().enumerate() {
                let merged = matches!(index, Index::Merge(_));
                if let (true, Some(extent)) = (merged, ins[input].shape.get(dimension))
                    && extent.exact_div(&self.groups.into()).is_none()
                {
                    return attribute(format!(
                        "{extent} channels (input {input}, dimension {dimension}) do not divide into {} groups",
                        self.groups
                    ));
                }
            }
        }
        Ok(spec)
    }

    fn grad(&self, g: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        let (a, b, d) = (at.ins[0], at.ins[1], at.dout()?);
        let extents = |g: &Builder, v: Value| g.shape(v)[2..].to_vec();
        // Each rotation's gradients are the other two, with the result's gradient in its place.
        let (first, first_ins, second, second_ins) = match self.rotation {
            ConvRotation::Forward => (
                ConvRotation::InputGrad { size: extents(g, a) },
                [d, b],
                ConvRotation::WeightGrad { kernel: extents(g, b) },
                [a, d],
            ),
            ConvRotation::InputGrad { .. } => {
                (ConvRotation::Forward, [d, b], ConvRotation::WeightGrad { kernel: extents(g, b) }, [d, a])
            }
            ConvRotation::WeightGrad { .. } => {
                (ConvRotation::InputGrad { size: extents(g, a) }, [b, d], ConvRotation::Forward, [a, d])
            }
        };
        let mut side = |want: bool, rotation: ConvRotation, ins: [Value; 2]| -> Result<_, GraphError> {
            if want { Ok(Some(g.push1(self.turned(rotation), &ins)?)) } else { Ok(None) }
        };
        Ok(vec![side(at.wants[0], first, first_ins)?, side(at.wants[1], second, second_ins)?])
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let types: Vec<Type> = ins.iter().map(|t| Type::f32(&t.shape)).collect();
        let spec = self.spec(&types).expect("checked when the node was built");
        sum_of_products(&spec, ins[0], ins[1], &mut outs[0]);
    }

    fn flops_per_point(&self) -> u64 {
        2
    }

    fn part(&self, part: &Part) -> Option<Op> {
        let extents = || part.outputs[0][2..].iter().map(|r| r.len().into()).collect();
        let (rotation, windows, grouped) = match &self.rotation {
            ConvRotation::Forward => (ConvRotation::Forward, &part.input_windows[0], 1),
            ConvRotation::InputGrad { .. } => {
                (ConvRotation::InputGrad { size: extents() }, &part.output_windows[0], 1)
            }
            ConvRotation::WeightGrad { .. } => {
                (ConvRotation::WeightGrad { kernel: extents() }, &part.input_windows[0], 0)
            }
        };
        let window = self.window.iter().zip(&windows[2..]).map(|(w, seen)| w.within(*seen)).collect();
        // With groups, channels are cut into whole groups only.
        let groups = match self.groups {
            1 => 1,
            n => n * part.outputs[0][grouped].len() / part.whole[0][grouped].max(1),
        };
        Some(Conv { rotation, window, groups }.into())
    }

    fn samples() -> Vec<Sample> {
        let window = |stride, dilation, low, high| ConvWindow { stride, dilation, low, high };
        type Case = (Vec<ConvWindow>, usize, &'static [usize], &'static [usize]);
        let cases: [Case; 9] = [
            (vec![window(1, 1, 1, 1), window(1, 1, 1, 1)], 1, &[2, 3, 5, 4], &[4, 3, 3, 3]),
            (vec![window(2, 1, 1, 1), window(2, 1, 0, 1)], 1, &[1, 2, 8, 7], &[3, 2, 3, 2]),
            (vec![window(1, 2, 2, 1), window(3, 1, 0, 0)], 1, &[1, 2, 7, 8], &[2, 2, 3, 1]),
            (vec![window(1, 1, 1, 1), window(2, 1, 1, 0)], 2, &[1, 4, 4, 5], &[6, 2, 3, 2]),
            (vec![window(1, 1, 1, 1), window(1, 1, 1, 1)], 3, &[2, 3, 4, 4], &[3, 1, 3, 3]),
            (vec![window(1, 1, 0, 0), window(1, 1, 0, 0)], 2, &[2, 2, 4, 3], &[4, 1, 2, 2]),
            (vec![window(2, 1, -1, 2)], 1, &[2, 3, 9], &[2, 3, 3]),
            (vec![window(2, 2, 1, -2)], 2, &[1, 4, 11], &[2, 2, 2]),
            (
                vec![window(1, 1, 1, 0), window(2, 1, 0, 1), window(1, 2, 1, 1)],
                1,
                &[1, 2, 3, 4, 3],
                &[2, 2, 2, 2, 2],
            ),
        ];
        let dims = |shape: &[usize]| shape.iter().map(|&d| Dim::from(d)).collect::<Vec<_>>();
        let mut all = Vec::new();
        for (window, groups, x, w) in cases {
            let forward = Conv { rotation: ConvRotation::Forward, window, groups };
            let sample = Sample::normal(forward.clone(), &[x, w]);
            let y = sample.output_shapes().remove(0);
            all.push(sample);
            let size = dims(&x[2..]);
            all.push(Sample::normal(forward.turned(ConvRotation::InputGrad { size }), &[&y, w]));
            let kernel = dims(&w[2..]);
            all.push(Sample::normal(forward.turned(ConvRotation::WeightGrad { kernel }), &[x, &y]));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::SpecError;

    fn conv(groups: usize, stride: usize, dims: usize) -> Conv {
        let window = vec![ConvWindow { stride, dilation: 1, low: 1, high: 1 }; dims];
        Conv { rotation: ConvRotation::Forward, window, groups }
    }

    #[test]
    fn lines_say_what_may_be_cut() {
        for (groups, x, w, line) in [
            (1, [1, 4, 8, 8], [6, 4, 3, 3], "n c 2*h+r-1 2*w+s-1, o c r s -> n o h w"),
            (2, [1, 4, 8, 8], [6, 2, 3, 3], "n (g c) 2*h+r-1 2*w+s-1, (g o) c r s -> n (g o) h w with g=2"),
            (4, [1, 4, 8, 8], [4, 1, 3, 3], "n g 2*h+r-1 2*w+s-1, g 1 r s -> n g h w with g=4"),
        ] {
            let spec = conv(groups, 2, 2).spec(&[Type::f32(&x), Type::f32(&w)]).unwrap();
            assert_eq!(spec.to_string(), line);
        }
    }

    #[test]
    fn wrong_shapes_are_named() {
        for (op, x, w, expected) in [
            (
                conv(1, 1, 2),
                vec![1, 3, 8, 8],
                vec![4, 5, 3, 3],
                "axis c is both 3 and 5 (input 1, dimension 1)",
            ),
            (
                conv(2, 1, 2),
                vec![1, 3, 8, 8],
                vec![4, 2, 3, 3],
                "3 channels (input 0, dimension 1) do not divide into 2 groups",
            ),
            (
                conv(1, 1, 2),
                vec![1, 3, 8],
                vec![4, 3, 3, 3],
                "input 0 has 3 dimensions, expected 4 (n c h+r-1 w+s-1)",
            ),
            (
                conv(1, 1, 1),
                vec![1, 3, 2],
                vec![4, 3, 7],
                "window along h needs 7 elements, input 0 has 4 with padding",
            ),
            (conv(1, 0, 1), vec![1, 3, 2], vec![4, 3, 7], "stride 0 and dilation 1 must be above 0"),
            (conv(1, 1, 4), vec![1], vec![4], "windows over 4 dimensions; 1, 2 or 3 are possible"),
        ] {
            let (x, w) = (Type::f32(&x), Type::f32(&w));
            let error = op.spec(&[x.clone(), w.clone()]).and_then(|s| Ok(s.infer(&[&x.shape, &w.shape])?));
            assert_eq!(error.unwrap_err().to_string(), expected);
        }
        let one = conv(1, 1, 1).spec(&[Type::f32(&[1, 1, 1])]).unwrap_err();
        assert_eq!(one, SpecError::Arity { expected: 2, got: 1 }.into());
    }
}
