//! The invariants of ARCHITECTURE.md, checked in the sources.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Path and text of every Rust source below a folder.
fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    fn walk(dir: &Path, out: &mut Vec<(PathBuf, String)>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, out);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                out.push((path, text));
            }
        }
    }
    let mut out = Vec::new();
    walk(&root().join(folder), &mut out);
    assert!(!out.is_empty(), "{folder}");
    out
}

/// Code without comments and without the tests at the end of a file.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or(text);
    text.lines().filter(|l| !l.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

fn refuse(folder: &str, words: &[&str]) {
    for (path, text) in sources(folder) {
        for word in words {
            assert!(!code(&text).contains(word), "{} contains {word}", path.display());
        }
    }
}

#[test]
fn graph_plan_and_oracle_are_pure() {
    for room in ["crates/graph/src", "crates/plan/src", "crates/oracle/src"] {
        refuse(
            room,
            &[
                "std::fs",
                "std::thread",
                "std::time",
                "std::net",
                "println!",
                "eprintln!",
                "unsafe {",
                "unsafe fn",
            ],
        );
        let lib = std::fs::read_to_string(root().join(room).join("lib.rs")).unwrap();
        assert!(lib.contains("#![forbid(unsafe_code)]"), "{room}");
    }
}

#[test]
fn only_the_outermost_room_prints() {
    refuse("crates/run/src", &["println!", "eprintln!"]);
    for room in ["crates/graph/src", "crates/plan/src", "crates/oracle/src", "crates/run/src"] {
        refuse(room, &["clap::", "indicatif::"]);
    }
}

#[test]
fn documents_share_nothing_with_the_planner() {
    refuse("crates/plan/src/document", &["crate::step", "crate::budget", "crate::devices", "crate::time"]);
}

#[test]
fn run_names_nothing_of_plan_but_documents() {
    let rooms = ["step", "budget", "devices", "time"].map(|room| format!("gulliver_plan::{room}"));
    let rooms: Vec<&str> = rooms.iter().map(String::as_str).collect();
    for (path, text) in sources("crates/run/src") {
        let tests = path.file_name().is_some_and(|name| name.to_string_lossy().ends_with("tests.rs"));
        for room in rooms.iter().filter(|_| !tests) {
            assert!(!code(&text).contains(room), "{} names {room}", path.display());
        }
    }
}

#[test]
fn nothing_above_devices_knows_their_memory() {
    let above = ["session", "train", "checkpoint", "data"].map(|room| format!("crates/run/src/{room}"));
    for (path, text) in above.iter().flat_map(|room| sources(room)) {
        for word in ["*mut u8", "*const u8", "device::cpu::Cpu", "Arena"] {
            assert!(!code(&text).contains(word), "{} contains {word}", path.display());
        }
    }
}

#[test]
fn every_unsafe_says_why() {
    for folder in ["crates/run/src", "crates/run/tests"] {
        for (path, text) in sources(folder) {
            let lines: Vec<&str> = text.lines().collect();
            for (i, line) in lines.iter().enumerate() {
                let code = line.split("//").next().unwrap_or("");
                if code.contains("unsafe {") || code.contains("unsafe impl") {
                    // The reason stands above the statement, which may begin a few lines before.
                    let near = lines[i.saturating_sub(3)..=i].join("\n");
                    assert!(near.contains("SAFETY:"), "{}:{} has no SAFETY comment", path.display(), i + 1);
                }
            }
        }
    }
}

#[test]
fn files_are_short_and_say_what_they_are() {
    for (path, text) in sources("crates") {
        assert!(text.lines().count() <= 700, "{} is long: two ideas in one bed?", path.display());
        assert!(text.starts_with("//!"), "{} does not open with what it is", path.display());
    }
}

#[test]
fn examples_fit_on_a_screen() {
    for (path, text) in sources("crates/gulliver/examples") {
        assert!(text.lines().count() < 60, "{} is too long for an example", path.display());
    }
}
