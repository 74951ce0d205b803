//! Feeds a step: the sizes of a batch, and all inputs of a graph except weights and states.

use super::{MemberHyper, RankSession, SessionError, StepKey};
use crate::data::Batch;
use crate::device::RunError;
use crate::host::HostTensor;
use crate::host::initial::noise;
use gulliver_graph::dim::{BATCH, Bindings, Dim};
use gulliver_graph::graph::{Graph, Origin, Role, Value};
use gulliver_graph::role::DataRole;
use gulliver_plan::document::job::{Purpose, SizedPlan};
use gulliver_plan::document::shard::Shard;
use std::borrow::Cow;

impl RankSession {
    /// Feeds a program with a batch. There is a key for every member; `hyper` gives hyper-parameters of a member that
    /// are not at their defaults.
    pub(super) fn feed(
        &mut self,
        purpose: Purpose,
        at: usize,
        batch: &Batch,
        keys: &[StepKey],
        hyper: MemberHyper<'_>,
    ) -> Result<(), SessionError> {
        let rank = self.plan.rank.filter(|rank| purpose == Purpose::Train && rank.sharing.divides_batch());
        let (rank, ranks) = rank.map_or((0, 1), |rank| (rank.rank, rank.ranks));
        let loaded = self.programs.get(at);
        let SizedPlan { graph, shards, plan, .. } = &loaded.made;
        let partials = plan.partials;
        let divided = !shards.is_empty();
        let shard_of = |value: Value| if divided { shards.get(&value) } else { None };
        let whole_shape = |value| shape_of(&loaded.made, value, &loaded.sizes);
        for &value in &loaded.fed {
            let info = graph.value(value);
            let Origin::Input(role) = info.origin else { continue };
            let mut feed = |bytes: &[u8]| -> Result<(), SessionError> {
                self.ledger.to_device += bytes.len() as u64;
                match loaded.input(value) {
                    Some(spot) if spot.bytes == bytes.len() as u64 => {
                        Ok(self.device.write(spot.tier, spot.offset, bytes)?)
                    }
                    other => {
                        let size = other.map_or(0, |spot| spot.bytes);
                        let expected = format!("{} of {size} bytes", info.ty);
                        let got = format!("{} bytes", bytes.len());
                        Err(RunError::Input { name: info.name.clone(), expected, got }.into())
                    }
                }
            };
            match role {
                Role::Data(role) => match (batch.get(&info.name), role) {
                    (Some(tensor), _) => feed(&own(shard_of(value), tensor.as_bytes()))?,
                    (None, DataRole::Noise { stream, member }) => {
                        let (mut shape, key) = (whole_shape(value)?, keys[member as usize]);
                        // The noise of all devices together; this device takes its share.
                        if let Some(rows) = shape.first_mut() {
                            *rows *= ranks as usize;
                        }
                        let all = noise(key.seed, key.step, stream, &shape);
                        let share = all.as_bytes().len() / ranks as usize;
                        let all = &all.as_bytes()[rank as usize * share..][..share];
                        feed(&own(shard_of(value), all))?;
                    }
                    // Data without padding may lack a mask.
                    (None, DataRole::Mask) => {
                        let all = vec![1; whole_shape(value)?.iter().product()];
                        feed(&own(shard_of(value), &all))?;
                    }
                    (None, _) => {
                        let found: Vec<String> = batch.fields.iter().map(|(n, _)| format!("`{n}`")).collect();
                        let found = found.join(", ");
                        return Err(SessionError::MissingField { wanted: info.name.clone(), found });
                    }
                },
                Role::Hyper(role, default) => {
                    let of = |member| hyper(member, role, &info.name).unwrap_or(default).to_le_bytes();
                    match keys {
                        [_] => feed(&of(0))?,
                        _ => feed(&(0..keys.len()).flat_map(of).collect::<Vec<u8>>())?,
                    }
                }
                Role::Random => {
                    let first = rank * partials;
                    let rows = (first..first + partials).flat_map(|p| {
                        keys.iter().flat_map(move |key| [key.seed as i64, key.step as i64, i64::from(p)])
                    });
                    feed(&rows.flat_map(i64::to_le_bytes).collect::<Vec<u8>>())?;
                }
                Role::Weight(_) | Role::State(_) => {}
            }
        }
        Ok(())
    }
}

