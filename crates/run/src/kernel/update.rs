//! Weight updates: one pass over a weight, its gradient and the optimizer's states, which are changed where
//! they are or written elsewhere. Coefficients are derived from the hyper-parameters once, in double precision.

use crate::team::isa::simd;

/// How one element changes, with coefficients ready for use. Hyper-parameters have their usual names;
/// `decay` is the weight decay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Plain gradient descent; no state.
    Sgd(Sgd),
    /// Gradient descent with a momentum buffer.
    Momentum(Sgd, Momentum),
    /// Adam; states exp_avg and exp_avg_sq.
    Adam(Adam),
    /// Adam with a third state, the largest exp_avg_sq so far.
    Amsgrad(Adam),
    /// Adadelta; states square_avg and acc_delta.
    Adadelta(Adadelta),
    /// Adagrad; the state is the sum of squares.
    Adagrad(Adagrad),
    /// RMSprop; state square_avg.
    Rmsprop(Rmsprop),
    /// Centered RMSprop; states square_avg and grad_avg.
    CenteredRmsprop(Rmsprop),
    /// RMSprop with this momentum; states square_avg and the buffer.
    HeavyRmsprop(Rmsprop, f32),
    /// Centered RMSprop with this momentum; states square_avg, grad_avg and the buffer.
    HeavyCenteredRmsprop(Rmsprop, f32),
    /// Lion; state exp_avg.
    Lion(Lion),
}

/// Coefficients of gradient descent.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Sgd {
    pub lr: f32,
    pub decay: f32,
}

/// Coefficients of a momentum buffer b.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Momentum {
    /// Factor of b.
    pub momentum: f32,
    /// Factor of the gradient that goes into b: one minus the dampening.
    pub take: f32,
    /// The first step: b is the gradient itself.
    pub first: bool,
    /// The weight follows the gradient plus momentum·b instead of b.
    pub nesterov: bool,
}

/// Coefficients of Adam.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// The rate divided by `1 - beta1^step`.
    pub rate: f32,
    /// `1 - beta1`.
    pub take1: f32,
    /// Factor of exp_avg_sq.
    pub beta2: f32,
    /// `1 - beta2`.
    pub take2: f32,
    /// `1/√(1 - beta2^step)`.
    pub root: f32,
    /// Added to the root.
    pub eps: f32,
    /// Weight decay through the gradient.
    pub coupled: f32,
    /// Weight decay by itself, times the rate.
    pub decoupled: f32,
}

impl Adam {
    /// From hyper-parameters; the step is counted from one.
    pub fn new([lr, beta1, beta2, eps, decay, step]: [f64; 6], decoupled: bool) -> Adam {
        Adam {
            rate: (lr / (1.0 - power(beta1, step))) as f32,
            take1: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            take2: (1.0 - beta2) as f32,
            root: (1.0 / (1.0 - power(beta2, step)).sqrt()) as f32,
            eps: eps as f32,
            coupled: if decoupled { 0.0 } else { decay as f32 },
            decoupled: if decoupled { (lr * decay) as f32 } else { 0.0 },
        }
    }
}

/// Coefficients of Adadelta.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Adadelta {
    pub lr: f32,
    pub rho: f32,
    /// `1 - rho`.
    pub take: f32,
    pub eps: f32,
    pub decay: f32,
}

/// Coefficients of Adagrad.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Adagrad {
    /// `lr/(1 + (step - 1)·lr_decay)`.
    pub rate: f32,
    pub eps: f32,
    pub decay: f32,
}

/// Coefficients of RMSprop.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Rmsprop {
    pub lr: f32,
    pub alpha: f32,
    /// `1 - alpha`.
    pub take: f32,
    pub eps: f32,
    pub decay: f32,
}

/// Coefficients of Lion.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Lion {
    pub lr: f32,
    pub beta1: f32,
    /// `1 - beta1`.
    pub take1: f32,
    pub beta2: f32,
    /// `1 - beta2`.
    pub take2: f32,
    /// The weight decay times the rate.
    pub decay: f32,
}

