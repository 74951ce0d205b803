//! Convolution in one to three dimensions and its two gradients, as matrix products over patches that are never stored.
//! `gather` is used where the channels of the result fill vectors, `depthwise` for one channel per group, and otherwise
//! patches are read while packing.

use crate::kernel::gather::{self, ResultLayout};
use crate::kernel::grid::{ImageSource, TapGrid};
use crate::kernel::pack::{Nested, Operand, Strided};
use crate::kernel::patch::{PatchWindow, Patches};
use crate::kernel::tile::TileOutput;
use crate::kernel::{depthwise, gemm, phase};
use crate::team::{SharedMut, Team, share};

/// Extents of a convolution; one and two dimensions have leading extents of 1. Layouts, row-major:
/// `x[n, groups * c, input]`, `w[groups * o, c, kernel]`, `y[n, groups * o, output]`. Along each axis, output position
/// `p` reads through kernel position `k` the input at `p * stride + k * dilation - pad`, and zero outside. The output
/// extents need not agree with the padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvShape {
    /// Images.
    pub n: usize,
    /// Groups of channels.
    pub groups: usize,
    /// Input channels per group.
    pub c: usize,
    /// Output channels per group.
    pub o: usize,
    /// Input extents.
    pub input: [usize; 3],
    /// Kernel extents.
    pub kernel: [usize; 3],
    /// Output extents.
    pub output: [usize; 3],
    /// Strides, at least 1.
    pub stride: [usize; 3],
    /// Dilations, at least 1.
    pub dilation: [usize; 3],
    /// Padding before the first element; negative skips elements.
    pub pad: [isize; 3],
}

impl ConvShape {
    /// Elements of one input channel.
    pub fn input_len(&self) -> usize {
        self.input.iter().product()
    }

    /// Elements of one output channel.
    pub fn output_len(&self) -> usize {
        self.output.iter().product()
    }

    /// Positions of the kernel.
    pub fn taps(&self) -> usize {
        self.kernel.iter().product()
    }

    /// Elements of x.
    pub fn x_len(&self) -> usize {
        self.n * self.groups * self.c * self.input_len()
    }

    /// Elements of w.
    pub fn w_len(&self) -> usize {
        self.groups * self.o * self.c * self.taps()
    }

    /// Elements of y.
    pub fn y_len(&self) -> usize {
        self.n * self.groups * self.o * self.output_len()
    }

    fn is_depthwise(&self) -> bool {
        self.c == 1 && self.o == 1 && self.groups > 1
    }

    /// A pointwise convolution as one long line, which is gathered by plain copies.
    fn simplified(&self) -> ConvShape {
        let one = [1; 3];
        let plain =
            self.kernel == one && self.stride == one && self.pad == [0; 3] && self.input == self.output;
        let line = [1, 1, self.input_len()];
        if plain { ConvShape { input: line, output: line, ..*self } } else { *self }
    }

    fn check(&self, x: usize, w: usize, y: usize) {
        let sizes = (self.x_len(), self.w_len(), self.y_len());
        assert_eq!((x, w, y), sizes, "sizes of x, w, y do not match {self:?}");
        assert!(
            self.stride.iter().chain(&self.dilation).all(|&s| s > 0),
            "zero stride or dilation in {self:?}"
        );
    }

    fn forward_dims(&self) -> [usize; 3] {
        [self.o, self.n * self.output_len(), self.c * self.taps()]
    }

    fn input_grad_dims(&self) -> [usize; 3] {
        [self.c, self.n * self.input_len(), self.o * self.taps()]
    }

    fn weight_grad_dims(&self) -> [usize; 3] {
        [self.o, self.c * self.taps(), self.n * self.output_len()]
    }

    /// How outputs read the input.
    pub(crate) fn reading(&self) -> PatchWindow {
        PatchWindow { positions: self.output, source: self.input, mul: self.stride, div: [1; 3] }
    }

    /// How inputs collect from the outputs that read them.
    pub(crate) fn collecting(&self) -> PatchWindow {
        PatchWindow { positions: self.input, source: self.output, mul: [1; 3], div: self.stride }
    }

    /// How outputs read the input, as [`TapGrid`].
    fn reading_grid(&self) -> TapGrid {
        TapGrid {
            positions: self.output,
            source: self.input,
            step: self.stride,
            taps: self.kernel,
            first: self.pad.map(|p| -p),
            slope: self.dilation.map(|d| d as isize),
        }
    }

    /// How inputs collect from outputs, as [`TapGrid`]; only without strides.
    fn collecting_grid(&self) -> TapGrid {
        TapGrid {
            positions: self.input,
            source: self.output,
            step: [1; 3],
            taps: self.kernel,
            first: self.pad,
            slope: self.dilation.map(|d| -(d as isize)),
        }
    }

