//! BERT: a bidirectional transformer encoder with normalisation after each half block, for sequences of
//! different lengths under a key padding mask. Weights are named as in Hugging Face's `BertFor…`.

use super::head::{HIDDEN_TOKENS, Head, Headed};
use super::param::{Param, ParamValue, Params, flag, float, int, param, text, wrong};
use super::{Architecture, Family, ModelInput, Settings, batch, tokens};
use crate::graph::build::Builder;
use crate::graph::{GraphError, Init, Role, Value};
use crate::role::DataRole;

/// Sizes of a BERT.
#[derive(Clone, Debug, PartialEq)]
pub struct Bert {
    /// Number of tokens.
    pub vocab: usize,
    /// Width of every token's state.
    pub width: usize,
    /// Attention heads; divides the width.
    pub heads: usize,
    /// Blocks.
    pub layers: usize,
    /// Width inside the feed-forward half.
    pub hidden: usize,
    /// Longest input.
    pub context: usize,
    /// Number of segment types.
    pub types: usize,
    /// Whether the data has `segments`; otherwise all is of the first type.
    pub segments: bool,
    /// The kind of prediction: hidden tokens, or a property of the text, from its first token.
    pub head: Head,
    /// Classes of the text, or numbers to regress.
    pub classes: usize,
    /// Share dropped after embeddings and half blocks.
    pub dropout: f32,
}

/// Parameters of the family.
pub static FAMILY: Family = Family { takes: ModelInput::Tokens, heads: HIDDEN_TOKENS, params: PARAMS, make };

static PARAMS: &[Param] = &[
    param("vocab", int(30522), "number of tokens"),
    param("width", int(128), "width of every token's state"),
    param("heads", int(2), "attention heads; must divide the width"),
    param("layers", int(2), "transformer blocks"),
    param("hidden", int(512), "width inside the feed-forward half"),
    param("context", int(512), "longest input"),
    param("types", int(2), "number of segment types"),
    param("segments", flag(false), "whether the data has segment types (`segments`)"),
    param(
        "head",
        text("mlm"),
        "`mlm` predicts masked tokens, `classify` a class of the text, `regress` numbers",
    ),
    param("classes", int(2), "classes of the text, or numbers to regress"),
    param("dropout", float(0.1), "share dropped after embeddings and half blocks"),
];

