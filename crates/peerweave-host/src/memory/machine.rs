//! The processors and the memory that this process may use.

use std::fs;
use std::path::Path;

/// Returns the number of processors that this process may run on.
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the memory of the machine in bytes, or 8 GiB if the system does not report it.
pub(crate) fn memory_bytes() -> u64 {
    meminfo("MemTotal:").unwrap_or(1 << 33)
}

/// Size of an allocation request, in bytes, from which on the available memory is queried. Smaller
/// requests are always allowed, which avoids reading files in `/proc` and `/sys`.
const SMALL: usize = 64 << 20;

/// Returns the number of bytes that can be allocated now, for a request of `request` bytes. If the
/// request has less than [`SMALL`] bytes, returns `u64::MAX` without a query of the system.
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

/// Returns how many more bytes this process may use under the limits of its control groups
/// (cgroups). Returns `None` if no group has a limit, or if the groups cannot be read.
fn cgroup_available() -> Option<u64> {
    available_in(Path::new("/sys/fs/cgroup"), &fs::read_to_string("/proc/self/cgroup").ok()?)
}

/// Returns how many more bytes a process in the control groups `groups` may use. Returns `None` if
/// no group has a limit. The limit of a group also applies to its child groups.
///
/// `groups` has the format of `/proc/self/cgroup`. `mount` is the directory of the cgroup file
/// system. In a container, the directory of a group may be missing there. In this case, only the
/// limits of the parent groups that exist are used.
fn available_in(mount: &Path, groups: &str) -> Option<u64> {
    let lines = groups.lines().filter_map(|line| {
        let (_, line) = line.split_once(':')?;
        line.split_once(':')
    });
    let limits = lines.flat_map(|(controllers, path)| {
        let (mount, [limit, used]) = match controllers {
            "" => (mount.to_owned(), ["memory.max", "memory.current"]),
            named if named.split(',').any(|name| name == "memory") => {
                (mount.join("memory"), ["memory.limit_in_bytes", "memory.usage_in_bytes"])
            }
            _ => return Vec::new(),
        };
        let below = Path::new(path.trim_start_matches('/'));
        let read = |group: &Path, file: &str| fs::read_to_string(mount.join(group).join(file)).ok()?.trim().parse::<u64>().ok();
        // A group without a limit has the text `max` in version 2, and the largest number of pages
        // in version 1.
        let left = |group: &Path| Some(read(group, limit)?.saturating_sub(read(group, used)?)).filter(|&left| left < 1 << 62);
        below.ancestors().filter_map(left).collect()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_and_memory_of_this_machine_are_found() {
        assert!(processors() > 0);
        assert!(memory_bytes() > 1 << 20);
        assert_eq!(available_bytes(1), u64::MAX);
        assert!(available_bytes(1 << 30) < u64::MAX);
    }

    #[test]
    fn limits_of_cgroup_versions_1_and_2_are_read() {
        let mount = tempfile::tempdir().unwrap();
        let group = |path: &str, files: &[(&str, &str)]| {
            let path = mount.path().join(path);
            fs::create_dir_all(&path).unwrap();
            files.iter().for_each(|(name, text)| fs::write(path.join(name), format!("{text}\n")).unwrap());
        };
        group("memory/jobs/one", &[("memory.limit_in_bytes", "1000"), ("memory.usage_in_bytes", "300")]);
        group("memory", &[("memory.limit_in_bytes", "9223372036854771712"), ("memory.usage_in_bytes", "5000")]);
        let version_1 = "11:cpu,cpuacct:/jobs/one\n5:memory:/jobs/one\n0::/\n";
        assert_eq!(available_in(mount.path(), version_1), Some(700));
        // This name of the group is valid only outside of the container.
        assert_eq!(available_in(mount.path(), "5:memory:/elsewhere\n"), None);
        group("memory", &[("memory.limit_in_bytes", "8000")]);
        assert_eq!(available_in(mount.path(), "5:memory:/elsewhere\n"), Some(3000));

        group("jobs", &[("memory.max", "600"), ("memory.current", "100")]);
        group("jobs/two", &[("memory.max", "max"), ("memory.current", "50")]);
        assert_eq!(available_in(mount.path(), "0::/jobs/two\n"), Some(500), "the limit of the parent group is ignored");
        assert_eq!(available_in(mount.path(), "1:name=systemd:/\n"), None);
    }
}
