//! What a step is fed with: the sizes of a batch, and everything a graph reads but weights and states.

use super::cuts::own;
use super::{Key, MemberHyper, SessionError};
use crate::data::Batch;
use crate::executor::{Cpu, RunError};
use crate::host::HostTensor;
use crate::host::initial::noise;
use crate::peers::Seat;
use crate::planner::Side;
use crate::program::Program;
use gulliver_graph::dim::BATCH;
use gulliver_graph::dim::{Bindings, Dim};
use gulliver_graph::graph::{Graph, Origin, Role, Value};
use gulliver_graph::role::DataRole;

/// Feeds a program with a batch of these sizes; the number of bytes. There is a key for every member; `hyper`
/// gives hyper-parameters of a member that are not at their defaults.
pub(super) fn feed(
    cpu: &mut Cpu,
    side: &Side,
    program: &Program,
    (batch, sizes): (&Batch, &Bindings),
    keys: &[Key],
    hyper: MemberHyper<'_>,
    seat: Option<&Seat>,
) -> Result<u64, SessionError> {
    let Side { graph, fed, partials, .. } = side;
    let (rank, ranks) = seat.map_or((0, 1), |seat| (seat.rank, seat.ranks));
    let mut total = 0;
    for &value in fed {
        let info = graph.value(value);
        let Origin::Input(role) = info.origin else { continue };
        let mut feed = |bytes: &[u8]| -> Result<(), SessionError> {
            total += bytes.len() as u64;
            Ok(cpu.feed(graph, program, value, bytes)?)
        };
        match role {
            Role::Data(role) => match (batch.get(&info.name), role) {
                (Some(tensor), _) => feed(&own(side.boxed(value), tensor.as_bytes()))?,
                (None, DataRole::Noise { stream, member }) => {
                    let (mut shape, key) = (shape_of(side, value, sizes)?, keys[member as usize]);
                    // That of all devices together, of which this is one's share.
                    if let Some(rows) = shape.first_mut() {
                        *rows *= ranks as usize;
                    }
                    let all = noise(key.seed, key.step, stream, &shape);
                    let share = all.as_bytes().len() / ranks as usize;
                    let all = &all.as_bytes()[rank as usize * share..][..share];
                    feed(&own(side.boxed(value), all))?;
                }
                // Data without padding need not say so.
                (None, DataRole::Mask) => {
                    let all = vec![1; shape_of(side, value, sizes)?.iter().product()];
                    feed(&own(side.boxed(value), &all))?;
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
    Ok(total)
}

/// The shape of all partials of a data input, of which a device may need but boxes.
fn shape_of(side: &Side, value: Value, sizes: &Bindings) -> Result<Vec<usize>, SessionError> {
    let Some(boxed) = side.boxed(value) else { return Ok(side.graph.value(value).ty.bind(sizes)?) };
    let mut shape = boxed.whole().to_vec();
    if let Some(rows) = shape.first_mut() {
        *rows *= side.partials as usize;
    }
    Ok(shape)
}

/// The sizes that make a graph's data inputs fit a batch.
pub fn sizes_of(graph: &Graph, batch: &Batch) -> Result<Bindings, RunError> {
    let mut sizes = Bindings::new();
    let rows = batch.fields.first().and_then(|(_, t)| t.shape().first()).copied().unwrap_or(0);
    sizes.set(BATCH, rows);
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
