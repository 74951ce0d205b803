//! The simulated time of the plans of several devices together. Streams of each device do their steps as in
//! [`simulate`](super::simulate). All ranks of a collective wait for the last one and continue together. Transfers over
//! one link share it.

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
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

/// The plan of one device, and its speeds.
#[derive(Clone, Copy)]
pub struct RankPlan<'a> {
    /// Its graph.
    pub graph: &'a Graph,
    /// Its plan.
    pub plan: &'a Plan,
    /// Seconds of its nodes while all devices compute; of a collective, the least, whatever the links.
    pub seconds: &'a dyn Fn(NodeId) -> f64,
    /// Seconds of its nodes while the other devices are idle; none if they are the same.
    pub alone: Option<&'a dyn Fn(NodeId) -> f64>,
    /// For collectives beside kernels that use all cores: seconds that kernels lose, and the least seconds of the
    /// collective. None if there is a free core.
    pub taken: Option<&'a dyn Fn(NodeId) -> [f64; 2]>,
    /// How late it may come to collectives.
    pub uneven: Unevenness,
    /// Speeds of its links where the topology has none.
    pub links: &'a Links,
}

/// The result of a simulation of all devices.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JointTiming {
    /// Seconds until the last device is done.
    pub seconds: f64,
    /// By device.
    pub devices: Vec<Timing>,
    /// By link of the topology.
    pub links: Vec<LinkUse>,
    /// Every step that takes time; those of one stream in order.
    pub spans: Vec<StepSpan>,
}

/// The traffic of a link.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkUse {
    /// Its name.
    pub name: String,
    /// Bytes over it.
    pub bytes: u64,
    /// Busy seconds.
    pub busy: f64,
}

/// Devices that would wait forever.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("device {device} waits forever at step {step} ({what}); {missing} does not come")]
pub struct SimulatedDeadlock {
    /// One of the waiting devices.
    pub device: u32,
    /// Index of the step at which it waits.
    pub step: u32,
    /// The collective or streams that it waits for.
    pub what: String,
    /// The devices that do not come.
    pub missing: String,
}

fn site(plan: &Plan, place: &BufferRange, device: u32) -> Site {
    match plan.tier(place) {
        Tier::Device => Site::Device(device),
        Tier::Host => Site::Host,
        Tier::Disk => Site::Disk,
    }
}

/// A collective of a device's plan.
struct Due {
    number: u32,
    ranks: Vec<u32>,
    /// Bytes received from each of the other ranks, in order.
    takes: Vec<(u32, u64)>,
}

/// The collectives of a plan, by node.
fn collectives(graph: &Graph, plan: &Plan) -> Vec<Option<Due>> {
    let sizes = plan.bindings();
    let due = |node| {
        with_collective(node, &sizes, |what| Due {
            number: what.collective,
            ranks: what.ranks.clone(),
            takes: what.by_rank(),
        })
    };
    graph.nodes.iter().map(due).collect()
}

impl Due {
    /// Whether it has other ranks.
    fn others(&self) -> bool {
        self.ranks.iter().any(|rank| *rank != self.ranks[0])
    }
}

/// Seconds of work that count as short.
const LITTLE: f64 = 3e-3;
/// Seconds of waiting for a link after which a device continues half as late as after a long wait.
const SOON: f64 = 5e-4;

/// How uneven devices of the same kind are, since other programs use the machine too.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Unevenness {
    /// The share by which the slowest of all devices takes longer than the mean for short work.
    pub share: f64,
    /// The power of its length by which longer work is less uneven: 0 if a slow device stays slow, 0.5 if that changes
    /// at random.
    pub fades: f64,
    /// Seconds by which devices continue late after a long wait for a link.
    pub resumes: f64,
}

impl Unevenness {
    /// How late the slowest of several devices comes to a collective after some seconds of work.
    fn late(&self, seconds: f64) -> f64 {
        self.share * seconds * (1.0 + seconds / LITTLE).powf(-self.fades)
    }

