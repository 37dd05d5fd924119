//! What this machine has: processors for this process, and memory.

use std::fs;

/// Processors that this process may run on.
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Bytes of memory in all, or a guess where the kernel does not say.
pub(crate) fn memory_bytes() -> u64 {
    meminfo("MemTotal:").unwrap_or(1 << 33)
}

/// Requests below this are not worth asking the kernel.
const SMALL: usize = 64 << 20;

/// Bytes that could be allocated now, as far as it matters for a request of `request` bytes.
pub(crate) fn available_bytes(request: usize) -> u64 {
    if request < SMALL {
        return u64::MAX;
    }
    let machine = meminfo("MemAvailable:").unwrap_or(u64::MAX);
    machine.min(cgroup_available().unwrap_or(u64::MAX))
}

fn meminfo(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// What the control group of this process (version 2) leaves it.
fn cgroup_available() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let read = |file: &str| fs::read_to_string(format!("/sys/fs/cgroup{path}/{file}")).ok()?.trim().parse::<u64>().ok();
    Some(read("memory.max")?.saturating_sub(read("memory.current")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_processors_and_memory() {
        assert!(processors() > 0);
        assert!(memory_bytes() > 1 << 20);
        assert_eq!(available_bytes(1), u64::MAX);
        assert!(available_bytes(1 << 30) < u64::MAX);
    }
}
