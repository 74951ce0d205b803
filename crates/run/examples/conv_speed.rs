//! Prints the speed of convolutions and their gradients against the measured peak of fused
//! multiply-adds of one thread.

use gulliver_run::kernel::conv::{self, ConvShape};
use gulliver_run::profile::roofline;
use gulliver_run::team::Team;

/// Images, input channels, output channels, extent, kernel, stride.
const TABLE: [[usize; 6]; 12] = [
    [32, 64, 64, 32, 3, 1],
    [32, 128, 128, 16, 3, 1],
    [32, 256, 256, 8, 3, 1],
    [32, 512, 512, 4, 3, 1],
    [4, 64, 64, 56, 3, 1],
    [4, 128, 128, 28, 3, 1],
    [4, 512, 512, 7, 3, 1],
    [32, 64, 128, 32, 3, 2],
    [4, 3, 64, 224, 7, 2],
    [4, 64, 256, 56, 1, 1],
    [4, 1024, 256, 14, 1, 1],
    [4, 512, 1024, 28, 1, 2],
];

fn main() {
    let peak = roofline::multiply_adds(&Team::new(1), 0.5) / 1e9;
    println!("peak of one thread: {peak:.1} GFLOP/s");
    println!("{:>32}  threads  forward  input gradient  weight gradient  (percent of peak)", "");
    for threads in [1, 2] {
        let team = Team::new(threads);
        for [n, c, o, size, kernel, stride] in TABLE {
            let pad = kernel / 2;
            let out = (size + 2 * pad - kernel) / stride + 1;
            let s = ConvShape {
                n,
                groups: 1,
                c,
                o,
                input: [1, size, size],
                kernel: [1, kernel, kernel],
                output: [1, out, out],
                stride: [1, stride, stride],
                dilation: [1; 3],
                pad: [0, pad as isize, pad as isize],
            };
            let work = 2.0 * (s.y_len() * c * kernel * kernel) as f64;
            let (x, w, y) = (vec![0.5f32; s.x_len()], vec![0.25f32; s.w_len()], vec![0.125f32; s.y_len()]);
            let percent = |time: f64| 100.0 * work / time / 1e9 / peak / threads as f64;
            let scratch = |len: usize| vec![0.0f32; len];
            let (mut to, mut room) = (y.clone(), scratch(conv::forward_scratch_len(&s, threads)));
            let forward = roofline::fastest(0.3, || conv::forward(&team, &s, &x, &w, &mut to, &mut room));
            let (mut to, mut room) = (x.clone(), scratch(conv::input_grad_scratch_len(&s, threads)));
            let input = roofline::fastest(0.3, || conv::input_grad(&team, &s, &y, &w, &mut to, &mut room));
            let (mut to, mut room) = (w.clone(), scratch(conv::weight_grad_scratch_len(&s, threads)));
            let weight = roofline::fastest(0.3, || conv::weight_grad(&team, &s, &x, &y, &mut to, &mut room));
            println!(
                "{:>32}  {threads:>7}  {:>6.1}%  {:>13.1}%  {:>14.1}%",
                format!("{n}x{c}x{size}x{size} {kernel}x{kernel}/{stride} to {o}"),
                percent(forward),
                percent(input),
                percent(weight),
            );
        }
    }
}
