//! Closed forms of the traffic of cuts, and parts of nodes against operators that are cut twice.

mod comparator;
mod search;

use super::mesh::DeviceMesh;
use super::parts::{node_parts, same_axis};
use super::tables::{CutState, of_state};
use super::*;
use crate::devices::cut::sized::SizedGraph;
use gulliver_graph::autodiff::differentiate;
use gulliver_graph::dim::{Bindings, Dim};
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::build::Builder;
use gulliver_graph::graph::op::Op;
use gulliver_graph::graph::op::sample::Sample;
use gulliver_graph::graph::{GraphError, Init, Phase, Role, Type, Value};
use gulliver_graph::optim::Optimizer;
use gulliver_graph::role::OutputRole;
use gulliver_graph::windows::ConvOptions;

const INIT: Init = Init::Constant(0.5);

/// A graph that trains the weights of `forward` by plain gradient descent on weighted squares.
pub(super) fn trained(forward: impl Fn(&mut Builder) -> Result<Value, GraphError>) -> Graph {
    let build = || -> Result<Graph, GraphError> {
        let mut g = Builder::new(true);
        g.enter(Phase::Forward, 0);
        let y = forward(&mut g)?;
        let y = g.square(y)?;
        let shape = g.shape(y).to_vec();
        let target = g.data("target", DType::F32, &shape)?;
        let product = g.mul(y, target)?;
        let loss = g.sum_all(product)?;
        let weights: Vec<Value> = g.graph().weights().map(|(v, _)| v).collect();
        let grads = differentiate(&mut g, loss, &weights, 0)?;
        g.enter(Phase::Update, 0);
        let optimizer = Optimizer::new("sgd", &[])?;
        for (weight, grad) in weights.into_iter().zip(grads) {
            if let Some(grad) = grad {
                optimizer.apply(&mut g, weight, grad)?;
            }
        }
        g.output("loss", OutputRole::Loss, loss);
        Ok(g.finish())
    };
    build().unwrap()
}

/// The cut with nodes divided along the axis that `choose` names and inputs sharded by `residence`.
fn named(
    graph: &Graph,
    levels: &[MeshLevel],
    choose: impl Fn(&str) -> Option<&'static str>,
    residence: impl Fn(&str) -> Sharding,
) -> GraphCut {
    let sized = SizedGraph::new(graph, &Bindings::new()).unwrap();
    let mut state = CutState::new(&sized);
    state.push(&sized);
    for (id, node) in graph.nodes.iter().enumerate() {
        let axis = choose(node.op.def().name()).and_then(|name| sized.kind(id).spec.axis(name));
        state.choices[id][0] = axis.map_or(NodeCut::Repeat, NodeCut::Axis);
    }
    for v in (0..graph.values.len()).filter(|v| sized.persists(*v)) {
        state.residences[v][0] = residence(&graph.values[v].name);
    }
    of_state(&sized, levels, &state).unwrap()
}

/// The cut by one rule at the first level and another at all others.
fn by_rules(
    graph: &Graph,
    sizes: &Bindings,
    levels: &[MeshLevel],
    [first, others]: [CutRule; 2],
) -> GraphCut {
    let sized = SizedGraph::new(graph, sizes).unwrap();
    let rules: Vec<CutRule> =
        (0..levels.len()).map(|level| if level == 0 { first } else { others }).collect();
    cut_by_rules(&sized, levels, &rules, Undivided::AnyAxis).unwrap()
}

fn moved(graph: &Graph, cut: &GraphCut) -> u64 {
    cut_traffic(graph, &Bindings::new(), cut).unwrap().total()
}

/// `x[b, i]` through `w1[h, i]`, relu and `w2[o, h]`.
fn perceptron(b: usize, i: usize, h: usize, o: usize) -> Graph {
    trained(|g| {
        let x = g.data("x", DType::F32, &[b, i])?;
        let w1 = g.weight("w1", &[h, i], INIT)?;
        let w2 = g.weight("w2", &[o, h], INIT)?;
        let y = g.project(x, w1)?;
        let y = g.relu(y)?;
        g.project(y, w2)
    })
}

