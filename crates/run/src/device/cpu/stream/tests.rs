//! Streams that wait for each other, fail, and hold collectives.

use super::*;
use crate::peers::link::Throttle;
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::op::exchange::{Exchange, Piece};
use gulliver_plan::document::topology::{BoxWiring, DeviceSpec, Topology};
use std::sync::atomic::AtomicU32;

/// A device behind a link of so many bytes a second.
fn port(rate: f64) -> Port {
    let wiring = BoxWiring { host: Some(rate), ..BoxWiring::default() };
    let topology = Topology::wired(vec![DeviceSpec::default()], &wiring).unwrap();
    Port { throttle: Arc::new(Throttle::new(topology)), device: 0 }
}

fn slot(bytes: &mut [u8]) -> MemorySlot {
    MemorySlot { start: bytes.as_mut_ptr(), bytes: bytes.len() }
}

/// Bytes go back and forth between two buffers while the computation changes them: moves, and what the
/// computation waits for in each round.
fn ping_pong(rounds: usize, a: End, b: End) -> (Arc<Tasks>, Vec<Wait>) {
    let mut tasks = Tasks::default();
    let mut waits = Vec::new();
    for round in 0..rounds {
        let at = |i: usize| 3 * round + i;
        let until = |i: usize| at(i) as u64 + 1;
        // Computes at 0, moves out at 1 and in at 2.
        let (device, host) = (Tier::Device, Tier::Host);
        let out = Task::Move { from: a, to: b, tiers: (device, host) };
        let back = Task::Move { from: b, to: a, tiers: (host, device) };
        tasks.push(
            PlanStream::Out,
            (at(1), at(1)),
            out,
            &[Wait { stream: PlanStream::Compute, until: until(0) }],
            false,
        );
        tasks.push(
            PlanStream::In,
            (at(2), at(2)),
            back,
            &[Wait { stream: PlanStream::Out, until: until(1) }],
            false,
        );
        waits.push(Wait { stream: PlanStream::In, until: until(2) });
    }
    (Arc::new(tasks), waits)
}

#[test]
fn streams_wait_for_each_other() {
    let rounds = 100;
    for (link, crowded) in [(None, false), (None, true), (Some(1e7), false)] {
        let port = link.map(port);
        let (mut device, mut host) = ([0u8; 64], [0u8; 64]);
        let (device, host) = (slot(&mut device), slot(&mut host));
        let (moves, waits) = ping_pong(rounds, End::Memory(device), End::Memory(host));
        let (a, b) = (device.start, host.start);
        let mut streams = Streams::new(port, crowded);
        for pieces in [1, 2, 7] {
            let cuts: Vec<usize> = (0..=pieces).map(|p| rounds * p / pieces).collect();
            // SAFETY: nothing else uses the buffers, and the streams have finished with them.
            unsafe { *a = 0 };
            for cut in cuts.windows(2) {
                // SAFETY: the buffers outlive the run and are touched between waits only.
                let running = unsafe { streams.begin(&moves, &(3 * cut[0]..3 * cut[1]), None).unwrap() };
                for (round, wait) in waits.iter().enumerate().take(cut[1]).skip(cut[0]) {
                    // SAFETY: all moves before were waited for, and those after wait for us.
                    unsafe { *a += 1 };
                    running.computed(3 * round as u64 + 1);
                    assert!(running.wait(*wait));
                }
                running.finish().unwrap();
            }
            // SAFETY: as above.
            let found = unsafe { (*a, *b) };
            assert_eq!(found, (rounds as u8, rounds as u8), "{pieces} pieces, {link:?}");
        }
        let bytes = 3 * 64 * rounds as u64;
        assert_eq!(streams.moved(), Ledger { to_device: bytes, to_host: bytes, ..Ledger::default() });
    }
}

