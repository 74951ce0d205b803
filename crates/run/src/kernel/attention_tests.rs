//! Attention against plain f64 loops, and its promises about bits.

use crate::kernel::attention::{
    AttentionShape, backward, backward_scratch_len, forward, forward_scratch_len,
};
use crate::kernel::testing::{bits, noise};
use crate::team::Team;
use crate::team::isa::Isa;

struct Case {
    shape: AttentionShape,
    mask: Option<Vec<u8>>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    dout: Vec<f32>,
}

/// o, lse, dq, dk, dv.
type Results = [Vec<f32>; 5];

fn case([b, t, s, h, d]: [usize; 5], causal: bool, masked: bool) -> Case {
    let shape = AttentionShape { b, t, s, h, d, scale: 0.7, causal };
    let (queries, keys) = (b * t * h * d, b * s * h * d);
    let mask = masked.then(|| (0..b * s).map(|j| (j % 5 != 1 && j % s.max(1) >= 2) as u8).collect());
    let [q, dout] = [1, 2].map(|seed| noise(queries, seed));
    let [k, v] = [3, 4].map(|seed| noise(keys, seed));
    Case { shape, mask, q, k, v, dout }
}

fn run(team: &Team, c: &Case) -> Results {
    let mut all = [0, 0, 0, 1, 1].map(|keys| vec![5.0; if keys == 1 { c.k.len() } else { c.q.len() }]);
    let [o, lse, dq, dk, dv] = &mut all;
    lse.resize(c.shape.b * c.shape.h * c.shape.t, 5.0);
    let mask = c.mask.as_deref();
    let mut scratch = vec![f32::NAN; forward_scratch_len(&c.shape, team.threads())];
    forward(team, &c.shape, &c.q, &c.k, &c.v, mask, o, lse, &mut scratch);
    let mut scratch = vec![f32::NAN; backward_scratch_len(&c.shape, team.threads())];
    backward(team, &c.shape, [&c.q, &c.k, &c.v], mask, o, lse, &c.dout, [dq, dk, dv], &mut scratch);
    all
}

/// Everything at once in f64.
fn plain(c: &Case) -> [Vec<f64>; 5] {
    let AttentionShape { b, t, s, h, d, scale, causal } = c.shape;
    let mut all = [0, 0, 0, 1, 1].map(|keys| vec![0.0; if keys == 1 { c.k.len() } else { c.q.len() }]);
    let [o, lse, dq, dk, dv] = &mut all;
    lse.resize(b * h * t, 0.0);
    let scale = scale as f64;
    for (b, h0) in (0..b).flat_map(|b| (0..h).map(move |h| (b, h))) {
        let at = |len: usize, i: usize, e: usize| ((b * len + i) * h + h0) * d + e;
        let dot = |x: &[f32], i: usize, y: &[f32], j: usize| -> f64 {
            (0..d).map(|e| x[at(t, i, e)] as f64 * y[at(s, j, e)] as f64).sum()
        };
        for i in 0..t {
            let seen =
                |j: usize| (!causal || j + t <= i + s) && c.mask.as_ref().is_none_or(|m| m[b * s + j] != 0);
            let score: Vec<_> = (0..s)
                .map(|j| if seen(j) { dot(&c.q, i, &c.k, j) * scale } else { f64::NEG_INFINITY })
                .collect();
            let sum: f64 = score.iter().map(|x| x.exp()).sum();
            lse[(b * h + h0) * t + i] = sum.ln();
            if sum == 0.0 {
                continue;
            }
            let p: Vec<_> = score.iter().map(|x| x.exp() / sum).collect();
            let dp: Vec<_> = (0..s).map(|j| dot(&c.dout, i, &c.v, j)).collect();
            let delta: f64 = p.iter().zip(&dp).map(|(p, dp)| p * dp).sum();
            for j in 0..s {
                let ds = p[j] * (dp[j] - delta) * scale;
                for e in 0..d {
                    o[at(t, i, e)] += p[j] * c.v[at(s, j, e)] as f64;
                    dv[at(s, j, e)] += p[j] * c.dout[at(t, i, e)] as f64;
                    dq[at(t, i, e)] += ds * c.k[at(s, j, e)] as f64;
                    dk[at(s, j, e)] += ds * c.q[at(t, i, e)] as f64;
                }
            }
        }
    }
    all
}

