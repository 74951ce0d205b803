//! Opens data sets from options: one function for any kind, and one for each kind below it.

use gulliver_graph::nearest::suggestion;
use std::path::Path;
use std::sync::Arc;

use super::builtin::digits::Digits;
use super::builtin::generated::{Generated, Generator, Noise, Plane, PlanePattern};
use super::builtin::grammar::grammar_text;
use super::builtin::points::Points;
use super::builtin::tokens::Tokens;
use super::format::cifar::{self, Cifar};
use super::format::file::{self, FileBytes};
use super::format::folders::ImageFiles;
use super::format::idx;
use super::format::images::{self, ImageFolder};
use super::format::npy::{NpyArray, NpyDataset};
use super::format::pixels::{Pixels, Statistics};
use super::format::sequences::{SequenceTarget, Sequences};
use super::format::table::NumericTable;
use super::format::text::{Text, TextWindows};
use super::format::texts::{Texts, labelled};
use super::format::vocabulary::Vocabulary;
use super::format::words::short;
use super::options::{DataOptions, KINDS};
use super::order::LISTED;
use super::split::{SplitIndices, Subset, fold, split, validation_count};
use super::transform::augment::Augment;
use super::transform::masked::Masked;
use super::{DataError, Dataset};

/// Training data, and validation data if there is any.
pub type Opened = (Arc<dyn Dataset>, Option<Arc<dyn Dataset>>);

/// Opens data of any kind. Mean, deviation and characters are learned from the training part only, except that the
/// characters of a file that is split are those of the whole file.
pub fn open(options: &DataOptions) -> Result<Opened, DataError> {
    let (train, validation) = match options.kind.as_str() {
        "text" => open_text(options)?,
        "lines" | "sentences" => open_lines(options)?,
        "idx" => open_idx(options)?,
        "cifar10" => open_cifar(Cifar::Ten, options)?,
        "cifar100" => open_cifar(Cifar::Hundred, options)?,
        "images" => open_images(options)?,
        "npy" => open_npy(options)?,
        "csv" => open_csv(options)?,
        "csv-text" => open_csv_text(options)?,
        "sequences" => open_grammar(options)?,
        "digits" | "blobs" | "spirals" | "points" | "noise" | "tokens" => open_built_in(options)?,
        other => {
            let hint = suggestion(other, KINDS.iter().map(|(kind, ..)| *kind), "known are");
            return Err(DataError::option("kind", format!("unknown kind `{}`{hint}", short(other))));
        }
    };
    if options.masked != 0.0 {
        let mask =
            |set| Masked::of(set, options.masked, options.seed).map(|set| Arc::new(set) as Arc<dyn Dataset>);
        return Ok((mask(train)?, validation.map(mask).transpose()?));
    }
    if !options.augment {
        return Ok((train, validation));
    }
    let augment = Augment { padding: options.padding, flip: options.flip, seed: options.seed };
    Ok((Arc::new(augment.of(train)?), validation))
}

fn path(options: &DataOptions) -> Result<&Path, DataError> {
    options.path.as_deref().ok_or_else(|| {
        DataError::option("path", format!("kind `{}` needs a file or directory", options.kind))
    })
}

/// Indices of the training and the validation examples.
fn parts(examples: usize, options: &DataOptions) -> Result<SplitIndices, DataError> {
    match options.folds {
        Some(folds) => fold(examples, options.fold, folds, options.seed),
        None => split(examples, options.validation, options.seed),
    }
}

/// Separate validation data; `None` if a fold takes its place.
fn unless_folded<T>(held: Option<T>, options: &DataOptions) -> Option<T> {
    held.filter(|_| options.folds.is_none())
}

fn vocabulary(options: &DataOptions, text: &FileBytes) -> Result<Vocabulary, DataError> {
    Vocabulary::open(&options.vocabulary, options.characters.as_deref(), options.tokenizer.as_deref(), text)
}

/// Options for validation data: with the characters of the training data.
fn with_characters(options: &DataOptions, train: &dyn Dataset) -> DataOptions {
    DataOptions { characters: train.info().characters, ..options.clone() }
}

