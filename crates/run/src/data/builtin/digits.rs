//! Drawn digits: strokes with random shift, scale, turn, slant, wobble, thickness and noise. Only + - * / and square
//! roots are used, so every machine draws the same pixels.

use super::generated::{Draw, Generator};
use crate::data::DataInfo;

/// Approximate mean and deviation of the pixels, used for normalising.
const MEAN: f32 = 0.25;
const STD: f32 = 0.3;

/// Corners of the stroke of each digit; x to the right, y down, both from -1 to 1.
#[rustfmt::skip]
const STROKES: [&[(f32, f32)]; 10] = [
    &[(0.0, -1.0), (0.45, -0.85), (0.62, -0.4), (0.62, 0.4), (0.45, 0.85), (0.0, 1.0), (-0.45, 0.85), (-0.62, 0.4),
      (-0.62, -0.4), (-0.45, -0.85), (0.0, -1.0)],
    &[(-0.35, -0.6), (0.05, -1.0), (0.05, 1.0)],
    &[(-0.55, -0.6), (-0.35, -0.93), (0.0, -1.0), (0.4, -0.9), (0.55, -0.55), (0.4, -0.1), (-0.6, 1.0), (0.6, 1.0)],
    &[(-0.5, -0.8), (-0.1, -1.0), (0.35, -0.9), (0.5, -0.5), (0.3, -0.12), (-0.1, 0.0), (0.35, 0.1), (0.6, 0.5),
      (0.35, 0.9), (-0.1, 1.0), (-0.55, 0.8)],
    &[(0.35, 1.0), (0.35, -1.0), (-0.6, 0.4), (0.65, 0.4)],
    &[(0.5, -1.0), (-0.45, -1.0), (-0.5, -0.1), (0.0, -0.25), (0.45, -0.05), (0.6, 0.4), (0.4, 0.85), (0.0, 1.0),
      (-0.55, 0.8)],
    &[(0.4, -0.95), (-0.1, -0.7), (-0.5, 0.0), (-0.55, 0.5), (-0.35, 0.9), (0.05, 1.0), (0.45, 0.85), (0.55, 0.45),
      (0.35, 0.1), (0.0, 0.0), (-0.4, 0.2), (-0.55, 0.5)],
    &[(-0.55, -1.0), (0.6, -1.0), (-0.1, 1.0)],
    &[(0.0, -0.05), (-0.4, -0.3), (-0.45, -0.65), (-0.25, -0.95), (0.25, -0.95), (0.45, -0.65), (0.4, -0.3),
      (0.0, -0.05), (-0.5, 0.3), (-0.55, 0.7), (-0.25, 1.0), (0.25, 1.0), (0.55, 0.7), (0.5, 0.3), (0.0, -0.05)],
    &[(-0.4, 0.95), (0.1, 0.7), (0.5, 0.0), (0.55, -0.5), (0.35, -0.9), (-0.05, -1.0), (-0.45, -0.85),
      (-0.55, -0.45), (-0.35, -0.1), (0.0, 0.0), (0.4, -0.2), (0.55, -0.5)],
];

/// Images of digits: x `[b, 1, rows, columns]`.
#[derive(Clone, Copy)]
pub struct Digits {
    /// Rows and columns.
    pub size: [usize; 2],
    /// Shifts and scales pixels from 0..1 to about mean 0 and deviation 1.
    pub normalise: bool,
}

impl Generator for Digits {
    fn example(&self, seed: u64, number: u64, x: &mut Vec<f32>) -> u32 {
        let mut draw = Draw::new(seed, "data.digits", number);
        let digit = draw.below(10);
        let stroke = transformed(&mut draw, STROKES[digit]);
        let segments: Vec<Segment> = stroke.windows(2).map(|ends| Segment::new(ends[0], ends[1])).collect();
        let thickness = draw.range(0.09, 0.2);
        let contrast = draw.range(0.5, 1.0);
        let noise = draw.range(0.05, 0.2);
        let background = draw.range(0.0, 0.25);
        let [rows, columns] = self.size;
        let pixel = 2.0 / rows.min(columns) as f32;
        // The digit fills the shorter side and is in the middle of the longer one.
        let middle = |side: usize| if side == rows.min(columns) { 1.0 } else { side as f32 * pixel / 2.0 };
        for row in 0..rows {
            for column in 0..columns {
                let at = |i: usize, side: usize| (i as f32 + 0.5) * pixel - middle(side);
                let at = (at(column, columns), at(row, rows));
                let nearest = segments.iter().map(|s| s.squared_distance(at)).fold(f32::MAX, f32::min);
                // One pixel of soft edge.
                let ink = ((thickness - nearest.sqrt()) / pixel + 0.5).clamp(0.0, 1.0);
                let grey = background + (contrast - background) * ink + noise * draw.normal();
                let grey = grey.clamp(0.0, 1.0);
                x.push(if self.normalise { (grey - MEAN) / STD } else { grey });
            }
        }
        digit as u32
    }

