//! One round of a collective call: everybody says what it called and whether its part worked, and everybody learns it of all.
//!
//! Invariant: after a round all PEs come to the same decision, so that a failure of one is rolled back by all and nobody waits for the deadline.

use peerweave_bootstrap::{BootstrapError, Rendezvous};
use peerweave_types::Pe;

use crate::error::{Misuse, PeerCause, VmmError};

/// Why a round did not succeed.
pub(crate) enum Disagreement {
    /// All know, and all undo.
    Known(VmmError),
    /// The round itself failed: the PEs may have come to different conclusions.
    Unknown(VmmError),
}

impl From<Disagreement> for VmmError {
    fn from(disagreement: Disagreement) -> Self {
        match disagreement {
            Disagreement::Known(error) | Disagreement::Unknown(error) => error,
        }
    }
}

const WORKED: u8 = 1;
const FAILED: u8 = 2;
/// It could not do its part because of another PE.
const HEARD: u8 = 3;

/// Goes through a round. `call` names the call with its arguments and the state that it started from; it must be the same on all PEs. `outcome` is
/// what this PE has to give to the others, or its error, which is then the result.
///
/// Gives the blobs of all PEs of the job.
pub(crate) fn agree(
    rendezvous: &Rendezvous,
    label: &str,
    call: &str,
    outcome: Result<Vec<u8>, VmmError>,
) -> Result<Vec<Vec<u8>>, Disagreement> {
    let statement = encode(call, outcome.as_deref());
    let answers = rendezvous.exchange(label, &statement).map_err(|error| match error {
        // Everybody gets this one.
        BootstrapError::Mismatch { call, one, one_call, other, other_call } => {
            Disagreement::Known(Misuse::Diverged { call, one, one_has: one_call, other, other_has: other_call }.into())
        }
        error => {
            if let Err(own) = &outcome {
                // The caller gets the other one: that this PE's failure was not heard of everywhere is worse.
                tracing::warn!(call, error = %own, "failed, and the others may not have heard of it");
            }
            Disagreement::Unknown(error.into())
        }
    })?;
    // What went wrong here is the better story than what went wrong elsewhere.
    outcome.map_err(Disagreement::Known)?;
    let mut calls: Vec<&str> = Vec::with_capacity(answers.len());
    let mut blobs = Vec::with_capacity(answers.len());
    let mut failed: Option<(Pe, Failure<'_>)> = None;
    for (pe, answer) in (0..).map(Pe::new).zip(&answers) {
        let Some((their_call, their_outcome)) = decode(answer) else {
            let cause = PeerCause::Failed("sent what no version of this crate sends".into());
            return Err(Disagreement::Known(VmmError::Peer { call: call.to_owned(), pe, cause }));
        };
        match their_outcome {
            Ok(blob) => blobs.push(blob.to_vec()),
            // Whose own failure it was, rather than who has heard of it.
            Err(failure) if failed.as_ref().is_none_or(|(_, known)| known.is_heard && !failure.is_heard) => {
                failed = Some((pe, failure));
            }
            Err(_) => {}
        }
        calls.push(their_call);
    }
    if let Some((pe, failure)) = failed {
        let cause = PeerCause::Failed(failure.text.to_owned());
        return Err(Disagreement::Known(VmmError::Peer { call: call.to_owned(), pe, cause }));
    }
    if let Some(at) = calls.iter().position(|other| *other != calls[0]) {
        return Err(Disagreement::Known(
            Misuse::Diverged {
                call: label.to_owned(),
                one: Pe::new(0),
                one_has: calls[0].to_owned(),
                other: Pe::new(at as u32),
                other_has: calls[at].to_owned(),
            }
            .into(),
        ));
    }
    Ok(blobs)
}

fn encode(call: &str, outcome: Result<&[u8], &VmmError>) -> Vec<u8> {
    let (kind, rest) = match outcome {
        Ok(blob) => (WORKED, blob.to_vec()),
        Err(error @ VmmError::Peer { .. }) => (HEARD, error.to_string().into_bytes()),
        Err(error) => (FAILED, error.to_string().into_bytes()),
    };
    let mut statement = vec![kind];
    statement.extend((call.len() as u32).to_le_bytes());
    statement.extend(call.as_bytes());
    statement.extend(rest);
    statement
}

/// The call, and the blob or the error.
type Statement<'a> = (&'a str, Result<&'a [u8], Failure<'a>>);

