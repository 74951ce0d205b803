//! Suggestions for mistyped names: the edit distance between words, the names nearest to one, and a
//! message that names them.

/// Number of single-character insertions, deletions, replacements and swaps of neighbours turn `a`
/// into `b`, compared without regard to ASCII case.
pub fn edit_distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().map(|c| c.to_ascii_lowercase()).collect();
    let b: Vec<char> = b.chars().map(|c| c.to_ascii_lowercase()).collect();
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

/// Up to `count` of `names` near enough to `wanted` to be worth suggesting, nearest first, equal
/// distances in the order given. Near enough: at most a third of the letters differ (at least one
/// may), or one contains the other. A `wanted` of more than 200 bytes gets no suggestion.
pub fn nearest<'a>(wanted: &str, names: impl IntoIterator<Item = &'a str>, count: usize) -> Vec<&'a str> {
    if wanted.is_empty() || wanted.len() > 200 {
        return Vec::new();
    }
    let mut near: Vec<(usize, &str)> = names
        .into_iter()
        .filter(|name| !name.is_empty() && name.len() <= 200)
        .filter_map(|name| {
            let distance = edit_distance(wanted, name);
            let allowed = (wanted.chars().count().max(name.chars().count()) / 3).max(1);
            let contained =
                wanted.len().min(name.len()) >= 3 && (name.contains(wanted) || wanted.contains(name));
            (distance <= allowed || contained).then_some((distance, name))
        })
        .collect();
    near.sort_by_key(|&(distance, _)| distance);
    near.into_iter().take(count).map(|(_, name)| name).collect()
}

/// The end of a message that names something unknown: "; did you mean `…`?" with the nearest of `names`, or
/// "; `otherwise` …" with all of them.
pub fn suggestion<'a>(wanted: &str, names: impl IntoIterator<Item = &'a str>, otherwise: &str) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    match nearest(wanted, names.iter().copied(), 1).first() {
        Some(name) => format!("; did you mean `{name}`?"),
        None => format!("; {otherwise} {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (a, b, expected) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "abc", 0),
            ("ABC", "abc", 0),
            ("abc", "abd", 1),
            ("abc", "acb", 1),
            ("kitten", "sitting", 3),
            ("größe", "grösse", 2),
        ] {
            assert_eq!(edit_distance(a, b), expected, "{a} {b}");
            assert_eq!(edit_distance(b, a), expected, "{b} {a}");
        }
    }

    #[test]
    fn suggestions() {
        let names = ["batch", "partials", "steps", "seed", "eval_every", "keep_checkpoints"];
        for (wanted, expected) in [
            ("bach", vec!["batch"]),
            ("step", vec!["steps"]),
            ("checkpoints", vec!["keep_checkpoints"]),
            ("evalevery", vec!["eval_every"]),
            ("momentum", vec![]),
            ("", vec![]),
        ] {
            assert_eq!(nearest(wanted, names, 1), expected, "{wanted}");
        }
        assert!(nearest(&"x".repeat(10_000), names, 3).is_empty());
        assert_eq!(suggestion("sed", names, "there are"), "; did you mean `seed`?");
        assert_eq!(suggestion("momentum", ["a", "b"], "there are"), "; there are a, b");
    }
}
