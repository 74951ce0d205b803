//! Sweep files: a base job, how to search, and the space. Mistakes are answered as in job files, with file,
//! line and field.

use super::search::{asha, hyperband};
use super::space::{Condition, Kind, LARGEST, Parameter, Point, Space};
use crate::job::error::one_line;
use crate::job::fields::Fields;
use crate::job::tree::{self, Item, Section};
use crate::job::{self, Job, JobError, Origin, Value};
use gulliver_graph::hyper::{ANY, POSITIVE};
use gulliver_graph::nearest::suggestion;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// How the next trials are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Every point of a grid.
    Grid,
    /// Random points.
    Random,
    /// Random points; those that look bad early are not trained to the end.
    Hyperband,
    /// As Hyperband, but a trial goes on as soon as it is good enough among those known.
    Asha,
    /// Points like the good ones and unlike the bad ones known.
    Tpe,
}

/// Algorithms, and what `[sweep]` may say for each besides what it may say for all.
const ALGORITHMS: [(&str, Algorithm, &[&str]); 5] = [
    ("grid", Algorithm::Grid, &[]),
    ("random", Algorithm::Random, &["trials"]),
    ("hyperband", Algorithm::Hyperband, &["eta", "rungs", "brackets"]),
    ("asha", Algorithm::Asha, &["trials", "width", "eta", "rungs"]),
    ("tpe", Algorithm::Tpe, &["trials", "width"]),
];

const COMMON: [&str; 7] = ["job", "set", "metric", "goal", "seed", "repeats", "folds"];

/// More seeds or folds of one trial than anybody trains.
const MOST_RUNS: u64 = 1000;

/// More trials than anybody waits for.
const MOST_TRIALS: usize = 100_000;

/// Trials drawn to find fields that no value makes right.
const PROBES: u64 = 32;

/// What is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Less.
    Minimize,
    /// More.
    Maximize,
}

/// A sweep as its file says it, every default filled in.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// The name of the file without its ending.
    pub name: String,
    /// How trials are chosen.
    pub algorithm: Algorithm,
    /// Trials in all.
    pub trials: u64,
    /// Trials that are asked for at once, where results decide what is asked for next.
    pub width: u64,
    /// One of so many goes on from rung to rung.
    pub eta: u64,
    /// Rungs of a trial that is trained to its end; each is `eta` times as long as the one before.
    pub rungs: u32,
    /// Brackets of Hyperband, the one with most trials first.
    pub brackets: u32,
    /// Source of all random choices of the search.
    pub seed: u64,
    /// Each trial is trained with this many seeds: the job's and those that follow it.
    pub repeats: u64,
    /// And with each seed on this many folds of the data; 1: as the job says.
    pub folds: u64,
    /// What of an evaluation counts.
    pub metric: String,
    /// What is better.
    pub goal: Goal,
    /// What is tried.
    pub space: Space,
    /// Of `space`, if the algorithm is a grid.
    pub grid: Vec<Point>,
    /// The text of the base job, its file, and what is said over it.
    base: (String, String, Vec<String>),
}

