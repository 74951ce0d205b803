//! Sweep files: a base job, how to search, and the space. Mistakes are answered as in job files, with file,
//! line and field.

mod parameters;

use super::search::{asha, hyperband};
use super::space::{Parameter, SearchSpace, TrialPoint};
use crate::error::{FieldOrigin, JobError, one_line};
use crate::job::fields::Fields;
use crate::job::tree::{self, Item, Section};
use crate::job::{self, Job, JobValue};
use gulliver_graph::nearest::suggestion;
use parameters::read_space;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// How the next trials are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchAlgorithm {
    /// Every point of a grid.
    Grid,
    /// Random points.
    Random,
    /// Random points; the worst are stopped early, in rounds.
    Hyperband,
    /// Random points; a trial goes on as soon as it is among the best known on its rung.
    Asha,
    /// Points that resemble the good trials and not the bad ones.
    Tpe,
}

impl SearchAlgorithm {
    /// As a sweep file names it.
    pub fn name(self) -> &'static str {
        ALGORITHMS.iter().find(|row| row.1 == self).map_or("", |row| row.0)
    }
}

/// Algorithms, with the fields of `[sweep]` that each has besides the common ones.
const ALGORITHMS: [(&str, SearchAlgorithm, &[&str]); 5] = [
    ("grid", SearchAlgorithm::Grid, &[]),
    ("random", SearchAlgorithm::Random, &["trials"]),
    ("hyperband", SearchAlgorithm::Hyperband, &["eta", "rungs", "brackets"]),
    ("asha", SearchAlgorithm::Asha, &["trials", "width", "eta", "rungs"]),
    ("tpe", SearchAlgorithm::Tpe, &["trials", "width"]),
];

const COMMON: [&str; 7] = ["job", "set", "metric", "goal", "seed", "repeats", "folds"];

/// Metrics to maximize unless told otherwise.
const MAXIMIZED: [&str; 3] = ["accuracy", "macro_f1", "r2"];

/// Upper limit of seeds or folds of a trial.
const MOST_RUNS: u64 = 1000;

/// Upper limit of trials.
const MOST_TRIALS: usize = 100_000;

/// Trials drawn to find fields that are wrong whatever their value.
const PROBES: u64 = 32;

/// Whether a small or a large metric is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Lower ones.
    Minimize,
    /// Higher ones.
    Maximize,
}

impl Goal {
    /// As a sweep file names it.
    pub fn name(self) -> &'static str {
        match self {
            Goal::Minimize => "minimize",
            Goal::Maximize => "maximize",
        }
    }
}

/// A sweep as its file says it, every default filled in.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// The name of the file without its ending.
    pub name: String,
    /// How trials are chosen.
    pub algorithm: SearchAlgorithm,
    /// Trials in all.
    pub trials: u64,
    /// Trials that are asked for at once, where results decide what is asked for next.
    pub width: u64,
    /// One trial in `eta` goes on from rung to rung.
    pub eta: u64,
    /// Rungs of a trial that is trained to its end; each is `eta` times as long as the one before.
    pub rungs: u32,
    /// Brackets of Hyperband, the one with most trials first.
    pub brackets: u32,
    /// Source of all random choices of the search.
    pub seed: u64,
    /// Each trial is trained with this many seeds: the job's and those that follow it.
    pub repeats: u64,
    /// Each seed is trained on this many folds of the data; 1: as the job says.
    pub folds: u64,
    /// The metric of an evaluation that trials are compared by.
    pub metric: String,
    /// Whether a lower or a higher metric is better.
    pub goal: Goal,
    /// The search space.
    pub space: SearchSpace,
    /// The points of `space`, if the algorithm is a grid.
    pub grid: Vec<TrialPoint>,
    /// Where the metric was written; the section's place if it was not.
    metric_origin: FieldOrigin,
    /// The text of the base job, its file, and the overrides.
    base: (String, String, Vec<String>),
}

impl Sweep {
    /// Reads a sweep file and its base job; `sets` are `--set` flags that override fields of the base job.
    pub fn load(path: &Path, sets: &[String]) -> Result<Sweep, JobError> {
        Sweep::parse(&job::read_text(path)?, &path.display().to_string(), sets)
    }

