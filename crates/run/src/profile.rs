//! How fast this machine is, measured without any network: arithmetic, copies and the disk, how evenly cores run, and how
//! late they are after waits.

pub mod evenness;
pub mod resuming;
pub mod roofline;

/// The share of numbers that a trimmed mean drops.
const DROPPED: f64 = 0.1;

/// Trimmed mean: drops the largest tenth, at least one of several. Unlike medians, means of a step's parts add up to that
/// of the step, and a core that others use half of the time has one speed, not two. None if there are no numbers.
pub fn trimmed_mean(numbers: &[f64]) -> Option<f64> {
    let numbers = trimmed(numbers);
    (!numbers.is_empty()).then(|| numbers.iter().sum::<f64>() / numbers.len() as f64)
}

/// The numbers that a trimmed mean counts, smallest first.
pub fn trimmed(numbers: &[f64]) -> Vec<f64> {
    let mut numbers = numbers.to_vec();
    numbers.sort_by(f64::total_cmp);
    let exceptions = (numbers.len() as f64 * DROPPED).ceil() as usize;
    numbers.truncate(numbers.len().saturating_sub(exceptions).max(1));
    numbers
}
