//! Our plans against those of others under the same budgets: segments, whole layers, one choice for every
//! size, eviction on the way, demand paging. Ours never cost more than any that fits. Budgets are shares of
//! what is needed beyond weights and states, which are always there.

use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::build::Builder;
use gulliver_graph::graph::{Graph, GraphError, GraphOutput, Value};
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::model::{Architecture, Built, classified, images, logits, model};
use gulliver_graph::optim::Optimizer;
use gulliver_graph::training::training_graph;
use gulliver_graph::windows::ConvOptions;
use gulliver_lab::comparator::paging::{self, Eviction};
use gulliver_lab::comparator::{ComparedStep, dtr, mimose, static_greedy, sublinear};
use gulliver_plan::budget::choices::Choices;
use gulliver_plan::budget::planner::StepPlanner;
use gulliver_plan::document::error::PlanError;
use gulliver_plan::document::plan::{Plan, Tier};
use gulliver_plan::document::residence::Persistent;
use gulliver_plan::document::verify::verify;
use gulliver_plan::step::base::Base;
use gulliver_plan::step::options::PlanOptions;
use gulliver_plan::time::cost::TierLimits;
use gulliver_plan::time::simulate::{Timing, simulate};

/// A small U-shaped net: halves of the picture's size on the way down, skips to the way up.
#[derive(Debug)]
struct UNet {
    width: usize,
    depth: usize,
}

impl UNet {
    fn twice(&self, g: &mut Builder, mut x: Value, out: usize) -> Result<Value, GraphError> {
        for k in 0..2 {
            let options = ConvOptions::new(2).padding(1);
            x = g.scope(format!("conv{k}"), |g| g.conv_layer(x, out, &[3, 3], &options, false))?;
            x = g.scope(format!("norm{k}"), |g| g.batch_norm_layer(x))?;
            x = g.relu(x)?;
        }
        Ok(x)
    }

    fn build(&self, g: &mut Builder) -> Result<Value, GraphError> {
        let mut x = images(g, 3, 32)?;
        let mut skips = Vec::new();
        for d in 0..self.depth {
            x = g.scope(format!("down.{d}"), |g| self.twice(g, x, self.width << d))?;
            skips.push(x);
            x = g.max_pool(x, &[2, 2], &[2, 2], &[0, 0])?;
        }
        x = g.scope("bottom.0", |g| self.twice(g, x, self.width << self.depth))?;
        for d in (0..self.depth).rev() {
            x = g.scope(format!("up.{d}"), |g| {
                let x = g.upsample(x, &[2, 2])?;
                let x = g.concat(&[skips[d], x], 1)?;
                self.twice(g, x, self.width << d)
            })?;
        }
        let x = g.mean(x, &[2, 3], false)?;
        g.scope("fc", |g| g.linear(x, 10, true))
    }
}

impl Architecture for UNet {
    fn objective(&self, _: usize, g: &mut Builder) -> Result<Built, GraphError> {
        let x = self.build(g)?;
        classified(g, x, false)
    }

    fn forward(&self, g: &mut Builder) -> Result<Vec<GraphOutput>, GraphError> {
        Ok(logits(self.build(g)?))
    }
}

fn train(model: &dyn Architecture) -> Graph {
    training_graph(model, &[Optimizer::new("adam", &[]).unwrap()], None).unwrap()
}

fn named(name: &str, settings: &[(&str, i64)]) -> Graph {
    let settings: Vec<(String, ParamValue)> =
        settings.iter().map(|(n, v)| (n.to_string(), ParamValue::Int(*v))).collect();
    train(model(name, &settings).unwrap().as_ref())
}

/// Models, and the sizes they are planned for, the largest first.
fn models() -> Vec<(&'static str, Graph, Vec<Bindings>)> {
    let text = |batch, length| Bindings::new().with("batch", batch).with("length", length);
    let bert =
        [("width", 64), ("hidden", 256), ("layers", 6), ("heads", 2), ("vocab", 100), ("context", 128)];
    let gpt = [("width", 64), ("layers", 8), ("heads", 2), ("vocab", 100), ("context", 64)];
    vec![
        ("bert", named("bert", &bert), vec![text(8, 128), text(8, 96), text(8, 48)]),
        ("gpt", named("gpt", &gpt), vec![text(8, 64)]),
        ("resnet50", named("resnet50", &[("width", 8), ("size", 64), ("classes", 10)]), vec![text(8, 1)]),
        ("unet", train(&UNet { width: 8, depth: 3 }), vec![text(8, 1)]),
    ]
}

const SHARES: [u64; 4] = [80, 60, 40, 30];
const NO_OTHER: TierLimits = TierLimits { host: Some(0), disk: None };

struct Setting<'a> {
    graph: &'a Graph,
    planner: &'a StepPlanner,
    options: PlanOptions<'a>,
}

impl Setting<'_> {
    fn timing(&self, sizes: &Bindings, plan: &Plan, options: &PlanOptions) -> Timing {
        let s = self.planner.outline.sizes(self.graph, sizes, options).unwrap();
        simulate(plan, |id| self.planner.outline.seconds(&s, id.index()), &options.links)
    }

    /// The plan of choices made for one size, for another.
    fn with(
        &self,
        made_for: &Bindings,
        sizes: &Bindings,
        choose: impl Fn(&ComparedStep, &Choices) -> Option<Choices>,
    ) -> Option<Plan> {
        let (graph, planner, options) = (self.graph, self.planner, &self.options);
        let made_for = planner.outline.sizes(graph, made_for, options).unwrap();
        let write = |base: &Base| {
            let start = Choices::keep(base, vec![Tier::Device; base.script.versions.len()]);
            let case = ComparedStep::new(&planner.outline, base, &made_for);
            Some(case.settle(&mut choose(&case, &start)?))
        };
        planner.plan_script(graph, sizes, options, write).unwrap()
    }
}

