//! Values of the reference kernels: every element type held as f64 (integers and booleans exactly),
//! row-major. Slow, plain and obviously right; fast kernels are tested against it.

use std::ops::Range;

/// A dense tensor of f64.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Extents, outermost first.
    pub shape: Vec<usize>,
    /// Elements in row-major order; as many as the product of the shape.
    pub data: Vec<f64>,
}

impl Tensor {
    /// All zero.
    pub fn zeros(shape: &[usize]) -> Tensor {
        Tensor { shape: shape.to_vec(), data: vec![0.0; shape.iter().product()] }
    }

    /// From elements in row-major order.
    pub fn new(shape: &[usize], data: Vec<f64>) -> Tensor {
        assert_eq!(shape.iter().product::<usize>(), data.len(), "elements of shape {shape:?}");
        Tensor { shape: shape.to_vec(), data }
    }

    /// One element, no dimensions.
    pub fn scalar(value: f64) -> Tensor {
        Tensor::new(&[], vec![value])
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Whether some extent is zero.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// The index of the element at this position.
    pub fn offset(&self, position: &[usize]) -> usize {
        debug_assert_eq!(position.len(), self.shape.len());
        position.iter().zip(&self.shape).fold(0, |o, (&p, &d)| {
            debug_assert!(p < d, "position {position:?} in shape {:?}", self.shape);
            o * d + p
        })
    }

    /// The element at this position.
    pub fn at(&self, position: &[usize]) -> f64 {
        self.data[self.offset(position)]
    }

    /// The element at this position, to be changed.
    pub fn at_mut(&mut self, position: &[usize]) -> &mut f64 {
        let at = self.offset(position);
        &mut self.data[at]
    }

    /// A copy of a box.
    pub fn region(&self, region: &[Range<usize>]) -> Tensor {
        let shape: Vec<usize> = region.iter().map(Range::len).collect();
        let data = positions(&shape).map(|p| self.at(&shifted(&p, region))).collect();
        Tensor::new(&shape, data)
    }

    /// Writes a box.
    pub fn set_region(&mut self, region: &[Range<usize>], part: &Tensor) {
        for (p, v) in positions(&part.shape).zip(&part.data) {
            *self.at_mut(&shifted(&p, region)) = *v;
        }
    }

    /// The extents folded into [before, extent, after] around one dimension.
    pub fn around(&self, axis: usize) -> [usize; 3] {
        let before = self.shape[..axis].iter().product();
        [before, self.shape[axis], self.shape[axis + 1..].iter().product()]
    }
}

fn shifted(position: &[usize], region: &[Range<usize>]) -> Vec<usize> {
    position.iter().zip(region).map(|(p, r)| p + r.start).collect()
}

/// All positions of a shape in row-major order.
pub fn positions(shape: &[usize]) -> impl Iterator<Item = Vec<usize>> + use<> {
    let shape = shape.to_vec();
    let count = shape.iter().product::<usize>();
    (0..count).map(move |mut flat| {
        let mut position = vec![0; shape.len()];
        for (p, &d) in position.iter_mut().zip(&shape).rev() {
            *p = flat % d;
            flat /= d;
        }
        position
    })
}
