//! Arrays of jobs on lanes: each lane is a session that trains members in turn, several steps at a time, while the other
//! members wait in memory. Lanes share only batches, so none waits for another. Plans and activations exist once per lane,
//! weights and states once per member.

use super::{
    Batch, Evaluation, LrSchedule, Notice, Progress, Range, Resumed, Scores, Session, SessionError, Shared,
    Sources, TrainError, TrainOptions, Training,
};
use crate::checkpoint::CheckpointFile;
use crate::device::RunError;
use crate::team::{into_inner, lock, start_scoped};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Least time that a lane trains a member before it switches.
const STRETCH: Duration = Duration::from_millis(20);
/// Least time that a lane trains a member, as a multiple of the time to load it.
const TIMES: u32 = 50;
/// Least steps that a lane trains a member; the first finds cold caches.
const STEPS: u64 = 8;
/// Bytes of batches kept for members that share the data and are behind.
const KEPT: usize = 64 << 20;
/// Least and most steps that a member may be ahead of others, for any size of batch.
const AHEAD: (u64, u64) = (16, 4096);

/// One job of an array.
pub struct Member {
    /// Its learning-rate schedule.
    pub schedule: LrSchedule,
    /// Its data.
    pub sources: Arc<Sources>,
    /// Its options.
    pub options: TrainOptions,
    /// Steps done.
    pub done: u64,
    state: State,
    /// Whether all weights of a file must match.
    strict: bool,
    /// Weights and states while it waits.
    room: Vec<u8>,
    run: Progress,
}

/// The source of the weights and states of a member when it is next trained.
enum State {
    /// Its seed.
    New,
    /// Its seed, with weights from a file.
    Weights(Box<CheckpointFile>),
    /// A checkpoint.
    File(Box<CheckpointFile>),
    /// The memory it waited in, in the layout of a session.
    Room,
}

/// The result of a member.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// Steps done in all.
    pub steps: u64,
    /// The last training loss.
    pub loss: f64,
    /// The last evaluation.
    pub metrics: BTreeMap<String, f64>,
    /// SHA-256 of all weights and states.
    pub fingerprint: String,
    /// Number of training samples, and the seconds of its steps.
    pub work: (u64, f64),
    /// Whether it was stopped before all steps were done and evaluated.
    pub interrupted: bool,
}

impl Member {
    /// A new job.
    pub fn new(schedule: LrSchedule, sources: Arc<Sources>, options: TrainOptions) -> Member {
        Member {
            schedule,
            sources,
            options,
            done: 0,
            state: State::New,
            strict: true,
            room: Vec::new(),
            run: Progress::from(&Resumed::default()),
        }
    }

    /// The job resumed from a checkpoint after `done` steps.
    pub fn resumed(self, checkpoint: CheckpointFile, done: u64) -> Member {
        let run = Progress::from(&Resumed { steps: done, ..Resumed::default() });
        Member { done, state: State::File(Box::new(checkpoint)), run, ..self }
    }

    /// The job with initial weights from a file, all of which must match if `strict`.
    pub fn with_weights(self, file: CheckpointFile, strict: bool) -> Member {
        Member { state: State::Weights(Box::new(file)), strict, ..self }
    }

    /// Loads the weights and states of the member into a session.
    fn enter(&mut self, session: &mut Session) -> Result<(), TrainError> {
        match std::mem::replace(&mut self.state, State::New) {
            State::New => session.reset(self.options.seed).map_err(SessionError::from)?,
            State::Weights(mut stored) => {
                session.reset(self.options.seed).map_err(SessionError::from)?;
                super::load_weights(session, &mut stored, &self.options, self.strict)?;
            }
            State::File(mut stored) => {
                let resumed = super::restore(session, &mut self.schedule, &mut stored, &self.options)?;
                self.done = resumed.steps;
                self.run = Progress::from(&resumed);
            }
            State::Room => session.set_state(&self.room).map_err(SessionError::from)?,
        }
        Ok(())
    }

    fn leave(&mut self, session: &mut Session) -> Result<(), RunError> {
        session.state(&mut self.room)?;
        self.state = State::Room;
        Ok(())
    }
}

/// Trains every member for `until` steps in all, then evaluates it and writes its checkpoint. At most `resident` members
/// (and at least one per lane) are in memory at once; another begins when one has ended. Ends early when `stop` is set;
/// members then keep their progress. A member that fails does not affect the others. `notify` receives the index of the
/// member.
pub fn train_array(
    lanes: &mut [Session],
    members: Vec<Member>,
    resident: usize,
    until: u64,
    stop: &AtomicBool,
    notify: &(dyn Fn(usize, Notice) + Sync),
) -> Vec<Result<Ended, TrainError>> {
    let results = members.iter().map(|_| None).collect();
    let at = members.iter().map(|member| (data_of(&member.sources), member.done)).collect();
    let desk = Desk {
        state: Mutex::new(Waiting { members: members.into_iter().map(Some).collect(), begun: 0, results }),
        freed: Condvar::new(),
        batches: Mutex::new(Batches { kept: BTreeMap::new(), at }),
        resident: resident.max(lanes.len()),
        until,
        stop,
        notify,
    };
    thread::scope(|scope| {
        let desk = &desk;
        let Some((own, others)) = lanes.split_first_mut() else { return };
        for lane in others {
            // Without a thread for this lane, the other lanes train all members.
            let _ = start_scoped(scope, "lane", move || desk.work(lane));
        }
        desk.work(own);
    });
    into_inner(desk.state).results.into_iter().map(|result| result.expect("every member ended")).collect()
}

