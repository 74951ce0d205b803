//! Sessions: slices of a batch, changing input sizes, hard budgets and memory against length.

use gulliver::local::{LocalDevice, LocalError, session};
use gulliver_graph::dim::Bindings;
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::build::Builder;
use gulliver_graph::graph::{Init, Phase};
use gulliver_graph::model::model;
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::optim::Optimizer;
use gulliver_graph::random::RandomStream;
use gulliver_graph::role::{HyperRole, OutputRole};
use gulliver_graph::training::training_graph;
use gulliver_plan::document::job::Purpose;
use gulliver_run::checkpoint::fingerprint;
use gulliver_run::data::Batch;
use gulliver_run::host::{HostData, HostTensor};
use gulliver_run::session::{Session, StepKey};

fn gpt(dropout: f64, partials: u32, memory: Option<u64>) -> Result<Session, LocalError> {
    let params = [("width", 32), ("heads", 2), ("layers", 2), ("vocab", 40), ("context", 4096)];
    let mut params: Vec<(String, ParamValue)> =
        params.iter().map(|(n, v)| (n.to_string(), ParamValue::Int(*v))).collect();
    params.push(("dropout".into(), ParamValue::Float(dropout)));
    let optimizer = Optimizer::new("adam", &[]).unwrap();
    let graph = training_graph(model("gpt", &params).unwrap().as_ref(), &[optimizer], None).unwrap();
    session(graph, None, &LocalDevice { threads: 2, memory, partials, ..Default::default() }, 7)
}

fn text(step: u64, batch: usize, length: usize) -> Batch {
    let stream = RandomStream::new(3, 1, step);
    let ids = |shift: u64| {
        let data = (0..(batch * length) as u64).map(|i| stream.below(i + shift, 40) as i64).collect();
        HostTensor::new(&[batch, length], HostData::I64(data)).unwrap()
    };
    Batch { fields: vec![("x".into(), ids(0)), ("y".into(), ids(1))] }
}

fn losses(session: &mut Session, steps: u64) -> Vec<f64> {
    let step = |s: u64, session: &mut Session| {
        let hyper = |role: HyperRole, _: &str| (role == HyperRole::Step).then_some((s + 1) as f32);
        session.step(&text(s, 8, 12), StepKey { seed: 7, step: s }, &hyper).unwrap().scalars["loss"]
    };
    (0..steps).map(|s| step(s, session)).collect()
}

#[test]
fn partials_give_the_same_gradient_but_for_rounding() {
    for dropout in [0.0, 0.3] {
        let whole = losses(&mut gpt(dropout, 1, None).unwrap(), 6);
        for partials in [2, 4, 8] {
            let sliced = losses(&mut gpt(dropout, partials, None).unwrap(), 6);
            for (a, b) in whole.iter().zip(&sliced) {
                assert!((a - b).abs() < 2e-5, "{partials} partials, dropout {dropout}: {whole:?} {sliced:?}");
            }
        }
    }
}

#[test]
fn changing_sizes_and_growing_memory_keep_the_weights() {
    let lengths = [8, 40, 8, 100, 16, 40];
    let run = |memory: Option<u64>| {
        let mut session = gpt(0.1, 2, memory).unwrap();
        for (s, &length) in lengths.iter().enumerate() {
            let step = |role: HyperRole, _: &str| (role == HyperRole::Step).then_some((s + 1) as f32);
            let outcome =
                session.step(&text(s as u64, 4, length), StepKey { seed: 1, step: s as u64 }, &step);
            assert!(outcome.unwrap().not_finite.is_none());
        }
        fingerprint(&session.tensors().unwrap())
    };
    assert_eq!(run(None), run(Some(64 << 20)), "a device that grows and one that is large from the start");
}

#[test]
fn measured_peak_is_the_planned_one() {
    let mut session = gpt(0.1, 2, None).unwrap();
    losses(&mut session, 2);
    let sizes = Bindings::new().with("batch", 8).with("length", 12);
    let planned = session.plan(Purpose::Train, &sizes).unwrap().spaces[0].live;
    assert_eq!(session.peak(), planned);
}

#[test]
fn memory_grows_linearly_with_length() {
    let mut session = gpt(0.0, 1, None).unwrap();
    let mut moving = |length: usize| {
        let sizes = Bindings::new().with("batch", 1).with("length", length);
        let plan = session.plan(Purpose::Train, &sizes).unwrap();
        (plan.spaces[0].bytes - plan.persistent_bytes()) as f64
    };
    let (short, middle, long) = (moving(512), moving(1024), moving(2048));
    assert!(middle < 2.05 * short && long < 2.05 * middle, "{short} {middle} {long}");
}

#[test]
fn budgets_too_small_are_refused_before_the_first_step() {
    let mut needed = gpt(0.0, 1, None).unwrap();
    let sizes = Bindings::new().with("batch", 8).with("length", 12);
    let plan = needed.plan(Purpose::Train, &sizes).unwrap();
    let (arena, state) = (plan.spaces[0].bytes, plan.persistent_bytes());
    assert!(gpt(0.0, 1, Some(arena)).unwrap().plan(Purpose::Train, &sizes).is_ok());
    // More than weights and states take, and less than any operator needs beside them.
    let short = state + 16 * 1024;
    let error = gpt(0.0, 1, Some(short)).unwrap().plan(Purpose::Train, &sizes).err().unwrap().to_string();
    assert!(
        error.contains(&format!("the budget is {short}")) && error.contains("largest at the peak"),
        "{error}"
    );
    assert!(gpt(0.0, 1, Some(1000)).is_err());
}

#[test]
fn an_objective_that_fails_changes_nothing_and_those_before_it_once() {
    let mut g = Builder::new(true);
    let x = g.data("x", DType::F32, &["batch"]).unwrap();
    for (objective, name) in ["first", "second"].into_iter().enumerate() {
        g.enter(Phase::Forward, objective as u32);
        let w = g.weight(name, &[2], Init::Constant(1.0)).unwrap();
        // The second takes the root of numbers below zero.
        let y = if objective == 0 { x } else { g.sqrt(x).unwrap() };
        let loss = g.sum_all(y).unwrap();
        g.output(&format!("{name}.loss"), OutputRole::Loss, loss);
        g.enter(Phase::Update, objective as u32);
        let next = g.affine(w, 1.0, 1.0).unwrap();
        g.carry(w, next);
    }
    let mut session = session(g.finish(), None, &LocalDevice::default(), 0).unwrap();
    let x = HostTensor::new(&[4], HostData::F32(vec![-1.0; 4])).unwrap();
    let batch = Batch { fields: vec![("x".into(), x)] };
    let outcome = session.step(&batch, StepKey { seed: 0, step: 0 }, &|_, _| None).unwrap();
    assert_eq!(outcome.not_finite.as_deref(), Some("sqrt"));
    let tensors = session.tensors().unwrap();
    assert_eq!(tensors["first"].as_f32(), Some(&[2.0, 2.0][..]));
    assert_eq!(tensors["second"].as_f32(), Some(&[1.0, 1.0][..]));
}
