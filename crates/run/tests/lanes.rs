//! Jobs trained as an array on lanes end as they end alone: with seeds, rates, hyper-parameters, clipping
//! limits, schedules and data orders of their own, on any number of lanes, after others failed, and in two parts.

use gulliver::local::{LocalDevice, session};
use gulliver_graph::lr::LrSchedule;
use gulliver_graph::model::head::Head;
use gulliver_graph::model::mlp::Mlp;
use gulliver_graph::optim::Optimizer;
use gulliver_graph::training::{Clip, evaluation_graph, training_graph};
use gulliver_run::checkpoint;
use gulliver_run::data::open::open;
use gulliver_run::data::options::DataOptions;
use gulliver_run::session::Session;
use gulliver_run::train::{
    Lane, Member, Notice, Resumed, Sources, TrainError, TrainOptions, train, train_array,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const STEPS: u64 = 60;

fn started(threads: usize, seed: u64) -> Session {
    clipped(threads, seed, Clip::Norm(1.0))
}

fn clipped(threads: usize, seed: u64, clip: Clip) -> Session {
    let model = Mlp { sizes: vec![64, 24, 10], head: Head::Classes };
    let graph = training_graph(&model, &[Optimizer::new("adamw", &[]).unwrap()], Some(clip)).unwrap();
    let options = LocalDevice { threads, ..LocalDevice::default() };
    session(graph, Some(evaluation_graph(&model).unwrap()), &options, seed).unwrap()
}

fn sources(seed: u64) -> Arc<Sources> {
    let digits = DataOptions { size: Some([8, 8]), examples: Some(640), ..DataOptions::default() };
    Arc::new(Sources::new(open(&digits).unwrap(), 16, seed).unwrap())
}

fn schedule(m: usize) -> LrSchedule {
    match m % 3 {
        0 => LrSchedule::constant(),
        1 => LrSchedule::new("cosine", &[], &[], 5).unwrap(),
        _ => LrSchedule::new("reduce-on-plateau", &[("patience", 0.0), ("threshold", 0.5)], &[], 0).unwrap(),
    }
}

fn options(m: usize, checkpoints: Option<&Path>) -> TrainOptions {
    TrainOptions {
        steps: STEPS,
        seed: m as u64 % 4,
        base_lr: 1e-3 * (1 + m) as f64,
        hyper: BTreeMap::from([
            ("hyper.weight_decay".to_string(), 0.1 * m as f32),
            ("hyper.clip_norm".to_string(), 0.2 * (1 + m) as f32),
        ]),
        eval_every: 10,
        checkpoints: checkpoints.map(|dir| dir.join(m.to_string())),
        ..TrainOptions::default()
    }
}

/// Fingerprint, metrics and every notice of a job.
type Story = (String, BTreeMap<String, u64>, Vec<String>);

fn bits(metrics: &BTreeMap<String, f64>) -> BTreeMap<String, u64> {
    metrics.iter().map(|(name, x)| (name.clone(), x.to_bits())).collect()
}

fn told(notice: &Notice) -> Option<String> {
    match notice {
        Notice::Step { step, loss, lr, .. } => {
            Some(format!("{step} {:x} {:x}", loss.to_bits(), lr.to_bits()))
        }
        Notice::Evaluation { step, metrics } => Some(format!("{step} {:?}", bits(metrics))),
        _ => None,
    }
}

fn alone(m: usize) -> Story {
    let options = options(m, None);
    let (mut session, mut schedule) = (started(1, options.seed), schedule(m));
    let mut notices = Vec::new();
    let done = train(
        &mut session,
        &mut schedule,
        &sources(options.seed),
        &options,
        &Resumed::default(),
        &AtomicBool::new(false),
        &mut |notice| notices.extend(told(&notice)),
    )
    .unwrap();
    (done.fingerprint, bits(&done.metrics), notices)
}

#[test]
fn members_end_as_they_end_alone() {
    let expected: Vec<Story> = (0..7).map(alone).collect();
    let data: Vec<Arc<Sources>> = (0..4).map(sources).collect();
    for (lanes, members) in [(1, 3), (2, 7), (3, 5), (2, 1)] {
        let mut lanes: Vec<Lane> = (0..lanes).map(|l| Lane { session: started(1 + l % 2, 99) }).collect();
        let make = |m: usize| Member::new(schedule(m), data[m % 4].clone(), options(m, None));
        let notices: Vec<Mutex<Vec<String>>> = (0..members).map(|_| Mutex::default()).collect();
        let tell = |m: usize, notice: Notice| notices[m].lock().unwrap().extend(told(&notice));
        let all = (0..members).map(make).collect();
        let ended = train_array(&mut lanes, all, usize::MAX, STEPS, &AtomicBool::new(false), &tell);
        for (m, ended) in ended.into_iter().enumerate() {
            let ended = ended.unwrap();
            let story = (ended.fingerprint, bits(&ended.metrics), notices[m].lock().unwrap().clone());
            assert_eq!(story, expected[m], "member {m} of {members} on {} lanes", lanes.len());
        }
    }
}

#[test]
fn members_have_clipping_limits_of_their_own() {
    let data = sources(0);
    let limits = [0.001f32, 0.02, 0.4];
    let norm = |limit: f32| Clip::Norm(limit);
    let value = |limit: f32| Clip::Value(limit);
    let never = AtomicBool::new(false);
    for (name, clip) in [("hyper.clip_norm", &norm as &dyn Fn(f32) -> Clip), ("hyper.clip_value", &value)] {
        // Alone the limit is that of the job's own graph; in an array it is fed.
        let bare = || TrainOptions { hyper: BTreeMap::new(), ..options(0, None) };
        let alone = limits.map(|limit| {
            let (mut session, mut schedule) = (clipped(1, 0, clip(limit)), schedule(0));
            train(&mut session, &mut schedule, &data, &bare(), &Resumed::default(), &never, &mut |_| ())
                .unwrap()
                .fingerprint
        });
        let mut lanes = [1, 2].map(|threads| Lane { session: clipped(threads, 0, clip(7.0)) });
        let member = |limit: f32| {
            let options = TrainOptions { hyper: BTreeMap::from([(name.to_string(), limit)]), ..bare() };
            Member::new(schedule(0), data.clone(), options)
        };
        let all = limits.map(member).into();
        let ended = train_array(&mut lanes, all, usize::MAX, STEPS, &never, &|_, _| {});
        let ended: Vec<String> = ended.into_iter().map(|ended| ended.unwrap().fingerprint).collect();
        assert_eq!(ended, alone, "{name}");
        assert!(alone[0] != alone[1] && alone[1] != alone[2], "{name}: the limit changes nothing");
    }
}

#[test]
fn no_more_members_are_in_memory_than_there_is_room_for() {
    let expected: Vec<String> = (0..5).map(|m| alone(m).0).collect();
    let data: Vec<Arc<Sources>> = (0..4).map(sources).collect();
    for resident in [0, 3, 4] {
        let mut lanes = [Lane { session: started(1, 0) }, Lane { session: started(1, 0) }];
        let make = |m: usize| {
            let options = TrainOptions { log_every: 1, ..options(m, None) };
            Member::new(schedule(m), data[m % 4].clone(), options)
        };
        // Members that have done a step and are not at their end, and the most there were.
        let begun = Mutex::new((BTreeSet::new(), 0));
        let tell = |m: usize, notice: Notice| {
            let (begun, most) = &mut *begun.lock().unwrap();
            match notice {
                Notice::Step { step, .. } if step < STEPS => begun.insert(m),
                Notice::Step { .. } => begun.remove(&m),
                _ => false,
            };
            *most = begun.len().max(*most);
            // Long enough for others to have their turn.
            std::thread::sleep(Duration::from_millis(1));
        };
        let all = (0..5).map(make).collect();
        let ended = train_array(&mut lanes, all, resident, STEPS, &AtomicBool::new(false), &tell);
        let ended: Vec<String> = ended.into_iter().map(|ended| ended.unwrap().fingerprint).collect();
        assert_eq!(ended, expected, "{resident} in memory");
        let most = begun.into_inner().unwrap().1;
        assert!(most <= resident.max(2), "{most} in memory, room for {resident}");
    }
}

#[test]
fn a_member_that_fails_leaves_the_others_alone() {
    let data = sources(0);
    let mut lanes = [Lane { session: started(1, 0) }, Lane { session: started(1, 0) }];
    let make = |m: usize| {
        let mut options = options(4 * m, None);
        options.base_lr = if m == 1 { 1e30 } else { options.base_lr };
        Member::new(schedule(4 * m), data.clone(), options)
    };
    let all = (0..3).map(make).collect();
    let ended = train_array(&mut lanes, all, usize::MAX, STEPS, &AtomicBool::new(false), &|_, _| {});
    assert!(matches!(ended[1], Err(TrainError::NotFinite { .. })));
    for m in [0, 2] {
        assert_eq!(ended[m].as_ref().unwrap().fingerprint, alone(4 * m).0, "member {m}");
    }
}

#[test]
fn a_part_of_the_way_and_the_rest_from_checkpoints_is_all_of_it() {
    let dir = std::env::temp_dir().join(format!("gulliver-lanes-{}", std::process::id()));
    (0..5).for_each(|m| std::fs::create_dir_all(dir.join(m.to_string())).unwrap());
    let data: Vec<Arc<Sources>> = (0..4).map(sources).collect();
    let mut lanes = [Lane { session: started(1, 0) }, Lane { session: started(1, 0) }];
    let never = AtomicBool::new(false);
    let make = |m: usize| Member::new(schedule(m), data[m % 4].clone(), options(m, Some(&dir)));
    let half = train_array(&mut lanes, (0..5).map(make).collect(), usize::MAX, 25, &never, &|_, _| {});
    assert!(half.iter().all(|ended| ended.as_ref().unwrap().steps == 25));
    let resume = |m: usize| {
        let (_, stored) = checkpoint::latest(&dir.join(m.to_string())).unwrap().found.unwrap();
        make(m).resumed(stored, 25)
    };
    let ended = train_array(&mut lanes, (0..5).map(resume).collect(), usize::MAX, STEPS, &never, &|_, _| {});
    std::fs::remove_dir_all(&dir).unwrap();
    for (m, ended) in ended.into_iter().enumerate() {
        assert_eq!(ended.unwrap().fingerprint, alone(m).0, "member {m}");
    }
}
