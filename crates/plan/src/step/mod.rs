//! One device and one input size: the order of the work, what shares storage, where every byte lies.

pub mod arrange;
pub mod layout;
pub mod lifetime;
pub mod make;
pub mod order;
pub mod outline;
pub mod progress;
pub mod script;
