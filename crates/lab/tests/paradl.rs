//! ParaDL's closed forms by hand, and as a special case of the oracle's.

use gulliver_lab::validate::paradl::{Paradl, ParadlLayer};
use gulliver_oracle::cluster::Cluster;
use gulliver_oracle::hardware::{Accelerator, Precision};
use gulliver_oracle::kernel::KernelWork;
use gulliver_oracle::network::ClusterLink;
use gulliver_oracle::oracle::estimate;
use gulliver_oracle::setting::{Setting, Software};
use gulliver_oracle::strategy::{ClusterStrategy, Cut, Order};
use gulliver_oracle::workload::{ModelLayer, Workload};
use gulliver_plan::time::cost::Rates;

const ALPHA: f64 = 1e-5;
const BETA: f64 = 1e-9;

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1e-12)
}

/// Three layers of round figures.
fn paradl() -> Paradl {
    let layer = |x, y, w| ParadlLayer {
        x,
        y,
        w,
        halo_x: x / 8.0,
        halo_dy: y / 8.0,
        forward: 0.01,
        backward: 0.02,
        update: 0.0,
    };
    Paradl {
        layers: vec![layer(800.0, 1600.0, 100.0), layer(1600.0, 400.0, 200.0), layer(400.0, 80.0, 300.0)],
        samples: 960.0,
        batch: 32.0,
        item_bytes: 4.0,
        alpha: ALPHA,
        beta: BETA,
    }
}

/// The same layers for the general forms: measured times, extents of eight, halos of one.
fn timed() -> Workload {
    let layers = paradl().layers.into_iter().map(|l| ModelLayer {
        weights: l.w,
        input: l.x,
        output: l.y,
        extents: vec![8.0],
        input_extents: vec![8.0],
        halo: 1.0,
        channels: 8.0,
        filters: 8.0,
        ..ModelLayer::new("layer", vec![KernelWork::timed(l.forward)], vec![KernelWork::timed(l.backward)])
    });
    Workload { name: "timed".into(), layers: layers.collect(), sample: 1.0, tied: 0.0 }
}

fn flat(devices: u32) -> Cluster {
    let device = Accelerator::cpu(Rates::default(), 1e12);
    Cluster::of(device, (1, devices), ClusterLink::plain(ALPHA, BETA), ClusterLink::plain(ALPHA, BETA))
}

fn ideal() -> Setting {
    Setting {
        precision: Precision::F32,
        software: Software { update: 0.0, ..Software::named("ideal").unwrap() },
        ..Setting::new(32).unwrap()
    }
}

#[test]
fn paradl_by_hand() {
    let p = paradl();
    let table = [
        // 960 x 0.09; 2 x 4 bytes x (32 x 4880 + 600).
        ("serial", p.serial(), 86.4, 0.0, 8.0 * (32.0 * 4880.0 + 600.0)),
        // 30 steps x 2 x 3 x (α + 600 x 4 β / 4).
        ("data", p.data(4.0), 21.6, 180.0 * (ALPHA + 600e-9), 8.0 * (8.0 * 4880.0 + 600.0)),
        // The same and 30 x Σ 2 (2α + 32 x (x + y)/8 x 4β) with Σ (x + y) = 4880.
        (
            "spatial",
            p.spatial(4.0),
            21.6,
            180.0 * (ALPHA + 600e-9) + 60.0 * (6.0 * ALPHA + 32.0 * 610.0 * 4e-9),
            8.0 * (32.0 * 4880.0 / 4.0 + 600.0),
        ),
        // 3 stages, 4 segments: 960 x 6/4 x 0.03; 2 x 30 x 5 x (α + 8 x 1600 x 4β).
        (
            "pipeline",
            p.pipeline(&[1, 1, 1], 4.0),
            43.2,
            300.0 * (ALPHA + 51200e-9),
            8.0 * (32.0 * 2400.0 + 100.0),
        ),
        // 30 x 3 x 3 x (2α + 32 x 2000 x 4β / 4).
        ("filter", p.filter(4.0), 21.6, 270.0 * (2.0 * ALPHA + 64000e-9), 8.0 * (32.0 * 4880.0 + 150.0)),
        // 30 x (3 x 1 x (2α + 32 x 2000 x 4β / 4) + 2 x 1 x (α + 2400β / 4)).
        (
            "data+filter",
            p.data_filter(2.0, 2.0),
            21.6,
            30.0 * (3.0 * (2.0 * ALPHA + 64000e-9) + 2.0 * (ALPHA + 600e-9)),
            8.0 * (16.0 * 4880.0 + 300.0),
        ),
    ];
    for (name, made, compute, communication, memory) in table {
        assert!(close(made.compute, compute), "{name}: {made:?}");
        assert!(close(made.communication, communication), "{name}: {made:?} for {communication}");
        assert!(close(made.memory, memory), "{name}: {made:?} for {memory}");
    }
}

#[test]
fn paradl_is_a_special_case() {
    let p = paradl();
    let serial = ClusterStrategy::serial(32);
    let table = [
        (serial, p.serial()),
        (ClusterStrategy { data: 4, micro_batch: 8, ..serial }, p.data(4.0)),
        (ClusterStrategy { ways: 4, cut: Cut::Spatial, ..serial }, p.spatial(4.0)),
        (
            ClusterStrategy { stages: 3, micro_batch: 8, order: Order::Gpipe, ..serial },
            p.pipeline(&[1, 1, 1], 4.0),
        ),
        (ClusterStrategy { ways: 4, cut: Cut::Filter, ..serial }, p.filter(4.0)),
        (ClusterStrategy { ways: 4, cut: Cut::Channel, ..serial }, p.filter(4.0)),
        (
            ClusterStrategy { data: 2, ways: 2, cut: Cut::Filter, micro_batch: 16, ..serial },
            p.data_filter(2.0, 2.0),
        ),
    ];
    for (strategy, projected) in table {
        let made = estimate(&timed(), &flat(strategy.devices()), &strategy, &ideal()).unwrap();
        let steps = p.samples / p.batch;
        let compute = made.phases.forward + made.phases.backward + made.phases.bubble;
        let communication = made.phases.collectives + made.phases.messages + made.phases.exchange;
        assert!(close(steps * compute, projected.compute), "{strategy}: {made:?} for {projected:?}");
        assert!(
            close(steps * communication, projected.communication),
            "{strategy}: {made:?} for {projected:?}"
        );
    }
}
