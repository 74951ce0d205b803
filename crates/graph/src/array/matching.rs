//! Finds the inputs and nodes of several graphs that correspond. Each graph is compared with all before it, node by
//! node, in time linear in the number of operands.
//!
//! A node joins a group if it has the same operator, types, phase and objective, and its operands belong to the same
//! groups. If only some operands do, the others must be stacked by a copy. A node of the same name then joins only
//! where that pays: if fewer bytes are stacked than would otherwise be taken apart, or if the node does
//! [much work](WORTH) per copied byte. Weights, states, hyper-parameters and random keys are never stacked with
//! those of other names.

use super::{Apart, about};
use crate::graph::op::Op;
use crate::graph::{Graph, GraphError, Node, NodeId, Origin, Phase, Role, Type, Value};
use std::collections::{HashMap, HashSet};
use std::mem::discriminant;

/// Floating-point operations per copied byte that make a copy worth it. Matrix products and convolutions do more
/// unless they are tiny; element-wise operators do less.
const WORTH: f64 = 8.0;

/// Inputs that correspond.
pub(super) struct MatchedInput {
    /// Members in order, and the input of each.
    pub of: Vec<(usize, Value)>,
    /// Its role in the graph of the first of them.
    pub role: Role,
    /// Whether it is data of which every member has its own.
    pub apart: bool,
}

impl MatchedInput {
    /// Whether all members see the same.
    pub fn is_shared(&self) -> bool {
        self.role.is_data() && !self.apart
    }
}

/// Nodes that are done together: members in order, and the node of each.
pub(super) type NodeGroup = Vec<(usize, NodeId)>;

/// Where a value comes from, for all members that have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum MatchedSource {
    /// One of the corresponding inputs.
    Input(usize),
    /// A group, and which of its results.
    Result(usize, usize),
}

/// The inputs and nodes of several graphs that correspond.
pub(super) struct Matched<'g> {
    pub graphs: &'g [&'g Graph],
    pub inputs: Vec<MatchedInput>,
    pub groups: Vec<NodeGroup>,
    /// By member and input value; unset for other values.
    input_of: Vec<Vec<usize>>,
    /// By member and node.
    group_of: Vec<Vec<usize>>,
}

impl<'g> Matched<'g> {
    pub fn node(&self, member: usize, id: NodeId) -> &'g Node {
        &self.graphs[member].nodes[id.index()]
    }

    /// The node of the first member of a group.
    pub fn first(&self, group: usize) -> &'g Node {
        let (member, id) = self.groups[group][0];
        self.node(member, id)
    }

    pub fn group_of(&self, member: usize, id: NodeId) -> usize {
        self.group_of[member][id.index()]
    }

    pub fn source(&self, member: usize, value: Value) -> MatchedSource {
        match self.graphs[member].value(value).origin {
            Origin::Input(_) => MatchedSource::Input(self.input_of[member][value.index()]),
            Origin::Node { node, output } => MatchedSource::Result(self.group_of(member, node), output),
        }
    }

    /// Splits a group into one group per member; the new groups.
    pub fn split(&mut self, group: usize) -> std::ops::Range<usize> {
        let first = self.groups.len();
        for (member, id) in std::mem::take(&mut self.groups[group]) {
            self.group_of[member][id.index()] = self.groups.len();
            self.groups.push(vec![(member, id)]);
        }
        first..self.groups.len()
    }

    /// Whether it is an input other than data: members match those by name.
    fn is_named(&self, source: MatchedSource) -> bool {
        matches!(source, MatchedSource::Input(i) if !self.inputs[i].role.is_data())
    }
}

/// Finds the inputs and nodes that correspond. Data inputs that are `apart` correspond, but every member has its own.
pub(super) fn matched<'g>(graphs: &'g [&'g Graph], apart: Apart<'_>) -> Result<Matched<'g>, GraphError> {
    let mut matched = Matched {
        graphs,
        inputs: Vec::new(),
        groups: Vec::new(),
        input_of: graphs.iter().map(|g| vec![usize::MAX; g.values.len()]).collect(),
        group_of: graphs.iter().map(|g| vec![usize::MAX; g.nodes.len()]).collect(),
    };
    match_inputs(&mut matched, apart);
    let mut matcher = Matcher::new(matched);
    for (member, graph) in graphs.iter().enumerate() {
        for id in 0..graph.nodes.len() {
            matcher.add(member, NodeId(id as u32))?;
        }
    }
    Ok(matcher.matched)
}

