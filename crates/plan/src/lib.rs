//! When and where. Pure: no files, threads, clocks, prints or `unsafe`.
//!
//! [`make::make`] turns a graph and the sizes of one input into a [`plan::Plan`]: a flat list of steps
//! with every byte placed. [`verify::verify`] checks a plan without sharing code with the planner.
#![forbid(unsafe_code)]

pub mod layout;
pub mod lifetime;
pub mod make;
pub mod plan;
pub mod verify;
