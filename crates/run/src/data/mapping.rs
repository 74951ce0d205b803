//! The meaning of inputs and outputs, learned from the training data and stored beside the weights. It turns raw files
//! into batches like those of training, and compares two sets of data.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

use super::format::vocabulary::Vocabulary;
use super::format::words::{few, short};
use super::{DataError, DataInfo, DataOptions};

mod inputs;
#[cfg(test)]
mod tests;

pub use inputs::Inputs;

/// How raw inputs become "x", and the meaning of "y". Fields that do not apply to a kind of data are empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Mapping {
    /// Kind of the training data.
    pub kind: String,
    /// Shape of "x" per example; 0 stands for a variable extent. Images: channels, rows, columns.
    pub shape: Vec<usize>,
    /// Number of classes, when "y" is a class.
    pub classes: Option<usize>,
    /// Names of the classes in the order of their ids; may be empty.
    pub class_names: Vec<String>,
    /// Numbers to predict per example, when "y" is numbers.
    pub targets: Option<usize>,
    /// Mean subtracted from "x", per channel or column.
    pub mean: Vec<f32>,
    /// Standard deviation that "x" is then divided by.
    pub std: Vec<f32>,
    /// Names of the feature columns of a table, in the order of "x".
    pub columns: Vec<String>,
    /// Value for a missing cell of each column; empty when missing cells are refused.
    pub fill: Vec<f32>,
    /// Column that holds the class or number to predict.
    pub label_column: Option<String>,
    /// Column that holds the text.
    pub text_column: Option<String>,
    /// Kind of token ids: "bytes", "chars" or "tokenizer".
    pub vocabulary: Option<String>,
    /// Number of token ids.
    pub tokens: Option<usize>,
    /// All characters in the order of their ids, for "chars".
    pub characters: Option<String>,
    /// The `tokenizer.json` in full, for "tokenizer".
    pub tokenizer: Option<String>,
    /// Tokens per window of text.
    pub length: usize,
    /// Longer sequences are truncated.
    pub max_length: usize,
    /// Share of the tokens that are hidden and predicted.
    pub masked: f64,
    /// Name of x in a .npz.
    pub x_key: String,
    /// Name of y in a .npz.
    pub y_key: String,
}

impl Mapping {
    /// The mapping of data opened with these options.
    pub fn of(options: &DataOptions, info: &DataInfo) -> Mapping {
        let kind = options.kind.as_str();
        let table = matches!(kind, "csv" | "csv-text");
        let text = matches!(kind, "text" | "lines" | "sentences" | "sequences" | "csv-text");
        Mapping {
            kind: options.kind.clone(),
            shape: info.shape.clone(),
            classes: info.classes,
            class_names: info.class_names.clone(),
            targets: info.targets,
            mean: info.mean.clone(),
            std: info.std.clone(),
            columns: info.columns.clone(),
            fill: info.fill.clone(),
            label_column: options.label_column.clone().filter(|_| table),
            text_column: options.text_column.clone().filter(|_| kind == "csv-text"),
            vocabulary: text.then(|| options.vocabulary.clone()),
            tokens: info.vocabulary,
            characters: info.characters.clone(),
            tokenizer: info.tokenizer.as_ref().map(|json| json.to_string()),
            length: options.length,
            max_length: options.max_length,
            masked: options.masked,
            x_key: options.x_key.clone(),
            y_key: options.y_key.clone(),
        }
    }

    /// The vocabulary, if "x" is text.
    pub fn vocabulary(&self) -> Result<Option<Vocabulary>, DataError> {
        match (self.vocabulary.as_deref(), &self.characters, &self.tokenizer) {
            (None, ..) => Ok(None),
            (Some("chars"), Some(characters), _) => Vocabulary::from_characters(characters).map(Some),
            (Some("tokenizer"), _, Some(json)) => Vocabulary::from_tokenizer_json(json).map(Some),
            (Some("bytes"), ..) => Ok(Some(Vocabulary::Bytes)),
            (Some(other), ..) => {
                let what = format!("`{}` is stored without the meaning of its ids", short(other));
                Err(DataError::option("vocabulary", what))
            }
        }
    }

    /// Channels, rows and columns, if "x" is an image.
    pub fn image(&self) -> Option<[usize; 3]> {
        self.shape.as_slice().try_into().ok().filter(|_| self.vocabulary.is_none())
    }

    /// The shape of "x" that must match; empty for text, whose windows may have any length.
    fn extents(&self) -> &[usize] {
        if self.tokens.is_some() { &[] } else { &self.shape }
    }

