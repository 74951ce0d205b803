//! Learning-rate schedules: pure functions from the step (counted from zero) to a rate, with an optional
//! linear warm-up before any of them. Only the plateau schedule remembers, in a state that serialises.

use crate::graph::GraphError;
use crate::hyper::range;
use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

/// How the rate moves after the warm-up; `t` counts steps from its end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LrCurve {
    /// The base rate.
    Constant,
    /// Times `gamma` every `every` steps.
    Step {
        /// Steps between two drops.
        every: u64,
        /// Factor of a drop.
        gamma: f64,
    },
    /// Times `gamma` at each milestone.
    MultiStep {
        /// Steps at which the rate drops.
        milestones: Vec<u64>,
        /// Factor of a drop.
        gamma: f64,
    },
    /// Times `gamma` every step.
    Exponential {
        /// Factor of a step.
        gamma: f64,
    },
    /// Half a cosine from the base rate down to `min_lr` at the end.
    Cosine {
        /// The last rate.
        min_lr: f64,
    },
    /// Cosines from `base/div` up to the base rate and down to `base/div/final_div` in the last step.
    OneCycle {
        /// The share of all steps spent going up.
        rise: f64,
        /// Base rate over first rate.
        div: f64,
        /// First rate over last rate.
        final_div: f64,
    },
    /// Times `factor` when the observed metric stops falling.
    Plateau {
        /// Factor of a drop.
        factor: f64,
        /// Observations without improvement before a drop.
        patience: u64,
        /// Relative fall that counts as improvement.
        threshold: f64,
        /// Observations after a drop that do not count.
        cooldown: u64,
        /// The smallest rate.
        min_lr: f64,
    },
}

/// The state of the plateau schedule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PlateauState {
    /// The smallest metric that counted as improvement.
    pub best: Option<f64>,
    /// Observations since then.
    pub stale: u64,
    /// Observations that still do not count.
    pub cooldown: u64,
    /// Number of reductions of the rate.
    pub drops: u32,
}

/// A schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LrSchedule {
    /// Steps over which the rate grows linearly to the base rate, which the last of them reaches.
    pub warmup: u64,
    /// The curve after the warm-up.
    pub curve: LrCurve,
    /// Empty unless the curve is a plateau.
    #[serde(default)]
    pub state: PlateauState,
}

/// One schedule a user can name.
pub struct LrScheduleRow {
    /// The name in job files.
    pub name: &'static str,
    /// One line for people.
    pub help: &'static str,
    /// Numbers it takes, with defaults.
    pub params: &'static [(&'static str, f64)],
    make: fn(Params, &[u64]) -> LrCurve,
}

/// The value of a parameter.
type Params<'a> = &'a dyn Fn(&str) -> f64;

/// The schedule that also takes a list of milestones.
pub const MULTI_STEP: &str = "multi-step";

/// The schedule that is nothing without a warm-up.
pub const LINEAR_WARMUP: &str = "linear-warmup";

/// Every schedule.
pub const SCHEDULES: &[LrScheduleRow] = &[
    LrScheduleRow { name: "constant", help: "the base rate", params: &[], make: |_, _| LrCurve::Constant },
    LrScheduleRow {
        name: "step",
        help: "times gamma after every `every` steps",
        params: &[("every", 1000.0), ("gamma", 0.1)],
        make: |p, _| LrCurve::Step { every: p("every") as u64, gamma: p("gamma") },
    },
    LrScheduleRow {
        name: MULTI_STEP,
        help: "times gamma at each milestone",
        params: &[("gamma", 0.1)],
        make: |p, milestones| LrCurve::MultiStep { milestones: milestones.to_vec(), gamma: p("gamma") },
    },
    LrScheduleRow {
        name: "exponential",
        help: "times gamma every step",
        params: &[("gamma", 0.999)],
        make: |p, _| LrCurve::Exponential { gamma: p("gamma") },
    },
    LrScheduleRow {
        name: "cosine",
        help: "half a cosine down to min_lr",
        params: &[("min_lr", 0.0)],
        make: |p, _| LrCurve::Cosine { min_lr: p("min_lr") },
    },
    LrScheduleRow {
        name: LINEAR_WARMUP,
        help: "the base rate after a warm-up, which it needs",
        params: &[],
        make: |_, _| LrCurve::Constant,
    },
    LrScheduleRow {
        name: "one-cycle",
        help: "up to the base rate and far down again, along cosines",
        params: &[("rise", 0.3), ("div", 25.0), ("final_div", 1e4)],
        make: |p, _| LrCurve::OneCycle { rise: p("rise"), div: p("div"), final_div: p("final_div") },
    },
    LrScheduleRow {
        name: "reduce-on-plateau",
        help: "times factor when the observed metric stops falling",
        params: &[
            ("factor", 0.1),
            ("patience", 10.0),
            ("threshold", 1e-4),
            ("cooldown", 0.0),
            ("min_lr", 0.0),
        ],
        make: |p, _| LrCurve::Plateau {
            factor: p("factor"),
            patience: p("patience") as u64,
            threshold: p("threshold"),
            cooldown: p("cooldown") as u64,
            min_lr: p("min_lr"),
        },
    },
];

