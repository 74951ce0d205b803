//! Weight updates: hyper-parameters are read once, then weight and states are updated in one pass.

use super::broadcast::ranges;
use super::{Lowered, TensorType, all_f32};
use crate::kernel::update::{self, Adadelta, Adagrad, Adam, Lion, MOST, Momentum, Rmsprop, Rule, Sgd};
use crate::lower::call::Call;
use crate::team::SharedMut;
use gulliver_graph::graph::op::update_adam::UpdateAdam;
use gulliver_graph::graph::op::update_rmsprop::UpdateRmsprop;
use gulliver_graph::graph::op::update_sgd::UpdateSgd;

pub(super) fn sgd(op: &UpdateSgd, ins: &[TensorType]) -> Option<Lowered> {
    if !op.momentum {
        let rule = |[lr, decay]: [f64; 2]| Rule::Sgd(Sgd { lr: lr as f32, decay: decay as f32 });
        return rows(ins, 0, rule);
    }
    let nesterov = op.nesterov;
    rows(ins, 1, move |[lr, decay, momentum, dampening, step]: [f64; 5]| {
        let heavy = Momentum {
            momentum: momentum as f32,
            take: (1.0 - dampening) as f32,
            first: step <= 1.0,
            nesterov,
        };
        Rule::Momentum(Sgd { lr: lr as f32, decay: decay as f32 }, heavy)
    })
}

pub(super) fn adam(op: &UpdateAdam, ins: &[TensorType]) -> Option<Lowered> {
    let decoupled = op.decoupled;
    if op.amsgrad {
        rows(ins, 3, move |hypers| Rule::Amsgrad(Adam::new(hypers, decoupled)))
    } else {
        rows(ins, 2, move |hypers| Rule::Adam(Adam::new(hypers, decoupled)))
    }
}

pub(super) fn adadelta(ins: &[TensorType]) -> Option<Lowered> {
    rows(ins, 2, |[lr, rho, eps, decay]: [f64; 4]| {
        let [lr, rho, take, eps, decay] = [lr, rho, 1.0 - rho, eps, decay].map(|x| x as f32);
        Rule::Adadelta(Adadelta { lr, rho, take, eps, decay })
    })
}

pub(super) fn adagrad(ins: &[TensorType]) -> Option<Lowered> {
    rows(ins, 1, |[lr, lr_decay, eps, decay, step]: [f64; 5]| {
        let rate = lr / (1.0 + (step - 1.0) * lr_decay);
        Rule::Adagrad(Adagrad { rate: rate as f32, eps: eps as f32, decay: decay as f32 })
    })
}

pub(super) fn rmsprop(op: &UpdateRmsprop, ins: &[TensorType]) -> Option<Lowered> {
    fn coefficients(lr: f64, alpha: f64, eps: f64, decay: f64) -> Rmsprop {
        let [lr, alpha, take, eps, decay] = [lr, alpha, 1.0 - alpha, eps, decay].map(|x| x as f32);
        Rmsprop { lr, alpha, take, eps, decay }
    }
    let centered = op.centered;
    let states = 1 + usize::from(centered) + usize::from(op.momentum);
    if op.momentum {
        return rows(ins, states, move |[lr, alpha, eps, decay, momentum]: [f64; 5]| {
            let (c, momentum) = (coefficients(lr, alpha, eps, decay), momentum as f32);
            if centered { Rule::HeavyCenteredRmsprop(c, momentum) } else { Rule::HeavyRmsprop(c, momentum) }
        });
    }
    rows(ins, states, move |[lr, alpha, eps, decay]: [f64; 4]| {
        let c = coefficients(lr, alpha, eps, decay);
        if centered { Rule::CenteredRmsprop(c) } else { Rule::Rmsprop(c) }
    })
}

pub(super) fn lion(ins: &[TensorType]) -> Option<Lowered> {
    rows(ins, 1, |[lr, beta1, beta2, decay]: [f64; 4]| {
        let [take1, take2, decay] = [1.0 - beta1, 1.0 - beta2, lr * decay].map(|x| x as f32);
        Rule::Lion(Lion { lr: lr as f32, beta1: beta1 as f32, take1, beta2: beta2 as f32, take2, decay })
    })
}

/// The update with `H` hyper-parameters after the weight, the gradient and the states.
fn rows<const H: usize>(
    ins: &[TensorType],
    states: usize,
    rule: impl Fn([f64; H]) -> Rule + Send + Sync + 'static,
) -> Option<Lowered> {
    let scalars = ins.len() == 2 + states + H && ins[2 + states..].iter().all(|t| t.len() == 1);
    (all_f32(ins) && scalars).then(|| {
        Lowered::plain(move |call| {
            let hypers = std::array::from_fn(|h| f64::from(call.input::<f32>(2 + states + h)[0]));
            run(call, states, &rule(hypers));
            Ok(())
        })
    })
}

fn run(call: &mut Call<'_>, states: usize, rule: &Rule) {
    let isa = call.team.isa();
    let g = call.input::<f32>(1);
    // Result `o` replaces operand 0 (the weight) or `o + 1` (a state).
    let mut from = [None; MOST];
    let mut to: [Option<SharedMut<'_, f32>>; MOST] = [const { None }; MOST];
    for o in 0..=states {
        let operand = if o == 0 { 0 } else { o + 1 };
        from[o] = (!call.in_place(operand, o)).then(|| call.input::<f32>(operand));
        to[o] = Some(SharedMut::new(call.output::<f32>(o)));
    }
    let apart = from.iter().any(Option::is_some);
    ranges(call, g.len(), &|range| {
        let mut arrays: [&mut [f32]; MOST] = std::array::from_fn(|o| match &to[o] {
            // SAFETY: ranges are disjoint.
            Some(to) => unsafe { to.slice(range.clone()) },
            None => &mut [],
        });
        let g = &g[range.clone()];
        if apart {
            let from = from.map(|from| from.map(|from: &[f32]| &from[range.clone()]));
            update::apply_apart(isa, rule, &from[..=states], g, &mut arrays[..=states]);
        } else {
            let (w, states) = arrays.split_at_mut(1);
            update::apply(isa, rule, w[0], g, states);
        }
    });
}
