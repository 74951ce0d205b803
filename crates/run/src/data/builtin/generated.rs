//! Data sets computed example by example from (seed, index): points in the plane and noise here, digits and point
//! clouds in files of their own.

use gulliver_graph::random::{RandomStream, hash_name, sin_cos_turn};

use crate::data::{Batch, DataError, DataInfo, Dataset, check_indices, class_tensor, tensor};
use crate::host::HostData;

/// Random numbers drawn one after the other for one example.
pub(super) struct Draw {
    uniform: RandomStream,
    normal: RandomStream,
    uniforms: u64,
    normals: u64,
    block: [f32; 4],
}

impl Draw {
    pub fn new(seed: u64, purpose: &str, index: u64) -> Draw {
        let stream = |kind: &str| RandomStream::new(seed, hash_name(purpose) ^ hash_name(kind), index);
        Draw {
            uniform: stream("uniform"),
            normal: stream("normal"),
            uniforms: 0,
            normals: 0,
            block: [0.0; 4],
        }
    }

    /// Uniform between `low` and `high`.
    pub fn range(&mut self, low: f32, high: f32) -> f32 {
        self.uniforms += 1;
        low + (high - low) * self.uniform.uniform_at(self.uniforms)
    }

    /// Uniform in `0..n`.
    pub fn below(&mut self, n: usize) -> usize {
        (f64::from(self.range(0.0, 1.0)) * n as f64) as usize
    }

    /// Standard normal.
    pub fn normal(&mut self) -> f32 {
        if self.normals.is_multiple_of(4) {
            self.block = self.normal.normal_block(self.normals / 4);
        }
        self.normals += 1;
        self.block[((self.normals - 1) % 4) as usize]
    }
}

/// Makes examples that are numbers of one shape with a class.
pub trait Generator: Send + Sync {
    /// Appends "x" of the example with this number and returns its class.
    fn example(&self, seed: u64, number: u64, x: &mut Vec<f32>) -> u32;

    /// Shape, classes and normalisation; the number of examples is not set.
    fn describe(&self) -> DataInfo;
}

/// The examples `first..first + examples` of a generator: x `[b, shape…]` f32, y `[b]`.
pub struct Generated<G> {
    /// Source of the random numbers.
    pub seed: u64,
    /// Number of the first example.
    pub first: u64,
    /// Number of examples.
    pub examples: usize,
    /// Makes them.
    pub generator: G,
}

impl<G: Generator> Dataset for Generated<G> {
    fn len(&self) -> usize {
        self.examples
    }

    fn batch(&self, indices: &[usize]) -> Result<Batch, DataError> {
        check_indices(indices, self.examples)?;
        let shape = [&[indices.len()], &self.generator.describe().shape[..]].concat();
        let mut x = Vec::with_capacity(shape.iter().product());
        let example = |&i: &usize| self.generator.example(self.seed, self.first + i as u64, &mut x);
        let classes: Vec<u32> = indices.iter().map(example).collect();
        let x = tensor(&shape, HostData::F32(x));
        Ok(Batch::of([("x", x), ("y", class_tensor(classes.into_iter()))]))
    }

    fn info(&self) -> DataInfo {
        DataInfo { examples: self.examples, ..self.generator.describe() }
    }
}

/// The pattern of the points of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanePattern {
    /// A round cloud per class.
    Blobs,
    /// A spiral arm per class.
    Spirals,
}

/// Points in the plane: x `[b, 2]`.
pub struct Plane {
    /// Number of clouds or arms.
    pub classes: usize,
    /// Their pattern.
    pub pattern: PlanePattern,
}

impl Generator for Plane {
    fn example(&self, seed: u64, number: u64, x: &mut Vec<f32>) -> u32 {
        let mut draw = Draw::new(seed, "data.plane", number);
        let class = draw.below(self.classes);
        x.extend(match self.pattern {
            PlanePattern::Blobs => {
                let mut centre = Draw::new(seed, "data.plane.centre", class as u64);
                [0; 2].map(|_| centre.range(-3.0, 3.0) + 0.6 * draw.normal())
            }
            PlanePattern::Spirals => {
                let radius = draw.range(0.1, 1.0);
                let (sine, cosine) = sin_cos_turn(f64::from(radius) + class as f64 / self.classes as f64);
                [cosine, sine].map(|side| 2.0 * radius * side as f32 + 0.04 * draw.normal())
            }
        });
        class as u32
    }

    fn describe(&self) -> DataInfo {
        DataInfo { classes: Some(self.classes), shape: vec![2], ..DataInfo::default() }
    }
}

/// Normal noise with random classes, for benchmarks.
pub struct Noise {
    /// Shape of one example.
    pub shape: Vec<usize>,
    /// Number of classes.
    pub classes: usize,
}

impl Generator for Noise {
    fn example(&self, seed: u64, number: u64, x: &mut Vec<f32>) -> u32 {
        let width: usize = self.shape.iter().product();
        let stream = RandomStream::new(seed, hash_name("data.noise"), number);
        x.extend((0..width.div_ceil(4) as u64).flat_map(|b| stream.normal_block(b)).take(width));
        Draw::new(seed, "data.noise.class", number).below(self.classes) as u32
    }

    fn describe(&self) -> DataInfo {
        DataInfo { classes: Some(self.classes), shape: self.shape.clone(), ..DataInfo::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::builtin::tokens::Tokens;

    fn hundred<G: Generator + 'static>(generator: G) -> Box<dyn Dataset> {
        Box::new(Generated { seed: 1, first: 0, examples: 100, generator })
    }

    #[test]
    fn examples_do_not_depend_on_the_batch() {
        let tokens = Tokens {
            seed: 1,
            first: 0,
            examples: 100,
            vocabulary: 50,
            min_length: 6,
            length: 6,
            classes: None,
        };
        let sets = [
            hundred(Plane { classes: 3, pattern: PlanePattern::Spirals }),
            hundred(Plane { classes: 3, pattern: PlanePattern::Blobs }),
            hundred(Noise { shape: vec![3, 5], classes: 4 }),
            Box::new(tokens),
        ];
        for set in sets {
            let both = set.batch(&[7, 8]).unwrap();
            let one = set.batch(&[8]).unwrap();
            for ((name, both), (_, one)) in both.fields.iter().zip(&one.fields) {
                let bytes = both.to_le_bytes();
                assert_eq!(bytes[bytes.len() / 2..], one.to_le_bytes(), "{name}");
            }
            assert_eq!(both.get("x").unwrap().shape()[1..], set.info().shape);
            assert!(set.batch(&[100]).is_err());
            if let Some(classes) = set.info().classes {
                let all: Vec<usize> = (0..100).collect();
                let batch = set.batch(&all).unwrap();
                let y = batch.get("y").unwrap().as_i64().unwrap().to_vec();
                assert!((0..classes as i64).all(|c| y.contains(&c)) && y.iter().all(|&c| c < classes as i64));
            }
        }
    }
}
