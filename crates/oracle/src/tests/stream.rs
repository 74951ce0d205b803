//! Training from host memory: bytes by hand, memory that fits, and what is quicker than what.

use crate::cluster::Cluster;
use crate::estimate::Estimate;
use crate::oracle::estimate;
use crate::rank::rank;
use crate::setting::Setting;
use crate::strategy::{ClusterStrategy, LayerResidence};
use crate::stream::weight_moves;
use crate::tests::samples::{framework, gpt_10b};
use crate::tests::{close, flat, ideal, timed};

fn of(stream: LayerResidence, devices: u32, micro_batch: u32) -> ClusterStrategy {
    let serial = ClusterStrategy { stream, ..ClusterStrategy::serial(micro_batch) };
    match stream {
        LayerResidence::Wrapped(_) => ClusterStrategy { stages: devices, ..serial },
        _ => ClusterStrategy { data: devices, ..serial },
    }
}

#[test]
fn bytes_over_host_links_by_hand() {
    // 600 weights and, of a sample, 1600 + 400 elements between three packs, of four bytes; a batch of 32.
    let (weights, between) = (600.0 * 4.0, 2000.0 * 4.0);
    let setting = Setting { states: 0.0, ..ideal() };
    for devices in [1u32, 2] {
        for micro_batch in [1u32, 2, 4, 8] {
            let n = devices as f64;
            let m = 32.0 / n / micro_batch as f64;
            let table = [
                (LayerResidence::Replicas(3), 3.0 * n * weights, 2.0 * 32.0 * between),
                (LayerResidence::Wrapped(3), 3.0 * weights, 2.0 * 32.0 * between),
                // Layers of this workload keep nothing, so weights are all there is.
                (LayerResidence::Paged, (4.0 * m + 2.0) * n * weights, 0.0),
            ];
            for (stream, moved, stashed) in table {
                let strategy = of(stream, devices, micro_batch);
                let made = estimate(&timed(), &flat(devices), &strategy, &setting).unwrap();
                assert_eq!(weight_moves(&strategy, 32) * weights, moved, "{strategy}");
                assert!(close(made.traffic.host * n, moved + stashed), "{strategy}: {:?}", made.traffic);
            }
        }
    }
}

#[test]
fn packs_hand_on_through_host_memory_where_there_is_no_room() {
    let setting = Setting { states: 0.0, ..ideal() };
    let strategy = of(LayerResidence::Replicas(3), 1, 1);
    let mut cluster = flat(1);
    let roomy = estimate(&timed(), &cluster, &strategy, &setting).unwrap();
    cluster.device.memory = roomy.memory.device() - 1.0;
    let tight = estimate(&timed(), &cluster, &strategy, &setting).unwrap();
    assert!(tight.missing.is_none() && tight.memory.device() < roomy.memory.device());
    let between = 32.0 * 2000.0 * 4.0;
    assert!(close(tight.traffic.host - roomy.traffic.host, 3.0 * between), "{:?}", tight.traffic);
}

#[test]
fn a_model_beyond_all_devices_has_an_answer() {
    let cluster = Cluster::named("box-1080ti").unwrap();
    for (name, devices) in [("gpt2-xl", 1), ("gpt-10b", 1), ("gpt-10b", 2), ("gpt-10b", 4)] {
        let workload = framework(name, &[], 1024);
        let states = workload.weights() * 16.0;
        assert!(states > devices as f64 * cluster.device.memory, "{name} would fit");
        let ranking = rank(&workload, &cluster, devices, &Setting::new(32).unwrap()).unwrap();
        let best = |family: &str| {
            ranking.estimates.iter().find(|one| one.strategy.family() == family && one.missing.is_none())
        };
        let replicas = best("harmony-dp").unwrap_or_else(|| panic!("{name} on {devices}"));
        // Every process that pages has its own copy in host memory, which may be too small for that.
        let paged = ranking.estimates.iter().find(|one| one.strategy.family() == "paged").unwrap();
        assert!(replicas.seconds < paged.seconds, "{name} on {devices}: {replicas:?} for {paged:?}");
        let fits = |one: &Estimate| {
            one.memory.device() <= cluster.device.memory
                && one.memory.host * devices as f64 <= cluster.host_memory
        };
        assert!(fits(replicas) && close(replicas.phases.total(), replicas.seconds), "{replicas:?}");
        if devices > 1 {
            let wrapped = best("harmony-pp").unwrap();
            assert!(fits(wrapped) && wrapped.traffic.host < replicas.traffic.host, "{name}: {wrapped:?}");
            // Kernels hide both; of a slow link they hide neither, and what fetches less is faster.
            assert!(wrapped.seconds < 1.1 * replicas.seconds, "{name}: {wrapped:?} for {replicas:?}");
            let mut slow = cluster.clone();
            slow.host.bandwidth *= 0.01;
            let of = |strategy| estimate(&workload, &slow, strategy, &Setting::new(32).unwrap()).unwrap();
            let (wrapped, replicas) = (of(&wrapped.strategy), of(&replicas.strategy));
            assert!(wrapped.phases.swap < 0.7 * replicas.phases.swap, "{name}: {wrapped:?} for {replicas:?}");
            assert!(wrapped.seconds < replicas.seconds, "{name}: {wrapped:?} for {replicas:?}");
        }
    }
}

#[test]
fn a_faster_host_link_and_more_devices_never_hurt() {
    let workload = gpt_10b();
    let setting = Setting::new(32).unwrap();
    for stream in [
        LayerResidence::Replicas(25),
        LayerResidence::Wrapped(25),
        LayerResidence::Wrapped(50),
        LayerResidence::Paged,
    ] {
        let mut before = f64::INFINITY;
        for factor in [0.5, 1.0, 2.0, 8.0, 1e3] {
            let mut cluster = Cluster::named("box-1080ti").unwrap();
            cluster.host.bandwidth *= factor;
            let made = estimate(&workload, &cluster, &of(stream, 4, 1), &setting).unwrap();
            assert!(made.seconds <= before, "{stream:?} at {factor}");
            assert!(made.phases.rows().iter().all(|row| row.1 >= 0.0), "{:?}", made.phases);
            before = made.seconds;
        }
    }
    let cluster = Cluster::named("box-1080ti").unwrap();
    let seconds = |devices| {
        estimate(&workload, &cluster, &of(LayerResidence::Wrapped(48), devices, 1), &setting).unwrap().seconds
    };
    assert!(seconds(4) < seconds(2) && seconds(2) < seconds(1));
}

#[test]
fn nonsense_is_refused() {
    let setting = Setting::new(32).unwrap();
    let cluster = Cluster::named("box-1080ti").unwrap();
    let workload = gpt_10b();
    for (strategy, expected) in [
        (of(LayerResidence::Replicas(0), 1, 1), "0 packs asked for; give 1 to 50"),
        (of(LayerResidence::Wrapped(51), 4, 1), "51 packs asked for; give 1 to 50"),
        (
            ClusterStrategy { data: 2, ..of(LayerResidence::Wrapped(4), 2, 1) },
            "harmony-pp has one way to use devices",
        ),
        (
            ClusterStrategy { stages: 2, ..of(LayerResidence::Paged, 2, 1) },
            "paged has one way to use devices",
        ),
    ] {
        let error = estimate(&workload, &cluster, &strategy, &setting).unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains('\n'), "{error}");
    }
}
