//! Rendezvous of the PEs that the launcher starts: chooses the endpoint and runs the server of
//! `peerweave-bootstrap`.
//!
//! Invariant: the launcher of machine 0 runs the server until all PEs of machine 0 have ended. The
//! server creates no socket file: it listens on an abstract Unix socket or, for several machines,
//! on a TCP port.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr};

use peerweave_bootstrap::env::names;
use peerweave_bootstrap::{BootstrapError, Endpoint, Loss, Pe, Server, ServerOptions, Token, warn_of_public_token};

use peerweave_bench::console::exit;

/// States whether the job runs on one machine or on several machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// One machine; PEs connect to a socket that is visible only on this machine.
    ThisMachine,
    /// Several machines; machine 0 runs the rendezvous server.
    Machines {
        /// Address (`HOST:PORT`) of the rendezvous server, which runs on the first machine.
        address: String,
        /// Number of machines.
        n_machines: usize,
        /// Index of this machine.
        machine: usize,
    },
}

/// Listens at the endpoint's address. Listens on all interfaces if no interface of this machine has
/// that address, for example because of address translation or a service name.
fn bind(endpoint: &Endpoint, token: Token, n_pes: u32) -> Result<Server, BootstrapError> {
    let listen = |bind_address| Server::bind(endpoint, token, n_pes, ServerOptions { bind_address, ..ServerOptions::default() });
    let own = listen(None);
    if !matches!(own, Err(BootstrapError::Io { kind: ErrorKind::AddrNotAvailable, .. })) {
        return own;
    }
    // Listens on IPv6 and IPv4, or only on IPv4 if the machine has no IPv6.
    listen(Some(Ipv6Addr::UNSPECIFIED.into())).or_else(|_| listen(Some(Ipv4Addr::UNSPECIFIED.into()))).or(own)
}

/// Returns the secret of the job from the environment variable `PEERWEAVE_TOKEN`; `None` if the
/// variable is not set.
fn secret(var: &dyn Fn(&str) -> Option<String>) -> Result<Option<Token>, BootstrapError> {
    let Some(hex) = var(names::TOKEN).filter(|value| !value.trim().is_empty()) else { return Ok(None) };
    hex.trim().parse().map(Some).map_err(|_| BootstrapError::Environment {
        variable: names::TOKEN,
        value: Some(format!("({} characters, hidden)", hex.chars().count())),
        expected: "64 hexadecimal digits".to_owned(),
    })
}

/// Returns the secret of the job. A secret in the environment is used if there is one. Otherwise
/// the secret is random if the job has one machine. For several machines, all launchers derive the
/// same secret from public values.
fn token_of(
    endpoint: &Endpoint,
    n_pes: usize,
    n_machines: usize,
    var: &dyn Fn(&str) -> Option<String>,
) -> Result<Token, BootstrapError> {
    let set = |name: &str| var(name).filter(|value| !value.trim().is_empty());
    match secret(var)? {
        Some(token) => Ok(token),
        None if n_machines == 1 => Token::random(),
        None if set(names::REQUIRE_TOKEN).is_some_and(|value| value.trim() == "1") => Err(BootstrapError::Environment {
            variable: names::TOKEN,
            value: None,
            expected: "64 hexadecimal digits, the same on every machine, because PEERWEAVE_REQUIRE_TOKEN is 1".to_owned(),
        }),
        None => {
            warn_of_public_token(endpoint);
            Ok(Token::derived_from(&format!("{endpoint} {n_pes} {n_machines}")))
        }
    }
}

/// The address and the secret of the job's rendezvous. On machine 0, also the rendezvous server,
/// which runs until this value is dropped.
#[derive(Debug)]
pub struct JobRendezvous {
    server: Option<Server>,
    endpoint: Endpoint,
    token: Token,
}

impl JobRendezvous {
    /// Creates the rendezvous of a job. On the first machine, starts the server. On other machines,
    /// only computes the endpoint and the token.
    ///
    /// # Errors
    /// [`BootstrapError`] if the address is invalid or cannot be bound, or if `PEERWEAVE_TOKEN` is
    /// invalid.
    pub fn start(place: &Place, n_local: usize) -> Result<Self, BootstrapError> {
        let var = |name: &str| std::env::var(name).ok();
        match place {
            Place::ThisMachine => {
                // The job uses a random secret, but an invalid secret in the environment is an
                // error.
                secret(&var)?;
                let (endpoint, token) = (Endpoint::random_unix()?, Token::random()?);
                let server = Server::bind(&endpoint, token, n_local as u32, ServerOptions::default())?;
                Ok(Self { server: Some(server), endpoint, token })
            }
            Place::Machines { address, n_machines, machine } => {
                let endpoint: Endpoint = format!("tcp:{address}").parse()?;
                let n_pes = n_local * n_machines;
                let token = token_of(&endpoint, n_pes, *n_machines, &var)?;
                if *machine > 0 {
                    return Ok(Self { server: None, endpoint, token });
                }
                let server = bind(&endpoint, token, n_pes as u32)?;
                Ok(Self { server: Some(server), endpoint, token })
            }
        }
    }

