//! The real program, end to end: the same bits however a run is cut, interrupted or threaded; events
//! that programs can rely on; and errors in one line whatever is wrong.

mod bits;
mod budgets;
mod damage;
mod devices;
mod errors;
mod events;
mod files;
mod finite;
mod lose_nothing;
mod memory;
mod process;
mod profile;
mod resume;
mod reuse;
mod signals;
mod sweep;
