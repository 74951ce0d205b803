//! The training loop: batches in, steps, evaluations and checkpoints out. What it tells the world goes
//! through one callback; when to stop early comes through one flag.

mod array;
mod best;
mod clock;
pub mod metrics;
mod weights;

pub use array::{Ended, Lane, Member, train_array};
pub use best::{Best, rises};
pub use metrics::{Scores, metric_names};
pub use weights::{Fit, MAPPING, MODEL, Resumed, load_weights, mapping_changes, restore, save_weights};

use crate::checkpoint::{self, CheckpointError};
use crate::collector::Record;
use crate::data::open::Opened;
use crate::data::{Batch, DataError, Dataset, Prefetch, Sampler, prefetch};
use crate::session::{Reuse, Scalars, Session, SessionError, StepKey};
use clock::Clock;
use gulliver_graph::lr::LrSchedule;
use gulliver_graph::role::{HyperRole, OutputRole};
use gulliver_plan::document::ledger::Ledger;
use gulliver_plan::document::plan::TIERS;
use metrics::{Tally, accuracy};
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
    /// Batches of validation examples that an evaluation goes through; 0: all of them.
    pub eval_batches: u64,
    /// The metric that says which evaluation is the best.
    pub best_by: String,
    /// Where the weights of the best evaluation are kept; nowhere if not given.
    pub best: Option<PathBuf>,
    /// Evaluations without improvement after which training ends; 0: never.
    pub early_stopping: u64,
    /// Steps between checkpoints; 0 writes none for a number of steps.
    pub checkpoint_every: u64,
    /// Time between checkpoints, if any are written for the time.
    pub checkpoint_time: Option<Duration>,
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
    /// Stored with every checkpoint and all weights, for whatever uses them: [`MODEL`] and [`MAPPING`].
    pub about: BTreeMap<String, String>,
    /// Go on although inputs or outputs mean something else than in the checkpoint.
    pub changed_data: bool,
}

