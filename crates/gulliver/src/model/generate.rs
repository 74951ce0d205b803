//! Texts continued by a language model, token by token.

use super::{Model, Predicts};
use crate::error::Error;
use gulliver_graph::random::{RandomStream, hash_name};
use gulliver_run::data::Batch;
use gulliver_run::data::format::vocabulary::Vocabulary;
use gulliver_run::host::{HostData, HostTensor};
use std::ops::ControlFlow;

/// How a text is continued.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GenerateOptions {
    /// Tokens to add.
    pub length: u64,
    /// Divides the logits: 0 always takes the likeliest token, 1 follows the probabilities.
    pub temperature: f64,
    /// Chooses among this many of the likeliest tokens only; 0: among all.
    pub top_k: usize,
    /// Decides all choices: the same seed gives the same text.
    pub seed: u64,
}

impl Default for GenerateOptions {
    fn default() -> GenerateOptions {
        GenerateOptions { length: 200, temperature: 1.0, top_k: 0, seed: 0 }
    }
}

impl Model {
    /// The prompt with its continuation.
    pub fn generate(&mut self, prompt: &str, options: &GenerateOptions) -> Result<String, Error> {
        let mut text = String::new();
        self.generate_each(prompt, options, &mut |piece| {
            text += piece;
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(text)
    }

    /// The same piece by piece, the prompt first; an error or `Break` of `each` ends the text.
    pub fn generate_each(
        &mut self,
        prompt: &str,
        options: &GenerateOptions,
        each: &mut dyn FnMut(&str) -> Result<ControlFlow<()>, Error>,
    ) -> Result<(), Error> {
        let GenerateOptions { length, temperature, top_k, seed } = *options;
        if !(temperature.is_finite() && temperature >= 0.0) {
            let problem = format!("temperature {temperature}: must be a number of at least 0");
            return Err(Error::Invalid(problem));
        }
        match self.predicts {
            Predicts::NextTokens => {}
            Predicts::HiddenTokens => {
                return Err(self.refuse("finds hidden tokens, it cannot continue texts", "evaluate"));
            }
            _ => return Err(self.refuse("predicts one thing of each input", "predict")),
        }
        let vocabulary = self.mapping.vocabulary()?.ok_or_else(|| {
            Error::Invalid("the model was trained on token ids without a text they stand for".into())
        })?;
        let encoded = vocabulary.encode(prompt);
        let mut tokens = encoded.map_err(|what| Error::Invalid(format!("prompt: {what}")))?;
        if tokens.is_empty() {
            return Err(Error::Invalid("prompt: must have at least one token".into()));
        }
        let mut shown = Shown::default();
        let mut go_on = each(&shown.more(&vocabulary, &tokens))?;
        let stream = RandomStream::new(seed, hash_name("generate"), 0);
        for i in 0..length {
            if go_on.is_break() {
                break;
            }
            let from = tokens.len().saturating_sub(self.context());
            let logits = self.next_token(&tokens[from..])?;
            tokens.push(chosen(&logits, temperature, top_k, stream.uniform_at(i)));
            go_on = each(&shown.more(&vocabulary, &tokens))?;
        }
        Ok(())
    }

    /// Logits of the token that follows these.
    fn next_token(&mut self, tokens: &[u32]) -> Result<Vec<f32>, Error> {
        // Later positions do not matter to a position: few lengths need few plans.
        let length = tokens.len().next_power_of_two().max(8).min(self.context().max(tokens.len()));
        let mut ids: Vec<i64> = tokens.iter().map(|&id| i64::from(id)).collect();
        ids.resize(length, 0);
        let x = HostTensor::new(&[1, length], HostData::I64(ids)).expect("as many as the shape says");
        let batch = Batch { fields: vec![("x".to_string(), x)] };
        let output = self.predicts.output();
        let logits = self.predictor()?.output(&batch, output)?;
        let width = logits.shape().last().copied().unwrap_or(1).max(1);
        let row = logits.as_f32().unwrap_or_default().chunks(width).nth(tokens.len().saturating_sub(1));
        Ok(row.unwrap_or_default().to_vec())
    }
}

/// The length of the text that was handed out.
#[derive(Default)]
struct Shown(usize);

impl Shown {
    /// The text of the tokens beyond it, in whole characters: the last one may need more tokens than there are yet.
    fn more(&mut self, vocabulary: &Vocabulary, tokens: &[u32]) -> String {
        let text = vocabulary.decode(tokens);
        let whole = text.trim_end_matches(char::REPLACEMENT_CHARACTER);
        let Some(new) = whole.get(self.0..) else { return String::new() };
        self.0 = whole.len();
        new.to_string()
    }
}

/// The token that a number from 0 to below 1 falls on, among the likeliest `top_k`.
fn chosen(logits: &[f32], temperature: f64, top_k: usize, number: f32) -> u32 {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    // Likeliest first; of equals the first.
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    order.truncate(if top_k == 0 { logits.len() } else { top_k });
    if temperature == 0.0 {
        order.truncate(1);
    }
    let kept: Vec<f32> = order.iter().map(|&token| logits[token]).collect();
    let mut left = f64::from(number);
    for (&token, p) in order.iter().zip(softmax(&kept, temperature.max(1e-9))) {
        left -= f64::from(p);
        if left < 0.0 {
            return token as u32;
        }
    }
    order.first().map_or(0, |&token| token as u32)
}

/// Probabilities that follow from logits at a temperature.
pub(super) fn softmax(logits: &[f32], temperature: f64) -> Vec<f32> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f64> = logits.iter().map(|x| (f64::from(x - most) / temperature).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|power| (power / sum) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_chosen_by_their_probabilities() {
        // Probabilities of 1/2, 1/4, 1/4 in the order 1, 0, 2.
        let logits = [0.0, 2.0f32.ln(), 0.0];
        for (temperature, top_k, number, expected) in [
            (1.0, 0, 0.0, 1),
            (1.0, 0, 0.49, 1),
            (1.0, 0, 0.51, 0),
            (1.0, 0, 0.76, 2),
            (1.0, 0, 0.999_999, 2),
            (1.0, 2, 0.66, 1),
            (1.0, 2, 0.67, 0),
            (1.0, 1, 0.99, 1),
            (0.0, 0, 0.99, 1),
            (0.01, 0, 0.99, 1),
            (100.0, 0, 0.33, 1),
            (100.0, 0, 0.34, 0),
        ] {
            assert_eq!(
                chosen(&logits, temperature, top_k, number),
                expected,
                "{temperature} {top_k} {number}"
            );
        }
        assert_eq!(chosen(&[], 1.0, 0, 0.5), 0);
    }

    #[test]
    fn text_is_shown_once_and_in_whole_characters() {
        let (mut shown, mut text) = (Shown::default(), String::new());
        let ids: Vec<u32> = "aé大".bytes().map(u32::from).collect();
        for end in 1..=ids.len() {
            text += &shown.more(&Vocabulary::Bytes, &ids[..end]);
        }
        assert_eq!(text, "aé大");
    }
}
