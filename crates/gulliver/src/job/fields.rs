//! Takes the fields out of a section one by one, checking type and range, and complains about the
//! ones nobody took. Every error names the place, the field, the value and what is allowed.

use super::error::{JobError, Origin, one_line, suggestion};
use super::tree::{Item, Section, Value};
use crate::report::units;
use std::path::{Path, PathBuf};

/// The fields of one section that are still to be read.
pub struct Fields<'a> {
    section: Section,
    /// Where relative paths start.
    base: &'a Path,
    taken: Vec<&'static str>,
}

/// A range of real numbers: its description and its test.
pub type Range = (&'static str, fn(f64) -> bool);

/// Above zero.
pub const POSITIVE: Range = ("a number above 0", |x| x > 0.0);
/// Zero or above.
pub const NOT_NEGATIVE: Range = ("a number of at least 0", |x| x >= 0.0);
/// At least one.
pub const AT_LEAST_ONE: Range = ("a number of at least 1", |x| x >= 1.0);
/// From zero to below one: momenta, fractions.
pub const BELOW_ONE: Range = ("a number from 0 to below 1", |x| (0.0..1.0).contains(&x));
/// Between zero and one: factors that shrink.
pub const INSIDE_ONE: Range = ("a number above 0 and below 1", |x| x > 0.0 && x < 1.0);

/// The largest whole number a job file can hold.
pub const MAX: u64 = i64::MAX as u64;

impl<'a> Fields<'a> {
    /// Starts reading `section`; relative paths in it start at `base`.
    pub fn new(section: Section, base: &'a Path) -> Fields<'a> {
        Fields { section, base, taken: Vec::new() }
    }

    /// An error about the field `key` at `origin`.
    pub fn error(&self, key: &str, origin: Origin, problem: String) -> JobError {
        JobError { origin, field: one_line(&format!("{}.{key}", self.section.name)), problem }
    }

    /// Where `key` was written; the section's own place if it was not.
    pub fn origin(&self, key: &str) -> Origin {
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
        self.read(key, &allowed, |item| match &item.value {
            Value::List(items) => items.iter().map(|value| whole(value, least, most)).collect(),
            value => Some(vec![whole(value, least, most)?]),
        })
    }

    /// A number in `range`; whole numbers count.
    pub fn real(&mut self, key: &'static str, range: Range) -> Result<Option<f64>, JobError> {
        self.read(key, range.0, |item| real(&item.value).filter(|&x| range.1(x)))
    }

    /// A pair of numbers in `range`.
    pub fn real_pair(&mut self, key: &'static str, range: Range) -> Result<Option<[f64; 2]>, JobError> {
        let allowed = format!("two numbers such as [0.9, 0.99], each {}", range.0);
        self.read(key, &allowed, |item| match &item.value {
            Value::List(items) if items.len() == 2 => {
                let pair = [real(&items[0])?, real(&items[1])?];
                pair.iter().all(|&x| range.1(x)).then_some(pair)
            }
            _ => None,
        })
    }

    /// `true` or `false`.
    pub fn flag(&mut self, key: &'static str) -> Result<Option<bool>, JobError> {
        self.read(key, "true or false", |item| match item.value {
            Value::Bool(b) => Some(b),
            _ => None,
        })
    }

    /// Text that is not empty.
    pub fn text(&mut self, key: &'static str) -> Result<Option<String>, JobError> {
        self.read(key, "text in quotes", |item| text(item).filter(|text| !text.is_empty()))
    }

    /// A path, made absolute.
    pub fn path(&mut self, key: &'static str) -> Result<Option<PathBuf>, JobError> {
        let base = self.base;
        let allowed = "a path in quotes";
        self.read(key, allowed, |item| text(item).filter(|path| !path.is_empty()).map(|path| base.join(path)))
    }

    /// An array: a `.npy` file, made absolute, or a name within another file, kept as it is.
    pub fn array(&mut self, key: &'static str) -> Result<Option<String>, JobError> {
        let base = self.base;
        let array = self.text(key)?;
        Ok(array.map(|name| match name.ends_with(".npy") {
            true => base.join(name).to_string_lossy().into_owned(),
            false => name,
        }))
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
                let hint = suggestion(&given, names, "choose one of");
                Err(self.error(key, origin, format!("unknown value \"{}\"{hint}", one_line(&given))))
            }
        }
    }

    /// A number of bytes, above zero: `"256MiB"`, or a whole number.
    pub fn bytes(&mut self, key: &'static str) -> Result<Option<u64>, JobError> {
        let allowed = units::parse_bytes("").err().unwrap_or_default();
        self.read(key, &format!("{allowed}, above 0"), |item| {
            let bytes = match &item.value {
                Value::Text(text) => units::parse_bytes(text).ok(),
                value => whole(value, 1, MAX),
            };
            bytes.filter(|&n| n > 0)
        })
    }

    /// The error for a required field that is not there.
    pub fn missing(&self, key: &str, example: &str) -> JobError {
        let present: Vec<&str> = self.section.entries.iter().map(|(name, _)| name.as_str()).collect();
        let near = gulliver_run::nearest::nearest(key, present, 1);
        let hint = near.first().map_or(String::new(), |name| format!(" (is `{}` meant?)", one_line(name)));
        let problem = format!("missing; add a line such as {example}{hint}");
        self.error(key, self.section.origin.clone(), problem)
    }

    /// Takes everything not taken yet, whatever it is called.
    pub fn rest(&mut self) -> Vec<(String, Item)> {
        std::mem::take(&mut self.section.entries)
    }

    /// Refuses the options that `owner`, a choice of this section, does not have but others do.
    pub fn only<'n>(
        &self,
        owner: &str,
        options: &[&str],
        all: impl Iterator<Item = &'n &'n str>,
    ) -> Result<(), JobError> {
        for &key in all {
            if !options.contains(&key) && self.has(key) {
                let problem = format!("{owner} has no such option; it has {}", options.join(", "));
                return Err(self.error(key, self.origin(key), problem));
            }
        }
        Ok(())
    }

    /// Ends the section: an entry that was not taken is an unknown field.
    pub fn finish(self) -> Result<(), JobError> {
        let Some((name, item)) = self.section.entries.first() else { return Ok(()) };
        let hint = suggestion(name, &self.taken, &format!("[{}] has", self.section.name));
        Err(self.error(name, item.origin.clone(), format!("unknown field{hint}")))
    }

    /// Takes `key` and converts it; `None` of `convert` means that it is not what is `allowed`.
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

fn whole(value: &Value, least: u64, most: u64) -> Option<u64> {
    match value {
        Value::Int(n) => u64::try_from(*n).ok().filter(|n| (least..=most).contains(n)),
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

fn real(value: &Value) -> Option<f64> {
    match value {
        Value::Int(n) => Some(*n as f64),
        Value::Float(x) => Some(*x),
        _ => None,
    }
}

/// Text; on the command line anything is text where text is wanted.
fn text(item: &Item) -> Option<String> {
    match (&item.value, &item.raw) {
        (Value::Text(text), _) => Some(text.clone()),
        (_, raw) => raw.clone(),
    }
}
