//! The devices of one process: they read each other's buffers while all take part.

use super::link::{Began, Pace, Throttle};
use super::{ExchangeBuffer, HostBuffer, PeerLost, Peers, put};
use crate::team::{lock, polled};
use gulliver_graph::graph::op::exchange::Exchange;
use gulliver_plan::document::topology::Site;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

/// A group of devices in one process.
pub struct LocalGroup {
    ranks: usize,
    /// Whether each rank has a core of its own.
    cores: bool,
    state: Mutex<State>,
    anyone_gone: AtomicBool,
    /// Bytes taken, by rank and source.
    taken: Vec<AtomicU64>,
    throttle: OnceLock<Arc<Throttle>>,
    /// The sender of each rank, over emulated links.
    paces: Vec<Mutex<Option<Pace>>>,
}

#[derive(Default)]
struct State {
    /// Collectives that some rank has not joined yet.
    open: HashMap<u32, Arc<Collective>>,
    gone: Option<PeerLost>,
}

struct Collective {
    of: usize,
    /// All ranks have joined, all are done, or one is gone. Used with the lock of the group.
    changed: Condvar,
    offers: Mutex<Vec<(u32, Offer)>>,
    /// Number of ranks that have joined, and of those that need no more bytes of others.
    came: AtomicUsize,
    done: AtomicUsize,
    /// End of all transfers so far: the bits of a time, which have the order of times.
    over: AtomicU64,
}

/// The operand of a rank.
#[derive(Clone, Copy)]
struct Offer {
    own: Option<*const dyn ExchangeBuffer>,
    /// Time at which links can begin to carry it; negative infinity without emulated links.
    ready: Began,
}

// SAFETY: the bytes are only read, and their owner keeps them until all ranks are done.
unsafe impl Send for Offer {}

/// Spins of an idle rank before it polls with yields.
const SPINS: u32 = 4000;
/// The number of the collective that shares numbers; collectives of graphs count from zero.
const SHARING: u32 = u32::MAX;

impl LocalGroup {
    /// A group of `ranks` ranks. If they are `crowded` (more threads than cores), they sleep as soon as they wait.
    pub fn new(ranks: usize, crowded: bool) -> LocalGroup {
        LocalGroup {
            ranks,
            cores: !crowded,
            state: Mutex::default(),
            anyone_gone: AtomicBool::new(false),
            taken: (0..ranks * ranks).map(|_| AtomicU64::new(0)).collect(),
            throttle: OnceLock::new(),
            paces: (0..ranks).map(|_| Mutex::default()).collect(),
        }
    }

    /// Waits at a collective until `so`, or, with `leave`, until a rank is gone. Idle callers spin briefly; busy ones must
    /// not: they would take a core from kernels.
    fn wait(&self, collective: &Collective, so: impl Fn() -> bool, idle: bool, leave: bool) {
        let over = || so() || leave && self.anyone_gone.load(Ordering::Acquire);
        if idle && self.cores {
            for _ in 0..SPINS {
                if over() {
                    return;
                }
                std::hint::spin_loop();
            }
            if polled(over) {
                return;
            }
        }
        let mut state = lock(&self.state);
        while !over() {
            state = collective.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn notify(&self, collective: &Collective) {
        // A rank that has just decided to wait is asleep once we have had the lock.
        drop(lock(&self.state));
        collective.changed.notify_all();
    }

    /// Calls `take` with the operands of all ranks, in the order in which they joined. The operands stay valid until the
    /// calls of all ranks have returned. Also returns the end of all transfers.
    fn meet<T>(
        &self,
        (number, rank, of): (u32, u32, usize),
        (own, ready): (Option<&dyn ExchangeBuffer>, Began),
        idle: bool,
        take: impl FnOnce(&Collective, &[(u32, Offer)]) -> T,
    ) -> Result<(T, Began), PeerLost> {
        let (collective, last) = {
            let mut state = lock(&self.state);
            if let Some(parted) = &state.gone {
                return Err(parted.clone());
            }
            let new = || Collective {
                of,
                changed: Condvar::new(),
                offers: Mutex::default(),
                came: 0.into(),
                done: 0.into(),
                over: 0.into(),
            };
            let collective = Arc::clone(state.open.entry(number).or_insert_with(|| Arc::new(new())));
            // SAFETY: only the lifetime is forgotten; the buffer is used until all are done, and this call returns later.
            let own = own.map(|own| unsafe {
                std::mem::transmute::<*const dyn ExchangeBuffer, *const dyn ExchangeBuffer>(own)
            });
            let offer = Offer { own, ready };
            lock(&collective.offers).push((rank, offer));
            let last = collective.came.fetch_add(1, Ordering::AcqRel) + 1 == of;
            if last {
                state.open.remove(&number);
            }
            (collective, last)
        };
        // Only the ranks of this collective are woken.
        if last {
            collective.changed.notify_all();
        }
        self.wait(&collective, || collective.came.load(Ordering::Acquire) == of, idle, true);
        if collective.came.load(Ordering::Acquire) < of {
            // No rank reads before all have joined, and one never will.
            let gone = lock(&self.state).gone.clone();
            return Err(gone.expect("a wait ends early only if a rank is gone"));
        }
        // The others learn that this rank is done even if `take` panics.
        let done = Done { group: self, collective: &collective };
        let offers = lock(&collective.offers).clone();
        let taken = take(&collective, &offers);
        drop(done);
        self.wait(&collective, || collective.done.load(Ordering::Acquire) == collective.of, idle, false);
        Ok((taken, Began(f64::from_bits(collective.over.load(Ordering::Acquire)))))
    }
}

struct Done<'a> {
    group: &'a LocalGroup,
    collective: &'a Collective,
}

impl Drop for Done<'_> {
    fn drop(&mut self) {
        if self.collective.done.fetch_add(1, Ordering::AcqRel) + 1 == self.collective.of {
            self.group.notify(self.collective);
        }
    }
}