/// `base` to a whole power, which is `step` without its fraction, by repeated squaring: the same on
/// every machine.
pub fn power(mut base: f64, step: f64) -> f64 {
    let (mut left, mut product) = (step as u64, 1.0);
    while left > 0 {
        if left & 1 == 1 {
            product *= base;
        }
        base *= base;
        left >>= 1;
    }
    product
}

/// Applies `rule(weight, gradient, states)` to every element.
#[inline(always)]
fn each<const S: usize>(
    w: &mut [f32],
    g: &[f32],
    states: &mut [&mut [f32]],
    rule: impl Fn(f32, f32, [f32; S]) -> (f32, [f32; S]),
) {
    let n = w.len();
    let g = &g[..n];
    let mut states = states.iter_mut();
    let mut states: [&mut [f32]; S] =
        std::array::from_fn(|_| &mut states.next().expect("a slice per state")[..n]);
    for i in 0..n {
        let (new, kept) = rule(w[i], g[i], std::array::from_fn(|s| states[s][i]));
        w[i] = new;
        for (state, kept) in states.iter_mut().zip(kept) {
            state[i] = kept;
        }
    }
}

#[inline(always)]
fn adam_step(c: &Adam, w: f32, g: f32, m: f32, v: f32) -> (f32, f32, f32) {
    let g = c.coupled.mul_add(w, g);
    let w = (-c.decoupled).mul_add(w, w);
    (w, c.take1.mul_add(g - m, m), c.beta2.mul_add(v, c.take2 * g * g))
}

#[inline(always)]
fn adam_move(c: &Adam, w: f32, m: f32, square: f32) -> f32 {
    (-c.rate).mul_add(m / square.sqrt().mul_add(c.root, c.eps), w)
}

/// The decayed gradient and the new square_avg.
#[inline(always)]
fn rmsprop_square(c: &Rmsprop, w: f32, g: f32, square: f32) -> (f32, f32) {
    let g = c.decay.mul_add(w, g);
    (g, c.alpha.mul_add(square, c.take * g * g))
}

/// The new grad_avg, and the root of the variance around it plus eps.
#[inline(always)]
fn rmsprop_center(c: &Rmsprop, g: f32, square: f32, average: f32) -> (f32, f32) {
    let average = c.take.mul_add(g - average, average);
    let variance = (-average).mul_add(average, square);
    // A variance that rounding made negative is zero; a NaN stays.
    let variance = if variance < 0.0 { 0.0 } else { variance };
    (average, variance.sqrt() + c.eps)
}

