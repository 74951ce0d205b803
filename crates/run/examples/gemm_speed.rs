//! Prints the speed of the matrix product against the measured peak of fused multiply-adds: for a table
//! of sizes, or for the `M N K` given as arguments.

use gulliver_run::device::cpu::memory::Arena;
use gulliver_run::kernel::gemm::{Output, gemm, scratch_len};
use gulliver_run::kernel::pack::Strided;
use gulliver_run::profile::roofline;
use gulliver_run::team::Team;

fn main() {
    let peak = roofline::multiply_adds(&Team::new(1), 0.5) / 1e9;
    println!("peak of one thread: {peak:.1} GFLOP/s");
    println!("{:>6} {:>6} {:>6}  {:>3}  threads  GFLOP/s  of peak", "m", "n", "k", "op");
    let asked: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let table = vec![
        [1024, 1024, 1024],
        [512, 512, 512],
        [256, 256, 256],
        [128, 128, 128],
        [64, 64, 64],
        [16, 16, 16],
        [8, 8, 8],
        [64, 3136, 576],
        [512, 49, 4608],
        [64, 10, 128],
        [1, 1024, 1024],
        [32, 1000, 512],
    ];
    let sizes = if let [m, n, k] = asked[..] { vec![[m, n, k]] } else { table };
    for threads in [1, 2] {
        let team = Team::new(threads);
        for &[m, n, k] in &sizes {
            let (a, b) = (floats(m * k, 0.5), floats(k * n, 0.25));
            let (c, scratch) = (floats(m * n, 0.0), floats(scratch_len(m, n, k, threads), 0.0));
            for (op, ta, tb) in [("nn", false, false), ("nt", false, true), ("tn", true, false)] {
                let a = if ta {
                    Strided { data: a, outer: 1, reduced: m }
                } else {
                    Strided { data: a, outer: k, reduced: 1 }
                };
                let b = if tb {
                    Strided { data: b, outer: k, reduced: 1 }
                } else {
                    Strided { data: b, outer: 1, reduced: n }
                };
                let work = (2 * m * n * k) as f64;
                let rounds = (2e5 / work).ceil() as usize;
                let time = roofline::fastest(0.4, || {
                    for _ in 0..rounds {
                        gemm(&team, [m, n, k], &a, &b, Output::rows(c, n), false, scratch);
                    }
                });
                let speed = work * rounds as f64 / time / 1e9;
                let share = 100.0 * speed / peak / threads as f64;
                println!("{m:>6} {n:>6} {k:>6}  {op:>3}  {threads:>7}  {speed:>7.1}  {share:>6.1}%");
            }
        }
    }
}

/// Memory of the kind kernels have in a run, for as long as the program lives.
fn floats(len: usize, value: f32) -> &'static mut [f32] {
    let arena = Box::leak(Box::new(Arena::new(4 * len as u64, "cpu").expect("memory")));
    let ptr = arena.at(0, 4 * len as u64).cast::<f32>();
    // SAFETY: the arena is that long, aligned to cache lines, zeroed, never freed, and nobody else has it.
    let floats = unsafe { std::slice::from_raw_parts_mut(ptr, len) };
    floats.fill(value);
    floats
}
