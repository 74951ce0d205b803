//! From a cut to one ordinary graph per device: each does its part of every node, and where it needs what
//! others hold, their graphs meet in an exchange. One fetch serves all that need the same box, or less.

use super::bound::{Bound, SUMS};
use super::part::{Need, parts_of, ranges, same_axis};
use super::region::{Grid, area, contains, held, intersect, whole};
use super::traffic::{differ, slice_along};
use super::{Choice, Cut, CutError, Spread, check_levels};
use gulliver_graph::dim::{Bindings, Dim};
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::{Graph, Node, NodeId, Origin, Phase, Type, Value, ValueInfo};
use gulliver_graph::op::Op;
use gulliver_graph::op::exchange::{Exchange, Piece};
use gulliver_graph::op::slice::Slice;
use gulliver_graph::spec::Region;
use std::collections::HashMap;
use std::ops::Range;

/// What one device does.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// A graph without symbols, for inputs of one size.
    pub graph: Graph,
    /// By input of that graph, in its order: which box of the job's input it is, and the extents of all of it.
    pub inputs: Vec<(Value, Region, Vec<usize>)>,
}

/// The graphs of all devices, for inputs of these sizes (of one partial). Everyone comes to the same meetings
/// in the same order.
pub fn deal(graph: &Graph, sizes: &Bindings, cut: &Cut) -> Result<Vec<Share>, CutError> {
    check_levels(&cut.levels)?;
    let bound = Bound::new(graph, sizes)?;
    let grid = Grid::new(&cut.levels);
    let mut dealer = Dealer::new(&bound, sizes, cut, &grid);
    let needs = dealer.needs()?;
    dealer.note(&needs);
    dealer.inputs();
    dealer.ends(&needs, |origin| matches!(origin, Origin::Input(_)))?;
    for id in 0..graph.nodes.len() {
        dealer.node(id, &needs.of_node[id])?;
        dealer.ends(&needs, |origin| matches!(origin, Origin::Node { node, .. } if node.index() == id))?;
    }
    Ok(dealer
        .devices
        .into_iter()
        .map(|device| Share { graph: device.graph, inputs: device.inputs })
        .collect())
}

/// The phase and objective of what makes a value.
fn made_in(graph: &Graph, v: Value) -> (Phase, u32) {
    match graph.value(v).origin {
        Origin::Node { node, .. } => {
            let node = &graph.nodes[node.index()];
            (node.phase, node.stage)
        }
        Origin::Input(_) => (Phase::Forward, 0),
    }
}

/// What is needed of every value, by who needs it.
struct Needs {
    /// By node, then operand.
    of_node: Vec<Vec<Need>>,
    /// By carry: where the input lives.
    of_carry: Vec<Need>,
    /// By output: all of it, everywhere.
    of_output: Vec<Need>,
}

struct Device {
    graph: Graph,
    /// By value of the job's graph: what this device holds of it.
    local: Vec<Option<Value>>,
    inputs: Vec<(Value, Region, Vec<usize>)>,
}

impl Device {
    fn value(&mut self, info: ValueInfo) -> Value {
        self.graph.values.push(info);
        Value(self.graph.values.len() as u32 - 1)
    }

    fn push(&mut self, node: Node) {
        let id = NodeId(self.graph.nodes.len() as u32);
        for (output, v) in node.outs.iter().enumerate() {
            self.graph.values[v.index()].origin = Origin::Node { node: id, output };
        }
        self.graph.nodes.push(node);
    }

    /// Appends a node with one new result.
    fn add(
        &mut self,
        op: Op,
        ins: Vec<Value>,
        (name, ty): (String, Type),
        (phase, stage): (Phase, u32),
    ) -> Value {
        let origin = Origin::Node { node: NodeId(0), output: 0 };
        let out = self.value(ValueInfo { name, ty, origin });
        self.push(Node { op, ins, outs: vec![out], phase, stage });
        out
    }
}

/// What devices hold of one value: complete, or partial results at some levels.
#[derive(Clone)]
struct Holding {
    values: Vec<Value>,
    boxes: Vec<Region>,
    /// Levels at which devices of different groups hold different boxes, and partial results.
    along: u64,
    partial: u64,
}

