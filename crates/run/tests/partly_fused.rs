//! Jobs whose graphs differ in part, fused where they agree: every member has the bits it has alone, and equal parts are
//! computed together.

mod jobs;
mod nets;
mod small_models;

mod direct;

use direct::{Direct, cpu};
use gulliver::local::LocalDevice;
use gulliver_graph::array::{Fused, MemberPlace, fuse_partly};
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::op::map::Function;
use gulliver_graph::graph::{Graph, Role, Value};
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::model::{MODELS, model};
use gulliver_graph::optim::Optimizer;
use gulliver_graph::role::{HyperRole, OutputRole};
use gulliver_graph::training::{Clip, training_graph};
use gulliver_plan::devices::planner::Planner;
use gulliver_plan::document::job::Purpose;
use gulliver_plan::document::verify::verify;
use gulliver_run::checkpoint::fingerprint;
use gulliver_run::data::Batch;
use gulliver_run::device::Device;
use gulliver_run::host::HostTensor;
use gulliver_run::host::initial::pieces;
use gulliver_run::session::StepOutcome;
use gulliver_run::session::{Scalar, Scalars};
use jobs::{Job, alone, jobs, same};
use nets::{Layer, Net, layer};
use proptest::prelude::*;
use small_models::{data, small};
use std::collections::BTreeMap;

fn sizes() -> Bindings {
    Bindings::new().with("batch", 4).with("length", 7)
}

/// A fused graph on a device.
struct Array<'a> {
    graphs: &'a [Graph],
    jobs: Vec<Job>,
    fused: Fused,
    /// The members of an input, in the order of rows, with its value in the graph of each.
    whose: BTreeMap<Value, Vec<(usize, Value)>>,
    planner: Planner,
    direct: Direct,
}

