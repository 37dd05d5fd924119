//! Finds the members that caused an attempt to agree on a new job to fail. A PE whose attempt fails
//! withdraws from the attempt, and names the PE that caused its failure.

use std::thread;
use std::time::{Duration, Instant};

use peerweave_types::Pe;

use super::{Decision, LONGEST_PAUSE, Survivors};

impl Survivors<'_> {
    /// Returns the members that caused the failure of the attempt that led to `decision`. The list
    /// is empty if the error that this PE got already names the cause, or if the cause is unknown.
    ///
    /// `named` is the PE that the error names. `is_lost` is whether the error says that the PE
    /// `named` has ended or has given up. `limit` is the maximum time to wait for members that have
    /// neither ended nor given up. If `named` is `None` and no member has stopped, this call also
    /// withdraws this PE from the attempt.
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

    /// Returns the members that still participate in the attempt that led to `decision`, but that
    /// are stopped according to their counters.
    fn stopped(&self, decision: &Decision) -> Vec<Pe> {
        self.beat();
        let is_stopped =
            |pe: &Pe| *pe != self.me && self.participates(decision, pe.index()) && self.beats.has_stopped(pe.index());
        decision.members.iter().copied().filter(is_stopped).collect()
    }

    /// Returns the member that caused a failure. The search starts at `gone`, a member that seems
    /// to have ended. From each member that has given up, the search goes to the PE that this
    /// member named. Returns the first reached PE that neither ends nor gives up within `limit`.
    /// Returns `None` if that PE is this PE, or if a reached PE has ended or has named no PE.
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

    /// Withdraws this PE from the attempt that led to `decision`. Returns the members that neither
    /// end nor give up within `limit`, because such members are probably stopped. Use this function
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
