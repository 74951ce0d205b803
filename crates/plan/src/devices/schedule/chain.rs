//! A model as a chain of layers, with the seconds and bytes of each for one partial. Made from a training graph by
//! `linearise`.

use std::ops::Range;

/// A layer: the nodes between two places of the model where few values cross.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ChainLayer {
    /// The name of its first result, for messages.
    pub name: String,
    /// Seconds of the forward pass.
    pub forward: f64,
    /// Seconds of the backward pass, without recompute.
    pub backward: f64,
    /// Seconds of the update.
    pub update: f64,
    /// Bytes of weights that are read here, weights of other layers included.
    pub weights: u64,
    /// Bytes that come with the weights and do not change in an update: masks, running statistics.
    pub buffers: u64,
    /// Bytes of the gradients of the weights that are updated here.
    pub gradients: u64,
    /// Bytes of the optimizer state of those weights.
    pub state: u64,
    /// Bytes that enter in the forward pass, values on their way to later layers included; for the first layer, of the
    /// data.
    pub input: u64,
    /// Bytes of gradients that are handed to the layer before; none for the first.
    pub input_gradient: u64,
    /// Peak bytes of results in the forward pass. A pack needs the largest of its layers.
    pub forward_working: u64,
    /// Bytes of forward results that the backward pass reads. They add up over a pack.
    pub backward_kept: u64,
    /// Peak bytes of results in the backward pass. A pack needs the largest of its layers.
    pub backward_working: u64,
}

/// Bytes that the backward pass of a layer sends, for each partial, to an earlier layer that is not its neighbour: the
/// gradient of a weight that both use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DistantGradient {
    /// The layer that makes it.
    pub from: usize,
    /// The layer that needs it.
    pub to: usize,
    /// Its bytes.
    pub bytes: u64,
}

/// Layers in the order of the forward pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LayerChain {
    /// The layers.
    pub layers: Vec<ChainLayer>,
    /// Whether updates need all gradients (clipping by their norm).
    pub joint_update: bool,
    /// Gradients that pass between layers that are not neighbours.
    pub far: Vec<DistantGradient>,
}

/// Running sums of a quantity over the layers.
#[derive(Clone, Debug)]
pub(crate) struct Sums<T>(Vec<T>);

impl<T: Copy + Default + std::ops::Add<Output = T> + std::ops::Sub<Output = T>> Sums<T> {
    fn new(amounts: impl Iterator<Item = T>) -> Sums<T> {
        let mut sums = vec![T::default()];
        for amount in amounts {
            sums.push(sums[sums.len() - 1] + amount);
        }
        Sums(sums)
    }

    /// The sum over these layers.
    pub fn of(&self, layers: &Range<usize>) -> T {
        self.0[layers.end] - self.0[layers.start]
    }
}

/// A chain with sums over its layers.
#[derive(Clone, Debug)]
pub(crate) struct ChainSums<'a> {
    pub chain: &'a LayerChain,
    /// Weights and buffers, which are fetched together.
    pub fetched: Sums<u64>,
    pub weights: Sums<u64>,
    pub gradients: Sums<u64>,
    pub state: Sums<u64>,
    pub update: Sums<f64>,
    pub forward: Sums<f64>,
    pub backward: Sums<f64>,
    pub backward_kept: Sums<u64>,
}

impl<'a> ChainSums<'a> {
    pub fn new(chain: &'a LayerChain) -> ChainSums<'a> {
        let bytes = |of: fn(&ChainLayer) -> u64| Sums::new(chain.layers.iter().map(of));
        let seconds = |of: fn(&ChainLayer) -> f64| Sums::new(chain.layers.iter().map(of));
        ChainSums {
            chain,
            fetched: bytes(|l| l.weights + l.buffers),
            weights: bytes(|l| l.weights),
            gradients: bytes(|l| l.gradients),
            state: bytes(|l| l.state),
            update: seconds(|l| l.update),
            forward: seconds(|l| l.forward),
            backward: seconds(|l| l.backward),
            backward_kept: bytes(|l| l.backward_kept),
        }
    }

    /// Bytes of the values that enter a layer; none after the last.
    pub fn entering(&self, layer: usize) -> u64 {
        self.chain.layers.get(layer).map_or(0, |l| l.input)
    }

    /// Bytes of the gradients that a layer hands down; none after the last.
    pub fn handed_down(&self, layer: usize) -> u64 {
        self.chain.layers.get(layer).map_or(0, |l| l.input_gradient)
    }
}
