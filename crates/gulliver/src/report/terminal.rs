//! Events on the terminal: a progress bar for people watching, plain lines for logs, JSON lines for programs.

use super::planning::PlanningView;
use super::sweep::SweepView;
use super::table::short;
use crate::error::one_line;
use crate::event::{Event, Metrics, SizeSummary};
use crate::units;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

/// A bar of examples or tokens on standard error, if somebody is watching.
pub fn examples_bar(count: u64) -> ProgressBar {
    let style =
        ProgressStyle::with_template("{wide_bar} {pos}/{len}  {eta} left").expect("a constant template");
    ProgressBar::new(count).with_style(style)
}

/// How events are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputMode {
    /// A bar on standard error, with everything but steps printed above it.
    Bar,
    /// One line per event, but for errors.
    Lines,
    /// One JSON object per event.
    Json,
}

impl OutputMode {
    /// JSON if asked for, a bar if somebody is watching, plain lines otherwise.
    pub fn choose(json: bool) -> OutputMode {
        match json {
            true => OutputMode::Json,
            false if io::stdout().is_terminal() && io::stderr().is_terminal() => OutputMode::Bar,
            false => OutputMode::Lines,
        }
    }
}

/// Shows the events of a run or sweep as they come.
pub struct TerminalReporter {
    mode: OutputMode,
    out: Box<dyn Write + Send>,
    bar: ProgressBar,
    steps: u64,
    batch: u64,
    memory: String,
    sweep: SweepView,
    planning: Option<PlanningView>,
}

impl TerminalReporter {
    /// Shows events on `out`; the bar itself is drawn on standard error.
    pub fn new(mode: OutputMode, out: Box<dyn Write + Send>) -> TerminalReporter {
        let (bar, memory, sweep) = (ProgressBar::hidden(), String::new(), SweepView::new());
        TerminalReporter { mode, out, bar, steps: 0, batch: 0, memory, sweep, planning: None }
    }

    /// Shows one event; an error is shown to programs only. Fails only if the output does (a closed pipe, a full disk).
    pub fn report(&mut self, event: &Event) -> io::Result<()> {
        self.sweep.note(event);
        if let Event::Planning { activity, rounds, seconds, budget } = event {
            self.planning = self.planning.take().or_else(|| PlanningView::new(self.mode, *budget, *seconds));
            if let Some(planning) = &self.planning {
                planning.show(activity, *rounds, *seconds);
            }
            return Ok(());
        }
        self.planning = None;
        match event {
            Event::Start { plan, from_step, steps, batch, .. } => {
                (self.steps, self.batch) = (*steps, *batch);
                self.memory = memory(&plan.peak_bytes, &plan.budget_bytes);
                self.start_bar("{wide_bar} {pos}/{len}  {msg}", *from_step, *steps);
            }
            Event::SweepStart { .. } => self.start_bar("{msg}\n{wide_bar} {percent}%", 0, 1000),
            _ => {}
        }
        match (self.mode, event) {
            (OutputMode::Json, _) if !event.is_tick() => self.print(&event.to_json()),
            (OutputMode::Bar, Event::Progress { step, evaluated }) => {
                self.bar.set_position(*step);
                if let Some((done, of)) = evaluated {
                    self.bar.set_message(format!("evaluating: {done} of {of} batches"));
                }
                Ok(())
            }
            (OutputMode::Bar, Event::TrialStep { trial, step, to, .. }) => {
                self.bar.set_position((self.sweep.share() * 1000.0) as u64);
                self.bar.set_message(self.sweep.live(*trial, *step, *to));
                Ok(())
            }
            (OutputMode::Bar, Event::Step { step, loss, samples_per_second, .. }) => {
                let left = self.time_left(*step, *samples_per_second);
                let parts =
                    [format!("loss {}", short(*loss)), speed(*samples_per_second), self.memory.clone(), left];
                self.bar.set_position(*step);
                self.bar.set_message(join(parts));
                Ok(())
            }
            // The live table of a bar shows results of trials.
            (OutputMode::Bar, Event::Rung { reason: None, .. }) | (_, Event::TrialEval { .. }) => Ok(()),
            (_, event) if event.is_tick() => Ok(()),
            // People read errors once, on standard error, where the command ends.
            (_, Event::Error { .. }) => {
                self.bar.finish_and_clear();
                Ok(())
            }
            (_, Event::Done { .. } | Event::SweepDone { .. }) => {
                self.bar.finish_and_clear();
                self.print(&self.line(event))
            }
            _ => self.print(&self.line(event)),
        }
    }

