//! Graphs small enough for the least that must be computed again to be known, and what finds it: what a step
//! does in a [`problem`], and that as an integer [`program`]. [`choice`] is what we choose.

pub mod choice;
pub mod problem;
pub mod program;

use gulliver_graph::autodiff::differentiate;
use gulliver_graph::dim::Bindings;
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::build::Builder;
use gulliver_graph::graph::{Graph, GraphError, Init, Value};
use gulliver_graph::role::OutputRole;
use gulliver_plan::document::residence::Persistent;
use gulliver_plan::step::options::PlanOptions;
use gulliver_plan::step::order::RULES;
use gulliver_plan::step::outline::{BoundSizes, Outline};
use gulliver_plan::time::cost::{Rates, TierLimits};

const ROWS: usize = 64;

/// A product with weights of so many columns, and a function of it.
pub fn layer(g: &mut Builder, k: usize, x: Value, width: usize) -> Result<Value, GraphError> {
    g.scope(format!("layer.{k}"), |g| {
        let y = g.linear_from(x, width, Init::Normal(0.1), None)?;
        g.tanh(y)
    })
}

/// Layers of these widths, one after the other.
pub fn chain(widths: &[usize]) -> Graph {
    trained(|g, x| widths.iter().enumerate().try_fold(x, |x, (k, w)| layer(g, k, x, *w)))
}

/// A layer and so many more, each added to what it reads.
pub fn residual(layers: usize) -> Graph {
    trained(|g, x| {
        let mut x = layer(g, 0, x, 64)?;
        for k in 1..=layers {
            let y = layer(g, k, x, 64)?;
            x = g.add(x, y)?;
        }
        Ok(x)
    })
}

/// The loss of `body` and the gradient of the first weight, so that backward goes all the way.
pub fn trained(body: impl Fn(&mut Builder, Value) -> Result<Value, GraphError>) -> Graph {
    let mut g = Builder::new(true);
    let x = g.data("x", DType::F32, &[ROWS, 4]).unwrap();
    let y = body(&mut g, x).unwrap();
    let y = g.square(y).unwrap();
    let loss = g.mean_all(y).unwrap();
    let (first, _) = g.graph().weights().next().unwrap();
    let grads = differentiate(&mut g, loss, &[first], 0).unwrap();
    g.output("loss", OutputRole::Loss, loss);
    g.output("gradient", OutputRole::Metric, grads[0].unwrap());
    g.finish()
}

/// A graph outlined for inputs of some sizes, with no memory but the device's.
pub struct Outlined {
    pub graph: Graph,
    pub outline: Outline,
    pub sizes: BoundSizes,
    /// Bytes of weights and states.
    pub state: u64,
}

impl Outlined {
    /// Calls cost nothing, so that small kernels differ as large ones do.
    pub fn new(graph: Graph, sizes: &Bindings) -> Outlined {
        let persistent = Persistent::of(&graph).unwrap();
        let beside = TierLimits { host: Some(0), disk: None };
        let rates = Rates { call: 0.0, ..Rates::default() };
        let options = PlanOptions { beside, rates, ..PlanOptions::new(&persistent) };
        let outline = Outline::new(&graph, sizes, &options, &RULES).unwrap();
        let sizes = outline.sizes(&graph, sizes, &options).unwrap();
        Outlined { outline, sizes, state: persistent.ends[0], graph }
    }

    /// A share, in per cent, of what is needed beyond weights and states if `whole` is needed in all.
    pub fn budget(&self, whole: u64, share: u64) -> u64 {
        self.state + (whole - self.state) / 100 * share
    }
}
