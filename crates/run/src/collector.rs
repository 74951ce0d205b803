//! Planned and measured amounts by input size: peaks of tiers, bytes over links, seconds. Bytes that differ raise an
//! alarm. Decides nothing.

use gulliver_graph::dim::Bindings;
use gulliver_plan::document::job::Purpose;
use gulliver_plan::document::ledger::Ledger;
use gulliver_plan::document::plan::TIERS;
use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

/// Planned or measured amounts of runs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Amounts {
    /// Most bytes of each tier in use at once.
    pub peaks: [u64; TIERS.len()],
    /// Bytes over the links.
    pub moved: Ledger,
    /// Seconds; planned seconds are zero without a budget.
    pub seconds: f64,
}

impl Amounts {
    /// Adds another run: sums bytes moved and seconds, and keeps the higher peaks.
    pub fn add(&mut self, other: &Amounts) {
        self.peaks.iter_mut().zip(other.peaks).for_each(|(peak, one)| *peak = (*peak).max(one));
        self.moved += other.moved;
        self.seconds += other.seconds;
    }

    /// All numbers of bytes with their names.
    pub fn bytes(&self) -> [(&'static str, u64); 8] {
        let [device, host, disk] = self.peaks;
        [
            ("peak of the device", device),
            ("peak of the host", host),
            ("peak of the disk", disk),
            ("host to device", self.moved.to_device),
            ("device to host", self.moved.to_host),
            ("from disk", self.moved.disk_read),
            ("to disk", self.moved.disk_written),
            ("from other devices", self.moved.from_peers),
        ]
    }
}

/// All completed runs with inputs of one size.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Training or evaluation.
    pub purpose: Purpose,
    /// The sizes of the whole batch.
    pub sizes: Bindings,
    /// Number of runs.
    pub runs: u64,
    /// Amounts of their plans.
    pub planned: Amounts,
    /// Measured amounts.
    pub measured: Amounts,
    /// Seconds of the first run, which may have touched memory for the first time.
    pub first: f64,
    alarmed: bool,
}

impl Record {
    /// `batch 8, length 24`.
    pub fn size(&self) -> String {
        let sizes: Vec<String> = self.sizes.iter().map(|(symbol, n)| format!("{symbol} {n}")).collect();
        sizes.join(", ")
    }
}

/// The first run with inputs of one size whose bytes differ from the plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Alarm {
    /// Training or evaluation.
    pub purpose: Purpose,
    /// The sizes, in words.
    pub size: String,
    /// Names of the bytes that differ, with planned and measured numbers.
    pub differences: Vec<(&'static str, u64, u64)>,
}

impl fmt::Display for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.purpose {
            Purpose::Train => "training",
            Purpose::Evaluate => "evaluation",
        };
        write!(f, "{what} with inputs of {} was not as planned: ", self.size)?;
        for (i, (name, planned, measured)) in self.differences.iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            write!(f, "{comma}{name} {planned} bytes planned, {measured} measured")?;
        }
        write!(f, "; please report this")
    }
}

/// Planned and measured amounts by input size.
#[derive(Debug, Default)]
pub struct Collector {
    records: Vec<Record>,
    by_size: HashMap<(Purpose, Bindings), usize>,
    alarms: Vec<Alarm>,
    alarmed: u64,
    runs: u64,
    /// A buffer for the times of instructions, which is reused.
    times: Vec<Duration>,
}

impl Collector {
    /// The number of the record for inputs of these sizes; makes one if there is none.
    pub fn record(&mut self, purpose: Purpose, sizes: &Bindings) -> usize {
        *self.by_size.entry((purpose, sizes.clone())).or_insert_with(|| {
            let (planned, measured) = Default::default();
            let (sizes, runs, first, alarmed) = (sizes.clone(), 0, 0.0, false);
            self.records.push(Record { purpose, sizes, runs, planned, measured, first, alarmed });
            self.records.len() - 1
        })
    }

    /// Records a completed run. Raises an alarm if bytes differ from the plan, at most one for each size.
    pub fn ran(&mut self, record: usize, planned: &Amounts, measured: &Amounts) {
        self.runs += 1;
        let record = &mut self.records[record];
        if record.runs == 0 {
            record.first = measured.seconds;
        }
        record.runs += 1;
        record.planned.add(planned);
        record.measured.add(measured);
        if (planned.peaks, planned.moved) == (measured.peaks, measured.moved) || record.alarmed {
            return;
        }
        record.alarmed = true;
        let pairs = planned.bytes().into_iter().zip(measured.bytes());
        let differences = pairs.filter(|((_, planned), (_, measured))| planned != measured);
        let differences = differences.map(|((name, planned), (_, measured))| (name, planned, measured));
        let (purpose, size) = (record.purpose, record.size());
        self.alarms.push(Alarm { purpose, size, differences: differences.collect() });
        self.alarmed += 1;
    }