    fn start_bar(&mut self, template: &str, position: u64, length: u64) {
        if self.mode == OutputMode::Bar {
            let style = ProgressStyle::with_template(template).expect("a constant template");
            let target = ProgressDrawTarget::stderr();
            self.bar = ProgressBar::with_draw_target(Some(length), target).with_style(style);
            self.bar.set_position(position);
        }
    }

    /// Prints a line above the bar.
    fn print(&mut self, line: &str) -> io::Result<()> {
        self.bar.suspend(|| {
            writeln!(self.out, "{line}")?;
            self.out.flush()
        })
    }

    /// The event in words.
    fn line(&self, event: &Event) -> String {
        match event {
            Event::Data { training, validation, classes, class_names, notes } => {
                let mut line = format!("data: {training} training and {validation} validation examples");
                if let Some(classes) = classes {
                    line += &format!(", {classes} classes{}", listed(class_names));
                }
                notes.iter().for_each(|note| line += &format!("\nwarning: {note}"));
                line
            }
            Event::Start { job, parameters, plan, from_step, steps, batch } => {
                let range = if *from_step == 0 {
                    format!("{steps} steps")
                } else {
                    format!("steps {} to {steps}", from_step + 1)
                };
                let size = format!("{} parameters", units::count(*parameters));
                format!(
                    "{job}: {}",
                    join([
                        size,
                        format!("{range} of {batch}"),
                        plan.description.clone(),
                        self.memory.clone()
                    ])
                )
            }
            Event::Step { step, loss, lr, samples_per_second, metrics } => join([
                format!("step {step:>width$}/{}", self.steps, width = self.steps.to_string().len()),
                format!("loss {}", short(*loss)),
                values(metrics),
                format!("lr {lr:.2e}"),
                speed(*samples_per_second),
                self.time_left(*step, *samples_per_second),
            ]),
            Event::Eval { step, metrics } => join([format!("eval {step}"), values(metrics)]),
            Event::Compared { rows, sizes } => {
                let mut rows = rows.clone();
                rows.extend(by_size(sizes));
                let width = rows.iter().map(|(what, ..)| what.len()).max().unwrap_or(0).max(24);
                let mut text = format!("{:<width$} {:>14} {:>14}", "", "planned", "measured");
                for (what, planned, measured) in rows {
                    text += &format!("\n{what:<width$} {planned:>14} {measured:>14}");
                }
                text
            }
            Event::Checkpoint { path, .. } => format!("saved {}", path.display()),
            Event::Warning { message } => format!("warning: {message}"),
            Event::Done {
                steps,
                loss,
                metrics,
                samples_per_second,
                peak_bytes,
                plans,
                alarms,
                fingerprint,
                best,
                stopped_early,
                classes,
                confusion,
                ..
            } => {
                let validation =
                    if metrics.is_empty() { "".into() } else { format!("validation {}", values(metrics)) };
                let line = join([
                    format!("done after {steps} steps"),
                    if loss.is_nan() { "".into() } else { format!("train loss {}", short(*loss)) },
                    validation,
                    speed(*samples_per_second),
                    memory(peak_bytes, &BTreeMap::new()),
                    format!("{} plans made, {} reused", plans.misses, plans.hits),
                    if *alarms == 0 { "".into() } else { format!("{alarms} alarms: see the warnings") },
                    if *stopped_early {
                        "stopped early: no better evaluation for long".into()
                    } else {
                        "".into()
                    },
                    match best {
                        Some(best) if best.step < *steps => {
                            format!("best {} {} after step {}", best.metric, short(best.value), best.step)
                        }
                        _ => "".into(),
                    },
                ]);
                let table =
                    confusion.as_ref().map(|matrix| super::confusion::confusion(matrix, classes) + "\n");
                format!("{}{line}\nfingerprint {fingerprint}", table.unwrap_or_default())
            }
            event => self.sweep.line(event),
        }
    }

