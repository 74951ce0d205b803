//! The search space of a sweep: parameters over the fields of a job. `file` reads it; `search` chooses points.
//!
//! A value of a parameter is kept as a number, its *code*: the number itself, or the position in the list of
//! a choice. Draws are functions of (seed, trial, field), never of a state that advances.

use crate::error::FieldOrigin;
use crate::job::JobValue;
use gulliver_graph::random::{RandomStream, hash_name};
use std::collections::BTreeMap;
use std::fmt;

/// The largest whole number that every code can hold.
pub const LARGEST: u64 = 1 << 53;

/// The values a parameter may take.
#[derive(Clone, Debug, PartialEq)]
pub enum ParameterKind {
    /// One of these; at least one, no two equal.
    Choice(Vec<JobValue>),
    /// A number, uniformly distributed.
    Uniform {
        /// The least.
        low: f64,
        /// The most; above `low`.
        high: f64,
    },
    /// A number whose logarithm is uniform.
    LogUniform {
        /// The least; above 0.
        low: f64,
        /// The most; above `low`.
        high: f64,
    },
    /// A whole number.
    Integer {
        /// The least; above 0 if `log`.
        low: u64,
        /// The most, reached if steps lead there.
        high: u64,
        /// From one to the next; 1 if `log`.
        step: u64,
        /// Whether its logarithm is uniform.
        log: bool,
    },
}

/// A condition under which a parameter has a value.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    /// The field of another parameter.
    pub field: String,
    /// Codes of that parameter, one of which it must have.
    pub codes: Vec<f64>,
}

/// The values tried for one field of a job.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// `section.field`.
    pub field: String,
    /// Its values.
    pub kind: ParameterKind,
    /// All must hold.
    pub when: Vec<Condition>,
    /// Number of its values on a grid; all of them if not given.
    pub points: Option<u64>,
    /// Where it was written.
    pub origin: FieldOrigin,
}

/// Codes by field; a parameter whose conditions do not hold is absent.
pub type TrialPoint = BTreeMap<String, f64>;

/// Parameters, those that conditions name before those that have the conditions.
#[derive(Clone, Debug, Default)]
pub struct SearchSpace {
    /// The parameters.
    pub parameters: Vec<Parameter>,
}

impl fmt::Display for ParameterKind {
    /// As a sweep file says it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParameterKind::Choice(values) => write!(f, "choice = {}", JobValue::List(values.clone())),
            ParameterKind::Uniform { low, high } => write!(f, "uniform = [{low}, {high}]"),
            ParameterKind::LogUniform { low, high } => write!(f, "log-uniform = [{low}, {high}]"),
            ParameterKind::Integer { low, high, log: true, .. } => {
                write!(f, "integer = [{low}, {high}], log = true")
            }
            ParameterKind::Integer { low, high, step, log: false } => {
                write!(f, "integer = [{low}, {high}], step = {step}")
            }
        }
    }
}

impl ParameterKind {
    /// The value of a code.
    pub fn value(&self, code: f64) -> JobValue {
        match self {
            ParameterKind::Choice(values) => values[(code as usize).min(values.len() - 1)].clone(),
            ParameterKind::Uniform { .. } | ParameterKind::LogUniform { .. } => JobValue::Float(code),
            ParameterKind::Integer { .. } => JobValue::Int(code as i64),
        }
    }

    /// The code of a value, if it is one of the values.
    pub fn code(&self, value: &JobValue) -> Option<f64> {
        let number = match value {
            JobValue::Int(n) => *n as f64,
            JobValue::Float(x) => *x,
            _ => f64::NAN,
        };
        match self {
            ParameterKind::Choice(values) => values.iter().position(|v| v == value).map(|i| i as f64),
            ParameterKind::Uniform { low, high } | ParameterKind::LogUniform { low, high } => {
                (*low..=*high).contains(&number).then_some(number)
            }
            ParameterKind::Integer { low, high, step, .. } => {
                let fits = number.fract() == 0.0 && (*low as f64..=*high as f64).contains(&number);
                (fits && (number as u64 - low).is_multiple_of(*step)).then_some(number)
            }
        }
    }

    /// How many values there are; none for numbers that are not whole.
    pub fn count(&self) -> Option<u64> {
        match self {
            ParameterKind::Choice(values) => Some(values.len() as u64),
            ParameterKind::Integer { low, high, step, .. } => Some((high - low) / step + 1),
            ParameterKind::Uniform { .. } | ParameterKind::LogUniform { .. } => None,
        }
    }

