//! What is wrong with a job, and exactly where: file and line, or the flag that said so.

use std::fmt;

/// Where a value of a job was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
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
    pub origin: Origin,
    /// The dotted field, such as `train.batch`; empty if there is none to name.
    pub field: String,
    /// What is wrong and what is allowed.
    pub problem: String,
}

impl JobError {
    /// The field before the problem, unless there is none or a flag of its own names it.
    fn named(&self) -> String {
        match self.field.is_empty() || matches!(self.origin, Origin::Named(_)) {
            true => String::new(),
            false => format!("{}: ", self.field),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File { file, line: Some(line) } => write!(f, "{file}:{line}"),
            Origin::File { file, line: None } => f.write_str(file),
            Origin::Flag(text) => write!(f, "--set {}", one_line(text)),
            Origin::Named(flag) => f.write_str(&one_line(flag)),
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
