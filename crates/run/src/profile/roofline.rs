//! The peak rates of this machine, measured by loops that do nothing else: fused multiply-adds in registers,
//! copies through memory, moves between tiers, and the disk.

use crate::device::cpu::copy;
use crate::device::cpu::disk::{Disk, DiskError};
use crate::team::isa::Isa;
use crate::team::{SharedMut, Team, share};
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

/// Independent chains of multiply-adds: enough to hide the latency of two units.
const CHAINS: usize = 12;
/// Numbers in a chain's register.
const WIDTH: usize = 8;
/// Multiply-adds of each chain in one repetition.
const STEPS: usize = 100_000;

/// Floating-point operations per second of the team's threads together, a fused multiply-add being two.
/// Repeats for about `seconds` and takes the fastest repetition, as others use the machine too.
pub fn multiply_adds(team: &Team, seconds: f64) -> f64 {
    let work = 2 * CHAINS * WIDTH * STEPS * team.threads();
    let isa = team.isa();
    let time = fastest(seconds, || {
        team.run(team.threads(), &|_| {
            black_box(chains(isa, STEPS));
        });
    });
    work as f64 / time
}

/// Some ten microseconds of arithmetic in registers.
pub(super) fn little(isa: Isa) {
    black_box(chains(isa, 4000));
}

/// Bytes read plus bytes written per second when the team's threads together copy `bytes` from one
/// buffer to another; choose a size beyond the caches. Repeats for about `seconds`, fastest repetition.
pub fn copies(team: &Team, bytes: usize, seconds: f64) -> f64 {
    let len = bytes / size_of::<f32>();
    // Not zeros: pages that nobody has written are not there yet.
    let (from, mut to) = (vec![1.0f32; len], vec![2.0f32; len]);
    let threads = team.threads();
    let time = fastest(seconds, || {
        let to = SharedMut::new(&mut to);
        team.run(threads, &|part| {
            let range = share(len, WIDTH, threads, part);
            // SAFETY: the parts' ranges are disjoint.
            unsafe { to.slice(range.clone()) }.copy_from_slice(&from[range]);
        });
    });
    black_box(&to);
    (2 * len * size_of::<f32>()) as f64 / time
}

/// Bytes a second that one thread copies as moves between tiers do, `piece` bytes at a time and beyond the
/// caches; both ways together. Repeats for about `seconds`, fastest repetition.
pub fn moves(piece: usize, seconds: f64) -> f64 {
    let (mut device, mut host) = (vec![1u8; 8 * piece], vec![2u8; 64 * piece]);
    let (near, far) = (device.as_mut_ptr(), host.as_mut_ptr());
    let time = fastest(seconds, || {
        for i in 0..64 {
            // SAFETY: pieces of two different buffers, each within its own.
            unsafe {
                let (here, there) = (near.add(i % 8 * piece), far.add(i * piece));
                match i % 2 {
                    0 => copy(there, here, piece),
                    _ => copy(here, there, piece),
                }
            }
        }
    });
    black_box((&device, &host));
    (64 * piece) as f64 / time
}

/// Bytes a second that the disk tier reads and writes in a directory, `bytes` at a time.
pub fn disk(dir: &Path, bytes: usize) -> Result<[f64; 2], DiskError> {
    let disk = Disk::create(dir, bytes as u64)?;
    let mut data = vec![1u8; bytes];
    // What was never written is written more slowly.
    disk.write(0, &data)?;
    let start = Instant::now();
    disk.write(0, &data)?;
    let written = start.elapsed().as_secs_f64();
    let start = Instant::now();
    disk.read(0, &mut data)?;
    Ok([start.elapsed().as_secs_f64(), written].map(|seconds| bytes as f64 / seconds.max(1e-9)))
}

/// Seconds of the fastest call, of at least one, over about `seconds` of repetition.
pub fn fastest(seconds: f64, mut f: impl FnMut()) -> f64 {
    let (start, mut best) = (Instant::now(), f64::INFINITY);
    loop {
        let one = Instant::now();
        f();
        best = best.min(one.elapsed().as_secs_f64());
        if start.elapsed().as_secs_f64() >= seconds {
            return best;
        }
    }
}

fn chains(isa: Isa, steps: usize) -> f32 {
    #[cfg(target_arch = "x86_64")]
    if isa.has_avx2() {
        // SAFETY: an `Isa` with AVX2 exists only where detection found AVX2 and FMA.
        return unsafe { chains_avx2(steps) };
    }
    let _ = isa;
    let (x, y) = (black_box(0.5f32), black_box(0.25f32));
    let mut sums = [[0.0f32; WIDTH]; CHAINS];
    for _ in 0..steps {
        for sum in sums.as_flattened_mut() {
            *sum = x.mul_add(y, *sum);
        }
    }
    sums.as_flattened().iter().sum()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn chains_avx2(steps: usize) -> f32 {
    use std::arch::x86_64::{_mm256_cvtss_f32, _mm256_fmadd_ps, _mm256_set1_ps, _mm256_setzero_ps};
    let (x, y) = (_mm256_set1_ps(black_box(0.5)), _mm256_set1_ps(black_box(0.25)));
    let mut sums = [_mm256_setzero_ps(); CHAINS];
    for _ in 0..steps {
        for sum in &mut sums {
            *sum = _mm256_fmadd_ps(x, y, *sum);
        }
    }
    sums.into_iter().map(|sum| _mm256_cvtss_f32(sum)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_positive_numbers() {
        for isa in Isa::all() {
            let team = Team::with_isa(2, isa);
            for rate in [multiply_adds(&team, 0.0), copies(&team, 1 << 16, 0.0), moves(1 << 17, 0.0)] {
                assert!(rate.is_finite() && rate > 0.0, "{isa:?}: {rate}");
            }
        }
    }
}