impl Sweep {
    /// Reads a sweep file and its base job; `sets` are the `--set` flags, said over the base job.
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
            Algorithm::Hyperband | Algorithm::Asha => self.eta.saturating_pow(self.rungs - 1),
            _ => 1,
        }
    }

    /// How often each trial is trained: with every seed on every fold.
    pub fn runs(&self) -> u64 {
        self.repeats * self.folds
    }

    /// The job of a point; `repeat`, below [`Sweep::runs`], moves on from fold to fold, and then from seed to
    /// seed: the folds of one seed are parts of one whole.
    pub fn job(&self, point: &Point, repeat: u64) -> Result<Job, JobError> {
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

    /// Everything that decides what the sweep comes to, a line for each: what must not change between one
    /// part of a sweep and the next.
    pub fn identity(&self) -> Vec<String> {
        let mut lines = vec![
            format!("algorithm = {:?}", self.algorithm),
            format!("trials = {}", self.trials),
            format!("width = {}", self.width),
            format!("eta = {}", self.eta),
            format!("rungs = {}", self.rungs),
            format!("brackets = {}", self.brackets),
            format!("seed = {}", self.seed),
            format!("repeats = {}", self.repeats),
            format!("metric = {}", self.metric),
            format!("goal = {:?}", self.goal),
        ];
        if self.folds > 1 {
            lines.push(format!("folds = {}", self.folds));
        }
        for Parameter { field, kind, when, points, origin: _ } in &self.space.parameters {
            lines.push(format!("space.{field} = {kind:?} when {when:?} points {points:?}"));
        }
        let (text, file, sets) = &self.base;
        let mut sections = tree::parse(text, file).unwrap_or_default();
        // What was read once is read again.
        let _ = tree::override_with(&mut sections, sets);
        let mut fields: Vec<String> = sections
            .iter()
            .flat_map(|s| s.entries.iter().map(|(key, item)| format!("{}.{key} = {}", s.name, item.value)))
            .collect();
        fields.sort();
        lines.extend(fields);
        lines
    }

    /// A field that is wrong whatever its value is a mistake of the file; one that is wrong for some values
    /// makes trials fail.
    fn check_fields(&self) -> Result<(), JobError> {
        let probes: Vec<Point> = match self.grid.is_empty() {
            false => self.grid.iter().take(PROBES as usize).cloned().collect(),
            true => (0..PROBES).map(|trial| self.space.random(self.seed, trial)).collect(),
        };
        let errors: Vec<Option<JobError>> = probes.iter().map(|point| self.job(point, 0).err()).collect();
        for Parameter { field, origin, .. } in &self.space.parameters {
            let tried = || probes.iter().zip(&errors).filter(|(point, _)| point.contains_key(field));
            let wrong = |error: &Option<JobError>| error.as_ref().is_some_and(|e| e.field == *field);
            if tried().count() > 0 && tried().all(|(_, error)| wrong(error)) {
                let error = tried().find_map(|(_, error)| error.clone());
                let problem = error.map_or(String::new(), |e| e.problem);
                return Err(JobError { origin: origin.clone(), field: format!("space.{field}"), problem });
            }
        }
        match errors.into_iter().collect::<Option<Vec<_>>>() {
            // Not one job can be read, and not because of one field of the space.
            Some(all) => Err(all.into_iter().next().expect("there are probes")),
            None => Ok(()),
        }
    }
}