/// Numbers go from cell to cell by collectives of a device with itself, some held by a thread of the stream and some
/// by the computation, which adds one before each.
#[test]
fn meetings_keep_their_order_whoever_holds_them() {
    const MEETINGS: usize = 60;
    let piece =
        Piece { from: 0, of: vec![16], source: vec![0], target: vec![0], extent: vec![16], add: false };
    let what = Exchange {
        collective: 0,
        rank: 0,
        ranks: vec![0],
        dtype: DType::F32,
        shape: vec![16],
        pieces: vec![piece],
    };
    for here in [|_| false, |_| true, |i| i % 2 == 0, |i| i % 5 < 3] {
        let here: fn(usize) -> bool = here;
        let mut cells = vec![0.0f32; 16 * (MEETINGS + 1)];
        let first = cells.as_mut_ptr();
        let cell = |i: usize| MemorySlot { start: first.wrapping_add(16 * i).cast(), bytes: 64 };
        let mut tasks = Tasks::default();
        let mut places = Vec::new();
        for i in 0..MEETINGS {
            let collective = ExchangeCall::new(&what, None);
            let task =
                Task::Exchange { collective, own: Some(cell(i)), result: cell(i + 1), value: Value(0) };
            // Computes at 0, meets at 1.
            let computed = [Wait { stream: PlanStream::Compute, until: 2 * i as u64 + 1 }];
            let place = tasks.push(PlanStream::Exchange, (i, 2 * i + 1), task, &computed, here(i));
            places.push(here(i).then_some(place as usize));
        }
        let mut streams = Streams::new(None, false);
        let tasks = Arc::new(tasks);
        // SAFETY: the cells outlive the run; each is touched by the collective before or after it, which waits.
        let running = unsafe { streams.begin(&tasks, &(0..2 * MEETINGS), None).unwrap() };
        for (i, place) in places.into_iter().enumerate() {
            // SAFETY: the collective that writes it is over, and the one that reads it waits for us.
            unsafe { *first.add(16 * i) += 1.0 };
            match place {
                Some(place) => assert!(running.hold(place).unwrap()),
                None => {
                    running.computed(2 * i as u64 + 1);
                    assert!(running.wait(Wait { stream: PlanStream::Exchange, until: 2 * i as u64 + 2 }));
                }
            }
        }
        running.finish().unwrap();
        assert_eq!(cells[16 * MEETINGS], MEETINGS as f32);
    }
}

#[test]
fn whoever_gives_up_stops_the_others() {
    let (mut device, mut host) = ([0u8; 64], [0u8; 64]);
    let (moves, _) = ping_pong(10, End::Memory(slot(&mut device)), End::Memory(slot(&mut host)));
    let mut streams = Streams::new(None, false);
    let runs = AtomicU32::new(0);
    for _ in 0..50 {
        // SAFETY: the buffers outlive the run and only the streams touch them.
        let running = unsafe { streams.begin(&moves, &(0..30), None).unwrap() };
        running.computed(1);
        // Nobody will compute the rest that the others wait for.
        drop(running);
        runs.fetch_add(1, Ordering::Relaxed);
    }
    assert_eq!(runs.into_inner(), 50);
}

#[test]
fn a_panic_of_a_stream_reaches_the_caller() {
    let mut device = [0u8; 64];
    let mut moves = Tasks::default();
    let tiers = (Tier::Device, Tier::Disk);
    let task = Task::Move { from: End::Memory(slot(&mut device)), to: End::Disk(0), tiers };
    moves.push(PlanStream::Write, (0, 0), task, &[], false);
    let moves = Arc::new(moves);
    let mut streams = Streams::new(None, false);
    for _ in 0..3 {
        // SAFETY: the buffer outlives the run and only the stream touches it.
        let running = unsafe { streams.begin(&moves, &(0..1), None).unwrap() };
        assert!(!running.wait(Wait { stream: PlanStream::Write, until: 1 }), "there is no disk");
        assert!(catch_unwind(AssertUnwindSafe(|| running.finish())).is_err());
    }
}
