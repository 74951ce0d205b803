//! The evaluation of choices: the script that carries them out, where its versions live, and the bytes in use during each
//! act. Its memory is reused from one evaluation to the next.

use crate::budget::choices::Choices;
use crate::budget::rewrite::Writer;
use crate::step::base::Base;
use crate::step::lifetime::{Lifetimes, StorageSharing, lifetimes_into, profile_into};
use crate::step::script::Script;

/// The script, lifetimes and profile of some choices; reused from one evaluation to the next.
#[derive(Default)]
pub struct ScriptEvaluation {
    /// The script, or what stood in its way.
    pub writer: Writer,
    /// Where its versions live.
    pub life: Lifetimes,
    /// Device bytes in use during each of its acts.
    pub profile: Vec<u64>,
    last: Vec<u32>,
    freed: Vec<u64>,
}

impl ScriptEvaluation {
    /// Evaluates choices, for these bytes of values and scratch of nodes. False if they are impossible: then only the
    /// [writer](ScriptEvaluation::writer) is valid.
    pub fn of(
        &mut self,
        base: &Base,
        sharing: &StorageSharing,
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

    /// The evaluation of a known script, for other sizes.
    pub fn known(
        script: &Script,
        life: &Lifetimes,
        bytes: &[u64],
        scratch: &dyn Fn(usize) -> u64,
    ) -> ScriptEvaluation {
        let mut known = ScriptEvaluation { life: life.clone(), ..ScriptEvaluation::default() };
        known.writer.script = script.clone();
        profile_into(script, life, bytes, scratch, &mut known.profile, &mut known.freed);
        known
    }

    /// Most device bytes in use at once.
    pub fn peak(&self) -> u64 {
        self.profile.iter().copied().max().unwrap_or(0)
    }
}
