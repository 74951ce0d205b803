//! Times of every kind of kernel of the networks that profiles are made from, and of others that are named, as JSON
//! lines: to study how well the times of some foretell those of others.
//!
//! `cargo run --release -p gulliver-run --example kernel_times -- THREADS DEVICES ROUNDS SECONDS [MODEL|SETTINGS|BATCH,LENGTH|OPTIMIZER …]`

use gulliver::profile::measure::{Bench, in_turns, take_turns};
use gulliver::profile::probes::{PROBES, Probe, probe};
use gulliver_graph::work::Work;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<&'static str> = std::env::args().skip(1).map(|text| &*text.leak()).collect();
    let number = |at: usize| arguments.get(at).and_then(|text| text.parse::<usize>().ok());
    let [threads, devices, rounds] = [(0, 1), (1, 1), (2, 5)].map(|(at, usual)| number(at).unwrap_or(usual));
    let seconds: f64 = arguments.get(3).and_then(|text| text.parse().ok()).unwrap_or(0.15);
    let mut all: Vec<Probe> = PROBES.to_vec();
    for text in arguments.iter().skip(4) {
        let parts: Vec<&'static str> = text.split('|').collect();
        let &[model, settings, sizes, optimizer] = parts.as_slice() else {
            return Err(format!("{text}: expected MODEL|SETTINGS|BATCH,LENGTH|OPTIMIZER").into());
        };
        let (batch, length) = sizes.split_once(',').unwrap_or((sizes, "0"));
        all.push(probe(model, settings, [batch.parse()?, length.parse()?], optimizer));
    }
    let mut benches = Vec::new();
    for probe in &all {
        benches.push(Bench::new(probe, [threads, devices])?);
    }
    for _ in 0..rounds {
        for some in benches.chunks_mut(in_turns(threads)) {
            take_turns(&mut some.iter_mut().collect::<Vec<_>>(), seconds, 1)?;
        }
    }
    for (i, (probe, bench)) in all.iter().zip(&benches).enumerate() {
        let (graph, _) = probe.built()?;
        let loads: Vec<_> = graph
            .nodes
            .iter()
            .map(|node| Work::of(&graph, node))
            .map(|work| Ok((work.bind(&probe.bindings())?, work.family)))
            .collect::<Result<_, Box<dyn Error>>>()?;
        let measured = bench.measured()?;
        let collectives = serde_json::json!({ "network": i, "met": measured.met, "beside": measured.beside });
        println!("{collectives}");
        for (family, points) in &measured.families {
            for point in points {
                let same = loads.iter().filter(|(load, name)| *load == point.load && name == family).count();
                let row = serde_json::json!({
                    "network": i, "model": probe.model, "settings": probe.settings, "probe": i < PROBES.len(),
                    "family": family, "flops": point.load.flops, "bytes": point.load.bytes,
                    "extents": point.load.extents, "count": same, "seconds": point.seconds,
                    "spread": point.spread,
                });
                println!("{row}");
            }
        }
    }
    Ok(())
}
