//! Tables of numbers with a label column: classes or numbers to predict.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};

use super::csv::Rows;
use super::labels::{KnownLabels, LabelReader};
use super::target::TargetColumn;
use super::words::{counted, few, short};
use crate::data::options::{DataOptions, Missing};
use crate::data::{Batch, DataError, DataInfo, Dataset, check_indices, class_counts, tensor};
use crate::host::HostData;

/// Numeric features: x `[b, columns]` f32.
#[derive(Debug)]
pub struct NumericTable {
    path: PathBuf,
    /// Names of the feature columns.
    pub columns: Vec<String>,
    /// Row-major; NaN for a missing cell that was not filled.
    x: Vec<f32>,
    target: Option<TargetColumn>,
    /// Value for a missing cell of each column; empty when missing cells are refused.
    fill: Vec<f32>,
    mean: Vec<f32>,
    std: Vec<f32>,
}

/// Whether a cell marks a missing value.
fn is_missing(text: &str) -> bool {
    ["", "na", "n/a", "nan", "null", "none", "?"].iter().any(|word| text.eq_ignore_ascii_case(word))
}

/// Parses a finite number in single precision.
pub(super) fn finite(text: &str) -> Option<f32> {
    text.parse().ok().filter(|v: &f32| v.is_finite())
}

/// The feature cells of a table while it is read.
struct Cells {
    path: PathBuf,
    names: Vec<String>,
    /// Row-major; NaN for a missing cell.
    x: Vec<f32>,
    /// Line, column and text of the first missing cell.
    missing: Option<(u64, usize, String)>,
    /// Number of missing cells.
    gaps: usize,
    /// Line and text of the first non-numeric cell of each column.
    words: Vec<Option<(u64, String)>>,
}

impl Cells {
    fn new(path: &Path, names: Vec<String>) -> Cells {
        let words = vec![None; names.len()];
        Cells { path: path.into(), names, x: Vec::new(), missing: None, gaps: 0, words }
    }

    fn push(&mut self, line: u64, column: usize, text: &str) {
        let text = text.trim();
        let value = finite(text);
        if value.is_none() && is_missing(text) {
            self.missing.get_or_insert_with(|| (line, column, text.to_string()));
            self.gaps += 1;
        } else if value.is_none() && self.words[column].is_none() {
            self.words[column] = Some((line, text.chars().take(100).collect()));
        }
        self.x.push(value.unwrap_or(f32::NAN));
    }

    /// Refuses columns that are not numbers, naming all of them, and missing cells unless they will be `filled`.
    fn check(&self, filled: bool) -> Result<(), DataError> {
        let error = |line, what| Err(DataError::Line { path: self.path.clone(), line, what });
        let words = self.names.iter().zip(&self.words);
        let words: Vec<(&str, u64, &str)> = words
            .filter_map(|(name, word)| Some((name.as_str(), word.as_ref()?.0, word.as_ref()?.1.as_str())))
            .collect();
        if let Some((name, line, text)) = words.iter().min_by_key(|(_, line, _)| line) {
            let names: Vec<String> = words.iter().map(|(name, ..)| format!("\"{}\"", short(name))).collect();
            let ignore = format!("with ignore_columns = [{}]", few(&names));
            let what = match words.len() {
                1 => {
                    let comma = match finite(&text.replacen(',', ".", 1)) {
                        Some(_) => " (decimals are written with a point)",
                        None => "",
                    };
                    format!(
                        "column `{}`: `{}` is not a finite number{comma}; correct it, or leave the column out {ignore}",
                        short(name),
                        short(text)
                    )
                }
                _ => {
                    let shown: Vec<String> = words
                        .iter()
                        .map(|(name, _, text)| format!("`{}` (`{}`)", short(name), short(text)))
                        .collect();
                    let shown: Vec<&str> = shown.iter().map(String::as_str).collect();
                    format!("columns {} are not numbers; leave them out {ignore}", listed(&shown))
                }
            };
            return error(*line, what);
        }
        match &self.missing {
            Some((line, column, text)) if !filled => {
                let what = format!(
                    "column `{}`: `{text}` is a missing value ({} in the table); set missing = \"mean\", \"zero\" or a \
                     number to fill such cells, or remove the row",
                    short(&self.names[*column]),
                    counted(self.gaps, "such cell")
                );
                error(*line, what)
            }
            _ => Ok(()),
        }
    }
}

