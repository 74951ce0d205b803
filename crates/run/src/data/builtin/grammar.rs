//! Text of a small grammar, for language models: subject and verb agree in number and clauses nest, so there is
//! something to learn at every distance.

use super::generated::Draw;

/// At least `bytes` bytes of sentences.
pub fn grammar_text(seed: u64, bytes: usize) -> String {
    let mut draw = Draw::new(seed, "data.grammar", 0);
    let mut out = String::with_capacity(bytes + 256);
    while out.len() < bytes {
        let start = out.len();
        let plural = noun_phrase(&mut draw, &mut out, 0);
        verb_phrase(&mut draw, &mut out, plural, 0);
        out.truncate(out.trim_end().len());
        out.push_str([".\n", ".\n", "!\n", ".\n"][draw.below(4)]);
        out[start..start + 1].make_ascii_uppercase();
    }
    out
}

/// Appends a noun phrase and returns whether it is plural.
fn noun_phrase(draw: &mut Draw, out: &mut String, depth: usize) -> bool {
    const ADJECTIVES: [&str; 8] = ["small", "tall", "old", "quiet", "brave", "green", "hungry", "curious"];
    const NOUNS: [&str; 10] =
        ["giant", "sailor", "horse", "doctor", "captain", "king", "island", "ship", "tower", "garden"];
    let plural = draw.below(2) == 1;
    let determiners = if plural { ["the", "some", "two", "many"] } else { ["the", "a", "one", "this"] };
    let mut word = |text: &str| {
        out.push_str(text);
        out.push(' ');
    };
    word(determiners[draw.below(4)]);
    if draw.below(3) == 0 {
        word(ADJECTIVES[draw.below(8)]);
    }
    let noun = NOUNS[draw.below(10)];
    word(&if plural { format!("{noun}s") } else { noun.to_string() });
    if depth < 2 && draw.below(5) == 0 {
        word("that");
        verb_phrase(draw, out, plural, depth + 1);
    }
    plural
}

fn verb_phrase(draw: &mut Draw, out: &mut String, plural: bool, depth: usize) {
    const VERBS: [&str; 8] = ["see", "follow", "remember", "fear", "visit", "measure", "draw", "help"];
    out.push_str(VERBS[draw.below(8)]);
    out.push_str(if plural { " " } else { "s " });
    noun_phrase(draw, out, depth + 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grammar_is_repeatable_text() {
        let text = grammar_text(5, 2000);
        assert_eq!(text, grammar_text(5, 2000));
        assert_ne!(text, grammar_text(6, 2000));
        assert!(text.len() >= 2000 && text.lines().all(|l| l.ends_with(['.', '!']) && !l.contains("  ")));
    }
}