    /// How late devices continue after waiting for a link for some seconds.
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

/// Times that the simulation is repeated, each with kernel times by how busy the other devices were in the last one.
const AGAIN: usize = 3;

/// Times the plans of all devices together, by rank. Fails if they would wait for each other forever.
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

/// By device and compute step: the share of the other devices that compute meanwhile. `steps` are the numbers of steps of
/// the devices' plans, of which there are several.
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

/// Times all devices once. Kernel times depend on `crowds`; without it, all other devices count as busy.
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
        transfers: Vec::new(),
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
    while let Some(Reverse((.., transfer))) = all.events.pop() {
        all.send(transfer);
        all.advance();
    }
    all.finish()
}

/// The progress of a device.
struct State {
    timing: Timing,
    /// By stream: when its last started step ends.
    free: [f64; STREAMS.len()],
    /// By step: when it ends; NaN until that is known.
    done: Vec<f64>,
    /// By stream: steps whose end is not known yet.
    waiting: [VecDeque<u32>; STREAMS.len()],
    /// By stream: whether the first of them has started.
    under_way: [bool; STREAMS.len()],
    ran: Ran,
    /// By node.
    due: Vec<Option<Due>>,
    /// Seconds of kernels since the computation last waited: its lateness grows with them.
    since: f64,
    /// By step: whether it is a collective that runs inline.
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
            due: collectives(rank.graph, rank.plan),
            since: 0.0,
            here: inline_collectives(rank.plan),
        }
    }
}

/// A collective to which a rank has come.
#[derive(Default)]
struct Open {
    /// Device, step, when it came, and when its operand was computed.
    came: Vec<(usize, usize, f64, f64)>,
    /// When it began, how many ranks have received all, when links had carried all of it, and when it ends.
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
    /// For a collective: the index of the transfer among those of the device.
    part: usize,
    /// Chunks sent so far: of transfers ready at the same time, the one with fewest is first.
    sent: u64,
}

/// The collective of a step, and its node.
fn due_at<'s>(ranks: &[RankPlan], devices: &'s [State], device: usize, step: usize) -> (&'s Due, NodeId) {
    let Act::Exchange { node, .. } = ranks[device].plan.steps[step].act else {
        unreachable!("only these are held")
    };
    (devices[device].due[node.index()].as_ref().expect("only collectives are held"), node)
}

struct All<'a> {
    ranks: &'a [RankPlan<'a>],
    topology: &'a Topology,
    devices: Vec<State>,
    booking: Booking,
    /// All transfers that were started.
    transfers: Vec<Event<'a>>,
    /// When a transfer is ready (as bits: times are not negative), its chunks, device, step and index.
    events: BinaryHeap<Reverse<(u64, u64, usize, usize, usize)>>,
    /// By number.
    open: HashMap<u32, Open>,
    spans: Vec<StepSpan>,
    /// Devices that may continue.
    again: Vec<usize>,
    /// By device and step: the share of other devices that compute meanwhile; empty if all do.
    crowds: &'a [Vec<f32>],
}

impl<'a> All<'a> {
    /// Starts the next step in the plan's order, or queues it.
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

    /// When all steps that a step waits for are done; NaN if that is not known.
    fn ready(&self, device: usize, step: usize, stream: usize) -> f64 {
        let state = &self.devices[device];
        let after = &self.ranks[device].plan.steps[step].after;
        let later = |a: f64, b: f64| if a >= b || a.is_nan() { a } else { b };
        after.iter().map(|&other| state.done[other as usize]).fold(state.free[stream], later)
    }