/// An error in a PE's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Failure<'a> {
    text: &'a str,
    is_heard: bool,
}

fn decode(statement: &[u8]) -> Option<Statement<'_>> {
    let (kind, rest) = statement.split_first()?;
    let (len, rest) = rest.split_first_chunk::<4>()?;
    let (call, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    let outcome = match *kind {
        WORKED => Ok(rest),
        FAILED | HEARD => Err(Failure { text: str::from_utf8(rest).ok()?, is_heard: *kind == HEARD }),
        _ => return None,
    };
    Some((str::from_utf8(call).ok()?, outcome))
}

/// Reads numbers off the front of a blob.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    pub(crate) fn number(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }
}

/// The error for a blob that cannot be read.
pub(crate) fn unreadable(call: &str, pe: Pe) -> VmmError {
    let cause = PeerCause::Failed("sent a blob that cannot be read".into());
    VmmError::Peer { call: call.to_owned(), pe, cause }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use peerweave_bootstrap::{Endpoint, Job, Options, Server, ServerOptions, Token};

    use super::*;

    /// Runs `body` as each of `n` PEs.
    fn pes<T: Send>(n: u32, body: impl Fn(Rendezvous) -> T + Sync) -> Vec<T> {
        let token = Token::random().expect("random numbers");
        let endpoint = Endpoint::random_unix().expect("random numbers");
        let server = Server::bind(&endpoint, token, n, ServerOptions::default()).expect("a server");
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..n)
                .map(|pe| {
                    let job = Job::on_one_machine(pe, n, server.endpoint().clone(), token);
                    let options = Options { deadline: Duration::from_secs(10), ..Options::default() };
                    let body = &body;
                    scope.spawn(move || body(Rendezvous::join(&job, options).expect("everybody joins")))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        })
    }

    #[test]
    fn blobs_of_all_come_in_the_order_of_the_pes() {
        let all = pes(3, |rendezvous| {
            let blob = vec![rendezvous.pe().get() as u8];
            agree(&rendezvous, "round", "call", Ok(blob)).map_err(VmmError::from).expect("they agree")
        });
        assert!(all.iter().all(|blobs| *blobs == [[0], [1], [2]]));
    }

    #[test]
    fn the_failure_of_one_is_told_to_all_at_once() {
        let all = pes(3, |rendezvous| {
            let outcome = match rendezvous.pe().get() {
                1 => Err(Misuse::OtherHeap { call: "free" }.into()),
                _ => Ok(Vec::new()),
            };
            agree(&rendezvous, "round", "call", outcome).map_err(VmmError::from).expect_err("one failed").to_string()
        });
        assert_eq!(all[1], "free: the memory belongs to another heap");
        assert_eq!(all[0], "call: PE 1 failed: free: the memory belongs to another heap");
        assert_eq!(all[0], all[2]);
    }

    #[test]
    fn who_has_only_heard_of_a_failure_is_not_named_for_it() {
        let all = pes(4, |rendezvous| {
            let outcome = match rendezvous.pe().get() {
                0 => {
                    let cause = PeerCause::Failed("no room".into());
                    Err(VmmError::Peer { call: "exchange".into(), pe: Pe::new(2), cause })
                }
                2 => Err(Misuse::OtherHeap { call: "free" }.into()),
                _ => Ok(Vec::new()),
            };
            let error = agree(&rendezvous, "round", "call", outcome).map_err(VmmError::from).expect_err("one failed");
            error.blamed().iter().map(|pe| pe.get()).collect::<Vec<_>>()
        });
        assert_eq!(all, [vec![2], vec![2], vec![], vec![2]]);
    }

    #[test]
    fn different_arguments_are_told_to_all() {
        let all = pes(2, |rendezvous| {
            let call = format!("alloc({})", 4 + rendezvous.pe().get());
            agree(&rendezvous, "round", &call, Ok(Vec::new())).map_err(VmmError::from).expect_err("they differ").to_string()
        });
        assert_eq!(all, ["round: the PEs disagree: PE 0 has alloc(4), PE 1 has alloc(5)"; 2]);
    }

    #[test]
    fn statements_that_are_cut_are_refused() {
        let whole = encode("call", Ok(&[1, 2, 3]));
        assert_eq!(decode(&whole), Some(("call", Ok(&[1u8, 2, 3][..]))));
        for len in 0..9 {
            assert_eq!(decode(&whole[..len]), None, "{len} bytes");
        }
    }
}
