//! Writes the fused graph, group by group in an order in which they can run. Outputs and next values are added as
//! soon as all members have made theirs.

use super::copies::Copies;
use super::matching::{Matched, MatchedSource};
use super::residences::MemberSet;
use super::{Fused, MemberPlace, Report, about, own};
use crate::dim::Dim;
use crate::graph::op::array::Array;
use crate::graph::{GraphError, GraphOutput, Node, ObjectivePhase, Origin, Phase, Role, Value, ValueInfo};
use crate::rewrite::Rewriter;
use crate::role::DataRole;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Values of members, each with its owner.
type Owned = Vec<(usize, Value)>;

/// An output or next value of several members: the value of each, and how many of them are still to be made.
struct Wanted {
    of: Owned,
    missing: usize,
    what: What,
}

enum What {
    /// The output of that number and name in the members' graphs.
    Output(usize, String),
    /// The carry of that number, and whether its input is one value for several members.
    Carry(usize, bool),
}

/// The graph of these groups in this order, with inputs in these parts.
pub(super) fn emit(
    matched: &Matched,
    residences: &[Vec<MemberSet>],
    order: &[usize],
) -> Result<Fused, GraphError> {
    let mut emitter = Emitter::new(matched, residences);
    emitter.want_outputs();
    emitter.want_carries();
    for want in 0..emitter.wanted.len() {
        if emitter.wanted[want].missing == 0 {
            emitter.give(want, (Phase::Forward, 0));
        }
    }
    for &group in order {
        emitter.emit(group);
    }
    let Emitter { copies, places, outputs, mut report, .. } = emitter;
    report.copies = copies.count;
    Ok(Fused { graph: copies.to.finish()?, members: matched.graphs.len(), places, outputs, report })
}

struct Emitter<'a> {
    matched: &'a Matched<'a>,
    /// The graph so far.
    copies: Copies,
    places: Vec<Vec<MemberPlace>>,
    outputs: Vec<BTreeMap<String, MemberPlace>>,
    wanted: Vec<Wanted>,
    /// The entries of `wanted` that wait for the results of a group.
    waiting: HashMap<usize, Vec<usize>>,
    report: Report,
}

