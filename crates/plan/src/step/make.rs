//! The planner: an outline and the sizes of an input become a plan. Everything is resident, on one
//! device, with storage shared over time. Recompute, swapping and cuts will be passes before the layout.

use crate::budget::view::View;
use crate::document::error::{Holders, PlanError};
use crate::document::links::Links;
use crate::document::plan::{
    Act, Buffer, BufferId, InputPlace, OutputPlace, Place, Plan, Space, Step, TIERS, Tier,
};
use crate::document::residence::Persistent;
use crate::step::layout::{Span, pack};
use crate::step::lifetime::Lifetimes;
use crate::step::order::Turn;
use crate::step::outline::{Outline, Sizes};
use crate::step::progress::{Activity, Observer, Progress, unobserved};
use crate::step::script::{Script, VersionId, What};
use crate::time::cost::{Beside, Curves, Rates};
use gulliver_graph::dim::{Bindings, DimError};
use gulliver_graph::graph::{Graph, Node, NodeId, Role, Value};

/// What a plan is made for.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// Where persistent values are.
    pub persistent: &'a Persistent,
    /// Slices of the batch whose gradients are added in order.
    pub partials: u32,
    /// Hard limit of the device's arena, if there is one.
    pub memory: Option<u64>,
    /// Hard limits of the other tiers.
    pub beside: Beside,
    /// Whether values may be computed again.
    pub recompute: bool,
    /// Whether partials take turns layer by layer, so that weights are fetched once for all of them.
    pub grouped: bool,
    /// The turns of all nodes, if a schedule has given them any.
    pub turns: Option<&'a [Turn]>,
    /// Working memory of the kernel that will run a node, for the sizes of one partial. Nodes of one
    /// kind need the same.
    pub scratch: &'a dyn Fn(&Graph, &Node, &Bindings) -> Result<u64, DimError>,
    /// How fast kernels are, where nothing like them was measured.
    pub rates: Rates,
    /// How fast kernels like them were measured to be on this machine.
    pub curves: Option<&'a Curves>,
    /// How many times longer than `rates` say each kind of node was measured to take; kinds beyond the end
    /// were not measured.
    pub slower: &'a [f64],
    /// How fast links are.
    pub links: Links,
    /// The share of the time of moves that is thought not to be hidden behind kernels.
    pub unhidden: f64,
    /// Is told how planning goes, and may stop it.
    pub observe: &'a Observer<'a>,
}

impl<'a> Options<'a> {
    /// No limits, the batch in one piece, kernels that need no working memory.
    pub fn new(persistent: &'a Persistent) -> Options<'a> {
        Options {
            persistent,
            partials: 1,
            memory: None,
            beside: Beside { host: None, disk: None },
            recompute: true,
            grouped: false,
            turns: None,
            scratch: &|_, _, _| Ok(0),
            rates: Rates::default(),
            curves: None,
            slower: &[],
            links: Links::default(),
            unhidden: UNHIDDEN,
            observe: &unobserved,
        }
    }

    /// Tells the observer; an error if it says stop.
    pub(crate) fn told(&self, activity: Activity, done: usize, of: usize) -> Result<(), PlanError> {
        match (self.observe)(Progress { activity, done, of }).is_continue() {
            true => Ok(()),
            false => Err(PlanError::Interrupted),
        }
    }

    /// The same for an ordinary machine.
    pub(crate) fn at_ordinary_prices(&self) -> Options<'a> {
        let (rates, links) = (Rates::default(), Links::default());
        Options { rates, curves: None, slower: &[], links, unhidden: UNHIDDEN, ..*self }
    }
}

/// The share of the time of moves that is thought not to be hidden, where nothing is known.
const UNHIDDEN: f64 = 0.3;

/// Plans one step of a graph for inputs of these sizes (of the whole batch).
pub fn make(graph: &Graph, sizes: &Bindings, options: &Options) -> Result<Plan, PlanError> {
    Outline::new(graph, sizes, options)?.plan(graph, sizes, options)
}

