//! Job files: one TOML file describes a whole run. The reader is written by hand, since every error must name file, line,
//! field, the allowed values and the value that was probably meant.

mod data;
pub(crate) mod fields;
mod sections;
pub(crate) mod tree;
mod write;

pub use data::DataSection;
pub use sections::{
    ClassWeights, DeviceEntry, DevicesSection, Length, LinksSection, ModelSection, NormGroup,
    OptimizerSection, ScheduleSection, TrainSection,
};
pub use tree::{JobValue, Override};

use crate::error::{FieldOrigin, JobError, one_line};
use crate::units;
use fields::Fields;
use gulliver_graph::model::MODELS;
use gulliver_graph::nearest::suggestion;
use gulliver_plan::devices::strategy::Strategy;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use tree::Section;

const SECTIONS: [&str; 7] = ["model", "data", "train", "optimizer", "schedule", "devices", "links"];

/// Sections that may be in double brackets, several times.
const LISTED: [&str; 1] = ["devices"];

/// Upper limit of the size of a file.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// A complete run: every default is filled in and every path absolute.
#[derive(Clone, Debug)]
pub struct Job {
    /// The model.
    pub model: ModelSection,
    /// The data.
    pub data: DataSection,
    /// Length, batch, checkpoints and more.
    pub train: TrainSection,
    /// The optimizer.
    pub optimizer: OptimizerSection,
    /// The schedule of the learning rate.
    pub schedule: ScheduleSection,
    /// The devices.
    pub devices: DevicesSection,
    /// The links between them.
    pub links: LinksSection,
    /// The file as the user named it.
    file: String,
    /// Its text, and the fields that were set over it.
    source: (String, Vec<Override>),
    /// Where each section and each dotted field was written.
    origins: BTreeMap<String, FieldOrigin>,
}

impl PartialEq for Job {
    /// Two jobs are equal if they say the same, wherever it was written.
    fn eq(&self, other: &Job) -> bool {
        let Job { model, data, train, optimizer, schedule, devices, links, file: _, source: _, origins: _ } =
            self;
        (model, data, train) == (&other.model, &other.data, &other.train)
            && (optimizer, schedule) == (&other.optimizer, &other.schedule)
            && (devices, links) == (&other.devices, &other.links)
    }
}

impl Job {
    /// Reads the job file at `path`. Relative paths in it start in its directory.
    pub fn load(path: impl AsRef<Path>) -> Result<Job, JobError> {
        Job::load_with(path, Vec::new())
    }

    /// The same with fields overridden.
    pub fn load_with(path: impl AsRef<Path>, overrides: Vec<Override>) -> Result<Job, JobError> {
        let path = path.as_ref();
        Job::read(&read_text(path)?, &path.display().to_string(), overrides)
    }

    /// Reads a job from the text of a job file. Relative paths start in the current directory.
    pub fn from_toml(text: &str) -> Result<Job, JobError> {
        Job::read(text, "job", Vec::new())
    }

    /// Reads a job from `text`. `file` is named in errors, and relative paths start in its directory. Each of `sets`
    /// is the `section.field=value` of a `--set` flag and wins over the file; its value is TOML or, failing that,
    /// text, and a relative path in it starts in the current directory.
    pub fn parse(text: &str, file: &str, sets: &[String]) -> Result<Job, JobError> {
        Job::read(text, file, sets.iter().cloned().map(Override::from).collect())
    }

    /// Sets a field such as `train.batch`, as if the job had been read with it: defaults that depend on it change too.
    /// A job whose public fields were changed by hand loses those changes. Relative paths start in the current
    /// directory.
    pub fn set(&mut self, field: &str, value: impl Into<JobValue>) -> Result<(), JobError> {
        let (text, mut overrides) = self.source.clone();
        overrides.push(Override::from(format!("{field}={}", value.into())));
        *self = Job::read(&text, &self.file, overrides)?;
        Ok(())
    }

