//! Errors of a job file, with the exact place: file and line, or the flag that said so.

use std::fmt;

/// Where a value of a job was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldOrigin {
    /// In the job file, on a line (from 1) if there is one to name.
    File {
        /// The file as it was named by the user.
        file: String,
        /// The line.
        line: Option<usize>,
    },
    /// On the command line; this is what followed `--set`.
    Flag(String),
    /// On the command line, by a flag of its own: the flag and what followed it.
    Named(String),
}

/// A job that cannot be used. Shown on one line: place, dotted field, problem.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: {}{problem}", self.named())]
pub struct JobError {
    /// Where.
    pub origin: FieldOrigin,
    /// The dotted field, such as `train.batch`; empty if there is none to name.
    pub field: String,
    /// The problem, and the values that are allowed.
    pub problem: String,
}

impl JobError {
    /// The field before the problem, unless there is none or a flag of its own names it.
    fn named(&self) -> String {
        match self.field.is_empty() || matches!(self.origin, FieldOrigin::Named(_)) {
            true => String::new(),
            false => format!("{}: ", self.field),
        }
    }
}

impl fmt::Display for FieldOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FieldOrigin::File { file, line: Some(line) } => write!(f, "{file}:{line}"),
            FieldOrigin::File { file, line: None } => f.write_str(file),
            FieldOrigin::Flag(text) => write!(f, "--set {}", one_line(text)),
            FieldOrigin::Named(flag) => f.write_str(&one_line(flag)),
        }
    }
}

/// `text` without line breaks and other control characters, cut to a readable length.
pub fn one_line(text: &str) -> String {
    const LONGEST: usize = 60;
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    let mut line: String = text.chars().take(LONGEST).map(clean).collect();
    if text.chars().count() > LONGEST {
        line.push('…');
    }
    line
}

/// A message as it is printed: one line, in which very long words, such as a cell of a damaged file, and a very long
/// rest are left out. Messages that nobody made long are printed as they are.
pub fn brief(message: &str) -> String {
    const LONGEST_WORD: usize = 400;
    const KEPT: [usize; 2] = [120, 60];
    const LONGEST: usize = 4000;
    let mut line = String::new();
    for word in message.split_inclusive(|c: char| c.is_whitespace()) {
        let clean = |c: char| if c.is_control() { ' ' } else { c };
        let length = word.chars().count();
        if line.len() > LONGEST {
            line.push('…');
            break;
        }
        if length > LONGEST_WORD {
            line.extend(word.chars().take(KEPT[0]).map(clean));
            line.push('…');
            line.extend(word.chars().skip(length - KEPT[1]).map(clean));
        } else {
            line.extend(word.chars().map(clean));
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_one_line_of_bearable_length() {
        for short in ["", "a b", "`x`: expected a number, not é", &"word ".repeat(700)] {
            assert_eq!(brief(short), short);
        }
        assert_eq!(brief("a\nb\tc\u{7}"), "a b c ");
        let cell = format!("a.csv: line 3: `{}` is no number", "é".repeat(10_000_000));
        let line = brief(&cell);
        assert!(line.starts_with("a.csv: line 3: `éé") && line.ends_with("éé` is no number"), "{line}");
        assert!(line.chars().count() < 300 && brief(&"word ".repeat(100_000)).len() < 4100);
    }
}
