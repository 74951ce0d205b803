//! A text file as overlapping or adjacent windows of token ids, for language models. A window is read from the file
//! when a batch needs it; sparse anchors give the offsets of characters.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::file::{FileBytes, utf8};
use super::vocabulary::Vocabulary;
use crate::data::{Batch, DataError, DataInfo, Dataset, check_indices, tensor};
use crate::host::HostData;

/// Characters from one anchor to the next.
const ANCHOR: usize = 1024;

/// A text that is read as token ids from any position.
pub struct Text {
    path: PathBuf,
    bytes: FileBytes,
    vocabulary: Vocabulary,
    /// Number of ids.
    len: usize,
    /// For characters: byte offset of every `ANCHOR`-th character.
    anchors: Vec<usize>,
    /// For a tokenizer: all ids.
    tokens: Vec<u32>,
}

impl Text {
    /// Checks the whole text: it must be UTF-8, within the vocabulary and not empty. `path` is for messages.
    pub fn new(path: &Path, bytes: FileBytes, vocabulary: Vocabulary) -> Result<Text, DataError> {
        let (mut len, mut anchors, mut tokens) = (bytes.len(), Vec::new(), Vec::new());
        match &vocabulary {
            Vocabulary::Bytes => bytes.text(|_, _| Ok(()))?,
            Vocabulary::Chars(list) => {
                len = 0;
                bytes.text(|start, text| {
                    for (offset, c) in text.char_indices() {
                        if list.binary_search(&c).is_err() {
                            let what = format!("character {c:?} is not in the vocabulary");
                            return Err(DataError::at(path, (start + offset) as u64, what));
                        }
                        if len % ANCHOR == 0 {
                            anchors.push(start + offset);
                        }
                        len += 1;
                    }
                    Ok(())
                })?;
            }
            #[cfg(feature = "tokenizer")]
            Vocabulary::Tokens(..) => {
                // Line by line: memory stays bounded, and no token spans two lines.
                bytes.lines(|_, line| {
                    tokens.extend(vocabulary.encode(line).map_err(|what| DataError::file(path, what))?);
                    Ok(())
                })?;
                len = tokens.len();
            }
        }
        if len == 0 {
            return Err(DataError::file(path, "is empty; there is no text to learn from"));
        }
        tokens.shrink_to_fit();
        Ok(Text { path: path.into(), bytes, vocabulary, len, anchors, tokens })
    }

    /// Number of ids.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no ids.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends ids `start..start + count` (which must exist) to `out`.
    fn read(&self, start: usize, count: usize, out: &mut Vec<i64>) -> Result<(), DataError> {
        if !self.tokens.is_empty() {
            out.extend(self.tokens[start..start + count].iter().map(|&id| i64::from(id)));
            return Ok(());
        }
        let Vocabulary::Chars(list) = &self.vocabulary else {
            out.extend(self.bytes.read(start..start + count)?.iter().map(|&b| i64::from(b)));
            return Ok(());
        };
        let from = self.anchors[start / ANCHOR];
        let to = self.anchors.get((start + count).div_ceil(ANCHOR)).copied().unwrap_or(self.bytes.len());
        let before = out.len();
        // The file may have changed since it was checked, so characters are checked again.
        let piece = self.bytes.read(from..to)?;
        for c in utf8(&self.path, &piece)?.chars().skip(start % ANCHOR).take(count) {
            out.extend(list.binary_search(&c).ok().map(|id| id as i64));
        }
        match out.len() - before == count {
            true => Ok(()),
            false => Err(self.bytes.changed()),
        }
    }
}

/// Windows of `length` ids: x `[b, length]`, and y shifted by one; both i64.
pub struct TextWindows {
    text: Arc<Text>,
    start: usize,
    examples: usize,
    length: usize,
    stride: usize,
}

impl TextWindows {
    /// Windows within these ids of the text, one every `stride` ids. An incomplete window at the end is left out.
    pub fn new(
        text: Arc<Text>,
        ids: std::ops::Range<usize>,
        length: usize,
        stride: usize,
    ) -> Result<TextWindows, DataError> {
        for (name, value) in [("length", length), ("stride", stride)] {
            if value == 0 {
                return Err(DataError::option(name, "must be at least 1"));
            }
        }
        let end = ids.end.min(text.len());
        let total = end.saturating_sub(ids.start);
        if total <= length {
            let what = format!(
                "{total} tokens of text are too few for a window of {length} and the token after it; use a smaller `length`"
            );
            return Err(DataError::file(&text.path, what));
        }
        let examples = (total - 1 - length) / stride + 1;
        Ok(TextWindows { text, start: ids.start, examples, length, stride })
    }
}

