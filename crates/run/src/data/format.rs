//! Readers of files, one per format, and the data sets made of them.

pub mod cifar;
pub mod csv;
pub mod file;
pub mod folders;
pub mod idx;
pub mod images;
mod labels;
pub mod npy;
pub mod pixels;
pub mod sequences;
pub mod table;
pub mod target;
pub mod text;
pub mod texts;
pub mod vocabulary;
pub(super) mod words;
pub mod zip;
