//! A model as the oracle sees it: a list of layers with their kernels, weights and activations.
//! Elements are counted, not bytes, so that one workload serves every precision.

use crate::OracleError;
use crate::kernel::{KernelFamily, KernelWork};

/// Layers in the order data passes through them.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Workload {
    /// As users name it.
    pub name: String,
    /// The layers.
    pub layers: Vec<ModelLayer>,
    /// Elements of one sample as it is loaded.
    pub sample: f64,
    /// Weights that the first and the last layer share: both hold them, and add up their gradients.
    pub tied: f64,
}

/// One layer, or several equal ones in a row.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct ModelLayer {
    /// As the model names it.
    pub name: String,
    /// Equal copies, one after the other.
    pub count: u32,
    /// Operators of the forward pass.
    pub forward: Vec<KernelWork>,
    /// Operators of the backward pass.
    pub backward: Vec<KernelWork>,
    /// Trained numbers.
    pub weights: f64,
    /// Elements of a sample that come in.
    pub input: f64,
    /// Elements of a sample that go out.
    pub output: f64,
    /// Elements of a sample that the backward pass needs, and that a tensor-parallel cut divides.
    pub kept: f64,
    /// Elements of a sample that the backward pass needs, and that only a cut of the sequence divides.
    pub kept_whole: f64,
    /// Elements of a sample, of those kept and divided, that selective recomputation makes again.
    pub selective: f64,
    /// Elements of a sample in use while the layer runs and not kept.
    pub working: f64,
    /// All-reduces of the layer's output, in each direction, if it is cut for tensor parallelism.
    pub reductions: f64,
    /// Spatial extents of the output: height, width, depth; empty if there are none.
    pub extents: Vec<f64>,
    /// Extents of the input next to them.
    pub input_extents: Vec<f64>,
    /// By how much windows reach over the edge of a part, in elements of the input's first extent.
    pub halo: f64,
    /// Input channels; 0 for layers without weights to cut.
    pub channels: f64,
    /// Output channels.
    pub filters: f64,
    /// Heads or other independent groups; 0 if it has none.
    pub heads: f64,
    /// Numbers that batch statistics exchange if a batch is cut.
    pub statistics: f64,
}

impl ModelLayer {
    /// A layer with these kernels; all its other figures are zero.
    pub fn new(name: impl Into<String>, forward: Vec<KernelWork>, backward: Vec<KernelWork>) -> ModelLayer {
        ModelLayer { name: name.into(), count: 1, forward, backward, ..ModelLayer::default() }
    }

    /// Keeps elements of a sample for the backward pass.
    pub fn keep(&mut self, elements: f64) {
        if self.reductions > 0.0 { self.kept_whole += elements } else { self.kept += elements }
    }

    /// Floating-point operations of the forward pass of one sample.
    pub fn flops(&self) -> f64 {
        self.forward.iter().filter(|w| w.family != KernelFamily::Timed).map(|w| w.flops).sum::<f64>()
            * self.count as f64
    }
}

impl Workload {
    /// Trained numbers.
    pub fn weights(&self) -> f64 {
        self.layers.iter().map(|layer| layer.weights * layer.count as f64).sum()
    }

    /// Layers, copies counted.
    pub fn depth(&self) -> u32 {
        self.layers.iter().map(|layer| layer.count).sum()
    }

    /// Floating-point operations of the forward pass of one sample.
    pub fn flops(&self) -> f64 {
        self.layers.iter().map(ModelLayer::flops).sum()
    }

    /// The most devices that may share the filters of every layer that has them.
    pub fn fewest_filters(&self) -> Option<u32> {
        fewest(self.layers.iter().map(|layer| layer.filters))
    }

    /// The same of input channels; the first such layer reads data, whose channels are not cut.
    pub fn fewest_channels(&self) -> Option<u32> {
        fewest(self.layers.iter().filter(|layer| layer.channels > 0.0).skip(1).map(|layer| layer.channels))
    }

    /// The same of heads.
    pub fn fewest_heads(&self) -> Option<u32> {
        fewest(self.layers.iter().map(|layer| layer.heads))
    }

