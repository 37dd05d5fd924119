//! Properties of the machine that affect measurements, as the operating system reports them. A text
//! that cannot be read is "unknown".

use serde::Serialize;

/// Properties of the machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Machine {
    /// Name of the machine.
    pub hostname: String,
    /// Name and version of the operating system.
    pub system: String,
    /// Processor architecture, such as `x86_64`.
    pub architecture: String,
    /// Name of the processor.
    pub cpu_model: String,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// CPUs of the machine that are online.
    pub cpus_online: usize,
    /// Size of the machine's memory in bytes.
    pub memory_bytes: u64,
    /// NUMA nodes of the machine.
    pub numa: Vec<NumaNode>,
    /// Whether this is a virtual machine.
    pub virtualized: bool,
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NumaNode {
    /// Number that the operating system gives to the NUMA node.
    pub node: usize,
    /// CPUs of the node, such as `0-3,8`.
    pub cpus: String,
}

impl NumaNode {
    /// Returns the NUMA node as text: its number and its CPUs.
    pub fn text(&self) -> String {
        format!("{}: CPUs {}", self.node, self.cpus)
    }
}

impl Machine {
    /// Reads the properties of this machine.
    pub fn look() -> Self {
        let uname = rustix::system::uname();
        let cpuinfo = read("/proc/cpuinfo");
        let field = |name: &str| {
            let line = cpuinfo.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name));
            line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
        };
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            hostname: uname.nodename().to_string_lossy().into_owned(),
            system: format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy()),
            architecture: uname.machine().to_string_lossy().into_owned(),
            cpu_model: field("model name").or_else(|| field("Processor")).unwrap_or_else(|| "unknown".to_owned()),
            cpus,
            cpus_online: count_list(&read("/sys/devices/system/cpu/online")).unwrap_or(cpus),
            memory_bytes: meminfo("MemTotal").unwrap_or(0),
            numa: numa(),
            virtualized: field("flags").is_some_and(|flags| flags.split_ascii_whitespace().any(|flag| flag == "hypervisor")),
        }
    }
}

/// Returns a field of `/proc/meminfo`, in bytes.
pub(super) fn meminfo(name: &str) -> Option<u64> {
    let text = read("/proc/meminfo");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

fn numa() -> Vec<NumaNode> {
    let mut nodes: Vec<(usize, String)> = std::fs::read_dir("/sys/devices/system/node")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
            let cpus = std::fs::read_to_string(entry.path().join("cpulist")).ok()?;
            Some((number, cpus.trim().to_owned()))
        })
        .collect();
    nodes.sort();
    nodes.into_iter().map(|(node, cpus)| NumaNode { node, cpus }).collect()
}

/// Returns how many numbers a list such as `0-3,8` contains. `None` if the list is invalid.
fn count_list(list: &str) -> Option<usize> {
    let range = |part: &str| -> Option<usize> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        (last + 1).checked_sub(first)
    };
    list.trim().split(',').map(range).sum()
}

/// Reads a file as text; empty if it cannot be read.
pub(super) fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_in_a_cpu_list_are_counted() {
        assert_eq!(count_list("0-3,8\n"), Some(5));
        assert_eq!(count_list("0"), Some(1));
        assert_eq!(count_list(""), None);
    }

    #[test]
    fn properties_of_this_machine_can_be_read() {
        let machine = Machine::look();
        assert!(machine.cpus >= 1 && machine.cpus_online >= machine.cpus);
        assert!(machine.memory_bytes > 1 << 20);
        assert!(machine.system.starts_with("Linux "), "{}", machine.system);
    }
}
