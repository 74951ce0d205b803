//! How long the plans of several devices take together. Streams of each device do their steps as in
//! [`simulate`](super::simulate); at a meeting all wait for the last to come and leave together; and whatever
//! passes a link takes turns with all else that does.

use super::{Ran, Timing, moved, per_byte, tier};
use crate::cost::Links;
use crate::plan::{Act, Place, Plan, STREAMS, Stream, Tier};
use crate::topology::booking::{Booking, Transfer};
use crate::topology::{Site, Topology};
use gulliver_graph::graph::{Graph, NodeId};
use gulliver_graph::op::Op;
use gulliver_graph::op::exchange::Exchange;
use serde::Serialize;
use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap, VecDeque};

/// One of the devices: its plan, and how fast it is.
#[derive(Clone, Copy)]
pub struct Party<'a> {
    /// What is computed.
    pub graph: &'a Graph,
    /// When and where.
    pub plan: &'a Plan,
    /// Seconds of its nodes; of a meeting, those that it takes at least, whatever the links.
    pub seconds: &'a dyn Fn(NodeId) -> f64,
    /// How fast its own links are where the topology has none.
    pub links: &'a Links,
}

/// What all devices come to together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Together {
    /// Seconds until the last device is done.
    pub seconds: f64,
    /// By device.
    pub devices: Vec<Timing>,
    /// By link of the topology.
    pub links: Vec<LinkUse>,
    /// Every step that does something; those of one stream in order.
    pub spans: Vec<Span>,
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

/// A step of a device and when it is at work.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Span {
    /// The device.
    pub device: u32,
    /// The stream.
    pub stream: Stream,
    /// Index of the step in the plan.
    pub step: u32,
    /// Seconds from the beginning; a meeting begins when everybody has come.
    pub start: f64,
    /// Seconds from the beginning.
    pub end: f64,
}

/// Devices that would wait for ever.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("device {device} waits for ever at step {step} ({what}); {missing} does not come")]
pub struct Stuck {
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
        for step in &plan.steps {
            match &step.act {
                Act::Move { from, to } => count(site(plan, from, own), site(plan, to, own), from.bytes),
                Act::Meet { node, .. } => {
                    let met = exchange_of(graph, plan, *node);
                    for (other, n) in met.iter().flat_map(Exchange::by_party) {
                        count(Site::Device(other), Site::Device(own), n);
                    }
                }
                _ => {}
            }
        }
    }
    bytes
}

fn site(plan: &Plan, place: &Place, device: u32) -> Site {
    match tier(plan, place) {
        Tier::Device => Site::Device(device),
        Tier::Host => Site::Host,
        Tier::Disk => Site::Disk,
    }
}

/// What a node exchanges when this plan runs.
fn exchange_of(graph: &Graph, plan: &Plan, node: NodeId) -> Option<Exchange> {
    let op = &graph.nodes[node.index()].op;
    let bound = op.def().bind(&plan.bindings()).ok().flatten();
    match bound.as_ref().unwrap_or(op) {
        Op::Exchange(what) => Some(what.clone()),
        _ => None,
    }
}

/// Everything a device exchanges, by node.
fn exchanges(party: &Party) -> HashMap<NodeId, Exchange> {
    let all = party.plan.steps.iter().filter_map(|step| match step.act {
        Act::Meet { node, .. } => Some(node),
        _ => None,
    });
    let mut found = HashMap::new();
    for node in all {
        if !found.contains_key(&node)
            && let Some(what) = exchange_of(party.graph, party.plan, node)
        {
            found.insert(node, what);
        }
    }
    found
}

/// Times the plans of all devices at once, by their numbers. Fails if they would wait for each other for ever.
pub fn together(parties: &[Party], topology: &Topology) -> Result<Together, Stuck> {
    let steps = parties.iter().map(|party| party.plan.steps.len()).sum();
    let met: Vec<HashMap<NodeId, Exchange>> = parties.iter().map(exchanges).collect();
    let mut all = All {
        parties,
        met: &met,
        topology,
        devices: parties.iter().map(State::new).collect(),
        booking: Booking::new(topology),
        events: BinaryHeap::new(),
        open: HashMap::new(),
        spans: Vec::with_capacity(steps),
        again: Vec::new(),
    };
    for device in 0..parties.len() {
        for step in 0..parties[device].plan.steps.len() {
            all.next(device, step);
        }
    }
    all.settle();
    while let Some(event) = all.events.pop() {
        all.send(event);
        all.settle();
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
}

impl State {
    fn new(party: &Party) -> State {
        State {
            timing: Timing { moved: moved(party.plan), ..Timing::default() },
            free: [0.0; STREAMS.len()],
            done: vec![f64::NAN; party.plan.steps.len()],
            waiting: Default::default(),
            under_way: [false; STREAMS.len()],
            ran: Ran::default(),
        }
    }
}

/// A meeting to which somebody has come.
#[derive(Default)]
struct Open {
    /// Who, at which step, when.
    came: Vec<(usize, usize, f64)>,
    /// When it began, how many have taken all they need, and the last of them when.
    began: f64,
    served: usize,
    ends: f64,
}

/// A transfer that can send its next chunk.
#[derive(Clone, Copy)]
struct Event {
    transfer: Transfer,
    device: usize,
    step: usize,
    began: f64,
    /// Of those that a meeting asks for, which one.
    part: usize,
    /// Chunks sent so far: of those that are ready at the same time, whoever has sent least is first.
    sent: u64,
}

impl PartialEq for Event {
    fn eq(&self, other: &Event) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Event) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    /// The greatest is what happens first.
    fn cmp(&self, other: &Event) -> Ordering {
        let ready = other.transfer.ready().total_cmp(&self.transfer.ready());
        ready.then_with(|| (other.sent, other.device, other.step).cmp(&(self.sent, self.device, self.step)))
    }
}