    /// Messages on how `other`, the present data, differs from this, the former data. Empty if inputs and outputs mean the
    /// same; paths, numbers of examples and window lengths do not count.
    pub fn differences(&self, other: &Mapping) -> Vec<String> {
        let mut out = Vec::new();
        let mut say =
            |what: &str, text: Option<String>| out.extend(text.map(|text| format!("{what}: {text}")));
        if let (Some([c, h, w]), Some([channels, rows, columns])) = (self.image(), other.image()) {
            say("channels", changed(&c, &channels));
            say("image size", changed(&format!("{h} x {w}"), &format!("{rows} x {columns}")));
        } else {
            say(
                "shape of an input",
                changed(&format!("{:?}", self.extents()), &format!("{:?}", other.extents())),
            );
        }
        say("columns", names(&self.columns, &other.columns));
        say("mean", numbers(&self.mean, &other.mean, &other.columns));
        say("deviation", numbers(&self.std, &other.std, &other.columns));
        say("numbers for missing cells", numbers(&self.fill, &other.fill, &other.columns));
        say("vocabulary", changed(&optional(&self.vocabulary), &optional(&other.vocabulary)));
        say("characters", characters(&self.characters, &other.characters));
        let tokenizer = (self.tokenizer != other.tokenizer).then(|| "another one".to_string());
        say("tokenizer", tokenizer);
        if self.characters == other.characters {
            say("number of tokens", changed(&optional(&self.tokens), &optional(&other.tokens)));
        }
        say("class names", names(&self.class_names, &other.class_names));
        if self.class_names == other.class_names {
            say("number of classes", changed(&optional(&self.classes), &optional(&other.classes)));
        }
        say("numbers to predict", changed(&optional(&self.targets), &optional(&other.targets)));
        out
    }
}

fn optional<T: ToString>(value: &Option<T>) -> String {
    value.as_ref().map_or("none".to_string(), T::to_string)
}

fn changed<T: ToString + PartialEq>(before: &T, now: &T) -> Option<String> {
    (before != now).then(|| format!("{} instead of {}", short(&now.to_string()), short(&before.to_string())))
}

/// The names that are new and those that are gone.
fn names(before: &[String], now: &[String]) -> Option<String> {
    if before == now {
        return None;
    }
    let missing_in = |list: &[String], other: &[String]| -> Vec<String> {
        let other: BTreeSet<&String> = other.iter().collect();
        list.iter().filter(|name| !other.contains(name)).map(|name| format!("`{}`", short(name))).collect()
    };
    Some(
        new_and_gone(&missing_in(now, before), &missing_in(before, now)).unwrap_or_else(|| {
            format!("in another order or number: {} instead of {}", few(now), few(before))
        }),
    )
}

fn characters(before: &Option<String>, now: &Option<String>) -> Option<String> {
    if before == now {
        return None;
    }
    let list = |text: &Option<String>| text.clone().unwrap_or_default().chars().collect::<Vec<char>>();
    let (before, now) = (list(before), list(now));
    let missing_in = |list: &[char], other: &[char]| -> Vec<String> {
        let other: BTreeSet<&char> = other.iter().collect();
        list.iter().filter(|c| !other.contains(c)).map(|c| format!("{c:?}")).collect()
    };
    let said = new_and_gone(&missing_in(&now, &before), &missing_in(&before, &now));
    Some(said.unwrap_or_else(|| "in another order".to_string()))
}

fn new_and_gone(new: &[String], gone: &[String]) -> Option<String> {
    let say = |list: &[String], what: &str| {
        let verb = if list.len() == 1 { "is" } else { "are" };
        (!list.is_empty()).then(|| format!("{} {verb} {what}", few(list)))
    };
    let parts: Vec<String> = [say(new, "new"), say(gone, "gone")].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// The first number that differs, with its column, and how many more differ.
fn numbers(before: &[f32], now: &[f32], columns: &[String]) -> Option<String> {
    if before.len() != now.len() {
        return Some(format!("{} numbers instead of {}", now.len(), before.len()));
    }
    let mut different = (0..now.len()).filter(|&i| before[i].to_bits() != now[i].to_bits());
    let first = different.next()?;
    let column = columns.get(first).map_or(String::new(), |name| format!(" for `{}`", short(name)));
    let more = match different.count() {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    Some(format!("{} instead of {}{column}{more}", now[first], before[first]))
}
