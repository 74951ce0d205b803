//! Tables in CSV or TSV with a header line: numeric features with a label column, or a text column
//! with a label column.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::file::{Bytes, map, utf8};
use super::sequences::Labels;
use super::{Batch, DataError, DataInfo, Dataset, check_indices, class_tensor, tensor};
use crate::host::HostData;

/// Splits a table into records of unquoted fields. Quoted fields may hold delimiters, line breaks
/// and doubled quotes.
struct Records<'a> {
    path: &'a Path,
    rest: &'a str,
    delimiter: char,
    line: u64,
}

impl Records<'_> {
    /// The next record that is not blank, with the line it starts in.
    fn next(&mut self) -> Result<Option<(u64, Vec<String>)>, DataError> {
        while let Some(rest) = self.rest.strip_prefix("\r\n").or_else(|| self.rest.strip_prefix('\n')) {
            self.rest = rest;
            self.line += 1;
        }
        if self.rest.is_empty() {
            return Ok(None);
        }
        let start = self.line;
        let mut fields = Vec::new();
        loop {
            fields.push(if self.rest.starts_with('"') { self.quoted()? } else { self.bare() });
            if let Some(rest) = self.rest.strip_prefix(self.delimiter) {
                self.rest = rest;
                continue;
            }
            if !self.rest.is_empty() {
                let end = self.rest.strip_prefix("\r\n").or_else(|| self.rest.strip_prefix('\n'));
                self.rest = end.ok_or_else(|| self.error("text after a closing quote"))?;
                self.line += 1;
            }
            return Ok(Some((start, fields)));
        }
    }

    fn error(&self, what: &str) -> DataError {
        DataError::Line { path: self.path.into(), line: self.line, what: what.into() }
    }

    fn bare(&mut self) -> String {
        let end = self.rest.find([self.delimiter, '\n']).unwrap_or(self.rest.len());
        let (field, rest) = self.rest.split_at(end);
        let at_line_end = rest.is_empty() || rest.starts_with('\n');
        let field = if at_line_end { field.strip_suffix('\r').unwrap_or(field) } else { field };
        self.rest = &self.rest[end..];
        field.to_string()
    }

    fn quoted(&mut self) -> Result<String, DataError> {
        let mut out = String::new();
        self.rest = &self.rest[1..];
        loop {
            let Some(end) = self.rest.find('"') else {
                return Err(self.error("quote is never closed"));
            };
            let (text, rest) = self.rest.split_at(end);
            out.push_str(text);
            self.line += text.bytes().filter(|&b| b == b'\n').count() as u64;
            self.rest = &rest[1..];
            match self.rest.strip_prefix('"') {
                Some(rest) => {
                    out.push('"');
                    self.rest = rest;
                }
                None => return Ok(out),
            }
        }
    }
}

/// Calls `row` for every record after the header, whose fields it must match in number.
fn each_row(
    path: &Path,
    mut row: impl FnMut(&[String], u64, &[String]) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let bytes = map(path)?;
    let text = utf8(path, &bytes)?;
    let delimiter = if path.extension().is_some_and(|e| e == "tsv") { '\t' } else { ',' };
    let rest = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut records = Records { path, rest, delimiter, line: 1 };
    let Some((_, header)) = records.next()? else {
        return Err(DataError::file(path, "is empty; a header line with column names is needed"));
    };
    let header: Vec<String> = header.iter().map(|name| name.trim().to_string()).collect();
    while let Some((line, fields)) = records.next()? {
        if fields.len() != header.len() {
            let what = format!("{} fields, but the header has {}", fields.len(), header.len());
            return Err(DataError::Line { path: path.into(), line, what });
        }
        row(&header, line, &fields)?;
    }
    Ok(())
}

fn column(
    path: &Path,
    header: &[String],
    option: &'static str,
    name: Option<&str>,
) -> Result<usize, DataError> {
    let all = || header.join(", ");
    let Some(name) = name else {
        return Err(DataError::option(
            option,
            format!("name one of the columns of {}: {}", path.display(), all()),
        ));
    };
    header.iter().position(|h| h == name).ok_or_else(|| {
        DataError::option(option, format!("{} has no column `{name}`; it has: {}", path.display(), all()))
    })
}

/// Classes in ascending order of their names: by value when all are whole numbers, else as text.
fn to_classes(labels: &[String]) -> Labels {
    let distinct: BTreeSet<&str> = labels.iter().map(String::as_str).collect();
    let mut names: Vec<&str> = distinct.into_iter().collect();
    if names.iter().all(|n| n.parse::<i64>().is_ok()) {
        names.sort_by_key(|n| n.parse::<i64>().unwrap_or(0));
    }
    let id_of: BTreeMap<&str, u32> = names.iter().copied().zip(0..).collect();
    Labels {
        ids: labels.iter().map(|label| id_of[label.as_str()]).collect(),
        names: names.iter().map(|name| name.to_string()).collect(),
    }
}

/// What the label column means.
#[derive(Clone, Debug, PartialEq)]
pub enum Target {
    /// y `[b]` i64.
    Classes(Labels),
    /// y `[b, 1]` f32.
    Numbers(Vec<f32>),
}

