//! Bytes, durations and counts as people write them, both ways.

use std::time::Duration;

const BYTE_UNITS: [(&str, u64); 9] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

const BINARY: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
const COUNTS: [&str; 7] = ["", "k", "M", "B", "T", "Q", "Qi"];

const DURATION_UNITS: [(&str, f64); 6] =
    [("µs", 1e-6), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];

/// `1.5 GiB`, `512 B`: one decimal beyond the byte.
pub fn bytes(n: u64) -> String {
    let (value, unit) = scale(n, 1024.0, &BINARY);
    if unit == "B" { format!("{n} B") } else { format!("{value:.1} {unit}") }
}

/// `999`, `12.3k`, `124.4M`, `1.3B`.
pub fn count(n: u64) -> String {
    let (value, unit) = scale(n, 1000.0, &COUNTS);
    if unit.is_empty() { n.to_string() } else { format!("{value:.1}{unit}") }
}

/// Divides until the value, rounded to one decimal, is below `base`.
fn scale<'a>(n: u64, base: f64, units: &[&'a str]) -> (f64, &'a str) {
    let mut value = n as f64;
    let mut unit = 0;
    while (value * 10.0).round() / 10.0 >= base && unit + 1 < units.len() {
        value /= base;
        unit += 1;
    }
    (value, units[unit])
}

/// The shortest text that [`parse_bytes`] reads back as exactly `n`: `256MiB`, `1500B`.
pub fn exact_bytes(n: u64) -> String {
    let (name, size) = BYTE_UNITS[..5]
        .iter()
        .rev()
        .find(|(_, size)| n != 0 && n.is_multiple_of(*size))
        .unwrap_or(&BYTE_UNITS[0]);
    format!("{}{name}", n / size)
}

/// Reads `256MiB`, `1.5 GB`, `4096` (bytes). The error says what is allowed.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let allowed =
        || "a size such as \"512MiB\" or \"2 GB\" (units B, KiB, MiB, GiB, TiB, kB, MB, GB, TB)".to_string();
    let (number, unit) = split_unit(text);
    let unit = if unit.is_empty() { "B" } else { unit };
    let size = BYTE_UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or_else(allowed)?.1;
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(size).ok_or_else(allowed);
    }
    let value = number.parse::<f64>().map_err(|_| allowed())? * size as f64;
    // The bound also refuses what is not a number; below it every whole number is exact enough.
    if value >= 0.0 && value < i64::MAX as f64 { Ok(value.round() as u64) } else { Err(allowed()) }
}

/// `12 µs`, `350 ms`, `4.2 s`, `3m 05s`, `2h 03m`, `1d 04h`.
pub fn duration(d: Duration) -> String {
    let micros = d.as_micros();
    let seconds = d.as_secs_f64().round() as u64;
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..1_000_000 => format!("{} ms", micros / 1_000),
        _ if d.as_secs_f64() < 59.95 => format!("{:.1} s", d.as_secs_f64()),
        _ if seconds < 3600 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        _ if seconds < 86400 => format!("{}h {:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d {:02}h", seconds / 86400, seconds / 3600 % 24),
    }
}

/// Reads `90s`, `1.5h`, `200ms`, `10m`, `5us`. The error says what is allowed.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let allowed = || "a duration such as \"90s\", \"10m\" or \"1.5h\" (units us, ms, s, m, h)".to_string();
    let (number, unit) = split_unit(text);
    let size = DURATION_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(allowed)?.1;
    let number: f64 = number.parse().map_err(|_| allowed())?;
    Duration::try_from_secs_f64(number * size).map_err(|_| allowed())
}

/// The leading number and what follows it, both trimmed.
fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_and_written() {
        for (n, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536 << 20, "1.5 GiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(bytes(n), text);
        }
        for (text, n) in [
            ("4096", 4096),
            ("256MiB", 256 << 20),
            ("1.5 GiB", 1536 << 20),
            ("2 GB", 2_000_000_000),
            ("10kb", 10_000),
            (" 7 B ", 7),
        ] {
            assert_eq!(parse_bytes(text), Ok(n), "{text}");
        }
        for text in ["", "MiB", "-1MiB", "1.2.3GB", "5 parsecs", "99999999999GiB", "1e9", "nan", "µ", "1µ"]
        {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
        for n in [0, 1, 1500, 1 << 20, 256 << 20, 3 << 40, u64::MAX] {
            assert_eq!(parse_bytes(&exact_bytes(n)), Ok(n));
        }
        assert_eq!(exact_bytes(256 << 20), "256MiB");
    }

    #[test]
    fn durations_are_read_and_written() {
        for (seconds, text) in [
            (12e-6, "12 µs"),
            (0.35, "350 ms"),
            (4.21, "4.2 s"),
            (59.99, "1m 00s"),
            (185.0, "3m 05s"),
            (7380.0, "2h 03m"),
            (100_800.0, "1d 04h"),
        ] {
            assert_eq!(duration(Duration::from_secs_f64(seconds)), text);
        }
        for (text, seconds) in [("90s", 90.0), ("1.5h", 5400.0), ("200 ms", 0.2), ("10m", 600.0)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_secs_f64(seconds)), "{text}");
        }
        for text in ["", "90", "s", "-3s", "1w", "99999999999999999999h"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn counts_are_written() {
        for (n, text) in [(999, "999"), (12_345, "12.3k"), (999_999, "1.0M"), (124_439_808, "124.4M")] {
            assert_eq!(count(n), text);
        }
    }
}
