//! A self-contained HTML page: scaling curves of the families, and phases of the best strategies.

use gulliver_oracle::estimate::Estimate;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Estimates of one number of devices, best first.
pub type Scale = (u32, Vec<Estimate>);

/// How pages look.
const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:820px;margin:2em auto;\
    padding:0 1em;color:#222}table{border-collapse:collapse;width:100%}\
    td,th{padding:.2em .6em;text-align:right;border-bottom:1px solid #ddd}\
    td:nth-child(2),th:nth-child(2),td:last-child,th:last-child{text-align:left}\
    svg{width:100%;height:auto}text{font:12px system-ui,sans-serif}";
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 340.0;
const MARGIN: f64 = 60.0;
const COLORS: [&str; 10] = [
    "#4063d8", "#389826", "#cb3c33", "#9558b2", "#b8860b", "#008b8b", "#d2691e", "#708090", "#c71585",
    "#2f4f4f",
];

/// The beginning of a page: its title, and lines about the question.
pub(super) fn opening(title: &str, about: &[String]) -> String {
    let mut html = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title>\
         <style>{STYLE}</style></head><body><h1>{0}</h1>\n",
        escape(title)
    );
    for line in about {
        let _ = writeln!(html, "<p>{}</p>", escape(line));
    }
    html
}

/// The page. `title` and `about` are plain text; `meanings` explains short names.
pub fn page(title: &str, about: &[String], scales: &[Scale], meanings: &[(String, &str)]) -> String {
    let mut html = opening(title, about);
    let _ = writeln!(html, "<h2>Samples a second</h2>{}", throughputs(scales));
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
                seconds(one.interval.low),
                seconds(one.interval.high),
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

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The curve of each family.
fn throughputs(scales: &[Scale]) -> String {
    let mut families: BTreeMap<String, Vec<Point>> = BTreeMap::new();
    for (devices, estimates) in scales {
        for one in first_of_each(estimates).into_iter().filter(|one| one.missing.is_none()) {
            let point = Point { x: f64::from(*devices), y: one.throughput };
            families.entry(one.strategy.family()).or_default().push(point);
        }
    }
    curves(&families.into_iter().collect::<Vec<_>>(), "devices")
}

/// A point of a curve.
#[derive(Clone, Copy)]
pub(super) struct Point {
    pub x: f64,
    pub y: f64,
}

/// Smallest and largest of some values, placed on the page on a logarithmic scale.
struct Axis {
    low: f64,
    high: f64,
    start: f64,
    end: f64,
}

impl Axis {
    fn new(values: impl Iterator<Item = f64>, start: f64, end: f64) -> Axis {
        let ends = |(low, high): (f64, f64), v: f64| (low.min(v), high.max(v));
        let (low, high) = values.fold((f64::INFINITY, 0.0), ends);
        Axis { low, high, start, end }
    }

    fn at(&self, value: f64) -> f64 {
        let span = (self.high / self.low).ln();
        let share = if span <= 0.0 { 0.5 } else { (value / self.low).ln() / span };
        self.start + share * (self.end - self.start)
    }
}

/// A line through the points of each name; `across` names the horizontal axis.
pub(super) fn curves(lines: &[(String, Vec<Point>)], across: &str) -> String {
    let all: Vec<Point> = lines.iter().flat_map(|(_, points)| points).copied().collect();
    if all.is_empty() {
        return "<p>Nothing fits.</p>".into();
    }
    let x = Axis::new(all.iter().map(|p| p.x), MARGIN, WIDTH - 160.0);
    let y = Axis::new(all.iter().map(|p| p.y), HEIGHT - 40.0, 20.0);
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">");
    for value in [x.low, x.high] {
        let (at, line) = (x.at(value), HEIGHT - 20.0);
        let _ = write!(svg, "<text x=\"{at:.1}\" y=\"{line:.1}\" text-anchor=\"middle\">{value}</text>");
    }
    for value in [y.low, y.high] {
        let _ = write!(svg, "<text x=\"4\" y=\"{:.1}\">{value:.2}</text>", y.at(value) + 4.0);
    }
    let _ = write!(svg, "<text x=\"{MARGIN}\" y=\"{:.1}\">{across}</text>", HEIGHT - 4.0);
    for (i, (name, points)) in lines.iter().enumerate() {
        let color = COLORS[i % COLORS.len()];
        let line: Vec<String> = points.iter().map(|p| format!("{:.1},{:.1}", x.at(p.x), y.at(p.y))).collect();
        let _ = write!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>",
            line.join(" ")
        );
        for p in points {
            let (x, y) = (x.at(p.x), y.at(p.y));
            let _ = write!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{color}\"/>");
        }
        let (left, top) = (WIDTH - 150.0, 24.0 + 18.0 * i as f64);
        let _ = write!(svg, "<text x=\"{left:.1}\" y=\"{top:.1}\" fill=\"{color}\">{}</text>", escape(name));
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
    let phases = gulliver_oracle::estimate::Phases::default().rows();
    for (line, (i, (name, _))) in
        phases.iter().enumerate().filter(|(_, row)| names.contains(&row.0)).enumerate()
    {
        let y = 24.0 + 18.0 * line as f64;
        let _ =
            write!(svg, "<text x=\"{:.1}\" y=\"{y:.1}\" fill=\"{}\">{name}</text>", WIDTH - 150.0, COLORS[i]);
    }
    svg + "</svg>"
}
