//! Parses the text of a job file and `--set` flags into sections of values that know where they were written. The names
//! of sections and fields are not checked here.

use crate::error::{FieldOrigin, JobError, one_line};
use std::fmt;
use toml::de::{DeTable, DeValue};

/// A value of a job, of any type a field may have.
#[derive(Clone, Debug, PartialEq)]
pub enum JobValue {
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number with a point or exponent; always finite.
    Float(f64),
    /// Text in quotes.
    Text(String),
    /// Values in brackets.
    List(Vec<JobValue>),
}

/// A value and where it was written.
#[derive(Clone, Debug)]
pub struct Item {
    pub value: JobValue,
    pub origin: FieldOrigin,
    /// The text after `=` of a flag, where quotes may be left out.
    pub raw: Option<String>,
}

/// A `[section]` with its entries in the order written.
#[derive(Clone, Debug)]
pub struct Section {
    pub name: String,
    pub origin: FieldOrigin,
    pub entries: Vec<(String, Item)>,
    /// In double brackets: one of a list.
    pub listed: bool,
}

impl fmt::Display for JobValue {
    /// As TOML.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        to_toml(self).fmt(f)
    }
}

impl From<bool> for JobValue {
    fn from(value: bool) -> JobValue {
        JobValue::Bool(value)
    }
}

impl From<i64> for JobValue {
    fn from(value: i64) -> JobValue {
        JobValue::Int(value)
    }
}

impl From<f64> for JobValue {
    fn from(value: f64) -> JobValue {
        JobValue::Float(value)
    }
}

impl From<&str> for JobValue {
    fn from(value: &str) -> JobValue {
        JobValue::Text(value.to_string())
    }
}

impl<V: Into<JobValue>> From<Vec<V>> for JobValue {
    fn from(values: Vec<V>) -> JobValue {
        JobValue::List(values.into_iter().map(Into::into).collect())
    }
}

fn to_toml(value: &JobValue) -> toml::Value {
    match value {
        JobValue::Bool(b) => toml::Value::Boolean(*b),
        JobValue::Int(n) => toml::Value::Integer(*n),
        JobValue::Float(x) => toml::Value::Float(*x),
        JobValue::Text(text) => toml::Value::String(text.clone()),
        JobValue::List(items) => toml::Value::Array(items.iter().map(to_toml).collect()),
    }
}

/// Reads the text of a job file. Errors: not TOML, something outside a section, values of types
/// that no field has.
pub fn parse(text: &str, file: &str) -> Result<Vec<Section>, JobError> {
    let at = |offset: usize| origin_at(text, file, offset);
    let table = table(text, file)?;
    let mut sections = Vec::new();
    for (key, value) in in_order(table.get_ref()) {
        let name = key.get_ref().to_string();
        let origin = at(key.span().start);
        let contents: Option<Vec<&DeTable>> = match value.get_ref() {
            DeValue::Table(content) => Some(vec![content]),
            DeValue::Array(items) if !items.is_empty() => {
                items.iter().map(|item| item.get_ref().as_table()).collect()
            }
            _ => None,
        };
        let Some(contents) = contents else {
            let problem = "outside every section; put it below a line such as [train]".to_string();
            return Err(JobError { origin, field: one_line(&name), problem });
        };
        let listed = value.get_ref().is_array();
        for content in contents {
            let mut entries = Vec::new();
            for (key, value) in in_order(content) {
                let origin = at(key.span().start);
                let field = key.get_ref().to_string();
                let value = convert(value.get_ref()).map_err(|problem| JobError {
                    origin: origin.clone(),
                    field: one_line(&format!("{name}.{field}")),
                    problem,
                })?;
                entries.push((field, Item { value, origin, raw: None }));
            }
            sections.push(Section { name: name.clone(), origin: origin.clone(), entries, listed });
        }
    }
    Ok(sections)
}

/// The text of a file as a table; the error names the line that is not TOML.
pub fn table<'t>(text: &'t str, file: &str) -> Result<toml::Spanned<DeTable<'t>>, JobError> {
    DeTable::parse(text).map_err(|error| {
        let offset = error.span().map_or(text.len(), |span| span.start);
        let line = text.lines().nth(line_of(text, offset) - 1).unwrap_or("").trim();
        let problem = format!(
            "not valid TOML: {} in `{}`",
            one_line(error.message().trim_end_matches(", expected nothing")),
            one_line(line)
        );
        JobError { origin: origin_at(text, file, offset), field: String::new(), problem }
    })
}

