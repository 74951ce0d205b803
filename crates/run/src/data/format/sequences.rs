//! Texts of different lengths, padded into batches with a mask: lines or sentences for language models, or labelled
//! texts for classification.

use std::path::{Path, PathBuf};

use gulliver_graph::model::IGNORED;

use super::file::{FileBytes, utf8};
use super::target::TargetColumn;
use super::vocabulary::Vocabulary;
use crate::data::{Batch, DataError, DataInfo, Dataset, check_indices, class_counts, tensor};
use crate::host::{HostData, HostTensor};

/// "y" of a sequence.
#[derive(Debug)]
pub enum SequenceTarget {
    /// The token after each token.
    NextToken,
    /// A class or a number.
    Column(TargetColumn),
    /// None: batches have no "y".
    Unlabelled,
}

impl SequenceTarget {
    /// Tokens at the end of an example that are predicted but not read.
    fn shift(&self) -> usize {
        usize::from(matches!(self, SequenceTarget::NextToken))
    }
}

/// Variable-length examples: x `[b, t]` with "mask" and "length". y is the target column, or x shifted by one and
/// [`IGNORED`] where x is padded.
pub struct Sequences {
    path: PathBuf,
    bytes: FileBytes,
    /// Byte range of every example.
    spans: Vec<(usize, usize)>,
    /// Length of x of every example, after truncation.
    lengths: Vec<u32>,
    /// Most ids read of an example: `max_length`, plus one if the next token is predicted.
    limit: usize,
    vocabulary: Vocabulary,
    aim: SequenceTarget,
}

impl Sequences {
    /// Every line that is not blank is an example, whose last token is its line break. Lines too short to have a next
    /// token are left out. With `sentences`, a line also ends after `.`, `!` or `?` and a space.
    pub fn lines(
        path: &Path,
        bytes: FileBytes,
        vocabulary: Vocabulary,
        max_length: usize,
        sentences: bool,
    ) -> Result<Sequences, DataError> {
        let mut all = Sequences::empty(path, vocabulary, max_length, SequenceTarget::NextToken)?;
        bytes.lines(|offset, line| {
            for (start, end) in line_spans(line, sentences) {
                all.push((offset + start, offset + end), &line[start..end])?;
            }
            Ok(())
        })?;
        all.complete(bytes)
    }

    /// The examples are these byte ranges of `bytes`. Encodes all of them once to learn the lengths.
    pub fn new(
        path: &Path,
        bytes: FileBytes,
        spans: Vec<(usize, usize)>,
        vocabulary: Vocabulary,
        max_length: usize,
        aim: SequenceTarget,
    ) -> Result<Sequences, DataError> {
        let mut all = Sequences::empty(path, vocabulary, max_length, aim)?;
        for (start, end) in spans {
            all.push((start, end), utf8(path, &bytes.read(start..end)?)?)?;
        }
        all.complete(bytes)
    }

    fn empty(
        path: &Path,
        vocabulary: Vocabulary,
        max_length: usize,
        aim: SequenceTarget,
    ) -> Result<Sequences, DataError> {
        if max_length == 0 {
            return Err(DataError::option("max_length", "must be at least 1"));
        }
        Ok(Sequences {
            path: path.into(),
            bytes: FileBytes::owned(path, Vec::new()),
            spans: Vec::new(),
            lengths: Vec::new(),
            limit: max_length.saturating_add(aim.shift()),
            vocabulary,
            aim,
        })
    }

    /// Adds the example at `span` with this text, unless it is too short to have a next token.
    fn push(&mut self, span: (usize, usize), text: &str) -> Result<(), DataError> {
        let ids = self.encode(span.0, text)?;
        let shift = self.aim.shift();
        if shift == 0 || ids.len() > 1 {
            self.spans.push(span);
            self.lengths.push((ids.len() - shift) as u32);
        }
        Ok(())
    }