#[inline(always)]
fn apply_body(rule: &Rule, w: &mut [f32], g: &[f32], states: &mut [&mut [f32]]) {
    match rule {
        Rule::Sgd(c) => each(w, g, states, |w, g, []| ((-c.lr).mul_add(c.decay.mul_add(w, g), w), [])),
        Rule::Momentum(c, m) => each(w, g, states, |w, g, [b]| {
            let g = c.decay.mul_add(w, g);
            let b = if m.first { g } else { m.momentum.mul_add(b, m.take * g) };
            let direction = if m.nesterov { m.momentum.mul_add(b, g) } else { b };
            // The buffer may hold anything where it takes no part.
            let direction = if m.momentum == 0.0 { g } else { direction };
            ((-c.lr).mul_add(direction, w), [b])
        }),
        Rule::Adam(c) => each(w, g, states, |w, g, [m, v]| {
            let (w, m, v) = adam_step(c, w, g, m, v);
            (adam_move(c, w, m, v), [m, v])
        }),
        Rule::Amsgrad(c) => each(w, g, states, |w, g, [m, v, largest]| {
            let (w, m, v) = adam_step(c, w, g, m, v);
            // A NaN must show, so it is not `f32::max`.
            let largest = if largest >= v { largest } else { v };
            (adam_move(c, w, m, largest), [m, v, largest])
        }),
        Rule::Adadelta(c) => each(w, g, states, |w, g, [square, steps]| {
            let g = c.decay.mul_add(w, g);
            let square = c.rho.mul_add(square, c.take * g * g);
            let delta = (steps + c.eps).sqrt() / (square + c.eps).sqrt() * g;
            let steps = c.rho.mul_add(steps, c.take * delta * delta);
            ((-c.lr).mul_add(delta, w), [square, steps])
        }),
        Rule::Adagrad(c) => each(w, g, states, |w, g, [sum]| {
            let g = c.decay.mul_add(w, g);
            let sum = g.mul_add(g, sum);
            ((-c.rate).mul_add(g / (sum.sqrt() + c.eps), w), [sum])
        }),
        Rule::Rmsprop(c) => each(w, g, states, |w, g, [square]| {
            let (g, square) = rmsprop_square(c, w, g, square);
            ((-c.lr).mul_add(g / (square.sqrt() + c.eps), w), [square])
        }),
        Rule::CenteredRmsprop(c) => each(w, g, states, |w, g, [square, average]| {
            let (g, square) = rmsprop_square(c, w, g, square);
            let (average, root) = rmsprop_center(c, g, square, average);
            ((-c.lr).mul_add(g / root, w), [square, average])
        }),
        Rule::HeavyRmsprop(c, momentum) => each(w, g, states, |w, g, [square, b]| {
            let (g, square) = rmsprop_square(c, w, g, square);
            let b = momentum.mul_add(b, g / (square.sqrt() + c.eps));
            ((-c.lr).mul_add(b, w), [square, b])
        }),
        Rule::HeavyCenteredRmsprop(c, momentum) => each(w, g, states, |w, g, [square, average, b]| {
            let (g, square) = rmsprop_square(c, w, g, square);
            let (average, root) = rmsprop_center(c, g, square, average);
            let b = momentum.mul_add(b, g / root);
            ((-c.lr).mul_add(b, w), [square, average, b])
        }),
        Rule::Lion(c) => each(w, g, states, |w, g, [m]| {
            let direction = c.beta1.mul_add(m, c.take1 * g);
            // Zero has no sign, and a NaN must show.
            let sign = if direction > 0.0 { 1.0 } else { direction };
            let sign = if direction < 0.0 { -1.0 } else { sign };
            let m = c.beta2.mul_add(m, c.take2 * g);
            ((-c.lr).mul_add(sign, (-c.decay).mul_add(w, w)), [m])
        }),
    }
}

/// Elements that are read, updated and written at a time.
const PIECE: usize = 64;

/// Most arrays an update changes: the weight and three states.
pub const MOST: usize = 4;

#[inline(always)]
fn apply_apart_body(rule: &Rule, from: &[Option<&[f32]>], g: &[f32], to: &mut [&mut [f32]]) {
    let mut pieces = [[0.0f32; PIECE]; MOST];
    for at in (0..g.len()).step_by(PIECE) {
        let len = PIECE.min(g.len() - at);
        let fetch = |len: usize, piece: &mut [f32; PIECE], from: &Option<&[f32]>, to: &[f32]| {
            piece[..len].copy_from_slice(&from.unwrap_or(to)[at..at + len]);
        };
        for ((piece, from), to) in pieces.iter_mut().zip(from).zip(&*to) {
            // A known length becomes a few vector moves.
            if len == PIECE { fetch(PIECE, piece, from, to) } else { fetch(len, piece, from, to) }
        }
        let [w, a, b, c] = &mut pieces;
        let mut states: [&mut [f32]; MOST - 1] = [a, b, c];
        if len == PIECE {
            apply_body(rule, w, &g[at..at + PIECE], &mut states);
        } else {
            apply_body(rule, &mut w[..len], &g[at..], &mut states);
        }
        for (piece, to) in pieces.iter().zip(&mut *to) {
            if len == PIECE {
                to[at..at + PIECE].copy_from_slice(piece);
            } else {
                to[at..at + len].copy_from_slice(&piece[..len]);
            }
        }
    }
}