#[test]
fn data_parallel_moves_twice_each_weight() {
    for p in [2, 3, 4, 5, 6, 7, 8] {
        let graph = perceptron(840, 12, 24, 16);
        let cut = by_rules(&graph, &Bindings::new(), &[MeshLevel::even(p, 1.0)], [CutRule::Data; 2]);
        let weights = 4 * (24 * 12 + 16 * 24);
        let bytes = cut_traffic(&graph, &Bindings::new(), &cut).unwrap();
        assert_eq!(bytes.total(), 2 * (p as u64 - 1) * weights);
        if p < 5 {
            for device in 0..p {
                assert_eq!(bytes.pairs[device].iter().sum::<u64>(), 2 * (p as u64 - 1) * weights / p as u64);
            }
        }
    }
}

/// A cut with other choices of some nodes at its last level.
fn changed(graph: &Graph, cut: &GraphCut, choose: impl Fn(usize) -> Option<NodeCut>) -> GraphCut {
    let sized = SizedGraph::new(graph, &Bindings::new()).unwrap();
    let mut state = CutState::new(&sized);
    for id in 0..graph.nodes.len() {
        state.choices[id] = cut.choices(graph, id);
        let last = state.choices[id].last_mut().zip(choose(id));
        last.into_iter().for_each(|(choice, chosen)| *choice = chosen);
    }
    for v in (0..graph.values.len()).filter(|v| sized.persists(*v)) {
        state.residences[v] = cut.values[v].clone();
    }
    of_state(&sized, &cut.levels, &state).unwrap()
}

#[test]
fn filter_parallel_gathers_forward_and_reduces_backward() {
    for p in [2, 3, 4, 6] {
        let (b, h) = (10, 24);
        let graph = perceptron(b, 12, h, 36);
        let cut = by_rules(&graph, &Bindings::new(), &[MeshLevel::even(p, 1.0)], [CutRule::Filter; 2]);
        let is = |id: usize, op: &str| {
            graph.nodes[id].op.def().name() == op && graph.nodes[id].phase == Phase::Backward
        };
        // Every device may repeat the product with the target, which the rule does not divide.
        let cut = changed(&graph, &cut, |id| is(id, "mul").then_some(NodeCut::Repeat));
        let hidden = 4 * (b * h) as u64 * (p as u64 - 1);
        // An all-gather of the hidden layer, and a reduce-scatter of its gradient.
        assert_eq!(moved(&graph, &cut), 2 * hidden);
        // With an all-reduce instead: the three terms of the closed form.
        let of_hidden = |id: usize| graph.ty(graph.nodes[id].outs[0]).shape == [Dim::from(b), Dim::from(h)];
        let reduced = |id: usize| (is(id, "map_grad") && of_hidden(id)).then_some(NodeCut::Repeat);
        assert_eq!(moved(&graph, &changed(&graph, &cut, reduced)), 3 * hidden);
    }
}

/// The batch between groups of devices, filters within them: 3(p2-1)B|y| + 2(p1-1)|w|.
#[test]
fn data_and_filter_parallel_add_up() {
    for (groups, within) in [(2, 2), (2, 3), (3, 2), (4, 2), (2, 4)] {
        let (b, i, h, o) = (24, 12, 24, 48);
        let graph = perceptron(b, i, h, o);
        let levels = [MeshLevel::even(groups, 1.0), MeshLevel::even(within, 1.0)];
        let cut = by_rules(&graph, &Bindings::new(), &levels, [CutRule::Data, CutRule::Filter]);
        let is = |id: usize, op: &str| {
            graph.nodes[id].op.def().name() == op && graph.nodes[id].phase == Phase::Backward
        };
        let cut = changed(&graph, &cut, |id| is(id, "mul").then_some(NodeCut::Repeat));
        let hidden = 4 * (b * h) as u64 * (within as u64 - 1);
        let weights = 4 * (h * i + o * h) as u64 * 2 * (groups as u64 - 1);
        assert_eq!(moved(&graph, &cut), 2 * hidden + weights, "{groups} {within}");
        let of_hidden = |id: usize| graph.ty(graph.nodes[id].outs[0]).shape == [Dim::from(b), Dim::from(h)];
        let reduced = |id: usize| (is(id, "map_grad") && of_hidden(id)).then_some(NodeCut::Repeat);
        let reduced = changed(&graph, &cut, reduced);
        assert_eq!(moved(&graph, &reduced), 3 * hidden + weights, "{groups} {within}");
    }
}

