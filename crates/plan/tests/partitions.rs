//! Graphs dealt to several devices do what the whole graph does: random legal cuts of every kind of model, at
//! one and two levels, on even and uneven shares, run by the reference kernels with their collectives. What they
//! exchange is what was counted beforehand for cuts that move least and cuts by rule, but for the numbers given
//! out; never less for any other.

use gulliver_graph::dim::Bindings;
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::op::Op;
use gulliver_graph::graph::op::exchange::Exchange;
use gulliver_graph::graph::{Graph, Node, Origin, Phase, Role};
use gulliver_graph::interpret::interpret;
use gulliver_graph::model::model;
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::optim::Optimizer;
use gulliver_graph::random::{RandomStream, hash_name};
use gulliver_graph::tensor::Tensor;
use gulliver_graph::training::{Clip, training_graph};
use gulliver_graph::verify::verify;
use gulliver_plan::devices::cut::{
    CutObjective, CutOptions, CutRule, DeviceMesh, DevicePart, GraphCut, InputBox, MeshLevel, NodeCut,
    Sharding, SizedGraph, Undivided,
};
use gulliver_plan::devices::cut::{cut_by_rules, cut_traffic, find_cut, node_parts, partition};
use std::collections::HashMap;

fn graphs(optimizer: &str) -> Vec<(&'static str, Graph, Bindings)> {
    let int = |v: i64| ParamValue::Int(v);
    let rows: Vec<(&str, Vec<(&str, ParamValue)>)> = vec![
        ("mlp-tiny", vec![]),
        ("cnn", vec![("width", int(4)), ("size", int(8))]),
        ("resnet18", vec![("width", int(4)), ("size", int(16))]),
        (
            "gpt",
            vec![
                ("width", int(8)),
                ("heads", int(4)),
                ("layers", int(1)),
                ("vocab", int(12)),
                ("context", int(6)),
                ("dropout", ParamValue::Float(0.1)),
            ],
        ),
        ("lstm", vec![("width", int(8)), ("vocab", int(12))]),
        (
            "bert",
            vec![
                ("width", int(8)),
                ("heads", int(4)),
                ("layers", int(1)),
                ("hidden", int(8)),
                ("vocab", int(12)),
            ],
        ),
        ("cosmoflow", vec![("width", int(4)), ("size", int(16)), ("layers", int(2)), ("hidden", int(8))]),
    ];
    let sizes = Bindings::new().with("batch", 4).with("length", 6);
    let build = |(name, params): (&'static str, Vec<(&str, ParamValue)>)| {
        let params: Vec<(String, ParamValue)> = params.into_iter().map(|(n, v)| (n.to_string(), v)).collect();
        let optimizer = Optimizer::new(optimizer, &[]).unwrap();
        let model = model(name, &params).unwrap_or_else(|e| panic!("{name}: {e}"));
        (name, training_graph(model.as_ref(), &[optimizer], Some(Clip::Norm(1.0))).unwrap(), sizes.clone())
    };
    rows.into_iter().map(build).collect()
}

/// Contents of an input, by its name.
fn input(info: &gulliver_graph::graph::ValueInfo, role: Role, shape: &[usize]) -> Tensor {
    let stream = RandomStream::new(5, hash_name(&info.name), 0);
    let count: usize = shape.iter().product();
    let number = |i: u64| match (role, info.ty.dtype) {
        (Role::Hyper(_, default), _) => f64::from(default),
        (Role::Random, _) => [3.0, 1.0, 0.0][i as usize % 3],
        (Role::State(_), _) => f64::from(stream.uniform_at(i)),
        (_, DType::F32) => f64::from(stream.normal_at(i)) * 0.3,
        (_, DType::Bool) => 1.0,
        _ => stream.below(i, 5) as f64,
    };
    Tensor::new(shape, (0..count as u64).map(number).collect())
}

