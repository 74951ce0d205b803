//! Waits between streams: a step that touches bytes waits for the steps of other streams that touched them before, unless
//! both only read.

use crate::document::plan::{Act, BufferId, BufferRange, Plan, STREAMS};
use std::collections::BTreeMap;

/// By stream: the index after the last step; zero is none.
type Steps = [u32; STREAMS.len()];

#[derive(Clone, Copy, Default)]
struct Last {
    read: Steps,
    /// Steps that wrote it, and steps of earlier buffers with the same bytes.
    write: Steps,
}

fn latest(a: &mut Steps, b: Steps) {
    for (a, b) in a.iter_mut().zip(b) {
        *a = (*a).max(b);
    }
}

/// Fills in [`crate::document::plan::Step::after`] of every step.
pub fn add_waits(plan: &mut Plan) {
    if !plan.steps.iter().any(|step| matches!(step.act, Act::Move { .. } | Act::Exchange { .. })) {
        return;
    }
    let mut last = vec![Last::default(); plan.buffers.len()];
    let mut freed: Vec<BTreeMap<u64, (u64, Steps)>> = vec![BTreeMap::new(); plan.spaces.len()];
    // By stream: the steps that it has waited for.
    let mut waited = [Steps::default(); STREAMS.len()];
    for i in 0..plan.steps.len() {
        let (reads, writes): (Vec<BufferId>, Vec<BufferId>) = match &plan.steps[i].act {
            Act::Alloc(b) => {
                last[b.0 as usize] = Last { write: before(&freed, plan, *b), ..Last::default() };
                continue;
            }
            Act::Free(b) => {
                free(&mut freed, plan, *b, last[b.0 as usize]);
                continue;
            }
            Act::Run { ins, outs, scratch, .. } => {
                (ids(ins), outs.iter().chain(scratch).map(|p| p.buffer).collect())
            }
            Act::Exchange { own, result, .. } => {
                (own.iter().map(|p| p.buffer).collect(), vec![result.buffer])
            }
            Act::Copy { from, to } | Act::Move { from, to } => (vec![from.buffer], vec![to.buffer]),
            Act::Add { from, into } => (vec![from.buffer], vec![into.buffer]),
        };
        let Some(stream) = plan.stream(&plan.steps[i].act) else { continue };
        let mut needed = Steps::default();
        reads.iter().for_each(|b| latest(&mut needed, last[b.0 as usize].write));
        for b in &writes {
            latest(&mut needed, last[b.0 as usize].write);
            latest(&mut needed, last[b.0 as usize].read);
        }
        let mine = &mut waited[stream as usize];
        for other in (0..STREAMS.len()).filter(|&s| s != stream as usize) {
            if needed[other] > mine[other] {
                mine[other] = needed[other];
                plan.steps[i].after.push(needed[other] - 1);
            }
        }
        let me = i as u32 + 1;
        reads.iter().for_each(|b| last[b.0 as usize].read[stream as usize] = me);
        writes.iter().for_each(|b| last[b.0 as usize].write[stream as usize] = me);
    }
}

fn ids(places: &[BufferRange]) -> Vec<BufferId> {
    places.iter().map(|p| p.buffer).collect()
}

/// The last steps that touched a buffer's bytes before it was allocated.
fn before(freed: &[BTreeMap<u64, (u64, Steps)>], plan: &Plan, b: BufferId) -> Steps {
    let buffer = plan.buffer(b);
    let mut steps = Steps::default();
    let below = freed[buffer.space as usize].range(..buffer.offset + buffer.bytes).rev();
    for (_, (_, touched)) in below.take_while(|(_, (end, _))| *end > buffer.offset) {
        latest(&mut steps, *touched);
    }
    steps
}

fn free(freed: &mut [BTreeMap<u64, (u64, Steps)>], plan: &Plan, b: BufferId, last: Last) {
    let buffer = plan.buffer(b);
    if buffer.bytes == 0 {
        return;
    }
    let (start, end) = (buffer.offset, buffer.offset + buffer.bytes);
    let pieces = &mut freed[buffer.space as usize];
    while let Some((&at, &(until, touched))) = pieces.range(..end).next_back() {
        if until <= start {
            break;
        }
        pieces.remove(&at);
        if until > end {
            pieces.insert(end, (until, touched));
        }
        if at < start {
            pieces.insert(at, (start, touched));
        }
    }
    let mut touched = last.read;
    latest(&mut touched, last.write);
    pieces.insert(start, (end, touched));
}
