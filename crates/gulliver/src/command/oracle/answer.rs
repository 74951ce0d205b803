//! The oracle's answer for one number of devices: a table for people, values for programs, and a legend.

use crate::oracle::page::{first_of_each, seconds};
use crate::report::table::{Column, render};
use crate::units;
use gulliver_oracle::cluster::Cluster;
use gulliver_oracle::estimate::Estimate;
use gulliver_oracle::mixed::LayerCut;
use gulliver_oracle::oracle::Oracle;
use gulliver_oracle::rank::EpochCost;
use gulliver_oracle::setting::Setting;
use gulliver_oracle::words::legend;
use gulliver_oracle::workload::Workload;
use std::fmt::Write as _;
use std::time::Duration;

/// Layers in a row that are shared alike, and strategies that do not fit, of which a line names this many.
const NAMED: usize = 6;

/// An amount of training: its samples, and its name for people.
pub struct Training {
    pub samples: f64,
    /// Such as `300B tokens`.
    pub called: String,
}

impl Training {
    /// Seconds of all its steps.
    pub fn seconds(&self, one: &Estimate, setting: &Setting) -> f64 {
        one.seconds * (self.samples / f64::from(setting.batch)).ceil()
    }
}

/// The question, the same for all numbers of devices.
pub struct Question<'a> {
    pub cluster: &'a Cluster,
    pub setting: &'a Setting,
    /// Tokens of a sample, for models of text.
    pub tokens: Option<f64>,
    /// Whether epochs are asked about.
    pub epoch: bool,
    pub training: Option<Training>,
    pub top: usize,
}

impl Question<'_> {
    /// The best of each family that fits.
    pub fn shown<'e>(&self, estimates: &'e [Estimate]) -> Vec<&'e Estimate> {
        let fits = first_of_each(estimates).into_iter().filter(|one| one.missing.is_none());
        fits.take(self.top.max(1)).collect()
    }

    /// An estimate for programs.
    pub fn value(&self, one: &Estimate, shares: &mut Shares) -> serde_json::Value {
        let mut value = serde_json::json!({
            "name": one.strategy.to_string(), "family": one.strategy.family(), "fits": one.missing.is_none(),
            "bottleneck_in_words": one.bottleneck.words(), "estimate": one,
            "in_words": one.strategy.in_words(self.setting.batch),
        });
        let runs = shares.runs(one);
        if !runs.is_empty() {
            value["ways"] = serde_json::json!(runs);
        }
        if let Some(tokens) = self.tokens {
            value["tokens_per_second"] = serde_json::json!(one.throughput * tokens);
        }
        if let Some(training) = &self.training {
            let seconds = training.seconds(one, self.setting);
            let days = seconds / 86400.0;
            value["training"] =
                serde_json::json!({ "samples": training.samples, "seconds": seconds, "days": days });
        }
        if self.epoch {
            value["epoch"] = serde_json::json!(EpochCost::new(one, self.cluster, self.setting));
        }
        value
    }

    /// The best of each family, the best of all in words, and last the families that do not fit.
    pub fn text(&self, count: u32, estimates: &[Estimate], shares: &mut Shares) -> String {
        let shown = self.shown(estimates);
        let mut text = format!("{count} device{}\n", if count == 1 { "" } else { "s" });
        if let Some(best) = shown.first() {
            text += &self.table(&shown);
            let _ = writeln!(text, "best: {}", best.strategy.in_words(self.setting.batch));
        }
        for words in shown.iter().filter_map(|one| shares.words(one)) {
            let _ = writeln!(text, "{words}");
        }
        text + &self.unfit(count, estimates, shown.is_empty())
    }

    fn table(&self, shown: &[&Estimate]) -> String {
        let mut columns = vec![
            Column::Left("strategy"),
            Column::Right("step"),
            Column::Right("80 % of steps"),
            Column::Right("samples/s"),
        ];
        columns.extend(self.tokens.map(|_| Column::Right("tokens/s")));
        columns.extend(self.training.as_ref().map(|training| Column::Right(&training.called)));
        columns.push(Column::Right("memory"));
        if self.epoch {
            columns.extend([Column::Right("epoch"), Column::Right("kWh")]);
            if self.cluster.price.or(self.cluster.energy_price).is_some() {
                columns.push(Column::Right("money"));
            }
        }
        columns.push(Column::Left("held up by"));
        let row = |one: &&Estimate| {
            let mut row = vec![
                one.strategy.to_string(),
                seconds(one.seconds),
                format!("{} – {}", seconds(one.interval.low), seconds(one.interval.high)),
                figure(one.throughput),
            ];
            row.extend(self.tokens.map(|tokens| figure(one.throughput * tokens)));
            row.extend(self.training.as_ref().map(|training| days(training.seconds(one, self.setting))));
            row.push(units::bytes(one.memory.device() as u64));
            if self.epoch {
                let epoch = EpochCost::new(one, self.cluster, self.setting);
                row.extend([days(epoch.seconds), format!("{:.1}", epoch.kwh)]);
                row.extend(epoch.money.map(|money| format!("{money:.2}")));
            }
            row.push(one.bottleneck.words().into());
            row
        };
        render(&columns, &shown.iter().map(row).collect::<Vec<_>>())
    }

    /// Families of which nothing fits, the nearest first, in a line for each memory that is too small.
    fn unfit(&self, count: u32, estimates: &[Estimate], nothing: bool) -> String {
        let cluster = self.cluster;
        let firsts = first_of_each(estimates).into_iter().filter(|one| one.missing.is_some());
        let (on_host, on_device): (Vec<&Estimate>, Vec<&Estimate>) =
            firsts.partition(|one| one.memory.device() <= cluster.device.memory);
        let mut text = String::new();
        let mut line = |all: &[&Estimate], needs: fn(&Estimate, f64) -> f64, of: f64, whose: &str| {
            let devices = f64::from(cluster.devices.min(count));
            let least = all.iter().min_by(|a, b| needs(a, devices).total_cmp(&needs(b, devices)));
            let Some(least) = least else { return };
            let mut families: Vec<String> = all.iter().map(|one| one.strategy.family()).collect();
            let more = families.len().saturating_sub(NAMED);
            families.truncate(NAMED);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let (at_least, need) = if all.len() > 1 { (" at least", "need") } else { ("", "needs") };
            let (holder, bytes) = least.memory.largest();
            let holder = match whose {
                "a device" => format!(", of which {} for {holder}", units::bytes(bytes as u64)),
                _ => String::new(),
            };
            let _ = writeln!(
                text,
                "does not fit: {}{more} ({need}{at_least} {} of the {} of {whose}{holder})",
                families.join(", "),
                units::bytes(needs(least, devices) as u64),
                units::bytes(of as u64),
            );
        };
        line(&on_device, |one, _| one.memory.device(), cluster.device.memory, "a device");
        line(&on_host, |one, devices| one.memory.host * devices, cluster.host_memory, "a node's host memory");
        if nothing {
            text += "nothing fits: try more devices, a smaller --batch, or another cluster\n";
        }
        text
    }
}