struct Dealer<'a> {
    bound: &'a Bound<'a>,
    sizes: &'a Bindings,
    cut: &'a Cut,
    grid: &'a Grid<'a>,
    devices: Vec<Device>,
    /// By value: what each device is fed of it, if it is.
    fed: Vec<Option<Vec<Region>>>,
    /// By value: everything that is needed of it, largest first.
    needs_of: Vec<Vec<Need>>,
    /// What was fetched: of which value, which need, and whether for an update.
    fetched: HashMap<(Value, Need, bool), Vec<Value>>,
    /// What was made complete where it is: value, levels left partial, and whether for an update.
    reduced: HashMap<(Value, u64, bool), Holding>,
    meetings: u32,
}

/// The least box that holds both.
fn hull(a: Region, b: Region) -> Region {
    let both = |(a, b): (Range<usize>, Range<usize>)| match (a.is_empty(), b.is_empty()) {
        (true, _) => b,
        (_, true) => a,
        _ => a.start.min(b.start)..a.end.max(b.end),
    };
    a.into_iter().zip(b).map(both).collect()
}

fn slices(shapes: &[Vec<usize>]) -> Vec<&[usize]> {
    shapes.iter().map(Vec::as_slice).collect()
}

fn extents(region: &[Range<usize>]) -> Vec<usize> {
    region.iter().map(Range::len).collect()
}

fn fixed(dtype: DType, region: &[Range<usize>]) -> Type {
    Type::new(dtype, &extents(region))
}

