//! The models of published measurements: those of the product with the published settings, and a few more as graphs
//! of their own. The oracle reads all of them from their graphs.

use gulliver_graph::dim::{Bindings, Dim};
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::build::Builder;
use gulliver_graph::graph::{GraphError, Init, Value};
use gulliver_graph::model::classifier::Classifier;
use gulliver_graph::model::param::{ParamValue, float, int, ints, text};
use gulliver_graph::model::{Architecture, model};
use gulliver_graph::windows::ConvOptions;
use gulliver_oracle::from_graph::{KernelStyle, from_model};
use gulliver_oracle::kernel::Grows;
use gulliver_oracle::workload::{ModelLayer, Workload};
use std::collections::HashMap;

const DROPPED: f32 = 0.1;
const EPS: f32 = 1e-5;
const START: Init = Init::Normal(0.02);
const ZERO: Option<Init> = Some(Init::Constant(0.0));

/// The workload of a model for samples of this length.
fn workload(name: &str, model: &dyn Architecture, length: u32, kernels: KernelStyle) -> Option<Workload> {
    from_model(name, model, &Bindings::new().with("length", length as usize), kernels).ok()
}

fn of_table(name: &str, settings: &[(&str, ParamValue)], length: u32) -> Option<Workload> {
    let settings: Vec<_> = settings.iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
    workload(name, model(name, &settings).ok()?.as_ref(), length, KernelStyle::Framework)
}

fn of_graph(
    name: &str,
    build: impl Fn(&mut Builder) -> Result<Value, GraphError> + Send + Sync,
    length: u32,
) -> Option<Workload> {
    workload(name, &Classifier(build), length, KernelStyle::Framework)
}

/// Workloads that were made before, by name.
#[derive(Default)]
pub struct Known(HashMap<String, Option<Workload>>);

impl Known {
    /// The workload of this name, made the first time it is asked for.
    pub fn find(&mut self, name: String, make: impl FnOnce() -> Option<Workload>) -> Option<&Workload> {
        self.0.entry(name).or_insert_with(make).as_ref()
    }
}

/// A GPT of the usual shape, with dropout.
pub fn gpt(width: u32, layers: u32, heads: u32, length: u32, vocabulary: u32) -> Option<Workload> {
    let sizes = [width, layers, heads, length, vocabulary].map(|size| int(size.into()));
    let [width, layers, heads, context, vocab] = sizes;
    let settings = [
        ("width", width),
        ("layers", layers),
        ("heads", heads),
        ("context", context),
        ("vocab", vocab),
        ("dropout", float(DROPPED.into())),
    ];
    of_table("gpt", &settings, length)
}

/// ResNet-50 (blocks 3, 4, 6, 3) or ResNet-152 (3, 8, 36, 3) for images of this extent.
pub fn resnet(blocks: &'static [i64; 4], size: u32) -> Option<Workload> {
    of_table("resnet50", &[("blocks", ints(blocks)), ("size", int(size.into()))], 0)
}

/// VGG-16 for images of this extent.
pub fn vgg16(size: u32) -> Option<Workload> {
    of_table("vgg16", &[("size", int(size.into()))], 0)
}

/// BERT-large for sequences of this length and with this many predicted tokens; none where it is tuned to classify a
/// text.
pub fn bert_large(length: u32, predicted: Option<u32>) -> Option<Workload> {
    let head = if predicted.is_some() { "mlm" } else { "classify" };
    let mut made = of_table("bert-large", &[("vocab", int(30528)), ("head", text(head))], length)?;
    if let Some(predicted) = predicted {
        let count = made.layers.len();
        let heads = &mut made.layers[count - 2..];
        heads.iter_mut().for_each(|layer| take_share(layer, f64::from(predicted) / f64::from(length)));
    }
    Some(made)
}

/// A layer that computes a share of the tokens alone.
fn take_share(layer: &mut ModelLayer, share: f64) {
    for work in layer.forward.iter_mut().chain(&mut layer.backward) {
        work.flops *= share;
        work.moved *= share;
        match work.grows {
            Grows::Rows => work.rows *= share,
            Grows::Products => work.products *= share,
            Grows::Depth => work.depth *= share,
        }
    }
    for elements in [&mut layer.output, &mut layer.kept, &mut layer.kept_whole, &mut layer.working] {
        *elements *= share;
    }
}

fn batch() -> Dim {
    Dim::symbol("batch")
}

