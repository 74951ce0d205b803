//! A recurrent model of text: embedding, LSTM or GRU layers, linear decoder of every state or of the state
//! of the last token. Weights are named as in PyTorch's word language model.

use super::head::{Head, Headed, NEXT_TOKENS, last_token};
use super::param::{Param, Params, float, int, param, text};
use super::{Architecture, Family, ModelInput, tokens};
use crate::graph::build::Builder;
use crate::graph::{GraphError, Init, Value};

/// Sizes of a recurrent model of text.
#[derive(Clone, Debug, PartialEq)]
pub struct Recurrent {
    /// Number of tokens.
    pub vocab: usize,
    /// Width of embeddings and states.
    pub width: usize,
    /// Recurrent layers.
    pub layers: usize,
    /// The recurrence.
    pub cell: Cell,
    /// The kind of prediction.
    pub head: Head,
    /// Classes of the text, or numbers to regress.
    pub classes: usize,
    /// Share dropped between layers.
    pub dropout: f32,
}

/// The kinds of recurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// Long short-term memory: four gates and a cell state.
    Lstm,
    /// Gated recurrent unit: three gates.
    Gru,
}

/// Parameters of the family.
pub static FAMILY: Family = Family { takes: ModelInput::Tokens, heads: NEXT_TOKENS, params: PARAMS, make };

static PARAMS: &[Param] = &[
    param("vocab", int(1000), "number of tokens"),
    param("width", int(512), "width of embeddings and states"),
    param("layers", int(2), "recurrent layers"),
    param("cell", text("lstm"), "`lstm` or `gru`"),
    param(
        "head",
        text("lm"),
        "`lm` predicts the next token, `classify` a class of the text, `regress` numbers",
    ),
    param("classes", int(2), "classes of the text, or numbers to regress"),
    param("dropout", float(0.0), "share dropped between layers"),
];

fn make(p: &Params) -> Result<Box<dyn Architecture>, GraphError> {
    Ok(Box::new(Recurrent {
        vocab: p.size("vocab")?,
        width: p.size("width")?,
        layers: p.size("layers")?,
        cell: [Cell::Lstm, Cell::Gru][p.choice("cell", &["lstm", "gru"])?],
        head: Head::read(p, NEXT_TOKENS)?,
        classes: p.size("classes")?,
        dropout: p.rate("dropout")?,
    }))
}

impl Headed for Recurrent {
    fn head(&self) -> Head {
        self.head
    }

    /// From the tokens `x` to logits `[batch, length, vocab]`, or to one result per text `[batch, classes]`.
    fn build(&self, g: &mut Builder) -> Result<Value, GraphError> {
        let x = tokens(g, "x")?;
        let start = Init::Normal(1.0);
        let mut h = g.scope("encoder", |g| g.embedding_layer(x, self.vocab, self.width, start))?;
        for layer in 0..self.layers {
            if layer > 0 {
                h = g.dropout(h, self.dropout)?;
            }
            h = g.scope("rnn", |g| match self.cell {
                Cell::Lstm => g.lstm_layer(h, layer, self.width),
                Cell::Gru => g.gru_layer(h, layer, self.width),
            })?;
        }
        let outputs = match self.head {
            Head::Tokens => self.vocab,
            Head::Classes | Head::Numbers => {
                h = last_token(g, h)?;
                self.classes
            }
        };
        g.scope("decoder", |g| g.linear(h, outputs, true))
    }
}
