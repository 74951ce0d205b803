//! Probes run in turns with the jobs whose times are predicted, so that load from other users of the machine affects
//! both alike.

use gulliver::profile::measure::{JointSteps, ProbeBench, ProbeResult, interleaved_probes, run_interleaved};
use gulliver::profile::probes::{Probe, probes};
use gulliver::profile::{CoreTimings, ProfileError, fit_curves, fit_unevenness};
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;
use gulliver_graph::work::Work;
use gulliver_plan::time::cost::{Curves, MachineProfile, Rates};
use gulliver_run::session::SessionError;
use std::collections::BTreeMap;

/// The probes of one layout: threads per device, and devices.
pub struct InterleavedProbes {
    way: [usize; 2],
    /// Each probe, the share of each kernel family in its work, and its bench once it was needed.
    probes: Vec<(&'static Probe, BTreeMap<String, f64>, Option<ProbeBench>)>,
    /// Probes selected by the last `begin`.
    wanted: Vec<usize>,
    /// For several devices.
    cores: Option<CoreTimings>,
}

/// Least share of the selected families in the work of a probe for it to be run.
const OF_USE: f64 = 0.1;

impl InterleavedProbes {
    /// The probes of this layout.
    pub fn new(way: [usize; 2]) -> Result<InterleavedProbes, ProfileError> {
        let all = probes(way[1]).map(|probe| {
            let (graph, _) = probe.built()?;
            Ok((probe, shares(&graph, &probe.bindings(), None)?, None))
        });
        let probes = all.collect::<Result<_, ProfileError>>()?;
        let cores = (way[1] > 1).then(|| CoreTimings::new(way[0] * way[1]));
        Ok(InterleavedProbes { way, probes, wanted: Vec::new(), cores })
    }

    /// Discards all measurements and selects the probes of these families.
    pub fn begin(&mut self, families: &dyn Fn(&str) -> bool) -> Result<(), ProfileError> {
        self.wanted.clear();
        self.cores.iter_mut().for_each(CoreTimings::forget);
        for (i, (probe, shares, bench)) in self.probes.iter_mut().enumerate() {
            let share: f64 =
                shares.iter().filter(|(family, _)| families(family)).map(|(_, share)| share).sum();
            if share < OF_USE {
                continue;
            }
            match bench {
                Some(bench) => bench.forget(),
                None => *bench = Some(ProbeBench::new(probe, self.way)?),
            }
            self.wanted.push(i);
        }
        Ok(())
    }

    /// Runs the probes of turn `turn` of `turns`, which together run all probes, for `seconds` each.
    pub fn turn(&mut self, seconds: f64, (turn, turns): (usize, usize)) -> Result<(), ProfileError> {
        if turn == 0 {
            self.cores.iter_mut().for_each(CoreTimings::turn);
            self.probes.iter_mut().filter_map(|(.., bench)| bench.as_mut()).for_each(ProbeBench::next_round);
        }
        let (wanted, turns) = (&self.wanted, turns.max(1));
        let mut benches: Vec<&mut ProbeBench> = Vec::new();
        for (i, (.., bench)) in self.probes.iter_mut().enumerate() {
            benches.extend(bench.as_mut().filter(|_| wanted.contains(&i)));
        }
        let interleaved_probes = interleaved_probes(self.way[0]);
        let groups = benches.len().div_ceil(interleaved_probes);
        for (group, benches) in benches.chunks_mut(interleaved_probes).enumerate() {
            if group * turns / groups == turn {
                run_interleaved(benches, seconds, 1)?;
            }
        }
        Ok(())
    }

    /// Replaces the measured families of `curves` by the results of all turns.
    pub fn renew(&self, curves: &mut Curves) -> Result<(), ProfileError> {
        let benches = self.wanted.iter().filter_map(|&i| self.probes[i].2.as_ref());
        let all: Vec<ProbeResult> = benches.map(ProbeBench::measured).collect::<Result<_, _>>()?;
        let Curves { between, collective, around, families, .. } = fit_curves(self.way, curves.rates, all);
        curves.families.extend(families);
        if self.way[1] == 1 {
            curves.between = between;
        }
        self.cores.iter().for_each(|cores| cores.tell(curves));
        if collective.is_some() {
            (curves.collective, curves.around) = (collective, around);
        }
        Ok(())
    }

    /// Fits the unevenness of devices in a renewed profile to the results of all turns.
    pub fn fit_unevenness(&self, profile: &mut MachineProfile) -> Result<(), ProfileError> {
        let benches = self.wanted.iter().filter_map(|&i| self.probes[i].2.as_ref());
        let stepped = benches.map(|bench| Ok(bench.measured()?.stepped));
        let stepped: Vec<Option<JointSteps>> = stepped.collect::<Result<_, ProfileError>>()?;
        fit_unevenness(profile, self.way, &mut stepped.into_iter().flatten().collect::<Vec<_>>())
    }
}

/// The share of each kernel family in the time of a graph, by `curves` or by default rates.
pub fn shares(
    graph: &Graph,
    sizes: &Bindings,
    curves: Option<&Curves>,
) -> Result<BTreeMap<String, f64>, ProfileError> {
    let mut shares: BTreeMap<String, f64> = BTreeMap::new();
    for node in graph.nodes.iter().filter(|node| !node.op.def().is_view()) {
        let work = Work::of(graph, node);
        let load = work.bind(sizes).map_err(SessionError::from)?;
        let known = curves.and_then(|curves| curves.seconds(&work.family, &load));
        let seconds = known.unwrap_or_else(|| Rates::default().seconds(load.flops, load.bytes));
        *shares.entry(work.family).or_default() += seconds;
    }
    let all: f64 = shares.values().sum();
    shares.values_mut().for_each(|share| *share /= all);
    Ok(shares)
}
