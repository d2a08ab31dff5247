//! What this computer offers to virtual cards: memory, CPUs, and what the process has used.
pub fn available_bytes() -> u64 { 
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    text.lines().find_map(|l| l.strip_prefix("MemAvailable:")).and_then(|l| l.trim().split(' ').next()).and_then(|v| v.parse::<u64>().ok()).map_or(1 << 32, |k| k * 1024)
}
pub fn allowed_cpus() -> usize { core_affinity::get_core_ids().map_or(1, |c| c.len().max(1)) }
pub fn peak_rss_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    text.lines().find_map(|l| l.strip_prefix("VmHWM:")).and_then(|l| l.trim().split(' ').next()).and_then(|v| v.parse::<u64>().ok()).map(|k| k * 1024)
}
pub fn cpu_name() -> String { String::from("cpu") }
