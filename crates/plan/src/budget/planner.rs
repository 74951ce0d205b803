//! The planner of one graph on one device: its outline, and choices that served before. Makes plans for inputs of any
//! size within the limits of its options, and says how little memory would do.

use crate::budget::bound::{MemoryBound, bound_anywhere};
use crate::budget::choose::LONG;
use crate::budget::finish::{Finished, finish_script, lay_resident};
use crate::budget::learn::{Learned, closest, learn, recall};
use crate::budget::passes::record;
use crate::budget::problem::{Effort, Problem};
use crate::budget::squeeze::{roomier, squeeze};
use crate::document::error::PlanError;
use crate::document::plan::{Plan, Tier};
use crate::document::residence::Persistent;
use crate::step::base::Base;
use crate::step::options::PlanOptions;
use crate::step::order::{OrderRule, RULES};
use crate::step::outline::Outline;
use crate::step::script::Script;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;

/// An outline with learned choices. The graph and the number of partials given to its methods must be those
/// it was made for; sizes are those of the whole batch.
#[derive(Clone)]
pub struct StepPlanner {
    /// Order, storage and kinds of the graph.
    pub outline: Outline,
    /// What served under other budgets.
    learned: Vec<Learned>,
}

impl StepPlanner {
    /// Chooses the order that needs least memory for inputs of these sizes, never more than the graph's own; it serves
    /// inputs of any size.
    pub fn new(graph: &Graph, sizes: &Bindings, options: &PlanOptions) -> Result<StepPlanner, PlanError> {
        let rules: &[OrderRule] = if options.grouped { &[OrderRule::Grouped] } else { &RULES };
        Ok(StepPlanner { outline: Outline::new(graph, sizes, options, rules)?, learned: Vec::new() })
    }

    /// The planner with one rule of order.
    pub fn with_rule(
        graph: &Graph,
        sizes: &Bindings,
        options: &PlanOptions,
        rule: OrderRule,
    ) -> Result<StepPlanner, PlanError> {
        let outline = Outline::new(graph, sizes, options, &[rule])?;
        Ok(StepPlanner { outline, learned: Vec::new() })
    }

    /// Whether the script is too long for plans to be weighed against each other.
    pub fn is_long(&self) -> bool {
        self.outline.script.acts.len() > LONG
    }

    /// The plan for inputs of these sizes, within the budgets.
    pub fn plan(&self, graph: &Graph, sizes: &Bindings, options: &PlanOptions) -> Result<Plan, PlanError> {
        let sizes = self.outline.sizes(graph, sizes, options)?;
        let mut problem = Problem::new(&self.outline, graph, &sizes, options)?;
        Ok(self.find(&mut problem)?.plan)
    }

    /// The same plan with a record of its [passes](crate::document::pass). Takes a few more layouts than
    /// [`StepPlanner::plan`].
    pub fn plan_with_passes(
        &self,
        graph: &Graph,
        sizes: &Bindings,
        options: &PlanOptions,
    ) -> Result<Plan, PlanError> {
        let sizes = self.outline.sizes(graph, sizes, options)?;
        let mut problem = Problem::new(&self.outline, graph, &sizes, options)?;
        let found = self.find(&mut problem)?;
        let passes = record(&problem, &found)?;
        Ok(Plan { passes, ..found.plan })
    }

    fn find(&self, problem: &mut Problem) -> Result<Finished, PlanError> {
        problem.effort = Effort::Quick;
        let budget = problem.options.memory.unwrap_or(u64::MAX);
        let resident = problem.places.iter().flatten().all(|residence| residence.tier == Tier::Device);
        if resident && problem.need() <= budget {
            let found = lay_resident(problem)?;
            if found.plan.spaces[Tier::Device as usize].bytes <= budget {
                return Ok(found);
            }
        }
        let (base, room) = (problem.base(), problem.beside());
        if let Some(found) = recall(&self.learned, problem, budget)? {
            return roomier(problem, budget, found, |kept| {
                let Some(one) = closest(&self.learned, problem, kept).next() else { return Ok(None) };
                problem.refine(&base, &one.rewritten, kept, room).map(Result::ok)
            });
        }
        let found = squeeze(&self.outline, problem.graph, problem.sizes, problem.options, budget)?;
        let start = problem.away_at_first(&base);
        roomier(problem, budget, found, |kept| Ok(problem.fit(&base, &start, kept, room, false)?.ok()))
    }

    /// The plan of a script written elsewhere from the one in which everything stays, whatever it needs; none
    /// if there is no such script.
    pub fn plan_script(
        &self,
        graph: &Graph,
        sizes: &Bindings,
        options: &PlanOptions,
        write: impl FnOnce(&Base) -> Option<Script>,
    ) -> Result<Option<Plan>, PlanError> {
        let sizes = self.outline.sizes(graph, sizes, options)?;
        let problem = Problem::new(&self.outline, graph, &sizes, options)?;
        let script = write(&problem.base());
        script.map(|script| finish_script(&problem, script)).transpose()
    }

    /// Searches choices for inputs of these sizes under their budget and larger ones, from which those for
    /// smaller inputs are found in a moment. What plans compute does not depend on whether this was done, only how
    /// soon they are there.
    pub fn learn(&mut self, graph: &Graph, sizes: &Bindings, options: &PlanOptions) -> Result<(), PlanError> {
        if let Some(budget) = options.memory {
            self.learned = learn(&self.outline, graph, sizes, options, budget)?;
        }
        Ok(())
    }

    /// Device bytes that no plan for inputs of these sizes can do without, wherever weights and states are between
    /// steps. With no tier beside the device they are on it.
    pub fn bound(
        &self,
        graph: &Graph,
        sizes: &Bindings,
        options: &PlanOptions,
    ) -> Result<MemoryBound, PlanError> {
        let sizes = self.outline.sizes(graph, sizes, options)?;
        Ok(bound_anywhere(&Problem::new(&self.outline, graph, &sizes, options)?))
    }

    /// Most device bytes in use at once for inputs of these sizes if everything stays, weights and states included.
    pub fn resident(&self, graph: &Graph, sizes: &Bindings, options: &PlanOptions) -> Result<u64, PlanError> {
        let here = Persistent::of(graph)?;
        let options = PlanOptions { persistent: &here, ..*options };
        let sizes = self.outline.sizes(graph, sizes, &options)?;
        Ok(Problem::new(&self.outline, graph, &sizes, &options)?.need())
    }
}
