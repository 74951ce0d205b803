//! One self-contained HTML page about jobs that share devices: what they gain by how many share one.

use super::page::{COLORS, HEIGHT, MARGIN, STYLE, WIDTH, escape, scaled, seconds};
use gulliver_oracle::array::{Shared, Sharing};
use std::fmt::Write as _;

/// The page; `title` and `about` are plain text. Of each number of devices there is a curve and a table.
pub fn page(title: &str, about: &[String], scales: &[(u32, Vec<Shared>)]) -> String {
    let mut html = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title>\
         <style>{STYLE}</style></head><body><h1>{0}</h1>\n",
        escape(title)
    );
    for line in about {
        let _ = writeln!(html, "<p>{}</p>", escape(line));
    }
    for (devices, all) in scales {
        let _ =
            writeln!(html, "<h2>Gain over one job after the other, {devices} devices</h2>{}", curves(all));
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

fn curves(all: &[Shared]) -> String {
    let points = |sharing: Sharing| {
        let mut points: Vec<(f64, f64)> = all
            .iter()
            .filter(|one| one.sharing == sharing && one.missing.is_none())
            .map(|one| (one.width as f64, one.gain))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points
    };
    let serial = points(Sharing::Serial);
    let lines = [Sharing::Array, Sharing::Processes]
        .map(|sharing| (sharing.name(), serial.iter().copied().chain(points(sharing)).collect::<Vec<_>>()));
    let every = || lines.iter().flat_map(|(_, points)| points);
    if every().next().is_none() {
        return "<p>Nothing fits.</p>".into();
    }
    let range = |of: fn(&(f64, f64)) -> f64| {
        every().map(of).fold([f64::INFINITY, 0.0f64], |[low, high], v| [low.min(v), high.max(v)])
    };
    let (across, up) = (range(|p| p.0), range(|p| p.1));
    let x = |v: f64| scaled(v, across, [MARGIN, WIDTH - 160.0]);
    let y = |v: f64| scaled(v, up, [HEIGHT - 40.0, 20.0]);
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">");
    for value in up {
        let _ = write!(svg, "<text x=\"4\" y=\"{:.1}\">{value:.2}</text>", y(value) + 4.0);
    }
    for value in across {
        let _ = write!(svg, "<text x=\"{:.1}\" y=\"{:.1}\">{value}</text>", x(value), HEIGHT - 20.0);
    }
    let _ = write!(svg, "<text x=\"{MARGIN}\" y=\"{:.1}\">jobs that share a device</text>", HEIGHT - 4.0);
    for (i, (name, points)) in lines.iter().enumerate() {
        let line: Vec<String> = points.iter().map(|p| format!("{:.1},{:.1}", x(p.0), y(p.1))).collect();
        let _ = write!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{1}\" stroke-width=\"2\"/>\
             <text x=\"{2:.1}\" y=\"{3:.1}\" fill=\"{1}\">{name}</text>",
            line.join(" "),
            COLORS[i],
            WIDTH - 150.0,
            24.0 + 18.0 * i as f64
        );
    }
    svg + "</svg>"
}