const fn sizes(width: i64, layers: i64) -> [(&'static str, ParamValue); 4] {
    [("width", int(width)), ("heads", int(width / 64)), ("layers", int(layers)), ("hidden", int(4 * width))]
}

/// 2 layers of width 128.
pub static TINY: Settings = &sizes(128, 2);
/// 4 layers of width 256.
pub static MINI: Settings = &sizes(256, 4);
/// 4 layers of width 512.
pub static SMALL: Settings = &sizes(512, 4);
/// 12 layers of width 768.
pub static BASE: Settings = &sizes(768, 12);
/// 24 layers of width 1024.
pub static LARGE: Settings = &sizes(1024, 24);

fn make(p: &Params) -> Result<Box<dyn Architecture>, GraphError> {
    let bert = Bert {
        vocab: p.size("vocab")?,
        width: p.size("width")?,
        heads: p.size("heads")?,
        layers: p.size("layers")?,
        hidden: p.size("hidden")?,
        context: p.size("context")?,
        types: p.size("types")?,
        segments: p.flag("segments")?,
        head: Head::read(p, HIDDEN_TOKENS)?,
        classes: p.size("classes")?,
        dropout: p.rate("dropout")?,
    };
    if !bert.width.is_multiple_of(bert.heads) {
        return wrong(&p.model, format!("{} heads do not divide width {}", bert.heads, bert.width));
    }
    Ok(Box::new(bert))
}

const START: Init = Init::Normal(0.02);
const ZERO: Option<Init> = Some(Init::Constant(0.0));
const EPS: f32 = 1e-12;

impl Bert {
    fn encode(
        &self,
        g: &mut Builder,
        x: Value,
        mask: Value,
        segments: Option<Value>,
        table: Value,
    ) -> Result<Value, GraphError> {
        let length = g.shape(x)[1].clone();
        let mut h = g.scope("embeddings", |g| -> Result<Value, GraphError> {
            let words = g.scope("word_embeddings", |g| g.embedding(table, x, None))?;
            let positions =
                g.scope("position_embeddings", |g| g.weight("weight", &[self.context, self.width], START))?;
            let positions = g.slice(positions, 0, 0, length)?;
            let types = g.scope("token_type_embeddings", |g| -> Result<Value, GraphError> {
                let table = g.weight("weight", &[self.types, self.width], START)?;
                match segments {
                    Some(segments) => g.embedding(table, segments, None),
                    None => g.slice(table, 0, 0, 1),
                }
            })?;
            let h = g.add(words, positions)?;
            let h = g.add(h, types)?;
            let h = g.scope("LayerNorm", |g| g.layer_norm_layer(h, EPS))?;
            g.dropout(h, self.dropout)
        })?;
        for layer in 0..self.layers {
            h = g.scope(format!("encoder.layer.{layer}"), |g| self.block(g, h, mask))?;
        }
        Ok(h)
    }

    fn block(&self, g: &mut Builder, x: Value, mask: Value) -> Result<Value, GraphError> {
        let o = g.scope("attention.self", |g| -> Result<Value, GraphError> {
            let mut parts = Vec::with_capacity(3);
            for name in ["query", "key", "value"] {
                let part = g.scope(name, |g| g.linear_from(x, self.width, START, ZERO))?;
                parts.push(g.heads(part, self.heads)?);
            }
            let o = g.attention(parts[0], parts[1], parts[2], Some(mask), false, None)?;
            g.merge_heads(o)
        })?;
        let x = g.scope("attention.output", |g| self.join(g, o, x))?;
        let h = g.scope("intermediate.dense", |g| g.linear_from(x, self.hidden, START, ZERO))?;
        let h = g.gelu(h)?;
        g.scope("output", |g| self.join(g, h, x))
    }

    /// The end of a half block: back to the width, added to what came in, normalised.
    fn join(&self, g: &mut Builder, h: Value, residual: Value) -> Result<Value, GraphError> {
        let h = g.scope("dense", |g| g.linear_from(h, self.width, START, ZERO))?;
        let h = g.dropout(h, self.dropout)?;
        let h = g.add(h, residual)?;
        g.scope("LayerNorm", |g| g.layer_norm_layer(h, EPS))
    }
}

impl Headed for Bert {
    fn head(&self) -> Head {
        self.head
    }

    /// From the tokens `x` and the mask of real tokens `mask`, both `[batch, length]`, to logits:
    /// `[batch, length, vocab]` of masked tokens, or one result per text `[batch, classes]`.
    fn build(&self, g: &mut Builder) -> Result<Value, GraphError> {
        let x = tokens(g, "x")?;
        let mask = g.mask("mask", &[batch(), g.shape(x)[1].clone()])?;
        let segments = match self.segments {
            true => Some(g.input("segments", Role::Data(DataRole::Segment), g.ty(x).clone())?),
            false => None,
        };
        let table = "bert.embeddings.word_embeddings";
        let table = g.scope(table, |g| g.weight("weight", &[self.vocab, self.width], START))?;
        let h = g.scope("bert", |g| self.encode(g, x, mask, segments, table))?;
        match self.head {
            Head::Tokens => g.scope("cls.predictions", |g| {
                let h = g.scope("transform.dense", |g| g.linear_from(h, self.width, START, ZERO))?;
                let h = g.gelu(h)?;
                let h = g.scope("transform.LayerNorm", |g| g.layer_norm_layer(h, EPS))?;
                let bias = g.weight("bias", &[self.vocab], Init::Constant(0.0))?;
                let logits = g.project(h, table)?;
                g.add(logits, bias)
            }),
            Head::Classes | Head::Numbers => {
                let h = g.slice(h, 1, 0, 1)?;
                let h = g.reshape(h, &[batch(), self.width.into()])?;
                let h = g.scope("bert.pooler.dense", |g| g.linear_from(h, self.width, START, ZERO))?;
                let h = g.tanh(h)?;
                let h = g.dropout(h, self.dropout)?;
                g.scope("classifier", |g| g.linear_from(h, self.classes, START, ZERO))
            }
        }
    }
}
