//! Fusion of jobs whose graphs differ in places, on the reference kernels: every value of every member is
//! where it is said to be, and is what it is alone.

use gulliver_graph::array::{Fused, fuse, fuse_partly};
use gulliver_graph::autodiff::differentiate;
use gulliver_graph::dim::{Bindings, Dim};
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::build::Builder;
use gulliver_graph::graph::op::Op;
use gulliver_graph::graph::{Graph, GraphError, Init, Phase, Role, Value};
use gulliver_graph::interpret::interpret;
use gulliver_graph::model::head::Head;
use gulliver_graph::model::mlp::Mlp;
use gulliver_graph::model::{MODELS, gpt, model};
use gulliver_graph::optim::Optimizer;
use gulliver_graph::random::{RandomStream, hash_name};
use gulliver_graph::role::OutputRole;
use gulliver_graph::tensor::Tensor;
use gulliver_graph::training::{Clip, training_graph};

fn adam() -> Optimizer {
    Optimizer::new("adam", &[]).unwrap()
}

/// An input of a member; data is everyone's.
fn input(graph: &Graph, v: Value, member: usize, shape: &[usize]) -> Tensor {
    let (_, role, info) = graph.inputs().find(|(w, ..)| *w == v).unwrap();
    let seed = if role.is_data() { 0 } else { member as u64 };
    let stream = RandomStream::new(seed, hash_name(&info.name), 0);
    let element = |i: u64| match (role, info.ty.dtype) {
        (Role::Random, _) | (_, DType::I64) => stream.below(i, 3) as f64,
        (Role::Hyper(_, default), _) => f64::from(default) * (1.0 + member as f64),
        _ => f64::from(stream.uniform_at(i)),
    };
    Tensor::new(shape, (0..shape.iter().product::<usize>() as u64).map(element).collect())
}

/// Compares every value of every member with what it is alone.
fn compare(graphs: &[&Graph], apart: bool) -> Fused {
    let sizes = Bindings::new().with("batch", 3).with("length", 4);
    let fused = fuse_partly(graphs, &|_| apart).unwrap();
    assert_eq!(fused.graph.to_string().parse::<Graph>().unwrap(), fused.graph);
    let together = interpret(&fused.graph, &sizes, |v, shape| {
        let mut tensor = Tensor::zeros(shape);
        for (member, graph) in graphs.iter().enumerate() {
            for (own, _, info) in graph.inputs() {
                let place = fused.places[member][own.index()];
                if place.value == v {
                    let own = input(graph, own, member, &info.ty.bind(&sizes).unwrap());
                    let start = place.row.unwrap_or(0) * own.len();
                    tensor.data[start..start + own.len()].copy_from_slice(&own.data);
                }
            }
        }
        tensor
    })
    .unwrap();
    let bits = |data: &[f64]| data.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    for (member, graph) in graphs.iter().enumerate() {
        let alone = interpret(graph, &sizes, |v, shape| input(graph, v, member, shape)).unwrap();
        let check = |what: &str, own: &Tensor, place: gulliver_graph::array::MemberPlace| {
            let found =
                &together[place.value.index()].data[place.row.unwrap_or(0) * own.len()..][..own.len()];
            assert_eq!(bits(found), bits(&own.data), "{what} of member {member}\n{}", fused.graph);
        };
        for (v, own) in alone.iter().enumerate() {
            check(&graph.values[v].name, own, fused.places[member][v]);
        }
        for output in &graph.outputs {
            check(&output.name, &alone[output.value.index()], fused.outputs[member][&output.name]);
        }
        for (input, next) in &graph.carries {
            let residence = fused.places[member][input.index()];
            let (_, to) = fused.graph.carries.iter().find(|(from, _)| *from == residence.value).unwrap();
            check(
                "a carry",
                &alone[next.index()],
                gulliver_graph::array::MemberPlace { value: *to, ..residence },
            );
        }
    }
    fused
}

