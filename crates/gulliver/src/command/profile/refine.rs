//! `gulliver profile --refine`: the profile corrected by the runs that it predicted.

use super::json;
use crate::error::Error;
use crate::history::{self, Correction, corrected, corrections};
use crate::machine;
use crate::report::table::{self, Column};
use std::path::Path;

/// Corrects the profile in a file: what is said of the changes, and what became of the file. Without evidence it
/// stays as it is.
pub fn refine(path: &Path, as_json: bool) -> Result<(String, String), Error> {
    let profile = machine::read(path)?;
    let runs = history::default_path().map_or_else(|| Ok(Vec::new()), |path| history::read(&path))?;
    let found = corrections(&profile, &runs);
    let text = if as_json { json(&found)? } else { rendered(&found) };
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
