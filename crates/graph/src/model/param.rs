//! Parameters of models: values as they come from a job file or the command line, checked against a
//! family's table and read back by type.

use crate::graph::GraphError;
use crate::nearest::suggestion;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

/// The value of one parameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ParamValue {
    /// Yes or no.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// A word.
    Text(Cow<'static, str>),
    /// Several whole numbers.
    Ints(Cow<'static, [i64]>),
}

impl ParamValue {
    /// The name of values of this kind.
    pub fn kind(&self) -> &'static str {
        match self {
            ParamValue::Bool(_) => "true or false",
            ParamValue::Int(_) => "a whole number",
            ParamValue::Float(_) => "a number",
            ParamValue::Text(_) => "a word",
            ParamValue::Ints(_) => "a list of whole numbers",
        }
    }

    /// This value as the kind of `like`, if it can be: a whole number is a number, too.
    pub fn fitted(&self, like: &ParamValue) -> Option<ParamValue> {
        match (like, self) {
            (ParamValue::Float(_), ParamValue::Int(i)) => Some(ParamValue::Float(*i as f64)),
            _ if std::mem::discriminant(like) == std::mem::discriminant(self) => Some(self.clone()),
            _ => None,
        }
    }
}

impl fmt::Display for ParamValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParamValue::Bool(v) => write!(f, "{v}"),
            ParamValue::Int(v) => write!(f, "{v}"),
            ParamValue::Float(v) => write!(f, "{v}"),
            ParamValue::Text(v) => write!(f, "{v}"),
            ParamValue::Ints(v) => {
                let words: Vec<String> = v.iter().map(i64::to_string).collect();
                write!(f, "[{}]", words.join(", "))
            }
        }
    }
}

/// A whole number, for tables.
pub const fn int(value: i64) -> ParamValue {
    ParamValue::Int(value)
}

/// A number, for tables.
pub const fn float(value: f64) -> ParamValue {
    ParamValue::Float(value)
}

/// A word, for tables.
pub const fn text(value: &'static str) -> ParamValue {
    ParamValue::Text(Cow::Borrowed(value))
}

/// A list, for tables.
pub const fn ints(value: &'static [i64]) -> ParamValue {
    ParamValue::Ints(Cow::Borrowed(value))
}

/// Yes or no, for tables.
pub const fn flag(value: bool) -> ParamValue {
    ParamValue::Bool(value)
}

/// A parameter of a family of models.
#[derive(Clone, Debug, PartialEq)]
pub struct Param {
    /// Its name.
    pub name: &'static str,
    /// Its value if nothing is said; also fixes its kind.
    pub default: ParamValue,
    /// One line for people.
    pub help: &'static str,
    /// Whether `[height, width]` may stand for the one whole number.
    pub pair: bool,
}

impl Param {
    /// This value as one of the parameter, if it can be.
    pub fn accepts(&self, value: &ParamValue) -> Option<ParamValue> {
        let pair = self.pair && matches!(value, ParamValue::Ints(two) if two.len() == 2);
        if pair { Some(value.clone()) } else { value.fitted(&self.default) }
    }

    /// The name of its values.
    pub fn kind(&self) -> &'static str {
        if self.pair { "a whole number or [height, width]" } else { self.default.kind() }
    }
}

/// A row of a family's table.
pub const fn param(name: &'static str, default: ParamValue, help: &'static str) -> Param {
    Param { name, default, help, pair: false }
}

/// A row whose value is one whole number, or `[height, width]`.
pub const fn extents(name: &'static str, default: ParamValue, help: &'static str) -> Param {
    Param { name, default, help, pair: true }
}

/// The parameters of one model: a value for every row of its family's table.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    /// The model, for messages.
    pub model: String,
    values: BTreeMap<&'static str, ParamValue>,
}

/// Largest extent a model may have, far above any real one; keeps products of a few within 64 bits.
const LARGEST: i64 = 1 << 20;

