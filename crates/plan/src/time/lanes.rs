//! The width of an array of jobs: the number of lanes at once, and the number of further members in memory. Compares
//! predicted times of lanes; makes no plans.

use crate::document::links::Links;
use crate::time::cost::Rates;

/// Lanes side by side, each of which trains one member at a time.
#[derive(Clone, Debug, PartialEq)]
pub struct LaneDivision {
    /// By lane: predicted seconds of a step while all lanes are busy.
    pub seconds: Vec<f64>,
    /// Bytes of device and host memory that all lanes take together.
    pub bytes: [u64; 2],
}

/// The members of an array, and the memory for them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ArrayLoad {
    /// Jobs.
    pub members: usize,
    /// Steps of each.
    pub steps: u64,
    /// Bytes of the weights and states of one.
    pub state: u64,
    /// Hard limits of device and host memory; none is no limit.
    pub budgets: [Option<u64>; 2],
}

/// The outcome of a division.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaneWidth {
    /// Members in memory at once, those in lanes included. The others start when one of these has ended.
    pub resident: usize,
    /// Predicted seconds until all members have done their steps.
    pub seconds: f64,
}

/// The index of the division that ends first; none if none is possible.
pub fn choose(divisions: &[LaneDivision], array: &ArrayLoad) -> Option<(usize, LaneWidth)> {
    let possible = divisions.iter().enumerate().filter_map(|(i, one)| Some((i, weigh(one, array)?)));
    possible.min_by(|(_, a), (_, b)| a.seconds.total_cmp(&b.seconds))
}

/// The outcome of a division; none if it has no lanes, more lanes than members, or does not fit.
pub fn weigh(division: &LaneDivision, array: &ArrayLoad) -> Option<LaneWidth> {
    let lanes = division.seconds.len();
    if lanes == 0 || lanes > array.members {
        return None;
    }
    let mut left = Some(0u64);
    for (used, budget) in division.bytes.iter().zip(array.budgets) {
        let rest = match budget {
            Some(budget) => Some(budget.checked_sub(*used)?),
            None => None,
        };
        left = left.zip(rest).map(|(left, rest)| left.saturating_add(rest));
    }
    // A member that leaves a lane is put aside before the next one is fetched, so each needs memory.
    let rooms =
        left.map_or(usize::MAX, |left| usize::try_from(left / array.state.max(1)).unwrap_or(usize::MAX));
    let resident = rooms.max(lanes).min(array.members);
    let seconds = array.steps as f64 * rounds(&division.seconds, array.members, resident);
    Some(LaneWidth { resident, seconds })
}

/// Seconds until every member has done one step.
fn rounds(lanes: &[f64], members: usize, resident: usize) -> f64 {
    if resident > lanes.len() {
        // Members take turns: all lanes are busy until the end, but no member is in two at once.
        let rate: f64 = lanes.iter().map(|seconds| 1.0 / seconds).sum();
        let fastest = lanes.iter().copied().fold(f64::INFINITY, f64::min);
        return (members as f64 / rate).max(fastest);
    }
    // Each member stays in one lane: the one that ends first with it.
    let mut ends = vec![0.0; lanes.len()];
    for _ in 0..members {
        let after = |lane: &usize| ends[*lane] + lanes[*lane];
        let next = (0..lanes.len()).min_by(|a, b| after(a).total_cmp(&after(b))).unwrap_or(0);
        ends[next] += lanes[next];
    }
    ends.into_iter().fold(0.0, f64::max)
}

/// Speeds of a lane with some of a machine's threads: arithmetic is proportional to threads, and lanes share memory and
/// links evenly.
pub fn share((rates, links): (Rates, Links), (threads, of): (usize, usize), lanes: usize) -> (Rates, Links) {
    let even = lanes.max(1) as f64;
    let flops = rates.flops * threads as f64 / of.max(1) as f64;
    let links = Links {
        to_device: links.to_device / even,
        to_host: links.to_host / even,
        disk_read: links.disk_read / even,
        disk_write: links.disk_write / even,
        from_peers: links.from_peers / even,
    };
    (Rates { flops, bytes: rates.bytes / even, ..rates }, links)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(members: usize, budgets: [Option<u64>; 2]) -> ArrayLoad {
        ArrayLoad { members, steps: 10, state: 100, budgets }
    }

    fn division(lanes: usize, seconds: f64, bytes: u64) -> LaneDivision {
        LaneDivision { seconds: vec![seconds; lanes], bytes: [bytes * lanes as u64, 0] }
    }

    #[test]
    fn members_are_in_memory_as_far_as_it_reaches() {
        for (members, budgets, expected) in [
            (8, [None, None], Some(8)),
            (8, [Some(2000), None], Some(8)),
            (8, [Some(2000), Some(0)], Some(2)),
            (8, [Some(2299), Some(0)], Some(2)),
            (8, [Some(2300), Some(0)], Some(3)),
            (8, [Some(2200), Some(250)], Some(4)),
            (8, [Some(9000), Some(0)], Some(8)),
            (2, [Some(2000), Some(0)], Some(2)),
            (8, [Some(1999), None], None),
            (1, [None, None], None),
        ] {
            let width = weigh(&division(2, 1.0, 1000), &array(members, budgets));
            assert_eq!(width.map(|width| width.resident), expected, "{members} {budgets:?}");
        }
        assert_eq!(weigh(&division(0, 1.0, 1), &array(3, [None; 2])), None);
    }

    #[test]
    fn lanes_are_at_work_until_the_end_only_if_members_can_take_turns() {
        let tight = [Some(2000), Some(0)];
        for (members, budgets, seconds) in
            [(2, [None, None], 10.0), (3, [None, None], 15.0), (3, tight, 20.0), (4, tight, 20.0)]
        {
            let width = weigh(&division(2, 1.0, 1000), &array(members, budgets)).unwrap();
            assert_eq!(width.seconds, seconds, "{members} {budgets:?}");
        }
        let uneven = LaneDivision { seconds: vec![1.0, 3.0], bytes: [2000, 0] };
        assert_eq!(weigh(&uneven, &array(4, tight)).unwrap().seconds, 30.0);
        assert_eq!(weigh(&uneven, &array(4, [None; 2])).unwrap().seconds, 30.0);
    }

    #[test]
    fn the_soonest_is_chosen_whatever_its_width() {
        // Two lanes with all they want; then so little memory that both do much again.
        for (two, one, chosen) in [(1.0, 0.6, 0), (1.0, 0.5, 0), (2.0, 0.6, 1)] {
            let divisions = [division(2, two, 10), division(1, one, 20)];
            let (index, width) = choose(&divisions, &array(8, [Some(20), None])).unwrap();
            assert_eq!(index, chosen, "{two} {one}");
            assert_eq!(width, weigh(&divisions[index], &array(8, [Some(20), None])).unwrap());
        }
        let large = [division(2, 1.0, 11), division(1, 9.0, 20)];
        assert_eq!(choose(&large, &array(8, [Some(20), None])).unwrap().0, 1);
        assert_eq!(choose(&large, &array(8, [Some(9), None])), None);
    }

    #[test]
    fn lanes_share_a_machine() {
        let whole = (Rates { flops: 8.0, bytes: 6.0, call: 0.5 }, Links::default());
        let (rates, links) = share(whole, (1, 4), 3);
        assert_eq!(rates, Rates { flops: 2.0, bytes: 2.0, call: 0.5 });
        assert_eq!(links.to_host * 3.0, whole.1.to_host);
        assert_eq!(share(whole, (4, 4), 1), whole);
    }
}
