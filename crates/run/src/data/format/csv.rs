//! Records of a text table with a header line: CSV with commas, semicolons or tabs, read record by record. Knows
//! nothing of what the fields mean.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use super::file::{not_utf8, regular};
use super::words::{few, short};
use crate::data::DataError;

/// Longest record in bytes. A longer one is refused: an unclosed quote would swallow the rest of the file.
const LONGEST: u64 = 64 << 20;

/// Splits a table into records of unquoted fields. Quoted fields may hold delimiters, line breaks and doubled quotes.
struct Records<R> {
    path: PathBuf,
    reader: R,
    delimiter: u8,
    /// The next line to read, counted from 1.
    line: u64,
    /// Bytes read so far.
    offset: u64,
    record: Vec<u8>,
}

/// State of the parser within a record.
#[derive(Clone, Copy, PartialEq)]
enum State {
    Start,
    Bare,
    Quoted,
    /// After a quote within a quoted field; the quote ends the field or is doubled.
    Quote,
}

impl State {
    fn after(self, byte: u8, delimiter: u8) -> State {
        match (self, byte) {
            (State::Start, b'"') | (State::Quote, b'"') => State::Quoted,
            (State::Quoted, b'"') => State::Quote,
            (State::Quoted, _) => State::Quoted,
            (_, byte) if byte == delimiter => State::Start,
            _ => State::Bare,
        }
    }
}

impl<R: BufRead> Records<R> {
    /// The next record that is not blank, with the number of its first line.
    fn next(&mut self) -> Result<Option<(u64, Vec<String>)>, DataError> {
        let (start, offset) = loop {
            let (start, offset) = (self.line, self.offset);
            self.record.clear();
            if !self.more()? {
                return Ok(None);
            }
            if !matches!(self.record.as_slice(), b"\n" | b"\r\n") {
                break (start, offset);
            }
        };
        let (mut state, mut seen, mut quoted_in) = (State::Start, 0, start);
        loop {
            for &byte in &self.record[seen..] {
                let next = state.after(byte, self.delimiter);
                if (state, next) == (State::Start, State::Quoted) {
                    quoted_in = self.line - 1;
                }
                state = next;
            }
            seen = self.record.len();
            if state != State::Quoted {
                break;
            }
            if !self.more()? {
                return Err(self.error(quoted_in, "quote is never closed"));
            }
        }
        let text = std::str::from_utf8(&self.record)
            .map_err(|error| not_utf8(&self.path, offset + error.valid_up_to() as u64))?;
        let text = text.strip_suffix('\n').unwrap_or(text);
        let text = text.strip_suffix('\r').unwrap_or(text);
        let fields = fields(text, self.delimiter as char);
        fields.map(|fields| Some((start, fields))).map_err(|what| self.error(self.line - 1, what))
    }

    /// Appends the next line to the record; false at the end of the file.
    fn more(&mut self) -> Result<bool, DataError> {
        let mut limited = self.reader.by_ref().take(LONGEST + 1 - self.record.len() as u64);
        let read = limited.read_until(b'\n', &mut self.record);
        let read = read.map_err(|source| DataError::Io { path: self.path.clone(), source })?;
        if self.record.len() as u64 > LONGEST {
            return Err(self.error(self.line, "more than 64 MiB in one row; is a quote not closed?"));
        }
        self.offset += read as u64;
        self.line += u64::from(read > 0);
        Ok(read > 0)
    }

    fn error(&self, line: u64, what: &str) -> DataError {
        DataError::Line { path: self.path.clone(), line, what: what.into() }
    }
}

/// The fields of one record, whose quotes are closed.
fn fields(mut rest: &str, delimiter: char) -> Result<Vec<String>, &'static str> {
    let mut out = Vec::new();
    loop {
        let field = match rest.strip_prefix('"') {
            Some(inner) => {
                let (field, after) = quoted(inner);
                rest = after;
                field
            }
            None => {
                let (field, after) = rest.split_at(rest.find(delimiter).unwrap_or(rest.len()));
                rest = after;
                field.to_string()
            }
        };
        out.push(field);
        match rest.strip_prefix(delimiter) {
            Some(after) => rest = after,
            None if rest.is_empty() => return Ok(out),
            None => return Err("text after a closing quote"),
        }
    }
}

