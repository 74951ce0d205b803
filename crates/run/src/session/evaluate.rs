//! Evaluation of a batch: scalars, and a prediction for each example.

use super::{RankSession, Scalars, Session, SessionError, StepKey};
use crate::data::Batch;
use crate::host::HostTensor;
use gulliver_graph::dim::Bindings;
use gulliver_graph::role::OutputRole;
use gulliver_plan::document::job::Purpose;

/// Outputs of the evaluation graph that predict the class or the numbers of each example.
const PREDICTIONS: [OutputRole; 2] = [OutputRole::Guess, OutputRole::Prediction];

/// The results of the evaluation of a batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evaluated {
    /// Scalar outputs.
    pub scalars: Scalars,
    /// The class of each example (i64) or its numbers (f32), if the model predicts either.
    pub predicted: Option<HostTensor>,
}

impl Evaluated {
    /// Adds the results of another device for the same batch.
    pub(super) fn join(mut self, other: Evaluated) -> Evaluated {
        self.scalars.extend(other.scalars);
        self.predicted = self.predicted.or(other.predicted);
        self
    }
}

impl Session {
    /// Scalars of the evaluation graph for a batch.
    pub fn evaluate(&mut self, batch: &Batch, key: StepKey) -> Result<Scalars, SessionError> {
        Ok(self.evaluate_fully(batch, key)?.scalars)
    }

    /// Scalars of the evaluation graph for a batch, and its predictions for each example.
    pub fn evaluate_fully(&mut self, batch: &Batch, key: StepKey) -> Result<Evaluated, SessionError> {
        if self.ranks.len() > 1 && self.ranks[0].exchanges_within() {
            return self.evaluate_on_all(batch, key);
        }
        let sizes = self.sizes(Purpose::Evaluate, batch)?;
        self.first().evaluate((batch, &sizes), key)
    }

    /// The output of the evaluation graph with this role, for a batch.
    pub fn output(&mut self, batch: &Batch, role: OutputRole) -> Result<HostTensor, SessionError> {
        let sizes = self.sizes(Purpose::Evaluate, batch)?;
        let first = self.first();
        let at = first.run_evaluation((batch, &sizes), StepKey { seed: 0, step: 0 })?;
        let tensor = first.output_of(at, role)?;
        tensor.ok_or_else(|| SessionError::NoOutput { name: role.name().to_string() })
    }
}

impl RankSession {
    /// The results that this device has of the evaluation of a batch.
    pub(super) fn evaluate(
        &mut self,
        fed: (&Batch, &Bindings),
        key: StepKey,
    ) -> Result<Evaluated, SessionError> {
        let at = self.run_evaluation(fed, key)?;
        let scalars = self.scalars(at)?.remove(0).scalars;
        Ok(Evaluated { scalars, predicted: self.predictions(at)? })
    }

    fn run_evaluation(&mut self, fed: (&Batch, &Bindings), key: StepKey) -> Result<usize, SessionError> {
        let at = self.prepare(Purpose::Evaluate, fed, &[key], &|_, _, _| None)?;
        let mut watch = self.begin(at);
        let steps = self.programs.get(at).made.plan.steps.len();
        self.run(at, 0..steps, &mut watch)?;
        self.end(Purpose::Evaluate, at, watch);
        Ok(at)
    }

    fn predictions(&mut self, at: usize) -> Result<Option<HostTensor>, SessionError> {
        for role in PREDICTIONS {
            if let Some(tensor) = self.output_of(at, role)? {
                return Ok(Some(tensor));
            }
        }
        Ok(None)
    }

    /// The output of the last run with this role, if there is one.
    fn output_of(&mut self, at: usize, role: OutputRole) -> Result<Option<HostTensor>, SessionError> {
        let found = self.programs.get(at).outputs.iter().find(|output| output.place.role == role);
        let Some(output) = found else { return Ok(None) };
        let tensor = self.output(output)?;
        self.ledger.to_host += tensor.as_bytes().len() as u64;
        Ok(Some(tensor))
    }
}