/// At most eight of these words and the number of the others.
fn listed(words: &[&str]) -> String {
    const SHOWN: usize = 8;
    match words.len() {
        0..=SHOWN => words.join(", "),
        n => format!("{} and {} more", words[..SHOWN].join(", "), n - SHOWN),
    }
}

/// The description of a table in a stored mapping.
pub struct TableSchema<'a> {
    /// Names of the feature columns.
    pub columns: &'a [String],
    /// Name of the label column.
    pub label_column: Option<&'a str>,
    /// Names of the classes; none when labels are numbers.
    pub classes: &'a [String],
    /// Value for a missing cell of each column; empty when missing cells are refused.
    pub fill: &'a [f32],
    /// Subtracted per column; empty for none.
    pub mean: &'a [f32],
    /// Divided by per column; as long as `mean`.
    pub std: &'a [f32],
}

/// The position of each wanted column. Columns that share a name are taken in order, each once.
fn find_columns(path: &Path, header: &[String], wanted: &[String]) -> Result<Vec<usize>, DataError> {
    let mut positions: BTreeMap<&str, VecDeque<usize>> = BTreeMap::new();
    for (i, name) in header.iter().enumerate() {
        positions.entry(name).or_default().push_back(i);
    }
    let (mut found, mut absent) = (Vec::new(), Vec::new());
    for name in wanted {
        match positions.get_mut(name.as_str()).and_then(VecDeque::pop_front) {
            Some(i) => found.push(i),
            None => absent.push(format!("`{}`", short(name))),
        }
    }
    match absent.is_empty() {
        true => Ok(found),
        false => {
            let what = format!("has no column {}; it has: {}", few(&absent), few(header));
            Err(DataError::file(path, what))
        }
    }
}

impl NumericTable {
    /// Reads the whole table. Missing cells are refused or left for [`NumericTable::fill`].
    pub fn open(path: &Path, options: &DataOptions) -> Result<NumericTable, DataError> {
        let mut rows = Rows::open(path, options.delimiter.as_deref())?;
        let label = rows.column("label_column", options.label_column.as_deref())?;
        for name in &options.ignore_columns {
            rows.column("ignore_columns", Some(name))?;
        }
        let wanted = |i: &usize| *i != label && !options.ignore_columns.contains(&rows.header[*i]);
        let features: Vec<usize> = (0..rows.header.len()).filter(wanted).collect();
        let names = features.iter().map(|&i| rows.header[i].clone()).collect();
        let mut cells = Cells::new(path, names);
        let mut labels = LabelReader::new(label, options.regression);
        while let Some((line, fields)) = rows.next_row()? {
            labels.push(&rows, line, &fields)?;
            features.iter().enumerate().for_each(|(c, &i)| cells.push(line, c, &fields[i]));
        }
        if cells.x.is_empty() {
            return Err(DataError::file(path, "has no rows of features besides the label"));
        }
        cells.check(options.missing != Missing::Refuse)?;
        let Cells { path, names: columns, x, .. } = cells;
        Ok(NumericTable {
            path,
            columns,
            x,
            target: Some(labels.target()),
            fill: vec![],
            mean: vec![],
            std: vec![],
        })
    }

