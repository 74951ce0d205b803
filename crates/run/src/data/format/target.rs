//! What is to be predicted of each example: a class or a number.

use std::collections::{BTreeMap, BTreeSet};

use crate::data::{DataInfo, class_tensor, tensor};
use crate::host::{HostData, HostTensor};

/// Class ids and the names behind them.
#[derive(Clone, Debug, PartialEq)]
pub struct Labels {
    /// One per example.
    pub ids: Vec<u32>,
    /// One per class.
    pub names: Vec<String>,
}

impl Labels {
    /// Classes in ascending order of their names: by value when all are whole numbers, else as text.
    pub fn of(labels: &[String]) -> Labels {
        let distinct: BTreeSet<&str> = labels.iter().map(String::as_str).collect();
        let mut names: Vec<&str> = distinct.into_iter().collect();
        if names.iter().all(|n| n.parse::<i64>().is_ok()) {
            names.sort_by_key(|n| n.parse::<i64>().unwrap_or(0));
        }
        let id_of: BTreeMap<&str, u32> = names.iter().copied().zip(0..).collect();
        Labels {
            ids: labels.iter().map(|label| id_of[label.as_str()]).collect(),
            names: names.iter().map(|name| name.to_string()).collect(),
        }
    }
}

/// What a label column means.
#[derive(Clone, Debug, PartialEq)]
pub enum Target {
    /// y `[b]` i64.
    Classes(Labels),
    /// y `[b, 1]` f32.
    Numbers(Vec<f32>),
}

impl Target {
    /// "y" of these examples, which exist.
    pub fn tensor(&self, indices: &[usize]) -> HostTensor {
        match self {
            Target::Classes(labels) => class_tensor(indices.iter().map(|&i| labels.ids[i])),
            Target::Numbers(all) => {
                tensor(&[indices.len(), 1], HostData::F32(indices.iter().map(|&i| all[i]).collect()))
            }
        }
    }

    /// The class of an example.
    pub fn class(&self, i: usize) -> Option<u32> {
        match self {
            Target::Classes(labels) => labels.ids.get(i).copied(),
            Target::Numbers(_) => None,
        }
    }

    /// These examples and then those of `more`, which has the same meaning.
    pub fn and(self, more: Target) -> Target {
        match (self, more) {
            (Target::Classes(mut labels), Target::Classes(more)) => {
                labels.ids.extend(more.ids);
                Target::Classes(labels)
            }
            (Target::Numbers(mut all), Target::Numbers(more)) => {
                all.extend(more);
                Target::Numbers(all)
            }
            (target, _) => target,
        }
    }

    /// Says in `info` what "y" is.
    pub fn describe(&self, info: &mut DataInfo) {
        match self {
            Target::Classes(labels) => {
                info.classes = Some(labels.names.len());
                info.class_names = labels.names.clone();
            }
            Target::Numbers(_) => info.targets = Some(1),
        }
    }
}
