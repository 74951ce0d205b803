//! Words from files in messages: always one line and never long.

/// Most characters of a word in a message.
const LONGEST: usize = 60;

/// `text` without control characters, cut to a readable length.
pub fn short(text: &str) -> String {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    let mut line: String = text.chars().take(LONGEST).map(clean).collect();
    if text.chars().nth(LONGEST).is_some() {
        line.push('…');
    }
    line
}

/// The first words of a list and the number of the others: "a, b and 3 more".
pub fn few<T: AsRef<str>>(words: &[T]) -> String {
    const SHOWN: usize = 12;
    let shown = words.len().min(if words.len() == SHOWN + 1 { SHOWN + 1 } else { SHOWN });
    let list: Vec<String> = words[..shown].iter().map(|word| short(word.as_ref())).collect();
    match words.len() - shown {
        0 => list.join(", "),
        more => format!("{} and {more} more", list.join(", ")),
    }
}

/// A count with its noun: "1 file", "2 files".
pub fn counted(count: usize, one: &str) -> String {
    format!("{count} {one}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_words_and_lists_are_cut() {
        assert_eq!(short("a\nb"), "a b");
        assert_eq!(short(&"é".repeat(60)), "é".repeat(60));
        assert_eq!(short(&"é".repeat(10_000_000)), format!("{}…", "é".repeat(60)));
        assert_eq!(few(&["a", "b"]), "a, b");
        assert_eq!(few::<&str>(&[]), "");
        let many: Vec<String> = (0..10_000).map(|i| i.to_string()).collect();
        assert_eq!(few(&many), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 9988 more");
        assert!(!few(&many[..13]).contains("more"));
        assert_eq!((counted(1, "file"), counted(2, "file")), ("1 file".into(), "2 files".into()));
    }
}
