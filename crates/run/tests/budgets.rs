//! A budget changes no bit: every model of the table, made small, trained within random budgets with the
//! other tiers on and off, gives the losses and weights of the unlimited run; and what was planned is what
//! was used and moved.

mod makes;
mod small_models;

use gulliver::local::{LocalDevice, session};
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;
use gulliver_graph::model::{MODELS, model};
use gulliver_graph::optim::Optimizer;
use gulliver_graph::random::{RandomStream, hash_name};
use gulliver_graph::role::HyperRole;
use gulliver_graph::training::{evaluation_graph, training_graph};
use gulliver_plan::devices::planner::Planner;
use gulliver_plan::document::error::PlanError;
use gulliver_plan::document::job::Purpose;
use gulliver_plan::document::ledger::Ledger;
use gulliver_plan::document::plan::{Choice, TIERS, Tier};
use gulliver_run::checkpoint::fingerprint;
use gulliver_run::session::StepKey;
use makes::MAKES;
use small_models::{data, small};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

const STEPS: u64 = 2;

/// Weights and states after some steps, and every scalar on the way.
fn train(graph: &Graph, options: LocalDevice, sizes: &Bindings) -> (String, Vec<(String, u64)>) {
    let batch = data(graph, sizes);
    let limits = [options.memory, options.host_memory, options.disk];
    let mut session = session(graph.clone(), None, &options, 11).unwrap();
    let plan = session.plan(Purpose::Train, sizes).unwrap();
    let mut scalars = Vec::new();
    let fed = session.ledger();
    for step in 0..STEPS {
        let number = |role: HyperRole, _: &str| (role == HyperRole::Step).then_some((step + 1) as f32);
        let outcome = session.step(&batch, StepKey { seed: 1, step }, &number).unwrap();
        assert_eq!(outcome.not_finite, None);
        scalars.extend(outcome.scalars.iter().map(|(name, x)| (name.to_string(), x.value.to_bits())));
    }
    let used = session.ledger();
    let planned = Ledger::of(&plan);
    assert_eq!(
        (used.disk_read - fed.disk_read, used.disk_written - fed.disk_written),
        (STEPS * planned.disk_read, STEPS * planned.disk_written)
    );
    assert!(used.to_device - fed.to_device >= STEPS * planned.to_device);
    for (tier, limit) in TIERS.into_iter().zip(limits) {
        let space = &plan.spaces[tier as usize];
        assert_eq!(session.peak_of(tier), space.live, "{tier:?}");
        assert!(limit.is_none_or(|limit| space.bytes <= limit), "{tier:?}: {} of {limit:?}", space.bytes);
    }
    assert!(session.take_alarms().is_empty());
    (fingerprint(&session.tensors().unwrap()), scalars)
}

