//! Collectives are beside the computation: plans of several devices whose collectives take no time that is computed
//! in anyway, verified not to race; and the times of all devices together.

use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::op::Op;
use gulliver_graph::graph::{Graph, Node, NodeId, Origin};
use gulliver_graph::model::model;
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::optim::Optimizer;
use gulliver_graph::training::training_graph;
use gulliver_lab::comparator::traffic::{over_links, pcie};
use gulliver_plan::budget::planner::StepPlanner;
use gulliver_plan::devices::collectives::take_turns;
use gulliver_plan::devices::replicate::replica;
use gulliver_plan::document::collectives::inline_collectives;
use gulliver_plan::document::links::Links;
use gulliver_plan::document::plan::{Act, Plan, PlanStream, STREAMS};
use gulliver_plan::document::residence::Persistent;
use gulliver_plan::document::timeline::{bars, trace};
use gulliver_plan::document::topology::{BoxWiring, DeviceSpec, Topology};
use gulliver_plan::document::verify::verify;
use gulliver_plan::step::options::PlanOptions;
use gulliver_plan::time::cost::Rates;
use gulliver_plan::time::simulate::{JointTiming, RankPlan, Unevenness, simulate, together};

const BATCH: usize = 8;

fn graph() -> Graph {
    let int = |name: &str, v| (name.to_string(), ParamValue::Int(v));
    let params = [int("width", 64), int("heads", 4), int("layers", 4), int("vocab", 64), int("context", 32)];
    let model = model("gpt", &params).unwrap();
    training_graph(&*model, &[Optimizer::new("adamw", &[]).unwrap()], None).unwrap()
}

/// The graph with sums over devices where their gradients are made, and collectives numbered in that order.
fn eager(mut graph: Graph) -> Graph {
    let (collectives, others): (Vec<Node>, Vec<Node>) =
        graph.nodes.drain(..).partition(|node| node.op.def().meets());
    let mut waiting = collectives;
    let mut number = 0;
    for node in others {
        let made = node.outs.clone();
        graph.nodes.push(node);
        let (mut ready, rest): (Vec<Node>, Vec<Node>) =
            waiting.into_iter().partition(|collective| made.contains(&collective.ins[0]));
        waiting = rest;
        for collective in &mut ready {
            let Op::Exchange(what) = &mut collective.op else { panic!("replicas exchange") };
            (what.collective, number) = (number, number + 1);
        }
        graph.nodes.extend(ready);
    }
    assert!(waiting.is_empty());
    for (id, node) in graph.nodes.iter().enumerate() {
        for (output, v) in node.outs.iter().enumerate() {
            graph.values[v.index()].origin = Origin::Node { node: NodeId(id as u32), output };
        }
    }
    graph
}

fn sizes() -> Bindings {
    Bindings::new().with("batch", BATCH).with("length", 32)
}

/// A device of a data-parallel job: its graph, plan, and seconds by node.
struct Planned {
    graph: Graph,
    plan: Plan,
    seconds: Vec<f64>,
}

fn planned(rank: u32, ranks: u32, links: Links, memory: Option<u64>) -> Planned {
    let mut graph = replica(&graph(), rank, ranks, 1).unwrap();
    if ranks == 2 {
        graph = eager(graph);
    }
    let persistent = Persistent::of(&graph).unwrap();
    let rates = Rates { flops: 5e9, bytes: 5e9, call: 1e-6 };
    let options = PlanOptions { links, memory, rates, ..PlanOptions::new(&persistent) };
    let planner = StepPlanner::new(&graph, &sizes(), &options).unwrap();
    let plan = planner.plan(&graph, &sizes(), &options).unwrap();
    let bound = planner.outline.sizes(&graph, &sizes(), &options).unwrap();
    let seconds =
        (0..graph.nodes.len()).map(|node| planner.outline.seconds_over(&graph, &bound, &links, node));
    let seconds = seconds.collect();
    Planned { graph, plan, seconds }
}

/// Links between devices of so many bytes a second.
fn links(from_peers: f64) -> Links {
    Links { from_peers, ..Links::default() }
}

