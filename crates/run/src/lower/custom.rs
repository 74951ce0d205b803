//! Fast kernels of operators from outside, by the operator's type. An operator without an entry, or whose entry
//! declines, runs on its reference kernel.

use super::{Lowered, TensorType};
use gulliver_graph::graph::op::custom::{Custom, CustomOp};
use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

type Entry = dyn Fn(&dyn Any, &[TensorType], &[TensorType], usize) -> Option<Lowered> + Send + Sync;

/// Fast kernels of operators from outside.
#[derive(Clone, Default)]
pub struct Kernels {
    table: HashMap<TypeId, (&'static str, Arc<Entry>)>,
}

impl Kernels {
    /// These and one more, for all operators of type `T`: from the operator, the types of its operands
    /// and results and the number of threads to the kernel, or `None` to leave it to the reference.
    ///
    /// A kernel must write every element of every result, and its bits may not depend on the threads.
    pub fn with<T: CustomOp>(
        mut self,
        kernel: impl Fn(&T, &[TensorType], &[TensorType], usize) -> Option<Lowered> + Send + Sync + 'static,
    ) -> Kernels {
        let entry = move |op: &dyn Any, ins: &[TensorType], outs: &[TensorType], threads: usize| {
            kernel(op.downcast_ref::<T>()?, ins, outs, threads)
        };
        self.table.insert(TypeId::of::<T>(), (std::any::type_name::<T>(), Arc::new(entry)));
        self
    }

    pub(super) fn lower(
        &self,
        op: &Custom,
        ins: &[TensorType],
        outs: &[TensorType],
        threads: usize,
    ) -> Option<Lowered> {
        let op = op.as_any();
        let (_, entry) = self.table.get(&op.type_id())?;
        entry(op, ins, outs, threads)
    }
}

impl fmt::Debug for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut types: Vec<&str> = self.table.values().map(|(name, _)| *name).collect();
        types.sort_unstable();
        f.debug_set().entries(types).finish()
    }
}
