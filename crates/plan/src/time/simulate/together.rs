//! How long the plans of several devices take together. Streams of each device do their steps as in
//! [`simulate`](super::simulate); at a collective all wait for the last to come and leave together; and whatever
//! passes a link takes turns with all else that does.

use super::{ADDED, Ran, Timing, per_byte};
use crate::document::collectives::{inline_collectives, with_collective};
use crate::document::ledger::Ledger;
use crate::document::links::Links;
use crate::document::plan::{Act, BufferRange, Plan, PlanStream, STREAMS, Tier};
use crate::document::timeline::StepSpan;
use crate::document::topology::booking::{Booking, Transfer};
use crate::document::topology::{Site, Topology};
use gulliver_graph::graph::{Graph, NodeId};
use serde::Serialize;
use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap, VecDeque};

/// One of the devices: its plan, and how fast it is.
#[derive(Clone, Copy)]
pub struct RankPlan<'a> {
    /// What is computed.
    pub graph: &'a Graph,
    /// When and where.
    pub plan: &'a Plan,
    /// Seconds of its nodes while all devices are at work; of a collective, those that it takes at least, whatever the
    /// links.
    pub seconds: &'a dyn Fn(NodeId) -> f64,
    /// Seconds of its nodes while the others are at rest; none if that makes no difference.
    pub alone: Option<&'a dyn Fn(NodeId) -> f64>,
    /// Of each collective that is held beside kernels, as there is no core for who holds it: seconds taken from kernels,
    /// and seconds it takes at least. None if there are cores.
    pub taken: Option<&'a dyn Fn(NodeId) -> [f64; 2]>,
    /// How late it may come to collectives.
    pub uneven: Unevenness,
    /// How fast its own links are where the topology has none.
    pub links: &'a Links,
}

/// What all devices come to together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JointTiming {
    /// Seconds until the last device is done.
    pub seconds: f64,
    /// By device.
    pub devices: Vec<Timing>,
    /// By link of the topology.
    pub links: Vec<LinkUse>,
    /// Every step that does something; those of one stream in order.
    pub spans: Vec<StepSpan>,
}

/// What passes a link.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkUse {
    /// Its name.
    pub name: String,
    /// Bytes over it.
    pub bytes: u64,
    /// Seconds it is at work.
    pub busy: f64,
}

/// Devices that would wait for ever.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("device {device} waits for ever at step {step} ({what}); {missing} does not come")]
pub struct SimulatedDeadlock {
    /// One of them.
    pub device: u32,
    /// Index of the step at which it waits.
    pub step: u32,
    /// What it waits for.
    pub what: String,
    /// For whom.
    pub missing: String,
}

/// Bytes that one step of every plan brings over each link, by link of the topology.
pub fn over_links(plans: &[(&Graph, &Plan)], topology: &Topology) -> Vec<u64> {
    let mut bytes = vec![0; topology.links().len()];
    for (device, (graph, plan)) in plans.iter().enumerate() {
        let own = device as u32;
        let mut count = |from, to, n: u64| {
            topology.route(from, to).iter().for_each(|&link| bytes[link as usize] += n);
        };
        let due = Collectives::of(graph, plan);
        for step in &plan.steps {
            match &step.act {
                Act::Move { from, to } => count(site(plan, from, own), site(plan, to, own), from.bytes),
                Act::Exchange { node, .. } => {
                    for (other, n) in due.get(*node).into_iter().flat_map(|due| &due.takes) {
                        count(Site::Device(*other), Site::Device(own), *n);
                    }
                }
                _ => {}
            }
        }
    }
    bytes
}

fn site(plan: &Plan, place: &BufferRange, device: u32) -> Site {
    match plan.tier(place) {
        Tier::Device => Site::Device(device),
        Tier::Host => Site::Host,
        Tier::Disk => Site::Disk,
    }
}

/// A collective that a device comes to.
struct Due {
    number: u32,
    ranks: Vec<u32>,
    /// Bytes taken of each of the others, in order.
    takes: Vec<(u32, u64)>,
}

/// All collectives of a plan.
struct Collectives {
    all: Vec<Due>,
    /// By node: its place among them, or their number.
    at: Vec<u32>,
}

