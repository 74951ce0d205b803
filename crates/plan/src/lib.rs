//! When and where. Pure: no files, threads, clocks, prints or `unsafe`.
//!
//! An [`outline::Outline`] is what all plans of a graph have in common; with the sizes of one input it
//! gives a [`plan::Plan`]: a flat list of steps with every byte placed. [`make::make`] does both. [`verify::verify`] checks a plan without sharing code with the planner.
#![forbid(unsafe_code)]

pub mod arrange;
pub mod base;
pub mod bound;
pub mod budget;
pub mod comparator;
pub mod cost;
pub mod cut;
pub mod evaluate;
pub mod kind;
pub mod lanes;
pub mod layout;
mod learn;
pub mod lifetime;
pub mod make;
pub mod meetings;
pub mod oracle;
pub mod order;
pub mod outline;
pub mod overlap;
pub mod pipeline;
pub mod plan;
pub mod progress;
pub mod replicate;
pub mod rewrite;
pub mod schedule;
pub mod script;
mod settle;
pub mod simulate;
pub mod squeeze;
pub mod timeline;
pub mod topology;
pub mod verify;
mod view;
pub mod wait;
