//! Addresses of a rendezvous.
//!
//! Invariant: `PEERWEAVE_RENDEZVOUS` contains an endpoint in text form. Parsing the text form of an
//! endpoint returns the same endpoint.

use std::fmt;
use std::str::FromStr;

use crate::error::BootstrapError;
use crate::job::token::fill_random;

/// Maximum length of the name of an abstract Unix socket, in bytes. Linux would allow 107 bytes.
pub const MAX_NAME_LEN_BYTES: usize = 100;

/// The address of a rendezvous.
///
/// ```
/// use peerweave_bootstrap::Endpoint;
///
/// let endpoint: Endpoint = "tcp:[::1]:29501".parse()?;
/// assert_eq!(endpoint, Endpoint::Tcp("::1".to_owned(), 29501));
/// assert_eq!(endpoint.to_string(), "tcp:[::1]:29501");
/// assert_eq!("unix:@job".parse::<Endpoint>()?, Endpoint::Unix("job".to_owned()));
/// # Ok::<(), peerweave_bootstrap::BootstrapError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// An abstract Unix socket with this name, on Linux only. The name does not appear in a file
    /// system. The name becomes free when the process that has bound the socket ends.
    Unix(String),
    /// A TCP address: a host, given by its name or IP address, and a port. With port 0, the system
    /// chooses the port when a server binds.
    Tcp(String, u16),
}

impl Endpoint {
    /// Creates an abstract Unix socket address with a random name.
    ///
    /// # Errors
    /// [`BootstrapError::Io`] if the operating system provides no random numbers.
    pub fn random_unix() -> Result<Self, BootstrapError> {
        let mut bytes = [0; 16];
        fill_random(&mut bytes)?;
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self::Unix(format!("peerweave-{hex}")))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(name) => write!(f, "unix:@{name}"),
            Self::Tcp(host, port) if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "tcp:{host}:{port}"),
        }
    }
}

impl FromStr for Endpoint {
    type Err = BootstrapError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).ok_or_else(|| BootstrapError::Misuse {
            call: "Endpoint::from_str",
            what: "an endpoint",
            value: format!("{text:?}"),
            expected: EXPECTED.to_owned(),
        })
    }
}

pub(crate) const EXPECTED: &str = "unix:@NAME (1 to 100 printable characters) or tcp:HOST:PORT";

fn parse(text: &str) -> Option<Endpoint> {
    if let Some(name) = text.strip_prefix("unix:@") {
        let fits = (1..=MAX_NAME_LEN_BYTES).contains(&name.len()) && name.bytes().all(|c| c.is_ascii_graphic());
        return fits.then(|| Endpoint::Unix(name.to_owned()));
    }
    let (host, port) = text.strip_prefix("tcp:")?.rsplit_once(':')?;
    if port.is_empty() || !port.bytes().all(|c| c.is_ascii_digit()) {
        return None;
    }
    let port = port.parse().ok()?;
    let host = match host.strip_prefix('[') {
        Some(inner) => {
            let inner = inner.strip_suffix(']')?;
            inner.contains(':').then_some(inner)?
        }
        None if host.contains([':', ']']) => return None,
        None => host,
    };
    let fits = (1..=255).contains(&host.len()) && host.bytes().all(|c| c.is_ascii_graphic() && c != b'[');
    fits.then(|| Endpoint::Tcp(host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn invalid_endpoints_are_refused() {
        let long = format!("unix:@{}", "x".repeat(MAX_NAME_LEN_BYTES + 1));
        for wrong in [
            "",
            "unix:",
            "unix:@",
            "unix:/tmp/socket",
            "unix:@a b",
            &long,
            "tcp:",
            "tcp:host",
            "tcp:host:",
            "tcp::1",
            "tcp:host:65536",
            "tcp:host:+1",
            "tcp:::1:80",
            "tcp:[::1:80",
            "tcp:[host]:80",
            "tcp:[]:1",
            "udp:host:1",
        ] {
            let error = wrong.parse::<Endpoint>().unwrap_err();
            assert!(error.to_string().contains("tcp:HOST:PORT"), "{wrong}: {error}");
        }
    }

    proptest! {
        #[test]
        fn formatted_endpoint_parses_to_the_original_endpoint(name in "[!-~]{1,100}", host in "[a-z0-9.-]{1,40}", port: u16) {
            for endpoint in [Endpoint::Unix(name), Endpoint::Tcp(host, port), Endpoint::Tcp("fe80::1%eth0".into(), port)] {
                prop_assert_eq!(endpoint.to_string().parse::<Endpoint>().unwrap(), endpoint);
            }
        }

        #[test]
        fn arbitrary_endpoint_text_causes_no_panic(text in ".{0,120}") {
            if let Ok(endpoint) = text.parse::<Endpoint>() {
                prop_assert_eq!(endpoint.to_string().parse::<Endpoint>().unwrap(), endpoint);
            }
        }
    }
}
