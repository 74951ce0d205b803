//! Sessions whose weights and states live in several tiers.

use super::*;
use crate::checkpoint::fingerprint;
use crate::data::Batch;
use crate::device::RunError;
use crate::device::cpu::disk::BLOCK;
use crate::device::cpu::{Cpu, CpuOptions};
use crate::host::HostData;
use crate::host::HostTensor;
use crate::lower::{Kernels, lower_node};
use crate::scratch::ScratchDir;
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::build::Builder;
use gulliver_graph::graph::{Init, Node, Phase};
use gulliver_graph::model::head::Head;
use gulliver_graph::model::mlp::Mlp;
use gulliver_graph::optim::Optimizer;
use gulliver_graph::role::OutputRole;
use gulliver_graph::training::training_graph;
use gulliver_plan::devices::options::DeviceOptions;
use gulliver_plan::devices::planner::Planner;
use gulliver_plan::devices::strategy::{ALONE, DeviceSet, job, replicated};
use gulliver_plan::document::plan::TIERS;
use gulliver_plan::document::residence::{Persistent, Residence};
use std::path::PathBuf;

/// Options with the working memory of real kernels.
fn options() -> DeviceOptions {
    let scratch = |graph: &Graph, node: &Node, sizes: &Bindings, threads: usize| {
        Ok(lower_node(graph, node, sizes, threads, &Kernels::default())?.scratch)
    };
    DeviceOptions { scratch: Arc::new(scratch), ..DeviceOptions::default() }
}

/// A session of these planners on devices whose files are in `dir`.
fn start(planners: Vec<Planner>, dir: Option<PathBuf>, seed: u64) -> Result<Session, SessionError> {
    let open = |planner: &Planner| -> Box<dyn Device> {
        let threads = planner.options().threads;
        let options = CpuOptions { threads, disk_dir: dir.clone(), ..CpuOptions::default() };
        Box::new(Cpu::new(options).unwrap())
    };
    let devices = planners.iter().map(open).collect();
    Session::new(job(ALONE, planners).unwrap(), devices, seed)
}

fn session(graph: Graph, options: DeviceOptions) -> Session {
    start(vec![Planner::new(graph, None, options).unwrap()], None, 0).unwrap()
}

/// Weights and states of many sizes, some changed by the forward pass.
fn graph() -> Graph {
    let mut g = Builder::new(true);
    let mut sum = None;
    for (i, (count, init)) in [
        (1, Init::Constant(0.0)),
        (1025, Init::Normal(0.5)),
        (300_000, Init::Uniform(0.1)),
        (7, Init::Constant(2.0)),
    ]
    .into_iter()
    .enumerate()
    {
        g.enter(Phase::Forward, 0);
        let w = g.weight(&format!("w{i}"), &[count], init).unwrap();
        let all = g.sum_all(w).unwrap();
        sum = Some(match sum {
            Some(sum) => g.add(sum, all).unwrap(),
            None => all,
        });
        g.enter(if i % 2 == 0 { Phase::Forward } else { Phase::Update }, 0);
        let next = g.affine(w, 1.0, 1.0).unwrap();
        g.carry(w, next);
    }
    g.output("loss", OutputRole::Loss, sum.unwrap());
    g.finish()
}

/// Homes in turn in these tiers, whole blocks apart.
fn residences(graph: &Graph, tiers: &[Tier]) -> Persistent {
    let mut layout = Persistent::default();
    for (i, (_, _, info)) in graph.inputs().enumerate() {
        let tier = tiers[i % tiers.len()];
        let bytes = info.ty.bytes().bind(&Bindings::new()).unwrap() as u64;
        let end = &mut layout.ends[tier as usize];
        layout.residences.insert(info.name.clone(), Residence { tier, offset: *end, bytes });
        *end += bytes.next_multiple_of(BLOCK);
    }
    layout
}