/// The text up to the closing quote, and the rest after it.
fn quoted(mut rest: &str) -> (String, &str) {
    let mut out = String::new();
    while let Some((text, after)) = rest.split_once('"') {
        out.push_str(text);
        rest = after;
        match rest.strip_prefix('"') {
            Some(after) => {
                out.push('"');
                rest = after;
            }
            None => return (out, rest),
        }
    }
    (out, rest)
}

/// The most frequent of comma, semicolon and tab in the first line outside quotes; a comma if there is none.
fn detect(start: &[u8]) -> u8 {
    let mut counts = [(b',', 0), (b';', 0), (b'\t', 0)];
    let mut quoted = false;
    for &byte in start.iter().skip_while(|byte| b"\r\n".contains(byte)) {
        match byte {
            b'"' => quoted = !quoted,
            b'\n' if !quoted => break,
            _ if quoted => {}
            _ => counts.iter_mut().filter(|(delimiter, _)| *delimiter == byte).for_each(|(_, n)| *n += 1),
        }
    }
    let most = counts.iter().map(|(_, n)| *n).max();
    counts.iter().find(|(_, n)| Some(*n) == most).map_or(b',', |(delimiter, _)| *delimiter)
}

/// The delimiter an option asks for: one ASCII character, or the word "tab".
fn forced(option: &str) -> Result<u8, DataError> {
    match option.as_bytes() {
        b"tab" => Ok(b'\t'),
        [byte] if byte.is_ascii() && !byte.is_ascii_alphanumeric() && !b"\"\r\n.-+_".contains(byte) => {
            Ok(*byte)
        }
        _ => {
            let what =
                format!("\"{}\" cannot separate columns; use \",\", \";\", \"|\" or \"tab\"", short(option));
            Err(DataError::option("delimiter", what))
        }
    }
}

/// A table, positioned after its header.
pub struct Rows {
    records: Records<BufReader<std::fs::File>>,
    /// Names of the columns.
    pub header: Vec<String>,
}

impl Rows {
    /// Opens a table. Columns are separated by `delimiter` if given, else by tabs in a `.tsv`, else by the most frequent
    /// delimiter of the header.
    pub fn open(path: &Path, delimiter: Option<&str>) -> Result<Rows, DataError> {
        let io = |source| DataError::Io { path: path.into(), source };
        let mut reader = BufReader::with_capacity(1 << 16, regular(path)?);
        let mut offset = 0;
        if reader.fill_buf().map_err(io)?.starts_with(b"\xef\xbb\xbf") {
            offset = 3;
            reader.consume(3);
        }
        let delimiter = match delimiter {
            Some(option) => forced(option)?,
            None if path.extension().is_some_and(|e| e == "tsv") => b'\t',
            None => detect(reader.fill_buf().map_err(io)?),
        };
        let mut records =
            Records { path: path.into(), reader, delimiter, line: 1, offset, record: Vec::new() };
        let Some((_, header)) = records.next()? else {
            return Err(DataError::file(path, "is empty; a header line with column names is needed"));
        };
        let header = header.iter().map(|name| name.trim().to_string()).collect();
        Ok(Rows { records, header })
    }

    /// The next row with the number of its first line. It has as many fields as the header.
    pub fn next_row(&mut self) -> Result<Option<(u64, Vec<String>)>, DataError> {
        let Some((line, fields)) = self.records.next()? else { return Ok(None) };
        if fields.len() != self.header.len() {
            let what = format!("{} fields, but the header has {}", fields.len(), self.header.len());
            return Err(self.records.error(line, &what));
        }
        Ok(Some((line, fields)))
    }

    /// The position of the column that an option names.
    pub fn column(&self, option: &'static str, name: Option<&str>) -> Result<usize, DataError> {
        let path = self.records.path.display();
        let all = few(&self.header);
        let Some(name) = name else {
            return Err(DataError::option(option, format!("name one of the columns of {path}: {all}")));
        };
        self.header.iter().position(|h| h == name).ok_or_else(|| {
            let one = match self.header.len() {
                1 => "; if its columns are not separated by commas, set `delimiter`",
                _ => "",
            };
            DataError::option(option, format!("{path} has no column `{}`; it has: {all}{one}", short(name)))
        })
    }

