//! How fast the oracle answers: configurations a second on one thread, and a full ranking of GPT-3 175B.
//! `cargo run --release -p gulliver-lab --example oracle_speed`

use gulliver_graph::dim::Bindings;
use gulliver_graph::model::model;
use gulliver_oracle::cluster::Cluster;
use gulliver_oracle::from_graph::{KernelStyle, from_model};
use gulliver_oracle::oracle::Oracle;
use gulliver_oracle::rank::{each_strategy, rank};
use gulliver_oracle::setting::Setting;
use std::hint::black_box;
use std::time::Instant;

fn main() {
    let cluster = Cluster::named("dgx-a100").unwrap();
    let sizes = Bindings::new().with("length", 2048);
    let read = |name: &str| {
        let began = Instant::now();
        let built = model(name, &[]).unwrap();
        let workload = from_model(name, built.as_ref(), &sizes, KernelStyle::Framework).unwrap();
        println!("{name}: read from its graph in {:.3} s", began.elapsed().as_secs_f64());
        workload
    };
    let (gpt, resnet) = (read("gpt3-175b"), read("resnet50"));
    for (workload, batch) in [(&gpt, 1536), (&resnet, 8192)] {
        let setting = Setting::new(batch).unwrap();
        let mut strategies = Vec::new();
        each_strategy(workload, 1024, batch, |strategy| strategies.push(strategy));
        let (mut done, began) = (0, Instant::now());
        // Every round begins anew: nothing is remembered from the one before.
        while began.elapsed().as_secs_f64() < 1.0 {
            let mut oracle = Oracle::new(workload, &cluster, &setting);
            for strategy in &strategies {
                let _ = black_box(oracle.estimate(strategy));
                done += 1;
            }
        }
        println!("{}: {:.0} configurations/s", workload.name, done as f64 / began.elapsed().as_secs_f64());
    }
    let began = Instant::now();
    let ranking = rank(&gpt, &cluster, 1024, &Setting::new(1536).unwrap()).unwrap();
    println!(
        "gpt3-175b over 1024 devices: {} configurations ranked in {:.3} s; best {} at {:.2} s",
        ranking.tried,
        began.elapsed().as_secs_f64(),
        ranking.estimates[0].strategy,
        ranking.estimates[0].seconds
    );
}
