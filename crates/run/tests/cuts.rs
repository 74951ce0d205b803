//! Several devices share every node of a job. The bits are those of one device wherever no sum is divided, for
//! inputs of any size, in evaluation, within budgets, and through checkpoints; from outside weights are whole.

mod makes;
mod small_models;

use gulliver::local::{LocalDevice, LocalError, device_set, session, together};
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::model::{MODELS, model};
use gulliver_graph::optim::Optimizer;
use gulliver_graph::role::{HyperRole, OutputRole};
use gulliver_graph::training::{Clip, evaluation_graph, training_graph};
use gulliver_plan::devices::cut::{
    CUT_NAMES, CutDevice, CutMachine, CutObjective, CutOptions, DeviceMesh, GraphCut, MeshLevel, NodeCut,
    Sharding, SizedGraph,
};
use gulliver_plan::devices::cut::{find_cut, held_box, named_cut, node_parts};
use gulliver_plan::devices::strategy::divided;
use gulliver_plan::document::job::Purpose;
use gulliver_plan::document::plan::Tier;
use gulliver_plan::time::cost::Rates;
use gulliver_run::checkpoint::{PIECE, fingerprint};
use gulliver_run::data::Batch;
use gulliver_run::host::HostData;
use gulliver_run::session::{Scalar, Scalars};
use gulliver_run::session::{Session, StepKey, StepOutcome};
use makes::MAKES;
use small_models::{data, small};

const STEPS: u64 = 2;

/// The graphs that train and evaluate.
fn graphs(name: &str, optimizer: &str, clip: Option<Clip>) -> (Graph, Graph) {
    let row = MODELS.iter().find(|row| row.name == name).unwrap();
    let model = model(name, &small(row)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let train = training_graph(&*model, &[Optimizer::new(optimizer, &[]).unwrap()], clip).unwrap();
    (train, evaluation_graph(&*model).unwrap())
}

fn options(partials: usize) -> LocalDevice {
    LocalDevice { threads: 1, partials: partials as u32, ..LocalDevice::default() }
}

fn sized(batch: usize, length: usize) -> Bindings {
    Bindings::new().with("batch", batch).with("length", length)
}

/// How nodes are cut.
#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    /// Each along the first, or last, axis that divides no sum.
    First,
    Last,
    /// Each along the last axis there is.
    Any,
    /// As the search says that moves least.
    Searched,
}

fn cut_so(graph: &Graph, sizes: &Bindings, devices: usize, how: How) -> GraphCut {
    let levels = [MeshLevel::even(devices, 1e9)];
    if how == How::Searched {
        let options = CutOptions { objective: CutObjective::Bytes, ..CutOptions::default() };
        return find_cut(graph, sizes, &levels, &options).unwrap().cut;
    }
    let bound = SizedGraph::new(graph, sizes).unwrap();
    let grid = DeviceMesh::new(&levels);
    let mut cut = GraphCut::none(graph, &levels);
    for (v, _, _) in graph.inputs().filter(|(v, ..)| bound.persists(v.index())) {
        let shape = &bound.shapes[v.index()];
        let mut long = (0..shape.len()).filter(|d| shape[*d] >= 2 * devices);
        if let Some(d) = if how == How::Last { long.next_back() } else { long.next() } {
            cut.values[v.index()] = vec![Sharding::Split(d)];
        }
    }
    for (id, node) in graph.nodes.iter().enumerate() {
        let kind = bound.kind(id);
        let mut axes = kind.axes.clone();
        axes.retain(|a| node_parts(kind, &[NodeCut::Axis(*a)], &grid).is_ok());
        axes.retain(|a| how == How::Any || kind.spec.cut(*a).is_some_and(|cut| cut.keeps_bits()));
        let axis = if how == How::First { axes.first() } else { axes.last() }.copied();
        cut.nodes[id] = vec![axis];
        let parts = node_parts(kind, &[axis.map_or(NodeCut::Repeat, NodeCut::Axis)], &grid).unwrap();
        for (v, shardings) in node.outs.iter().zip(parts.shardings) {
            cut.values[v.index()] = shardings;
        }
    }
    cut
}

