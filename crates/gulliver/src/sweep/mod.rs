//! Sweeps: many trainings of one job with different settings. `file` and `space` say what is tried, `search` what
//! is tried next, `run` and `array` train it as widely as `width` says, `store` remembers it, `drive` is the loop around
//! them and `report` shows it. Before that, `metric` checks what trials are compared by, and `plan` says what would be
//! trained together and how long it would take, from what `rehearse` measures and `forecast` adds up.

pub mod array;
pub mod drive;
pub mod file;
pub mod forecast;
pub mod metric;
pub mod plan;
mod rehearse;
pub mod report;
pub mod run;
pub mod search;
pub mod space;
pub mod store;
pub mod width;