    fn describe(&self) -> DataInfo {
        let (mean, std) = if self.normalise { (vec![MEAN], vec![STD]) } else { (vec![], vec![]) };
        DataInfo {
            classes: Some(10),
            shape: vec![1, self.size[0], self.size[1]],
            class_names: (0..10).map(|digit| digit.to_string()).collect(),
            mean,
            std,
            ..DataInfo::default()
        }
    }
}

/// The stroke as this example has it, in image coordinates from -1 to 1.
fn transformed(draw: &mut Draw, stroke: &[(f32, f32)]) -> Vec<(f32, f32)> {
    let scale = draw.range(0.5, 0.8);
    let stretch = draw.range(0.75, 1.25);
    let slant = draw.range(-0.35, 0.35);
    // Half the angle's tangent: sine and cosine follow without trigonometry.
    let t = draw.range(-0.16, 0.16);
    let (sine, cosine) = (2.0 * t / (1.0 + t * t), (1.0 - t * t) / (1.0 + t * t));
    let (right, down) = (draw.range(-0.2, 0.2), draw.range(-0.15, 0.15));
    let mut place = |&(x, y): &(f32, f32)| {
        let (x, y) = (x + 0.06 * draw.normal(), y + 0.06 * draw.normal());
        let (x, y) = (scale * stretch * (x - slant * y), scale * y);
        (cosine * x - sine * y + right, sine * x + cosine * y + down)
    };
    stroke.iter().map(&mut place).collect()
}

struct Segment {
    start: (f32, f32),
    step: (f32, f32),
    /// One over the squared length.
    inverse: f32,
}

impl Segment {
    fn new(start: (f32, f32), end: (f32, f32)) -> Segment {
        let step = (end.0 - start.0, end.1 - start.1);
        let squared = step.0 * step.0 + step.1 * step.1;
        Segment { start, step, inverse: 1.0 / squared.max(1e-12) }
    }

    fn squared_distance(&self, point: (f32, f32)) -> f32 {
        let (x, y) = (point.0 - self.start.0, point.1 - self.start.1);
        let along = ((x * self.step.0 + y * self.step.1) * self.inverse).clamp(0.0, 1.0);
        let (x, y) = (x - along * self.step.0, y - along * self.step.1);
        x * x + y * y
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Dataset;
    use crate::data::builtin::generated::Generated;

    #[test]
    fn digits_are_repeatable_balanced_and_normalised() {
        let digits = Digits { size: [16, 16], normalise: true };
        let set = Generated { seed: 4, first: 0, examples: 500, generator: digits };
        let all: Vec<usize> = (0..500).collect();
        let b = set.batch(&all).unwrap();
        let y = b.get("y").unwrap().as_i64().unwrap();
        for digit in 0..10 {
            assert!((25..80).contains(&y.iter().filter(|&&d| d == digit).count()), "{digit}");
        }
        let x = b.get("x").unwrap().as_f32().unwrap();
        let mean = x.iter().sum::<f32>() / x.len() as f32;
        let deviation = (x.iter().map(|v| (v - mean) * (v - mean)).sum::<f32>() / x.len() as f32).sqrt();
        assert!(mean.abs() < 0.2 && (deviation - 1.0).abs() < 0.25, "{mean} {deviation}");
        assert_eq!(set.batch(&[77]).unwrap().get("x").unwrap().as_f32().unwrap(), &x[77 * 256..78 * 256]);
        let wide = Generated { generator: Digits { size: [16, 24], ..digits }, ..set }.batch(&[77]).unwrap();
        assert_eq!(wide.get("x").unwrap().shape(), [1, 1, 16, 24]);
        let later = Generated { first: 77, ..set };
        assert_eq!(later.batch(&[0]).unwrap().get("x").unwrap().as_f32().unwrap(), &x[77 * 256..78 * 256]);
    }
}
