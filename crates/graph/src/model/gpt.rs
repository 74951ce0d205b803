//! GPT: a causal transformer with learned positions, normalisation before each block, tanh gelu and
//! tied embeddings. Weights are named as in nanoGPT and laid out as in PyTorch's `Linear`; the layer that
//! judges a whole text from its last token is named as in Hugging Face's `GPT2ForSequenceClassification`.

use super::head::{Head, Headed, NEXT_TOKENS, last_token};
use super::param::{Param, ParamValue, Params, float, int, param, text, wrong};
use super::{Architecture, Family, ModelInput, Settings, tokens};
use crate::graph::build::Builder;
use crate::graph::{GraphError, Init, Value};

/// Sizes of a GPT.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpt {
    /// Number of tokens.
    pub vocab: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Attention heads; divides the width.
    pub heads: usize,
    /// Blocks.
    pub layers: usize,
    /// Longest input.
    pub context: usize,
    /// The kind of prediction.
    pub head: Head,
    /// Classes of the text, or numbers to regress.
    pub classes: usize,
    /// Share dropped after the embeddings and each half block.
    pub dropout: f32,
}

/// Parameters of the family.
pub static FAMILY: Family = Family { takes: ModelInput::Tokens, heads: NEXT_TOKENS, params: PARAMS, make };

static PARAMS: &[Param] = &[
    param("vocab", int(65), "number of tokens"),
    param("width", int(128), "width of the residual stream"),
    param("heads", int(4), "attention heads; must divide the width"),
    param("layers", int(4), "transformer blocks"),
    param("context", int(64), "longest input"),
    param(
        "head",
        text("lm"),
        "`lm` predicts the next token, `classify` a class of the text, `regress` numbers",
    ),
    param("classes", int(2), "classes of the text, or numbers to regress"),
    param("dropout", float(0.0), "share dropped after embeddings and half blocks"),
];

