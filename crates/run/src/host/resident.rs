//! Physical memory of this process.

/// Most bytes of physical memory that a process training within budgets holds beside its device and host tiers:
/// program, graph, plans, batches and buffers. Data sets held in memory come on top.
pub const BESIDE_TIERS: u64 = 64 << 20;

/// Peak physical memory of this process in bytes; `None` where the system does not report it.
pub fn peak() -> Option<u64> {
    high_water(&std::fs::read_to_string("/proc/self/status").ok()?)
}

/// The line `VmHWM: 123 kB`, in bytes.
fn high_water(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn high_water_is_read_from_the_status() {
        for (status, expected) in [
            ("Name:\tx\nVmHWM:\t    1234 kB\nVmRSS:\t 99 kB\n", Some(1234 * 1024)),
            ("VmHWM: 0 kB", Some(0)),
            ("VmRSS:\t 99 kB\n", None),
            ("VmHWM: many kB", None),
            ("VmHWM: 18446744073709551615 kB", None),
            ("", None),
        ] {
            assert_eq!(high_water(status), expected, "{status:?}");
        }
    }
}