#[test]
fn values_are_read_and_written_wherever_they_live() {
    let dir = ScratchDir::new();
    let mut expected = None;
    for tiers in [&[Tier::Device][..], &[Tier::Host], &[Tier::Disk], &TIERS] {
        let options = DeviceOptions { disk: Some(10 << 20), ..options() };
        let residences = residences(&graph(), tiers);
        let planner = Planner::with_residences(graph(), None, options, residences.clone());
        let mut session = start(vec![planner], Some(dir.to_path_buf()), 3).unwrap();
        let first = fingerprint(&session.tensors().unwrap());
        assert_eq!(*expected.get_or_insert(first.clone()), first, "{tiers:?}");

        session.first().remember().unwrap();
        for (name, _, shape) in session.layout() {
            let tensor = HostTensor::new(&shape, HostData::F32(vec![9.0; shape[0]])).unwrap();
            assert!(session.set(&name, &tensor).unwrap(), "{name}");
            assert_eq!(session.tensor(&(name, DType::F32, shape)).unwrap(), tensor, "{tiers:?}");
        }
        session.first().undo().unwrap();
        let one = |i: usize, session: &mut Session| {
            let described = session.layout()[i].clone();
            session.tensor(&described).unwrap().as_f32().unwrap()[0]
        };
        let found: Vec<f32> = (0..4).map(|i| one(i, &mut session)).collect();
        assert!(found[0] == 0.0 && found[1] == 9.0 && found[2].abs() < 0.1 && found[3] == 9.0);

        let bytes = |tier: Tier| -> u64 {
            residences
                .residences
                .values()
                .filter(|residence| residence.tier == tier)
                .map(|residence| residence.bytes)
                .sum()
        };
        // All were read three times, counting those above, and written once.
        let expected = Ledger {
            to_host: 3 * bytes(Tier::Device),
            to_device: bytes(Tier::Device),
            disk_read: 3 * bytes(Tier::Disk),
            disk_written: bytes(Tier::Disk),
            ..Ledger::default()
        };
        assert_eq!(session.ledger(), expected, "{tiers:?}");
    }
}

#[test]
fn residences_beyond_a_budget_are_refused() {
    let dir = ScratchDir::new();
    for (tier, host_memory, disk, fits) in [
        (Tier::Host, None, None, true),
        (Tier::Host, Some(1 << 20), None, false),
        (Tier::Host, Some(2 << 20), None, true),
        (Tier::Disk, None, None, false),
        (Tier::Disk, None, Some(1 << 20), false),
        (Tier::Disk, None, Some(2 << 20), true),
    ] {
        let options = DeviceOptions { host_memory, disk, ..options() };
        let planner = Planner::with_residences(graph(), None, options, residences(&graph(), &[tier]));
        let made = start(vec![planner], Some(dir.to_path_buf()), 3).err();
        match made {
            None => assert!(fits, "{tier:?}"),
            Some(SessionError::Run(RunError::Space { available, .. })) => {
                assert!(!fits && available == host_memory.or(disk).unwrap_or(0), "{tier:?}");
            }
            Some(other) => panic!("{other}"),
        }
    }
}

/// Products of data alone, of any length.
fn lengths_graph() -> Graph {
    let mut g = Builder::new(true);
    g.enter(Phase::Forward, 0);
    let mut x = g.data("x", DType::F32, &["length", "length"]).unwrap();
    let first = x;
    for _ in 0..4 {
        let product = g.contract("m k, k n -> m n", x, first).unwrap();
        x = g.softmax(product, 1).unwrap();
    }
    let loss = g.sum_all(x).unwrap();
    g.output("loss", OutputRole::Loss, loss);
    g.finish()
}

fn square(length: usize) -> Batch {
    let x = HostTensor::new(&[length, length], HostData::F32(vec![0.5; length * length])).unwrap();
    Batch { fields: vec![("x".into(), x)] }
}

fn run(session: &mut Session, length: usize) -> StepOutcome {
    session.step(&square(length), StepKey { seed: 0, step: 0 }, &|_, _| None).unwrap()
}

#[test]
fn programs_are_reused_until_others_need_their_room() {
    let options = DeviceOptions { memory: Some(1 << 20), ..options() };
    let mut session = session(lengths_graph(), options);
    run(&mut session, 8);
    let bytes = session.ranks[0].programs.all().next().unwrap().bytes;
    session.ranks[0].programs.limit = 2 * bytes + bytes / 2;
    // Length, and hits, misses and drops after it.
    for (length, expected) in [
        (8, (1, 1, 0)),
        (9, (1, 2, 0)),
        (8, (2, 2, 0)),
        (10, (2, 3, 1)),
        (8, (3, 3, 1)),
        (9, (3, 4, 2)),
        (8, (4, 4, 2)),
    ] {
        run(&mut session, length);
        let Reuse { hits, misses, dropped, .. } = session.reuse();
        assert_eq!((hits, misses, dropped), expected, "{length}");
        assert!(session.ranks[0].programs.all().count() <= 2);
    }
    // A record outlives the program.
    let runs: Vec<u64> = session.collector().records().iter().map(|record| record.runs).collect();
    assert_eq!(runs, [5, 2, 1]);
    session.ranks[0].programs.limit = 0;
    for length in 20..30 {
        run(&mut session, length);
        assert_eq!(session.ranks[0].programs.all().count(), 1, "the last one stays");
    }
}