impl<'a> Array<'a> {
    fn new(graphs: &'a [Graph], jobs: Vec<Job>, own: bool, options: &LocalDevice) -> Array<'a> {
        let fused = fuse_partly(&graphs.iter().collect::<Vec<_>>(), &|_| own).unwrap();
        let mut whose: BTreeMap<Value, Vec<(usize, Value)>> = BTreeMap::new();
        for (member, graph) in graphs.iter().enumerate() {
            for (value, ..) in graph.inputs() {
                let place = fused.places[member][value.index()];
                whose.entry(place.value).or_default().push((member, value));
            }
        }
        let mut planner = Planner::new(fused.graph.clone(), None, options.options()).unwrap();
        let plan = planner.plan(Purpose::Train, &sizes()).unwrap();
        verify(&fused.graph, &plan).unwrap();
        let direct = Direct::new(cpu(options.threads), &fused.graph, &plan);
        let mut array = Array { graphs, jobs, fused, whose, planner, direct };
        array.initialise();
        array
    }

    /// Offset of the weight or state of a member.
    fn offset(&self, member: usize, value: Value) -> (gulliver_plan::document::plan::Tier, u64) {
        let place = self.fused.places[member][value.index()];
        let residence = self.planner.persistent().residences[&self.fused.graph.value(place.value).name];
        let each = residence.bytes / self.whose[&place.value].len() as u64;
        (residence.tier, residence.offset + place.row.unwrap_or(0) as u64 * each)
    }

    fn initialise(&mut self) {
        for (member, graph) in self.graphs.iter().enumerate() {
            for (value, role, info) in graph.inputs() {
                let (Role::Weight(init) | Role::State(init)) = role else { continue };
                let (tier, offset) = self.offset(member, value);
                let count = info.ty.bind(&Bindings::new()).unwrap().iter().product();
                pieces(self.jobs[member].seed, &info.name, init, count, |first, piece| {
                    self.direct.write_floats(tier, offset + 4 * first as u64, piece);
                });
            }
        }
    }

    fn feed(&mut self, batches: &[Batch], step: u64) {
        let partials = self.planner.options().partials;
        for (value, role, info) in self.fused.graph.inputs() {
            let whose = &self.whose[&value];
            let name = |(member, value): &(usize, Value)| &self.graphs[*member].value(*value).name;
            let bytes: Vec<u8> = match role {
                Role::Weight(_) | Role::State(_) => continue,
                Role::Data(_) => {
                    let job = self.jobs[whose[0].0];
                    job.batch(&batches[whose[0].0], step).get(name(&whose[0])).unwrap().as_bytes().to_vec()
                }
                Role::Hyper(..) => {
                    let number = |one: &(usize, Value)| {
                        let graph = &self.graphs[one.0];
                        let (_, role, _) = graph.inputs().find(|(v, ..)| *v == one.1).unwrap();
                        let Role::Hyper(role, default) = role else { panic!("{}", info.name) };
                        match role {
                            HyperRole::LossScale => (1.0 / f64::from(partials)) as f32,
                            _ => self.jobs[one.0].hyper(role, name(one), step).unwrap_or(default),
                        }
                    };
                    whose.iter().map(number).flat_map(f32::to_le_bytes).collect()
                }
                Role::Random => {
                    let key = |partial: u32| {
                        let job = |one: &(usize, Value)| self.jobs[one.0].seed as i64;
                        whose.iter().flat_map(move |one| [job(one), step as i64, i64::from(partial)])
                    };
                    (0..partials).flat_map(key).flat_map(i64::to_le_bytes).collect()
                }
            };
            self.direct.feed(value, &bytes).unwrap();
        }
    }

    fn step(&mut self, batches: &[Batch], step: u64) -> Vec<StepOutcome> {
        self.feed(batches, step);
        self.direct.run_all().unwrap();
        let partials = f64::from(self.planner.options().partials);
        let outcome = |outputs: &BTreeMap<String, MemberPlace>| {
            let mut scalars = Scalars::default();
            for (name, place) in outputs {
                let output = self.fused.graph.outputs.iter().find(|o| o.value == place.value).unwrap();
                let tensor = self.direct.output(&output.name).unwrap();
                let Some(numbers) = tensor.as_f32() else { continue };
                let (role, scope) = (output.role, output.scope);
                let parts = if role == OutputRole::Loss { partials } else { 1.0 };
                let value = f64::from(numbers[place.row.unwrap_or(0)]) / parts;
                scalars.insert(name, Scalar { role, scope, value });
            }
            StepOutcome { scalars, not_finite: None }
        };
        self.fused.outputs.iter().map(outcome).collect()
    }

    fn tensors(&self, member: usize) -> BTreeMap<String, HostTensor> {
        let kept = self.graphs[member]
            .inputs()
            .filter(|(_, role, _)| matches!(role, Role::Weight(_) | Role::State(_)));
        kept.map(|(value, _, info)| {
            let shape = info.ty.bind(&Bindings::new()).unwrap();
            let mut tensor = HostTensor::zeros(info.ty.dtype, &shape);
            let (tier, offset) = self.offset(member, value);
            self.direct.device.read(tier, offset, tensor.as_bytes_mut()).unwrap();
            (info.name.clone(), tensor)
        })
        .collect()
    }

    /// Whether a weight is one value for all members.
    fn is_together(&self, name: &str) -> bool {
        let input = self.fused.graph.input(name);
        input.is_some_and(|value| self.whose[&value].len() == self.graphs.len())
    }
}

/// Trains members together and alone, compares every step and all weights and states, and returns the array.
fn compare<'a>(what: &str, graphs: &'a [Graph], steps: u64, own: bool, partials: u32) -> Array<'a> {
    let options = LocalDevice { threads: 2, partials, ..LocalDevice::default() };
    let jobs = jobs(graphs.len(), own);
    let batches: Vec<Batch> = graphs.iter().map(|graph| data(graph, &sizes())).collect();
    let mut array = Array::new(graphs, jobs.clone(), own, &options);
    let found: Vec<Vec<StepOutcome>> = (0..steps).map(|t| array.step(&batches, t)).collect();
    for (m, job) in jobs.into_iter().enumerate() {
        let (weights, expected) = alone(&graphs[m], &options, &batches[m], job, steps);
        for (t, expected) in expected.iter().enumerate() {
            let found = &found[t][m];
            assert!(same(found, expected), "{what}: member {m}, step {t}: {found:?}, alone {expected:?}");
        }
        assert_eq!(fingerprint(&array.tensors(m)), weights, "{what}: member {m}");
    }
    array
}

