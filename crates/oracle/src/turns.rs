//! Turns of packs on devices: while one is computed, the next is fetched and the one before is stored. The end of
//! the last turn follows from a sum of maxima, one for every turn.

/// Seconds of one pack in one pass, for all micro-batches.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PackTurn {
    pub compute: f64,
    /// From host memory, before it begins.
    pub fetch: f64,
    /// To host memory, once it is done.
    pub store: f64,
    /// A micro-batch on its way from the device that had the turn before.
    pub passed: f64,
    /// The exchange of its gradients with replicas, before they are stored.
    pub exchange: f64,
    /// The update, in host memory, once gradients are there.
    pub update: f64,
}

/// The parts of a turn that count beside computing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountedParts {
    /// Messages between devices.
    pub messages: bool,
    /// Exchanges between replicas.
    pub exchange: bool,
    /// Exchanges run beside the next turn; else the device waits.
    pub overlap: bool,
    /// Moves between device and host.
    pub swap: bool,
    /// Updates in host memory.
    pub update: bool,
}

/// Seconds until the last turn is done, updates included. Turns go round `devices`, which fetch one turn ahead and
/// store one behind; each takes `micro_batches` as they come from the turn before, on the device before.
pub fn makespan(turns: &[PackTurn], micro_batches: f64, devices: usize, beside: CountedParts) -> f64 {
    let counted = |on: bool, seconds: f64| if on { seconds } else { 0.0 };
    let (mut starts, mut ends): (Vec<f64>, Vec<f64>) = (Vec::new(), Vec::new());
    let (mut fetched, mut stored) = (vec![0.0f64; devices], vec![0.0f64; devices]);
    let mut stores: Vec<f64> = Vec::new();
    let (mut exchanged, mut updated, mut last) = (0.0f64, 0.0f64, 0.0f64);
    for (at, turn) in turns.iter().enumerate() {
        let device = at % devices;
        let before = |back: usize, of: &[f64]| at.checked_sub(back * devices).map_or(0.0, |at| of[at]);
        // Its place is free once the turn but one before it is over.
        let fetch = counted(beside.swap, turn.fetch);
        fetched[device] = fetched[device].max(before(2, &ends)) + fetch;
        let part = turn.compute / micro_batches;
        let passed = counted(beside.messages, turn.passed);
        let (mut start, mut end) = (before(1, &ends).max(fetched[device]).max(before(2, &stores)), 0.0f64);
        if at > 0 && devices > 1 {
            start = start.max(starts[at - 1] + turns[at - 1].compute / micro_batches + passed);
            end = ends[at - 1] + part + passed;
        }
        end = end.max(start + turn.compute.max(micro_batches * passed));
        let exchange = counted(beside.exchange, turn.exchange);
        exchanged = exchanged.max(end) + exchange;
        let done = if exchange > 0.0 { exchanged } else { end };
        if !beside.overlap {
            end = done;
        }
        stored[device] = stored[device].max(done) + counted(beside.swap, turn.store);
        if turn.update > 0.0 {
            updated = updated.max(stored[device]) + counted(beside.update, turn.update);
        }
        last = last.max(end).max(stored[device]).max(updated).max(done);
        starts.push(start);
        ends.push(end);
        stores.push(stored[device]);
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: CountedParts =
        CountedParts { messages: true, exchange: true, overlap: true, swap: true, update: true };

    #[test]
    fn steps_by_hand() {
        let turn = |compute, fetch, store| PackTurn { compute, fetch, store, ..PackTurn::default() };
        let updated = |turn: PackTurn| PackTurn { update: 0.5, ..turn };
        let exchanged = |turn: PackTurn| PackTurn { exchange: 2.0, ..turn };
        let plain = turn(4.0, 2.0, 1.0);
        let table = [
            // The first fetch, four turns, the last store.
            ("hidden", vec![plain; 4], 1, ALL, 2.0 + 16.0 + 1.0),
            // Fetches bound: the last turn begins once all four are there.
            ("fetches bound", vec![turn(4.0, 6.0, 1.0); 4], 1, ALL, 24.0 + 4.0 + 1.0),
            // Stores bound: one begins with the end of the first turn, all follow it.
            ("stores bound", vec![turn(4.0, 2.0, 6.0); 4], 1, ALL, 2.0 + 4.0 + 24.0),
            ("kernels alone", vec![plain; 4], 1, CountedParts::default(), 16.0),
            ("an update at the end", vec![updated(plain); 4], 1, ALL, 19.0 + 0.5),
            // The last exchange comes before the last store.
            ("exchanges hide", vec![exchanged(plain); 4], 1, ALL, 19.0 + 2.0),
            (
                "exchanges wait",
                vec![exchanged(plain); 4],
                1,
                CountedParts { overlap: false, ..ALL },
                19.0 + 8.0,
            ),
            // Of four micro-batches the second device has the first a quarter of a turn later.
            ("two devices", vec![turn(4.0, 0.0, 0.0); 4], 2, ALL, 8.0 + 1.0),
            // Of two micro-batches on four devices each waits for the one before.
            ("too few micro-batches", vec![turn(4.0, 0.0, 0.0); 8], 4, ALL, 4.0 + 7.0),
        ];
        for (name, turns, devices, beside, expected) in table {
            let made = makespan(&turns, 4.0, devices, beside);
            assert!((made - expected).abs() < 1e-12, "{name}: {made} for {expected}");
        }
    }

    #[test]
    fn more_work_never_ends_earlier_and_nothing_ends_before_its_parts() {
        let mut x = 11u64;
        let mut next = || {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (x >> 40) as f64 / (1u64 << 24) as f64
        };
        for _ in 0..300 {
            let devices = 1 + (next() * 4.0) as usize;
            let mut turns: Vec<PackTurn> = Vec::new();
            for _ in 0..2 + (next() * 12.0) as usize {
                let [compute, fetch, store, passed] = [next(), next(), next(), 0.05 * next()];
                turns.push(PackTurn {
                    compute,
                    fetch,
                    store,
                    passed,
                    exchange: 0.3 * next(),
                    update: 0.3 * next(),
                });
            }
            let whole = makespan(&turns, 8.0, devices, ALL);
            for device in 0..devices {
                let mine = || turns.iter().skip(device).step_by(devices);
                for of in [|t: &PackTurn| t.compute, |t: &PackTurn| t.fetch, |t: &PackTurn| t.store] {
                    assert!(whole + 1e-9 >= mine().map(of).sum::<f64>(), "{turns:?}");
                }
            }
            for at in 0..turns.len() {
                let mut longer = turns.clone();
                longer[at].compute += 0.5;
                longer[at].fetch += 0.5;
                assert!(makespan(&longer, 8.0, devices, ALL) + 1e-9 >= whole, "{turns:?} at {at}");
            }
        }
    }
}
