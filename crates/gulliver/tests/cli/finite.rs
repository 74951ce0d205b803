//! Runs that diverge: stopped with the step and the value named, or gone on with; never with a checkpoint
//! that nobody can use.

use crate::process::Place;
use crate::resume::checkpoints;
use gulliver_run::checkpoint::load;

const JOB: &str = "[model]\nname = 'mlp-tiny'\n[data]\nkind = 'spirals'\nexamples = 64\n\
    [train]\nsteps = 12\nbatch = 8\ncheckpoint_every = 1\nlog_every = 1\n[optimizer]\nname = 'sgd'\nmomentum = 0.9\n";

#[test]
fn divergence_stops_or_is_skipped_and_leaves_good_checkpoints() {
    // The first rate overflows in a forward pass, the second in an update.
    for ([lr, decay], step) in [(["1e20", "0"], "step 2: "), (["3e38", "1e4"], "step 1: ")] {
        let place = Place::new(&format!("finite-{lr}"));
        place.write("job.toml", JOB);
        let sets = [format!("optimizer.lr={lr}"), format!("optimizer.weight_decay={decay}")];
        let sets = ["--set", &*sets[0], "--set", &*sets[1]];
        let run = |out: &str, more: &[&str]| {
            place.run(&[&["train", "job.toml", "--out", out, "--json"], &sets[..], more].concat())
        };
        let stopped = run("stop", &[]);
        let error = stopped.error();
        assert!(error.starts_with(step) && error.contains("the first value that is not is `"), "{error}");
        assert_eq!(stopped.events().last().unwrap()["message"], *error);

        let skipped = run("skip", &["--on-nan", "skip"]);
        assert_eq!(skipped.code(), Some(0), "{}", skipped.stderr);
        let events = skipped.events();
        assert_eq!(events.last().unwrap()["event"], "done");
        assert_eq!(events.last().unwrap()["steps"], 12);
        let warnings = skipped.events_called("warning");
        assert!(
            warnings.iter().any(|w| w["message"].as_str().unwrap().contains("is not finite")),
            "{warnings:?}"
        );

        for out in ["stop", "skip"] {
            for path in checkpoints(&place.path(out)) {
                let checkpoint = load(&path).unwrap();
                assert!(checkpoint.tensors.values().all(|t| t.is_finite()), "{}", path.display());
            }
        }
    }
}