/// Trains a make within random budgets: values computed again, away, weights and states resident elsewhere, and
/// budgets that were too small.
fn within_budgets(i: usize, name: &str) -> [usize; 4] {
    let sizes = Bindings::new().with("batch", 4).with("length", 7);
    let [mut again, mut away, mut homeless, mut short] = [0; 4];
    let row = MODELS.iter().find(|row| row.name == name).unwrap();
    let model = model(name, &small(row)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let optimizer = if i.is_multiple_of(2) { "adamw" } else { "sgd" };
    let graph = training_graph(&*model, &[Optimizer::new(optimizer, &[]).unwrap()], None).unwrap();
    let partials = if i.is_multiple_of(3) { 2 } else { 1 };
    let free = LocalDevice { threads: 1, partials, ..LocalDevice::default() };
    let expected = train(&graph, free.clone(), &sizes);
    let mut planner = Planner::new(graph.clone(), None, free.options()).unwrap();
    let whole = planner.unlimited(Purpose::Train, &sizes).unwrap().spaces[0].bytes;
    let noise = RandomStream::new(5, hash_name(name), 0);
    let tiers = [(Some(0), None), (None, None), (Some(0), Some(1 << 28)), (Some(20_000), Some(1 << 28))];
    for (k, (host_memory, disk)) in tiers.into_iter().enumerate() {
        for round in 0..2 {
            let memory = Some(whole * (50 + noise.below(2 * k as u64 + round, 50)) / 100);
            let threads = 1 + k % 2;
            let largest = Some(sizes.clone());
            let limited = LocalDevice { threads, memory, host_memory, disk, largest, ..free.clone() };
            let mut planner = match Planner::new(graph.clone(), None, limited.options()) {
                Ok(planner) => planner,
                // Weights and what one operator needs may be more than that.
                Err(PlanError::DoesNotFit { .. } | PlanError::NoRoom) => {
                    short += 1;
                    continue;
                }
                Err(e) => panic!("{name} in {memory:?} of {whole}: {e}"),
            };
            let plan = planner.plan(Purpose::Train, &sizes).unwrap();
            let count = |choice: Choice| plan.decisions.iter().filter(|d| d.choice == choice).count();
            again += count(Choice::Recompute);
            away += count(Choice::Host) + count(Choice::Disk);
            let residences = planner.persistent().residences.values();
            homeless += residences.filter(|residence| residence.tier != Tier::Device).count();
            let found = train(&graph, limited.clone(), &sizes);
            assert_eq!(expected, found, "{name} in {memory:?} of {whole}, {limited:?}");
        }
    }
    [again, away, homeless, short]
}

#[test]
fn every_make_of_model_trains_to_the_same_bits_within_any_budget() {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut sums = [0; 4];
        loop {
            // The last ones take longest.
            let Some(i) = MAKES.len().checked_sub(1 + next.fetch_add(1, Ordering::Relaxed)) else {
                return sums;
            };
            let found = within_budgets(i, MAKES[i]);
            sums.iter_mut().zip(found).for_each(|(sum, n)| *sum += n);
        }
    };
    let [one, two] = thread::scope(|scope| [scope.spawn(work), scope.spawn(work)].map(|t| t.join().unwrap()));
    let [again, away, homeless, short] = [0, 1, 2, 3].map(|k| one[k] + two[k]);
    println!("{again} computed again, {away} away, {homeless} resident elsewhere, {short} too little");
    assert!(again > 100 && away > 100 && homeless > 100 && short < 40, "{again} {away} {homeless} {short}");
}

#[test]
fn the_least_that_will_do_does() {
    let sizes = Bindings::new().with("batch", 4).with("length", 7);
    for (name, partials, host_memory) in [("gpt", 2, None), ("cnn", 1, Some(0)), ("lstm", 1, None)] {
        let row = MODELS.iter().find(|row| row.name == name).unwrap();
        let model = model(name, &small(row)).unwrap();
        let graph = training_graph(&*model, &[Optimizer::new("adam", &[]).unwrap()], None).unwrap();
        let free = LocalDevice { threads: 1, partials, ..LocalDevice::default() };
        let expected = train(&graph, free.clone(), &sizes);
        let largest = Some(sizes.clone());
        let mut limited = LocalDevice { host_memory, largest, ..free };
        let least = Planner::new(graph.clone(), None, limited.options()).unwrap().smallest(&sizes).unwrap();
        limited.memory = Some(least);
        assert_eq!(expected, train(&graph, limited.clone(), &sizes), "{name} in {least}");
        limited.memory = Some(least / 2);
        assert!(Planner::new(graph.clone(), None, limited.options()).is_err(), "{name} in half of {least}");
    }
}

/// Evaluation goes through its examples a partial of training at a time: it may not ask for more memory.
#[test]
fn what_can_be_trained_can_be_evaluated() {
    let sizes = Bindings::new().with("batch", 32).with("length", 16);
    for name in ["gpt", "lstm"] {
        let row = MODELS.iter().find(|row| row.name == name).unwrap();
        let model = model(name, &small(row)).unwrap();
        let graph = training_graph(&*model, &[Optimizer::new("adam", &[]).unwrap()], None).unwrap();
        let options = LocalDevice { threads: 1, partials: 16, ..LocalDevice::default() };
        let [alone, both] = [None, Some(evaluation_graph(&*model).unwrap())]
            .map(|evaluation| Planner::new(graph.clone(), evaluation, options.options()).unwrap())
            .map(|mut planner| planner.smallest(&sizes).unwrap());
        assert!(both <= alone + alone / 50, "{name}: {both} instead of {alone}");
    }
}
