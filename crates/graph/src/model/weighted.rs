//! A classifier whose examples do not all count the same.

use super::{Architecture, Built, Objective};
use crate::graph::build::Builder;
use crate::graph::{GraphError, GraphOutput};

/// Trains a classifier with the data `weight` `[batch]` beside `x` and `y`: the loss is the mean of each
/// example's cross entropy times its weight. Weights with a mean of one over the batch make it the weighted
/// mean over the batch, for any division of the batch into slices.
#[derive(Debug)]
pub struct Weighted(pub Box<dyn Architecture>);

/// The data `weight` of examples of these classes: the weight of the class over the mean weight of all the
/// examples, so that their mean is one. Zero for all if no example's class has a weight.
pub fn example_weights(class_weights: &[f32], classes: impl Iterator<Item = i64> + Clone) -> Vec<f32> {
    let weight = |class: i64| {
        let found = usize::try_from(class).ok().and_then(|class| class_weights.get(class));
        f64::from(found.copied().unwrap_or(1.0))
    };
    let (count, sum) =
        classes.clone().fold((0.0, 0.0), |(count, sum), class| (count + 1.0, sum + weight(class)));
    let scale = if sum > 0.0 { count / sum } else { 0.0 };
    classes.map(|class| (weight(class) * scale) as f32).collect()
}

impl Architecture for Weighted {
    fn objectives(&self) -> Vec<Objective> {
        self.0.objectives()
    }

    fn objective(&self, k: usize, g: &mut Builder) -> Result<Built, GraphError> {
        g.weigh_examples();
        self.0.objective(k, g)
    }

    fn forward(&self, g: &mut Builder) -> Result<Vec<GraphOutput>, GraphError> {
        self.0.forward(g)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_of_examples_have_a_mean_of_one() {
        let of = |classes: &[i64]| example_weights(&[1.0, 3.0, 0.0], classes.iter().copied());
        assert_eq!(of(&[0, 1, 0, 1]), [0.5, 1.5, 0.5, 1.5]);
        assert_eq!(of(&[1, 1]), [1.0, 1.0]);
        assert_eq!(of(&[2, 0]), [0.0, 2.0]);
        assert_eq!(of(&[2, 2]), [0.0, 0.0]);
        assert!(of(&[]).is_empty());
    }
}
