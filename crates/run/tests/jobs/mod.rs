//! Jobs that differ in seed, learning rate, clipping limit and data, and their results alone.

use gulliver::local::{LocalDevice, session};
use gulliver_graph::graph::Graph;
use gulliver_graph::role::HyperRole;
use gulliver_run::checkpoint::fingerprint;
use gulliver_run::data::Batch;
use gulliver_run::host::HostTensor;
use gulliver_run::session::{StepKey, StepOutcome};
use std::collections::BTreeMap;

/// The differences between members.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    pub seed: u64,
    pub lr: f32,
    /// Its batches.
    pub data: u64,
}

impl Job {
    pub fn hyper(&self, role: HyperRole, name: &str, step: u64) -> Option<f32> {
        match (role, name.rsplit('.').next()) {
            (HyperRole::LearningRate, _) => Some(self.lr),
            (HyperRole::Step, _) => Some((step + 1) as f32),
            (_, Some("weight_decay")) => Some(self.lr / 10.0),
            (_, Some("clip_norm")) => Some(100.0 * self.lr),
            _ => None,
        }
    }

    pub fn key(&self, step: u64) -> StepKey {
        StepKey { seed: self.seed, step }
    }

    /// The batch of a step: rows of the whole, rotated.
    pub fn batch(&self, of: &Batch, step: u64) -> Batch {
        let turn = |tensor: &HostTensor| {
            let mut tensor = tensor.clone();
            let row = tensor.as_bytes().len() / tensor.shape()[0].max(1);
            let by = ((self.data + step) as usize * row) % tensor.as_bytes().len().max(1);
            tensor.as_bytes_mut().rotate_left(by);
            tensor
        };
        Batch { fields: of.fields.iter().map(|(name, t)| (name.clone(), turn(t))).collect() }
    }
}

/// This many jobs, on shared or separate data.
pub fn jobs(members: usize, own_data: bool) -> Vec<Job> {
    let job = |m: usize| Job {
        seed: 7 + m as u64,
        lr: 1e-3 * (1.0 + m as f32),
        data: if own_data { m as u64 } else { 0 },
    };
    (0..members).map(job).collect()
}

/// Weights and states of a job after some steps alone, and the outcome of each step.
pub fn alone(
    graph: &Graph,
    options: &LocalDevice,
    batch: &Batch,
    job: Job,
    steps: u64,
) -> (String, Vec<StepOutcome>) {
    let mut session = session(graph.clone(), None, options, job.seed).unwrap();
    let outcomes = (0..steps)
        .map(|step| {
            let hyper = |role: HyperRole, name: &str| job.hyper(role, name, step);
            session.step(&job.batch(batch, step), job.key(step), &hyper).unwrap()
        })
        .collect();
    (fingerprint(&session.tensors().unwrap()), outcomes)
}

/// Whether two steps have the same bits.
pub fn same(found: &StepOutcome, expected: &StepOutcome) -> bool {
    let bits = |o: &StepOutcome| {
        o.scalars.iter().map(|(n, x)| (n.to_string(), x.value.to_bits())).collect::<BTreeMap<_, _>>()
    };
    bits(found) == bits(expected) && found.not_finite.is_some() == expected.not_finite.is_some()
}
