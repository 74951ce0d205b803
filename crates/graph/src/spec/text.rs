//! Reading and printing spec lines.

use super::{Axis, AxisId, Index, ReduceKind, Spec, SpecError};
use crate::dim::Dim;
use std::fmt;
use std::str::FromStr;

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Spec, SpecError> {
        let error = |why: String| SpecError::Parse { text: text.to_string(), why };
        let mut spec = Spec { axes: Vec::new(), inputs: Vec::new(), outputs: Vec::new(), opaque: false };
        let body = match text.trim().strip_prefix("opaque ") {
            Some(rest) => {
                spec.opaque = true;
                rest
            }
            None => text.trim(),
        };
        let (left, right) = body.split_once("->").ok_or_else(|| error("has no `->`".into()))?;
        let (right, clauses) = split_clauses(right);
        let mut inputs = Vec::new();
        if !left.trim().is_empty() {
            for operand in left.split(',') {
                inputs.push(read_operand(&mut spec, operand).map_err(error)?);
            }
        }
        spec.inputs = inputs;
        let mut outputs = Vec::new();
        for operand in right.split(',') {
            outputs.push(read_operand(&mut spec, operand).map_err(error)?);
        }
        spec.outputs = outputs;
        read_clauses(&mut spec, &clauses).map_err(error)?;
        Ok(spec)
    }
}

const CLAUSES: [&str; 4] = ["max", "min", "over", "with"];

fn split_clauses(right: &str) -> (String, Vec<String>) {
    let words: Vec<&str> = right.split_whitespace().collect();
    let at = words.iter().position(|w| CLAUSES.contains(w)).unwrap_or(words.len());
    (words[..at].join(" "), words[at..].iter().map(|w| w.to_string()).collect())
}

fn read_clauses(spec: &mut Spec, words: &[String]) -> Result<(), String> {
    let mut clause = "";
    for word in words {
        if let Some(c) = CLAUSES.iter().find(|c| *c == word) {
            clause = c;
            continue;
        }
        let (name, value) = match (clause, word.split_once('=')) {
            ("with", Some((name, value))) => (name, Some(value)),
            ("with", None) => return Err(format!("`with` needs axis=extent, not `{word}`")),
            _ => (word.as_str(), None),
        };
        let id = spec.axis(name).ok_or_else(|| format!("axis `{name}` does not occur"))?;
        let axis = &mut spec.axes[id.0];
        match clause {
            "max" => axis.reduce = ReduceKind::Max,
            "min" => axis.reduce = ReduceKind::Min,
            "over" => axis.statistics = true,
            _ => {
                let value = value.unwrap_or_default();
                axis.extent = Some(Dim::parse(value).map_err(|e| e.to_string())?);
            }
        }
    }
    Ok(())
}

fn read_operand(spec: &mut Spec, text: &str) -> Result<Vec<Index>, String> {
    let text = text.trim();
    if text == "[]" {
        return Ok(Vec::new());
    }
    if text.is_empty() {
        return Err("an operand is empty; write [] for a scalar".into());
    }
    let mut indices = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('(') {
            let (inside, tail) = after.split_once(')').ok_or("unclosed `(`")?;
            let axes =
                inside.split_whitespace().map(|w| read_axis(spec, w)).collect::<Result<Vec<_>, _>>()?;
            if axes.len() < 2 {
                return Err(format!("`({inside})` merges fewer than two axes"));
            }
            indices.push(Index::Merge(axes));
            rest = tail.trim_start();
        } else {
            let end = word_end(rest);
            indices.push(read_index(spec, &rest[..end])?);
            rest = rest[end..].trim_start();
        }
    }
    Ok(indices)
}

/// The end of a word; blanks inside `{…}` belong to it.
fn word_end(text: &str) -> usize {
    let mut depth = 0i32;
    for (i, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            c if c.is_whitespace() && depth <= 0 => return i,
            _ => {}
        }
    }
    text.len()
}

fn read_axis(spec: &mut Spec, word: &str) -> Result<AxisId, String> {
    let (name, whole) = match word.strip_suffix('!') {
        Some(name) => (name, true),
        None => (word, false),
    };
    let mut chars = name.chars();
    let starts = chars.next().is_some_and(|c| c.is_ascii_alphabetic());
    if !starts || !chars.all(|c| c.is_ascii_alphanumeric() || c == '_') || CLAUSES.contains(&name) {
        return Err(format!("`{word}` is not an axis name"));
    }
    let id = spec.axis(name).unwrap_or_else(|| {
        spec.axes.push(Axis {
            name: name.to_string(),
            whole: false,
            statistics: false,
            reduce: ReduceKind::Sum,
            extent: None,
        });
        AxisId(spec.axes.len() - 1)
    });
    spec.axes[id.0].whole |= whole;
    Ok(id)
}

