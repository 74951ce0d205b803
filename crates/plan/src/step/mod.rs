//! One device and one input size: the order of the work, what shares storage, where every byte lies.

pub(crate) mod arrange;
pub mod base;
pub mod lay;
pub mod layout;
pub mod lifetime;
pub mod options;
pub mod order;
pub mod outline;
pub mod progress;
pub mod readers;
pub mod script;
pub mod wait;
