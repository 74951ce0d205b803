//! Contraction: any einsum of two operands, so every matrix product, batched or transposed.

use super::product::sum_of_products;
use super::sample::Sample;
use super::{Backward, OpDef, OpError, attribute, check};
use crate::graph::build::Builder;
use crate::graph::{GraphError, Type, Value};
use crate::spec::{Index, Spec};
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// `out = Σ a·b`, each operand given by its axes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Contract {
    /// Axes of the first operand, e.g. `m k`.
    pub a: String,
    /// Axes of the second operand, e.g. `k n`.
    pub b: String,
    /// Axes of the result, e.g. `m n`; axes it lacks are summed over.
    pub out: String,
}

impl Contract {
    /// From a line such as `m k, k n -> m n`. Mistakes in it are reported when it is applied.
    pub fn new(line: &str) -> Contract {
        let (operands, out) = line.split_once("->").unwrap_or((line, ""));
        let (a, b) = operands.split_once(',').unwrap_or((operands, ""));
        let clean = |s: &str| s.split_whitespace().collect::<Vec<_>>().join(" ");
        Contract { a: clean(a), b: clean(b), out: clean(out) }
    }

    fn line(&self) -> Result<Spec, OpError> {
        Ok(format!("{}, {} -> {}", self.a, self.b, self.out).parse()?)
    }
}

impl OpDef for Contract {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 2, &[])?;
        let spec = self.line()?;
        let operands = [&spec.inputs[0], &spec.inputs[1], &spec.outputs[0]];
        if operands.iter().any(|o| o.iter().any(|i| !matches!(i, Index::Axis(_)))) {
            return attribute(format!("`{spec}`: a contraction takes plain axes only"));
        }
        for (id, axis) in spec.axes.iter().enumerate() {
            let uses = operands.map(|o| o.iter().filter(|i| i.has(crate::spec::AxisId(id))).count());
            if uses.iter().any(|&n| n > 1) {
                return attribute(format!("`{spec}`: axis {} occurs twice in an operand", axis.name));
            }
            // With this every gradient is again a contraction.
            if uses.iter().sum::<usize>() < 2 {
                return attribute(format!("`{spec}`: axis {} occurs in one operand only", axis.name));
            }
        }
        Ok(spec)
    }

    fn grad(&self, g: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        let Contract { a, b, out } = self.clone();
        let dy = at.dout()?;
        let da = Contract { a: out.clone(), b: b.clone(), out: a.clone() };
        let db = Contract { a, b: out, out: b };
        Ok(vec![
            if at.wants[0] { Some(g.push1(da, &[dy, at.ins[1]])?) } else { None },
            if at.wants[1] { Some(g.push1(db, &[at.ins[0], dy])?) } else { None },
        ])
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let spec = self.line().expect("checked when the node was built");
        sum_of_products(&spec, ins[0], ins[1], &mut outs[0]);
    }

    fn flops_per_point(&self) -> u64 {
        2
    }

    fn samples() -> Vec<Sample> {
        vec![
            Sample::normal(Contract::new("m k, k n -> m n"), &[&[5, 7], &[7, 3]]),
            Sample::normal(Contract::new("m k, n k -> m n"), &[&[9, 300], &[4, 300]]),
            Sample::normal(Contract::new("k m, k n -> m n"), &[&[19, 6], &[19, 17]]),
            Sample::normal(Contract::new("b m k, b k n -> b m n"), &[&[3, 4, 5], &[3, 5, 2]]),
            Sample::normal(Contract::new("b t h d, b s h d -> b h t s"), &[&[2, 3, 2, 4], &[2, 5, 2, 4]]),
            Sample::normal(Contract::new("b t d, o d -> b t o"), &[&[2, 3, 4], &[6, 4]]),
            // Reduced axes that are not one stride apart.
            Sample::normal(Contract::new("b m t, b n t -> m n"), &[&[7, 4, 45], &[7, 19, 45]]),
            Sample::normal(Contract::new("t m b, b t n -> n m"), &[&[5, 3, 6], &[6, 5, 4]]),
            Sample::normal(Contract::new("b h t d, s b h d -> t s"), &[&[2, 3, 5, 4], &[6, 2, 3, 4]]),
            Sample::normal(Contract::new("i j k, k i j -> []"), &[&[3, 4, 5], &[5, 3, 4]]),
            // Results whose last axis is a batch axis, and whose rows and columns alternate.
            Sample::normal(Contract::new("b m k, b n k -> m n b"), &[&[5, 4, 9], &[5, 3, 9]]),
            Sample::normal(Contract::new("b k, k b n -> n b"), &[&[4, 6], &[6, 4, 7]]),
            Sample::normal(Contract::new("b k, k b -> b"), &[&[9, 6], &[6, 9]]),
            Sample::normal(Contract::new("i k j, l n k -> l i n j"), &[&[3, 8, 4], &[2, 5, 8]]),
            Sample::normal(Contract::new("m, n -> m n"), &[&[4], &[3]]),
            Sample::normal(Contract::new("k, k -> []"), &[&[40], &[40]]),
        ]
    }
}
