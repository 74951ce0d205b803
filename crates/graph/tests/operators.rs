//! Every operator of the table on the test bench, by looping over its samples.

use gulliver_graph::graph::GraphError;
use gulliver_graph::graph::op::Op;
use gulliver_graph::op_check::{OpDefect, cuts, gradient, reads};

/// Operators without a gradient: those that are gradients themselves, weight updates, and chains, which are
/// made after differentiation.
fn needs_no_gradient(op: &Op) -> bool {
    let name = op.def().name();
    let late = ["elementwise", "array", "collect", "sum_onto"];
    name.ends_with("_grad") || name.starts_with("update_") || late.contains(&name)
}

#[test]
fn gradients_match_finite_differences() {
    let mut checked = 0;
    for sample in Op::samples() {
        checked += match gradient(&sample) {
            Err(OpDefect::Graph(GraphError::NotDifferentiable(_))) if needs_no_gradient(&sample.op) => 0,
            result => result.unwrap_or_else(|e| panic!("{e}")),
        };
    }
    assert!(checked > 1000, "only {checked} derivatives were compared");
}

#[test]
fn specs_claim_every_element_that_is_read() {
    let checked: usize = Op::samples().iter().map(|s| reads(s).unwrap_or_else(|e| panic!("{e}"))).sum();
    assert!(checked > 200, "only {checked} regions were poisoned");
}

#[test]
fn cuts_recombine_to_the_whole() {
    let checked: usize = Op::samples().iter().map(|s| cuts(s).unwrap_or_else(|e| panic!("{e}"))).sum();
    assert!(checked > 300, "only {checked} outputs were recombined");
}

#[test]
fn operators_survive_their_text_form() {
    for sample in Op::samples() {
        let text = serde_json::to_string(&sample.op).unwrap();
        assert_eq!(serde_json::from_str::<Op>(&text).unwrap(), sample.op, "{text}");
        let spec = sample.op.def().spec(&sample.types()).unwrap();
        assert_eq!(spec.to_string().parse::<gulliver_graph::spec::Spec>().unwrap(), spec, "{text}");
    }
}
