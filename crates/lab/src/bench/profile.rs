//! Where the time of a training step goes: every instruction timed, summed by operator.

use crate::bench::measure::{BenchRunner, WARM_UP};
use crate::error::LabError;
use gulliver::report::table::{self, Column};
use gulliver_graph::dim::{Bindings, Dim, DimError};
use gulliver_graph::graph::{Graph, Node, Phase, Value};
use gulliver_run::session::TimedWork;
use serde::Serialize;
use std::collections::HashMap;
use std::time::Instant;

/// The time of an average step by operator.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepProfile {
    /// What was trained.
    pub workload: String,
    /// Steps the averages are over.
    pub steps: u64,
    /// Time of a step, what lies between instructions included.
    pub step_seconds: f64,
    /// Operators, longest first.
    pub rows: Vec<OperatorRow>,
}

/// An operator in one phase of the step; with shapes, for one set of them. Numbers are of one step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OperatorRow {
    /// Its name; `copy` and `accumulate` are the plan's own.
    pub operator: &'static str,
    /// `forward`, `backward` or `update`; empty for the plan's own.
    pub phase: &'static str,
    /// Shapes of operands and results, if asked for.
    pub shapes: String,
    /// How often it is called.
    pub calls: u64,
    /// Time it takes.
    pub seconds: f64,
    /// Its floating-point operations.
    pub flops: u64,
    /// Bytes it reads and writes.
    pub bytes: u64,
}

/// Profiles steps for `seconds`, at least one.
pub fn profile(runner: &mut BenchRunner, seconds: f64, shapes: bool) -> Result<StepProfile, LabError> {
    for _ in 0..WARM_UP {
        runner.step()?;
    }
    // Every step runs the same instructions in the same order.
    let mut sums: Vec<(TimedWork, f64)> = Vec::new();
    let (mut steps, mut inside) = (0u64, 0.0);
    let begin = Instant::now();
    while steps == 0 || begin.elapsed().as_secs_f64() < seconds {
        let (key, hyper) = runner.next();
        let start = Instant::now();
        let step = runner.session.profile(&runner.batch, key, &hyper)?;
        inside += start.elapsed().as_secs_f64();
        steps += 1;
        if sums.is_empty() {
            sums = step.iter().map(|(work, _)| (*work, 0.0)).collect();
        }
        for ((_, sum), (_, time)) in sums.iter_mut().zip(&step) {
            *sum += time.as_secs_f64();
        }
    }
    let sizes = runner.sizes()?;
    let failed =
        |e: DimError| LabError::Workload { workload: runner.workload.name.into(), problem: e.to_string() };
    let mut rows: HashMap<(&str, &str, String), OperatorRow> = HashMap::new();
    for (work, time) in sums {
        let one = describe(runner.session.graph(), &sizes, work, shapes).map_err(failed)?;
        let key = (one.operator, one.phase, one.shapes.clone());
        let row = rows.entry(key).or_insert(OperatorRow { calls: 0, flops: 0, bytes: 0, ..one.clone() });
        row.calls += 1;
        row.seconds += time / steps as f64;
        row.flops += one.flops;
        row.bytes += one.bytes;
    }
    let mut rows: Vec<OperatorRow> = rows.into_values().collect();
    rows.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    Ok(StepProfile {
        workload: runner.workload.name.into(),
        steps,
        step_seconds: inside / steps as f64,
        rows,
    })
}

/// A row of one instruction, with no time yet.
fn describe(graph: &Graph, sizes: &Bindings, work: TimedWork, shapes: bool) -> Result<OperatorRow, DimError> {
    let own = |operator, flops, bytes| OperatorRow {
        operator,
        phase: "",
        shapes: String::new(),
        calls: 1,
        seconds: 0.0,
        flops,
        bytes,
    };
    let node = match work {
        TimedWork::Copy(bytes) => return Ok(own("copy", 0, 2 * bytes)),
        TimedWork::Move => return Ok(own("move", 0, 0)),
        TimedWork::Add(bytes) => return Ok(own("accumulate", bytes / 4, 3 * bytes)),
        TimedWork::Node(node) => &graph.nodes[node.index()],
    };
    // A node of a valid graph has a spec; one without counts as no work.
    let flops = graph.flops(node).unwrap_or(Dim::from(0)).bind(sizes)? as u64;
    let bytes = graph.bytes(node).bind(sizes)? as u64;
    let phase = match node.phase {
        Phase::Forward => "forward",
        Phase::Backward => "backward",
        Phase::Update => "update",
    };
    let shapes = if shapes { node_shapes(graph, sizes, node)? } else { String::new() };
    Ok(OperatorRow { phase, shapes, ..own(node.op.done(), flops, bytes) })
}

