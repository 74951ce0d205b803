//! What is handed on: plans, their verification, and pictures of them.

pub mod collectives;
pub mod error;
pub mod job;
pub mod ledger;
pub mod links;
pub mod pass;
pub mod plan;
pub mod residence;
pub mod shard;
pub mod timeline;
pub mod topology;
pub mod verify;