    fn read(text: &str, file: &str, overrides: Vec<Override>) -> Result<Job, JobError> {
        let nowhere = FieldOrigin::File { file: file.to_string(), line: None };
        let base = directory_of(file).map_err(|problem| whole_file(file, problem))?;
        let mut sections = tree::parse(text, file)?;
        tree::override_with(&mut sections, &overrides)?;
        if let Some(unknown) = sections.iter().find(|section| !SECTIONS.contains(&section.name.as_str())) {
            let hint = suggestion(&unknown.name, SECTIONS, "sections are");
            let problem = format!("unknown section{hint}");
            return Err(JobError { origin: unknown.origin.clone(), field: one_line(&unknown.name), problem });
        }
        let single = |section: &&Section| section.listed && !LISTED.contains(&section.name.as_str());
        if let Some(Section { name, origin, .. }) = sections.iter().find(single) {
            let problem = "must be one section, in single brackets".to_string();
            return Err(JobError { origin: origin.clone(), field: one_line(name), problem });
        }

        let mut origins = BTreeMap::new();
        for section in &sections {
            origins.entry(section.name.clone()).or_insert(section.origin.clone());
            for (key, item) in &section.entries {
                origins.entry(format!("{}.{key}", section.name)).or_insert(item.origin.clone());
            }
        }
        let (listed, mut sections): (Vec<Section>, Vec<Section>) =
            sections.into_iter().partition(|section| section.listed);
        let mut fields = |name: &str| {
            let index = sections.iter().position(|section| section.name == name);
            let (name, origin) = (name.to_string(), nowhere.clone());
            let empty = || Section { name, origin, entries: Vec::new(), listed: false };
            Fields::new(index.map_or_else(empty, |index| sections.swap_remove(index)), &base)
        };
        let mut job = Job {
            model: sections::model(fields("model"))?,
            data: data::read(fields("data"))?,
            train: sections::train(fields("train"))?,
            optimizer: sections::optimizer(fields("optimizer"))?,
            schedule: sections::schedule(fields("schedule"))?,
            devices: match listed.is_empty() {
                true => sections::devices(fields("devices"))?,
                false => {
                    let each = listed.into_iter().map(|section| Fields::new(section, &base));
                    sections::listed_devices(each.collect())?
                }
            },
            links: sections::links(fields("links"))?,
            file: file.to_string(),
            source: (text.to_string(), overrides),
            origins,
        };
        job.data.options.seed = job.train.seed;
        if job.devices.count > 1 && !job.origins.contains_key("train.partials") {
            job.train.partials = job.devices.count;
        }
        let (devices, partials, batch) = (job.devices.count, job.train.partials, job.train.batch);
        let shared = Strategy::named(job.train.strategy).is_some_and(|strategy| strategy.divides_batch);
        if devices > 1 && shared && !partials.is_multiple_of(devices) {
            let problem = format!(
                "{devices} devices take as many partials each, and train.partials is {partials}; make it a multiple \
                 of {devices}, leave it away, or choose another train.strategy"
            );
            return Err(job.error("devices.count", problem));
        }
        if !batch.is_multiple_of(partials) {
            let problem = format!("a batch of {batch} cannot be shared evenly by {devices} devices");
            return Err(job.error("devices.count", problem));
        }
        match job.schedule.params.get("min_lr") {
            Some(&min_lr) if min_lr > job.optimizer.lr => {
                let problem =
                    format!("{min_lr} is above the learning rate {} of the optimizer", job.optimizer.lr);
                Err(job.error("schedule.min_lr", problem))
            }
            _ => Ok(job),
        }
    }

    /// The name of its file; `job` if it was read from text.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Names another file as the one the job was read from.
    pub(crate) fn name_file(&mut self, file: &Path) {
        self.file = file.display().to_string();
    }

    /// The whole job as a job file, defaults included; [`Job::parse`] gives the same job again.
    pub fn to_toml(&self) -> String {
        write::to_toml(self)
    }

    /// The fields in which `later` differs, each as `field: before, now after`.
    pub fn changes(&self, later: &Job) -> Vec<String> {
        let (before, after) = (write::fields(self), write::fields(later));
        let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        let value = |fields: &BTreeMap<String, String>, name: &String| {
            fields.get(name).map_or("not set".to_string(), |value| one_line(value))
        };
        names
            .into_iter()
            .map(|name| (name, value(&before, name), value(&after, name)))
            .filter(|(_, before, after)| before != after)
            .map(|(name, before, after)| format!("{name}: {before}, now {after}"))
            .collect()
    }

