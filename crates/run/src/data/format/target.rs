//! Targets to predict: a class or a number per example.

use std::collections::{BTreeMap, BTreeSet};

use crate::data::{DataInfo, class_tensor, tensor};
use crate::host::{HostData, HostTensor};

/// Class ids and the names of the classes.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassLabels {
    /// One per example.
    pub ids: Vec<u32>,
    /// One per class.
    pub names: Vec<String>,
}

impl ClassLabels {
    /// Classes in ascending order of their names: by value when all are whole numbers, else as text.
    pub fn of(labels: &[String]) -> ClassLabels {
        let distinct: BTreeSet<&str> = labels.iter().map(String::as_str).collect();
        let mut names: Vec<&str> = distinct.into_iter().collect();
        if names.iter().all(|n| n.parse::<i64>().is_ok()) {
            names.sort_by_key(|n| n.parse::<i64>().unwrap_or(0));
        }
        let id_of: BTreeMap<&str, u32> = names.iter().copied().zip(0..).collect();
        ClassLabels {
            ids: labels.iter().map(|label| id_of[label.as_str()]).collect(),
            names: names.iter().map(|name| name.to_string()).collect(),
        }
    }
}

/// The values of a label column.
#[derive(Clone, Debug, PartialEq)]
pub enum TargetColumn {
    /// y `[b]` i64.
    Classes(ClassLabels),
    /// y `[b, 1]` f32.
    Numbers(Vec<f32>),
}

impl TargetColumn {
    /// "y" of these examples. Panics if one does not exist.
    pub fn tensor(&self, indices: &[usize]) -> HostTensor {
        match self {
            TargetColumn::Classes(labels) => class_tensor(indices.iter().map(|&i| labels.ids[i])),
            TargetColumn::Numbers(all) => {
                tensor(&[indices.len(), 1], HostData::F32(indices.iter().map(|&i| all[i]).collect()))
            }
        }
    }

    /// The class of an example; `None` for numbers.
    pub fn class(&self, i: usize) -> Option<u32> {
        match self {
            TargetColumn::Classes(labels) => labels.ids.get(i).copied(),
            TargetColumn::Numbers(_) => None,
        }
    }

    /// Appends the values of `more`, which must be of the same kind.
    pub fn and(self, more: TargetColumn) -> TargetColumn {
        match (self, more) {
            (TargetColumn::Classes(mut labels), TargetColumn::Classes(more)) => {
                labels.ids.extend(more.ids);
                TargetColumn::Classes(labels)
            }
            (TargetColumn::Numbers(mut all), TargetColumn::Numbers(more)) => {
                all.extend(more);
                TargetColumn::Numbers(all)
            }
            (target, _) => target,
        }
    }

    /// Writes the kind of "y" into `info`.
    pub fn describe(&self, info: &mut DataInfo) {
        match self {
            TargetColumn::Classes(labels) => {
                info.classes = Some(labels.names.len());
                info.class_names = labels.names.clone();
            }
            TargetColumn::Numbers(_) => info.targets = Some(1),
        }
    }
}
