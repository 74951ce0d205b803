//! The oracle: time, memory and traffic of training on clusters that are not at hand, by closed forms.
//!
//! A [`workload::Workload`] describes a model, a [`cluster::Cluster`] the devices, a [`strategy::ClusterStrategy`] how
//! they share the model, and a [`setting::Setting`] batch, precision, optimizer and software. [`oracle::estimate`]
//! answers for one strategy, [`rank::rank`] compares all of them, [`array::share`] compares ways to train many jobs.
#![forbid(unsafe_code)]

pub mod array;
mod bottleneck;
pub mod change;
pub mod cluster;
pub mod collective;
mod deal;
pub mod estimate;
pub mod from_graph;
pub mod hardware;
mod interval;
pub mod kernel;
mod memory;
pub mod mixed;
pub mod network;
pub mod oracle;
mod planned;
pub mod rank;
mod resident;
pub mod setting;
mod stage;
pub mod strategy;
mod stream;
#[cfg(test)]
mod tests;
mod turns;
pub mod words;
pub mod workload;

/// Why there is no answer. Messages say which values are allowed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum OracleError {
    /// A name that no table has.
    #[error("unknown {what} `{name}`; there are {allowed}")]
    Unknown {
        /// The kind of thing.
        what: &'static str,
        /// Its name.
        name: String,
        /// Names there are.
        allowed: String,
    },
    /// A figure that cannot be.
    #[error("{what} is {value}; give a number above zero")]
    Figure {
        /// Its name.
        what: String,
        /// The figure.
        value: f64,
    },
    /// A count of devices, jobs or packs that is zero or too large.
    #[error("{asked} {what} asked for; give 1 to {most}")]
    Count {
        /// What is counted.
        what: &'static str,
        /// The count.
        asked: u32,
        /// The largest allowed.
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

/// The row of a table that has this name; case does not count.
fn named<R>(
    table: &'static [R],
    what: &'static str,
    name: &str,
    name_of: fn(&R) -> &'static str,
) -> Result<&'static R, OracleError> {
    let wanted = name.to_ascii_lowercase();
    table.iter().find(|row| name_of(row) == wanted).ok_or_else(|| OracleError::Unknown {
        what,
        name: name.to_string(),
        allowed: table.iter().map(name_of).collect::<Vec<_>>().join(", "),
    })
}