impl<'a> Emitter<'a> {
    /// Numbers all values, member by member, and writes the inputs.
    fn new(matched: &'a Matched<'a>, residences: &[Vec<MemberSet>]) -> Emitter<'a> {
        let mut to = Rewriter::new();
        let mut numbers: HashMap<(MatchedSource, usize), Value> = HashMap::new();
        let mut place = |member: usize, v: Value| {
            let source = matched.source(member, v);
            let (number, owners) = owners(matched, residences, source, member);
            let several = owners.len() > 1 || matched.graphs.len() == 1;
            let named =
                matches!(source, MatchedSource::Input(input) if !matched.inputs[input].role.is_data());
            let stacked = named && several;
            let value = *numbers.entry((source, number)).or_insert_with(|| {
                let mut info = named_by(matched, source, member, v, &owners);
                if stacked {
                    info.ty.shape.insert(0, Dim::from(owners.len()));
                }
                to.value(info)
            });
            let row = owners.iter().position(|owner| *owner == member);
            MemberPlace { value, row: row.filter(|_| stacked) }
        };
        let all = matched.graphs.iter().enumerate();
        let places = all.map(|(m, g)| (0..g.values.len() as u32).map(|v| place(m, Value(v))).collect());
        let places = places.collect();
        let members = matched.graphs.len();
        Emitter {
            matched,
            copies: Copies::new(to),
            places,
            outputs: vec![BTreeMap::new(); members],
            wanted: Vec::new(),
            waiting: HashMap::new(),
            report: Report { members, ..Report::default() },
        }
    }

    fn want(&mut self, of: Owned, what: What) {
        let mut missing = 0;
        for (member, value) in &of {
            if let MatchedSource::Result(group, _) = self.matched.source(*member, *value) {
                missing += 1;
                self.waiting.entry(group).or_default().push(self.wanted.len());
            }
        }
        self.wanted.push(Wanted { of, missing, what });
    }

    /// Outputs by name: numbers of all members together, other values with those that are made together.
    fn want_outputs(&mut self) {
        let graphs = self.matched.graphs;
        let mut outputs: Vec<&GraphOutput> = Vec::new();
        let mut having: HashMap<&str, Owned> = HashMap::new();
        for (member, graph) in graphs.iter().enumerate() {
            for output in &graph.outputs {
                let having = having.entry(&output.name).or_insert_with(|| {
                    outputs.push(output);
                    Vec::new()
                });
                having.push((member, output.value));
            }
        }
        for output in outputs {
            let name = output.name.as_str();
            let of = &having[name];
            let ty = |(member, value): &(usize, Value)| graphs[*member].ty(*value);
            let phase = |(member, value): &(usize, Value)| match graphs[*member].value(*value).origin {
                Origin::Node { node, .. } => Some(graphs[*member].nodes[node.index()].phase),
                Origin::Input(_) => None,
            };
            let like_first = |one| (ty(one), phase(one)) == (ty(&of[0]), phase(&of[0]));
            let alike = of.len() == graphs.len() && of.iter().all(like_first);
            let mut sets: Vec<(Option<MatchedSource>, Owned)> = Vec::new();
            for &(member, value) in of {
                let together = alike && ty(&of[0]).rank() == 0;
                let source = (!together).then(|| self.matched.source(member, value));
                match sets.iter_mut().find(|(other, _)| *other == source) {
                    Some((_, set)) => set.push((member, value)),
                    None => sets.push((source, vec![(member, value)])),
                }
            }
            for (_, set) in sets {
                let owners: MemberSet = set.iter().map(|(member, _)| *member).collect();
                let full = if owners.len() == graphs.len() { name.to_string() } else { own(name, &owners) };
                let number = self.copies.to.outputs_mut().len();
                self.copies.to.output(GraphOutput { name: full, ..output.clone() });
                self.want(set, What::Output(number, name.to_string()));
            }
        }
    }

    /// Next values in the form of their inputs. A member without a next value keeps its current one.
    fn want_carries(&mut self) {
        let graphs = self.matched.graphs;
        let next: Vec<HashMap<Value, Value>> =
            graphs.iter().map(|graph| graph.carries.iter().copied().collect()).collect();
        let mut seen: HashSet<Value> = HashSet::new();
        for (member, graph) in graphs.iter().enumerate() {
            for (input, _) in &graph.carries {
                let MemberPlace { value: residence, row } = self.places[member][input.index()];
                let MatchedSource::Input(class) = self.matched.source(member, *input) else {
                    continue;
                };
                if !seen.insert(residence) {
                    continue;
                }
                let there = self.matched.inputs[class].of.iter();
                let of = there
                    .filter(|(member, value)| self.places[*member][value.index()].value == residence)
                    .map(|(member, value)| (*member, next[*member].get(value).copied().unwrap_or(*value)))
                    .collect();
                let number = self.copies.to.carries_mut().len();
                self.copies.to.carry(residence, residence);
                self.want(of, What::Carry(number, row.is_some()));
            }
        }
    }

    /// Writes an output or carry, now that all its values are made.
    fn give(&mut self, want: usize, at: ObjectivePhase) {
        let Wanted { of, what, .. } = &self.wanted[want];
        let places: Vec<MemberPlace> =
            of.iter().map(|(member, value)| self.places[*member][value.index()]).collect();
        match what {
            What::Output(number, name) => {
                let (value, shared) = self.copies.operand(&places, at);
                self.copies.to.outputs_mut()[*number].value = value;
                for (row, (member, _)) in of.iter().enumerate() {
                    let place = MemberPlace { value, row: (!shared).then_some(row) };
                    self.outputs[*member].insert(name.clone(), place);
                }
            }
            What::Carry(number, stacked) => {
                let value = match stacked {
                    true => self.copies.together(&places, at),
                    false => self.copies.apart(places[0], at),
                };
                self.copies.to.carries_mut()[*number].1 = value;
            }
        }
    }

    fn emit(&mut self, group: usize) {
        let matched = self.matched;
        let (of, first) = (&matched.groups[group], matched.first(group));
        let at = first.objective_phase();
        let alone = of.len() == 1 && matched.graphs.len() > 1;
        let (mut ins, mut shared) = (Vec::new(), Vec::new());
        for i in 0..first.ins.len() {
            let place =
                |&(member, id): &(usize, _)| self.places[member][matched.node(member, id).ins[i].index()];
            let places: Vec<MemberPlace> = of.iter().map(place).collect();
            let (value, same) = match alone {
                true => (self.copies.apart(places[0], at), true),
                false => self.copies.operand(&places, at),
            };
            ins.push(value);
            shared.push(same);
        }
        let mut op = first.op.clone();
        let mut outs = Vec::with_capacity(first.outs.len());
        let stacked = shared.contains(&false);
        if stacked {
            op = Array { op: Box::new(op), members: of.len(), shared }.into();
        }
        for output in 0..first.outs.len() {
            for (row, &(member, id)) in of.iter().enumerate() {
                let v = matched.node(member, id).outs[output];
                self.places[member][v.index()].row = stacked.then_some(row);
                if row == 0 {
                    outs.push(self.places[member][v.index()].value);
                }
            }
            if stacked {
                let mut shape = self.copies.to.graph().ty(outs[output]).shape.clone();
                shape.insert(0, Dim::from(of.len()));
                self.copies.to.reshape(outs[output], shape);
            }
        }
        self.copies.to.push(Node { op, ins, outs, phase: at.0, objective: at.1 });
        self.count(group);
        for want in self.waiting.remove(&group).unwrap_or_default() {
            self.wanted[want].missing -= 1;
            if self.wanted[want].missing == 0 {
                self.give(want, at);
            }
        }
    }

    fn count(&mut self, group: usize) {
        let (member, of) = (self.matched.groups[group][0].0, self.matched.groups[group].len());
        let flops = self.matched.graphs[member].flops(self.matched.first(group));
        let flops = flops.map_or(0.0, |flops| about(&flops)) * of as f64;
        self.report.nodes += of;
        self.report.flops += flops;
        if of > 1 {
            self.report.fused += of;
            self.report.fused_flops += flops;
        }
    }
}

