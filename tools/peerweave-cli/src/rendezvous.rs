//! Where the PEs of a job meet. The meeting itself is `peerweave-bootstrap`'s; this chooses the place and tells the PEs.
//!
//! Invariant: the launcher of machine 0 holds the server for as long as a PE of its machine runs, and no name of it is left in a file system.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr};

use peerweave_bootstrap::env::names;
use peerweave_bootstrap::{BootstrapError, Endpoint, Loss, Pe, Server, ServerOptions, Token, warn_of_public_token};

/// Where the PEs are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// All here: they meet at a socket that only this machine sees.
    ThisMachine,
    /// On several machines, of which the first holds the server.
    Machines {
        /// `HOST:PORT` of the first machine.
        address: String,
        /// Number of machines.
        n_machines: usize,
        /// Which of them this is.
        machine: usize,
    },
}

/// Listens at the endpoint's own address. The other machines may know this one by a name or address that no interface of it has (an
/// address translation, a service's name): then at every address.
fn bind(endpoint: &Endpoint, token: Token, n_pes: u32) -> Result<Server, BootstrapError> {
    let listen = |bind_address| Server::bind(endpoint, token, n_pes, ServerOptions { bind_address, ..ServerOptions::default() });
    let own = listen(None);
    if !matches!(own, Err(BootstrapError::Io { kind: ErrorKind::AddrNotAvailable, .. })) {
        return own;
    }
    // Both versions of the protocol, or the older one where the machine has no other.
    listen(Some(Ipv6Addr::UNSPECIFIED.into())).or_else(|_| listen(Some(Ipv4Addr::UNSPECIFIED.into()))).or(own)
}

/// The secret of a job: of the environment, or one that nobody knows where this launcher starts all PEs, or one that all launchers derive alike.
fn token_of(
    endpoint: &Endpoint,
    n_pes: usize,
    n_machines: usize,
    var: &dyn Fn(&str) -> Option<String>,
) -> Result<Token, BootstrapError> {
    let set = |name: &str| var(name).filter(|value| !value.trim().is_empty());
    match set(names::TOKEN) {
        Some(hex) => hex.trim().parse(),
        None if n_machines == 1 => Token::random(),
        None if set(names::REQUIRE_TOKEN).is_some_and(|value| value.trim() == "1") => Err(BootstrapError::Environment {
            variable: names::TOKEN,
            value: None,
            expected: "64 hexadecimal digits, the same on every machine, since PEERWEAVE_REQUIRE_TOKEN is 1".to_owned(),
        }),
        None => {
            warn_of_public_token(endpoint);
            Ok(Token::derived_from(&format!("{endpoint} {n_pes} {n_machines}")))
        }
    }
}

/// The meeting place, held while this lives where this machine is the first.
#[derive(Debug)]
pub struct Meeting {
    server: Option<Server>,
    endpoint: Endpoint,
    token: Token,
}

impl Meeting {
    /// Opens the meeting place, or only finds out where another machine opens it.
    ///
    /// # Errors
    /// [`BootstrapError`] where the address cannot be read or is not this machine's, or `PEERWEAVE_TOKEN` is no token.
    pub fn hold(place: &Place, n_local: usize) -> Result<Self, BootstrapError> {
        match place {
            Place::ThisMachine => {
                let (endpoint, token) = (Endpoint::random_unix()?, Token::random()?);
                let server = Server::bind(&endpoint, token, n_local as u32, ServerOptions::default())?;
                Ok(Self { server: Some(server), endpoint, token })
            }
            Place::Machines { address, n_machines, machine } => {
                let endpoint: Endpoint = format!("tcp:{address}").parse()?;
                let n_pes = n_local * n_machines;
                let token = token_of(&endpoint, n_pes, *n_machines, &|name| std::env::var(name).ok())?;
                if *machine > 0 {
                    return Ok(Self { server: None, endpoint, token });
                }
                let server = bind(&endpoint, token, n_pes as u32)?;
                Ok(Self { server: Some(server), endpoint, token })
            }
        }
    }

    /// What every PE finds in its environment.
    pub fn env(&self) -> Vec<(OsString, OsString)> {
        vec![
            ("PEERWEAVE_RENDEZVOUS".into(), self.endpoint.to_string().into()),
            ("PEERWEAVE_TOKEN".into(), self.token.to_hex().into()),
        ]
    }

    /// Tells PEs that wait for this PE that it is gone, and why. Returns the PE that was lost before any other.
    ///
    /// Where another machine holds the server, that server sees the connection close, and this one knows nothing.
    pub fn report_lost(&self, pe: usize, why: &str) -> Option<usize> {
        let server = self.server.as_ref()?;
        server.report_lost(Pe::new(pe as u32), why);
        server.first_loss().map(|(pe, loss)| match loss {
            // It went because of another one.
            Loss::GaveUp { missing } => missing.first().copied().unwrap_or(pe).index(),
            _ => pe.index(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_is_known_by_an_address_that_is_not_its_own_listens_everywhere() {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        // An address for documentation (RFC 5737): no interface has it.
        let place = Place::Machines { address: format!("192.0.2.1:{port}"), n_machines: 2, machine: 0 };
        let meeting = Meeting::hold(&place, 2).unwrap();
        std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        assert_eq!(meeting.env()[0].1, format!("tcp:192.0.2.1:{port}").as_str());
    }

    #[test]
    fn token_is_random_on_one_machine_and_can_be_required() {
        let endpoint: Endpoint = "tcp:10.0.0.1:29500".parse().unwrap();
        let token = |n_machines, vars: &[(&str, &str)]| {
            let var = |name: &str| vars.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
            token_of(&endpoint, 4, n_machines, &var)
        };
        assert_ne!(token(1, &[]).unwrap(), token(1, &[]).unwrap(), "nobody derives it");
        assert_eq!(token(2, &[]).unwrap(), token(2, &[]).unwrap(), "both launchers derive the same");
        let error = token(2, &[("PEERWEAVE_REQUIRE_TOKEN", "1")]).unwrap_err().to_string();
        assert!(error.contains("PEERWEAVE_TOKEN is not set"), "{error}");
        let hex = "ab".repeat(32);
        let set = [("PEERWEAVE_REQUIRE_TOKEN", "1"), ("PEERWEAVE_TOKEN", &*hex)];
        assert_eq!(token(2, &set).unwrap(), hex.parse().unwrap());
    }

    #[test]
    fn an_address_that_cannot_be_read_is_told_with_what_was_expected() {
        let place = Place::Machines { address: "nowhere".into(), n_machines: 2, machine: 1 };
        let error = Meeting::hold(&place, 1).unwrap_err().to_string();
        assert!(error.contains("nowhere") && error.contains("HOST:PORT"), "{error}");
    }
}
