//! The label column of a table: classes or numbers, collected from the table or given by a stored mapping.

use std::collections::BTreeMap;
use std::path::Path;

use super::csv::Rows;
use super::table::finite;
use super::target::{ClassLabels, TargetColumn};
use super::words::{few, short};
use crate::data::DataError;

/// Checks that a label names a class.
fn class_name(rows: &Rows, line: u64, column: usize, text: &str) -> Result<String, DataError> {
    if text.is_empty() || (text.parse::<i64>().is_err() && text.parse::<f64>().is_ok()) {
        let name = short(&rows.header[column]);
        let what =
            format!("column `{name}`: `{}` is not a class; set regression = true for numbers", short(text));
        return Err(rows.error(line, what));
    }
    Ok(text.to_string())
}

/// Parses a label that is a number.
fn number(rows: &Rows, line: u64, column: usize, text: &str) -> Result<f32, DataError> {
    finite(text).ok_or_else(|| {
        let name = short(&rows.header[column]);
        rows.error(line, format!("column `{name}`: `{}` is not a finite number to predict", short(text)))
    })
}

/// Reads a label column row by row and collects its classes.
pub struct LabelReader {
    column: usize,
    regression: bool,
    names: Vec<String>,
    numbers: Vec<f32>,
}

impl LabelReader {
    /// Reads the column at this position.
    pub fn new(column: usize, regression: bool) -> LabelReader {
        LabelReader { column, regression, names: Vec::new(), numbers: Vec::new() }
    }

    /// Takes the label of one more row.
    pub fn push(&mut self, rows: &Rows, line: u64, fields: &[String]) -> Result<(), DataError> {
        let text = fields[self.column].trim();
        match self.regression {
            true => self.numbers.push(number(rows, line, self.column, text)?),
            false => self.names.push(class_name(rows, line, self.column, text)?),
        }
        Ok(())
    }

    /// All labels. The classes are those that occur.
    pub fn target(self) -> TargetColumn {
        match self.regression {
            true => TargetColumn::Numbers(self.numbers),
            false => TargetColumn::Classes(ClassLabels::of(&self.names)),
        }
    }
}

/// Reads a label column with known classes from a table that may lack it. Empty labels are allowed if no row has one.
pub struct KnownLabels {
    column: Option<usize>,
    labels: Vec<(u64, String)>,
}

impl KnownLabels {
    /// Reads the column of this name, if there is one.
    pub fn new(rows: &Rows, name: Option<&str>) -> KnownLabels {
        KnownLabels { column: rows.header.iter().position(|h| Some(h.as_str()) == name), labels: Vec::new() }
    }

    /// Takes the label of one more row.
    pub fn push(&mut self, line: u64, fields: &[String]) {
        if let Some(column) = self.column {
            self.labels.push((line, fields[column].trim().to_string()));
        }
    }

    /// All labels: ids of `classes`, or numbers if `classes` is empty. `None` if no row has a label.
    pub fn target(self, path: &Path, classes: &[String]) -> Result<Option<TargetColumn>, DataError> {
        if self.labels.iter().all(|(_, label)| label.is_empty()) {
            return Ok(None);
        }
        let error = |line: u64, label: &str, what: &str| {
            let what = format!("label `{}` is {what}", short(label));
            DataError::Line { path: path.into(), line, what }
        };
        if classes.is_empty() {
            let numbers = self
                .labels
                .iter()
                .map(|(line, label)| finite(label).ok_or_else(|| error(*line, label, "not a finite number")));
            return Ok(Some(TargetColumn::Numbers(numbers.collect::<Result<_, _>>()?)));
        }
        let id_of: BTreeMap<&str, u32> = classes.iter().map(String::as_str).zip(0..).collect();
        let ids = self.labels.iter().map(|(line, label)| {
            id_of.get(label.as_str()).copied().ok_or_else(|| {
                let what = format!("none of the known classes: {}", few(classes));
                error(*line, label, &what)
            })
        });
        let ids = ids.collect::<Result<_, _>>()?;
        Ok(Some(TargetColumn::Classes(ClassLabels { ids, names: classes.to_vec() })))
    }
}
