//! Small cases of an operator, used by every test that loops over the table: gradients against finite
//! differences, fast kernels against the reference, cuts against the whole, specs against what is read.

use super::Op;
use super::array::Array;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::Type;
use crate::random::RandomStream;
use crate::spec::{AxisCut, Part};
use crate::tensor::Tensor;

/// An operator with inputs it accepts.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The operator.
    pub op: Op,
    /// Its inputs.
    pub inputs: Vec<SampleInput>,
}

/// Shape, type and contents of one input.
#[derive(Clone, Debug)]
pub struct SampleInput {
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: Vec<usize>,
    /// Its content.
    pub fill: SampleFill,
}

/// Contents of a sample input.
#[derive(Clone, Copy, Debug)]
pub enum SampleFill {
    /// Standard normal.
    Normal,
    /// Uniform in a range.
    Uniform(f64, f64),
    /// Uniform integers from zero up to, not including, this.
    Below(u64),
    /// One number everywhere; not perturbed by tests that poison or differentiate.
    Constant(f64),
}

impl Sample {
    /// A sample whose inputs are f32 and standard normal.
    pub fn normal(op: impl Into<Op>, shapes: &[&[usize]]) -> Sample {
        Sample::new(op, shapes.iter().map(|s| SampleInput::normal(s)).collect())
    }

    /// A sample with these inputs.
    pub fn new(op: impl Into<Op>, inputs: Vec<SampleInput>) -> Sample {
        Sample { op: op.into(), inputs }
    }

    /// The operator done by an array of members; the operands of these numbers are shared.
    pub fn array(&self, members: usize, shared: &[usize]) -> Sample {
        let shared: Vec<bool> = (0..self.inputs.len()).map(|i| shared.contains(&i)).collect();
        let mut inputs = self.inputs.clone();
        for (input, _) in inputs.iter_mut().zip(&shared).filter(|(_, shared)| !**shared) {
            input.shape.insert(0, members);
        }
        Sample::new(Array { op: Box::new(self.op.clone()), members, shared }, inputs)
    }

    /// The types of the inputs.
    pub fn types(&self) -> Vec<Type> {
        self.inputs.iter().map(|i| Type::new(i.dtype, &i.shape)).collect()
    }

    /// The inputs' contents; floats are rounded to f32 so that every kernel sees the same numbers.
    pub fn tensors(&self, seed: u64) -> Vec<Tensor> {
        self.inputs.iter().enumerate().map(|(i, input)| input.tensor(seed, i as u64)).collect()
    }

    /// Shapes of the outputs. Panics if the operator refuses its own sample.
    pub fn output_shapes(&self) -> Vec<Vec<usize>> {
        let spec = self.op.def().spec(&self.types()).unwrap_or_else(|e| panic!("{self:?}: {e}"));
        let shapes: Vec<Vec<Dim>> =
            self.inputs.iter().map(|i| i.shape.iter().map(|&d| d.into()).collect()).collect();
        let shapes: Vec<&[Dim]> = shapes.iter().map(Vec::as_slice).collect();
        let constant = |d: &Dim| d.as_const().expect("samples have constant extents") as usize;
        let outs = spec.infer(&shapes).unwrap_or_else(|e| panic!("{self:?}: {e}"));
        outs.iter().map(|s| s.iter().map(constant).collect()).collect()
    }

    /// The reference kernel's outputs for these inputs.
    pub fn eval(&self, inputs: &[Tensor]) -> Vec<Tensor> {
        let mut outs: Vec<Tensor> = self.output_shapes().iter().map(|s| Tensor::zeros(s)).collect();
        self.op.def().eval(&inputs.iter().collect::<Vec<_>>(), &mut outs);
        outs
    }
}

impl SampleInput {
    /// Standard normal f32.
    pub fn normal(shape: &[usize]) -> SampleInput {
        SampleInput { dtype: DType::F32, shape: shape.to_vec(), fill: SampleFill::Normal }
    }

    /// f32, uniform in a range.
    pub fn uniform(shape: &[usize], low: f64, high: f64) -> SampleInput {
        SampleInput { dtype: DType::F32, shape: shape.to_vec(), fill: SampleFill::Uniform(low, high) }
    }

    /// i64 below a bound.
    pub fn below(shape: &[usize], bound: u64) -> SampleInput {
        SampleInput { dtype: DType::I64, shape: shape.to_vec(), fill: SampleFill::Below(bound) }
    }

    /// Zeros and ones.
    pub fn mask(shape: &[usize]) -> SampleInput {
        SampleInput { dtype: DType::Bool, shape: shape.to_vec(), fill: SampleFill::Below(2) }
    }

    /// An f32 scalar.
    pub fn scalar(value: f64) -> SampleInput {
        SampleInput { dtype: DType::F32, shape: Vec::new(), fill: SampleFill::Constant(value) }
    }

    fn tensor(&self, seed: u64, index: u64) -> Tensor {
        let stream = RandomStream::new(seed, index, 0);
        let element = |i: u64| match self.fill {
            SampleFill::Normal => f64::from(stream.normal_at(i)),
            SampleFill::Uniform(low, high) => {
                f64::from((low + (high - low) * f64::from(stream.uniform_at(i))) as f32)
            }
            SampleFill::Below(n) => stream.below(i, n) as f64,
            SampleFill::Constant(c) => f64::from(c as f32),
        };
        Tensor::new(&self.shape, (0..self.shape.iter().product::<usize>() as u64).map(element).collect())
    }
}

/// One part of a cut sample: which regions it touches and the operator that does it.
#[derive(Clone, Debug)]
pub struct SamplePart {
    /// The regions.
    pub part: Part,
    /// The operator for the part.
    pub op: Op,
}

impl Sample {
    /// Every legal cut into each of these numbers of parts (uneven when they do not divide).
    pub fn cuts(&self, pieces: &[usize]) -> Vec<(AxisCut, Vec<SamplePart>)> {
        let spec = self.op.def().spec(&self.types()).unwrap_or_else(|e| panic!("{self:?}: {e}"));
        let dims: Vec<Vec<Dim>> =
            self.inputs.iter().map(|i| i.shape.iter().map(|&d| d.into()).collect()).collect();
        let dims: Vec<&[Dim]> = dims.iter().map(Vec::as_slice).collect();
        let extents = spec.extents(&dims).unwrap_or_else(|e| panic!("{self:?}: {e}"));
        let extents: Vec<usize> = extents.iter().map(|e| e.as_const().expect("constant") as usize).collect();
        let outputs = self.output_shapes();
        let outputs: Vec<&[usize]> = outputs.iter().map(Vec::as_slice).collect();
        let inputs: Vec<&[usize]> = self.inputs.iter().map(|i| i.shape.as_slice()).collect();
        let mut all = Vec::new();
        for cut in spec.cuts() {
            let extent = spec.cut_extent(cut.axis, &extents, &outputs);
            for &n in pieces {
                if n > extent {
                    continue;
                }
                let parts = (0..n).map(|i| {
                    let range = i * extent / n..(i + 1) * extent / n;
                    let part = spec.part(cut.axis, range, &extents, &inputs, &outputs);
                    let op = self.op.def().part(&part).unwrap_or_else(|| self.op.clone());
                    SamplePart { part, op }
                });
                all.push((cut.clone(), parts.collect()));
            }
        }
        all
    }
}
