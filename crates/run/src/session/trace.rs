//! Recorded times of the steps of all devices in the last training step.

use super::{RankSession, Session};
use crate::device::StepTime;
use gulliver_graph::graph::Graph;
use gulliver_plan::document::plan::Plan;
use gulliver_plan::document::timeline::{self, StepSpan};
use std::sync::Arc;
use std::time::Instant;

/// A run of a plan on one device.
pub(super) struct Traced {
    pub(super) graph: Arc<Graph>,
    pub(super) plan: Arc<Plan>,
    pub(super) times: Vec<StepTime>,
}

impl Session {
    /// Records from now on the times of steps on all devices.
    pub fn record(&mut self) {
        self.ranks.iter_mut().for_each(|rank| rank.device.record(true));
    }

    /// The times of all steps of all devices in the last training step, from the start of the first; empty unless they
    /// are recorded.
    pub fn recorded(&self) -> Vec<StepSpan> {
        let runs = self.ranks.iter().zip(0..).filter_map(|(rank, d)| Some((rank.traced.as_ref()?, d)));
        let all: Vec<(&StepTime, u32)> =
            runs.flat_map(|(traced, d)| traced.times.iter().map(move |time| (time, d))).collect();
        let Some(began) = all.iter().map(|(time, _)| time.start).min() else { return Vec::new() };
        let since = |time: Instant| (time - began).as_secs_f64();
        let span = |(time, device): (&StepTime, u32)| {
            let (start, end) = (since(time.start), since(time.end));
            StepSpan { device, stream: time.stream, step: time.step, start, end }
        };
        all.into_iter().map(span).collect()
    }

    /// The last training step as a trace for Chrome or Perfetto; `None` unless one was recorded.
    pub fn trace(&self) -> Option<String> {
        let traced: Vec<&Traced> = self.ranks.iter().map(RankSession::traced).collect::<Option<_>>()?;
        let plans: Vec<(&Graph, &Plan)> = traced.iter().map(|one| (&*one.graph, &*one.plan)).collect();
        Some(timeline::trace(&plans, &self.recorded()))
    }
}

impl RankSession {
    fn traced(&self) -> Option<&Traced> {
        self.traced.as_ref()
    }
}