    /// Reads the columns that `known` names, in that order, from one or several tables. Other columns are ignored; the
    /// label column may be absent. Also returns the number of rows of each table.
    pub fn known(
        paths: &[PathBuf],
        known: &TableSchema<'_>,
    ) -> Result<(NumericTable, Vec<usize>), DataError> {
        let (mut x, mut target, mut counts) = (Vec::new(), None, Vec::new());
        for (nth, path) in paths.iter().enumerate() {
            let mut rows = Rows::open(path, None)?;
            let features = find_columns(path, &rows.header, known.columns)?;
            let mut cells = Cells::new(path, known.columns.to_vec());
            let mut labels = KnownLabels::new(&rows, known.label_column);
            while let Some((line, fields)) = rows.next_row()? {
                labels.push(line, &fields);
                features.iter().enumerate().for_each(|(c, &i)| cells.push(line, c, &fields[i]));
            }
            cells.check(!known.fill.is_empty())?;
            counts.push(cells.x.len() / known.columns.len().max(1));
            x.append(&mut cells.x);
            let found = labels.target(path, known.classes)?;
            target = if nth == 0 { found } else { target.zip(found).map(|(before, more)| before.and(more)) };
        }
        if x.is_empty() || known.columns.is_empty() {
            let path = paths.first().map(PathBuf::as_path).unwrap_or(Path::new("no file"));
            return Err(DataError::file(path, "has no rows"));
        }
        let columns = known.columns.to_vec();
        let (fill, mean, std) = (known.fill.to_vec(), known.mean.to_vec(), known.std.to_vec());
        let path = paths[0].clone();
        let mut table = NumericTable { path, columns, x, target, fill, mean, std };
        table.put_fill();
        Ok((table, counts))
    }

    /// Whether rows have labels.
    pub fn labelled(&self) -> bool {
        self.target.is_some()
    }

    /// Fills every missing cell. Means are taken over these rows.
    pub fn fill(&mut self, missing: Missing, rows: &[u32]) -> Result<(), DataError> {
        let width = self.columns.len();
        self.fill = match missing {
            Missing::Refuse => return Ok(()),
            Missing::Number(value) => vec![value; width],
            Missing::Mean => (0..width).map(|c| self.mean_of(c, rows)).collect::<Result<_, _>>()?,
        };
        self.put_fill();
        Ok(())
    }

    fn put_fill(&mut self) {
        for row in self.x.chunks_mut(self.columns.len()) {
            row.iter_mut().zip(&self.fill).filter(|(v, _)| v.is_nan()).for_each(|(v, fill)| *v = *fill);
        }
    }

    /// The mean of a column over these rows, without missing cells.
    fn mean_of(&self, column: usize, rows: &[u32]) -> Result<f32, DataError> {
        let cells = rows.iter().map(|&r| self.x[r as usize * self.columns.len() + column]);
        let (sum, count) = cells
            .filter(|v| !v.is_nan())
            .fold((0.0, 0u64), |(sum, count), v| (sum + f64::from(v), count + 1));
        if count == 0 {
            let name = short(&self.columns[column]);
            let what = format!(
                "column `{name}` of {} holds no value in any training row; leave it out with ignore_columns = [\"{name}\"]",
                self.path.display()
            );
            return Err(DataError::option("missing", what));
        }
        Ok((sum / count as f64) as f32)
    }

    /// Normalises every column by its mean and standard deviation over these rows; constant columns are only shifted.
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

    /// Normalises every column by a stored mean and deviation.
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

impl Dataset for NumericTable {
    fn len(&self) -> usize {
        self.x.len() / self.columns.len()
    }

    fn class(&self, i: usize) -> Option<u32> {
        self.target.as_ref()?.class(i)
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
        let x = tensor(&[indices.len(), width], HostData::F32(x));
        Ok(Batch::with_target(x, self.target.as_ref().map(|target| target.tensor(indices))))
    }

