//! Clouds of points on the surfaces of solids, turned and scaled at random.

use gulliver_graph::random::sin_cos_turn;

use super::generated::{Draw, Generator};
use crate::data::DataInfo;

/// Names of the solids in the order of their class ids.
pub const SOLIDS: [&str; 8] = ["sphere", "cube", "cylinder", "cone", "torus", "pyramid", "disc", "helix"];

/// Point clouds: x `[b, 3, points]`.
pub struct Points {
    /// Points per cloud.
    pub points: usize,
}

impl Generator for Points {
    fn example(&self, seed: u64, number: u64, x: &mut Vec<f32>) -> u32 {
        let mut draw = Draw::new(seed, "data.points", number);
        let solid = draw.below(SOLIDS.len());
        let scale = [0; 3].map(|_| draw.range(0.7, 1.1));
        let (sine, cosine) = sin_cos_turn(draw.range(0.0, 1.0).into());
        let (sine, cosine) = (sine as f32, cosine as f32);
        let start = x.len();
        x.resize(start + 3 * self.points, 0.0);
        for n in start..start + self.points {
            let [a, b, c] = surface(&mut draw, solid);
            let [a, b, c] = [a * scale[0], b * scale[1], c * scale[2]];
            let turned = [cosine * a - sine * b, sine * a + cosine * b, c];
            for (axis, v) in turned.into_iter().enumerate() {
                x[n + axis * self.points] = v + 0.02 * draw.normal();
            }
        }
        solid as u32
    }

    fn describe(&self) -> DataInfo {
        DataInfo {
            classes: Some(SOLIDS.len()),
            shape: vec![3, self.points],
            class_names: SOLIDS.map(String::from).to_vec(),
            ..DataInfo::default()
        }
    }
}

/// A random point on a solid that fills -1..1.
fn surface(draw: &mut Draw, solid: usize) -> [f32; 3] {
    let turn: f64 = draw.range(0.0, 1.0).into();
    let circle = sin_cos_turn(turn);
    let (sine, cosine) = (circle.0 as f32, circle.1 as f32);
    let height = draw.range(-1.0, 1.0);
    match SOLIDS[solid] {
        "sphere" => {
            let radius = (1.0 - height * height).sqrt();
            [radius * cosine, radius * sine, height]
        }
        "cube" => {
            let mut point = [height, draw.range(-1.0, 1.0), if turn < 0.5 { -1.0 } else { 1.0 }];
            point.rotate_left(draw.below(3));
            point
        }
        "cylinder" => [cosine, sine, height],
        "cone" => {
            // Area grows with the distance from the tip.
            let radius = ((height + 1.0) / 2.0).sqrt();
            [radius * cosine, radius * sine, 1.0 - 2.0 * radius]
        }
        "torus" => {
            let around = sin_cos_turn(f64::from(height));
            let radius = 0.7 + 0.3 * around.1 as f32;
            [radius * cosine, radius * sine, 0.3 * around.0 as f32]
        }
        "pyramid" => {
            let radius = ((height + 1.0) / 2.0).sqrt();
            let along = draw.range(-1.0, 1.0);
            let side = if turn < 0.5 { -1.0 } else { 1.0 };
            let (x, y) = if draw.below(2) == 0 { (side, along) } else { (along, side) };
            [radius * x, radius * y, 1.0 - 2.0 * radius]
        }
        "disc" => {
            let radius = ((height + 1.0) / 2.0).sqrt();
            [radius * cosine, radius * sine, 0.0]
        }
        _ => {
            let around = sin_cos_turn(f64::from(height) * 1.5);
            [around.1 as f32, around.0 as f32, height]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Dataset;
    use crate::data::builtin::generated::Generated;

    #[test]
    fn clouds_are_bounded_repeatable_and_cover_all_solids() {
        let set = Generated { seed: 2, first: 0, examples: 100, generator: Points { points: 64 } };
        let all: Vec<usize> = (0..100).collect();
        let b = set.batch(&all).unwrap();
        let x = b.get("x").unwrap().as_f32().unwrap();
        assert!(x.iter().all(|v| v.abs() < 1.8));
        let y = b.get("y").unwrap().as_i64().unwrap();
        assert!((0..8).all(|solid| y.contains(&solid)));
        assert_eq!(b.get("x").unwrap().shape(), [100, 3, 64]);
        assert_eq!(set.batch(&[9]).unwrap().get("x").unwrap().as_f32().unwrap(), &x[9 * 192..10 * 192]);
    }
}