impl Default for TrainOptions {
    /// A thousand steps at a rate of 0.001, evaluated at the end; no checkpoints.
    fn default() -> TrainOptions {
        TrainOptions {
            steps: 1000,
            seed: 0,
            eval_every: 0,
            eval_batches: 0,
            best_by: "loss".into(),
            best: None,
            early_stopping: 0,
            checkpoint_every: 0,
            checkpoint_time: None,
            keep_checkpoints: 1,
            log_every: 10,
            on_nan: OnNan::Stop,
            base_lr: 1e-3,
            hyper: BTreeMap::new(),
            perplexity: false,
            checkpoints: None,
            identity: BTreeMap::new(),
            about: BTreeMap::new(),
            changed_data: false,
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

    /// Goes through the validation examples, if there are any.
    fn evaluate(
        &self,
        session: &mut Session,
        options: &TrainOptions,
        watch: Watch<'_>,
    ) -> Result<Evaluation, TrainError> {
        let Some((dataset, sampler)) = &self.validation else { return Ok(Evaluation::Nothing) };
        let all = sampler.steps_per_epoch();
        let batches = if options.eval_batches == 0 { all } else { options.eval_batches.min(all) };
        let found = evaluate(session, dataset, sampler, batches, options, watch)?;
        Ok(found.map_or(Evaluation::Stopped, Evaluation::All))
    }
}

/// What an evaluation came to.
enum Evaluation {
    /// There is nothing to evaluate.
    Nothing,
    /// Told to stop, it ended before its end.
    Stopped,
    /// Its metrics.
    All(Scores),
}

/// Looks on while batches are evaluated: given how many are done, of how many, it says whether to go on.
type Watch<'w> = &'w mut dyn FnMut(u64, u64) -> bool;

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
    /// Time has passed: how far training is, or the evaluation after these steps.
    Progress {
        /// Steps done.
        step: u64,
        /// Batches evaluated, and batches to evaluate, if it is evaluating.
        evaluated: Option<(u64, u64)>,
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
    /// Stopped by the flag before all was done.
    pub interrupted: bool,
    /// Ended before all steps were done, as evaluations had stopped improving.
    pub early: bool,
    /// The best evaluation, if there was any.
    pub best: Option<Best>,
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
    /// A checkpoint of data that meant something else.
    #[error("{path}: was trained on other data: {changes}; {way}", path = .path.display())]
    OtherMapping {
        /// The file.
        path: PathBuf,
        /// What differs.
        changes: String,
        /// What to do.
        way: &'static str,
    },
    /// Weights that do not fit the model.
    #[error("{path}: does not fit the model: {problems}; change the model, or set train.weights_strict = false to load what fits and train the rest from the start", path = .path.display())]
    Unfit {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        problems: String,
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

/// Goes through the first `batches` of a data set without training. None if `watch` says to stop before the end.
pub fn evaluate(
    session: &mut Session,
    dataset: &Arc<dyn Dataset>,
    sampler: &Sampler,
    batches: u64,
    options: &TrainOptions,
    watch: Watch<'_>,
) -> Result<Option<Scores>, TrainError> {
    let TrainOptions { seed, perplexity, .. } = *options;
    let mut tally = Tally::default();
    for step in 0..batches {
        if !watch(step, batches) {
            return Ok(None);
        }
        let batch = prefetch::make(dataset.as_ref(), sampler, step)?;
        tally.add(&batch, &session.evaluate_fully(&batch, StepKey { seed, step })?);
    }
    Ok(Some(tally.scores(dataset.info().classes, perplexity)))
}

/// Trains to the end from where a checkpoint left off, or from the first step. If data cannot be read, what was
/// learned until then is saved first.
pub fn train(
    session: &mut Session,
    schedule: &mut LrSchedule,
    sources: &Sources,
    options: &TrainOptions,
    from: &Resumed,
    stop: &AtomicBool,
    notify: &mut dyn FnMut(Notice),
) -> Result<Done, TrainError> {
    let start = from.steps;
    let steps = options.steps.max(start);
    let mut batches = Prefetch::new(sources.train.clone(), sources.sampler.clone(), start..steps, 2);
    let mut run = Progress::from(from);
    let mut job = Training { session, schedule, sources, options, run: &mut run };
    let mut next = |_| batches.next().expect("as many batches as steps").map(Arc::new);
    let (fingerprint, interrupted) = match job.finish(start..steps, &mut next, stop, notify) {
        Err(e @ TrainError::Data(_)) => {
            if job.run.steps > start
                && let Err(unsaved) = job.save(notify)
            {
                notify(Notice::Warning(format!("what was learned is lost: {unsaved}")));
            }
            return Err(e);
        }
        ended => ended?,
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
        early: run.steps < steps && !interrupted,
        best: run.best,
    })
}

/// A batch that several jobs may read.
type Shared = Result<Arc<Batch>, DataError>;

/// A job at work.
struct Training<'t> {
    session: &'t mut Session,
    schedule: &'t mut LrSchedule,
    sources: &'t Sources,
    options: &'t TrainOptions,
    run: &'t mut Progress,
}

impl Training<'_> {
    /// Trains through all steps that are left, evaluates and saves; the fingerprint, and whether it was told to stop
    /// before that.
    fn finish(
        &mut self,
        range: Range<u64>,
        batch: &mut dyn FnMut(u64) -> Shared,
        stop: &AtomicBool,
        notify: &mut dyn FnMut(Notice),
    ) -> Result<(String, bool), TrainError> {
        let Range { start, end } = range;
        let nothing_left = (start == end || self.is_stale()) && !self.run.evaluation_due;
        if nothing_left {
            // All was done, evaluated and saved by the run before: only tell what it came to.
            let watch = &mut |done, of| self.run.clock.watch(start, (done, of), stop, notify);
            let found = self.sources.evaluate(self.session, self.options, watch)?;
            let stopped = matches!(found, Evaluation::Stopped);
            if let Evaluation::All(scores) = found {
                self.run.scores = scores;
            }
            return Ok((self.fingerprint()?, stopped));
        }
        self.stretch(range, batch, stop, notify)?;
        let all_done = self.run.steps == end || self.is_stale();
        let mut interrupted = !all_done || self.run.evaluation_due && stop.load(Ordering::Relaxed);
        if all_done && !self.is_stale() && !interrupted {
            interrupted = !self.evaluate(stop, notify)?;
        }
        Ok((self.save(notify)?, interrupted))
    }

    /// Whether evaluations have stopped improving for as long as the job lets them.
    fn is_stale(&self) -> bool {
        let patience = self.options.early_stopping;
        patience > 0 && self.run.best.as_ref().is_some_and(|best| best.stale >= patience)
    }

    /// Trains through these steps, with the evaluations and checkpoints that are due between them; not those
    /// after the last of all. Ends early when told to, or when evaluations have stopped improving.
    fn stretch(
        &mut self,
        range: Range<u64>,
        batch: &mut dyn FnMut(u64) -> Shared,
        stop: &AtomicBool,
        notify: &mut dyn FnMut(Notice),
    ) -> Result<(), TrainError> {
        let options = self.options;
        let steps = options.steps.max(range.start);
        if self.run.evaluation_due && range.start < steps && !self.evaluate(stop, notify)? {
            return Ok(());
        }
        for step in range {
            if stop.load(Ordering::Relaxed) || self.is_stale() {
                break;
            }
            let batch = batch(step)?;
            let rows = batch.fields.first().and_then(|(_, t)| t.shape().first()).copied().unwrap_or(0);
            let lr = self.schedule.lr(options.base_lr, step, steps);
            let began = Instant::now();
            let hyper = |role: HyperRole, name: &str| match role {
                HyperRole::LearningRate => Some(lr as f32),
                HyperRole::Step => Some((step + 1) as f32),
                HyperRole::LossScale | HyperRole::Setting => options.hyper.get(name).copied(),
            };
            let outcome = self.session.step(&batch, StepKey { seed: options.seed, step }, &hyper)?;
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
                None => self.run.learned(&outcome.scalars),
            }
            let due = |every: u64| every > 0 && (step + 1).is_multiple_of(every);
            if due(options.log_every) || step + 1 == steps {
                notify(self.run.step_notice(lr));
            }
            self.run.clock.tell(step + 1, None, notify);
            if step + 1 == steps {
                break;
            }
            if due(options.eval_every) && !self.evaluate(stop, notify)? {
                break;
            }
            let time = options.checkpoint_time.is_some_and(|time| self.run.clock.since_saved() >= time);
            if due(options.checkpoint_every) || time && options.checkpoints.is_some() {
                self.write(notify)?;
            }
        }
        Ok(())
    }