    fn input_patches<'a>(&self, x: &'a [f32], positions_reduced: bool) -> Patches<'a> {
        Patches {
            data: x,
            image: self.groups * self.c * self.input_len(),
            window: self.reading(),
            kernel: self.kernel,
            shift: self.pad.map(|p| -p),
            slope: self.dilation.map(|d| d as isize),
            positions_reduced,
        }
    }
}

/// Whether this many result channels fill vectors well enough.
pub(crate) fn fills_vectors(channels: usize) -> bool {
    channels >= 12
}

/// Floats of scratch [`forward`] needs.
pub fn forward_scratch_len(s: &ConvShape, threads: usize) -> usize {
    if s.is_depthwise() {
        depthwise::forward_scratch_len(s, threads)
    } else if fills_vectors(s.o) {
        let s = &s.simplified();
        gather::over_channels_scratch_len(&s.reading_grid(), s.n, s.c, s.o, threads)
    } else {
        product_len(s.forward_dims(), threads)
    }
}

/// Floats of scratch [`input_grad`] needs.
pub fn input_grad_scratch_len(s: &ConvShape, threads: usize) -> usize {
    if s.is_depthwise() {
        depthwise::input_grad_scratch_len(s, threads)
    } else if phase::applies(s) {
        phase::input_grad_scratch_len(s, threads)
    } else if fills_vectors(s.c) {
        let s = &s.simplified();
        gather::over_channels_scratch_len(&s.collecting_grid(), s.n, s.o, s.c, threads)
    } else {
        product_len(s.input_grad_dims(), threads)
    }
}

/// Floats of scratch [`weight_grad`] needs.
pub fn weight_grad_scratch_len(s: &ConvShape, threads: usize) -> usize {
    if s.is_depthwise() {
        depthwise::weight_grad_scratch_len(s, threads)
    } else if fills_vectors(s.o) {
        let s = &s.simplified();
        gather::over_positions_scratch_len(&s.reading_grid(), s.n, s.c, s.o, threads)
    } else {
        product_len(s.weight_grad_dims(), threads)
    }
}

/// y = x * w. Panics if a slice does not have the shape's size or the scratch is too small.
pub fn forward(team: &Team, s: &ConvShape, x: &[f32], w: &[f32], y: &mut [f32], scratch: &mut [f32]) {
    s.check(x.len(), w.len(), y.len());
    if s.is_depthwise() {
        return depthwise::forward(team, s, x, w, y, scratch);
    }
    let s = &s.simplified();
    let (k, spatial) = (s.c * s.taps(), s.output_len());
    let channels = s.o * spatial;
    if fills_vectors(s.o) {
        let places = ResultLayout::whole(s.groups * channels, s.output);
        let y = SharedMut::new(y);
        for g in 0..s.groups {
            let data = &x[(g * s.c * s.input_len()).min(x.len())..];
            let images = ImageSource { data, image: s.groups * s.c * s.input_len(), n: s.n, channels: s.c };
            let right = Strided { data: &w[g * s.o * k..], outer: k, reduced: 1 };
            let to = places.from(g * channels);
            gather::sum_over_channels(team, &s.reading_grid(), images, &right, s.o, &y, &to, scratch);
        }
        return;
    }
    let operands = |g: usize| {
        let a = Strided { data: &w[g * s.o * k..], outer: k, reduced: 1 };
        (a, s.input_patches(&x[g * s.c * s.input_len()..], false))
    };
    let c = Columns { row: spatial, inner: spatial, outer: s.groups * channels, group: channels };
    grouped(team, s.groups, s.forward_dims(), operands, y, c, scratch);
}

