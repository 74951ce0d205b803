//! One self-contained HTML page: scaling curves of the families and where the seconds of the best go.

use gulliver_oracle::closed::Estimate;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Estimates of one number of devices, best first.
pub type Scale = (u32, Vec<Estimate>);

/// How pages look.
pub(super) const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:820px;margin:2em auto;\
    padding:0 1em;color:#222}table{border-collapse:collapse;width:100%}\
    td,th{padding:.2em .6em;text-align:right;border-bottom:1px solid #ddd}\
    td:nth-child(2),th:nth-child(2),td:last-child,th:last-child{text-align:left}\
    svg{width:100%;height:auto}text{font:12px system-ui,sans-serif}";
pub(super) const WIDTH: f64 = 760.0;
pub(super) const HEIGHT: f64 = 340.0;
pub(super) const MARGIN: f64 = 60.0;
pub(super) const COLORS: [&str; 10] = [
    "#4063d8", "#389826", "#cb3c33", "#9558b2", "#b8860b", "#008b8b", "#d2691e", "#708090", "#c71585",
    "#2f4f4f",
];

/// The page; `title` and `about` are plain text, `meanings` what short names mean.
pub fn page(title: &str, about: &[String], scales: &[Scale], meanings: &[(String, &str)]) -> String {
    let mut html = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title>\
         <style>{STYLE}</style></head><body><h1>{0}</h1>\n",
        escape(title)
    );
    for line in about {
        let _ = writeln!(html, "<p>{}</p>", escape(line));
    }
    let _ = writeln!(html, "<h2>Samples a second</h2>{}", curves(scales));
    let _ = writeln!(html, "<h2>Where a step of the best strategy goes</h2>{}", stacks(scales));
    html += "<h2>The best of each family</h2><table><tr><th>devices</th><th>strategy</th><th>step</th>\
             <th>80 % of steps</th><th>memory</th><th>bottleneck</th></tr>\n";
    for (devices, estimates) in scales {
        for one in first_of_each(estimates) {
            let fits = if one.missing.is_some() { " (does not fit)" } else { "" };
            let _ = writeln!(
                html,
                "<tr><td>{devices}</td><td>{}</td><td>{}</td><td>{} – {}</td><td>{:.1} GB{fits}</td><td>{}</td></tr>",
                escape(&one.strategy.to_string()),
                seconds(one.seconds),
                seconds(one.interval[0]),
                seconds(one.interval[1]),
                one.memory.device() / 1e9,
                one.bottleneck.words()
            );
        }
    }
    html += "</table><h2>What short names mean</h2><table>\n";
    for (name, words) in meanings {
        let _ = writeln!(html, "<tr><td>{}</td><td>{}</td></tr>", escape(name), escape(words));
    }
    html + "</table></body></html>\n"
}

/// The best estimate of each family, in their order.
pub fn first_of_each(estimates: &[Estimate]) -> Vec<&Estimate> {
    let mut seen: Vec<String> = Vec::new();
    let mut kept = Vec::new();
    for one in estimates {
        let family = one.strategy.family();
        if !seen.contains(&family) {
            seen.push(family);
            kept.push(one);
        }
    }
    kept
}

/// Seconds for people, with three figures.
pub fn seconds(value: f64) -> String {
    match value {
        v if v < 1e-3 => format!("{:.0} µs", v * 1e6),
        v if v < 1.0 => format!("{:.1} ms", v * 1e3),
        v if v < 100.0 => format!("{v:.2} s"),
        v => format!("{v:.0} s"),
    }
}

pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A straight line through logarithms: the smallest value to the start, the largest to the end.
pub(super) fn scaled(value: f64, [low, high]: [f64; 2], [start, end]: [f64; 2]) -> f64 {
    let span = (high / low).ln();
    if span <= 0.0 { 0.5 * (start + end) } else { start + (value / low).ln() / span * (end - start) }
}

fn curves(scales: &[Scale]) -> String {
    let mut families: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for (devices, estimates) in scales {
        for one in first_of_each(estimates).into_iter().filter(|one| one.missing.is_none()) {
            families.entry(one.strategy.family()).or_default().push((*devices as f64, one.throughput));
        }
    }
    let all: Vec<(f64, f64)> = families.values().flatten().copied().collect();
    if all.is_empty() {
        return "<p>Nothing fits.</p>".into();
    }
    let range = |of: fn(&(f64, f64)) -> f64| {
        all.iter().map(of).fold([f64::INFINITY, 0.0f64], |[low, high], v| [low.min(v), high.max(v)])
    };
    let (across, up) = (range(|p| p.0), range(|p| p.1));
    let x = |v: f64| scaled(v, across, [MARGIN, WIDTH - 160.0]);
    let y = |v: f64| scaled(v, up, [HEIGHT - 40.0, 20.0]);
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">");
    for (devices, _) in scales {
        let at = x((*devices as f64).clamp(across[0], across[1]));
        let _ = write!(
            svg,
            "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{devices}</text>",
            HEIGHT - 20.0
        );
    }
    for value in up {
        let _ = write!(svg, "<text x=\"4\" y=\"{:.1}\">{value:.3e}</text>", y(value) + 4.0);
    }
    let _ = write!(svg, "<text x=\"{MARGIN}\" y=\"{:.1}\">devices</text>", HEIGHT - 4.0);
    for (i, (family, points)) in families.iter().enumerate() {
        let color = COLORS[i % COLORS.len()];
        let line: Vec<String> = points.iter().map(|p| format!("{:.1},{:.1}", x(p.0), y(p.1))).collect();
        let _ = write!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>",
            line.join(" ")
        );
        for p in points {
            let _ =
                write!(svg, "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{color}\"/>", x(p.0), y(p.1));
        }
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{color}\">{}</text>",
            WIDTH - 150.0,
            24.0 + 18.0 * i as f64,
            escape(family)
        );
    }
    svg + "</svg>"
}

fn stacks(scales: &[Scale]) -> String {
    let best: Vec<(u32, &Estimate)> = scales.iter().filter_map(|(n, all)| Some((*n, all.first()?))).collect();
    let bar = (WIDTH - MARGIN - 160.0) / best.len().max(1) as f64;
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">");
    let mut names: Vec<&str> = Vec::new();
    for (at, (devices, one)) in best.iter().enumerate() {
        let left = MARGIN + bar * at as f64;
        let mut top = HEIGHT - 40.0;
        for (i, (name, seconds)) in one.phases.rows().into_iter().enumerate() {
            let high = seconds / one.seconds * (HEIGHT - 60.0);
            if high <= 0.0 {
                continue;
            }
            top -= high;
            let _ = write!(
                svg,
                "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{high:.1}\" fill=\"{}\"><title>{name} {}</title></rect>",
                bar * 0.8,
                COLORS[i],
                self::seconds(seconds)
            );
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let middle = left + bar * 0.4;
        let _ = write!(
            svg,
            "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{devices}</text><text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            HEIGHT - 24.0,
            HEIGHT - 8.0,
            self::seconds(one.seconds)
        );
    }
    let phases = gulliver_oracle::closed::Phases::default().rows();
    for (line, (i, (name, _))) in
        phases.iter().enumerate().filter(|(_, row)| names.contains(&row.0)).enumerate()
    {
        let y = 24.0 + 18.0 * line as f64;
        let _ =
            write!(svg, "<text x=\"{:.1}\" y=\"{y:.1}\" fill=\"{}\">{name}</text>", WIDTH - 150.0, COLORS[i]);
    }
    svg + "</svg>"
}
