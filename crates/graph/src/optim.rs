//! Optimizers as a table, and their application to a weight of the graph: state inputs, hyper-parameter
//! inputs, the update and the carries to the next step. Also gradient clipping.

use crate::dim::Dim;
use crate::graph::build::Builder;
use crate::graph::op::Op;
use crate::graph::op::update::Update;
use crate::graph::op::update_adadelta::UpdateAdadelta;
use crate::graph::op::update_adagrad::UpdateAdagrad;
use crate::graph::op::update_adam::UpdateAdam;
use crate::graph::op::update_lion::UpdateLion;
use crate::graph::op::update_rmsprop::UpdateRmsprop;
use crate::graph::op::update_sgd::UpdateSgd;
use crate::graph::{GraphError, Init, Role, Type, Value};
use crate::hyper::range;
use crate::role::HyperRole;

/// The hyper-parameter that is the number of the step ([`HyperRole::Step`]).
const STEP: &str = "step";

/// One optimizer a user can name.
pub struct OptimizerRow {
    /// The name in job files.
    pub name: &'static str,
    /// One line for people.
    pub help: &'static str,
    /// Settings with their defaults.
    pub hypers: &'static [(&'static str, f32)],
    /// Switches, on if the setting is not zero: changes states or formula, so it is the
    /// same for all members of a fused array.
    pub choices: &'static [&'static str],
    /// The update for these switched-on settings; a momentum other than zero counts as one.
    make: fn(Switches) -> Rule,
}

/// Whether a setting is switched on.
type Switches<'a> = &'a dyn Fn(&str) -> bool;

/// An update with the names of its operands.
struct Rule {
    op: Op,
    states: Vec<&'static str>,
    hypers: Vec<&'static str>,
}

fn rule(update: impl Update + Into<Op>) -> Rule {
    Rule { states: update.states(), hypers: update.hypers(), op: update.into() }
}

/// Every optimizer, with PyTorch's defaults.
pub const OPTIMIZERS: &[OptimizerRow] = &[
    OptimizerRow {
        name: "sgd",
        help: "stochastic gradient descent; keeps a momentum buffer only if momentum is not zero",
        hypers: &[("lr", 1e-3), ("momentum", 0.0), ("dampening", 0.0), ("weight_decay", 0.0)],
        choices: &["nesterov"],
        make: |on| rule(UpdateSgd { momentum: on("momentum"), nesterov: on("nesterov") }),
    },
    OptimizerRow {
        name: "adam",
        help: "running means of gradient and square; weight decay through the gradient",
        hypers: &[("lr", 1e-3), ("beta1", 0.9), ("beta2", 0.999), ("eps", 1e-8), ("weight_decay", 0.0)],
        choices: &["amsgrad"],
        make: |on| rule(UpdateAdam { decoupled: false, amsgrad: on("amsgrad") }),
    },
    OptimizerRow {
        name: "adamw",
        help: "adam with weight decay applied to the weight itself",
        hypers: &[("lr", 1e-3), ("beta1", 0.9), ("beta2", 0.999), ("eps", 1e-8), ("weight_decay", 0.01)],
        choices: &["amsgrad"],
        make: |on| rule(UpdateAdam { decoupled: true, amsgrad: on("amsgrad") }),
    },
    OptimizerRow {
        name: "adadelta",
        help: "step sizes from the history of steps and gradients",
        hypers: &[("lr", 1.0), ("rho", 0.9), ("eps", 1e-6), ("weight_decay", 0.0)],
        choices: &[],
        make: |_| rule(UpdateAdadelta {}),
    },
    OptimizerRow {
        name: "adagrad",
        help: "divides by the root of the sum of squared gradients",
        hypers: &[("lr", 1e-2), ("lr_decay", 0.0), ("eps", 1e-10), ("weight_decay", 0.0)],
        choices: &[],
        make: |_| rule(UpdateAdagrad {}),
    },
    OptimizerRow {
        name: "rmsprop",
        help: "divides by the root of a running mean of squared gradients",
        hypers: &[("lr", 1e-2), ("alpha", 0.99), ("eps", 1e-8), ("weight_decay", 0.0), ("momentum", 0.0)],
        choices: &["centered"],
        make: |on| rule(UpdateRmsprop { centered: on("centered"), momentum: on("momentum") }),
    },
    OptimizerRow {
        name: "lion",
        help: "steps of one size in the direction of a momentum's sign",
        hypers: &[("lr", 1e-4), ("beta1", 0.9), ("beta2", 0.99), ("weight_decay", 0.0)],
        choices: &[],
        make: |_| rule(UpdateLion {}),
    },
];

