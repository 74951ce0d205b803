//! The training loop: steps, evaluations and checkpoints. Notices go to one callback; one flag stops it early.

mod array;
mod best;
mod clock;
pub mod metrics;
mod weights;

pub use array::{Ended, Member, train_array};
pub use best::{Best, rises};
pub use metrics::{Scores, metric_names};
pub use weights::{MAPPING, MODEL, Resumed, WeightFit, load_weights, mapping_changes, restore, save_weights};

use crate::checkpoint::{self, CheckpointError};
use crate::collector::Record;
use crate::data::open::Opened;
use crate::data::{Batch, DataError, Dataset, Prefetch, Sampler, prefetch};
use crate::session::{Reuse, Scalars, Session, SessionError, StepKey};
use crate::team::lock;
use clock::Clock;
use gulliver_graph::lr::LrSchedule;
use gulliver_graph::role::{HyperRole, OutputRole};
use gulliver_plan::document::ledger::Ledger;
use gulliver_plan::document::plan::TIERS;
use metrics::{Tally, accuracy};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Reaction to a loss that is not finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnNan {
    /// Stop with an error.
    Stop,
    /// Skip the update and continue with the next batch.
    Skip,
}

/// Options of a training run.
#[derive(Clone, Debug)]
pub struct TrainOptions {
    /// Steps in all, including those before a resume.
    pub steps: u64,
    /// Seed of everything random.
    pub seed: u64,
    /// Steps between evaluations; 0 evaluates at the end only.
    pub eval_every: u64,
    /// Validation batches per evaluation; 0 for all.
    pub eval_batches: u64,
    /// The metric of the best evaluation.
    pub best_by: String,
    /// File for the weights of the best evaluation.
    pub best: Option<PathBuf>,
    /// Evaluations without improvement after which training ends; 0 for never.
    pub early_stopping: u64,
    /// Steps between checkpoints; 0 for none.
    pub checkpoint_every: u64,
    /// Time between checkpoints.
    pub checkpoint_time: Option<Duration>,
    /// Number of checkpoints to keep.
    pub keep_checkpoints: usize,
    /// Steps between reports.
    pub log_every: u64,
    /// Reaction to a loss that is not finite.
    pub on_nan: OnNan,
    /// Learning rate before the schedule.
    pub base_lr: f64,
    /// Hyper-parameters that differ from the defaults of the graph, by the names of its inputs.
    pub hyper: BTreeMap<String, f32>,
    /// Whether losses are per token, so that perplexity is meaningful.
    pub perplexity: bool,
    /// Directory for checkpoints.
    pub checkpoints: Option<PathBuf>,
    /// Metadata of every checkpoint, compared when one is resumed.
    pub identity: BTreeMap<String, String>,
    /// Metadata of every checkpoint and weight file: [`MODEL`] and [`MAPPING`].
    pub about: BTreeMap<String, String>,
    /// Whether to resume although the meaning of inputs or outputs has changed.
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
    /// Chooses the examples of each step.
    pub sampler: Arc<Sampler>,
    /// Validation examples, if there are any.
    pub validation: Option<(Arc<dyn Dataset>, Sampler)>,
    /// A batch made ahead of its step.
    ahead: Mutex<Option<(u64, Arc<Batch>)>>,
}

impl Sources {
    /// Opened data in batches of `batch`. Training examples are reshuffled every epoch.
    pub fn new((train, validation): Opened, batch: usize, seed: u64) -> Result<Sources, DataError> {
        let sampler = Sampler::new(train.len(), batch, seed, true, true, None)?;
        let validation = match validation {
            Some(set) if !set.is_empty() => {
                let sampler = Sampler::new(set.len(), batch.min(set.len()), seed, false, false, None)?;
                Some((set, sampler))
            }
            _ => None,
        };
        Ok(Sources::from_parts(train, sampler, validation))
    }

    /// Data with the samplers that choose its examples.
    pub fn from_parts(
        train: Arc<dyn Dataset>,
        sampler: Sampler,
        validation: Option<(Arc<dyn Dataset>, Sampler)>,
    ) -> Sources {
        Sources { train, sampler: Arc::new(sampler), validation, ahead: Mutex::new(None) }
    }

