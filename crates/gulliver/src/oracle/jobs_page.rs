//! A self-contained HTML page about jobs that share devices: their gain by the number of jobs on a device.

use super::page::{Point, curves, opening, seconds};
use gulliver_oracle::array::{JobSharing, JobsEstimate};
use std::fmt::Write as _;

/// The page; `title` and `about` are plain text. Of each number of devices there is a curve and a table.
pub fn page(title: &str, about: &[String], scales: &[(u32, Vec<JobsEstimate>)]) -> String {
    let mut html = opening(title, about);
    for (devices, all) in scales {
        let _ = writeln!(html, "<h2>Gain over one job after the other, {devices} devices</h2>{}", gains(all));
        html += "<table><tr><th>width</th><th>sharing</th><th>a step of all</th><th>gain</th><th>memory</th>\
                 <th>fits</th></tr>\n";
        for one in all {
            let _ = writeln!(
                html,
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{:.2}</td><td>{:.1} GB</td><td>{}</td></tr>",
                one.width,
                one.sharing.name(),
                seconds(one.seconds),
                one.gain,
                one.memory.device() / 1e9,
                if one.missing.is_some() { "no" } else { "yes" }
            );
        }
        html += "</table>\n";
    }
    html + "</body></html>\n"
}

fn gains(all: &[JobsEstimate]) -> String {
    let points = |sharing: JobSharing| {
        let own = [JobSharing::Serial, sharing];
        let mut points: Vec<Point> = all
            .iter()
            .filter(|one| own.contains(&one.sharing) && one.missing.is_none())
            .map(|one| Point { x: f64::from(one.width), y: one.gain })
            .collect();
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        (sharing.name().to_string(), points)
    };
    curves(&[JobSharing::Array, JobSharing::Processes].map(points), "jobs that share a device")
}