/// Members that are in no lane, and the results of those that ended.
struct Waiting {
    /// `None` for members that are in a lane or ended.
    members: Vec<Option<Member>>,
    /// Number of members that have begun and not ended.
    begun: usize,
    results: Vec<Option<Result<Ended, TrainError>>>,
}

impl Waiting {
    /// The next member: the one with the fewest steps, among those in memory and, if there is room for another, the new
    /// ones.
    fn next(&self, resident: usize) -> Option<usize> {
        let room = self.begun < resident;
        let ready = |one: &Member| room || matches!(one.state, State::Room);
        let waiting = self.members.iter().enumerate();
        let ready = waiting.filter_map(|(m, one)| Some((one.as_ref().filter(|one| ready(one))?.done, m)));
        ready.min().map(|(_, m)| m)
    }
}

/// Batches that other members will ask for.
struct Batches {
    /// Batches by data and step.
    kept: BTreeMap<(usize, u64), Arc<Batch>>,
    /// Data and present step of each member.
    at: Vec<(usize, u64)>,
}

/// Identifies shared data.
fn data_of(sources: &Arc<Sources>) -> usize {
    Arc::as_ptr(sources) as usize
}

/// State shared by the lanes.
struct Desk<'d> {
    state: Mutex<Waiting>,
    freed: Condvar,
    batches: Mutex<Batches>,
    resident: usize,
    until: u64,
    stop: &'d AtomicBool,
    notify: &'d (dyn Fn(usize, Notice) + Sync),
}