impl LrSchedule {
    /// The base rate from the first step to the last.
    pub fn constant() -> LrSchedule {
        LrSchedule { warmup: 0, curve: LrCurve::Constant, state: PlateauState::default() }
    }

    /// The schedule of a row of [`SCHEDULES`]; `params` override its defaults.
    pub fn new(
        name: &str,
        params: &[(&str, f64)],
        milestones: &[u64],
        warmup: u64,
    ) -> Result<LrSchedule, GraphError> {
        let fail = |why: String| Err(GraphError::Model(why));
        let Some(row) = SCHEDULES.iter().find(|r| r.name == name) else {
            let all = SCHEDULES.iter().map(|r| r.name).collect::<Vec<_>>().join(", ");
            return fail(format!("no schedule `{name}`; there are {all}"));
        };
        for (param, value) in params {
            if !row.params.iter().any(|(p, _)| p == param) {
                let all = row.params.iter().map(|p| p.0).collect::<Vec<_>>().join(", ");
                let has = if all.is_empty() { "it has none".into() } else { format!("it has {all}") };
                return fail(format!("schedule {name} has no parameter `{param}`; {has}"));
            }
            if !range(param).contains(*value) {
                let allowed = range(param).allowed;
                return fail(format!("schedule {name}: {param} must be {allowed}, not {value}"));
            }
        }
        if (name == MULTI_STEP) == milestones.is_empty() {
            return fail(format!("milestones belong to the schedule {MULTI_STEP}, which needs at least one"));
        }
        if !milestones.is_sorted_by(|a, b| a < b) {
            return fail(format!("the milestones of schedule {name} must increase"));
        }
        if name == LINEAR_WARMUP && warmup == 0 {
            return fail(format!("schedule {name} needs a warmup of at least 1 step"));
        }
        let value = |param: &str| {
            let default = row.params.iter().find(|p| p.0 == param).map_or(0.0, |p| p.1);
            params.iter().rev().find(|p| p.0 == param).map_or(default, |p| p.1)
        };
        Ok(LrSchedule { warmup, curve: (row.make)(&value, milestones), state: PlateauState::default() })
    }

    /// The rate in a step of a run of `total` steps. Later steps keep the last rate of the curves that
    /// have an end.
    pub fn lr(&self, base: f64, step: u64, total: u64) -> f64 {
        if step < self.warmup {
            return base * (step + 1) as f64 / self.warmup as f64;
        }
        let (t, total) = (step - self.warmup, total.saturating_sub(self.warmup));
        match &self.curve {
            LrCurve::Constant => base,
            LrCurve::Step { every, gamma } => base * power(*gamma, t / (*every).max(1)),
            LrCurve::MultiStep { milestones, gamma } => {
                base * power(*gamma, milestones.iter().filter(|&&m| m <= t).count() as u64)
            }
            LrCurve::Exponential { gamma } => base * power(*gamma, t),
            LrCurve::Cosine { min_lr } => anneal(base, *min_lr, t as f64 / total.max(1) as f64),
            LrCurve::OneCycle { rise, div, final_div } => {
                let first = base / div;
                let (top, end) = (rise * total as f64 - 1.0, total as f64 - 1.0);
                let t = t as f64;
                if top > 0.0 && t <= top {
                    return anneal(first, base, t / top);
                }
                let top = top.max(0.0);
                anneal(base, first / final_div, if end > top { (t - top) / (end - top) } else { 1.0 })
            }
            LrCurve::Plateau { factor, min_lr, .. } => {
                let reduced = base * power(*factor, u64::from(self.state.drops));
                if self.state.drops == 0 { base } else { reduced.max(min_lr.min(base)) }
            }
        }
    }

    /// Tells the plateau schedule the metric of an evaluation, smaller being better; others ignore it.
    pub fn observe(&mut self, metric: f64) {
        let LrCurve::Plateau { patience, threshold, cooldown, .. } = self.curve else { return };
        let state = &mut self.state;
        // A NaN is never better.
        let better = state.best.map_or(!metric.is_nan(), |best| metric < best - threshold * best.abs());
        if better {
            state.best = Some(metric);
            state.stale = 0;
        } else {
            state.stale += 1;
        }
        if state.cooldown > 0 {
            state.cooldown -= 1;
            state.stale = 0;
        }
        if state.stale > patience {
            state.drops += 1;
            state.cooldown = cooldown;
            state.stale = 0;
        }
    }
}

/// Half a cosine between two rates; `share` runs from 0 to 1 and stays there.
fn anneal(from: f64, to: f64, share: f64) -> f64 {
    to + (from - to) * (1.0 + (PI * share.clamp(0.0, 1.0)).cos()) / 2.0
}