fn simulated(devices: &[Planned], topology: &Topology) -> JointTiming {
    let seconds: Vec<_> = devices.iter().map(|d| |id: NodeId| d.seconds[id.index()]).collect();
    let ordinary = Links::default();
    let mut ranks = Vec::new();
    for (d, seconds) in devices.iter().zip(&seconds) {
        ranks.push(RankPlan {
            graph: &d.graph,
            plan: &d.plan,
            seconds,
            alone: None,
            taken: None,
            uneven: Unevenness::default(),
            links: &ordinary,
        });
    }
    together(&ranks, topology).unwrap()
}

/// Devices without a core for who holds collectives wait for each where they come to it: all are held by the computation, and
/// everyone still gets through.
#[test]
fn meetings_take_turns_with_the_computation() {
    let mut devices = [0, 1].map(|rank| planned(rank, 2, links(1e9), None));
    let beside = simulated(&devices, &Topology::alone());
    let collectives = |plan: &Plan| -> Vec<bool> {
        let steps = inline_collectives(plan).into_iter().zip(&plan.steps);
        steps.filter(|(_, step)| matches!(step.act, Act::Exchange { .. })).map(|(here, _)| here).collect()
    };
    assert!(!collectives(&devices[0].plan).iter().all(|here| *here), "some would be held beside");
    for Planned { graph, plan, .. } in &mut devices {
        take_turns(plan);
        assert!(collectives(plan).iter().all(|here| *here));
        verify(graph, plan).unwrap();
        let again = plan.clone();
        take_turns(plan);
        assert_eq!(*plan, again);
    }
    let turns = simulated(&devices, &Topology::alone());
    assert!(turns.seconds >= beside.seconds);
    assert_eq!(turns.spans.len(), beside.spans.len());
}

#[test]
fn meetings_take_time_beside_the_computation() {
    for rate in [1e8, 3e8, 1e9] {
        let Planned { graph, plan, seconds } = planned(0, 2, links(rate), None);
        verify(&graph, &plan).unwrap();
        let timing = simulate(&plan, |id| seconds[id.index()], &links(rate));
        let [computing, collective] =
            [PlanStream::Compute, PlanStream::Exchange].map(|s| timing.busy[s as usize]);
        assert!(computing > 0.0 && collective > 0.0);
        let hidden = (computing + collective - timing.seconds) / computing.min(collective);
        assert!(hidden > 0.5, "at {rate}: {hidden} of what could be, {computing} and {collective}");
    }
}

/// Devices that all compute slow each other down; one that computes while the others rest is as fast as alone.
#[test]
fn kernels_are_faster_while_others_are_at_rest() {
    let devices = [0, 1].map(|rank| planned(rank, 2, links(1e12), None));
    let links = Links::default();
    // The second device has so much to do; kernels take `slower` times as long as they would alone.
    let step = |busy: f64, slower: f64, alone: bool| {
        let share = [1.0, busy];
        let of = |d: usize, times: f64| {
            let (seconds, share) = (&devices[d].seconds, share[d]);
            move |id: NodeId| times * share * seconds[id.index()]
        };
        let (crowded, calm) = ([of(0, slower), of(1, slower)], [of(0, 1.0), of(1, 1.0)]);
        let rank = |d: usize| RankPlan {
            graph: &devices[d].graph,
            plan: &devices[d].plan,
            seconds: &crowded[d],
            alone: alone.then_some(&calm[d] as &dyn Fn(NodeId) -> f64),
            taken: None,
            uneven: Unevenness::default(),
            links: &links,
        };
        together(&[rank(0), rank(1)], &Topology::alone()).unwrap().seconds
    };
    let close = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 0.03, "{a} and {b}");
    close(step(1.0, 2.0, true), step(1.0, 2.0, false));
    close(step(1e-6, 2.0, true), step(1e-6, 1.0, false));
    let between = step(0.5, 2.0, true);
    assert!(step(0.5, 1.0, false) < between && between < step(0.5, 2.0, false));
}

/// A step of two devices whose kernels are so uneven, and whose collectives take so long if not as long as their bytes do.
fn uneven_step(share: f64, collective: Option<f64>) -> JointTiming {
    step_over(&Topology::alone(), Unevenness { share, fades: 0.5, resumes: 0.0 }, collective)
}

