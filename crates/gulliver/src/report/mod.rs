//! Where events go: the terminal, metric files and TensorBoard; and the tables that commands print.

pub mod confusion;
pub mod metrics;
mod planning;
mod sweep;
pub mod table;
pub mod tensorboard;
pub mod terminal;