    /// Empty when the speed says nothing.
    fn time_left(&self, step: u64, samples_per_second: f64) -> String {
        let samples = self.steps.saturating_sub(step) as f64 * self.batch as f64;
        match Duration::try_from_secs_f64((samples / samples_per_second).round()) {
            Ok(left) if left > Duration::ZERO => format!("{} left", units::duration(left)),
            _ => String::new(),
        }
    }
}

/// `: cat, dog and 8 more`; empty without names.
fn listed(names: &[String]) -> String {
    const SHOWN: usize = 10;
    let shown: Vec<String> = names.iter().take(SHOWN).map(|name| one_line(name)).collect();
    match names.len() {
        0 => String::new(),
        n if n > SHOWN => format!(": {} and {} more", shown.join(", "), n - SHOWN),
        _ => format!(": {}", shown.join(", ")),
    }
}

/// Step times of the sizes of input that were trained on most often, if there are several.
fn by_size(sizes: &[SizeSummary]) -> Vec<(String, String, String)> {
    const SHOWN: usize = 8;
    let mut trained: Vec<&SizeSummary> = sizes.iter().filter(|size| size.phase == "train").collect();
    if trained.len() < 2 {
        return Vec::new();
    }
    trained.sort_by_key(|size| std::cmp::Reverse(size.runs));
    let time = |seconds: f64| units::duration(Duration::try_from_secs_f64(seconds).unwrap_or_default());
    let row = |size: &&SizeSummary| {
        let named: Vec<String> = size.sizes.iter().map(|(symbol, n)| format!("{symbol} {n}")).collect();
        let what = format!("  {}, {} times", named.join(", "), size.runs);
        (what, time(size.planned_seconds), time(size.measured_seconds))
    };
    let mut rows: Vec<_> = trained.iter().take(SHOWN).map(row).collect();
    if trained.len() > SHOWN {
        let rest = format!("  and {} sizes more (see --json)", trained.len() - SHOWN);
        rows.push((rest, String::new(), String::new()));
    }
    rows
}

/// `device 7.6 of 8.0 GiB` and so on for every tier, empty without any.
fn memory(peak: &BTreeMap<String, u64>, budget: &BTreeMap<String, u64>) -> String {
    let tiers = peak.iter().map(|(tier, &used)| match budget.get(tier) {
        Some(&limit) => format!("{tier} {} of {}", units::bytes(used), units::bytes(limit)),
        None => format!("{tier} {}", units::bytes(used)),
    });
    tiers.collect::<Vec<_>>().join(", ")
}

fn values(metrics: &Metrics) -> String {
    metrics.iter().map(|(name, value)| format!("{name} {}", short(*value))).collect::<Vec<_>>().join("  ")
}

fn speed(samples_per_second: f64) -> String {
    if samples_per_second.is_finite() { format!("{samples_per_second:.1} samples/s") } else { String::new() }
}

