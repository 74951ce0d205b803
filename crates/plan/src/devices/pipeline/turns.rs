//! The turns of every device, and its collectives between them. Collectives are in the order of one simulated run of all
//! devices, so that there is no deadlock.

use super::{Handover, Line, PipelineError, Placement};
use crate::step::order::PartialTurn;
use gulliver_graph::graph::{NodeId, Phase};
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// The order in which a device takes the turns of its packs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// All partials of a pack before those of the next, so that its weights are fetched once; the last pack runs backward
    /// at once. With one pack per device this is GPipe, with several it wraps around.
    Grouped,
    /// One forward, one backward (1F1B): fewest partials in flight that keep all devices busy. For one pack per device.
    OneByOne,
}

/// Forward or backward of a pack for one partial.
type Task = (u32, Phase, u32);

/// The turns of each device. `seconds` are those of a partial of each pack, forward and backward.
pub fn turns(
    lines: &[Line],
    placement: &Placement,
    partials: u32,
    style: Style,
    seconds: &[[f64; 2]],
) -> Result<Vec<Vec<PartialTurn>>, PipelineError> {
    let seconds = |(pack, phase, _): Task| {
        let [forward, backward] = seconds.get(pack as usize).copied().unwrap_or([1.0, 2.0]);
        // Every task takes some time, so that those that follow come later.
        f64::max(if phase == Phase::Forward { forward } else { backward }, 1e-9)
    };
    let (mut all, mut run) = (vec![Vec::new(); lines.len()], Run::new());
    for packs in objectives(lines, placement) {
        let orders: Vec<Vec<Task>> = (0..placement.devices)
            .map(|device| order(placement, packs.clone(), device, partials, style))
            .collect();
        // An objective begins when the one before it has ended on all devices.
        let begin = run.values().map(|[_, end]| end + BETWEEN).fold(0.0, f64::max);
        simulate(lines, &orders, &mut run, begin, seconds)?;
        all.iter_mut().zip(orders).for_each(|(all, order)| all.extend(order));
    }
    Ok(lines.iter().zip(&all).map(|(line, order)| of_device(line, order, partials, &run)).collect())
}

/// Simulated seconds between objectives.
const BETWEEN: f64 = 1.0;

/// The packs of each objective.
fn objectives(lines: &[Line], placement: &Placement) -> Vec<Range<u32>> {
    let mut objectives: BTreeMap<u32, Range<u32>> = BTreeMap::new();
    for (node, pack) in lines.iter().flat_map(|line| line.graph.nodes.iter().zip(&line.pack_of)) {
        if let Some(pack) = *pack {
            let packs = objectives.entry(node.objective).or_insert(pack..pack + 1);
            *packs = packs.start.min(pack)..packs.end.max(pack + 1);
        }
    }
    // Packs without nodes have turns too.
    if objectives.len() < 2 {
        objectives = BTreeMap::from([(0, 0..placement.packs.len() as u32)]);
    }
    objectives.into_values().collect()
}

fn order(placement: &Placement, packs: Range<u32>, device: u32, partials: u32, style: Style) -> Vec<Task> {
    let last = packs.end - 1;
    let packs: Vec<u32> = packs.filter(|pack| placement.packs[*pack as usize] == device).collect();
    let mut tasks = Vec::new();
    if style == Style::OneByOne && packs.len() == 1 {
        let pack = packs[0];
        // Devices nearer to the end have fewer partials in flight.
        let ahead = (last - pack + 1).min(partials);
        tasks.extend((0..ahead).map(|p| (pack, Phase::Forward, p)));
        for p in 0..partials {
            tasks.push((pack, Phase::Backward, p));
            tasks.extend((p + ahead < partials).then_some((pack, Phase::Forward, p + ahead)));
        }
        return tasks;
    }
    for &pack in &packs {
        for p in 0..partials {
            tasks.push((pack, Phase::Forward, p));
            tasks.extend((pack == last).then_some((pack, Phase::Backward, p)));
        }
    }
    for &pack in packs.iter().rev().filter(|pack| **pack != last) {
        tasks.extend((0..partials).map(|p| (pack, Phase::Backward, p)));
    }
    tasks
}

