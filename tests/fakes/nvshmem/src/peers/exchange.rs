//! Exchanges: every member of a team writes a record, waits for all members, and reads their
//! records. All collective calls are implemented by exchanges.
//!
//! Invariants: all members make the exchanges of one channel of a team in the same order. If a
//! member is in another call, the process ends with a message that names this member.

use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, TryLockError};

use super::control::{Member, Record};
use super::team::Team;
use super::wait::wait_for;
use crate::call::{self, undefined};

/// Purpose of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Channel {
    /// Memory, teams, finalization.
    Setup = 0,
    /// Collectives.
    Data = 1,
}

/// The exclusive right to make exchanges on a channel. Dropping the `Turn` ends the right.
pub(crate) struct Turn<'a> {
    team: &'a Team,
    channel: Channel,
    count: MutexGuard<'a, u64>,
}

/// Returns a record of the running call.
pub(crate) fn record(same: &[u64], own: &[u64]) -> Record {
    record_of(call::function(), same, own)
}

/// Returns a record of a call with this name.
pub(crate) fn record_of(name: &str, same: &[u64], own: &[u64]) -> Record {
    let mut record = Record { name: [0; 64], same: [0; 6], own: [0; 4] };
    let length = name.len().min(record.name.len());
    record.name[..length].copy_from_slice(&name.as_bytes()[..length]);
    record.same[..same.len()].copy_from_slice(same);
    record.own[..own.len()].copy_from_slice(own);
    record
}

fn describe(record: &Record) -> String {
    let end = record.name.iter().position(|byte| *byte == 0).unwrap_or(record.name.len());
    format!("{}{:?}", String::from_utf8_lossy(&record.name[..end]), record.same)
}

impl Team {
    /// Waits until other exchanges of this process on the channel are complete.
    pub(super) fn turn(&self, channel: Channel) -> Turn<'_> {
        let mut turn = None;
        let mut take = || {
            turn = self.try_turn(channel);
            turn.is_some()
        };
        wait_for(self.control, &mut take, || format!("another collective of team {} in this process", self.handle));
        turn.expect("the wait ended because the turn was acquired")
    }

    /// Returns the turn, unless another thread of this process has the turn.
    pub(super) fn try_turn(&self, channel: Channel) -> Option<Turn<'_>> {
        let count = match self.turns[channel as usize].try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Turn { team: self, channel, count })
    }
}

impl Turn<'_> {
    /// Reports to the other members whether this member succeeded. Returns the rank of a member
    /// that failed, or `None` if all members succeeded.
    pub(crate) fn find_failed(&mut self, same: &[u64], succeeded: bool) -> Option<usize> {
        self.meet(record(same, &[u64::from(succeeded)])).iter().position(|theirs| theirs.own[0] == 0)
    }

    /// Makes an exchange and returns every member's record in rank order.
    pub(crate) fn meet(&mut self, record: Record) -> Vec<Record> {
        let team = self.team;
        if team.members.len() == 1 {
            return vec![record];
        }
        let sides: &[Member] = &team.slot().channels[self.channel as usize];
        *self.count += 1;
        let count = *self.count;
        let which = (count % 2) as usize;
        let own = &sides[team.me];
        // SAFETY: only this PE writes this record, its exchanges do not overlap, and no member
        // reads the record before this exchange is counted.
        unsafe { own.records[which].get().write(record) };
        own.count.store(count, Ordering::Release);
        let mut all = Vec::with_capacity(team.members.len());
        for (rank, side) in sides[..team.members.len()].iter().enumerate() {
            let pe = team.members[rank];
            wait_for(
                team.control,
                || side.count.load(Ordering::Acquire) >= count,
                || format!("PE {pe} of team {} in {}", team.handle, describe(&record)),
            );
            // SAFETY: that member has counted this exchange. It writes this record again two
            // exchanges later, and only after this PE has counted the exchange in between.
            let theirs = unsafe { side.records[which].get().read() };
            if theirs.name != record.name || theirs.same != record.same {
                let (own, theirs) = (describe(&record), describe(&theirs));
                undefined(&format!("PE {} is in {own}, but PE {pe} is in {theirs}", team.members[team.me]));
            }
            all.push(theirs);
        }
        all
    }
}
