//! Tests the state machine with PEs that take random actions in any order. Every request is
//! answered, and no request is pending after a loss.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

const N_PES: u32 = 4;

/// An action of a PE or of the launcher. An action that is impossible in the current state is
/// skipped.
#[derive(Clone, Debug)]
enum Step {
    Hello(u32),
    Barrier(u32, u8),
    Exchange(u32, u8),
    Put(u32, u8, usize),
    Get(u32, u8, bool),
    Remove(u32, u8),
    Check(u32),
    /// Cancels one of the pending requests.
    Cancel(u32, prop::sample::Index),
    Leave(u32),
    Close(u32),
    Report(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let pe = || 0..N_PES;
    prop_oneof![
        6 => pe().prop_map(Step::Hello),
        // There are two labels. The first is much more likely, so that mismatches are rare.
        6 => (pe(), 0u8..12).prop_map(|(pe, label)| Step::Barrier(pe, label / 11)),
        9 => (pe(), 0u8..12).prop_map(|(pe, label)| Step::Exchange(pe, label / 11)),
        3 => (pe(), 0u8..3, 0usize..40).prop_map(|(pe, key, len)| Step::Put(pe, key, len)),
        3 => (pe(), 0u8..3, any::<bool>()).prop_map(|(pe, key, wait)| Step::Get(pe, key, wait)),
        2 => (pe(), 0u8..3).prop_map(|(pe, key)| Step::Remove(pe, key)),
        1 => pe().prop_map(Step::Check),
        2 => (pe(), any::<prop::sample::Index>()).prop_map(|(pe, which)| Step::Cancel(pe, which)),
        1 => pe().prop_map(Step::Leave),
        1 => pe().prop_map(Step::Close),
        1 => pe().prop_map(Step::Report),
    ]
}

/// The state machine, and the client side of its connections.
struct World {
    board: Board,
    token: Token,
    next_link: Link,
    links: Vec<Option<Link>>,
    /// Pending requests of each PE.
    open: Vec<HashSet<u64>>,
    rounds: Vec<u64>,
    next_request: u64,
}

impl World {
    fn new() -> Self {
        let token = Token::derived_from("board");
        Self {
            board: Board::new(token, N_PES, 100),
            token,
            next_link: 1,
            links: vec![None; N_PES as usize],
            open: vec![HashSet::new(); N_PES as usize],
            rounds: vec![0; N_PES as usize],
            next_request: 1,
        }
    }

    fn take(&mut self, step: Step) {
        let mut out = Vec::new();
        match step {
            Step::Hello(pe) => {
                let link = self.next_link;
                self.next_link += 1;
                let hello = Hello { pe, n_pes: N_PES, pid: 0, token: self.token };
                let empty = self.board.members[pe as usize].seat == Seat::Empty;
                let answer = self.board.hello(link, &hello, &mut out);
                if empty {
                    assert_eq!(answer, Ok(()));
                    self.links[pe as usize] = Some(link);
                    self.open[pe as usize].insert(JOIN_REQUEST);
                } else {
                    let reported = matches!(self.board.members[pe as usize].seat, Seat::Lost(Fault::Reported { .. }));
                    assert_eq!(answer.is_ok(), reported);
                }
            }
            Step::Barrier(pe, label) => self.enter(pe, Collective::Barrier, label, &mut out),
            Step::Exchange(pe, label) => self.enter(pe, Collective::Exchange, label, &mut out),
            Step::Put(pe, key, len) => {
                self.ask(pe, |request| Frame::Put { request, key: key.to_string(), value: vec![key; len] }, &mut out);
            }
            Step::Get(pe, key, wait) => {
                self.ask(pe, |request| Frame::Get { request, key: key.to_string(), wait }, &mut out);
            }
            Step::Remove(pe, key) => {
                self.ask(pe, |request| Frame::Remove { request, key: key.to_string() }, &mut out);
                assert!(self.links[pe as usize].is_none() || !self.board.store.contains_key(&key.to_string()));
            }
            Step::Check(pe) => self.ask(pe, |request| Frame::Check { request }, &mut out),
            Step::Cancel(pe, which) => {
                let mut open: Vec<u64> = self.open[pe as usize].iter().copied().collect();
                open.sort_unstable();
                if self.links[pe as usize].is_some() && !open.is_empty() {
                    let request = *which.get(&open);
                    self.board.frame(pe, Frame::Cancel { request }, &mut out).unwrap();
                    self.deliver(out);
                    assert!(!self.open[pe as usize].contains(&request), "the cancelled request is still pending");
                    return;
                }
            }
            Step::Leave(pe) => {
                if self.links[pe as usize].is_some() {
                    self.board.frame(pe, Frame::Leave, &mut out).unwrap();
                }
            }
            Step::Close(pe) => {
                if self.links[pe as usize].take().is_some() {
                    self.open[pe as usize].clear();
                    assert!(self.board.closed(pe, &mut out).is_some());
                }
            }
            Step::Report(pe) => self.board.report_lost(pe, "reported", &mut out),
        }
        self.deliver(out);
    }