/// Numeric features: x `[b, columns]` f32.
#[derive(Debug)]
pub struct Table {
    path: PathBuf,
    /// Names of the feature columns.
    pub columns: Vec<String>,
    x: Vec<f32>,
    target: Target,
    mean: Vec<f32>,
    std: Vec<f32>,
}

impl Table {
    /// Reads the whole table. The label column is a class, or a number for `regression`.
    pub fn open(path: &Path, label_column: Option<&str>, regression: bool) -> Result<Table, DataError> {
        let mut columns = Vec::new();
        let mut x = Vec::new();
        let mut labels = Vec::new();
        let mut numbers = Vec::new();
        each_row(path, |header, line, fields| {
            let label = column(path, header, "label_column", label_column)?;
            if columns.is_empty() {
                columns =
                    header.iter().enumerate().filter(|(i, _)| *i != label).map(|(_, h)| h.clone()).collect();
            }
            let number = |field: usize| -> Result<f32, DataError> {
                let text = fields[field].trim();
                text.parse().ok().filter(|v: &f32| v.is_finite()).ok_or_else(|| {
                    let what = format!("column `{}`: `{text}` is not a finite number", header[field]);
                    DataError::Line { path: path.into(), line, what }
                })
            };
            for field in (0..fields.len()).filter(|&i| i != label) {
                x.push(number(field)?);
            }
            let text = fields[label].trim();
            if regression {
                numbers.push(number(label)?);
            } else if text.is_empty() || (text.parse::<i64>().is_err() && text.parse::<f64>().is_ok()) {
                let name = &header[label];
                let what =
                    format!("column `{name}`: `{text}` is not a class; set regression = true for numbers");
                return Err(DataError::Line { path: path.into(), line, what });
            } else {
                labels.push(text.to_string());
            }
            Ok(())
        })?;
        if columns.is_empty() || x.is_empty() {
            return Err(DataError::file(path, "has no rows of features besides the label"));
        }
        let target = match regression {
            true => Target::Numbers(numbers),
            false => Target::Classes(to_classes(&labels)),
        };
        Ok(Table { path: path.into(), columns, x, target, mean: vec![], std: vec![] })
    }

    /// Subtracts from every column its mean over these rows and divides by its standard deviation;
    /// columns without variation are only shifted.
    pub fn standardise(&mut self, rows: &[u32]) {
        let width = self.columns.len();
        let moments = (0..width).map(|c| {
            let values = || rows.iter().map(|&r| f64::from(self.x[r as usize * width + c]));
            let count = rows.len().max(1) as f64;
            let mean = values().sum::<f64>() / count;
            let deviation = (values().map(|v| (v - mean) * (v - mean)).sum::<f64>() / count).sqrt();
            (mean as f32, if deviation > 1e-12 { deviation as f32 } else { 1.0 })
        });
        (self.mean, self.std) = moments.unzip();
    }

    /// Uses a stored mean and deviation per column instead.
    pub fn set_statistics(&mut self, mean: &[f32], std: &[f32]) -> Result<(), DataError> {
        if mean.len() != self.columns.len() || std.len() != mean.len() {
            let (given, width) = (mean.len(), self.columns.len());
            let what = format!("{given} values for the {width} feature columns of {}", self.path.display());
            return Err(DataError::option("mean", what));
        }
        (self.mean, self.std) = (mean.to_vec(), std.to_vec());
        Ok(())
    }
}

impl Dataset for Table {
    fn len(&self) -> usize {
        self.x.len() / self.columns.len()
    }

    fn length(&self, _: usize) -> Option<usize> {
        None
    }

    fn batch(&self, indices: &[usize]) -> Result<Batch, DataError> {
        check_indices(indices, self.len())?;
        let width = self.columns.len();
        let mut x = Vec::with_capacity(indices.len() * width);
        for &i in indices {
            let row = &self.x[i * width..(i + 1) * width];
            match self.mean.is_empty() {
                true => x.extend_from_slice(row),
                false => x.extend((0..width).map(|c| (row[c] - self.mean[c]) / self.std[c])),
            }
        }
        let y = match &self.target {
            Target::Classes(labels) => class_tensor(indices.iter().map(|&i| labels.ids[i])),
            Target::Numbers(all) => {
                tensor(&[indices.len(), 1], HostData::F32(indices.iter().map(|&i| all[i]).collect()))
            }
        };
        Ok(Batch::of([("x", tensor(&[indices.len(), width], HostData::F32(x))), ("y", y)]))
    }

    fn info(&self) -> DataInfo {
        let class_names = match &self.target {
            Target::Classes(labels) => labels.names.clone(),
            Target::Numbers(_) => vec![],
        };
        DataInfo {
            examples: self.len(),
            classes: (!class_names.is_empty()).then_some(class_names.len()),
            shape: vec![self.columns.len()],
            class_names,
            mean: self.mean.clone(),
            std: self.std.clone(),
            ..DataInfo::default()
        }
    }
}