fn match_inputs(matched: &mut Matched, apart: Apart<'_>) {
    let mut known = HashMap::new();
    let graphs = matched.graphs;
    for (member, graph) in graphs.iter().enumerate() {
        // A state that every partial changes cannot be changed together with one that a step changes.
        let changed = graph.carries.iter().filter_map(|(input, next)| {
            let Origin::Node { node, .. } = graph.value(*next).origin else { return None };
            let node = &graph.nodes[node.index()];
            (node.phase != Phase::Update).then_some((*input, node.objective))
        });
        let in_passing: HashMap<Value, u32> = changed.collect();
        for (value, role, info) in graph.inputs() {
            let key = (&info.name, &info.ty, discriminant(&role), in_passing.get(&value).copied());
            let input = *known.entry(key).or_insert(matched.inputs.len());
            if input == matched.inputs.len() {
                let apart = matches!(role, Role::Data(role) if apart(role));
                matched.inputs.push(MatchedInput { of: Vec::new(), role, apart });
            }
            matched.inputs[input].of.push((member, value));
            matched.input_of[member][value.index()] = input;
        }
    }
}

/// Groups in the order in which members that look for one get it. A member is in a group once.
#[derive(Default)]
struct Candidates {
    groups: Vec<usize>,
    /// The member that looked last, and how many groups it had joined or found taken.
    member: usize,
    taken: usize,
}

/// The key by which a node looks for its group.
struct Wanted<'g> {
    kind: usize,
    name: &'g str,
    operands: Vec<MatchedSource>,
}

