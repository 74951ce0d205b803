//! `lab refine`: corrects a profile by the runs that it predicted.

use crate::error::{LabError, json_line};
use clap::Args;
use gulliver::history::{self, RunRecord, name_of};
use gulliver::machine;
use gulliver::report::table::{self, Column};
use gulliver_plan::time::cost::{Curves, MachineProfile};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Corrects this machine's profile by the runs that it predicted, and prints the corrections.
#[derive(Args)]
pub struct RefineArguments {
    /// The profile; the one that other commands look for if not given.
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &RefineArguments) -> Result<(), LabError> {
    let path = profile_path(arguments.profile.as_ref())?;
    let (text, report) = refine(&path, arguments.json)?;
    io::stdout().lock().write_all(text.as_bytes())?;
    eprintln!("{report}");
    Ok(())
}

/// The profile that was named, or the one of this machine.
pub fn profile_path(named: Option<&PathBuf>) -> Result<PathBuf, LabError> {
    let found = named.cloned().or_else(machine::default_path);
    found.ok_or_else(|| {
        LabError::Argument("there is no directory of settings; name a file with --profile FILE".into())
    })
}

/// Corrects the profile in a file. Returns the corrections as text, and whether the file was written: without
/// evidence it is not.
fn refine(path: &Path, as_json: bool) -> Result<(String, String), LabError> {
    let profile = machine::read(path)?;
    let runs = history::default_path().map_or_else(|| Ok(Vec::new()), |path| history::read(&path))?;
    let found = corrections(&profile, &runs);
    let text = if as_json { json_line(&found)? } else { rendered(&found) };
    if found.is_empty() {
        return Ok((text, format!("{} stays as it is", path.display())));
    }
    machine::write(path, &corrected(&profile, &found))?;
    Ok((text, format!("written to {}", path.display())))
}

fn rendered(found: &[Correction]) -> String {
    if found.is_empty() {
        return "nothing to correct: too few runs that this profile predicted, or it is good\n".into();
    }
    let columns = [Column::Right("devices"), Column::Right("runs"), Column::Right("seconds of kernels")];
    let row = |one: &Correction| {
        vec![format!("{}×{}", one.devices, one.threads), one.runs.to_string(), format!("× {:.3}", one.times)]
    };
    table::render(&columns, &found.iter().map(row).collect::<Vec<_>>())
}

/// A way of using the machine whose kernels are to take another time than the profile says.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Correction {
    /// Threads of a device.
    pub threads: usize,
    /// Devices.
    pub devices: usize,
    /// Runs that say so.
    pub runs: usize,
    /// The median of measured over predicted seconds.
    pub times: f64,
}

/// Fewest runs, steps of each, and share of a difference that a correction is made for.
const EVIDENCE: (usize, u64, f64) = (3, 10, 0.02);

/// What the runs that this very profile predicted say against it.
pub fn corrections(profile: &MachineProfile, all: &[RunRecord]) -> Vec<Correction> {
    let (least, steps, share) = EVIDENCE;
    let name = name_of(profile);
    let mut ways: BTreeMap<(usize, usize), Vec<f64>> = BTreeMap::new();
    for ran in all.iter().filter(|ran| ran.profile.as_ref() == Some(&name) && ran.steps >= steps) {
        let ratio = ran.seconds[1] / ran.seconds[0];
        ways.entry((ran.threads, ran.devices)).or_default().push(ratio);
    }
    let known =
        |threads, devices| profile.curves.iter().any(|c| (c.threads, c.devices) == (threads, devices));
    let mut found = Vec::new();
    for ((threads, devices), mut ratios) in ways {
        ratios.sort_by(f64::total_cmp);
        let (runs, times) = (ratios.len(), ratios[ratios.len() / 2]);
        if known(threads, devices) && runs >= least && (times - 1.0).abs() > share {
            found.push(Correction { threads, devices, runs, times });
        }
    }
    found
}

/// The profile with these corrections.
pub fn corrected(profile: &MachineProfile, corrections: &[Correction]) -> MachineProfile {
    let mut profile = profile.clone();
    for one in corrections {
        let of = |curves: &&mut Curves| (curves.threads, curves.devices) == (one.threads, one.devices);
        for curves in profile.curves.iter_mut().filter(of) {
            curves.between *= one.times;
            if let Some(collective) = &mut curves.collective {
                collective.call *= one.times;
                collective.byte *= one.times;
                collective.beside *= one.times;
            }
            let points = curves.families.values_mut().flatten();
            points.for_each(|point| point.seconds *= one.times);
        }
    }
    profile
}

#[cfg(test)]
mod tests {
    use super::*;
    use gulliver_graph::work::Load;
    use gulliver_plan::document::links::Links;
    use gulliver_plan::time::cost::{CurvePoint, Rates};

    fn ran(model: &str, profile: Option<&str>, seconds: [f64; 2]) -> RunRecord {
        let (strategy, profile) = ("alone".to_string(), profile.map(str::to_string));
        let (devices, threads, batch, steps) = (1, 2, 8, 20);
        let (when, peak, bytes) = (1e9, [7, 7], [0, 0]);
        let model = model.to_string();
        RunRecord { when, model, strategy, devices, threads, batch, steps, profile, seconds, peak, bytes }
    }

    fn profile() -> MachineProfile {
        let load = Load { flops: 1.0, bytes: 1.0, extents: [1.0; 6] };
        let points = vec![CurvePoint { load, seconds: 0.5, spread: 0.0 }];
        let families: BTreeMap<_, _> = [("conv".to_string(), points)].into_iter().collect();
        let curves = |threads| Curves::of([threads, 1], Rates::default(), families.clone());
        let (processor, links) = ("x".to_string(), Links::default());
        MachineProfile { cores: 2, processor, links, scaling: Vec::new(), curves: vec![curves(1), curves(2)] }
    }

    #[test]
    fn only_enough_runs_of_the_same_profile_correct_it() {
        let (old, mut all) = (profile(), Vec::new());
        let name = name_of(&old);
        all.extend([1.2, 1.3].map(|took| ran("a", Some(&name), [1.0, took])));
        all.extend([9.0, 9.0, 9.0].map(|took| ran("a", Some("another"), [1.0, took])));
        assert_eq!(corrections(&old, &all), []);
        all.push(ran("b", Some(&name), [2.0, 2.5]));
        let found = corrections(&old, &all);
        assert_eq!(found, [Correction { threads: 2, devices: 1, runs: 3, times: 1.25 }]);
        let new = corrected(&old, &found);
        let seconds = |profile: &MachineProfile| -> Vec<f64> {
            profile.curves.iter().map(|curves| curves.families["conv"][0].seconds).collect()
        };
        assert_eq!(seconds(&new), [0.5, 0.625]);
        // What was predicted before says nothing about the new one.
        assert_eq!(corrections(&new, &all), []);
    }
}