impl Dataset for TextWindows {
    fn len(&self) -> usize {
        self.examples
    }

    fn batch(&self, indices: &[usize]) -> Result<Batch, DataError> {
        check_indices(indices, self.examples)?;
        let shape = [indices.len(), self.length];
        let mut x = Vec::with_capacity(shape[0] * shape[1]);
        let mut y = Vec::with_capacity(shape[0] * shape[1]);
        let mut window = Vec::with_capacity(self.length + 1);
        for &i in indices {
            window.clear();
            self.text.read(self.start + i * self.stride, self.length + 1, &mut window)?;
            x.extend_from_slice(&window[..self.length]);
            y.extend_from_slice(&window[1..]);
        }
        Ok(Batch::of([("x", tensor(&shape, HostData::I64(x))), ("y", tensor(&shape, HostData::I64(y)))]))
    }

    fn info(&self) -> DataInfo {
        DataInfo {
            examples: self.examples,
            shape: vec![self.length],
            vocabulary: Some(self.text.vocabulary.size()),
            characters: self.text.vocabulary.characters(),
            tokenizer: self.text.vocabulary.tokenizer(),
            ..DataInfo::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(content: &str, chars: bool) -> Arc<Text> {
        let bytes = FileBytes::owned(Path::new("t"), content.as_bytes().to_vec());
        let vocabulary = if chars { Vocabulary::of_text(&bytes).unwrap() } else { Vocabulary::Bytes };
        Arc::new(Text::new(Path::new("t"), bytes, vocabulary).unwrap())
    }

    #[test]
    fn windows_have_exact_values() {
        let t = text("abcdefg", false);
        let w = TextWindows::new(t.clone(), 0..7, 3, 3).unwrap();
        assert_eq!(w.len(), 2);
        let b = w.batch(&[1, 0]).unwrap();
        assert_eq!(b.get("x").unwrap().as_i64().unwrap(), [100, 101, 102, 97, 98, 99]);
        assert_eq!(b.get("y").unwrap().as_i64().unwrap(), [101, 102, 103, 98, 99, 100]);
        assert_eq!(b.get("x").unwrap().shape(), [2, 3]);
        for (ids, length, stride, count) in
            [(0..7, 3, 1, 4), (0..4, 3, 3, 1), (2..7, 4, 1, 1), (0..99, 6, 1, 1)]
        {
            assert_eq!(TextWindows::new(t.clone(), ids, length, stride).unwrap().len(), count);
        }
        for (ids, length, stride) in [(0..3, 3, 1), (0..7, 0, 1), (0..7, 1, 0), (8..9, 1, 1)] {
            assert!(TextWindows::new(t.clone(), ids, length, stride).is_err());
        }
        assert!(w.batch(&[2]).is_err());
    }

    #[test]
    fn anchors_find_every_character() {
        let content: String =
            (0..5000u32).map(|i| ['a', 'é', '大', '\u{1F600}'][(i * i % 7 % 4) as usize]).collect();
        let t = text(&content, true);
        let ids = t.vocabulary.encode(&content).unwrap();
        assert_eq!(t.len(), 5000);
        let w = TextWindows::new(t, 0..5000, 1100, 17).unwrap();
        for i in 0..w.len() {
            let x = w.batch(&[i]).unwrap();
            let expected: Vec<i64> = ids[i * 17..i * 17 + 1100].iter().map(|&v| v.into()).collect();
            assert_eq!(x.get("x").unwrap().as_i64().unwrap(), expected);
        }
    }

    #[test]
    fn bad_text_is_an_error_with_an_offset() {
        let read = |bytes: &[u8], vocabulary| {
            Text::new(Path::new("t"), FileBytes::owned(Path::new("t"), bytes.to_vec()), vocabulary)
                .err()
                .unwrap()
                .to_string()
        };
        assert!(read(b"abc\xffd", Vocabulary::Bytes).contains("t: at byte 3: is not UTF-8"));
        assert!(read(b"abc", Vocabulary::Chars(vec!['a', 'c'])).contains("at byte 1: character 'b'"));
    }
}