    fn enter(&mut self, pe: u32, collective: Collective, label: u8, out: &mut Vec<Action>) {
        if self.links[pe as usize].is_none() || self.open[pe as usize].contains(&JOIN_REQUEST) {
            return;
        }
        let request = self.rounds[pe as usize] | ROUND_BIT;
        self.rounds[pe as usize] += 1;
        self.open[pe as usize].insert(request);
        let blob = if collective == Collective::Exchange { vec![pe as u8; 3] } else { Vec::new() };
        self.board.frame(pe, Frame::Enter { request, collective, label: label.to_string(), blob }, out).unwrap();
    }

    fn ask(&mut self, pe: u32, frame: impl FnOnce(u64) -> Frame, out: &mut Vec<Action>) {
        if self.links[pe as usize].is_some() {
            let request = self.next_request;
            self.next_request += 1;
            self.open[pe as usize].insert(request);
            self.board.frame(pe, frame(request), out).unwrap();
        }
    }

    /// Performs the actions and updates the state of the PEs that receive frames.
    fn deliver(&mut self, out: Vec<Action>) {
        for action in out {
            match action {
                Action::Close(link) => {
                    if let Some(pe) = self.links.iter().position(|one| *one == Some(link)) {
                        self.links[pe] = None;
                        self.open[pe].clear();
                    }
                }
                Action::Send(link, bytes) => {
                    let Some(pe) = self.links.iter().position(|one| *one == Some(link)) else { continue };
                    let mut rest = &bytes[..];
                    let mut parts = Vec::new();
                    while let Some((frame, used)) = proto::decode(rest).unwrap() {
                        rest = &rest[used..];
                        match frame {
                            Frame::Part { blob, .. } => parts.push(blob),
                            Frame::Done { request } => {
                                let expected: Vec<Vec<u8>> = (0..N_PES as u8).map(|pe| vec![pe; 3]).collect();
                                assert!(parts.is_empty() || parts == expected, "{parts:?}");
                                self.open[pe].remove(&request);
                            }
                            Frame::Value { request, .. }
                            | Frame::Absent { request }
                            | Frame::Late { request, .. }
                            | Frame::Failed { request, .. } => {
                                self.open[pe].remove(&request);
                            }
                            Frame::Welcome | Frame::Lost { .. } => {}
                            other => panic!("unexpected frame of the server: {other:?}"),
                        }
                    }
                    assert!(rest.is_empty());
                }
            }
        }
    }

    fn check(&self) {
        let lost = self.board.seats().any(|seat| matches!(seat, Seat::Lost(_)));
        for (pe, open) in self.open.iter().enumerate() {
            assert!(!lost || open.is_empty(), "PE {pe} waits for requests {open:?} after a loss");
            for request in open {
                if request & ROUND_BIT != 0 {
                    let number = request & !ROUND_BIT;
                    let awaits = |(rounds, seat): (&u64, &Seat)| *rounds <= number && !matches!(seat, Seat::Left);
                    let somebody = self.rounds.iter().zip(self.board.seats()).any(awaits);
                    let left =
                        self.rounds.iter().zip(self.board.seats()).any(|(rounds, seat)| *rounds <= number && *seat == Seat::Left);
                    assert!(somebody && !left, "PE {pe} waits in round {number}, although no PE is missing");
                }
            }
        }
        let waiting: usize = self.board.awaited.values().map(Vec::len).sum();
        let gets = self.open.iter().flatten().filter(|request| **request != JOIN_REQUEST && **request & ROUND_BIT == 0);
        assert_eq!(waiting, gets.count());
        let stored = self.board.store.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
        let entered = self.board.rounds.iter().map(|round| round.len_bytes).sum::<usize>();
        assert_eq!(self.board.stored_len_bytes, stored + entered);
        assert!(self.board.stored_len_bytes <= 100);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn every_request_is_answered_even_if_a_pe_is_lost(steps in prop::collection::vec(step(), 0..80)) {
        let mut world = World::new();
        // In most sequences all PEs join first.
        if steps.len() % 4 != 0 {
            (0..N_PES).for_each(|pe| world.take(Step::Hello(pe)));
        }
        for step in steps {
            world.take(step);
            world.check();
        }
        let mut out = Vec::new();
        world.board.end(&mut out);
        world.deliver(out);
        prop_assert!(world.open.iter().all(HashSet::is_empty), "{:?}", world.open);
    }
}

#[test]
fn completed_collective_calls_leave_no_state_behind() {
    let mut world = World::new();
    (0..N_PES).for_each(|pe| world.take(Step::Hello(pe)));
    for _ in 0..5000 {
        (0..N_PES).for_each(|pe| world.take(Step::Exchange(pe, 0)));
    }
    assert!(world.board.rounds.is_empty());
    assert_eq!((world.board.first_round, world.board.stored_len_bytes), (5000, 0));
}

#[test]
fn too_many_unfinished_collectives_of_a_pe_are_an_error() {
    let mut world = World::new();
    (0..N_PES).for_each(|pe| world.take(Step::Hello(pe)));
    for _ in 0..MAX_OPEN_ROUNDS {
        world.take(Step::Barrier(0, 0));
    }
    let frame = Frame::Enter {
        request: MAX_OPEN_ROUNDS as u64 | ROUND_BIT,
        collective: Collective::Barrier,
        label: String::new(),
        blob: Vec::new(),
    };
    assert!(world.board.frame(0, frame, &mut Vec::new()).is_err());
}
