//! Exchanges: every member of a team writes a record, waits for all, and reads theirs. All
//! collective calls are implemented by exchanges.
//!
//! Invariants: all members make the exchanges of one channel of a team in the same order; a member
//! in another call ends the process and is named; every wait ends within the limit of the settings,
//! by ending the process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Instant;

use crate::call;
use crate::control::{Control, Member, Record, TeamSlot};
use crate::flight::Flights;
use crate::log::undefined;
use crate::settings;

/// Purpose of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Channel {
    /// Memory, teams, finalization.
    Setup = 0,
    /// Collectives.
    Data = 1,
}

/// A team of which this PE is a member.
pub(crate) struct Team {
    pub(crate) handle: i32,
    pub(crate) index: usize,
    pub(crate) control: &'static Control,
    /// PEs in rank order.
    pub(crate) members: Vec<i32>,
    /// This PE's rank.
    pub(crate) me: usize,
    pub(crate) contexts: i32,
    pub(crate) id: u64,
    pub(crate) gone: AtomicBool,
    pub(crate) flights: Arc<Flights>,
    /// Number of exchanges that this PE has joined.
    turns: [Mutex<u64>; 2],
}

/// The exclusive right to make an exchange. It ends when this is dropped.
pub(crate) struct Turn<'a> {
    team: &'a Team,
    channel: Channel,
    count: MutexGuard<'a, u64>,
}

/// Waits until a condition holds; ends the process at the time limit, or when a PE has called
/// global exit.
pub(crate) fn wait_for(control: &Control, mut holds: impl FnMut() -> bool, what: impl FnOnce() -> String) {
    let mut end = None;
    let mut rounds = 0_u32;
    while !holds() {
        rounds += 1;
        if rounds < 50 {
            std::thread::yield_now();
            continue;
        }
        let exit = control.exit.load(Ordering::Acquire);
        if exit != 0 {
            std::process::exit(exit - 1);
        }
        let now = Instant::now();
        let limit = settings::get().wait;
        if now >= *end.get_or_insert(now + limit) {
            undefined(&format!("waited {limit:?} for {}", what()));
        }
        std::thread::sleep(std::time::Duration::from_micros(if rounds < 1000 { 50 } else { 500 }));
    }
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
    pub(crate) fn new(control: &'static Control, handle: i32, index: usize, members: Vec<i32>, pe: i32) -> Self {
        let me = members.iter().position(|member| *member == pe).expect("this PE is a member");
        Self {
            handle,
            index,
            control,
            members,
            me,
            contexts: 0,
            id: u64::MAX,
            gone: AtomicBool::new(false),
            flights: Arc::default(),
            turns: [const { Mutex::new(0) }; 2],
        }
    }

    fn slot(&self) -> &'static TeamSlot {
        &self.control.teams[self.index]
    }

    /// Waits until other exchanges of this process on the channel are complete.
    pub(crate) fn turn(&self, channel: Channel) -> Turn<'_> {
        let mut turn = None;
        let mut take = || {
            turn = self.try_turn(channel);
            turn.is_some()
        };
        wait_for(self.control, &mut take, || format!("another collective of team {} in this process", self.handle));
        turn.expect("it was waited for")
    }

    /// Returns the turn if no other thread of this process has it.
    pub(crate) fn try_turn(&self, channel: Channel) -> Option<Turn<'_>> {
        let count = match self.turns[channel as usize].try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Turn { team: self, channel, count })
    }

    /// Frees the team's slot after all members have left.
    pub(crate) fn leave(&self) {
        self.gone.store(true, Ordering::Release);
        if self.members.len() > 1 {
            let slot = self.slot();
            if slot.left.fetch_add(1, Ordering::AcqRel) + 1 == self.members.len() as u32 {
                slot.used.store(0, Ordering::Release);
            }
        }
    }
}

impl Turn<'_> {
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
        // SAFETY: only this PE writes here, its meetings follow one another, and nobody reads what
        // is for this meeting before it is counted.
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
            // SAFETY: that member has counted this meeting, and writes here again only at the next
            // but one, to which it comes after this PE.
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