/// A session on the devices of a cut along axes that divide no sum.
fn exactly(
    (train, evaluate): &(Graph, Graph),
    devices: Vec<LocalDevice>,
    sizes: &Bindings,
    how: How,
) -> Result<Session, LocalError> {
    let batch = sizes.get("batch").unwrap() / devices[0].partials as usize;
    let cut = cut_so(train, &sizes.clone().with("batch", batch), devices.len(), how);
    let planners = divided(train, Some(evaluate), &device_set(&devices), sizes, cut)?;
    together("cut", planners, &devices, 11)
}

fn alone((train, evaluate): &(Graph, Graph), partials: usize) -> Session {
    session(train.clone(), Some(evaluate.clone()), &options(partials), 11).unwrap()
}

fn step(session: &mut Session, batch: &Batch, step: u64) -> StepOutcome {
    let number = |role: HyperRole, _: &str| (role == HyperRole::Step).then_some((step + 1) as f32);
    let outcome = session.step(batch, StepKey { seed: 1, step }, &number).unwrap();
    assert_eq!(session.take_alarms(), [], "bytes are as planned on every device");
    outcome
}

fn weights(session: &mut Session) -> String {
    fingerprint(&session.tensors().unwrap())
}

/// Steps of both are close, and the same if no sum is divided.
fn assert_close(found: &StepOutcome, expected: &StepOutcome, exact: bool, what: &str) {
    if exact {
        assert_eq!(found, expected, "{what}");
    }
    for (scalar, Scalar { role, value: x, .. }) in expected.scalars.iter() {
        let off = (x - found.scalars[scalar]).abs();
        // Norms of gradients through statistics of few examples lose more digits than losses.
        let close = if role == OutputRole::Loss { 1e-5 } else { 1e-3 };
        assert!(off <= close * (1.0 + x.abs()), "{what}: {scalar} is {x}, off by {off}");
    }
}

#[test]
fn parts_of_nodes_on_several_devices_are_the_whole() {
    let mut exchanged = 0;
    for (i, name) in MAKES.into_iter().enumerate() {
        let partials = if i.is_multiple_of(3) && !["resnet18", "dcgan"].contains(&name) { 2 } else { 1 };
        let (slice, sizes) = (sized(4, 7), sized(4 * partials, 7));
        for (devices, how) in [(2, How::First), (3, How::Last), (2, How::Any), (2, How::Searched)] {
            let exact = matches!(how, How::First | How::Last);
            // Where sums are divided, gradients near zero must not be divided by themselves.
            let (train, _) = graphs(name, if exact { "adamw" } else { "sgd" }, Some(Clip::Norm(0.5)));
            let data = data(&train, &sizes);
            let mut alone = session(train.clone(), None, &options(partials), 11).unwrap();
            let cut = cut_so(&train, &slice, devices, how);
            let devices = vec![options(partials); devices];
            let planners = divided(&train, None, &device_set(&devices), &sizes, cut).unwrap();
            let mut several = together("cut", planners, &devices, 11).unwrap();
            assert_eq!(weights(&mut several), weights(&mut alone), "{name}");
            for n in 0..STEPS {
                let (expected, found) = (step(&mut alone, &data, n), step(&mut several, &data, n));
                assert_close(&found, &expected, exact, &format!("{name} on {} {how:?}", devices.len()));
            }
            if exact {
                assert_eq!(weights(&mut several), weights(&mut alone), "{name} on {}", devices.len());
            }
            exchanged += several.ledger().from_peers;
        }
    }
    assert!(exchanged > 1 << 20, "{exchanged}");
}

#[test]
fn inputs_of_several_sizes_train_and_evaluate_to_the_same_bits() {
    for (name, partials) in [("gpt", 2), ("lstm", 1), ("cnn", 1), ("bert", 1)] {
        let graphs = graphs(name, "adamw", None);
        let first = sized(6, 7);
        let mut one = alone(&graphs, partials);
        let mut several = exactly(&graphs, vec![options(partials); 3], &first, How::First).unwrap();
        // Also fewer examples than devices, and the first size again.
        for (n, (batch, length)) in [(6, 7), (4, 5), (2, 7), (6, 7), (12, 3), (4, 5)].into_iter().enumerate()
        {
            let data = data(&graphs.0, &sized(batch, length));
            let (found, expected) = (step(&mut several, &data, n as u64), step(&mut one, &data, n as u64));
            assert_eq!(found, expected, "{name}, batch {batch}");
            let key = StepKey { seed: 1, step: n as u64 };
            let found = several.evaluate_fully(&data, key).unwrap();
            assert_eq!(found, one.evaluate_fully(&data, key).unwrap(), "{name}, batch {batch}");
        }
        assert_eq!(weights(&mut several), weights(&mut one), "{name}");
        assert_eq!(several.take_alarms(), []);
    }
}

