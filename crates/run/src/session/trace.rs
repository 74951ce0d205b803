//! When each step of the plans of all devices was done in the last training step, for those who asked for it to be
//! noted.

use super::Session;
use crate::stream::Seen;
use gulliver_plan::document::plan::Plan;
use gulliver_plan::document::timeline;
use gulliver_plan::document::timeline::Span;
use std::sync::Arc;
use std::time::Instant;

/// A run of a plan on one device.
pub(super) struct Traced {
    pub(super) plan: Arc<Plan>,
    pub(super) seen: Vec<Seen>,
}

impl Session {
    /// Notes from now on when steps are done on all devices, of plans that are yet to be made.
    pub fn record(&mut self) {
        self.cpu.record(true);
        self.others.iter_mut().for_each(Session::record);
    }

    /// When each step of the plans of all devices was done in the last training step, from when the first began;
    /// empty unless that is noted.
    pub fn recorded(&self) -> Vec<Span> {
        let runs = self.devices().zip(0..).filter_map(|(device, d)| Some((device.traced.as_ref()?, d)));
        let all: Vec<(&Seen, u32)> =
            runs.flat_map(|(traced, d)| traced.seen.iter().map(move |seen| (seen, d))).collect();
        let Some(began) = all.iter().map(|(seen, _)| seen.start).min() else { return Vec::new() };
        let since = |time: Instant| (time - began).as_secs_f64();
        let span = |(seen, device): (&Seen, u32)| {
            let (start, end) = (since(seen.start), since(seen.end));
            Span { device, stream: seen.stream, step: seen.step, start, end }
        };
        all.into_iter().map(span).collect()
    }

    /// The last training step as a trace for Chrome or Perfetto; none unless steps are noted and one was trained.
    pub fn trace(&self) -> Option<String> {
        let plans = self.devices().map(|device| Some((device.graph(), &*device.traced.as_ref()?.plan)));
        let plans: Vec<_> = plans.collect::<Option<_>>()?;
        Some(timeline::trace(&plans, &self.recorded()))
    }
}