    fn complete(self, bytes: FileBytes) -> Result<Sequences, DataError> {
        match self.spans.is_empty() {
            true => Err(DataError::file(&self.path, "has no text to learn from")),
            false => Ok(Sequences { bytes, ..self }),
        }
    }

    fn encode(&self, start: usize, text: &str) -> Result<Vec<u32>, DataError> {
        let ids = self.vocabulary.encode_prefix(text, self.limit);
        ids.map_err(|what| DataError::at(&self.path, start as u64, what))
    }

    /// The first `limit` ids of an example. Reads no more of a long line than these need.
    fn ids(&self, (start, end): (usize, usize)) -> Result<Vec<u32>, DataError> {
        let needed = self.vocabulary.bytes_of(self.limit).unwrap_or(usize::MAX);
        let cut = end.min(start.saturating_add(needed));
        let bytes = self.bytes.read(start..cut)?;
        let whole = match std::str::from_utf8(&bytes) {
            Err(error) if cut < end && error.error_len().is_none() => error.valid_up_to(),
            _ => bytes.len(),
        };
        self.encode(start, utf8(&self.path, &bytes[..whole])?)
    }
}

impl Dataset for Sequences {
    fn len(&self) -> usize {
        self.spans.len()
    }

    fn length(&self, i: usize) -> Option<usize> {
        self.lengths.get(i).map(|&n| n as usize)
    }

    fn class(&self, i: usize) -> Option<u32> {
        match &self.aim {
            SequenceTarget::Column(target) => target.class(i),
            SequenceTarget::NextToken | SequenceTarget::Unlabelled => None,
        }
    }

    fn batch(&self, indices: &[usize]) -> Result<Batch, DataError> {
        check_indices(indices, self.spans.len())?;
        let examples: Vec<Vec<u32>> =
            indices.iter().map(|&i| self.ids(self.spans[i])).collect::<Result<_, _>>()?;
        let lengths: Vec<usize> = indices.iter().map(|&i| self.lengths[i] as usize).collect();
        let shift = self.aim.shift();
        if examples.iter().zip(&lengths).any(|(ids, &n)| ids.len() < n + shift) {
            return Err(self.bytes.changed());
        }
        let rows = |from: usize| -> Vec<&[u32]> {
            examples.iter().zip(&lengths).map(|(ids, &n)| &ids[from..from + n]).collect()
        };
        let x = pad(&rows(0), 0);
        let y = match &self.aim {
            SequenceTarget::Column(target) => Some(target.tensor(indices)),
            SequenceTarget::NextToken => Some(pad(&rows(1), IGNORED)),
            SequenceTarget::Unlabelled => None,
        };
        let (mask, length) = mask_and_length(&lengths);
        let mut batch = Batch::with_target(x, y);
        batch.fields.extend(Batch::of([("mask", mask), ("length", length)]).fields);
        Ok(batch)
    }

    fn info(&self) -> DataInfo {
        let mut info = DataInfo {
            examples: self.spans.len(),
            shape: vec![0],
            vocabulary: Some(self.vocabulary.size()),
            characters: self.vocabulary.characters(),
            tokenizer: self.vocabulary.tokenizer(),
            ..DataInfo::default()
        };
        if let SequenceTarget::Column(target) = &self.aim {
            target.describe(&mut info);
        }
        info.class_counts = class_counts(self, info.classes);
        info
    }
}

fn line_spans(text: &str, sentences: bool) -> Vec<(usize, usize)> {
    let bytes = text.as_bytes();
    let mut spans = Vec::new();
    let mut start = 0;
    for end in 1..=bytes.len() {
        let stop = sentences && bytes[end - 1] == b' ' && end >= 2 && b".!?".contains(&bytes[end - 2]);
        if stop || end == bytes.len() || bytes[end - 1] == b'\n' {
            // Both ends follow an ASCII byte or are an end of the text, so no character is cut.
            if !text[start..end].trim().is_empty() {
                spans.push((start, end));
            }
            start = end;
        }
    }
    spans
}

