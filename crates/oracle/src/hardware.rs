//! Accelerators as tables: the figures of public specifications with their source, and how much of them
//! kernels reach. The shares are properties of an architecture, fitted on single-device measurements only.

use crate::OracleError;
use gulliver_plan::time::cost::Rates;

/// The number format of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32-bit floating point.
    F32,
    /// 32-bit values whose products are rounded by tensor cores.
    Tf32,
    /// 16-bit values and products, 32-bit master weights.
    Mixed,
}

impl Precision {
    /// Bytes of an activation, a working weight or its gradient.
    pub fn bytes(self) -> f64 {
        if self == Precision::Mixed { 2.0 } else { 4.0 }
    }

    /// By name: `fp32`, `tf32`, or `mixed`, `amp`, `fp16`, `bf16`.
    pub fn named(name: &str) -> Result<Precision, OracleError> {
        match name.to_ascii_lowercase().as_str() {
            "fp32" | "f32" => Ok(Precision::F32),
            "tf32" => Ok(Precision::Tf32),
            "mixed" | "amp" | "fp16" | "bf16" | "f16" | "half" => Ok(Precision::Mixed),
            _ => Err(OracleError::Unknown {
                what: "precision",
                name: name.to_string(),
                allowed: "fp32, tf32, mixed".into(),
            }),
        }
    }
}

/// Which part of the specification kernels of a family reach, and how it falls for small work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Efficiency {
    /// Share of the peak that large matrix products reach, by precision (f32, tf32, mixed).
    pub matrix: [f64; 3],
    /// The same of convolutions; above one where transforms save products.
    pub convolution: [f64; 3],
    /// Products of attention and recurrence, relative to large ones.
    pub batched: f64,
    /// Summed index at which a half-precision product runs at half its rate.
    pub half_depth: f64,
    /// Rows and columns of results that one unit makes at a time.
    pub tile: f64,
    /// Waves of tiles that are lost at the end of a product.
    pub tail: f64,
    /// Rate of half-precision products with extents that are no multiple of eight, relative to others.
    pub odd: f64,
    /// Share of the memory bandwidth that streaming kernels reach.
    pub memory: f64,
    /// Seconds a kernel takes beside its work.
    pub gap: f64,
}

/// A device that trains.
#[derive(Clone, Debug, PartialEq)]
pub struct Accelerator {
    /// As users name it.
    pub name: String,
    /// Bytes of memory.
    pub memory: f64,
    /// Bytes the driver and libraries hold before anything runs.
    pub context: f64,
    /// Peak products and sums a second, by precision (f32, tf32, mixed).
    pub flops: [f64; 3],
    /// Bytes of memory a second.
    pub bandwidth: f64,
    /// Units that tiles of a product are dealt to.
    pub units: f64,
    /// Watts at full load.
    pub watts: f64,
    /// Shares of these figures that are reached.
    pub efficiency: Efficiency,
    /// Where the figures are from.
    pub source: &'static str,
}

/// Volta, and Pascal before it. Fitted on published throughput of a single V100; small products (`batched`,
/// `odd`, `tail`, `gap`) are those of Ampere, as no row of one V100 tells them apart.
const VOLTA: Efficiency = Efficiency {
    matrix: [0.838, 0.838, 0.574],
    convolution: [1.0, 1.0, 0.743],
    batched: 0.75,
    half_depth: 164.0,
    tile: 64.0,
    tail: 0.1,
    odd: 0.455,
    memory: 0.87,
    gap: 1e-6,
};

/// Ampere and later. Fitted on GPT on one and two A100 and on forward passes (`mixed`), and on
/// published throughput of a single A100 (`tf32`, convolutions).
const AMPERE: Efficiency = Efficiency {
    matrix: [0.84, 0.711, 0.92],
    convolution: [1.0, 0.375, 0.99],
    batched: 0.75,
    half_depth: 400.0,
    tile: 64.0,
    tail: 0.1,
    odd: 0.455,
    memory: 0.92,
    gap: 1e-6,
};

/// A row of the table: name, GB of memory, TFLOP/s (f32, tf32, mixed), GB/s, units, watts, source.
type Row = (&'static str, f64, [f64; 3], f64, f64, f64, Efficiency, &'static str);