#[test]
fn channel_parallel_reduces_forward_and_gathers_backward() {
    for (p, elements) in [(2, None), (4, None), (4, Some("a1")), (3, Some("a0"))] {
        let (b, i, o) = (12, 24, 12);
        let graph = trained(|g| {
            let x = g.data("x", DType::F32, &[b, i])?;
            let w = g.weight("w", &[o, i], INIT)?;
            g.project(x, w)
        });
        let levels = [MeshLevel::even(p, 1.0)];
        let choose = |op: &str| match op {
            "contract" => Some("i"),
            "update_sgd" => Some("a1"),
            _ => elements,
        };
        let cut = named(&graph, &levels, choose, |_| Sharding::Split(1));
        // The result is all-reduced; or reduced in parts, and its gradient gathered.
        assert_eq!(moved(&graph, &cut), 2 * 4 * (b * o) as u64 * (p as u64 - 1));
    }
}

/// Images and volumes, whose extents need not divide evenly.
#[test]
fn spatial_parallel_exchanges_halos() {
    for (p, kernel, space, axis) in [
        (2, 3, vec![60, 7], "h"),
        (3, 3, vec![61, 7], "h"),
        (4, 5, vec![62, 7], "h"),
        (5, 3, vec![60, 7], "h"),
        (2, 3, vec![9, 5, 4], "d"),
        (3, 5, vec![20, 6, 5], "d"),
        (4, 3, vec![18, 4, 6], "d"),
    ] {
        let (n, c, o, rank) = (2, 3, 4, space.len());
        let graph = trained(|g| {
            let x = g.data("x", DType::F32, &[&[n, c], space.as_slice()].concat())?;
            let first = g.weight("first", &[&[c, c], vec![1; rank].as_slice()].concat(), INIT)?;
            let second = g.weight("second", &[&[o, c], vec![kernel; rank].as_slice()].concat(), INIT)?;
            let x = g.conv(x, first, &ConvOptions::new(rank))?;
            g.conv(x, second, &ConvOptions { padding: vec![kernel / 2; rank], ..ConvOptions::new(rank) })
        });
        let levels = [MeshLevel::even(p, 1.0)];
        let choose = |op: &str| match op {
            "conv" | "conv_transpose" | "conv_weight_grad" => Some(axis),
            "update_sgd" => None,
            _ => Some("a2"),
        };
        let cut = named(&graph, &levels, choose, |_| Sharding::Replicated);
        let others = p as u64 - 1;
        // Rows or planes on both sides of every border.
        let border = kernel / 2 * n * space[1..].iter().product::<usize>();
        let halo = |channels: usize| 4 * 2 * others * (border * channels) as u64;
        let weights = 4 * 2 * others * (c * c + o * c * kernel.pow(rank as u32)) as u64;
        // Of the input in the forward pass, of the gradient of the result in the backward pass.
        assert_eq!(moved(&graph, &cut), halo(c) + halo(o) + weights, "{p} {space:?}");
    }
}

