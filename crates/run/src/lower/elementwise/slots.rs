//! Assigns the values of an element-wise program to slots: an operand, a result, or a temporary. The assignment holds for
//! every operand that a result may overwrite.

use super::{Step, TensorType};
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::op::elementwise::Elementwise;

/// The memory of a value within a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueSlot {
    Operand(usize),
    Temporary(usize),
    Out(usize),
}

/// The slots of all values.
pub(super) struct SlotAssignment {
    pub steps: Vec<Step>,
    /// Results to copy from another slot at the end of a block.
    pub copies: Vec<(ValueSlot, usize)>,
    /// Results and the slots of their values before reduction.
    pub results: Vec<(usize, ValueSlot)>,
    pub temporaries: usize,
}

impl SlotAssignment {
    pub(super) fn of(
        op: &Elementwise,
        types: &[DType],
        ins: &[TensorType],
        outs: &[TensorType],
    ) -> SlotAssignment {
        let (operands, count) = (op.operands, op.steps.len());
        // The last step that reads each value; results are needed to the end.
        let mut last = vec![0; types.len()];
        for (k, step) in op.steps.iter().enumerate() {
            step.of.iter().for_each(|&v| last[v] = k);
        }
        op.results.iter().for_each(|kept| last[kept.value] = count);
        // The first step at which a result may be written: no operand that it may overwrite is read later.
        let whole = |o: usize| op.results[o].reduce.is_none();
        let open = |o: usize| {
            let under = (0..operands).filter(|&i| ins[i] == outs[o]);
            under.map(|i| last[i]).max().unwrap_or(0)
        };
        let slots: Vec<(usize, usize)> =
            (0..outs.len()).filter(|&o| whole(o)).map(|o| (o, open(o))).collect();

        let mut slot_of: Vec<ValueSlot> = (0..operands).map(ValueSlot::Operand).collect();
        let mut temporaries = 0;
        let mut steps = Vec::new();
        for (k, step) in op.steps.iter().enumerate() {
            let (value, dtype) = (operands + k, types[operands + k]);
            let holds = |p: ValueSlot, v: usize| slot_of.get(v) == Some(&p);
            // A slot is free if it holds no value needed from this step on. Operands of this step with the type of the
            // result do not count, since each element is read before it is written.
            let free = |p: ValueSlot| {
                (operands..value).all(|v| {
                    !holds(p, v) || last[v] < k || (last[v] == k && types[v] == dtype && step.of.contains(&v))
                })
            };
            let own = slots.iter().find(|(o, open)| op.results[*o].value == value && *open <= k).map(|s| s.0);
            let borrowed = || {
                let made = |o: usize| op.results[o].value - operands;
                let fits = |&&(o, open): &&(usize, usize)| {
                    open <= k
                        && outs[o].dtype == dtype
                        && last[value] <= made(o)
                        && value < made(o) + operands
                };
                slots.iter().filter(fits).map(|s| ValueSlot::Out(s.0)).find(|p| free(*p))
            };
            let spare = || (0..temporaries).map(ValueSlot::Temporary).find(|p| free(*p));
            let to = own.map(ValueSlot::Out).or_else(borrowed).or_else(spare).unwrap_or_else(|| {
                temporaries += 1;
                ValueSlot::Temporary(temporaries - 1)
            });
            let of = step.of.iter().map(|&v| slot_of[v]).collect();
            steps.push(Step { apply: step.apply, of, from: types[step.of[0]], to });
            slot_of.push(to);
        }
        let results: Vec<(usize, ValueSlot)> =
            op.results.iter().enumerate().map(|(o, kept)| (o, slot_of[kept.value])).collect();
        let apart = |&&(o, p): &&(usize, ValueSlot)| whole(o) && p != ValueSlot::Out(o);
        let copies = results.iter().filter(apart).map(|&(o, p)| (p, o)).collect();
        SlotAssignment { steps, copies, results, temporaries }
    }
}