struct All<'a> {
    parties: &'a [Party<'a>],
    /// What is exchanged, by device and node.
    met: &'a [HashMap<NodeId, Exchange>],
    topology: &'a Topology,
    devices: Vec<State>,
    booking: Booking,
    events: BinaryHeap<Event>,
    /// By number.
    open: HashMap<u32, Open>,
    spans: Vec<Span>,
    /// Devices that may get on.
    again: Vec<usize>,
}

impl<'a> All<'a> {
    /// Does the step that comes next in the plan's order, or lets it wait.
    fn next(&mut self, device: usize, step: usize) {
        let plan = self.parties[device].plan;
        let act = &plan.steps[step].act;
        let Some(stream) = plan.stream(act) else { return };
        let s = stream as usize;
        if self.devices[device].waiting[s].is_empty() {
            let ready = self.ready(device, step, s);
            if !ready.is_nan() && stream == Stream::Compute {
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
        let after = &self.parties[device].plan.steps[step].after;
        let later = |a: f64, b: f64| if a >= b || a.is_nan() { a } else { b };
        after.iter().map(|&other| state.done[other as usize]).fold(state.free[stream], later)
    }

    /// Begins a step; false if it is not known yet when it will be done, or it was told already.
    fn begin(&mut self, device: usize, step: usize, stream: Stream, ready: f64) -> bool {
        let Party { plan, seconds: node, links, .. } = self.parties[device];
        let seconds = match &plan.steps[step].act {
            Act::Alloc(_) | Act::Free(_) => return true,
            Act::Run { node: id, partial, .. } => {
                let seconds = node(*id);
                let state = &mut self.devices[device];
                if !state.ran.insert(plan, *id, *partial) {
                    state.timing.again += seconds;
                }
                seconds
            }
            Act::Copy { from, .. } | Act::Add { from, .. } => from.bytes as f64 / links.to_device,
            Act::Move { from, to } => {
                let own = device as u32;
                let route = self.topology.route(site(plan, from, own), site(plan, to, own));
                if !route.is_empty() && from.bytes > 0 {
                    let transfer = self.booking.transfer(route, from.bytes, ready);
                    self.devices[device].under_way[stream as usize] = true;
                    self.events.push(Event { transfer, device, step, began: ready, part: 0, sent: 0 });
                    return false;
                }
                from.bytes as f64 * per_byte(links, tier(plan, from), tier(plan, to))
            }
            Act::Meet { node: id, .. } => match self.met[device].get(id) {
                Some(what) if what.parties != [what.party] => {
                    self.devices[device].under_way[stream as usize] = true;
                    self.come(what, device, step, ready);
                    return false;
                }
                _ => node(*id),
            },
        };
        self.done(device, step, stream, (ready, ready + seconds), seconds);
        true
    }

    fn done(&mut self, device: usize, step: usize, stream: Stream, (start, end): (f64, f64), busy: f64) {
        let state = &mut self.devices[device];
        state.done[step] = end;
        state.free[stream as usize] = end;
        state.timing.busy[stream as usize] += busy;
        state.timing.seconds = state.timing.seconds.max(end);
        self.spans.push(Span { device: device as u32, stream, step: step as u32, start, end });
    }

    /// The first of a stream's waiting steps, which was under way, is done.
    fn arrive(&mut self, device: usize, step: usize, stream: Stream, start: f64, end: f64) {
        self.done(device, step, stream, (start, end), end - start);
        let state = &mut self.devices[device];
        state.under_way[stream as usize] = false;
        state.waiting[stream as usize].pop_front();
        self.again.push(device);
    }

    /// Lets devices get on as far as they can.
    fn settle(&mut self) {
        while let Some(device) = self.again.pop() {
            let mut moved = true;
            while std::mem::take(&mut moved) {
                for stream in STREAMS {
                    moved |= self.get_on(device, stream);
                }
            }
        }
    }

    fn get_on(&mut self, device: usize, stream: Stream) -> bool {
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

    /// Comes to a meeting; if everybody has, it begins.
    fn come(&mut self, what: &'a Exchange, device: usize, step: usize, ready: f64) {
        let open = self.open.entry(what.meeting).or_default();
        open.came.push((device, step, ready));
        if open.came.len() < what.parties.len() {
            return;
        }
        open.began = open.came.iter().map(|(.., ready)| *ready).fold(0.0, f64::max);
        let (began, came) = (open.began, open.came.clone());
        for (device, step, _) in came {
            self.take(device, step, began, 0);
        }
    }

    fn what(&self, device: usize, step: usize) -> (&'a Exchange, NodeId) {
        let party = self.parties[device];
        let Act::Meet { node, .. } = party.plan.steps[step].act else { unreachable!("only these are held") };
        (self.met[device].get(&node).expect("only these are held"), node)
    }

    /// Takes what a device needs of the others, one after the other, from the `first` of them on.
    fn take(&mut self, device: usize, step: usize, now: f64, first: usize) {
        let (what, node) = self.what(device, step);
        for (part, (other, bytes)) in what.by_party().into_iter().enumerate().skip(first) {
            let route = self.topology.route(Site::Device(other), Site::Device(device as u32));
            if !route.is_empty() && bytes > 0 {
                let transfer = self.booking.transfer(route, bytes, now);
                self.events.push(Event { transfer, device, step, began: now, part, sent: 0 });
                return;
            }
        }
        let least = (self.parties[device].seconds)(node);
        let open = self.open.get_mut(&what.meeting).expect("it was begun");
        open.served += 1;
        open.ends = open.ends.max(now).max(open.began + least);
        if open.served == what.parties.len() {
            let Open { came, began, ends, .. } = self.open.remove(&what.meeting).expect("it is there");
            for (device, step, _) in came {
                self.arrive(device, step, Stream::Meet, began, ends);
            }
        }
    }

    /// Sends chunks of a transfer until it is somebody else's turn.
    fn send(&mut self, mut event: Event) {
        let Event { device, step, part, began, .. } = event;
        let plan = self.parties[device].plan;
        let own = device as u32;
        let act = &plan.steps[step].act;
        let (from, to) = match act {
            Act::Move { from, to } => (site(plan, from, own), site(plan, to, own)),
            _ => (Site::Device(self.what(device, step).0.by_party()[part].0), Site::Device(own)),
        };
        let route = self.topology.route(from, to);
        let next = self.events.peek().map_or(f64::INFINITY, |next| next.transfer.ready());
        loop {
            event.transfer.send(&mut self.booking, route);
            event.sent += 1;
            if event.transfer.is_done() || event.transfer.ready() >= next {
                break;
            }
        }
        let now = event.transfer.ready();
        match (event.transfer.is_done(), plan.stream(act)) {
            (false, _) => self.events.push(event),
            (true, Some(Stream::Meet) | None) => self.take(device, step, now, part + 1),
            (true, Some(stream)) => self.arrive(device, step, stream, began, now),
        }
    }

    fn finish(self) -> Result<Together, Stuck> {
        for (device, state) in self.devices.iter().enumerate() {
            // What does not come to an end is at a meeting, or waits for what is.
            let meets = state.waiting[Stream::Meet as usize].front();
            let any = state.waiting.iter().filter_map(VecDeque::front).min();
            if let Some(&step) = meets.or(any) {
                return Err(self.stuck(device, step));
            }
        }
        let links = self.topology.links().iter().zip(self.booking.bytes.iter().zip(&self.booking.busy));
        let links = links.map(|(link, (&bytes, &busy))| LinkUse { name: link.name.clone(), bytes, busy });
        let devices: Vec<Timing> = self.devices.into_iter().map(|state| state.timing).collect();
        let seconds = devices.iter().map(|timing| timing.seconds).fold(0.0, f64::max);
        Ok(Together { seconds, devices, links: links.collect(), spans: self.spans })
    }

    fn stuck(&self, device: usize, step: u32) -> Stuck {
        let party = self.parties[device];
        let met = match party.plan.steps[step as usize].act {
            Act::Meet { node, .. } => self.met[device].get(&node),
            _ => None,
        };
        let (what, missing) = match met {
            Some(what) => {
                let came = self.open.get(&what.meeting).map_or(&[][..], |open| &open.came);
                let missing = |p: &&u32| came.iter().all(|(device, ..)| *device != **p as usize);
                let missing: Vec<String> = what.parties.iter().filter(missing).map(u32::to_string).collect();
                (format!("meeting {}", what.meeting), format!("device {}", missing.join(", ")))
            }
            None => ("what other streams do".into(), "somebody at a meeting".into()),
        };
        Stuck { device: device as u32, step, what, missing }
    }
}