impl Collectives {
    fn of(graph: &Graph, plan: &Plan) -> Collectives {
        let sizes = plan.bindings();
        let mut collectives = Collectives { all: Vec::new(), at: vec![u32::MAX; graph.nodes.len()] };
        for step in &plan.steps {
            let Act::Exchange { node, .. } = step.act else { continue };
            if collectives.at[node.index()] != u32::MAX {
                continue;
            }
            let due = with_collective(&graph.nodes[node.index()], &sizes, |what| Due {
                number: what.collective,
                ranks: what.ranks.clone(),
                takes: what.by_rank(),
            });
            if let Some(due) = due {
                collectives.at[node.index()] = collectives.all.len() as u32;
                collectives.all.push(due);
            }
        }
        collectives
    }

    fn get(&self, node: NodeId) -> Option<&Due> {
        self.all.get(self.at[node.index()] as usize)
    }
}

impl Due {
    /// Whether there is anybody to wait for.
    fn others(&self) -> bool {
        self.ranks.iter().any(|rank| *rank != self.ranks[0])
    }
}

/// Seconds of work that are a little.
const LITTLE: f64 = 3e-3;
/// Seconds of waiting for a link after which devices go on half as late as after long ones: somebody else may have taken a
/// core in that time only, and it has hardly slowed down.
const SOON: f64 = 5e-4;

/// How uneven devices of the same kind are, as others use the machine too.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Unevenness {
    /// How much longer the slowest of all devices takes for a little work than they do on average, as a share.
    pub share: f64,
    /// The power of its length by which longer work is less uneven: 0 if who is slow stays so, a half if that changes
    /// all the time.
    pub fades: f64,
    /// Seconds by which they go on later than a link lets them that they waited for, if that was for long.
    pub resumes: f64,
}

impl Unevenness {
    /// How late the slowest of several devices comes to a collective, after so many seconds of work.
    fn late(&self, seconds: f64) -> f64 {
        self.share * seconds * (1.0 + seconds / LITTLE).powf(-self.fades)
    }

    /// How late all go on that have waited for a link for so many seconds.
    fn resumed(&self, waited: f64) -> f64 {
        self.resumes * waited / (waited + SOON)
    }
}

/// Expected delay of max(A, B) beyond the later mean, when the other mean is `earlier` seconds ahead; `late` is that
/// delay for equal means.
fn after(earlier: f64, late: f64) -> f64 {
    let scale = late / std::f64::consts::LN_2;
    if scale > 0.0 { scale * (-earlier / scale).exp().ln_1p() } else { 0.0 }
}

/// How often devices are timed anew, each time with kernels as fast as the time before says that others are at rest.
const AGAIN: usize = 3;

/// Times the plans of all devices at once, by their numbers. Fails if they would wait for each other for ever.
pub fn together(ranks: &[RankPlan], topology: &Topology) -> Result<JointTiming, SimulatedDeadlock> {
    let mut found = timed(ranks, topology, &[])?;
    if ranks.len() > 1 && ranks.iter().any(|rank| rank.alone.is_some()) {
        let steps: Vec<usize> = ranks.iter().map(|rank| rank.plan.steps.len()).collect();
        for _ in 0..AGAIN {
            let crowds = crowds(&steps, &found.spans);
            found = timed(ranks, topology, &crowds)?;
        }
    }
    Ok(found)
}

/// By device and step of the computation, how many of the other devices compute meanwhile, as a share of all others.
/// Of each of several devices it takes the number of its plan's steps.
pub fn crowds(steps: &[usize], spans: &[StepSpan]) -> Vec<Vec<f32>> {
    let computing = |device: usize| {
        spans.iter().filter(move |s| s.device as usize == device && s.stream == PlanStream::Compute)
    };
    let mut all: Vec<Vec<f32>> = steps.iter().map(|steps| vec![0.0; *steps]).collect();
    let each = 1.0 / (steps.len() - 1) as f64;
    for (device, crowds) in all.iter_mut().enumerate() {
        for other in (0..steps.len()).filter(|&other| other != device) {
            let mut theirs = computing(other).peekable();
            for StepSpan { step, start, end, .. } in computing(device).filter(|span| span.end > span.start) {
                let mut shared = 0.0;
                while let Some(their) = theirs.peek() {
                    shared += (their.end.min(*end) - their.start.max(*start)).max(0.0);
                    if their.end > *end {
                        break;
                    }
                    theirs.next();
                }
                crowds[*step as usize] += (each * shared / (end - start)) as f32;
            }
        }
    }
    all
}

