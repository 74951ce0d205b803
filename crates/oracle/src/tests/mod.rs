//! Closed forms against values computed by hand, and against nonsense.

mod mixed;
pub(crate) mod samples;
mod stream;

use crate::change::change;
use crate::cluster::{Cluster, Group};
use crate::collective::{all_gather, all_reduce, all_to_all, send};
use crate::from_graph::{KernelStyle, from_model};
use crate::hardware::{Accelerator, Precision};
use crate::kernel::{Divide, KernelFamily, KernelWork};
use crate::network::ClusterLink;
use crate::oracle::estimate;
use crate::rank::{limits, rank};
use crate::setting::{Setting, Software};
use crate::strategy::{ClusterStrategy, Cut, Order, Recompute};
use crate::tests::samples::{gpt, resnet50, vgg16};
use crate::workload::{ModelLayer, Workload};
use gulliver_graph::dim::Bindings;
use gulliver_graph::model::model;

const ALPHA: f64 = 1e-5;
const BETA: f64 = 1e-9;

pub(super) fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1e-12)
}

/// Three layers of round figures: measured times, extents of eight, halos of one.
pub(super) fn timed() -> Workload {
    let layer = |[input, output, weights]: [f64; 3]| ModelLayer {
        weights,
        input,
        output,
        extents: vec![8.0],
        input_extents: vec![8.0],
        halo: 1.0,
        channels: 8.0,
        filters: 8.0,
        ..ModelLayer::new("layer", vec![KernelWork::timed(0.01)], vec![KernelWork::timed(0.02)])
    };
    let layers = [[800.0, 1600.0, 100.0], [1600.0, 400.0, 200.0], [400.0, 80.0, 300.0]].map(layer);
    Workload { name: "timed".into(), layers: layers.into(), sample: 1.0, tied: 0.0 }
}

pub(super) fn flat(devices: u32) -> Cluster {
    let device = Accelerator::cpu(gulliver_plan::time::cost::Rates::default(), 1e12);
    Cluster::of(device, (1, devices), ClusterLink::plain(ALPHA, BETA), ClusterLink::plain(ALPHA, BETA))
}

pub(super) fn ideal() -> Setting {
    Setting {
        precision: Precision::F32,
        software: Software { update: 0.0, ..Software::named("ideal").unwrap() },
        ..Setting::new(32).unwrap()
    }
}

#[test]
fn collectives_by_hand() {
    let cluster = flat(8);
    let group = Group { size: 4, local: 4, sharing: 1 };
    let table = [
        ("all-reduce", all_reduce(&cluster, group, 4e6), 6.0 * (ALPHA + 1e-3)),
        ("all-gather", all_gather(&cluster, group, 4e6), 3.0 * (ALPHA + 1e-3)),
        ("send", send(&cluster, group, 1e6), ALPHA + 1e-3),
        ("all-to-all", all_to_all(&cluster, group, 4e6), 3.0 * 2.0 * ALPHA + 3e-3),
        ("one device", all_reduce(&cluster, Group { size: 1, local: 1, sharing: 1 }, 4e6), 0.0),
        ("nothing", all_gather(&cluster, group, 0.0), 0.0),
    ];
    for (name, seconds, expected) in table {
        assert!(close(seconds, expected), "{name}: {seconds} for {expected}");
    }
}

#[test]
fn all_reduce_times_of_published_hardware() {
    // (cluster, devices, MiB, measured µs), of the calibration file, to 25 %.
    for (name, devices, mib, micros) in [
        ("dgx-a100", 2, 16.0, 132.0),
        ("dgx-a100", 8, 64.0, 580.0),
        ("dgx-a100", 8, 1024.0, 8193.0),
        ("dgx1-16", 2, 64.0, 2999.0),
        ("dgx1-16", 4, 256.0, 4714.0),
        ("dgx1-16", 8, 512.0, 7004.0),
    ] {
        let cluster = Cluster::named(name).unwrap();
        let seconds = all_reduce(&cluster, cluster.group(devices, 1, devices), mib * 1048576.0);
        let off = seconds * 1e6 / micros;
        assert!(
            (0.8..1.25).contains(&off),
            "{name} {devices} {mib} MiB: {:.0} µs for {micros}",
            seconds * 1e6
        );
    }
}

#[test]
fn kernels_are_slower_than_the_roofline_and_cuts_never_cost_more() {
    for name in Accelerator::names() {
        let device = Accelerator::named(name).unwrap();
        device.check().unwrap();
        for (rows, columns, depth) in [(1.0, 64.0, 64.0), (1024.0, 4096.0, 1024.0), (2048.0, 50257.0, 2048.0)]
        {
            for divide in [Divide::Columns, Divide::Depth, Divide::Sequence] {
                let work = KernelWork::matrix(rows, columns, depth, divide);
                for precision in [Precision::F32, Precision::Tf32, Precision::Mixed] {
                    let seconds = work.seconds(&device, precision, 4.0);
                    let least = work.flops * 4.0 / device.flops[precision as usize];
                    assert!(seconds >= least, "{name} {rows} {columns} {depth}");
                    let part = work.cut(4.0, true).seconds(&device, precision, 4.0);
                    assert!(
                        part <= seconds,
                        "{name} {divide:?} {rows} {columns} {depth}: {part} of {seconds}"
                    );
                }
            }
        }
    }
}

