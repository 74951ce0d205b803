//! What is handed on: plans, their verification, and pictures of them.

pub mod plan;
pub mod timeline;
pub mod verify;