/// Rows side by side as i64 `[b, t]`, filled up to the longest (at least one column).
pub fn pad(rows: &[&[u32]], filling: i64) -> HostTensor {
    let width = rows.iter().map(|r| r.len()).max().unwrap_or(0).max(1);
    let mut out = vec![filling; rows.len() * width];
    for (line, row) in out.chunks_mut(width).zip(rows) {
        for (to, &id) in line.iter_mut().zip(*row) {
            *to = i64::from(id);
        }
    }
    tensor(&[rows.len(), width], HostData::I64(out))
}

/// "mask" and "length" of rows padded by [`pad`].
pub fn mask_and_length(lengths: &[usize]) -> (HostTensor, HostTensor) {
    let width = lengths.iter().copied().max().unwrap_or(0).max(1);
    let mask = lengths.iter().flat_map(|&n| (0..width).map(move |t| u8::from(t < n))).collect();
    let length = lengths.iter().map(|&n| n as i64).collect();
    (tensor(&[lengths.len(), width], HostData::Bool(mask)), tensor(&[lengths.len()], HostData::I64(length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(text: &str) -> FileBytes {
        FileBytes::owned(Path::new("t"), text.as_bytes().to_vec())
    }

    #[test]
    fn lines_are_padded_and_masked() {
        let s = Sequences::lines(Path::new("t"), owned("ab\n\n  \nabcdefgh\nc"), Vocabulary::Bytes, 4, false)
            .unwrap();
        assert_eq!((s.len(), s.length(0), s.length(1), s.length(2)), (2, Some(2), Some(4), None));
        let b = s.batch(&[0, 1]).unwrap();
        assert_eq!(b.get("x").unwrap().as_i64().unwrap(), [97, 98, 0, 0, 97, 98, 99, 100]);
        assert_eq!(b.get("y").unwrap().as_i64().unwrap(), [98, 10, -100, -100, 98, 99, 100, 101]);
        assert_eq!(b.get("mask").unwrap().data(), &HostData::Bool(vec![1, 1, 0, 0, 1, 1, 1, 1]));
        assert_eq!(b.get("length").unwrap().as_i64().unwrap(), [2, 4]);
        assert_eq!(s.batch(&[0]).unwrap().get("x").unwrap().shape(), [1, 2]);
        assert!(s.batch(&[2]).is_err());
    }

    #[test]
    fn sentences_end_at_a_stop_and_a_space() {
        let text = "Ün 3.5 ü. Zwei! \nDrei? \n\nvier";
        for (sentences, expected) in [
            (false, &["Ün 3.5 ü. Zwei! \n", "Drei? \n", "vier"][..]),
            (true, &["Ün 3.5 ü. ", "Zwei! ", "Drei? ", "vier"]),
        ] {
            let found: Vec<&str> = line_spans(text, sentences).iter().map(|&(a, b)| &text[a..b]).collect();
            assert_eq!(found, expected);
        }
        assert!(line_spans("", true).is_empty());
    }

    #[test]
    fn no_more_of_a_long_line_is_read_than_needed() {
        let text = format!("{}é大{}\n", "ü".repeat(3), "é".repeat(1000));
        for (vocabulary, limit) in [(Vocabulary::Bytes, 4), (Vocabulary::of_text(&owned(&text)).unwrap(), 5)]
        {
            let expected: Vec<i64> =
                vocabulary.encode_prefix(&text, limit).unwrap().into_iter().map(i64::from).collect();
            let set = Sequences::lines(Path::new("t"), owned(&text), vocabulary, limit, false).unwrap();
            assert_eq!(set.batch(&[0]).unwrap().get("x").unwrap().as_i64().unwrap(), expected);
        }
    }

    #[test]
    fn nothing_to_learn_is_an_error() {
        for text in ["", "\n\n", "a"] {
            assert!(Sequences::lines(Path::new("t"), owned(text), Vocabulary::Bytes, 4, false).is_err());
        }
        assert!(Sequences::lines(Path::new("t"), owned("ab"), Vocabulary::Bytes, 0, false).is_err());
    }
}
