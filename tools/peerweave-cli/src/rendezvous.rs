//! Where the PEs of a job meet. The meeting itself is `peerweave-bootstrap`'s; this chooses the place and tells the PEs.
//!
//! Invariant: the launcher of machine 0 holds the server for as long as a PE of its machine runs, and no name of it is left in a file system.

use std::ffi::OsString;
use std::net::IpAddr;

use peerweave_bootstrap::{BootstrapError, Endpoint, Pe, Server, ServerOptions, Token};

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
                let token = match std::env::var("PEERWEAVE_TOKEN") {
                    Ok(hex) => hex.parse()?,
                    Err(_) => Token::derived_from(&format!("{endpoint} {n_pes} {n_machines}")),
                };
                if *machine > 0 {
                    return Ok(Self { server: None, endpoint, token });
                }
                // The other machines may know this one by a name or address that is not on an interface of it (NAT, a service's name).
                let options = ServerOptions { bind_address: Some(IpAddr::from([0u16; 8])), ..ServerOptions::default() };
                let server = Server::bind(&endpoint, token, n_pes as u32, options)?;
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

    /// Tells whoever waits for this PE that it is gone, and why. Where another machine holds the server, it sees the connection close.
    pub fn report_lost(&self, pe: usize, why: &str) {
        if let Some(server) = &self.server {
            server.report_lost(Pe::new(pe as u32), why);
        }
    }
}