    /// The code at `share` of the way through the values, from 0 to below 1. Numbers that are not whole are
    /// rounded to six digits, so that the number people read is the number that was used.
    pub fn at(&self, share: f64) -> f64 {
        match self {
            ParameterKind::Choice(values) => {
                (share * values.len() as f64).floor().min(values.len() as f64 - 1.0)
            }
            ParameterKind::Uniform { low, high } => six_digits(low + share * (high - low)).clamp(*low, *high),
            ParameterKind::LogUniform { low, high } => {
                six_digits((low.ln() + share * (high / low).ln()).exp()).clamp(*low, *high)
            }
            ParameterKind::Integer { low, high, log: true, .. } => {
                let (first, end) = (*low as f64, (*high + 1) as f64);
                (first.ln() + share * (end / first).ln()).exp().floor().clamp(first, *high as f64)
            }
            ParameterKind::Integer { low, high, step, log: false } => {
                let count = (high - low) / step + 1;
                let index = ((share * count as f64) as u64).min(count - 1);
                (low + index * step) as f64
            }
        }
    }

    /// How far through the values a code is: the middle of the shares for which [`ParameterKind::at`] gives it.
    pub fn share(&self, code: f64) -> f64 {
        let share = match self {
            ParameterKind::Choice(values) => (code + 0.5) / values.len() as f64,
            ParameterKind::Uniform { low, high } => (code - low) / (high - low),
            ParameterKind::LogUniform { low, high } => (code / low).ln() / (high / low).ln(),
            ParameterKind::Integer { low, high, log: true, .. } => {
                let (first, end) = (*low as f64, (*high + 1) as f64);
                ((code / first).ln() + ((code + 1.0) / first).ln()) / 2.0 / (end / first).ln()
            }
            ParameterKind::Integer { low, high, step, log: false } => {
                let count = (high - low) / step + 1;
                ((code - *low as f64) / *step as f64 + 0.5) / count as f64
            }
        };
        share.clamp(0.0, 1.0)
    }

    /// The codes of a grid: all of them, or `points` from the first to the last.
    fn grid(&self, points: Option<u64>) -> Vec<f64> {
        let all = self.count().unwrap_or(1);
        let wanted = points.unwrap_or(all);
        let mut codes: Vec<f64> = match (self, wanted) {
            (ParameterKind::Uniform { .. } | ParameterKind::LogUniform { .. }, 1) => vec![self.at(0.5)],
            (ParameterKind::Uniform { .. } | ParameterKind::LogUniform { .. }, n) => {
                (0..n).map(|i| self.at(i as f64 / (n - 1) as f64)).collect()
            }
            (_, n) if n >= all => (0..all).map(|i| self.nth(i)).collect(),
            (_, 1) => vec![self.at(0.5)],
            (ParameterKind::Integer { log: true, low, high, .. }, n) => {
                let (low, high) = (*low as f64, *high as f64);
                let between = |i: u64| (low.ln() + i as f64 / (n - 1) as f64 * (high / low).ln()).exp();
                (0..n).map(|i| between(i).round().clamp(low, high)).collect()
            }
            (_, n) => (0..n).map(|i| self.nth((i * (all - 1) + (n - 1) / 2) / (n - 1))).collect(),
        };
        codes.dedup();
        codes
    }

    /// The code of a choice or whole number by its position.
    fn nth(&self, i: u64) -> f64 {
        match self {
            ParameterKind::Integer { low, step, .. } => (low + i * step) as f64,
            _ => i as f64,
        }
    }
}

/// The nearest number with six digits.
fn six_digits(x: f64) -> f64 {
    format!("{x:.5e}").parse().unwrap_or(x)
}

impl Parameter {
    /// Whether the parameter has a value, given those before it.
    pub fn active(&self, point: &TrialPoint) -> bool {
        self.when.iter().all(|c| point.get(&c.field).is_some_and(|code| c.codes.contains(code)))
    }
}

/// A random number from 0 to below 1: a function of seed, field, trial and `i`.
pub fn draw(seed: u64, field: &str, trial: u64, i: u64) -> f64 {
    let stream = RandomStream::new(seed, hash_name(&format!("sweep.{field}")), trial);
    (stream.u64_at(i) >> 11) as f64 / (1u64 << 53) as f64
}