    /// Number of completed runs.
    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// All records, in the order in which their sizes first occurred.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Takes the alarms since the last call.
    pub fn take_alarms(&mut self) -> Vec<Alarm> {
        std::mem::take(&mut self.alarms)
    }

    /// Number of alarms so far.
    pub fn alarmed(&self) -> u64 {
        self.alarmed
    }

    /// A buffer of zeros for the times of this many instructions, to be given back.
    pub(crate) fn lend_times(&mut self, instructions: usize) -> Vec<Duration> {
        let mut times = std::mem::take(&mut self.times);
        times.clear();
        times.resize(instructions, Duration::ZERO);
        times
    }

    pub(crate) fn give_back(&mut self, times: Vec<Duration>) {
        self.times = times;
    }
}

/// Totals of records: runs, planned amounts and measured amounts.
pub fn total<'a>(records: impl IntoIterator<Item = &'a Record>) -> (u64, Amounts, Amounts) {
    let mut total = (0, Amounts::default(), Amounts::default());
    for record in records {
        total.0 += record.runs;
        total.1.add(&record.planned);
        total.2.add(&record.measured);
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amounts(peaks: [u64; 3], to_host: u64, seconds: f64) -> Amounts {
        Amounts { peaks, moved: Ledger { to_host, ..Ledger::default() }, seconds }
    }

    #[test]
    fn runs_add_up_by_size() {
        let mut collector = Collector::default();
        let [short, long] = [4, 9].map(|length| Bindings::new().with("length", length));
        for (purpose, sizes, run) in [
            (Purpose::Train, &short, amounts([5, 1, 0], 7, 1.0)),
            (Purpose::Train, &long, amounts([9, 0, 2], 8, 2.0)),
            (Purpose::Train, &short, amounts([5, 1, 0], 7, 1.5)),
            (Purpose::Evaluate, &short, amounts([4, 0, 0], 0, 0.5)),
        ] {
            let record = collector.record(purpose, sizes);
            collector.ran(record, &Amounts { seconds: 1.0, ..run }, &run);
        }
        let runs: Vec<(String, u64)> = collector.records().iter().map(|r| (r.size(), r.runs)).collect();
        assert_eq!(runs, [("length 4".into(), 2), ("length 9".into(), 1), ("length 4".into(), 1)]);
        let trained = collector.records().iter().filter(|record| record.purpose == Purpose::Train);
        assert_eq!(total(trained), (3, amounts([9, 1, 2], 22, 3.0), amounts([9, 1, 2], 22, 4.5)));
        assert!(collector.take_alarms().is_empty() && collector.alarmed() == 0);
    }

    #[test]
    fn bytes_that_are_not_as_planned_raise_one_alarm_for_each_size() {
        let planned = amounts([10, 20, 30], 40, 1.0);
        for (measured, expected) in [
            (amounts([10, 20, 30], 40, 9.0), None),
            (amounts([11, 20, 30], 40, 1.0), Some("peak of the device 10 bytes planned, 11 measured")),
            (
                amounts([10, 0, 30], 41, 1.0),
                Some(
                    "peak of the host 20 bytes planned, 0 measured, device to host 40 bytes planned, 41 measured",
                ),
            ),
        ] {
            let mut collector = Collector::default();
            for length in [4, 9] {
                let sizes = Bindings::new().with("batch", 2).with("length", length);
                let record = collector.record(Purpose::Train, &sizes);
                for _ in 0..3 {
                    collector.ran(record, &planned, &measured);
                }
            }
            let told: Vec<String> = collector.take_alarms().iter().map(Alarm::to_string).collect();
            assert!(collector.take_alarms().is_empty(), "taken once");
            let line = |length: usize| {
                expected.map(|what| {
                    format!(
                        "training with inputs of batch 2, length {length} was not as planned: {what}; \
                         please report this"
                    )
                })
            };
            let lines: Vec<String> = [4, 9].into_iter().filter_map(line).collect();
            assert_eq!(told, lines);
            assert_eq!(collector.alarmed(), lines.len() as u64);
        }
    }
}
