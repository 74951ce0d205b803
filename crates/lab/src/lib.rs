//! Maintainers' measurements, apart from the product: benchmarks, checks of predictions, comparisons with
//! published figures. Nothing depends on this crate but tests.
#![forbid(unsafe_code)]