/// The operand of a rank, if it has one.
fn buffer_of(offers: &[(u32, Offer)], rank: u32) -> Option<&dyn ExchangeBuffer> {
    let (_, offer) = offers.iter().find(|(from, _)| *from == rank)?;
    // SAFETY: each device keeps its operand unchanged until all are done, and this one is not.
    offer.own.map(|own| unsafe { &*own })
}

impl Peers for LocalGroup {
    fn exchange(
        &self,
        what: &Exchange,
        own: Option<&dyn ExchangeBuffer>,
        result: &dyn ExchangeBuffer,
        idle: bool,
    ) -> Result<(), PeerLost> {
        let who = (what.collective, what.rank, what.ranks.len());
        let mut pace = lock(&self.paces[what.rank as usize]);
        if let Some(throttle) = self.throttle.get() {
            pace.get_or_insert_with(|| Pace::new(throttle));
        }
        let ready = pace.as_ref().map_or(Began(f64::NEG_INFINITY), Pace::begin);
        let over = self.meet(who, (own, ready), idle, |collective, offers| {
            for piece in &what.pieces {
                let from = buffer_of(offers, piece.from).expect("pieces are of operands that were offered");
                put(what, piece, from, result);
                if piece.from != what.rank {
                    let of = what.rank as usize * self.ranks + piece.from as usize;
                    let bytes = piece.elements() * what.dtype.size();
                    self.taken[of].fetch_add(bytes as u64, Ordering::Relaxed);
                }
            }
            if let Some(pace) = &mut *pace {
                // Transfers begin when all ranks have joined.
                let latest = |a: Began, b: Began| if a.0 > b.0 { a } else { b };
                let mut began = offers.iter().map(|(_, offer)| offer.ready).fold(ready, latest);
                for (from, bytes) in what.by_rank() {
                    let way = (Site::Device(from), Site::Device(what.rank));
                    began = pace.end(began, way, bytes, idle && self.cores);
                }
                collective.over.fetch_max(began.0.max(0.0).to_bits(), Ordering::AcqRel);
            }
        })?;
        if let Some(pace) = &mut *pace {
            pace.leave(over.1);
        }
        Ok(())
    }

    fn over(&self, throttle: &Arc<Throttle>) {
        // All devices bring the same.
        let _ = self.throttle.set(Arc::clone(throttle));
    }

    fn share(&self, rank: u32, numbers: &[f32]) -> Result<Vec<Vec<f32>>, PeerLost> {
        let mut own: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        // SAFETY: `own` outlives the collective and is not written.
        let own = unsafe { HostBuffer::new(own.as_mut_ptr(), own.len()) };
        let never = Began(f64::NEG_INFINITY);
        let (shared, _) =
            self.meet((SHARING, rank, self.ranks), (Some(&own), never), true, |_, offers| {
                let of = |rank| {
                    let brought = buffer_of(offers, rank).expect("everyone brings numbers");
                    let mut bytes = vec![0; brought.bytes()];
                    brought.read(0, &mut bytes);
                    bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
                };
                (0..self.ranks as u32).map(of).collect()
            })?;
        Ok(shared)
    }

