//! Features and limits of the operating system: memory files, reading other processes' memory,
//! resource limits.

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{PidfdFlags, Resource, getpid, getrlimit, pidfd_open};
use serde::Serialize;

use super::gib;
use crate::machine::{meminfo, read};

/// Whether a feature is available, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Finding {
    /// Whether the feature can be used.
    pub available: bool,
    /// Reason why the feature is available or unavailable.
    pub why: String,
}

impl Finding {
    fn of(result: Result<(), impl std::fmt::Display>, why: &str) -> Self {
        match result {
            Ok(()) => Self { available: true, why: why.to_owned() },
            Err(error) => Self { available: false, why: error.to_string() },
        }
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", if self.available { "yes" } else { "no" }, self.why)
    }
}

/// Features and limits of the operating system.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct System {
    /// Whether `memfd_create` can create anonymous memory files. The host backend keeps its
    /// symmetric heaps in such files.
    pub memfd: Finding,
    /// Whether process descriptors (pidfd) are available. They are used to detect the end of a PE.
    pub pidfd: Finding,
    /// Whether the settings permit reading the memory of another process.
    pub cross_memory_attach: Finding,
    /// Available memory in bytes.
    pub memory_available_bytes: u64,
    /// Memory limit of the control group in bytes, if any.
    pub memory_limit_bytes: Option<u64>,
    /// Memory in use that counts against `memory_limit_bytes`, in bytes.
    pub memory_used_bytes: Option<u64>,
    /// Limit of the address space in bytes, if any.
    pub address_space_limit_bytes: Option<u64>,
    /// Limit of locked memory in bytes, if any.
    pub locked_memory_limit_bytes: Option<u64>,
    /// Limit of open files, if any.
    pub open_files_limit: Option<u64>,
    /// The kernel's policy for transparent huge pages in shared memory (`shmem_enabled`), such as
    /// `advise`; `unknown` if it cannot be read.
    pub shared_huge_pages: String,
}

impl System {
    /// Reads the features and limits of this system.
    pub(super) fn look() -> Self {
        let group = Group::mine();
        Self {
            memfd: Finding::of(memfd_create("peerweave-info", MemfdFlags::CLOEXEC).map(drop), "memfd_create, tried"),
            pidfd: Finding::of(pidfd_open(getpid(), PidfdFlags::empty()).map(drop), "pidfd_open, tried"),
            cross_memory_attach: attach(
                &read("/proc/self/status"),
                std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok(),
            ),
            memory_available_bytes: meminfo("MemAvailable").unwrap_or(0),
            memory_limit_bytes: group.limit("memory.max").or_else(|| group.limit("memory.limit_in_bytes")),
            memory_used_bytes: group.limit("memory.current").or_else(|| group.limit("memory.usage_in_bytes")),
            address_space_limit_bytes: getrlimit(Resource::As).current,
            locked_memory_limit_bytes: getrlimit(Resource::Memlock).current,
            open_files_limit: getrlimit(Resource::Nofile).current,
            shared_huge_pages: huge_pages(&read("/sys/kernel/mm/transparent_hugepage/shmem_enabled")),
        }
    }

    /// Returns the lines of the report, each as a name and a value.
    pub(super) fn lines(&self) -> Vec<(String, String)> {
        let limit = |bytes: Option<u64>| bytes.map_or("none".to_owned(), gib);
        let line = |name: &str, value: String| (name.to_owned(), value);
        vec![
            line("memory files", self.memfd.to_string()),
            line("process handles", self.pidfd.to_string()),
            line("cross-memory attach", self.cross_memory_attach.to_string()),
            line("memory available", gib(self.memory_available_bytes)),
            line(
                "control group",
                match (self.memory_limit_bytes, self.memory_used_bytes) {
                    (Some(limit), Some(used)) => format!("limit {}, used {}", gib(limit), gib(used)),
                    (Some(limit), None) => format!("limit {}", gib(limit)),
                    (None, _) => "no memory limit".to_owned(),
                },
            ),
            line("address space limit", limit(self.address_space_limit_bytes)),
            line("locked memory limit", limit(self.locked_memory_limit_bytes)),
            line("open files limit", self.open_files_limit.map_or("none".to_owned(), |limit| limit.to_string())),
            line("huge pages in shared memory", self.shared_huge_pages.clone()),
        ]
    }
}