    /// Starts a step; false if its end is not known yet.
    fn begin(&mut self, device: usize, step: usize, stream: PlanStream, ready: f64) -> bool {
        let RankPlan { plan, seconds: node, alone, links, .. } = self.ranks[device];
        // A device that waits for a collective continues when the others do.
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
                    self.start(Event { transfer, route, device, step, began: ready, part: 0, sent: 0 });
                    return false;
                }
                from.bytes as f64 * per_byte(links, plan.tier(from), plan.tier(to))
            }
            Act::Exchange { node: id, .. } => {
                if self.devices[device].due[id.index()].as_ref().is_some_and(Due::others) {
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

    /// Ends the first of a stream's queued steps.
    fn arrive(&mut self, device: usize, step: usize, stream: PlanStream, start: f64, end: f64) {
        self.done(device, step, stream, (start, end), end - start);
        let state = &mut self.devices[device];
        state.under_way[stream as usize] = false;
        state.waiting[stream as usize].pop_front();
        self.again.push(device);
    }

    /// Continues devices as far as possible.
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

    /// A rank comes to a collective; with the last rank it begins.
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
        // A rank that came long before the last one delays nobody, however uneven it is.
        let latest = |a: [f64; 2], b: f64| if b > a[0] { [b, a[0]] } else { [a[0], a[1].max(b)] };
        let [last, before] = open.came.iter().map(|(.., computed)| *computed).fold([0.0; 2], latest);
        let late = |device: usize| self.ranks[device].uneven.late(self.devices[device].since);
        let late = open.came.iter().map(|(device, ..)| late(*device)).fold(0.0, f64::max);
        // Only computations are late: ranks leave a collective together, also towards the next one.
        let all_came = open.came.iter().map(|(_, _, ready, _)| *ready).fold(0.0, f64::max);
        open.began = all_came.max(last + after(last - before, late));
        let (began, came) = (open.began, open.came.clone());
        for (device, step, ..) in came {
            self.take(device, step, began, 0);
        }
    }

    /// Starts the transfers that a device needs from other ranks, one after another, from the `first` on.
    fn take(&mut self, device: usize, step: usize, now: f64, first: usize) {
        let (due, node) = due_at(self.ranks, &self.devices, device, step);
        for (part, &(other, bytes)) in due.takes.iter().enumerate().skip(first) {
            let route = self.topology.route(Site::Device(other), Site::Device(device as u32));
            if !route.is_empty() && bytes > 0 {
                let transfer = self.booking.transfer(route, bytes, now);
                self.start(Event { transfer, route, device, step, began: now, part, sent: 0 });
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
                // Links do not wait for late devices: the next collective may start meanwhile.
                self.devices[device].free[PlanStream::Exchange as usize] = ends;
            }
        }
    }

    /// Subtracts the time of a collective from kernels that run beside it.
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

    fn start(&mut self, event: Event<'a>) {
        self.transfers.push(event);
        self.queue(self.transfers.len() - 1);
    }

    fn queue(&mut self, index: usize) {
        let Event { transfer, device, step, sent, .. } = &self.transfers[index];
        self.events.push(Reverse((transfer.ready().to_bits(), *sent, *device, *step, index)));
    }

    /// Sends chunks of a transfer until another one is due.
    fn send(&mut self, index: usize) {
        let event = &mut self.transfers[index];
        let Event { device, step, part, began, route, .. } = *event;
        let next = self.events.peek().map_or(f64::INFINITY, |Reverse((ready, ..))| f64::from_bits(*ready));
        loop {
            event.transfer.send(&mut self.booking, route);
            event.sent += 1;
            if event.transfer.is_done() || event.transfer.ready() >= next {
                break;
            }
        }
        let now = event.transfer.ready();
        if !event.transfer.is_done() {
            self.queue(index);
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
            // A step that does not end is a collective, or waits for one.
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
            Act::Exchange { node, .. } => self.devices[device].due[node.index()].as_ref(),
            _ => None,
        };
        let (what, missing) = match met {
            Some(due) => {
                let came = self.open.get(&due.number).map_or(&[][..], |open| &open.came);
                let missing = |p: &&u32| came.iter().all(|(device, ..)| *device != **p as usize);
                let missing: Vec<String> = due.ranks.iter().filter(missing).map(u32::to_string).collect();
                (format!("collective {}", due.number), format!("device {}", missing.join(", ")))
            }
            None => ("steps of other streams".into(), "a device at a collective".into()),
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