impl Outline {
    /// Gives everything its bytes and offsets.
    pub(crate) fn lay(
        &self,
        graph: &Graph,
        script: &Script,
        life: &Lifetimes,
        sizes: &Sizes,
        view: &View,
    ) -> Result<Plan, PlanError> {
        let options = view.options;
        options.told(Activity::Layout, 0, 1)?;
        let bytes = |v: Value| sizes.bytes[self.kinds.type_of[v.index()] as usize];
        let storages = &life.storages;
        let mut buffers: Vec<Buffer> = Vec::with_capacity(storages.len() + script.acts.len());
        let mut spans: [Vec<Span>; TIERS.len()] = Default::default();
        let mut moving: [Vec<usize>; TIERS.len()] = Default::default();
        for (i, s) in storages.iter().enumerate() {
            let total = bytes(s.value) * u64::from(s.copies);
            let space = s.tier as usize;
            let mut buffer = Buffer { space: space as u32, offset: 0, bytes: total, value: Some(s.value) };
            if s.persistent {
                // The first storages are those of the inputs, in order.
                match view.places.get(i).copied().flatten() {
                    Some(residence) if residence.bytes == total && residence.tier == s.tier => {
                        buffer.offset = residence.offset
                    }
                    _ => return Err(PlanError::NotPersistent(graph.value(s.value).name.clone())),
                }
            } else {
                let bytes = total.next_multiple_of(s.tier.grain());
                spans[space].push(Span { bytes, start: s.start, end: s.end });
                moving[space].push(i);
            }
            buffers.push(buffer);
        }
        let mut scratch_of = vec![None; script.acts.len()];
        for (t, act) in script.acts.iter().enumerate() {
            let What::Run(id, _) = act.what else { continue };
            let bytes = sizes.scratch[self.kinds.kind_of[id.index()] as usize];
            if bytes > 0 {
                scratch_of[t] = Some(BufferId(buffers.len() as u32));
                moving[0].push(buffers.len());
                spans[0].push(Span { bytes, start: t as u32, end: t as u32 });
                buffers.push(Buffer { space: 0, offset: 0, bytes, value: None });
            }
        }
        let mut ends = options.persistent.ends;
        for space in 0..TIERS.len() {
            let limit = options.memory.filter(|_| space == Tier::Device as usize);
            let (offsets, end) = pack(&spans[space], ends[space], limit, view.at_leisure);
            ends[space] = end;
            for (&i, &offset) in moving[space].iter().zip(&offsets) {
                buffers[i].offset = offset;
            }
        }
        let place = |v: VersionId| {
            let (residence, bytes) = (life.slots[v as usize], bytes(script.versions[v as usize].of.value));
            Place { buffer: BufferId(residence.storage), start: bytes * u64::from(residence.slice), bytes }
        };
        let whole = |id: BufferId| Place { buffer: id, start: 0, bytes: buffers[id.0 as usize].bytes };
        let inputs = graph.inputs().enumerate().map(|(storage, (value, role, _))| InputPlace {
            value,
            place: whole(BufferId(storage as u32)),
            persistent: matches!(role, Role::Weight(_) | Role::State(_)),
        });
        let inputs = inputs.collect();
        let outputs = graph.outputs.iter().zip(&script.outputs).map(|(output, v)| OutputPlace {
            name: output.name.clone(),
            role: output.role,
            scope: output.scope,
            value: output.value,
            place: place(*v),
        });
        let outputs = outputs.collect();
        let meets = |id: NodeId| graph.nodes[id.index()].op.def().meets();
        let steps = steps(script, life, &scratch_of, meets, place, whole);
        let mut plan = Plan {
            sizes: sizes.slice.iter().map(|(s, v)| (s.to_string(), v)).collect(),
            partials: self.partials,
            spaces: spaces(ends),
            buffers,
            inputs,
            outputs,
            steps,
            decisions: Vec::new(),
        };
        for (space, live) in plan.live_peaks().into_iter().enumerate() {
            plan.spaces[space].live = live;
        }
        Ok(plan)
    }
}

