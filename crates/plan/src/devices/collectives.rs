//! Collectives inline with the computation, for devices that have no core or link to overlap them with.

use crate::document::plan::{Plan, PlanStream};

/// Makes the computation wait for every collective. Without a free core and without slow links, another thread would only
/// take time from kernels.
pub fn take_turns(plan: &mut Plan) {
    let (mut last, mut open) = (None, Vec::new());
    for i in 0..plan.steps.len() {
        match plan.stream(&plan.steps[i].act) {
            Some(PlanStream::Exchange) => {
                wait_for(&mut plan.steps[i].after, last);
                open.push(i as u32);
            }
            Some(PlanStream::Compute) => {
                open.drain(..).for_each(|meet| wait_for(&mut plan.steps[i].after, Some(meet)));
                last = Some(i as u32);
            }
            _ => {}
        }
    }
}

fn wait_for(after: &mut Vec<u32>, step: Option<u32>) {
    if let Some(step) = step.filter(|step| !after.contains(step)) {
        after.push(step);
    }
}
