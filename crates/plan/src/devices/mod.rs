//! Several devices: strategies, cuts, pipelines, collectives and the links between them.

pub mod collectives;
pub mod cut;
pub mod error;
pub mod options;
pub mod pipeline;
pub mod planner;
pub mod predict;
pub mod replicate;
pub mod schedule;
pub mod strategy;
