//! After a failure, the surviving PEs of one machine agree on a new job and join it.
//!
//! The agreement uses memory that all PEs of the old job share. In this memory, each PE has its own
//! [`SurvivorWords`]. So the agreement needs no server, and PE 0 may be among the dead PEs. The
//! caller provides the memory, and a function that returns whether a PE has ended.
//!
//! Each attempt to agree has a number. A participating PE writes the number of its attempt into its
//! [`SurvivorWords`]. The first PE that has not ended is the leader. When all other PEs that have
//! not ended also participate, the leader starts a server and publishes its decision. The decision
//! is the list of members and the address of the server. To find a decision, a PE reads the
//! [`SurvivorWords`] of the PEs in ascending order. The reading PE skips a PE only if that PE has
//! ended without a decision.
//!
//! Invariants:
//! - **\[1\]** An attempt has at most one decision. A PE that decides has checked that all PEs with
//!   lower numbers have ended without a decision. A PE that has ended writes nothing more. So the
//!   first decision in the order of PEs is the only decision. The decision stays readable after the
//!   PE that published it has died.
//! - **\[2\]** A PE participates in the highest attempt that it sees. So an attempt that failed on
//!   some PEs ends on all PEs.
//! - **\[3\]** Every wait ends with the agreement, at the deadline, or when `check` returns an
//!   error.

mod beats;
mod causes;

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use peerweave_types::Pe;

use self::beats::Beats;
use crate::error::BootstrapError;
use crate::job::endpoint::Endpoint;
use crate::job::token::{TOKEN_LEN_BYTES, Token, fill_random};
use crate::job::{Job, Served};
use crate::rendezvous::Rendezvous;
use crate::server::{Server, ServerOptions};

/// Maximum number of PEs in the old job.
pub const MAX_SURVIVORS: usize = 4096;

/// Shortest pause between two reads of the [`SurvivorWords`] of the other PEs.
const SHORTEST_PAUSE: Duration = Duration::from_micros(20);
/// Longest pause between two reads of the [`SurvivorWords`] of the other PEs.
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

const NAME_LEN_BYTES: usize = 16;
const TICKET_WORDS: usize = (NAME_LEN_BYTES + TOKEN_LEN_BYTES) / 8;

/// Values of the low byte of [`SurvivorWords::state`]: the progress of a PE in an attempt.
mod phase {
    /// The PE participates in the attempt to agree on a new job.
    pub(super) const ARRIVED: u64 = 1;
    /// The PE participated, and has withdrawn from the attempt.
    pub(super) const WITHDRAWN: u64 = 2;
    /// The PE has joined the new job.
    pub(super) const DONE: u64 = 3;
    /// The PE is ready to join the new job, and waits for the other members.
    pub(super) const READY: u64 = 4;
}

/// The state of one PE, in memory that all PEs of the old job share. All words are initially zero,
/// and only the PE to which the words belong writes them.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct SurvivorWords {
    /// The progress of this PE in an attempt to agree on a new job. The low byte is a value of the
    /// module `phase`. The other bits are the number of the attempt.
    state: AtomicU64,
    /// The PE that this PE named as the cause when it withdrew: the number of that PE plus 1, or 0
    /// if this PE named no cause. Written before `state`.
    blamed: AtomicU64,
    /// Counter that a participating PE increments. A changing counter shows other PEs that the PE
    /// runs.
    beat: AtomicU64,
    /// Number of the attempt in which this PE published its latest decision. 0 if there is no
    /// decision, and while this PE writes a decision.
    decided: AtomicU64,
    /// The [`Ticket`] in this PE's latest decision: the address and the token of the new job's
    /// rendezvous. The field `members` also belongs to this decision: it has one bit for each PE of
    /// the old job, which is set for the members of the new job.
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
    /// Returns whether the PE to which these words belong has ever participated in an agreement. A
    /// PE that has participated runs no more operations of the old job.
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

    /// Returns the PE that the owner of these words named as the cause when it withdrew. Returns
    /// `None` if the owner named no PE. The caller must have read `state` first, because the owner
    /// writes `state` last.
    fn blamed(&self) -> Option<Pe> {
        Some(Pe::new(u32::try_from(self.blamed.load(Ordering::Acquire).checked_sub(1)?).ok()?))
    }

    fn publish(&self, attempt: u64, ticket: Ticket, members: &[Pe]) {
        self.decided.store(0, Ordering::Relaxed);
        // A reader that sees any of the stores below also sees this zero.
        fence(Ordering::Release);
        self.ticket.iter().zip(ticket.0).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        let mut bits = [0; MAX_SURVIVORS / 64];
        members.iter().for_each(|pe| bits[pe.index() / 64] |= 1 << (pe.index() % 64));
        self.members.iter().zip(bits).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        self.decided.store(attempt, Ordering::Release);
    }

    /// Returns the decision of this PE for an attempt. Returns `None` if this PE has published no
    /// decision for the attempt.
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

