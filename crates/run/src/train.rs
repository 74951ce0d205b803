//! The training loop: batches in, steps, evaluations and checkpoints out. What it tells the world goes
//! through one callback; when to stop early comes through one flag.

mod array;
pub mod metrics;

pub use array::{Ended, Lane, Member, train_array};
pub use metrics::Scores;

use crate::checkpoint::{self, CheckpointError, Described, Stored};
use crate::collector::Record;
use crate::data::open::Opened;
use crate::data::{Batch, DataError, Dataset, Prefetch, Sampler, prefetch};
use crate::session::{Key, Ledger, Reuse, Session, SessionError};
use gulliver_graph::schedule::Schedule;
use gulliver_plan::plan::TIERS;
use metrics::Tally;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What to do when a loss is not finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnNan {
    /// Stop with an error.
    Stop,
    /// Leave the weights as they are and go on with the next batch.
    Skip,
}

/// How long and how often.
#[derive(Clone, Debug)]
pub struct TrainOptions {
    /// Steps in all, those before a resume included.
    pub steps: u64,
    /// Keys everything random.
    pub seed: u64,
    /// Steps between evaluations; 0 evaluates at the end only.
    pub eval_every: u64,
    /// Steps between checkpoints; 0 writes one at the end only.
    pub checkpoint_every: u64,
    /// Checkpoints that are kept.
    pub keep_checkpoints: usize,
    /// Steps between reports.
    pub log_every: u64,
    /// What to do when a loss is not finite.
    pub on_nan: OnNan,
    /// Learning rate before the schedule.
    pub base_lr: f64,
    /// Other hyper-parameters that are not at the graph's defaults, by the names of its inputs.
    pub hyper: BTreeMap<String, f32>,
    /// Whether losses are per token, so that a perplexity makes sense.
    pub perplexity: bool,
    /// Where checkpoints go; nowhere if not given.
    pub checkpoints: Option<PathBuf>,
    /// Stored with every checkpoint, and compared when one is resumed.
    pub identity: BTreeMap<String, String>,
}

impl Default for TrainOptions {
    /// A thousand steps at a rate of 0.001, evaluated at the end; no checkpoints.
    fn default() -> TrainOptions {
        TrainOptions {
            steps: 1000,
            seed: 0,
            eval_every: 0,
            checkpoint_every: 0,
            keep_checkpoints: 1,
            log_every: 10,
            on_nan: OnNan::Stop,
            base_lr: 1e-3,
            hyper: BTreeMap::new(),
            perplexity: false,
            checkpoints: None,
            identity: BTreeMap::new(),
        }
    }
}

/// Data to train and evaluate on.
pub struct Sources {
    /// Training examples.
    pub train: Arc<dyn Dataset>,
    /// Which of them make up each step's batch.
    pub sampler: Arc<Sampler>,
    /// Validation examples, if there are any.
    pub validation: Option<(Arc<dyn Dataset>, Sampler)>,
}

impl Sources {
    /// Opened data in batches of `batch`; training examples in a new random order every epoch.
    pub fn new((train, validation): Opened, batch: usize, seed: u64) -> Result<Sources, DataError> {
        let sampler = Arc::new(Sampler::new(train.len(), batch, seed, true, true, None)?);
        let validation = match validation {
            Some(set) if !set.is_empty() => {
                let sampler = Sampler::new(set.len(), batch.min(set.len()), seed, false, false, None)?;
                Some((set, sampler))
            }
            _ => None,
        };
        Ok(Sources { train, sampler, validation })
    }

    /// Goes through the validation examples, if there are any. Not to be interrupted: a schedule that
    /// watched half of them would not be the schedule of an uninterrupted run.
    fn evaluate(&self, session: &mut Session, options: &TrainOptions) -> Result<Option<Scores>, TrainError> {
        let Some((dataset, sampler)) = &self.validation else { return Ok(None) };
        evaluate(session, dataset, sampler, options.seed, options.perplexity).map(Some)
    }
}

