//! Members of an array have the bits they have alone: for every family of models and every optimizer, for any number of
//! members with different seeds, rates and clipping limits, on shared or separate data, within a budget, and when others
//! leave, join or diverge.

mod families;
mod jobs;
mod small_models;

use families::FAMILIES;
use gulliver::local::LocalDevice;
use gulliver_graph::array::{fuse, own as own_name};
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, Role};
use gulliver_graph::model::{MODELS, model};
use gulliver_graph::optim::Optimizer;
use gulliver_graph::role::{DataRole, HyperRole};
use gulliver_graph::training::{Clip, training_graph};
use gulliver_plan::devices::planner::Planner;
use gulliver_plan::devices::strategy::job;
use gulliver_plan::document::error::PlanError;
use gulliver_plan::document::job::Purpose;
use gulliver_run::checkpoint::fingerprint;
use gulliver_run::data::Batch;
use gulliver_run::session::{Session, StepKey, StepOutcome};
use jobs::{Job, alone, jobs, same};
use small_models::{data, small};

const OPTIMIZERS: [&str; 8] = ["sgd", "adam", "adamw", "adadelta", "adagrad", "rmsprop", "lion", "sgd"];

fn array(graph: &Graph, options: &LocalDevice, jobs: &[Job], own: bool) -> Result<Session, PlanError> {
    let fused = fuse(graph, jobs.len(), &|role| own || matches!(role, DataRole::Noise { .. })).unwrap();
    let planner = Planner::new(fused.graph, None, options.options())?;
    let seeds: Vec<u64> = jobs.iter().map(|j| j.seed).collect();
    Ok(Session::array(job("alone", vec![planner]).unwrap(), options.open(0).unwrap(), &seeds).unwrap())
}

fn step(session: &mut Session, batch: &Batch, jobs: &[Job], own: bool, step: u64) -> Vec<StepOutcome> {
    let batch = match own {
        false => jobs[0].batch(batch, step),
        true => {
            let fields = jobs.iter().enumerate().flat_map(|(m, job)| {
                let fields = job.batch(batch, step).fields.into_iter();
                fields.map(move |(name, t)| (own_name(&name, &[m]), t)).collect::<Vec<_>>()
            });
            Batch { fields: fields.collect() }
        }
    };
    let keys: Vec<StepKey> = jobs.iter().map(|j| j.key(step)).collect();
    session.step_together(&batch, &keys, &|m, role, name| jobs[m].hyper(role, name, step)).unwrap()
}

/// The graph of a model, and data for it; the session makes noise inputs itself.
fn small_graph(name: &str, optimizer: &str, sizes: &Bindings) -> (Graph, Batch) {
    let row = MODELS.iter().find(|row| row.name == name).unwrap();
    let model = model(name, &small(row)).unwrap();
    let optimizer = Optimizer::new(optimizer, &[]).unwrap();
    let graph = training_graph(&*model, &[optimizer], Some(Clip::Norm(1.0))).unwrap();
    let mut batch = data(&graph, sizes);
    let noise = |role| matches!(role, Role::Data(DataRole::Noise { .. }));
    let noisy = graph.inputs().find(|(_, role, _)| noise(*role)).map(|(_, _, info)| info.name.clone());
    batch.fields.retain(|(name, _)| Some(name) != noisy.as_ref());
    (graph, batch)
}