/// The place of a byte of a file's text.
pub fn origin_at(text: &str, file: &str, offset: usize) -> FieldOrigin {
    FieldOrigin::File { file: file.to_string(), line: Some(line_of(text, offset)) }
}

/// A field that is overridden on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// `section.field=value`.
    pub text: String,
    /// The flag that stands for it and what followed, such as `--memory 64MiB`; none for `--set`.
    pub flag: Option<String>,
}

impl From<String> for Override {
    fn from(text: String) -> Override {
        Override { text, flag: None }
    }
}

/// Applies `section.field=value` flags in order. A value that is not TOML is taken as text.
pub fn override_with<S: Clone + Into<Override>>(
    sections: &mut Vec<Section>,
    sets: &[S],
) -> Result<(), JobError> {
    for Override { text: set, flag } in sets.iter().cloned().map(Into::into) {
        let origin = flag.map_or_else(|| FieldOrigin::Flag(set.clone()), FieldOrigin::Named);
        let malformed = || JobError {
            origin: origin.clone(),
            field: String::new(),
            problem: "must have the form section.field=value, such as train.batch=32".to_string(),
        };
        let (path, raw) = set.split_once('=').ok_or_else(malformed)?;
        let (section, field) = path.trim().split_once('.').ok_or_else(malformed)?;
        if section.is_empty() || field.is_empty() || field.contains('.') {
            return Err(malformed());
        }
        let raw = raw.trim().to_string();
        let value = match DeValue::parse(&raw) {
            Ok(value) if !matches!(value.get_ref(), DeValue::Datetime(_)) => convert(value.get_ref())
                .map_err(|problem| JobError {
                    origin: origin.clone(),
                    field: one_line(path.trim()),
                    problem,
                })?,
            _ => JobValue::Text(raw.clone()),
        };
        let item = Item { value, origin: origin.clone(), raw: Some(raw) };
        let index = sections.iter().position(|s| s.name == section).unwrap_or_else(|| {
            let name = section.to_string();
            sections.push(Section { name, origin, entries: Vec::new(), listed: false });
            sections.len() - 1
        });
        let entries = &mut sections[index].entries;
        entries.retain(|(name, _)| name != field);
        entries.push((field.to_string(), item));
    }
    Ok(())
}

/// A name and where it stands.
pub type SpannedName<'a> = toml::Spanned<std::borrow::Cow<'a, str>>;

/// The entries of a table as written; the parser sorts them by name.
pub fn in_order<'t, 'i>(
    table: &'t DeTable<'i>,
) -> Vec<(&'t SpannedName<'i>, &'t toml::Spanned<DeValue<'i>>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

/// A single value or a list of them; the error says why it is neither.
pub fn convert(value: &DeValue<'_>) -> Result<JobValue, String> {
    Ok(match value {
        DeValue::Boolean(b) => JobValue::Bool(*b),
        DeValue::String(text) => JobValue::Text(text.to_string()),
        DeValue::Integer(digits) => match i64::from_str_radix(digits.as_str(), digits.radix()) {
            Ok(n) => JobValue::Int(n),
            Err(_) => return Err(format!("{} is too large a number", one_line(digits.as_str()))),
        },
        DeValue::Float(digits) => match digits.as_str().parse::<f64>() {
            Ok(x) if x.is_finite() => JobValue::Float(x),
            _ => return Err(format!("must be a finite number, not {}", one_line(digits.as_str()))),
        },
        DeValue::Array(items) => {
            JobValue::List(items.iter().map(|item| convert(item.get_ref())).collect::<Result<_, _>>()?)
        }
        DeValue::Datetime(date) => return Err(format!("no field takes a date; write \"{date}\" for text")),
        DeValue::Table(_) => return Err("must be a single value or a list, not a table".to_string()),
    })
}

fn line_of(text: &str, offset: usize) -> usize {
    let before = &text.as_bytes()[..offset.min(text.len())];
    before.iter().filter(|&&byte| byte == b'\n').count() + 1
}
