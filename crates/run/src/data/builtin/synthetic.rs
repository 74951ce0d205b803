//! Data sets made by the program itself, example by example, from (seed, index): points in the
//! plane, random inputs for benchmarks, and text of a small grammar. Digits and solids have files
//! of their own.

use gulliver_graph::model::IGNORED;
use gulliver_graph::random::{RandomStream, hash_name, sin_cos_turn};

use crate::data::format::sequences::{mask_and_length, pad};
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

/// Which picture the points form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A round cloud per class.
    Blobs,
    /// A spiral arm per class.
    Spirals,
}

/// Points in the plane: x `[b, 2]`, y `[b]`.
pub struct Plane {
    /// Source of the points.
    pub seed: u64,
    /// Number of the first example.
    pub first: u64,
    /// Number of examples.
    pub examples: usize,
    /// Number of clouds or arms.
    pub classes: usize,
    /// Which picture.
    pub shape: Shape,
}

impl Plane {
    fn point(&self, i: usize) -> ([f32; 2], u32) {
        let mut draw = Draw::new(self.seed, "data.plane", self.first + i as u64);
        let class = draw.below(self.classes);
        let point = match self.shape {
            Shape::Blobs => {
                let mut centre = Draw::new(self.seed, "data.plane.centre", class as u64);
                [centre.range(-3.0, 3.0) + 0.6 * draw.normal(), centre.range(-3.0, 3.0) + 0.6 * draw.normal()]
            }
            Shape::Spirals => {
                let radius = draw.range(0.1, 1.0);
                let (sine, cosine) = sin_cos_turn(f64::from(radius) + class as f64 / self.classes as f64);
                [cosine, sine].map(|side| 2.0 * radius * side as f32 + 0.04 * draw.normal())
            }
        };
        (point, class as u32)
    }
}

impl Dataset for Plane {
    fn len(&self) -> usize {
        self.examples
    }

    fn length(&self, _: usize) -> Option<usize> {
        None
    }

    fn batch(&self, indices: &[usize]) -> Result<Batch, DataError> {
        check_indices(indices, self.examples)?;
        let (points, classes): (Vec<_>, Vec<_>) = indices.iter().map(|&i| self.point(i)).unzip();
        let x = tensor(&[indices.len(), 2], HostData::F32(points.concat()));
        Ok(Batch::of([("x", x), ("y", class_tensor(classes.into_iter()))]))
    }

    fn info(&self) -> DataInfo {
        DataInfo {
            examples: self.examples,
            classes: Some(self.classes),
            shape: vec![2],
            ..DataInfo::default()
        }
    }
}

/// Normal noise with random classes, for benchmarks: x `[b, shape…]`, y `[b]`.
pub struct Noise {
    /// Source of the numbers.
    pub seed: u64,
    /// Number of the first example.
    pub first: u64,
    /// Number of examples.
    pub examples: usize,
    /// Shape of one example.
    pub shape: Vec<usize>,
    /// Number of classes.
    pub classes: usize,
}

impl Dataset for Noise {
    fn len(&self) -> usize {
        self.examples
    }

    fn length(&self, _: usize) -> Option<usize> {
        None
    }

    fn batch(&self, indices: &[usize]) -> Result<Batch, DataError> {
        check_indices(indices, self.examples)?;
        let width: usize = self.shape.iter().product();
        let mut x = Vec::with_capacity(indices.len() * width);
        for &i in indices {
            let stream = RandomStream::new(self.seed, hash_name("data.noise"), self.first + i as u64);
            x.extend((0..width.div_ceil(4) as u64).flat_map(|b| stream.normal_block(b)).take(width));
        }
        let class = |&i: &usize| {
            let mut draw = Draw::new(self.seed, "data.noise.class", self.first + i as u64);
            draw.below(self.classes) as u32
        };
        let shape = [&[indices.len()], &self.shape[..]].concat();
        let y = class_tensor(indices.iter().map(class));
        Ok(Batch::of([("x", tensor(&shape, HostData::F32(x))), ("y", y)]))
    }

    fn info(&self) -> DataInfo {
        DataInfo {
            examples: self.examples,
            classes: Some(self.classes),
            shape: self.shape.clone(),
            ..DataInfo::default()
        }
    }
}

/// Random token ids, for benchmarks: x `[b, t]`; y `[b]` random classes, or without classes the next
/// ids `[b, t]`. When lengths vary, also "mask" and "length".
pub struct Tokens {
    /// Source of the ids.
    pub seed: u64,
    /// Number of the first example.
    pub first: u64,
    /// Number of examples.
    pub examples: usize,
    /// Number of different ids.
    pub vocabulary: usize,
    /// Shortest example.
    pub min_length: usize,
    /// Longest example.
    pub length: usize,
    /// Number of classes, or none for next-token prediction.
    pub classes: Option<usize>,
}

impl Tokens {
    fn length_of(&self, i: usize) -> usize {
        let mut draw = Draw::new(self.seed, "data.tokens.length", self.first + i as u64);
        self.min_length + draw.below(self.length - self.min_length + 1)
    }

    fn ids(&self, i: usize, count: usize) -> Vec<u32> {
        let stream = RandomStream::new(self.seed, hash_name("data.tokens"), self.first + i as u64);
        (0..count as u64).map(|t| stream.below(t, self.vocabulary as u64) as u32).collect()
    }
}

impl Dataset for Tokens {
    fn len(&self) -> usize {
        self.examples
    }

