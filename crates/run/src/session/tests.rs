//! Sessions whose weights and states live in several tiers.

use super::*;
use crate::checkpoint::fingerprint;
use crate::disk::BLOCK;
use crate::host::HostData;
use crate::test_dir::TestDir;
use gulliver_graph::build::Builder;
use gulliver_plan::make::Persistent;

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
    g.output("loss", sum.unwrap());
    g.finish()
}

/// Homes in turn in these tiers, whole blocks apart.
fn homes(graph: &Graph, tiers: &[Tier]) -> Persistent {
    let mut layout = Persistent::default();
    for (i, (_, _, info)) in graph.inputs().enumerate() {
        let tier = tiers[i % tiers.len()];
        let bytes = info.ty.bytes().bind(&Bindings::new()).unwrap() as u64;
        let end = &mut layout.ends[tier as usize];
        layout.homes.insert(info.name.clone(), Home { tier, offset: *end, bytes });
        *end += bytes.next_multiple_of(BLOCK);
    }
    layout
}

#[test]
fn values_are_read_and_written_wherever_they_live() {
    let dir = TestDir::new("session-homes");
    let mut expected = None;
    for tiers in [&[Tier::Device][..], &[Tier::Host], &[Tier::Disk], &TIERS] {
        let options = SessionOptions {
            threads: 1,
            disk: Some(10 << 20),
            disk_dir: Some(dir.to_path_buf()),
            ..SessionOptions::default()
        };
        let homes = homes(&graph(), tiers);
        let mut session =
            Session::with(Planner::with_homes(graph(), None, options, homes.clone()), 3).unwrap();
        let first = fingerprint(&session.tensors().unwrap());
        assert_eq!(*expected.get_or_insert(first.clone()), first, "{tiers:?}");

        session.remember().unwrap();
        for (name, _, shape) in session.layout() {
            let tensor = HostTensor::new(&shape, HostData::F32(vec![9.0; shape[0]])).unwrap();
            assert!(session.set(&name, &tensor).unwrap(), "{name}");
            assert_eq!(session.tensor(&(name, DType::F32, shape)).unwrap(), tensor, "{tiers:?}");
        }
        session.undo().unwrap();
        let one = |i: usize, session: &mut Session| {
            let described = session.layout()[i].clone();
            session.tensor(&described).unwrap().as_f32().unwrap()[0]
        };
        let found: Vec<f32> = (0..4).map(|i| one(i, &mut session)).collect();
        assert!(found[0] == 0.0 && found[1] == 9.0 && found[2].abs() < 0.1 && found[3] == 9.0);

        let bytes = |tier: Tier| -> u64 {
            homes.homes.values().filter(|home| home.tier == tier).map(|home| home.bytes).sum()
        };
        // All were read three times, counting those above, and written once.
        let expected = Ledger {
            to_host: 3 * bytes(Tier::Device),
            to_device: bytes(Tier::Device),
            disk_read: 3 * bytes(Tier::Disk),
            disk_written: bytes(Tier::Disk),
        };
        assert_eq!(session.ledger(), expected, "{tiers:?}");
    }
}

#[test]
fn homes_beyond_a_budget_are_refused() {
    let dir = TestDir::new("session-budgets");
    for (tier, host_memory, disk, fits) in [
        (Tier::Host, None, None, true),
        (Tier::Host, Some(1 << 20), None, false),
        (Tier::Host, Some(2 << 20), None, true),
        (Tier::Disk, None, None, false),
        (Tier::Disk, None, Some(1 << 20), false),
        (Tier::Disk, None, Some(2 << 20), true),
    ] {
        let disk_dir = Some(dir.to_path_buf());
        let options = SessionOptions { host_memory, disk, disk_dir, ..SessionOptions::default() };
        let made =
            Session::with(Planner::with_homes(graph(), None, options, homes(&graph(), &[tier])), 3).err();
        match made {
            None => assert!(fits, "{tier:?}"),
            Some(SessionError::Run(RunError::Space { available, .. })) => {
                assert!(!fits && available == host_memory.or(disk).unwrap_or(0), "{tier:?}");
            }
            Some(other) => panic!("{other}"),
        }
    }
}
