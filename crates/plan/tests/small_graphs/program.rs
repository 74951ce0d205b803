//! The least that must be computed again as an integer program, after Jain et al., "Checkmate: Breaking the
//! Memory Wall with Optimal Tensor Rematerialization" (MLSys 2020). The step has a stage for each act, which
//! ends with it; before it, earlier acts may run again, each once and in their order. Unknown are which acts run in
//! which stage, what is in memory between stages, between which uses it stays within a stage, and which results
//! take the place of an operand. Only the first must be whole numbers: the least of the others then are, too.
//!
//! Bytes are those of the [`Problem`], so no act is charged more than our plans are. A stage in another order than
//! that of the step, or in which an act runs twice, is left out: only among plans without such stages is what is
//! found a bound on ours.

use super::problem::{Move, Problem};

/// Bytes by which places are aligned: the unit of the program's rows.
const UNIT: f64 = 64.0;

/// Finds `columns` between 0 and 1 with the least sum of their costs, such that every row holds.
#[derive(Default)]
pub struct Program {
    /// Microseconds.
    pub costs: Vec<f64>,
    /// Which of them are whole numbers.
    pub whole: Vec<bool>,
    /// Sums of columns with their factors, and what they must not exceed.
    pub rows: Vec<(Vec<(usize, f64)>, f64)>,
    /// Some row cannot hold, whatever the columns.
    pub impossible: bool,
}

/// Whether something is so: known, or to be found.
#[derive(Clone, Copy, PartialEq)]
enum Bit {
    No,
    Yes,
    Column(usize),
}

impl Program {
    /// For a budget in bytes; acts that do not satisfy `may` never run a second time.
    pub fn new(problem: &Problem, budget: u64, may: impl Fn(&Move) -> bool) -> Program {
        let again: Vec<bool> = problem.moves.iter().map(may).collect();
        let mut program = Program::default();
        let count = problem.moves.len();
        let useful: Vec<Vec<bool>> = (0..=count).map(|t| useful(problem, &again, t)).collect();
        let links = Links::new(problem);
        let mut stored = vec![Bit::No; problem.sizes.len()];
        for t in 0..count {
            let run: Vec<Bit> = (0..=t)
                .map(|i| match () {
                    _ if i == t => Bit::Yes,
                    _ if again[i] && problem.moves[i].writes.iter().any(|&v| useful[t][v]) => {
                        program.column(1e6 * problem.moves[i].seconds, true)
                    }
                    _ => Bit::No,
                })
                .collect();
            let next: Vec<Bit> = (0..problem.sizes.len())
                .map(|v| match () {
                    _ if links.producer[v] > t => Bit::No,
                    _ if problem.outputs.contains(&v) => Bit::Yes,
                    _ if t + 1 == count || !useful[t + 1][v] => Bit::No,
                    _ if !again[links.producer[v]] && links.readers[v].last() > Some(&t) => Bit::Yes,
                    _ => program.column(0.0, false),
                })
                .collect();
            program.reasons(problem, &links, &run);
            program.stage(problem, &links, budget, &run, &stored, &next);
            stored = next;
        }
        program
    }

    /// What runs again does so beside an act that uses its results, or makes or uses its operands. Otherwise it
    /// could as well run a stage sooner, or later if its results take more memory than its operands. Without
    /// these rows the least is the same, and takes longer to find.
    fn reasons(&mut self, problem: &Problem, links: &Links, run: &[Bit]) {
        for i in 0..run.len() - 1 {
            let act = &problem.moves[i];
            let made = act.reads.iter().map(|&v| links.producer[v]);
            let used = act.reads.iter().chain(&act.writes).flat_map(|&v| links.readers[v].iter().copied());
            let mut beside: Vec<usize> = made.chain(used).filter(|&u| u != i && u < run.len()).collect();
            beside.sort_unstable();
            beside.dedup();
            let mut bits = vec![(1.0, run[i])];
            bits.extend(beside.into_iter().map(|u| (-1.0, run[u])));
            self.row(&bits, 0.0);
        }
    }