/// An optimizer with its settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Optimizer {
    /// The row's name.
    pub name: &'static str,
    /// The update.
    pub op: Op,
    /// Names of the states each weight needs; all start at zero.
    pub states: Vec<&'static str>,
    /// Scalar operands of the update in order, with their defaults.
    pub hypers: Vec<(&'static str, f32)>,
}

impl Optimizer {
    /// The optimizer of a row of [`OPTIMIZERS`]; `settings` override defaults and switch choices on.
    pub fn new(name: &str, settings: &[(&str, f32)]) -> Result<Optimizer, GraphError> {
        let names = |all: Vec<&str>| all.join(", ");
        let Some(row) = OPTIMIZERS.iter().find(|r| r.name == name) else {
            let all = names(OPTIMIZERS.iter().map(|r| r.name).collect());
            return Err(GraphError::Model(format!("no optimizer `{name}`; there are {all}")));
        };
        let known: Vec<&str> = row.hypers.iter().map(|h| h.0).chain(row.choices.iter().copied()).collect();
        if let Some((other, _)) = settings.iter().find(|(s, _)| !known.contains(s)) {
            let all = names(known);
            return Err(GraphError::Model(format!("{name} has no setting `{other}`; it has {all}")));
        }
        if let Some((other, x)) = settings.iter().find(|(s, x)| !range(s).contains(f64::from(*x))) {
            let allowed = range(other).allowed;
            return Err(GraphError::Model(format!("{name}: {other} must be {allowed}, not {x}")));
        }
        let value = |setting: &str| {
            let default = row.hypers.iter().find(|h| h.0 == setting).map_or(0.0, |h| h.1);
            settings.iter().rev().find(|(s, _)| *s == setting).map_or(default, |(_, v)| *v)
        };
        if name == "sgd" && value("nesterov") != 0.0 && value("momentum") == 0.0 {
            return Err(GraphError::Model("nesterov needs a momentum other than zero".into()));
        }
        let Rule { op, states, hypers } = (row.make)(&|setting| value(setting) != 0.0);
        let default = |h: &'static str| (h, if h == STEP { 1.0 } else { value(h) });
        Ok(Optimizer { name: row.name, op, states, hypers: hypers.into_iter().map(default).collect() })
    }

    /// Updates a weight: the new weight. States are inputs `optimizer.<weight>.<state>`, hyper-parameters
    /// inputs `hyper.<name>` shared by all weights updated in the same scope; weight and states are
    /// carried. The nodes belong to the phase the builder is in.
    pub fn apply(&self, g: &mut Builder, weight: Value, grad: Value) -> Result<Value, GraphError> {
        let name = g.graph().value(weight).name.clone();
        let shape = g.shape(weight).to_vec();
        let mut ins = vec![g.newest(weight), grad];
        for state in &self.states {
            ins.push(g.state(&format!("optimizer.{name}.{state}"), &shape, Init::Constant(0.0))?);
        }
        for &(hyper, default) in &self.hypers {
            ins.push(hyper_input(g, hyper, default)?);
        }
        let outs = g.push(self.op.clone(), &ins)?;
        g.carry(weight, outs[0]);
        for (&state, &next) in ins[2..].iter().zip(&outs[1..]) {
            g.carry(state, next);
        }
        Ok(outs[0])
    }
}

fn hyper_input(g: &mut Builder, name: &str, default: f32) -> Result<Value, GraphError> {
    let role = match name {
        "lr" => HyperRole::LearningRate,
        STEP => HyperRole::Step,
        _ => HyperRole::Setting,
    };
    g.input(&format!("hyper.{name}"), Role::Hyper(role, default), Type::f32::<Dim>(&[]))
}

/// Scales all gradients by `min(1, max/(norm + 1e-6))`, where the norm is that of all of them together;
/// also gives the norm. The bound is the input `hyper.clip_norm`, by default `max`.
pub fn clip_by_norm(g: &mut Builder, grads: &[Value], max: f32) -> Result<(Vec<Value>, Value), GraphError> {
    let mut total = g.scalar(0.0)?;
    for &grad in grads {
        let squares = g.square(grad)?;
        let sum = g.sum_all(squares)?;
        total = g.add(total, sum)?;
    }
    let norm = g.sqrt(total)?;
    let max = hyper_input(g, "clip_norm", max)?;
    let room = g.affine(norm, 1.0, 1e-6)?;
    let ratio = g.div(max, room)?;
    let one = g.scalar(1.0)?;
    let scale = g.minimum(ratio, one)?;
    let clipped = grads.iter().map(|&grad| g.mul(grad, scale)).collect::<Result<_, _>>()?;
    Ok((clipped, norm))
}

