//! The memory of the whole process: beside device and host memory it takes no more than a constant, however
//! large the model, from the first weights over checkpoints and a resume to the last fingerprint.

use crate::process::{Finished, Place, fingerprint};
use gulliver_run::probe::BESIDE_TIERS;

const MIB: u64 = 1 << 20;

/// A model of so many layers of about 3 MiB, of whose training state the optimizer keeps two copies more.
fn job(layers: u32) -> String {
    format!(
        "[model]\nname = 'gpt'\nwidth = 256\nheads = 4\nlayers = {layers}\ncontext = 32\nvocab = 512\n\
         [data]\nkind = 'tokens'\ntokens = 512\nmin_length = 32\nlength = 32\nexamples = 40\n\
         [train]\nsteps = 4\nbatch = 2\neval_every = 2\ncheckpoint_every = 2\n\
         [optimizer]\nname = 'adamw'\nlr = 0.001\n"
    )
}

fn done(finished: &Finished) -> serde_json::Value {
    assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
    let done = finished.events().pop().unwrap();
    assert_eq!(done["event"], "done", "{done}");
    done
}

#[test]
#[cfg(target_os = "linux")]
fn beside_its_budgets_a_process_needs_no_more_than_a_constant() {
    let place = Place::new("memory");
    for layers in [4, 12] {
        place.write("job.toml", job(layers));
        let whole = place.train("job.toml", &format!("whole{layers}"), &[]);
        let state = whole["peak_bytes"]["cpu0"].as_u64().unwrap();
        for (memory, host) in [(12, 4), (20, 8)] {
            let case = format!("{layers} layers, {memory} and {host} MiB");
            assert!(state > (memory + host) * MIB, "{case}: {state}");
            let limits = [format!("{memory}MiB"), format!("{host}MiB")];
            let limits = ["--memory", &limits[0], "--host-memory", &limits[1], "--disk", "1GiB"];
            let out = format!("run-{layers}-{memory}");
            let train = [&["train", "job.toml", "--out", &out, "--json"], &limits[..]].concat();
            // Half of the way, and the rest from a checkpoint.
            for (more, steps) in [(&["--steps", "2"][..], 2), (&["--steps", "4", "--resume"], 4)] {
                let finished = place.run(&[&train, more].concat());
                let done = done(&finished);
                assert_eq!(done["steps"], steps, "{case}");
                let resident = done["resident_bytes"].as_u64().unwrap();
                let budgets = (memory + host) * MIB;
                assert!(resident <= budgets + BESIDE_TIERS, "{case}: {resident} bytes");
                if steps == 4 {
                    assert_eq!(fingerprint(&done), fingerprint(&whole), "{case}");
                }
            }
        }
    }
}
