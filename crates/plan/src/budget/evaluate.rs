//! What choices come to: the script that carries them out, where its versions live and the bytes in use
//! during each act. The memory for all of it is used again from one evaluation to the next.

use crate::budget::base::{Base, Choices};
use crate::budget::rewrite::Writer;
use crate::document::plan::Tier;
use crate::step::layout::aligned;
use crate::step::lifetime::{Lifetimes, Sharing, lifetimes_into};
use crate::step::script::{Script, What};

/// See the top of this file.
#[derive(Default)]
pub struct Evaluation {
    /// The script, or what stood in its way.
    pub writer: Writer,
    /// Where its versions live.
    pub life: Lifetimes,
    /// Device bytes in use during each of its acts.
    pub profile: Vec<u64>,
    last: Vec<u32>,
    freed: Vec<u64>,
}

impl Evaluation {
    /// Carries choices out, for values of so many bytes and nodes of so much working memory. If something
    /// stands in the way, only the [writer](Evaluation::writer) says anything, and the result is false.
    pub fn of(
        &mut self,
        base: &Base,
        sharing: &Sharing,
        choices: &Choices,
        bytes: &[u64],
        scratch: &dyn Fn(usize) -> u64,
    ) -> bool {
        if !self.writer.write(base, choices) {
            return false;
        }
        lifetimes_into(sharing, &self.writer.script, &mut self.last, &mut self.life);
        profile_into(&self.writer.script, &self.life, bytes, scratch, &mut self.profile, &mut self.freed);
        true
    }

    /// What is known to come of some choices, for other sizes.
    pub fn known(
        script: &Script,
        life: &Lifetimes,
        bytes: &[u64],
        scratch: &dyn Fn(usize) -> u64,
    ) -> Evaluation {
        let mut known = Evaluation { life: life.clone(), ..Evaluation::default() };
        known.writer.script = script.clone();
        profile_into(script, life, bytes, scratch, &mut known.profile, &mut known.freed);
        known
    }

    /// Most device bytes in use at once.
    pub fn peak(&self) -> u64 {
        self.profile.iter().copied().max().unwrap_or(0)
    }
}

/// Aligned bytes of device memory in use during each act, scratch space included.
pub fn profile(script: &Script, life: &Lifetimes, bytes: &[u64], scratch: impl Fn(usize) -> u64) -> Vec<u64> {
    let mut profile = Vec::new();
    profile_into(script, life, bytes, &scratch, &mut profile, &mut Vec::new());
    profile
}

fn profile_into(
    script: &Script,
    life: &Lifetimes,
    bytes: &[u64],
    scratch: &dyn Fn(usize) -> u64,
    during: &mut Vec<u64>,
    freed: &mut Vec<u64>,
) {
    for counts in [&mut *during, &mut *freed] {
        counts.clear();
        counts.resize(script.acts.len() + 1, 0);
    }
    for s in life.storages.iter().filter(|s| s.tier == Tier::Device) {
        let size = aligned(bytes[s.value.index()]).saturating_mul(s.copies.into());
        let start = &mut during[s.start as usize];
        *start = start.saturating_add(size);
        let end = &mut freed[s.end as usize];
        *end = end.saturating_add(size);
    }
    during.pop();
    let mut now = 0u64;
    for ((act, during), freed) in script.acts.iter().zip(during).zip(freed) {
        now = now.saturating_add(*during);
        let more = match act.what {
            What::Run(id, _) => scratch(id.index()),
            _ => 0,
        };
        *during = now.saturating_add(more);
        now = now.saturating_sub(*freed);
    }
}
