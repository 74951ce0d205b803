//! A device whose thread dies, or whose link to the others errors, stops the whole run with one error that names the
//! device and the step, whatever the strategy and wherever in a step it happens; nobody waits for ever.

use gulliver::graph::graph::op::check;
use gulliver::local::shared;
use gulliver::plan::devices::strategy::{JobGraphs, STRATEGIES, Strategy, job};
use gulliver::prelude::*;
use gulliver_graph::graph::op::exchange::Exchange;
use gulliver_run::data::Batch;
use gulliver_run::host::{HostData, HostTensor};
use gulliver_run::peers::link::Throttle;
use gulliver_run::peers::local::LocalGroup;
use gulliver_run::peers::{ExchangeBuffer, PeerLost, Peers};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

const DEVICES: usize = 3;
const BATCH: usize = 12;
const WIDTH: usize = 48;

/// Far more than any step here needs.
const LIMIT: Duration = Duration::from_secs(60);

/// A number that no example has, unless it is to be fatal.
const FATAL: f32 = 1e30;

/// Passes numbers on; dies of the fatal one.
#[derive(Debug)]
struct Fragile;

impl OpName for Fragile {
    fn name(&self) -> &'static str {
        "fragile"
    }
    fn help(&self) -> &'static str {
        "x"
    }
}

impl OpDef for Fragile {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 1, &[])?;
        Ok(expand_ellipsis("... -> ...", ins[0].rank()).parse()?)
    }
    fn grad(&self, _: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        Ok(vec![Some(at.dout()?)])
    }
    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        assert!(ins[0].data.iter().all(|x| *x < f64::from(FATAL) / 2.0), "no kernel survives this number");
        outs[0].data.copy_from_slice(&ins[0].data);
    }
    fn samples() -> Vec<Sample> {
        vec![Sample::normal(Custom::new(Fragile), &[&[3, 5]])]
    }
}

fn graphs() -> JobGraphs {
    let net = Classifier(|g: &mut Builder| {
        let x = g.data("x", DType::F32, &[Dim::symbol("batch"), 8.into()])?;
        let x = g.push1(Custom::new(Fragile), &[x])?;
        let x = g.scope("first", |g| g.linear(x, WIDTH, true))?;
        let x = g.map(Function::Tanh, x)?;
        let x = g.scope("second", |g| g.linear(x, WIDTH, true))?;
        let x = g.map(Function::Tanh, x)?;
        g.scope("last", |g| g.linear(x, 3, true))
    });
    JobGraphs {
        train: training_graph(&net, &[Optimizer::new("adamw", &[]).unwrap()], None).unwrap(),
        evaluation: evaluation_graph(&net).unwrap(),
        largest: Bindings::new().with("batch", BATCH),
    }
}

/// Examples, of which the last may be fatal.
fn batch(fatal: bool) -> Batch {
    let mut x: Vec<f32> = (0..BATCH * 8).map(|i| (i as f32 * 0.7).sin()).collect();
    if fatal {
        x[BATCH * 8 - 1] = FATAL;
    }
    let labels = (0..BATCH as i64).map(|i| i % 3).collect();
    let fields = [("x", &[BATCH, 8][..], HostData::F32(x)), ("y", &[BATCH], HostData::I64(labels))];
    let fields = fields.map(|(name, shape, data)| (name.to_string(), HostTensor::new(shape, data).unwrap()));
    Batch { fields: fields.to_vec() }
}

/// Strategies that can train this on so many devices, with the devices of each.
fn sessions(peers: impl Fn() -> Arc<dyn Peers>) -> Vec<(&'static str, Session)> {
    let graphs = graphs();
    let session = |name: &'static str| {
        let options = LocalDevice { threads: 1, partials: DEVICES as u32, ..LocalDevice::default() };
        let devices = vec![options; DEVICES];
        let plan = job(name, shared(name, &graphs, &devices).ok()?.planners).unwrap();
        let opened = devices.iter().enumerate().map(|(i, device)| device.open(i).unwrap()).collect();
        Some((name, Session::among(plan, opened, peers(), 3).unwrap()))
    };
    let all: Vec<_> = STRATEGIES.iter().map(|strategy| strategy.name).filter_map(session).collect();
    for name in ["data", "harmony-dp", "zero", "zero-1", "pipeline", "harmony-pp", "filter", "cut"] {
        assert!(all.iter().any(|(other, _)| *other == name), "{name}");
    }
    all
}

