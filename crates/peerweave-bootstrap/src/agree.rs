//! Agreement of the PEs about a collective call of a backend. In one round of the agreement, every
//! PE reports its call and whether its work for the call succeeded. Every PE receives the reports
//! of all PEs.
//!
//! The caller handles disagreements. Invariant: if every wait of a round ends before its deadline,
//! all PEs of the round reach the same decision. So if one PE fails, all PEs undo the call, and no
//! PE waits until the deadline.

use std::time::Instant;

use peerweave_types::Pe;

use crate::{BootstrapError, Rendezvous};

/// The PEs that participate in a call of [`agree`]. A round is one call of [`agree`] on each of
/// these PEs.
#[derive(Clone, Copy, Debug)]
pub enum Members<'a> {
    /// All PEs of the rendezvous.
    All,
    /// Some PEs, including this PE.
    Some {
        /// The participating PEs. Every participating PE must pass the same PEs in the same order.
        pes: &'a [Pe],
        /// Identifies the collective call in the job's key-value store. All participating PEs must
        /// pass the same key. Different collective calls on this rendezvous must have different
        /// keys.
        key: &'a str,
    },
}

/// The reason why this PE could not do its work for a collective call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The error message.
    pub reason: String,
    /// Whether this failure is only a consequence of another PE's failure. If several PEs fail in
    /// the same round of [`agree`], the error on the other PEs names only one failed PE: the first
    /// member whose failure is not a consequence. If all failures are consequences, the error names
    /// the first failed member.
    pub is_consequence: bool,
}

/// The reason why a call of [`agree`] failed.
#[derive(Debug)]
pub enum Disagreement {
    /// This PE itself passed a [`Failure`] as `outcome` to [`agree`]. The other PEs have been
    /// notified of the failure.
    Own,
    /// Another PE called [`agree`] with a [`Failure`] as `outcome`, or sent invalid data.
    Failed {
        /// The PE that failed.
        pe: Pe,
        /// The error message that describes the failure of `pe`.
        reason: String,
    },
    /// Two PEs made different calls.
    Diverged {
        /// The first PE in the list of members. The calls of all other members are compared with
        /// the call of this first PE.
        one: Pe,
        /// Description of the call that PE `one` made.
        one_has: String,
        /// The first PE whose call differs from the call of PE `one`.
        other: Pe,
        /// Description of the call that PE `other` made.
        other_has: String,
    },
    /// The rendezvous failed, so this PE does not know the outcomes of the other PEs. It is also
    /// unknown whether the other PEs got this PE's `outcome`, and whether [`agree`] succeeded on
    /// them. In one case, all PEs get this variant: if they passed different labels with
    /// [`Members::All`], the error is [`BootstrapError::Mismatch`].
    Rendezvous(BootstrapError),
}

const WORKED: u8 = 1;
const FAILED: u8 = 2;
const CONSEQUENCE: u8 = 3;

/// Performs one round of the agreement. Returns the blobs that the members passed, in the order of
/// the members.
///
/// `label` names the round. All members must pass the same label, as for [`Rendezvous::exchange`].
/// `call` describes the call, its arguments, and everything else that must be the same on all
/// members. `outcome` is the blob that this PE sends to the other members, or the failure of this
/// PE.
///
/// # Collective
/// All members. Waits until all members have arrived. With [`Members::All`], the
/// [`deadline`](Rendezvous::deadline) of the rendezvous limits the whole wait. With
/// [`Members::Some`], it limits the wait for each member.
///
/// # Errors
/// [`Disagreement::Own`] if `outcome` is a failure. The other members are notified of the failure.
/// [`Disagreement::Failed`] if another member failed, or [`Disagreement::Diverged`] if the calls
/// differ. All members whose `outcome` is a blob get the same error. [`Disagreement::Rendezvous`]
/// if the rendezvous failed, for example because a member did not arrive.
///
/// ```
/// use peerweave_bootstrap::agree::{Members, agree};
/// use peerweave_bootstrap::{Job, Options, Rendezvous};
///
/// let rendezvous = Rendezvous::join(&Job::from_env()?, Options::default())?;
/// let blobs = agree(&rendezvous, Members::All, "sizes", "alloc(1024)", Ok(b"mine")).expect("all called the same");
/// assert_eq!(blobs.len(), rendezvous.n_pes() as usize);
/// # Ok::<(), peerweave_bootstrap::BootstrapError>(())
/// ```
pub fn agree(
    rendezvous: &Rendezvous,
    members: Members<'_>,
    label: &str,
    call: &str,
    outcome: Result<&[u8], Failure>,
) -> Result<Vec<Vec<u8>>, Disagreement> {
    let statement = encode(call, outcome.as_deref());
    let (pes, answers) = match members {
        Members::All => ((0..rendezvous.n_pes()).map(Pe::new).collect(), rendezvous.exchange(label, &statement)),
        Members::Some { pes, key } => (pes.to_vec(), exchange_among(rendezvous, pes, key, label, &statement)),
    };
    let answers = answers.map_err(Disagreement::Rendezvous)?;
    // This PE's own failure takes precedence over failures of other PEs.
    outcome.map_err(|_| Disagreement::Own)?;
    decide(&pes, &answers)
}