    /// An error about a section or a dotted field, such as `model.layers`, found after reading: it
    /// names the place where that was written, or the file if it was not.
    pub fn error(&self, field: &str, problem: impl Into<String>) -> JobError {
        let file = || FieldOrigin::File { file: self.file.clone(), line: None };
        let origin = self.origins.get(field).cloned().unwrap_or_else(file);
        JobError { origin, field: field.to_string(), problem: problem.into() }
    }
}

/// A model without a job file, with settings from `--set` flags: `layers=24` or `model.layers=24`.
pub fn model_with(name: &str, sets: &[String]) -> Result<ModelSection, JobError> {
    let known = MODELS.iter().find(|row| row.name == name).map(|row| row.params()).unwrap_or_default();
    let names: Vec<&str> = known.iter().map(|param| param.name).collect();
    let nowhere = FieldOrigin::File { file: name.to_string(), line: None };
    let mut entries = vec![("name".to_string(), text_item(name, nowhere.clone()))];
    for (key, item) in model_settings(name, &names, sets)? {
        entries.retain(|(other, _)| *other != key);
        entries.push((key, item));
    }
    let section = Section { name: "model".into(), origin: nowhere, entries, listed: false };
    sections::model(Fields::new(section, Path::new("")))
}

/// Reads `--set` flags that may name only the settings `names` of the model `owner`.
fn model_settings(
    owner: &str,
    names: &[&str],
    sets: &[String],
) -> Result<Vec<(String, tree::Item)>, JobError> {
    let mut found = Vec::new();
    for set in sets {
        let origin = FieldOrigin::Flag(set.clone());
        let wrong = |problem: String| JobError { origin: origin.clone(), field: String::new(), problem };
        let all = || names.join(", ");
        let Some((path, value)) = set.split_once('=') else {
            return Err(wrong(format!("must have the form setting=value; {owner} has {}", all())));
        };
        let key = path.trim().strip_prefix("model.").unwrap_or(path.trim());
        if !names.contains(&key) {
            let hint = suggestion(key, names.iter().copied(), "it has");
            let job =
                if key.contains('.') { "; other fields need a job file instead of a model" } else { "" };
            return Err(wrong(format!("{owner} has no setting `{}`{hint}{job}", one_line(key))));
        }
        let mut sections = Vec::new();
        tree::override_with(&mut sections, &[format!("model.{key}={value}")])?;
        let item = sections.pop().and_then(|mut section| section.entries.pop());
        let item = item.map(|(_, item)| tree::Item { origin: origin.clone(), ..item });
        found.extend(item.map(|item| (key.to_string(), item)));
    }
    Ok(found)
}

fn text_item(text: &str, origin: FieldOrigin) -> tree::Item {
    tree::Item { value: JobValue::Text(text.to_string()), origin, raw: None }
}

/// The text of a job file.
pub(crate) fn read_text(path: &Path) -> Result<String, JobError> {
    let file = path.display().to_string();
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|opened| opened.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|error| whole_file(&file, format!("cannot read the job file: {error}")))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let most = units::bytes(MAX_FILE_BYTES);
        return Err(whole_file(&file, format!("more than {most}; is this a job or sweep file?")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        let line = error.as_bytes()[..offset].iter().filter(|&&byte| byte == b'\n').count() + 1;
        let origin = FieldOrigin::File { file: file.clone(), line: Some(line) };
        JobError { origin, field: String::new(), problem: "not text in UTF-8".to_string() }
    })
}

pub(crate) fn whole_file(file: &str, problem: String) -> JobError {
    let origin = FieldOrigin::File { file: file.to_string(), line: None };
    JobError { origin, field: String::new(), problem }
}

/// The absolute directory of a job file. It must be text, because the job is written out as text.
pub(crate) fn directory_of(file: &str) -> Result<PathBuf, String> {
    let parent = Path::new(file).parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = std::path::absolute(parent.unwrap_or(Path::new(".")))
        .map_err(|error| format!("cannot find the current directory: {error}"))?;
    match directory.to_str() {
        Some(_) => Ok(directory),
        None => Err("the path of its directory is not text in UTF-8".to_string()),
    }
}

#[cfg(test)]
mod tests;
