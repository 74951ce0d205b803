//! Text to token ids and back: bytes, characters, or (feature `tokenizer`) a tokenizer file.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use super::file::FileBytes;
use super::words::short;
use crate::data::DataError;

/// The meaning of token ids.
pub enum Vocabulary {
    /// Ids are bytes. Every text can be encoded.
    Bytes,
    /// Ids are positions in this ascending list of characters.
    Chars(Vec<char>),
    /// Ids of a tokenizer, with the text of its `tokenizer.json`.
    #[cfg(feature = "tokenizer")]
    Tokens(Box<tokenizers::Tokenizer>, Arc<str>),
}

impl Vocabulary {
    /// By the name used in options: "bytes", "chars" or "tokenizer". The characters are `characters` if given, else
    /// those of `text`.
    pub fn open(
        name: &str,
        characters: Option<&str>,
        tokenizer: Option<&Path>,
        text: &FileBytes,
    ) -> Result<Vocabulary, DataError> {
        match name {
            "bytes" => Ok(Vocabulary::Bytes),
            "chars" => match characters {
                Some(given) => Vocabulary::from_characters(given),
                None => Vocabulary::of_text(text),
            },
            "tokenizer" => Vocabulary::from_tokenizer(tokenizer),
            other => {
                let what = format!("unknown vocabulary `{}`: use bytes, chars or tokenizer", short(other));
                Err(DataError::option("vocabulary", what))
            }
        }
    }

    /// All characters of a text, ascending.
    pub fn of_text(text: &FileBytes) -> Result<Vocabulary, DataError> {
        let mut ascii = [false; 128];
        let mut other = BTreeSet::new();
        text.text(|_, piece| {
            for c in piece.chars() {
                match ascii.get_mut(c as usize) {
                    Some(seen) => *seen = true,
                    None => {
                        other.insert(c);
                    }
                }
            }
            Ok(())
        })?;
        let ascii = (0u8..128).map(char::from).filter(|&c| ascii[c as usize]);
        Ok(Vocabulary::Chars(ascii.chain(other).collect()))
    }

    /// The vocabulary with these [`Vocabulary::characters`].
    pub fn from_characters(characters: &str) -> Result<Vocabulary, DataError> {
        let list: Vec<char> = characters.chars().collect();
        if list.is_empty() || !list.is_sorted_by(|a, b| a < b) {
            let what = "must be distinct characters in ascending order, as stored with the weights";
            return Err(DataError::option("characters", what));
        }
        Ok(Vocabulary::Chars(list))
    }

    fn from_tokenizer(path: Option<&Path>) -> Result<Vocabulary, DataError> {
        let path = path.ok_or_else(|| DataError::option("tokenizer", "name a tokenizer.json"))?;
        let json = super::file::small_text(path)?;
        Vocabulary::from_tokenizer_json(&json).map_err(|error| match error {
            DataError::Option { option: "tokenizer", what } => DataError::file(path, what),
            other => other,
        })
    }

    /// The vocabulary of a `tokenizer.json`, given as text.
    #[cfg(feature = "tokenizer")]
    pub fn from_tokenizer_json(json: &str) -> Result<Vocabulary, DataError> {
        let tokenizer = tokenizers::Tokenizer::from_bytes(json.as_bytes()).map_err(|error| {
            let what = format!("is not a tokenizer: {}", short(&error.to_string()));
            DataError::option("tokenizer", what)
        })?;
        Ok(Vocabulary::Tokens(Box::new(tokenizer), json.into()))
    }

    /// Fails: this build has no tokenizers.
    #[cfg(not(feature = "tokenizer"))]
    pub fn from_tokenizer_json(_: &str) -> Result<Vocabulary, DataError> {
        let what = "this build has no tokenizers: rebuild with `cargo build --release --features tokenizer`";
        Err(DataError::option("vocabulary", what))
    }

    /// Number of ids.
    pub fn size(&self) -> usize {
        match self {
            Vocabulary::Bytes => 256,
            Vocabulary::Chars(list) => list.len(),
            #[cfg(feature = "tokenizer")]
            Vocabulary::Tokens(tokenizer, _) => tokenizer.get_vocab_size(true),
        }
    }

    /// All characters in the order of their ids, if ids are characters.
    pub fn characters(&self) -> Option<String> {
        match self {
            Vocabulary::Chars(list) => Some(list.iter().collect()),
            _ => None,
        }
    }

    /// The text of the `tokenizer.json`, if ids are those of a tokenizer.
    pub fn tokenizer(&self) -> Option<Arc<str>> {
        match self {
            #[cfg(feature = "tokenizer")]
            Vocabulary::Tokens(_, json) => Some(json.clone()),
            _ => None,
        }
    }

    /// Upper bound of the bytes of the first `count` ids of a text; `None` if there is none.
    pub fn bytes_of(&self, count: usize) -> Option<usize> {
        match self {
            // A character has at most 4 bytes; the last may be cut.
            Vocabulary::Bytes | Vocabulary::Chars(_) => Some(count.saturating_mul(4).saturating_add(3)),
            #[cfg(feature = "tokenizer")]
            Vocabulary::Tokens(..) => None,
        }
    }

