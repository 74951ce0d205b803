//! How far predictions are from what happens: jobs of which none is a probe, planned and then trained.

use super::ProfileError;
use super::measure::{UNDISTURBED, sorted};
use super::probes::Probe;
use crate::session::{Key, Session, SessionOptions, Which, planners};
use gulliver_plan::cost::{Profile, Rates};
use serde::Serialize;
use std::sync::Arc;
use std::time::Instant;

/// Steps before the clock runs.
const WARM_UP: usize = 2;

/// Seconds of a step of one job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Checked {
    /// Its model.
    pub model: &'static str,
    /// Where that differs from the model's defaults.
    pub settings: &'static str,
    /// Samples of a step on all devices, and tokens of a sample.
    pub sizes: [usize; 2],
    /// Devices.
    pub devices: usize,
    /// Threads of each.
    pub threads: usize,
    /// Predicted without a profile.
    pub without: f64,
    /// Predicted with it.
    pub with: f64,
    /// Measured when nothing disturbs it: a tenth of the steps were as fast.
    pub measured: f64,
    /// How much longer the median took, as a share.
    pub spread: f64,
}

/// `1 - |predicted - measured| / measured`, not below 0.
pub fn accuracy(predicted: f64, measured: f64) -> f64 {
    (1.0 - (predicted - measured).abs() / measured).max(0.0)
}

/// Predicts a job on so many devices of so many threads, then trains it for about `seconds`.
pub fn check(
    case: &Probe,
    [threads, devices]: [usize; 2],
    (profile, rates): (&Profile, Rates),
    seconds: f64,
) -> Result<Checked, ProfileError> {
    let case = Probe { sizes: [case.sizes[0] * devices, case.sizes[1]], ..*case };
    let (graph, batch) = case.built()?;
    let options = SessionOptions { threads, partials: devices as u32, rates, ..SessionOptions::default() };
    let mut session = match devices {
        1 => Session::new(graph, None, options, 0)?,
        _ => Session::together(planners(&graph, None, vec![options; devices])?, 0)?,
    };
    let sizes = session.sizes(Which::Train, &batch)?;
    let own = session.share(sizes)?;
    let plan = session.plan(Which::Train, &own)?;
    let planner = session.planner();
    let mut predict = |curves| {
        planner.set_curves(curves);
        Ok::<f64, ProfileError>(
            planner.timing(Which::Train, &own, &plan).map_err(crate::session::SessionError::from)?.seconds,
        )
    };
    let without = predict(None)?;
    let with = predict(profile.at(threads, devices).map(Arc::new))?;
    let (mut times, begin) = (Vec::new(), Instant::now());
    while times.len() < 3 + WARM_UP || begin.elapsed().as_secs_f64() < seconds {
        let step = times.len() as u64;
        let hyper = move |name: &str| name.ends_with("step").then_some((step + 1) as f32);
        let start = Instant::now();
        session.step(&batch, Key { seed: 0, step }, &hyper)?;
        times.push(start.elapsed().as_secs_f64());
    }
    let times = times.split_off(WARM_UP);
    let [measured, median] = [UNDISTURBED, 0.5].map(|share| sorted(times.clone(), share));
    Ok(Checked {
        model: case.model,
        settings: case.settings,
        sizes: case.sizes,
        devices,
        threads,
        without,
        with,
        measured,
        spread: median / measured - 1.0,
    })
}