/// Notifies the other members that this PE will not call [`agree`] in one round with
/// [`Members::Some`]. `key` and `label` are those of the other members' calls. These calls fail
/// with `reason`. If the rendezvous fails, this function ignores the error, and the other members
/// time out.
pub fn give_up(rendezvous: &Rendezvous, key: &str, label: &str, reason: &str) {
    let failure = Failure { reason: reason.to_owned(), is_consequence: true };
    let _ = rendezvous.put(&key_of(key, label, rendezvous.pe()), &encode("", Err(&failure)));
}

/// Removes the data that this PE stored in a call of [`agree`] with [`Members::Some`]. `key` and
/// `label` are the key and the label of that call. Call this function after all members have read
/// the data. If the rendezvous fails, this function ignores the error, and the data stays in the
/// store.
pub fn forget(rendezvous: &Rendezvous, key: &str, label: &str) {
    let _ = rendezvous.remove(&key_of(key, label, rendezvous.pe()));
}

fn key_of(key: &str, label: &str, pe: Pe) -> String {
    format!("{key}/{label}/{}", pe.get())
}

/// Exchanges blobs among some PEs through the key-value store, because [`Rendezvous::exchange`]
/// needs all PEs.
fn exchange_among(
    rendezvous: &Rendezvous,
    pes: &[Pe],
    key: &str,
    label: &str,
    statement: &[u8],
) -> Result<Vec<Vec<u8>>, BootstrapError> {
    let start = Instant::now();
    rendezvous.put(&key_of(key, label, rendezvous.pe()), statement)?;
    let get = |pe: &Pe| {
        rendezvous.get(&key_of(key, label, *pe)).map_err(|error| {
            // Members that arrive later must not wait for this PE.
            give_up(rendezvous, key, label, "the PE stopped waiting for the other PEs of the call");
            match error {
                BootstrapError::Timeout { call, .. } => {
                    // This PE has waited only for `pe`, but other members may be missing too.
                    let absent = |other: &Pe| other == pe || matches!(rendezvous.try_get(&key_of(key, label, *other)), Ok(None));
                    let missing = pes.iter().copied().filter(absent).collect();
                    BootstrapError::Timeout { call, waited: start.elapsed(), missing }
                }
                other => other,
            }
        })
    };
    pes.iter().map(get).collect()
}

fn decide(pes: &[Pe], answers: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, Disagreement> {
    let mut calls: Vec<&str> = Vec::with_capacity(answers.len());
    let mut blobs = Vec::with_capacity(answers.len());
    let mut failed: Option<(Pe, Received<'_>)> = None;
    for (pe, answer) in pes.iter().copied().zip(answers) {
        let Some((their_call, their_outcome)) = decode(answer) else {
            let reason = "the PE sent data that cannot be decoded".to_owned();
            return Err(Disagreement::Failed { pe, reason });
        };
        match their_outcome {
            Ok(blob) => blobs.push(blob.to_vec()),
            // A PE that failed by itself takes precedence over a PE whose failure is a consequence.
            Err(said) if failed.as_ref().is_none_or(|(_, known)| known.is_consequence && !said.is_consequence) => {
                failed = Some((pe, said))
            }
            Err(_) => {}
        }
        calls.push(their_call);
    }
    if let Some((pe, said)) = failed {
        return Err(Disagreement::Failed { pe, reason: said.reason.to_owned() });
    }
    match calls.iter().position(|other| *other != calls[0]) {
        Some(at) => Err(Disagreement::Diverged {
            one: pes[0],
            one_has: calls[0].to_owned(),
            other: pes[at],
            other_has: calls[at].to_owned(),
        }),
        None => Ok(blobs),
    }
}

fn encode(call: &str, outcome: Result<&[u8], &Failure>) -> Vec<u8> {
    let (kind, rest) = match outcome {
        Ok(blob) => (WORKED, blob),
        Err(Failure { reason, is_consequence: true }) => (CONSEQUENCE, reason.as_bytes()),
        Err(Failure { reason, is_consequence: false }) => (FAILED, reason.as_bytes()),
    };
    let mut statement = vec![kind];
    statement.extend((call.len() as u32).to_le_bytes());
    statement.extend(call.as_bytes());
    statement.extend(rest);
    statement
}

/// What one PE sends to the other PEs in a round, decoded: a description of the PE's call, and the
/// PE's blob or its failure.
type Statement<'a> = (&'a str, Result<&'a [u8], Received<'a>>);

/// A [`Failure`] that was received from another PE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Received<'a> {
    reason: &'a str,
    is_consequence: bool,
}