/// The members that have a value together with this one, and the number of their part.
fn owners(
    matched: &Matched,
    residences: &[Vec<MemberSet>],
    source: MatchedSource,
    member: usize,
) -> (usize, MemberSet) {
    match source {
        MatchedSource::Result(group, _) => {
            (0, matched.groups[group].iter().map(|(member, _)| *member).collect())
        }
        MatchedSource::Input(input) => {
            let parts = &residences[input];
            let number = parts.iter().position(|part| part.contains(&member)).unwrap_or(0);
            (number, parts[number].clone())
        }
    }
}

/// The info of a member's value, named for the members that have it.
fn named_by(
    matched: &Matched,
    source: MatchedSource,
    member: usize,
    v: Value,
    owners: &[usize],
) -> ValueInfo {
    let graph = matched.graphs[member];
    let mut info = graph.value(v).clone();
    let apart = matches!(source, MatchedSource::Input(input) if matched.inputs[input].apart);
    if !apart && owners.len() == matched.graphs.len() {
        return info;
    }
    // Results of one node are named after the first of them.
    info.name = match info.origin {
        Origin::Node { node, output } if output > 0 => {
            let first = graph.nodes[node.index()].outs[0];
            format!("{}.{output}", own(&graph.value(first).name, owners))
        }
        _ => own(&info.name, owners),
    };
    if let (Origin::Input(Role::Data(DataRole::Noise { member, .. })), [owner]) = (&mut info.origin, owners) {
        *member = *owner as u32;
    }
    info
}
