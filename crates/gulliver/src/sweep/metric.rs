//! Checks, before anything is trained, that the jobs of a sweep report its metric.

use super::file::Sweep;
use crate::error::{JobError, one_line};
use crate::setup::{Prepared, open_data, prepare};
use gulliver_graph::nearest::suggestion;
use gulliver_run::train::metric_names;

/// Most points whose jobs are examined.
const LOOKED_AT: u64 = 8;

/// Refuses a metric that no examined job reports, and jobs with early stopping. A job that cannot be prepared is
/// skipped: it will be a trial that fails.
pub fn check_metric(sweep: &Sweep) -> Result<(), JobError> {
    let mut problem = None;
    for point in sweep.samples(LOOKED_AT) {
        let Ok(job) = sweep.job(&point, 0) else { continue };
        if job.train.early_stopping > 0 {
            let problem = "a sweep itself says which trials go on; leave it away, or set it to 0 in `set`";
            return Err(job.error("train.early_stopping", problem));
        }
        let prepared = open_data(&job).and_then(|data| prepare(&job, data, None));
        let Ok(Prepared { graphs, sources, options, .. }) = prepared else { continue };
        let found = match sources.validation {
            Some(_) => metric_problem(&sweep.metric, &metric_names(&graphs.evaluation, options.perplexity)),
            None => Some(
                "the job has no validation data to compare trials by; set data.validation or folds".into(),
            ),
        };
        match found {
            Some(found) => problem = problem.or(Some(found)),
            None => return Ok(()),
        }
    }
    problem.map_or(Ok(()), |problem| Err(sweep.metric_error(problem)))
}

/// The error for a metric that a job with metrics `names` does not report.
fn metric_problem(metric: &str, names: &[String]) -> Option<String> {
    if names.iter().any(|name| name == metric) {
        return None;
    }
    let all = names.join(", ");
    let hint = suggestion(metric, names.iter().map(String::as_str), "");
    let hint = if hint.contains('`') { hint } else { String::new() };
    Some(format!("the job reports no `{}`, only {all}{hint}", one_line(metric)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_metrics_are_answered_with_those_there_are() {
        let names = ["accuracy".to_string(), "loss".to_string()];
        assert_eq!(metric_problem("loss", &names), None);
        assert_eq!(
            metric_problem("acuracy", &names).unwrap(),
            "the job reports no `acuracy`, only accuracy, loss; did you mean `accuracy`?"
        );
        assert_eq!(metric_problem("f1", &names).unwrap(), "the job reports no `f1`, only accuracy, loss");
        assert!(metric_problem(&"x".repeat(5000), &names).unwrap().len() < 200);
    }
}