impl SearchSpace {
    /// A parameter as a sweep file says it: `{ uniform = [0, 1], when = { optimizer.name = ["sgd"] } }`.
    pub fn described(&self, parameter: &Parameter) -> String {
        let mut text = format!("{{ {}", parameter.kind);
        if let Some(points) = parameter.points {
            text += &format!(", points = {points}");
        }
        for Condition { field, codes } in &parameter.when {
            let value = |code: &f64| self.parameter(field).map(|other| other.kind.value(*code));
            let values = JobValue::List(codes.iter().filter_map(value).collect());
            text += &format!(", when = {{ {field} = {values} }}");
        }
        text + " }"
    }

    /// The parameter of a field.
    pub fn parameter(&self, field: &str) -> Option<&Parameter> {
        self.parameters.iter().find(|p| p.field == field)
    }

    /// A point made parameter by parameter: `choose` gives the code of each that has a value.
    pub fn point(&self, mut choose: impl FnMut(&Parameter) -> f64) -> TrialPoint {
        let mut point = TrialPoint::new();
        for parameter in &self.parameters {
            if parameter.active(&point) {
                let code = choose(parameter);
                point.insert(parameter.field.clone(), code);
            }
        }
        point
    }

    /// The random point of a trial.
    pub fn random(&self, seed: u64, trial: u64) -> TrialPoint {
        self.point(|parameter| parameter.kind.at(draw(seed, &parameter.field, trial, 0)))
    }

    /// Every point of the grid, the last parameter changing first; nothing if there are more than `most`.
    pub fn grid(&self, most: usize) -> Option<Vec<TrialPoint>> {
        let mut points = vec![TrialPoint::new()];
        for parameter in &self.parameters {
            let codes = parameter.kind.count().is_none_or(|n| n <= most as u64 || parameter.points.is_some());
            let few = parameter.points.is_none_or(|n| n <= most as u64);
            if !codes || !few {
                return None;
            }
            let codes = parameter.kind.grid(parameter.points);
            let mut longer = Vec::new();
            for point in points {
                if !parameter.active(&point) {
                    longer.push(point);
                    continue;
                }
                for &code in &codes {
                    let mut point = point.clone();
                    point.insert(parameter.field.clone(), code);
                    longer.push(point);
                }
                if longer.len() > most {
                    return None;
                }
            }
            points = longer;
        }
        (points.len() <= most).then_some(points)
    }

