//! The mixed cut against single ways, against trying everything, and against what is known of networks.

use crate::cluster::Cluster;
use crate::estimate::{Estimate, order};
use crate::hardware::Precision;
use crate::mixed::LayerCut;
use crate::oracle::{Oracle, estimate};
use crate::setting::{Setting, Software};
use crate::strategy::{ClusterStrategy, Cut, Recompute};
use crate::tests::close;
use crate::tests::samples::{alexnet, cosmoflow, gpt, nodes, resnet50, vgg16};
use crate::workload::Workload;

fn mixed(ways: u32, micro_batch: u32) -> ClusterStrategy {
    ClusterStrategy { ways, cut: Cut::Mixed, ..ClusterStrategy::serial(micro_batch) }
}

fn networks() -> Vec<Workload> {
    vec![
        alexnet(),
        vgg16(),
        resnet50(),
        cosmoflow(),
        gpt("gpt3-1.3b"),
        nodes("gpt2", 128),
        nodes("mlp", 1),
        nodes("lstm", 32),
    ]
}

fn spoken(one: &Estimate) -> f64 {
    one.phases.collectives + one.phases.exchange
}

#[test]
fn it_is_never_slower_nor_speaks_longer_than_the_best_single_way() {
    let (mut better, mut asked) = (0, 0);
    for workload in networks() {
        for cluster in ["box-1080ti", "dgx1-16", "dgx-a100", "abci"] {
            let cluster = Cluster::named(cluster).unwrap();
            for software in ["pytorch", "ideal", "chainer"] {
                for (ways, micro_batch, parts) in
                    [(2, 32, 1), (4, 32, 2), (4, 4, 1), (4, 6, 1), (8, 64, 1), (16, 64, 1)]
                {
                    if ways > cluster.size() {
                        continue;
                    }
                    let setting = Setting {
                        software: Software::named(software).unwrap(),
                        ..Setting::new(micro_batch * parts).unwrap()
                    };
                    let strategy = mixed(ways, micro_batch);
                    let of =
                        |strategy: &ClusterStrategy| estimate(&workload, &cluster, strategy, &setting).ok();
                    let made = of(&strategy).unwrap();
                    let singles = LayerCut::ALL.iter().filter_map(|way| of(&way.single(&strategy)?));
                    let Some(best) = singles.min_by(order) else { continue };
                    let what = format!("{} on {} {software} {strategy}", workload.name, cluster.name);
                    asked += 1;
                    assert!(order(&made, &best).is_le(), "{what}: {made:?} for {best:?}");
                    if made.missing.is_some() == best.missing.is_some() {
                        assert!(
                            spoken(&made) <= spoken(&best) * (1.0 + 1e-9),
                            "{what}: {made:?} for {best:?}"
                        );
                        better += usize::from(spoken(&made) < 0.99 * spoken(&best));
                    }
                }
            }
        }
    }
    assert!(asked > 300 && better > 50, "better in {better} of {asked} cases");
}

/// As others found: convolutions share samples; large linear layers share their weights.
#[test]
fn convolutions_by_batch_and_large_linear_layers_by_weights() {
    for (workload, saved) in [(alexnet(), 0.95), (vgg16(), 0.99)] {
        for (cluster, ways) in [("box-1080ti", 4), ("abci", 4), ("dgx1-16", 8)] {
            let cluster = Cluster::named(cluster).unwrap();
            let setting = Setting {
                precision: Precision::F32,
                software: Software { overlap: 0.0, ..Software::named("pytorch").unwrap() },
                ..Setting::new(128).unwrap()
            };
            let found = Oracle::new(&workload, &cluster, &setting).ways(&mixed(ways, 128));
            let what = format!("{} on {}: {found:?}", workload.name, cluster.name);
            let linear =
                workload.layers.iter().position(|layer| layer.name.starts_with("classifier")).unwrap();
            assert!(found[..linear].iter().all(|way| *way == LayerCut::Batch), "{what}");
            let shared =
                found[linear..].iter().filter(|way| matches!(way, LayerCut::Filter | LayerCut::Channel));
            assert!(shared.count() > 1, "{what}");
            let seconds = |strategy: &ClusterStrategy| {
                estimate(&workload, &cluster, strategy, &setting).unwrap().seconds
            };
            let data = LayerCut::Batch.single(&mixed(ways, 128)).unwrap();
            assert!(seconds(&mixed(ways, 128)) < saved * seconds(&data), "{what}");
        }
    }
}

#[test]
fn one_way_for_all_layers_is_that_strategy() {
    let workload = gpt("gpt3-1.3b");
    let cluster = Cluster::named("dgx-a100").unwrap();
    let setting = Setting::new(64).unwrap();
    for recompute in [Recompute::Nothing, Recompute::Selective, Recompute::Full] {
        let strategy = ClusterStrategy { recompute, ..mixed(8, 64) };
        let ways = Oracle::new(&workload, &cluster, &setting).ways(&strategy);
        assert!(ways.iter().all(|way| *way == ways[0]), "{ways:?}");
        let single = ways[0].single(&strategy).unwrap();
        let of = |strategy| estimate(&workload, &cluster, strategy, &setting).unwrap();
        let (a, b) = (of(&strategy), of(&single));
        assert!(
            close(a.seconds, b.seconds) && close(a.memory.device(), b.memory.device()),
            "{a:?} for {b:?}"
        );
    }
}

#[test]
fn it_goes_with_replicas_stages_shards_and_recomputation() {
    let workload = vgg16();
    let cluster = Cluster::named("abci").unwrap();
    let setting = Setting::new(512).unwrap();
    let base = ClusterStrategy { data: 2, ..mixed(4, 64) };
    let of = |strategy: ClusterStrategy| estimate(&workload, &cluster, &strategy, &setting).unwrap();
    for strategy in [
        base,
        ClusterStrategy { shard: 1, ..base },
        ClusterStrategy { shard: 3, ..base },
        ClusterStrategy { stages: 2, ..base },
        ClusterStrategy { recompute: Recompute::Full, ..base },
        ClusterStrategy { recompute: Recompute::Planned, ..base },
    ] {
        let made = of(strategy);
        assert!(made.seconds.is_finite() && close(made.phases.total(), made.seconds), "{strategy}");
        assert!(made.strategy.to_string().starts_with("data+cut"), "{strategy}");
    }
    assert!(of(ClusterStrategy { recompute: Recompute::Full, ..base }).seconds > of(base).seconds);
    assert!(of(ClusterStrategy { shard: 3, ..base }).memory.device() < of(base).memory.device());
}
