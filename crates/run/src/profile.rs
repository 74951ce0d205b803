//! Measures the speed of this machine without networks: arithmetic, copies, the disk, the evenness of cores, and their
//! delay after waits.

pub mod evenness;
pub mod resume_delay;
pub mod roofline;

/// Share of the largest numbers that a trimmed mean drops.
const DROPPED: f64 = 0.1;

/// Trimmed mean: drops the largest 10 %, at least one of several. Unlike medians, means of the parts of a step add up to
/// that of the step, except for the outliers. `None` if there are no numbers.
pub fn trimmed_mean(numbers: &[f64]) -> Option<f64> {
    let numbers = trimmed(numbers);
    (!numbers.is_empty()).then(|| numbers.iter().sum::<f64>() / numbers.len() as f64)
}

/// The numbers without the outliers that [`trimmed_mean`] drops, ascending.
pub fn trimmed(numbers: &[f64]) -> Vec<f64> {
    let mut numbers = numbers.to_vec();
    numbers.sort_by(f64::total_cmp);
    let exceptions = (numbers.len() as f64 * DROPPED).ceil() as usize;
    numbers.truncate(numbers.len().saturating_sub(exceptions).max(1));
    numbers
}