/// Noise is that of all devices together, as is a mask that nobody gave.
#[test]
fn what_a_batch_lacks_is_completed_for_the_whole() {
    for (name, field, partials) in [("dcgan", "z", 1), ("bert", "mask", 2)] {
        let graphs = graphs(name, "sgd", None);
        let sizes = sized(4, 7);
        let mut batch = data(&graphs.0, &sizes);
        let fields = batch.fields.len();
        batch.fields.retain(|(name, _)| name != field);
        assert!(batch.fields.len() < fields, "{name} reads {field}");
        for how in [How::First, How::Last] {
            let mut one = alone(&graphs, partials);
            let mut several = exactly(&graphs, vec![options(partials); 2], &sizes, how).unwrap();
            for n in 0..STEPS {
                assert_eq!(step(&mut several, &batch, n), step(&mut one, &batch, n), "{name} {how:?}");
            }
            assert_eq!(weights(&mut several), weights(&mut one), "{name} {how:?}");
        }
    }
}

#[test]
fn checkpoints_do_not_depend_on_devices() {
    let graphs = graphs("gpt", "adamw", None);
    let sizes = sized(6, 7);
    let data = data(&graphs.0, &sizes);
    let mut expected = alone(&graphs, 1);
    step(&mut expected, &data, 0);
    let mut sessions = [
        exactly(&graphs, vec![options(1); 2], &sizes, How::First).unwrap(),
        alone(&graphs, 1),
        exactly(&graphs, vec![options(1); 3], &sizes, How::Last).unwrap(),
        exactly(&graphs, vec![options(1); 2], &sizes, How::Last).unwrap(),
    ];
    step(&mut sessions[0], &data, 0);
    for at in 1..sessions.len() {
        let (before, after) = sessions.split_at_mut(at);
        let (from, to) = (&mut before[at - 1], &mut after[0]);
        assert_eq!(from.layout(), to.layout());
        let mut bytes = Vec::new();
        from.state(&mut bytes).unwrap();
        to.set_state(&bytes).unwrap();
        assert_eq!(weights(to), weights(&mut expected));
        step(to, &data, at as u64);
        step(&mut expected, &data, at as u64);
        assert_eq!(weights(to), weights(&mut expected), "after {at}");
    }
    // Neither too many bytes, nor of what is not there.
    let several = &mut sessions[2];
    let (name, _, shape) = several.layout().remove(0);
    let bytes = 4 * shape.iter().product::<usize>();
    for (name, first, count, fine) in [
        (name.as_str(), 0, bytes, true),
        (&name, 0, bytes + 1, false),
        (&name, bytes, 1, false),
        ("none", 0, 1, false),
    ] {
        let mut buffer = vec![0; count];
        assert_eq!(several.read(0, name, first as u64, &mut buffer).unwrap(), fine);
        assert_eq!(several.write(0, name, first as u64, &buffer).unwrap(), fine && first == 0);
    }
}

/// Weights leave the devices, each of which has a budget of its own; pieces are read and written wherever they are.
#[test]
fn devices_may_have_budgets_of_their_own() {
    for (name, how, disk) in
        [("gpt", How::First, false), ("lstm", How::Last, true), ("resnet18", How::First, true)]
    {
        let graphs = graphs(name, "adamw", None);
        let sizes = sized(4, 7);
        let data = data(&graphs.0, &sizes);
        let mut one = alone(&graphs, 1);
        let mut free = exactly(&graphs, vec![options(1); 2], &sizes, how).unwrap();
        let needed = free.plan(Purpose::Train, &sizes).unwrap().spaces[0].bytes;
        let within = |percent: u64| LocalDevice {
            memory: Some(needed * percent / 100),
            host_memory: if disk { Some(0) } else { None },
            disk: disk.then_some(1 << 30),
            largest: Some(sizes.clone()),
            ..options(1)
        };
        let mut several = exactly(&graphs, vec![within(110), within(60)], &sizes, how).unwrap();
        for n in 0..STEPS {
            assert_eq!(step(&mut several, &data, n), step(&mut one, &data, n), "{name}");
        }
        let key = StepKey { seed: 1, step: STEPS };
        assert_eq!(
            several.evaluate_fully(&data, key).unwrap(),
            one.evaluate_fully(&data, key).unwrap(),
            "{name}"
        );
        let expected = weights(&mut one);
        assert_eq!(weights(&mut several), expected, "{name}");
        let peaks: Vec<u64> = several.ranks().iter().map(|device| device.peak_of(Tier::Device)).collect();
        assert!(peaks[1] <= needed * 60 / 100, "{name}: {peaks:?} of {needed}");

        // There and back, a piece at a time.
        let mut other = exactly(&graphs, vec![within(60); 2], &sizes, How::Last).unwrap();
        for (name, dtype, shape) in several.layout() {
            let bytes = dtype.size() * shape.iter().product::<usize>();
            for first in (0..bytes).step_by(PIECE) {
                let mut piece = vec![0; PIECE.min(bytes - first)];
                assert!(several.read(0, &name, first as u64, &mut piece).unwrap());
                assert!(other.write(0, &name, first as u64, &piece).unwrap());
            }
        }
        assert_eq!(weights(&mut other), expected, "{name}");
        assert_eq!(several.first_not_finite(0, &one.layout()).unwrap(), None);
    }
}

