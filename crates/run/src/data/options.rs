//! The kinds of data and their options.

use std::path::PathBuf;

/// Every kind of data: name, one line of help, and the options it uses besides `validation`, `folds`, `fold` and
/// `seed`, which all kinds use.
#[rustfmt::skip]
pub const KINDS: &[(&str, &str, &[&str])] = &[
    ("text", "a UTF-8 file, or a directory of .txt files, cut into windows, for language models",
     &["path", "length", "stride", "vocabulary", "characters", "tokenizer", "validation_path", "masked"]),
    ("lines", "a UTF-8 file, or a directory of .txt files, each line a sequence of its own length, for language models",
     &["path", "max_length", "vocabulary", "characters", "tokenizer", "validation_path", "masked"]),
    ("sentences", "like lines, but a line also ends after a full stop and a space",
     &["path", "max_length", "vocabulary", "characters", "tokenizer", "validation_path", "masked"]),
    ("idx", "MNIST-like IDX files, plain or gzipped: a directory, or an image file and `labels`",
     &["path", "labels", "classes", "normalise", "mean", "std", "augment", "padding", "flip"]),
    ("cifar10", "CIFAR-10 in binary form: a directory or one file",
     &["path", "normalise", "mean", "std", "augment", "padding", "flip"]),
    ("cifar100", "CIFAR-100 in binary form: a directory or one file",
     &["path", "normalise", "mean", "std", "augment", "padding", "flip"]),
    ("images", "a folder per class with png, jpeg or bmp images, or such folders in train/ and validation/",
     &["path", "size", "channels", "normalise", "mean", "std", "augment", "padding", "flip", "validation_path"]),
    ("npy", "NumPy arrays: one .npz, or one .npy for x and one in `labels` for y",
     &["path", "labels", "x_key", "y_key", "classes", "normalise", "mean", "std", "augment", "padding", "flip"]),
    ("csv", "numbers in a .csv or .tsv with a header; `label_column` is a class or, with `regression`, a number",
     &["path", "label_column", "regression", "ignore_columns", "missing", "delimiter", "normalise", "mean", "std"]),
    ("csv-text", "texts and classes (or, with `regression`, numbers) in two columns of a .csv or .tsv with a header",
     &["path", "text_column", "label_column", "regression", "delimiter", "max_length", "vocabulary", "characters",
       "tokenizer"]),
    ("digits", "built in: drawn digits, 10 classes",
     &["examples", "size", "normalise", "augment", "padding", "flip"]),
    ("blobs", "built in: round clouds in the plane", &["examples", "classes"]),
    ("spirals", "built in: spiral arms in the plane", &["examples", "classes"]),
    ("points", "built in: point clouds of 8 solids; `length` is points per cloud", &["examples", "length"]),
    ("sequences", "built in: text of a small grammar in windows; `examples` is the number of windows",
     &["examples", "length", "stride", "vocabulary", "characters", "masked"]),
    ("noise", "built in: random numbers of any `shape` with random classes", &["examples", "shape", "classes"]),
    ("tokens", "built in: random token ids; lengths vary from `min_length` to `length`",
     &["examples", "length", "min_length", "tokens", "classes", "masked"]),
];

/// Treatment of missing cells of a table: those that are empty or say NA, N/A, NaN, null, none or `?`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Missing {
    /// The table is refused; the error has line and column.
    Refuse,
    /// The mean of the column over the training part.
    Mean,
    /// This number.
    Number(f32),
}

