//! The reference kernel shared by all operators whose outputs are sums of products of two inputs under
//! their spec: contractions and convolutions, and so their gradients.

use crate::dim::Dim;
use crate::spec::{Index, Spec};
use crate::tensor::{Tensor, positions};

/// `out = Σ a·b` over the spec's loop nest; windows that leave an input contribute nothing.
pub fn sum_of_products(spec: &Spec, a: &Tensor, b: &Tensor, out: &mut Tensor) {
    let dims = |t: &Tensor| t.shape.iter().map(|&d| Dim::from(d)).collect::<Vec<_>>();
    let (da, db) = (dims(a), dims(b));
    let extents = spec.extents(&[&da, &db]).expect("types were checked when the node was built");
    let extents: Vec<usize> = extents.iter().map(|e| e.as_const().expect("bound shapes") as usize).collect();
    for loops in positions(&extents) {
        let place = |indices: &[Index], t: &Tensor| locate(indices, &loops, &extents, &t.shape);
        if let (Some(i), Some(j), Some(k)) =
            (place(&spec.inputs[0], a), place(&spec.inputs[1], b), place(&spec.outputs[0], out))
        {
            out.data[k] += a.data[i] * b.data[j];
        }
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