#[rustfmt::skip]
const TABLE: &[Row] = &[
    ("v100-16", 16.0, [15.7, 15.7, 125.0], 900.0, 80.0, 300.0, VOLTA, "NVIDIA V100 data sheet, SXM2"),
    ("v100-32", 32.0, [15.7, 15.7, 125.0], 900.0, 80.0, 300.0, VOLTA, "NVIDIA V100 data sheet, SXM2"),
    ("v100-450w", 32.0, [16.4, 16.4, 131.0], 900.0, 80.0, 450.0, VOLTA, "NVIDIA DGX-2H: V100 SXM3 at 450 W"),
    ("p100", 16.0, [10.6, 10.6, 21.2], 732.0, 56.0, 300.0, VOLTA, "NVIDIA P100 data sheet, SXM2"),
    ("gtx-1080ti", 11.0, [11.3, 11.3, 11.3], 484.0, 28.0, 250.0, VOLTA, "NVIDIA GTX 1080 Ti specification"),
    ("rtx-3090", 24.0, [35.6, 35.6, 71.0], 936.0, 82.0, 350.0, AMPERE, "NVIDIA GA102 white paper"),
    ("rtx-4090", 24.0, [82.6, 82.6, 165.2], 1008.0, 128.0, 450.0, AMPERE, "NVIDIA Ada white paper"),
    ("a100-40", 40.0, [19.5, 156.0, 312.0], 1555.0, 108.0, 400.0, AMPERE, "NVIDIA A100 data sheet, SXM4"),
    ("a100-80", 80.0, [19.5, 156.0, 312.0], 2039.0, 108.0, 400.0, AMPERE, "NVIDIA A100 data sheet, SXM4"),
    ("h100", 80.0, [67.0, 494.7, 989.4], 3350.0, 132.0, 700.0, AMPERE, "NVIDIA H100 data sheet, SXM5, dense"),
    ("tpu-v3", 16.0, [4.0, 61.5, 61.5], 450.0, 2.0, 225.0, AMPERE, "Google Cloud TPU v3: a core of 123 TFLOP/s a chip"),
    ("mi250", 64.0, [45.3, 45.3, 181.0], 1638.0, 104.0, 280.0, AMPERE, "AMD MI250 data sheet, one of its two dies"),
    ("mi300x", 192.0, [163.4, 653.7, 1307.4], 5300.0, 304.0, 750.0, AMPERE, "AMD MI300X data sheet, dense"),
];

impl Accelerator {
    /// An accelerator of the table, by name.
    pub fn named(name: &str) -> Result<Accelerator, OracleError> {
        let row = crate::named(TABLE, "accelerator", name, |row| row.0)?;
        let (name, memory, flops, bandwidth, units, watts, efficiency, source) = row;
        Ok(Accelerator {
            name: name.to_string(),
            // Drivers leave 16160 of 16384 MiB on V100, 81251 of 81920 on A100.
            memory: memory * 0.99 * GIB,
            // As stated for V100 cards by those who trained on them: 1113 MiB.
            context: 1113.0 * 1048576.0,
            flops: flops.map(|tera| tera * 1e12),
            bandwidth: bandwidth * 1e9,
            units: *units,
            watts: *watts,
            efficiency: *efficiency,
            source,
        })
    }

    /// All names of the table.
    pub fn names() -> impl Iterator<Item = &'static str> {
        TABLE.iter().map(|row| row.0)
    }

    /// The processor of a machine whose kernels reach these rates.
    pub fn cpu(rates: Rates, memory: f64) -> Accelerator {
        Accelerator {
            name: "cpu".into(),
            memory,
            context: 0.0,
            flops: [rates.flops; 3],
            bandwidth: rates.bytes,
            units: 1.0,
            watts: 65.0,
            efficiency: Efficiency {
                matrix: [1.0; 3],
                convolution: [1.0; 3],
                batched: 1.0,
                half_depth: 0.0,
                tile: 1.0,
                tail: 0.0,
                odd: 1.0,
                memory: 1.0,
                gap: rates.call,
            },
            source: "measured rates of this machine",
        }
    }

    /// Refuses figures that no device has.
    pub fn check(&self) -> Result<(), OracleError> {
        let figures = [
            ("memory", self.memory),
            ("flops", self.flops.iter().copied().fold(f64::INFINITY, f64::min)),
            ("bandwidth", self.bandwidth),
            ("units", self.units),
        ];
        match figures.iter().find(|(_, value)| !(value.is_finite() && *value > 0.0)) {
            Some((field, value)) => {
                Err(OracleError::Figure { what: format!("{field} of {}", self.name), value: *value })
            }
            None => Ok(()),
        }
    }
}

/// Bytes of a binary gigabyte.
pub const GIB: f64 = 1073741824.0;