/// A legal cut at random. Where `exact`, no sum is divided.
fn random_cut(sized: &SizedGraph, levels: &[MeshLevel], seed: u64, exact: bool) -> GraphCut {
    let graph = sized.graph;
    let mesh = DeviceMesh::new(levels);
    let mut cut = GraphCut::none(graph, levels);
    let noise = RandomStream::new(seed, 9, 0);
    let mut drawn = 0;
    let mut draw = |n: usize| {
        drawn += 1;
        noise.below(drawn, n as u64) as usize
    };
    // Data is fed to each device as it needs it.
    for (v, _, _) in graph.inputs().filter(|(v, ..)| sized.persists(v.index())) {
        for level in 0..levels.len() {
            let shape = &sized.shapes[v.index()];
            let mut all = vec![Sharding::Replicated];
            let fine = |d: &usize| shape[*d] >= 2 * mesh.devices();
            all.extend((0..shape.len()).filter(fine).map(Sharding::Split));
            cut.values[v.index()][level] = all[draw(all.len())];
        }
    }
    for id in 0..graph.nodes.len() {
        let kind = sized.kind(id);
        let mut choices = vec![NodeCut::Repeat; levels.len()];
        for level in 0..levels.len() {
            let axes =
                kind.axes.iter().filter(|a| !exact || kind.spec.cut(**a).is_some_and(|c| c.keeps_bits()));
            let mut all: Vec<NodeCut> = axes.map(|a| NodeCut::Axis(*a)).collect();
            all.push(NodeCut::Repeat);
            all.retain(|choice| {
                let mut with = choices.clone();
                with[level] = *choice;
                node_parts(kind, &with, &mesh).is_ok()
            });
            choices[level] = all[draw(all.len())];
        }
        let parts = node_parts(kind, &choices, &mesh).unwrap();
        for (level, choice) in choices.iter().enumerate() {
            cut.nodes[id][level] = match choice {
                NodeCut::Axis(axis) => Some(*axis),
                _ => None,
            };
        }
        for (v, shardings) in graph.nodes[id].outs.iter().zip(parts.shardings) {
            cut.values[v.index()] = shardings;
        }
    }
    cut
}

/// Runs all devices, each in turn up to its next collective, and returns the values of each.
fn run(shares: &[DevicePart], feed: &dyn Fn(&DevicePart, usize) -> Tensor) -> Vec<Vec<Tensor>> {
    let mut values: Vec<Vec<Tensor>> = Vec::new();
    for share in shares {
        let zeros = |info: &gulliver_graph::graph::ValueInfo| {
            Tensor::zeros(&info.ty.bind(&Bindings::new()).expect("no symbols are left"))
        };
        let mut own: Vec<Tensor> = share.graph.values.iter().map(zeros).collect();
        for (i, InputBox { value: v, .. }) in share.inputs.iter().enumerate() {
            own[v.index()] = feed(share, i);
        }
        values.push(own);
    }
    let mut next = vec![0; shares.len()];
    loop {
        // Each device runs until it waits for a collective.
        for (d, share) in shares.iter().enumerate() {
            while let Some(node) = share.graph.nodes.get(next[d]) {
                if matches!(node.op, Op::Exchange(_)) {
                    break;
                }
                let ins: Vec<&Tensor> = node.ins.iter().map(|v| &values[d][v.index()]).collect();
                let mut outs: Vec<Tensor> = node.outs.iter().map(|v| values[d][v.index()].clone()).collect();
                node.op.def().eval(&ins, &mut outs);
                for (v, out) in node.outs.iter().zip(outs) {
                    values[d][v.index()] = out;
                }
                next[d] += 1;
            }
        }
        let waiting: HashMap<usize, &Exchange> = (0..shares.len())
            .filter_map(|d| match &shares[d].graph.nodes.get(next[d])?.op {
                Op::Exchange(op) => Some((d, op)),
                _ => None,
            })
            .collect();
        if waiting.is_empty() {
            return values;
        }
        let ready = waiting.values().find(|op| {
            let here =
                |p: &u32| waiting.get(&(*p as usize)).is_some_and(|other| other.collective == op.collective);
            op.ranks.iter().all(here)
        });
        let ranks = ready.expect("somebody can always go on").ranks.clone();
        let brought: HashMap<u32, Tensor> = ranks
            .iter()
            .map(|&p| {
                (
                    p,
                    values[p as usize][shares[p as usize].graph.nodes[next[p as usize]].ins[0].index()]
                        .clone(),
                )
            })
            .collect();
        for &p in &ranks {
            let d = p as usize;
            let (op, node) = (waiting[&d], &shares[d].graph.nodes[next[d]]);
            let mut result = Tensor::zeros(&op.shape);
            for piece in &op.pieces {
                assert_eq!(piece.of, brought[&piece.from].shape);
                piece.rows(&op.shape, |from, to, length| {
                    for i in 0..length {
                        let x = brought[&piece.from].data[from + i];
                        let y = &mut result.data[to + i];
                        *y = if piece.add { *y + x } else { x };
                    }
                });
            }
            values[d][node.outs[0].index()] = result;
            next[d] += 1;
        }
    }
}