/// Something the world may want to know.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// A step was done.
    Step {
        /// Steps done.
        step: u64,
        /// Training loss.
        loss: f64,
        /// Learning rate.
        lr: f64,
        /// Samples a second since the last report.
        samples_per_second: f64,
        /// Other scalars.
        metrics: BTreeMap<String, f64>,
    },
    /// The validation set was gone through.
    Evaluation {
        /// Steps done.
        step: u64,
        /// Loss, accuracy, perplexity…
        metrics: BTreeMap<String, f64>,
    },
    /// A checkpoint was written.
    Checkpoint {
        /// Steps done.
        step: u64,
        /// Where.
        path: PathBuf,
    },
    /// Something is not as it should be.
    Warning(String),
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    /// Steps done in all.
    pub steps: u64,
    /// The last training loss.
    pub loss: f64,
    /// The last evaluation.
    pub metrics: BTreeMap<String, f64>,
    /// Of the last evaluation of a classifier: how many examples of each class (row) were taken for each
    /// class (column).
    pub confusion: Option<Vec<Vec<u64>>>,
    /// Training samples a second over the run, evaluation and checkpoints not counted.
    pub samples_per_second: f64,
    /// Most bytes of each tier in use at once.
    pub peaks: [u64; TIERS.len()],
    /// What plans said and what was measured, by size of input.
    pub sizes: Vec<Record>,
    /// How often bytes were not as planned.
    pub alarms: u64,
    /// How often there was a plan for the size at hand.
    pub plans: Reuse,
    /// Bytes over the links.
    pub ledger: Ledger,
    /// SHA-256 of all weights and states.
    pub fingerprint: String,
    /// Stopped by the flag before all steps were done.
    pub interrupted: bool,
}

/// Why training stopped.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The data.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Plan or device.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// A checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The loss, or something an update made, is not a number.
    #[error(
        "step {step}: the loss or a weight is not finite; the first value that is not is `{value}`; lower the learning rate, clip gradients (train.clip_norm), or pass --on-nan skip"
    )]
    NotFinite {
        /// The step, counted from one.
        step: u64,
        /// The first value that is not finite.
        value: String,
    },
    /// A checkpoint of another job.
    #[error("{path}: was written by a job with {field} = {found}, this one has {field} = {wanted}; resume with the same job, or start anew in another --out directory", path = .path.display())]
    OtherJob {
        /// The checkpoint.
        path: PathBuf,
        /// What differs.
        field: String,
        /// In the checkpoint.
        found: String,
        /// In the job.
        wanted: String,
    },
    /// A checkpoint without something it needs.
    #[error("{path}: has no `{field}`; it was not written by gulliver train", path = .path.display())]
    NotOurs {
        /// The checkpoint.
        path: PathBuf,
        /// What is missing.
        field: String,
    },
}

/// Puts a checkpoint's values into the session and its memory into the schedule; the steps it had done.
pub fn restore(
    session: &mut Session,
    schedule: &mut Schedule,
    checkpoint: &mut Stored,
    identity: &BTreeMap<String, String>,
) -> Result<u64, TrainError> {
    let (path, metadata) = (checkpoint.path.clone(), checkpoint.metadata.clone());
    let field = |name: &str| {
        metadata.get(name).ok_or_else(|| TrainError::NotOurs { path: path.clone(), field: name.into() })
    };
    let steps = field("step")?
        .parse()
        .map_err(|_| TrainError::NotOurs { path: path.clone(), field: "step".into() })?;
    for (name, wanted) in identity {
        let found = field(name)?;
        if found != wanted {
            let (found, wanted) = (found.clone(), wanted.clone());
            return Err(TrainError::OtherJob { path: path.clone(), field: name.clone(), found, wanted });
        }
    }
    for described in session.layout() {
        read_into(session, checkpoint, &described)?;
    }
    let remembered = field("schedule")?;
    *schedule = schedule_from(remembered)
        .ok_or_else(|| TrainError::NotOurs { path: path.clone(), field: "schedule".into() })?;
    Ok(steps)
}

/// Puts a tensor of a file where it belongs, a piece at a time.
fn read_into(
    session: &mut Session,
    stored: &mut Stored,
    (name, dtype, shape): &Described,
) -> Result<(), CheckpointError> {
    stored.read(name, *dtype, shape, &mut |first, piece| session.write(0, name, first, piece).map(|_| ()))
}

fn schedule_from(text: &str) -> Option<Schedule> {
    serde_json::from_str(text).ok()
}

/// Puts weights from a file into a member of the session, leaving states as they are. Every weight must be
/// there.
pub fn load_weights(session: &mut Session, checkpoint: &mut Stored) -> Result<(), TrainError> {
    let weights: Vec<String> = session.whole().weights().map(|(_, info)| info.name.clone()).collect();
    for described in session.layout() {
        if weights.contains(&described.0) || checkpoint.contains(&described.0) {
            read_into(session, checkpoint, &described)?;
        }
    }
    Ok(())
}