const SHAPES: [[usize; 5]; 15] = [
    [1, 1, 1, 1, 1],
    [2, 7, 7, 3, 8],
    [1, 48, 48, 2, 16],
    [2, 50, 97, 2, 20],
    [1, 100, 30, 1, 5],
    [1, 130, 150, 1, 64],
    [1, 100, 127, 1, 16],
    [2, 90, 100, 2, 32],
    [1, 1, 200, 2, 16],
    [1, 20, 20, 1, 300],
    [0, 5, 5, 2, 4],
    [1, 0, 5, 2, 4],
    [1, 5, 0, 2, 4],
    [1, 5, 5, 0, 4],
    [1, 5, 5, 2, 0],
];

fn cases() -> impl Iterator<Item = Case> {
    SHAPES.into_iter().flat_map(|s| {
        [(false, false), (true, false), (false, true), (true, true)]
            .map(|(causal, masked)| case(s, causal, masked))
    })
}

#[test]
fn close_to_f64() {
    let team = Team::new(1);
    for c in cases() {
        let names = ["o", "lse", "dq", "dk", "dv"];
        for ((got, want), name) in run(&team, &c).iter().zip(plain(&c)).zip(names) {
            for (i, (&got, want)) in got.iter().zip(want).enumerate() {
                let close = got as f64 == want || (got as f64 - want).abs() < 2e-5 * want.abs().max(1.0);
                assert!(close, "{name}[{i}] of {:?}: {got} against {want}", c.shape);
            }
        }
    }
}

#[test]
fn threads_and_instructions_give_the_same_bits() {
    let mut teams: Vec<_> = Isa::all().into_iter().map(|isa| Team::with_isa(1, isa)).collect();
    teams.extend([2, 3].map(Team::new));
    for c in cases() {
        let want = run(&teams[0], &c).map(|x| bits(&x));
        for team in &teams[1..] {
            assert_eq!(run(team, &c).map(|x| bits(&x)), want, "{:?}, {} threads", c.shape, team.threads());
        }
    }
}

/// The slice `[b, len, h, d]` cut to one batch, a range of rows and one head.
fn cut(x: &[f32], [h, d]: [usize; 2], rows: std::ops::Range<usize>, head: usize) -> Vec<f32> {
    rows.flat_map(|i| x[(i * h + head) * d..][..d].to_vec()).collect()
}

#[test]
fn a_query_alone_has_the_bits_it_has_among_others() {
    let team = Team::new(1);
    for causal in [false, true] {
        let [b, t, s, h, d] = [2, 110, 120, 3, 24];
        let whole = case([b, t, s, h, d], causal, true);
        let [o, _, dq, _, _] = run(&team, &whole);
        // Causal visibility is counted from the end, so the rows kept are the last ones.
        for (batch, head, from) in [(0, 0, 0), (1, 2, 1), (0, 1, 60), (1, 0, 109)] {
            let (rows, keys) = (batch * t + from..(batch + 1) * t, batch * s..(batch + 1) * s);
            let q = |x: &[f32]| cut(x, [h, d], rows.clone(), head);
            let k = |x: &[f32]| cut(x, [h, d], keys.clone(), head);
            let piece = Case {
                shape: AttentionShape { b: 1, t: t - from, h: 1, ..whole.shape },
                mask: whole.mask.as_ref().map(|m| m[keys.clone()].to_vec()),
                q: q(&whole.q),
                k: k(&whole.k),
                v: k(&whole.v),
                dout: q(&whole.dout),
            };
            let [po, _, pdq, _, _] = run(&team, &piece);
            assert_eq!(
                (bits(&po), bits(&pdq)),
                (bits(&q(&o)), bits(&q(&dq))),
                "{causal} {batch} {head} {from}"
            );
        }
    }
}

#[test]
fn a_query_that_sees_nothing_gets_zeros() {
    let mut c = case([1, 5, 60, 1, 8], false, false);
    c.mask = Some(vec![0; 60]);
    let [o, lse, dq, dk, dv] = run(&Team::new(1), &c);
    assert!([o, dq, dk, dv].iter().flatten().all(|&x| x == 0.0));
    assert!(lse.iter().all(|&x| x == f32::NEG_INFINITY));
}
