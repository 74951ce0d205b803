//! `gulliver generate RUN --prompt TEXT`: has a trained language model continue a text.

use super::trained::ModelArguments;
use crate::error::Error;
use crate::interrupt;
use crate::trained::{Predicts, Use, softmax};
use clap::Args;
use gulliver_graph::random::{RandomStream, hash_name};
use gulliver_run::data::format::vocabulary::Vocabulary;
use std::io::{self, Write};
use std::sync::atomic::Ordering;

/// Continues a text with the model of a run.
#[derive(Args)]
pub struct GenerateArguments {
    #[command(flatten)]
    model: ModelArguments,
    /// The text to continue.
    #[arg(long, default_value = "\n", hide_default_value = true)]
    prompt: String,
    /// Tokens to add.
    #[arg(long, default_value_t = 200)]
    length: u64,
    /// How daring to be: 0 always takes the likeliest token, 1 follows the probabilities.
    #[arg(long, default_value_t = 1.0)]
    temperature: f64,
    /// Chooses among this many of the likeliest tokens only; 0: among all.
    #[arg(long, default_value_t = 0)]
    top_k: usize,
    /// Decides all choices: the same seed gives the same text.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

/// Runs the command.
pub fn run(arguments: &GenerateArguments) -> Result<(), Error> {
    let stop = interrupt::install()?;
    if !(arguments.temperature.is_finite() && arguments.temperature >= 0.0) {
        let problem = format!("--temperature {}: must be a number of at least 0", arguments.temperature);
        return Err(Error::Invalid(problem));
    }
    let mut trained = arguments.model.load(Use::Predict)?;
    match trained.predicts {
        Predicts::NextTokens => {}
        Predicts::HiddenTokens => {
            return Err(arguments.model.refuse(
                &trained,
                "finds hidden tokens, it cannot continue texts",
                "evaluate",
            ));
        }
        _ => return Err(arguments.model.refuse(&trained, "predicts one thing of each input", "predict")),
    }
    let vocabulary = trained.mapping.vocabulary()?.ok_or_else(|| {
        Error::Invalid("the model was trained on token ids without a text they stand for".into())
    })?;
    let encoded = vocabulary.encode(&arguments.prompt);
    let mut tokens = encoded.map_err(|what| Error::Invalid(format!("--prompt: {what}")))?;
    if tokens.is_empty() {
        return Err(Error::Invalid("--prompt: must have at least one token".into()));
    }
    let mut out = io::stdout().lock();
    let mut shown = Shown::default();
    shown.more(&vocabulary, &tokens, &mut out)?;
    let stream = RandomStream::new(arguments.seed, hash_name("generate"), 0);
    for i in 0..arguments.length {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let from = tokens.len().saturating_sub(trained.context());
        let logits = trained.next_token(&tokens[from..])?;
        tokens.push(chosen(&logits, arguments.temperature, arguments.top_k, stream.uniform_at(i)));
        shown.more(&vocabulary, &tokens, &mut out)?;
    }
    Ok(writeln!(out)?)
}

/// What was printed so far.
#[derive(Default)]
struct Shown(usize);

impl Shown {
    /// Prints what the tokens say beyond it. The last character may want more tokens than there are yet.
    fn more(&mut self, vocabulary: &Vocabulary, tokens: &[u32], out: &mut dyn Write) -> io::Result<()> {
        let text = vocabulary.decode(tokens);
        let whole = text.trim_end_matches(char::REPLACEMENT_CHARACTER);
        if let Some(new) = whole.get(self.0..) {
            write!(out, "{new}")?;
            out.flush()?;
            self.0 = whole.len();
        }
        Ok(())
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
        let (mut shown, mut out) = (Shown::default(), Vec::new());
        let ids: Vec<u32> = "aé大".bytes().map(u32::from).collect();
        for end in 1..=ids.len() {
            shown.more(&Vocabulary::Bytes, &ids[..end], &mut out).unwrap();
        }
        assert_eq!(String::from_utf8(out).unwrap(), "aé大");
    }
}
