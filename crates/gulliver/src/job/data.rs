//! `[data]`: the options of [`DataOptions`] as fields. [`KINDS`] lists which options each kind has.

use super::fields::Fields;
use super::tree::JobValue;
use crate::error::JobError;
use gulliver_graph::hyper::{ANY, BELOW_ONE};
use gulliver_run::data::options::Missing;
use gulliver_run::data::{DataOptions, KINDS};
use std::path::PathBuf;

/// `[data]`: where examples come from.
#[derive(Clone, Debug, PartialEq)]
pub struct DataSection {
    /// The data to open; paths are absolute and the seed is that of `[train]`.
    pub options: DataOptions,
    /// Whether the examples of a batch are of similar length.
    pub buckets: bool,
    /// Whether training examples come in a new random order every epoch.
    pub shuffle: bool,
}

/// Options that every kind has.
const COMMON: [&str; 5] = ["validation", "folds", "fold", "buckets", "shuffle"];

fn options_of(kind: &str) -> Vec<&'static str> {
    let own = KINDS.iter().find(|row| row.0 == kind).map_or(&[][..], |row| row.2);
    [own, &COMMON].concat()
}

pub fn read(mut fields: Fields<'_>) -> Result<DataSection, JobError> {
    let kinds: Vec<&str> = KINDS.iter().map(|row| row.0).collect();
    let kind = fields.choice("kind", &kinds)?.ok_or_else(|| fields.missing("kind", "kind = \"text\""))?;
    fields.only(kind, &options_of(kind), KINDS.iter().flat_map(|row| row.2.iter().copied()))?;
    let default = DataOptions::default();
    let fold_origin = fields.origin("fold");
    let folds = fields.size("folds", 2)?;
    let fold = fields.size("fold", 0)?;
    let problem = match (fold, folds) {
        (Some(_), None) => {
            Some("says which of data.folds is for validation, and data.folds is not there".into())
        }
        (Some(fold), Some(folds)) if fold >= folds => {
            Some(format!("must be below data.folds = {folds}, as folds are counted from 0; it is {fold}"))
        }
        _ => None,
    };
    if let Some(problem) = problem {
        return Err(fields.error("fold", fold_origin, problem));
    }
    let size_origin = fields.origin("size");
    let size = match fields.sizes("size", 1)?.as_deref() {
        None => None,
        Some(&[side]) => Some([side, side]),
        Some(&[rows, columns]) => Some([rows, columns]),
        Some(more) => {
            let problem = format!("must be one number or [rows, columns], not {} numbers", more.len());
            return Err(fields.error("size", size_origin, problem));
        }
    };
    let options = DataOptions {
        kind: kind.to_string(),
        path: fields.path("path")?,
        labels: fields.path("labels")?,
        validation_path: fields.path("validation_path")?,
        validation: fields.real("validation", BELOW_ONE)?.unwrap_or(default.validation),
        folds,
        fold: fold.unwrap_or(default.fold),
        seed: default.seed,
        examples: fields.size("examples", 1)?,
        classes: fields.size("classes", 1)?,
        length: fields.size("length", 1)?.unwrap_or(default.length),
        stride: fields.size("stride", 1)?,
        min_length: fields.size("min_length", 1)?,
        max_length: fields.size("max_length", 1)?.unwrap_or(default.max_length),
        vocabulary: fields.text("vocabulary")?.unwrap_or(default.vocabulary),
        characters: fields.text("characters")?,
        tokenizer: fields.path("tokenizer")?,
        masked: fields.real("masked", BELOW_ONE)?.unwrap_or(default.masked),
        tokens: fields.size("tokens", 1)?.unwrap_or(default.tokens),
        size,
        channels: fields.size("channels", 1)?.unwrap_or(default.channels),
        shape: fields.sizes("shape", 1)?.unwrap_or(default.shape),
        x_key: fields.text("x_key")?.unwrap_or(default.x_key),
        y_key: fields.text("y_key")?.unwrap_or(default.y_key),
        text_column: fields.text("text_column")?,
        label_column: fields.text("label_column")?,
        regression: fields.flag("regression")?.unwrap_or(default.regression),
        delimiter: fields.text("delimiter")?,
        ignore_columns: fields.texts("ignore_columns")?.unwrap_or_default(),
        missing: missing(&mut fields)?.unwrap_or(default.missing),
        normalise: fields.flag("normalise")?,
        mean: fields.reals("mean", ANY)?,
        std: fields.reals("std", ANY)?,
        augment: fields.flag("augment")?.unwrap_or(default.augment),
        padding: fields.size("padding", 0)?.unwrap_or(default.padding),
        flip: fields.flag("flip")?.unwrap_or(default.flip),
    };
    let buckets = fields.flag("buckets")?.unwrap_or(false);
    let shuffle = fields.flag("shuffle")?.unwrap_or(true);
    fields.finish()?;
    Ok(DataSection { options, buckets, shuffle })
}

