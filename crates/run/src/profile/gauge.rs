//! How fast the machine is at the moment, told by two small networks that are the same whenever it is asked. A machine
//! that others use, too, is not always as fast; times that were measured at different moments can be compared when both
//! are held against the gauge.

use super::ProfileError;
use super::probes::{Probe, probe};
use crate::data::Batch;
use crate::session::{Key, Session, SessionOptions, planners};
use std::time::Instant;

/// One that multiplies large matrices and one that walks through memory.
static NETWORKS: [Probe; 2] = [
    probe("gpt", "vocab=96 width=256 heads=4 layers=1 context=64", [2, 64], "adam"),
    probe("resnet18", "width=24 size=40 blocks=1,1,1,1", [2, 0], "sgd"),
];
/// Steps that find the caches of others, and steps that count.
const STEPS: [usize; 2] = [1, 2];

/// See the top of this file.
pub struct Gauge {
    networks: Vec<(Session, Batch)>,
    steps: u64,
}

impl Gauge {
    /// For a way of using the machine: threads of a device, and devices.
    pub fn new([threads, devices]: [usize; 2]) -> Result<Gauge, ProfileError> {
        let mut networks = Vec::new();
        for network in &NETWORKS {
            let [batch, length] = network.sizes;
            let (graph, batch) = Probe { sizes: [batch * devices, length], ..*network }.built()?;
            let options = SessionOptions { threads, partials: devices as u32, ..SessionOptions::default() };
            let planners = planners(&graph, None, vec![options; devices])?;
            networks.push((Session::together(planners, 0)?, batch));
        }
        let mut gauge = Gauge { networks, steps: 0 };
        gauge.read()?;
        Ok(gauge)
    }

    /// Seconds of a step of both.
    pub fn read(&mut self) -> Result<f64, ProfileError> {
        let [unseen, seen] = STEPS;
        let mut seconds = 0.0;
        for (session, batch) in &mut self.networks {
            let mut begin = Instant::now();
            for k in 0..unseen + seen {
                if k == unseen {
                    begin = Instant::now();
                }
                let step = self.steps;
                let hyper = move |name: &str| name.ends_with("step").then_some((step + 1) as f32);
                session.step(batch, Key { seed: 0, step }, &hyper)?;
                self.steps += 1;
            }
            seconds += begin.elapsed().as_secs_f64() / seen as f64;
        }
        Ok(seconds)
    }
}
