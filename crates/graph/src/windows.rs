//! Short names for operators with sliding windows, as methods of [`Builder`]: convolutions, poolings
//! and upsampling. Values are laid out [batch, channel, spatial…].

use crate::dim::Dim;
use crate::graph::build::Builder;
use crate::graph::op::OpError;
use crate::graph::op::adaptive_avg_pool::AdaptiveAvgPool;
use crate::graph::op::avg_pool::AvgPool;
use crate::graph::op::bilinear::{Bilinear, Stretch};
use crate::graph::op::conv::{Conv, ConvRotation};
use crate::graph::op::max_pool::MaxPool;
use crate::graph::op::upsample::Upsample;
use crate::graph::op::window::{ConvWindow, PoolWindow};
use crate::graph::{GraphError, Value};

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
        let op = Conv { rotation: ConvRotation::Forward, window: options.windows(), groups: options.groups };
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
        self.push1(
            Conv { rotation: ConvRotation::InputGrad { size }, window, groups: options.groups },
            &[x, w],
        )
    }

    /// The largest element of each window of [n, c, …]; one number per spatial dimension.
    pub fn max_pool(&mut self, x: Value, kernel: &[usize], stride: &[usize], padding: &[usize]) -> Built {
        let window = self.pool_windows("max_pool", x, kernel, stride, padding)?;
        self.push1(MaxPool { window }, &[x])
    }

    /// The average of each window of [n, c, …]; padding counts as zeros if `include_pad`, else not at all.
    pub fn avg_pool(
        &mut self,
        x: Value,
        kernel: &[usize],
        stride: &[usize],
        padding: &[usize],
        include_pad: bool,
    ) -> Built {
        let window = self.pool_windows("avg_pool", x, kernel, stride, padding)?;
        if include_pad || padding.iter().all(|&p| p == 0) {
            let divisor = kernel.iter().product::<usize>() as f32;
            return self.push1(AvgPool { window, divisor }, &[x]);
        }
        let sum = AvgPool { window, divisor: 1.0 };
        let mut shape = vec![Dim::from(1), Dim::from(1)];
        shape.extend_from_slice(self.shape(x).get(2..).unwrap_or(&[]));
        let ones = self.fill(1.0, &shape)?;
        let count = self.push1(sum.clone(), &[ones])?;
        let total = self.push1(sum, &[x])?;
        self.div(total, count)
    }

    /// Average pooling of [n, c, …] to these spatial extents.
    pub fn adaptive_avg_pool(&mut self, x: Value, size: &[usize]) -> Built {
        let rank = self.rank(x);
        if rank == size.len() + 2 {
            if size.iter().all(|&s| s == 1) {
                return self.mean(x, &(2..rank).collect::<Vec<_>>(), true);
            }
            // Extents that divide make plain windows, which can be cut.
            let kernel = |(extent, &s): (&Dim, &usize)| {
                let extent = usize::try_from(extent.as_const()?).ok()?;
                (s > 0 && extent > 0 && extent.is_multiple_of(s)).then(|| extent / s)
            };
            let kernel: Option<Vec<usize>> = self.shape(x)[2..].iter().zip(size).map(kernel).collect();
            if let Some(kernel) = kernel {
                return self.avg_pool(x, &kernel, &kernel, &vec![0; kernel.len()], true);
            }
        }
        self.push1(AdaptiveAvgPool { size: size.to_vec() }, &[x])
    }

    /// Repeats every element of [n, c, …] along the spatial dimensions.
    pub fn upsample(&mut self, x: Value, factor: &[usize]) -> Built {
        self.push1(Upsample { factor: factor.to_vec() }, &[x])
    }

    /// Bilinear upsampling of [n, c, h, w] by whole factors.
    pub fn bilinear(&mut self, x: Value, factor: [usize; 2]) -> Built {
        self.push1(Bilinear { rows: Stretch::new(factor[0]), columns: Stretch::new(factor[1]) }, &[x])
    }

    fn pool_windows(
        &self,
        op: &'static str,
        x: Value,
        kernel: &[usize],
        stride: &[usize],
        padding: &[usize],
    ) -> Result<Vec<PoolWindow>, GraphError> {
        if kernel.len() != stride.len() || kernel.len() != padding.len() {
            let message =
                format!("kernel {kernel:?}, stride {stride:?} and padding {padding:?} differ in length");
            return Err(self.refuse(op, &[x], message));
        }
        // A window inside the padding would have no element at all.
        if kernel.iter().zip(padding).any(|(k, p)| p * 2 > *k) {
            let message = format!("padding {padding:?} is more than half of the kernel {kernel:?}");
            return Err(self.refuse(op, &[x], message));
        }
        let window = |d: usize| PoolWindow {
            kernel: kernel[d],
            stride: stride[d],
            low: padding[d] as i64,
            high: padding[d] as i64,
        };
        Ok((0..kernel.len()).map(window).collect())
    }

    /// The error of a settings mistake that is found before an operator is applied.
    pub(crate) fn refuse(&self, op: &'static str, ins: &[Value], message: String) -> GraphError {
        let inputs = ins.iter().map(|v| self.ty(*v).to_string()).collect::<Vec<_>>().join(", ");
        GraphError::Op { name: self.path(""), op, inputs, source: OpError::Attribute(message).into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Bindings;
    use crate::dtype::DType;
    use crate::graph::Init;
    use crate::interpret::interpret;
    use crate::tensor::Tensor;

    fn shapes(g: &Builder, v: Value) -> String {
        g.ty(v).to_string()
    }

    #[test]
    fn convolutions_have_the_usual_shapes() {
        let mut g = Builder::new(true);
        let x = g.data("x", DType::F32, &[Dim::symbol("b"), 3.into(), "h".into()]).unwrap();
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
    fn poolings_have_the_usual_shapes_and_values() {
        let mut g = Builder::new(true);
        let x = g.data("x", DType::F32, &[Dim::symbol("b"), 2.into(), 4.into(), "h".into()]).unwrap();
        let y = g.max_pool(x, &[3, 3], &[2, 2], &[1, 1]).unwrap();
        assert_eq!(shapes(&g, y), "f32[b,2,2,(1+h)/2]");
        let y = g.adaptive_avg_pool(x, &[1, 1]).unwrap();
        assert_eq!(shapes(&g, y), "f32[b,2,1,1]");
        let y = g.adaptive_avg_pool(x, &[3, 3]).unwrap();
        assert_eq!(shapes(&g, y), "f32[b,2,3,3]");
        let y = g.upsample(x, &[2, 3]).unwrap();
        assert_eq!(shapes(&g, y), "f32[b,2,8,3*h]");
        let y = g.bilinear(x, [2, 2]).unwrap();
        assert_eq!(shapes(&g, y), "f32[b,2,8,2*h]");
        let error = g.max_pool(x, &[2, 2], &[2, 2], &[2, 0]).unwrap_err().to_string();
        assert!(error.contains("padding [2, 0] is more than half of the kernel [2, 2]"), "{error}");
        let error = g.max_pool(x, &[2, 2], &[2], &[0, 0]).unwrap_err().to_string();
        assert!(error.contains("differ in length"), "{error}");
    }

    #[test]
    fn averages_count_the_padding_or_leave_it_out() {
        for (include_pad, expected) in [(true, [1.0, 2.0, 5.0 / 3.0]), (false, [1.5, 2.0, 2.5])] {
            let mut g = Builder::new(true);
            let x = g.data("x", DType::F32, &[1, 1, 3]).unwrap();
            let y = g.avg_pool(x, &[3], &[1], &[1], include_pad).unwrap();
            let feed = |_, shape: &[usize]| Tensor::new(shape, vec![1.0, 2.0, 3.0]);
            let values = interpret(g.graph(), &Bindings::new(), feed).unwrap();
            assert_eq!(values[y.index()].data, expected);
        }
    }

    #[test]
    fn symbolic_convolutions_differentiate() {
        let mut g = Builder::new(true);
        let x = g.data("x", DType::F32, &[Dim::symbol("b"), 3.into(), "h".into()]).unwrap();
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