fn open_text(options: &DataOptions) -> Result<Opened, DataError> {
    let path = path(options)?;
    let stride = options.stride.unwrap_or(options.length);
    let read = |path: &Path, options: &DataOptions| -> Result<Arc<Text>, DataError> {
        let bytes = file::text(path)?;
        let vocabulary = vocabulary(options, &bytes)?;
        Ok(Arc::new(Text::new(path, bytes, vocabulary)?))
    };
    let text = read(path, options)?;
    let windows = |text: &Arc<Text>, ids| TextWindows::new(text.clone(), ids, options.length, stride);
    if let Some(held) = unless_folded(options.validation_path.as_ref(), options) {
        let train = windows(&text, 0..text.len())?;
        let held = read(held, &with_characters(options, &train))?;
        return Ok((Arc::new(train), Some(Arc::new(windows(&held, 0..held.len())?))));
    }
    let held = validation_count(text.len(), options.validation)?;
    split_text(text, held, options, stride)
}

/// The last `held` tokens are for validation; no token is in both parts. With folds, windows are the examples, and no
/// two may predict the same token.
fn split_text(
    text: Arc<Text>,
    held: usize,
    options: &DataOptions,
    stride: usize,
) -> Result<Opened, DataError> {
    if options.folds.is_some() {
        if stride < options.length {
            let what = format!(
                "windows of {} tokens, {stride} apart, share tokens, and so would folds; use a stride of at least {0}",
                options.length
            );
            return Err(DataError::option("folds", what));
        }
        let whole = TextWindows::new(text.clone(), 0..text.len(), options.length, stride)?;
        return divided(whole, options);
    }
    let cut = text.len().saturating_sub(held);
    let train = TextWindows::new(text.clone(), 0..cut, options.length, stride)?;
    if held == 0 {
        return Ok((Arc::new(train), None));
    }
    let validation =
        TextWindows::new(text.clone(), cut..text.len(), options.length, stride).map_err(|_| {
            let what = format!(
                "{held} tokens are too few for a window of {}; hold out more, or use validation = 0",
                options.length
            );
            DataError::option("validation", what)
        })?;
    Ok((Arc::new(train), Some(Arc::new(validation))))
}

fn open_lines(options: &DataOptions) -> Result<Opened, DataError> {
    let read = |path: &Path, options: &DataOptions| -> Result<Sequences, DataError> {
        let bytes = file::text(path)?;
        let vocabulary = vocabulary(options, &bytes)?;
        Sequences::lines(path, bytes, vocabulary, options.max_length, options.kind == "sentences")
    };
    let whole = read(path(options)?, options)?;
    if let Some(held) = unless_folded(options.validation_path.as_ref(), options) {
        let held = read(held, &with_characters(options, &whole))?;
        return Ok((Arc::new(whole), Some(Arc::new(held))));
    }
    divided(whole, options)
}

fn open_csv_text(options: &DataOptions) -> Result<Opened, DataError> {
    let path = path(options)?;
    let (Texts { bytes, spans }, target) = labelled(path, options)?;
    let bytes = FileBytes::owned(path, bytes);
    let vocabulary = vocabulary(options, &bytes)?;
    let whole =
        Sequences::new(path, bytes, spans, vocabulary, options.max_length, SequenceTarget::Column(target))?;
    divided(whole, options)
}

/// A training and a validation part of a data set.
fn divided(whole: impl Dataset + 'static, options: &DataOptions) -> Result<Opened, DataError> {
    let parts = parts(whole.len(), options)?;
    Ok(subsets(Arc::new(whole), parts))
}

fn subsets(whole: Arc<dyn Dataset>, (train, validation): SplitIndices) -> Opened {
    if validation.is_empty() {
        return (whole, None);
    }
    let held = Subset { whole: whole.clone(), indices: validation };
    (Arc::new(Subset { whole, indices: train }), Some(Arc::new(held)))
}

/// The stored mean and deviation, if both are given.
fn stored(options: &DataOptions, channels: usize) -> Result<Option<Statistics>, DataError> {
    match (&options.mean, &options.std) {
        (None, None) => Ok(None),
        (Some(mean), Some(std)) if mean.len() == channels && std.len() == channels => {
            match std.iter().all(|s| *s > 0.0) {
                true => Ok(Some((mean.clone(), std.clone()))),
                false => Err(DataError::option("std", "must be positive")),
            }
        }
        _ => Err(DataError::option("mean", format!("`mean` and `std` each need {channels} values"))),
    }
}