/// AlexNet, of one tower, for images of this extent.
pub fn alexnet(size: u32) -> Option<Workload> {
    let build = move |g: &mut Builder| {
        let size = size as usize;
        let mut x = g.data("x", DType::F32, &[batch(), 3.into(), size.into(), size.into()])?;
        let convolutions = [
            (96, 11, 4, 2, true),
            (256, 5, 1, 2, true),
            (384, 3, 1, 1, false),
            (384, 3, 1, 1, false),
            (256, 3, 1, 1, true),
        ];
        for (i, (filters, kernel, stride, padding, pooled)) in convolutions.into_iter().enumerate() {
            let options = ConvOptions::new(2).stride(stride).padding(padding);
            let name = format!("features.{i}");
            x = g.scope(name, |g| g.conv_layer(x, filters, &[kernel, kernel], &options, true))?;
            x = g.relu(x)?;
            x = if pooled { g.max_pool(x, &[3, 3], &[2, 2], &[0, 0])? } else { x };
        }
        x = g.flatten(x)?;
        for (i, width) in [4096, 4096].into_iter().enumerate() {
            x = g.scope(format!("classifier.{i}"), |g| g.linear(x, width, true))?;
            x = g.relu(x)?;
        }
        g.scope("classifier.2", |g| g.linear(x, 1000, true))
    };
    of_graph("alexnet", build, 0)
}

/// CosmoFlow for cubes of 512.
pub fn cosmoflow() -> Option<Workload> {
    of_table("cosmoflow-512", &[], 0)
}

/// A stack of equal blocks that read tokens: those of which the product has none.
#[derive(Clone, Copy, Debug)]
pub struct Decoder {
    /// Width of the residual stream.
    pub width: usize,
    /// Blocks.
    pub layers: usize,
    /// Attention heads.
    pub heads: usize,
    /// Width of the inner layer.
    pub inner: usize,
    /// Tokens.
    pub vocabulary: usize,
    /// Longest input.
    pub context: usize,
    /// The inner layer is gated, normalisations have no mean, nothing is dropped: a llama.
    pub gated: bool,
}

impl Decoder {
    /// Its workload.
    pub fn workload(self, name: &str, kernels: KernelStyle) -> Option<Workload> {
        let build = move |g: &mut Builder| {
            let (mut x, table) = self.embedded(g)?;
            for layer in 0..self.layers {
                x = g.scope(format!("h.{layer}"), |g| self.block(g, x))?;
            }
            let x = g.scope("ln_f", |g| self.norm(g, x))?;
            g.scope("lm_head", |g| g.project(x, table))
        };
        workload(name, &Classifier(build), self.context as u32, kernels)
    }

    fn embedded(&self, g: &mut Builder) -> Result<(Value, Value), GraphError> {
        let x = g.data("x", DType::I64, &[batch(), Dim::symbol("length")])?;
        let table = g.weight("wte.weight", &[self.vocabulary, self.width], START)?;
        let x = g.embedding(table, x, None)?;
        if self.gated {
            return Ok((x, table));
        }
        let positions = g.weight("wpe.weight", &[self.context, self.width], START)?;
        let length = g.shape(x)[1].clone();
        let positions = g.slice(positions, 0, 0, length)?;
        let x = g.add(x, positions)?;
        Ok((g.dropout(x, DROPPED)?, table))
    }

    fn norm(&self, g: &mut Builder, x: Value) -> Result<Value, GraphError> {
        if !self.gated {
            return g.layer_norm_layer(x, EPS);
        }
        let gamma = g.weight("weight", &[self.width], Init::Constant(1.0))?;
        g.rms_norm(x, gamma, EPS)
    }

    fn drop(&self, g: &mut Builder, x: Value) -> Result<Value, GraphError> {
        if self.gated { Ok(x) } else { g.dropout(x, DROPPED) }
    }

    fn block(&self, g: &mut Builder, x: Value) -> Result<Value, GraphError> {
        let h = g.scope("ln_1", |g| self.norm(g, x))?;
        let h = g.scope("attn", |g| attended(g, h, h, self.heads, true))?;
        let h = self.drop(g, h)?;
        let x = g.add(x, h)?;
        let h = g.scope("ln_2", |g| self.norm(g, x))?;
        let h = g.scope("mlp", |g| self.inner_layer(g, h))?;
        let h = self.drop(g, h)?;
        g.add(x, h)
    }

    fn inner_layer(&self, g: &mut Builder, x: Value) -> Result<Value, GraphError> {
        let bias = if self.gated { None } else { ZERO };
        let mut h = g.scope("c_fc", |g| g.linear_from(x, self.inner, START, bias))?;
        if self.gated {
            let gate = g.scope("gate", |g| g.linear_from(x, self.inner, START, None))?;
            let gate = g.silu(gate)?;
            h = g.mul(gate, h)?;
        } else {
            h = g.gelu_tanh(h)?;
        }
        g.scope("c_proj", |g| g.linear_from(h, self.width, START, bias))
    }
}