fn steps(
    script: &Script,
    life: &Lifetimes,
    scratch_of: &[Option<BufferId>],
    meets: impl Fn(NodeId) -> bool,
    place: impl Fn(VersionId) -> Place,
    whole: impl Fn(BufferId) -> Place,
) -> Vec<Step> {
    let storages = &life.storages;
    let acts = script.acts.len();
    // Inputs are there before the first act; all else from the act that makes it.
    let starts = Groups::new(acts + 1, storages.len(), |i| (!storages[i].input).then_some(storages[i].start));
    let ends = Groups::new(acts + 1, storages.len(), |i| Some(storages[i].end));
    let mut steps: Vec<Step> = Vec::with_capacity(acts * 3 + storages.len());
    let inputs = (0..storages.len()).filter(|&s| storages[s].input);
    steps.extend(inputs.map(|s| Act::Alloc(BufferId(s as u32)).into()));
    for (t, scratch) in scratch_of.iter().enumerate() {
        steps.extend(starts.of(t).iter().map(|&s| Act::Alloc(BufferId(s)).into()));
        let (ins, outs) = script.split(t);
        let at = |versions: &[VersionId]| -> Vec<Place> { versions.iter().map(|v| place(*v)).collect() };
        match script.acts[t].what {
            What::Run(node, partial) if meets(node) => {
                let (own, result) = (ins.first().map(|v| place(*v)), place(outs[0]));
                steps.push(Act::Exchange { node, partial, own, result }.into());
            }
            What::Run(node, partial) => {
                steps.extend(scratch.map(|b| Act::Alloc(b).into()));
                let at_work = scratch.map(&whole);
                steps.push(Act::Run { node, partial, ins: at(ins), outs: at(outs), scratch: at_work }.into());
                steps.extend(scratch.map(|b| Act::Free(b).into()));
            }
            What::Add => steps.push(Act::Add { from: place(ins[0]), into: place(ins[1]) }.into()),
            What::Carry => {
                let [next, input] = [0, 1].map(|i| script.refs(t)[i]);
                let (from, to) = (place(next), place(input));
                let tier = |v: VersionId| script.versions[v as usize].tier;
                if tier(next) != tier(input) {
                    steps.push(Act::Move { from, to }.into());
                } else if from != to {
                    steps.push(Act::Copy { from, to }.into());
                }
            }
            What::Move => steps.push(Act::Move { from: place(ins[0]), to: place(outs[0]) }.into()),
        }
        steps.extend(ends.of(t).iter().map(|&s| Act::Free(BufferId(s)).into()));
    }
    steps
}

/// Numbers in groups, one group after the other.
struct Groups {
    first: Vec<u32>,
    members: Vec<u32>,
}

impl Groups {
    /// Puts member `i` into the group `group_of` gives it, if any, in order.
    fn new(groups: usize, members: usize, group_of: impl Fn(usize) -> Option<u32>) -> Groups {
        let mut first = vec![0u32; groups + 1];
        for g in (0..members).filter_map(&group_of) {
            first[g as usize + 1] += 1;
        }
        for g in 0..groups {
            first[g + 1] += first[g];
        }
        let mut next = first.clone();
        let mut all = vec![0; first[groups] as usize];
        for i in 0..members {
            if let Some(g) = group_of(i) {
                all[next[g as usize] as usize] = i as u32;
                next[g as usize] += 1;
            }
        }
        Groups { first, members: all }
    }

    /// The members of a group.
    fn of(&self, group: usize) -> &[u32] {
        &self.members[self.first[group] as usize..self.first[group + 1] as usize]
    }
}

/// The spaces of a plan for one device.
fn spaces(bytes: [u64; TIERS.len()]) -> Vec<Space> {
    let name = |tier| match tier {
        Tier::Device => "cpu0",
        Tier::Host => "host",
        Tier::Disk => "disk",
    };
    let space = |tier| Space { name: String::from(name(tier)), tier, bytes: bytes[tier as usize], live: 0 };
    TIERS.map(space).into()
}

/// The largest buffers in use when most bytes are.
pub(crate) fn holders(graph: &Graph, plan: &Plan) -> Holders {
    let name = |b: &BufferId| {
        let buffer = plan.buffer(*b);
        let name = buffer.value.map_or("scratch", |v| graph.value(v).name.as_str());
        (name.to_string(), buffer.bytes)
    };
    Holders(plan.at_peak().1.iter().take(Holders::NAMED).map(name).collect())
}