impl<'a> Dealer<'a> {
    fn new(bound: &'a Bound<'a>, sizes: &'a Bindings, cut: &'a Cut, grid: &'a Grid<'a>) -> Dealer<'a> {
        let device = || Device {
            graph: Graph::default(),
            local: vec![None; bound.graph.values.len()],
            inputs: Vec::new(),
        };
        let devices = (0..grid.devices()).map(|_| device()).collect();
        let needs_of = vec![Vec::new(); bound.graph.values.len()];
        let (fetched, reduced) = (HashMap::new(), HashMap::new());
        let fed = vec![None; bound.graph.values.len()];
        Dealer { bound, sizes, cut, grid, devices, fed, needs_of, fetched, reduced, meetings: 0 }
    }

    fn held(&self, v: Value, device: usize) -> Region {
        if let Some(fed) = &self.fed[v.index()] {
            return fed[device].clone();
        }
        held(&self.bound.shapes[v.index()], &self.cut.values[v.index()], self.grid, device)
    }

    /// Weights and states lie where the cut says; whatever else comes from outside is fed to each device as
    /// far as it needs it.
    fn inputs(&mut self) {
        for (v, role, info) in self.bound.graph.inputs() {
            if !self.bound.has_home(v.index()) {
                let hull = |d: usize| {
                    let boxes = self.needs_of[v.index()].iter().map(|need| need.boxes[d].clone());
                    boxes.reduce(hull).unwrap_or_else(|| whole(&self.bound.shapes[v.index()]))
                };
                self.fed[v.index()] = Some((0..self.devices.len()).map(hull).collect());
            }
            for d in 0..self.devices.len() {
                let region = self.held(v, d);
                let ty = fixed(info.ty.dtype, &region);
                let device = &mut self.devices[d];
                let local =
                    device.value(ValueInfo { name: info.name.clone(), ty, origin: Origin::Input(role) });
                device.local[v.index()] = Some(local);
                device.inputs.push((local, region, self.bound.shapes[v.index()].clone()));
            }
        }
    }

    fn needs(&self) -> Result<Needs, CutError> {
        let graph = self.bound.graph;
        let complete = |boxes| Need { boxes, unreduced: 0 };
        let everywhere = |v: &Value| vec![whole(&self.bound.shapes[v.index()]); self.devices.len()];
        let of_node = (0..graph.nodes.len()).map(|id| {
            let parts = parts_of(self.bound.kind(id), &self.cut.choices(graph, id), self.grid);
            parts.map(|parts| parts.ins).map_err(|why| CutError::Illegal { node: id, why })
        });
        let home = |input: &Value| (0..self.devices.len()).map(|d| self.held(*input, d)).collect();
        Ok(Needs {
            of_node: of_node.collect::<Result<_, CutError>>()?,
            of_carry: graph.carries.iter().map(|(input, _)| complete(home(input))).collect(),
            of_output: graph.outputs.iter().map(|(_, v)| complete(everywhere(v))).collect(),
        })
    }

    /// Notes what is needed of each value.
    fn note(&mut self, needs: &Needs) {
        let graph = self.bound.graph;
        let of_nodes = graph.nodes.iter().zip(&needs.of_node).flat_map(|(n, needs)| n.ins.iter().zip(needs));
        let of_carries = graph.carries.iter().map(|(_, next)| next).zip(&needs.of_carry);
        let of_outputs = graph.outputs.iter().map(|(_, v)| v).zip(&needs.of_output);
        for (v, need) in of_nodes.chain(of_carries).chain(of_outputs) {
            let list = &mut self.needs_of[v.index()];
            if !list.contains(need) {
                list.push(need.clone());
            }
        }
        let total = |need: &Need| need.boxes.iter().map(|b| area(b)).sum::<u64>();
        self.needs_of.iter_mut().for_each(|list| list.sort_by_key(|need| std::cmp::Reverse(total(need))));
    }

    /// The largest need of the same value in which this one lies, on every device that does not have its box.
    fn cover(&self, v: Value, need: &Need, holding: &Holding) -> Need {
        let complete = holding.partial == need.unreduced;
        let inside = |other: &&Need| {
            let pairs = other.boxes.iter().zip(&need.boxes).zip(&holding.boxes);
            let lies = |((outer, inner), own): ((&Region, &Region), &Region)| {
                contains(outer, inner) || complete && contains(own, inner)
            };
            other.unreduced == need.unreduced && pairs.into_iter().all(lies)
        };
        self.needs_of[v.index()].iter().find(inside).unwrap_or(need).clone()
    }

    /// Carries and outputs whose value is now there.
    fn ends(&mut self, needs: &Needs, now: impl Fn(Origin) -> bool) -> Result<(), CutError> {
        let graph = self.bound.graph;
        for ((input, next), need) in graph.carries.iter().zip(&needs.of_carry) {
            if !now(graph.value(*next).origin) {
                continue;
            }
            let made = self.fetch(*next, need, made_in(graph, *next))?;
            for (device, made) in self.devices.iter_mut().zip(made) {
                let local = device.local[input.index()].expect("inputs come first");
                device.graph.carries.push((local, made));
            }
        }
        for ((name, v), need) in graph.outputs.iter().zip(&needs.of_output) {
            if !now(graph.value(*v).origin) {
                continue;
            }
            let made = self.fetch(*v, need, made_in(graph, *v))?;
            for (device, made) in self.devices.iter_mut().zip(made) {
                device.graph.outputs.push((name.clone(), made));
            }
        }
        Ok(())
    }

    /// Each device's part of a node.
    fn node(&mut self, id: usize, needs: &[Need]) -> Result<(), CutError> {
        let (graph, kind) = (self.bound.graph, self.bound.kind(id));
        let node = &graph.nodes[id];
        let illegal = |why: String| CutError::Illegal { node: id, why };
        let choices = self.cut.choices(graph, id);
        let parts = parts_of(kind, &choices, self.grid).map_err(illegal)?;
        for (v, spreads) in node.outs.iter().zip(&parts.spreads) {
            if *spreads != self.cut.values[v.index()] {
                return Err(illegal(format!("%{} does not lie as its node leaves it", v.0)));
            }
        }
        let mut ins: Vec<Vec<Value>> = vec![Vec::new(); self.devices.len()];
        for (v, need) in node.ins.iter().zip(needs) {
            let local = self.fetch(*v, need, (node.phase, node.stage))?;
            ins.iter_mut().zip(local).for_each(|(ins, v)| ins.push(v));
        }
        for (d, ins) in ins.into_iter().enumerate() {
            let op = self.part(id, &choices, d)?;
            let device = &mut self.devices[d];
            let outs: Vec<Value> = node
                .outs
                .iter()
                .enumerate()
                .map(|(o, v)| {
                    let info = graph.value(*v);
                    let ty = fixed(info.ty.dtype, &parts.outs[o][d]);
                    let local = device.value(ValueInfo { name: info.name.clone(), ty, origin: info.origin });
                    device.local[v.index()] = Some(local);
                    local
                })
                .collect();
            device.push(Node { op, ins, outs, phase: node.phase, stage: node.stage });
        }
        Ok(())
    }

    /// The operator of a device's part of a node.
    fn part(&self, id: usize, choices: &[Choice], device: usize) -> Result<Op, CutError> {
        let (node, kind) = (&self.bound.graph.nodes[id], self.bound.kind(id));
        let mut op = node.op.def().bind(self.sizes)?.unwrap_or_else(|| node.op.clone());
        let cuts = ranges(kind, choices, self.grid, device);
        let (mut ins, mut outs) = (kind.ins.clone(), kind.outs.clone());
        let dtypes: Vec<DType> = node.ins.iter().map(|v| self.bound.graph.ty(*v).dtype).collect();
        let wrong = |source| CutError::Node { node: id, op: node.op.def().name(), source: Box::new(source) };
        for (i, (axis, range, _)) in cuts.into_iter().enumerate() {
            let types: Vec<Type> = dtypes.iter().zip(&ins).map(|(t, shape)| Type::new(*t, shape)).collect();
            let (spec, axis) = match i {
                0 => (kind.spec.clone(), axis),
                _ => {
                    let spec = op.def().spec(&types).map_err(wrong)?;
                    let axis = same_axis(&kind.spec, axis, &spec);
                    let lost = || CutError::Illegal { node: id, why: "a part has lost an axis".into() };
                    (spec, axis.ok_or_else(lost)?)
                }
            };
            let extents = match i {
                0 => kind.extents.clone(),
                _ => {
                    let dims: Vec<&[Dim]> = types.iter().map(|t| t.shape.as_slice()).collect();
                    let extents = spec.extents(&dims).map_err(|e| wrong(e.into()))?;
                    extents.iter().map(|d| d.bind(&Bindings::new())).collect::<Result<_, _>>()?
                }
            };
            let part = spec.part(axis, range, &extents, &slices(&ins), &slices(&outs));
            op = op.def().part(&part).unwrap_or(op);
            ins = part.inputs.iter().map(|r| self::extents(r)).collect();
            outs = part.outputs.iter().map(|r| self::extents(r)).collect();
        }
        Ok(op)
    }

    /// What every device needs of a value, made local.
    fn fetch(&mut self, v: Value, need: &Need, at: (Phase, u32)) -> Result<Vec<Value>, CutError> {
        // An update reads the sum over the partials, so that what is fetched for it is another value.
        let late = at.0 == Phase::Update;
        if let Some(done) = self.fetched.get(&(v, need.clone(), late)) {
            return Ok(done.clone());
        }
        let holding = self.complete(v, need.unreduced, at)?;
        let has = |d: usize| contains(&holding.boxes[d], &need.boxes[d]);
        let cover = self.cover(v, need, &holding);
        let local = if holding.partial == need.unreduced && (0..self.devices.len()).all(has) {
            let own = |d| self.cropped(d, holding.values[d], &holding.boxes[d], &need.boxes[d], at);
            (0..holding.values.len()).map(own).collect()
        } else if cover == *need {
            self.gather(v, &holding, need, at)
        } else {
            let outer = self.fetch(v, &cover, at)?;
            let crop = |(d, outer): (usize, Value)| match contains(&cover.boxes[d], &need.boxes[d]) {
                true => self.cropped(d, outer, &cover.boxes[d], &need.boxes[d], at),
                false => self.cropped(d, holding.values[d], &holding.boxes[d], &need.boxes[d], at),
            };
            outer.into_iter().enumerate().map(crop).collect::<Vec<Value>>()
        };
        self.fetched.insert((v, need.clone(), late), local.clone());
        Ok(local)
    }

    /// What devices hold of a value; complete, but for levels at which partial results are wanted as they
    /// are, if everyone needs at least what it holds.
    fn complete(&mut self, v: Value, unreduced: u64, at: (Phase, u32)) -> Result<Holding, CutError> {
        let late = at.0 == Phase::Update;
        if let Some(done) = self.reduced.get(&(v, unreduced, late)) {
            return Ok(done.clone());
        }
        let fed = self.fed[v.index()].is_some();
        let spreads: &[Spread] = if fed { &[] } else { &self.cut.values[v.index()] };
        let bits = |is: &dyn Fn(&Spread) -> bool| {
            spreads.iter().enumerate().filter(|(_, s)| is(s)).fold(0u64, |bits, (l, _)| bits | 1 << l)
        };
        let partial = bits(&|s| matches!(s, Spread::Partial(_)));
        let other = spreads.iter().any(|s| matches!(s, Spread::Partial(kind) if *kind != SUMS));
        if other || partial != 0 && self.bound.graph.ty(v).dtype != DType::F32 || unreduced & !partial != 0 {
            return Err(CutError::Partial(self.bound.graph.value(v).name.clone()));
        }
        let holding = Holding {
            values: self
                .devices
                .iter()
                .map(|d| d.local[v.index()].expect("made before it is read"))
                .collect(),
            boxes: (0..self.devices.len()).map(|d| self.held(v, d)).collect(),
            along: bits(&|s| matches!(s, Spread::Along(_))),
            partial,
        };
        let reduced = partial & !unreduced;
        let needs = || self.needs_of[v.index()].iter().filter(|need| need.unreduced == unreduced);
        let everyone =
            (0..self.devices.len()).all(|d| needs().any(|need| contains(&need.boxes[d], &holding.boxes[d])));
        if reduced == 0 || !everyone {
            return Ok(holding);
        }
        let done = self.all_reduce(v, &holding, reduced, at);
        self.reduced.insert((v, unreduced, late), done.clone());
        Ok(done)
    }

    /// Devices that hold partial results of one box each add up a slice of it, then gather the others'.
    fn all_reduce(&mut self, v: Value, holding: &Holding, reduced: u64, at: (Phase, u32)) -> Holding {
        let devices = self.devices.len();
        let peers = |d: usize| -> Vec<usize> {
            (0..devices).filter(|&from| differ(self.grid, d, from) & !reduced == 0).collect()
        };
        let slice = |d: usize, of: usize| slice_along(&holding.boxes[d], &peers(d), of);
        let slices: Vec<Region> = (0..devices).map(|d| slice(d, d)).collect();
        let from = |d: usize| -> Vec<(usize, bool)> {
            peers(d).into_iter().enumerate().map(|(i, from)| (from, i > 0)).collect()
        };
        let sources: Vec<Vec<(usize, bool)>> = (0..devices).map(from).collect();
        let sums = self.meet(v, &holding.values, &holding.boxes, &slices, &sources, at);
        let from = |d: usize| peers(d).into_iter().map(|from| (from, false)).collect();
        let sources: Vec<Vec<(usize, bool)>> = (0..devices).map(from).collect();
        let values = self.meet(v, &sums, &slices, &holding.boxes, &sources, at);
        Holding { values, partial: holding.partial & !reduced, ..holding.clone() }
    }

    /// Fetches boxes from whoever holds them, the nearest of equals; partial results are added in order.
    fn gather(&mut self, v: Value, holding: &Holding, need: &Need, at: (Phase, u32)) -> Vec<Value> {
        let adding = holding.partial & !need.unreduced;
        let moving = holding.along | adding;
        let sources = |d: usize| -> Vec<(usize, bool)> {
            let near = |from: &usize| differ(self.grid, d, *from) & !moving == 0;
            let all: Vec<usize> = (0..self.devices.len()).filter(near).collect();
            // The first to bring a box is put there, the others' are added.
            let first =
                |i: usize| !all[..i].iter().any(|other| differ(self.grid, *other, all[i]) & !adding == 0);
            all.iter().enumerate().map(|(i, from)| (*from, !first(i))).collect()
        };
        let sources: Vec<Vec<(usize, bool)>> = (0..self.devices.len()).map(sources).collect();
        // Whoever has its box needs nobody.
        let wanted: Vec<Region> = (0..self.devices.len())
            .map(|d| match adding == 0 && contains(&holding.boxes[d], &need.boxes[d]) {
                true => vec![0..0; need.boxes[d].len().max(1)],
                false => need.boxes[d].clone(),
            })
            .collect();
        let met = self.meet(v, &holding.values, &holding.boxes, &wanted, &sources, at);
        let or_own = |(d, met): (usize, Value)| match wanted[d] == need.boxes[d] {
            true => met,
            false => self.cropped(d, holding.values[d], &holding.boxes[d], &need.boxes[d], at),
        };
        met.into_iter().enumerate().map(or_own).collect()
    }

    /// A meeting: every device leaves with a box put together from what its sources hold, in order; `true`
    /// says that it is added. Those who neither give nor take stay away, and keep what they hold.
    fn meet(
        &mut self,
        v: Value,
        values: &[Value],
        holds: &[Region],
        wanted: &[Region],
        sources: &[Vec<(usize, bool)>],
        (phase, stage): (Phase, u32),
    ) -> Vec<Value> {
        let info = self.bound.graph.value(v);
        let dtype = info.ty.dtype;
        let pieces: Vec<Vec<Piece>> = wanted
            .iter()
            .zip(sources)
            .map(|(wanted, sources)| {
                let pieces = sources.iter().filter_map(|&(from, add)| {
                    let own = &holds[from];
                    if own.len() != wanted.len() {
                        return None;
                    }
                    let mut common = wanted.clone();
                    intersect(&mut common, own);
                    let first = |of: &Region| common.iter().zip(of).map(|(c, r)| c.start - r.start).collect();
                    (area(&common) > 0).then(|| Piece {
                        from: from as u32,
                        of: extents(own),
                        source: first(own),
                        target: first(wanted),
                        extent: extents(&common),
                        add,
                    })
                });
                pieces.collect()
            })
            .collect();
        let gives = |d: usize| {
            pieces.iter().enumerate().any(|(to, list)| to != d && list.iter().any(|p| p.from == d as u32))
        };
        let comes = |d: usize| gives(d) || !pieces[d].is_empty();
        let parties: Vec<u32> = (0..self.devices.len()).filter(|&d| comes(d)).map(|d| d as u32).collect();
        let meeting = self.meetings;
        self.meetings += 1;
        let mut met = Vec::with_capacity(self.devices.len());
        for (d, pieces) in pieces.into_iter().enumerate() {
            if !parties.contains(&(d as u32)) {
                met.push(values[d]);
                continue;
            }
            let shape = extents(&wanted[d]);
            let ty = Type::new(dtype, &shape);
            let parties = parties.clone();
            let op = Exchange { meeting, party: d as u32, parties, dtype, shape, pieces };
            let named = (info.name.clone(), ty);
            met.push(self.devices[d].add(op.into(), vec![values[d]], named, (phase, stage)));
        }
        met
    }

    /// A box of a value that a device has.
    fn cropped(&mut self, d: usize, v: Value, from: &Region, to: &Region, at: (Phase, u32)) -> Value {
        let (mut v, mut now) = (v, from.clone());
        // Nothing of it need not lie within what there is.
        if area(to) == 0 && area(from) > 0 {
            let ValueInfo { name, ty, .. } = self.devices[d].graph.value(v).clone();
            let (meeting, party, dtype) = (self.meetings, d as u32, ty.dtype);
            self.meetings += 1;
            let (parties, shape, pieces) = (vec![party], extents(to), Vec::new());
            let op = Exchange { meeting, party, parties, dtype, shape, pieces };
            return self.devices[d].add(op.into(), vec![v], (name, fixed(dtype, to)), at);
        }
        for axis in 0..from.len() {
            if now[axis] == to[axis] {
                continue;
            }
            let start = to[axis].start - now[axis].start;
            now[axis] = to[axis].clone();
            let info = self.devices[d].graph.value(v).clone();
            let op = Slice { axis, start, len: to[axis].len().into(), step: 1 };
            v = self.devices[d].add(op.into(), vec![v], (info.name, fixed(info.ty.dtype, &now)), at);
        }
        v
    }
}