/// Attention of `x` to `seen`, with its products.
fn attended(g: &mut Builder, x: Value, seen: Value, heads: usize, causal: bool) -> Result<Value, GraphError> {
    let width = g.fixed(x, 2)?;
    let parts = if x == seen {
        let all = g.scope("qkv", |g| g.linear_from(x, 3 * width, START, ZERO))?;
        g.split(all, 2, &[width; 3])?
    } else {
        let q = g.scope("q", |g| g.linear_from(x, width, START, ZERO))?;
        let kv = g.scope("kv", |g| g.linear_from(seen, 2 * width, START, ZERO))?;
        let kv = g.split(kv, 2, &[width; 2])?;
        vec![q, kv[0], kv[1]]
    };
    let [q, k, v] = [parts[0], parts[1], parts[2]];
    let (q, k, v) = (g.heads(q, heads)?, g.heads(k, heads)?, g.heads(v, heads)?);
    let o = g.attention(q, k, v, None, causal, None)?;
    let o = g.merge_heads(o)?;
    g.scope("c_proj", |g| g.linear_from(o, width, START, ZERO))
}

/// Words for which Transformer-XL computes an output: most tokens need the first part of its adaptive layer alone.
const FREQUENT: usize = 20_000;

/// Transformer-XL, base or large, with its memory of as many earlier tokens as a sample has.
pub fn transformer_xl(large: bool) -> Option<Workload> {
    let (width, layers, heads, length, words) =
        if large { (1024, 18, 16, 384, 77_148) } else { (512, 16, 8, 192, 267_578) };
    let decoder =
        Decoder { width, layers, heads, inner: 4 * width, vocabulary: words, context: length, gated: false };
    let build = move |g: &mut Builder| {
        let (mut x, table) = decoder.embedded(g)?;
        for layer in 0..layers {
            x = g.scope(format!("h.{layer}"), |g| {
                let memory = g.data("memory", DType::F32, &[batch(), length.into(), width.into()])?;
                let h = g.scope("attn", |g| with_positions(g, x, memory, heads))?;
                let h = g.dropout(h, DROPPED)?;
                let x = g.add(x, h)?;
                let x = g.scope("ln_1", |g| g.layer_norm_layer(x, EPS))?;
                let h = g.scope("mlp", |g| decoder.inner_layer(g, x))?;
                let h = g.dropout(h, DROPPED)?;
                let x = g.add(x, h)?;
                g.scope("ln_2", |g| g.layer_norm_layer(x, EPS))
            })?;
        }
        let frequent = g.slice(table, 0, 0, FREQUENT)?;
        g.scope("lm_head", |g| g.project(x, frequent))
    };
    of_graph("transformer-xl", build, length as u32)
}

/// Attention to memory and sample whose positions have a product and scores of their own, which are shifted, added,
/// scaled, masked and dropped by a kernel each.
fn with_positions(g: &mut Builder, x: Value, memory: Value, heads: usize) -> Result<Value, GraphError> {
    let width = g.fixed(x, 2)?;
    let all = g.concat(&[memory, x], 1)?;
    let qkv = g.scope("qkv", |g| g.linear_from(all, 3 * width, START, None))?;
    let parts = g.split(qkv, 2, &[width; 3])?;
    let (own, seen) = (g.shape(x)[1].clone(), g.shape(all)[1].clone());
    let before = g.fixed(memory, 1)?;
    let q = g.slice(parts[0], 1, before, own.clone())?;
    let (q, k, v) = (g.heads(q, heads)?, g.heads(parts[1], heads)?, g.heads(parts[2], heads)?);
    let places = [seen.clone(), heads.into(), (width / heads).into()];
    let places = g.weight("places", &places, START)?;
    let content = g.contract("b t h d, b s h d -> b h t s", q, k)?;
    let position = g.contract("b t h d, s h d -> b h t s", q, places)?;
    let padded = g.pad(position, &[0, 0, 0, 1], &[0; 4], 0.0)?;
    let shifted = g.slice(padded, 3, 0, seen.clone())?;
    let scores = g.add(content, shifted)?;
    let scores = g.affine(scores, 0.125, 0.0)?;
    let visible = g.data("visible", DType::Bool, &[own, seen])?;
    let nothing = g.scalar(f32::MIN)?;
    let scores = g.select(visible, scores, nothing)?;
    // Positions do not lie side by side where the program takes their softmax.
    let scores = g.transpose(scores, &[0, 2, 3, 1])?;
    let shares = g.softmax(scores, 2)?;
    let shares = g.dropout(shares, DROPPED)?;
    let shares = g.transpose(shares, &[0, 3, 1, 2])?;
    let o = g.contract("b h t s, b s h d -> b t h d", shares, v)?;
    let o = g.merge_heads(o)?;
    g.scope("c_proj", |g| g.linear_from(o, width, START, None))
}