    /// The training batch of a step, for example to plan for its sizes. The last one is kept until training takes it.
    pub fn batch_ahead(&self, step: u64) -> Result<Arc<Batch>, DataError> {
        let batch = self.batch(step)?;
        *lock(&self.ahead) = Some((step, Arc::clone(&batch)));
        Ok(batch)
    }

    /// The training batch of a step: the one made ahead, or a new one.
    fn batch(&self, step: u64) -> Result<Arc<Batch>, DataError> {
        match lock(&self.ahead).take() {
            Some((made, batch)) if made == step => Ok(batch),
            _ => Ok(Arc::new(prefetch::make(self.train.as_ref(), &self.sampler, step)?)),
        }
    }

    /// Evaluates the validation examples, if there are any.
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

/// The result of an evaluation.
enum Evaluation {
    /// There is nothing to evaluate.
    Nothing,
    /// It was stopped before its end.
    Stopped,
    /// It is complete.
    All(Scores),
}

/// Called during an evaluation with the number of batches done and in all; returns whether to continue.
type Watch<'w> = &'w mut dyn FnMut(u64, u64) -> bool;

/// A notice about the progress of training.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// Steps were done.
    Step {
        /// Steps done.
        step: u64,
        /// Training loss.
        loss: f64,
        /// Learning rate.
        lr: f64,
        /// Samples per second since the last notice.
        samples_per_second: f64,
        /// Other scalars.
        metrics: BTreeMap<String, f64>,
    },
    /// The validation set was evaluated.
    Evaluation {
        /// Steps done.
        step: u64,
        /// Loss, accuracy, perplexity…
        metrics: BTreeMap<String, f64>,
    },
    /// Regular report of the progress of training or of an evaluation.
    Progress {
        /// Steps done.
        step: u64,
        /// Batches evaluated and batches in all, during an evaluation.
        evaluated: Option<(u64, u64)>,
    },
    /// A checkpoint was written.
    Checkpoint {
        /// Steps done.
        step: u64,
        /// Its file.
        path: PathBuf,
    },
    /// A warning for the user.
    Warning(String),
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    /// Steps done in all.
    pub steps: u64,
    /// The last training loss.
    pub loss: f64,
    /// The last evaluation.
    pub metrics: BTreeMap<String, f64>,
    /// Confusion matrix of the last evaluation of a classifier: examples of each class (row) predicted as each class
    /// (column).
    pub confusion: Option<Vec<Vec<u64>>>,
    /// Training samples per second, without evaluations and checkpoints.
    pub samples_per_second: f64,
    /// Peak bytes of each tier.
    pub peaks: [u64; TIERS.len()],
    /// Planned and measured values, by input size.
    pub sizes: Vec<Record>,
    /// Number of deviations of bytes from the plan.
    pub alarms: u64,
    /// Number of input sizes with and without an existing plan.
    pub plans: Reuse,
    /// Bytes over the links.
    pub ledger: Ledger,
    /// SHA-256 of all weights and states.
    pub fingerprint: String,
    /// Whether the flag stopped it before all was done.
    pub interrupted: bool,
    /// Whether it ended early because evaluations had stopped improving.
    pub early: bool,
    /// The best evaluation.
    pub best: Option<Best>,
}

/// Why training stopped.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The data cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Planning or a device failed.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// A checkpoint cannot be read or written.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The loss, or a weight after an update, is not finite.
    #[error(
        "step {step}: the loss or a weight is not finite; the first value that is not is `{value}`; lower the learning rate, clip gradients (train.clip_norm), or pass --on-nan skip"
    )]
    NotFinite {
        /// The step, counted from one.
        step: u64,
        /// The first value that is not finite.
        value: String,
    },
    /// The checkpoint is of another job.
    #[error("{path}: was written by a job with {field} = {found}, this one has {field} = {wanted}; resume with the same job, or start anew in another --out directory", path = .path.display())]
    OtherJob {
        /// The checkpoint.
        path: PathBuf,
        /// The field that differs.
        field: String,
        /// Its value in the checkpoint.
        found: String,
        /// Its value in the job.
        wanted: String,
    },
    /// The meaning of inputs or outputs has changed since the checkpoint.
    #[error("{path}: was trained on other data: {changes}; {way}", path = .path.display())]
    OtherMapping {
        /// The file.
        path: PathBuf,
        /// The changes.
        changes: String,
        /// Advice.
        way: &'static str,
    },
    /// The weights do not match the model.
    #[error("{path}: does not fit the model: {problems}; change the model, or set train.weights_strict = false to load what fits and train the rest from the start", path = .path.display())]
    Unfit {
        /// The file.
        path: PathBuf,
        /// What does not match.
        problems: String,
    },
    /// The checkpoint lacks metadata.
    #[error("{path}: has no `{field}`; it was not written by gulliver train", path = .path.display())]
    NotOurs {
        /// The checkpoint.
        path: PathBuf,
        /// The missing entry.
        field: String,
    },
}