fn net(layers: Vec<Layer>) -> Net {
    Net { input: 24, layers, classes: 10 }
}

/// A network of four layers, one of them changed.
fn with(at: usize, change: impl Fn(&mut Layer)) -> Net {
    let mut layers = vec![layer(32); 4];
    change(&mut layers[at]);
    net(layers)
}

#[test]
fn networks_that_differ_somewhere_have_the_bits_they_have_alone() {
    let plain = || with(0, |_| ());
    let tanh = |at| with(at, |l| l.function = Function::Tanh);
    let wide = |at| with(at, |l| l.width = 48);
    let drops = |at, rate| with(at, |l| l.dropout = rate);
    let classes = |classes| Net { classes, ..plain() };
    let deeper = || net(vec![layer(32); 5]);
    let all = ["layer0", "layer1", "layer2", "layer3", "head"];
    // Networks, and the layers whose matrices are fused into one value.
    for (what, nets, together) in [
        ("the same", vec![plain(), plain()], &all[..]),
        ("another function", vec![plain(), tanh(1)], &all),
        ("another function at the end", vec![plain(), tanh(3)], &all[..4]),
        ("another width", vec![plain(), wide(1)], &["layer0", "layer3", "head"]),
        ("other classes", vec![plain(), classes(20)], &all[..4]),
        ("one more layer", vec![plain(), deeper()], &all[..4]),
        ("other dropout", vec![drops(1, 0.1), drops(1, 0.2)], &all),
        ("dropout or none", vec![drops(2, 0.1), plain()], &all),
        ("three ways", vec![plain(), tanh(1), wide(3)], &all[..3]),
        ("two and one", vec![plain(), plain(), classes(20)], &all[..4]),
    ] {
        for clip in [None, Some(Clip::Norm(0.5))] {
            let graphs: Vec<Graph> = nets.iter().map(|net| net.graph("adam", clip)).collect();
            let array = compare(what, &graphs, 10, false, 1);
            let found: Vec<&str> =
                all.into_iter().filter(|name| array.is_together(&format!("{name}.weight"))).collect();
            assert_eq!(found, together, "{what}: {}", array.fused.report);
        }
    }
}

#[test]
fn members_need_not_have_the_same_optimizer_data_or_slices() {
    let nets = [with(0, |_| ()), with(2, |l| l.function = Function::Silu), with(3, |l| l.norm = true)];
    for optimizers in [["adam", "sgd", "adam"], ["adamw", "lion", "rmsprop"], ["sgd", "sgd", "sgd"]] {
        for (own, partials) in [(false, 1), (true, 1), (false, 2), (true, 4)] {
            let graph = |(net, optimizer): (&Net, &str)| net.graph(optimizer, Some(Clip::Norm(1.0)));
            let graphs: Vec<Graph> = nets.iter().zip(optimizers).map(graph).collect();
            compare(&format!("{optimizers:?}, {own}, {partials}"), &graphs, 10, own, partials);
        }
    }
    // Everything but the updates is computed together.
    let graphs = ["adam", "sgd"].map(|optimizer| nets[0].graph(optimizer, None));
    let array = compare("optimizers", &graphs, 10, false, 1);
    let report = array.fused.report;
    let updates = |g: &Graph| g.nodes.iter().filter(|n| n.op.def().name().starts_with("update")).count();
    assert_eq!(report.alone(), graphs.iter().map(updates).sum::<usize>(), "{report}");
    assert!(report.share() > 0.9, "{report}");
}

/// The training graph of a small model of the table with some other parameters.
fn small_graph(name: &str, changes: &[(&str, ParamValue)], optimizer: &str) -> Graph {
    let row = MODELS.iter().find(|row| row.name == name).unwrap();
    let mut params = small(row);
    for (name, value) in changes {
        params.retain(|(n, _)| n != name);
        params.push((name.to_string(), value.clone()));
    }
    let optimizer = Optimizer::new(optimizer, &[]).unwrap();
    training_graph(&*model(name, &params).unwrap(), &[optimizer], Some(Clip::Norm(1.0))).unwrap()
}

