//! Maintainers' measurements, apart from the product: benchmarks, checks of predictions, comparisons with
//! published figures. No other crate depends on this one, except for tests.
#![forbid(unsafe_code)]

pub mod accuracy;
pub mod bench;
pub mod check;
pub mod comparator;
pub mod error;
pub mod refine;
pub mod traffic;
pub mod validate;
pub mod workload;
