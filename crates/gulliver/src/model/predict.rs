//! Predictions of classes and numbers.

use super::generate::softmax;
use super::{Model, Predicts};
use crate::error::Error;
use gulliver_run::data::Batch;
use gulliver_run::data::mapping::Inputs;
use gulliver_run::host::{HostData, HostTensor};
use serde::Serialize;
use std::ops::ControlFlow;
use std::path::Path;

/// Examples that are predicted at once, unless told otherwise.
const BATCH: usize = 64;

/// The prediction for one example.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// The name of the example: its file, row or line.
    pub input: String,
    /// The probability of every class in order, or the predicted numbers.
    pub values: Vec<f32>,
}

impl Prediction {
    /// The likeliest class and its probability; the first of equals.
    pub fn likeliest(&self) -> (usize, f32) {
        let values = &self.values;
        let best = (0..values.len()).fold(0, |best, k| if values[k] > values[best] { k } else { best });
        (best, values.get(best).copied().unwrap_or_default())
    }
}

impl Model {
    /// Predictions for every example of some files.
    pub fn predict<P: AsRef<Path>>(&mut self, files: &[P]) -> Result<Vec<Prediction>, Error> {
        let inputs = self.open_inputs(files)?;
        let mut all = Vec::new();
        self.predict_each(&inputs, BATCH, &mut |prediction| {
            all.push(prediction);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(all)
    }

    /// The same one by one, `batch` examples computed at a time. An error or `Break` of `each` ends the predictions;
    /// the result says whether there was one for every example.
    pub fn predict_each(
        &mut self,
        inputs: &Inputs,
        batch: usize,
        each: &mut dyn FnMut(Prediction) -> Result<ControlFlow<()>, Error>,
    ) -> Result<bool, Error> {
        self.check_predicts()?;
        let count = inputs.set.len();
        for first in (0..count).step_by(batch.max(1)) {
            let indices: Vec<usize> = (first..count.min(first + batch.max(1))).collect();
            let rows = self.predict_batch(&inputs.set.batch(&indices)?)?;
            for (&i, values) in indices.iter().zip(rows) {
                if each(Prediction { input: inputs.name(i), values })?.is_break() {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Predictions for examples in memory: their numbers as files have them (pixels from 0 to 1), one example
    /// after the other. Each has as many numbers as an example of the training data.
    pub fn predict_values(&mut self, values: &[f32]) -> Result<Vec<Prediction>, Error> {
        self.check_predicts()?;
        let (shape, mean, std) = (&self.mapping.shape, &self.mapping.mean, &self.mapping.std);
        let numbers: usize = shape.iter().product();
        if self.mapping.tokens.is_some() || numbers == 0 || !values.len().is_multiple_of(numbers) {
            let problem =
                format!("{} numbers are not whole examples of shape {shape:?}, as in training", values.len());
            return Err(Error::Invalid(problem));
        }
        // One mean for each column or channel, or one for all numbers.
        let each = numbers / mean.len().max(1);
        let normal = |(i, &x): (usize, &f32)| match mean.is_empty() {
            true => x,
            false => (x - mean[i % numbers / each]) / std[i % numbers / each],
        };
        let x: Vec<f32> = values.iter().enumerate().map(normal).collect();
        let shape: Vec<usize> = [values.len() / numbers].into_iter().chain(shape.iter().copied()).collect();
        let x = HostTensor::new(&shape, HostData::F32(x)).expect("as many numbers as the shape says");
        let rows = self.predict_batch(&Batch { fields: vec![("x".to_string(), x)] })?;
        let named = |(i, values)| Prediction { input: format!("example {}", i + 1), values };
        Ok(rows.into_iter().enumerate().map(named).collect())
    }

    /// The predictions of a batch that is normalised as in training.
    fn predict_batch(&mut self, batch: &Batch) -> Result<Vec<Vec<f32>>, Error> {
        let predicts = self.predicts;
        let result = self.predictor()?.output(batch, predicts.output())?;
        let width = result.shape().last().copied().unwrap_or(1).max(1);
        let rows = result.as_f32().unwrap_or_default().chunks(width);
        Ok(match predicts {
            Predicts::Numbers => rows.map(<[f32]>::to_vec).collect(),
            _ => rows.map(|row| softmax(row, 1.0)).collect(),
        })
    }

    /// Refuses models of texts, which predict a token at every position.
    pub fn check_predicts(&self) -> Result<(), Error> {
        match self.predicts {
            Predicts::Classes | Predicts::Numbers => Ok(()),
            Predicts::NextTokens => Err(self.refuse("continues texts", "generate")),
            Predicts::HiddenTokens => Err(self.refuse("finds hidden tokens of texts", "evaluate")),
        }
    }
}