/// `64x784, 10x784 -> 64x10`, scalars as `1`.
fn node_shapes(graph: &Graph, sizes: &Bindings, node: &Node) -> Result<String, DimError> {
    let list = |values: &[Value]| -> Result<String, DimError> {
        let shapes = values.iter().map(|&v| {
            let shape: Vec<String> = graph.ty(v).bind(sizes)?.iter().map(usize::to_string).collect();
            Ok(if shape.is_empty() { "1".to_string() } else { shape.join("x") })
        });
        Ok(shapes.collect::<Result<Vec<String>, DimError>>()?.join(", "))
    };
    Ok(format!("{} -> {}", list(&node.ins)?, list(&node.outs)?))
}

impl StepProfile {
    /// As a table, with a line of totals.
    pub fn render(&self) -> String {
        let columns = [
            Column::Left("operator"),
            Column::Left("phase"),
            Column::Right("calls"),
            Column::Right("ms"),
            Column::Right("of step"),
            Column::Right("GFLOP/s"),
            Column::Right("GB/s"),
            Column::Left("shapes"),
        ];
        // Too short to be timed is not infinitely fast.
        let rate = |amount: u64, seconds: f64| {
            if seconds > 0.0 { format!("{:.1}", amount as f64 / seconds / 1e9) } else { "-".into() }
        };
        let share = |seconds: f64| format!("{:.1}%", 100.0 * seconds / self.step_seconds);
        let cells = |r: &OperatorRow| {
            vec![
                r.operator.to_string(),
                r.phase.to_string(),
                r.calls.to_string(),
                format!("{:.4}", 1e3 * r.seconds),
                share(r.seconds),
                rate(r.flops, r.seconds),
                rate(r.bytes, r.seconds),
                r.shapes.clone(),
            ]
        };
        let mut lines: Vec<Vec<String>> = self.rows.iter().map(cells).collect();
        let inside: f64 = self.rows.iter().map(|r| r.seconds).sum();
        let between = self.step_seconds - inside;
        let blank = String::new;
        lines.push(vec![
            "between".into(),
            blank(),
            blank(),
            format!("{:.4}", 1e3 * between),
            share(between),
            blank(),
            blank(),
            blank(),
        ]);
        let columns =
            if self.rows.iter().any(|r| !r.shapes.is_empty()) { &columns[..] } else { &columns[..7] };
        let heading = format!(
            "{}: {:.3} ms per step, mean of {} steps\n",
            self.workload,
            1e3 * self.step_seconds,
            self.steps
        );
        heading + &table::render(columns, &lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::measure::BenchVariant;
    use crate::workload::{WORKLOADS, step_flops};

    #[test]
    fn rows_add_up_to_the_step() {
        let workload = WORKLOADS.iter().find(|w| w.name == "mlp-tiny").unwrap();
        for shapes in [false, true] {
            let mut runner = BenchRunner::new(BenchVariant::plain(workload, 1)).unwrap();
            let profile = profile(&mut runner, 0.0, shapes).unwrap();
            let whole = step_flops(runner.session.graph(), &workload.sizes()).unwrap();
            assert_eq!(profile.rows.iter().map(|r| r.flops).sum::<u64>(), whole);
            assert!(profile.rows.iter().map(|r| r.seconds).sum::<f64>() <= profile.step_seconds);
            let adam = profile.rows.iter().filter(|r| r.phase == "update").map(|r| r.calls).sum::<u64>();
            assert_eq!(adam, 4);
            let text = profile.render();
            assert_eq!(text.contains("32x64, 32x64 -> 32x32"), shapes, "{text}");
            assert_eq!(text.lines().count(), profile.rows.len() + 3, "{text}");
        }
    }
}