    /// As [`Sweep::load`], from `text`; `file` is named in errors, and the base job is found from there.
    pub fn parse(text: &str, file: &str, sets: &[String]) -> Result<Sweep, JobError> {
        let directory = job::directory_of(file).map_err(|problem| job::whole_file(file, problem))?;
        let table = tree::table(text, file)?;
        let at = |offset: usize| tree::origin_at(text, file, offset);
        let (mut settings, mut space) = (None, None);
        for (key, value) in tree::in_order(table.get_ref()) {
            let origin = at(key.span().start);
            let wrong = |problem: String| JobError {
                origin: origin.clone(),
                field: one_line(key.get_ref()),
                problem,
            };
            let DeValue::Table(content) = value.get_ref() else {
                return Err(wrong("must be a section, such as [sweep]".into()));
            };
            match key.get_ref().as_ref() {
                "sweep" => settings = Some(section("sweep", content, origin, &at, &[])?),
                "space" => space = Some(read_space(content, &at)?),
                other => {
                    let hint = suggestion(other, ["sweep", "space"], "sections are");
                    let problem = format!("unknown section{hint}; fields of the job go to `set` of [sweep]");
                    return Err(wrong(problem));
                }
            }
        }
        let missing = |what: &str| job::whole_file(file, format!("has no section [{what}]"));
        let settings = settings.ok_or_else(|| missing("sweep"))?;
        let space = space.filter(|s| !s.parameters.is_empty()).ok_or_else(|| missing("space"))?;
        let mut sweep = read_settings(settings, space, &directory, sets)?;
        let stem = Path::new(file).file_stem().map(|stem| stem.to_string_lossy().into_owned());
        sweep.name = stem.unwrap_or_else(|| "sweep".into());
        sweep.check_fields()?;
        Ok(sweep)
    }

    /// The length of a trial that is trained to its end, if its first rung has length 1.
    pub fn top(&self) -> u64 {
        match self.algorithm {
            SearchAlgorithm::Hyperband | SearchAlgorithm::Asha => self.eta.saturating_pow(self.rungs - 1),
            _ => 1,
        }
    }

    /// An error about the metric, at the line that names it.
    pub fn metric_error(&self, problem: String) -> JobError {
        JobError { origin: self.metric_origin.clone(), field: "sweep.metric".into(), problem }
    }

    /// A few points of the sweep: of the grid, or drawn at random.
    pub fn samples(&self, count: u64) -> Vec<TrialPoint> {
        match self.grid.is_empty() {
            false => self.grid.iter().take(count as usize).cloned().collect(),
            true => (0..count).map(|trial| self.space.random(self.seed, trial)).collect(),
        }
    }

    /// How often each trial is trained: with every seed on every fold.
    pub fn runs(&self) -> u64 {
        self.repeats * self.folds
    }

    /// The job of a point. `repeat`, below [`Sweep::runs`], counts folds first and then seeds: the folds of one seed are
    /// a partition of the data.
    pub fn job(&self, point: &TrialPoint, repeat: u64) -> Result<Job, JobError> {
        let (text, file, sets) = &self.base;
        let sets: Vec<String> = sets.iter().cloned().chain(self.space.sets(point)).collect();
        let mut job = Job::parse(text, file, &sets)?;
        if job.devices.count > 1 {
            let problem = "a sweep trains jobs side by side, each on one device; for the same numbers set \
                           train.partials instead";
            return Err(job.error("devices.count", problem));
        }
        job.train.seed = job.train.seed.wrapping_add(repeat / self.folds) & i64::MAX as u64;
        job.data.options.seed = job.train.seed;
        if self.folds > 1 {
            if job.data.options.folds.is_some() {
                return Err(job.error("data.folds", "the sweep cuts the data into folds, too; keep one"));
            }
            job.data.options.folds = Some(self.folds as usize);
            job.data.options.fold = (repeat % self.folds) as usize;
        }
        Ok(job)
    }