/// Weights and operations of a forward pass as the models' authors publish them; those of GPT by equations of
/// Narayanan et al. (2021) and, of what is kept, Korthikanti et al. (2022).
#[test]
fn graphs_have_the_published_figures() {
    for (workload, weights, flops) in [(resnet50(), 25.557e6, 8.2e9), (vgg16(), 138.36e6, 30.96e9)] {
        assert!((workload.weights() / weights - 1.0).abs() < 1e-3, "{}", workload.weights());
        assert!((workload.flops() / flops - 1.0).abs() < 0.02, "{}", workload.flops());
    }
    let workload = gpt("gpt3-1.3b");
    let [embedding, block, head] = workload.layers.as_slice() else { panic!("{:?}", workload.layers) };
    let (h, s, v, heads, layers) = (2048.0, 2048.0, 51200.0, 16.0, 24.0);
    assert_eq!((block.count, block.heads, block.reductions), (24, heads, 2.0));
    assert_eq!(workload.weights(), layers * (12.0 * h * h + 13.0 * h) + (v + s) * h + 2.0 * h);
    assert_eq!((workload.tied, embedding.reductions, head.weights), (v * h, 1.0, 0.0));
    let products = |works: &[KernelWork]| {
        works.iter().filter(|w| w.family != KernelFamily::Memory).map(|w| w.flops).sum::<f64>()
    };
    let expected = 24.0 * layers * s * h * h * (1.0 + s / (6.0 * h)) + 2.0 * s * h * v;
    let forward = layers * products(&block.forward) + products(&head.forward);
    assert!(close(forward, expected), "{forward} for {expected}");
    let backward = layers * products(&block.backward) + products(&head.backward);
    assert!(close(backward, 2.0 * expected), "{backward}");
    let kept = 2.0 * (block.kept + block.kept_whole) / (s * h);
    assert!((kept / (34.0 + 5.0 * heads * s / h) - 1.0).abs() < 1e-3, "{kept} bytes a token and width");
}

#[test]
fn fused_attention_keeps_no_scores() {
    let sizes = Bindings::new().with("length", 2048);
    let built = model("gpt3-1.3b", &[]).unwrap();
    let of = |kernels| from_model("gpt", built.as_ref(), &sizes, kernels).unwrap();
    let (plain, fused) = (of(KernelStyle::Framework), of(KernelStyle::FusedAttention));
    let [plain, fused] = [&plain, &fused].map(|workload| &workload.layers[1]);
    assert!(plain.selective > 0.0 && close(plain.kept - plain.selective, fused.kept));
    assert_eq!(fused.selective, 0.0);
    assert!(fused.forward.len() < plain.forward.len());
}

#[test]
fn every_kind_of_graph_has_an_answer() {
    for (name, length) in [("cosmoflow", None), ("lstm", Some(32)), ("bert-tiny", Some(64)), ("mlp", None)] {
        let built = model(name, &[]).unwrap();
        let sizes = length.map_or(Bindings::new(), |length| Bindings::new().with("length", length));
        let workload = from_model(name, built.as_ref(), &sizes, KernelStyle::Framework).unwrap();
        let cluster = Cluster::named("dgx1-16").unwrap();
        let ranking = rank(&workload, &cluster, 4, &Setting::new(16).unwrap()).unwrap();
        let best = &ranking.estimates[0];
        assert!(best.missing.is_none() && best.seconds > 0.0, "{name}: {best:?}");
        assert!(best.interval.low < best.seconds && best.seconds < best.interval.high, "{name}");
    }
}

#[test]
fn more_memory_or_speed_never_hurts() {
    let workload = gpt("gpt3-6.7b");
    let setting = Setting::new(64).unwrap();
    let best = |what: Option<&str>| {
        let mut cluster = Cluster::named("dgx-a100-40").unwrap();
        what.iter().for_each(|what| change(&mut cluster, what).unwrap());
        rank(&workload, &cluster, 16, &setting).unwrap().estimates[0].seconds
    };
    let now = best(None);
    for what in
        ["link=2x", "within=4x", "between=2x", "flops=2x", "bandwidth=2x", "memory=2x", "latency=0.5x"]
    {
        assert!(best(Some(what)) <= now, "{what}");
    }
}