fn pixel_sets(mut train: Pixels, test: Option<Pixels>, options: &DataOptions) -> Result<Opened, DataError> {
    let parts = match test.is_some() {
        true => split(train.len(), 0.0, options.seed)?,
        false => parts(train.len(), options)?,
    };
    if options.normalise.unwrap_or(true) {
        (train.mean, train.std) = match stored(options, train.shape[0])? {
            Some(given) => given,
            None => train.statistics(parts.0.iter().map(|&i| i as usize))?,
        };
    }
    let Some(mut test) = test else { return Ok(subsets(Arc::new(train), parts)) };
    (test.mean, test.std) = (train.mean.clone(), train.std.clone());
    Ok((Arc::new(train), Some(Arc::new(test))))
}

fn open_idx(options: &DataOptions) -> Result<Opened, DataError> {
    let path = path(options)?;
    let (train, test) = match (&options.labels, path.is_dir()) {
        (Some(labels), _) => ((path.to_path_buf(), labels.clone()), None),
        (None, true) => {
            let (train, test) = idx::find(path)?;
            (train, unless_folded(test, options))
        }
        (None, false) => {
            return Err(DataError::option("labels", "name the file of labels, or make `path` a directory"));
        }
    };
    let train = idx::open(&train.0, &train.1, options.classes)?;
    let test = match test {
        Some((images, labels)) => Some((idx::open(&images, &labels, Some(train.classes))?, images)),
        None => None,
    };
    if let Some((test, images)) = &test
        && test.shape != train.shape
    {
        let what = format!("images of {:?}, but those for training are {:?}", test.shape, train.shape);
        return Err(DataError::file(images, what));
    }
    pixel_sets(train, test.map(|(test, _)| test), options)
}

fn open_cifar(which: Cifar, options: &DataOptions) -> Result<Opened, DataError> {
    let (train, test) = cifar::find(which, path(options)?)?;
    let test = unless_folded(Some(test).filter(|files| !files.is_empty()), options);
    let test = test.map(|files| cifar::open(which, &files)).transpose()?;
    pixel_sets(cifar::open(which, &train)?, test, options)
}

fn open_images(options: &DataOptions) -> Result<Opened, DataError> {
    let (train, held) = images::find(path(options)?);
    let held = unless_folded(options.validation_path.clone().or(held), options);
    // The usual statistics of photographs: computing them would mean decoding every image.
    let customary = match options.channels {
        1 => (vec![0.45], vec![0.225]),
        _ => (vec![0.485, 0.456, 0.406], vec![0.229, 0.224, 0.225]),
    };
    let normalise = match options.normalise.unwrap_or(true) {
        true => Some(stored(options, options.channels)?.unwrap_or(customary)),
        false => None,
    };
    let size = options.size.unwrap_or([64; 2]);
    let open = |found| ImageFolder::new(found, size, options.channels, normalise.clone());
    let whole = open(ImageFiles::folders(&train, None)?)?;
    let Some(held) = held else {
        return divided(whole, options);
    };
    let validation = open(ImageFiles::folders(&held, Some(&whole.info().class_names))?)?;
    Ok((Arc::new(whole), Some(Arc::new(validation))))
}

fn open_npy(options: &DataOptions) -> Result<Opened, DataError> {
    let path = path(options)?;
    let x = NpyArray::open(path, &options.x_key)?;
    let y = NpyArray::open(options.labels.as_deref().unwrap_or(path), &options.y_key)?;
    if x.shape[0] > u32::MAX as usize {
        return Err(DataError::file(path, "has more than 2^32 examples"));
    }
    let mut whole = NpyDataset::new(x, y, options.classes)?;
    let parts = parts(whole.len(), options)?;
    if options.normalise.unwrap_or(false) {
        whole.normalise = Some(match stored(options, 1)? {
            Some((mean, std)) => (mean[0], std[0]),
            None => whole.statistics(&parts.0)?,
        });
    }
    Ok(subsets(Arc::new(whole), parts))
}

fn open_csv(options: &DataOptions) -> Result<Opened, DataError> {
    let mut table = NumericTable::open(path(options)?, options)?;
    let parts = parts(table.len(), options)?;
    table.fill(options.missing, &parts.0)?;
    if options.normalise.unwrap_or(true) {
        match stored(options, table.columns.len())? {
            Some((mean, std)) => table.set_statistics(&mean, &std)?,
            None => table.standardise(&parts.0),
        }
    }
    Ok(subsets(Arc::new(table), parts))
}