    /// Everything that decides the results of the sweep, a line for each. A sweep is continued only if it is
    /// unchanged.
    pub fn identity(&self) -> Vec<String> {
        let mut lines = vec![
            format!("algorithm = {}", self.algorithm.name()),
            format!("trials = {}", self.trials),
            format!("width = {}", self.width),
            format!("eta = {}", self.eta),
            format!("rungs = {}", self.rungs),
            format!("brackets = {}", self.brackets),
            format!("seed = {}", self.seed),
            format!("repeats = {}", self.repeats),
            format!("metric = {}", self.metric),
            format!("goal = {}", self.goal.name()),
        ];
        if self.folds > 1 {
            lines.push(format!("folds = {}", self.folds));
        }
        for parameter in &self.space.parameters {
            lines.push(format!("space.{} = {}", parameter.field, self.space.described(parameter)));
        }
        let (text, file, sets) = &self.base;
        let mut sections = tree::parse(text, file).unwrap_or_default();
        // They were read without an error before.
        let _ = tree::override_with(&mut sections, sets);
        let mut fields: Vec<String> = sections
            .iter()
            .flat_map(|s| s.entries.iter().map(|(key, item)| format!("{}.{key} = {}", s.name, item.value)))
            .collect();
        fields.sort();
        lines.extend(fields);
        lines
    }

    /// Refuses a field that is wrong whatever its value. A field that is wrong for some values makes trials fail
    /// instead.
    fn check_fields(&self) -> Result<(), JobError> {
        let probes = self.samples(PROBES);
        let errors: Vec<Option<JobError>> = probes.iter().map(|point| self.job(point, 0).err()).collect();
        for Parameter { field, origin, .. } in &self.space.parameters {
            let tried = || probes.iter().zip(&errors).filter(|(point, _)| point.contains_key(field));
            let wrong = |error: &Option<JobError>| error.as_ref().is_some_and(|e| e.field == one_line(field));
            if tried().count() > 0 && tried().all(|(_, error)| wrong(error)) {
                let error = tried().find_map(|(_, error)| error.clone());
                let problem = error.map_or(String::new(), |e| e.problem);
                let field = one_line(&format!("space.{field}"));
                return Err(JobError { origin: origin.clone(), field, problem });
            }
        }
        match errors.into_iter().collect::<Option<Vec<_>>>() {
            // No job can be read, and no single field of the space is to blame.
            Some(all) => Err(all.into_iter().next().expect("there are probes")),
            None => Ok(()),
        }
    }
}

/// A table as a section, without the entries in `but`.
fn section(
    name: &str,
    content: &DeTable<'_>,
    origin: FieldOrigin,
    at: &dyn Fn(usize) -> FieldOrigin,
    but: &[&str],
) -> Result<Section, JobError> {
    let mut entries = Vec::new();
    for (key, value) in tree::in_order(content) {
        let origin = at(key.span().start);
        let field = key.get_ref().to_string();
        if but.contains(&field.as_str()) {
            continue;
        }
        let value = tree::convert(value.get_ref()).map_err(|problem| JobError {
            origin: origin.clone(),
            field: one_line(&format!("{name}.{field}")),
            problem,
        })?;
        entries.push((field, Item { value, origin, raw: None }));
    }
    Ok(Section { name: name.to_string(), origin, entries, listed: false })
}

