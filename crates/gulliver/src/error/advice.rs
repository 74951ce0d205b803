//! Advice when a job does not fit: how little memory would be enough, what takes most of it, and the
//! cheapest change of the job.

use crate::units;
use gulliver_plan::document::error::Holders;
use std::fmt;

/// How little device memory a job could be trained in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needed {
    /// No plan needs less; whether this would be enough is not known.
    AtLeast(u64),
    /// A plan was found that needs this, and none that needs less.
    Enough(u64),
    /// The best plan that was tried needs this; less may do.
    Tried(u64),
    /// No plan was found, whatever the budget.
    Unknown,
}

/// A change of one field of the job.
#[derive(Clone, Debug, PartialEq)]
pub struct Proposal {
    /// The field, such as `train.partials`.
    pub field: String,
    /// Its new value.
    pub value: String,
    /// Whether a plan was found with it; else only the lower bound is known to be within the budget.
    pub found: bool,
}

/// Why a job does not fit, and what to do about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// Bytes of the device the job allows.
    pub budget: u64,
    /// How little could be enough.
    pub needed: Needed,
    /// The largest values when most bytes are in use.
    pub holders: Holders,
    /// The cheapest change that makes the job fit.
    pub change: Option<Proposal>,
}

impl Advice {
    /// Advice for one of several devices: the plan failed, and nothing more is known.
    pub fn bare(needed: u64, proven: bool, budget: u64, holders: Holders) -> Advice {
        let needed = if proven { Needed::AtLeast(needed) } else { Needed::Tried(needed) };
        Advice { budget, needed, holders, change: None }
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let both = |n: u64| format!("{} ({n} bytes)", units::bytes(n));
        write!(f, "the device budget is {}", units::bytes(self.budget))?;
        match self.needed {
            Needed::AtLeast(least) => write!(f, ", and no plan of this job needs less than {}", both(least))?,
            Needed::Enough(least) => write!(f, ", the smallest that would do is {}", both(least))?,
            Needed::Tried(tried) => write!(f, ", and the best plan that was found needs {}", both(tried))?,
            Needed::Unknown => write!(f, ", and no budget was found that would do")?,
        }
        let holders = self.holders.0.iter().map(|(name, n)| format!("{name} {}", units::bytes(*n)));
        write!(f, "; largest at the peak: {}; ", holders.collect::<Vec<_>>().join(", "))?;
        match &self.change {
            Some(Proposal { field, value, found: true }) => {
                write!(f, "the cheapest change that fits is {field} = {value} (--set {field}={value})")
            }
            Some(Proposal { field, value, found: false }) => {
                write!(f, "raise devices.memory (--memory), or try {field} = {value} (--set {field}={value})")
            }
            None => write!(f, "raise devices.memory (--memory)"),
        }
    }
}
