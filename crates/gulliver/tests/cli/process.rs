//! Runs the real program in a directory of its own, never for longer than a limit.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Far more than any run here needs, on any machine.
const LIMIT: Duration = Duration::from_secs(120);

/// A directory of files for one test, gone when the test ends.
pub struct Place(PathBuf);

impl Place {
    /// An empty directory; `name` must be unique among these tests.
    pub fn new(name: &str) -> Place {
        let path = std::env::temp_dir().join(format!("gulliver-cli-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Place(path)
    }

    /// The path of a file in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file, and makes its directory.
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        std::fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        std::fs::write(self.path(name), bytes).unwrap();
    }

    /// Starts `gulliver` with these arguments, in the directory.
    pub fn start(&self, arguments: &[&str]) -> Running {
        // Neither the profile nor the history of whoever runs the tests.
        let mut command = Command::new(env!("CARGO_BIN_EXE_gulliver"));
        Running::start(&self.0, command.env("XDG_CONFIG_HOME", self.path("settings")).args(arguments))
    }

    /// Runs `gulliver` to its end with at most so many bytes of address space.
    pub fn run_within(&self, bytes: u64, arguments: &[&str]) -> Finished {
        let limited = format!("ulimit -v {} && exec \"$0\" \"$@\"", bytes / 1024);
        let mut command = Command::new("sh");
        command.args(["-c", &limited, env!("CARGO_BIN_EXE_gulliver")]).args(arguments);
        command.env("XDG_CONFIG_HOME", self.path("settings"));
        Running::start(&self.0, &mut command).finish()
    }

    /// Runs `gulliver` to its end with a variable of the environment.
    pub fn run_with(&self, (name, value): &(&str, String), arguments: &[&str]) -> Finished {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gulliver"));
        let command = command.env("XDG_CONFIG_HOME", self.path("settings")).env(name, value);
        Running::start(&self.0, command.args(arguments)).finish()
    }

    /// Runs `gulliver` to its end.
    pub fn run(&self, arguments: &[&str]) -> Finished {
        self.start(arguments).finish()
    }

    /// Trains `job` in the new directory `out` to its end, which must be a good one; the last event.
    pub fn train(&self, job: &str, out: &str, more: &[&str]) -> Value {
        let finished = self.run(&[&["train", job, "--out", out, "--json"], more].concat());
        assert_eq!(finished.code(), Some(0), "{out}: {}", finished.stderr);
        let done = finished.events().pop().unwrap();
        assert_eq!(done["event"], "done", "{done}");
        done
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A process whose lines are read as they come.
pub struct Running {
    child: Child,
    lines: Receiver<String>,
    stderr: JoinHandle<String>,
    stdout: String,
    limit: Instant,
}

/// A process that ended.
pub struct Finished {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Running {
    fn start(dir: &Path, command: &mut Command) -> Running {
        let mut child = command
            .current_dir(dir)
            .env("RUST_BACKTRACE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = channel();
        let stdout = child.stdout.take().unwrap();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                if sender.send(line.unwrap()).is_err() {
                    break;
                }
            }
        });
        let mut stderr = child.stderr.take().unwrap();
        let stderr = thread::spawn(move || {
            let mut text = String::new();
            let _ = stderr.read_to_string(&mut text);
            text
        });
        Running { child, lines, stderr, stdout: String::new(), limit: Instant::now() + LIMIT }
    }

    /// Waits for the next line of standard output; none when it ended.
    pub fn line(&mut self) -> Option<String> {
        let left = self.limit.saturating_duration_since(Instant::now());
        match self.lines.recv_timeout(left) {
            Ok(line) => {
                self.stdout.push_str(&line);
                self.stdout.push('\n');
                Some(line)
            }
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => {
                self.kill();
                panic!("still running after {LIMIT:?}:\n{}", self.stdout);
            }
        }
    }

    /// Waits for so many events of this name; whether they came before the end.
    pub fn wait_for(&mut self, event: &str, count: usize) -> bool {
        let mut seen = 0;
        while seen < count {
            let Some(line) = self.line() else { return false };
            seen += usize::from(line.contains(&format!("\"event\":\"{event}\"")));
        }
        true
    }

    /// Ends it at once, as a power cut would.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
    }

    /// Sends a signal such as `INT`.
    pub fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        let _ = Command::new("sh").args(["-c", &kill]).stderr(Stdio::null()).status();
    }

    /// Waits for its end.
    pub fn finish(mut self) -> Finished {
        while self.line().is_some() {}
        let status = self.child.wait().unwrap();
        let stderr = self.stderr.join().unwrap();
        assert!(!stderr.contains("panicked"), "{stderr}");
        Finished { status, stdout: self.stdout, stderr }
    }
}

impl Finished {
    /// The exit code; none if a signal ended it.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// All lines of standard output, each of which must be an event.
    pub fn events(&self) -> Vec<Value> {
        let parse = |line: &str| -> Value {
            let event = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
            let Value::Object(fields) = &event else { panic!("{line}") };
            assert!(fields["event"].is_string(), "{line}");
            event
        };
        self.stdout.lines().map(parse).collect()
    }

    /// The events of one name.
    pub fn events_called(&self, name: &str) -> Vec<Value> {
        self.events().into_iter().filter(|event| event["event"] == name).collect()
    }

    /// Checks that it ended with an error in one line, and gives that line.
    pub fn error(&self) -> String {
        let lines: Vec<&str> = self.stderr.lines().collect();
        let [line] = lines[..] else { panic!("not one line of error: {:?}", self.stderr) };
        let message = line.strip_prefix("error: ").unwrap_or_else(|| panic!("{line}"));
        assert_eq!(self.code(), Some(1), "{line}");
        message.to_string()
    }
}

/// The fingerprint of a `done` event.
pub fn fingerprint(done: &Value) -> String {
    let fingerprint = done["fingerprint"].as_str().unwrap();
    assert!(fingerprint.len() == 64 && fingerprint.bytes().all(|b| b.is_ascii_hexdigit()), "{fingerprint}");
    fingerprint.to_string()
}

/// Pseudo-random numbers that are the same in every run of the tests.
pub struct Random(pub u64);

impl Random {
    /// From 0 to below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }
}
