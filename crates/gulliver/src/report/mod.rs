//! What a run tells people and programs: events, the terminal, metric files, tables and units.

pub mod confusion;
pub mod events;
pub mod metrics;
pub mod planning;
pub mod progress;
pub mod table;
pub mod tensorboard;
