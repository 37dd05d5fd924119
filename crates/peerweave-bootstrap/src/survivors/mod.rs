//! The PEs of one machine that are left after a failure agree on a new job, and join it.
//!
//! The agreement uses words in memory that all PEs of the old job share, one [`SurvivorWords`] for
//! each PE. So it needs no server, and PE 0 may be among the dead. The caller provides the memory,
//! and a function that says whether a PE has ended.
//!
//! An attempt has a number. A PE that takes part writes the number into its words. The first PE
//! that has not ended leads: when all others that have not ended take part too, it starts a server
//! and publishes its decision, which is the list of members and the address of the server. Each PE
//! looks for a decision in ascending order of PEs, and goes past a PE only if that PE has ended
//! without one.
//!
//! Invariants: **\[1\]** an attempt has at most one decision. A PE that decides has seen that all
//! PEs before it ended, and that none of them had decided; a PE that has ended writes nothing more.
//! So the first decision in the order of PEs is the only one, and it stays readable after its PE
//! has died. **\[2\]** A PE takes part in the highest attempt that it sees, so attempts that failed
//! on some PEs end on all. **\[3\]** Every wait ends: with the agreement, at the deadline, or when
//! `check` fails.

mod beats;

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use peerweave_types::Pe;

use self::beats::Beats;
use crate::endpoint::Endpoint;
use crate::error::BootstrapError;
use crate::job::{Job, Served};
use crate::rendezvous::Rendezvous;
use crate::server::{Server, ServerOptions};
use crate::token::{TOKEN_LEN_BYTES, Token, fill_random};

/// The largest number of PEs that can agree.
pub const MAX_SURVIVORS: usize = 4096;

/// The shortest pause between two reads of the words of the others.
const SHORTEST_PAUSE: Duration = Duration::from_micros(20);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

const NAME_LEN_BYTES: usize = 16;
const TICKET_WORDS: usize = (NAME_LEN_BYTES + TOKEN_LEN_BYTES) / 8;

/// How far a PE is in an attempt: the low byte of [`SurvivorWords::state`].
mod phase {
    /// Takes part.
    pub(super) const ARRIVED: u64 = 1;
    /// Took part, and has returned an error.
    pub(super) const WITHDRAWN: u64 = 2;
    /// Has joined the new job.
    pub(super) const DONE: u64 = 3;
    /// Could join the new job, and waits for the other members.
    pub(super) const READY: u64 = 4;
}

/// The words of one PE, in memory that all PEs of the old job share. They start as zeros, and only
/// that PE writes them.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct SurvivorWords {
    /// The number of the attempt, and the phase in the low byte.
    state: AtomicU64,
    /// The number, plus 1, of the PE because of which this PE has withdrawn; 0 for none. Written
    /// before the state.
    blamed: AtomicU64,
    /// Counts the looks of this PE while it takes part, so that the others see that it runs.
    beat: AtomicU64,
    /// The attempt for which this PE has published a decision; 0 while it writes one.
    decided: AtomicU64,
    /// The decision: the ticket, and one bit for each member.
    ticket: [AtomicU64; TICKET_WORDS],
    members: [AtomicU64; MAX_SURVIVORS / 64],
}

impl Default for SurvivorWords {
    fn default() -> Self {
        let zeros = || AtomicU64::new(0);
        Self {
            state: zeros(),
            blamed: zeros(),
            beat: zeros(),
            decided: zeros(),
            ticket: std::array::from_fn(|_| zeros()),
            members: std::array::from_fn(|_| zeros()),
        }
    }
}

impl SurvivorWords {
    /// Returns whether this PE has ever taken part in an agreement. If so, it runs no more
    /// operations of the old job.
    #[inline]
    pub fn has_begun(&self) -> bool {
        self.state.load(Ordering::Acquire) != 0
    }

    fn is_at(&self, attempt: u64, phase: u64) -> bool {
        self.attempt_and_phase() == (attempt, phase)
    }

