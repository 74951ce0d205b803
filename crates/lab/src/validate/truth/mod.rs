//! Published measurements: which format a file has, and the predictions for its rows. Formats are known by
//! their columns; what nothing is fitted on and what something is are parts of their own.

mod kernels;
mod planner;
mod throughput;
mod training;

use crate::validate::csv::CsvTable;
use crate::validate::score::ComparedRow;
use std::path::Path;

/// The part of a file that is those rows of its `test` that nobody warns of.
pub const UNDOUBTED: &str = "test, undoubted";

/// The cases of one part of a file.
#[derive(Clone, Debug)]
pub struct TruthPart {
    /// Its name: `test`, `calibration`, `memory`…
    pub name: &'static str,
    /// Its cases.
    pub cases: Vec<ComparedRow>,
    /// Mean error of another oracle on such rows, as its authors publish it.
    pub published: Option<f64>,
    /// Rows that could not be asked about.
    pub skipped: usize,
}

impl TruthPart {
    fn new(name: &'static str, cases: Vec<ComparedRow>) -> TruthPart {
        TruthPart { name, cases, published: None, skipped: 0 }
    }
}

/// The parts of a file, or none if its format is not known. `beside` finds other files of the directory.
pub fn parts(
    path: &Path,
    table: &CsvTable,
    beside: &dyn Fn(&str) -> Option<CsvTable>,
) -> Option<Vec<TruthPart>> {
    let name = path.file_stem().map_or(String::new(), |stem| stem.to_string_lossy().to_lowercase());
    let parts = if table.has(&["gpu", "num_gpus", "bytes", "time_ns"]) {
        kernels::all_reduce(table)
    } else if table.has(&["layers", "batch", "seq_len", "fwd_ms"]) {
        kernels::forward(&name, table)
    } else if table.has(&["hidden", "layers", "tp", "dp", "pp", "micro_batch", "iter_time_ms"]) {
        training::grid(table)
    } else if table.has(&["framework", "model", "system", "gpus", "precision", "throughput", "unit"]) {
        throughput::throughput(table)
    } else if table.has(&["strategy", "model", "gpus", "global_batch", "median_sec_per_iter"]) {
        training::cnn(table, beside("paradl_own_projections.csv").as_ref())
    } else if table.has(&["model", "gpu", "tp", "pp", "dp", "act_ckpt", "sec_per_iter", "status"]) {
        training::with_memory(table)
    } else if table.has(&["model", "minibatch", "mode", "gpus", "est_iter_time_s", "u_bwd", "n_pack_bwd"]) {
        let (layers, profiles) = (beside("harmony_layers.csv")?, beside("harmony_layer_profiles.csv")?);
        planner::harmony(table, &layers, &profiles)
    } else {
        return None;
    };
    Some(parts.into_iter().filter(|part| !part.cases.is_empty() || part.skipped > 0).collect())
}
