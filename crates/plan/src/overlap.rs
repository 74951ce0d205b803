//! Moves beside kernels: what is fetched is fetched early enough to be there when it is needed, and what
//! is stored keeps its bytes until it is away, both only as far as there is room.

use crate::lifetime::Lifetimes;
use crate::outline::profile;
use crate::plan::Tier;
use crate::script::{Act, Script, What};
use gulliver_graph::graph::Graph;

/// What is known of time and room.
pub struct Room<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// Bytes of one instance of each value.
    pub bytes: &'a [u64],
    /// Working memory by node.
    pub scratch: &'a dyn Fn(usize) -> u64,
    /// Seconds by node.
    pub seconds: &'a dyn Fn(usize) -> f64,
    /// Seconds to move a byte from tier to tier.
    pub link: &'a dyn Fn(Tier, Tier) -> f64,
    /// Device bytes no act may exceed.
    pub target: u64,
}

impl Room<'_> {
    fn size(&self, script: &Script, v: u32) -> u64 {
        crate::layout::aligned(self.bytes[script.versions[v as usize].of.value.index()])
    }

    fn move_seconds(&self, script: &Script, act: usize) -> f64 {
        let [from, to] = [0, 1].map(|i| script.refs(act)[i]);
        let tier = |v: u32| script.versions[v as usize].tier;
        self.size(script, from) as f64 * (self.link)(tier(from), tier(to))
    }

    /// When each act begins if nothing ever waits.
    fn begins(&self, script: &Script) -> Vec<f64> {
        let mut now = 0.0;
        let begin = |act: &Act| {
            let begins = now;
            if let What::Run(id, _) = act.what {
                now += (self.seconds)(id.index());
            }
            begins
        };
        script.acts.iter().map(begin).collect()
    }
}

/// The script with every fetch as much earlier as it takes, where there is room for it.
pub fn fetch_early(script: &Script, life: &Lifetimes, room: &Room) -> Script {
    let mut used = profile(script, life, room.bytes, room.scratch);
    let begins = room.begins(script);
    // The act that makes each version, after which it can be fetched.
    let mut made = vec![0usize; script.versions.len()];
    for t in 0..script.acts.len() {
        script.sides(room.graph, t).1.iter().for_each(|&v| made[v as usize] = t + 1);
    }
    // (position, kind, old act): a fetch comes before what stood at its position.
    let mut order: Vec<(usize, bool, usize)> = (0..script.acts.len()).map(|t| (t, true, t)).collect();
    let mut free = f64::INFINITY;
    for t in (0..script.acts.len()).rev() {
        if script.acts[t].what != What::Move {
            continue;
        }
        let [from, to] = [0, 1].map(|i| script.refs(t)[i]);
        if script.versions[to as usize].tier != Tier::Device {
            continue;
        }
        let bytes = room.size(script, to);
        let begin = free.min(begins[t]) - room.move_seconds(script, t);
        let mut at = t;
        while at > made[from as usize] && begins[at] > begin && used[at - 1] + bytes <= room.target {
            at -= 1;
            used[at] += bytes;
        }
        free = begins[at].min(free);
        order[t] = (at, at == t, t);
    }
    order.sort();
    let mut early =
        Script { versions: script.versions.clone(), outputs: script.outputs.clone(), ..Script::default() };
    for (_, _, t) in order {
        early.acts.push(Act { refs: early.refs.len() as u32, ..script.acts[t] });
        early.refs.extend(script.refs(t));
    }
    early
}

/// Lets the bytes of what is stored stay in use until it should be away, where there is room.
pub fn store_late(script: &Script, life: &mut Lifetimes, room: &Room) {
    let mut used = profile(script, life, room.bytes, room.scratch);
    let begins = room.begins(script);
    let mut free = 0.0f64;
    for t in 0..script.acts.len() {
        let refs = script.refs(t);
        let leaves = match script.acts[t].what {
            What::Move | What::Carry => {
                let [from, to] = [refs[0], refs[1]].map(|v| script.versions[v as usize].tier);
                from == Tier::Device && to != Tier::Device
            }
            _ => false,
        };
        let storage = life.homes[refs[0] as usize].storage as usize;
        if !leaves || life.storages[storage].end != t as u32 || life.storages[storage].input {
            continue;
        }
        free = free.max(begins[t]) + room.move_seconds(script, t);
        let bytes = room.size(script, refs[0]);
        let mut end = t;
        while end + 1 < script.acts.len() && begins[end + 1] < free && used[end + 1] + bytes <= room.target {
            end += 1;
            used[end] += bytes;
        }
        life.storages[storage].end = end as u32;
    }
}
