//! The study: what is written is found again, and only by one at a time.

use super::*;
use crate::sweep::search::tests::sweep;
use crate::test_dir::TestDir;

const SPACE: &str = "optimizer.name = ['sgd', 'adamw']\noptimizer.lr = { log-uniform = [1e-4, 1] }\n\
    model.sizes = { choice = [[784, 10], [784, 32, 10]] }\n\
    optimizer.momentum = { uniform = [0, 0.9], when = { optimizer.name = 'sgd' } }\n\
    train.batch = { integer = [2, 31], step = 4 }\ntrain.partials = { integer = [1, 2], log = true }";

fn done(step: u64, loss: f64) -> RungOutcome {
    RungOutcome::Done { step, metrics: BTreeMap::from([("loss".to_string(), loss)]), seconds: 1.0 }
}

#[test]
fn what_is_written_is_found_again() {
    let dir = TestDir::new("store-again");
    let sweep = sweep("store-again", "algorithm = 'asha'\nrungs = 2\nrepeats = 2", SPACE);
    let asks: Vec<Ask> =
        (0..4).map(|trial| Ask { trial, point: sweep.space.random(0, trial), level: 1 }).collect();
    let place = |trial, repeat, level| RungId { trial, repeat, level };
    let mut store = StudyStore::open(&dir, &sweep).unwrap();
    store.begin(&sweep.space, &asks).unwrap();
    assert_eq!(store.pending().unwrap().len(), 8);
    assert_eq!(store.pending().unwrap()[1], place(0, 1, 1));

    // The first is good, one repeat of the second fails, the third has a strange loss, the fourth waits.
    store.evaluated(place(0, 0, 1), 5, &BTreeMap::from([("loss".into(), 3.0)])).unwrap();
    store.evaluated(place(0, 0, 1), 5, &BTreeMap::from([("loss".into(), 2.5)])).unwrap();
    store.finish(place(0, 0, 1), &done(10, 1.0)).unwrap();
    assert!(store.records().unwrap()[0].rungs.is_empty());
    store.finish(place(0, 1, 1), &done(10, 2.0)).unwrap();
    store.finish(place(1, 0, 1), &done(10, 1.0)).unwrap();
    store.finish(place(1, 1, 1), &RungOutcome::Failed { reason: "does not \"fit\"".into() }).unwrap();
    store.finish(place(2, 0, 1), &done(10, f64::NAN)).unwrap();
    store
        .finish(place(2, 1, 1), &RungOutcome::Done { step: 10, metrics: BTreeMap::new(), seconds: 0.0 })
        .unwrap();
    store.finish(place(3, 0, 1), &done(10, 4.0)).unwrap();
    drop(store);

    let mut store = StudyStore::open(&dir, &sweep).unwrap();
    assert_eq!(store.pending().unwrap(), [place(3, 1, 1)]);
    let records = store.records().unwrap();
    for (record, ask) in records.iter().zip(&asks) {
        assert_eq!((record.number, &record.point), (ask.trial, &ask.point));
    }
    assert_eq!(records[0].rungs, BTreeMap::from([(1, (10, vec![1.0, 2.0]))]));
    let states: Vec<TrialState> = records.iter().map(|r| r.state).collect();
    assert_eq!(states, [TrialState::Running, TrialState::Failed, TrialState::Failed, TrialState::Running]);
    let reasons: Vec<Option<&str>> = records.iter().map(|r| r.reason.as_deref()).collect();
    assert_eq!(reasons, [None, Some("does not \"fit\""), Some("loss is NaN after 10 steps"), None]);
    let trials = history(&records, Goal::Maximize);
    assert_eq!((trials[0].scores[&1], trials[1].failed), (-1.5, true));

    store.finish(place(3, 1, 1), &done(10, 6.0)).unwrap();
    let top = [Ask { trial: 0, point: asks[0].point.clone(), level: 3 }];
    store.begin(&sweep.space, &top).unwrap();
    for repeat in 0..2 {
        store.finish(place(0, repeat, 3), &done(30, 0.5)).unwrap();
    }
    store.close().unwrap();
    let records = store.records().unwrap();
    let states: Vec<(TrialState, Option<f64>)> = records.iter().map(|r| (r.state, r.value())).collect();
    assert_eq!((states[0], states[3]), ((TrialState::Complete, Some(0.5)), (TrialState::Pruned, Some(5.0))));
    let curve: Vec<(u64, u64, f64)> = store
        .curves()
        .unwrap()
        .iter()
        .filter(|e| e.trial == 0)
        .map(|e| (e.repeat, e.step, e.value))
        .collect();
    assert_eq!(curve, [(0, 5, 2.5), (0, 10, 1.0), (0, 30, 0.5), (1, 10, 2.0), (1, 30, 0.5)]);
    drop(store);
    optuna_agrees(&dir);
}

/// If Optuna is installed, it must find the same.
fn optuna_agrees(dir: &Path) {
    let script = "import sys\ntry:\n  import optuna\nexcept ImportError:\n  print('none'); sys.exit()\n\
        s = optuna.load_study(study_name=None, storage='sqlite:///' + sys.argv[1])\n\
        ts = s.get_trials()\n\
        print([t.state.name for t in ts], s.best_trial.number, s.best_value, ts[0].intermediate_values)\n\
        assert all(sorted(t.params) == sorted(t.distributions) for t in ts)\n\
        assert ts[1].user_attrs['gulliver:reason'] == 'does not \"fit\"', ts[1].user_attrs\n\
        s.sampler = optuna.samplers.TPESampler(n_startup_trials=1)\n\
        new = s.ask(); new.suggest_float('optimizer.lr', 1e-4, 1, log=True)\n";
    let python = std::env::var_os("GULLIVER_PYTHON").unwrap_or("python3".into());
    let study = study_path(dir);
    let Ok(output) = std::process::Command::new(python).arg("-c").arg(script).arg(study).output() else {
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    if text.trim() == "none" {
        return;
    }
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(text.trim(), "['COMPLETE', 'FAIL', 'FAIL', 'PRUNED'] 0 0.5 {10: 1.5, 30: 0.5}");
}

#[test]
fn one_at_a_time() {
    let dir = TestDir::new("store-lock");
    let sweep = sweep("store-lock", "", SPACE);
    let first = StudyStore::open(&dir, &sweep).unwrap();
    let error = StudyStore::open(&dir, &sweep).err().unwrap().to_string();
    let expected = format!("process {} is working on this sweep", std::process::id());
    assert!(error.contains(&expected), "{error}");
    assert!(StudyStore::read(&dir, &sweep).unwrap().unwrap().records().unwrap().is_empty());
    drop(first);
    StudyStore::open(&dir, &sweep).unwrap();
}

#[test]
fn another_sweep_is_refused() {
    let dir = TestDir::new("store-other");
    let one = sweep("store-one", "trials = 3", SPACE);
    assert!(StudyStore::read(&dir, &one).unwrap().is_none());
    StudyStore::open(&dir, &one).unwrap();
    let other = sweep("store-two", "trials = 4", SPACE);
    let error = StudyStore::open(&dir, &other).err().unwrap().to_string();
    assert!(error.contains("made by a sweep with trials = 3, this one has trials = 4"), "{error}");
    for bytes in ["", "not a database, but long enough to look at: ............................"] {
        std::fs::write(study_path(&dir), bytes).unwrap();
        let opened = StudyStore::read(&dir, &one);
        assert!(opened.is_err(), "{bytes}");
    }
}
