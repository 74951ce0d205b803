//! When and where. Pure: no files, threads, clocks, prints or `unsafe`.
//!
//! A [`StepPlanner`](budget::planner::StepPlanner) holds what all plans of a graph have in common; with the sizes of one
//! input it gives a [`Plan`](document::plan::Plan): a flat list of steps with every byte placed.
//! [`verify`](document::verify::verify) checks a plan without sharing code with the planner.
#![forbid(unsafe_code)]

pub mod budget;
pub mod devices;
pub mod document;
pub mod step;
pub mod time;
