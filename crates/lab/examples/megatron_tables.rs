//! Predictions against the published tables of Megatron on A100, on which nothing is fitted.
//! `cargo run --release -p gulliver-lab --example megatron_tables`
//! Rows are facts of the papers named beside them; what a paper does not say is chosen as the text says.

use gulliver_graph::dim::Bindings;
use gulliver_graph::model::model;
use gulliver_graph::model::param::{float, int};
use gulliver_oracle::cluster::Cluster;
use gulliver_oracle::estimate::Estimate;
use gulliver_oracle::from_graph::{KernelStyle, from_model};
use gulliver_oracle::oracle::estimate;
use gulliver_oracle::setting::{Setting, Software};
use gulliver_oracle::strategy::{ClusterStrategy, Cut, Order, Recompute};
use gulliver_oracle::workload::Workload;

const LENGTH: u32 = 2048;
const VOCABULARY: u32 = 51200;
/// Calculon's mean error on the rows of `SECONDS`, as its authors publish it.
const CALCULON: f64 = 3.65;

/// Name, width, heads, layers.
type Model = (&'static str, u32, u32, u32);
/// Model, stages, pieces of a stage, batch, micro-batch, seconds.
type Step = (Model, u32, u32, u32, u32, [f64; 2]);
/// Model, devices that share layers, stages, devices, batch, achieved teraFLOP/s of a device.
type Scale = (Model, u32, u32, u32, u32, f64);

/// Korthikanti et al. 2022 (arXiv:2205.05198), tables 3 and 5: seconds of a step with everything computed again, and
/// with sequence parallelism and selective recomputation. Tensor parallelism is over eight devices.
const SECONDS: &[Step] = &[
    (("22b", 6144, 64, 48), 1, 1, 4, 4, [1.42, 1.10]),
    (("175b", 12288, 96, 96), 8, 3, 64, 1, [18.13, 13.75]),
    (("530b", 20480, 128, 105), 35, 3, 280, 1, [49.05, 37.83]),
    (("1t", 25600, 160, 128), 64, 1, 512, 1, [94.42, 71.49]),
];

/// Narayanan et al. 2021 (arXiv:2104.04473), table 1. Neither micro-batch nor pieces of a stage are given.
const SCALED: &[Scale] = &[
    (("1.7b", 2304, 24, 24), 1, 1, 32, 512, 137.0),
    (("3.6b", 3072, 32, 30), 2, 1, 64, 512, 138.0),
    (("7.5b", 4096, 32, 36), 4, 1, 128, 512, 142.0),
    (("18.4b", 6144, 48, 40), 8, 1, 256, 1024, 135.0),
    (("39.1b", 8192, 64, 48), 8, 2, 512, 1536, 138.0),
    (("76.1b", 10240, 80, 60), 8, 4, 1024, 1792, 140.0),
    (("145.6b", 12288, 96, 80), 8, 8, 1536, 2304, 148.0),
    (("310.1b", 16384, 128, 96), 8, 16, 1920, 2160, 155.0),
    (("529.6b", 20480, 128, 105), 8, 35, 2520, 2520, 163.0),
    (("1008b", 25600, 160, 128), 8, 64, 3072, 3072, 163.0),
];

fn main() {
    println!("step time, A100 80 GB, tensor parallel over 8 (Korthikanti et al. 2022)");
    let mut errors = Vec::new();
    for &(model, stages, pieces, batch, micro_batch, measured) in SECONDS {
        let gpt = gpt(model);
        let ways = [(Cut::Tensor, Recompute::Full), (Cut::Sequence, Recompute::Selective)];
        for ((cut, recompute), measured) in ways.into_iter().zip(measured) {
            let strategy = ClusterStrategy {
                ways: 8,
                cut,
                stages,
                order: order(pieces),
                recompute,
                ..ClusterStrategy::serial(micro_batch)
            };
            let answer = ask(&gpt, &strategy, batch).expect("every row is possible");
            errors.push(show(model.0, measured, &answer));
        }
    }
    println!("mean error {:.2} %; Calculon publishes {CALCULON} %\n", 100.0 * mean(&errors));

    println!("step time from achieved teraFLOP/s, A100 80 GB, all computed again (Narayanan et al. 2021)");
    let mut errors = Vec::new();
    for &(model, ways, stages, devices, batch, rate) in SCALED {
        let gpt = gpt(model);
        let cut = if ways > 1 { Cut::Tensor } else { Cut::Whole };
        let data = devices / ways / stages;
        let strategies = (0..4).flat_map(|power| (1..=8).map(move |pieces| (1 << power, pieces))).filter_map(
            |(micro_batch, pieces)| {
                let even = model.3.is_multiple_of(stages * pieces) && (stages > 1 || pieces == 1);
                let order = order(pieces);
                even.then_some(ClusterStrategy {
                    data,
                    ways,
                    cut,
                    stages,
                    order,
                    recompute: Recompute::Full,
                    ..ClusterStrategy::serial(micro_batch)
                })
            },
        );
        // The authors sought what is quickest; so do we.
        let best = strategies
            .filter_map(|strategy| ask(&gpt, &strategy, batch))
            .filter(|answer| answer.missing.is_none())
            .min_by(|a, b| a.seconds.total_cmp(&b.seconds))
            .expect("some fit");
        let seconds = operations(model, batch) / (rate * 1e12 * devices as f64);
        errors.push(show(model.0, seconds, &best));
    }
    println!("mean error {:.2} %", 100.0 * mean(&errors));
}

fn order(pieces: u32) -> Order {
    if pieces > 1 { Order::Interleaved(pieces) } else { Order::Alternating }
}

/// The GPT of a row.
fn gpt((name, hidden, heads, layers): Model) -> Workload {
    let sizes =
        [("width", hidden), ("heads", heads), ("layers", layers), ("context", LENGTH), ("vocab", VOCABULARY)];
    let mut settings: Vec<_> = sizes.map(|(name, size)| (name.to_string(), int(size.into()))).into();
    settings.push(("dropout".into(), float(0.1)));
    let built = model("gpt", &settings).expect("published sizes");
    let sizes = Bindings::new().with("length", LENGTH as usize);
    from_model(name, built.as_ref(), &sizes, KernelStyle::Framework).expect("a GPT can be read")
}

fn ask(gpt: &Workload, strategy: &ClusterStrategy, batch: u32) -> Option<Estimate> {
    let software = Software::named("megatron").ok()?;
    let setting = Setting { software, ..Setting::new(batch).ok()? };
    estimate(gpt, &Cluster::named("dgx-a100").ok()?, strategy, &setting).ok()
}

/// Operations of a step as the authors count them, with the forward pass done twice (their equation 3).
fn operations((_, hidden, _, layers): Model, batch: u32) -> f64 {
    let (h, l, s) = (hidden as f64, layers as f64, LENGTH as f64);
    96.0 * batch as f64 * s * l * h * h * (1.0 + s / (6.0 * h) + VOCABULARY as f64 / (16.0 * l * h))
}

/// Prints a row; its error.
fn show(name: &str, measured: f64, answer: &Estimate) -> f64 {
    let error = answer.seconds / measured - 1.0;
    let within = answer.interval.contains(measured);
    println!(
        "{name:>7} {:<62} measured {measured:7.2} s, predicted {:7.2} s, {:+6.1} %{}",
        answer.strategy.to_string(),
        answer.seconds,
        100.0 * error,
        if within { "" } else { ", outside its interval" }
    );
    error.abs()
}

fn mean(errors: &[f64]) -> f64 {
    errors.iter().sum::<f64>() / errors.len() as f64
}