/// Times all devices once; kernels take as long as it says how crowded they are, or as if all were at work.
fn timed(
    ranks: &[RankPlan],
    topology: &Topology,
    crowds: &[Vec<f32>],
) -> Result<JointTiming, SimulatedDeadlock> {
    let steps = ranks.iter().map(|rank| rank.plan.steps.len()).sum();
    let mut all = All {
        ranks,
        topology,
        devices: ranks.iter().map(State::new).collect(),
        booking: Booking::new(topology),
        events: BinaryHeap::new(),
        open: HashMap::new(),
        spans: Vec::with_capacity(steps),
        again: Vec::new(),
        crowds,
    };
    for (device, rank) in ranks.iter().enumerate() {
        for step in 0..rank.plan.steps.len() {
            all.next(device, step);
        }
    }
    all.advance();
    while let Some(event) = all.events.pop() {
        all.send(event);
        all.advance();
    }
    all.finish()
}

/// How far a device has got.
struct State {
    timing: Timing,
    /// When each stream is done with what it has begun.
    free: [f64; STREAMS.len()],
    /// When each step is done; not a number until that is known.
    done: Vec<f64>,
    /// Steps of each stream of which it is not known yet when they will be done.
    waiting: [VecDeque<u32>; STREAMS.len()],
    /// Whether the first of them is under way.
    under_way: [bool; STREAMS.len()],
    ran: Ran,
    due: Collectives,
    /// Seconds of kernels since the computation last waited for somebody: what it may be late by.
    since: f64,
    /// By step, whether it is a collective that the computation would do nothing but wait for.
    here: Vec<bool>,
}

impl State {
    fn new(rank: &RankPlan) -> State {
        State {
            timing: Timing { moved: Ledger::of(rank.plan), ..Timing::default() },
            free: [0.0; STREAMS.len()],
            done: vec![f64::NAN; rank.plan.steps.len()],
            waiting: Default::default(),
            under_way: [false; STREAMS.len()],
            ran: Ran::default(),
            due: Collectives::of(rank.graph, rank.plan),
            since: 0.0,
            here: inline_collectives(rank.plan),
        }
    }
}

/// A collective to which somebody has come.
#[derive(Default)]
struct Open {
    /// Who, at which step, when, and when what it brings was computed.
    came: Vec<(usize, usize, f64, f64)>,
    /// When it began, how many have taken all they need, when links had carried all of it, and when it is over.
    began: f64,
    served: usize,
    carried: f64,
    ends: f64,
}

/// A transfer that can send its next chunk.
#[derive(Clone, Copy)]
struct Event<'a> {
    transfer: Transfer,
    /// The links it passes.
    route: &'a [u32],
    device: usize,
    step: usize,
    began: f64,
    /// Of those that a collective asks for, which one.
    part: usize,
    /// Chunks sent so far: of those that are ready at the same time, whoever has sent least is first.
    sent: u64,
}

impl PartialEq for Event<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Event<'_> {}

impl PartialOrd for Event<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event<'_> {
    /// The greatest is what happens first.
    fn cmp(&self, other: &Self) -> Ordering {
        let ready = other.transfer.ready().total_cmp(&self.transfer.ready());
        ready.then_with(|| (other.sent, other.device, other.step).cmp(&(self.sent, self.device, self.step)))
    }
}

/// The collective of a step, and its node.
fn due_at<'s>(ranks: &[RankPlan], devices: &'s [State], device: usize, step: usize) -> (&'s Due, NodeId) {
    let Act::Exchange { node, .. } = ranks[device].plan.steps[step].act else {
        unreachable!("only these are held")
    };
    (devices[device].due.get(node).expect("it was found before"), node)
}

struct All<'a> {
    ranks: &'a [RankPlan<'a>],
    topology: &'a Topology,
    devices: Vec<State>,
    booking: Booking,
    events: BinaryHeap<Event<'a>>,
    /// By number.
    open: HashMap<u32, Open>,
    spans: Vec<StepSpan>,
    /// Devices that may get on.
    again: Vec<usize>,
    /// By device and step, the share of others that compute meanwhile; nothing if all do.
    crowds: &'a [Vec<f32>],
}