#[test]
fn a_step_that_fails_changes_nothing_and_names_the_device() {
    let graphs_of = |name| graphs(name, "sgd", None);
    let images = graphs_of("resnet18");
    let good = data(&images.0, &sized(4, 7));
    let mut bad = good.clone();
    for (_, tensor) in &mut bad.fields {
        if let HostData::F32(numbers) = tensor.data_mut() {
            *numbers.last_mut().unwrap() = f32::NAN;
        }
    }
    let mut several = exactly(&images, vec![options(1); 2], &sized(4, 7), How::First).unwrap();
    step(&mut several, &good, 0);
    let before = weights(&mut several);
    let outcome = several.step(&bad, StepKey { seed: 1, step: 1 }, &|_, _| None).unwrap();
    assert_eq!(outcome.not_finite.as_deref(), Some("loss"));
    assert_eq!(weights(&mut several), before);
    assert_eq!(step(&mut several, &good, 2).not_finite, None);

    let tokens = graphs_of("gpt");
    let mut bad = data(&tokens.0, &sized(4, 7));
    for (_, tensor) in &mut bad.fields {
        if let HostData::I64(tokens) = tensor.data_mut() {
            *tokens.last_mut().unwrap() = 1 << 40;
        }
    }
    // Only the second device sees the last example.
    let cut = named_cut(&tokens.0, &sized(4, 7), &CutMachine::new(2), "data").unwrap();
    let devices = vec![options(1); 2];
    let planners = divided(&tokens.0, None, &device_set(&devices), &sized(4, 7), cut).unwrap();
    let mut several = together("data", planners, &devices, 11).unwrap();
    let said = several.step(&bad, StepKey { seed: 0, step: 6 }, &|_, _| None).unwrap_err().to_string();
    assert!(said.starts_with("step 7, device 1: ") && said.contains("is not below"), "{said}");
    assert!(several.step(&bad, StepKey { seed: 0, step: 7 }, &|_, _| None).is_err(), "it stays stopped");

    let cut = cut_so(&tokens.0, &sized(4, 7), 3, How::First);
    let refused =
        divided(&tokens.0, None, &device_set(&vec![options(1); 2]), &sized(4, 7), cut).err().unwrap();
    assert_eq!(refused.to_string(), "the cut is for 3 devices, and there are 2");
}

