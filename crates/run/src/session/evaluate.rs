//! Evaluation of a batch: scalars, and what was predicted for each example.

use super::{Key, Scalars, Session, SessionError, Which};
use crate::data::Batch;
use crate::executor::RunError;
use crate::host::HostTensor;
use crate::session::programs::Loaded;
use gulliver_graph::role::OutputRole;

/// Outputs of the evaluation graph that predict something of each example: its class, or its numbers.
const PREDICTIONS: [OutputRole; 2] = [OutputRole::Guess, OutputRole::Prediction];

/// What the evaluation of a batch gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evaluated {
    /// Scalar outputs.
    pub scalars: Scalars,
    /// The class of each example (i64) or its numbers (f32), if the model predicts either.
    pub predicted: Option<HostTensor>,
}

impl Evaluated {
    /// Takes over what another device gave of the same batch.
    pub(super) fn join(mut self, other: Evaluated) -> Evaluated {
        self.scalars.extend(other.scalars);
        self.predicted = self.predicted.or(other.predicted);
        self
    }
}

impl Session {
    /// Scalars of the evaluation graph for a batch.
    pub fn evaluate(&mut self, batch: &Batch, key: Key) -> Result<Scalars, SessionError> {
        Ok(self.evaluate_fully(batch, key)?.scalars)
    }

    /// Scalars of the evaluation graph for a batch, and what it predicts for each example.
    pub fn evaluate_fully(&mut self, batch: &Batch, key: Key) -> Result<Evaluated, SessionError> {
        if !self.others.is_empty() && self.planner.options().meets_within() {
            return self.evaluate_on_all(batch, key);
        }
        self.evaluate_here(batch, key)
    }

    /// The same from what this device makes of it.
    pub(super) fn evaluate_here(&mut self, batch: &Batch, key: Key) -> Result<Evaluated, SessionError> {
        let at = self.run_evaluation(batch, &[key])?;
        let scalars = self.scalars(at)?.remove(0).scalars;
        Ok(Evaluated { scalars, predicted: self.predictions(at)? })
    }

    /// Scalars of the evaluation graph for a batch, for every member.
    pub fn evaluate_together(&mut self, batch: &Batch, keys: &[Key]) -> Result<Vec<Scalars>, SessionError> {
        let at = self.run_evaluation(batch, keys)?;
        Ok(self.scalars(at)?.into_iter().map(|outcome| outcome.scalars).collect())
    }

    /// The output of the evaluation graph with this role, for a batch.
    pub fn output(&mut self, batch: &Batch, role: OutputRole) -> Result<HostTensor, SessionError> {
        let at = self.run_evaluation(batch, &[Key { seed: 0, step: 0 }])?;
        let tensor = self.output_of(at, role)?;
        tensor.ok_or_else(|| SessionError::NoOutput { name: role.name().to_string() })
    }

    fn run_evaluation(&mut self, batch: &Batch, keys: &[Key]) -> Result<usize, SessionError> {
        let at = self.prepare(Which::Evaluate, batch, keys, &|_, _, _| None)?;
        let mut watch = self.begin(at);
        let Loaded { program, .. } = self.programs.get(at);
        let graph = self.planner.graph(Which::Evaluate);
        watch.run(&mut self.cpu, graph, program, 0..program.len())?;
        self.end(Which::Evaluate, at, watch);
        Ok(at)
    }

    fn predictions(&mut self, at: usize) -> Result<Option<HostTensor>, RunError> {
        for role in PREDICTIONS {
            if let Some(tensor) = self.output_of(at, role)? {
                return Ok(Some(tensor));
            }
        }
        Ok(None)
    }

    /// The output of the last run with this role, if there is one.
    fn output_of(&mut self, at: usize, role: OutputRole) -> Result<Option<HostTensor>, RunError> {
        let Some(output) = self.planner.graph(Which::Evaluate).output_of(role) else { return Ok(None) };
        let tensor = self.cpu.output(&self.programs.get(at).program, &output.name)?;
        self.ledger.to_host += tensor.as_ref().map_or(0, |tensor| tensor.as_bytes().len()) as u64;
        Ok(tensor)
    }
}
