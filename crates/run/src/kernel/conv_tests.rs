//! Convolutions against the definition of their sums, written out as plain loops.

use super::*;
use crate::kernel::K_BLOCK;
use crate::kernel::testing::{bits, noise};
use crate::team::isa::Isa;

/// One term per step, in blocks, as the parent module says.
#[derive(Default)]
struct Chain {
    total: Option<f32>,
    acc: f32,
    len: usize,
}

impl Chain {
    fn push(&mut self, a: f32, b: f32) {
        self.acc = a.mul_add(b, self.acc);
        self.len += 1;
        if self.len == K_BLOCK {
            self.close();
        }
    }

    fn close(&mut self) {
        self.total = Some(self.total.map_or(self.acc, |t| t + self.acc));
        (self.acc, self.len) = (0.0, 0);
    }

    fn value(mut self) -> f32 {
        if self.len > 0 {
            self.close();
        }
        self.total.unwrap_or(0.0)
    }
}

fn unflatten(i: usize, e: [usize; 3]) -> [usize; 3] {
    [i / (e[1] * e[2]), i / e[2] % e[1], i % e[2]]
}

/// The input index that output position `p` reads through kernel position `k`.
fn reads(s: &ConvShape, p: usize, k: usize) -> Option<usize> {
    let (p, k) = (unflatten(p, s.output), unflatten(k, s.kernel));
    let mut index = 0;
    for a in 0..3 {
        let at = (p[a] * s.stride[a] + k[a] * s.dilation[a]) as isize - s.pad[a];
        let at = usize::try_from(at).ok().filter(|&at| at < s.input[a])?;
        index = index * s.input[a] + at;
    }
    Some(index)
}

/// The output position that reads input `i` through kernel position `k`.
fn read_by(s: &ConvShape, i: usize, k: usize) -> Option<usize> {
    let (i, k) = (unflatten(i, s.input), unflatten(k, s.kernel));
    let mut index = 0;
    for a in 0..3 {
        let at = i[a] as isize + s.pad[a] - (k[a] * s.dilation[a]) as isize;
        let at = usize::try_from(at).ok().filter(|at| at % s.stride[a] == 0)? / s.stride[a];
        index = index * s.output[a] + Some(at).filter(|&at| at < s.output[a])?;
    }
    Some(index)
}

/// y, dx and dw by the definition.
fn definition(s: &ConvShape, x: &[f32], w: &[f32], dy: &[f32]) -> [Vec<f32>; 3] {
    let (taps, il, ol) = (s.taps(), s.input_len(), s.output_len());
    let (xc, yc) = (s.groups * s.c, s.groups * s.o);
    let xi = |n: usize, ch: usize| (n * xc + ch) * il;
    let yi = |n: usize, ch: usize| (n * yc + ch) * ol;
    let mut all = [vec![0.0; x.len()], vec![0.0; w.len()], vec![0.0; dy.len()]];
    let [dx, dw, y] = &mut all;
    for n in 0..s.n {
        for oc in 0..yc {
            for p in 0..ol {
                let mut sum = Chain::default();
                for c in 0..s.c {
                    for k in 0..taps {
                        let v = reads(s, p, k).map_or(0.0, |i| x[xi(n, oc / s.o * s.c + c) + i]);
                        sum.push(w[(oc * s.c + c) * taps + k], v);
                    }
                }
                y[yi(n, oc) + p] = sum.value();
            }
        }
        for ic in 0..xc {
            for i in 0..il {
                let mut sum = Chain::default();
                for o in 0..s.o {
                    let oc = ic / s.c * s.o + o;
                    for k in 0..taps {
                        let v = read_by(s, i, k).map_or(0.0, |p| dy[yi(n, oc) + p]);
                        sum.push(w[(oc * s.c + ic % s.c) * taps + k], v);
                    }
                }
                dx[xi(n, ic) + i] = sum.value() + if s.stride == [1; 3] { -0.0 } else { 0.0 };
            }
        }
    }
    for oc in 0..yc {
        for c in 0..s.c {
            for k in 0..taps {
                let mut sum = Chain::default();
                for n in 0..s.n {
                    for p in 0..ol {
                        let v = reads(s, p, k).map_or(0.0, |i| x[xi(n, oc / s.o * s.c + c) + i]);
                        sum.push(dy[yi(n, oc) + p], v);
                    }
                }
                dw[(oc * s.c + c) * taps + k] = sum.value();
            }
        }
    }
    all
}

fn run(team: &Team, s: &ConvShape, x: &[f32], w: &[f32], dy: &[f32]) -> [Vec<f32>; 3] {
    let mut all = [vec![7.0; s.x_len()], vec![7.0; s.w_len()], vec![7.0; s.y_len()]];
    let [dx, dw, y] = &mut all;
    let t = team.threads();
    let scratch = |len: usize| vec![f32::NAN; len];
    forward(team, s, x, w, y, &mut scratch(forward_scratch_len(s, t)));
    input_grad(team, s, dy, w, dx, &mut scratch(input_grad_scratch_len(s, t)));
    weight_grad(team, s, x, dy, dw, &mut scratch(weight_grad_scratch_len(s, t)));
    all
}