    /// Returns the environment variables for the PEs.
    pub fn env(&self) -> Vec<(OsString, OsString)> {
        vec![
            ("PEERWEAVE_RENDEZVOUS".into(), self.endpoint.to_string().into()),
            ("PEERWEAVE_TOKEN".into(), self.token.to_hex().into()),
        ]
    }

    /// Returns the PE that ended the job by `World::abort`, and its code; `None` if no PE has ended
    /// the job, or if another machine runs the server.
    pub fn aborted(&self) -> Option<(usize, u8)> {
        self.server.as_ref()?.aborted().map(|(pe, code)| (pe.index(), code))
    }

    /// Reports the loss of `pe` to the rendezvous server. PEs that wait for `pe` then get an error
    /// with the reason `why`. Returns the PE that was lost first. If that PE gave up because
    /// another PE was missing, returns the missing PE.
    ///
    /// Returns `None` if another machine runs the server. Without this report, that server detects
    /// that the connection of `pe` is closed.
    pub fn report_lost(&self, pe: usize, why: &str) -> Option<usize> {
        let server = self.server.as_ref()?;
        server.report_lost(Pe::new(pe as u32), why);
        server.first_loss().map(|(pe, loss)| match loss {
            // `pe` has failed because another PE was missing.
            Loss::GaveUp { missing } => missing.first().copied().unwrap_or(pe).index(),
            _ => pe.index(),
        })
    }
}

/// Refuses to start a job inside a job: PEs of the inner job would inherit the identity of this PE
/// and connect to the outer rendezvous.
pub(crate) fn refuse_inside_a_job(command: &str) -> Result<(), (u8, String)> {
    match std::env::var_os("PEERWEAVE_PE") {
        None => Ok(()),
        Some(pe) => Err((
            exit::USAGE,
            format!(
                "this process is already PE {} of a job (PEERWEAVE_PE is set); to start another job inside it, run: env -u PEERWEAVE_PE peerweave {command} ...",
                pe.to_string_lossy()
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_with_a_nonlocal_address_listens_on_all_interfaces() {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        // An address for documentation (RFC 5737): no interface has it.
        let place = Place::Machines { address: format!("192.0.2.1:{port}"), n_machines: 2, machine: 0 };
        let rendezvous = JobRendezvous::start(&place, 2).unwrap();
        std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        assert_eq!(rendezvous.env()[0].1, format!("tcp:192.0.2.1:{port}").as_str());
    }

    #[test]
    fn default_job_secret_is_random_only_if_job_has_one_machine() {
        let endpoint: Endpoint = "tcp:10.0.0.1:29500".parse().unwrap();
        let token = |n_machines, vars: &[(&str, &str)]| {
            let var = |name: &str| vars.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
            token_of(&endpoint, 4, n_machines, &var)
        };
        assert_ne!(token(1, &[]).unwrap(), token(1, &[]).unwrap(), "a random token");
        assert_eq!(token(2, &[]).unwrap(), token(2, &[]).unwrap(), "both launchers derive the same token");
        let error = token(2, &[("PEERWEAVE_REQUIRE_TOKEN", "1")]).unwrap_err().to_string();
        assert!(error.contains("PEERWEAVE_TOKEN is not set"), "{error}");
        let hex = "ab".repeat(32);
        let set = [("PEERWEAVE_REQUIRE_TOKEN", "1"), ("PEERWEAVE_TOKEN", &*hex)];
        assert_eq!(token(2, &set).unwrap(), hex.parse().unwrap());
        let error = token(1, &[("PEERWEAVE_TOKEN", "zz")]).unwrap_err().to_string();
        assert!(error.contains("PEERWEAVE_TOKEN") && error.contains("64 hexadecimal digits"), "{error}");
        assert!(!error.contains("zz"), "a token is secret: {error}");
    }

    #[test]
    fn invalid_address_error_shows_the_expected_form() {
        let place = Place::Machines { address: "nowhere".into(), n_machines: 2, machine: 1 };
        let error = JobRendezvous::start(&place, 1).unwrap_err().to_string();
        assert!(error.contains("nowhere") && error.contains("HOST:PORT"), "{error}");
    }
}