#[test]
fn memory_falls_with_shards_recomputation_and_order() {
    let workload = gpt("gpt3-1.3b");
    let cluster = Cluster::named("dgx-a100").unwrap();
    let setting = Setting::new(64).unwrap();
    let base = ClusterStrategy { data: 8, micro_batch: 4, ..ClusterStrategy::serial(4) };
    let bytes = |strategy| estimate(&workload, &cluster, &strategy, &setting).unwrap().memory.device();
    let ladder = [
        base,
        ClusterStrategy { shard: 1, ..base },
        ClusterStrategy { shard: 2, ..base },
        ClusterStrategy { shard: 3, ..base },
        ClusterStrategy { shard: 3, recompute: Recompute::Selective, ..base },
        ClusterStrategy { shard: 3, recompute: Recompute::Full, ..base },
    ];
    for pair in ladder.windows(2) {
        assert!(bytes(pair[1]) < bytes(pair[0]), "{} against {}", pair[1], pair[0]);
    }
    let piped = ClusterStrategy { data: 1, stages: 8, micro_batch: 1, ..base };
    let gpipe = ClusterStrategy { order: Order::Gpipe, ..piped };
    assert!(bytes(piped) < bytes(gpipe));
    let offloaded = ClusterStrategy { offload: true, ..base };
    assert!(bytes(offloaded) < bytes(base));
}

#[test]
fn rankings_of_the_largest_models() {
    let workload = gpt("gpt3-175b");
    assert!((workload.weights() / 175e9 - 1.0).abs() < 0.02, "{}", workload.weights());
    let cluster = Cluster::named("dgx-a100").unwrap();
    let ranking = rank(&workload, &cluster, 1024, &Setting::new(1536).unwrap()).unwrap();
    assert!(ranking.tried > 1000, "{}", ranking.tried);
    let best = &ranking.estimates[0];
    assert!(best.missing.is_none(), "{best:?}");
    // 6 x 175e9 x 2048 tokens x 1536 samples over 1024 devices at 35 to 65 % of 312 TFLOP/s.
    let share = 6.0 * 175e9 * 2048.0 * 1536.0 / 1024.0 / best.seconds / 312e12;
    assert!((0.35..0.65).contains(&share), "{}: {share}", best.strategy);
    for pair in ranking.estimates.windows(2) {
        let fits = |e: &crate::estimate::Estimate| e.missing.is_none();
        assert!(fits(&pair[0]) || !fits(&pair[1]), "what fits comes first");
        assert!(!fits(&pair[1]) || pair[0].seconds <= pair[1].seconds, "the fastest first");
    }
    let all = limits(&workload, 1536);
    assert_eq!(all, [("data", 1536), ("tensor", 96), ("pipeline", 98)]);
}

#[test]
fn nonsense_gets_one_line_that_says_what_is_allowed() {
    let workload = vgg16();
    let cluster = Cluster::named("abci").unwrap();
    let setting = Setting::new(8).unwrap();
    let asked = |strategy: ClusterStrategy| estimate(&workload, &cluster, &strategy, &setting).unwrap_err();
    let serial = ClusterStrategy::serial(8);
    let mut broken = cluster.clone();
    broken.between.bandwidth = 0.0;
    let mut changed = cluster.clone();
    let table = [
        (rank(&workload, &cluster, 0, &setting).unwrap_err(), "0 devices asked for; give 1 to 4352"),
        (rank(&workload, &broken, 4, &setting).unwrap_err(), "bandwidth of ib-edr is 0"),
        (
            asked(ClusterStrategy { data: 16, ..serial }),
            "batch 8 is smaller than its 16 replicas; give at least 16",
        ),
        (asked(ClusterStrategy { micro_batch: 3, ..serial }), "batch 8 is no multiple of 1 replicas x 3"),
        (asked(ClusterStrategy { micro_batch: 0, ..serial }), "are 1 at least"),
        (
            asked(ClusterStrategy { ways: 128, cut: Cut::Filter, ..serial }),
            "filter parallelism over 128 devices; this model allows 64",
        ),
        (asked(ClusterStrategy { ways: 2, cut: Cut::Tensor, ..serial }), "this model allows 1 at most"),
        (
            asked(ClusterStrategy { stages: 17, micro_batch: 1, ..serial }),
            "pipeline parallelism over 17 devices; this model allows 16",
        ),
        (Accelerator::named("gtx-9999").unwrap_err(), "unknown accelerator `gtx-9999`; there are v100-16"),
        (ClusterLink::named("string").unwrap_err(), "unknown link `string`; there are pcie3"),
        (Cluster::named("mine").unwrap_err(), "unknown cluster `mine`; there are abci"),
        (Precision::named("f1").unwrap_err(), "there are fp32, tf32, mixed"),
        (Software::named("x").unwrap_err(), "there are pytorch"),
        (change(&mut changed, "link=-1x").unwrap_err(), "factor of `link` is -1; give a number above zero"),
        (change(&mut changed, "wire=2x").unwrap_err(), "unknown what-if `wire`"),
    ];
    for (error, expected) in table {
        let text = error.to_string();
        assert!(text.contains(expected) && !text.contains('\n'), "{text}");
    }
}