impl<'a> All<'a> {
    /// Does the step that comes next in the plan's order, or lets it wait.
    fn next(&mut self, device: usize, step: usize) {
        let plan = self.ranks[device].plan;
        let act = &plan.steps[step].act;
        let Some(stream) = plan.stream(act) else { return };
        let s = stream as usize;
        if self.devices[device].waiting[s].is_empty() {
            let ready = self.ready(device, step, s);
            if !ready.is_nan() && stream == PlanStream::Compute {
                self.begin(device, step, stream, ready);
                return;
            }
            self.devices[device].waiting[s].push_back(step as u32);
            self.get_on(device, stream);
        } else {
            self.devices[device].waiting[s].push_back(step as u32);
        }
    }

    /// When all that a step waits for is done; not a number if that is not known.
    fn ready(&self, device: usize, step: usize, stream: usize) -> f64 {
        let state = &self.devices[device];
        let after = &self.ranks[device].plan.steps[step].after;
        let later = |a: f64, b: f64| if a >= b || a.is_nan() { a } else { b };
        after.iter().map(|&other| state.done[other as usize]).fold(state.free[stream], later)
    }

    /// Begins a step; false if it is not known yet when it will be done, or it was told already.
    fn begin(&mut self, device: usize, step: usize, stream: PlanStream, ready: f64) -> bool {
        let RankPlan { plan, seconds: node, alone, links, .. } = self.ranks[device];
        // Whoever waits for a collective goes on when the others do.
        if stream == PlanStream::Compute && ready > self.devices[device].free[stream as usize] {
            self.devices[device].since = 0.0;
        }
        let seconds = match &plan.steps[step].act {
            Act::Alloc(_) | Act::Free(_) => return true,
            Act::Run { node: id, partial, .. } => {
                let seconds = match (alone, self.crowds.get(device)) {
                    (Some(alone), Some(crowds)) => {
                        let alone = alone(*id);
                        alone + (node(*id) - alone) * f64::from(crowds[step])
                    }
                    _ => node(*id),
                };
                let state = &mut self.devices[device];
                if !state.ran.insert(plan, *id, *partial) {
                    state.timing.again += seconds;
                }
                state.since += seconds;
                seconds
            }
            Act::Copy { from, .. } => from.bytes as f64 / links.to_device,
            Act::Add { from, .. } => ADDED * from.bytes as f64 / links.to_device,
            Act::Move { from, to } => {
                let own = device as u32;
                let route = self.topology.route(site(plan, from, own), site(plan, to, own));
                if !route.is_empty() && from.bytes > 0 {
                    let transfer = self.booking.transfer(route, from.bytes, ready);
                    self.devices[device].under_way[stream as usize] = true;
                    self.events.push(Event { transfer, route, device, step, began: ready, part: 0, sent: 0 });
                    return false;
                }
                from.bytes as f64 * per_byte(links, plan.tier(from), plan.tier(to))
            }
            Act::Exchange { node: id, .. } => {
                if self.devices[device].due.get(*id).is_some_and(Due::others) {
                    self.devices[device].under_way[stream as usize] = true;
                    self.come(device, step, ready);
                    return false;
                }
                node(*id)
            }
        };
        self.done(device, step, stream, (ready, ready + seconds), seconds);
        true
    }

    fn done(&mut self, device: usize, step: usize, stream: PlanStream, (start, end): (f64, f64), busy: f64) {
        let state = &mut self.devices[device];
        state.done[step] = end;
        state.free[stream as usize] = end;
        state.timing.busy[stream as usize] += busy;
        state.timing.seconds = state.timing.seconds.max(end);
        self.spans.push(StepSpan { device: device as u32, stream, step: step as u32, start, end });
    }

    /// The first of a stream's waiting steps, which was under way, is done.
    fn arrive(&mut self, device: usize, step: usize, stream: PlanStream, start: f64, end: f64) {
        self.done(device, step, stream, (start, end), end - start);
        let state = &mut self.devices[device];
        state.under_way[stream as usize] = false;
        state.waiting[stream as usize].pop_front();
        self.again.push(device);
    }

