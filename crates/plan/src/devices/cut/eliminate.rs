//! The least sum of cost tables over discrete variables, exactly, by variable elimination: the variable whose neighbours
//! have the fewest combinations is replaced by a table of its least cost for each of them. Graphs that are nearly chains
//! have small tables, and take time proportional to their length. Where a table would pass a limit, some variables are
//! fixed and the rest is solved, again and again with other variables fixed; the sum only falls.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// The cost of forbidden choices; finite, so that differences are numbers.
pub(crate) const FORBIDDEN: f64 = 1e30;

/// Most rounds with other variables fixed.
const TRIES: usize = 4;

/// A cost table over a few variables.
#[derive(Clone, Debug)]
pub(crate) struct CostFactor {
    /// The variables, all different.
    pub scope: Vec<usize>,
    /// Costs; the choice of the last variable changes fastest.
    pub table: Arc<[f64]>,
}

/// Numbers of choices by variable, and the tables to be summed.
#[derive(Clone, Debug, Default)]
pub(crate) struct CostProblem {
    pub domains: Vec<usize>,
    pub factors: Vec<CostFactor>,
}

/// Choices, by variable.
#[derive(Clone, Debug)]
pub(crate) struct CostSolution {
    pub choices: Vec<usize>,
    /// Whether it is optimal.
    pub exact: bool,
}

impl CostProblem {
    /// The sum of all tables for these choices.
    pub fn sum(&self, choices: &[usize]) -> f64 {
        let of = |f: &CostFactor| {
            let at = f.scope.iter().fold(0, |at, &v| at * self.domains[v] + choices[v]);
            f.table[at]
        };
        self.factors.iter().map(of).sum()
    }

    /// The choices of the least sum; if a table passes `limit` entries, of a sum no larger than that of `start`.
    pub fn solve(&self, start: &[usize], limit: usize) -> CostSolution {
        let (kept, small) = self.without_dominated();
        let back = |(v, &c): (usize, &usize)| kept[v].iter().position(|k| *k == c);
        // A choice of the start that is dominated is replaced by the first that is left.
        let mut best: Vec<usize> = start.iter().enumerate().map(|p| back(p).unwrap_or(0)).collect();
        let mut sum = small.sum(&best);
        let mut times_fixed = vec![0u32; best.len()];
        let mut exact = false;
        for _ in 0..TRIES {
            let (choices, fixed) = small.eliminate(&best, &times_fixed, limit);
            exact = fixed.is_empty();
            let new = small.sum(&choices);
            let better = new < sum;
            if new <= sum {
                (best, sum) = (choices, new);
            }
            if exact || !better {
                break;
            }
            fixed.iter().for_each(|&v| times_fixed[v] += 1);
        }
        let choices: Vec<usize> = best.iter().zip(&kept).map(|(&c, kept)| kept[c]).collect();
        if self.sum(&choices) > self.sum(start) {
            return CostSolution { choices: start.to_vec(), exact: false };
        }
        CostSolution { choices, exact }
    }

    /// The remaining choices by variable, and the problem without choices that another one dominates.
    fn without_dominated(&self) -> (Vec<Vec<usize>>, CostProblem) {
        let mut worse: Vec<Vec<f64>> = self.domains.iter().map(|d| vec![0.0; d * d]).collect();
        let mut seen: HashMap<(usize, usize), Vec<f64>> = HashMap::new();
        for factor in &self.factors {
            let extents: Vec<usize> = factor.scope.iter().map(|&v| self.domains[v]).collect();
            for (place, &v) in factor.scope.iter().enumerate() {
                let key = (factor.table.as_ptr() as usize, place);
                let most = seen.entry(key).or_insert_with(|| most_added(&factor.table, &extents, place));
                worse[v].iter_mut().zip(most.iter()).for_each(|(sum, m)| *sum += m);
            }
        }
        let left = |(d, worse): (&usize, &Vec<f64>)| {
            let mut alive = vec![true; *d];
            for a in (0..*d).rev() {
                alive[a] = !(0..*d).any(|b| b != a && alive[b] && worse[a * d + b] <= 0.0);
            }
            (0..*d).filter(|&c| alive[c]).collect::<Vec<usize>>()
        };
        let kept: Vec<Vec<usize>> = self.domains.iter().zip(&worse).map(left).collect();
        let factors = self.factors.iter().map(|f| self.restricted(f, &kept)).collect();
        let domains = kept.iter().map(Vec::len).collect();
        (kept, CostProblem { domains, factors })
    }

    fn restricted(&self, factor: &CostFactor, kept: &[Vec<usize>]) -> CostFactor {
        if factor.scope.iter().all(|&v| kept[v].len() == self.domains[v]) {
            return factor.clone();
        }
        let mut offsets = vec![0];
        for &v in &factor.scope {
            let each = |&at: &usize| kept[v].iter().map(move |c| (at, *c));
            offsets = offsets.iter().flat_map(each).map(|(at, c)| at * self.domains[v] + c).collect();
        }
        CostFactor {
            scope: factor.scope.clone(),
            table: offsets.iter().map(|&at| factor.table[at]).collect(),
        }
    }