/// Address and token of a new job's rendezvous.
#[derive(Clone, Copy)]
pub struct Ticket([u64; TICKET_WORDS]);

impl Ticket {
    /// The ticket of a job whose PEs are threads of one process. This ticket contains no address
    /// and no token, because such a job needs no rendezvous server.
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

    /// Creates a random ticket, which contains the address and the token of a new job's rendezvous.
    /// If `n_pes` is greater than 1, also starts the rendezvous server at this address. The server
    /// accepts `n_pes` PEs that know the token.
    ///
    /// # Errors
    /// As for [`Self::random`] and [`Server::bind`].
    pub fn prepare(n_pes: u32) -> Result<(Self, Option<Server>), BootstrapError> {
        let ticket = Self::random()?;
        let server = if n_pes > 1 { Some(ticket.serve(n_pes)?) } else { None };
        Ok((ticket, server))
    }

    /// Starts a server for a job of `n_pes` PEs, with this ticket's address and token.
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

/// The result of an agreement: a new job and its members. Each member is a PE of the old job.
#[derive(Clone, Debug)]
pub struct Decision {
    attempt: u64,
    ticket: Ticket,
    /// Members in ascending order. PE `i` of the new job is PE `members[i]` of the old job.
    pub members: Vec<Pe>,
}

impl Decision {
    /// Returns the number of the attempt in which the members agreed. Later attempts have higher
    /// numbers.
    pub fn attempt(&self) -> u64 {
        self.attempt
    }

    /// Converts the PE number `old` of the old job to a PE number of the new job. Returns `None` if
    /// that PE is not a member of the new job.
    pub fn new_pe(&self, old: Pe) -> Option<Pe> {
        self.members.binary_search(&old).ok().map(|at| Pe::new(at as u32))
    }

    /// Converts PE numbers of the new job to PE numbers of the old job. Skips numbers in `new` that
    /// are not PEs of the new job.
    pub fn old_pes(&self, new: &[Pe]) -> Vec<Pe> {
        new.iter().filter_map(|pe| self.members.get(pe.index()).copied()).collect()
    }
}

/// The reason why the PEs could not agree.
#[derive(Debug)]
pub enum Disagreement<E> {
    /// At the deadline, this PE was still waiting for PEs that had not ended.
    Late {
        /// Time for which this PE waited for the other PEs.
        waited: Duration,
        /// The PEs for which this PE was still waiting, in ascending order.
        missing: Vec<Pe>,
    },
    /// The agreement failed because of this other PE. The other PE has ended, has withdrawn from
    /// the attempt, or is a member of a new job that excludes the caller.
    Left(Pe),
    /// A function that the caller passed, `lead` or `check`, returned this error.
    Failed(E),
}

/// The next step of this PE in an attempt to agree on a new job. The step follows from the
/// [`SurvivorWords`] of all PEs.
enum Look {
    Decided(Decision),
    /// This PE leads the attempt. The field contains the PEs that take part in the attempt.
    Lead(Vec<Pe>),
    Wait,
}

/// A handle of one PE of the old job. The PE uses the handle to agree on a new job with the other
/// PEs.
pub struct Survivors<'a> {
    me: Pe,
    n_pes: usize,
    words: &'a (dyn Fn(usize) -> &'a SurvivorWords + Sync),
    has_ended: &'a dyn Fn(usize) -> bool,
    beats: Beats,
}