    /// An error about a line.
    pub fn error(&self, line: u64, what: impl AsRef<str>) -> DataError {
        self.records.error(line, what.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::{ScratchDir, torture};

    type Row = (u64, Vec<String>);

    fn rows(path: &Path, delimiter: Option<&str>) -> Result<(Vec<String>, Vec<Row>), DataError> {
        let mut rows = Rows::open(path, delimiter)?;
        let mut all = Vec::new();
        while let Some(row) = rows.next_row()? {
            all.push(row);
        }
        Ok((rows.header, all))
    }

    #[test]
    fn delimiters_are_found_or_forced() {
        let dir = ScratchDir::new();
        for (name, content, delimiter, header) in [
            ("t.csv", "a,b\n1,2", None, &["a", "b"][..]),
            ("t.csv", "a;b\n1;2", None, &["a", "b"]),
            ("t.csv", "a\tb\n1\t2", None, &["a", "b"]),
            ("t.csv", "\n\"a,b,c\";\"d;\"\"e\"\n\"1;2\";3", None, &["a,b,c", "d;\"e"]),
            ("t.csv", "a;b,c\n1;2,3", None, &["a;b", "c"]),
            ("t.tsv", "a,b,c\td\n1\t2", None, &["a,b,c", "d"]),
            ("t.tsv", "a,b\n1,2", Some(","), &["a", "b"]),
            ("t.csv", "a|b,c\n1|2", Some("|"), &["a", "b,c"]),
            ("t.csv", "a\tb,c\n1\t2", Some("tab"), &["a", "b,c"]),
            ("t.csv", "a\n1", None, &["a"]),
        ] {
            let (found, rows) = rows(&dir.write(name, content.as_bytes()), delimiter).unwrap();
            assert_eq!(
                (found.iter().map(String::as_str).collect::<Vec<_>>(), rows.len()),
                (header.to_vec(), 1),
                "{content:?}"
            );
        }
        for bad in ["", ",,", "a", "\"", "\n", "é", "."] {
            let error = rows(&dir.write("t.csv", b"a,b\n1,2"), Some(bad)).unwrap_err().to_string();
            assert!(error.contains("`delimiter`"), "{error}");
        }
    }

    #[test]
    fn records_keep_quotes_line_breaks_and_lines() {
        let dir = ScratchDir::new();
        let content = b"\xef\xbb\xbfa, b \r\n\"x \"\"y\"\"\r\nz\",1\r\n\r\n\nplain \"q\",\"2\"\n,\n";
        let (header, all) = rows(&dir.write("t.csv", content), None).unwrap();
        assert_eq!(header, ["a", "b"]);
        let expected: [(u64, [&str; 2]); 3] =
            [(2, ["x \"y\"\r\nz", "1"]), (6, ["plain \"q\"", "2"]), (7, ["", ""])];
        for ((line, fields), (expected_line, expected)) in all.iter().zip(expected) {
            assert_eq!((*line, &fields[..]), (expected_line, &expected.map(String::from)[..]));
        }
        assert_eq!(all.len(), 3);
        for (content, part) in [
            (&b"a,y\n1\n"[..], "t.csv: line 2: 1 fields, but the header has 2"),
            (b"a,y\n1,2\n\"\n\n1\",2\n1\n", "line 6: 1 fields"),
            (b"a,y\n\"1,2\n", "line 2: quote is never closed"),
            (b"a,y\n\"1\n2\",\"3\n4\n", "line 3: quote is never closed"),
            (b"a,y\n\"1\"1,2\n", "line 2: text after a closing quote"),
            (b"\xef\xbb\xbfa,y\n1,\xff\n", "at byte 9: is not UTF-8"),
            (b"", "is empty"),
            (b"\n\r\n", "is empty"),
        ] {
            let message = rows(&dir.write("t.csv", content), None).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
        torture(b"a;y\n1;\"p\n\"\n2.5;q\r\n", |bytes| {
            let _ = rows(&dir.write("t.csv", bytes), None);
        });
    }
}