/// Goes through a data set without training.
pub fn evaluate(
    session: &mut Session,
    dataset: &Arc<dyn Dataset>,
    sampler: &Sampler,
    seed: u64,
    perplexity: bool,
) -> Result<Scores, TrainError> {
    let mut tally = Tally::default();
    for step in 0..sampler.steps_per_epoch() {
        let batch = prefetch::make(dataset.as_ref(), sampler, step)?;
        tally.add(&batch, &session.evaluate_fully(&batch, Key { seed, step })?);
    }
    Ok(tally.scores(dataset.info().classes, perplexity))
}

/// Trains from step `start` to the end.
pub fn train(
    session: &mut Session,
    schedule: &mut Schedule,
    sources: &Sources,
    options: &TrainOptions,
    start: u64,
    stop: &AtomicBool,
    notify: &mut dyn FnMut(Notice),
) -> Result<Done, TrainError> {
    let steps = options.steps.max(start);
    let mut batches = Prefetch::new(sources.train.clone(), sources.sampler.clone(), start..steps, 2);
    let mut run = Progress::new(start);
    let mut job = Training { session, schedule, sources, options, run: &mut run };
    let mut next = |_| batches.next().expect("as many batches as steps").map(Arc::new);
    job.stretch(start..steps, &mut next, stop, notify)?;
    let interrupted = job.run.steps < steps;
    let fingerprint = match start == steps {
        // All was done, evaluated and saved by the run before: only tell what it came to.
        true => {
            job.run.scores = sources.evaluate(job.session, options)?.unwrap_or_default();
            job.fingerprint()?
        }
        false => {
            if !interrupted {
                job.evaluate(notify)?;
            }
            job.save(notify)?
        }
    };
    Ok(Done {
        steps: run.steps,
        loss: run.loss,
        metrics: run.scores.metrics,
        confusion: run.scores.confusion,
        samples_per_second: run.samples as f64 / run.busy.as_secs_f64().max(1e-9),
        peaks: TIERS.map(|tier| session.peak_of(tier)),
        sizes: session.collector().records().to_vec(),
        alarms: session.collector().alarmed(),
        plans: session.reuse(),
        ledger: session.ledger(),
        fingerprint,
        interrupted,
    })
}

/// A batch that several jobs may read.
type Shared = Result<Arc<Batch>, DataError>;

/// A job at work.
struct Training<'t> {
    session: &'t mut Session,
    schedule: &'t mut Schedule,
    sources: &'t Sources,
    options: &'t TrainOptions,
    run: &'t mut Progress,
}

impl Training<'_> {
    /// Trains through these steps, with the evaluations and checkpoints that are due between them; not those
    /// after the last of all. Ends early when told to.
    fn stretch(
        &mut self,
        range: Range<u64>,
        batch: &mut dyn FnMut(u64) -> Shared,
        stop: &AtomicBool,
        notify: &mut dyn FnMut(Notice),
    ) -> Result<(), TrainError> {
        let options = self.options;
        let steps = options.steps.max(range.start);
        for step in range {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let batch = batch(step)?;
            let rows = batch.fields.first().and_then(|(_, t)| t.shape().first()).copied().unwrap_or(0);
            let lr = self.schedule.lr(options.base_lr, step, steps);
            let began = Instant::now();
            let hyper = |name: &str| match name.rsplit('.').next() {
                Some("lr") => Some(lr as f32),
                Some("step") => Some((step + 1) as f32),
                _ => options.hyper.get(name).copied(),
            };
            let outcome = self.session.step(&batch, Key { seed: options.seed, step }, &hyper)?;
            self.run.account(rows, began.elapsed());
            self.run.steps = step + 1;
            warn_of_alarms(self.session, notify);
            match outcome.not_finite {
                Some(value) if options.on_nan == OnNan::Stop => {
                    return Err(TrainError::NotFinite { step: step + 1, value });
                }
                Some(value) => {
                    let message = format!("step {}: `{value}` is not finite; the step is skipped", step + 1);
                    notify(Notice::Warning(message));
                }
                None => self.run.learned(outcome.scalars),
            }
            let due = |every: u64| every > 0 && (step + 1).is_multiple_of(every);
            if due(options.log_every) || step + 1 == steps {
                notify(self.run.step_notice(lr));
            }
            if due(options.eval_every) && step + 1 < steps {
                self.evaluate(notify)?;
            }
            if due(options.checkpoint_every) && step + 1 < steps {
                save(self.session, self.schedule, options, step + 1, notify)?;
            }
        }
        Ok(())
    }

    /// Evaluates, and lets the schedule see the loss.
    fn evaluate(&mut self, notify: &mut dyn FnMut(Notice)) -> Result<(), TrainError> {
        self.run.evaluate(self.session, self.schedule, self.sources, self.options, notify)
    }

    /// Writes a checkpoint, if there is a place for it; the fingerprint.
    fn save(&mut self, notify: &mut dyn FnMut(Notice)) -> Result<String, TrainError> {
        match save(self.session, self.schedule, self.options, self.run.steps, notify)? {
            Some(fingerprint) => Ok(fingerprint),
            None => self.fingerprint(),
        }
    }

    fn fingerprint(&mut self) -> Result<String, TrainError> {
        let layout = self.session.layout();
        let read = &mut self.session.reader(0, &layout);
        Ok(checkpoint::fingerprint_from(&layout, read).map_err(SessionError::from)?)
    }
}

