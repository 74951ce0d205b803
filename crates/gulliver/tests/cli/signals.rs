//! Asked to stop, a run saves what it has and leaves; resumed, it ends with the bits of one that was not
//! asked.

use crate::process::{Place, fingerprint};
use crate::resume::{POINTS, checkpoints};

#[test]
fn signals_end_a_run_after_a_checkpoint() {
    let place = Place::new("signals");
    place.write("job.toml", POINTS);
    let sets = &["--set", "train.steps=400", "--set", "train.checkpoint_every=0"];
    let whole = place.train("job.toml", "whole", sets);
    for signal in ["INT", "TERM", "HUP"] {
        let arguments = [&["train", "job.toml", "--out", signal, "--json"], &sets[..]].concat();
        let mut running = place.start(&arguments);
        assert!(running.wait_for("step", 5));
        running.signal(signal);
        let finished = running.finish();
        assert_eq!(finished.code(), Some(130), "{}", finished.stderr);
        let events = finished.events();
        let [.., saved, last] = &events[..] else { panic!("{events:?}") };
        assert_eq!((saved["event"].as_str(), last["event"].as_str()), (Some("checkpoint"), Some("error")));
        let step = saved["step"].as_u64().unwrap();
        assert!((5..400).contains(&step), "{saved}");
        let message = last["message"].as_str().unwrap();
        assert!(
            message.starts_with(&format!("interrupted after step {step} of 400; to go on: ")),
            "{message}"
        );
        assert!(message.ends_with("--set train.checkpoint_every=0 --resume"), "{message}");
        assert_eq!(finished.stderr.trim(), message);
        let path = saved["path"].as_str().unwrap();
        assert!(checkpoints(&place.path(signal))[0].ends_with(path.rsplit('/').next().unwrap()));

        let done = place.train("job.toml", signal, &[&["--resume"], &sets[..]].concat());
        assert_eq!(fingerprint(&done), fingerprint(&whole), "{signal}");
    }
}
