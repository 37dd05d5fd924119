//! Finds the members that caused a failed attempt to agree on a new job. A PE whose attempt fails
//! withdraws from the attempt, and names the PE that caused the failure if this PE is known.

use std::thread;
use std::time::{Duration, Instant};

use peerweave_types::Pe;

use super::{Decision, LONGEST_PAUSE, Survivors};

impl Survivors<'_> {
    /// Returns the members that caused the failure of an attempt. The attempt has led to
    /// `decision`, and has then failed with an error on this PE. `named` is the PE that the error
    /// names. `is_lost` is `true` if the error says that `named` has ended or has given up.
    ///
    /// The result depends on the error:
    /// - If members are stopped and `is_lost` is `false`: the stopped members.
    /// - Otherwise, if `named` is `None`: the members that neither end nor give up within `limit`,
    ///   after this call has withdrawn this PE from the attempt.
    /// - Otherwise: the member because of which `named` gave up, directly or through other members.
    ///   The list is empty if `named` itself or this PE is the cause, or if the cause is unknown.
    ///   If `is_lost` is `true`, this call waits for members for at most `limit`.
    pub fn causes(&self, decision: &Decision, named: Option<Pe>, is_lost: bool, limit: Duration) -> Vec<Pe> {
        let stopped = self.stopped(decision);
        if !stopped.is_empty() && !is_lost {
            return stopped;
        }
        let Some(named) = named else { return self.remaining(decision, limit) };
        let limit = if is_lost { limit } else { Duration::ZERO };
        let cause = self.reason_of(decision, named, limit).filter(|pe| *pe != named && *pe != self.me);
        cause.into_iter().collect()
    }

    /// Returns the other members that are stopped, for example by a signal, and still participate
    /// in the attempt that led to `decision`. A running member increments a counter in shared
    /// memory. A member counts as stopped if its counter no longer changes.
    fn stopped(&self, decision: &Decision) -> Vec<Pe> {
        self.beat();
        let is_stopped =
            |pe: &Pe| *pe != self.me && self.participates(decision, pe.index()) && self.beats.has_stopped(pe.index());
        decision.members.iter().copied().filter(is_stopped).collect()
    }

    /// Searches for the member that caused a failure. The search starts at the member `gone`, which
    /// seems to have ended or given up. If a member has given up, the search continues at the PE
    /// that this member named as the cause.
    ///
    /// Returns the first member that neither ends nor gives up within `limit`. Returns `None` if
    /// that member is the calling PE, if a member has ended, or if a member that has given up named
    /// no PE. Also returns `None` after as many steps as there are members.
    fn reason_of(&self, decision: &Decision, gone: Pe, limit: Duration) -> Option<Pe> {
        let until = Instant::now() + limit;
        let mut gone = gone;
        // Each iteration goes from a PE that has given up to the PE that this PE has named.
        for _ in 0..decision.members.len() {
            while self.participates(decision, gone.index()) {
                if Instant::now() >= until {
                    return (gone != self.me).then_some(gone);
                }
                thread::sleep(LONGEST_PAUSE);
            }
            if (self.has_ended)(gone.index()) {
                return None;
            }
            gone = (self.words)(gone.index()).blamed()?;
        }
        None
    }

    /// Withdraws this PE from the attempt that led to `decision`, and returns the members that are
    /// probably stopped. Every running member notices the withdrawal, and withdraws too. So a
    /// member that neither withdraws nor ends within `limit` is probably stopped. Use this function
    /// after a failure that names no PE, for example if a server does not answer.
    fn remaining(&self, decision: &Decision, limit: Duration) -> Vec<Pe> {
        self.withdraw(decision, None);
        let until = Instant::now() + limit;
        loop {
            let members = decision.members.iter().copied();
            let left: Vec<Pe> = members.filter(|pe| self.participates(decision, pe.index())).collect();
            if left.is_empty() || Instant::now() >= until {
                return left;
            }
            thread::sleep(LONGEST_PAUSE);
        }
    }
}