/// dx, the gradient of x; inputs that no output reads get 0. With a stride, no result is -0.0, and kernel positions that
/// cannot reach an input contribute no term, even if the weight is infinite.
pub fn input_grad(team: &Team, s: &ConvShape, dy: &[f32], w: &[f32], dx: &mut [f32], scratch: &mut [f32]) {
    s.check(dx.len(), w.len(), dy.len());
    if s.is_depthwise() {
        return depthwise::input_grad(team, s, dy, w, dx, scratch);
    }
    if phase::applies(s) {
        return phase::input_grad(team, s, dy, w, dx, scratch);
    }
    let s = &s.simplified();
    let (taps, spatial) = (s.taps(), s.input_len());
    let channels = s.c * spatial;
    let loops = [(s.o, s.c * taps), (taps, 1)];
    let weights = |g: usize| Nested { data: &w[g * s.o * s.c * taps..], outer: taps, loops: &loops };
    if fills_vectors(s.c) {
        let places = ResultLayout::whole(s.groups * channels, s.input);
        let dx = SharedMut::new(dx);
        for g in 0..s.groups {
            let data = &dy[(g * s.o * s.output_len()).min(dy.len())..];
            let images = ImageSource { data, image: s.groups * s.o * s.output_len(), n: s.n, channels: s.o };
            let to = places.from(g * channels);
            let grid = s.collecting_grid();
            gather::sum_over_channels(team, &grid, images, &weights(g), s.c, &dx, &to, scratch);
        }
        return;
    }
    let operands = |g: usize| {
        let a = weights(g);
        let b = Patches {
            data: &dy[g * s.o * s.output_len()..],
            image: s.groups * s.o * s.output_len(),
            window: s.collecting(),
            kernel: s.kernel,
            shift: s.pad,
            slope: s.dilation.map(|d| -(d as isize)),
            positions_reduced: false,
        };
        (a, b)
    };
    let c = Columns { row: spatial, inner: spatial, outer: s.groups * channels, group: channels };
    grouped(team, s.groups, s.input_grad_dims(), operands, dx, c, scratch);
}

/// dw, the gradient of w.
pub fn weight_grad(team: &Team, s: &ConvShape, x: &[f32], dy: &[f32], dw: &mut [f32], scratch: &mut [f32]) {
    s.check(x.len(), dw.len(), dy.len());
    if s.is_depthwise() {
        return depthwise::weight_grad(team, s, x, dy, dw, scratch);
    }
    let s = &s.simplified();
    let (k, spatial) = (s.c * s.taps(), s.output_len());
    let loops = [(s.n, s.groups * s.o * spatial), (spatial, 1)];
    let outputs = |g: usize| {
        let data = &dy[(g * s.o * spatial).min(dy.len())..];
        Nested { data, outer: spatial, loops: &loops }
    };
    if fills_vectors(s.o) {
        for (g, dw) in dw.chunks_exact_mut((s.o * k).max(1)).enumerate() {
            let data = &x[(g * s.c * s.input_len()).min(x.len())..];
            let images = ImageSource { data, image: s.groups * s.c * s.input_len(), n: s.n, channels: s.c };
            gather::sum_over_positions(team, &s.reading_grid(), images, &outputs(g), s.o, dw, scratch);
        }
        return;
    }
    let operands = |g: usize| (outputs(g), s.input_patches(&x[g * s.c * s.input_len()..], true));
    let c = Columns { row: k, inner: usize::MAX, outer: 0, group: s.o * k };
    grouped(team, s.groups, s.weight_grad_dims(), operands, dw, c, scratch);
}

/// The layout of group 0 of a result, as for [`gemm::OutputMatrix`], and the distance to the next group.
struct Columns {
    row: usize,
    inner: usize,
    outer: usize,
    group: usize,
}

fn product_len([m, n, k]: [usize; 3], threads: usize) -> usize {
    gemm::scratch_len(m, n, k, threads)
}

/// One product per group. Divides the groups over the team if there are enough, else each product.
fn grouped<A: Operand, B: Operand>(
    team: &Team,
    groups: usize,
    dims: [usize; 3],
    operands: impl Fn(usize) -> (A, B) + Sync,
    out: &mut [f32],
    c: Columns,
    scratch: &mut [f32],
) {
    let [m, n, k] = dims;
    if m * n == 0 {
        return;
    }
    if groups < 2 * team.threads() {
        for g in 0..groups {
            let (a, b) = operands(g);
            let data = &mut out[g * c.group..];
            let to = gemm::OutputMatrix::runs(data, c.row, c.inner, c.outer);
            gemm::gemm(team, dims, &a, &b, to, false, scratch);
        }
        return;
    }
    let each = gemm::serial_scratch_len(m, n, k);
    let parts = team.threads();
    assert!(scratch.len() >= parts * each, "scratch has {} floats, {} needed", scratch.len(), parts * each);
    let (out, scratch) = (SharedMut::new(out), SharedMut::new(scratch));
    team.run(parts, &|part| {
        // SAFETY: each part has its own range of scratch.
        let scratch = unsafe { scratch.slice(part * each..(part + 1) * each) };
        for g in share(groups, 1, parts, part) {
            let (a, b) = operands(g);
            let ptr = out.as_ptr().wrapping_add(g * c.group);
            let to = TileOutput { ptr, row: c.row, inner: c.inner, outer: c.outer };
            // SAFETY: the sizes were checked against the shape, and groups write disjoint elements.
            unsafe { gemm::serial_to(team.isa(), dims, &a, &b, to, false, scratch) };
        }
    });
}

#[cfg(test)]
#[path = "conv_tests.rs"]
mod tests;