    fn info(&self) -> DataInfo {
        let mut info = DataInfo {
            examples: self.len(),
            shape: vec![self.columns.len()],
            columns: self.columns.clone(),
            fill: self.fill.clone(),
            mean: self.mean.clone(),
            std: self.std.clone(),
            ..DataInfo::default()
        };
        if let Some(target) = &self.target {
            target.describe(&mut info);
        }
        info.class_counts = class_counts(self, info.classes);
        info
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::{ScratchDir, torture};

    fn of(label: &str) -> DataOptions {
        DataOptions { label_column: Some(label.into()), ..DataOptions::default() }
    }

    fn x(table: &NumericTable, rows: &[usize]) -> Vec<f32> {
        table.batch(rows).unwrap().get("x").unwrap().as_f32().unwrap().to_vec()
    }

    #[test]
    fn numeric_tables_have_exact_values() {
        let dir = ScratchDir::new();
        let path = dir
            .write("t.csv", b"\xef\xbb\xbfa,kind,\"b, c\"\r\n1,\"dog\",-2.5\r\n\r\n3,cat,1e2\r\n5,dog,\"4\"");
        let mut table = NumericTable::open(&path, &of("kind")).unwrap();
        assert_eq!(table.columns, ["a", "b, c"]);
        let b = table.batch(&[2, 0]).unwrap();
        assert_eq!(b.get("x").unwrap().as_f32().unwrap(), [5.0, 4.0, 1.0, -2.5]);
        assert_eq!(b.get("y").unwrap().as_i64().unwrap(), [1, 1]);
        assert_eq!(table.info().class_names, ["cat", "dog"]);
        assert_eq!((table.info().class_counts, table.info().columns), (vec![1, 2], table.columns.clone()));
        table.standardise(&[0, 1]);
        assert_eq!((table.info().mean, table.info().std), (vec![2.0, 48.75], vec![1.0, 51.25]));
        assert_eq!(x(&table, &[2])[0], 3.0);
    }

    #[test]
    fn whole_number_labels_sort_by_value_and_regression_reads_numbers() {
        let dir = ScratchDir::new();
        let path = dir.write("t.tsv", b"y\tx\n10\t0\n9\t0\n-1\t0\n");
        let classes = NumericTable::open(&path, &of("y")).unwrap();
        assert_eq!(classes.info().class_names, ["-1", "9", "10"]);
        let numbers = NumericTable::open(&path, &DataOptions { regression: true, ..of("y") }).unwrap();
        assert_eq!((numbers.info().targets, numbers.info().classes), (Some(1), None));
        let numbers = numbers.batch(&[0, 2]).unwrap();
        assert_eq!(numbers.get("y").unwrap().as_f32().unwrap(), [10.0, -1.0]);
        assert_eq!(numbers.get("y").unwrap().shape(), [2, 1]);
    }

    #[test]
    fn missing_cells_are_refused_or_filled_as_told() {
        let dir = ScratchDir::new();
        let path = dir.write("t.csv", b"a;b;y\n1;NA;p\n;2;q\n5;4;p\n100;?;q\n");
        let message = NumericTable::open(&path, &of("y")).unwrap_err().to_string();
        assert!(
            message.contains("line 2: column `b`: `NA` is a missing value (3 such cells in the table)"),
            "{message}"
        );
        let filled = |missing| {
            let mut table = NumericTable::open(&path, &DataOptions { missing, ..of("y") }).unwrap();
            table.fill(missing, &[0, 1, 2]).unwrap();
            table
        };
        // The last row is not for training: its 100 does not count.
        let mean = filled(Missing::Mean);
        assert_eq!(mean.info().fill, [3.0, 3.0]);
        assert_eq!(x(&mean, &[0, 1, 2, 3]), [1.0, 3.0, 3.0, 2.0, 5.0, 4.0, 100.0, 3.0]);
        let number = filled(Missing::Number(-7.0));
        assert_eq!((x(&number, &[1]), number.info().fill), (vec![-7.0, 2.0], vec![-7.0, -7.0]));
        let none = dir.write("t.csv", b"a,b,y\n,1,0\n,2,1\n3,1,0\n");
        let mut table =
            NumericTable::open(&none, &DataOptions { missing: Missing::Mean, ..of("y") }).unwrap();
        let message = table.fill(Missing::Mean, &[0, 1]).unwrap_err().to_string();
        assert!(message.contains("`missing`: column `a`") && message.contains("ignore_columns"), "{message}");
    }

    #[test]
    fn columns_of_words_are_named_together_and_can_be_left_out() {
        let dir = ScratchDir::new();
        let path = dir.write("t.csv", b"name,a,city,y\nAda,1,Rome,0\nBob,2,7,1\n");
        let message = NumericTable::open(&path, &of("y")).unwrap_err().to_string();
        for part in ["line 2: ", "`name` (`Ada`), `city` (`Rome`)", "ignore_columns = [\"name\", \"city\"]"] {
            assert!(message.contains(part), "{message}");
        }
        let ignore = |names: &[&str]| DataOptions {
            ignore_columns: names.iter().map(|n| n.to_string()).collect(),
            ..of("y")
        };
        let table = NumericTable::open(&path, &ignore(&["name", "city"])).unwrap();
        assert_eq!((table.columns.clone(), x(&table, &[0, 1])), (vec!["a".to_string()], vec![1.0, 2.0]));
        let message = NumericTable::open(&path, &ignore(&["names"])).unwrap_err().to_string();
        assert!(message.contains("`ignore_columns`") && message.contains("no column `names`"), "{message}");
        let german = dir.write("t.csv", b"a;y\n1,5;0\n");
        let message = NumericTable::open(&german, &of("y")).unwrap_err().to_string();
        assert!(
            message.contains("`1,5` is not a finite number (decimals are written with a point)"),
            "{message}"
        );
    }

    #[test]
    fn columns_without_variation_are_only_shifted() {
        let dir = ScratchDir::new();
        let path = dir.write("t.csv", b"a,b,y\n0.1,1,0\n0.1,2,1\n0.1,3,1\n");
        let mut table = NumericTable::open(&path, &of("y")).unwrap();
        table.standardise(&[0, 1, 2]);
        assert_eq!(table.info().std[0], 1.0);
        assert_eq!(x(&table, &[0])[0], 0.0);
    }

    #[test]
    fn messages_stay_short_whatever_the_file_holds() {
        let dir = ScratchDir::new();
        let long = "w".repeat(10_000_000);
        let wide: Vec<String> = (0..10_000).map(|i| format!("column{i}")).collect();
        let wide = wide.join(",");
        for (content, label) in [
            (format!("a,y\n{long},0\n"), "y"),
            (format!("{long},y\nx,0\n"), "y"),
            (format!("{long},b\n1,0\n"), "y"),
            (format!("a,y\n1,0.{}\n", "1".repeat(1_000_000)), "y"),
            (format!("{wide}\n"), "y"),
            (format!("{wide}\n{}\n", vec!["w"; 10_000].join(",")), "column0"),
            (format!("{wide}\n{}\n", ",".repeat(9_999)), "column0"),
            ("a,y\n1,0\n".into(), &long),
        ] {
            let path = dir.write("t.csv", content.as_bytes());
            let message = NumericTable::open(&path, &of(label)).unwrap_err().to_string();
            assert!(
                message.len() < 2000 && !message.contains('\n'),
                "{}",
                &message[..2000.min(message.len())]
            );
        }
    }

    #[test]
    fn errors_name_line_and_column() {
        let dir = ScratchDir::new();
        for (content, part) in [
            ("a,y\n1,2\nz,3\n", "t.csv: line 3: column `a`: `z` is not a finite number; correct it"),
            ("a,y\n1,2\ninf,3\n", "line 3: column `a`: `inf` is not a finite number"),
            ("a,y\nnan,2\n", "line 2: column `a`: `nan` is a missing value (1 such cell in"),
            ("a,y\n1,0.5\n", "regression = true"),
            ("a,y\n1,\n", "line 2: column `y`: `` is not a class"),
            ("a,b\n1,2\n", "has no column `y`; it has: a, b"),
            ("a|y\n1|2\n", "set `delimiter`"),
            ("y\n1\n", "no rows of features"),
            ("a,y\n", "no rows"),
            ("", "is empty"),
        ] {
            let path = dir.write("t.csv", content.as_bytes());
            let message = NumericTable::open(&path, &of("y")).unwrap_err().to_string();
            assert!(message.contains(part), "{content:?}: {message}");
        }
        torture(b"a,y\n1,\"p\"\n2.5,q\r\n", |bytes| {
            let _ = NumericTable::open(&dir.write("t.csv", bytes), &of("y"));
        });
    }
}
