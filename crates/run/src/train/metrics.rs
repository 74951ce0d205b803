//! What an evaluation comes to: the names of its metrics, and their values from sums over batches.

use gulliver_graph::graph::Graph;
use std::collections::BTreeMap;

/// The metrics that evaluating this graph reports. `perplexity` says whether losses are per token, as in
/// [`super::TrainOptions`].
pub fn metric_names(evaluation: &Graph, perplexity: bool) -> Vec<String> {
    let scalars = evaluation.outputs.iter().filter(|(_, value)| evaluation.ty(*value).shape.is_empty());
    let sums = scalars.map(|(name, _)| (name.clone(), 1.0)).collect();
    summarise(&sums, 1.0, perplexity).into_keys().collect()
}

/// Metrics of a whole data set, from the sums of its batches: losses were weighted by what they count, `weight`
/// is the sum of these counts, and other scalars were added up.
pub(super) fn summarise(
    sums: &BTreeMap<String, f64>,
    weight: f64,
    perplexity: bool,
) -> BTreeMap<String, f64> {
    let mut metrics = BTreeMap::new();
    for (name, sum) in sums {
        if name.ends_with("loss") {
            metrics.insert(name.clone(), sum / weight);
        }
    }
    if let (Some(correct), Some(count)) = (sums.get("correct"), sums.get("count")) {
        metrics.insert("accuracy".into(), correct / count);
    }
    if let (Some(loss), true) = (metrics.get("loss").copied(), perplexity) {
        metrics.insert("perplexity".into(), loss.exp());
    }
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{DataOptions, open};
    use crate::session::{Session, SessionOptions};
    use crate::train::{Sources, TrainOptions, evaluate};
    use gulliver_graph::model::model;
    use gulliver_graph::optim::Optimizer;
    use gulliver_graph::training::{evaluation_graph, training_graph};

    #[test]
    fn the_names_are_those_that_an_evaluation_reports() {
        let sgd = Optimizer::new("sgd", &[]).unwrap();
        let digits = DataOptions { kind: "digits".into(), examples: Some(40), ..DataOptions::default() };
        for (name, perplexity, expected) in
            [("cnn", false, &["accuracy", "loss"][..]), ("cnn", true, &["accuracy", "loss", "perplexity"])]
        {
            let model = model(name, &[]).unwrap();
            let train = training_graph(model.as_ref(), std::slice::from_ref(&sgd), None).unwrap();
            let evaluation = evaluation_graph(model.as_ref()).unwrap();
            let names = metric_names(&evaluation, perplexity);
            for name in expected {
                assert!(names.iter().any(|n| n == name), "{names:?}");
            }
            let sources = Sources::new(open(&digits).unwrap(), 4, 0).unwrap();
            let (set, sampler) = sources.validation.as_ref().unwrap();
            let mut session = Session::new(train, Some(evaluation), SessionOptions::default(), 0).unwrap();
            let options = TrainOptions { perplexity, ..TrainOptions::default() };
            let batches = sampler.steps_per_epoch();
            let metrics = evaluate(&mut session, set, sampler, batches, &options, &mut |_, _| true).unwrap();
            assert_eq!(names, metrics.unwrap().into_keys().collect::<Vec<_>>());
        }
        let dcgan = evaluation_graph(model("dcgan", &[]).unwrap().as_ref()).unwrap();
        let names = metric_names(&dcgan, false);
        assert!(names.len() > 1 && names.iter().all(|name| name.ends_with("loss")), "{names:?}");
    }
}