/// The parts that are not empty, two spaces apart.
fn join<const N: usize>(parts: [String; N]) -> String {
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("  ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{PlanSummary, PlanUse};
    use gulliver_run::train::Best;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn events() -> Vec<Event> {
        let plan = PlanSummary {
            description: "one device".into(),
            peak_bytes: [("device".into(), 3 << 20)].into(),
            budget_bytes: [("device".into(), 4 << 20)].into(),
        };
        let step = |step, loss, samples_per_second| Event::Step {
            step,
            loss,
            lr: 1e-3,
            samples_per_second,
            metrics: Metrics::from([("acc".into(), 0.5)]),
        };
        let size = |phase, length, runs| SizeSummary {
            phase,
            sizes: [("length".into(), length)].into(),
            runs,
            planned_seconds: 0.001 * length as f64,
            measured_seconds: 0.002 * length as f64,
            ..SizeSummary::default()
        };
        vec![
            Event::Data {
                training: 90,
                validation: 10,
                classes: Some(12),
                class_names: ('a'..='l').map(String::from).collect(),
                notes: vec!["1 file left out: x.gif".into()],
            },
            Event::Start {
                job: "j.toml".into(),
                parameters: 12_345,
                plan,
                from_step: 0,
                steps: 200,
                batch: 16,
            },
            step(10, 2.5, 100.0),
            Event::Progress { step: 15, evaluated: None },
            Event::Progress { step: 20, evaluated: Some((3, 7)) },
            step(20, f64::NAN, f64::NAN),
            Event::Eval { step: 20, metrics: Metrics::from([("loss".into(), 1e-5)]) },
            Event::Checkpoint { step: 20, path: "c/step.safetensors".into() },
            Event::Warning { message: "slow".into() },
            Event::Compared {
                rows: vec![("step time".into(), "5 ms".into(), "6 ms".into())],
                sizes: vec![size("train", 4, 3), size("eval", 4, 7), size("train", 9, 5)],
            },
            Event::Done {
                steps: 200,
                loss: 0.5,
                metrics: Metrics::from([("accuracy".into(), 0.75)]),
                best: Some(Best { metric: "loss".into(), value: 0.25, step: 120, stale: 3 }),
                stopped_early: true,
                samples_per_second: 99.0,
                peak_bytes: [("device".into(), 3 << 20)].into(),
                link_bytes: BTreeMap::new(),
                plans: PlanUse { hits: 197, misses: 3, ..PlanUse::default() },
                alarms: 1,
                resident_bytes: None,
                fingerprint: "0123456789abcdef0123".into(),
                classes: vec!["cat".into()],
                confusion: Some(vec![vec![1, 0], vec![2, 30]]),
            },
            Event::Error { message: "no".into() },
        ]
    }

    fn shown(mode: OutputMode) -> String {
        let out = Shared::default();
        let mut reporter = TerminalReporter::new(mode, Box::new(out.clone()));
        events().iter().for_each(|event| reporter.report(event).unwrap());
        String::from_utf8(out.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn plain_lines() {
        assert_eq!(
            shown(OutputMode::Lines),
            "data: 90 training and 10 validation examples, 12 classes: a, b, c, d, e, f, g, h, i, j and 2 more\n\
             warning: 1 file left out: x.gif\n\
             j.toml: 12.3k parameters  200 steps of 16  one device  device 3.0 MiB of 4.0 MiB\n\
             step  10/200  loss 2.5000  acc 0.5000  lr 1.00e-3  100.0 samples/s  30.0 s left\n\
             step  20/200  loss NaN  acc 0.5000  lr 1.00e-3\n\
             eval 20  loss 1.000e-5\n\
             saved c/step.safetensors\n\
             warning: slow\n\
             \x20                               planned       measured\n\
             step time                          5 ms           6 ms\n\
             \x20 length 9, 5 times                9 ms          18 ms\n\
             \x20 length 4, 3 times                4 ms           8 ms\n\
             class \\ taken for  cat   1\n\
             cat                  1   0\n\
             1                    2  30\n\
             done after 200 steps  train loss 0.5000  validation accuracy 0.7500  99.0 samples/s  device 3.0 MiB  \
             3 plans made, 197 reused  1 alarms: see the warnings  stopped early: no better evaluation for long  \
             best loss 0.2500 after step 120\n\
             fingerprint 0123456789abcdef0123\n"
        );
    }

    #[test]
    fn json_lines_parse() {
        let text = shown(OutputMode::Json);
        let told = events().into_iter().filter(|event| !matches!(event, Event::Progress { .. }));
        assert_eq!(text.lines().count(), told.count());
        for line in text.lines() {
            assert!(serde_json::from_str::<serde_json::Value>(line).unwrap()["event"].is_string());
        }
    }

    #[test]
    fn the_bar_prints_all_but_steps() {
        let text = shown(OutputMode::Bar);
        assert!(
            !text.contains("step  10/200") && text.contains("eval 20") && text.contains("done after"),
            "{text}"
        );
    }

    #[test]
    fn a_closed_output_is_an_error() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut reporter = TerminalReporter::new(OutputMode::Lines, Box::new(Closed));
        assert!(reporter.report(&Event::Warning { message: "x".into() }).is_err());
    }
}