/// Texts one after the other, the byte range of each, and their classes.
pub type LabelledTexts = (Bytes, Vec<(usize, usize)>, Labels);

/// Reads a text column and a label column.
pub fn labelled_texts(
    path: &Path,
    text_column: Option<&str>,
    label_column: Option<&str>,
) -> Result<LabelledTexts, DataError> {
    let (mut all, mut spans, mut labels) = (Vec::new(), Vec::new(), Vec::new());
    each_row(path, |header, line, fields| {
        let text = &fields[column(path, header, "text_column", text_column)?];
        let label = fields[column(path, header, "label_column", label_column)?].trim();
        if text.is_empty() || label.is_empty() {
            let what = "text or label is empty".to_string();
            return Err(DataError::Line { path: path.into(), line, what });
        }
        spans.push((all.len(), all.len() + text.len()));
        all.extend_from_slice(text.as_bytes());
        labels.push(label.to_string());
        Ok(())
    })?;
    if spans.is_empty() {
        return Err(DataError::file(path, "has no rows"));
    }
    Ok((Bytes::Owned(all), spans, to_classes(&labels)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::scratch::{Scratch, torture};

    #[test]
    fn numeric_tables_have_exact_values() {
        let dir = Scratch::new();
        let path = dir
            .write("t.csv", b"\xef\xbb\xbfa,kind,\"b, c\"\r\n1,\"dog\",-2.5\r\n\r\n3,cat,1e2\r\n5,dog,\"4\"");
        let mut table = Table::open(&path, Some("kind"), false).unwrap();
        assert_eq!(table.columns, ["a", "b, c"]);
        let b = table.batch(&[2, 0]).unwrap();
        assert_eq!(b.get("x").unwrap().as_f32().unwrap(), [5.0, 4.0, 1.0, -2.5]);
        assert_eq!(b.get("y").unwrap().as_i64().unwrap(), [1, 1]);
        assert_eq!(table.info().class_names, ["cat", "dog"]);
        table.standardise(&[0, 1]);
        assert_eq!((table.info().mean, table.info().std), (vec![2.0, 48.75], vec![1.0, 51.25]));
        assert_eq!(table.batch(&[2]).unwrap().get("x").unwrap().as_f32().unwrap()[0], 3.0);
    }

    #[test]
    fn whole_number_labels_sort_by_value_and_regression_reads_numbers() {
        let dir = Scratch::new();
        let path = dir.write("t.tsv", b"y\tx\n10\t0\n9\t0\n-1\t0\n");
        let classes = Table::open(&path, Some("y"), false).unwrap();
        assert_eq!(classes.info().class_names, ["-1", "9", "10"]);
        let numbers = Table::open(&path, Some("y"), true).unwrap().batch(&[0, 2]).unwrap();
        assert_eq!(numbers.get("y").unwrap().as_f32().unwrap(), [10.0, -1.0]);
        assert_eq!(numbers.get("y").unwrap().shape(), [2, 1]);
    }

    #[test]
    fn texts_keep_quotes_and_line_breaks() {
        let dir = Scratch::new();
        let path = dir.write("t.csv", b"text,label\n\"a \"\"b\"\"\nc\",x\nplain \"q\",y\n");
        let (bytes, spans, labels) = labelled_texts(&path, Some("text"), Some("label")).unwrap();
        let texts: Vec<&str> =
            spans.iter().map(|&(a, b)| std::str::from_utf8(&bytes[a..b]).unwrap()).collect();
        assert_eq!(texts, ["a \"b\"\nc", "plain \"q\""]);
        assert_eq!(labels, Labels { ids: vec![0, 1], names: vec!["x".into(), "y".into()] });
    }

    #[test]
    fn errors_name_line_and_column() {
        let dir = Scratch::new();
        for (content, part) in [
            ("a,y\n1,2\nz,3\n", "t.csv: line 3: column `a`: `z`"),
            ("a,y\n1,2\n\"\n\n1\",2\n1\n", "line 6: 1 fields"),
            ("a,y\n1\n", "line 2: 1 fields, but the header has 2"),
            ("a,y\n\"1,2\n", "line 2: quote is never closed"),
            ("a,y\n\"1\"1,2\n", "line 2: text after a closing quote"),
            ("a,y\nnan,2\n", "not a finite number"),
            ("a,y\n1,0.5\n", "regression = true"),
            ("a,b\n1,2\n", "has no column `y`; it has: a, b"),
            ("y\n1\n", "no rows of features"),
            ("a,y\n", "no rows"),
            ("", "is empty"),
        ] {
            let path = dir.write("t.csv", content.as_bytes());
            let message = Table::open(&path, Some("y"), false).unwrap_err().to_string();
            assert!(message.contains(part), "{content:?}: {message}");
        }
        torture(b"a,y\n1,\"p\"\n2.5,q\r\n", |bytes| {
            let path = dir.write("t.csv", bytes);
            let _ = Table::open(&path, Some("y"), false);
            let _ = labelled_texts(&path, Some("a"), Some("y"));
        });
    }
}