    /// The ids of a text; the error says what could not be encoded.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        self.encode_prefix(text, usize::MAX)
    }

    /// At most the first `count` ids of a text. Encodes no more of it than needed.
    pub fn encode_prefix(&self, text: &str, count: usize) -> Result<Vec<u32>, String> {
        match self {
            Vocabulary::Bytes => Ok(text.bytes().take(count).map(u32::from).collect()),
            Vocabulary::Chars(list) => text
                .chars()
                .take(count)
                .map(|c| match list.binary_search(&c) {
                    Ok(id) => Ok(id as u32),
                    Err(_) => Err(format!("character {c:?} is not in the vocabulary")),
                })
                .collect(),
            #[cfg(feature = "tokenizer")]
            Vocabulary::Tokens(tokenizer, _) => tokenizer
                .encode(text, false)
                .map(|encoding| encoding.get_ids().iter().copied().take(count).collect())
                .map_err(|error| format!("the tokenizer failed: {error}")),
        }
    }

    /// The text of these ids; unknown ids become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        match self {
            Vocabulary::Bytes => {
                let bytes: Vec<u8> = ids.iter().map(|&id| u8::try_from(id).unwrap_or(0xff)).collect();
                String::from_utf8_lossy(&bytes).into_owned()
            }
            Vocabulary::Chars(list) => {
                let replaced = char::REPLACEMENT_CHARACTER;
                ids.iter().map(|&id| list.get(id as usize).copied().unwrap_or(replaced)).collect()
            }
            #[cfg(feature = "tokenizer")]
            Vocabulary::Tokens(tokenizer, _) => {
                tokenizer.decode(ids, false).unwrap_or_else(|_| char::REPLACEMENT_CHARACTER.to_string())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> FileBytes {
        FileBytes::owned(Path::new("t"), text.as_bytes().to_vec())
    }

    #[test]
    fn text_round_trips() {
        let text = "Größe, 大きさ\n";
        for v in [Vocabulary::Bytes, Vocabulary::of_text(&of(text)).unwrap()] {
            let ids = v.encode(text).unwrap();
            assert!(ids.iter().all(|&id| (id as usize) < v.size()));
            assert_eq!(v.decode(&ids), text);
        }
        let chars = Vocabulary::of_text(&of("hello")).unwrap();
        assert_eq!(chars.characters().as_deref(), Some("ehlo"));
        assert_eq!(chars.encode("hole").unwrap(), [1, 3, 2, 0]);
        assert_eq!(chars.encode_prefix("holx", 3).unwrap(), [1, 3, 2]);
        assert!(chars.encode("x").unwrap_err().contains("'x'"));
        assert_eq!(chars.decode(&[0, 9]), "e\u{fffd}");
        let restored = Vocabulary::from_characters(&chars.characters().unwrap()).unwrap();
        assert_eq!(restored.encode("hello").unwrap(), chars.encode("hello").unwrap());
    }

    #[test]
    fn wrong_vocabularies_are_errors() {
        for bad in ["", "ba", "aa"] {
            assert!(Vocabulary::from_characters(bad).is_err());
        }
        for name in ["words", "tokenizer"] {
            assert!(Vocabulary::open(name, None, None, &of("")).is_err());
        }
    }

    #[cfg(not(feature = "tokenizer"))]
    #[test]
    fn a_build_without_tokenizers_says_how_to_add_them() {
        let message = Vocabulary::from_tokenizer_json("{}").err().unwrap().to_string();
        assert!(message.contains("`cargo build --release --features tokenizer`"), "{message}");
    }

    #[cfg(feature = "tokenizer")]
    #[test]
    fn tokenizer_files_are_read() {
        let json = r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],
            "normalizer":null,"pre_tokenizer":{"type":"Whitespace"},"post_processor":null,"decoder":null,
            "model":{"type":"WordLevel","vocab":{"[UNK]":0,"small":1,"giants":2},"unk_token":"[UNK]"}}"#;
        let dir = crate::scratch::ScratchDir::new();
        let path = dir.write("tokenizer.json", json.as_bytes());
        let v = Vocabulary::open("tokenizer", None, Some(&path), &of("")).unwrap();
        assert_eq!((v.size(), v.encode("giants small other").unwrap()), (3, vec![2, 1, 0]));
        let stored = v.tokenizer().unwrap();
        assert_eq!(&*stored, json);
        let restored = Vocabulary::from_tokenizer_json(&stored).unwrap();
        assert_eq!(restored.encode("giants small").unwrap(), [2, 1]);
        // The stored tokenizer reads raw text.
        let text = dir.write("t.txt", b"small giants\nother giants small\n");
        let options = crate::data::DataOptions {
            kind: "lines".into(),
            path: Some(text.clone()),
            vocabulary: "tokenizer".into(),
            tokenizer: Some(path),
            validation: 0.0,
            ..crate::data::DataOptions::default()
        };
        let train = crate::data::open(&options).unwrap().0;
        let mapping = crate::data::mapping::Mapping::of(&options, &train.info());
        let inputs = mapping.open_inputs(&[text]).unwrap();
        assert_eq!(inputs.set.batch(&[0, 1]).unwrap(), train.batch(&[0, 1]).unwrap());
        let bad = dir.write("bad.json", b"{}");
        let message = Vocabulary::open("tokenizer", None, Some(&bad), &of("")).err().unwrap().to_string();
        assert!(message.contains("bad.json: is not a tokenizer"), "{message}");
    }
}