#[test]
fn kernels_are_timed_in_the_first_runs_and_later_plans_know() {
    let options = DeviceOptions { memory: Some(1 << 20), ..options() };
    let mut session = session(lengths_graph(), options);
    let sizes = |length: usize| Bindings::new().with("batch", length).with("length", length);
    let priced = |session: &mut Session| {
        session.ranks[0].plan.source.plan(Purpose::Train, &sizes(30)).unwrap().seconds
    };
    let mut prices = vec![priced(&mut session)];
    for _ in 0..5 {
        run(&mut session, 32);
        prices.push(priced(&mut session));
    }
    // Not the first run of all, then twice.
    let changed: Vec<bool> = prices.windows(2).map(|pair| pair[0] != pair[1]).collect();
    assert_eq!(changed, [false, true, true, false, false], "{prices:?}");
    assert!(session.take_alarms().is_empty());

    // Without a budget nobody asks, and nothing is timed.
    let mut free = super::tests::session(lengths_graph(), self::options());
    (0..3).for_each(|_| drop(run(&mut free, 8)));
    let record = &free.collector().records()[0];
    assert!(record.planned.seconds == 0.0 && record.measured.seconds > 0.0 && record.runs == 3);
}

#[test]
fn a_plan_that_promised_less_raises_an_alarm() {
    let options = DeviceOptions { memory: Some(1 << 20), ..options() };
    let mut session = session(lengths_graph(), options);
    run(&mut session, 8);
    let planned = &mut session.ranks[0].programs.get_mut(0).planned;
    let right = planned.peaks[0];
    planned.peaks[0] -= 64;
    planned.moved.disk_read = 5;
    (0..3).for_each(|_| drop(run(&mut session, 8)));
    let alarms: Vec<String> = session.take_alarms().iter().map(Alarm::to_string).collect();
    let expected = format!(
        "training with inputs of batch 8, length 8 was not as planned: peak of the device {} bytes planned, {right} \
         measured, from disk 5 bytes planned, 0 measured; please report this",
        right - 64
    );
    assert_eq!(alarms, [expected]);
    assert_eq!(session.collector().alarmed(), 1);
}

#[test]
fn every_device_of_a_data_parallel_job_ends_with_all_weights() {
    let model = Mlp { sizes: vec![6, 24, 5], head: Head::Classes };
    let graph = training_graph(&model, &[Optimizer::new("sgd", &[]).unwrap()], None).unwrap();
    let options = DeviceOptions { partials: 3, ..options() };
    let planners = replicated(&graph, None, &DeviceSet::new(vec![options; 3])).unwrap();
    let mut session = start(planners, None, 11).unwrap();
    let before = fingerprint(&session.tensors().unwrap());
    let x = HostTensor::new(&[6, 6], HostData::F32((0..36).map(|i| (i as f32).sin()).collect())).unwrap();
    let y = HostTensor::new(&[6], HostData::I64((0..6).map(|i| i % 5).collect())).unwrap();
    let fields = vec![("x".into(), x), ("y".into(), y)];
    session.step(&Batch { fields }, StepKey { seed: 0, step: 0 }, &|_, _| None).unwrap();
    let expected = fingerprint(&session.tensors().unwrap());
    assert_ne!(expected, before);
    for rank in &mut session.ranks {
        assert_eq!(fingerprint(&rank.tensors_of(0).unwrap()), expected);
    }
}

/// A thread for moves that cannot be started is an error of the step, and the next one may go well.
#[test]
fn a_stream_without_a_thread_is_an_error() {
    let residences = residences(&graph(), &[Tier::Host]);
    let planner = Planner::with_residences(graph(), None, options(), residences);
    let mut session = start(vec![planner], None, 3).unwrap();
    let (batch, key) = (square(1), StepKey { seed: 0, step: 0 });
    let refused = crate::team::refused::after(0, || session.step(&batch, key, &|_, _| None));
    assert!(matches!(refused, Err(SessionError::Run(RunError::Thread(_)))), "{refused:?}");
    session.step(&batch, key, &|_, _| None).unwrap();
}
