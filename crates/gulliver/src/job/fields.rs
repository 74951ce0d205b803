//! Takes the fields out of a section one by one, checks type and range, and refuses fields that were not taken. Every
//! error names the place, the field, the value and the allowed values.

use super::tree::{Item, JobValue, Section};
use crate::error::{FieldOrigin, JobError, one_line};
use crate::units;
use gulliver_graph::hyper::Range;
use gulliver_graph::nearest::{nearest, suggestion};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The fields of one section that are still to be read.
pub struct Fields<'a> {
    section: Section,
    /// Where relative paths start.
    base: &'a Path,
    taken: Vec<&'static str>,
}

/// The largest whole number a job file can hold.
pub const MAX: u64 = i64::MAX as u64;

impl<'a> Fields<'a> {
    /// Starts reading `section`; relative paths in it start at `base`.
    pub fn new(section: Section, base: &'a Path) -> Fields<'a> {
        Fields { section, base, taken: Vec::new() }
    }

    /// An error about the field `key` at `origin`.
    pub fn error(&self, key: &str, origin: FieldOrigin, problem: String) -> JobError {
        JobError { origin, field: one_line(&format!("{}.{key}", self.section.name)), problem }
    }

    /// An error about the section as a whole.
    pub fn whole_error(&self, problem: String) -> JobError {
        JobError { origin: self.section.origin.clone(), field: self.section.name.clone(), problem }
    }

    /// Where `key` was written; the section's own place if it was not.
    pub fn origin(&self, key: &str) -> FieldOrigin {
        let entry = self.section.entries.iter().find(|(name, _)| name == key);
        entry.map_or(&self.section.origin, |(_, item)| &item.origin).clone()
    }

    /// Whether `key` is there and not yet taken.
    pub fn has(&self, key: &str) -> bool {
        self.section.entries.iter().any(|(name, _)| name == key)
    }

    /// A whole number from `least` to `most`.
    pub fn whole(&mut self, key: &'static str, least: u64, most: u64) -> Result<Option<u64>, JobError> {
        self.read(key, &whole_range(least, most), |item| whole(&item.value, least, most))
    }

    /// A list of whole numbers, each from `least` to `most`; one number may stand without brackets.
    pub fn wholes(&mut self, key: &'static str, least: u64, most: u64) -> Result<Option<Vec<u64>>, JobError> {
        let allowed = format!("a list, each {}", whole_range(least, most));
        self.read(key, &allowed, |item| each(&item.value, |value| whole(value, least, most)))
    }

    /// A size or count from `least`.
    pub fn size(&mut self, key: &'static str, least: u64) -> Result<Option<usize>, JobError> {
        self.read(key, &whole_range(least, MAX), |item| size(&item.value, least))
    }

    /// A list of sizes, each from `least`; one may stand without brackets.
    pub fn sizes(&mut self, key: &'static str, least: u64) -> Result<Option<Vec<usize>>, JobError> {
        let allowed = format!("a list, each {}", whole_range(least, MAX));
        self.read(key, &allowed, |item| each(&item.value, |value| size(value, least)))
    }

    /// A number in `range`, also after rounding to single precision; whole numbers count.
    pub fn real(&mut self, key: &'static str, range: Range) -> Result<Option<f64>, JobError> {
        self.read(key, range.allowed, |item| real(&item.value, range))
    }

    /// A list of numbers in `range` in single precision; one may stand without brackets.
    pub fn reals(&mut self, key: &'static str, range: Range) -> Result<Option<Vec<f32>>, JobError> {
        let allowed = format!("a list, each {}", range.allowed);
        self.read(key, &allowed, |item| each(&item.value, |value| Some(real(value, range)? as f32)))
    }

    /// This word (`None`), or a list of numbers in `range`.
    pub fn word_or_reals(
        &mut self,
        key: &'static str,
        word: &str,
        range: Range,
    ) -> Result<Option<Option<Vec<f64>>>, JobError> {
        let allowed = format!("\"{word}\" or a list, each {}", range.allowed);
        self.read(key, &allowed, |item| match text(item).as_deref() == Some(word) {
            true => Some(None),
            false => match &item.value {
                JobValue::List(list) if !list.is_empty() => {
                    each(&item.value, |value| real(value, range)).map(Some)
                }
                _ => None,
            },
        })
    }

    /// A pair of numbers in `range`.
    pub fn real_pair(&mut self, key: &'static str, range: Range) -> Result<Option<[f64; 2]>, JobError> {
        let allowed = format!("two numbers such as [0.9, 0.99], each {}", range.allowed);
        self.read(key, &allowed, |item| match &item.value {
            JobValue::List(items) if items.len() == 2 => {
                Some([real(&items[0], range)?, real(&items[1], range)?])
            }
            _ => None,
        })
    }

    /// `true` or `false`.
    pub fn flag(&mut self, key: &'static str) -> Result<Option<bool>, JobError> {
        self.read(key, "true or false", |item| match item.value {
            JobValue::Bool(b) => Some(b),
            _ => None,
        })
    }

    /// Text that is not empty.
    pub fn text(&mut self, key: &'static str) -> Result<Option<String>, JobError> {
        self.read(key, "text in quotes", |item| text(item).filter(|text| !text.is_empty()))
    }

    /// A list of texts that are not empty; one may stand without brackets.
    pub fn texts(&mut self, key: &'static str) -> Result<Option<Vec<String>>, JobError> {
        self.read(key, "a list of texts in quotes", |item| match &item.value {
            JobValue::List(items) => items
                .iter()
                .map(|item| match item {
                    JobValue::Text(text) if !text.is_empty() => Some(text.clone()),
                    _ => None,
                })
                .collect(),
            _ => text(item).filter(|text| !text.is_empty()).map(|text| vec![text]),
        })
    }

    /// One of `words`, or a number in `range`.
    pub fn word_or_real(
        &mut self,
        key: &'static str,
        words: &[&'static str],
        range: Range,
    ) -> Result<Option<Result<&'static str, f64>>, JobError> {
        let named: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
        self.read(key, &format!("{} or {}", named.join(", "), range.allowed), |item| {
            let word = |text: String| words.iter().find(|word| **word == text).copied();
            real(&item.value, range).map(Err).or_else(|| text(item).and_then(word).map(Ok))
        })
    }

    /// A path, made absolute: in a file it starts at the file's directory, in a flag at the current directory.
    pub fn path(&mut self, key: &'static str) -> Result<Option<PathBuf>, JobError> {
        let base = self.base;
        self.read(key, "a path in quotes", |item| {
            let path = text(item).filter(|path| !path.is_empty())?;
            match item.raw {
                Some(_) => std::path::absolute(path).ok().filter(|path| path.to_str().is_some()),
                None => Some(base.join(path)),
            }
        })
    }

    /// One of `names`.
    pub fn choice(
        &mut self,
        key: &'static str,
        names: &[&'static str],
    ) -> Result<Option<&'static str>, JobError> {
        let origin = self.origin(key);
        let Some(given) = self.text(key)? else { return Ok(None) };
        match names.iter().find(|name| **name == given) {
            Some(name) => Ok(Some(name)),
            None => {
                let hint = suggestion(&given, names.iter().copied(), "choose one of");
                Err(self.error(key, origin, format!("unknown value \"{}\"{hint}", one_line(&given))))
            }
        }
    }

    /// A number of bytes, at least `least`: `"256MiB"`, or a whole number.
    pub fn bytes(&mut self, key: &'static str, least: u64) -> Result<Option<u64>, JobError> {
        let allowed = units::parse_bytes("").err().unwrap_or_default();
        let above = if least > 0 { ", above 0" } else { "" };
        self.read(key, &format!("{allowed}{above}"), |item| {
            let bytes = match &item.value {
                JobValue::Text(text) => units::parse_bytes(text).ok(),
                value => whole(value, least, MAX),
            };
            bytes.filter(|&n| n >= least)
        })
    }

    /// Bytes a second: `"12 GB/s"`, or a whole number; above 0.
    pub fn rate(&mut self, key: &'static str) -> Result<Option<u64>, JobError> {
        let allowed = "a rate such as \"12 GB/s\" or \"500MiB/s\", above 0";
        let read = |item: &Item| match &item.value {
            JobValue::Text(text) => units::parse_bytes(text.trim().strip_suffix("/s")?).ok(),
            value => whole(value, 1, MAX),
        };
        self.read(key, allowed, |item| read(item).filter(|&n| n > 0))
    }

    /// A duration: `"10us"`.
    pub fn duration(&mut self, key: &'static str) -> Result<Option<Duration>, JobError> {
        let allowed = units::parse_duration("").err().unwrap_or_default();
        self.read(key, &allowed, |item| units::parse_duration(&text(item)?).ok())
    }

    /// The error for a required field that is not there.
    pub fn missing(&self, key: &str, example: &str) -> JobError {
        let present: Vec<&str> = self.section.entries.iter().map(|(name, _)| name.as_str()).collect();
        let near = nearest(key, present, 1);
        let hint = near.first().map_or(String::new(), |name| format!(" (is `{}` meant?)", one_line(name)));
        let problem = format!("missing; add a line such as {example}{hint}");
        self.error(key, self.section.origin.clone(), problem)
    }

    /// Takes everything not taken yet, whatever it is called.
    pub fn rest(&mut self) -> Vec<(String, Item)> {
        std::mem::take(&mut self.section.entries)
    }

    /// Refuses every entry but `options`, those of `owner`, a choice of this section already taken.
    /// `all` are the options of the other choices, too.
    pub fn only<'n>(
        &self,
        owner: &str,
        options: &[&'n str],
        all: impl IntoIterator<Item = &'n str>,
    ) -> Result<(), JobError> {
        let wrong = self.section.entries.iter().find(|(key, _)| !options.contains(&key.as_str()));
        let Some((key, item)) = wrong else { return Ok(()) };
        let problem = if all.into_iter().any(|other| other == key) {
            format!("{owner} has no such option; it has {}", options.join(", "))
        } else {
            format!("unknown field{}", suggestion(key, options.iter().copied(), &format!("{owner} has")))
        };
        Err(self.error(key, item.origin.clone(), problem))
    }

    /// Ends the section: an entry that was not taken is an unknown field.
    pub fn finish(self) -> Result<(), JobError> {
        let Some((name, item)) = self.section.entries.first() else { return Ok(()) };
        let hint = suggestion(name, self.taken.iter().copied(), &format!("[{}] has", self.section.name));
        Err(self.error(name, item.origin.clone(), format!("unknown field{hint}")))
    }

    /// Takes `key` and converts it; `None` of `convert` means that the value is not `allowed`.
    fn read<T>(
        &mut self,
        key: &'static str,
        allowed: &str,
        convert: impl FnOnce(&Item) -> Option<T>,
    ) -> Result<Option<T>, JobError> {
        self.taken.push(key);
        let Some(index) = self.section.entries.iter().position(|(name, _)| name == key) else {
            return Ok(None);
        };
        let (_, item) = self.section.entries.remove(index);
        match convert(&item) {
            Some(value) => Ok(Some(value)),
            None => {
                let problem = format!("must be {allowed}, not {}", one_line(&item.value.to_string()));
                Err(self.error(key, item.origin, problem))
            }
        }
    }
}

fn whole(value: &JobValue, least: u64, most: u64) -> Option<u64> {
    match value {
        JobValue::Int(n) => u64::try_from(*n).ok().filter(|n| (least..=most).contains(n)),
        _ => None,
    }
}

fn whole_range(least: u64, most: u64) -> String {
    if most == MAX {
        format!("a whole number of at least {least}")
    } else {
        format!("a whole number from {least} to {most}")
    }
}

fn size(value: &JobValue, least: u64) -> Option<usize> {
    whole(value, least, MAX).and_then(|n| usize::try_from(n).ok())
}

/// Whether a number is in the range after rounding to single precision.
fn real(value: &JobValue, range: Range) -> Option<f64> {
    let x = match value {
        JobValue::Int(n) => *n as f64,
        JobValue::Float(x) => *x,
        _ => return None,
    };
    (range.contains(x) && range.contains(f64::from(x as f32))).then_some(x)
}

/// The elements of a list, or the one value that is not a list.
fn each<T>(value: &JobValue, convert: impl Fn(&JobValue) -> Option<T>) -> Option<Vec<T>> {
    match value {
        JobValue::List(items) => items.iter().map(convert).collect(),
        value => Some(vec![convert(value)?]),
    }
}

/// Text; on the command line anything is text where text is wanted.
pub fn text(item: &Item) -> Option<String> {
    match (&item.value, &item.raw) {
        (JobValue::Text(text), _) => Some(text.clone()),
        (_, raw) => raw.clone(),
    }
}
