//! Another planner's estimates of its own plans: Harmony's, for models beyond device memory, against ours
//! from the same profiles of layers. Neither is a measurement.

use super::{ComparedRow, TruthPart};
use crate::validate::csv::{CsvRow, CsvTable};
use gulliver_oracle::cluster::Cluster;
use gulliver_oracle::estimate::Estimate;
use gulliver_oracle::hardware::Precision;
use gulliver_oracle::kernel::KernelWork;
use gulliver_oracle::oracle::estimate;
use gulliver_oracle::setting::Setting;
use gulliver_oracle::strategy::{ClusterStrategy, LayerResidence};
use gulliver_oracle::workload::{ModelLayer, Workload};
use std::collections::BTreeMap;

/// Plans of Harmony on a box of GTX 1080 Ti: its estimates of time stand where measurements do elsewhere.
pub fn harmony(table: &CsvTable, layers: &CsvTable, profiles: &CsvTable) -> Vec<TruthPart> {
    let mut part = TruthPart::new("estimates of Harmony", Vec::new());
    let profiles = Profiles::new(layers, profiles);
    for row in table.rows() {
        match case(&row, &profiles) {
            Some(case) => part.cases.push(case),
            None => part.skipped += 1,
        }
    }
    vec![part]
}

fn case(row: &CsvRow, profiles: &Profiles) -> Option<ComparedRow> {
    let answer = answer(row, profiles)?;
    Some(ComparedRow {
        label: row.line(&[
            "model",
            "minibatch",
            "mode",
            "gpus",
            "u_fwd",
            "n_pack_fwd",
            "u_bwd",
            "n_pack_bwd",
        ]),
        group: row.line(&["model", "minibatch", "gpus"]),
        measured: Some(row.number("est_iter_time_s")?),
        predicted: answer.seconds,
        interval: None,
        peer: None,
        out_of_memory: None,
    })
}

fn answer(row: &CsvRow, profiles: &Profiles) -> Option<Estimate> {
    let (devices, batch) = (row.count("gpus")?, row.count("minibatch")?);
    let (packs, micro_batch) = (row.count("n_pack_bwd")?, row.count("u_bwd")?);
    let serial = ClusterStrategy::serial(micro_batch);
    let strategy = match row.text("mode") {
        "vDP" => ClusterStrategy { data: devices, stream: LayerResidence::Replicas(packs), ..serial },
        "vPP" => ClusterStrategy { stages: devices, stream: LayerResidence::Wrapped(packs), ..serial },
        _ => return None,
    };
    let workload = profiles.workload(row.text("model"), [row.count("u_fwd")?, micro_batch])?;
    let setting = Setting { precision: Precision::F32, ..Setting::new(batch).ok()? };
    estimate(&workload, &Cluster::named("box-1080ti").ok()?, &strategy, &setting).ok()
}

/// Bytes of a layer's weights and of a sample's input.
type Sizes = [f64; 2];

/// Seconds and bytes by micro-batch.
type Curve = BTreeMap<u32, [f64; 2]>;

/// Layers of every model, and what they took by pass and micro-batch.
struct Profiles {
    layers: BTreeMap<String, Vec<Sizes>>,
    curves: BTreeMap<(String, bool, usize), Curve>,
}

impl Profiles {
    fn new(layers: &CsvTable, profiles: &CsvTable) -> Profiles {
        let mut made = Profiles { layers: BTreeMap::new(), curves: BTreeMap::new() };
        for row in layers.rows() {
            let sizes = [row.number("weight_bytes"), row.number("input_act_bytes_per_sample")];
            made.layers
                .entry(row.text("model").to_string())
                .or_default()
                .push(sizes.map(|bytes| bytes.unwrap_or(0.0)));
        }
        for row in profiles.rows() {
            let known = || {
                let at = row.number("vlayer")? as usize;
                let figures = [row.number("gpu_time_s")?, row.number("gpu_mem_bytes")?];
                Some((at, row.count("microbatch")?, figures))
            };
            if let Some((at, micro_batch, figures)) = known() {
                let backward = row.text("kind") == "BWD";
                let curve = made.curves.entry((row.text("model").to_string(), backward, at)).or_default();
                curve.insert(micro_batch, figures);
            }
        }
        made
    }

    /// A model whose layers take what they took at these micro-batches of the forward and of the backward pass. Of
    /// several lengths of samples the longest is meant.
    fn workload(&self, name: &str, [forward, backward]: [u32; 2]) -> Option<Workload> {
        let length = |model: &str| model.strip_prefix(name)?.strip_prefix("_seqlen")?.parse::<u32>().ok();
        let longest = self.layers.keys().filter_map(|model| Some((length(model)?, model))).max();
        let model = self.layers.get_key_value(name).map(|found| found.0).or(longest.map(|found| found.1))?;
        let sizes = &self.layers[model];
        let at = |is_backward: bool, layer: usize, micro_batch: u32| {
            read(self.curves.get(&(model.clone(), is_backward, layer))?, micro_batch)
        };
        let mut layers = Vec::new();
        for (i, [weights, input]) in sizes.iter().enumerate() {
            let (there, back) = (at(false, i, forward)?, at(true, i, backward)?);
            // Published backward passes contain the forward pass.
            let again = at(false, i, backward)?;
            let seconds = [there[0] / forward as f64, (back[0] - again[0]).max(0.0) / backward as f64];
            let [forward_work, backward_work] = seconds.map(|seconds| vec![KernelWork::timed(seconds)]);
            layers.push(ModelLayer {
                weights: weights / 4.0,
                input: input / 4.0,
                output: sizes.get(i + 1).map_or(0.0, |next| next[1] / 4.0),
                kept: (back[1] - 2.0 * weights).max(0.0) / backward as f64 / 4.0,
                ..ModelLayer::new(format!("layer{i}"), forward_work, backward_work)
            });
        }
        let sample = sizes.first().map_or(0.0, |first| first[1] / 4.0);
        Some(Workload { name: name.to_string(), layers, sample, tied: 0.0 })
    }
}

/// A curve at a micro-batch: on a line between the nearest that were profiled, or in proportion to the last.
fn read(curve: &Curve, at: u32) -> Option<[f64; 2]> {
    let below = curve.range(..=at).next_back();
    let above = curve.range(at..).next();
    match (below, above) {
        (Some((low, a)), Some((high, b))) if high > low => {
            let share = (at - low) as f64 / (high - low) as f64;
            Some([0, 1].map(|i| a[i] + share * (b[i] - a[i])))
        }
        (Some((near, figures)), _) | (None, Some((near, figures))) => {
            Some(figures.map(|figure| figure * at as f64 / *near as f64))
        }
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_read_between_their_points() {
        let curve = Curve::from([(2, [1.0, 10.0]), (4, [3.0, 30.0])]);
        for (at, expected) in [(1, [0.5, 5.0]), (2, [1.0, 10.0]), (3, [2.0, 20.0]), (8, [6.0, 60.0])] {
            assert_eq!(read(&curve, at), Some(expected), "{at}");
        }
        assert_eq!(read(&Curve::new(), 1), None);
    }
}