    /// The most devices that may share a sample in space: the first layers, up to where extents end.
    pub fn space(&self) -> Option<u32> {
        fewest(self.spatial().map(|layer| layer.extents[0]))
    }

    /// The layers that can be cut in space: from the first to the last before extents end.
    pub fn spatial(&self) -> impl Iterator<Item = &ModelLayer> {
        self.layers.iter().take_while(|layer| layer.extents.first().is_some_and(|&e| e > 1.0))
    }

    /// The same with each run of equal blocks that attend as one layer of as many copies: hundreds of layers take as
    /// long to ask about as a few. Such a model is shared by its heads, no longer by filters or channels.
    pub fn folded(mut self) -> Workload {
        // By layer, the first that is equal to it but for its name and backward pass, which differs at the ends.
        let mut like: Vec<usize> = Vec::new();
        for (i, layer) in self.layers.iter().enumerate() {
            let same = |j: &usize| {
                let (name, backward) = (layer.name.clone(), layer.backward.clone());
                ModelLayer { name, backward, ..self.layers[*j].clone() } == *layer
            };
            let first = (0..i).filter(|j| like[*j] == *j).find(same);
            like.push(first.unwrap_or(i));
        }
        let mut made = Vec::new();
        let mut at = 0;
        while at < like.len() {
            let copies = |period: usize| {
                let block = &like[at..at + period];
                like[at..].chunks_exact(period).take_while(|other| *other == block).count()
            };
            let attends = |period: usize| self.layers[at..at + period].iter().any(|layer| layer.heads > 0.0);
            let most = (like.len() - at) / 2;
            match (1..=most).find(|period| attends(*period) && copies(*period) > 1) {
                Some(period) => {
                    made.push(block(&self.layers[at..at + period], copies(period) as u32));
                    at += period * copies(period);
                }
                None => {
                    made.push(self.layers[at].clone());
                    at += 1;
                }
            }
        }
        if made.len() < self.layers.len() {
            made.iter_mut().for_each(|layer| (layer.filters, layer.channels) = (0.0, 0.0));
        }
        self.layers = made;
        self
    }

    /// Refuses a workload without layers or with figures that are no numbers.
    pub fn check(&self) -> Result<(), OracleError> {
        let sane = |layer: &ModelLayer| {
            let figures = [layer.weights, layer.input, layer.output, layer.kept, layer.flops()];
            layer.count > 0 && figures.iter().all(|x| x.is_finite() && *x >= 0.0)
        };
        match self.layers.iter().find(|layer| !sane(layer)) {
            _ if self.layers.is_empty() => Err(OracleError::Empty(self.name.clone())),
            Some(layer) => {
                Err(OracleError::Figure { what: format!("work of {}", layer.name), value: layer.flops() })
            }
            None => Ok(()),
        }
    }
}

/// Layers joined to one, which has `count` copies.
fn block(layers: &[ModelLayer], count: u32) -> ModelLayer {
    let sum = |of: fn(&ModelLayer) -> f64| layers.iter().map(of).sum::<f64>();
    let most = |of: fn(&ModelLayer) -> f64| layers.iter().map(of).fold(0.0, f64::max);
    let all = |of: fn(&ModelLayer) -> &Vec<KernelWork>| layers.iter().flat_map(of).copied().collect();
    ModelLayer {
        count,
        weights: sum(|layer| layer.weights),
        input: layers.first().map_or(0.0, |layer| layer.input),
        output: layers.last().map_or(0.0, |layer| layer.output),
        kept: sum(|layer| layer.kept),
        kept_whole: sum(|layer| layer.kept_whole),
        selective: sum(|layer| layer.selective),
        working: most(|layer| layer.working),
        reductions: sum(|layer| layer.reductions),
        heads: most(|layer| layer.heads),
        ..ModelLayer::new(layers[0].name.clone(), all(|layer| &layer.forward), all(|layer| &layer.backward))
    }
}

fn fewest(extents: impl Iterator<Item = f64>) -> Option<u32> {
    extents
        .filter(|&x| x > 0.0)
        .fold(None, |least: Option<f64>, x| Some(least.map_or(x, |l| l.min(x))))
        .map(|x| x as u32)
}