#[test]
fn equal_graphs_are_fused_node_by_node() {
    // Other rows of GPT have more layers and nothing else that is new.
    for row in MODELS.iter().filter(|row| row.name == "gpt" || !std::ptr::eq(row.family, &gpt::FAMILY)) {
        let model = model(row.name, &[]).unwrap();
        let graph = training_graph(&*model, &[adam()], Some(Clip::Norm(1.0))).unwrap();
        for members in [1, 3] {
            let fused = fuse(&graph, members, &|_| false).unwrap();
            assert_eq!(fused.report.copies, 0, "{}: {}", row.name, fused.report);
            assert_eq!(fused.graph.nodes.len(), graph.nodes.len(), "{}", row.name);
            assert_eq!(fused.graph.values.len(), graph.values.len(), "{}", row.name);
            for (all, one) in fused.graph.nodes.iter().zip(&graph.nodes) {
                assert_eq!(
                    (&all.ins, &all.outs, all.phase, all.objective),
                    (&one.ins, &one.outs, one.phase, one.objective)
                );
                match &all.op {
                    Op::Array(array) => assert_eq!((&*array.op, array.members), (&one.op, members)),
                    op => assert_eq!(*op, one.op),
                }
            }
            assert_eq!((&fused.graph.outputs, &fused.graph.carries), (&graph.outputs, &graph.carries));
            let named =
                |(all, one): (&gulliver_graph::graph::ValueInfo, &gulliver_graph::graph::ValueInfo)| {
                    all.name == one.name && all.origin == one.origin
                };
            assert!(fused.graph.values.iter().zip(&graph.values).all(named), "{}", row.name);
        }
    }
}

#[test]
fn equal_graphs_on_data_of_their_own_are_fused_after_it_is_put_together() {
    let graph = training_graph(&Mlp { sizes: vec![6, 32, 3], head: Head::Classes }, &[adam()], None).unwrap();
    let fused = compare(&[&graph, &graph, &graph], true);
    assert_eq!((fused.report.alone(), fused.report.copies), (0, 2), "{}", fused.report);
}

#[test]
fn what_differs_is_done_alone() {
    let graph = |sizes: &[usize]| {
        training_graph(&Mlp { sizes: sizes.to_vec(), head: Head::Classes }, &[adam()], None).unwrap()
    };
    let (plain, other, deep) = (graph(&[6, 32, 32, 3]), graph(&[6, 32, 32, 5]), graph(&[6, 32, 32, 32, 3]));
    for graphs in [vec![&plain, &other], vec![&plain, &other, &plain], vec![&other, &deep, &plain, &deep]] {
        for apart in [false, true] {
            let fused = compare(&graphs, apart);
            assert!(fused.report.alone() > 0 && fused.report.share() > 0.5, "{}", fused.report);
        }
    }
}

/// Two square layers in one order or the other.
fn crossed(names: [&str; 2]) -> Result<Graph, GraphError> {
    let mut g = Builder::new(true);
    let start = g.data("x", DType::F32, &[Dim::symbol("batch"), Dim::from(32)])?;
    let (mut x, mut weights) = (start, Vec::new());
    for name in names {
        let w = g.weight(name, &[32usize, 32], Init::Normal(0.1))?;
        x = g.project(x, w)?;
        x = g.tanh(x)?;
        weights.push(w);
    }
    let loss = g.mse(x, start)?;
    let grads = differentiate(&mut g, loss, &weights, 0)?;
    g.enter(Phase::Update, 0);
    for (w, grad) in weights.into_iter().zip(grads) {
        adam().apply(&mut g, w, grad.unwrap())?;
    }
    g.output("loss", OutputRole::Loss, loss);
    Ok(g.finish())
}

#[test]
fn members_may_do_the_same_in_different_orders() {
    let (ab, ba) = (crossed(["a", "b"]).unwrap(), crossed(["b", "a"]).unwrap());
    for graphs in [[&ab, &ba, &ab], [&ba, &ab, &ba]] {
        let fused = compare(&graphs, false);
        assert!(fused.report.fused > 0, "{}", fused.report);
    }
}

#[test]
fn reports_are_one_line() {
    let graph = |sizes: &[usize]| {
        training_graph(&Mlp { sizes: sizes.to_vec(), head: Head::Classes }, &[adam()], None).unwrap()
    };
    let (a, b) = (graph(&[6, 32, 3]), graph(&[6, 32, 5]));
    let line = fuse_partly(&[&a, &b], &|_| false).unwrap().report.to_string();
    assert!(line.starts_with("2 members: "), "{line}");
    assert!(fuse_partly(&[], &|_| false).is_err());
}