#[test]
fn every_make_of_model_has_the_bits_it_has_alone() {
    let sizes = Bindings::new().with("batch", 4).with("length", 7);
    for (i, name) in FAMILIES.into_iter().enumerate() {
        let (graph, batch) = small_graph(name, OPTIMIZERS[i % OPTIMIZERS.len()], &sizes);
        let partials = if i % 3 == 0 && !graph.to_string().contains("batch_norm") { 2 } else { 1 };
        let options = LocalDevice { threads: 2, partials, ..LocalDevice::default() };
        let large = ["resnet50", "vgg11", "cosmoflow", "mobilenet_v2"].contains(&name);
        // Twenty steps of small models; for large ones fewer members and steps show the same.
        let (steps, sizes) = if large { (3, vec![1, 3]) } else { (20, vec![1, 2, 3, 8]) };
        let own = i % 2 == 1;
        let expected: Vec<_> = jobs(8, own)
            .into_iter()
            .take(*sizes.last().unwrap())
            .map(|job| alone(&graph, &options, &batch, job, steps))
            .collect();
        for members in sizes {
            let jobs = jobs(members, own);
            let mut session = array(&graph, &options, &jobs, own).unwrap();
            for t in 0..steps {
                let outcomes = step(&mut session, &batch, &jobs, own, t);
                for (m, outcome) in outcomes.iter().enumerate() {
                    assert!(
                        same(outcome, &expected[m].1[t as usize]),
                        "{name}: member {m} of {members}, step {t}"
                    );
                }
            }
            for (m, (expected, _)) in expected.iter().enumerate().take(members) {
                let found = fingerprint(&session.tensors_of(m).unwrap());
                assert_eq!(found, *expected, "{name}: member {m} of {members}");
            }
        }
    }
}

#[test]
fn every_optimizer_has_the_bits_it_has_alone() {
    let sizes = Bindings::new().with("batch", 4);
    for name in OPTIMIZERS {
        let (graph, batch) = small_graph("mlp", name, &sizes);
        let options = LocalDevice { threads: 1, ..LocalDevice::default() };
        let jobs = jobs(3, false);
        let mut session = array(&graph, &options, &jobs, false).unwrap();
        (0..20).for_each(|t| _ = step(&mut session, &batch, &jobs, false, t));
        for (m, job) in jobs.into_iter().enumerate() {
            let found = fingerprint(&session.tensors_of(m).unwrap());
            assert_eq!(found, alone(&graph, &options, &batch, job, 20).0, "{name}: member {m}");
        }
    }
}

#[test]
fn members_leave_and_join() {
    let sizes = Bindings::new().with("batch", 4).with("length", 7);
    for name in ["cnn", "gpt"] {
        let (graph, batch) = small_graph(name, "adam", &sizes);
        let options = LocalDevice { threads: 2, ..LocalDevice::default() };
        let all = jobs(4, false);
        let mut session = array(&graph, &options, &all[..3], false).unwrap();
        (0..5).for_each(|t| _ = step(&mut session, &batch, &all[..3], false, t));
        // The second member leaves; one that has done as many steps alone takes its place.
        let mut guest = gulliver::local::session(graph.clone(), None, &options, all[3].seed).unwrap();
        for t in 0..5 {
            let hyper = |role: HyperRole, name: &str| all[3].hyper(role, name, t);
            guest.step(&all[3].batch(&batch, t), all[3].key(t), &hyper).unwrap();
        }
        let states =
            [session.tensors_of(0).unwrap(), session.tensors_of(2).unwrap(), guest.tensors().unwrap()];
        let now = [all[0], all[2], all[3]];
        let mut session = array(&graph, &options, &now, false).unwrap();
        for (m, state) in states.iter().enumerate() {
            state.iter().for_each(|(name, t)| assert!(session.set_of(m, name, t).unwrap()));
        }
        (5..10).for_each(|t| _ = step(&mut session, &batch, &now, false, t));
        for (m, job) in now.into_iter().enumerate() {
            let found = fingerprint(&session.tensors_of(m).unwrap());
            assert_eq!(found, alone(&graph, &options, &batch, job, 10).0, "{name}: member {m}");
        }
    }
}

