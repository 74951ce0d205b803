//! Memory traffic of a graph, and a text that shows how fusion changed it.

use gulliver_graph::dim::{Bindings, Dim, DimError};
use gulliver_graph::graph::Graph;
use gulliver_graph::graph::op::elementwise::{Apply, Elementwise};
use gulliver_graph::graph::op::{Op, OpName};
use std::fmt::Write;

/// Calls and memory of one step of a graph; views cost nothing and do not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryTraffic {
    /// Nodes that do work.
    pub nodes: usize,
    /// Values that they read or write.
    pub passes: usize,
    /// Bytes that they read and write, as a formula of the input sizes.
    pub bytes: Dim,
}

/// The memory traffic of a graph.
pub fn traffic(graph: &Graph) -> MemoryTraffic {
    let mut sum = MemoryTraffic { nodes: 0, passes: 0, bytes: Dim::from(0) };
    for node in graph.nodes.iter().filter(|node| !node.op.def().is_view()) {
        sum.nodes += 1;
        sum.passes += node.ins.len() + node.outs.len();
        sum.bytes = sum.bytes + graph.bytes(node);
    }
    sum
}

/// Before and after fusion for inputs of these sizes: the totals, then every fused node.
pub fn explain(before: &Graph, after: &Graph, sizes: &Bindings) -> Result<String, DimError> {
    let mut text = String::new();
    for (label, graph) in [("before", before), ("after", after)] {
        let MemoryTraffic { nodes, passes, bytes } = traffic(graph);
        let bytes = bytes.bind(sizes)?;
        // Writing to a string cannot fail.
        let _ =
            writeln!(text, "{label:<6} {nodes:>6} nodes {passes:>6} passes over memory {bytes:>14} bytes");
    }
    for node in &after.nodes {
        let Op::Elementwise(chain) = &node.op else { continue };
        let names: Vec<String> = node.outs.iter().map(|v| format!("%{} {}", v.0, after.ty(*v))).collect();
        let operands: Vec<String> = node.ins.iter().map(|v| format!("%{}", v.0)).collect();
        let _ = writeln!(text, "{} = {}", names.join(", "), after.value(node.outs[0]).name);
        let _ = writeln!(text, "  {}", program(chain, &operands));
    }
    Ok(text)
}

/// A fused operator in one line: `a = add(%3, %4); b = relu(a) -> b, sum(b over 0 1)`.
pub fn program(chain: &Elementwise, operands: &[String]) -> String {
    let name = |v: usize| match v.checked_sub(chain.operands) {
        None => operands.get(v).cloned().unwrap_or_else(|| format!("#{v}")),
        Some(step) if step < 26 => ((b'a' + step as u8) as char).to_string(),
        Some(step) => format!("s{step}"),
    };
    let list = |of: &[usize]| of.iter().map(|v| name(*v)).collect::<Vec<_>>().join(", ");
    let steps = chain.steps.iter().enumerate().map(|(i, step)| {
        let op = step.apply.op();
        let what = match step.apply {
            Apply::MapGrad(f) => format!("{}'", f.name()),
            _ => op.def().name().to_string(),
        };
        format!("{} = {what}({})", name(chain.operands + i), list(&step.of))
    });
    let results = chain.results.iter().map(|kept| match &kept.reduce {
        None => name(kept.value),
        Some(reduce) => {
            let axes: Vec<String> = reduce.axes.iter().map(usize::to_string).collect();
            format!("{}({} over {})", OpName::name(reduce), name(kept.value), axes.join(" "))
        }
    });
    let steps: Vec<String> = steps.collect();
    format!("{} -> {}", steps.join("; "), results.collect::<Vec<_>>().join(", "))
}
