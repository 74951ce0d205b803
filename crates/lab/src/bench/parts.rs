//! What a step under a budget consists of: its kernels, timed one after the other with nothing beside them,
//! and the bytes it moves. No step can take less than its kernels, nor than its moves.

use crate::bench::measure::BenchRunner;
use crate::error::LabError;
use gulliver::units;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Role;
use gulliver_plan::document::ledger::Ledger;
use gulliver_plan::document::plan::TIERS;

use gulliver_plan::document::job::Purpose;
use gulliver_run::profile::roofline;
use gulliver_run::session::TimedWork;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Steps that are timed kernel by kernel, in turn with whole ones, as the machine is not always as fast.
const STEPS: usize = 7;
/// Bytes copied at a time by the probe: those of a weight of a few hundred rows.
const PIECE: usize = 2 << 20;

/// See the top of this file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BudgetParts {
    /// Bytes of weights, their gradients and the optimizer's states.
    pub state_bytes: u64,
    /// Most bytes in use at once of device, host and disk.
    pub used_bytes: [u64; TIERS.len()],
    /// Median time of a whole step.
    pub step_seconds: f64,
    /// Kernels, those that run again included; also a median.
    pub kernel_seconds: f64,
    /// Moves one after the other with nothing beside them.
    pub move_seconds: f64,
    /// Bytes moved by the plan: host to device, device to host, from disk, to disk.
    pub moved_bytes: [u64; 4],
    /// Bytes a second that one thread copies from tier to tier in memory.
    pub copy_bytes_per_second: f64,
}

/// Measures the parts of a workload's step.
pub fn measure(runner: &mut BenchRunner) -> Result<BudgetParts, LabError> {
    let mut times: [Vec<f64>; 3] = Default::default();
    for _ in 0..STEPS {
        let start = Instant::now();
        runner.step()?;
        times[0].push(start.elapsed().as_secs_f64());
        let (key, hyper) = runner.next();
        let (mut kernels, mut moves) = (0.0, 0.0);
        for (work, time) in runner.session.profile(&runner.batch, key, &hyper)? {
            *(if matches!(work, TimedWork::Move) { &mut moves } else { &mut kernels }) += time.as_secs_f64();
        }
        times[1].push(kernels);
        times[2].push(moves);
    }
    let [step_seconds, kernel_seconds, move_seconds] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[STEPS / 2]
    });
    let sizes = runner.sizes()?;
    let plan = runner.session.plan(Purpose::Train, &sizes)?;
    let Ledger { to_device, to_host, disk_read, disk_written, .. } = Ledger::of(&plan);
    let used_bytes = TIERS.map(|tier| plan.spaces[tier as usize].live);
    let state_bytes = runner.session.graph().inputs().map(|(_, role, info)| {
        let bytes = info.ty.bytes().bind(&Bindings::new()).unwrap_or(0) as u64;
        match role {
            // Its gradient has as many.
            Role::Weight(_) => 2 * bytes,
            Role::State(_) => bytes,
            _ => 0,
        }
    });
    Ok(BudgetParts {
        state_bytes: state_bytes.sum(),
        used_bytes,
        step_seconds,
        kernel_seconds,
        move_seconds,
        moved_bytes: [to_device, to_host, disk_read, disk_written],
        copy_bytes_per_second: roofline::moves(PIECE, 0.2),
    })
}

impl BudgetParts {
    /// Some lines for people.
    pub fn render(&self) -> String {
        let ms = |seconds: f64| format!("{:.1} ms", 1e3 * seconds);
        let [device, host, disk] = self.used_bytes.map(units::bytes);
        let [to_device, to_host, read, written] = self.moved_bytes.map(units::bytes);
        format!(
            "weights, gradients and states {}, in use {device} on the device, {host} on the host, {disk} on disk\n\
             kernels alone {}, {:.1} % of the step; moves alone {}, at best {:.1} GB/s in memory\n\
             moved {to_device} to the device, {to_host} to the host, {read} from disk, {written} to disk\n",
            units::bytes(self.state_bytes),
            ms(self.kernel_seconds),
            100.0 * self.kernel_seconds / self.step_seconds,
            ms(self.move_seconds),
            self.copy_bytes_per_second / 1e9,
        )
    }
}
