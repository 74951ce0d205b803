//! How fast this machine is, measured without any network: arithmetic, copies and the disk, how evenly cores run, and how
//! late they are after waits.

pub mod evenness;
pub mod resuming;
pub mod roofline;

/// What is so as a rule: the mean of some numbers without the largest of them, one at least where there are several.
/// Means of a step's parts add up to that of the step, but for what is left out. A median is one of two speeds where
/// others use a core half of the time. None if there are no numbers.
pub fn trimmed_mean(numbers: &[f64]) -> Option<f64> {
    let numbers = counted(numbers);
    (!numbers.is_empty()).then(|| numbers.iter().sum::<f64>() / numbers.len() as f64)
}