    /// Lets devices get on as far as they can.
    fn advance(&mut self) {
        while let Some(device) = self.again.pop() {
            let mut moved = true;
            while std::mem::take(&mut moved) {
                for stream in STREAMS {
                    moved |= self.get_on(device, stream);
                }
            }
        }
    }

    fn get_on(&mut self, device: usize, stream: PlanStream) -> bool {
        let s = stream as usize;
        let mut moved = false;
        while let Some(&step) = self.devices[device].waiting[s].front() {
            let ready = self.ready(device, step as usize, s);
            if self.devices[device].under_way[s] || ready.is_nan() {
                break;
            }
            if !self.begin(device, step as usize, stream, ready) {
                break;
            }
            self.devices[device].waiting[s].pop_front();
            moved = true;
        }
        moved
    }

    /// Comes to a collective; if everybody has, it begins.
    fn come(&mut self, device: usize, step: usize, ready: f64) {
        let (due, _) = due_at(self.ranks, &self.devices, device, step);
        let needs = &self.ranks[device].plan.steps[step].after;
        let computed =
            needs.iter().map(|&other| self.devices[device].done[other as usize]).fold(0.0, f64::max);
        let open = self.open.entry(due.number).or_default();
        open.came.push((device, step, ready, computed));
        if open.came.len() < due.ranks.len() {
            return;
        }
        // Whoever has been there for long is not waited for, however late it may be.
        let latest = |a: [f64; 2], b: f64| if b > a[0] { [b, a[0]] } else { [a[0], a[1].max(b)] };
        let [last, before] = open.came.iter().map(|(.., computed)| *computed).fold([0.0; 2], latest);
        let late = |device: usize| self.ranks[device].uneven.late(self.devices[device].since);
        let late = open.came.iter().map(|(device, ..)| late(*device)).fold(0.0, f64::max);
        // It is computations that are late. Who meets leaves when the others do, for the next collective too.
        let all_came = open.came.iter().map(|(_, _, ready, _)| *ready).fold(0.0, f64::max);
        open.began = all_came.max(last + after(last - before, late));
        let (began, came) = (open.began, open.came.clone());
        for (device, step, ..) in came {
            self.take(device, step, began, 0);
        }
    }

    /// Takes what a device needs of the others, one after the other, from the `first` of them on.
    fn take(&mut self, device: usize, step: usize, now: f64, first: usize) {
        let (due, node) = due_at(self.ranks, &self.devices, device, step);
        for (part, &(other, bytes)) in due.takes.iter().enumerate().skip(first) {
            let route = self.topology.route(Site::Device(other), Site::Device(device as u32));
            if !route.is_empty() && bytes > 0 {
                let transfer = self.booking.transfer(route, bytes, now);
                self.events.push(Event { transfer, route, device, step, began: now, part, sent: 0 });
                return;
            }
        }
        let rank = &self.ranks[device];
        let beside = rank.taken.filter(|_| !self.devices[device].here[step]);
        let least = (rank.seconds)(node).max(beside.map_or(0.0, |taken| taken(node)[1]));
        let (number, ranks) = (due.number, due.ranks.len());
        let open = self.open.get_mut(&number).expect("it was begun");
        open.served += 1;
        open.carried = open.carried.max(now);
        open.ends = open.ends.max(now).max(open.began + least);
        if open.served == ranks {
            let Open { came, began, carried, ends, .. } = self.open.remove(&number).expect("it is there");
            let late =
                |(device, ..): &(usize, usize, f64, f64)| self.ranks[*device].uneven.resumed(carried - began);
            let late = came.iter().map(late).fold(0.0, f64::max);
            for (device, step, ..) in came {
                self.take_time(device, step, began);
                self.arrive(device, step, PlanStream::Exchange, began, ends.max(carried + late));
                // Links do not wait for who is late: what follows at once is under way meanwhile.
                self.devices[device].free[PlanStream::Exchange as usize] = ends;
            }
        }
    }

    /// Kernels that are at work while a collective is held lose the time that it takes.
    fn take_time(&mut self, device: usize, step: usize, began: f64) {
        let Some(taken) = self.ranks[device].taken else { return };
        let (_, node) = due_at(self.ranks, &self.devices, device, step);
        let state = &mut self.devices[device];
        let free = &mut state.free[PlanStream::Compute as usize];
        if *free > began {
            let [seconds, _] = taken(node);
            *free += seconds;
            state.timing.busy[PlanStream::Compute as usize] += seconds;
        }
    }

