//! The host of each PE. PEs with the same host can share memory.
//!
//! Two PEs have the same host if all of these conditions are true:
//! - They run on the same boot of an operating system.
//! - They are in the same network namespace, which limits the sockets that pass file descriptors.
//! - They have the same value of `NCCL_HOSTID`.
//!
//! NCCL uses `NCCL_HOSTID` instead of the name of the machine. So the variable divides a machine
//! into several hosts for both Peerweave and NCCL.

use std::collections::HashMap;
use std::ops::Range;

use peerweave_types::Pe;

use crate::job::token::fingerprint;

/// Name of the variable by which NCCL identifies a host.
const HOST_ID: &str = "NCCL_HOSTID";

/// The host on which a PE runs. PEs with the same host can share memory.
///
/// ```
/// use peerweave_bootstrap::Host;
///
/// let (here, other) = (Host::here(), Host::named("node-1"));
/// assert_eq!(here, Host::here());
/// assert_ne!(here, other);
/// assert_eq!(other.name(), "node-1");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Host {
    identity: [u64; 2],
    name: String,
}

impl Host {
    /// Returns the host of this process. Reads `NCCL_HOSTID` from the environment of the process.
    pub fn here() -> Self {
        let id = std::env::var(HOST_ID).ok().filter(|id| !id.trim().is_empty());
        Self::of(id.as_deref())
    }

    /// Returns the host of a process on this machine. `id` is the value of `NCCL_HOSTID` in that
    /// process.
    pub fn named(id: &str) -> Self {
        Self::of(Some(id))
    }

    fn of(id: Option<&str>) -> Self {
        let read = |path| std::fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default();
        let (boot, name) = (read("/proc/sys/kernel/random/boot_id"), read("/proc/sys/kernel/hostname"));
        let network = std::fs::read_link("/proc/self/ns/net").map(|link| link.to_string_lossy().into_owned());
        // Containers of one machine may have different host names, so the boot ID is preferred.
        let machine = if boot.is_empty() { &name } else { &boot };
        let text = format!("{machine}\n{}\n{}", network.unwrap_or_default(), id.unwrap_or_default());
        Self { identity: [1, 2].map(|salt| fingerprint(&text, salt)), name: id.map_or(name, str::to_owned) }
    }

    /// Returns a hash of the host's identity. Different hosts have different hashes, except by
    /// chance.
    pub fn number(&self) -> u64 {
        self.identity[0]
    }

    /// Returns the name of the host, for messages: the value of `NCCL_HOSTID`, or the name of the
    /// machine.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        /// Maximum length in bytes of the host's name in the result. A longer name is truncated.
        const LONGEST: usize = 64;
        let name = self.name.bytes().take(LONGEST);
        self.identity.iter().flat_map(|word| word.to_le_bytes()).chain(name).collect()
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (low, rest) = bytes.split_first_chunk()?;
        let (high, name) = rest.split_first_chunk()?;
        let identity = [u64::from_le_bytes(*low), u64::from_le_bytes(*high)];
        Some(Self { identity, name: String::from_utf8_lossy(name).into_owned() })
    }
}

/// The hosts on which the PEs of a job run. The hosts are numbered from 0, in the order of the
/// first PE on each host.
///
/// ```
/// use peerweave_bootstrap::{Job, Options, Rendezvous};
///
/// let rendezvous = Rendezvous::join(&Job::single(), Options::default())?;
/// let hosts = rendezvous.hosts()?;
/// assert_eq!((hosts.len(), hosts.of(rendezvous.pe())), (1, 0));
/// # Ok::<(), peerweave_bootstrap::BootstrapError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    /// For each PE, the index of its host in `names`.
    of: Box<[u32]>,
    names: Box<[String]>,
}

impl Hosts {
    pub(crate) fn new(all: &[Host]) -> Self {
        let mut numbers: HashMap<[u64; 2], u32> = HashMap::new();
        let mut names = Vec::new();
        let number = |host: &Host| {
            *numbers.entry(host.identity).or_insert_with(|| {
                names.push(host.name.clone());
                names.len() as u32 - 1
            })
        };
        let of = all.iter().map(number).collect();
        Self { of, names: names.into() }
    }

    /// Returns the number of hosts.
    #[expect(clippy::len_without_is_empty, reason = "a job has at least one host")]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Returns the index of the host on which `pe` runs. The index is less than [`len`](Self::len).
    ///
    /// # Panics
    /// If the job has no PE `pe`.
    pub fn of(&self, pe: Pe) -> u32 {
        self.of[pe.index()]
    }

    /// Returns the name of the host on which `pe` runs.
    ///
    /// # Panics
    /// If the job has no PE `pe`.
    pub fn name_of(&self, pe: Pe) -> &str {
        &self.names[self.of(pe) as usize]
    }

    /// Returns the PEs that run on the host with index `host`, in ascending order.
    pub fn pes(&self, host: u32) -> impl Iterator<Item = Pe> + '_ {
        let all: Range<u32> = 0..self.of.len() as u32;
        all.map(Pe::new).filter(move |pe| self.of(*pe) == host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_numbered_in_the_order_of_their_first_pe() {
        let [a, b] = ["a", "b"].map(Host::named);
        let hosts = Hosts::new(&[b.clone(), a.clone(), b, a]);
        assert_eq!((hosts.len(), &*hosts.of), (2, &[0, 1, 0, 1][..]));
        assert_eq!(hosts.name_of(Pe::new(3)), "a");
        assert_eq!(hosts.pes(0).collect::<Vec<_>>(), [Pe::new(0), Pe::new(2)]);
    }

    #[test]
    fn host_is_the_same_after_encoding_and_decoding() {
        for host in [Host::here(), Host::named(""), Host::named("node")] {
            assert_eq!(Host::from_bytes(&host.to_bytes()), Some(host));
        }
        assert_eq!(Host::from_bytes(&[0; 15]), None);
        let long = Host::named(&"x".repeat(100));
        assert_eq!(Host::from_bytes(&long.to_bytes()).unwrap().identity, long.identity);
    }
}
