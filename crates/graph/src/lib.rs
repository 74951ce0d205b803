//! Graphs of operators: what is computed. Pure: no files, threads, clocks, prints or `unsafe`.
#![forbid(unsafe_code)]

pub mod array;
pub mod autodiff;
pub mod dim;
pub mod dtype;
pub mod function;
pub mod fuse_elementwise;
pub mod graph;
pub mod hyper;
pub mod indexing;
pub mod interpret;
pub mod kinds;
pub mod layer;
pub mod loss;
pub mod lr;
pub mod model;
pub mod nearest;
pub mod normalize;
pub mod op_check;
pub mod optim;
pub mod random;
pub mod recurrent;
pub mod rewrite;
pub mod role;
pub mod spec;
pub mod tensor;
pub mod text;
pub mod training;
pub mod verify;
pub mod windows;
pub mod work;