impl Params {
    /// The table's defaults, then the settings in order; refuses unknown names and wrong kinds.
    pub fn new<'a>(
        model: &str,
        table: &'static [Param],
        settings: impl IntoIterator<Item = (&'a str, &'a ParamValue)>,
    ) -> Result<Params, GraphError> {
        let mut values: BTreeMap<&'static str, ParamValue> =
            table.iter().map(|p| (p.name, p.default.clone())).collect();
        for (name, value) in settings {
            let Some(row) = table.iter().find(|p| p.name == name) else {
                let hint = suggestion(name, table.iter().map(|p| p.name), "it has");
                return wrong(model, format!("has no parameter `{name}`{hint}"));
            };
            let Some(value) = row.accepts(value) else {
                let kind = row.kind();
                return wrong(model, format!("parameter `{name}` must be {kind}, got `{value}`"));
            };
            values.insert(row.name, value);
        }
        Ok(Params { model: model.to_string(), values })
    }

    /// Every name and value, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &ParamValue)> {
        self.values.iter().map(|(n, v)| (*n, v))
    }

    fn get(&self, name: &str) -> Result<&ParamValue, GraphError> {
        let found = self.values.get(name);
        found.ok_or_else(|| GraphError::Model(format!("model `{}` has no parameter `{name}`", self.model)))
    }

    /// A size: a whole number from 1 up.
    pub fn size(&self, name: &str) -> Result<usize, GraphError> {
        match self.get(name)? {
            ParamValue::Int(v) if (1..=LARGEST).contains(v) => Ok(*v as usize),
            v => wrong(&self.model, format!("parameter `{name}` must be from 1 to {LARGEST}, got {v}")),
        }
    }

    /// Height and width: two sizes, or one for both.
    pub fn extents(&self, name: &str) -> Result<[usize; 2], GraphError> {
        if let ParamValue::Ints(_) = self.get(name)? {
            let sizes = self.sizes(name)?;
            if let [height, width] = sizes[..] {
                return Ok([height, width]);
            }
        }
        self.size(name).map(|size| [size, size])
    }

    /// A list of sizes.
    pub fn sizes(&self, name: &str) -> Result<Vec<usize>, GraphError> {
        match self.get(name)? {
            ParamValue::Ints(v) if v.len() <= 1024 && v.iter().all(|d| (1..=LARGEST).contains(d)) => {
                Ok(v.iter().map(|d| *d as usize).collect())
            }
            v => wrong(&self.model, format!("parameter `{name}` must be sizes from 1 to {LARGEST}, got {v}")),
        }
    }

    /// A finite number from `low` to `high`.
    pub fn number(&self, name: &str, low: f64, high: f64) -> Result<f32, GraphError> {
        match self.get(name)? {
            ParamValue::Float(v) if *v >= low && *v <= high => Ok(*v as f32),
            v => wrong(&self.model, format!("parameter `{name}` must be from {low} to {high}, got {v}")),
        }
    }

    /// A share of elements to drop: from 0 to below 1.
    pub fn rate(&self, name: &str) -> Result<f32, GraphError> {
        self.number(name, 0.0, 0.999)
    }

    /// Yes or no.
    pub fn flag(&self, name: &str) -> Result<bool, GraphError> {
        match self.get(name)? {
            ParamValue::Bool(v) => Ok(*v),
            v => wrong(&self.model, format!("parameter `{name}` must be true or false, got {v}")),
        }
    }

    /// The position of the chosen word.
    pub fn choice(&self, name: &str, words: &[&str]) -> Result<usize, GraphError> {
        let value = self.get(name)?;
        let chosen = match value {
            ParamValue::Text(v) => words.iter().position(|w| w == v),
            _ => None,
        };
        chosen.map_or_else(
            || {
                let all = words.join("` or `");
                wrong(&self.model, format!("parameter `{name}` must be `{all}`, got `{value}`"))
            },
            Ok,
        )
    }
}

/// An error about a model's settings.
pub(crate) fn wrong<T>(model: &str, why: String) -> Result<T, GraphError> {
    Err(GraphError::Model(format!("model `{model}`: {why}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    static TABLE: &[Param] = &[
        param("width", int(64), "channels"),
        param("dropout", float(0.1), "share dropped"),
        param("head", text("mlm"), "what is predicted"),
        param("sizes", ints(&[3, 2]), "widths"),
        extents("size", int(28), "height and width"),
    ];

    fn read(name: &str, value: ParamValue) -> Result<Params, GraphError> {
        Params::new("toy", TABLE, [(name, &value)])
    }

    #[test]
    fn defaults_settings_and_whole_numbers_as_numbers() {
        let p = read("dropout", int(0)).unwrap();
        assert_eq!(p.size("width").unwrap(), 64);
        assert_eq!(p.rate("dropout").unwrap(), 0.0);
        assert_eq!(p.sizes("sizes").unwrap(), [3, 2]);
        assert_eq!(p.choice("head", &["classify", "mlm"]).unwrap(), 1);
        assert_eq!(p.extents("size").unwrap(), [28, 28]);
        assert_eq!(read("size", ints(&[4, 6])).unwrap().extents("size").unwrap(), [4, 6]);
    }

    #[test]
    fn mistakes_are_named() {
        let said = |e: Result<Params, GraphError>| e.unwrap_err().to_string();
        assert_eq!(
            said(read("witdh", int(3))),
            "model `toy`: has no parameter `witdh`; did you mean `width`?"
        );
        assert!(said(read("width", text("wide"))).contains("must be a whole number"));
        for bad in [0, -1, i64::MAX] {
            assert!(read("width", int(bad)).unwrap().size("width").is_err(), "{bad}");
        }
        assert!(read("dropout", float(1.0)).unwrap().rate("dropout").is_err());
        assert!(read("dropout", float(f64::NAN)).unwrap().rate("dropout").is_err());
        assert!(read("head", text("tail")).unwrap().choice("head", &["mlm"]).is_err());
        assert!(read("sizes", ints(&[3, 0])).unwrap().sizes("sizes").is_err());
    }

    #[test]
    fn values_come_from_job_files() {
        for (json, value) in [
            ("3", int(3)),
            ("0.5", float(0.5)),
            ("true", flag(true)),
            ("\"mlm\"", text("mlm")),
            ("[1,2]", ints(&[1, 2])),
        ] {
            assert_eq!(serde_json::from_str::<ParamValue>(json).unwrap(), value, "{json}");
        }
    }
}