#[test]
fn cuts_by_name_train_every_make_of_model() {
    for (i, name) in MAKES.into_iter().enumerate() {
        let graphs = graphs(name, "sgd", Some(Clip::Norm(0.5)));
        // Statistics of fewer examples make more of the last digits than there is in them.
        let sizes = sized(12, 7);
        let data = data(&graphs.0, &sizes);
        let key = StepKey { seed: 1, step: STEPS };
        let mut one = alone(&graphs, 1);
        let mut expected: Vec<StepOutcome> = (0..STEPS).map(|n| step(&mut one, &data, n)).collect();
        // Sums over few examples and all of space are divided: norms lose more digits than elsewhere.
        for outcome in &mut expected {
            let mut scalars = Scalars::default();
            let kept = outcome.scalars.iter().filter(|(_, scalar)| scalar.role != OutputRole::GradNorm);
            kept.for_each(|(name, scalar)| scalars.insert(name, scalar));
            outcome.scalars = scalars;
        }
        let evaluated = one.evaluate(&data, key).unwrap();
        for (n, (strategy, _)) in CUT_NAMES.into_iter().enumerate() {
            let devices = if strategy.contains('+') { 4 } else { 2 + (i + n) % 2 };
            let found = named_cut(&graphs.0, &sizes, &CutMachine::new(devices), strategy);
            let images = data.fields.iter().any(|(_, tensor)| tensor.shape().len() > 3);
            if strategy.ends_with("spatial") && !images {
                assert!(found.is_err(), "{name} has no space");
                continue;
            }
            let cut = found.unwrap_or_else(|e| panic!("{name}: {e}"));
            let what = format!("{name} by {strategy} on {devices}");
            let lies = |sharding: Sharding| cut.values.iter().flatten().any(|s| *s == sharding);
            // Space is divided, with halos and all, where there is some.
            assert!(!strategy.ends_with("spatial") || lies(Sharding::Split(2)), "{what}");
            let devices = vec![options(1); devices];
            let planners = divided(&graphs.0, Some(&graphs.1), &device_set(&devices), &sizes, cut).unwrap();
            let mut several = together(strategy, planners, &devices, 11).unwrap();
            for (n, expected) in expected.iter().enumerate() {
                assert_close(&step(&mut several, &data, n as u64), expected, false, &what);
            }
            let found = several.evaluate(&data, key).unwrap();
            for (scalar, Scalar { value: x, .. }) in evaluated.iter() {
                assert!((x - found[scalar]).abs() <= 1e-4 * (1.0 + x.abs()), "{what}: {scalar}");
            }
        }
    }
}

/// Space of images and volumes over 2 to 4 devices, alike or not, with extents that are not multiples of that.
#[test]
fn space_is_divided_with_halos() {
    for (name, size) in [("cnn", 14), ("cosmoflow", 19)] {
        let row = MODELS.iter().find(|row| row.name == name).unwrap();
        let mut settings = small(row);
        settings.retain(|(name, _)| name != "size");
        settings.push(("size".to_string(), ParamValue::Int(size)));
        let model = model(name, &settings).unwrap();
        let train = training_graph(&*model, &[Optimizer::new("sgd", &[]).unwrap()], None).unwrap();
        let sizes = sized(2, 7);
        let data = data(&train, &sizes);
        let mut one = session(train.clone(), None, &options(1), 11).unwrap();
        let expected: Vec<StepOutcome> = (0..STEPS).map(|n| step(&mut one, &data, n)).collect();
        for speeds in [vec![1.0; 2], vec![1.0; 3], vec![1.0; 4], vec![2.0, 1.0]] {
            let unit = |flops: &f64| CutDevice {
                rates: Rates { flops: *flops, ..Rates::default() },
                ..CutDevice::default()
            };
            let devices = CutMachine { devices: speeds.iter().map(unit).collect(), ..CutMachine::new(0) };
            let what = format!("{name} of {size} on {speeds:?}");
            let cut = named_cut(&train, &sizes, &devices, "spatial").unwrap();
            let bound = SizedGraph::new(&train, &sizes).unwrap();
            let grid = DeviceMesh::new(&cut.levels);
            let read = train.nodes.iter().enumerate().filter(|(_, node)| !node.ins.is_empty());
            let halos = read.filter(|(id, node)| {
                let parts = node_parts(bound.kind(*id), &cut.choices(&train, *id), &grid).unwrap();
                let lies = &cut.values[node.ins[0].index()];
                let own = |d: usize| held_box(&bound.shapes[node.ins[0].index()], lies, &grid, d);
                let wide = |d: usize| parts.ins[0].boxes[d].get(2).map_or(0, |r| r.len());
                lies[0] == Sharding::Split(2) && wide(0) > own(0)[2].len()
            });
            assert!(halos.count() >= 4, "{what}: rows and planes of neighbours are read");
            let devices = vec![options(1); speeds.len()];
            let planners = divided(&train, None, &device_set(&devices), &sizes, cut).unwrap();
            let mut several = together("spatial", planners, &devices, 11).unwrap();
            for (n, expected) in expected.iter().enumerate() {
                assert_close(&step(&mut several, &data, n as u64), expected, false, &what);
            }
            assert!(several.ledger().from_peers > 0, "{what}");
        }
    }
}