    fn leave(&self, rank: u32, why: &str) {
        let mut state = lock(&self.state);
        state.gone.get_or_insert_with(|| PeerLost { rank, why: why.to_string() });
        self.anyone_gone.store(true, Ordering::Release);
        state.open.values().for_each(|collective| collective.changed.notify_all());
    }

    fn lost(&self) -> Option<PeerLost> {
        lock(&self.state).gone.clone()
    }

    fn taken(&self, rank: u32) -> Vec<u64> {
        let own = &self.taken[rank as usize * self.ranks..][..self.ranks];
        own.iter().map(|bytes| bytes.load(Ordering::Relaxed)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gulliver_graph::dtype::DType;
    use gulliver_graph::graph::op::exchange::Piece;
    use std::thread;

    /// The sum over all ranks of vectors of `len`, in order.
    fn sum(collective: u32, rank: u32, ranks: u32, len: usize) -> Exchange {
        let piece = |from| Piece {
            from,
            of: vec![len],
            source: vec![0],
            target: vec![0],
            extent: vec![len],
            add: from > 0,
        };
        Exchange {
            collective,
            rank,
            ranks: (0..ranks).collect(),
            dtype: DType::F32,
            shape: vec![len],
            pieces: (0..ranks).map(piece).collect(),
        }
    }

    fn buffer(numbers: &mut [f32]) -> HostBuffer {
        // SAFETY: the numbers outlive the exchange, and nothing else uses them meanwhile.
        unsafe { HostBuffer::new(numbers.as_mut_ptr().cast(), size_of_val(numbers)) }
    }

    #[test]
    fn everyone_leaves_with_the_same_sum() {
        const ROUNDS: u32 = if cfg!(miri) { 4 } else { 300 };
        for (ranks, crowded) in [(2, false), (3, true), (8, true)] {
            let room = LocalGroup::new(ranks as usize, crowded);
            // Not associative: another order gives other bits.
            let own = |rank: u32, round: u32| [1e8 / (rank + 1) as f32, (rank + round) as f32 * 0.1, 1.0];
            thread::scope(|scope| {
                for rank in 0..ranks {
                    let room = &room;
                    scope.spawn(move || {
                        for round in 0..ROUNDS {
                            let mut result = [f32::NAN; 3];
                            let mut mine = own(rank, round);
                            let what = sum(round % 2, rank, ranks, 3);
                            room.exchange(
                                &what,
                                Some(&buffer(&mut mine)),
                                &buffer(&mut result),
                                round % 3 > 0,
                            )
                            .unwrap();
                            mine.fill(f32::NAN);
                            let expected = (1..ranks).fold(own(0, round), |sum, other| {
                                let other = own(other, round);
                                [0, 1, 2].map(|i| sum[i] + other[i])
                            });
                            assert_eq!(result, expected, "rank {rank} of {ranks}, round {round}");
                            let shared = room.share(rank, &own(rank, round)[..2]).unwrap();
                            assert_eq!(shared[ranks as usize - 1], own(ranks - 1, round)[..2]);
                        }
                    });
                }
            });
            for rank in 0..ranks {
                let from = |other| if other == rank { 0 } else { 12 * u64::from(ROUNDS) };
                assert_eq!(room.taken(rank), (0..ranks).map(from).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn nobody_waits_for_one_who_is_gone() {
        for late in [false, true] {
            let room = LocalGroup::new(3, late);
            thread::scope(|scope| {
                for rank in 0..2 {
                    let room = &room;
                    scope.spawn(move || {
                        let (mut own, mut result) = ([1.0; 4], [0.0; 4]);
                        let said = room.exchange(
                            &sum(0, rank, 3, 4),
                            Some(&buffer(&mut own)),
                            &buffer(&mut result),
                            late,
                        );
                        assert_eq!(said.unwrap_err().to_string(), "device 2 stopped: no disk");
                        assert!(room.share(rank, &[1.0]).is_err(), "and not later either");
                    });
                }
                if late {
                    thread::sleep(std::time::Duration::from_millis(20));
                }
                room.leave(2, "no disk");
                room.leave(1, "because of the other");
            });
        }
    }
}