impl Desk<'_> {
    /// Trains the member that is furthest behind until none is left.
    fn work(&self, session: &mut Session) {
        while let Some((m, mut member)) = self.take() {
            let result = self.train(session, m, &mut member);
            if !matches!(result, Ok(None)) {
                lock(&self.batches).at[m].1 = u64::MAX;
            }
            match result.transpose() {
                None => lock(&self.state).members[m] = Some(member),
                Some(ended) => {
                    // Frees its memory before another begins.
                    drop(member);
                    let mut waiting = lock(&self.state);
                    waiting.begun -= 1;
                    waiting.results[m] = Some(ended);
                }
            }
            self.freed.notify_all();
        }
    }

    /// The next member; waits until there is one. `None` when all have ended.
    fn take(&self) -> Option<(usize, Member)> {
        let mut waiting = lock(&self.state);
        loop {
            if let Some(member) =
                waiting.next(self.resident).and_then(|m| Some((m, waiting.members[m].take()?)))
            {
                waiting.begun += usize::from(!matches!(member.1.state, State::Room));
                return Some(member);
            }
            if waiting.results.iter().all(Option::is_some) {
                return None;
            }
            waiting = self.freed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Trains a member for some steps. Returns its result if it has ended.
    fn train(
        &self,
        session: &mut Session,
        m: usize,
        member: &mut Member,
    ) -> Result<Option<Ended>, TrainError> {
        let began = Instant::now();
        member.enter(session)?;
        let stay = STRETCH.max(TIMES * began.elapsed());
        let mut notify = |notice| (self.notify)(m, notice);
        let sources = member.sources.clone();
        let mut job = Training {
            session,
            schedule: &mut member.schedule,
            sources: &sources,
            options: &member.options,
            run: &mut member.run,
        };
        let first = member.done;
        let stopped = || self.stop.load(Ordering::Relaxed);
        let mut ahead = AHEAD.1;
        while member.done < self.until && !stopped() {
            let next = Range { start: member.done, end: member.done + 1 };
            let mut batch = |step| {
                let batch = self.batch(&sources, m, step)?;
                ahead = ((KEPT / batch.bytes().max(1)) as u64).clamp(AHEAD.0, AHEAD.1);
                Ok(batch)
            };
            job.stretch(next, &mut batch, self.stop, &mut notify)?;
            member.done = job.run.steps;
            let steps = member.done - first;
            let long = steps >= STEPS && began.elapsed() >= stay || steps >= ahead;
            if long && member.done < self.until && !stopped() && self.others_wait() {
                member.leave(session).map_err(SessionError::from)?;
                return Ok(None);
            }
        }
        // The schedule observes only the evaluations that would be due without an array.
        let every = job.options.eval_every;
        let due = job.run.evaluation_due;
        let seen = member.done > first && every > 0 && member.done.is_multiple_of(every) && !due;
        let mut interrupted = member.done < self.until;
        if member.done == job.options.steps && member.done > first {
            interrupted = !job.evaluate(self.stop, &mut notify)?;
        } else if member.done >= self.until && !seen {
            let clock = &mut job.run.clock;
            let watch = &mut |done, of| clock.watch(member.done, (done, of), self.stop, &mut notify);
            match sources.evaluate(job.session, job.options, watch)? {
                Evaluation::All(scores) => job.run.scores = scores,
                Evaluation::Nothing => job.run.scores = Scores::default(),
                Evaluation::Stopped => interrupted = true,
            }
        }
        let fingerprint = job.save(&mut notify)?;
        Ok(Some(Ended {
            steps: member.done,
            loss: member.run.loss,
            metrics: member.run.scores.metrics.clone(),
            fingerprint,
            work: (member.run.samples, member.run.busy.as_secs_f64()),
            interrupted,
        }))
    }

    fn others_wait(&self) -> bool {
        lock(&self.state).next(self.resident).is_some()
    }

    /// The batch of the next step of a member; made by the first of the members that share the data.
    fn batch(&self, sources: &Arc<Sources>, member: usize, step: u64) -> Shared {
        let data = data_of(sources);
        let mut batches = lock(&self.batches);
        batches.at[member].1 = step;
        if let Some(batch) = batches.kept.get(&(data, step)) {
            return Ok(batch.clone());
        }
        drop(batches);
        let batch = sources.batch(step)?;
        let Batches { kept, at } = &mut *lock(&self.batches);
        let least = at.iter().filter(|(other, _)| *other == data).map(|(_, step)| *step).min();
        while let Some((&old, _)) = kept.range((data, 0)..(data, least.unwrap_or(step))).next() {
            kept.remove(&old);
        }
        kept.insert((data, step), batch.clone());
        Ok(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{DataOptions, open};

    fn kept(desk: &Desk) -> Vec<u64> {
        lock(&desk.batches).kept.keys().map(|(_, step)| *step).collect()
    }

    fn member(done: u64, state: State) -> Member {
        let digits = DataOptions { kind: "digits".into(), examples: Some(64), ..DataOptions::default() };
        let sources = Arc::new(Sources::new(open(&digits).unwrap(), 8, 0).unwrap());
        let new = Member::new(LrSchedule::constant(), sources, TrainOptions::default());
        Member { done, state, ..new }
    }

    #[test]
    fn a_member_begins_only_where_there_is_room() {
        for (members, begun, resident, expected) in [
            (vec![(0, State::New), (0, State::New)], 0, 1, Some(0)),
            (vec![(0, State::New), (0, State::New)], 1, 1, None),
            (vec![(9, State::Room), (0, State::New)], 2, 2, Some(0)),
            (vec![(9, State::Room), (0, State::New)], 2, 3, Some(1)),
            (vec![(9, State::Room), (5, State::Room), (0, State::New)], 3, 3, Some(1)),
            (vec![], 0, 3, None),
        ] {
            let members = members.into_iter().map(|(done, state)| Some(member(done, state))).collect();
            let waiting = Waiting { members, begun, results: Vec::new() };
            assert_eq!(waiting.next(resident), expected, "{begun} of {resident}");
        }
    }

    #[test]
    fn batches_are_kept_as_long_as_somebody_will_ask_for_them() {
        let digits = DataOptions { kind: "digits".into(), examples: Some(64), ..DataOptions::default() };
        let [shared, own] =
            [0, 1].map(|seed| Arc::new(Sources::new(open(&digits).unwrap(), 8, seed).unwrap()));
        let at = vec![(data_of(&shared), 0), (data_of(&shared), 0), (data_of(&own), 0)];
        let stop = AtomicBool::new(false);
        let desk = Desk {
            state: Mutex::new(Waiting { members: Vec::new(), begun: 0, results: Vec::new() }),
            freed: Condvar::new(),
            batches: Mutex::new(Batches { kept: BTreeMap::new(), at }),
            resident: 3,
            until: 10,
            stop: &stop,
            notify: &|_, _| {},
        };
        let first: Vec<Arc<Batch>> = (0..4).map(|step| desk.batch(&shared, 0, step).unwrap()).collect();
        assert_eq!(kept(&desk), [0, 1, 2, 3]);
        for step in 0..3 {
            assert!(Arc::ptr_eq(&first[step as usize], &desk.batch(&shared, 1, step).unwrap()));
        }
        desk.batch(&shared, 0, 4).unwrap();
        assert_eq!(kept(&desk), [2, 3, 4]);
        // A member that has ended needs no batches.
        lock(&desk.batches).at[1].1 = u64::MAX;
        desk.batch(&shared, 0, 5).unwrap();
        assert_eq!(kept(&desk), [5]);
        // Batches of unshared data are dropped.
        (0..3).for_each(|step| drop(desk.batch(&own, 2, step).unwrap()));
        assert_eq!(kept(&desk).len(), 2);
    }
}
