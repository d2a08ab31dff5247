//! What this computer offers to virtual cards: memory, CPUs, and what the process has used.
//!
//! Invariant: only reads. A figure that the system does not tell is absent or a documented default.
//! Does not know: cards, plans. Source: proc(5), cgroups(7).

use std::fs;
use std::path::Path;

/// Taken for the memory of a system that tells nothing.
const UNKNOWN_BYTES: u64 = 4 << 30;

/// Memory that can be used without swapping: what the system says, or what the tightest control group leaves.
pub fn available_bytes() -> u64 {
    let system = field_kib("/proc/meminfo", "MemAvailable:").map_or(UNKNOWN_BYTES, |kib| kib * 1024);
    system.min(group_left_bytes().unwrap_or(u64::MAX))
}

/// CPUs on which this process may run.
pub fn allowed_cpus() -> usize {
    core_affinity::get_core_ids().map_or(1, |cpus| cpus.len().max(1))
}

/// The most memory that this process has held, by the system's own account.
pub fn peak_rss_bytes() -> Option<u64> {
    field_kib("/proc/self/status", "VmHWM:").map(|kib| kib * 1024)
}

/// The processor's name.
pub fn cpu_name() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("model name"));
    line.and_then(|l| l.split(':').nth(1)).map_or("unknown".to_owned(), |name| name.trim().to_owned())
}

/// `KEY   123 kB`.
fn field_kib(path: &str, key: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let rest = text.lines().find_map(|l| l.strip_prefix(key))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// The least that a control group (version 2) of this process, or one above it, still allows: its limit less what is
/// in use, where file pages that can be dropped do not count.
fn group_left_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = text.lines().find_map(|l| l.strip_prefix("0::"))?;
    let root = Path::new("/sys/fs/cgroup");
    let mut group = root.join(own.trim_start_matches('/'));
    let mut least = None;
    while group.starts_with(root) {
        if let Some(left) = left_in(&group) {
            least = Some(least.map_or(left, |l: u64| l.min(left)));
        }
        if !group.pop() {
            break;
        }
    }
    least
}

fn left_in(group: &Path) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(group.join(name)).ok();
    // "max" is no number and no limit.
    let limit: u64 = read("memory.max")?.trim().parse().ok()?;
    let current: u64 = read("memory.current")?.trim().parse().ok()?;
    let stat = read("memory.stat").unwrap_or_default();
    let clean =
        stat.lines().find_map(|l| l.strip_prefix("inactive_file ")).and_then(|v| v.trim().parse().ok());
    Some(limit.saturating_sub(current.saturating_sub(clean.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_this_machine_make_sense() {
        assert!(available_bytes() > 1 << 20, "{} B available", available_bytes());
        assert!(allowed_cpus() >= 1);
        if cfg!(target_os = "linux") {
            assert!(peak_rss_bytes().is_some_and(|b| b > 1 << 20));
        }
        assert!(!cpu_name().is_empty());
    }
}