    fn attempt_and_phase(&self) -> (u64, u64) {
        let state = self.state.load(Ordering::Acquire);
        (state >> 8, state & 0xff)
    }

    fn enter(&self, attempt: u64, phase: u64) {
        self.state.store(attempt << 8 | phase, Ordering::Release);
    }

    fn withdraw(&self, attempt: u64, because: Option<Pe>) {
        self.blamed.store(because.map_or(0, |pe| u64::from(pe.get()) + 1), Ordering::Relaxed);
        self.enter(attempt, phase::WITHDRAWN);
    }

    /// Returns the PE because of which this PE has withdrawn. The caller has read the state before.
    fn blamed(&self) -> Option<Pe> {
        Some(Pe::new(u32::try_from(self.blamed.load(Ordering::Acquire).checked_sub(1)?).ok()?))
    }

    fn publish(&self, attempt: u64, ticket: Ticket, members: &[Pe]) {
        self.decided.store(0, Ordering::Relaxed);
        // A reader that sees a part of what follows sees this zero too.
        fence(Ordering::Release);
        self.ticket.iter().zip(ticket.0).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        let mut bits = [0; MAX_SURVIVORS / 64];
        members.iter().for_each(|pe| bits[pe.index() / 64] |= 1 << (pe.index() % 64));
        self.members.iter().zip(bits).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        self.decided.store(attempt, Ordering::Release);
    }

    /// Returns the decision of this PE for an attempt.
    fn decision(&self, attempt: u64) -> Option<Decision> {
        if self.decided.load(Ordering::Acquire) != attempt {
            return None;
        }
        let ticket = Ticket(std::array::from_fn(|at| self.ticket[at].load(Ordering::Relaxed)));
        let bits = self.members.iter().map(|word| word.load(Ordering::Relaxed));
        let in_word = |(at, word): (usize, u64)| {
            (0..64).filter(move |bit| word >> bit & 1 != 0).map(move |bit| Pe::new((at * 64 + bit) as u32))
        };
        let members = bits.enumerate().flat_map(in_word).collect();
        fence(Ordering::Acquire);
        (self.decided.load(Ordering::Relaxed) == attempt).then_some(Decision { attempt, ticket, members })
    }
}

/// The address and the secret of the rendezvous of a new job.
#[derive(Clone, Copy)]
pub struct Ticket([u64; TICKET_WORDS]);

impl Ticket {
    /// A ticket without an address, for PEs that are threads of one process and need no server.
    pub const NONE: Self = Self([0; TICKET_WORDS]);

    /// Creates a random ticket.
    ///
    /// # Errors
    /// [`BootstrapError::Io`] if the operating system provides no random numbers.
    pub fn random() -> Result<Self, BootstrapError> {
        let mut bytes = [0; TICKET_WORDS * 8];
        fill_random(&mut bytes)?;
        let (words, _) = bytes.as_chunks();
        Ok(Self(std::array::from_fn(|at| u64::from_ne_bytes(words[at]))))
    }

    fn parts(self) -> (Endpoint, Token) {
        let words = self.0.map(u64::to_ne_bytes);
        let (name, secret) = words.as_flattened().split_at(NAME_LEN_BYTES);
        let name: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut token = [0; TOKEN_LEN_BYTES];
        token.copy_from_slice(secret);
        (Endpoint::Unix(format!("peerweave-{name}")), Token::from_bytes(token))
    }

    /// Starts the server of a job of `n_pes` PEs.
    ///
    /// # Errors
    /// As for [`Server::bind`].
    pub fn serve(self, n_pes: u32) -> Result<Server, BootstrapError> {
        let (endpoint, token) = self.parts();
        Server::bind(&endpoint, token, n_pes, ServerOptions::default())
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ticket(..)")
    }
}

/// The new job, as all of its PEs have agreed on it.
#[derive(Clone, Debug)]
pub struct Decision {
    attempt: u64,
    ticket: Ticket,
    /// The members, ascending: PE `i` of the new job is `members[i]` of the old one.
    pub members: Vec<Pe>,
}

