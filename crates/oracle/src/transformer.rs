//! Transformers from their configuration, without a graph: 175 billion weights take microseconds.

use crate::OracleError;
use crate::kernel::{Divide, Grows, Work};
use crate::workload::{Layer, Workload};

/// A stack of equal transformer layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transformer {
    /// Width of the model.
    pub hidden: f64,
    /// Layers.
    pub layers: u32,
    /// Attention heads.
    pub heads: f64,
    /// Tokens of a sample.
    pub length: f64,
    /// Tokens that are attended to beside the sample's own.
    pub memory: f64,
    /// Width of the inner layer, as a multiple of `hidden`.
    pub inner: f64,
    /// Matrices of the inner layer: 2, or 3 where one is a gate.
    pub matrices: f64,
    /// Different tokens.
    pub vocabulary: f64,
    /// Share of tokens for which an output is computed: 1, or less for masked models.
    pub predicted: f64,
    /// Attention keeps its scores (true), or never writes them down.
    pub scores: bool,
    /// Dropout after attention and the inner layer.
    pub dropout: bool,
}

impl Transformer {
    /// As GPT is configured: an inner layer of four times the width, all tokens predicted.
    pub fn gpt(hidden: u32, layers: u32, heads: u32, length: u32, vocabulary: u32) -> Transformer {
        Transformer {
            hidden: hidden as f64,
            layers,
            heads: heads as f64,
            length: length as f64,
            memory: 0.0,
            inner: 4.0,
            matrices: 2.0,
            vocabulary: vocabulary as f64,
            predicted: 1.0,
            scores: true,
            dropout: true,
        }
    }

    /// Well-known ones: `gpt2-xl`, `gpt3-175b`…; names are in [`NAMED`].
    pub fn named(name: &str) -> Result<Transformer, OracleError> {
        let row = NAMED.iter().find(|row| row.0 == name).ok_or_else(|| OracleError::Unknown {
            what: "transformer",
            name: name.to_string(),
            allowed: NAMED.iter().map(|row| row.0).collect::<Vec<_>>().join(", "),
        })?;
        let (hidden, layers, heads, length, vocabulary) = row.1;
        Ok(Transformer::gpt(hidden, layers, heads, length, vocabulary))
    }