/// When tasks begin and end.
type Run = HashMap<Task, [f64; 2]>;

/// Simulates the devices from `begin` on: each runs its tasks in order, each as soon as its inputs are there.
fn simulate(
    lines: &[Line],
    orders: &[Vec<Task>],
    run: &mut Run,
    begin: f64,
    seconds: impl Fn(Task) -> f64,
) -> Result<(), PipelineError> {
    // By pack and phase: the packs and phases that it waits for.
    let mut waits: HashMap<(u32, Phase), Vec<(u32, Phase)>> = HashMap::new();
    for Handover { made, read, .. } in lines.iter().flat_map(|line| &line.collectives) {
        if let (Some(made), Some(read)) = (made, read)
            && read.1 != Phase::Update
            && made.1 != Phase::Update
        {
            waits.entry(*read).or_default().push(*made);
        }
    }
    waits.values_mut().for_each(|made| {
        made.sort_unstable();
        made.dedup();
    });
    let mut at: Vec<(usize, f64)> = vec![(0, begin); orders.len()];
    let ready = |run: &Run, (pack, phase, partial): Task, free: f64| {
        let made = waits.get(&(pack, phase)).map_or(&[][..], Vec::as_slice);
        made.iter().try_fold(free, |start, &(pack, phase)| {
            run.get(&(pack, phase, partial)).map(|[_, end]| start.max(*end))
        })
    };
    loop {
        let open = orders.iter().zip(&at).enumerate().filter_map(|(device, (order, (next, free)))| {
            let task = *order.get(*next)?;
            Some((ready(run, task, *free), device, task))
        });
        let open: Vec<_> = open.collect();
        let first = open.iter().filter_map(|(start, device, task)| Some((((*start)?), *device, *task)));
        let first = first.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        match (first, open.first()) {
            (Some((start, device, task)), _) => {
                let end = start + seconds(task);
                run.insert(task, [start, end]);
                at[device] = (at[device].0 + 1, end);
            }
            (None, Some((_, _, (pack, ..)))) => return Err(PipelineError::Stuck { pack: *pack }),
            (None, None) => return Ok(()),
        }
    }
}

fn of_device(line: &Line, order: &[Task], partials: u32, run: &Run) -> Vec<PartialTurn> {
    let mut nodes: HashMap<(u32, Phase), Vec<NodeId>> = HashMap::new();
    for (id, (node, pack)) in line.graph.nodes.iter().zip(&line.pack_of).enumerate() {
        if let Some(pack) = pack
            && !node.op.def().is_view()
        {
            nodes.entry((*pack, node.phase)).or_default().push(NodeId(id as u32));
        }
    }
    // Sorted by time; collectives before tasks; then by number.
    let mut events: Vec<((f64, bool, u32), PartialTurn)> = Vec::new();
    for (place, &(pack, phase, partial)) in order.iter().enumerate() {
        let Some(nodes) = nodes.get(&(pack, phase)) else { continue };
        let [start, _] = run[&(pack, phase, partial)];
        events.push(((start, true, place as u32), PartialTurn { nodes: nodes.clone(), partial }));
    }
    for collective in &line.collectives {
        if line.graph.nodes[collective.node.index()].phase == Phase::Update {
            continue;
        }
        for partial in 0..partials {
            let of = |of: Option<(u32, Phase)>| of.and_then(|(pack, phase)| run.get(&(pack, phase, partial)));
            let made = of(collective.made).map(|[_, end]| *end);
            let time = made.or(of(collective.read).map(|[start, _]| *start)).unwrap_or(0.0);
            events.push((
                (time, false, collective.number),
                PartialTurn { nodes: vec![collective.node], partial },
            ));
        }
    }
    let key = |a: &(f64, bool, u32), b: &(f64, bool, u32)| -> Ordering {
        a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2))
    };
    // Collectives of one number keep the order of their partials.
    events.sort_by(|a, b| key(&a.0, &b.0));
    events.into_iter().map(|(_, turn)| turn).collect()
}