impl Decision {
    /// Returns the number of the attempt, which no earlier attempt of these PEs had.
    pub fn attempt(&self) -> u64 {
        self.attempt
    }

    /// Returns the number that a PE of the old job has in the new one; `None` if it is not a
    /// member.
    pub fn new_pe(&self, old: Pe) -> Option<Pe> {
        self.members.binary_search(&old).ok().map(|at| Pe::new(at as u32))
    }

    /// Returns the numbers that PEs of the new job had in the old one.
    pub fn old_pes(&self, new: &[Pe]) -> Vec<Pe> {
        new.iter().filter_map(|pe| self.members.get(pe.index()).copied()).collect()
    }
}

/// The reason why PEs could not agree.
#[derive(Debug)]
pub enum Disagreement<E> {
    /// The deadline passed, and these PEs had neither called nor ended.
    Late {
        /// The time waited.
        waited: Duration,
        /// The PEs that did not call; ascending.
        missing: Vec<Pe>,
    },
    /// A PE has joined a new job without this PE.
    Left(Pe),
    /// `lead`, which prepares the new job, failed, or `check` did.
    Failed(E),
}

/// What a PE finds in the words of all PEs.
enum Look {
    Decided(Decision),
    /// This PE leads, and these PEs take part.
    Lead(Vec<Pe>),
    Wait,
}

/// The PEs of the old job, as one of them sees them.
pub struct Survivors<'a> {
    me: Pe,
    n_pes: usize,
    words: &'a (dyn Fn(usize) -> &'a SurvivorWords + Sync),
    has_ended: &'a dyn Fn(usize) -> bool,
    beats: Beats,
}

