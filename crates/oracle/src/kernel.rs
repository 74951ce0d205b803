//! Seconds of one operator on one device: a roofline whose ceilings fall for small products, for products
//! that fill the device's units badly, and for short sums.

use crate::hardware::{Accelerator, Efficiency, Precision};

/// Kinds of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KernelFamily {
    /// Products of large matrices.
    Matrix,
    /// Convolutions.
    Convolution,
    /// Many small products: attention, recurrence.
    Batched,
    /// Bound by memory: element-wise, normalisation, pooling, look-up.
    Memory,
    /// A measured time: `flops` is in seconds and scales ideally.
    Timed,
}

/// Which extent a tensor-parallel cut divides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Divide {
    /// The columns of the product: each device makes some of the results.
    Columns,
    /// The summed index: partial sums are added up.
    Depth,
    /// Independent products, or elements: each device has its own.
    Batch,
    /// Nothing: every device does all of it, unless the sequence is cut too.
    Sequence,
}

/// One operator's work. Extents and elements are for one sample unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct KernelWork {
    /// The kind of kernel.
    pub family: KernelFamily,
    /// Floating-point operations (seconds, if timed).
    pub flops: f64,
    /// Elements of activations read and written.
    pub moved: f64,
    /// Elements of weights read or written, whatever the batch.
    pub weights: f64,
    /// Independent products.
    pub products: f64,
    /// Rows of each product.
    pub rows: f64,
    /// Columns of each product.
    pub columns: f64,
    /// Terms of each sum.
    pub depth: f64,
    /// Rows are those of one sample and grow with the batch; else products do, or, for gradients of
    /// weights, the depth.
    pub grows: Grows,
    /// Kernels launched.
    pub calls: f64,
    /// The extent that a tensor-parallel cut divides.
    pub divide: Divide,
    /// Selective recomputation repeats it.
    pub again: bool,
}

/// Which extent of a product has the batch in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Grows {
    /// Rows.
    Rows,
    /// The number of products.
    Products,
    /// The sum: a gradient of weights.
    Depth,
}

impl KernelWork {
    /// A product of `rows x depth` with weights `depth x columns`.
    pub fn matrix(rows: f64, columns: f64, depth: f64, divide: Divide) -> KernelWork {
        KernelWork {
            family: KernelFamily::Matrix,
            flops: 2.0 * rows * columns * depth,
            weights: columns * depth,
            rows,
            columns,
            depth,
            grows: Grows::Rows,
            ..KernelWork::memory(rows * (columns + depth), 1.0, divide)
        }
    }

    /// `products` independent products of activations.
    pub fn batched(products: f64, rows: f64, columns: f64, depth: f64) -> KernelWork {
        let moved = products * (rows * columns + rows * depth + depth * columns);
        KernelWork {
            family: KernelFamily::Batched,
            flops: 2.0 * products * rows * columns * depth,
            products,
            rows,
            columns,
            depth,
            ..KernelWork::memory(moved, 1.0, Divide::Batch)
        }
    }

    /// Elements that stream through memory.
    pub fn memory(moved: f64, calls: f64, divide: Divide) -> KernelWork {
        KernelWork {
            family: KernelFamily::Memory,
            flops: moved,
            moved,
            weights: 0.0,
            products: 1.0,
            rows: 1.0,
            columns: 1.0,
            depth: 1.0,
            grows: Grows::Products,
            calls,
            divide,
            again: false,
        }
    }

    /// A measured time of one sample.
    pub fn timed(seconds: f64) -> KernelWork {
        KernelWork {
            family: KernelFamily::Timed,
            flops: seconds,
            ..KernelWork::memory(0.0, 0.0, Divide::Batch)
        }
    }

    /// The share of it that one of `ways` devices does in a tensor-parallel cut.
    pub fn cut(mut self, ways: f64, sequence: bool) -> KernelWork {
        if ways == 1.0 {
            return self;
        }
        match self.divide {
            Divide::Columns => {
                self.moved -= self.rows_moved(self.columns) * (1.0 - 1.0 / ways);
                self.columns = padded(self.columns / ways);
            }
            Divide::Depth => {
                self.moved -= self.rows_moved(self.depth) * (1.0 - 1.0 / ways);
                self.depth = padded(self.depth / ways);
            }
            Divide::Batch => {
                self.products /= ways;
                self.moved /= ways;
            }
            Divide::Sequence if sequence => {
                self.rows /= ways;
                self.moved /= ways;
                self.flops /= ways;
                return self;
            }
            Divide::Sequence => return self,
        }
        self.flops /= ways;
        self.weights /= ways;
        self
    }

    fn rows_moved(&self, extent: f64) -> f64 {
        if self.grows == Grows::Depth { self.depth * extent } else { self.rows * extent }
    }

    /// The share of it that one of `ways` devices does if samples are cut in space; the windows of
    /// convolutions overlap by their halo.
    pub fn cut_in_space(mut self, ways: f64) -> KernelWork {
        self.flops /= ways;
        self.moved /= ways;
        match self.grows {
            Grows::Rows => self.rows /= ways,
            Grows::Products => self.products /= ways,
            Grows::Depth => self.depth /= ways,
        }
        self
    }

    /// Seconds on a device for this many samples, without launches.
    pub fn seconds(&self, device: &Accelerator, precision: Precision, samples: f64) -> f64 {
        if self.family == KernelFamily::Timed {
            return self.flops * samples;
        }
        let e = &device.efficiency;
        let p = precision as usize;
        let bytes = (self.moved * samples + self.weights) * precision.bytes();
        let memory = bytes / (device.bandwidth * e.memory);
        let reached = match self.family {
            KernelFamily::Matrix => e.matrix[p],
            KernelFamily::Batched => e.matrix[p] * e.batched,
            KernelFamily::Convolution => e.convolution[p],
            KernelFamily::Memory | KernelFamily::Timed => return memory + self.calls * e.gap,
        };
        let (mut products, mut rows, mut depth) = (self.products, self.rows, self.depth);
        match self.grows {
            Grows::Rows => rows *= samples,
            Grows::Products => products *= samples,
            Grows::Depth => depth *= samples,
        }
        let odd = self.family == KernelFamily::Matrix
            && precision == Precision::Mixed
            && [rows, self.columns, depth].iter().any(|extent| extent % ALIGNED != 0.0);
        let reached = if odd { reached * e.odd } else { reached };
        // The start and end of a sum take as long as this many terms; slower number formats need fewer.
        let around = e.half_depth * device.flops[p] / device.flops[2];
        let short = depth / (depth + around);
        let rate = device.flops[p] * reached * short * filled(products, rows, self.columns, device);
        (self.flops * samples / rate).max(memory) + self.calls * e.gap
    }
}

/// Extents of half-precision products that are no multiple of this are slow to read.
const ALIGNED: f64 = 8.0;

/// A part of a cut extent, rounded up to full lines.
fn padded(extent: f64) -> f64 {
    if extent < ALIGNED { extent } else { (extent / ALIGNED).ceil() * ALIGNED }
}

/// The share of a device's rate that a product reaches: edges are padded to whole tiles, and units idle while others
/// make the last tiles.
fn filled(products: f64, rows: f64, columns: f64, device: &Accelerator) -> f64 {
    let Efficiency { tile, tail, .. } = device.efficiency;
    let along = |extent: f64| (extent / tile).ceil().max(1.0);
    let tiles = products * along(rows) * along(columns);
    let edge = (products * rows * columns) / (tiles * tile * tile);
    (edge * tiles / (tiles + tail * device.units)).clamp(1e-6, 1.0)
}
