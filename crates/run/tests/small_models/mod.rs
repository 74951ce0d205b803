//! Every model of the table made small enough to train a few steps in no time, and data for it.

use gulliver_graph::dim::Bindings;
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::Graph;
use gulliver_graph::model::ModelRow;
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::random::{RandomStream, hash_name};
use gulliver_run::data::Batch;
use gulliver_run::host::{HostData, HostTensor};

/// Settings that make a model small, where it has them.
pub fn small(row: &ModelRow) -> Vec<(String, ParamValue)> {
    let number = |name: &str| match name {
        "width" => Some(16),
        "size" => Some(32),
        "hidden" | "context" | "vocab" => Some(20),
        "layers" | "heads" | "generator" | "discriminator" => Some(2),
        "classes" => Some(5),
        "pool" => Some(1),
        "points" => Some(40),
        _ => None,
    };
    let setting = |name: &str, default: &ParamValue| match default {
        ParamValue::Int(_) => number(name).map(ParamValue::Int),
        ParamValue::Ints(sizes) if name == "sizes" => Some(ParamValue::Ints(vec![sizes[0], 24, 5].into())),
        ParamValue::Ints(stages) => Some(ParamValue::Ints(vec![1; stages.len()].into())),
        ParamValue::Float(_) if name == "dropout" => Some(ParamValue::Float(0.1)),
        ParamValue::Float(_) if name == "width" => Some(ParamValue::Float(0.25)),
        _ => None,
    };
    let given =
        row.params().into_iter().filter_map(|p| Some((p.name.to_string(), setting(p.name, &p.default)?)));
    given.collect()
}

/// A batch of noise for the graph's inputs.
pub fn data(graph: &Graph, sizes: &Bindings) -> Batch {
    let inputs = graph.inputs().filter(|(_, role, _)| role.is_data());
    let fields = inputs.map(|(_, _, info)| {
        let shape = info.ty.bind(sizes).unwrap();
        let stream = RandomStream::new(3, hash_name(&info.name), 0);
        let elements = 0..shape.iter().product::<usize>() as u64;
        let data = match info.ty.dtype {
            DType::F32 => HostData::F32(elements.map(|i| stream.normal_at(i)).collect()),
            DType::I64 => HostData::I64(elements.map(|i| stream.below(i, 2) as i64).collect()),
            DType::Bool => HostData::Bool(elements.map(|i| stream.below(i, 2) as u8).collect()),
            other => panic!("no model has {other}"),
        };
        (info.name.clone(), HostTensor::new(&shape, data).unwrap())
    });
    Batch { fields: fields.collect() }
}
