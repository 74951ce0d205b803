//! Moves and collectives beside kernels, as far as there is memory: fetches start early enough to end before they are
//! needed, and the bytes of stores and of collectives' operands stay in use until these end.

mod collectives;

pub use collectives::put_off;

use crate::document::plan::{TIERS, Tier};
use crate::step::layout::aligned;
use crate::step::lifetime::{Lifetimes, profile};
use crate::step::script::{Script, ScriptAct, ScriptOp};

/// Seconds by which moves start earlier than predicted, where there is memory: threads take time to wake, and predicted
/// speeds are not exact.
const AHEAD: f64 = 5e-3;
/// The same in proportion to the seconds of the move.
const SLOWER: f64 = 2.0;

/// Seconds, bytes and limits that overlap depends on.
pub struct OverlapTerms<'a> {
    /// Bytes of one instance of each value.
    pub bytes: &'a [u64],
    /// Working memory by node.
    pub scratch: &'a dyn Fn(usize) -> u64,
    /// Seconds by node.
    pub seconds: &'a dyn Fn(usize) -> f64,
    /// Whether a node is a collective, which runs beside the computation.
    pub meets: &'a dyn Fn(usize) -> bool,
    /// Seconds to move a byte from tier to tier.
    pub link: &'a dyn Fn(Tier, Tier) -> f64,
    /// Device bytes no act may exceed.
    pub target: u64,
}

impl OverlapTerms<'_> {
    fn size(&self, script: &Script, v: u32) -> u64 {
        aligned(self.bytes[script.versions[v as usize].of.value.index()])
    }

    fn move_seconds(&self, script: &Script, act: usize) -> f64 {
        let [from, to] = [0, 1].map(|i| script.refs(act)[i]);
        let tier = |v: u32| script.versions[v as usize].tier;
        self.size(script, from) as f64 * (self.link)(tier(from), tier(to))
    }

    /// When each act begins if no act waits.
    fn begins(&self, script: &Script) -> Vec<f64> {
        let mut now = 0.0;
        let begin = |act: &ScriptAct| {
            let begins = now;
            if let ScriptOp::Run(id, _) = act.what
                && !(self.meets)(id.index())
            {
                now += (self.seconds)(id.index());
            }
            begins
        };
        script.acts.iter().map(begin).collect()
    }
}

/// The script with every fetch as early as it must start, as far as there is memory.
pub fn fetch_early(script: &Script, life: &Lifetimes, room: &OverlapTerms) -> Script {
    let mut used = profile(script, life, room.bytes, room.scratch);
    let begins = room.begins(script);
    // By move: the act that makes its source, or gives it its next value.
    let mut made = vec![0usize; script.versions.len()];
    let mut after = vec![0usize; script.acts.len()];
    for (t, act) in script.acts.iter().enumerate() {
        let refs = script.refs(t);
        match act.what {
            ScriptOp::Move => after[t] = made[refs[0] as usize],
            ScriptOp::Carry => made[refs[1] as usize] = t + 1,
            _ => {}
        }
        script.split(t).1.iter().for_each(|&v| made[v as usize] = t + 1);
    }
    // (position, whether it stays there, old act): a fetch comes before the act at its position.
    let mut order: Vec<(usize, bool, usize)> = (0..script.acts.len()).map(|t| (t, true, t)).collect();
    // By tier: when its link has to start the fetches that come later.
    let mut free = [f64::INFINITY; TIERS.len()];
    let mut fetches = Vec::new();
    let mut earlier = |at: &mut usize, t: usize, begin: f64| {
        let bytes = room.size(script, script.refs(t)[1]);
        while *at > after[t] && begins[*at] > begin && used[*at - 1] + bytes <= room.target {
            *at -= 1;
            used[*at] += bytes;
        }
    };
    for t in (0..script.acts.len()).rev().filter(|&t| script.acts[t].what == ScriptOp::Move) {
        let [from, to] = [0, 1].map(|i| script.versions[script.refs(t)[i] as usize].tier);
        if to != Tier::Device {
            continue;
        }
        let (free, seconds) = (&mut free[from as usize], room.move_seconds(script, t));
        let latest = free.min(begins[t]) - seconds;
        let mut at = t;
        earlier(&mut at, t, latest);
        *free = latest.max(begins[at]).min(*free);
        fetches.push((t, at, latest - AHEAD - SLOWER * seconds));
    }
    // All fetches are in time before any starts earlier than it must.
    for (t, mut at, begin) in fetches {
        earlier(&mut at, t, begin);
        order[t] = (at, at == t, t);
    }
    order.sort();
    script.reordered(order.into_iter().map(|(_, _, t)| t))
}

/// Extends the lifetimes of stored values until their stores should end, and those of operands of collectives until
/// these should end, as far as there is memory.
pub fn store_late(script: &Script, life: &mut Lifetimes, room: &OverlapTerms) {
    let mut used = profile(script, life, room.bytes, room.scratch);
    let begins = room.begins(script);
    // By tier: when its link has done the stores so far; for the device, when collectives are done.
    let mut free = [0.0f64; TIERS.len()];
    let mut stores = Vec::new();
    let mut later = |end: &mut usize, t: usize, until: f64| {
        let bytes = room.size(script, script.refs(t)[0]);
        while *end + 1 < script.acts.len()
            && begins[*end + 1] < until
            && used[*end + 1] + bytes <= room.target
        {
            *end += 1;
            used[*end] += bytes;
        }
    };
    for (t, act) in script.acts.iter().enumerate() {
        let refs = script.refs(t);
        let to = match act.what {
            ScriptOp::Move | ScriptOp::Carry => {
                let [from, to] = [refs[0], refs[1]].map(|v| script.versions[v as usize].tier);
                (from == Tier::Device && to != Tier::Device).then(|| (to, room.move_seconds(script, t)))
            }
            ScriptOp::Run(id, _) if act.reads > 0 && (room.meets)(id.index()) => {
                Some((Tier::Device, (room.seconds)(id.index())))
            }
            _ => None,
        };
        let Some((to, seconds)) = to else { continue };
        let storage = life.slots[refs[0] as usize].storage as usize;
        if life.storages[storage].end != t as u32 || life.storages[storage].input {
            continue;
        }
        let free = &mut free[to as usize];
        *free = free.max(begins[t]) + seconds;
        let mut end = t;
        later(&mut end, t, *free);
        stores.push((storage, t, end, *free + AHEAD + SLOWER * seconds));
    }
    for (storage, t, mut end, until) in stores {
        later(&mut end, t, until);
        life.storages[storage].end = end as u32;
    }
}