    /// Evaluates, keeps the weights if that was the best, and lets the schedule see the loss. False if it was told
    /// to stop meanwhile: the evaluation is then still due, for a schedule that saw half of it would not be the
    /// schedule of an uninterrupted run.
    fn evaluate(&mut self, stop: &AtomicBool, notify: &mut dyn FnMut(Notice)) -> Result<bool, TrainError> {
        let (options, step) = (self.options, self.run.steps);
        self.run.evaluation_due = true;
        let watch = &mut |done, of| self.run.clock.watch(step, (done, of), stop, notify);
        let evaluated = self.sources.evaluate(self.session, options, watch)?;
        warn_of_alarms(self.session, notify);
        let mut watched = self.run.loss;
        match evaluated {
            Evaluation::Stopped => return Ok(false),
            Evaluation::Nothing => {}
            Evaluation::All(scores) => {
                let metrics = scores.metrics.clone();
                watched = metrics.get("loss").copied().unwrap_or(watched);
                let improved = Best::note(&mut self.run.best, &options.best_by, &metrics, step);
                self.run.scores = scores;
                notify(Notice::Evaluation { step, metrics });
                if let (true, Some(path)) = (improved, &options.best) {
                    let mut about = options.about.clone();
                    about.insert("step".into(), step.to_string());
                    save_weights(self.session, path, &about)?;
                }
            }
        }
        self.schedule.observe(watched);
        self.run.evaluation_due = false;
        Ok(true)
    }

    /// Writes a checkpoint, if there is a place for it; the fingerprint.
    fn save(&mut self, notify: &mut dyn FnMut(Notice)) -> Result<String, TrainError> {
        match self.write(notify)? {
            Some(fingerprint) => Ok(fingerprint),
            None => self.fingerprint(),
        }
    }

    /// Writes a checkpoint, if there is a place for it; its fingerprint. What is not finite is never written:
    /// the checkpoint before it stays the newest.
    fn write(&mut self, notify: &mut dyn FnMut(Notice)) -> Result<Option<String>, TrainError> {
        let (options, step) = (self.options, self.run.steps);
        let Some(dir) = &options.checkpoints else { return Ok(None) };
        let began = Instant::now();
        let path = checkpoint::step_path(dir, step);
        let mut metadata = options.identity.clone();
        metadata.extend(options.about.clone());
        let (best, due) = (self.run.best.as_ref(), self.run.evaluation_due);
        metadata.extend(weights::progress(self.schedule, step, best, due));
        let layout = self.session.layout();
        if let Some(value) = self.session.first_not_finite(0, &layout).map_err(SessionError::from)? {
            if options.on_nan == OnNan::Stop {
                return Err(TrainError::NotFinite { step, value });
            }
            let what = format!("step {step}: `{value}` is not finite; no checkpoint is written");
            notify(Notice::Warning(what));
            return Ok(None);
        }
        let read = &mut self.session.reader(0, &layout);
        let fingerprint = checkpoint::save_from(&path, &layout, read, &metadata)?;
        checkpoint::prune(dir, options.keep_checkpoints, step)?;
        self.run.clock.saved(began.elapsed());
        notify(Notice::Checkpoint { step, path });
        Ok(Some(fingerprint))
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
    /// The evaluation after the last step is due and was not done.
    evaluation_due: bool,
    best: Option<Best>,
    clock: Clock,
}

impl Progress {
    fn from(resumed: &Resumed) -> Progress {
        Progress {
            steps: resumed.steps,
            evaluation_due: resumed.evaluation_due,
            best: resumed.best.clone(),
            clock: Clock::default(),
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

    fn learned(&mut self, scalars: &Scalars) {
        // Models with several objectives report each loss; their sum stands for the whole.
        let losses: Vec<f64> = scalars.losses().map(|(_, loss)| loss).collect();
        self.loss = losses.iter().sum();
        let (several, sums) = ([OutputRole::Weight], [OutputRole::Weight, OutputRole::Loss]);
        let mut hidden = if losses.len() > 1 { several.to_vec() } else { sums.to_vec() };
        let accuracy = accuracy(scalars);
        if accuracy.is_some() {
            hidden.extend([OutputRole::Correct, OutputRole::Count]);
        }
        self.scalars = scalars.without(&hidden);
        self.scalars.extend(accuracy.map(|accuracy| ("accuracy".to_string(), accuracy)));
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
}

fn warn_of_alarms(session: &mut Session, notify: &mut dyn FnMut(Notice)) {
    session.take_alarms().into_iter().for_each(|alarm| notify(Notice::Warning(alarm.to_string())));
}
