//! A model as a chain of layers, which is all a schedule needs to know of it: seconds and bytes of each. Made
//! from a training graph by `linearise`, or from plain numbers.

use super::curve::SizeCurve;
use std::ops::Range;

/// One layer: what lies between two places of the model where little passes from one side to the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChainLayer {
    /// For people.
    pub name: String,
    /// Seconds of the forward pass by micro-batch size.
    pub forward: SizeCurve,
    /// Seconds of the backward pass alone, given what the forward pass left.
    pub backward: SizeCurve,
    /// Seconds of the update on a device.
    pub update: f64,
    /// Seconds of the update by the host's processor.
    pub update_on_host: f64,
    /// Bytes of weights that are read here, those of other layers included.
    pub weights: u64,
    /// Bytes that come with the weights and never change in an update: masks, running statistics.
    pub buffers: u64,
    /// Bytes of the gradients of the weights that are updated here.
    pub gradients: u64,
    /// Bytes of optimizer state of those weights.
    pub state: u64,
    /// Bytes a sample that enter in the forward pass, values on their way to later layers included; for the
    /// first layer, of the data.
    pub input: u64,
    /// Bytes a sample that are handed to the layer before in the backward pass; none for the first.
    pub input_gradient: u64,
    /// Bytes of the forward pass for each layer of a pack, weights apart: they add up over a pack.
    pub forward_kept: SizeCurve,
    /// Bytes of the forward pass that a pack needs for one of its layers at a time.
    pub forward_working: SizeCurve,
    /// Bytes that the backward pass needs of the forward pass: they add up over a pack.
    pub backward_kept: SizeCurve,
    /// Bytes of the backward pass that a pack needs for one of its layers at a time.
    pub backward_working: SizeCurve,
}

/// Bytes that a layer's backward pass sends to an earlier layer that is not its neighbour, once for each
/// micro-batch: the gradient of a weight that both use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DistantGradient {
    /// The layer that makes it.
    pub from: usize,
    /// The layer that needs it.
    pub to: usize,
    /// Bytes of one micro-batch.
    pub bytes: u64,
}

/// Layers in the order in which the forward pass runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerChain {
    /// The layers.
    pub layers: Vec<ChainLayer>,
    /// No update may begin before all gradients are there (norms over all of them).
    pub joint_update: bool,
    /// What passes between layers that are no neighbours.
    pub far: Vec<DistantGradient>,
}

impl LayerChain {
    /// Bytes of all weights.
    pub fn weights(&self) -> u64 {
        self.layers.iter().map(|l| l.weights).sum()
    }
}

/// Running sums of a quantity over the layers.
#[derive(Clone, Debug)]
pub(crate) struct Sums<T>(Vec<T>);

impl<T: Copy + Default + std::ops::Add<Output = T> + std::ops::Sub<Output = T>> Sums<T> {
    pub(crate) fn new(amounts: impl Iterator<Item = T>) -> Sums<T> {
        let mut sums = vec![T::default()];
        for amount in amounts {
            sums.push(sums[sums.len() - 1] + amount);
        }
        Sums(sums)
    }

    pub(crate) fn of(&self, layers: &Range<usize>) -> T {
        self.0[layers.end] - self.0[layers.start]
    }
}

/// What does not depend on the micro-batch size, summed.
#[derive(Clone, Debug)]
pub(crate) struct FixedSums {
    /// Weights and buffers: what is fetched.
    pub(crate) fetched: Sums<u64>,
    pub(crate) weights: Sums<u64>,
    pub(crate) gradients: Sums<u64>,
    pub(crate) state: Sums<u64>,
    pub(crate) update: Sums<f64>,
    pub(crate) update_on_host: Sums<f64>,
}

impl FixedSums {
    pub(crate) fn of(chain: &LayerChain) -> FixedSums {
        let layers = || chain.layers.iter();
        FixedSums {
            fetched: Sums::new(layers().map(|l| l.weights + l.buffers)),
            weights: Sums::new(layers().map(|l| l.weights)),
            gradients: Sums::new(layers().map(|l| l.gradients)),
            state: Sums::new(layers().map(|l| l.state)),
            update: Sums::new(layers().map(|l| l.update)),
            update_on_host: Sums::new(layers().map(|l| l.update_on_host)),
        }
    }
}

/// What a micro-batch of one size takes, summed.
#[derive(Clone, Debug)]
pub(crate) struct AtSize {
    pub(crate) forward: Sums<f64>,
    pub(crate) backward: Sums<f64>,
    pub(crate) forward_kept: Sums<u64>,
    pub(crate) backward_kept: Sums<u64>,
    forward_working: Vec<u64>,
    backward_working: Vec<u64>,
}

impl AtSize {
    pub(crate) fn of(chain: &LayerChain, size: u32) -> AtSize {
        let layers = || chain.layers.iter();
        let bytes = |curve: &SizeCurve| curve.at(size).ceil() as u64;
        AtSize {
            forward: Sums::new(layers().map(|l| l.forward.at(size))),
            backward: Sums::new(layers().map(|l| l.backward.at(size))),
            forward_kept: Sums::new(layers().map(|l| bytes(&l.forward_kept))),
            backward_kept: Sums::new(layers().map(|l| bytes(&l.backward_kept))),
            forward_working: layers().map(|l| bytes(&l.forward_working)).collect(),
            backward_working: layers().map(|l| bytes(&l.backward_working)).collect(),
        }
    }

    /// Bytes of the forward pass of a pack, weights apart.
    pub(crate) fn forward_memory(&self, layers: &Range<usize>) -> u64 {
        let working = self.forward_working[layers.clone()].iter().max();
        self.forward_kept.of(layers) + working.copied().unwrap_or(0)
    }

    /// Bytes of the backward pass of a pack, weights and their gradients apart.
    pub(crate) fn backward_memory(&self, layers: &Range<usize>) -> u64 {
        let working = self.backward_working[layers.clone()].iter().max();
        self.backward_kept.of(layers) + working.copied().unwrap_or(0)
    }
}

/// A chain's sums, made once for every size that is asked for.
#[derive(Clone, Debug)]
pub(crate) struct ChainPrices<'a> {
    pub(crate) chain: &'a LayerChain,
    pub(crate) fixed: FixedSums,
    sizes: Vec<Option<AtSize>>,
}

impl<'a> ChainPrices<'a> {
    pub(crate) fn new(chain: &'a LayerChain) -> ChainPrices<'a> {
        ChainPrices { chain, fixed: FixedSums::of(chain), sizes: Vec::new() }
    }

    /// Makes sure that a size is there.
    pub(crate) fn prepare(&mut self, size: u32) {
        let at = size as usize;
        if self.sizes.len() <= at {
            self.sizes.resize(at + 1, None);
        }
        self.sizes[at].get_or_insert_with(|| AtSize::of(self.chain, size));
    }

    /// A size that was prepared.
    pub(crate) fn at(&self, size: u32) -> &AtSize {
        self.sizes[size as usize].as_ref().expect("every size of a schedule is prepared")
    }
}
