//! `gulliver plan --explain`: why values are kept, recomputed or moved, with equal layers summed up in one line.

use super::time;
use crate::error::Error;
use crate::planning::decided_as;
use crate::units;
use gulliver_graph::graph::Graph;
use gulliver_plan::document::plan::{Choice, Decision, Plan, Tier};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The key by which values are explained in one line.
#[derive(PartialEq)]
struct Alike {
    /// The name before the number of the layer, and after it.
    before: String,
    after: String,
    ty: String,
    choice: Choice,
    /// Where a weight or state is between steps.
    residence: Tier,
}

/// Decisions about the values of one name in all layers.
#[derive(Default)]
struct Group {
    /// Numbers of the layers, in order; empty for a name without a number.
    layers: Vec<u32>,
    /// Bytes of one value.
    bytes: u64,
    /// How often it happens in a step.
    times: usize,
    /// Seconds of all of them.
    seconds: f64,
    /// The cheapest other choice of the first, and its seconds.
    instead: Option<(Choice, f64)>,
}

/// Why values with `part` in their name are where they are.
pub fn explain(graph: &Graph, plan: &Plan, part: &str) -> Result<String, Error> {
    let mut decided: BTreeMap<usize, Vec<&Decision>> = BTreeMap::new();
    for decision in &plan.decisions {
        decided.entry(decision.value.index()).or_default().push(decision);
    }
    // In the order of the graph, by the first value of each group.
    let mut groups: Vec<(Alike, Group)> = Vec::new();
    let residences: BTreeMap<usize, Tier> = plan
        .inputs
        .iter()
        .map(|input| {
            let space = plan.buffer(input.place.buffer).space;
            (input.value.index(), plan.spaces[space as usize].tier)
        })
        .collect();
    for (i, info) in graph.values.iter().enumerate().filter(|(_, info)| info.name.contains(part)) {
        let (before, layer, after) = layered(&info.name);
        let ty = info.ty.to_string();
        let mut add = |choice: Choice, decision: Option<&Decision>| {
            let residence = residences.get(&i).copied().unwrap_or(Tier::Device);
            let key = Alike {
                before: before.to_string(),
                after: after.to_string(),
                ty: ty.clone(),
                choice,
                residence,
            };
            let at = groups.iter().position(|(other, _)| *other == key).unwrap_or_else(|| {
                groups.push((key, Group::default()));
                groups.len() - 1
            });
            let group = &mut groups[at].1;
            if let Some(layer) = layer.filter(|layer| !group.layers.contains(layer)) {
                group.layers.push(layer);
            }
            if let Some(d) = decision {
                group.times += 1;
                group.seconds += d.seconds;
                group.bytes = d.bytes;
                group.instead = group.instead.or(d.instead);
            }
        };
        match decided.get(&i) {
            Some(all) => all.iter().for_each(|d| add(d.choice, Some(d))),
            None => add(Choice::Keep, None),
        }
    }
    if groups.is_empty() {
        return Err(Error::Invalid(format!("--explain {part}: no value has that in its name")));
    }
    let mut text = String::new();
    for (alike, group) in &groups {
        let name = full(&alike.before, &group.layers, &alike.after);
        let _ = writeln!(text, "{name:<44} {}  {}", alike.ty, why(alike, group));
    }
    text +=
        "times are of all these values together in one step; a dash joins layers that are treated alike\n";
    Ok(text)
}

/// The decision about the values of a group, and its cost.
fn why(alike: &Alike, group: &Group) -> String {
    let choice = alike.choice;
    if choice == Choice::Keep {
        return match alike.residence {
            Tier::Device => "kept on the device: there is room".to_string(),
            residence => {
                format!("in {residence} between steps, on the device only while it is used")
            }
        };
    }
    let values = group.layers.len().max(1);
    let instead = group.instead.map_or(String::new(), |(other, seconds)| {
        format!("; each {} would cost {}", decided_as(other), time(seconds))
    });
    format!(
        "{} {} time{} a step ({values} value{} of {}), which costs {}{instead}",
        decided_as(choice),
        group.times,
        if group.times == 1 { "" } else { "s" },
        if values == 1 { "" } else { "s" },
        units::bytes(group.bytes),
        time(group.seconds),
    )
}

/// A name around its first part that is a number.
fn layered(name: &str) -> (&str, Option<u32>, &str) {
    let mut at = 0;
    for part in name.split('.') {
        if let (Ok(layer), true) = (part.parse(), part.bytes().all(|byte| byte.is_ascii_digit())) {
            return (&name[..at], Some(layer), &name[at + part.len()..]);
        }
        at += part.len() + 1;
    }
    (name, None, "")
}

/// The name of a group: `h.0–6.attn.c_attn.weight`.
fn full(before: &str, layers: &[u32], after: &str) -> String {
    let mut sorted = layers.to_vec();
    sorted.sort_unstable();
    let runs: Vec<String> = sorted
        .chunk_by(|a, b| a + 1 == *b)
        .map(|run| match run {
            [one] => one.to_string(),
            [first, .., last] => format!("{first}–{last}"),
            [] => String::new(),
        })
        .collect();
    format!("{before}{}{after}", runs.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_layers_are_put_together() {
        assert_eq!(layered("h.12.attn.0.w"), ("h.", Some(12), ".attn.0.w"));
        assert_eq!(layered("conv1.weight"), ("conv1.weight", None, ""));
        assert_eq!(layered("3"), ("", Some(3), ""));
        assert_eq!(layered("a.+1.2b"), ("a.+1.2b", None, ""));
        assert_eq!(full("h.", &[2, 0, 1, 5], ".mlp"), "h.0–2,5.mlp");
        assert_eq!(full("loss", &[], ""), "loss");
        assert_eq!(full("h.", &[4], ".mlp"), "h.4.mlp");
    }
}
