//! ParaDL's closed forms (HPDC'21) as its report states them: rings alone, no overlap, ideal scaling. They
//! are a special case of the closed forms of the oracle, which the tests hold them against.

/// A layer as ParaDL describes it; items are numbers of `item_bytes`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ParadlLayer {
    /// Items of a sample that come in.
    pub x: f64,
    /// Items of a sample that go out.
    pub y: f64,
    /// Weights.
    pub w: f64,
    /// Items of a sample, on one side of a cut in space, that the forward pass takes from a neighbour.
    pub halo_x: f64,
    /// The same of the output's gradient and the backward pass.
    pub halo_dy: f64,
    /// Forward seconds of a sample.
    pub forward: f64,
    /// Backward seconds of a sample.
    pub backward: f64,
    /// Update seconds of a step.
    pub update: f64,
}

/// A model and a machine, the same for all strategies.
#[derive(Clone, Debug, PartialEq)]
pub struct Paradl {
    /// The layers.
    pub layers: Vec<ParadlLayer>,
    /// Samples of an epoch.
    pub samples: f64,
    /// Samples of a step.
    pub batch: f64,
    /// Bytes of an item.
    pub item_bytes: f64,
    /// Seconds to start a message.
    pub alpha: f64,
    /// Seconds for each byte of it.
    pub beta: f64,
}

/// Seconds of an epoch and bytes of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Projection {
    /// Computing.
    pub compute: f64,
    /// Communicating.
    pub communication: f64,
    /// Bytes.
    pub memory: f64,
}

impl Paradl {
    fn sum(&self, of: impl Fn(&ParadlLayer) -> f64) -> f64 {
        self.layers.iter().map(of).sum()
    }

    fn steps(&self) -> f64 {
        self.samples / self.batch
    }

    /// A ring all-reduce of `bytes` over `p`.
    fn ring(&self, p: f64, bytes: f64) -> f64 {
        2.0 * (p - 1.0) * (self.alpha + bytes * self.beta / p)
    }

    fn memory(&self, samples: f64, activations: f64, weights: f64) -> f64 {
        2.0 * self.item_bytes * self.sum(|l| samples * (l.x + l.y) / activations + l.w / weights)
    }

    /// One device.
    pub fn serial(&self) -> Projection {
        let compute =
            self.samples * self.sum(|l| l.forward + l.backward) + self.steps() * self.sum(|l| l.update);
        Projection { compute, communication: 0.0, memory: self.memory(self.batch, 1.0, 1.0) }
    }

    /// `p` replicas.
    pub fn data(&self, p: f64) -> Projection {
        let compute =
            self.samples / p * self.sum(|l| l.forward + l.backward) + self.steps() * self.sum(|l| l.update);
        let communication = self.steps() * self.ring(p, self.sum(|l| l.w) * self.item_bytes);
        Projection { compute, communication, memory: self.memory(self.batch / p, 1.0, 1.0) }
    }

    /// `p` parts of every sample's space.
    pub fn spatial(&self, p: f64) -> Projection {
        let data = self.data(p);
        let halos = self.sum(|l| {
            if l.halo_x + l.halo_dy == 0.0 {
                return 0.0;
            }
            2.0 * (2.0 * self.alpha + self.batch * (l.halo_x + l.halo_dy) * self.item_bytes * self.beta)
        });
        let communication = data.communication + self.steps() * halos;
        Projection { communication, memory: self.memory(self.batch, p, 1.0), ..data }
    }

    /// A pipeline of stages with these numbers of layers, and `segments` of every batch.
    pub fn pipeline(&self, stages: &[usize], segments: f64) -> Projection {
        let p = stages.len() as f64;
        let mut groups: Vec<&[ParadlLayer]> = Vec::new();
        let mut rest = self.layers.as_slice();
        for &count in stages {
            let (group, after) = rest.split_at(count.min(rest.len()));
            groups.push(group);
            rest = after;
        }
        let most = |of: &dyn Fn(&ParadlLayer) -> f64| {
            groups.iter().map(|group| group.iter().map(of).sum::<f64>()).fold(0.0, f64::max)
        };
        let through = most(&|l| l.forward) + most(&|l| l.backward);
        let compute =
            self.samples * (p + segments - 1.0) / segments * through + self.steps() * most(&|l| l.update);
        let handed = groups[..groups.len().max(1) - 1]
            .iter()
            .filter_map(|group| group.last())
            .map(|l| self.alpha + self.batch / segments * l.y * self.item_bytes * self.beta)
            .fold(0.0, f64::max);
        let communication = 2.0 * self.steps() * (p + segments - 2.0) * handed;
        let memory = 2.0 * self.item_bytes * most(&|l| self.batch * (l.x + l.y) + l.w);
        Projection { compute, communication, memory }
    }

    /// Filters, or input channels, over `p` devices; the two cost the same.
    pub fn filter(&self, p: f64) -> Projection {
        self.data_filter(1.0, p)
    }

    /// `p1` replicas whose filters are over `p2` devices each. Weights are divided by `p2` once.
    pub fn data_filter(&self, p1: f64, p2: f64) -> Projection {
        let p = p1 * p2;
        let compute = self.samples / p * self.sum(|l| l.forward + l.backward)
            + self.steps() / p2 * self.sum(|l| l.update);
        let inner = &self.layers[..self.layers.len().max(1) - 1];
        let layers: f64 =
            inner.iter().map(|l| self.alpha + self.batch * l.y * self.item_bytes * self.beta / p).sum();
        let weights = self.sum(|l| l.w) * self.item_bytes;
        let exchange = 2.0 * (p1 - 1.0) * (self.alpha + weights * self.beta / p);
        let communication = self.steps() * (3.0 * (p2 - 1.0) * layers + exchange);
        Projection { compute, communication, memory: self.memory(self.batch / p1, 1.0, p2) }
    }
}
