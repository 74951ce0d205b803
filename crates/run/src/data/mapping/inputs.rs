//! Opens raw inputs as batches with a stored mapping.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Mapping;
use crate::data::format::cifar::{self, Cifar};
use crate::data::format::file::{self, FileBytes, is_gzip};
use crate::data::format::folders::ImageFiles;
use crate::data::format::idx;
use crate::data::format::images::ImageFolder;
use crate::data::format::npy::{NpyArray, NpyDataset};
use crate::data::format::pixels::{Pixels, RecordFile};
use crate::data::format::sequences::{SequenceTarget, Sequences};
use crate::data::format::table::{NumericTable, TableSchema};
use crate::data::format::text::{Text, TextWindows};
use crate::data::format::texts::{self, Texts};
use crate::data::format::vocabulary::Vocabulary;
use crate::data::format::words::counted;
use crate::data::transform::masked::Masked;
use crate::data::{DataError, Dataset};

/// Opened inputs.
pub struct Inputs {
    /// The examples: "x" as in training; "y" only if `labelled`.
    pub set: Arc<dyn Dataset>,
    /// Whether targets are known, so that predictions can be evaluated.
    pub labelled: bool,
    names: Names,
}

/// Names of examples in messages.
enum Names {
    /// The file of each.
    Files(Vec<PathBuf>),
    /// A word and a number from 1.
    Numbered(&'static str),
    /// A word and these numbers.
    Lines(&'static str, Vec<u64>),
    /// File, word and number from 1, given the number of examples in each file.
    Parts(&'static str, Vec<(PathBuf, usize)>),
}

impl Inputs {
    /// The name of example `i` for people.
    pub fn name(&self, i: usize) -> String {
        match &self.names {
            Names::Files(files) => files.get(i).map_or(String::new(), |file| file.display().to_string()),
            Names::Numbered(word) => format!("{word} {}", i + 1),
            Names::Lines(word, lines) => format!("{word} {}", lines.get(i).copied().unwrap_or_default()),
            Names::Parts(word, parts) => {
                let mut rest = i;
                for (file, count) in parts {
                    if rest < *count {
                        return format!("{} {word} {}", file.display(), rest + 1);
                    }
                    rest -= count;
                }
                format!("{word} {}", i + 1)
            }
        }
    }
}

/// Names by file and number; by number alone if there is one file.
fn numbered(word: &'static str, parts: Vec<(PathBuf, usize)>) -> Names {
    if parts.len() > 1 { Names::Parts(word, parts) } else { Names::Numbered(word) }
}

impl Mapping {
    /// Opens raw inputs for a model trained on this kind of data. Labels are read if the files have them.
    ///
    /// - "csv": a table, whose columns are found by name
    /// - "csv-text": a table, or a `.txt` with one text per line
    /// - "images", "digits", "idx", "cifar10", "cifar100": image files, or folders of them at any depth
    /// - "idx" also an IDX file of images, "cifar10" and "cifar100" also binary batches
    /// - "text", "lines", "sentences", "sequences": a text file
    /// - others: an `.npy` of x, or an `.npz` of x and perhaps y
    pub fn open_inputs(&self, paths: &[PathBuf]) -> Result<Inputs, DataError> {
        if paths.is_empty() {
            return Err(DataError::option("path", "name at least one file of inputs"));
        }
        match self.kind.as_str() {
            "csv" => self.table(paths),
            "csv-text" => self.texts(one(paths)?),
            "images" | "digits" => self.images(paths),
            "idx" if !paths.iter().all(|path| is_idx(path)) => self.images(paths),
            "idx" => self.idx(paths),
            "cifar10" | "cifar100" => {
                match paths.iter().all(|path| path.extension().is_some_and(|e| e == "bin")) {
                    true => self.cifar(paths),
                    false => self.images(paths),
                }
            }
            "text" | "sequences" => self.windows(one(paths)?),
            "lines" | "sentences" => self.lines(one(paths)?),
            _ => self.array(one(paths)?),
        }
    }

    fn table(&self, paths: &[PathBuf]) -> Result<Inputs, DataError> {
        let known = TableSchema {
            columns: &self.columns,
            label_column: self.label_column.as_deref(),
            classes: &self.class_names,
            fill: &self.fill,
            mean: &self.mean,
            std: &self.std,
        };
        let (table, counts) = NumericTable::known(paths, &known)?;
        let labelled = table.labelled();
        let names = numbered("row", paths.iter().cloned().zip(counts).collect());
        Ok(Inputs { set: Arc::new(table), labelled, names })
    }

    fn needed_vocabulary(&self) -> Result<Vocabulary, DataError> {
        self.vocabulary()?.ok_or_else(|| {
            DataError::option("vocabulary", format!("kind `{}` is stored without one", self.kind))
        })
    }

    fn texts(&self, path: &Path) -> Result<Inputs, DataError> {
        let (Texts { bytes, spans }, target, names) = if path.extension().is_some_and(|e| e == "txt") {
            let content = file::text(path)?;
            let (mut texts, mut lines) = (Texts::default(), Vec::new());
            let mut number = 0;
            content.lines(|_, line| {
                number += 1;
                let text = line.trim_end_matches(['\r', '\n']);
                if !text.trim().is_empty() {
                    texts.push(text);
                    lines.push(number);
                }
                Ok(())
            })?;
            (texts, None, Names::Lines("line", lines))
        } else {
            let columns = (self.text_column.as_deref(), self.label_column.as_deref());
            let (texts, target) = texts::known(path, columns.0, columns.1, &self.class_names)?;
            (texts, target, Names::Numbered("row"))
        };
        let labelled = target.is_some();
        let aim = target.map_or(SequenceTarget::Unlabelled, SequenceTarget::Column);
        let vocabulary = self.needed_vocabulary()?;
        let set =
            Sequences::new(path, FileBytes::owned(path, bytes), spans, vocabulary, self.max_length, aim)?;
        Ok(Inputs { set: Arc::new(set), labelled, names })
    }

    fn images(&self, paths: &[PathBuf]) -> Result<Inputs, DataError> {
        let [channels, rows, columns] = self.needed_image()?;
        let found = ImageFiles::inputs(paths, &self.class_names)?;
        let (labelled, names) = (!found.ids.is_empty(), Names::Files(found.files.clone()));
        let normalise = (!self.mean.is_empty()).then(|| (self.mean.clone(), self.std.clone()));
        let set = ImageFolder::new(found, [rows, columns], channels, normalise)?;
        Ok(Inputs { set: Arc::new(set), labelled, names })
    }

    fn needed_image(&self) -> Result<[usize; 3], DataError> {
        let what = || format!("{:?} is not channels, rows and columns of an image", self.shape);
        self.image().ok_or_else(|| DataError::option("shape", what()))
    }

    fn idx(&self, paths: &[PathBuf]) -> Result<Inputs, DataError> {
        let mut parts = Vec::new();
        for path in paths {
            let file = idx::read(path, 3)?;
            let [records, height, width] = [file.shape[0], file.shape[1], file.shape[2]];
            self.check_shape(path, &[1, height, width])?;
            let (bytes, offset, stride) = (Arc::new(file.bytes), file.offset, height * width);
            parts.push(RecordFile { bytes, offset, stride, records, labels: vec![] });
        }
        self.pixels(paths, parts)
    }

    fn cifar(&self, paths: &[PathBuf]) -> Result<Inputs, DataError> {
        let which = if self.kind == "cifar10" { Cifar::Ten } else { Cifar::Hundred };
        self.pixels(paths, cifar::open(which, paths)?.parts)
    }

    fn pixels(&self, paths: &[PathBuf], parts: Vec<RecordFile>) -> Result<Inputs, DataError> {
        let labelled = parts.iter().all(|part| part.labels.len() == part.records);
        let names =
            numbered("image", paths.iter().cloned().zip(parts.iter().map(|part| part.records)).collect());
        let set = Pixels {
            parts,
            shape: self.needed_image()?,
            classes: self.classes.unwrap_or(0),
            class_names: self.class_names.clone(),
            mean: self.mean.clone(),
            std: self.std.clone(),
        };
        not_empty(&paths[0], &set)?;
        Ok(Inputs { set: Arc::new(set), labelled, names })
    }

    /// Windows as in training, or one shorter window for a shorter text.
    fn windows(&self, path: &Path) -> Result<Inputs, DataError> {
        let text = Arc::new(Text::new(path, file::text(path)?, self.needed_vocabulary()?)?);
        let length = self.length.min(text.len().saturating_sub(1)).max(1);
        let set = TextWindows::new(text.clone(), 0..text.len(), length, length)?;
        self.next_tokens(Arc::new(set), "window")
    }

    fn lines(&self, path: &Path) -> Result<Inputs, DataError> {
        let (bytes, vocabulary) = (file::text(path)?, self.needed_vocabulary()?);
        let sentences = self.kind == "sentences";
        let set = Sequences::lines(path, bytes, vocabulary, self.max_length, sentences)?;
        self.next_tokens(Arc::new(set), "text")
    }

    /// Text always has targets: the next tokens, or the hidden ones.
    fn next_tokens(&self, set: Arc<dyn Dataset>, word: &'static str) -> Result<Inputs, DataError> {
        let set = match self.masked > 0.0 {
            true => Arc::new(Masked::new(set, self.masked, 0)?),
            false => set,
        };
        Ok(Inputs { set, labelled: true, names: Names::Numbered(word) })
    }

    fn array(&self, path: &Path) -> Result<Inputs, DataError> {
        let x = NpyArray::open(path, &self.x_key)?;
        self.check_shape(path, &x.shape[1..])?;
        // Only an archive can hold y beside x.
        let y = match NpyArray::is_archive(path)? {
            true => NpyArray::find(path, &self.y_key)?,
            false => None,
        };
        let labelled = y.is_some();
        let mut set = match y {
            Some(y) => NpyDataset::new(x, y, self.classes)?,
            None => NpyDataset::unlabelled(x)?,
        };
        set.normalise = self.mean.first().copied().zip(self.std.first().copied());
        Ok(Inputs { set: Arc::new(set), labelled, names: Names::Numbered("example") })
    }

    fn check_shape(&self, path: &Path, found: &[usize]) -> Result<(), DataError> {
        match found == self.shape {
            true => Ok(()),
            false => {
                let what =
                    format!("examples of shape {found:?}, but the model was trained on {:?}", self.shape);
                Err(DataError::file(path, what))
            }
        }
    }
}

fn not_empty(path: &Path, set: &dyn Dataset) -> Result<(), DataError> {
    if set.is_empty() { Err(DataError::file(path, "has no examples")) } else { Ok(()) }
}

fn one(paths: &[PathBuf]) -> Result<&Path, DataError> {
    match paths {
        [path] => Ok(path),
        _ => {
            let what = format!(
                "{} were named; inputs of this kind are read one file at a time",
                counted(paths.len(), "file")
            );
            Err(DataError::option("path", what))
        }
    }
}

/// Whether a file starts like IDX images, plain or gzipped.
fn is_idx(path: &Path) -> bool {
    use std::io::Read;
    let mut start = [0; 4];
    let read = file::regular(path).ok().and_then(|mut file| file.read_exact(&mut start).ok());
    read.is_some() && (is_gzip(&start) || start[..3] == [0, 0, 8])
}