fn decode(statement: &[u8]) -> Option<Statement<'_>> {
    let (kind, rest) = statement.split_first()?;
    let (len, rest) = rest.split_first_chunk::<4>()?;
    let (call, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    let outcome = match *kind {
        WORKED => Ok(rest),
        FAILED | CONSEQUENCE => Err(Received { reason: str::from_utf8(rest).ok()?, is_consequence: *kind == CONSEQUENCE }),
        _ => return None,
    };
    Some((str::from_utf8(call).ok()?, outcome))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Options, Server};

    /// Runs `body` on `n` threads and returns the results. Each thread is one PE of a new job.
    fn pes<T: Send>(n: u32, body: impl Fn(Rendezvous) -> T + Sync) -> Vec<T> {
        let (_server, jobs) = Server::on_this_machine(n).expect("the server starts");
        std::thread::scope(|scope| {
            let threads: Vec<_> = jobs
                .iter()
                .map(|job| {
                    let options = Options { deadline: Duration::from_secs(60), ..Options::default() };
                    let body = &body;
                    scope.spawn(move || body(Rendezvous::join(job, options).expect("all PEs join")))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no PE panics")).collect()
        })
    }

    fn failure(reason: &str, is_consequence: bool) -> Failure {
        Failure { reason: reason.to_owned(), is_consequence }
    }

    #[test]
    fn blobs_are_returned_in_pe_order() {
        let all = pes(3, |rendezvous| {
            let blob = [rendezvous.pe().get() as u8];
            agree(&rendezvous, Members::All, "round", "call", Ok(&blob)).expect("the PEs agree")
        });
        assert!(all.iter().all(|blobs| *blobs == [[0], [1], [2]]));
    }

    #[test]
    fn failure_of_one_pe_reaches_all_pes() {
        let all = pes(3, |rendezvous| {
            let outcome: Result<&[u8], _> = if rendezvous.pe() == Pe::new(1) { Err(failure("no", false)) } else { Ok(&[]) };
            agree(&rendezvous, Members::All, "round", "call", outcome).expect_err("one PE failed")
        });
        assert!(matches!(all[1], Disagreement::Own), "{:?}", all[1]);
        for told in [&all[0], &all[2]] {
            assert!(matches!(told, Disagreement::Failed { pe, reason } if *pe == Pe::new(1) && reason == "no"), "{told:?}");
        }
    }

    #[test]
    fn error_names_the_original_failure_not_a_consequence() {
        let all = pes(4, |rendezvous| {
            let outcome: Result<&[u8], _> = match rendezvous.pe().get() {
                0 => Err(failure("PE 2 failed", true)),
                2 => Err(failure("no room", false)),
                _ => Ok(&[]),
            };
            agree(&rendezvous, Members::All, "round", "call", outcome).expect_err("one PE failed")
        });
        for told in [&all[1], &all[3]] {
            assert!(matches!(told, Disagreement::Failed { pe, .. } if *pe == Pe::new(2)), "{told:?}");
        }
    }

    #[test]
    fn agreement_fails_on_all_pes_if_call_arguments_differ() {
        let all = pes(2, |rendezvous| {
            let call = format!("alloc({})", 4 + rendezvous.pe().get());
            agree(&rendezvous, Members::All, "round", &call, Ok(&[])).expect_err("the calls differ")
        });
        for told in all {
            let Disagreement::Diverged { one, one_has, other, other_has } = told else { panic!("{told:?}") };
            assert_eq!((one, one_has.as_str(), other, other_has.as_str()), (Pe::new(0), "alloc(4)", Pe::new(1), "alloc(5)"));
        }
    }

    #[test]
    fn agreement_among_some_pes_does_not_wait_for_other_pes() {
        let all = pes(3, |rendezvous| {
            let (some, key) = ([Pe::new(2), Pe::new(0)], "meeting");
            let blobs = (rendezvous.pe() != Pe::new(1)).then(|| {
                let blob = [rendezvous.pe().get() as u8];
                agree(&rendezvous, Members::Some { pes: &some, key }, "came", "call", Ok(&blob)).expect("the PEs agree")
            });
            rendezvous.barrier("done").expect("all PEs call");
            blobs
        });
        assert_eq!(all, [Some(vec![vec![2], vec![0]]), None, Some(vec![vec![2], vec![0]])]);
    }

    #[test]
    fn agreement_error_contains_the_reason_of_the_pe_that_gave_up() {
        let all = pes(2, |rendezvous| {
            let (some, key) = ([Pe::new(0), Pe::new(1)], "meeting");
            let outcome = match rendezvous.pe().get() {
                0 => {
                    give_up(&rendezvous, key, "came", "saw another call");
                    None
                }
                _ => Some(agree(&rendezvous, Members::Some { pes: &some, key }, "came", "call", Ok(&[]))),
            };
            rendezvous.barrier("done").expect("all PEs call");
            outcome
        });
        let told = all[1].as_ref().expect("PE 1 participated").as_ref().expect_err("the other PE gave up");
        assert!(matches!(told, Disagreement::Failed { reason, .. } if reason == "saw another call"), "{told:?}");
    }

    #[test]
    fn truncated_messages_are_not_decoded() {
        let whole = encode("call", Ok(&[1, 2, 3]));
        assert_eq!(decode(&whole), Some(("call", Ok(&[1u8, 2, 3][..]))));
        for len in 0..9 {
            assert_eq!(decode(&whole[..len]), None, "{len} bytes");
        }
    }
}
