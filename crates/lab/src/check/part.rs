//! Where the time of a step goes, predicted and measured: seconds of all devices' kernels by family, and those in which
//! they compute nothing.

use gulliver_graph::graph::Graph;
use gulliver_graph::work::Work;
use gulliver_plan::document::plan::{Act, Plan, Stream};
use gulliver_plan::document::timeline::Span;
use gulliver_run::profile::trimmed_mean;
use serde::Serialize;
use std::collections::BTreeMap;

/// What a device does that computes nothing: it waits for others, or for what is moved.
const NOTHING: &str = "(waits)";
/// Before the first and after the last step of plans: inputs are fed, and results read.
const AROUND: &str = "(inputs and results)";

/// StepPart of a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepPart {
    /// The family of kernels.
    pub family: String,
    /// Seconds of a device in a step, on average over devices: predicted.
    pub predicted: f64,
    /// Those measured, as a rule.
    pub measured: f64,
}

/// What each step of the plans of all devices is part of, and what parts took in steps so far.
pub struct StepParts {
    families: Vec<String>,
    /// By device and step of its plan, the place among families.
    of: Vec<Vec<usize>>,
    /// By family, seconds in every step.
    measured: Vec<Vec<f64>>,
}

impl StepParts {
    /// Of these plans.
    pub fn of(plans: &[(&Graph, &Plan)]) -> StepParts {
        let mut known: BTreeMap<String, usize> = [(NOTHING.to_string(), 0), (AROUND.to_string(), 1)].into();
        let mut place = |family: String| {
            let new = known.len();
            *known.entry(family).or_insert(new)
        };
        let of = plans.iter().map(|(graph, plan)| {
            let steps = plan.steps.iter().map(|step| match &step.act {
                Act::Run { node, .. } => place(Work::of(graph, &graph.nodes[node.index()]).family),
                Act::Copy { .. } => place("(copies)".into()),
                Act::Add { .. } => place("(sums of partials)".into()),
                _ => 0,
            });
            steps.collect()
        });
        let of: Vec<Vec<usize>> = of.collect();
        let mut families = vec![String::new(); known.len()];
        known.into_iter().for_each(|(family, place)| families[place] = family);
        let measured = vec![Vec::new(); families.len()];
        StepParts { families, of, measured }
    }

    /// Seconds of every family in a step that took so long, on average over devices.
    fn sums(&self, spans: &[Span], seconds: f64) -> Vec<f64> {
        let mut sums = vec![0.0; self.families.len()];
        let each = 1.0 / self.of.len() as f64;
        for span in spans.iter().filter(|span| span.stream == Stream::Compute) {
            sums[self.of[span.device as usize][span.step as usize]] += each * (span.end - span.start);
        }
        let last = spans.iter().map(|span| span.end).fold(0.0, f64::max);
        sums[1] = seconds - last;
        sums[0] = last - sums[2..].iter().sum::<f64>();
        sums
    }

    /// Notes what was seen of a step that took so long.
    pub fn note(&mut self, spans: &[Span], seconds: f64) {
        let sums = self.sums(spans, seconds);
        self.measured.iter_mut().zip(sums).for_each(|(all, sum)| all.push(sum));
    }

    /// What they come to beside what was predicted, furthest apart first.
    pub fn compared(self, spans: &[Span], seconds: f64) -> Vec<StepPart> {
        let predicted = self.sums(spans, seconds);
        let parts = self.families.into_iter().zip(predicted).zip(self.measured);
        let part = |((family, predicted), measured): ((String, f64), Vec<f64>)| StepPart {
            family,
            predicted,
            measured: trimmed_mean(&measured).unwrap_or(0.0),
        };
        let mut parts: Vec<StepPart> = parts.map(part).collect();
        let apart = |part: &StepPart| (part.predicted - part.measured).abs();
        parts.sort_by(|a, b| apart(b).total_cmp(&apart(a)));
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gulliver::local::LocalDevice;
    use gulliver_graph::model::model;
    use gulliver_graph::optim::Optimizer;
    use gulliver_graph::training::training_graph;
    use gulliver_plan::devices::predict::predict;
    use gulliver_plan::devices::strategy::replicated;

    #[test]
    fn parts_of_a_step_add_up_to_it() {
        let optimizer = Optimizer::new("sgd", &[]).unwrap();
        let graph = training_graph(model("mlp", &[]).unwrap().as_ref(), &[optimizer], None).unwrap();
        let options = LocalDevice { threads: 1, partials: 2, ..LocalDevice::default() };
        let set = gulliver::local::device_set(&vec![options; 2]);
        let mut planners = replicated(&graph, None, &set).unwrap();
        let sizes = gulliver_graph::dim::Bindings::new().with("batch", 8);
        let foreseen = predict(&*set.for_each, &mut planners, &sizes).unwrap();
        let graphs =
            planners.iter().map(|planner| planner.graph(gulliver_plan::document::job::Purpose::Train));
        let mut parts = StepParts::of(&graphs.zip(&foreseen.plans).collect::<Vec<_>>());
        let (spans, seconds) = (&foreseen.together.spans, foreseen.together.seconds);
        // As if it had been measured to take as long as predicted, but for a millisecond around it.
        parts.note(spans, seconds + 1e-3);
        let parts = parts.compared(spans, seconds);
        let sum = |of: fn(&StepPart) -> f64| parts.iter().map(of).sum::<f64>();
        assert!((sum(|part| part.predicted) / seconds - 1.0).abs() < 1e-9);
        assert_eq!(parts[0].family, AROUND, "what is furthest apart comes first");
        assert!((parts[0].measured - parts[0].predicted - 1e-3).abs() < 1e-9);
        assert!(parts[1..].iter().all(|part| part.measured == part.predicted));
        assert!(parts.iter().any(|part| part.family.starts_with("contract") && part.predicted > 0.0));
    }
}
