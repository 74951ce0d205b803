//! Programs by the sizes of their inputs. Sizes are exact: a program for larger inputs would compute what
//! nobody asked for. What was not used for longest leaves when all take more than a fixed number of bytes.

use super::Which;
use crate::collector::Amounts;
use crate::program::Program;
use gulliver_graph::dim::Bindings;
use gulliver_plan::document::collectives::Collective;
use gulliver_plan::document::plan::Plan;
use std::collections::HashMap;
use std::sync::Arc;

/// Bytes of memory that programs may take together; the last one made always stays.
pub(crate) const LIMIT: usize = 24 << 20;

/// A program ready to run, with what its plan said.
pub(crate) struct Loaded {
    pub(crate) program: Program,
    pub(crate) planned: Amounts,
    /// Number of its record in the collector.
    pub(crate) record: usize,
    /// Seconds of each kind of node by rates alone; empty where nobody weighs time.
    pub(crate) thought: Vec<f64>,
    /// Runs that are still to be timed kernel by kernel.
    pub(crate) to_time: u32,
    /// Where the device meets others, in order.
    pub(crate) collectives: Vec<Collective>,
    /// Its plan, if it is noted when steps are done.
    pub(crate) noted: Option<Arc<Plan>>,
}

/// How often a program was there.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reuse {
    /// Looked up and found.
    pub hits: u64,
    /// Not there: planned.
    pub misses: u64,
    /// Left, for want of room or because memory moved.
    pub dropped: u64,
    /// Seconds spent on planning, verifying and loading.
    pub seconds: f64,
}

struct Entry {
    which: Which,
    sizes: Bindings,
    loaded: Loaded,
    bytes: usize,
    /// When it was last looked up.
    used: u64,
}

/// See the top of this file.
pub(crate) struct Programs {
    entries: Vec<Entry>,
    /// Of training and of evaluation.
    index: [HashMap<Bindings, usize>; 2],
    bytes: usize,
    pub(crate) limit: usize,
    now: u64,
    pub(crate) reuse: Reuse,
}

impl Programs {
    /// None yet; room for so many bytes of them.
    pub(crate) fn new(limit: usize) -> Programs {
        let (entries, index, reuse) = (Vec::new(), Default::default(), Reuse::default());
        Programs { entries, index, bytes: 0, limit, now: 0, reuse }
    }

    /// Whether there is a program for inputs of these sizes.
    pub(crate) fn has(&self, which: Which, sizes: &Bindings) -> bool {
        self.index[which as usize].contains_key(sizes)
    }

    /// The number of the program for these sizes, good until the next one is inserted.
    pub(crate) fn find(&mut self, which: Which, sizes: &Bindings) -> Option<usize> {
        let at = *self.index[which as usize].get(sizes)?;
        self.now += 1;
        self.entries[at].used = self.now;
        self.reuse.hits += 1;
        Some(at)
    }

    /// Adds a program, or replaces the one for these sizes.
    pub(crate) fn insert(&mut self, which: Which, sizes: &Bindings, loaded: Loaded) {
        if let Some(&at) = self.index[which as usize].get(sizes) {
            self.remove(at);
        }
        let bytes = loaded.program.bytes();
        while self.bytes + bytes > self.limit && !self.entries.is_empty() {
            let oldest = (0..self.entries.len()).min_by_key(|&i| self.entries[i].used);
            self.remove(oldest.expect("there are some"));
            self.reuse.dropped += 1;
        }
        self.now += 1;
        self.bytes += bytes;
        self.reuse.misses += 1;
        self.index[which as usize].insert(sizes.clone(), self.entries.len());
        self.entries.push(Entry { which, sizes: sizes.clone(), loaded, bytes, used: self.now });
    }

    fn remove(&mut self, at: usize) {
        let gone = self.entries.swap_remove(at);
        self.bytes -= gone.bytes;
        self.index[gone.which as usize].remove(&gone.sizes);
        if let Some(moved) = self.entries.get(at) {
            self.index[moved.which as usize].insert(moved.sizes.clone(), at);
        }
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.reuse.dropped += self.entries.len() as u64;
        self.entries.clear();
        self.index.iter_mut().for_each(HashMap::clear);
        self.bytes = 0;
    }

    pub(crate) fn get(&self, at: usize) -> &Loaded {
        &self.entries[at].loaded
    }

    pub(crate) fn get_mut(&mut self, at: usize) -> &mut Loaded {
        &mut self.entries[at].loaded
    }

    /// The number of the program inserted last.
    pub(crate) fn last(&self) -> usize {
        self.entries.len() - 1
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Loaded> {
        self.entries.iter().map(|entry| &entry.loaded)
    }
}