/// Returns whether the kernel's settings permit a PE to read the memory of other PEs of the same
/// user. `status` is the text of `/proc/self/status`. `scope` is the text of Yama's `ptrace_scope`,
/// or `None` if the kernel has no Yama module.
fn attach(status: &str, scope: Option<String>) -> Finding {
    const CAP_SYS_PTRACE: u32 = 19;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    let privileged =
        field("CapEff").and_then(|hex| u64::from_str_radix(hex, 16).ok()).is_some_and(|caps| caps >> CAP_SYS_PTRACE & 1 == 1);
    let filter = match field("Seccomp") {
        Some("0") | None => "",
        Some("1") => "; seccomp is in strict mode",
        Some(_) => "; a seccomp filter is active and may forbid the call",
    };
    let (available, why) = match scope.as_deref().map(str::trim) {
        None => (true, "the kernel has no Yama module: reads are allowed between processes of one user".to_owned()),
        Some("0") => (true, "ptrace_scope is 0: reads are allowed between processes of one user".to_owned()),
        Some(scope @ ("1" | "2")) if privileged => {
            (true, format!("ptrace_scope is {scope}: reads are allowed, because this process has CAP_SYS_PTRACE"))
        }
        Some("1") => (false, "ptrace_scope is 1: only ancestors may read a process's memory, but PEs are siblings".to_owned()),
        Some("2") => (false, "ptrace_scope is 2: reads are allowed only with CAP_SYS_PTRACE".to_owned()),
        Some(scope) => (false, format!("ptrace_scope is {scope}: reads are forbidden")),
    };
    Finding { available, why: why + filter }
}

/// Directories of this process's control group (cgroup), in both versions of the cgroup interface.
struct Group {
    directories: Vec<String>,
}

impl Group {
    fn mine() -> Self {
        let groups = read("/proc/self/cgroup");
        let mut directories = Vec::new();
        for line in groups.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            match (fields.next(), fields.next()) {
                (Some(""), Some(path)) => directories.push(format!("/sys/fs/cgroup{path}")),
                (Some(controllers), Some(path)) if controllers.split(',').any(|name| name == "memory") => {
                    directories.push(format!("/sys/fs/cgroup/memory{path}"));
                }
                _ => {}
            }
        }
        // Inside a container, /proc/self/cgroup has the path on the host, and the container's own
        // group is mounted at the top directory.
        directories.extend(["/sys/fs/cgroup".to_owned(), "/sys/fs/cgroup/memory".to_owned()]);
        Self { directories }
    }

    /// Returns a limit of the control group, in bytes. `file` is the name of the file that contains
    /// the limit. The result is from the first of the group's directories in which this file
    /// contains a number. Returns `None` if there is no such directory, or if the number means "no
    /// limit".
    fn limit(&self, file: &str) -> Option<u64> {
        // Without a limit, version 1 shows the largest number of whole pages.
        const NO_LIMIT: u64 = 1 << 60;
        let number = |directory: &String| std::fs::read_to_string(format!("{directory}/{file}")).ok()?.trim().parse().ok();
        self.directories.iter().find_map(number).filter(|bytes| *bytes < NO_LIMIT)
    }
}

/// Returns the active setting of huge pages. `setting` lists all possible settings, with the active
/// one in square brackets, such as `always [never]`. Returns `unknown` if there are no brackets.
fn huge_pages(setting: &str) -> String {
    let chosen = setting.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(chosen, _)| chosen);
    chosen.unwrap_or("unknown").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cross_memory_attach_depends_on_ptrace_scope_and_privilege() {
        let plain = "Name:\tx\nCapEff:\t0000000000000000\nSeccomp:\t0\n";
        let root = "CapEff:\t000001ffffffffff\nSeccomp:\t2\n";
        let scope = |scope: &str| Some(format!("{scope}\n"));
        assert!(attach(plain, None).available && attach(plain, scope("0")).available);
        assert_eq!(
            attach(plain, scope("1")).why,
            "ptrace_scope is 1: only ancestors may read a process's memory, but PEs are siblings"
        );
        assert!(!attach(plain, scope("2")).available && !attach(root, scope("3")).available);
        let root = attach(root, scope("1"));
        assert!(root.available && root.why.ends_with("a seccomp filter is active and may forbid the call"), "{root}");
    }

    #[test]
    fn huge_page_setting_is_the_word_in_brackets() {
        assert_eq!(huge_pages("always within_size advise [never] deny force\n"), "never");
        assert_eq!(huge_pages(""), "unknown");
    }
}