/// A table as a section, without the entries in `but`.
fn section(
    name: &str,
    content: &DeTable<'_>,
    origin: Origin,
    at: &dyn Fn(usize) -> Origin,
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
    space: Space,
    directory: &Path,
    flags: &[String],
) -> Result<Sweep, JobError> {
    let mut sets = Vec::new();
    if let Some(index) = section.entries.iter().position(|(key, _)| key == "set") {
        let (_, item) = section.entries.remove(index);
        let texts = match &item.value {
            Value::List(items) => items
                .iter()
                .map(|value| if let Value::Text(text) = value { Some(text.clone()) } else { None })
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
            return Err(JobError { origin: Origin::Flag(set.clone()), field: String::new(), problem });
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
    let metric = fields.text("metric")?.unwrap_or_else(|| "loss".into());
    let goal = match fields.choice("goal", &["minimize", "maximize"])? {
        Some("minimize") => Goal::Minimize,
        Some(_) => Goal::Maximize,
        None if metric == "accuracy" => Goal::Maximize,
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
        base: (job::read_text(&path)?, path.display().to_string(), sets),
    };
    let too_many = |fields: &Fields<'_>| {
        let problem =
            format!("more than {MOST_TRIALS} trials; narrow the space, or choose another algorithm");
        fields.error("algorithm", algorithm_origin.clone(), problem)
    };
    match algorithm {
        Algorithm::Grid => {
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
        Algorithm::Hyperband => {
            let brackets = hyperband::brackets(sweep.rungs, sweep.eta, sweep.brackets);
            sweep.trials = brackets.iter().map(|b| b.rounds[0].0).fold(0, u64::saturating_add);
            if sweep.trials > MOST_TRIALS as u64 {
                return Err(too_many(&fields));
            }
        }
        Algorithm::Asha if asha::levels(&sweep).last().is_none_or(|&top| top > 1 << 40) => {
            let problem = "so many rungs of so many times the length are longer than any job".to_string();
            return Err(fields.error("rungs", fields.origin("rungs"), problem));
        }
        Algorithm::Asha | Algorithm::Random | Algorithm::Tpe => {}
    }
    fields.finish()?;
    Ok(sweep)
}

/// Parameters as `"optimizer.lr" = {…}` or below `[space.optimizer]`.
fn read_space(content: &DeTable<'_>, at: &dyn Fn(usize) -> Origin) -> Result<Space, JobError> {
    let mut found: Vec<(Parameter, Vec<Wanted>)> = Vec::new();
    for (key, value) in tree::in_order(content) {
        let name = key.get_ref().to_string();
        let origin = at(key.span().start);
        match value.get_ref() {
            DeValue::Table(fields) if !name.contains('.') => {
                for (key, value) in tree::in_order(fields) {
                    let field = format!("{name}.{}", key.get_ref());
                    found.push(read_parameter(field, value.get_ref(), at(key.span().start), at)?);
                }
            }
            value => found.push(read_parameter(name, value, origin, at)?),
        }
    }
    in_order_of_conditions(found)
}

/// A condition as it is written.
struct Wanted {
    field: String,
    values: Vec<Value>,
    origin: Origin,
}

const KINDS: [&str; 4] = ["choice", "uniform", "log-uniform", "integer"];

fn read_parameter(
    field: String,
    value: &DeValue<'_>,
    origin: Origin,
    at: &dyn Fn(usize) -> Origin,
) -> Result<(Parameter, Vec<Wanted>), JobError> {
    let name = format!("space.{field}");
    let wrong = |problem: String| JobError { origin: origin.clone(), field: one_line(&name), problem };
    if field.split('.').count() != 2 || field.split('.').any(str::is_empty) {
        return Err(wrong("must be a field of the job, such as optimizer.lr".into()));
    }
    let mut wanted = Vec::new();
    let (kind, points) = match value {
        DeValue::Array(_) => (choice(tree::convert(value).map_err(wrong)?).map_err(wrong)?, None),
        DeValue::Table(content) => {
            for (key, value) in tree::in_order(content).into_iter().filter(|(key, _)| key.get_ref() == "when")
            {
                wanted = read_conditions(value.get_ref(), &at(key.span().start), &name)?;
            }
            read_kind(section(&name, content, origin.clone(), at, &["when"])?)?
        }
        _ => return Err(wrong("must be a list of values, or a table such as { uniform = [0, 1] }".into())),
    };
    Ok((Parameter { field, kind, when: Vec::new(), points, origin }, wanted))
}

fn choice(value: Value) -> Result<Kind, String> {
    let Value::List(values) = value else { return Err("must be a list of values".into()) };
    if values.is_empty() {
        return Err("has no values to choose from".into());
    }
    if let Some(i) = (1..values.len()).find(|&i| values[..i].contains(&values[i])) {
        return Err(format!("has {} twice", one_line(&values[i].to_string())));
    }
    Ok(Kind::Choice(values))
}

fn read_kind(mut section: Section) -> Result<(Kind, Option<u64>), JobError> {
    let given: Vec<&str> =
        KINDS.into_iter().filter(|kind| section.entries.iter().any(|(key, _)| key == kind)).collect();
    let [kind] = given[..] else {
        let problem = format!("must have one of {}", KINDS.join(", "));
        return Err(JobError { origin: section.origin, field: section.name, problem });
    };
    let origin = section.entries.iter().find(|(key, _)| key == kind).map(|(_, item)| item.origin.clone());
    let origin = origin.unwrap_or_else(|| section.origin.clone());
    let mut chosen = None;
    if kind == "choice" {
        section.entries.retain(|(key, item)| {
            chosen = if key == kind { Some(item.value.clone()) } else { chosen.take() };
            key != kind
        });
    }
    let mut fields = Fields::new(section, Path::new(""));
    let options: &[&str] = match kind {
        "choice" => &["choice"],
        "integer" => &["integer", "step", "log", "points"],
        "uniform" => &["uniform", "points"],
        _ => &["log-uniform", "points"],
    };
    fields.only(kind, options, ["step", "log", "points"])?;
    let wrong = |fields: &Fields<'_>, problem: &str| fields.error(kind, origin.clone(), problem.to_string());
    let ends = |fields: &Fields<'_>, pair: Option<[f64; 2]>| match pair {
        Some([low, high]) if low < high => Ok([low, high]),
        _ => Err(wrong(fields, "must be two numbers, the smaller one first")),
    };
    let points = fields.whole("points", 1, MOST_TRIALS as u64)?;
    let kind = match kind {
        "choice" => choice(chosen.unwrap_or(Value::List(Vec::new()))).map_err(|p| wrong(&fields, &p))?,
        "uniform" => {
            let pair = fields.real_pair("uniform", ANY)?;
            let [low, high] = ends(&fields, pair)?;
            Kind::Uniform { low, high }
        }
        "log-uniform" => {
            let pair = fields.real_pair("log-uniform", POSITIVE)?;
            let [low, high] = ends(&fields, pair)?;
            Kind::LogUniform { low, high }
        }
        _ => {
            let log = fields.flag("log")?.unwrap_or(false);
            let step = fields.whole("step", 1, LARGEST)?.unwrap_or(1);
            let ends = fields.wholes("integer", u64::from(log), LARGEST)?.unwrap_or_default();
            let [low, high] = ends[..] else {
                return Err(wrong(&fields, "must be two whole numbers, the least and the most"));
            };
            if low > high {
                return Err(wrong(&fields, "must have the smaller number first"));
            }
            if log && step != 1 {
                return Err(fields.error("step", origin, "does not go with log = true".into()));
            }
            Kind::Integer { low, high, step, log }
        }
    };
    fields.finish()?;
    Ok((kind, points))
}

/// `when = { optimizer.name = "sgd" }`, with one value or a list of them.
fn read_conditions(value: &DeValue<'_>, origin: &Origin, name: &str) -> Result<Vec<Wanted>, JobError> {
    let wrong = |problem: String| JobError {
        origin: origin.clone(),
        field: one_line(&format!("{name}.when")),
        problem,
    };
    let DeValue::Table(content) = value else {
        return Err(wrong("must be a table such as { \"optimizer.name\" = \"sgd\" }".into()));
    };
    let mut flat = Vec::new();
    for (key, value) in tree::in_order(content) {
        match value.get_ref() {
            DeValue::Table(fields) => {
                let nested = tree::in_order(fields).into_iter();
                flat.extend(nested.map(|(k, v)| (format!("{}.{}", key.get_ref(), k.get_ref()), v.get_ref())));
            }
            value => flat.push((key.get_ref().to_string(), value)),
        }
    }
    let read = |(field, value): (String, &DeValue<'_>)| {
        let values = match tree::convert(value).map_err(wrong)? {
            Value::List(values) => values,
            value => vec![value],
        };
        Ok(Wanted { field, values, origin: origin.clone() })
    };
    flat.into_iter().map(read).collect()
}

/// Parameters behind those their conditions name, otherwise as written.
fn in_order_of_conditions(mut found: Vec<(Parameter, Vec<Wanted>)>) -> Result<Space, JobError> {
    let fields: Vec<String> = found.iter().map(|(parameter, _)| parameter.field.clone()).collect();
    if let Some(i) = (1..fields.len()).find(|&i| fields[..i].contains(&fields[i])) {
        let origin = found[i].0.origin.clone();
        return Err(JobError {
            origin,
            field: format!("space.{}", fields[i]),
            problem: "is there twice".into(),
        });
    }
    let mut space = Space::default();
    while !found.is_empty() {
        let known = |wanted: &Wanted| space.parameter(&wanted.field).is_some();
        let Some(index) = found.iter().position(|(_, wanted)| wanted.iter().all(known)) else {
            let (parameter, wanted) = &found[0];
            let first = wanted.iter().find(|w| !known(w)).expect("it waits for something");
            let problem = if fields.contains(&first.field) {
                format!("{} and {} wait for each other", parameter.field, first.field)
            } else {
                let hint = suggestion(&first.field, fields.iter().map(String::as_str), "the space has");
                format!("{} is not in the space{hint}", one_line(&first.field))
            };
            let field = format!("space.{}.when", parameter.field);
            return Err(JobError { origin: first.origin.clone(), field, problem });
        };
        let (mut parameter, wanted) = found.remove(index);
        for Wanted { field, values, origin } in wanted {
            let kind = &space.parameter(&field).expect("known").kind;
            let code = |value: &Value| {
                kind.code(value).ok_or_else(|| JobError {
                    origin: origin.clone(),
                    field: format!("space.{}.when", parameter.field),
                    problem: format!("{field} is never {}", one_line(&value.to_string())),
                })
            };
            let codes = values.iter().map(code).collect::<Result<_, _>>()?;
            parameter.when.push(Condition { field, codes });
        }
        space.parameters.push(parameter);
    }
    Ok(space)
}

#[cfg(test)]
mod tests;
