//! Metric files of a run directory: `metrics.csv`, one value per line as it is measured, and a
//! TensorBoard event file. After a resume the CSV reads as if the run had never stopped.

use super::table::csv_field;
use super::tensorboard::TensorBoard;
use crate::event::{Event, Metrics};
use gulliver_run::files::atomic::write_atomic;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

const HEADER: &str = "step,phase,name,value";

/// The metric files of one run directory.
pub struct MetricFiles {
    csv: File,
    board: TensorBoard,
}

impl MetricFiles {
    /// Starts the files in the existing directory `dir`, or continues them after `resumed_step`:
    /// rows of later steps are removed from the CSV. `wall_time` is in seconds since 1970.
    pub fn open(dir: &Path, resumed_step: Option<u64>, wall_time: f64) -> io::Result<MetricFiles> {
        let path = dir.join("metrics.csv");
        let kept = match resumed_step {
            Some(step) => rows_up_to(&path, step)?,
            None => String::new(),
        };
        write_atomic(&path, |file| write!(file, "{HEADER}\n{kept}"))?;
        let csv = OpenOptions::new().append(true).open(&path)?;
        Ok(MetricFiles { csv, board: TensorBoard::create(dir, wall_time, resumed_step)? })
    }

    /// Writes what the event measured, if anything; each row is in the file when this returns.
    pub fn record(&mut self, event: &Event, wall_time: f64) -> io::Result<()> {
        match event {
            Event::Step { step, loss, lr, samples_per_second, metrics } => {
                let mut all = metrics.clone();
                all.extend([
                    ("loss".to_string(), *loss),
                    ("lr".to_string(), *lr),
                    ("samples_per_second".to_string(), *samples_per_second),
                ]);
                self.write(*step, "train", &all, wall_time)
            }
            Event::Eval { step, metrics } => self.write(*step, "eval", metrics, wall_time),
            _ => Ok(()),
        }
    }

    fn write(&mut self, step: u64, phase: &str, metrics: &Metrics, wall_time: f64) -> io::Result<()> {
        for (name, value) in metrics {
            self.csv.write_all(format!("{step},{phase},{},{value}\n", csv_field(name)).as_bytes())?;
            self.board.scalar(&format!("{phase}/{name}"), step, *value as f32, wall_time)?;
        }
        Ok(())
    }
}

/// The whole rows of an earlier session up to `step`; none if there was no such session.
fn rows_up_to(path: &Path, step: u64) -> io::Result<String> {
    let text = match fs::read(path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error),
    };
    let is_kept = |row: &&str| {
        let row_step = row.split(',').next().and_then(|field| field.parse::<u64>().ok());
        row.ends_with('\n') && row_step.is_some_and(|row_step| row_step <= step)
    };
    Ok(text.split_inclusive('\n').filter(is_kept).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;

    fn step(step: u64, loss: f64) -> Event {
        Event::Step { step, loss, lr: 0.5, samples_per_second: 10.0, metrics: Metrics::new() }
    }

    fn eval(step: u64, name: &str) -> Event {
        Event::Eval { step, metrics: Metrics::from([(name.to_string(), 1.0)]) }
    }

    #[test]
    fn a_resumed_file_equals_an_uninterrupted_one() {
        let dir = TestDir::new("metrics-resume");
        let read = || fs::read_to_string(dir.join("metrics.csv")).unwrap();
        let all = [step(1, 2.0), eval(1, "top,1"), step(2, f64::NAN), eval(2, "a\"b")];

        let mut files = MetricFiles::open(&dir, None, 1.0).unwrap();
        all.iter().for_each(|event| files.record(event, 1.0).unwrap());
        let whole = read();
        assert_eq!(
            whole,
            "step,phase,name,value\n1,train,loss,2\n1,train,lr,0.5\n1,train,samples_per_second,10\n\
             1,eval,\"top,1\",1\n2,train,loss,NaN\n2,train,lr,0.5\n2,train,samples_per_second,10\n\
             2,eval,\"a\"\"b\",1\n"
        );

        fs::write(dir.join("metrics.csv"), format!("{whole}3,train,loss,9\n3,tra")).unwrap();
        let mut files = MetricFiles::open(&dir, Some(1), 2.0).unwrap();
        all[2..].iter().for_each(|event| files.record(event, 2.0).unwrap());
        assert_eq!(read(), whole);

        MetricFiles::open(&dir, None, 3.0).unwrap();
        assert_eq!(read(), "step,phase,name,value\n");
    }

    #[test]
    fn resuming_without_a_file_starts_one() {
        let dir = TestDir::new("metrics-missing");
        let mut files = MetricFiles::open(&dir, Some(7), 1.0).unwrap();
        files.record(&Event::Warning { message: "not a metric".into() }, 1.0).unwrap();
        assert_eq!(fs::read_to_string(dir.join("metrics.csv")).unwrap(), "step,phase,name,value\n");
        assert!(MetricFiles::open(&dir.join("missing"), None, 1.0).is_err());
    }
}
