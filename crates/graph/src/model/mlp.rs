//! Fully connected layers with relu between them; parameters are named as in a PyTorch `Sequential`.

use super::head::{CLASSIFY_OR_REGRESS, Head, Headed};
use super::param::{Param, Params, ints, param, text, wrong};
use super::{Architecture, Family, ModelInput, Settings, batch};
use crate::dtype::DType;
use crate::graph::build::Builder;
use crate::graph::{GraphError, Value};

/// The widths of input, hidden layers and output.
#[derive(Clone, Debug, PartialEq)]
pub struct Mlp {
    /// At least two.
    pub sizes: Vec<usize>,
    /// The kind of prediction.
    pub head: Head,
}

/// Parameters of the family.
pub static FAMILY: Family =
    Family { takes: ModelInput::Vectors, heads: CLASSIFY_OR_REGRESS, params: PARAMS, make };

static PARAMS: &[Param] = &[
    param("sizes", ints(&[784, 1024, 1024, 10]), "widths of input, hidden layers and output"),
    param("head", text("classify"), "`classify` predicts a class, `regress` numbers"),
];

/// 64 inputs, 10 classes.
pub static TINY: Settings = &[("sizes", ints(&[64, 32, 10]))];

fn make(p: &Params) -> Result<Box<dyn Architecture>, GraphError> {
    let sizes = p.sizes("sizes")?;
    if sizes.len() < 2 {
        return wrong(&p.model, "`sizes` needs at least the widths of input and output".into());
    }
    Ok(Box::new(Mlp { sizes, head: Head::read(p, CLASSIFY_OR_REGRESS)? }))
}

impl Headed for Mlp {
    fn head(&self) -> Head {
        self.head
    }

    /// From `x` to the logits or numbers `[batch, outputs]`.
    fn build(&self, g: &mut Builder) -> Result<Value, GraphError> {
        let mut x = g.data("x", DType::F32, &[batch(), self.sizes[0].into()])?;
        for (i, &out) in self.sizes[1..].iter().enumerate() {
            if i > 0 {
                x = g.relu(x)?;
            }
            x = g.scope(2 * i, |g| g.linear(x, out, true))?;
        }
        Ok(x)
    }
}
