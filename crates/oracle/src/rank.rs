//! All strategies there are for a model, a cluster and a number of devices, and the best of them first.

use crate::OracleError;
use crate::cluster::Cluster;
use crate::estimate::{Estimate, order};
use crate::oracle::Oracle;
use crate::setting::Setting;
use crate::strategy::{ClusterStrategy, Cut, Order, Recompute, micro_batches};
use crate::stream::each_stream;
use crate::workload::Workload;

/// The strategies that were tried, best first.
#[derive(Clone, Debug)]
pub struct Ranking {
    /// The best few of every family: first those that fit, by time, then the others, by missing bytes.
    pub estimates: Vec<Estimate>,
    /// Configurations tried.
    pub tried: usize,
}

/// Estimates of a family that a ranking keeps.
const KEPT: usize = 4;

/// Ranks every strategy that uses exactly `devices` devices.
pub fn rank(
    workload: &Workload,
    cluster: &Cluster,
    devices: u32,
    setting: &Setting,
) -> Result<Ranking, OracleError> {
    workload.check()?;
    cluster.check()?;
    if devices == 0 || devices > cluster.size() {
        return Err(OracleError::Count { what: "devices", asked: devices, most: cluster.size() });
    }
    if setting.batch == 0 {
        return Err(OracleError::Zero("batch 0".into()));
    }
    let mut tried = 0;
    let (mut all, mut streamed): (Vec<Estimate>, Vec<Estimate>) = (Vec::new(), Vec::new());
    let mut oracle = Oracle::new(workload, cluster, setting);
    for offload in [false, true] {
        each_strategy(workload, devices, setting.batch, |strategy| {
            tried += 1;
            let strategy = ClusterStrategy { offload, ..strategy };
            let Ok(one) = oracle.estimate(&strategy) else { return };
            // Planned recomputation is tried where memory does not hold everything.
            if one.missing.is_some() && strategy.recompute == Recompute::Nothing {
                tried += 1;
                let planned = oracle.estimate(&ClusterStrategy { recompute: Recompute::Planned, ..strategy });
                planned.into_iter().for_each(|one| keep(&mut all, one));
            }
            keep(&mut all, one);
        });
        // States and layers move off the device only where nothing else fits.
        if all.iter().any(|one| one.missing.is_none()) {
            break;
        }
        if !offload {
            each_stream(workload, devices, setting.batch, |strategy| {
                tried += 1;
                oracle.estimate(&strategy).into_iter().for_each(|one| keep(&mut streamed, one));
            });
        }
    }
    all.append(&mut streamed);
    if tried == 0 {
        return Err(OracleError::Batch { batch: setting.batch, replicas: devices });
    }
    all.sort_by(order);
    Ok(Ranking { estimates: all, tried })
}

/// Calls `f` with every strategy on `devices` devices that the model and the batch allow.
pub fn each_strategy(workload: &Workload, devices: u32, batch: u32, mut f: impl FnMut(ClusterStrategy)) {
    let selective = workload.layers.iter().any(|layer| layer.selective > 0.0);
    let cuts = [Cut::Spatial, Cut::Filter, Cut::Channel, Cut::Tensor, Cut::Sequence];
    let limits: Vec<(Cut, u32)> = cuts
        .into_iter()
        .map(|cut| (cut, ClusterStrategy { cut, ..ClusterStrategy::serial(1) }.limit(workload)))
        .filter(|(_, limit)| *limit > 1)
        .collect();
    let depth = workload.depth();
    for stages in divisors(devices).filter(|&stages| stages <= depth) {
        for ways in divisors(devices / stages) {
            let data = devices / stages / ways;
            if data > batch || !batch.is_multiple_of(data) {
                continue;
            }
            let cuts: Vec<Cut> = if ways == 1 {
                vec![Cut::Whole]
            } else {
                let allowed = limits.iter().filter(|(_, limit)| *limit >= ways).map(|(cut, _)| *cut);
                allowed.chain([Cut::Mixed]).collect()
            };
            let share = batch / data;
            for cut in cuts {
                for micro_batch in micro_batches(share, stages) {
                    let most =
                        ClusterStrategy { cut, ..ClusterStrategy::serial(micro_batch) }.limit(workload);
                    if cut == Cut::Mixed && ways > most {
                        continue;
                    }
                    for order in orders(stages, depth) {
                        for recompute in [Recompute::Nothing, Recompute::Selective, Recompute::Full] {
                            if recompute == Recompute::Selective && !selective {
                                continue;
                            }
                            let shards = if data > 1 { 0..=3 } else { 0..=0 };
                            for shard in shards {
                                f(ClusterStrategy {
                                    data,
                                    ways,
                                    cut,
                                    stages,
                                    order,
                                    shard,
                                    recompute,
                                    ..ClusterStrategy::serial(micro_batch)
                                });
                            }
                        }
                    }
                }
            }
        }
    }
}

fn divisors(of: u32) -> impl Iterator<Item = u32> {
    (1..=of).filter(move |d| of.is_multiple_of(*d))
}

fn orders(stages: u32, depth: u32) -> Vec<Order> {
    if stages == 1 {
        return vec![Order::Alternating];
    }
    let interleaved = [2, 4].into_iter().filter(|pieces| stages * pieces <= depth).map(Order::Interleaved);
    [Order::Gpipe, Order::Alternating].into_iter().chain(interleaved).collect()
}

/// Keeps it if it is among the best of its family.
fn keep(all: &mut Vec<Estimate>, one: Estimate) {
    let same = |other: &Estimate| {
        let (a, b) = (other.strategy, one.strategy);
        let stream = std::mem::discriminant(&a.stream) == std::mem::discriminant(&b.stream);
        stream && (a.data > 1, a.cut, a.stages > 1) == (b.data > 1, b.cut, b.stages > 1)
    };
    let mine = all.iter().filter(|other| same(other)).count();
    if mine < KEPT {
        all.push(one);
    } else if let Some(worst) = all.iter_mut().filter(|other| same(other)).max_by(|a, b| order(a, b))
        && order(&one, worst).is_lt()
    {
        *worst = one;
    }
}

/// The most devices that each way of sharing work has use for, by name.
pub fn limits(workload: &Workload, batch: u32) -> Vec<(&'static str, u32)> {
    let of = |cut| ClusterStrategy { cut, ..ClusterStrategy::serial(1) }.limit(workload);
    let all = [
        ("data", batch),
        ("spatial", of(Cut::Spatial)),
        ("filter", of(Cut::Filter)),
        ("channel", of(Cut::Channel)),
        ("tensor", of(Cut::Tensor)),
        ("pipeline", workload.depth()),
    ];
    all.into_iter().filter(|(name, limit)| *limit > 1 || *name == "data").collect()
}

/// What an epoch costs.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct EpochCost {
    /// Seconds.
    pub seconds: f64,
    /// Kilowatt hours.
    pub kwh: f64,
    /// Money, if the cluster has prices.
    pub money: Option<f64>,
}

impl EpochCost {
    /// The epoch of a strategy.
    pub fn new(one: &Estimate, cluster: &Cluster, setting: &Setting) -> EpochCost {
        let devices = one.strategy.devices() as f64;
        let seconds = one.seconds * (setting.epoch / setting.batch as f64).ceil();
        let hours = devices * seconds / 3600.0;
        let kwh = cluster.device.watts * hours / 1000.0;
        let rent = cluster.price.map(|price| price * hours);
        let power = cluster.energy_price.map(|price| price * kwh);
        let money = rent.or(power).map(|_| rent.unwrap_or(0.0) + power.unwrap_or(0.0));
        EpochCost { seconds, kwh, money }
    }
}
