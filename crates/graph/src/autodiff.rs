//! Reverse-mode differentiation, graph to graph: walks the nodes backwards once and lets each operator
//! add its own backward nodes. Contributions to one value are added in the order of its uses, last use
//! first, which fixes the order of the sum.

use crate::graph::build::Builder;
use crate::graph::op::Backward;
use crate::graph::{GraphError, Phase, Role, Value};
use crate::role::HyperRole;

/// Adds nodes that compute the gradient of a scalar loss by each value of `wrt`; `None` where the loss
/// does not depend on it. The seed of the backward pass is the hyper-parameter [`HyperRole::LossScale`].
pub fn differentiate(
    g: &mut Builder,
    loss: Value,
    wrt: &[Value],
    objective: u32,
) -> Result<Vec<Option<Value>>, GraphError> {
    let info = g.graph().value(loss);
    if !info.ty.shape.is_empty() {
        let (name, shape) = (info.name.clone(), info.ty.to_string());
        return Err(GraphError::LossNotScalar { name, shape });
    }
    let nodes = g.graph().nodes.len();
    let depends = dependents(g, wrt);
    let mut grads: Vec<Option<Value>> = vec![None; g.graph().values.len()];
    g.enter(Phase::Backward, objective);
    let ty = g.ty(loss).clone();
    let seed = g.scope("loss_scale", |g| g.input("", Role::Hyper(HyperRole::LossScale, 1.0), ty))?;
    grads[loss.index()] = Some(seed);
    for id in (0..nodes).rev() {
        let node = g.graph().nodes[id].clone();
        let douts: Vec<Option<Value>> = node.outs.iter().map(|v| grads[v.index()]).collect();
        let wants: Vec<bool> = node.ins.iter().map(|v| depends[v.index()]).collect();
        if douts.iter().all(Option::is_none) || !wants.contains(&true) {
            continue;
        }
        let name = g.graph().value(node.outs[0]).name.clone();
        let at = Backward { ins: &node.ins, outs: &node.outs, douts: &douts, wants: &wants };
        let dins = g.scope(format!("grad.{name}"), |g| -> Result<_, GraphError> {
            let dins = node.op.def().grad(g, &at)?;
            for ((&input, din), &wanted) in node.ins.iter().zip(dins).zip(&wants) {
                let (Some(din), true) = (din, wanted) else { continue };
                let sum = match grads[input.index()] {
                    Some(sum) => g.add(sum, din)?,
                    None => din,
                };
                grads[input.index()] = Some(sum);
            }
            Ok(())
        });
        dins?;
    }
    g.enter(Phase::Forward, objective);
    Ok(wrt.iter().map(|v| grads[v.index()]).collect())
}

/// Whether each value depends on one of `wrt` through float values and forward nodes. Weights that an earlier objective of
/// the step has updated are constants to this one.
fn dependents(g: &Builder, wrt: &[Value]) -> Vec<bool> {
    let graph = g.graph();
    let mut depends = vec![false; graph.values.len()];
    for v in wrt {
        depends[v.index()] = true;
    }
    for node in &graph.nodes {
        if node.phase == Phase::Forward && node.ins.iter().any(|v| depends[v.index()]) {
            for out in &node.outs {
                depends[out.index()] |= graph.ty(*out).dtype.is_float();
            }
        }
    }
    depends
}