/// A word or a number that says what stands in for cells without a value.
fn missing(fields: &mut Fields<'_>) -> Result<Option<Missing>, JobError> {
    fields.word_or_real("missing", &["refuse", "mean", "zero"], ANY).map(|found| {
        found.map(|found| match found {
            Ok("refuse") => Missing::Refuse,
            Ok("mean") => Missing::Mean,
            Ok(_) => Missing::Number(0.0),
            Err(number) => Missing::Number(number as f32),
        })
    })
}

fn written(missing: Missing) -> JobValue {
    match missing {
        Missing::Refuse => JobValue::Text("refuse".into()),
        Missing::Mean => JobValue::Text("mean".into()),
        Missing::Number(number) => JobValue::Float(f64::from(number)),
    }
}

/// The fields that the kind has and that are set, `kind` first.
pub fn write(data: &DataSection) -> Vec<(&'static str, JobValue)> {
    let o = &data.options;
    let text = |text: &str| Some(JobValue::Text(text.to_string()));
    // Paths of a job came from text, so nothing is lost.
    let path =
        |path: &Option<PathBuf>| path.as_ref().map(|path| JobValue::Text(path.to_string_lossy().into()));
    let size = |n: usize| Some(JobValue::Int(n as i64));
    let sizes =
        |list: &[usize]| Some(JobValue::List(list.iter().map(|&n| JobValue::Int(n as i64)).collect()));
    let reals = |list: &Option<Vec<f32>>| {
        let list = list.as_ref()?.iter();
        Some(JobValue::List(list.map(|x| JobValue::Float(f64::from(*x))).collect()))
    };
    let flag = |flag: bool| Some(JobValue::Bool(flag));
    let fields = [
        ("kind", text(&o.kind)),
        ("path", path(&o.path)),
        ("labels", path(&o.labels)),
        ("validation_path", path(&o.validation_path)),
        ("validation", Some(JobValue::Float(o.validation))),
        ("folds", o.folds.and_then(size)),
        ("fold", o.folds.and_then(|_| size(o.fold))),
        ("examples", o.examples.and_then(size)),
        ("classes", o.classes.and_then(size)),
        ("length", size(o.length)),
        ("stride", o.stride.and_then(size)),
        ("min_length", o.min_length.and_then(size)),
        ("max_length", size(o.max_length)),
        ("vocabulary", text(&o.vocabulary)),
        ("characters", o.characters.as_deref().and_then(text)),
        ("tokenizer", path(&o.tokenizer)),
        ("masked", Some(JobValue::Float(o.masked))),
        ("tokens", size(o.tokens)),
        (
            "size",
            o.size.and_then(
                |[rows, columns]| if rows == columns { size(rows) } else { sizes(&[rows, columns]) },
            ),
        ),
        ("channels", size(o.channels)),
        ("shape", sizes(&o.shape)),
        ("x_key", text(&o.x_key)),
        ("y_key", text(&o.y_key)),
        ("text_column", o.text_column.as_deref().and_then(text)),
        ("label_column", o.label_column.as_deref().and_then(text)),
        ("regression", flag(o.regression)),
        ("delimiter", o.delimiter.as_deref().and_then(text)),
        (
            "ignore_columns",
            Some(JobValue::List(o.ignore_columns.iter().cloned().map(JobValue::Text).collect())),
        ),
        ("missing", Some(written(o.missing))),
        ("normalise", o.normalise.and_then(flag)),
        ("mean", reals(&o.mean)),
        ("std", reals(&o.std)),
        ("augment", flag(o.augment)),
        ("padding", size(o.padding)),
        ("flip", flag(o.flip)),
        ("buckets", flag(data.buckets)),
        ("shuffle", flag(data.shuffle)),
    ];
    let options = options_of(&o.kind);
    let known = |key: &str| key == "kind" || options.contains(&key);
    fields.into_iter().filter(|(key, _)| known(key)).filter_map(|(key, value)| Some((key, value?))).collect()
}
