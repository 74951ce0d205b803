//! The oracle: time, memory and traffic of every strategy before anything runs, by closed forms.
//!
//! A [`workload::Workload`] is what is known of a model, a [`cluster::Cluster`] what it runs on, a
//! [`strategy::Strategy`] how, a [`setting::Setting`] the rest; [`closed::estimate`] answers, and
//! [`rank::rank`] asks for all strategies there are. Pure: no files, threads, clocks, prints or `unsafe`.
#![forbid(unsafe_code)]

pub mod array;
pub mod bottleneck;
pub mod change;
pub mod closed;
pub mod cluster;
pub mod collective;
pub mod deal;
pub mod from_graph;
pub mod hardware;
mod interval;
pub mod kernel;
pub mod memory;
pub mod mixed;
#[cfg(test)]
mod mixed_tests;
pub mod network;
pub mod planned;
pub mod rank;
#[cfg(test)]
mod samples;
pub mod setting;
pub mod stage;
pub mod strategy;
pub mod stream;
#[cfg(test)]
mod stream_tests;
#[cfg(test)]
mod tests;
pub mod turns;
pub mod words;
pub mod workload;

/// Why there is no answer, with what is allowed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum OracleError {
    /// A name that no table has.
    #[error("unknown {what} `{name}`; there are {allowed}")]
    Unknown {
        /// What was named.
        what: &'static str,
        /// Its name.
        name: String,
        /// Names there are.
        allowed: String,
    },
    /// A figure that cannot be.
    #[error("{what} is {value}; give a number above zero")]
    Figure {
        /// Of what.
        what: String,
        /// The figure.
        value: f64,
    },
    /// More devices than there are, or none.
    #[error("{asked} devices asked for; give 1 to {most}")]
    Devices {
        /// Asked for.
        asked: u32,
        /// There are.
        most: u32,
    },
    /// A strategy with nothing in it.
    #[error("`{0}`: batch, micro-batch, replicas, ways and stages are 1 at least")]
    Zero(String),
    /// A batch that leaves replicas idle.
    #[error(
        "batch {batch} is smaller than its {replicas} replicas; give at least {replicas}, or fewer replicas"
    )]
    Batch {
        /// Samples.
        batch: u32,
        /// Replicas.
        replicas: u32,
    },
    /// A batch that cannot be divided.
    #[error("batch {batch} is no multiple of {replicas} replicas x {micro_batch} samples of a micro-batch")]
    MicroBatch {
        /// Samples.
        batch: u32,
        /// Replicas.
        replicas: u32,
        /// Samples of a micro-batch.
        micro_batch: u32,
    },
    /// More devices than a way of sharing layers has use for.
    #[error("{family} parallelism over {asked} devices; this model allows {most} at most")]
    Limit {
        /// The way.
        family: String,
        /// Asked for.
        asked: u32,
        /// Allowed.
        most: u32,
    },
    /// No jobs, or too many.
    #[error("{asked} jobs asked for; give 1 to {most}")]
    Jobs {
        /// Asked for.
        asked: u32,
        /// Allowed.
        most: u32,
    },
    /// More packs than layers, or none.
    #[error("{asked} packs asked for; this model allows 1 to {most}")]
    Packs {
        /// Asked for.
        asked: u32,
        /// Allowed.
        most: u32,
    },
    /// Layers that come from host memory and are shared, too.
    #[error("{0} has one way to use devices: replicas for harmony-dp and paged, stages for harmony-pp")]
    Mixture(String),
    /// A model without layers.
    #[error("`{0}` has no layers")]
    Empty(String),
    /// A graph that cannot be measured.
    #[error("cannot read the graph: {0}")]
    Graph(String),
}
