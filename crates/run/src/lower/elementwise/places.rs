//! Where the values of a chain are while a block goes through it: in an operand, in a result's own bytes or
//! in a temporary. Decided once, for whichever operand a result may be written over.

use super::{Step, TensorType};
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::op::elementwise::Elementwise;

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Operand(usize),
    Temporary(usize),
    Out(usize),
}

/// The places of all values.
pub(super) struct Places {
    pub steps: Vec<Step>,
    /// Results that lie elsewhere until a block's end.
    pub copies: Vec<(Place, usize)>,
    /// Result and where its value, reduced or not, is found.
    pub results: Vec<(usize, Place)>,
    pub temporaries: usize,
}

impl Places {
    pub(super) fn of(op: &Elementwise, types: &[DType], ins: &[TensorType], outs: &[TensorType]) -> Places {
        let (operands, count) = (op.operands, op.steps.len());
        // The last step that reads each value; what is kept is needed to the end.
        let mut last = vec![0; types.len()];
        for (k, step) in op.steps.iter().enumerate() {
            step.of.iter().for_each(|&v| last[v] = k);
        }
        op.results.iter().for_each(|kept| last[kept.value] = count);
        // The step from which on a result's bytes may be written: no operand under them is read later.
        let whole = |o: usize| op.results[o].reduce.is_none();
        let open = |o: usize| {
            let under = (0..operands).filter(|&i| ins[i] == outs[o]);
            under.map(|i| last[i]).max().unwrap_or(0)
        };
        let slots: Vec<(usize, usize)> =
            (0..outs.len()).filter(|&o| whole(o)).map(|o| (o, open(o))).collect();

        let mut place: Vec<Place> = (0..operands).map(Place::Operand).collect();
        let mut temporaries = 0;
        let mut steps = Vec::new();
        for (k, step) in op.steps.iter().enumerate() {
            let (value, dtype) = (operands + k, types[operands + k]);
            let holds = |p: Place, v: usize| place.get(v) == Some(&p);
            // Free: nobody who is needed from this step on is there, this step's own operands excepted
            // where they have the result's type, since each element is read before it is written.
            let free = |p: Place| {
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
                slots.iter().filter(fits).map(|s| Place::Out(s.0)).find(|p| free(*p))
            };
            let spare = || (0..temporaries).map(Place::Temporary).find(|p| free(*p));
            let to = own.map(Place::Out).or_else(borrowed).or_else(spare).unwrap_or_else(|| {
                temporaries += 1;
                Place::Temporary(temporaries - 1)
            });
            let of = step.of.iter().map(|&v| place[v]).collect();
            steps.push(Step { apply: step.apply, of, from: types[step.of[0]], to });
            place.push(to);
        }
        let results: Vec<(usize, Place)> =
            op.results.iter().enumerate().map(|(o, kept)| (o, place[kept.value])).collect();
        let apart = |&&(o, p): &&(usize, Place)| whole(o) && p != Place::Out(o);
        let copies = results.iter().filter(apart).map(|&(o, p)| (p, o)).collect();
        Places { steps, copies, results, temporaries }
    }
}
