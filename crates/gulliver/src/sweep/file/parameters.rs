//! The `[space]` section of a sweep file: parameters, their values, and the conditions on which they exist.

use super::{MOST_TRIALS, section};
use crate::error::{FieldOrigin, JobError, one_line};
use crate::job::JobValue;
use crate::job::fields::Fields;
use crate::job::tree::{self, Section};
use crate::sweep::space::{Condition, LARGEST, Parameter, ParameterKind, SearchSpace};
use gulliver_graph::hyper::{ANY, POSITIVE};
use gulliver_graph::nearest::suggestion;
use std::path::Path;
use toml::de::{DeTable, DeValue};

/// Parameters as `"optimizer.lr" = {…}` or below `[space.optimizer]`.
pub(super) fn read_space(
    content: &DeTable<'_>,
    at: &dyn Fn(usize) -> FieldOrigin,
) -> Result<SearchSpace, JobError> {
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
    values: Vec<JobValue>,
    origin: FieldOrigin,
}

const KINDS: [&str; 4] = ["choice", "uniform", "log-uniform", "integer"];

fn read_parameter(
    field: String,
    value: &DeValue<'_>,
    origin: FieldOrigin,
    at: &dyn Fn(usize) -> FieldOrigin,
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

fn choice(value: JobValue) -> Result<ParameterKind, String> {
    let JobValue::List(values) = value else { return Err("must be a list of values".into()) };
    if values.is_empty() {
        return Err("has no values to choose from".into());
    }
    if let Some(i) = (1..values.len()).find(|&i| values[..i].contains(&values[i])) {
        return Err(format!("has {} twice", one_line(&values[i].to_string())));
    }
    Ok(ParameterKind::Choice(values))
}

fn read_kind(mut section: Section) -> Result<(ParameterKind, Option<u64>), JobError> {
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
        "choice" => choice(chosen.unwrap_or(JobValue::List(Vec::new()))).map_err(|p| wrong(&fields, &p))?,
        "uniform" => {
            let pair = fields.real_pair("uniform", ANY)?;
            let [low, high] = ends(&fields, pair)?;
            ParameterKind::Uniform { low, high }
        }
        "log-uniform" => {
            let pair = fields.real_pair("log-uniform", POSITIVE)?;
            let [low, high] = ends(&fields, pair)?;
            ParameterKind::LogUniform { low, high }
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
            ParameterKind::Integer { low, high, step, log }
        }
    };
    fields.finish()?;
    Ok((kind, points))
}

/// `when = { optimizer.name = "sgd" }`, with one value or a list of them.
fn read_conditions(value: &DeValue<'_>, origin: &FieldOrigin, name: &str) -> Result<Vec<Wanted>, JobError> {
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
            JobValue::List(values) => values,
            value => vec![value],
        };
        Ok(Wanted { field, values, origin: origin.clone() })
    };
    flat.into_iter().map(read).collect()
}

/// Parameters behind those their conditions name, otherwise as written.
fn in_order_of_conditions(mut found: Vec<(Parameter, Vec<Wanted>)>) -> Result<SearchSpace, JobError> {
    let fields: Vec<String> = found.iter().map(|(parameter, _)| parameter.field.clone()).collect();
    if let Some(i) = (1..fields.len()).find(|&i| fields[..i].contains(&fields[i])) {
        let origin = found[i].0.origin.clone();
        return Err(JobError {
            origin,
            field: format!("space.{}", fields[i]),
            problem: "is there twice".into(),
        });
    }
    let mut space = SearchSpace::default();
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
            let code = |value: &JobValue| {
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