#[test]
fn no_other_that_fits_computes_less_again() {
    let mut worse = Vec::new();
    for (name, graph, all) in models() {
        let persistent = Persistent::of(&graph).unwrap();
        let options = PlanOptions { beside: NO_OTHER, ..PlanOptions::new(&persistent) };
        let planner = StepPlanner::new(&graph, &all[0], &options).unwrap();
        let setting = Setting { graph: &graph, planner: &planner, options };
        let state = persistent.ends[0];
        let moving = planner.plan(&graph, &all[0], &options).unwrap().spaces[0].bytes - state;
        println!("{name}: {state} of weights and states, {moving} beyond; seconds again in % of the step");
        println!("  sizes  share |   ours | sqrt(L) segments  layers  static    dtr");
        for (s, sizes) in all.iter().enumerate() {
            for share in SHARES {
                let budget = state + moving / 100 * share;
                let limited = PlanOptions { memory: Some(budget), ..options };
                let ours = match planner.plan(&graph, sizes, &limited) {
                    Ok(plan) => Some(plan),
                    Err(PlanError::DoesNotFit { .. }) => None,
                    Err(e) => panic!("{name}: {e}"),
                };
                let largest = &all[0];
                let others = [
                    setting.with(sizes, sizes, |case, start| Some(sublinear::square_root(case, start))),
                    setting.with(sizes, sizes, |case, start| sublinear::searched(case, start, budget)),
                    setting.with(sizes, sizes, |case, start| Some(mimose::choose(case, start, budget))),
                    setting
                        .with(largest, sizes, |case, start| Some(static_greedy::choose(case, start, budget))),
                    planner
                        .plan_script(&graph, sizes, &options, |base| {
                            let s = planner.outline.sizes(&graph, sizes, &options).unwrap();
                            dtr::script(&ComparedStep::new(&planner.outline, base, &s), budget)
                        })
                        .unwrap(),
                ];
                let cost = |plan: &Plan| {
                    verify(&graph, plan).unwrap_or_else(|e| panic!("{name} {share}: {e}"));
                    let timing = setting.timing(sizes, plan, &options);
                    100.0 * timing.again / (timing.busy[0] - timing.again)
                };
                // Others need not lay their bytes out within the budget.
                let others = others.map(|plan| plan.filter(|p| p.spaces[0].live <= budget).map(|p| cost(&p)));
                let ours = ours.map(|plan| {
                    assert!(plan.spaces[0].bytes <= budget);
                    cost(&plan)
                });
                let show = |x: &Option<f64>| x.map_or("      -".into(), |x| format!("{x:7.3}"));
                let row: Vec<String> = others.iter().map(show).collect();
                println!("  {s:>5} {share:>5}% |{} | {}", show(&ours), row.join(" "));
                let best = others.iter().flatten().copied().fold(f64::INFINITY, f64::min);
                if best < f64::INFINITY && ours.is_none_or(|ours| ours > best * 1.001) {
                    worse.push(format!("{name} {s} {share} %: {ours:?} against {best}"));
                }
            }
        }
    }
    assert!(worse.is_empty(), "{worse:#?}");
}

#[test]
fn paging_moves_more_and_takes_longer() {
    for (name, graph, all) in models() {
        let sizes = &all[0];
        let here = Persistent::of(&graph).unwrap();
        let free = PlanOptions::new(&here);
        let planner = StepPlanner::new(&graph, sizes, &free).unwrap();
        let whole = planner.plan(&graph, sizes, &free).unwrap().spaces[0].bytes;
        println!("{name}: share, bytes to and from the device and milliseconds: ours, paged");
        for share in SHARES {
            let budget = whole / 100 * share;
            let paged = Persistent::with(&graph, |_| Tier::Host).unwrap();
            let options = PlanOptions { persistent: &paged, ..free };
            let setting = Setting { graph: &graph, planner: &planner, options };
            let s = planner.outline.sizes(&graph, sizes, &options).unwrap();
            let write = |base: &Base| {
                paging::script(&ComparedStep::new(&planner.outline, base, &s), budget, Eviction::CleanDropped)
            };
            let Some(plan) = planner.plan_script(&graph, sizes, &options, write).unwrap() else { continue };
            verify(&graph, &plan).unwrap_or_else(|e| panic!("{name} {share}: {e}"));
            let theirs = setting.timing(sizes, &plan, &options);
            let alone: f64 = theirs.busy.iter().sum();
            let options = PlanOptions { memory: Some(budget), ..free };
            let settled = planner.place_weights(&graph, sizes, &options).unwrap();
            let options = PlanOptions { persistent: &settled, ..options };
            let plan = planner.plan(&graph, sizes, &options).unwrap();
            verify(&graph, &plan).unwrap_or_else(|e| panic!("{name} {share}: {e}"));
            let ours = setting.timing(sizes, &plan, &options);
            println!(
                "  {share:>3} % {:>10} {:>10} {:8.3}    {:>10} {:>10} {:8.3}",
                ours.moved.to_device,
                ours.moved.to_host,
                1e3 * ours.seconds,
                theirs.moved.to_device,
                theirs.moved.to_host,
                1e3 * alone
            );
            assert!(ours.seconds <= alone, "{name} {share}: {ours:?} {theirs:?}");
        }
    }
}