fn close(a: &Tensor, b: &Tensor, exact: bool) -> bool {
    let near = |(a, b): (&f64, &f64)| {
        a.to_bits() == b.to_bits()
            || !exact && (a - b).abs() <= 1e-6 * (1.0 + b.abs())
            || a.is_nan() && b.is_nan()
    };
    a.shape == b.shape && a.data.iter().zip(&b.data).all(near)
}

fn check(name: &str, graph: &Graph, sizes: &Bindings, cut: &GraphCut, exact: bool) -> (usize, u64) {
    let shares = partition(graph, sizes, cut).unwrap_or_else(|e| panic!("{name}: {e}"));
    for share in &shares {
        verify(&share.graph).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    let role = |share: &DevicePart, i: usize| match share.graph.value(share.inputs[i].value).origin {
        Origin::Input(role) => role,
        Origin::Node { .. } => unreachable!("inputs are inputs"),
    };
    let found = run(&shares, &|share, i| {
        let InputBox { value: v, region, whole: shape } = &share.inputs[i];
        input(share.graph.value(*v), role(share, i), shape).region(region)
    });
    let plain = interpret(graph, sizes, |v, shape| {
        let Origin::Input(role) = graph.value(v).origin else { unreachable!("inputs are inputs") };
        input(graph.value(v), role, shape)
    })
    .unwrap();
    let mut compared = 0;
    for (d, share) in shares.iter().enumerate() {
        for (n, v) in share.graph.outputs.iter().map(|o| (&o.name, o.value)) {
            let whole = graph.output(n).unwrap();
            assert!(
                share.graph.outputs.len() == graph.outputs.len()
                    && close(&found[d][v.index()], &plain[whole.index()], exact),
                "{name}: output {n} on device {d}: {:?}, not {:?}",
                found[d][v.index()].data,
                plain[whole.index()].data
            );
        }
        assert_eq!(share.graph.carries.len(), graph.carries.len(), "{name}");
        for (input, next) in &share.graph.carries {
            let InputBox { region, .. } = share.inputs.iter().find(|own| own.value == *input).unwrap();
            let named = &share.graph.value(*input).name;
            let (_, whole) = graph.carries.iter().find(|(v, _)| graph.value(*v).name == *named).unwrap();
            let expected = plain[whole.index()].region(region);
            let off = found[d][next.index()].data.iter().zip(&expected.data).map(|(a, b)| (a - b).abs());
            let off = off.fold(0.0, f64::max);
            let levels = &cut.levels;
            assert!(
                close(&found[d][next.index()], &expected, exact),
                "{name}: {named} on device {d} of {levels:?}, exact {exact}: off by {off}"
            );
            compared += 1;
        }
    }
    (compared, exchanged(&shares))
}

/// Bytes that all devices together receive in a step.
fn exchanged(shares: &[DevicePart]) -> u64 {
    let bytes = |node: &Node| match &node.op {
        Op::Exchange(op) => op.bytes(),
        _ => 0,
    };
    shares.iter().flat_map(|share| &share.graph.nodes).map(bytes).sum()
}

#[test]
fn random_cuts_do_what_the_whole_does() {
    let even = |n: usize| MeshLevel::even(n, 1e9);
    let uneven = |shares: &[u64]| MeshLevel { shares: shares.to_vec(), bandwidth: 1e9 };
    let grids: [Vec<MeshLevel>; 6] = [
        vec![even(2)],
        vec![even(3)],
        vec![uneven(&[3, 1])],
        vec![even(2), even(2)],
        vec![even(4)],
        vec![even(2), uneven(&[1, 2])],
    ];
    let mut compared = 0;
    // Divided sums change last digits: no optimizer that divides gradients near zero by themselves.
    for (exact, optimizer) in [(true, "adamw"), (false, "sgd")] {
        for (m, (name, graph, sizes)) in graphs(optimizer).into_iter().enumerate() {
            let sized = SizedGraph::new(&graph, &sizes).unwrap();
            // Meshes alternate.
            for (i, levels) in grids.iter().enumerate().skip(m % 2).step_by(2) {
                let cut = random_cut(&sized, levels, i as u64, exact);
                let (values, exchanged) = check(name, &graph, &sizes, &cut, exact);
                let counted = cut_traffic(&graph, &sizes, &cut).unwrap().total();
                compared += values;
                // Updates fetch apart from partials, boxes that overlap in part are fetched one by one, and outputs
                // are not counted.
                assert!(
                    exchanged >= counted && exchanged <= 3 * counted + 1000,
                    "{name} {levels:?}: {exchanged} exchanged, {counted} counted"
                );
            }
        }
    }
    assert!(compared > 1000);
}

#[test]
fn what_is_exchanged_is_what_was_counted() {
    let least = CutOptions { objective: CutObjective::Bytes, ..CutOptions::default() };
    for (name, mut graph, sizes) in graphs("adamw") {
        // Outputs are not counted.
        graph.outputs.clear();
        for groups in [&[2][..], &[3], &[2, 2]] {
            let levels: Vec<MeshLevel> = groups.iter().map(|&n| MeshLevel::even(n, 1e9)).collect();
            let sized = SizedGraph::new(&graph, &sizes).unwrap();
            let ruled = |first: CutRule, others: CutRule| {
                let rules = [first, others][..groups.len()].to_vec();
                cut_by_rules(&sized, &levels, &rules, Undivided::AnyAxis)
            };
            let cuts = [
                ("least bytes", find_cut(&graph, &sizes, &levels, &least).map(|found| found.cut)),
                ("data", ruled(CutRule::Data, CutRule::Data)),
                ("filter", ruled(CutRule::Filter, CutRule::Filter)),
                ("hybrid", ruled(CutRule::Data, CutRule::Filter)),
            ];
            for (how, cut) in cuts {
                let cut = cut.unwrap();
                let counted = cut_traffic(&graph, &sizes, &cut).unwrap().total();
                let found = exchanged(&partition(&graph, &sizes, &cut).unwrap());
                assert!(
                    counted > 0 && found == counted,
                    "{name} on {groups:?}, {how}: {found}, not {counted}"
                );
            }
        }
    }
}

#[test]
fn a_cut_that_divides_nothing_needs_nobody() {
    for (name, graph, sizes) in graphs("adamw") {
        let cut = GraphCut::none(&graph, &[MeshLevel::even(3, 1e9)]);
        let (_, exchanged) = check(name, &graph, &sizes, &cut, true);
        assert_eq!(exchanged, 0, "{name}");
    }
}

#[test]
fn graphs_keep_their_phases() {
    let (_, graph, sizes) = graphs("sgd").remove(0);
    let levels = [MeshLevel::even(2, 1e9)];
    let sized = SizedGraph::new(&graph, &sizes).unwrap();
    let cut = random_cut(&sized, &levels, 1, false);
    for share in partition(&graph, &sizes, &cut).unwrap() {
        for phase in [Phase::Forward, Phase::Backward, Phase::Update] {
            let count = |graph: &Graph| {
                let of = graph.nodes.iter().filter(|n| n.phase == phase);
                of.filter(|n| !matches!(n.op, Op::Exchange(_) | Op::Slice(_))).count()
            };
            assert_eq!(count(&share.graph), count(&graph), "{phase:?}");
        }
    }
}