/// Two dimensions: (n, groups, c, o), input, kernel, output, stride, dilation, pad.
type Row = ([usize; 4], [usize; 2], [usize; 2], [usize; 2], [usize; 2], [usize; 2], [isize; 2]);

const ROWS: [Row; 39] = [
    ([2, 1, 13, 20], [9, 8], [3, 3], [9, 8], [1, 1], [1, 1], [1, 1]),
    ([5, 1, 40, 16], [7, 7], [3, 3], [7, 7], [1, 1], [1, 1], [1, 1]),
    ([3, 1, 12, 33], [19, 21], [3, 3], [10, 11], [2, 2], [1, 1], [1, 1]),
    ([1, 1, 14, 17], [30, 31], [5, 3], [15, 11], [2, 3], [1, 2], [2, 2]),
    ([2, 2, 12, 13], [12, 11], [3, 2], [12, 12], [1, 1], [1, 1], [1, 1]),
    ([9, 1, 20, 12], [5, 5], [1, 1], [5, 5], [1, 1], [1, 1], [0, 0]),
    ([4, 1, 15, 18], [8, 9], [1, 1], [4, 5], [2, 2], [1, 1], [0, 0]),
    ([1, 1, 12, 12], [40, 41], [7, 7], [20, 21], [2, 2], [1, 1], [3, 3]),
    ([1, 1, 12, 16], [6, 900], [3, 3], [6, 900], [1, 1], [1, 1], [1, 1]),
    ([2, 1, 3, 24], [20, 20], [3, 3], [20, 20], [1, 1], [1, 1], [1, 1]),
    ([3, 1, 24, 14], [6, 6], [2, 2], [9, 9], [1, 1], [2, 1], [3, 2]),
    ([2, 1, 16, 16], [10, 10], [3, 3], [4, 3], [1, 2], [1, 1], [-2, -1]),
    ([1, 1, 3, 40], [9, 8], [3, 3], [5, 4], [2, 2], [1, 1], [1, 1]),
    ([2, 1, 7, 33], [8, 8], [4, 4], [4, 4], [2, 2], [1, 1], [1, 1]),
    ([2, 8, 2, 3], [6, 9], [3, 3], [3, 3], [2, 3], [1, 1], [1, 1]),
    ([1, 1, 2, 3], [11, 12], [3, 4], [3, 3], [2, 4], [2, 2], [1, -1]),
    ([1, 1, 2, 3], [9, 9], [2, 2], [3, 3], [3, 3], [1, 1], [0, 0]),
    ([1, 1, 1, 1], [12, 12], [3, 3], [6, 6], [2, 2], [1, 1], [1, 1]),
    ([2, 1, 3, 8], [9, 9], [3, 3], [9, 9], [1, 1], [1, 1], [1, 1]),
    ([2, 1, 32, 7], [8, 7], [3, 3], [8, 7], [1, 1], [1, 1], [1, 1]),
    ([1, 1, 5, 6], [12, 11], [3, 3], [6, 6], [2, 2], [1, 1], [1, 1]),
    ([1, 1, 4, 4], [13, 20], [5, 3], [4, 9], [3, 2], [1, 2], [2, 1]),
    ([3, 1, 10, 9], [5, 5], [1, 1], [5, 5], [1, 1], [1, 1], [0, 0]),
    ([2, 1, 6, 5], [8, 8], [1, 1], [4, 4], [2, 2], [1, 1], [0, 0]),
    ([1, 2, 3, 4], [7, 6], [3, 2], [7, 6], [1, 1], [1, 1], [1, 0]),
    ([2, 8, 2, 3], [6, 6], [3, 3], [6, 6], [1, 1], [1, 1], [1, 1]),
    ([1, 1, 2, 3], [6, 6], [2, 2], [9, 9], [1, 1], [1, 1], [3, 2]),
    ([1, 1, 2, 3], [10, 10], [3, 3], [4, 3], [1, 2], [1, 1], [-2, -1]),
    ([2, 5, 1, 1], [9, 9], [3, 3], [9, 9], [1, 1], [1, 1], [1, 1]),
    ([3, 9, 1, 1], [12, 12], [3, 3], [6, 6], [2, 2], [1, 1], [1, 1]),
    ([1, 17, 1, 1], [7, 40], [5, 5], [7, 40], [1, 1], [1, 1], [2, 2]),
    ([1, 3, 1, 1], [30, 30], [17, 16], [14, 15], [1, 1], [1, 1], [0, 0]),
    ([2, 3, 1, 1], [11, 10], [3, 2], [3, 4], [3, 2], [2, 3], [1, 0]),
    ([1, 3, 1, 1], [10, 10], [3, 3], [5, 12], [1, 1], [1, 1], [-3, 3]),
    ([1, 3, 1, 2], [6, 6], [3, 3], [6, 6], [1, 1], [1, 1], [1, 1]),
    ([0, 1, 2, 3], [6, 6], [3, 3], [6, 6], [1, 1], [1, 1], [1, 1]),
    ([1, 1, 2, 3], [6, 6], [3, 3], [0, 6], [1, 1], [1, 1], [1, 1]),
    ([1, 4, 1, 1], [6, 6], [3, 3], [6, 0], [1, 1], [1, 1], [1, 1]),
    ([1, 1, 2, 3], [0, 6], [3, 3], [2, 6], [1, 1], [1, 1], [1, 1]),
];