fn read_index(spec: &mut Spec, word: &str) -> Result<Index, String> {
    if word == "1" {
        return Ok(Index::One);
    }
    let (body, size) = match word.split_once('{') {
        Some((body, size)) => {
            let size = size.strip_suffix('}').ok_or("unclosed `{`")?;
            (body, Some(Dim::parse(size).map_err(|e| e.to_string())?))
        }
        None => (word, None),
    };
    let (body, high) = match body.split_once('|') {
        Some((body, high)) => {
            (body, Some(high.parse::<i64>().map_err(|_| format!("`{high}` is not a padding"))?))
        }
        None => (body, None),
    };
    let plain = !body.contains(['+', '-', '*']);
    if plain && size.is_none() && high.is_none() {
        return Ok(Index::Axis(read_axis(spec, body)?));
    }
    let mut terms = Vec::new();
    let mut offset = 0i64;
    for piece in body.replace('-', "+-").split('+').filter(|p| !p.is_empty()) {
        if let Ok(number) = piece.parse::<i64>() {
            offset = offset.checked_add(number).ok_or("offset too large")?;
        } else if let Some((stride, axis)) = piece.split_once('*') {
            let stride: i64 = stride.parse().map_err(|_| format!("`{stride}` is not a stride"))?;
            if stride < 1 {
                return Err(format!("stride {stride} is below 1"));
            }
            terms.push((stride, read_axis(spec, axis)?));
        } else {
            terms.push((1, read_axis(spec, piece)?));
        }
    }
    if terms.is_empty() {
        return Err(format!("`{word}` has no axis"));
    }
    let low = -offset;
    Ok(Index::Affine { terms, low, high: high.unwrap_or(low), size })
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.opaque {
            f.write_str("opaque ")?;
        }
        let side = |operands: &[Vec<Index>]| {
            operands.iter().map(|o| self.operand_text(o)).collect::<Vec<_>>().join(", ")
        };
        let left = side(&self.inputs);
        write!(f, "{left}{}-> {}", if left.is_empty() { "" } else { " " }, side(&self.outputs))?;
        let clause = |f: &mut fmt::Formatter<'_>, word: &str, pick: &dyn Fn(&Axis) -> Option<String>| {
            let names: Vec<String> = self.axes.iter().filter_map(pick).collect();
            if names.is_empty() { Ok(()) } else { write!(f, " {word} {}", names.join(" ")) }
        };
        clause(f, "max", &|a| (a.reduce == ReduceKind::Max).then(|| a.name.clone()))?;
        clause(f, "min", &|a| (a.reduce == ReduceKind::Min).then(|| a.name.clone()))?;
        clause(f, "over", &|a| a.statistics.then(|| a.name.clone()))?;
        clause(f, "with", &|a| a.extent.as_ref().map(|e| format!("{}={e}", a.name)))
    }
}

impl Spec {
    pub(super) fn operand_text(&self, indices: &[Index]) -> String {
        if indices.is_empty() {
            return "[]".into();
        }
        indices.iter().map(|i| self.index_text(i)).collect::<Vec<_>>().join(" ")
    }

    fn axis_text(&self, id: AxisId) -> String {
        let axis = &self.axes[id.0];
        format!("{}{}", axis.name, if axis.whole { "!" } else { "" })
    }

    fn index_text(&self, index: &Index) -> String {
        match index {
            Index::Axis(a) => self.axis_text(*a),
            Index::One => "1".into(),
            Index::Merge(axes) => {
                format!("({})", axes.iter().map(|a| self.axis_text(*a)).collect::<Vec<_>>().join(" "))
            }
            Index::Affine { terms, low, high, size } => {
                let mut text = terms
                    .iter()
                    .map(|(s, a)| match s {
                        1 => self.axis_text(*a),
                        _ => format!("{s}*{}", self.axis_text(*a)),
                    })
                    .collect::<Vec<_>>()
                    .join("+");
                // A lone `h` would read back as a plain axis: `h+0` keeps it a window.
                if *low != 0 || (terms.len() == 1 && terms[0].0 == 1 && high == low && size.is_none()) {
                    text += &format!("{:+}", -low);
                }
                if high != low {
                    text += &format!("|{high}");
                }
                if let Some(size) = size {
                    text += &format!("{{{size}}}");
                }
                text
            }
        }
    }
}