/// The big transformer of machine translation: six layers that encode and six that decode.
pub fn transformer_big(length: u32) -> Option<Workload> {
    const WIDTH: usize = 1024;
    let block = |g: &mut Builder, x: Value, encoded: Option<Value>| {
        let half = |g: &mut Builder, x: Value, h: Value| {
            let h = g.dropout(h, DROPPED)?;
            let x = g.add(x, h)?;
            g.scope("ln", |g| g.layer_norm_layer(x, EPS))
        };
        let h = g.scope("attn", |g| attended(g, x, x, 16, encoded.is_some()))?;
        let mut x = g.scope("1", |g| half(g, x, h))?;
        if let Some(encoded) = encoded {
            let h = g.scope("cross", |g| attended(g, x, encoded, 16, false))?;
            x = g.scope("2", |g| half(g, x, h))?;
        }
        let h = g.scope("fc1", |g| g.linear_from(x, 4 * WIDTH, START, ZERO))?;
        let h = g.relu(h)?;
        let h = g.scope("fc2", |g| g.linear_from(h, WIDTH, START, ZERO))?;
        g.scope("3", |g| half(g, x, h))
    };
    let build = move |g: &mut Builder| {
        let table = g.weight("embed.weight", &[33712, WIDTH], START)?;
        let read = |g: &mut Builder, name: &str| {
            let tokens = g.data(name, DType::I64, &[batch(), Dim::symbol("length")])?;
            let x = g.embedding(table, tokens, None)?;
            g.dropout(x, DROPPED)
        };
        let mut encoded = read(g, "x")?;
        for layer in 0..6 {
            encoded = g.scope(format!("encoder.{layer}"), |g| block(g, encoded, None))?;
        }
        let mut x = read(g, "z")?;
        for layer in 0..6 {
            x = g.scope(format!("decoder.{layer}"), |g| block(g, x, Some(encoded)))?;
        }
        g.scope("output", |g| g.project(x, table))
    };
    of_graph("transformer-big", build, length)
}

/// GNMT: four LSTM layers that encode, four that decode with attention, for pairs of this length.
pub fn gnmt(length: u32) -> Option<Workload> {
    const WIDTH: usize = 1024;
    const WORDS: usize = 32320;
    let build = move |g: &mut Builder| {
        let read = |g: &mut Builder, name: &str| {
            let tokens = g.data(name, DType::I64, &[batch(), (length as usize).into()])?;
            g.scope(format!("{name}.embed"), |g| g.embedding_layer(tokens, WORDS, WIDTH, START))
        };
        let mut encoded = read(g, "x")?;
        for layer in 0..4 {
            let h = g.scope("encoder", |g| g.lstm_layer(encoded, layer, WIDTH))?;
            encoded = g.dropout(h, DROPPED)?;
        }
        let keys = g.scope("keys", |g| g.linear_from(encoded, WIDTH, START, None))?;
        let mut x = read(g, "z")?;
        let mut context = x;
        for layer in 0..4 {
            let both = g.concat(&[x, context], 2)?;
            let h = g.scope("decoder", |g| g.lstm_layer(both, layer, WIDTH))?;
            x = g.dropout(h, DROPPED)?;
            if layer == 0 {
                context = g.scope("attention", |g| additive(g, x, keys, encoded, length as usize))?;
            }
        }
        g.scope("classifier", |g| g.linear_from(x, WORDS, START, ZERO))
    };
    of_graph("gnmt", build, length)
}

/// Additive attention of each query to `values`, one query after the other, as in the program's loop.
fn additive(
    g: &mut Builder,
    x: Value,
    keys: Value,
    values: Value,
    length: usize,
) -> Result<Value, GraphError> {
    let width = g.fixed(x, 2)?;
    let table = g.weight("query.weight", &[width, width], START)?;
    let weights = g.weight("weight", &[width], START)?;
    let mut all = Vec::new();
    for t in 0..length {
        let query = g.slice(x, 1, t, 1)?;
        let query = g.project(query, table)?;
        let sum = g.add(query, keys)?;
        let sum = g.tanh(sum)?;
        let scores = g.contract("b s k, k -> b s", sum, weights)?;
        let shares = g.softmax(scores, 1)?;
        all.push(g.contract("b s, b s k -> b k", shares, values)?);
    }
    let all = g.concat(&all, 1)?;
    g.reshape(all, &[batch(), length.into(), width.into()])
}