fn step_over(topology: &Topology, uneven: Unevenness, collective: Option<f64>) -> JointTiming {
    let devices = [0, 1].map(|rank| planned(rank, 2, links(1e12), None));
    let links = Links::default();
    let seconds = [0, 1].map(|d: usize| {
        let Planned { graph, seconds, .. } = &devices[d];
        move |id: NodeId| {
            let meets = graph.nodes[id.index()].op.def().meets();
            collective.filter(|_| meets).unwrap_or(seconds[id.index()])
        }
    });
    let rank = |d: usize| RankPlan {
        graph: &devices[d].graph,
        plan: &devices[d].plan,
        seconds: &seconds[d],
        alone: None,
        taken: None,
        uneven,
        links: &links,
    };
    together(&[rank(0), rank(1)], topology).unwrap()
}

/// Devices that waited for a link go on late, and later the longer they waited; a transfer that follows at once does not
/// wait for them.
#[test]
fn who_waits_for_links_goes_on_late() {
    let step = |rate: f64, resumes: f64| {
        let wiring = BoxWiring { peer: Some(rate), ..BoxWiring::default() };
        let topology = Topology::wired(vec![DeviceSpec::default(); 2], &wiring).unwrap();
        step_over(&topology, Unevenness { resumes, ..Unevenness::default() }, None)
    };
    let met = |step: &JointTiming| {
        step.spans.iter().filter(|s| s.device == 0 && s.stream == PlanStream::Exchange).count()
    };
    let late = |rate: f64| {
        let (on_time, late) = (step(rate, 0.0), step(rate, 1e-3));
        (late.seconds - on_time.seconds, 1e-3 * met(&on_time) as f64)
    };
    let ((slow, all), (fast, _)) = (late(1e6), late(1e12));
    assert!(fast < 1e-6, "{fast}");
    // All collectives but those that the computation waits for follow each other.
    assert!(slow > 0.9e-3 && slow < 0.9 * all, "{slow} of {all}");
}

/// Where kernels are uneven, devices wait for the slowest at every collective: the longer, the more they have computed
/// since they last waited, but not as long as if all kernels were late together.
#[test]
fn the_slowest_is_waited_for() {
    let [even, some, more] = [0.0, 0.1, 0.2].map(|uneven| uneven_step(uneven, None).seconds);
    assert!(even < some && some < more && more < 1.2 * even, "{even} {some} {more}");
}

/// Where collectives follow each other, all leave one and come to the next at once: a computation that is late holds up
/// the first, not every one of them again.
#[test]
fn meetings_that_follow_each_other_wait_for_the_slowest_once() {
    let [even, uneven] = [0.0, 0.5].map(|uneven| uneven_step(uneven, Some(1e-2)));
    let computing = even.devices[0].busy[PlanStream::Compute as usize];
    let late = uneven.seconds - even.seconds;
    assert!(late > 0.0 && late <= 0.5 * computing, "{late} of {computing}");
}

/// Where no core is left for collectives, a step takes longer by what they take, unless devices wait for them anyway.
#[test]
fn meetings_without_a_core_take_time_from_kernels() {
    let devices = [0, 1].map(|rank| planned(rank, 2, links(3e8), None));
    let free = simulated(&devices, &Topology::alone()).seconds;
    let ordinary = Links::default();
    let mut before = free;
    for each in [1e-6, 1e-5, 1e-4] {
        let taken = |_: NodeId| [each, 0.0];
        let seconds: Vec<_> = devices.iter().map(|d| |id: NodeId| d.seconds[id.index()]).collect();
        let rank = |(d, seconds)| -> RankPlan {
            let d: &Planned = d;
            RankPlan {
                graph: &d.graph,
                plan: &d.plan,
                seconds,
                alone: None,
                taken: Some(&taken),
                uneven: Unevenness::default(),
                links: &ordinary,
            }
        };
        let pairs = devices.iter().zip(seconds.iter().map(|of| of as &dyn Fn(NodeId) -> f64));
        let ranks: Vec<RankPlan> = pairs.map(rank).collect();
        let now = together(&ranks, &Topology::alone()).unwrap().seconds;
        let collectives = devices[0].graph.nodes.iter().filter(|node| node.op.def().meets()).count();
        assert!(
            now > before && now <= free + 1.001 * each * collectives as f64,
            "{each}: {now}, {free} without"
        );
        before = now;
    }
}