    /// Sends chunks of a transfer until it is somebody else's turn.
    fn send(&mut self, mut event: Event<'a>) {
        let Event { device, step, part, began, route, .. } = event;
        let next = self.events.peek().map_or(f64::INFINITY, |next| next.transfer.ready());
        loop {
            event.transfer.send(&mut self.booking, route);
            event.sent += 1;
            if event.transfer.is_done() || event.transfer.ready() >= next {
                break;
            }
        }
        let now = event.transfer.ready();
        if !event.transfer.is_done() {
            self.events.push(event);
            return;
        }
        let plan = self.ranks[device].plan;
        match plan.stream(&plan.steps[step].act) {
            Some(PlanStream::Exchange) | None => self.take(device, step, now, part + 1),
            Some(stream) => self.arrive(device, step, stream, began, now),
        }
    }

    fn finish(self) -> Result<JointTiming, SimulatedDeadlock> {
        for (device, state) in self.devices.iter().enumerate() {
            // What does not come to an end is at a collective, or waits for what is.
            let meets = state.waiting[PlanStream::Exchange as usize].front();
            let any = state.waiting.iter().filter_map(VecDeque::front).min();
            if let Some(&step) = meets.or(any) {
                return Err(self.stuck(device, step));
            }
        }
        let links = self.topology.links().iter().zip(self.booking.bytes.iter().zip(&self.booking.busy));
        let links = links.map(|(link, (&bytes, &busy))| LinkUse { name: link.name.clone(), bytes, busy });
        let devices: Vec<Timing> = self.devices.into_iter().map(|state| state.timing).collect();
        let seconds = devices.iter().map(|timing| timing.seconds).fold(0.0, f64::max);
        Ok(JointTiming { seconds, devices, links: links.collect(), spans: self.spans })
    }

    fn stuck(&self, device: usize, step: u32) -> SimulatedDeadlock {
        let rank = self.ranks[device];
        let met = match rank.plan.steps[step as usize].act {
            Act::Exchange { node, .. } => self.devices[device].due.get(node),
            _ => None,
        };
        let (what, missing) = match met {
            Some(due) => {
                let came = self.open.get(&due.number).map_or(&[][..], |open| &open.came);
                let missing = |p: &&u32| came.iter().all(|(device, ..)| *device != **p as usize);
                let missing: Vec<String> = due.ranks.iter().filter(missing).map(u32::to_string).collect();
                (format!("collective {}", due.number), format!("device {}", missing.join(", ")))
            }
            None => ("what other streams do".into(), "somebody at a collective".into()),
        };
        SimulatedDeadlock { device: device as u32, step, what, missing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_work_is_as_uneven_as_it_can_be_and_long_work_less() {
        let late = |share, fades, seconds| Unevenness { share, fades, resumes: 0.0 }.late(seconds);
        assert_eq!((late(0.2, 0.5, 0.0), late(0.0, 0.5, 1.0)), (0.0, 0.0));
        let [short, long] = [1e-3, 1e4].map(|times| times * LITTLE);
        for fades in [0.0, 0.1, 0.5] {
            assert!((late(0.2, fades, short) / (0.2 * short) - 1.0).abs() < 1e-3);
            // Four times as long is four times as late if who is slow stays so, and twice if that changes all the time.
            let times = late(0.2, fades, 4.0 * long) / late(0.2, fades, long);
            assert!((times / 4f64.powf(1.0 - fades) - 1.0).abs() < 1e-3, "{fades}: {times}");
        }
        let mut before = 1.0;
        for seconds in [1e-4, 1e-3, 1e-2, 1e-1] {
            let share = late(0.2, 0.3, seconds) / seconds;
            assert!(share < before && share <= 0.2, "{seconds}: {share}");
            before = share;
        }
    }

    #[test]
    fn who_came_long_before_is_not_waited_for() {
        assert!((after(0.0, 1e-3) / 1e-3 - 1.0).abs() < 1e-9);
        assert!(after(1e-2, 1e-3) < 1e-5);
        assert!(after(5e-4, 1e-3) < after(0.0, 1e-3));
        assert_eq!(after(0.0, 0.0), 0.0);
    }
}
