//! What this computer offers to virtual cards: memory, CPUs, and what the process has used.
//!
//! Invariant: only reads. A figure that the system does not tell is absent or a documented default.
//! Does not know: cards, plans. Source: proc(5), cgroups(7).

use std::fs;
use std::path::Path;

/// Taken for the memory of a system that tells nothing.
const UNKNOWN_BYTES: u64 = 4 << 30;

/// Taken for the largest cache of a system that tells nothing.
const UNKNOWN_CACHE_BYTES: u64 = 32 << 20;

/// Memory that can be used without swapping: what the system says, or what the tightest control group leaves.
/// 4 GiB where neither says anything.
pub fn available_bytes() -> u64 {
    let system = field_kib("/proc/meminfo", "MemAvailable:").map_or(UNKNOWN_BYTES, |kib| kib * 1024);
    let root = Path::new("/sys/fs/cgroup");
    let own = fs::read_to_string("/proc/self/cgroup").ok();
    let group = own.and_then(|text| group_left_bytes(root, &text));
    system.min(group.unwrap_or(u64::MAX))
}

/// The largest cache of the first CPU; 32 MiB where the system does not say.
pub fn largest_cache_bytes() -> u64 {
    let folder = Path::new("/sys/devices/system/cpu/cpu0/cache");
    let size = |i: u32| fs::read_to_string(folder.join(format!("index{i}/size"))).ok();
    (0..).map_while(size).filter_map(|text| cache_bytes(&text)).max().unwrap_or(UNKNOWN_CACHE_BYTES)
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

/// `32768K`, as the system writes sizes of caches.
fn cache_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let (digits, unit) = match text.strip_suffix('K') {
        Some(digits) => (digits, 1 << 10),
        None => text.strip_suffix('M').map_or((text, 1), |digits| (digits, 1 << 20)),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// The least that a control group (version 2) of this process, or one above it, still allows: its limit less what is
/// in use, where file pages that can be dropped do not count. `own` is the text of `/proc/self/cgroup`; `None`: there
/// is no limit.
fn group_left_bytes(root: &Path, own: &str) -> Option<u64> {
    let own = own.lines().find_map(|l| l.strip_prefix("0::"))?;
    let group = root.join(own.trim_start_matches('/'));
    // A group that this mount does not show has no file to read; those above it may.
    group.ancestors().take_while(|g| g.starts_with(root)).filter_map(left_in).min()
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
        assert!(largest_cache_bytes() >= 1 << 10);
    }

    #[test]
    fn sizes_of_caches_are_read_as_the_system_writes_them() {
        for (text, expected) in [
            ("32K\n", Some(32 << 10)),
            ("32768K\n", Some(32 << 20)),
            ("256M", Some(256 << 20)),
            ("64", Some(64)),
            ("", None),
            ("many", None),
            ("18446744073709551615K", None),
        ] {
            assert_eq!(cache_bytes(text), expected, "{text:?}");
        }
    }

    /// Groups below a folder of this test's own: path, limit, in use, of that file pages that can be dropped.
    fn groups(name: &str, groups: &[(&str, &str, u64, u64)]) -> std::path::PathBuf {
        let root = std::env::temp_dir().join(format!("tandem-groups-{}-{name}", std::process::id()));
        for (path, limit, used, inactive) in groups {
            let group = root.join(path);
            fs::create_dir_all(&group).unwrap();
            fs::write(group.join("memory.max"), format!("{limit}\n")).unwrap();
            fs::write(group.join("memory.current"), format!("{used}\n")).unwrap();
            let stat = format!("anon 7\nactive_file 9\ninactive_file {inactive}\n");
            fs::write(group.join("memory.stat"), stat).unwrap();
        }
        root
    }

    #[test]
    fn the_tightest_group_on_the_way_to_the_root_counts() {
        let all: [(&str, &str, u64, u64); 4] = [
            ("a", "1000", 700, 100),
            ("a/b", "max", 600, 0),
            ("a/b/c", "5000", 500, 0),
            ("other", "10", 10, 0),
        ];
        let root = groups("tightest", &all);
        for (own, expected) in [
            ("0::/a/b/c\n", Some(400)),
            ("4:memory:/other\n0::/a/b\n", Some(400)),
            ("0::/a/b/c/not/mounted\n", Some(400)),
            ("0::/other\n", Some(0)),
            ("0::/\n", None),
            ("4:memory:/a\n", None),
            ("", None),
        ] {
            assert_eq!(group_left_bytes(&root, own), expected, "{own:?}");
        }
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_group_over_its_limit_leaves_nothing() {
        let all: [(&str, &str, u64, u64); 2] = [("over", "100", 900, 50), ("clean", "100", 90, 200)];
        let root = groups("over", &all);
        assert_eq!(group_left_bytes(&root, "0::/over"), Some(0));
        assert_eq!(group_left_bytes(&root, "0::/clean"), Some(100));
        fs::remove_dir_all(root).unwrap();
    }
}