/// Evaluates the first `batches` of a data set. `None` if `watch` stops it before the end.
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

/// Trains to the end from a checkpoint or from the first step. If data cannot be read, saves a checkpoint before it fails.
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
    let ahead = lock(&sources.ahead).take().filter(|(step, _)| *step == start);
    let rest = start + ahead.is_some() as u64..steps;
    let mut batches =
        Prefetch::new(sources.train.clone(), sources.sampler.clone(), rest, 2).map(|made| made.map(Arc::new));
    let mut batches = ahead.map(|(_, batch)| Ok(batch)).into_iter().chain(&mut batches);
    let mut run = Progress::from(from);
    let mut job = Training { session, schedule, sources, options, run: &mut run };
    let mut next = |_| batches.next().expect("as many batches as steps");
    let (fingerprint, interrupted) = match job.finish(start..steps, &mut next, stop, notify) {
        Err(e @ TrainError::Data(_)) => {
            if job.run.steps > start
                && let Err(unsaved) = job.save(notify)
            {
                notify(Notice::Warning(format!("the steps since the last checkpoint are lost: {unsaved}")));
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

/// A running job.
struct Training<'t> {
    session: &'t mut Session,
    schedule: &'t mut LrSchedule,
    sources: &'t Sources,
    options: &'t TrainOptions,
    run: &'t mut Progress,
}

impl Training<'_> {
    /// Trains the remaining steps, evaluates and saves. Returns the fingerprint and whether it was stopped before the
    /// end.
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
            // The earlier run did all steps, evaluated and saved: only evaluate again for the result.
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

    /// Whether evaluations have not improved for `early_stopping` times.
    fn is_stale(&self) -> bool {
        let patience = self.options.early_stopping;
        patience > 0 && self.run.best.as_ref().is_some_and(|best| best.stale >= patience)
    }

    /// Trains these steps, with the evaluations and checkpoints that are due between them, but not those after the last
    /// step of all. Ends early when stopped, or when evaluations have stopped improving.
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
            let lr = self.schedule.lr(options.base_lr, step, steps);
            let began = Instant::now();
            let hyper = |role: HyperRole, name: &str| match role {
                HyperRole::LearningRate => Some(lr as f32),
                HyperRole::Step => Some((step + 1) as f32),
                HyperRole::LossScale | HyperRole::Setting => options.hyper.get(name).copied(),
            };
            let outcome = self.session.step(&batch, StepKey { seed: options.seed, step }, &hyper)?;
            self.run.account(batch.rows(), began.elapsed());
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

    /// Evaluates, saves the weights if the evaluation is the best, and passes the loss to the schedule. Returns false if it
    /// was stopped: the evaluation is then still due, so that the schedule equals that of an uninterrupted run.
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

    /// Writes a checkpoint if there is a directory for it. Returns the fingerprint.
    fn save(&mut self, notify: &mut dyn FnMut(Notice)) -> Result<String, TrainError> {
        match self.write(notify)? {
            Some(fingerprint) => Ok(fingerprint),
            None => self.fingerprint(),
        }
    }

    /// Writes a checkpoint if there is a directory for it. Returns its fingerprint. Values that are not finite are never
    /// written: the previous checkpoint stays the newest.
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
    /// Whether the evaluation after the last step is still to be done.
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
        // Models with several objectives report each loss; the sum is the training loss.
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
