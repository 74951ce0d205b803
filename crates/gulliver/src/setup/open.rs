//! Opens the data of a job, with the normalisation and characters of the weights that it starts from.

use crate::error::Error;
use crate::job::Job;
use crate::model::stored_mapping;
use gulliver_run::data::mapping::Mapping;
use gulliver_run::data::open::Opened;
use gulliver_run::data::{self, DataError, DataInfo, DataOptions};

/// Opens the data of a job. A job that starts from weights takes over their normalisation and characters, unless it
/// sets its own.
pub fn open_data(job: &Job) -> Result<Opened, Error> {
    let mut options = job.data.options.clone();
    options.seed = job.train.seed;
    let open = |options: &DataOptions| data::open(options).map_err(|error| data_error(job, error));
    let opened = open(&options)?;
    let stored = job.train.weights.as_ref().and_then(|path| stored_mapping(path).ok().flatten());
    match stored.and_then(|stored| adopted(&options, &opened.0.info(), &stored)) {
        Some(options) => open(&options),
        None => Ok(opened),
    }
}

/// The options with the normalisation and characters of a stored mapping, where they fit the data and are not set; none
/// if nothing changes.
fn adopted(options: &DataOptions, info: &DataInfo, stored: &Mapping) -> Option<DataOptions> {
    let mut adopted = options.clone();
    let alike = info.mean.len() == stored.mean.len() && info.columns == stored.columns;
    if alike && !info.mean.is_empty() && options.mean.is_none() {
        (adopted.mean, adopted.std) = (Some(stored.mean.clone()), Some(stored.std.clone()));
    }
    if let (Some(own), Some(known), None) = (&info.characters, &stored.characters, &options.characters)
        && own.chars().all(|c| known.contains(c))
    {
        adopted.characters = Some(known.clone());
    }
    (adopted != *options).then_some(adopted)
}

/// An error of the data, with file, line and field if a field of the job is to blame.
pub fn data_error(job: &Job, error: DataError) -> Error {
    let options = &job.data.options;
    match error {
        DataError::Option { option: "batch", what } => job.error("train.batch", what).into(),
        DataError::Option { option, what } => job.error(&format!("data.{option}"), what).into(),
        DataError::Io { path, source } => {
            let fields = [
                ("data.path", &options.path),
                ("data.labels", &options.labels),
                ("data.validation_path", &options.validation_path),
                ("data.tokenizer", &options.tokenizer),
            ];
            match fields.into_iter().find(|(_, named)| named.as_ref() == Some(&path)) {
                Some((field, _)) => job.error(field, format!("{}: {source}", path.display())).into(),
                None => DataError::Io { path, source }.into(),
            }
        }
        other => other.into(),
    }
}
