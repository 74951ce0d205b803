//! `gulliver oracle MODEL --jobs 32`: many jobs of the same shape, fused to arrays, side by side, or one after the
//! other.

use crate::error::Error;
use crate::files::write_file;
use crate::oracle::jobs_page::page;
use crate::oracle::page::seconds;
use crate::report::table::{Column, render};
use crate::units;
use gulliver_oracle::array::{JobSharing, JobsEstimate, share};
use gulliver_oracle::cluster::Cluster;
use gulliver_oracle::setting::Setting;
use gulliver_oracle::workload::Workload;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::Path;

/// Meanings of the words in the table.
const LEGEND: &str = "\narray: jobs fused into one whose operators work on all of them; processes: side by side; \
                      serial: one after the other\ngain: how many times as fast as serial; width: jobs of an array, or \
                      processes at once\n";

/// A question about jobs.
pub struct JobsQuestion<'a> {
    /// As the user named the model.
    pub name: &'a str,
    pub workload: &'a Workload,
    pub cluster: &'a Cluster,
    /// Its batch is that of each job.
    pub setting: &'a Setting,
    pub jobs: u32,
    pub devices: &'a [u32],
    pub json: bool,
    /// Where to write a page.
    pub html: Option<&'a Path>,
}

/// Answers for every number of devices; `about` is lines about the question.
pub fn run(asked: &JobsQuestion, about: &[String]) -> Result<(), Error> {
    let JobsQuestion { workload, cluster, setting, jobs, .. } = *asked;
    let mut scales: Vec<(u32, Vec<JobsEstimate>)> = Vec::new();
    for &devices in asked.devices {
        scales.push((devices, share(workload, cluster, devices, jobs, setting)?));
    }
    if let Some(path) = asked.html {
        let html = page(&format!("{jobs} jobs of {} on {}", asked.name, cluster.name), about, &scales);
        write_file(path, |out| out.write_all(html.as_bytes()))?;
    }
    let text = if asked.json {
        let scales: Vec<serde_json::Value> = scales
            .iter()
            .map(|(devices, all)| serde_json::json!({ "devices": devices, "sharings": all }))
            .collect();
        let all = serde_json::json!({
            "model": asked.name, "cluster": cluster.name, "jobs": jobs, "batch": setting.batch,
            "precision": setting.precision, "scales": scales,
        });
        serde_json::to_string(&all).map_err(io::Error::from)? + "\n"
    } else {
        let mut text = about.join("\n") + "\n";
        for (devices, all) in &scales {
            let _ = write!(text, "\n{}", table(*devices, all, cluster));
        }
        text += LEGEND;
        text
    };
    Ok(io::stdout().lock().write_all(text.as_bytes())?)
}

/// The best width of every sharing, and the gains of other widths of an array.
fn table(devices: u32, all: &[JobsEstimate], cluster: &Cluster) -> String {
    let columns = [
        Column::Left("jobs of a device"),
        Column::Right("width"),
        Column::Right("a step of all"),
        Column::Right("80 % of steps"),
        Column::Right("gain"),
        Column::Right("samples/s"),
        Column::Right("memory"),
        Column::Right("widest that fits"),
    ];
    let mut text = format!("{devices} device{}\n", if devices == 1 { "" } else { "s" });
    let mut rows = Vec::new();
    let mut over = String::new();
    let mut firsts: Vec<&JobsEstimate> =
        JobSharing::ALL.iter().filter_map(|sharing| all.iter().find(|one| one.sharing == *sharing)).collect();
    firsts.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    for one in firsts {
        if one.missing.is_some() {
            let (holder, bytes) = one.memory.largest();
            let _ = writeln!(
                over,
                "does not fit: {} of width {} (needs {} of the {} of a device, of which {} for {holder})",
                one.sharing.name(),
                one.width,
                units::bytes(one.memory.device() as u64),
                units::bytes(cluster.device.memory as u64),
                units::bytes(bytes as u64)
            );
            continue;
        }
        rows.push(vec![
            one.sharing.name().to_string(),
            one.width.to_string(),
            seconds(one.seconds),
            format!("{} – {}", seconds(one.interval.low), seconds(one.interval.high)),
            format!("{:.2} x", one.gain),
            format!("{:.1}", one.throughput),
            units::bytes(one.memory.device() as u64),
            if one.sharing == JobSharing::Serial { "–".into() } else { units::count(one.largest.into()) },
        ]);
    }
    if !rows.is_empty() {
        text += &render(&columns, &rows);
    }
    let mut arrays: Vec<&JobsEstimate> =
        all.iter().filter(|one| one.sharing == JobSharing::Array && one.missing.is_none()).collect();
    arrays.sort_by_key(|one| one.width);
    if !arrays.is_empty() {
        let gains: Vec<String> =
            arrays.iter().map(|one| format!("{} {:.2} x", one.width, one.gain)).collect();
        let _ = writeln!(text, "gain by width of an array: {}", gains.join(", "));
    }
    text + &over
}