fn read_settings(
    mut section: Section,
    space: SearchSpace,
    directory: &Path,
    flags: &[String],
) -> Result<Sweep, JobError> {
    let mut sets = Vec::new();
    if let Some(index) = section.entries.iter().position(|(key, _)| key == "set") {
        let (_, item) = section.entries.remove(index);
        let texts = match &item.value {
            JobValue::List(items) => items
                .iter()
                .map(|value| if let JobValue::Text(text) = value { Some(text.clone()) } else { None })
                .collect(),
            _ => None,
        };
        let problem = "must be a list such as [\"train.steps=100\", \"train.batch=32\"]";
        let wrong =
            || JobError { origin: item.origin.clone(), field: "sweep.set".into(), problem: problem.into() };
        sets = texts.ok_or_else(wrong)?;
    }
    sets.extend(flags.iter().cloned());
    for set in &sets {
        let field = set.split('=').next().unwrap_or("").trim();
        if space.parameter(field).is_some() {
            let problem = format!("{field} is in the space; take it out there to set it");
            return Err(JobError { origin: FieldOrigin::Flag(set.clone()), field: String::new(), problem });
        }
    }
    let mut fields = Fields::new(section, directory);
    let names: Vec<&str> = ALGORITHMS.iter().map(|row| row.0).collect();
    let algorithm_origin = fields.origin("algorithm");
    let name = fields.choice("algorithm", &names)?.unwrap_or("random");
    let (_, algorithm, own) = ALGORITHMS.iter().find(|row| row.0 == name).expect("a choice is a row");
    let options = [&COMMON[..], own].concat();
    fields.only(name, &options, ALGORITHMS.iter().flat_map(|row| row.2.iter().copied()))?;
    let path: PathBuf = fields.path("job")?.ok_or_else(|| fields.missing("job", "job = \"job.toml\""))?;
    let metric_origin = fields.origin("metric");
    let metric = fields.text("metric")?.unwrap_or_else(|| "loss".into());
    let goal = match fields.choice("goal", &["minimize", "maximize"])? {
        Some("minimize") => Goal::Minimize,
        Some(_) => Goal::Maximize,
        None if MAXIMIZED.contains(&metric.as_str()) => Goal::Maximize,
        None => Goal::Minimize,
    };
    let mut sweep = Sweep {
        name: String::new(),
        algorithm: *algorithm,
        trials: fields.whole("trials", 1, MOST_TRIALS as u64)?.unwrap_or(32),
        width: fields.whole("width", 1, 4096)?.unwrap_or(4),
        eta: fields.whole("eta", 2, 64)?.unwrap_or(3),
        rungs: fields.whole("rungs", 1, 10)?.unwrap_or(4) as u32,
        brackets: fields.whole("brackets", 1, 10)?.unwrap_or(10) as u32,
        seed: fields.whole("seed", 0, i64::MAX as u64)?.unwrap_or(0),
        repeats: fields.whole("repeats", 1, MOST_RUNS)?.unwrap_or(1),
        folds: fields.whole("folds", 2, MOST_RUNS)?.unwrap_or(1),
        metric,
        goal,
        space,
        grid: Vec::new(),
        metric_origin,
        base: (job::read_text(&path)?, path.display().to_string(), sets),
    };
    let too_many = |fields: &Fields<'_>| {
        let problem =
            format!("more than {MOST_TRIALS} trials; narrow the space, or choose another algorithm");
        fields.error("algorithm", algorithm_origin.clone(), problem)
    };
    match algorithm {
        SearchAlgorithm::Grid => {
            let endless = |p: &&Parameter| p.kind.count().is_none() && p.points.is_none();
            if let Some(p) = sweep.space.parameters.iter().find(endless) {
                let problem =
                    "has no end of values; a grid needs to know how many: add points = 5".to_string();
                let field = format!("space.{}", p.field);
                return Err(JobError { origin: p.origin.clone(), field, problem });
            }
            sweep.grid = sweep.space.grid(MOST_TRIALS).ok_or_else(|| too_many(&fields))?;
            sweep.trials = sweep.grid.len() as u64;
        }
        SearchAlgorithm::Hyperband => {
            let brackets = hyperband::brackets(sweep.rungs, sweep.eta, sweep.brackets);
            sweep.trials = brackets.iter().map(|b| b.rounds[0].0).fold(0, u64::saturating_add);
            if sweep.trials > MOST_TRIALS as u64 {
                return Err(too_many(&fields));
            }
        }
        SearchAlgorithm::Asha if asha::levels(&sweep).last().is_none_or(|&top| top > 1 << 40) => {
            let problem = "so many rungs of so many times the length are longer than any job".to_string();
            return Err(fields.error("rungs", fields.origin("rungs"), problem));
        }
        SearchAlgorithm::Asha | SearchAlgorithm::Random | SearchAlgorithm::Tpe => {}
    }
    fields.finish()?;
    Ok(sweep)
}

#[cfg(test)]
mod tests;
