//! Decides which members share one stacked value for a weight, state, hyper-parameter or random key, and which have
//! a value of their own: the choice that needs fewest copies in a step.

use super::matching::{Matched, MatchedSource};
use crate::graph::{Phase, Role};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Members that share a value, in ascending order.
pub(super) type MemberSet = Vec<usize>;

/// For each of the corresponding inputs, the parts of its members that share a value. Data that is not apart
/// is the same value for all; data that is, one for each.
pub(super) fn residences(matched: &Matched) -> Vec<Vec<MemberSet>> {
    let uses = uses(matched);
    let next = next(matched);
    let choose = |(i, uses): (usize, &Uses)| {
        let input = &matched.inputs[i];
        let whole: MemberSet = input.of.iter().map(|(member, _)| *member).collect();
        let each: Vec<MemberSet> = whole.iter().map(|member| vec![*member]).collect();
        match input.role {
            Role::Data(_) if input.apart => return each,
            Role::Data(_) => return vec![whole],
            _ => {}
        }
        let mut makers: BTreeMap<Option<usize>, MemberSet> = BTreeMap::new();
        for member in &whole {
            makers.entry(next[i].get(member).copied()).or_default().push(*member);
        }
        let as_made = makers.into_values().collect();
        let ways = [vec![whole], as_made, each];
        // The first of those with fewest.
        ways.into_iter().min_by_key(|parts| copies(matched, parts, uses, &next[i])).unwrap_or_default()
    };
    uses.iter().enumerate().map(choose).collect()
}

/// The members that read an input together, and whether an update does: a copy is made once for each.
type Uses = HashSet<(MemberSet, bool)>;

fn uses(matched: &Matched) -> Vec<Uses> {
    let mut uses = vec![Uses::new(); matched.inputs.len()];
    for (g, group) in matched.groups.iter().enumerate().filter(|(_, group)| !group.is_empty()) {
        let node = matched.first(g);
        for v in &node.ins {
            // Inputs other than data are the same input for all members of a group.
            if let MatchedSource::Input(input) = matched.source(group[0].0, *v) {
                let members = group.iter().map(|(member, _)| *member).collect();
                uses[input].insert((members, node.phase == Phase::Update));
            }
        }
    }
    uses
}

/// For each input, the group that makes a member's next value.
fn next(matched: &Matched) -> Vec<HashMap<usize, usize>> {
    let mut next = vec![HashMap::new(); matched.inputs.len()];
    for (member, graph) in matched.graphs.iter().enumerate() {
        for (input, value) in &graph.carries {
            let (input, value) = (matched.source(member, *input), matched.source(member, *value));
            if let (MatchedSource::Input(input), MatchedSource::Result(group, _)) = (input, value) {
                next[input].insert(member, group);
            }
        }
    }
    next
}

/// How often a member's value is copied in a step if these parts are values.
fn copies(matched: &Matched, parts: &[MemberSet], uses: &Uses, next: &HashMap<usize, usize>) -> usize {
    let read: usize = uses.iter().filter(|(members, _)| !parts.contains(members)).map(|(m, _)| m.len()).sum();
    let made_whole = |part: &&MemberSet| match next.get(&part[0]) {
        Some(&group) => matched.groups[group].iter().map(|(member, _)| member).eq(part.iter()),
        None => part.iter().all(|member| !next.contains_key(member)),
    };
    let made: usize = parts.iter().filter(|part| !made_whole(part)).map(|part| part.len()).sum();
    read + made
}