#[test]
fn models_that_differ_somewhere_have_the_bits_they_have_alone() {
    use ParamValue::{Float, Int};
    // Models, and the least share of operations that are computed together.
    for (name, changes, least) in [
        ("cnn", vec![("classes", Int(5)), ("classes", Int(7))], 0.95),
        ("resnet18", vec![("classes", Int(5)), ("classes", Int(7))], 0.99),
        ("gpt", vec![("dropout", Float(0.1)), ("dropout", Float(0.2))], 0.85),
        ("gpt", vec![("dropout", Float(0.0)), ("dropout", Float(0.2)), ("dropout", Float(0.1))], 0.85),
        ("gpt", vec![("layers", Int(2)), ("layers", Int(3))], 0.75),
        ("gpt", vec![("layers", Int(1)), ("layers", Int(3)), ("layers", Int(2))], 0.75),
        ("lstm", vec![("layers", Int(1)), ("layers", Int(2))], 0.6),
        ("dcgan", vec![("discriminator", Int(2)), ("discriminator", Int(3))], 0.25),
    ] {
        let graph = |(i, change): (usize, &(&str, ParamValue))| {
            small_graph(name, std::slice::from_ref(change), if i == 1 { "adamw" } else { "adam" })
        };
        let graphs: Vec<Graph> = changes.iter().enumerate().map(graph).collect();
        let array = compare(&format!("{name} {changes:?}"), &graphs, 10, false, 1);
        let report = array.fused.report;
        assert!(report.share() >= least, "{name} {changes:?}: {report}");
    }
}

#[test]
fn graphs_with_nothing_in_common_stand_beside_each_other() {
    let graphs = [small_graph("mlp", &[], "sgd"), small_graph("cnn", &[], "adam")];
    let array = compare("mlp and cnn", &graphs, 10, false, 1);
    let report = array.fused.report;
    assert!(report.share() < 0.01 && !array.is_together("fc.weight"), "{report}");
}

fn any_layer() -> impl Strategy<Value = Layer> {
    let functions = [Function::Relu, Function::Tanh, Function::GeluTanh];
    let choices = (
        prop_oneof![3 => Just(32usize), 1 => Just(24), 1 => Just(5)],
        prop::sample::select(functions.to_vec()),
        prop::bool::weighted(0.3),
        prop_oneof![3 => Just(0.0f32), 1 => Just(0.3)],
        prop::bool::weighted(0.4),
    );
    choices.prop_map(|(width, function, norm, dropout, residual)| Layer {
        width,
        function,
        norm,
        dropout,
        residual,
    })
}

/// A network, and variants with a few layers changed, added or removed.
fn any_nets() -> impl Strategy<Value = Vec<Net>> {
    let change = (any::<prop::sample::Index>(), 0..3u8, any_layer());
    let changes = prop::collection::vec(prop::collection::vec(change, 0..3), 1..3);
    (prop::collection::vec(any_layer(), 1..5), changes).prop_map(|(layers, changes)| {
        let changed = changes.into_iter().map(|changes| {
            let mut layers = layers.clone();
            for (at, how, layer) in changes {
                let at = at.index(layers.len());
                match how {
                    0 => layers[at] = layer,
                    1 => layers.insert(at, layer),
                    _ if layers.len() > 1 => _ = layers.remove(at),
                    _ => {}
                }
            }
            net(layers)
        });
        let others: Vec<Net> = changed.collect();
        std::iter::once(net(layers.clone())).chain(others).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_networks_have_the_bits_they_have_alone(
        nets in any_nets(),
        own in any::<bool>(),
        partials in 1u32..3,
    ) {
        let graph = |net: &Net| net.graph("adam", Some(Clip::Norm(1.0)));
        let graphs: Vec<Graph> = nets.iter().map(graph).collect();
        compare(&format!("{nets:?}"), &graphs, 3, own, partials);
    }
}
