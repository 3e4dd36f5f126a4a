//! What the kernel says of this host's memory (`/proc/meminfo`, proc(5)).

use std::fs;

/// The kernel's file, or nothing where `/proc` is not mounted.
#[must_use]
pub fn read() -> String {
    fs::read_to_string("/proc/meminfo").unwrap_or_default()
}

/// An amount of it by its name, as `MemTotal`, in bytes.
#[must_use]
pub fn bytes(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn amounts_are_read_by_their_whole_names() {
        let text = "MemTotal: 8 kB\nMemAvailable:    2048 kB\nHugePages_Total:  0\n";
        assert_eq!(bytes(text, "MemAvailable"), Some(2 << 20));
        for name in ["Mem", "SwapTotal", "HugePages_Total"] {
            assert_eq!(bytes(text, name), None, "{name}");
        }
    }
}