const fn sizes(
    vocab: i64,
    width: i64,
    heads: i64,
    layers: i64,
    context: i64,
) -> [(&'static str, ParamValue); 5] {
    [
        ("vocab", int(vocab)),
        ("width", int(width)),
        ("heads", int(heads)),
        ("layers", int(layers)),
        ("context", int(context)),
    ]
}

/// For characters, 0.8 million parameters.
pub static NANO: Settings = &sizes(65, 128, 4, 4, 64);
/// For characters, 11 million parameters.
pub static MINI: Settings = &sizes(65, 384, 6, 6, 256);
/// GPT-2, the smallest.
pub static GPT2: Settings = &sizes(50257, 768, 12, 12, 1024);
/// GPT-2 medium.
pub static MEDIUM: Settings = &sizes(50257, 1024, 16, 24, 1024);
/// GPT-2 large.
pub static LARGE: Settings = &sizes(50257, 1280, 20, 36, 1024);
/// GPT-2 XL.
pub static XL: Settings = &sizes(50257, 1600, 25, 48, 1024);
/// 10 billion parameters.
pub static B10: Settings = &sizes(50257, 4096, 32, 48, 1024);
/// 20 billion parameters.
pub static B20: Settings = &sizes(50257, 4096, 32, 96, 1024);
/// 40 billion parameters.
pub static B40: Settings = &sizes(50257, 5120, 40, 128, 1024);

/// GPT-2 of 10 billion parameters, as Harmony's authors deepen it (Li et al., 2022).
pub static GPT2_10B: Settings = &sizes(50257, 4096, 32, 50, 1024);
/// GPT-2 of 20 billion parameters.
pub static GPT2_20B: Settings = &sizes(50257, 4096, 32, 100, 1024);
/// GPT-2 of 30 billion parameters.
pub static GPT2_30B: Settings = &sizes(50257, 4096, 32, 150, 1024);
/// GPT-2 of 40 billion parameters.
pub static GPT2_40B: Settings = &sizes(50257, 4096, 32, 200, 1024);

/// GPT-3 as Megatron trains it: 2048 tokens a sample, a vocabulary padded to a multiple of 1024, dropout.
const fn megatron(width: i64, heads: i64, layers: i64) -> [(&'static str, ParamValue); 6] {
    [
        ("vocab", int(51200)),
        ("width", int(width)),
        ("heads", int(heads)),
        ("layers", int(layers)),
        ("context", int(2048)),
        ("dropout", float(0.1)),
    ]
}

/// GPT-3, 1.3 billion parameters.
pub static GPT3_1B: Settings = &megatron(2048, 16, 24);
/// GPT-3, 6.7 billion parameters.
pub static GPT3_7B: Settings = &megatron(4096, 32, 32);
/// GPT-3, 13 billion parameters.
pub static GPT3_13B: Settings = &megatron(5120, 40, 40);
/// GPT-3, 175 billion parameters.
pub static GPT3_175B: Settings = &megatron(12288, 96, 96);
/// Megatron, 22 billion parameters (Korthikanti et al., 2022).
pub static MEGATRON_22B: Settings = &megatron(6144, 64, 48);
/// Megatron-Turing NLG, 530 billion parameters (Smith et al., 2022).
pub static MEGATRON_530B: Settings = &megatron(20480, 128, 105);
/// Megatron, a trillion parameters (Narayanan et al., 2021).
pub static MEGATRON_1T: Settings = &megatron(25600, 160, 128);

fn make(p: &Params) -> Result<Box<dyn Architecture>, GraphError> {
    let gpt = Gpt {
        vocab: p.size("vocab")?,
        width: p.size("width")?,
        heads: p.size("heads")?,
        layers: p.size("layers")?,
        context: p.size("context")?,
        head: Head::read(p, NEXT_TOKENS)?,
        classes: p.size("classes")?,
        dropout: p.rate("dropout")?,
    };
    if !gpt.width.is_multiple_of(gpt.heads) {
        return wrong(&p.model, format!("{} heads do not divide width {}", gpt.heads, gpt.width));
    }
    Ok(Box::new(gpt))
}

const SMALL: Init = Init::Normal(0.02);
const ZERO: Option<Init> = Some(Init::Constant(0.0));
const EPS: f32 = 1e-5;

impl Gpt {
    fn block(&self, g: &mut Builder, x: Value) -> Result<Value, GraphError> {
        // Each block adds to the residual stream twice; this keeps its variance near one at the start.
        let last = Init::Normal(0.02 / (2.0 * self.layers as f32).sqrt());
        let h = g.scope("ln_1", |g| g.layer_norm_layer(x, EPS))?;
        let h = g.scope("attn", |g| -> Result<Value, GraphError> {
            let qkv = g.scope("c_attn", |g| g.linear_from(h, 3 * self.width, SMALL, ZERO))?;
            let mut parts = Vec::with_capacity(3);
            for part in g.split(qkv, 2, &[self.width; 3])? {
                parts.push(g.heads(part, self.heads)?);
            }
            let o = g.attention(parts[0], parts[1], parts[2], None, true, None)?;
            let o = g.merge_heads(o)?;
            g.scope("c_proj", |g| g.linear_from(o, self.width, last, ZERO))
        })?;
        let h = g.dropout(h, self.dropout)?;
        let x = g.add(x, h)?;
        let h = g.scope("ln_2", |g| g.layer_norm_layer(x, EPS))?;
        let h = g.scope("mlp", |g| -> Result<Value, GraphError> {
            let u = g.scope("c_fc", |g| g.linear_from(h, 4 * self.width, SMALL, ZERO))?;
            let u = g.gelu_tanh(u)?;
            g.scope("c_proj", |g| g.linear_from(u, self.width, last, ZERO))
        })?;
        let h = g.dropout(h, self.dropout)?;
        g.add(x, h)
    }
}

impl Headed for Gpt {
    fn head(&self) -> Head {
        self.head
    }

    /// From the tokens `x` to logits `[batch, length, vocab]`, or to one result per text `[batch, classes]`.
    fn build(&self, g: &mut Builder) -> Result<Value, GraphError> {
        let x = tokens(g, "x")?;
        let table = g.scope("wte", |g| g.weight("weight", &[self.vocab, self.width], SMALL))?;
        let positions = g.scope("wpe", |g| g.weight("weight", &[self.context, self.width], SMALL))?;
        let h = g.scope("wte", |g| g.embedding(table, x, None))?;
        let length = g.shape(x)[1].clone();
        let positions = g.slice(positions, 0, 0, length)?;
        let h = g.add(h, positions)?;
        let mut h = g.dropout(h, self.dropout)?;
        for layer in 0..self.layers {
            h = g.scope(format!("h.{layer}"), |g| self.block(g, h))?;
        }
        let h = g.scope("ln_f", |g| g.layer_norm_layer(h, EPS))?;
        if self.head == Head::Tokens {
            return g.scope("lm_head", |g| g.project(h, table));
        }
        let last = last_token(g, h)?;
        g.scope("score", |g| g.linear_from(last, self.classes, SMALL, None))
    }
}