/// Every wait that collectives give rise to is needed, and without it the plan is refused.
#[test]
fn a_race_with_a_collective_is_found() {
    let Planned { graph, plan, .. } = planned(0, 2, links(3e8), None);
    let stream = |step: u32| plan.stream(&plan.steps[step as usize].act);
    let mut changed = 0;
    for (i, step) in plan.steps.iter().enumerate() {
        let meets = stream(i as u32) == Some(PlanStream::Exchange);
        for (w, other) in step.after.iter().enumerate() {
            if meets || stream(*other) == Some(PlanStream::Exchange) {
                let mut wrong = plan.clone();
                wrong.steps[i].after.remove(w);
                assert!(verify(&graph, &wrong).is_err(), "step {i} need not wait for {other}");
                changed += 1;
            }
        }
    }
    assert!(changed > 40, "{changed}");
    let at: Vec<usize> =
        (0..plan.steps.len()).filter(|&i| stream(i as u32) == Some(PlanStream::Exchange)).collect();
    let Act::Exchange { node, partial, own, result } = plan.steps[at[0]].act.clone() else { panic!() };
    let mut computed = plan.clone();
    let ins = own.into_iter().collect();
    computed.steps[at[0]].act = Act::Run { node, partial, ins, outs: vec![result], scratch: None };
    let said = verify(&graph, &computed).unwrap_err().to_string();
    assert!(said.contains("meets others while it computes"), "{said}");
}

#[test]
fn a_budget_leaves_collectives_beside_the_computation() {
    let free = planned(0, 2, links(3e8), None);
    let budget = free.plan.spaces[0].bytes;
    let percents = [100, 85, 70];
    for percent in percents {
        let Planned { graph, plan, seconds } = planned(0, 2, links(3e8), Some(budget * percent / 100));
        verify(&graph, &plan).unwrap();
        assert!(plan.spaces[0].bytes <= budget * percent / 100);
        let timing = simulate(&plan, |id| seconds[id.index()], &links(3e8));
        assert!(timing.seconds <= timing.busy.iter().sum::<f64>());
    }
}

#[test]
fn one_device_alone_takes_as_long_as_it_is_simulated_to() {
    let graph = graph();
    let persistent = Persistent::of(&graph).unwrap();
    let free = PlanOptions::new(&persistent);
    let planner = StepPlanner::new(&graph, &sizes(), &free).unwrap();
    let whole = planner.plan(&graph, &sizes(), &free).unwrap().spaces[0].bytes;
    for percent in [100, 60, 45] {
        let options = PlanOptions { memory: Some(whole * percent / 100), recompute: false, ..free };
        let plan = planner.plan(&graph, &sizes(), &options).unwrap();
        let bound = planner.outline.sizes(&graph, &sizes(), &options).unwrap();
        let seconds = |id: NodeId| planner.outline.seconds(&bound, id.index());
        let alone = simulate(&plan, seconds, &options.links);
        let rank = RankPlan {
            graph: &graph,
            plan: &plan,
            seconds: &seconds,
            alone: None,
            taken: None,
            uneven: Unevenness::default(),
            links: &options.links,
        };
        let found = together(&[rank], &Topology::alone()).unwrap();
        assert_eq!((found.seconds, &found.devices[..]), (alone.seconds, &[alone.clone()][..]), "{percent} %");
        // The same over links of its own that are as fast.
        let wiring = BoxWiring { host: Some(options.links.to_device), ..BoxWiring::default() };
        let linked =
            together(&[rank], &Topology::wired(vec![DeviceSpec::default()], &wiring).unwrap()).unwrap();
        assert_eq!(linked.seconds, alone.seconds, "{percent} %");
        let bytes: u64 = linked.links.iter().map(|link| link.bytes).sum();
        assert_eq!(bytes, alone.moved.to_device + alone.moved.to_host);
        for stream in STREAMS {
            let spans = found.spans.iter().filter(|span| span.stream == stream);
            let ends: Vec<(f64, f64)> = spans.map(|span| (span.start, span.end)).collect();
            assert!(ends.windows(2).all(|two| two[0].1 <= two[1].0), "one after the other");
        }
    }
}

