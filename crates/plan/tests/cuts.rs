//! The search for cuts on devices that are not alike, over slow links, and within limits of memory.

use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;
use gulliver_graph::model::model;
use gulliver_graph::optim::Optimizer;
use gulliver_graph::training::training_graph;
use gulliver_plan::devices::cut::{CutDevice, CutMachine, CutOptions, MeshLevel, SizedGraph};
use gulliver_plan::devices::cut::{best_cut, cut_candidates, find_cut, low_memory_cuts};
use gulliver_plan::document::topology::{BoxWiring, DeviceSpec, Topology};
use gulliver_plan::time::cost::Rates;

fn trained(name: &str) -> Graph {
    let optimizer = Optimizer::new("adam", &[]).unwrap();
    training_graph(model(name, &[]).unwrap().as_ref(), &[optimizer], None).unwrap()
}

#[test]
fn slow_links_are_not_worth_a_second_device() {
    let graph = trained("mlp");
    let sizes = Bindings::new().with("batch", 64);
    for count in [2, 4, 7] {
        let worthy = |bandwidth: f64| -> Vec<usize> {
            let devices = CutMachine { bandwidth, ..CutMachine::new(count) };
            let found = cut_candidates(&graph, &sizes, &devices).unwrap();
            found.iter().map(|found| found.cut.devices()).collect()
        };
        assert_eq!(worthy(1e3), [1]);
        assert_eq!(worthy(1e12).last(), Some(&count));
    }
}

/// Faster devices get more work, and devices with less memory hold less.
#[test]
fn devices_need_not_be_alike() {
    let graph = trained("mlp");
    let sizes = Bindings::new().with("batch", 512);
    let fast = CutDevice::default();
    let slow = CutDevice { rates: Rates { flops: fast.rates.flops / 3.0, ..fast.rates }, ..fast };
    let uneven = |devices: Vec<CutDevice>| CutMachine { devices, bandwidth: 1e12, topology: None };
    let sized = SizedGraph::new(&graph, &sizes).unwrap();
    for devices in [vec![fast, slow], vec![slow, fast, fast], vec![fast, fast, slow, slow]] {
        let found = best_cut(&sized, &uneven(devices.clone())).unwrap();
        let even = find_cut(&graph, &sizes, &[MeshLevel::even(devices.len(), 1e12)], &of(&devices)).unwrap();
        assert!(
            found.cost.seconds() < 0.8 * even.cost.seconds(),
            "{} against {}",
            found.cost.seconds(),
            even.cost.seconds()
        );
    }
    // With shares by speed, the device with half the memory would not fit.
    let free = best_cut(&sized, &uneven(vec![fast, fast])).unwrap().cost.memory;
    let tight = CutDevice { memory: Some(free[0] / 2), ..fast };
    let roomy = CutDevice { memory: Some(2 * free[0]), ..fast };
    let found = best_cut(&sized, &uneven(vec![roomy, tight])).unwrap();
    assert!(
        found.cost.memory[1] <= free[0] / 2 && found.cost.memory[0] <= 2 * free[0],
        "{:?}",
        found.cost.memory
    );
    let nothing = CutDevice { memory: Some(1000), ..fast };
    let found = best_cut(&sized, &uneven(vec![roomy, nothing])).unwrap();
    assert!(found.beyond > 0 && found.cost.memory[1] == found.beyond + 1000, "{:?}", found.cost.memory);
}

fn of(devices: &[CutDevice]) -> CutOptions {
    CutOptions { devices: devices.to_vec(), ..CutOptions::default() }
}

/// Four devices on two sockets: fewer bytes cross between the sockets than with equal links.
#[test]
fn slow_links_carry_less() {
    for (name, sizes) in [
        ("mlp", Bindings::new().with("batch", 64)),
        ("gpt-nano", Bindings::new().with("batch", 8).with("length", 64)),
    ] {
        let graph = trained(name);
        let sized = SizedGraph::new(&graph, &sizes).unwrap();
        let across = |between: Option<f64>| {
            let sockets = [0, 0, 1, 1].map(|socket| DeviceSpec { socket });
            let wiring = BoxWiring { peer: Some(2e9), sockets: between, ..BoxWiring::default() };
            let topology = Some(Topology::wired(sockets.to_vec(), &wiring).unwrap());
            let found = best_cut(&sized, &CutMachine { topology, ..CutMachine::new(4) }).unwrap();
            let pairs = &found.cost.bytes.pairs;
            let passed = |to: usize| [2, 3].map(|from| pairs[to][from] + pairs[from][to]).iter().sum::<u64>();
            (passed(0) + passed(1), found.cost.bytes.total())
        };
        let (slow, even) = (across(Some(2e7)), across(None));
        assert!(slow.0 < even.0 && slow.0 * 2 < slow.1, "{name}: {slow:?} against {even:?}");
    }
}

#[test]
fn cuts_fit_into_memory_if_they_can() {
    let graph = trained("mlp");
    let sizes = Bindings::new().with("batch", 4096);
    let levels = [MeshLevel::even(4, 1e9)];
    let limited = |memory, spill| {
        let devices = vec![CutDevice { memory, spill, ..CutDevice::default() }];
        find_cut(&graph, &sizes, &levels, &CutOptions { devices, ..CutOptions::default() }).unwrap()
    };
    let free = limited(None, f64::INFINITY);
    let most = |memory: &[u64]| memory.iter().copied().max().unwrap();
    let (all, least) = (most(&free.cost.memory), most(&limited(Some(1), f64::INFINITY).cost.memory));
    assert!(least < all);
    for limit in [all, (all + least) / 2, least] {
        let found = limited(Some(limit), f64::INFINITY);
        assert!(found.beyond == 0 && most(&found.cost.memory) <= limit, "{limit}: {:?}", found.cost.memory);
        assert!(
            found.cost.seconds() >= free.cost.seconds() * 0.999,
            "{} within {limit}, free {}",
            found.cost.seconds(),
            free.cost.seconds()
        );
        // The cheaper swapping is, the less the search does to avoid it.
        let costs = [1e-6, 1e-9, 1e-12].map(|spill| limited(Some(limit), spill));
        for cheaper in costs.windows(2) {
            assert!(
                cheaper[0].cost.seconds() >= cheaper[1].cost.seconds()
                    && cheaper[0].beyond <= cheaper[1].beyond
            );
        }
        assert!(
            costs[2].cost.seconds() <= free.cost.seconds() * 1.001,
            "{} {}",
            costs[2].cost.seconds(),
            free.cost.seconds()
        );
    }
    let devices = vec![CutDevice { memory: Some(least / 2), ..CutDevice::default() }; 4];
    let tried = low_memory_cuts(&graph, &sizes, &CutMachine { devices, ..CutMachine::new(4) }).unwrap();
    assert!(tried.len() > 2, "cuts that hold less and less, and two by rule");
}