/// Limits every element of every gradient to `-max..=max`; the bound is the input `hyper.clip_value`.
pub fn clip_by_value(g: &mut Builder, grads: &[Value], max: f32) -> Result<Vec<Value>, GraphError> {
    let high = hyper_input(g, "clip_value", max)?;
    let low = g.neg(high)?;
    let mut clipped = Vec::with_capacity(grads.len());
    for &grad in grads {
        let below = g.minimum(grad, high)?;
        clipped.push(g.maximum(below, low)?);
    }
    Ok(clipped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Bindings;
    use crate::dtype::DType;
    use crate::graph::Origin;
    use crate::interpret::interpret;
    use crate::tensor::Tensor;
    use std::collections::HashMap;

    const WEIGHT: [f64; 2] = [0.5, -1.2];
    const GRADS: [[f64; 2]; 3] = [[0.3, -0.8], [-0.1, 0.4], [0.25, 0.05]];

    /// The weight after three steps, each a run of the graph with what the one before carried.
    fn three_steps(optimizer: &Optimizer) -> Vec<f64> {
        let mut g = Builder::new(true);
        let w = g.weight("w", &[2], Init::Constant(0.0)).unwrap();
        let grad = g.data("grad", DType::F32, &[2]).unwrap();
        optimizer.apply(&mut g, w, grad).unwrap();
        let graph = g.finish();
        let mut carried = HashMap::from([(w, Tensor::new(&[2], WEIGHT.to_vec()))]);
        for (i, values) in GRADS.iter().enumerate() {
            let step = (i + 1) as f64;
            let all = interpret(&graph, &Bindings::new(), |v, shape| match graph.value(v).origin {
                _ if v == grad => Tensor::new(shape, values.to_vec()),
                Origin::Input(Role::Hyper(HyperRole::Step, _)) => Tensor::scalar(step),
                Origin::Input(Role::Hyper(_, default)) => Tensor::scalar(f64::from(default)),
                _ => carried.get(&v).cloned().unwrap_or_else(|| Tensor::zeros(shape)),
            });
            let all = all.unwrap();
            carried = graph.carries.iter().map(|(input, next)| (*input, all[next.index()].clone())).collect();
        }
        carried[&w].data.clone()
    }

    #[test]
    fn three_steps_match_pytorch() {
        // torch.optim in double precision, with these settings rounded to f32 first.
        type Case = (&'static str, &'static [(&'static str, f32)], [f64; 2]);
        let adam: &[(&str, f32)] =
            &[("lr", 0.1), ("weight_decay", 0.05), ("beta1", 0.8), ("beta2", 0.9), ("eps", 1e-3)];
        let cases: &[Case] = &[
            ("sgd", &[("lr", 0.1), ("weight_decay", 0.01)], [0.45355146884097386, -1.1615235183061219]),
            (
                "sgd",
                &[("lr", 0.1), ("weight_decay", 0.01), ("momentum", 0.9), ("dampening", 0.2)],
                [0.4114716210919885, -1.042185966259325],
            ),
            (
                "sgd",
                &[("lr", 0.1), ("weight_decay", 0.01), ("momentum", 0.9), ("nesterov", 1.0)],
                [0.37268508675717565, -1.0338167777999476],
            ),
            ("adam", adam, [0.2886802155011402, -1.0482397748049905]),
            (
                "adam",
                &[
                    ("lr", 0.1),
                    ("weight_decay", 0.05),
                    ("beta1", 0.8),
                    ("beta2", 0.9),
                    ("eps", 1e-3),
                    ("amsgrad", 1.0),
                ],
                [0.2895323980520932, -1.0493802773728425],
            ),
            ("adamw", adam, [0.2946683941835946, -1.0502039936152952]),
            ("adadelta", &[("weight_decay", 0.01)], [0.49520499232192083, -1.1990723735883655]),
            (
                "adagrad",
                &[("lr", 0.1), ("lr_decay", 0.1), ("weight_decay", 0.01)],
                [0.37542630784751757, -1.142846805594717],
            ),
            (
                "rmsprop",
                &[("lr", 0.1), ("alpha", 0.9), ("weight_decay", 0.01)],
                [0.07749202292108051, -1.0422578477276239],
            ),
            (
                "rmsprop",
                &[("lr", 0.1), ("alpha", 0.9), ("weight_decay", 0.01), ("centered", 1.0)],
                [0.04936545076149479, -1.0264614725571095],
            ),
            (
                "rmsprop",
                &[("lr", 0.1), ("alpha", 0.9), ("weight_decay", 0.01), ("momentum", 0.9)],
                [-0.3704842859409479, -0.631459537271595],
            ),
            (
                "rmsprop",
                &[("lr", 0.1), ("alpha", 0.9), ("weight_decay", 0.01), ("momentum", 0.9), ("centered", 1.0)],
                [-0.42593325175476693, -0.5875270674036767],
            ),
        ];
        for (name, settings, expected) in cases {
            let got = three_steps(&Optimizer::new(name, settings).unwrap());
            let close = got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12);
            assert!(close, "{name} {settings:?}: {got:?}, expected {expected:?}");
        }
    }

    #[test]
    fn lion_matches_its_formula() {
        let settings = [("lr", 0.25), ("weight_decay", 0.5), ("beta1", 0.75), ("beta2", 0.5)];
        let got = three_steps(&Optimizer::new("lion", &settings).unwrap());
        for (i, got) in got.iter().enumerate() {
            let (mut w, mut m) = (WEIGHT[i], 0.0);
            for g in GRADS {
                let direction: f64 = 0.75 * m + 0.25 * g[i];
                w = w * (1.0 - 0.25 * 0.5) - 0.25 * direction.signum();
                m = 0.5 * m + 0.5 * g[i];
            }
            assert!((got - w).abs() < 1e-12, "{got} {w}");
        }
    }

    #[test]
    fn every_row_can_be_applied_with_its_defaults_and_choices() {
        for row in OPTIMIZERS {
            let mut all: Vec<(&str, f32)> = row.choices.iter().map(|c| (*c, 1.0)).collect();
            if row.hypers.iter().any(|h| h.0 == "momentum") {
                all.push(("momentum", 0.9));
            }
            for settings in [&[][..], &all] {
                let optimizer = Optimizer::new(row.name, settings).unwrap();
                assert_eq!(three_steps(&optimizer).len(), 2, "{}", row.name);
                let known = |h: &str| h == STEP || row.hypers.iter().any(|(name, _)| *name == h);
                assert!(optimizer.hypers.iter().all(|(h, _)| known(h)), "{}", row.name);
            }
        }
    }

    #[test]
    fn hyper_parameters_are_shared_and_states_are_not() {
        let mut g = Builder::new(true);
        let optimizer = Optimizer::new("adam", &[]).unwrap();
        for name in ["a", "b"] {
            let w = g.weight(name, &[3], Init::Constant(0.0)).unwrap();
            let grad = g.data(&format!("d{name}"), DType::F32, &[3]).unwrap();
            optimizer.apply(&mut g, w, grad).unwrap();
        }
        let graph = g.finish();
        let count = |prefix: &str| graph.inputs().filter(|(_, _, i)| i.name.starts_with(prefix)).count();
        assert_eq!((count("hyper."), count("optimizer.a."), count("optimizer.b.")), (6, 2, 2));
        assert_eq!(graph.carries.len(), 6);
        assert!(graph.input("optimizer.b.exp_avg_sq").is_some());
    }

    #[test]
    fn mistakes_name_what_there_is() {
        let error = |name, settings: &[(&str, f32)]| Optimizer::new(name, settings).unwrap_err().to_string();
        assert!(error("adamax", &[]).starts_with("no optimizer `adamax`; there are sgd, adam"));
        assert_eq!(
            error("lion", &[("eps", 1.0)]),
            "lion has no setting `eps`; it has lr, beta1, beta2, weight_decay"
        );
        assert!(error("sgd", &[("nesterov", 1.0)]).contains("momentum"));
        assert_eq!(error("adam", &[("beta1", 1.0)]), "adam: beta1 must be a number from 0 to below 1, not 1");
        assert!(error("adam", &[("step", 3.0)]).contains("no setting `step`"));
    }

    #[test]
    fn clipping_matches_pytorch() {
        let mut g = Builder::new(true);
        let a = g.data("a", DType::F32, &[2]).unwrap();
        let b = g.data("b", DType::F32, &[3]).unwrap();
        let (scaled, norm) = clip_by_norm(&mut g, &[a, b], 1.5).unwrap();
        let limited = clip_by_value(&mut g, &[a, b], 1.0).unwrap();
        let graph = g.finish();
        let values = interpret(&graph, &Bindings::new(), |v, shape| match graph.value(v).origin {
            _ if v == a => Tensor::new(shape, vec![3.0, -4.0]),
            _ if v == b => Tensor::new(shape, vec![0.5, 1.0, -2.0]),
            Origin::Input(Role::Hyper(_, default)) => Tensor::scalar(f64::from(default)),
            _ => unreachable!("no other input"),
        })
        .unwrap();
        let data = |v: Value| values[v.index()].data.clone();
        assert_eq!(data(norm), [5.5]);
        // torch.nn.utils.clip_grad_norm_ with max_norm 1.5; its 1e-6 is not rounded to f32.
        let expected = [0.8181816694215147, -1.0909088925620196];
        assert!(data(scaled[0]).iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12));
        assert_eq!((data(limited[0]), data(limited[1])), (vec![1.0, -1.0], vec![0.5, 1.0, -1.0]));
    }
}
