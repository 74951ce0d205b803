//! How wide a very small job is trained with much and with little memory, and that lanes and members that wait take
//! the bytes they were said to take.

use super::*;
use crate::setup::{Prepared, open_data, prepare};
use crate::sweep::array::sessions;
use gulliver_run::train::{Member, train_array};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const JOB: &str = "[model]\nname = 'pointnet'\nwidth = 4\n[data]\nkind = 'points'\nlength = 16\nexamples = 32\n\
    [train]\nsteps = 3\nbatch = 8\n[devices]\nthreads = 2\n";

const MEMBERS: usize = 4;

fn prepared(sets: &[String]) -> (Job, Prepared) {
    let job = Job::parse(JOB, "job.toml", sets).unwrap_or_else(|e| panic!("{e}"));
    let prepared = prepare(&job, open_data(&job).unwrap(), None).unwrap();
    (job, prepared)
}

fn width(sets: &[String]) -> Result<ArrayWidth, Error> {
    let (job, prepared) = prepared(sets);
    choose(&job, &prepared.graphs, (MEMBERS, 3), &Speeds::for_job(&job, None), None)
}

fn devices(memory: u64, more: &[&str]) -> Vec<String> {
    let more = more.iter().map(|set| format!("devices.{set}"));
    [format!("devices.memory={memory}")].into_iter().chain(more).collect()
}

/// Lanes and members in memory.
fn chosen(sets: &[String]) -> (usize, usize) {
    let width = width(sets).unwrap_or_else(|e| panic!("{sets:?}: {e}"));
    let way = &width.ways[width.chosen];
    let outcome = way.outcome.unwrap();
    assert_eq!((way.lanes, outcome.resident), (width.lanes.len(), width.resident), "{sets:?}");
    let soonest = width.ways.iter().filter_map(|way| way.outcome).map(|outcome| outcome.seconds);
    assert_eq!(soonest.fold(f64::INFINITY, f64::min), outcome.seconds, "{sets:?}");
    (width.lanes.len(), width.resident)
}

#[test]
fn memory_decides_how_many_members_are_in_lanes_and_beside_them() {
    let free = width(&[]).unwrap();
    assert_eq!((free.ways.len(), free.chosen), (2, 0));
    let [two, one] = [0, 1].map(|way: usize| free.ways[way].outcome.unwrap().bytes[0]);
    let state = free.state;
    let alone = ["host_memory=0", "recompute=false"];
    for (sets, expected) in [
        (vec![], (2, MEMBERS)),
        (devices(2 * two, &[]), (2, MEMBERS)),
        (devices(2 * two, &alone), (2, 2)),
        (devices(2 * two + 3 * state - 1, &alone), (2, 2)),
        (devices(2 * two + 3 * state, &alone), (2, 3)),
        (devices(2 * two + 99 * state, &alone), (2, MEMBERS)),
        // Two lanes do not fit.
        (devices(one, &alone), (1, 1)),
        (devices(one, &["recompute=false", &format!("host_memory={}", 3 * state)]), (1, 3)),
    ] {
        assert_eq!(chosen(&sets), expected, "{sets:?}");
    }
    let error = width(&devices(1000, &alone)).err().unwrap().to_string();
    assert!(error.contains("no plan of this job needs less than"), "{error}");
}

#[test]
fn a_member_takes_the_bytes_it_was_said_to_take() {
    let free = width(&[]).unwrap();
    let [two, one] = [0, 1].map(|way: usize| free.ways[way].outcome.unwrap().bytes[0]);
    for sets in [
        vec![],
        vec!["devices.threads=1".into()],
        devices(2 * two + 3 * free.state, &["host_memory=0"]),
        devices(one, &["host_memory=0"]),
        devices(one * 9 / 10, &[]),
    ] {
        let width = width(&sets).unwrap();
        let [device, host] = width.ways[width.chosen].outcome.unwrap().bytes;
        let mut lanes = sessions(width.lanes, 0).unwrap();
        let member = |_| {
            let Prepared { schedule, sources, options, .. } = prepared(&sets).1;
            Member::new(schedule, Arc::new(sources), options)
        };
        let members = (0..MEMBERS).map(member).collect();
        let ended = train_array(&mut lanes, members, width.resident, 3, &AtomicBool::new(false), &|_, _| {});
        ended.into_iter().for_each(|ended| drop(ended.unwrap()));
        for lane in &mut lanes {
            // Whoever comes late may have found no member left, and would not have taken anything yet.
            let alone = std::slice::from_mut(lane);
            let ended = train_array(alone, vec![member(0)], 1, 3, &AtomicBool::new(false), &|_, _| {});
            ended.into_iter().for_each(|ended| drop(ended.unwrap()));
            // Weights, states, activations and everything else a step needs.
            assert_eq!(lane.session.memory(), device + host, "{sets:?}");
            let mut room = Vec::new();
            lane.session.state(&mut room).unwrap();
            assert_eq!((room.len(), room.capacity()), (width.state as usize, width.state as usize));
        }
    }
}

#[test]
fn few_numbers_of_lanes_are_looked_at() {
    for (threads, members, expected) in [
        (1, 9, &[1][..]),
        (2, 9, &[2, 1]),
        (8, 3, &[3, 2, 1]),
        (8, 7, &[7, 4, 3, 2, 1]),
        (64, 1000, &[64, 32, 16, 8, 4, 3, 2, 1]),
        (3, 0, &[1]),
    ] {
        assert_eq!(counts(threads, members), expected);
    }
}
