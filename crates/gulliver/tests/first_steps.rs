//! Walks docs/first-steps.md: its job files are written as they stand there, its commands run by a shell, in its
//! order, on the data it names.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (entry, name) = entry.map(|e| (e.path(), e.file_name())).unwrap();
        if entry.is_dir() {
            copy(&entry, &to.join(name))
        } else {
            fs::copy(&entry, to.join(name)).unwrap();
        }
    }
}

/// The blocks of a document in one language, each with the line it starts in.
fn blocks(text: &str, language: &str) -> Vec<(usize, String)> {
    let (mut found, mut current) = (Vec::new(), None);
    for (number, line) in text.lines().enumerate() {
        match (&mut current, line.strip_prefix("```")) {
            (None, Some(tag)) => current = Some((tag == language, number + 2, String::new())),
            (Some((wanted, first, block)), Some(_)) => {
                if *wanted {
                    found.push((*first, std::mem::take(block)));
                }
                current = None;
            }
            (Some((_, _, block)), None) => *block += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    found
}

/// A place for the walk, with the program on the path as `gulliver`.
struct Walk {
    root: PathBuf,
    dir: PathBuf,
}

impl Walk {
    fn new(name: &str) -> Walk {
        let root = std::env::temp_dir().join(format!("gulliver-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let dir = root.join("examples/first-steps");
        copy(&repository().join("examples/first-steps"), &dir);
        fs::create_dir_all(root.join("docs")).unwrap();
        fs::copy(repository().join("docs/first-steps.md"), root.join("docs/first-steps.md")).unwrap();
        fs::create_dir_all(root.join("bin")).unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_gulliver"), root.join("bin/gulliver")).unwrap();
        for (line, job) in blocks(&document(), "toml") {
            let name = job.lines().next().and_then(|first| first.strip_prefix("# "));
            let name = name.unwrap_or_else(|| panic!("line {line}: the first line names the file"));
            fs::write(dir.join(name), &job).unwrap();
        }
        Walk { root, dir }
    }

    fn command(&self, line: &str) -> Command {
        let path = format!("{}:{}", self.root.join("bin").display(), std::env::var("PATH").unwrap());
        let mut command = Command::new("sh");
        command.args(["-c", line]).current_dir(&self.dir).env("PATH", path);
        command.env("XDG_CONFIG_HOME", self.root.join("settings"));
        command
    }

    fn run(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }

    /// Runs a line that must do well; what it printed.
    fn walk(&self, line: &str) -> String {
        let output = self.run(line);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}\n{error}");
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn document() -> String {
    fs::read_to_string(repository().join("docs/first-steps.md")).unwrap()
}

#[test]
fn every_command_of_the_first_steps_works() {
    let walk = Walk::new("first-steps");
    let commands: Vec<String> = blocks(&document(), "sh")
        .into_iter()
        .flat_map(|(_, b)| b.lines().map(String::from).collect::<Vec<_>>())
        .collect();
    assert!(commands.iter().all(|line| line.starts_with("gulliver ")) && commands.len() >= 9, "{commands:?}");
    let printed: Vec<(String, String)> =
        commands.into_iter().map(|line| (line.clone(), walk.walk(&line))).collect();
    let of = |part: &str| -> &str { &printed.iter().find(|(line, _)| line.contains(part)).unwrap().1 };

    assert!(of("train flowers.toml").starts_with(
        "data: 108 training and 12 validation examples, 3 classes: anemone, bluebell, crocus\n"
    ));
    assert!(of("train flowers.toml").contains("macro_f1"));
    // The flowers are far apart: crocus, anemone, bluebell, crocus, bluebell.
    let found = of("predict runs/flowers new-flowers.csv");
    let classes: Vec<&str> = found.lines().map(|line| line.split(',').nth(1).unwrap()).collect();
    assert_eq!(classes, ["class", "crocus", "anemone", "bluebell", "crocus", "bluebell"], "{found}");
    let table = fs::read_to_string(walk.dir.join("flowers-found.csv")).unwrap();
    assert!(table.starts_with("input,class,probability,anemone,bluebell,crocus\nrow 1,crocus,"), "{table}");
    // New pictures are named after what they show.
    let found = of("predict runs/shapes new");
    let right = found.lines().skip(1).filter(|line| {
        let cells: Vec<&str> = line.split(',').collect();
        cells[0].contains(&format!("{}-", cells[1]))
    });
    assert!(right.count() >= 5 && found.lines().count() == 7, "{found}");
    assert!(of("train more-shapes.toml").contains("fc.weight"), "what does not fit is listed");
    let found = of("predict runs/more-shapes more-shapes");
    assert!(
        found.lines().count() == 21 && found.contains(",ring,") && found.contains(",triangle,"),
        "{found}"
    );
    assert!(of("train text.toml").contains("perplexity"));
    let text = of("generate runs/text");
    assert!(text.starts_with("Every ") && text.trim_end_matches('\n').chars().count() >= 80, "{text}");
    assert!(of("evaluate runs/flowers").contains("120 examples  accuracy "));
}

/// As a person would: starts a run, looks, presses Ctrl-C. What it says then; none if it had come to its end.
fn interrupted(walk: &Walk) -> Option<String> {
    let line = "exec gulliver train shapes.toml --set train.early_stopping=0 > lines 2> errors";
    fs::write(walk.dir.join("lines"), "").unwrap();
    let mut child = walk.command(line).stdout(Stdio::null()).spawn().unwrap();
    while !fs::read_to_string(walk.dir.join("lines")).is_ok_and(|lines| lines.contains("\nstep")) {
        if child.try_wait().unwrap().is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    walk.run(&format!("kill -INT {}", child.id()));
    let status = child.wait().unwrap();
    let message = fs::read_to_string(walk.dir.join("errors")).unwrap();
    if status.success() {
        return None;
    }
    assert_eq!(status.code(), Some(130), "{message}");
    Some(message)
}

#[test]
fn what_is_printed_after_an_interruption_goes_on_when_pasted() {
    let walk = Walk::new("pasted-steps");
    let whole = walk.walk("gulliver train shapes.toml --out whole --set train.early_stopping=0");
    // On a machine that stands still, a signal may come when all is done; not again and again.
    let message = (0..20).find_map(|_| interrupted(&walk)).expect("an interrupted run");
    let pasted = message.trim_end().rsplit_once("to go on: ").unwrap().1;
    let rest = walk.walk(pasted);
    let fingerprint = |text: &str| text.lines().last().unwrap().to_string();
    assert_eq!(fingerprint(&rest), fingerprint(&whole));
}

/// What `--help` says is enough to find every command of the page.
#[test]
fn help_names_what_the_page_uses() {
    let walk = Walk::new("help-steps");
    for (command, flags) in
        [("train", &["--out", "--resume", "--set"][..]), ("predict", &["--best", "--out", "--probabilities"])]
    {
        let help = walk.walk(&format!("gulliver {command} --help"));
        for flag in flags {
            assert!(help.contains(flag), "{command} {flag}\n{help}");
        }
    }
    let help = walk.walk("gulliver --help");
    assert!(
        ["train", "predict", "evaluate", "generate"].iter().all(|command| help.contains(command)),
        "{help}"
    );
}