/// The part of a part by the operators equals the part of two levels by the whole spec.
#[test]
fn parts_agree_with_operators_cut_twice() {
    let mut compared = 0;
    for sample in Op::samples() {
        let mut g = Builder::new(true);
        let types = sample.types();
        let ins: Vec<Value> = types
            .iter()
            .enumerate()
            .map(|(i, ty)| {
                g.input(&format!("i{i}"), Role::Data(gulliver_graph::role::DataRole::Example), ty.clone())
                    .unwrap()
            })
            .collect();
        g.push(sample.op.clone(), &ins).unwrap();
        let graph = g.finish();
        let sized = SizedGraph::new(&graph, &Bindings::new()).unwrap();
        let kind = sized.kind(0);
        for shares in [[vec![1, 1], vec![1, 1]], [vec![1, 2], vec![2, 1]]] {
            let levels = shares.map(|shares| MeshLevel { shares, bandwidth: 1.0 });
            let mesh = DeviceMesh::new(&levels);
            for &first in &kind.axes {
                for &second in &kind.axes {
                    let choices = [NodeCut::Axis(first), NodeCut::Axis(second)];
                    let Ok(parts) = node_parts(kind, &choices, &mesh) else { continue };
                    for device in 0..mesh.devices() {
                        let what = format!("{:?} {first:?} {second:?} on {device}", sample.op);
                        let (reads, writes) = cut_twice(&sample, kind, [first, second], &mesh, device)
                            .unwrap_or_else(|| panic!("{what}"));
                        for (need, read) in parts.ins.iter().zip(reads) {
                            let empty = mesh::area(&need.boxes[device]) + mesh::area(&read) == 0;
                            assert!(empty || need.boxes[device] == read, "{what}: {need:?} {read:?}");
                        }
                        for (boxes, write) in parts.outs.iter().zip(writes) {
                            assert_eq!(boxes[device], write, "{what}");
                        }
                        compared += 1;
                    }
                }
            }
        }
    }
    assert!(compared > 1000, "{compared}");
}

type Regions = Vec<gulliver_graph::spec::Region>;

fn cut_twice(
    sample: &Sample,
    kind: &NodeKind,
    axes: [gulliver_graph::spec::AxisId; 2],
    mesh: &DeviceMesh,
    device: usize,
) -> Option<(Regions, Regions)> {
    let (mut op, mut types) = (sample.op.clone(), sample.types());
    let whole = |shapes: &[Vec<usize>]| shapes.iter().map(|s| mesh::whole_box(s)).collect::<Regions>();
    let (mut reads, mut writes) = (whole(&kind.ins), whole(&kind.outs));
    for (level, axis) in axes.into_iter().enumerate() {
        let spec = op.def().spec(&types).ok()?;
        let axis = if level == 0 { axis } else { same_axis(&kind.spec, axis, &spec)? };
        let dims: Vec<&[Dim]> = types.iter().map(|t| t.shape.as_slice()).collect();
        let bind = |d: &Dim| d.as_const().map(|c| c as usize);
        let extents: Vec<usize> = spec.extents(&dims).ok()?.iter().map(bind).collect::<Option<_>>()?;
        let lens = |r: &Regions| r.iter().map(|r| r.iter().map(|r| r.len()).collect()).collect();
        let (ins, outs): (Vec<Vec<usize>>, Vec<Vec<usize>>) = (lens(&reads), lens(&writes));
        let ins: Vec<&[usize]> = ins.iter().map(Vec::as_slice).collect();
        let outs: Vec<&[usize]> = outs.iter().map(Vec::as_slice).collect();
        let extent = spec.cut_extent(axis, &extents, &outs);
        let range = split_range(&(0..extent), &mesh.levels[level].shares, mesh.groups[device][level]);
        let part = spec.part(axis, range, &extents, &ins, &outs);
        let inside = |all: &mut Regions, part: &Regions| {
            for (all, part) in all.iter_mut().zip(part) {
                for (a, p) in all.iter_mut().zip(part) {
                    *a = a.start + p.start..a.start + p.end;
                }
            }
        };
        inside(&mut reads, &part.inputs);
        inside(&mut writes, &part.outputs);
        if let Some(new) = op.def().part(&part) {
            op = new;
        }
        for (ty, region) in types.iter_mut().zip(&reads) {
            *ty = Type::new(ty.dtype, &region.iter().map(|r| r.len()).collect::<Vec<_>>());
        }
    }
    Some((reads, writes))
}