#[test]
fn shared_links_are_shared() {
    let devices: Vec<Planned> = (0..4).map(|rank| planned(rank, 4, links(3e8), None)).collect();
    let free = simulated(&devices, &pcie(4, 1e15, 0.0, 1).unwrap());
    let all = |topology: &Topology| {
        let found = simulated(&devices, topology);
        let plans: Vec<(&Graph, &Plan)> = devices.iter().map(|d| (&d.graph, &d.plan)).collect();
        let bytes: Vec<u64> = found.links.iter().map(|link| link.bytes).collect();
        assert_eq!(bytes, over_links(&plans, topology));
        for link in &found.links {
            assert!(link.busy <= found.seconds * (1.0 + 1e-9), "{link:?} within {}", found.seconds);
        }
        found.seconds
    };
    let own = BoxWiring { peer: Some(1e8), ..BoxWiring::default() };
    let through_host = BoxWiring { host: Some(1e8), ..BoxWiring::default() };
    let [own, bounced] = [own, through_host]
        .map(|wiring| all(&Topology::wired(vec![DeviceSpec::default(); 4], &wiring).unwrap()));
    assert!(free.seconds < own && own < bounced, "{} < {own} < {bounced}", free.seconds);
    let slower = all(&pcie(4, 1e8, 1e-3, 1).unwrap());
    assert!(own < slower, "with latency: {own} < {slower}");
    let apart = all(&pcie(4, 1e8, 1e-3, 2).unwrap());
    assert!(slower < apart, "over two sockets: {slower} < {apart}");
}

#[test]
fn whoever_does_not_come_is_named() {
    let devices: Vec<Planned> = (0..2).map(|rank| planned(rank, 2, links(3e8), None)).collect();
    let ordinary = Links::default();
    let seconds = |_| 1e-3;
    let mut short = devices[1].plan.clone();
    let last = short.steps.iter().rposition(|step| matches!(step.act, Act::Exchange { .. })).unwrap();
    short.steps.truncate(last);
    let rank = |d: usize, plan| RankPlan {
        graph: &devices[d].graph,
        plan,
        seconds: &seconds,
        alone: None,
        taken: None,
        uneven: Unevenness::default(),
        links: &ordinary,
    };
    let stuck = together(&[rank(0, &devices[0].plan), rank(1, &short)], &Topology::alone()).unwrap_err();
    assert_eq!((stuck.device, stuck.missing.as_str()), (0, "device 1"), "{stuck}");
    assert!(matches!(devices[0].plan.steps[stuck.step as usize].act, Act::Exchange { .. }));
}

#[test]
fn spans_are_drawn_and_traced() {
    let devices: Vec<Planned> = (0..2).map(|rank| planned(rank, 2, links(3e7), None)).collect();
    let found = simulated(&devices, &pcie(2, 3e7, 0.0, 1).unwrap());
    let plans: Vec<(&Graph, &Plan)> = devices.iter().map(|d| (&d.graph, &d.plan)).collect();
    let text = bars(&plans, &found.spans, 60);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "two streams of two devices:\n{text}");
    for (line, (begins, mark)) in
        lines.iter().zip([("device 0  compute  ", 'f'), ("          exchange ", 'x')].into_iter().cycle())
    {
        let begins = begins.replace('0', &line[7..8].replace(' ', "0"));
        assert!(line.starts_with(&begins) && line.contains(mark), "{line:?} does not begin with {begins:?}");
        assert_eq!(line.chars().count(), 19 + 60);
    }
    assert!(lines[0].find('f') < lines[0].find('b'), "{text}");
    let trace: serde_json::Value = serde_json::from_str(&trace(&plans, &found.spans)).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    assert_eq!(events.len(), found.spans.len() + 2 * 4);
    let last = events.iter().filter_map(|e| Some(e["ts"].as_f64()? + e["dur"].as_f64()?)).fold(0.0, f64::max);
    assert!((last / 1e6 - found.seconds).abs() < 1e-6);
}