    /// The values of a point, in the order of the parameters.
    pub fn values<'s>(&'s self, point: &'s TrialPoint) -> impl Iterator<Item = (&'s str, JobValue)> {
        let of = |p: &'s Parameter| Some((p.field.as_str(), p.kind.value(*point.get(&p.field)?)));
        self.parameters.iter().filter_map(of)
    }

    /// The values of a point as `section.field=value`.
    pub fn sets(&self, point: &TrialPoint) -> Vec<String> {
        self.values(point).map(|(field, value)| format!("{field}={value}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameter(field: &str, kind: ParameterKind, points: Option<u64>) -> Parameter {
        let origin = FieldOrigin::Flag(String::new());
        Parameter { field: field.into(), kind, when: Vec::new(), points, origin }
    }

    fn kinds() -> Vec<ParameterKind> {
        let words = ["a", "b", "c"].map(|word| JobValue::Text(word.into()));
        vec![
            ParameterKind::Choice(words.to_vec()),
            ParameterKind::Choice(vec![JobValue::Int(7)]),
            ParameterKind::Uniform { low: -1.0, high: 3.0 },
            ParameterKind::LogUniform { low: 1e-5, high: 0.1 },
            ParameterKind::Integer { low: 3, high: 3, step: 1, log: false },
            ParameterKind::Integer { low: 2, high: 11, step: 3, log: false },
            ParameterKind::Integer { low: 1, high: 1000, step: 1, log: true },
        ]
    }

    #[test]
    fn draws_are_values_and_codes_find_back() {
        for kind in kinds() {
            for trial in 0..200 {
                let code = kind.at(draw(5, "x", trial, 0));
                assert_eq!(kind.code(&kind.value(code)), Some(code), "{kind:?}");
                assert_eq!(kind.at(kind.share(code).min(1.0 - 1e-12)), code, "{kind:?} {code}");
            }
            for share in [0.0, 1.0 - 1e-16] {
                assert!(kind.code(&kind.value(kind.at(share))).is_some(), "{kind:?} {share}");
            }
        }
    }

    #[test]
    fn draws_have_the_stated_distribution() {
        let below = |kind: &ParameterKind, limit: f64| {
            (0..2000).filter(|&t| kind.at(draw(1, "x", t, 0)) < limit).count() as f64 / 2000.0
        };
        for (kind, limit, expected) in [
            (ParameterKind::Uniform { low: 0.0, high: 10.0 }, 2.0, 0.2),
            (ParameterKind::LogUniform { low: 1e-4, high: 1.0 }, 1e-3, 0.25),
            (ParameterKind::Integer { low: 0, high: 9, step: 1, log: false }, 3.0, 0.3),
            (ParameterKind::Integer { low: 1, high: 999, step: 1, log: true }, 10.0, 1.0 / 3.0),
        ] {
            assert!((below(&kind, limit) - expected).abs() < 0.04, "{kind:?}");
        }
    }

    #[test]
    fn draws_depend_on_seed_trial_field_and_nothing_else() {
        let all = [draw(1, "a", 0, 0), draw(2, "a", 0, 0), draw(1, "b", 0, 0), draw(1, "a", 1, 0)];
        for (i, x) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|y| y != x));
        }
        assert_eq!(all[0], draw(1, "a", 0, 0));
    }

    #[test]
    fn grids() {
        let grid = |kind: &ParameterKind, points| kind.grid(points);
        for (kind, points, expected) in [
            (ParameterKind::Uniform { low: 0.0, high: 1.0 }, Some(3), vec![0.0, 0.5, 1.0]),
            (ParameterKind::Uniform { low: 0.0, high: 1.0 }, Some(1), vec![0.5]),
            (ParameterKind::LogUniform { low: 1e-3, high: 1e-1 }, Some(3), vec![1e-3, 1e-2, 1e-1]),
            (
                ParameterKind::Integer { low: 2, high: 11, step: 3, log: false },
                None,
                vec![2.0, 5.0, 8.0, 11.0],
            ),
            (ParameterKind::Integer { low: 0, high: 10, step: 1, log: false }, Some(3), vec![0.0, 5.0, 10.0]),
            (
                ParameterKind::Integer { low: 1, high: 100, step: 1, log: true },
                Some(3),
                vec![1.0, 10.0, 100.0],
            ),
            (ParameterKind::Integer { low: 1, high: 3, step: 1, log: true }, Some(9), vec![1.0, 2.0, 3.0]),
        ] {
            assert_eq!(grid(&kind, points), expected, "{kind:?}");
        }
    }

    #[test]
    fn conditions_leave_parameters_out() {
        let names = ["sgd", "adamw"].map(|word| JobValue::Text(word.into())).to_vec();
        let mut momentum =
            parameter("optimizer.momentum", ParameterKind::Uniform { low: 0.0, high: 0.9 }, Some(2));
        momentum.when = vec![Condition { field: "optimizer.name".into(), codes: vec![0.0] }];
        let width =
            parameter("model.width", ParameterKind::Choice(vec![JobValue::Int(8), JobValue::Int(16)]), None);
        let space = SearchSpace {
            parameters: vec![
                parameter("optimizer.name", ParameterKind::Choice(names), None),
                momentum,
                width,
            ],
        };
        let grid = space.grid(100).unwrap();
        let lines: Vec<String> = grid.iter().map(|p| space.sets(p).join(" ")).collect();
        assert_eq!(
            lines,
            [
                "optimizer.name=\"sgd\" optimizer.momentum=0.0 model.width=8",
                "optimizer.name=\"sgd\" optimizer.momentum=0.0 model.width=16",
                "optimizer.name=\"sgd\" optimizer.momentum=0.9 model.width=8",
                "optimizer.name=\"sgd\" optimizer.momentum=0.9 model.width=16",
                "optimizer.name=\"adamw\" model.width=8",
                "optimizer.name=\"adamw\" model.width=16",
            ]
        );
        assert!(space.grid(5).is_none());
        for trial in 0..50 {
            let point = space.random(0, trial);
            assert_eq!(point.contains_key("optimizer.momentum"), point["optimizer.name"] == 0.0);
        }
    }
}
