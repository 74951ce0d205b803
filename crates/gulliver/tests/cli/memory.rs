//! The memory of the whole process: beside device and host memory it takes no more than a constant, however
//! large the model, from the first weights over checkpoints and a resume to the last fingerprint.

use crate::process::{Finished, Place, fingerprint};
use gulliver_run::host::resident::BESIDE_TIERS;

const MIB: u64 = 1 << 20;

/// A model of so many hidden layers; weights and optimizer state of each take 6.75 MiB.
fn job(hidden: usize) -> String {
    let sizes = vec!["768"; hidden].join(", ");
    format!(
        "[model]\nname = 'mlp'\nsizes = [256, {sizes}, 10]\n\
         [data]\nkind = 'digits'\nsize = 16\nexamples = 64\n\
         [train]\nsteps = 4\nbatch = 8\neval_every = 2\ncheckpoint_every = 2\n\
         [optimizer]\nname = 'adamw'\nlr = 0.001\n[devices]\nthreads = 2\n"
    )
}

fn done(finished: &Finished) -> serde_json::Value {
    assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
    let done = finished.events().pop().unwrap();
    assert_eq!(done["event"], "done", "{done}");
    done
}

/// The least and a bit more, both far below what the models need.
const BUDGETS: [[u64; 2]; 2] = [[10, 2], [16, 6]];

fn arguments(out: &str, [memory, host]: [u64; 2], more: &[&str]) -> Vec<String> {
    let limits = [format!("--memory={memory}MiB"), format!("--host-memory={host}MiB"), "--disk=1GiB".into()];
    let first = ["train", "job.toml", "--json", "--out", out];
    first.iter().chain(more).map(|text| text.to_string()).chain(limits).collect()
}

/// Half of the way, and the rest from a checkpoint.
const HALVES: [&[&str]; 2] = [&["--steps", "2"], &["--steps", "4", "--resume"]];

#[test]
#[cfg(target_os = "linux")]
fn beside_its_budgets_a_process_holds_no_more_than_a_constant() {
    let place = Place::new("memory");
    for hidden in [4, 16] {
        place.write("job.toml", job(hidden));
        let whole = place.train("job.toml", &format!("whole-{hidden}"), &[]);
        for budgets in BUDGETS {
            let case = format!("{hidden} layers in {budgets:?} MiB");
            let tiers = budgets.iter().sum::<u64>() * MIB;
            assert!(whole["peak_bytes"]["cpu0"].as_u64().unwrap() > tiers, "{case}");
            let out = format!("limited-{hidden}-{}", budgets[0]);
            let mut last = None;
            for half in HALVES {
                let arguments = arguments(&out, budgets, half);
                let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
                let done = done(&place.run(&arguments));
                let resident = done["resident_bytes"].as_u64().unwrap();
                assert!(resident <= tiers + BESIDE_TIERS, "{case}: {resident} bytes");
                last = Some(done);
            }
            assert_eq!(fingerprint(&last.unwrap()), fingerprint(&whole), "{case}");
        }
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_model_larger_than_its_address_space_trains() {
    let place = Place::new("memory-limit");
    place.write("job.toml", job(32));
    let whole = place.train("job.toml", "whole", &[]);
    let budgets = BUDGETS[0];
    let tiers = budgets.iter().sum::<u64>() * MIB;
    // Reserved and never touched: the program's file, stacks, and 64 MiB that the allocator keeps for each of two
    // threads, the one that plans and the one that reads.
    let limit = tiers + BESIDE_TIERS + 128 * MIB;
    assert!(whole["peak_bytes"]["cpu0"].as_u64().unwrap() > limit);
    let mut last = None;
    for half in HALVES {
        let arguments = arguments("limited", budgets, half);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        last = Some(done(&place.run_within(limit, &arguments)));
    }
    assert_eq!(fingerprint(&last.unwrap()), fingerprint(&whole));

    // Without budgets it does not even start.
    let alone = place.run_within(limit, &["train", "job.toml", "--out", "alone"]);
    assert!(alone.error().contains("cannot allocate"), "{}", alone.stderr);
}