/// Groups so far, and where to look for them.
struct Matcher<'g> {
    matched: Matched<'g>,
    /// Numbers of operators with their types, by their text.
    kinds: HashMap<String, Vec<(&'g Op, usize)>>,
    kind_count: usize,
    /// By all operands.
    equal: HashMap<(usize, Vec<MatchedSource>), Candidates>,
    /// By name, one operand, and which it is.
    alike: HashMap<(usize, &'g str, usize, MatchedSource), Candidates>,
    /// Of the first member of each group.
    operands: Vec<Vec<MatchedSource>>,
    /// Whether the results of a group are the same for all members.
    shared: Vec<bool>,
    /// Values that are put together for some node already, with those of the first member.
    together: HashSet<(MatchedSource, MatchedSource)>,
}

impl<'g> Matcher<'g> {
    fn new(matched: Matched<'g>) -> Matcher<'g> {
        Matcher {
            matched,
            kinds: HashMap::new(),
            kind_count: 0,
            equal: HashMap::new(),
            alike: HashMap::new(),
            operands: Vec::new(),
            shared: Vec::new(),
            together: HashSet::new(),
        }
    }

    fn add(&mut self, member: usize, id: NodeId) -> Result<(), GraphError> {
        let (graph, node) = (self.matched.graphs[member], self.matched.node(member, id));
        let wanted = Wanted {
            kind: self.kind(member, node)?,
            name: node.outs.first().map_or("", |v| &graph.value(*v).name),
            operands: node.ins.iter().map(|v| self.matched.source(member, *v)).collect(),
        };
        let group = match self.equal_group(member, &wanted) {
            Some(group) => group,
            None => match self.alike_group(member, node, &wanted) {
                Some(group) => {
                    self.join(group, &wanted);
                    group
                }
                None => self.new_group(&wanted),
            },
        };
        self.matched.groups[group].push((member, id));
        self.matched.group_of[member][id.index()] = group;
        Ok(())
    }

    /// The number of a node's operator, types, phase and objective.
    fn kind(&mut self, member: usize, node: &'g Node) -> Result<usize, GraphError> {
        let graph = self.matched.graphs[member];
        let unwritable = |e: serde_json::Error| GraphError::Invalid(e.to_string());
        let types: Vec<&Type> = node.ins.iter().chain(&node.outs).map(|v| graph.ty(*v)).collect();
        let op = serde_json::to_string(&node.op).map_err(unwritable)?;
        let written = format!("{op} {types:?} {:?} {}", node.phase, node.objective);
        let same = self.kinds.entry(written).or_default();
        // Custom operators may print alike and differ.
        if let Some((_, kind)) = same.iter().find(|(op, _)| **op == node.op) {
            return Ok(*kind);
        }
        same.push((&node.op, self.kind_count));
        self.kind_count += 1;
        Ok(self.kind_count - 1)
    }

    fn equal_group(&mut self, member: usize, wanted: &Wanted) -> Option<usize> {
        let candidates = self.equal.get_mut(&(wanted.kind, wanted.operands.clone()))?;
        free(candidates, &self.matched.groups, member)
    }

    /// The group with some of these operands for which least has to be put together, if that pays.
    fn alike_group(&mut self, member: usize, node: &Node, wanted: &Wanted<'g>) -> Option<usize> {
        let mut best: Option<(f64, usize)> = None;
        for (i, operand) in wanted.operands.iter().enumerate() {
            let candidates = self.alike.get_mut(&(wanted.kind, wanted.name, i, *operand));
            let group = candidates.and_then(|c| free(c, &self.matched.groups, member));
            let Some(group) = group else { continue };
            let Some(bytes) = self.worth(member, node, group, &wanted.operands) else { continue };
            if best.is_none_or(|(least, _)| bytes < least) {
                best = Some((bytes, group));
            }
        }
        best.map(|(_, group)| group)
    }

    /// Bytes of a member to be put together if its node joins a group, if that pays.
    fn worth(&self, member: usize, node: &Node, group: usize, operands: &[MatchedSource]) -> Option<f64> {
        let graph = self.matched.graphs[member];
        let (mut together, mut apart) = (0.0, 0.0);
        for ((v, own), first) in node.ins.iter().zip(operands).zip(&self.operands[group]) {
            let bytes = about(&graph.ty(*v).bytes());
            if own == first {
                apart += if self.is_stacked(*own) { bytes } else { 0.0 };
            } else if self.matched.is_named(*own) || self.matched.is_named(*first) {
                return None;
            } else if !self.together.contains(&(*first, *own)) {
                together += bytes;
            }
        }
        let pays = together <= apart || graph.flops(node).is_ok_and(|f| about(&f) >= WORTH * together);
        pays.then_some(together)
    }

    /// Whether a value lies with those of other members. Named inputs may lie wherever they are used.
    fn is_stacked(&self, source: MatchedSource) -> bool {
        matches!(source, MatchedSource::Result(group, _) if !self.shared[group])
    }

    fn join(&mut self, group: usize, wanted: &Wanted<'g>) {
        for (own, first) in wanted.operands.iter().zip(&self.operands[group]) {
            if own != first {
                self.together.insert((*first, *own));
            }
        }
        self.shared[group] = false;
        self.offer(group, wanted);
    }

    fn new_group(&mut self, wanted: &Wanted<'g>) -> usize {
        let same = |source: &MatchedSource| match *source {
            MatchedSource::Input(input) => self.matched.inputs[input].is_shared(),
            MatchedSource::Result(group, _) => self.shared[group],
        };
        self.shared.push(wanted.operands.iter().all(same));
        self.operands.push(wanted.operands.clone());
        self.matched.groups.push(Vec::new());
        let group = self.matched.groups.len() - 1;
        self.offer(group, wanted);
        group
    }

    /// Lets nodes like this find a group.
    fn offer(&mut self, group: usize, Wanted { kind, name, operands }: &Wanted<'g>) {
        self.equal.entry((*kind, operands.clone())).or_default().groups.push(group);
        for (i, operand) in operands.iter().enumerate() {
            self.alike.entry((*kind, name, i, *operand)).or_default().groups.push(group);
        }
    }
}

/// The first candidate that a member is not in.
fn free(candidates: &mut Candidates, groups: &[NodeGroup], member: usize) -> Option<usize> {
    if candidates.member != member {
        (candidates.member, candidates.taken) = (member, 0);
    }
    let is_in = |group: &usize| groups[*group].last().is_some_and(|(last, _)| *last == member);
    candidates.taken += candidates.groups[candidates.taken..].iter().take_while(|g| is_in(g)).count();
    candidates.groups.get(candidates.taken).copied()
}