/// Short names and their meanings.
pub type Meanings = Vec<(String, &'static str)>;

/// The short names of these estimates with their meanings.
pub fn meanings(estimates: &[&Estimate], training: Option<&Training>) -> Meanings {
    let strategies: Vec<_> = estimates.iter().map(|one| one.strategy).collect();
    let mut rows = legend(&strategies);
    for row in estimates.iter().filter_map(|one| one.bottleneck.explained()) {
        if !rows.contains(&row) {
            rows.push(row);
        }
    }
    rows.push(("80 % of steps", "eight of ten steps are expected to take between these times"));
    let mut rows: Meanings = rows.into_iter().map(|(name, words)| (name.to_string(), words)).collect();
    rows.extend(training.map(|training| {
        (training.called.clone(), "how long training on that many takes; others: --tokens or --samples")
    }));
    rows
}

/// Meanings as lines.
pub fn legend_lines(rows: &Meanings) -> String {
    let columns = [Column::Left("what short names mean"), Column::Left("(numbers in them are examples)")];
    let cells: Vec<Vec<String>> =
        rows.iter().map(|(name, words)| vec![name.clone(), words.to_string()]).collect();
    render(&columns, &cells)
}

/// A count without a needless `.0`: `300B`.
pub fn round_count(count: f64) -> String {
    units::count(count as u64).replace(".0", "")
}

/// A rate: a figure after the point only where it is small.
fn figure(value: f64) -> String {
    match value {
        v if v >= 1e6 => units::count(v as u64),
        v if v >= 1000.0 => format!("{v:.0}"),
        v if v >= 1.0 => format!("{v:.1}"),
        v => format!("{v:.3}"),
    }
}

/// Days where there is more than one, else as any other duration.
pub fn days(seconds: f64) -> String {
    match seconds / 86400.0 {
        days if days >= 100.0 => format!("{days:.0} days"),
        days if days >= 1.0 => format!("{days:.1} days"),
        _ => units::duration(Duration::from_secs_f64(seconds.clamp(0.0, 1e12))),
    }
}

/// How the layers of a mixed cut are shared.
pub struct Shares<'a>(pub Oracle<'a>, pub &'a Workload);

impl Shares<'_> {
    /// Layers in a row that are shared in the same way: the way, the first and the last of them.
    fn runs(&mut self, one: &Estimate) -> Vec<(LayerCut, &str, &str)> {
        let ways = self.0.ways(&one.strategy);
        let mut runs: Vec<(LayerCut, &str, &str)> = Vec::new();
        for (way, layer) in ways.into_iter().zip(&self.1.layers) {
            match runs.last_mut().filter(|last| last.0 == way) {
                Some(last) => last.2 = &layer.name,
                None => runs.push((way, &layer.name, &layer.name)),
            }
        }
        runs
    }

    /// In words; nothing of other strategies.
    pub fn words(&mut self, one: &Estimate) -> Option<String> {
        let words = |(way, first, last): (LayerCut, &str, &str)| {
            let to = if first == last { String::new() } else { format!(" to {last}") };
            format!("{first}{to} by {}", way.name())
        };
        let runs = self.runs(one);
        let mut runs: Vec<String> = match runs[..] {
            [(way, ..)] => vec![format!("all layers by {}", way.name())],
            _ => runs.into_iter().map(words).collect(),
        };
        let more = runs.len().saturating_sub(NAMED);
        runs.truncate(NAMED);
        if more > 0 {
            runs.push(format!("and {more} more (--json has all)"));
        }
        (!runs.is_empty()).then(|| format!("{} shares {}", one.strategy, runs.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_rates_for_people() {
        for (seconds, expected) in [
            (0.5, "500 ms"),
            (7200.0, "2h 00m"),
            (86400.0 * 1.5, "1.5 days"),
            (86400.0 * 1234.0, "1234 days"),
        ] {
            assert_eq!(days(seconds), expected);
        }
        for (rate, expected) in [(0.0123, "0.012"), (12.34, "12.3"), (12345.6, "12346"), (2.5e7, "25.0M")] {
            assert_eq!(figure(rate), expected);
        }
    }
}