    fn length(&self, i: usize) -> Option<usize> {
        (self.min_length < self.length && i < self.examples).then(|| self.length_of(i))
    }

    fn batch(&self, indices: &[usize]) -> Result<Batch, DataError> {
        check_indices(indices, self.examples)?;
        let lengths: Vec<usize> = indices.iter().map(|&i| self.length_of(i)).collect();
        let all: Vec<Vec<u32>> = indices.iter().zip(&lengths).map(|(&i, &n)| self.ids(i, n + 1)).collect();
        let rows = |shift: usize| -> Vec<&[u32]> {
            all.iter().zip(&lengths).map(|(ids, &n)| &ids[shift..shift + n]).collect()
        };
        let y = match self.classes {
            None => pad(&rows(1), IGNORED),
            Some(classes) => class_tensor(indices.iter().map(|&i| {
                let mut draw = Draw::new(self.seed, "data.tokens.class", self.first + i as u64);
                draw.below(classes) as u32
            })),
        };
        let mut batch = Batch::of([("x", pad(&rows(0), 0)), ("y", y)]);
        if self.min_length < self.length {
            let (mask, length) = mask_and_length(&lengths);
            batch.fields.extend(Batch::of([("mask", mask), ("length", length)]).fields);
        }
        Ok(batch)
    }

    fn info(&self) -> DataInfo {
        DataInfo {
            examples: self.examples,
            classes: self.classes,
            shape: vec![if self.min_length < self.length { 0 } else { self.length }],
            vocabulary: Some(self.vocabulary),
            ..DataInfo::default()
        }
    }
}

/// About `bytes` bytes of sentences of a small grammar: subject and verb agree in number, clauses
/// nest, so that a model has something to learn at every distance.
pub fn grammar_text(seed: u64, bytes: usize) -> String {
    let mut draw = Draw::new(seed, "data.grammar", 0);
    let mut out = String::with_capacity(bytes + 256);
    while out.len() < bytes {
        let start = out.len();
        let plural = noun_phrase(&mut draw, &mut out, 0);
        verb_phrase(&mut draw, &mut out, plural, 0);
        out.truncate(out.trim_end().len());
        out.push_str([".\n", ".\n", "!\n", ".\n"][draw.below(4)]);
        out[start..start + 1].make_ascii_uppercase();
    }
    out
}

/// Returns whether it is plural.
fn noun_phrase(draw: &mut Draw, out: &mut String, depth: usize) -> bool {
    const ADJECTIVES: [&str; 8] = ["small", "tall", "old", "quiet", "brave", "green", "hungry", "curious"];
    const NOUNS: [&str; 10] =
        ["giant", "sailor", "horse", "doctor", "captain", "king", "island", "ship", "tower", "garden"];
    let plural = draw.below(2) == 1;
    let determiners = if plural { ["the", "some", "two", "many"] } else { ["the", "a", "one", "this"] };
    let mut word = |text: &str| {
        out.push_str(text);
        out.push(' ');
    };
    word(determiners[draw.below(4)]);
    if draw.below(3) == 0 {
        word(ADJECTIVES[draw.below(8)]);
    }
    let noun = NOUNS[draw.below(10)];
    word(&if plural { format!("{noun}s") } else { noun.to_string() });
    if depth < 2 && draw.below(5) == 0 {
        word("that");
        verb_phrase(draw, out, plural, depth + 1);
    }
    plural
}

fn verb_phrase(draw: &mut Draw, out: &mut String, plural: bool, depth: usize) {
    const VERBS: [&str; 8] = ["see", "follow", "remember", "fear", "visit", "measure", "draw", "help"];
    out.push_str(VERBS[draw.below(8)]);
    out.push_str(if plural { " " } else { "s " });
    noun_phrase(draw, out, depth + 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_do_not_depend_on_the_batch() {
        let sets: [Box<dyn Dataset>; 4] = [
            Box::new(Plane { seed: 1, first: 0, examples: 100, classes: 3, shape: Shape::Spirals }),
            Box::new(Plane { seed: 1, first: 0, examples: 100, classes: 3, shape: Shape::Blobs }),
            Box::new(Noise { seed: 1, first: 0, examples: 100, shape: vec![3, 5], classes: 4 }),
            Box::new(Tokens {
                seed: 1,
                first: 0,
                examples: 100,
                vocabulary: 50,
                min_length: 6,
                length: 6,
                classes: None,
            }),
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

    #[test]
    fn varying_tokens_have_a_mask() {
        let set = Tokens {
            seed: 3,
            first: 9,
            examples: 40,
            vocabulary: 11,
            min_length: 2,
            length: 9,
            classes: Some(2),
        };
        let indices: Vec<usize> = (0..40).collect();
        let b = set.batch(&indices).unwrap();
        let lengths = b.get("length").unwrap().as_i64().unwrap();
        assert!((0..40).all(|i| set.length(i) == Some(lengths[i] as usize)));
        assert_eq!((*lengths.iter().min().unwrap(), *lengths.iter().max().unwrap()), (2, 9));
        assert_eq!(b.get("mask").unwrap().shape(), [40, 9]);
    }

    #[test]
    fn grammar_is_repeatable_text() {
        let text = grammar_text(5, 2000);
        assert_eq!(text, grammar_text(5, 2000));
        assert_ne!(text, grammar_text(6, 2000));
        assert!(text.len() >= 2000 && text.lines().all(|l| l.ends_with(['.', '!']) && !l.contains("  ")));
    }
}
