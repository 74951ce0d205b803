//! Virtual memory of one device, at the granularity of tensors: least recently used leaves first.

use super::super::{MovedBytes, MovedKind, MovedOver};
use super::Eviction;
use std::collections::{BTreeMap, HashMap};

/// A tensor: what it is, of which layer, of which micro-batch.
pub(super) type Tensor = (Thing, usize, usize);

/// What a tensor holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Thing {
    Weights,
    Gradients,
    State,
    /// What enters a layer.
    Input,
    /// What the backward pass of a layer needs of its forward pass.
    Inside,
    /// The gradient of what enters a layer.
    InputGradient,
}

impl Thing {
    fn what(self) -> MovedKind {
        match self {
            Thing::Weights => MovedKind::Weights,
            Thing::Gradients => MovedKind::Gradients,
            Thing::State => MovedKind::State,
            Thing::Input | Thing::Inside => MovedKind::Stash,
            Thing::InputGradient => MovedKind::Activations,
        }
    }
}

struct Entry {
    bytes: u64,
    /// When it was used last, while it is on the device.
    used: Option<u64>,
    /// The host has the same bytes.
    clean: bool,
}

pub(super) struct Pager {
    memory: u64,
    eviction: Eviction,
    tensors: HashMap<Tensor, Entry>,
    recent: BTreeMap<u64, Tensor>,
    clock: u64,
    resident: u64,
    pub(super) peak: u64,
    pub(super) moved: MovedBytes,
}

impl Pager {
    pub(super) fn new(memory: u64, eviction: Eviction) -> Pager {
        Pager {
            memory,
            eviction,
            tensors: HashMap::new(),
            recent: BTreeMap::new(),
            clock: 0,
            resident: 0,
            peak: 0,
            moved: MovedBytes::default(),
        }
    }

    /// A tensor that is on the host.
    pub(super) fn at_home(&mut self, tensor: Tensor, bytes: u64) {
        self.tensors.insert(tensor, Entry { bytes, used: None, clean: true });
    }

    /// Brings what an operation needs, makes room for what it makes and works with, and notes what it changes.
    /// The bytes in and out, or none if it does not fit.
    pub(super) fn access(
        &mut self,
        reads: &[Tensor],
        makes: &[(Tensor, u64)],
        changes: &[Tensor],
        working: u64,
    ) -> Option<(u64, u64)> {
        let (before_in, before_out) = self.bytes();
        for tensor in reads {
            self.bring(*tensor, reads)?;
        }
        for (tensor, bytes) in makes {
            self.make_room(*bytes, reads, makes)?;
            self.tensors.insert(*tensor, Entry { bytes: *bytes, used: None, clean: false });
            self.arrive(*tensor);
        }
        self.make_room(working, reads, makes)?;
        self.peak = self.peak.max(self.resident + working);
        for tensor in changes {
            if let Some(entry) = self.tensors.get_mut(tensor) {
                entry.clean = false;
            }
        }
        let (now_in, now_out) = self.bytes();
        Some((now_in - before_in, now_out - before_out))
    }

    /// A tensor nobody needs any more.
    pub(super) fn forget(&mut self, tensor: Tensor) {
        if let Some(Entry { bytes, used: Some(used), .. }) = self.tensors.remove(&tensor) {
            self.recent.remove(&used);
            self.resident -= bytes;
        }
    }

    fn bytes(&self) -> (u64, u64) {
        let sum = |link: MovedOver| self.moved.bytes[link as usize].iter().sum();
        (sum(MovedOver::ToDevice), sum(MovedOver::ToHost))
    }

    fn bring(&mut self, tensor: Tensor, needed: &[Tensor]) -> Option<()> {
        let Some(entry) = self.tensors.get(&tensor) else { return Some(()) };
        let (bytes, used) = (entry.bytes, entry.used);
        if let Some(used) = used {
            self.recent.remove(&used);
            self.resident -= bytes;
        } else {
            self.make_room(bytes, needed, &[])?;
            self.moved.add(MovedOver::ToDevice, tensor.0.what(), bytes);
        }
        self.arrive(tensor);
        Some(())
    }

    fn arrive(&mut self, tensor: Tensor) {
        self.clock += 1;
        let clock = self.clock;
        if let Some(entry) = self.tensors.get_mut(&tensor) {
            entry.used = Some(clock);
            self.resident += entry.bytes;
            self.recent.insert(clock, tensor);
            self.peak = self.peak.max(self.resident);
        }
    }

    fn make_room(&mut self, bytes: u64, needed: &[Tensor], made: &[(Tensor, u64)]) -> Option<()> {
        while self.resident + bytes > self.memory {
            let spare = |t: &&Tensor| !needed.contains(t) && !made.iter().any(|(m, _)| m == *t);
            let oldest = self.recent.values().find(spare).copied()?;
            self.evict(oldest);
        }
        Some(())
    }

    fn evict(&mut self, tensor: Tensor) {
        let Some(entry) = self.tensors.get_mut(&tensor) else { return };
        let Some(used) = entry.used.take() else { return };
        self.recent.remove(&used);
        self.resident -= entry.bytes;
        if !entry.clean || self.eviction == Eviction::AlwaysWritten {
            self.moved.add(MovedOver::ToHost, tensor.0.what(), entry.bytes);
            entry.clean = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_leaves() {
        let tensor = |layer| (Thing::Weights, layer, 0);
        for (eviction, out) in [(Eviction::AlwaysWritten, 20), (Eviction::CleanDropped, 0)] {
            let mut pager = Pager::new(25, eviction);
            (0..3).for_each(|layer| pager.at_home(tensor(layer), 10));
            for (layer, want) in [(0, 10), (1, 10), (0, 0), (2, 10), (1, 10)] {
                let (arrived, _) = pager.access(&[tensor(layer)], &[], &[], 0).unwrap();
                assert_eq!(arrived, want, "layer {layer}");
            }
            assert_eq!(pager.moved.of(MovedOver::ToHost, MovedKind::Weights), out);
            assert_eq!(pager.access(&[tensor(0)], &[], &[], 16), None);
        }
    }
}