/// A whole power by repeated squaring, which gives the same bits on every machine.
fn power(mut x: f64, mut n: u64) -> f64 {
    let mut product = 1.0;
    while n > 0 {
        if n % 2 == 1 {
            product *= x;
        }
        x *= x;
        n /= 2;
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(schedule: &LrSchedule, total: u64) -> Vec<f64> {
        (0..total).map(|step| schedule.lr(0.1, step, total)).collect()
    }

    fn assert_close(got: &[f64], expected: &[f64]) {
        let close =
            got.len() == expected.len() && got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12);
        assert!(close, "{got:?}, expected {expected:?}");
    }

    #[test]
    fn curves_match_hand_computed_rates() {
        let new = |name, params: &[(&str, f64)], milestones: &[u64]| {
            LrSchedule::new(name, params, milestones, 0).unwrap()
        };
        assert_close(&rates(&new("constant", &[], &[]), 3), &[0.1, 0.1, 0.1]);
        assert_close(
            &rates(&new("step", &[("every", 2.0), ("gamma", 0.5)], &[]), 5),
            &[0.1, 0.1, 0.05, 0.05, 0.025],
        );
        assert_close(
            &rates(&new("multi-step", &[("gamma", 0.1)], &[1, 3]), 5),
            &[0.1, 0.01, 0.01, 0.001, 0.001],
        );
        assert_close(&rates(&new("exponential", &[("gamma", 0.5)], &[]), 4), &[0.1, 0.05, 0.025, 0.0125]);
        // torch.optim.lr_scheduler.CosineAnnealingLR(T_max=8, eta_min=0.01)
        let cosine = new("cosine", &[("min_lr", 0.01)], &[]);
        assert_close(
            &rates(&cosine, 8),
            &[
                0.1,
                0.0965745789630079,
                0.08681980515339463,
                0.07222075445642905,
                0.055,
                0.03777924554357096,
                0.023180194846605363,
                0.013425421036992097,
            ],
        );
        assert_close(&[cosine.lr(0.1, 8, 8), cosine.lr(0.1, 50, 8)], &[0.01, 0.01]);
        // torch.optim.lr_scheduler.OneCycleLR(max_lr=0.1, total_steps=10)
        assert_close(
            &rates(&new("one-cycle", &[], &[]), 10),
            &[
                0.004,
                0.052,
                0.1,
                0.09504846320134738,
                0.0811745653949763,
                0.06112620219362893,
                0.03887419780637107,
                0.0188258346050237,
                0.004951936798652629,
                4e-7,
            ],
        );
    }

    #[test]
    fn warmup_precedes_every_curve() {
        for row in SCHEDULES {
            let milestones: &[u64] = if row.name == MULTI_STEP { &[3] } else { &[] };
            let warm = LrSchedule::new(row.name, &[], milestones, 4).unwrap();
            let plain = LrSchedule { warmup: 0, ..warm.clone() };
            assert_close(&rates(&warm, 12)[..4], &[0.025, 0.05, 0.075, 0.1]);
            assert_close(&rates(&warm, 12)[4..], &rates(&plain, 8));
            for total in [0, 1, 2, 3] {
                assert!(rates(&plain, total).iter().all(|r| r.is_finite() && *r >= 0.0), "{}", row.name);
                assert!(plain.lr(0.1, 5, total).is_finite(), "{}", row.name);
            }
        }
    }

    #[test]
    fn plateau_reduces_like_pytorch_and_survives_its_text_form() {
        // torch.optim.lr_scheduler.ReduceLROnPlateau with the same settings and metrics.
        let params =
            [("factor", 0.5), ("patience", 1.0), ("cooldown", 1.0), ("threshold", 0.01), ("min_lr", 0.02)];
        let metrics = [1.0, 0.9, 0.895, 0.9, 0.9, 0.9, 0.9, 0.5, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6];
        let expected =
            [0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.025, 0.025, 0.025, 0.02, 0.02, 0.02, 0.02, 0.02, 0.02];
        let mut schedule = LrSchedule::new("reduce-on-plateau", &params, &[], 0).unwrap();
        for (metric, expected) in metrics.into_iter().zip(expected) {
            schedule.observe(metric);
            let text = serde_json::to_string(&schedule).unwrap();
            schedule = serde_json::from_str(&text).unwrap();
            assert_close(&[schedule.lr(0.1, 7, 100)], &[expected]);
        }
        schedule.observe(f64::NAN);
        assert_eq!(schedule.state.best, Some(0.5));
    }

    #[test]
    fn mistakes_name_what_there_is() {
        let error = |name, params: &[(&str, f64)], milestones: &[u64]| {
            LrSchedule::new(name, params, milestones, 0).unwrap_err().to_string()
        };
        assert!(error("linear", &[], &[]).starts_with("no schedule `linear`; there are constant, step"));
        assert!(error("cosine", &[("gamma", 0.1)], &[]).ends_with("it has min_lr"));
        assert!(
            error("step", &[("gamma", f64::NAN)], &[]).ends_with("gamma must be a number above 0, not NaN")
        );
        assert!(error("multi-step", &[], &[]).contains("at least one"));
        assert!(error("cosine", &[], &[3]).contains("multi-step"));
        assert!(error("multi-step", &[], &[3, 3]).ends_with("must increase"));
        assert!(error("linear-warmup", &[], &[]).contains("warmup of at least 1"));
        assert!(
            error("step", &[("every", 0.5)], &[]).ends_with("must be a whole number of at least 1, not 0.5")
        );
    }
}