    /// The rows of the stage in which these acts `run`, between what is `stored` before and after it.
    fn stage(
        &mut self,
        problem: &Problem,
        links: &Links,
        budget: u64,
        run: &[Bit],
        stored: &[Bit],
        next: &[Bit],
    ) {
        let t = run.len() - 1;
        // By act: what is charged while it runs.
        let mut charged: Vec<Vec<(f64, Bit)>> = vec![Vec::new(); run.len()];
        // And the operands whose place its results take.
        let mut places: Vec<Vec<(f64, Bit)>> = vec![Vec::new(); run.len()];
        for (v, &before) in stored.iter().enumerate().filter(|(v, _)| links.producer[*v] <= t) {
            let made = links.producer[v];
            let size = problem.sizes[v] as f64 / UNIT;
            charged[..=made].iter_mut().for_each(|c| c.push((size, before)));
            if problem.moves[made].writes.len() == 1 {
                self.row(&[(1.0, before), (1.0, run[made])], 1.0);
            }
            // What must hold for it to be there from here on: the sum of the bits is at least one.
            let mut there = vec![(-1.0, before), (-1.0, run[made])];
            let mut taken = Bit::No;
            let mut from = made + 1;
            for &u in links.readers[v].iter().filter(|u| **u <= t && run[**u] != Bit::No) {
                let stays = if u == t { Bit::Yes } else { self.column(0.0, false) };
                self.holds(stays, &there, taken);
                self.row(&[(1.0, run[u]), (-1.0, stays)], 0.0);
                charged[from..=u].iter_mut().for_each(|c| c.push((size, stays)));
                taken = Bit::No;
                if problem.moves[u].in_place.contains(&v) {
                    taken = self.column(0.0, false);
                    self.row(&[(1.0, taken), (-1.0, run[u])], 0.0);
                    charged[u].push((-size, taken));
                    places[u].push((1.0, taken));
                }
                there = vec![(-1.0, stays)];
                from = u + 1;
            }
            self.holds(next[v], &there, taken);
            charged[from..].iter_mut().for_each(|c| c.push((size, next[v])));
        }
        let room = (budget as f64 - problem.inputs[t] as f64) / UNIT;
        for (k, mut bits) in charged.into_iter().enumerate().filter(|(k, _)| run[*k] != Bit::No) {
            bits.push((problem.moves[k].bytes as f64 / UNIT, run[k]));
            self.row(&bits, room);
            self.row(&places[k], problem.moves[k].writes.len() as f64);
        }
    }

    fn column(&mut self, cost: f64, whole: bool) -> Bit {
        self.costs.push(cost);
        self.whole.push(whole);
        Bit::Column(self.costs.len() - 1)
    }

    /// A value that `stays` was there before, and its place was not taken.
    fn holds(&mut self, stays: Bit, there: &[(f64, Bit)], taken: Bit) {
        if stays != Bit::No {
            self.row(&[&[(1.0, stays)], there].concat(), 0.0);
        }
        self.row(&[(1.0, stays), (1.0, taken)], 1.0);
    }

    /// The sum of bits with their factors is at most so much.
    fn row(&mut self, bits: &[(f64, Bit)], most: f64) {
        let known: f64 = bits.iter().filter(|(_, bit)| *bit == Bit::Yes).map(|(factor, _)| factor).sum();
        let terms: Vec<(usize, f64)> = bits
            .iter()
            .filter_map(|(factor, bit)| match bit {
                Bit::Column(column) => Some((*column, *factor)),
                _ => None,
            })
            .collect();
        let most = most - known;
        let highest: f64 = terms.iter().map(|(_, factor)| factor.max(0.0)).sum();
        let lowest: f64 = terms.iter().map(|(_, factor)| factor.min(0.0)).sum();
        self.impossible |= lowest > most;
        if highest > most {
            self.rows.push((terms, most));
        }
    }
}

/// By value: the act that makes it and those that read it, in order.
struct Links {
    producer: Vec<usize>,
    readers: Vec<Vec<usize>>,
}

impl Links {
    fn new(problem: &Problem) -> Links {
        let mut producer = vec![0; problem.sizes.len()];
        let mut readers = vec![Vec::new(); problem.sizes.len()];
        for (t, act) in problem.moves.iter().enumerate() {
            act.writes.iter().for_each(|&v| producer[v] = t);
            act.reads.iter().for_each(|&v| readers[v].push(t));
        }
        Links { producer, readers }
    }
}

/// By value: whether it is read from stage `t` on, be it by what runs again for the sake of others.
fn useful(problem: &Problem, again: &[bool], t: usize) -> Vec<bool> {
    let mut useful = vec![false; problem.sizes.len()];
    for (i, act) in problem.moves.iter().enumerate().rev() {
        if i >= t || again[i] && act.writes.iter().any(|&v| useful[v]) {
            act.reads.iter().for_each(|&v| useful[v] = true);
        }
    }
    useful
}
