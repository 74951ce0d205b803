//! Arrays of jobs on the reference kernels: every operator, and whole training graphs, give each member
//! what it gets alone.

use gulliver_graph::array::fuse;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::op::Op;
use gulliver_graph::graph::op::sample::Sample;
use gulliver_graph::graph::{Graph, Role};
use gulliver_graph::interpret::interpret;
use gulliver_graph::model::head::Head;
use gulliver_graph::model::mlp::Mlp;
use gulliver_graph::model::{MODELS, gpt, model};
use gulliver_graph::optim::Optimizer;
use gulliver_graph::tensor::Tensor;
use gulliver_graph::training::{Clip, training_graph};

fn stack(of: &[Tensor]) -> Tensor {
    let mut shape = of[0].shape.clone();
    shape.insert(0, of.len());
    Tensor::new(&shape, of.iter().flat_map(|t| t.data.clone()).collect())
}

fn bits(data: &[f64]) -> Vec<u64> {
    data.iter().map(|x| x.to_bits()).collect()
}

/// Which operands to share: none, and each but one where there are several.
fn shares(sample: &Sample) -> Vec<Vec<usize>> {
    let n = sample.inputs.len();
    let mut all = vec![Vec::new()];
    all.extend((0..n).filter(|_| n > 1).map(|own| (0..n).filter(|i| *i != own).collect()));
    all
}

#[test]
fn every_operator_gives_members_what_they_get_alone() {
    for sample in Op::samples().iter().filter(|s| !s.inputs.is_empty()) {
        for shared in shares(sample) {
            let alone: Vec<Vec<Tensor>> = (0..3).map(|m| sample.tensors(10 + m)).collect();
            let operand = |i: usize| {
                let of: Vec<Tensor> = alone.iter().map(|ins| ins[i].clone()).collect();
                if shared.contains(&i) { of[0].clone() } else { stack(&of) }
            };
            let together =
                sample.array(3, &shared).eval(&(0..sample.inputs.len()).map(operand).collect::<Vec<_>>());
            for (m, ins) in alone.iter().enumerate() {
                let mut ins = ins.clone();
                shared.iter().for_each(|&i| ins[i] = alone[0][i].clone());
                for (out, whole) in sample.eval(&ins).iter().zip(&together) {
                    let own = &whole.data[m * out.len()..][..out.len()];
                    assert_eq!(bits(own), bits(&out.data), "{:?} member {m}, shared {shared:?}", sample.op);
                }
            }
        }
    }
}

/// Small sizes for whatever a model calls its sizes.
fn sizes(graph: &Graph) -> Bindings {
    let mut sizes = Bindings::new();
    for (_, _, info) in graph.inputs() {
        info.ty.shape.iter().for_each(|d| d.symbols(&mut |symbol| sizes.set(symbol, 2)));
    }
    sizes
}

#[test]
fn training_graphs_of_arrays_pass_verification_and_share_data() {
    // Other rows of GPT have more layers and nothing else that is new.
    for row in MODELS.iter().filter(|row| row.name == "gpt" || !std::ptr::eq(row.family, &gpt::FAMILY)) {
        let model = model(row.name, &[]).unwrap();
        let adam = Optimizer::new("adam", &[]).unwrap();
        let graph = training_graph(&*model, &[adam], Some(Clip::Norm(1.0))).unwrap();
        for apart in [false, true] {
            let fused = fuse(&graph, 3, &|_| apart).unwrap_or_else(|e| panic!("{}: {e}", row.name));
            assert_eq!(fused.graph.parameters(), graph.parameters() * 3, "{}", row.name);
            let data = |g: &Graph| g.inputs().filter(|(_, role, _)| role.is_data()).count();
            assert_eq!(data(&fused.graph), data(&graph) * if apart { 3 } else { 1 }, "{}", row.name);
            let text = fused.graph.to_string();
            assert_eq!(text.parse::<Graph>().unwrap(), fused.graph, "{}", row.name);
        }
    }
}

#[test]
fn a_small_model_trains_each_member_as_alone() {
    let model = Mlp { sizes: vec![5, 7, 3], head: Head::Classes };
    let adam = Optimizer::new("adam", &[]).unwrap();
    let graph = training_graph(&model, &[adam], Some(Clip::Norm(0.1))).unwrap();
    let sizes = sizes(&graph);
    let noise = |shape: &[usize], name: &str, member: usize, role: Role| -> Tensor {
        let len: usize = shape.iter().product();
        let seed =
            name.bytes().map(usize::from).sum::<usize>() + if role.is_data() { 0 } else { 31 * member };
        let element = |i: usize| match role {
            Role::Data(_) => ((seed * 7 + i * 13) % 3) as f64,
            Role::Hyper(_, default) => f64::from(default) * (1.0 + member as f64),
            _ => (((seed + i) * 2_654_435_761) % 1000) as f64 / 1000.0,
        };
        Tensor::new(shape, (0..len).map(element).collect())
    };
    let fused = fuse(&graph, 3, &|_| false).unwrap();
    let role_of =
        |g: &Graph, v| g.inputs().find(|(w, ..)| *w == v).map(|(_, role, info)| (role, info.name.clone()));
    let together = interpret(&fused.graph, &sizes, |v, shape| {
        let (role, name) = role_of(&fused.graph, v).unwrap();
        if fused.places[0][v.index()].row.is_none() {
            return noise(shape, &name, 0, role);
        }
        stack(&(0..3).map(|m| noise(&shape[1..], &name, m, role)).collect::<Vec<_>>())
    })
    .unwrap();
    for m in 0..3 {
        let alone = interpret(&graph, &sizes, |v, shape| {
            let (role, name) = role_of(&graph, v).unwrap();
            noise(shape, &name, m, role)
        })
        .unwrap();
        for (_, next) in &graph.carries {
            let (own, all) = (&alone[next.index()], &together[next.index()]);
            assert_eq!(bits(&own.data), bits(&all.data[m * own.len()..][..own.len()]), "member {m}");
        }
    }
}
