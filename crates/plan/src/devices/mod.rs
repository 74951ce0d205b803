//! Several devices: strategies, cuts, pipelines, collectives and the links between them.

pub mod collectives;
pub mod cut;
pub mod pipeline;
pub mod replicate;
pub mod schedule;
