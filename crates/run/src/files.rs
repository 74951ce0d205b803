//! Files that survive crashes and are shared safely between processes.

pub mod atomic;
pub mod lock;
