//! The jobs whose predictions are held against what happens. None is a network that profiles are made from.

use gulliver::profile::probes::{Probe, probe};
use gulliver_graph::dim::Bindings;
use gulliver_plan::document::topology::Wiring;
use serde::Serialize;

/// Links that hold bytes up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowLinks {
    /// In words.
    pub name: &'static str,
    /// How fast.
    pub wiring: Wiring,
}

/// One job on some devices.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CheckCase {
    /// Its network, and the sizes of a batch on all devices.
    pub probe: Probe,
    /// Slices of a batch whose gradients are added in order.
    pub partials: u32,
    /// Devices.
    pub devices: usize,
    /// Threads of each.
    pub threads: usize,
    /// Links that hold bytes up, if any do.
    #[serde(serialize_with = "name")]
    pub wires: Option<SlowLinks>,
}

fn name<S: serde::Serializer>(wires: &Option<SlowLinks>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(wires.as_ref().map_or("free", |wires| wires.name))
}

impl CheckCase {
    /// The sizes of a batch.
    pub fn sizes(&self) -> Bindings {
        let [batch, length] = self.probe.sizes;
        let sizes = Bindings::new().with("batch", batch);
        if length > 0 { sizes.with("length", length) } else { sizes }
    }
}

/// Networks with the batches they are trained on, so small that steps take a tenth of a second or so: a machine that
/// others use needs many of them.
pub static JOBS: &[Probe] = &[
    probe("resnet50", "size=32", [16, 0], "sgd"),
    probe("resnet50", "size=32", [32, 0], "sgd"),
    probe("vgg11", "size=32 hidden=1024 pool=1", [8, 0], "sgd"),
    probe("vgg11", "size=32 hidden=1024 pool=1", [16, 0], "sgd"),
    probe("cosmoflow", "", [4, 0], "sgd"),
    probe("cosmoflow", "", [8, 0], "sgd"),
    probe("gpt-mini", "", [4, 48], "adam"),
    probe("gpt-mini", "", [8, 48], "adam"),
    probe("lstm", "", [12, 24], "sgd"),
    probe("lstm", "", [24, 24], "sgd"),
];

/// Two slices, so that two devices can take one each.
const PARTIALS: u32 = 2;

/// Devices linked directly, and devices behind a shared link to the host: one for each batch of a network.
const WIRES: [SlowLinks; 2] = [
    SlowLinks { name: "peers 1 GB/s", wiring: Wiring { peer: Some(1e9), latency: 1e-5, ..FREE } },
    SlowLinks { name: "host 0.25 GB/s", wiring: Wiring { host: Some(2.5e8), latency: 1e-4, ..FREE } },
];
const FREE: Wiring =
    Wiring { host: None, shared: true, lane: None, peer: None, sockets: None, disk: None, latency: 0.0 };

/// The cases of the networks of these names, of all if there are none, on a machine of so many cores.
pub fn cases(cores: usize, models: &[String]) -> Vec<CheckCase> {
    let wanted = |job: &&Probe| models.is_empty() || models.iter().any(|name| name == job.model);
    let mut cases = Vec::new();
    for (i, probe) in JOBS.iter().enumerate().filter(|(_, job)| wanted(job)) {
        let case = |devices, threads, wires| CheckCase {
            probe: *probe,
            partials: PARTIALS,
            devices,
            threads,
            wires,
        };
        cases.push(case(1, cores.max(1), None));
        if cores > 1 {
            cases.push(case(1, 1, None));
            let half = cores / 2;
            cases.extend([None, Some(WIRES[i % WIRES.len()])].map(|wires| case(2, half, wires)));
        }
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;
    use gulliver::profile::probes::PROBES;

    #[test]
    fn what_is_checked_is_not_probed() {
        for job in JOBS {
            job.graph().unwrap();
            let same = |probe: &&Probe| probe.model == job.model && probe.settings == job.settings;
            assert_eq!(PROBES.iter().filter(same).count(), 0, "{}", job.model);
        }
    }

    #[test]
    fn every_network_is_tried_alone_and_on_two_devices_over_free_and_slow_links() {
        let all = cases(2, &[]);
        assert_eq!(all.len(), 4 * JOBS.len());
        for job in JOBS {
            let of = |case: &&CheckCase| case.probe == *job;
            assert!(all.iter().filter(of).any(|case| case.devices == 1));
            let two = || all.iter().filter(of).filter(|case| case.devices == 2);
            assert!(two().any(|case| case.wires.is_some()) && two().any(|case| case.wires.is_none()));
        }
        assert_eq!(cases(1, &["lstm".to_string()]).len(), 2, "on one core there is one device");
    }
}