fn shapes() -> Vec<ConvShape> {
    let flat = |([n, groups, c, o], i, k, y, s, d, p): Row| ConvShape {
        n,
        groups,
        c,
        o,
        input: [1, i[0], i[1]],
        kernel: [1, k[0], k[1]],
        output: [1, y[0], y[1]],
        stride: [1, s[0], s[1]],
        dilation: [1, d[0], d[1]],
        pad: [0, p[0], p[1]],
    };
    let mut shapes: Vec<_> = ROWS.into_iter().map(flat).collect();
    for (groups, c, o, n) in [(1, 3, 4, 2), (6, 1, 1, 2), (1, 13, 17, 3)] {
        shapes.push(ConvShape {
            n,
            groups,
            c,
            o,
            input: [5, 6, 7],
            kernel: [3, 2, 3],
            output: [3, 6, 4],
            stride: [2, 1, 2],
            dilation: [1, 2, 1],
            pad: [1, 1, 1],
        });
    }
    shapes
}

#[test]
fn every_path_has_the_bits_of_the_definition() {
    let mut teams: Vec<_> = Isa::all().into_iter().map(|isa| Team::with_isa(1, isa)).collect();
    teams.extend([2, 3].map(Team::new));
    // The second scale makes products underflow, to zeros of either sign.
    for (s, scale) in shapes().into_iter().flat_map(|s| [(s, 1.0), (s, 3e-23)]) {
        let scaled = |len, seed| noise(len, seed).into_iter().map(|v| v * scale).collect::<Vec<_>>();
        let (x, w, dy) = (scaled(s.x_len(), 1), scaled(s.w_len(), 2), scaled(s.y_len(), 3));
        let want = definition(&s, &x, &w, &dy);
        for team in &teams {
            let got = run(team, &s, &x, &w, &dy);
            for ((got, want), name) in got.iter().zip(&want).zip(["dx", "dw", "y"]) {
                assert_eq!(bits(got), bits(want), "{name} of {s:?}, {} threads", team.threads());
            }
        }
    }
}

#[test]
fn fewer_images_and_output_channels_keep_their_bits() {
    let team = Team::new(2);
    for groups in [1, 12] {
        let (c, o) = if groups == 1 { (5, 9) } else { (1, 1) };
        let whole = ConvShape {
            n: 3,
            groups,
            c,
            o,
            input: [1, 9, 8],
            kernel: [1, 3, 3],
            output: [1, 9, 8],
            stride: [1; 3],
            dilation: [1; 3],
            pad: [0, 1, 1],
        };
        let part = ConvShape { n: 1, ..whole };
        let (x, w, dy) = (noise(whole.x_len(), 1), noise(whole.w_len(), 2), noise(whole.y_len(), 3));
        let [dx, _, y] = run(&team, &whole, &x, &w, &dy);
        for image in 0..3 {
            let (xs, ys) = (part.x_len(), part.y_len());
            let [dx1, _, y1] = run(&team, &part, &x[image * xs..][..xs], &w, &dy[image * ys..][..ys]);
            assert_eq!(bits(&dx1), bits(&dx[image * xs..][..xs]));
            assert_eq!(bits(&y1), bits(&y[image * ys..][..ys]));
        }
        if groups == 1 {
            let narrow = ConvShape { n: 1, o: 2, ..whole };
            let (dy, w) = (&dy[..narrow.y_len()], &w[..narrow.w_len()]);
            let [_, _, y1] = run(&team, &narrow, &x[..narrow.x_len()], w, dy);
            assert_eq!(bits(&y1), bits(&y[..narrow.y_len()]));
        }
    }
}

/// The three results are one trilinear form seen from three sides, so the definition itself can be
/// checked: pairing each with what it is the gradient of gives the same number.
#[test]
fn gradients_are_those_of_the_forward_pass() {
    let team = Team::new(1);
    let pair = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| a as f64 * b as f64).sum::<f64>();
    for s in shapes() {
        let (x, w, dy) = (noise(s.x_len(), 1), noise(s.w_len(), 2), noise(s.y_len(), 3));
        let [dx, dw, y] = run(&team, &s, &x, &w, &dy);
        let (want, size) = (pair(&y, &dy), 1.0 + (s.y_len() as f64).sqrt());
        for got in [pair(&x, &dx), pair(&w, &dw)] {
            assert!((got - want).abs() < 1e-5 * size * s.taps() as f64, "{s:?}: {got} against {want}");
        }
    }
}
