//! A column of texts in a table, with a label column beside it.

use std::path::Path;

use super::csv::Rows;
use super::labels::{KnownLabels, LabelReader};
use super::target::TargetColumn;
use super::words::short;
use crate::data::DataError;
use crate::data::options::DataOptions;

/// Concatenated texts and the byte range of each.
#[derive(Debug, Default, PartialEq)]
pub struct Texts {
    /// The concatenated texts.
    pub bytes: Vec<u8>,
    /// Start and end of each text.
    pub spans: Vec<(usize, usize)>,
}

impl Texts {
    /// Appends a text.
    pub fn push(&mut self, text: &str) {
        self.spans.push((self.bytes.len(), self.bytes.len() + text.len()));
        self.bytes.extend_from_slice(text.as_bytes());
    }
}

/// Reads the text column and the label column that `options` name.
pub fn labelled(path: &Path, options: &DataOptions) -> Result<(Texts, TargetColumn), DataError> {
    let mut rows = Rows::open(path, options.delimiter.as_deref())?;
    let column = rows.column("text_column", options.text_column.as_deref())?;
    let label = rows.column("label_column", options.label_column.as_deref())?;
    let mut labels = LabelReader::new(label, options.regression);
    let mut texts = Texts::default();
    while let Some((line, fields)) = rows.next_row()? {
        refuse_empty(&rows, line, &fields, column)?;
        refuse_empty(&rows, line, &fields, label)?;
        texts.push(&fields[column]);
        labels.push(&rows, line, &fields)?;
    }
    match texts.spans.is_empty() {
        true => Err(DataError::file(path, "has no rows")),
        false => Ok((texts, labels.target())),
    }
}

fn refuse_empty(rows: &Rows, line: u64, fields: &[String], column: usize) -> Result<(), DataError> {
    if !fields[column].trim().is_empty() {
        return Ok(());
    }
    let what = format!("column `{}` is empty; take the row out", short(&rows.header[column]));
    Err(rows.error(line, what))
}

/// Reads the text column of this name, and labels of known classes if the table has them.
pub fn known(
    path: &Path,
    text_column: Option<&str>,
    label_column: Option<&str>,
    classes: &[String],
) -> Result<(Texts, Option<TargetColumn>), DataError> {
    let mut rows = Rows::open(path, None)?;
    let column = rows.column("text_column", text_column)?;
    let mut labels = KnownLabels::new(&rows, label_column);
    let mut texts = Texts::default();
    while let Some((line, fields)) = rows.next_row()? {
        refuse_empty(&rows, line, &fields, column)?;
        texts.push(&fields[column]);
        labels.push(line, &fields);
    }
    Ok((texts, labels.target(path, classes)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::format::target::ClassLabels;
    use crate::scratch::{ScratchDir, torture};

    fn options(regression: bool) -> DataOptions {
        let column = |name: &str| Some(name.to_string());
        DataOptions {
            text_column: column("text"),
            label_column: column("label"),
            regression,
            ..DataOptions::default()
        }
    }

    #[test]
    fn texts_keep_quotes_and_line_breaks() {
        let dir = ScratchDir::new();
        let path = dir.write("t.csv", b"text,label\n\"a \"\"b\"\"\nc\",x\nplain \"q\",y\n");
        let (texts, target) = labelled(&path, &options(false)).unwrap();
        let all: Vec<&str> =
            texts.spans.iter().map(|&(a, b)| std::str::from_utf8(&texts.bytes[a..b]).unwrap()).collect();
        assert_eq!(all, ["a \"b\"\nc", "plain \"q\""]);
        let names = vec!["x".into(), "y".into()];
        assert_eq!(target, TargetColumn::Classes(ClassLabels { ids: vec![0, 1], names }));
    }

    #[test]
    fn labels_may_be_numbers_and_errors_name_line_and_column() {
        let dir = ScratchDir::new();
        let path = dir.write("t.csv", b"label;text\n0.5;good\n-2;bad, really\n");
        assert_eq!(labelled(&path, &options(true)).unwrap().1, TargetColumn::Numbers(vec![0.5, -2.0]));
        for (content, regression, part) in [
            ("text,label\na,b\n,c\n", false, "line 3: column `text` is empty"),
            ("text,label\na,b\nc, \n", false, "line 3: column `label` is empty"),
            ("text,label\na,0.5\n", false, "line 2: column `label`: `0.5` is not a class; set regression"),
            ("text,label\na,b\n", true, "line 2: column `label`: `b` is not a finite number"),
            ("text,y\na,b\n", true, "no column `label`; it has: text, y"),
            ("text,label\n", true, "no rows"),
        ] {
            let path = dir.write("t.csv", content.as_bytes());
            let message = labelled(&path, &options(regression)).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
        torture(b"text,label\n1,\"p\"\n2.5,q\r\n", |bytes| {
            let _ = labelled(&dir.write("t.csv", bytes), &options(false));
        });
    }
}
