//! Several devices: strategies, cuts, pipelines, collectives and the links between them.

pub mod cut;
pub mod meetings;
pub mod pipeline;
pub mod replicate;
pub mod schedule;
pub mod topology;
