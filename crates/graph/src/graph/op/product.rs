//! The reference kernel shared by all operators whose outputs are sums of products of two inputs under
//! their spec: contractions and convolutions, and so their gradients.

use crate::dim::Dim;
use crate::spec::{Index, Spec};
use crate::tensor::Tensor;

/// `out = Σ a·b` over the spec's loop nest; windows that leave an input contribute nothing.
pub fn sum_of_products(spec: &Spec, a: &Tensor, b: &Tensor, out: &mut Tensor) {
    let dims = |t: &Tensor| t.shape.iter().map(|&d| Dim::from(d)).collect::<Vec<_>>();
    let (da, db) = (dims(a), dims(b));
    let extents = spec.extents(&[&da, &db]).expect("types were checked when the node was built");
    let extents: Vec<usize> = extents.iter().map(|e| e.as_const().expect("bound shapes") as usize).collect();
    if extents.contains(&0) {
        return;
    }
    let mut walks = [
        Walk::new(&spec.inputs[0], &extents, &a.shape),
        Walk::new(&spec.inputs[1], &extents, &b.shape),
        Walk::new(&spec.outputs[0], &extents, &out.shape),
    ];
    let mut loops = vec![0; extents.len()];
    loop {
        if walks.iter().all(Walk::inside) {
            let [i, j, k] = [&walks[0], &walks[1], &walks[2]].map(|w| w.offset as usize);
            out.data[k] += a.data[i] * b.data[j];
        }
        let Some(axis) = (0..loops.len()).rev().find(|&axis| loops[axis] + 1 < extents[axis]) else { break };
        for (inner, at) in loops.iter_mut().enumerate().skip(axis + 1) {
            walks.iter_mut().for_each(|w| w.step(inner, -(*at as i64)));
            *at = 0;
        }
        walks.iter_mut().for_each(|w| w.step(axis, 1));
        loops[axis] += 1;
    }
}

/// The position of a walk through the loop nest in one operand.
struct Walk {
    /// Offset of the element; meaningless outside the operand.
    offset: i64,
    /// The stride of each axis.
    stride: Vec<i64>,
    /// Positions along windowed dimensions, which may leave the operand: (position, extent, step per axis).
    windows: Vec<(i64, i64, Vec<i64>)>,
}

impl Walk {
    fn new(indices: &[Index], extents: &[usize], shape: &[usize]) -> Walk {
        let mut walk = Walk { offset: 0, stride: vec![0; extents.len()], windows: Vec::new() };
        let mut below = 1;
        for (index, &extent) in indices.iter().zip(shape).rev() {
            let mut step = vec![0; extents.len()];
            match index {
                Index::Axis(a) => step[a.0] = 1,
                Index::One => {}
                Index::Merge(axes) => {
                    let mut inner = 1;
                    for a in axes.iter().rev() {
                        step[a.0] += inner;
                        inner *= extents[a.0] as i64;
                    }
                }
                Index::Affine { terms, low, .. } => {
                    terms.iter().for_each(|(stride, a)| step[a.0] += stride);
                    walk.offset -= low * below;
                    walk.windows.push((-low, extent as i64, step.clone()));
                }
            }
            walk.stride.iter_mut().zip(step).for_each(|(sum, s)| *sum += s * below);
            below *= extent as i64;
        }
        walk
    }

    fn step(&mut self, axis: usize, count: i64) {
        self.offset += count * self.stride[axis];
        for (position, _, step) in &mut self.windows {
            *position += count * step[axis];
        }
    }

    fn inside(&self) -> bool {
        self.windows.iter().all(|(position, extent, _)| (0..*extent).contains(position))
    }
}

/// The offset of the element that a point of the loop nest touches; `None` in the padding.
pub fn locate(indices: &[Index], loops: &[usize], extents: &[usize], shape: &[usize]) -> Option<usize> {
    let mut offset = 0;
    for (index, &extent) in indices.iter().zip(shape) {
        let position = match index {
            Index::Axis(a) => loops[a.0],
            Index::One => 0,
            Index::Merge(axes) => axes.iter().fold(0, |p, a| p * extents[a.0] + loops[a.0]),
            Index::Affine { terms, low, .. } => {
                let at = terms.iter().map(|(s, a)| s * loops[a.0] as i64).sum::<i64>() - low;
                usize::try_from(at).ok().filter(|&p| p < extent)?
            }
        };
        offset = offset * extent + position;
    }
    Some(offset)
}