simd! {
    /// [`apply`] to a weight and states, in this order, whose new values go to `to`; those not given by
    /// `from` lie there. Panics if there are more than [`MOST`], or if one is shorter than `g`.
    pub fn apply_apart(rule: &Rule, from: &[Option<&[f32]>], g: &[f32], to: &mut [&mut [f32]]) = apply_apart_body;
    /// Updates the weight `w` and its states from the gradient `g`. Panics if there are fewer states than
    /// the rule has, or if one of them or `g` is shorter than `w`.
    pub fn apply(rule: &Rule, w: &mut [f32], g: &[f32], states: &mut [&mut [f32]]) = apply_body;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::testing::{bits, noise};
    use crate::team::isa::Isa;

    #[test]
    fn powers_are_those_of_repeated_multiplication() {
        for base in [0.9, 0.999, 0.5, 0.0, 1.0] {
            let mut product = 1.0f64;
            for step in 0..200 {
                let got = power(base, f64::from(step));
                assert!((got - product).abs() <= 1e-13 * product, "{base}^{step}");
                product *= base;
            }
        }
        assert_eq!((power(0.9, -3.0), power(0.9, f64::NAN), power(0.5, 1e30)), (1.0, 1.0, 0.0));
    }

    #[test]
    fn values_written_elsewhere_have_the_bits_of_those_changed_in_place() {
        let adam = Adam::new([1e-2, 0.9, 0.99, 1e-8, 0.1, 3.0], false);
        let c = Rmsprop { lr: 0.1, alpha: 0.9, take: 0.1, eps: 1e-6, decay: 0.01 };
        let rules = [
            (Rule::Sgd(Sgd { lr: 0.1, decay: 0.01 }), 0),
            (Rule::Rmsprop(c), 1),
            (Rule::Adam(adam), 2),
            (Rule::Amsgrad(adam), 3),
        ];
        for (isa, (rule, states)) in Isa::all().into_iter().flat_map(|isa| rules.map(|rule| (isa, rule))) {
            for len in [0, 1, 63, 64, 65, 200] {
                let g = noise(len, 9);
                let old: Vec<Vec<f32>> =
                    (0..=states).map(|s| noise(len, s).iter().map(|x| x.abs()).collect()).collect();
                let mut want = old.clone();
                let (w, rest) = want.split_at_mut(1);
                apply(
                    isa,
                    &rule,
                    &mut w[0],
                    &g,
                    &mut rest.iter_mut().map(|s| &mut s[..]).collect::<Vec<_>>(),
                );
                // Every mixture of values in place and apart.
                for apart in 0..1 << old.len() {
                    let is_apart = |i: usize| apart >> i & 1 == 1;
                    let from: Vec<Option<&[f32]>> =
                        old.iter().enumerate().map(|(i, x)| is_apart(i).then_some(&x[..])).collect();
                    let mut got: Vec<Vec<f32>> = (old.iter().enumerate())
                        .map(|(i, x)| if is_apart(i) { vec![f32::NAN; len] } else { x.clone() })
                        .collect();
                    let mut to: Vec<&mut [f32]> = got.iter_mut().map(|x| &mut x[..]).collect();
                    apply_apart(isa, &rule, &from, &g, &mut to);
                    assert_eq!(bits(&got.concat()), bits(&want.concat()), "{rule:?} {len} {apart:b}");
                }
            }
        }
    }

    #[test]
    fn a_small_decoupled_decay_is_not_rounded_away() {
        let adam = Adam::new([1e-3, 0.9, 0.999, 1e-8, 1e-4, 1.0], true);
        let mut w = [1.0f32; 5];
        let (mut m, mut v) = ([0.0; 5], [0.0; 5]);
        apply(Isa::detect(), &Rule::Adam(adam), &mut w, &[0.0; 5], &mut [&mut m, &mut v]);
        assert_eq!(w, [(1.0 - 1e-7) as f32; 5]);
    }
}