    /// The best choices with some variables fixed as in `start`, and the fixed variables.
    fn eliminate(&self, start: &[usize], times_fixed: &[u32], limit: usize) -> (Vec<usize>, Vec<usize>) {
        let mut work = Work::new(self);
        let mut choices = start.to_vec();
        let (mut done, mut fixed) = (Vec::new(), Vec::new());
        while let Some(&(size, var)) = work.queue.first() {
            if size <= limit as u64 {
                done.push(work.remove(var));
                continue;
            }
            let around = work.neighbours(var);
            let candidates = around.iter().chain([&var]);
            let key = |v: &&usize| (std::cmp::Reverse(times_fixed[**v]), work.neighbours(**v).len());
            let chosen = *candidates.max_by_key(key).unwrap_or(&var);
            work.fix(chosen, start[chosen]);
            fixed.push(chosen);
        }
        for Eliminated { var, scope, best } in done.iter().rev() {
            let at = scope.iter().fold(0, |at, &v| at * self.domains[v] + choices[v]);
            choices[*var] = usize::from(best[at]);
        }
        (choices, fixed)
    }
}

/// For every pair (a, b) of choices of the variable at `place`: the most that b can cost above a.
fn most_added(table: &[f64], extents: &[usize], place: usize) -> Vec<f64> {
    let d = extents[place];
    let inner: usize = extents[place + 1..].iter().product();
    let mut most = vec![f64::NEG_INFINITY; d * d];
    for block in table.chunks_exact(d * inner) {
        for a in 0..d {
            for b in (0..d).filter(|&b| b != a) {
                let rows = block[b * inner..][..inner].iter().zip(&block[a * inner..][..inner]);
                let m = rows.map(|(b, a)| b - a).fold(f64::NEG_INFINITY, f64::max);
                most[a * d + b] = most[a * d + b].max(m);
            }
        }
    }
    most
}

struct Eliminated {
    var: usize,
    scope: Vec<usize>,
    /// The best choice for each combination of choices of the scope.
    best: Vec<u16>,
}

/// The tables that are left during elimination.
struct Work<'a> {
    domains: &'a [usize],
    factors: Vec<Option<CostFactor>>,
    /// Tables by variable.
    of: Vec<Vec<usize>>,
    /// Variables ordered by the combinations of their neighbours.
    queue: BTreeSet<(u64, usize)>,
    size: Vec<u64>,
}