    /// Its layers.
    pub fn workload(&self, name: &str) -> Workload {
        let Transformer { hidden: h, length: s, vocabulary: v, .. } = *self;
        let seen = s + self.memory;
        let inner = self.inner * h;
        // What attention streams: scores written, scaled and masked, softmax, dropout; or nothing.
        let scores = if self.scores { self.heads * s * seen } else { 0.0 };
        let drop = if self.dropout { 1.0 } else { 0.0 };
        let whole = |passes: f64, calls: f64| Work::memory(passes * s * h, calls, Divide::Sequence);
        let shared = |elements: f64, calls: f64| Work::memory(elements, calls, Divide::Batch);
        let d = h / self.heads;
        let products = [
            Work::matrix(s, 3.0 * h, h, Divide::Columns),
            Work { again: true, ..Work::batched(self.heads, s, seen, d) },
            Work { again: true, ..Work::batched(self.heads, s, d, seen) },
            Work::matrix(s, h, h, Divide::Depth),
            Work::matrix(s, (self.matrices - 1.0) * inner, h, Divide::Columns),
            Work::matrix(s, h, inner, Divide::Depth),
        ];
        let mut forward = products.to_vec();
        forward.extend([
            // Two normalisations; bias, dropout and residual twice; views and copies of heads.
            whole(4.0, 2.0),
            whole(2.0 * (3.0 + drop), 4.0),
            shared(2.0 * 3.0 * s * h, 4.0),
            Work { again: true, ..shared((2.0 + 2.5 * drop) * scores, 3.0) },
            shared((1.0 + self.matrices - 1.0) * s * inner, 2.0),
        ]);
        let mut backward: Vec<Work> = products.iter().flat_map(|work| work.gradients()).collect();
        backward.extend([
            whole(8.0, 4.0),
            whole(2.0 * (3.0 + drop), 6.0),
            shared(2.0 * 3.0 * s * h, 6.0),
            shared((3.0 + 2.5 * drop) * scores, 3.0),
            shared((2.0 + self.matrices - 1.0) * s * inner, 3.0),
        ]);
        let weights = (4.0 * h + self.matrices * inner) * h + 13.0 * h;
        let block = Layer {
            count: self.layers,
            weights,
            input: s * h,
            output: s * h,
            // Of 34 + 5 a s / h bytes a token and width (Korthikanti et al.), in elements of two bytes.
            kept: s * h * (4.0 + 2.0 * self.inner) + (2.0 + 0.5 * drop) * scores,
            kept_whole: s * h * (4.0 + drop),
            selective: (2.0 + 0.5 * drop) * scores,
            working: s * inner,
            reductions: 2.0,
            heads: self.heads,
            ..Layer::new("layer", forward, backward)
        };
        let embedding = Layer {
            weights: (v + s) * h,
            input: s,
            output: s * h,
            kept_whole: s * h,
            reductions: 1.0,
            ..Layer::new("embedding", vec![whole(4.0, 4.0)], vec![whole(5.0, 4.0)])
        };
        let tokens = s * self.predicted;
        let logits = Work { rows: tokens, ..Work::matrix(tokens, v, h, Divide::Columns) };
        let mut forward = vec![whole(2.0, 1.0), logits, shared(6.0 * tokens * v, 8.0)];
        let mut backward: Vec<Work> = logits.gradients().to_vec();
        backward.extend([shared(5.0 * tokens * v, 5.0), whole(4.0, 2.0)]);
        forward[0].grows = Grows::Products;
        let head = Layer {
            input: s * h,
            output: tokens,
            kept: 3.0 * tokens * v,
            kept_whole: 2.0 * s * h,
            working: 2.0 * tokens * v,
            ..Layer::new("head", forward, backward)
        };
        Workload { name: name.to_string(), layers: vec![embedding, block, head], sample: s, tied: v * h }
    }
}

/// Settings of a well-known configuration that may be changed, by the names that models have for them.
pub const SETTINGS: [&str; 5] = ["width", "layers", "heads", "context", "vocab"];

/// Tokens that a well-known configuration was trained on, as published: those of GPT-3 (Brown et al., 2020), of
/// Megatron-Turing NLG (Smith et al., 2022) and of a model of a trillion weights (Narayanan et al., 2021).
pub fn customary_tokens(name: &str) -> Option<f64> {
    match name {
        "megatron-530b" => Some(270e9),
        "megatron-1t" => Some(450e9),
        name if name.starts_with("gpt3-") => Some(300e9),
        _ => None,
    }
}

/// Width, layers, heads, length, vocabulary.
pub type Sizes = (u32, u32, u32, u32, u32);

/// Well-known configurations.
#[rustfmt::skip]
pub const NAMED: &[(&str, Sizes)] = &[
    ("gpt2-124m", (768, 12, 12, 1024, 50257)),
    ("gpt2-350m", (1024, 24, 16, 1024, 50257)),
    ("gpt2-xl", (1600, 48, 25, 1024, 50257)),
    ("gpt2-10b", (4096, 50, 32, 1024, 50257)),
    ("gpt2-20b", (4096, 100, 32, 1024, 50257)),
    ("gpt2-30b", (4096, 150, 32, 1024, 50257)),
    ("gpt2-40b", (4096, 200, 32, 1024, 50257)),
    ("gpt3-1.3b", (2048, 24, 16, 2048, 51200)),
    ("gpt3-6.7b", (4096, 32, 32, 2048, 51200)),
    ("gpt3-13b", (5120, 40, 40, 2048, 51200)),
    ("megatron-22b", (6144, 48, 64, 2048, 51200)),
    ("gpt3-175b", (12288, 96, 96, 2048, 51200)),
    ("megatron-530b", (20480, 105, 128, 2048, 51200)),
    ("megatron-1t", (25600, 128, 160, 2048, 51200)),
];