impl<'a> Survivors<'a> {
    /// Creates the handle of PE `me` of the old job. The old job has `n_pes` PEs.
    ///
    /// `words(i)` returns the [`SurvivorWords`] of PE `i`. `has_ended(i)` returns whether PE `i`
    /// has ended or has left the old job. Such a PE no longer writes its words. `has_ended` must
    /// not return `true` for a PE that continues. After a PE has ended, `has_ended` may return
    /// `false` for some time.
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

    /// Returns the number of this PE in the old job.
    pub fn me(&self) -> Pe {
        self.me
    }

    fn beat(&self) {
        self.beats.beat(self.me.index(), self.words);
    }

    /// Runs `work` and returns its result. During `work`, another thread increments the counter of
    /// this PE. So the members that wait for this PE see that it is not stopped.
    pub fn beating<T>(&self, work: impl FnOnce() -> T) -> T {
        let (beats, me, words) = (&self.beats, self.me.index(), self.words);
        let (done, ends) = mpsc::channel::<()>();
        thread::scope(|scope| {
            scope.spawn(move || {
                while let Err(RecvTimeoutError::Timeout) = ends.recv_timeout(beats::PAUSE) {
                    beats.beat(me, words);
                }
            });
            // The thread ends when the sender is dropped.
            let _done = done;
            work()
        })
    }

