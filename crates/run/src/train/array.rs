//! Arrays of jobs on lanes: each lane is a session that trains one member after the other, a stretch of steps
//! at a time, while the others wait in memory beside it. Lanes share nothing but batches, so that none
//! waits for another, and what members need beside weights and states is there once per lane.

use super::{
    Batch, Evaluation, LrSchedule, Notice, Progress, Range, Resumed, Scores, Session, SessionError, Shared,
    Sources, TrainError, TrainOptions, Training, prefetch,
};
use crate::checkpoint::Stored;
use crate::device::RunError;
use crate::team::start_scoped;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// A lane stays with a member for at least so long, so many times as long as it took to bring it, and so many
/// steps, the first of which finds nothing in the caches.
const STRETCH: Duration = Duration::from_millis(20);
const TIMES: u32 = 50;
const STEPS: u64 = 8;
/// Batches are kept for members which share their data and come later: roughly so many bytes of them, but at
/// least and at most so many, are what a member may be ahead.
const KEPT: usize = 64 << 20;
const AHEAD: (u64, u64) = (16, 4096);

/// A session that trains members.
pub struct Lane {
    /// Of the one job that all members are, but for seeds and numbers.
    pub session: Session,
}

/// One job of an array.
pub struct Member {
    /// Its learning rates.
    pub schedule: LrSchedule,
    /// Its data.
    pub sources: Arc<Sources>,
    /// Its options.
    pub options: TrainOptions,
    /// Steps it has done.
    pub done: u64,
    state: State,
    /// Whether all weights of a file must fit.
    strict: bool,
    /// Memory to wait in, once it has been needed.
    room: Vec<u8>,
    run: Progress,
}

/// Where a member's weights and states come from when it is next trained.
enum State {
    /// Its seed.
    New,
    /// Its seed, but for the weights of a file.
    Weights(Box<Stored>),
    /// A checkpoint.
    File(Box<Stored>),
    /// The room it waited in, in the order of a session's layout.
    Room,
}

/// What a member came to.
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
    /// Training samples it saw, and the seconds its steps took.
    pub work: (u64, f64),
    /// Told to stop before all steps were done and evaluated.
    pub interrupted: bool,
}

impl Member {
    /// A job that begins.
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

    /// A job that goes on from a checkpoint; `done` steps are in it.
    pub fn resumed(self, checkpoint: Stored, done: u64) -> Member {
        let run = Progress::from(&Resumed { steps: done, ..Resumed::default() });
        Member { done, state: State::File(Box::new(checkpoint)), run, ..self }
    }

    /// A job that begins with the weights of a file, all of which must fit if `strict`.
    pub fn with_weights(self, file: Stored, strict: bool) -> Member {
        Member { state: State::Weights(Box::new(file)), strict, ..self }
    }

    /// Brings the member's weights and states into a session.
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

/// Trains every member until it has done `until` steps, then evaluates it and writes its checkpoint. At most
/// `resident` members, or as many as there are lanes, are in memory at once: another begins when one has ended.
/// Ends early when told to; members then are as far as they came. A member that fails does not disturb the
/// others. `notify` is told by number of the member.
pub fn train_array(
    lanes: &mut [Lane],
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
            // A lane without a thread leaves its members to the others.
            let _ = start_scoped(scope, "lane", move || desk.work(&mut lane.session));
        }
        desk.work(&mut own.session);
    });
    let done = desk.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.results.into_iter().map(|result| result.expect("every member ended")).collect()
}

/// Members that no lane has at the moment, and what became of the others.
struct Waiting {
    /// None: in a lane, or ended.
    members: Vec<Option<Member>>,
    /// How many have begun and not ended.
    begun: usize,
    results: Vec<Option<Result<Ended, TrainError>>>,
}

impl Waiting {
    /// Who is next: of those in memory, and of the others if there is room for one, the member that has done
    /// least.
    fn next(&self, resident: usize) -> Option<usize> {
        let room = self.begun < resident;
        let ready = |one: &Member| room || matches!(one.state, State::Room);
        let waiting = self.members.iter().enumerate();
        let ready = waiting.filter_map(|(m, one)| Some((one.as_ref().filter(|one| ready(one))?.done, m)));
        ready.min().map(|(_, m)| m)
    }
}

/// Batches that somebody will ask for again.
struct Batches {
    /// By data and step.
    kept: BTreeMap<(usize, u64), Arc<Batch>>,
    /// By member: its data, and the step it is at.
    at: Vec<(usize, u64)>,
}

/// Tells data apart.
fn data_of(sources: &Arc<Sources>) -> usize {
    Arc::as_ptr(sources) as usize
}

/// What lanes share.
struct Desk<'d> {
    state: Mutex<Waiting>,
    freed: Condvar,
    batches: Mutex<Batches>,
    resident: usize,
    until: u64,
    stop: &'d AtomicBool,
    notify: &'d (dyn Fn(usize, Notice) + Sync),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Desk<'_> {
    /// Trains whoever is furthest behind, until nobody is left.
    fn work(&self, session: &mut Session) {
        while let Some((m, mut member)) = self.take() {
            let result = self.train(session, m, &mut member);
            if !matches!(result, Ok(None)) {
                lock(&self.batches).at[m].1 = u64::MAX;
            }
            match result.transpose() {
                None => lock(&self.state).members[m] = Some(member),
                Some(ended) => {
                    // Its room is free before another begins.
                    drop(member);
                    let mut waiting = lock(&self.state);
                    waiting.begun -= 1;
                    waiting.results[m] = Some(ended);
                }
            }
            self.freed.notify_all();
        }
    }

    /// The next member; waits if there is none now. None when all have ended.
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

    /// Trains a member for a stretch; what it came to, if that was the last.
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
        // A schedule sees only the evaluations that are due alone too.
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

    /// The batch of a member's next step, made by whoever asks first of those that share their data.
    fn batch(&self, sources: &Arc<Sources>, member: usize, step: u64) -> Shared {
        let data = data_of(sources);
        let mut batches = lock(&self.batches);
        batches.at[member].1 = step;
        if let Some(batch) = batches.kept.get(&(data, step)) {
            return Ok(batch.clone());
        }
        drop(batches);
        let batch = Arc::new(prefetch::make(sources.train.as_ref(), &sources.sampler, step)?);
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
        // Whoever has ended asks for nothing.
        lock(&desk.batches).at[1].1 = u64::MAX;
        desk.batch(&shared, 0, 5).unwrap();
        assert_eq!(kept(&desk), [5]);
        // Data of one's own are nobody else's.
        (0..3).for_each(|step| drop(desk.batch(&own, 2, step).unwrap()));
        assert_eq!(kept(&desk).len(), 2);
    }
}
