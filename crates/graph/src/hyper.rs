//! The range of each hyper-parameter of an optimizer or schedule, by its name: a name means the same in every row.
//! Defaults are in the rows.

/// The values that make sense.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// The allowed values, for messages: "a number above 0".
    pub allowed: &'static str,
    /// Only whole numbers.
    pub whole: bool,
    test: fn(f64) -> bool,
}

impl Range {
    /// Whether `x` is finite, in the range and whole if need be.
    pub fn contains(&self, x: f64) -> bool {
        x.is_finite() && (self.test)(x) && (!self.whole || (x.fract() == 0.0 && x <= LARGEST_WHOLE))
    }
}

/// Whole numbers up to here are exact.
const LARGEST_WHOLE: f64 = (1u64 << 53) as f64;

const fn real(allowed: &'static str, test: fn(f64) -> bool) -> Range {
    Range { allowed, whole: false, test }
}

const fn whole(allowed: &'static str, test: fn(f64) -> bool) -> Range {
    Range { allowed, whole: true, test }
}

/// Every finite number.
pub const ANY: Range = real("a finite number", |_| true);
/// Above zero.
pub const POSITIVE: Range = real("a number above 0", |x| x > 0.0);
/// Zero or above.
pub const NOT_NEGATIVE: Range = real("a number of at least 0", |x| x >= 0.0);
/// At least one.
pub const AT_LEAST_ONE: Range = real("a number of at least 1", |x| x >= 1.0);
/// From zero to below one.
pub const BELOW_ONE: Range = real("a number from 0 to below 1", |x| (0.0..1.0).contains(&x));
/// From zero to one.
pub const UP_TO_ONE: Range = real("a number from 0 to 1", |x| (0.0..=1.0).contains(&x));
/// Between zero and one.
pub const INSIDE_ONE: Range = real("a number above 0 and below 1", |x| x > 0.0 && x < 1.0);
/// A count that may be nothing.
pub const COUNT: Range = whole("a whole number of at least 0", |x| x >= 0.0);
/// A count of at least one.
pub const COUNT_FROM_ONE: Range = whole("a whole number of at least 1", |x| x >= 1.0);

/// The range of the hyper-parameter of this name.
pub fn range(name: &str) -> Range {
    match name {
        "lr" | "eps" | "gamma" => POSITIVE,
        "weight_decay" | "lr_decay" | "threshold" | "min_lr" => NOT_NEGATIVE,
        "momentum" | "beta1" | "beta2" | "rho" | "alpha" => BELOW_ONE,
        "dampening" | "rise" => UP_TO_ONE,
        "factor" => INSIDE_ONE,
        "div" | "final_div" => AT_LEAST_ONE,
        "patience" | "cooldown" => COUNT,
        "every" => COUNT_FROM_ONE,
        _ => ANY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lr::SCHEDULES;
    use crate::optim::OPTIMIZERS;

    #[test]
    fn every_hyper_parameter_has_a_range_that_holds_its_default() {
        let optimizers = OPTIMIZERS.iter().flat_map(|row| row.hypers);
        let defaults = optimizers.map(|(name, default)| (*name, f64::from(*default)));
        for (name, default) in defaults.chain(SCHEDULES.iter().flat_map(|row| row.params.iter().copied())) {
            assert!(range(name).contains(default) && range(name).allowed != ANY.allowed, "{name}");
        }
    }

    #[test]
    fn ranges_hold_what_they_say() {
        for (range, inside, outside) in [
            (POSITIVE, 1e-9, 0.0),
            (NOT_NEGATIVE, 0.0, -1e-9),
            (NOT_NEGATIVE, 3.0, f64::INFINITY),
            (AT_LEAST_ONE, 1.0, 0.99),
            (BELOW_ONE, 0.0, 1.0),
            (UP_TO_ONE, 1.0, 1.01),
            (INSIDE_ONE, 0.5, 0.0),
            (COUNT, 0.0, 0.5),
            (COUNT_FROM_ONE, 7.0, 0.0),
            (COUNT_FROM_ONE, 1.0, 1e300),
            (POSITIVE, 1.0, f64::NAN),
        ] {
            assert!(range.contains(inside), "{} {inside}", range.allowed);
            assert!(!range.contains(outside), "{} {outside}", range.allowed);
        }
    }
}