impl<'a> Work<'a> {
    fn new(problem: &'a CostProblem) -> Work<'a> {
        let variables = problem.domains.len();
        let mut of = vec![Vec::new(); variables];
        for (f, factor) in problem.factors.iter().enumerate() {
            factor.scope.iter().for_each(|&v| of[v].push(f));
        }
        let factors = problem.factors.iter().cloned().map(Some).collect();
        let mut work =
            Work { domains: &problem.domains, factors, of, queue: BTreeSet::new(), size: vec![0; variables] };
        for v in 0..variables {
            work.size[v] = work.combinations(v);
            work.queue.insert((work.size[v], v));
        }
        work
    }

    fn neighbours(&self, var: usize) -> Vec<usize> {
        let factors = self.of[var].iter().filter_map(|&f| self.factors[f].as_ref());
        let mut all: Vec<usize> =
            factors.flat_map(|f| f.scope.iter().copied()).filter(|v| *v != var).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    fn combinations(&self, var: usize) -> u64 {
        self.neighbours(var).iter().fold(1u64, |n, &v| n.saturating_mul(self.domains[v] as u64))
    }

    fn refresh(&mut self, vars: &[usize]) {
        for &v in vars {
            let size = self.combinations(v);
            if size != self.size[v] && self.queue.remove(&(self.size[v], v)) {
                self.queue.insert((size, v));
            }
            self.size[v] = size;
        }
    }

    /// Takes the tables of a variable that is eliminated or fixed.
    fn take(&mut self, var: usize) -> Vec<CostFactor> {
        self.queue.remove(&(self.size[var], var));
        let ids = std::mem::take(&mut self.of[var]);
        let taken: Vec<CostFactor> = ids.iter().filter_map(|&f| self.factors[f].take()).collect();
        for v in taken.iter().flat_map(|f| &f.scope) {
            let factors = &self.factors;
            self.of[*v].retain(|&f| factors[f].is_some());
        }
        taken
    }

    fn add(&mut self, factor: CostFactor) {
        factor.scope.iter().for_each(|&v| self.of[v].push(self.factors.len()));
        self.factors.push(Some(factor));
    }

    fn remove(&mut self, var: usize) -> Eliminated {
        let scope = self.neighbours(var);
        let taken = self.take(var);
        let (table, best) = least(var, &scope, &taken, self.domains);
        if !scope.is_empty() {
            self.add(CostFactor { scope: scope.clone(), table: table.into() });
            self.refresh(&scope);
        }
        Eliminated { var, scope, best }
    }

    fn fix(&mut self, var: usize, choice: usize) {
        let around = self.neighbours(var);
        for factor in self.take(var) {
            let place = factor.scope.iter().position(|v| *v == var).unwrap_or(0);
            let inner: usize = factor.scope[place + 1..].iter().map(|&v| self.domains[v]).product();
            let blocks = factor.table.chunks_exact(self.domains[var] * inner);
            let table: Arc<[f64]> =
                blocks.flat_map(|b| b[choice * inner..][..inner].iter().copied()).collect();
            let scope: Vec<usize> = factor.scope.iter().copied().filter(|v| *v != var).collect();
            if !scope.is_empty() {
                self.add(CostFactor { scope, table });
            }
        }
        self.refresh(&around);
    }
}

/// The least sum over the choices of a variable, and the best choice, for each combination of choices of the scope.
fn least(var: usize, scope: &[usize], factors: &[CostFactor], domains: &[usize]) -> (Vec<f64>, Vec<u16>) {
    let choices = domains[var];
    // By table: the stride of the variable, and of each variable of the scope.
    let steps: Vec<(usize, Vec<usize>)> = factors
        .iter()
        .map(|f| {
            let step = |v: usize| match f.scope.iter().position(|x| *x == v) {
                Some(place) => f.scope[place + 1..].iter().map(|&x| domains[x]).product(),
                None => 0,
            };
            (step(var), scope.iter().map(|&v| step(v)).collect())
        })
        .collect();
    let size: usize = scope.iter().map(|&v| domains[v]).product();
    let (mut table, mut best) = (Vec::with_capacity(size), Vec::with_capacity(size));
    let mut at = vec![0usize; factors.len()];
    let mut place = vec![0usize; scope.len()];
    let mut sums = vec![0.0; choices];
    for _ in 0..size {
        sums.fill(0.0);
        for ((factor, (step, _)), &at) in factors.iter().zip(&steps).zip(&at) {
            sums.iter_mut().enumerate().for_each(|(c, sum)| *sum += factor.table[at + c * step]);
        }
        let (mut low, mut which) = (sums[0], 0);
        for (c, &sum) in sums.iter().enumerate().skip(1) {
            if sum < low {
                (low, which) = (sum, c);
            }
        }
        table.push(low);
        best.push(which as u16);
        for d in (0..scope.len()).rev() {
            place[d] += 1;
            if place[d] < domains[scope[d]] {
                at.iter_mut().zip(&steps).for_each(|(at, (_, step))| *at += step[d]);
                break;
            }
            let back = place[d] - 1;
            at.iter_mut().zip(&steps).for_each(|(at, (_, step))| *at -= step[d] * back);
            place[d] = 0;
        }
    }
    (table, best)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gulliver_graph::random::RandomStream;

    fn random(seed: u64, variables: usize, factors: usize) -> CostProblem {
        let s = RandomStream::new(seed, 1, 0);
        let mut at = 0..;
        let mut next = |n: usize| s.below(at.next().unwrap(), n as u64) as usize;
        let domains: Vec<usize> = (0..variables).map(|_| 1 + next(4)).collect();
        let factors = (0..factors)
            .map(|_| {
                let mut scope: Vec<usize> = (0..1 + next(3)).map(|_| next(variables)).collect();
                scope.sort_unstable();
                scope.dedup();
                let size: usize = scope.iter().map(|&v| domains[v]).product();
                let table =
                    (0..size).map(|_| if next(9) == 0 { FORBIDDEN } else { next(20) as f64 }).collect();
                CostFactor { scope, table }
            })
            .collect();
        CostProblem { domains, factors }
    }

    fn least_sum(problem: &CostProblem) -> f64 {
        let mut all = vec![Vec::new()];
        for &d in &problem.domains {
            all =
                all.iter().flat_map(|c: &Vec<usize>| (0..d).map(|x| [c.as_slice(), &[x]].concat())).collect();
        }
        all.iter().map(|c| problem.sum(c)).fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn the_least_of_all_combinations_is_found() {
        for seed in 0..300 {
            let problem = random(seed, 6, 9);
            let solution = problem.solve(&[0; 6], 1 << 16);
            assert!(solution.exact);
            assert_eq!(problem.sum(&solution.choices), least_sum(&problem), "{seed}");
        }
    }

    #[test]
    fn small_tables_never_make_the_start_worse() {
        let mut reached = 0;
        for seed in 0..100 {
            let problem = random(seed, 8, 14);
            let (start, best) = (problem.sum(&[0; 8]), least_sum(&problem));
            let found = problem.sum(&problem.solve(&[0; 8], 3).choices);
            assert!(found <= start && found >= best);
            reached += u32::from(found == best);
        }
        assert!(reached > 50, "{reached}");
    }
}