fn open_grammar(options: &DataOptions) -> Result<Opened, DataError> {
    let stride = options.stride.unwrap_or(options.length);
    let examples = options.examples.unwrap_or(10_000);
    let held = held_on_top(examples, options)?;
    let bytes = |windows: usize| match windows {
        0 => Some(0),
        _ => (windows - 1).checked_mul(stride)?.checked_add(options.length)?.checked_add(1),
    };
    // The whole text is made now and stays in memory.
    let sizes =
        bytes(examples).zip(bytes(held)).filter(|(a, b)| a.checked_add(*b).is_some_and(|n| n <= 256 << 20));
    let (train, held) = sizes.ok_or_else(|| {
        let what = format!("{examples} windows {stride} apart are more than 256 MiB of text; use fewer");
        DataError::option("examples", what)
    })?;
    let mut content = grammar_text(options.seed, train + held);
    content.truncate(train + held);
    let name = Path::new("built-in text");
    let content = FileBytes::owned(name, content.into_bytes());
    let vocabulary = vocabulary(options, &content)?;
    let text = Text::new(name, content, vocabulary)?;
    split_text(Arc::new(text), held, options, stride)
}

fn open_built_in(options: &DataOptions) -> Result<Opened, DataError> {
    let examples = options.examples.unwrap_or(10_000);
    if examples == 0 || examples > u32::MAX as usize / 2 {
        return Err(DataError::option("examples", format!("{examples} is not from 1 to 2^31")));
    }
    let sizes = [
        ("size", options.size.unwrap_or([28; 2])[0], 1 << 12),
        ("size", options.size.unwrap_or([28; 2])[1], 1 << 12),
        ("length", options.length, 1 << 24),
        ("min_length", options.min_length.unwrap_or(options.length), options.length),
        ("classes", options.classes.unwrap_or(10), 1 << 24),
        ("tokens", options.tokens, 1 << 31),
    ];
    for (name, value, limit) in sizes {
        if value == 0 || value > limit {
            return Err(DataError::option(name, format!("{value} is not from 1 to {limit}")));
        }
    }
    let elements = options.shape.iter().try_fold(1usize, |a, &b| a.checked_mul(b));
    if !elements.is_some_and(|n| (1..=1 << 32).contains(&n)) {
        return Err(DataError::option(
            "shape",
            format!("{} has no elements or too many", short(&format!("{:?}", options.shape))),
        ));
    }
    let varied = options.kind == "tokens" && options.min_length.is_some_and(|least| least < options.length);
    for (listed, why) in [
        (options.folds.is_some(), "are too many to be cut into folds"),
        (varied, "are too many of different lengths"),
    ] {
        if listed && examples > LISTED {
            return Err(DataError::option("examples", format!("{examples} {why}; use at most {LISTED}")));
        }
    }
    let held = held_on_top(examples, options)?;
    let train = built_in(options, 0, examples);
    if options.folds.is_some() {
        return Ok(subsets(train, parts(examples, options)?));
    }
    Ok((train, (held > 0).then(|| built_in(options, examples as u64, held))))
}

/// Number of validation examples made in addition to the others; none with folds.
fn held_on_top(examples: usize, options: &DataOptions) -> Result<usize, DataError> {
    if options.folds.is_some() || options.validation == 0.0 {
        return Ok(0);
    }
    validation_count(examples.max(2), options.validation)
}

fn built_in(options: &DataOptions, first: u64, examples: usize) -> Arc<dyn Dataset> {
    let DataOptions { seed, length, .. } = *options;
    let classes = options.classes.unwrap_or(if options.kind == "noise" { 10 } else { 3 });
    fn made<G: Generator + 'static>(
        seed: u64,
        first: u64,
        examples: usize,
        generator: G,
    ) -> Arc<dyn Dataset> {
        Arc::new(Generated { seed, first, examples, generator })
    }
    match options.kind.as_str() {
        "digits" => {
            let (size, normalise) = (options.size.unwrap_or([28; 2]), options.normalise.unwrap_or(true));
            made(seed, first, examples, Digits { size, normalise })
        }
        "blobs" => made(seed, first, examples, Plane { classes, pattern: PlanePattern::Blobs }),
        "spirals" => made(seed, first, examples, Plane { classes, pattern: PlanePattern::Spirals }),
        "points" => made(seed, first, examples, Points { points: length }),
        "noise" => made(seed, first, examples, Noise { shape: options.shape.clone(), classes }),
        _ => Arc::new(Tokens {
            seed,
            first,
            examples,
            vocabulary: options.tokens,
            min_length: options.min_length.unwrap_or(length),
            length,
            classes: options.classes,
        }),
    }
}

#[cfg(test)]
mod tests;
