//! The invariants of ARCHITECTURE.md, checked in the sources.

use std::collections::{BTreeMap, BTreeSet};
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

/// Every room, and the rooms it may use.
const ROOMS: &[(&str, &[&str])] = &[
    ("graph", &[]),
    ("plan", &["graph"]),
    ("oracle", &["graph", "plan"]),
    ("run", &["graph", "plan"]),
    ("gulliver", &["graph", "plan", "oracle", "run"]),
    ("lab", &["graph", "plan", "oracle", "run", "gulliver"]),
];

/// The word that a piece of code begins with.
fn word(code: &str) -> &str {
    code.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or("")
}

#[test]
fn no_public_type_is_defined_twice() {
    let mut defined: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (room, _) in ROOMS {
        for (path, text) in sources(&format!("crates/{room}/src")) {
            for line in code(&text).lines() {
                let mut words = line.trim_start().splitn(3, ' ');
                let kind = ["struct", "enum", "trait", "type", "union"];
                if words.next() == Some("pub") && words.next().is_some_and(|word| kind.contains(&word)) {
                    let name = word(words.next().unwrap_or("")).to_string();
                    defined.entry(name).or_default().push(path.display().to_string());
                }
            }
        }
    }
    let twice = defined.iter().filter(|(_, places)| places.len() > 1);
    let twice: Vec<String> = twice.map(|(name, places)| format!("{name}: {}", places.join(", "))).collect();
    assert!(twice.is_empty(), "public types that are defined twice:\n{}", twice.join("\n"));
}

/// First words of the paths that some code names below `crate::`, from a module so many levels below the root.
fn named(code: &str, depth: usize) -> Vec<String> {
    let up = "super::".repeat(depth);
    let mut found = Vec::new();
    for root in ["crate::", up.as_str()] {
        for (at, _) in code.match_indices(root) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                continue;
            }
            let rest = &code[at + root.len()..];
            let Some(group) = rest.strip_prefix('{') else {
                found.push(word(rest).to_string());
                continue;
            };
            let (mut level, mut start) = (0, 0);
            for (i, c) in group.char_indices() {
                match c {
                    '{' => level += 1,
                    '}' if level == 0 => {
                        found.push(word(group[start..i].trim_start()).to_string());
                        break;
                    }
                    '}' => level -= 1,
                    ',' if level == 0 => {
                        found.push(word(group[start..i].trim_start()).to_string());
                        start = i + 1;
                    }
                    _ => {}
                }
            }
        }
    }
    found
}

/// By top-level module of a room, the others that it names.
fn uses(room: &str) -> BTreeMap<String, BTreeSet<String>> {
    let folder = root().join(format!("crates/{room}/src"));
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut all = Vec::new();
    for (path, text) in sources(&format!("crates/{room}/src")) {
        let path = path.strip_prefix(&folder).unwrap().with_extension("");
        let mut parts: Vec<String> = path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        if parts.last().is_some_and(|last| last == "mod") {
            parts.pop();
        }
        let tests = parts.iter().any(|part| part == "tests" || part.ends_with("_tests"));
        if !tests && parts != ["lib"] && parts != ["main"] {
            uses.entry(parts[0].clone()).or_default();
            all.push((parts, code(&text)));
        }
    }
    let modules: BTreeSet<String> = uses.keys().cloned().collect();
    for (parts, code) in all {
        let others = named(&code, parts.len()).into_iter().filter(|name| *name != parts[0]);
        uses.get_mut(&parts[0]).unwrap().extend(others.filter(|name| modules.contains(name)));
    }
    uses
}

/// Groups of modules that reach each other.
fn cycles(uses: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<Vec<String>> {
    let reached = |from: &String| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(module) = next.pop() {
            next.extend(uses[module].iter().filter(|other| seen.insert((*other).clone())));
        }
        seen
    };
    let reached: BTreeMap<&String, BTreeSet<String>> = uses.keys().map(|m| (m, reached(m))).collect();
    let group = |m: &String| reached[m].iter().filter(|other| reached[*other].contains(m)).cloned().collect();
    uses.keys().map(group).filter(|group: &Vec<String>| group.len() > 1).collect()
}

#[test]
fn no_modules_depend_on_each_other_in_a_circle() {
    let mut found = Vec::new();
    for (room, _) in ROOMS {
        let uses = uses(room);
        for cycle in cycles(&uses) {
            for module in &cycle {
                let others: Vec<&String> =
                    uses[module].iter().filter(|other| cycle.contains(other)).collect();
                found.push(format!("crates/{room}: {module} uses {others:?}"));
            }
        }
    }
    assert!(found.is_empty(), "modules that depend on each other in a circle:\n{}", found.join("\n"));
}

#[test]
fn paths_below_the_root_are_found() {
    let code =
        "use crate::a::{b, c};\nuse crate::{d, e::{f, g}, h};\nlet x = crate::i::j(super::super::k::l());";
    assert_eq!(named(code, 2), ["a", "d", "e", "h", "i", "k"]);
    let edges = [("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")];
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (from, to) in edges {
        uses.entry(from.into()).or_default().insert(to.into());
    }
    assert_eq!(cycles(&uses).into_iter().collect::<Vec<_>>(), [["a", "b", "c"]]);
}

#[test]
fn rooms_are_named_and_use_only_rooms_before_them() {
    let folders = std::fs::read_dir(root().join("crates")).unwrap();
    let found: BTreeSet<String> =
        folders.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    assert_eq!(found, ROOMS.iter().map(|(room, _)| room.to_string()).collect::<BTreeSet<_>>());
    for (room, may) in ROOMS {
        let manifest = std::fs::read_to_string(root().join(format!("crates/{room}/Cargo.toml"))).unwrap();
        let own = manifest.split("[dependencies]").nth(1).unwrap_or("").split("\n[").next().unwrap_or("");
        for line in own.lines().filter(|line| line.starts_with("gulliver")) {
            let name = line.split(['.', ' ', '=']).next().unwrap_or("");
            let other = name.strip_prefix("gulliver-").unwrap_or(name);
            assert!(may.contains(&other), "crates/{room} may not use {other}");
        }
        for module in uses(room).keys() {
            let vague = ["util", "utils", "common", "core", "misc", "helper", "helpers"];
            assert!(!vague.contains(&module.as_str()), "crates/{room}/src/{module} says nothing");
        }
    }
}

#[test]
fn graphs_are_written_by_the_builder_the_reader_and_the_rewriter_alone() {
    let writers = ["graph.rs", "graph/build.rs", "text.rs", "rewrite.rs"]
        .map(|file| format!("crates/graph/src/{file}"));
    for (room, _) in ROOMS {
        for (path, text) in sources(&format!("crates/{room}/src")) {
            let tests = path.to_string_lossy().contains("tests");
            if tests || writers.iter().any(|writer| path.ends_with(writer)) {
                continue;
            }
            for word in [
                ".nodes.push(Node {",
                "values.push(ValueInfo",
                "origin = Origin::",
                "Graph::default()",
                "Graph { nodes",
            ] {
                assert!(!code(&text).contains(word), "{} writes a graph by hand: {word}", path.display());
            }
        }
    }
}
