//! Spans of time for people and programs: bars of text, one for each stream of each device, and the JSON of
//! trace events that Chrome and Perfetto show.

use crate::document::plan::{Act, Plan, PlanStream};
use gulliver_graph::graph::{Graph, Phase};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// A step of a device and when it is at work.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepSpan {
    /// The device.
    pub device: u32,
    /// The stream.
    pub stream: PlanStream,
    /// Index of the step in the plan.
    pub step: u32,
    /// Seconds from the beginning; a collective begins when the last rank has come.
    pub start: f64,
    /// Seconds from the beginning.
    pub end: f64,
}

/// What fills a bar for most of a column: forward, backward, update, other computing, moves, collectives.
const MARKS: [char; 6] = ['f', 'b', 'u', '+', '=', 'x'];

/// The share of a column below which a stream counts as idle.
const SEEN: f64 = 0.05;

/// The graphs and plans that spans are of, by device.
pub type Plans<'a> = [(&'a Graph, &'a Plan)];

/// Names of streams as people read them.
pub fn name(stream: PlanStream) -> &'static str {
    match stream {
        PlanStream::Compute => "compute",
        PlanStream::In => "in",
        PlanStream::Out => "out",
        PlanStream::Read => "read",
        PlanStream::Write => "write",
        PlanStream::Exchange => "exchange",
    }
}

/// A line for each stream at work, so many columns wide from the first beginning to the last end. A column
/// shows what took more of it than anything else: `f`orward, `b`ackward, `u`pdate, `+` copies and sums, `=`
/// moves, `x` collectives, and `·` next to nothing.
pub fn bars(plans: &Plans, spans: &[StepSpan], width: usize) -> String {
    let width = width.max(1);
    let begin = spans.iter().map(|span| span.start).fold(f64::INFINITY, f64::min);
    let end = spans.iter().map(|span| span.end).fold(0.0, f64::max);
    let column = if end > begin { (end - begin) / width as f64 } else { 1.0 };
    let mut lines: BTreeMap<(u32, PlanStream), Vec<[f64; MARKS.len()]>> = BTreeMap::new();
    for span in spans {
        let line = lines.entry((span.device, span.stream)).or_insert_with(|| vec![[0.0; MARKS.len()]; width]);
        let mark = mark(plans, span);
        let (from, to) = ((span.start - begin) / column, (span.end - begin) / column);
        let last = (to.ceil() as usize).clamp(1, width);
        for (c, marks) in line.iter_mut().enumerate().take(last).skip(from as usize) {
            marks[mark] += (to.min(c as f64 + 1.0) - from.max(c as f64)).max(0.0);
        }
    }
    let mut text = String::new();
    let mut before = None;
    for ((device, stream), columns) in lines {
        let label = if before == Some(device) { String::new() } else { format!("device {device}") };
        before = Some(device);
        let _ = write!(text, "{label:<10}{:<9}", name(stream));
        for marks in columns {
            let at_work = marks.iter().sum::<f64>() >= SEEN;
            let most = marks.iter().zip(MARKS).max_by(|a, b| a.0.total_cmp(b.0)).filter(|_| at_work);
            text.push(most.map_or('·', |(_, mark)| mark));
        }
        text.push('\n');
    }
    text
}

fn mark(plans: &Plans, span: &StepSpan) -> usize {
    let Some((graph, plan)) = plans.get(span.device as usize) else { return 3 };
    match (span.stream, plan.steps.get(span.step as usize).map(|step| &step.act)) {
        (PlanStream::Exchange, _) => 5,
        (PlanStream::Compute, Some(Act::Run { node, .. })) => match graph.nodes[node.index()].phase {
            Phase::Forward => 0,
            Phase::Backward => 1,
            Phase::Update => 2,
        },
        (PlanStream::Compute, _) => 3,
        _ => 4,
    }
}

/// What a step does, in a few words.
pub fn label(graph: &Graph, plan: &Plan, step: usize) -> String {
    let value = |buffer| match plan.buffer(buffer).value {
        Some(v) => graph.value(v).name.as_str(),
        None => "scratch",
    };
    match plan.steps.get(step).map(|step| &step.act) {
        Some(Act::Run { node, .. } | Act::Exchange { node, .. }) => {
            let node = &graph.nodes[node.index()];
            format!("{} {}", node.op.def().name(), graph.value(node.outs[0]).name)
        }
        Some(Act::Copy { from, .. }) => format!("copy {}", value(from.buffer)),
        Some(Act::Add { from, .. }) => format!("add {}", value(from.buffer)),
        Some(Act::Move { from, .. }) => format!("move {}", value(from.buffer)),
        Some(Act::Alloc(b) | Act::Free(b)) => value(*b).to_string(),
        None => format!("step {step}"),
    }
}

/// A string of JSON.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// The JSON of trace events: a process for each device, a thread for each stream, times in microseconds.
pub fn trace(plans: &Plans, spans: &[StepSpan]) -> String {
    let mut tracks: Vec<(u32, PlanStream)> = spans.iter().map(|span| (span.device, span.stream)).collect();
    tracks.sort_unstable();
    tracks.dedup();
    let mut events = Vec::with_capacity(2 * tracks.len() + spans.len());
    for (device, stream) in tracks {
        let ids = format!(r#""ph":"M","pid":{device},"tid":{}"#, stream as u32);
        let process = quoted(&format!("device {device}"));
        events.push(format!(r#"{{"name":"process_name",{ids},"args":{{"name":{process}}}}}"#));
        let thread = quoted(name(stream));
        events.push(format!(r#"{{"name":"thread_name",{ids},"args":{{"name":{thread}}}}}"#));
    }
    for span in spans {
        let what = match plans.get(span.device as usize) {
            Some((graph, plan)) => label(graph, plan, span.step as usize),
            None => format!("step {}", span.step),
        };
        let (start, length) = (1e6 * span.start, 1e6 * (span.end - span.start));
        events.push(format!(
            r#"{{"name":{},"cat":"{}","ph":"X","pid":{},"tid":{},"ts":{start:.3},"dur":{length:.3},"args":{{"step":{}}}}}"#,
            quoted(&what),
            name(span.stream),
            span.device,
            span.stream as u32,
            span.step
        ));
    }
    format!("{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{}\n]}}\n", events.join(",\n"))
}