    fn own(&self) -> &'a SurvivorWords {
        (self.words)(self.me.index())
    }

    /// Agrees on a new job with the other PEs that have not ended. One of these PEs is the leader,
    /// and the other PEs wait for the leader's decision. On the leader, this function calls `lead`
    /// with the number of the attempt and the members of the new job. `lead` prepares the new job
    /// and returns its ticket. On a waiting PE, this function calls `check` repeatedly, so that the
    /// caller can end the wait. If `lead` or `check` returns an error, this function returns that
    /// error.
    ///
    /// # Collective
    /// All PEs of the old job that have not ended.
    ///
    /// # Errors
    /// [`Disagreement`] with the reason. After an error, this PE does not participate until its
    /// next call.
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
                    // The leader has decided since the last iteration.
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

    /// Returns the number of the highest attempt in which any PE of the old job participates. If
    /// this number is lower than `attempt`, returns `attempt`.
    fn highest_attempt(&self, attempt: u64) -> u64 {
        let of = |pe: usize| {
            let state = (self.words)(pe).state.load(Ordering::Acquire);
            if state & 0xff == phase::ARRIVED { state >> 8 } else { 0 }
        };
        (0..self.n_pes).map(of).fold(attempt, u64::max)
    }

    /// Returns the next step of this PE in `attempt`. If a PE of the old job has already joined a
    /// new job, returns that PE as the error.
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
            // The PE may have decided after the first check, and then ended.
            if let Some(decision) = words.decision(attempt) {
                return Ok(Look::Decided(decision));
            }
        }
        Ok(Look::Wait)
    }

    /// Returns the PEs that can be members of the new job: this PE, and all other PEs that have not
    /// ended. Returns `None` if one of these other PEs does not participate in `attempt`.
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

    /// Returns the PEs that [`Disagreement::Late`] names as missing, in ascending order, after the
    /// attempts from `first` to `last` have timed out.
    fn missing(&self, first: u64, last: u64) -> Vec<Pe> {
        let words = |pe: usize| (self.words)(pe);
        let others = || (0..self.n_pes).filter(|&pe| pe != self.me.index() && !(self.has_ended)(pe));
        let has_given_up = |pe: usize| words(pe).attempt_and_phase().1 == phase::WITHDRAWN;
        // First choice: PEs that have not called, or that were stopped during the call, in this
        // attempt or before.
        let is_absent = |pe: usize| match words(pe).attempt_and_phase() {
            (_, phase::ARRIVED | phase::READY) => self.beats.has_stopped(pe),
            (attempt, _) => attempt < first && !self.beats.has_run(pe),
        };
        let mut missing: Vec<usize> = others().filter(|&pe| is_absent(pe)).collect();
        // Second choice: the PE that was named by the first PE that has given up.
        if missing.is_empty() {
            let blamed = others().filter(|&pe| has_given_up(pe)).filter_map(|pe| words(pe).blamed());
            let is_other = |pe: &Pe| *pe != self.me && !(self.has_ended)(pe.index());
            missing = blamed.filter(is_other).map(Pe::index).take(1).collect();
        }
        // Third choice: PEs that have given up without naming another PE.
        if missing.is_empty() {
            missing = others().filter(|&pe| !words(pe).is_at(last, phase::ARRIVED)).collect();
        }
        // Last choice: all PEs have arrived, so the leader must have stopped. The leader is named.
        if missing.is_empty() {
            missing = others().take(1).collect();
        }
        missing.into_iter().map(|pe| Pe::new(pe as u32)).collect()
    }

    /// Joins the rendezvous of the new job. Waits for the other members until the time `until`. The
    /// first member has started a server and passes it as `server`. Other members pass `None`.
    /// `deadline` is the maximum time for each later call on the rendezvous.
    ///
    /// # Collective
    /// All members.
    ///
    /// # Errors
    /// As for [`Rendezvous::join`]. Errors name PEs by their numbers in the new job. A member that
    /// has ended or has given up is reported as lost immediately.
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
            expected: format!("a list of members that contains this PE ({})", self.me),
        })?;
        let job = Job { served: Served::ByPe0, ..Job::on_one_machine(me.get(), n_pes, endpoint, token) };
        let mut ended = |awaited: &[Pe]| -> Vec<(Pe, String)> {
            let reason = |pe: &Pe| {
                let old = decision.members[pe.index()].index();
                let why = if (self.has_ended)(old) {
                    "the member has ended"
                } else if self.has_given_up(decision, old) {
                    "the member no longer participates in the agreement"
                } else {
                    return None;
                };
                Some((*pe, format!("{why} (PE {old} of the previous job)")))
            };
            awaited.iter().filter_map(reason).collect()
        };
        Rendezvous::join_served(&job, server, &mut ended, until, deadline)
    }

    /// Returns whether a member has ended, or no longer participates in the attempt that led to
    /// `decision`.
    pub fn is_broken(&self, decision: &Decision) -> bool {
        !decision.members.iter().all(|pe| self.participates(decision, pe.index()))
    }

    /// Returns whether the PE `old` of the old job still participates: it has not ended, and it has
    /// not given up the attempt that led to `decision`.
    fn participates(&self, decision: &Decision, old: usize) -> bool {
        !(self.has_ended)(old) && !self.has_given_up(decision, old)
    }

    fn has_given_up(&self, decision: &Decision, old: usize) -> bool {
        let at = |phase| (self.words)(old).is_at(decision.attempt, phase);
        ![phase::ARRIVED, phase::READY, phase::DONE].into_iter().any(at)
    }

    /// Waits until all members are ready to join the new job. Then records that this PE has joined
    /// the new job. Use this function if the last step of joining may succeed on some members and
    /// fail on others.
    ///
    /// # Collective
    /// All members.
    ///
    /// # Errors
    /// [`Disagreement::Late`] names the members that were not ready by the deadline.
    /// [`Disagreement::Left`] names a member that ended or gave up before it was ready.
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
            let lost = absent().find(|pe| !self.participates(decision, pe.index()));
            let is_late = Instant::now() >= until;
            if lost.is_some() || is_late {
                let late = absent().find(|pe| *pe != self.me && !self.has_given_up(decision, pe.index()));
                own.withdraw(decision.attempt, lost.or(late));
            }
            // Members are also checked after a failure, because a member may have become ready, and
            // even ended, since then.
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

    /// Withdraws this PE from the attempt that led to `decision`. Other PEs see the withdrawal. If
    /// `because` is `Some`, also records that PE as the cause.
    pub fn withdraw(&self, decision: &Decision, because: Option<Pe>) {
        self.own().withdraw(decision.attempt, because);
    }

    /// Records, in the [`SurvivorWords`] of this PE, that this PE has joined the new job.
    pub fn complete(&self, decision: &Decision) {
        self.own().enter(decision.attempt, phase::DONE);
    }
}

impl std::fmt::Debug for Survivors<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Survivors").field("me", &self.me).field("n_pes", &self.n_pes).finish_non_exhaustive()
    }
}