/// The data to open. Options that a kind does not use (see [`KINDS`]) are ignored.
#[derive(Clone, Debug, PartialEq)]
pub struct DataOptions {
    /// One of [`KINDS`].
    pub kind: String,
    /// The file or directory.
    pub path: Option<PathBuf>,
    /// The file of labels, for kinds with separate labels.
    pub labels: Option<PathBuf>,
    /// Separate validation data, instead of a fraction of `path`.
    pub validation_path: Option<PathBuf>,
    /// Fraction held out for validation if there is no separate validation data; 0 for none.
    pub validation: f64,
    /// Cross-validation: divides the training examples at random into this many equal parts, one of which is for validation. `validation` and separate validation data are then ignored.
    pub folds: Option<usize>,
    /// Number of the fold for validation, from 0; the first by default.
    pub fold: usize,
    /// Seed of the held-out examples, the built-in data and the augmentation.
    pub seed: u64,
    /// Training examples of built-in data; 10000 by default. Validation examples are made in addition.
    pub examples: Option<usize>,
    /// Number of classes; counted by default.
    pub classes: Option<usize>,
    /// Tokens per window, or points per cloud.
    pub length: usize,
    /// Tokens from the start of one window to the next; `length` by default.
    pub stride: Option<usize>,
    /// Shortest sequence of random tokens; `length` by default.
    pub min_length: Option<usize>,
    /// Most tokens of a sequence; longer ones are truncated.
    pub max_length: usize,
    /// "bytes", "chars" or "tokenizer" (needs a build with the feature `tokenizer`).
    pub vocabulary: String,
    /// The characters of an earlier run, for "chars"; collected from the text by default.
    pub characters: Option<String>,
    /// A `tokenizer.json`, for "tokenizer".
    pub tokenizer: Option<PathBuf>,
    /// Share of the tokens that are hidden and predicted, for masked language models; 0 for none.
    pub masked: f64,
    /// Size of the vocabulary of random tokens.
    pub tokens: usize,
    /// Rows and columns of images: one number for both, or `[rows, columns]`; 28 by default for digits, 64 for files.
    pub size: Option<[usize; 2]>,
    /// 1 for grey, 3 for colour.
    pub channels: usize,
    /// Shape of one example of noise.
    pub shape: Vec<usize>,
    /// Name of x in a .npz.
    pub x_key: String,
    /// Name of y in a .npz.
    pub y_key: String,
    /// Column that holds the text.
    pub text_column: Option<String>,
    /// Column that holds the class or number to predict.
    pub label_column: Option<String>,
    /// Whether the label is a number instead of a class.
    pub regression: bool,
    /// Separator of columns: ",", ";", "|" or "tab"; detected from the header by default.
    pub delimiter: Option<String>,
    /// Names of columns to leave out.
    pub ignore_columns: Vec<String>,
    /// Treatment of missing cells: "refuse", or fill with "mean" (of the column over the training part), "zero" or a number.
    pub missing: Missing,
    /// Whether x is normalised to mean 0 and deviation 1; on by default except for npy.
    pub normalise: Option<bool>,
    /// Mean per channel or column; computed from the training part by default.
    pub mean: Option<Vec<f32>>,
    /// Standard deviation per channel or column, with `mean`.
    pub std: Option<Vec<f32>>,
    /// Whether training images are cropped and flipped at random.
    pub augment: bool,
    /// Pixels of padding around an image before a random crop.
    pub padding: usize,
    /// Whether augmentation mirrors images.
    pub flip: bool,
}

impl Default for DataOptions {
    fn default() -> DataOptions {
        DataOptions {
            kind: "digits".into(),
            path: None,
            labels: None,
            validation_path: None,
            validation: 0.1,
            folds: None,
            fold: 0,
            seed: 0,
            examples: None,
            classes: None,
            length: 64,
            stride: None,
            min_length: None,
            max_length: 512,
            vocabulary: "bytes".into(),
            characters: None,
            tokenizer: None,
            masked: 0.0,
            tokens: 1000,
            size: None,
            channels: 3,
            shape: vec![16],
            x_key: "x".into(),
            y_key: "y".into(),
            text_column: None,
            label_column: None,
            regression: false,
            delimiter: None,
            ignore_columns: Vec::new(),
            missing: Missing::Refuse,
            normalise: None,
            mean: None,
            std: None,
            augment: false,
            padding: 4,
            flip: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_unique_and_their_options_exist() {
        let fields = format!("{:?}", DataOptions::default());
        for (i, (kind, help, used)) in KINDS.iter().enumerate() {
            assert!(!help.is_empty() && KINDS[..i].iter().all(|(other, ..)| other != kind), "{kind}");
            for option in *used {
                assert!(fields.contains(&format!(" {option}: ")), "{kind}: {option}");
            }
        }
    }
}
