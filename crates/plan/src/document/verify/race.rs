//! The order in which streams touch bytes: whether every step waits for all it must, whenever the streams
//! get to do their steps.

use crate::document::plan::{BufferId, Plan, PlanStream, STREAMS};
use std::collections::BTreeMap;
use std::ops::Range;

/// For each stream, how many of the plan's first steps are done as far as it is concerned.
type Clock = [u32; STREAMS.len()];

/// What is known of the order in which streams touch bytes.
pub struct Race {
    /// What each stream knows to be done.
    known: [Clock; STREAMS.len()],
    /// What is known when a step is done.
    done: Vec<Clock>,
    touched: Vec<Touched>,
    /// Bytes no buffer uses: first to (end, who touched them last), by space.
    left: Vec<BTreeMap<u64, (u64, Clock)>>,
}

/// Who touched a buffer last.
#[derive(Clone, Copy, Default)]
struct Touched {
    /// Those who touched its bytes before it was in use.
    before: Clock,
    read: Clock,
    written: Clock,
}

fn later(a: Clock, b: Clock) -> Clock {
    std::array::from_fn(|s| a[s].max(b[s]))
}

impl Race {
    pub fn new(plan: &Plan) -> Race {
        Race {
            known: [[0; STREAMS.len()]; STREAMS.len()],
            done: vec![[0; STREAMS.len()]; plan.steps.len()],
            touched: vec![Touched::default(); plan.buffers.len()],
            left: vec![BTreeMap::new(); plan.spaces.len()],
        }
    }

    /// A step starts when those before it in its stream and those it names are done.
    pub fn start(&mut self, index: usize, stream: PlanStream, after: &[u32]) -> Result<(), String> {
        let known = &mut self.known[stream as usize];
        for &other in after {
            if other as usize >= index {
                return Err(format!("waits for step {other}, which does not come before it"));
            }
            *known = later(*known, self.done[other as usize]);
        }
        known[stream as usize] = index as u32 + 1;
        self.done[index] = *known;
        Ok(())
    }

    /// The step that started last in a stream reads or writes a buffer.
    pub fn touch(
        &mut self,
        index: usize,
        stream: PlanStream,
        b: BufferId,
        write: bool,
    ) -> Result<(), String> {
        let (known, touched) = (self.known[stream as usize], &mut self.touched[b.0 as usize]);
        let mut needed = later(touched.before, touched.written);
        if write {
            needed = later(needed, touched.read);
        }
        if let Some(s) = (0..STREAMS.len()).find(|&s| s != stream as usize && needed[s] > known[s]) {
            return Err(format!("touches buffer {} without waiting for step {}", b.0, needed[s] - 1));
        }
        let last = if write { &mut touched.written } else { &mut touched.read };
        last[stream as usize] = index as u32 + 1;
        Ok(())
    }

    /// A buffer comes into use.
    pub fn take(&mut self, space: usize, bytes: Range<u64>, b: BufferId) {
        let mut before = Clock::default();
        for (_, (end, last)) in self.left[space].range(..bytes.end).rev() {
            if *end <= bytes.start {
                break;
            }
            before = later(before, *last);
        }
        self.touched[b.0 as usize] = Touched { before, ..Touched::default() };
    }

    /// A buffer goes out of use.
    pub fn leave(&mut self, space: usize, bytes: Range<u64>, b: BufferId) {
        let left = &mut self.left[space];
        let over: Vec<(u64, (u64, Clock))> = left
            .range(..bytes.end)
            .rev()
            .take_while(|(_, (end, _))| *end > bytes.start)
            .map(|(a, b)| (*a, *b))
            .collect();
        for (start, (end, last)) in over {
            left.remove(&start);
            if start < bytes.start {
                left.insert(start, (bytes.start, last));
            }
            if end > bytes.end {
                left.insert(bytes.end, (end, last));
            }
        }
        let Touched { before, read, written } = self.touched[b.0 as usize];
        left.insert(bytes.start, (bytes.end, later(before, later(read, written))));
    }
}