/// A device's share of all bytes of an input: its shard of every partial, one after the other.
fn own<'b>(shard: Option<&Shard>, all: &'b [u8]) -> Cow<'b, [u8]> {
    let Some(shard) = shard.filter(|shard| !shard.is_whole()) else { return Cow::Borrowed(all) };
    let one = shard.whole_bytes();
    let mut own = Vec::with_capacity(all.len() / one * shard.bytes());
    for partial in all.chunks_exact(one) {
        shard.runs(0..one, |first, _, length| own.extend_from_slice(&partial[first..][..length]));
    }
    Cow::Owned(own)
}

/// The share of a batch that one of several devices takes.
pub(super) fn batch_of_rank(batch: &Batch, rank: usize, ranks: usize) -> Batch {
    let share = |tensor: &HostTensor| {
        let mut shape = tensor.shape().to_vec();
        shape[0] /= ranks;
        let mut share = HostTensor::zeros(tensor.dtype(), &shape);
        let bytes = share.as_bytes().len();
        share.as_bytes_mut().copy_from_slice(&tensor.as_bytes()[rank * bytes..][..bytes]);
        share
    };
    Batch { fields: batch.fields.iter().map(|(name, tensor)| (name.clone(), share(tensor))).collect() }
}

/// The shape of all partials of a data input, undivided.
fn shape_of(made: &SizedPlan, value: Value, sizes: &Bindings) -> Result<Vec<usize>, SessionError> {
    let Some(shard) = made.shards.get(&value) else { return Ok(made.graph.value(value).ty.bind(sizes)?) };
    let mut shape = shard.whole().to_vec();
    if let Some(rows) = shape.first_mut() {
        *rows *= made.plan.partials as usize;
    }
    Ok(shape)
}

/// The sizes that make a graph's data inputs fit a batch.
pub fn sizes_of(graph: &Graph, batch: &Batch) -> Result<Bindings, RunError> {
    let mut sizes = Bindings::new();
    sizes.set(BATCH, batch.rows());
    for (value, _, info) in graph.inputs().filter(|(_, role, _)| role.is_data()) {
        let Some(tensor) = batch.get(&info.name) else { continue };
        let shape = fitted(tensor.shape(), info.ty.rank());
        for (dim, &extent) in info.ty.shape.iter().zip(&shape) {
            if let Some(symbol) = dim.as_symbol() {
                sizes.set(symbol, extent);
            }
        }
        check_input(graph, value, tensor, &shape, &sizes)?;
    }
    Ok(sizes)
}

/// A batch's shape as a model with other dimensions reads it: images as rows of pixels, single numbers as rows
/// of one.
fn fitted(shape: &[usize], rank: usize) -> Vec<usize> {
    if shape.len() == 1 && rank == 2 {
        return vec![shape[0], 1];
    }
    if shape.len() <= rank || rank == 0 {
        return shape.to_vec();
    }
    let mut out = shape[..rank - 1].to_vec();
    out.push(shape[rank - 1..].iter().product());
    out
}

fn check_input(
    graph: &Graph,
    value: Value,
    tensor: &HostTensor,
    shape: &[usize],
    sizes: &Bindings,
) -> Result<(), RunError> {
    let info = graph.value(value);
    let fits = info.ty.rank() == shape.len()
        && info
            .ty
            .shape
            .iter()
            .zip(shape)
            .all(|(dim, &extent): (&Dim, &usize)| dim.bind(sizes) == Ok(extent));
    let same_width =
        info.ty.dtype == tensor.dtype() || (info.ty.dtype.size() == 1 && tensor.dtype().size() == 1);
    if fits && same_width {
        return Ok(());
    }
    let got = format!("{}{:?}", tensor.dtype(), tensor.shape());
    Err(RunError::Input { name: info.name.clone(), expected: info.ty.to_string(), got })
}
