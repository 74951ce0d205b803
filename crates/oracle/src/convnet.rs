//! Convolutional networks from their layers, without a graph, in two or three dimensions.

use crate::kernel::{Divide, Family, Work};
use crate::workload::{Layer, Workload};

/// A network under construction: layers so far, and the shape they leave.
#[derive(Clone, Debug)]
pub struct Convnet {
    layers: Vec<Layer>,
    channels: f64,
    extents: Vec<f64>,
    sample: f64,
}

impl Convnet {
    /// Starts with samples of so many channels and these extents.
    pub fn new(channels: u32, extents: &[u32]) -> Convnet {
        let extents: Vec<f64> = extents.iter().map(|&e| e as f64).collect();
        let channels = channels as f64;
        let sample = channels * extents.iter().product::<f64>();
        Convnet { layers: Vec::new(), channels, extents, sample }
    }

    /// Channels and extents that come next.
    pub fn shape(&self) -> (f64, &[f64]) {
        (self.channels, &self.extents)
    }

    /// A convolution with padding and a function after it, normalised over the batch between them or not.
    pub fn conv(
        &mut self,
        filters: u32,
        [kernel, stride, padding]: [u32; 3],
        normalised: bool,
    ) -> &mut Convnet {
        let filters = filters as f64;
        let input_extents = self.extents.clone();
        let input = self.elements();
        let taps = (kernel as f64).powi(self.extents.len() as i32);
        let out = |e: &f64| ((e + 2.0 * padding as f64 - kernel as f64) / stride as f64).floor() + 1.0;
        self.extents = self.extents.iter().map(out).collect();
        let places: f64 = self.extents.iter().product();
        let depth = self.channels * taps;
        let output = places * filters;
        let product = Work {
            family: Family::Convolution,
            moved: input + output,
            ..Work::matrix(places, filters, depth, Divide::Columns)
        };
        let mut forward = vec![product];
        let mut backward = product.gradients().to_vec();
        if self.layers.is_empty() {
            // Nobody asks for the gradient of data.
            backward.remove(0);
        }
        let elementwise = |passes: f64, calls: f64| Work::memory(passes * output, calls, Divide::Batch);
        if normalised {
            forward.extend([elementwise(3.0, 1.0), elementwise(2.0, 1.0)]);
            backward.extend([elementwise(5.0, 1.0), elementwise(3.0, 1.0)]);
        } else {
            forward.push(elementwise(4.0, 2.0));
            backward.push(elementwise(4.0, 2.0));
        }
        let layer = Layer {
            weights: depth * filters + if normalised { 2.0 } else { 1.0 } * filters,
            input,
            output,
            kept: output * if normalised { 2.0 } else { 1.0 },
            working: output,
            input_extents,
            extents: self.extents.clone(),
            halo: (kernel as f64 - 1.0) / 2.0,
            channels: self.channels,
            filters,
            statistics: if normalised { 2.0 * filters } else { 0.0 },
            ..Layer::new(format!("conv{}", self.layers.len()), forward, backward)
        };
        self.layers.push(layer);
        self.channels = filters;
        self
    }

    /// Pooling with a window.
    pub fn pool(&mut self, [kernel, stride, padding]: [u32; 3]) -> &mut Convnet {
        let input = self.elements();
        let out = |e: &f64| ((e + 2.0 * padding as f64 - kernel as f64) / stride as f64).floor() + 1.0;
        self.extents = self.extents.iter().map(out).collect();
        let output = self.elements();
        self.follow(input + output, 2.0 * (input + output), output);
        if let Some(layer) = self.layers.last_mut() {
            layer.output = output;
            layer.extents = self.extents.clone();
            layer.halo += (kernel as f64 - stride as f64).max(0.0) / 2.0;
        }
        self
    }

    /// Adds what came before some layers to what they made.
    pub fn add(&mut self) -> &mut Convnet {
        let elements = self.elements();
        self.follow(3.0 * elements, elements, 0.0);
        self
    }

    /// Averages over all of space.
    pub fn average(&mut self) -> &mut Convnet {
        let elements = self.elements();
        self.extents = Vec::new();
        self.follow(elements, elements, 0.0);
        self
    }

    /// A linear layer over all there is.
    pub fn linear(&mut self, width: u32) -> &mut Convnet {
        let (inputs, width) = (self.elements(), width as f64);
        let product = Work::matrix(1.0, width, inputs, Divide::Columns);
        let elementwise = Work::memory(4.0 * width, 2.0, Divide::Batch);
        let mut backward = product.gradients().to_vec();
        backward.push(elementwise);
        self.layers.push(Layer {
            weights: inputs * width + width,
            input: inputs,
            output: width,
            kept: 2.0 * width,
            channels: inputs,
            filters: width,
            ..Layer::new(format!("linear{}", self.layers.len()), vec![product, elementwise], backward)
        });
        self.extents = Vec::new();
        self.channels = width;
        self
    }

    /// Goes on from an earlier shape, for a branch beside the layers since.
    pub fn branch(&mut self, (channels, extents): (f64, Vec<f64>)) -> &mut Convnet {
        (self.channels, self.extents) = (channels, extents);
        self
    }

    /// What was built.
    pub fn workload(&self, name: &str) -> Workload {
        Workload { name: name.to_string(), layers: self.layers.clone(), sample: self.sample, tied: 0.0 }
    }

    fn elements(&self) -> f64 {
        self.channels * self.extents.iter().product::<f64>()
    }

    /// Element-wise work that belongs to the layer before it.
    fn follow(&mut self, forward: f64, backward: f64, kept: f64) {
        if let Some(layer) = self.layers.last_mut() {
            layer.forward.push(Work::memory(forward, 1.0, Divide::Batch));
            layer.backward.push(Work::memory(backward, 1.0, Divide::Batch));
            layer.kept += kept;
        }
    }
}