/// What the first step from this one on says that fails; panics if one does not end, or none fails.
fn failure(
    name: &str,
    mut session: Session,
    first: u64,
    batch: impl Fn(u64) -> Batch + Send + 'static,
) -> String {
    let (said, says) = channel();
    thread::spawn(move || {
        for step in first..first + 8 {
            if let Err(why) = session.step(&batch(step), StepKey { seed: 0, step }, &|_, _| None) {
                // It stays stopped.
                assert!(session.step(&batch(0), StepKey { seed: 0, step: step + 1 }, &|_, _| None).is_err());
                let _ = said.send(why.to_string());
                return;
            }
        }
    });
    match says.recv_timeout(LIMIT) {
        Ok(why) => why,
        Err(RecvTimeoutError::Timeout) => panic!("{name} hangs"),
        Err(RecvTimeoutError::Disconnected) => panic!("{name} does not fail"),
    }
}

#[test]
fn a_device_whose_thread_dies_stops_all_with_one_error() {
    for (name, session) in sessions(|| Arc::new(LocalGroup::new(DEVICES, true))) {
        let said = failure(name, session, 0, |step| batch(step == 2));
        assert!(said.starts_with("step 3, device "), "{name}: {said}");
        assert!(said.contains("its thread died: no kernel survives this number"), "{name}: {said}");
        // Only the last third of the batch kills.
        let shared = Strategy::named(name).unwrap().divides_batch;
        assert!(!shared || said.starts_with("step 3, device 2: "), "{name}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

/// A room in which the link of one device errors when it has been used so often.
struct Loose {
    room: LocalGroup,
    rank: u32,
    left: AtomicU64,
}

impl Peers for Loose {
    fn exchange(
        &self,
        what: &Exchange,
        own: Option<&dyn ExchangeBuffer>,
        result: &dyn ExchangeBuffer,
        idle: bool,
    ) -> Result<(), PeerLost> {
        let again = |left: u64| left.checked_sub(1);
        if what.rank == self.rank
            && self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, again).is_err()
        {
            return Err(PeerLost { rank: self.rank, why: "the cable came off".into() });
        }
        self.room.exchange(what, own, result, idle)
    }
    fn share(&self, rank: u32, numbers: &[f32]) -> Result<Vec<Vec<f32>>, PeerLost> {
        self.room.share(rank, numbers)
    }
    fn leave(&self, rank: u32, why: &str) {
        self.room.leave(rank, why);
    }
    fn lost(&self) -> Option<PeerLost> {
        self.room.lost()
    }
    fn taken(&self, rank: u32) -> Vec<u64> {
        self.room.taken(rank)
    }
    fn over(&self, throttle: &Arc<Throttle>) {
        self.room.over(throttle);
    }
}

#[test]
fn a_link_that_errors_stops_all_with_one_error() {
    for left in [0, 1, 2, 3, 5, 8, 13] {
        let rank = left as u32 % DEVICES as u32;
        let loose = || {
            let room = LocalGroup::new(DEVICES, true);
            Arc::new(Loose { room, rank, left: left.into() }) as Arc<dyn Peers>
        };
        for (name, session) in sessions(loose) {
            let said = failure(name, session, 4, |_| batch(false));
            assert!(
                said.starts_with("step ") && said.contains(&format!(", device {rank}: ")),
                "{name}: {said}"
            );
            assert!(said.contains("the cable came off"), "{name}: {said}");
            let step: u64 = said["step ".len()..].split(',').next().unwrap().parse().unwrap();
            assert!((5..13).contains(&step), "{name}: {said}");
            assert!(left > 0 || step == 5, "{name}: {said}");
        }
    }
}