struct Progress {
    steps: u64,
    loss: f64,
    scalars: BTreeMap<String, f64>,
    scores: Scores,
    samples: u64,
    busy: Duration,
    recent: (u64, Duration),
}

impl Progress {
    fn new(steps: u64) -> Progress {
        Progress {
            steps,
            loss: f64::NAN,
            scalars: BTreeMap::new(),
            scores: Scores::default(),
            samples: 0,
            busy: Duration::ZERO,
            recent: (0, Duration::ZERO),
        }
    }

    fn account(&mut self, rows: usize, time: Duration) {
        self.samples += rows as u64;
        self.busy += time;
        self.recent = (self.recent.0 + rows as u64, self.recent.1 + time);
    }

    fn learned(&mut self, mut scalars: BTreeMap<String, f64>) {
        // Models with several objectives report each loss; their sum stands for the whole.
        let losses: Vec<f64> = scalars.iter().filter(|(n, _)| n.ends_with("loss")).map(|(_, x)| *x).collect();
        self.loss = losses.iter().sum();
        scalars.remove("loss");
        scalars.remove("weight");
        if let (Some(correct), Some(count)) = (scalars.remove("correct"), scalars.remove("count")) {
            scalars.insert("accuracy".into(), correct / count);
        }
        self.scalars = scalars;
    }

    fn step_notice(&mut self, lr: f64) -> Notice {
        let (samples, time) = std::mem::take(&mut self.recent);
        Notice::Step {
            step: self.steps,
            loss: self.loss,
            lr,
            samples_per_second: samples as f64 / time.as_secs_f64().max(1e-9),
            metrics: self.scalars.clone(),
        }
    }

    fn evaluate(
        &mut self,
        session: &mut Session,
        schedule: &mut Schedule,
        sources: &Sources,
        options: &TrainOptions,
        notify: &mut dyn FnMut(Notice),
    ) -> Result<(), TrainError> {
        let mut watched = self.loss;
        let evaluated = sources.evaluate(session, options)?;
        warn_of_alarms(session, notify);
        if let Some(scores) = evaluated {
            self.scores = scores;
            watched = self.scores.metrics.get("loss").copied().unwrap_or(watched);
            notify(Notice::Evaluation { step: self.steps, metrics: self.scores.metrics.clone() });
        }
        schedule.observe(watched);
        Ok(())
    }
}

fn warn_of_alarms(session: &mut Session, notify: &mut dyn FnMut(Notice)) {
    session.take_alarms().into_iter().for_each(|alarm| notify(Notice::Warning(alarm.to_string())));
}

/// Writes a checkpoint, if there is a place for it; its fingerprint. What is not finite is never written:
/// the checkpoint before it stays the newest.
fn save(
    session: &mut Session,
    schedule: &Schedule,
    options: &TrainOptions,
    step: u64,
    notify: &mut dyn FnMut(Notice),
) -> Result<Option<String>, TrainError> {
    let Some(dir) = &options.checkpoints else { return Ok(None) };
    let path = checkpoint::step_path(dir, step);
    let mut metadata = options.identity.clone();
    metadata.insert("step".into(), step.to_string());
    metadata.insert("schedule".into(), serde_json::to_string(schedule).unwrap_or_default());
    let layout = session.layout();
    if let Some(value) = session.first_not_finite(0, &layout).map_err(SessionError::from)? {
        if options.on_nan == OnNan::Stop {
            return Err(TrainError::NotFinite { step, value });
        }
        notify(Notice::Warning(format!("step {step}: `{value}` is not finite; no checkpoint is written")));
        return Ok(None);
    }
    let fingerprint = checkpoint::save_from(&path, &layout, &mut session.reader(0, &layout), &metadata)?;
    checkpoint::prune(dir, options.keep_checkpoints, step)?;
    notify(Notice::Checkpoint { step, path });
    Ok(Some(fingerprint))
}
