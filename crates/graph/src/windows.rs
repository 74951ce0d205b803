//! Short names for operators with sliding windows, as methods of [`Builder`]: convolutions, poolings
//! and upsampling. Values are laid out [batch, channel, spatial…].

use crate::build::Builder;
use crate::dim::Dim;
use crate::graph::{GraphError, Value};
use crate::op::OpError;
use crate::op::conv::{Conv, Rotation};
use crate::op::window::ConvWindow;

type Built = Result<Value, GraphError>;

/// Settings of a convolution, one number per spatial dimension; the defaults are those of
/// [`ConvOptions::new`].
#[derive(Clone, Debug, PartialEq)]
pub struct ConvOptions {
    /// Elements between neighbouring outputs.
    pub stride: Vec<usize>,
    /// Zeros added on both sides.
    pub padding: Vec<usize>,
    /// Elements between neighbouring taps.
    pub dilation: Vec<usize>,
    /// Channels are split into this many independent groups.
    pub groups: usize,
}

impl ConvOptions {
    /// Stride and dilation one, no padding, one group.
    pub fn new(dims: usize) -> ConvOptions {
        ConvOptions { stride: vec![1; dims], padding: vec![0; dims], dilation: vec![1; dims], groups: 1 }
    }

    /// With this stride in every dimension.
    pub fn stride(mut self, stride: usize) -> ConvOptions {
        self.stride.fill(stride);
        self
    }

    /// With this padding in every dimension.
    pub fn padding(mut self, padding: usize) -> ConvOptions {
        self.padding.fill(padding);
        self
    }

    /// With this dilation in every dimension.
    pub fn dilation(mut self, dilation: usize) -> ConvOptions {
        self.dilation.fill(dilation);
        self
    }

    /// With this many groups.
    pub fn groups(mut self, groups: usize) -> ConvOptions {
        self.groups = groups;
        self
    }

    fn windows(&self) -> Vec<ConvWindow> {
        let steps = self.stride.iter().zip(&self.dilation).zip(&self.padding);
        let window = |((&stride, &dilation), &padding): ((&usize, &usize), &usize)| ConvWindow {
            stride,
            dilation,
            low: padding as i64,
            high: padding as i64,
        };
        steps.map(window).collect()
    }
}

impl Builder {
    /// Convolution of `x` [n, c, …] with `w` [o, c/groups, k…].
    pub fn conv(&mut self, x: Value, w: Value, options: &ConvOptions) -> Built {
        let op = Conv { rotation: Rotation::Forward, window: options.windows(), groups: options.groups };
        self.push1(op, &[x, w])
    }

    /// Transposed convolution of `x` [n, c, …] with `w` [c, o/groups, k…]; `output_padding`, below the
    /// stride, extends the far end of the result.
    pub fn conv_transpose(
        &mut self,
        x: Value,
        w: Value,
        options: &ConvOptions,
        output_padding: &[usize],
    ) -> Built {
        let window = options.windows();
        if output_padding.len() != window.len()
            || window.iter().zip(output_padding).any(|(w, &extra)| extra >= w.stride)
        {
            let message =
                format!("output padding {output_padding:?} must be below the stride {:?}", options.stride);
            return Err(self.refuse("conv_transpose", &[x, w], message));
        }
        let extent = |v: Value, d: usize, b: &Builder| b.shape(v).get(d + 2).cloned().unwrap_or(Dim::from(1));
        let size = window.iter().zip(output_padding).enumerate().map(|(d, (win, &extra))| {
            let taps = (extent(w, d, self) - 1) * win.dilation;
            (extent(x, d, self) - 1) * win.stride + taps + 1 + extra - win.low - win.high
        });
        let size = size.collect();
        self.push1(Conv { rotation: Rotation::InputGrad { size }, window, groups: options.groups }, &[x, w])
    }

    /// The error of a settings mistake that is found before an operator is applied.
    pub(crate) fn refuse(&self, op: &'static str, ins: &[Value], message: String) -> GraphError {
        let inputs = ins.iter().map(|v| self.ty(*v).to_string()).collect::<Vec<_>>().join(", ");
        GraphError::Op { name: self.path(""), op, inputs, source: OpError::Attribute(message) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Init;

    fn shapes(g: &Builder, v: Value) -> String {
        g.ty(v).to_string()
    }

    #[test]
    fn convolutions_have_the_usual_shapes() {
        let mut g = Builder::new(true);
        let x = g.data("x", crate::dtype::DType::F32, &[Dim::symbol("b"), 3.into(), "h".into()]).unwrap();
        let w = g.weight("w", &[8, 3, 3], Init::Normal(0.1)).unwrap();
        let y = g.conv(x, w, &ConvOptions::new(1).stride(2).padding(1)).unwrap();
        assert_eq!(shapes(&g, y), "f32[b,8,(1+h)/2]");
        let v = g.weight("v", &[3, 4, 4], Init::Normal(0.1)).unwrap();
        let y = g.conv_transpose(x, v, &ConvOptions::new(1).stride(2).padding(1), &[0]).unwrap();
        assert_eq!(shapes(&g, y), "f32[b,4,2*h]");
        let back = g.conv_transpose(x, v, &ConvOptions::new(1).stride(2), &[2]).unwrap_err();
        assert!(back.to_string().contains("output padding [2] must be below the stride [2]"), "{back}");
    }

    #[test]
    fn symbolic_convolutions_differentiate() {
        let mut g = Builder::new(true);
        let x = g.data("x", crate::dtype::DType::F32, &[Dim::symbol("b"), 3.into(), "h".into()]).unwrap();
        let w = g.weight("w", &[8, 3, 3], Init::Normal(0.1)).unwrap();
        let v = g.weight("v", &[8, 3, 3], Init::Normal(0.1)).unwrap();
        let options = ConvOptions::new(1).stride(2).padding(1);
        let y = g.conv(x, w, &options).unwrap();
        let z = g.conv_transpose(y, v, &options, &[1]).unwrap();
        let loss = g.mean_all(z).unwrap();
        let grads = crate::autodiff::differentiate(&mut g, loss, &[w, v], 0).unwrap();
        for grad in grads {
            assert_eq!(shapes(&g, grad.unwrap()), "f32[8,3,3]");
        }
    }
}