impl<'a> Survivors<'a> {
    /// Returns what PE `me` of a job of `n_pes` PEs needs for one call.
    ///
    /// `words` returns the words of a PE. `has_ended` returns whether a PE has ended or has left
    /// the old job, so that it writes no more words: it must not return `true` for a PE that
    /// continues, and may notice an end some time later.
    ///
    /// # Panics
    /// If the job has more than [`MAX_SURVIVORS`] PEs.
    pub fn new(
        me: Pe,
        n_pes: usize,
        words: &'a (dyn Fn(usize) -> &'a SurvivorWords + Sync),
        has_ended: &'a dyn Fn(usize) -> bool,
    ) -> Self {
        assert!(n_pes <= MAX_SURVIVORS, "the job has {n_pes} PEs, expected at most {MAX_SURVIVORS}");
        Self { me, n_pes, words, has_ended, beats: Beats::new(n_pes, words) }
    }

    /// Returns the number of this PE.
    pub fn me(&self) -> Pe {
        self.me
    }

    fn beat(&self) {
        self.beats.beat(self.me.index(), self.words);
    }

    /// Runs `work`, and counts at short intervals while it runs, so that members that wait for this
    /// PE do not consider it stopped.
    pub fn beating<T>(&self, work: impl FnOnce() -> T) -> T {
        let (beats, me, words) = (&self.beats, self.me.index(), self.words);
        let (done, ends) = mpsc::channel::<()>();
        thread::scope(|scope| {
            scope.spawn(move || {
                while let Err(RecvTimeoutError::Timeout) = ends.recv_timeout(beats::PAUSE) {
                    beats.beat(me, words);
                }
            });
            // The thread ends when this is dropped.
            let _done = done;
            work()
        })
    }

    /// Returns the members that still take part in the attempt of a decision, but do not run.
    pub fn stopped(&self, decision: &Decision) -> Vec<Pe> {
        self.beat();
        let is_stopped = |pe: &Pe| {
            let old = pe.index();
            let is_left = *pe != self.me && !(self.has_ended)(old) && !self.has_given_up(decision, old);
            is_left && self.beats.has_stopped(old)
        };
        decision.members.iter().copied().filter(is_stopped).collect()
    }

    fn own(&self) -> &'a SurvivorWords {
        (self.words)(self.me.index())
    }

    /// Agrees with the other PEs that have not ended. On one of them, `lead` prepares the job of
    /// the given members and returns its ticket. `check` fails if the call must end.
    ///
    /// # Collective
    /// All PEs of the old job that have not ended.
    ///
    /// # Errors
    /// [`Disagreement`] with the reason. This PE then takes no part until its next call.
    pub fn agree<E>(
        &self,
        until: Instant,
        mut check: impl FnMut() -> Result<(), E>,
        lead: impl FnOnce(u64, &[Pe]) -> Result<Ticket, E>,
    ) -> Result<Decision, Disagreement<E>> {
        let (start, own) = (Instant::now(), self.own());
        let first = (own.state.load(Ordering::Relaxed) >> 8) + 1;
        let mut attempt = first;
        let mut pause = SHORTEST_PAUSE;
        loop {
            self.beat();
            attempt = self.highest_attempt(attempt);
            if !own.is_at(attempt, phase::ARRIVED) {
                own.enter(attempt, phase::ARRIVED);
            }
            match self.look(attempt).inspect_err(|_| own.withdraw(attempt, None)).map_err(Disagreement::Left)? {
                Look::Decided(decision) => return self.accept(decision),
                Look::Lead(members) => {
                    let ticket = lead(attempt, &members).map_err(|error| self.failed(attempt, error))?;
                    own.publish(attempt, ticket, &members);
                    return Ok(Decision { attempt, ticket, members });
                }
                Look::Wait => {}
            }
            check().map_err(|error| self.failed(attempt, error))?;
            let now = Instant::now();
            if now >= until {
                let missing = self.missing(first, attempt);
                own.withdraw(attempt, missing.first().copied());
                return match self.look(attempt) {
                    // The leader has decided meanwhile.
                    Ok(Look::Decided(decision)) => {
                        own.enter(attempt, phase::ARRIVED);
                        self.accept(decision)
                    }
                    _ => Err(Disagreement::Late { waited: start.elapsed(), missing }),
                };
            }
            thread::sleep(pause.min(until - now));
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn accept<E>(&self, decision: Decision) -> Result<Decision, Disagreement<E>> {
        match decision.new_pe(self.me) {
            Some(_) => Ok(decision),
            None => {
                self.withdraw(&decision, None);
                Err(Disagreement::Left(decision.members.first().copied().unwrap_or(self.me)))
            }
        }
    }

    fn failed<E>(&self, attempt: u64, error: E) -> Disagreement<E> {
        self.own().withdraw(attempt, None);
        Disagreement::Failed(error)
    }

    /// Returns the highest attempt in which a PE takes part, at least `attempt`.
    fn highest_attempt(&self, attempt: u64) -> u64 {
        let of = |pe: usize| {
            let state = (self.words)(pe).state.load(Ordering::Acquire);
            if state & 0xff == phase::ARRIVED { state >> 8 } else { 0 }
        };
        (0..self.n_pes).map(of).fold(attempt, u64::max)
    }

    /// Looks for the decision of an attempt. Fails with a PE that has joined a new job already.
    fn look(&self, attempt: u64) -> Result<Look, Pe> {
        for pe in 0..self.n_pes {
            let words = (self.words)(pe);
            if words.state.load(Ordering::Acquire) & 0xff == phase::DONE {
                return Err(Pe::new(pe as u32));
            }
            if let Some(decision) = words.decision(attempt) {
                return Ok(Look::Decided(decision));
            }
            if pe == self.me.index() {
                return Ok(self.others_arrived(attempt).map_or(Look::Wait, Look::Lead));
            }
            if !(self.has_ended)(pe) {
                return Ok(Look::Wait);
            }
            // It may have decided since the last look, and then ended.
            if let Some(decision) = words.decision(attempt) {
                return Ok(Look::Decided(decision));
            }
        }
        Ok(Look::Wait)
    }

    /// Returns the members of an attempt if all PEs that have not ended take part.
    fn others_arrived(&self, attempt: u64) -> Option<Vec<Pe>> {
        let mut members = Vec::new();
        for pe in 0..self.n_pes {
            let arrived = (self.words)(pe).is_at(attempt, phase::ARRIVED);
            if pe == self.me.index() {
                members.push(self.me);
            } else if !(self.has_ended)(pe) {
                if !arrived {
                    return None;
                }
                members.push(Pe::new(pe as u32));
            }
        }
        Some(members)
    }

    /// Returns the PEs for which this PE has waited until the deadline, in attempts from `first` to
    /// `last`; ascending.
    fn missing(&self, first: u64, last: u64) -> Vec<Pe> {
        let words = |pe: usize| (self.words)(pe);
        let others = || (0..self.n_pes).filter(|&pe| pe != self.me.index() && !(self.has_ended)(pe));
        let has_given_up = |pe: usize| words(pe).attempt_and_phase().1 == phase::WITHDRAWN;
        // A PE that has not called, or that was stopped in the call, in this attempt or before.
        let is_absent = |pe: usize| match words(pe).attempt_and_phase() {
            (_, phase::ARRIVED | phase::READY) => self.beats.has_stopped(pe),
            (attempt, _) => attempt < first && !self.beats.has_run(pe),
        };
        let mut missing: Vec<usize> = others().filter(|&pe| is_absent(pe)).collect();
        // The PE because of which the first of the others has given up.
        if missing.is_empty() {
            let blamed = others().filter(|&pe| has_given_up(pe)).filter_map(|pe| words(pe).blamed());
            let is_other = |pe: &Pe| *pe != self.me && !(self.has_ended)(pe.index());
            missing = blamed.filter(is_other).map(Pe::index).take(1).collect();
        }
        // PEs that have given up for a reason of their own.
        if missing.is_empty() {
            missing = others().filter(|&pe| !words(pe).is_at(last, phase::ARRIVED)).collect();
        }
        // All are there: the leader has just been stopped.
        if missing.is_empty() {
            missing = others().take(1).collect();
        }
        missing.into_iter().map(|pe| Pe::new(pe as u32)).collect()
    }

    /// Joins the rendezvous of the new job, and waits for the other members until `until` at the
    /// latest. The first member passes the server that it has started as `server`; other members
    /// pass `None`. `deadline` is the maximum time for each later call of the rendezvous.
    ///
    /// # Collective
    /// All members.
    ///
    /// # Errors
    /// As for [`Rendezvous::join`]; errors name PEs by their numbers in the new job. A member that
    /// has ended, or that has given up, is reported as lost at once.
    pub fn join(
        &self,
        decision: &Decision,
        server: Option<Server>,
        until: Instant,
        deadline: Duration,
    ) -> Result<Rendezvous, BootstrapError> {
        let (endpoint, token) = decision.ticket.parts();
        let n_pes = decision.members.len() as u32;
        let me = decision.new_pe(self.me).ok_or_else(|| BootstrapError::Misuse {
            call: "Survivors::join",
            what: "decision",
            value: format!("{:?}", decision.members),
            expected: format!("a list with {}", self.me),
        })?;
        let job = Job { served: Served::ByPe0, ..Job::on_one_machine(me.get(), n_pes, endpoint, token) };
        let mut ended = |awaited: &[Pe]| -> Vec<(Pe, String)> {
            let reason = |pe: &Pe| {
                let old = decision.members[pe.index()].index();
                let why = if (self.has_ended)(old) {
                    "it has ended"
                } else if self.has_given_up(decision, old) {
                    "it has given up"
                } else {
                    return None;
                };
                Some((*pe, format!("{why} (PE {old} of the job before)")))
            };
            awaited.iter().filter_map(reason).collect()
        };
        Rendezvous::join_served(&job, server, &mut ended, until, deadline)
    }

    /// Returns whether a member of the decision has ended, or no longer takes part in its attempt.
    pub fn is_broken(&self, decision: &Decision) -> bool {
        decision.members.iter().map(|pe| pe.index()).any(|pe| (self.has_ended)(pe) || self.has_given_up(decision, pe))
    }

    fn has_given_up(&self, decision: &Decision, old: usize) -> bool {
        let at = |phase| (self.words)(old).is_at(decision.attempt, phase);
        ![phase::ARRIVED, phase::READY, phase::DONE].into_iter().any(at)
    }

    /// Waits until all members could join the new job, and records that this PE has joined it. For
    /// callers whose last step of joining may succeed on some members and fail on others. Fails if
    /// a member has ended or given up before it was ready.
    ///
    /// # Collective
    /// All members.
    ///
    /// # Errors
    /// [`Disagreement::Late`] names the members that were not ready in time;
    /// [`Disagreement::Left`] names a member that has ended or given up.
    pub fn commit(&self, decision: &Decision, until: Instant) -> Result<(), Disagreement<std::convert::Infallible>> {
        let (start, own) = (Instant::now(), self.own());
        own.enter(decision.attempt, phase::READY);
        let is_ready = |pe: &Pe| {
            let at = |phase| (self.words)(pe.index()).is_at(decision.attempt, phase);
            at(phase::READY) || at(phase::DONE)
        };
        let absent = || decision.members.iter().copied().filter(|pe| !is_ready(pe));
        let mut pause = SHORTEST_PAUSE;
        loop {
            let lost = absent().find(|pe| (self.has_ended)(pe.index()) || self.has_given_up(decision, pe.index()));
            let is_late = Instant::now() >= until;
            if lost.is_some() || is_late {
                let late = absent().find(|pe| *pe != self.me && !self.has_given_up(decision, pe.index()));
                own.withdraw(decision.attempt, lost.or(late));
            }
            // Look after a failure too: a member may have become ready, and even ended, since.
            let missing: Vec<Pe> = absent().filter(|pe| *pe != self.me).collect();
            if missing.is_empty() {
                self.complete(decision);
                return Ok(());
            }
            match lost {
                Some(pe) => return Err(Disagreement::Left(pe)),
                None if is_late => return Err(Disagreement::Late { waited: start.elapsed(), missing }),
                None => thread::sleep(pause),
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Records that this PE takes no part in the attempt of a decision any more, and because of
    /// which PE.
    pub fn withdraw(&self, decision: &Decision, because: Option<Pe>) {
        self.own().withdraw(decision.attempt, because);
    }

    /// Returns the member because of which a member has given up that this PE has found gone,
    /// although it has not ended; `None` if that one has ended, or has named none. Waits up to
    /// `limit` until the end of `gone`, or its reason, is known.
    pub fn reason_of(&self, decision: &Decision, gone: Pe, limit: Duration) -> Option<Pe> {
        let until = Instant::now() + limit;
        let mut gone = gone;
        // Each step follows one PE that has given up to the PE that it has named.
        for _ in 0..decision.members.len() {
            while !(self.has_ended)(gone.index()) && !self.has_given_up(decision, gone.index()) {
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

    /// Withdraws, and returns the members that neither end nor give up within `limit`, although
    /// this PE has: they were stopped. For failures that name no PE, such as that of a server that
    /// does not answer.
    pub fn remaining(&self, decision: &Decision, limit: Duration) -> Vec<Pe> {
        self.withdraw(decision, None);
        let until = Instant::now() + limit;
        loop {
            let is_left = |pe: &Pe| !(self.has_ended)(pe.index()) && !self.has_given_up(decision, pe.index());
            let left: Vec<Pe> = decision.members.iter().copied().filter(is_left).collect();
            if left.is_empty() || Instant::now() >= until {
                return left;
            }
            thread::sleep(LONGEST_PAUSE);
        }
    }

    /// Records that this PE has joined the new job.
    pub fn complete(&self, decision: &Decision) {
        self.own().enter(decision.attempt, phase::DONE);
    }
}

impl std::fmt::Debug for Survivors<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Survivors").field("me", &self.me).field("n_pes", &self.n_pes).finish_non_exhaustive()
    }
}