#[test]
fn a_member_that_diverges_disturbs_nobody() {
    let sizes = Bindings::new().with("batch", 4).with("length", 7);
    for name in ["cnn", "mlp", "resnet18", "dcgan"] {
        let (graph, batch) = small_graph(name, "sgd", &sizes);
        let options = LocalDevice { threads: 2, ..LocalDevice::default() };
        let mut jobs = jobs(3, false);
        jobs[1].lr = 1e30;
        let mut session = array(&graph, &options, &jobs, false).unwrap();
        let found: Vec<Vec<StepOutcome>> =
            (0..6).map(|t| step(&mut session, &batch, &jobs, false, t)).collect();
        assert!(found.iter().any(|step| step[1].not_finite.is_some()), "{name}: nothing diverged");
        for (m, job) in jobs.into_iter().enumerate() {
            let (weights, expected) = alone(&graph, &options, &batch, job, 6);
            for (t, expected) in expected.iter().enumerate() {
                let outcome = &found[t][m];
                assert_eq!(
                    outcome.not_finite.is_some(),
                    expected.not_finite.is_some(),
                    "{name}: {m}, step {t}"
                );
                assert!(outcome.not_finite.is_some() || same(outcome, expected), "{name}: {m}, step {t}");
            }
            assert_eq!(fingerprint(&session.tensors_of(m).unwrap()), weights, "{name}: member {m}");
        }
    }
}

#[test]
fn arrays_keep_to_budgets_and_bits() {
    let sizes = Bindings::new().with("batch", 4).with("length", 7);
    for name in ["cnn", "gpt", "lstm"] {
        let (graph, batch) = small_graph(name, "adam", &sizes);
        let free = LocalDevice { threads: 2, ..LocalDevice::default() };
        let jobs = jobs(3, false);
        let expected: Vec<String> = jobs.iter().map(|j| alone(&graph, &free, &batch, *j, 4).0).collect();
        let fused = fuse(&graph, 3, &|_| false).unwrap();
        let whole = Planner::new(fused.graph, None, free.options()).unwrap();
        let whole = { whole }.unlimited(Purpose::Train, &sizes).unwrap().spaces[0].bytes;
        for (host_memory, disk) in [(Some(0), None), (None, None), (Some(20_000), Some(1 << 28))] {
            let limited = LocalDevice {
                memory: Some(whole * 8 / 10),
                host_memory,
                disk,
                largest: Some(sizes.clone()),
                ..free.clone()
            };
            let mut session = match array(&graph, &limited, &jobs, false) {
                Ok(session) => session,
                // Weights and states alone may exceed the budget, and there is no other tier.
                Err(_) if host_memory == Some(0) => continue,
                Err(e) => panic!("{name}: {e}"),
            };
            (0..4).for_each(|t| _ = step(&mut session, &batch, &jobs, false, t));
            assert!(session.peak() <= whole * 8 / 10);
            for (m, expected) in expected.iter().enumerate() {
                let found = fingerprint(&session.tensors_of(m).unwrap());
                assert_eq!(found, *expected, "{name}: member {m}, {host_memory:?}, {disk:?}");
            }
        }
    }
}

#[test]
fn an_extra_member_costs_what_one_costs() {
    let sizes = Bindings::new().with("batch", 4).with("length", 7);
    for name in ["mlp", "cnn", "gpt"] {
        let (graph, _) = small_graph(name, "adam", &sizes);
        let state = |members: usize| {
            let fused = fuse(&graph, members, &|_| false).unwrap();
            let options = LocalDevice { threads: 1, ..LocalDevice::default() };
            let mut planner = Planner::new(fused.graph, None, options.options()).unwrap();
            let live = planner.unlimited(Purpose::Train, &sizes).unwrap().spaces[0].live;
            (planner.persistent().ends[0], live)
        };
        let (one, two, five) = (state(1), state(2), state(5));
        let alone =
            Planner::new(graph.clone(), None, LocalDevice::default().options()).unwrap().persistent().ends[0];
        // Alignment of values may add or save some bytes.
        let near = |a: u64, b: u64| a.abs_diff(b) <= 64 * graph.values.len() as u64;
        assert!(near(one.0, alone) && near(five.0 - two.0, 3 * alone), "{name}: {one:?} {two:?} {five:?}");
        assert!(near(five.1 - two.1, 3 * (two.1 - one.1)), "{name}: {one:?} {two:?} {five:?}");
    }
}
