//! Network interfaces of this machine, and the choice of an interface for the job.
//!
//! Invariant: a requested interface that does not exist is an error. No other interface is used
//! instead.

use std::net::{IpAddr, Ipv6Addr};

use crate::error::BootstrapError;
use crate::job::env::names;

/// An address of a network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Name of the interface, in the form that `NCCL_SOCKET_IFNAME` expects.
    pub name: String,
    /// Address of the interface.
    pub address: IpAddr,
}

impl Interface {
    /// Returns whether this is a loopback interface.
    pub fn is_loopback(&self) -> bool {
        self.address.is_loopback()
    }
}

/// Returns all addresses of the network interfaces that are up, in the order in which the system
/// lists them.
///
/// # Errors
/// [`BootstrapError::Io`] if the system call fails.
pub fn interfaces() -> Result<Vec<Interface>, BootstrapError> {
    let all = if_addrs::get_if_addrs().map_err(|error| BootstrapError::io("interfaces", &error))?;
    Ok(all
        .into_iter()
        .filter(|found| found.is_oper_up())
        .map(|found| Interface { address: found.ip(), name: found.name })
        .collect())
}

/// Chooses the interface through which other machines reach this machine. Configure the other
/// libraries of the job to use the same interface.
///
/// `asked` is the name or an address of an interface, as in `PEERWEAVE_INTERFACE`. If `asked` is
/// `None`, this function returns an external interface. Physical interfaces precede virtual
/// interfaces, such as bridges for containers. Within each kind, link-local addresses come last,
/// and IPv4 precedes IPv6. If there is no external interface, the function returns a loopback
/// interface.
///
/// ```
/// use peerweave_bootstrap::interface::advertise_address;
///
/// let chosen = advertise_address(Some("127.0.0.1"))?;
/// assert!(chosen.is_loopback());
/// println!("NCCL_SOCKET_IFNAME={}", chosen.name);
/// # Ok::<(), peerweave_bootstrap::BootstrapError>(())
/// ```
///
/// # Errors
/// [`BootstrapError::Environment`] for `PEERWEAVE_INTERFACE` if the requested interface does not
/// exist, or if the machine has no interface. Otherwise as for [`interfaces`].
pub fn advertise_address(asked: Option<&str>) -> Result<Interface, BootstrapError> {
    choose(asked, interfaces()?)
}

fn choose(asked: Option<&str>, all: Vec<Interface>) -> Result<Interface, BootstrapError> {
    let names: Vec<String> = all.iter().map(|one| format!("{} ({})", one.name, one.address)).collect();
    let right = |one: &Interface| match asked {
        Some(asked) => one.name == asked || one.address.to_string() == asked.trim_matches(['[', ']']),
        None => true,
    };
    all.into_iter().filter(right).min_by_key(rank).ok_or_else(|| BootstrapError::Environment {
        variable: names::INTERFACE,
        value: asked.map(str::to_owned),
        expected: format!("the name or an address of one of these interfaces: {names}", names = names.join(", ")),
    })
}

/// Returns a number that orders interfaces by preference. The interface with the lowest number is
/// preferred.
fn rank(one: &Interface) -> u8 {
    const VIRTUAL: [&str; 8] = ["docker", "br-", "veth", "virbr", "cni", "flannel", "podman", "tun"];
    let family = match one.address {
        IpAddr::V4(address) => u8::from(address.is_link_local()) * 2,
        IpAddr::V6(address) => 1 + u8::from(is_link_local(&address)) * 2,
    };
    match (one.is_loopback(), VIRTUAL.iter().any(|prefix| one.name.starts_with(prefix))) {
        (true, _) => 20 + family,
        (_, true) => 10 + family,
        _ => family,
    }
}

/// Returns whether the address is link-local. A link-local address is not usable without the index
/// of the interface.
fn is_link_local(address: &Ipv6Addr) -> bool {
    address.segments()[0] & 0xffc0 == 0xfe80
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Vec<Interface> {
        let one = |name: &str, address: &str| Interface { name: name.to_owned(), address: address.parse().unwrap() };
        vec![
            one("lo", "127.0.0.1"),
            one("docker0", "172.17.0.1"),
            one("eth0", "fe80::1"),
            one("eth0", "2001:db8::7"),
            one("eth0", "10.0.0.7"),
            one("ib0", "10.1.0.7"),
        ]
    }

    #[test]
    fn external_interface_is_preferred_to_docker_and_loopback() {
        assert_eq!(choose(None, machine()).unwrap().address.to_string(), "10.0.0.7");
        assert_eq!(choose(None, machine()[..2].to_vec()).unwrap().name, "docker0");
        assert_eq!(choose(None, machine()[..1].to_vec()).unwrap().name, "lo");
    }

    #[test]
    fn interface_is_found_by_name_or_address() {
        assert_eq!(choose(Some("ib0"), machine()).unwrap().address.to_string(), "10.1.0.7");
        assert_eq!(choose(Some("[2001:db8::7]"), machine()).unwrap().name, "eth0");
        assert_eq!(choose(Some("lo"), machine()).unwrap().name, "lo");
    }

    #[test]
    fn error_for_a_missing_interface_lists_all_interfaces() {
        let error = choose(Some("eth9"), machine()).unwrap_err().to_string();
        assert!(error.contains("PEERWEAVE_INTERFACE") && error.contains("eth9") && error.contains("ib0 (10.1.0.7)"), "{error}");
    }

    #[test]
    fn this_machine_has_a_loopback_interface() {
        assert!(interfaces().unwrap().iter().any(Interface::is_loopback));
    }
}
