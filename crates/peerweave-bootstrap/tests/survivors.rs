//! Tests that the surviving PEs agree on a new job, whichever PE ends and at any time.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use peerweave_bootstrap::survivors::{Decision, Disagreement, SurvivorWords, Survivors, Ticket};
use peerweave_bootstrap::{BootstrapError, Pe, Server};

/// An old job whose PEs are threads of this test.
struct Old {
    words: Vec<SurvivorWords>,
    ended: Vec<AtomicBool>,
}

impl Old {
    fn new(n_pes: usize, dead: &[usize]) -> Self {
        let words = (0..n_pes).map(|_| SurvivorWords::default()).collect();
        Self { words, ended: (0..n_pes).map(|pe| AtomicBool::new(dead.contains(&pe))).collect() }
    }

    fn end(&self, pe: usize) {
        self.ended[pe].store(true, Ordering::Release);
    }

    /// Runs `body` as PE `me` of the old job.
    fn pe<T>(&self, me: usize, body: impl FnOnce(&Survivors<'_>) -> T) -> T {
        let (words, has_ended) = (|pe: usize| &self.words[pe], |pe: usize| self.ended[pe].load(Ordering::Acquire));
        body(&Survivors::new(Pe::new(me as u32), self.words.len(), &words, &has_ended))
    }

    /// Runs `body` for each PE in `pes`, each on its own thread.
    fn pes<T: Send>(&self, pes: &[usize], body: impl Fn(&Survivors<'_>) -> T + Sync) -> Vec<T> {
        let body = &body;
        thread::scope(|scope| {
            let started: Vec<_> = pes.iter().map(|&me| scope.spawn(move || self.pe(me, body))).collect();
            started.into_iter().map(|pe| pe.join().expect("no PE panics")).collect()
        })
    }
}

fn soon(milliseconds: u64) -> Instant {
    Instant::now() + Duration::from_millis(milliseconds)
}

// An error names the right missing PEs only if no running thread of the test pauses for too long:
// half the time of a short call, or one second of a call of two seconds or more. So the deadlines
// that pass in these tests are longer than two seconds.

/// Agrees without a server for the new job.
fn agree(survivors: &Survivors<'_>, until: Instant) -> Result<Decision, Disagreement<()>> {
    survivors.agree(until, || Ok(()), |_, _| Ok(Ticket::NONE))
}

fn pes(numbers: &[u32]) -> Vec<Pe> {
    numbers.iter().copied().map(Pe::new).collect()
}

#[test]
fn agreed_members_are_all_survivors_in_the_old_pe_order() {
    for (n_pes, dead) in [(2, vec![]), (3, vec![0]), (4, vec![1, 2]), (8, vec![0, 7]), (130, vec![0, 64, 129])] {
        let old = Old::new(n_pes, &dead);
        let left: Vec<usize> = (0..n_pes).filter(|pe| !dead.contains(pe)).collect();
        let expected = pes(&left.iter().map(|&pe| pe as u32).collect::<Vec<_>>());
        for decision in old.pes(&left, |survivors| agree(survivors, soon(20_000))) {
            let decision = decision.expect("the PEs agree");
            assert_eq!(decision.members, expected);
            assert_eq!(decision.new_pe(*expected.last().unwrap()), Some(Pe::new(expected.len() as u32 - 1)));
            assert_eq!(decision.old_pes(&pes(&[0])), expected[..1]);
        }
    }
}

#[test]
fn pe_that_ends_during_an_agreement_is_not_a_member() {
    let old = Old::new(4, &[2]);
    let decisions = thread::scope(|scope| {
        let others = scope.spawn(|| old.pes(&[1, 3], |survivors| agree(survivors, soon(20_000))));
        thread::sleep(Duration::from_millis(50));
        old.end(0);
        others.join().expect("no PE panics")
    });
    for decision in decisions {
        assert_eq!(decision.expect("the PEs agree").members, pes(&[1, 3]));
    }
}

#[test]
fn decision_of_a_leader_that_has_died_stays_valid() {
    let old = Old::new(3, &[]);
    thread::scope(|scope| {
        // `check` delays PE 1, so that it sees the decision only after the leader has ended.
        let second = scope.spawn(|| old.pe(2, |survivors| agree(survivors, soon(20_000))));
        let leader = scope.spawn(|| old.pe(0, |survivors| agree(survivors, soon(20_000))));
        let after_the_leader = || {
            while !leader.is_finished() {
                thread::yield_now();
            }
            old.end(0);
            Ok::<_, ()>(())
        };
        let first = old.pe(1, |survivors| survivors.agree(soon(20_000), after_the_leader, |_, _| panic!("PE 0 leads")));
        let first = first.expect("the PE agrees");
        let leader = leader.join().expect("no PE panics").expect("the PE agrees");
        assert_eq!((first.members.clone(), first.attempt()), (leader.members.clone(), leader.attempt()));
        assert_eq!(second.join().expect("no PE panics").expect("the PE agrees").members, first.members);
        // The leader has ended, so the members cannot join the new job. The next attempt excludes
        // the leader.
        old.pe(1, |survivors| {
            assert!(survivors.is_broken(&first));
            survivors.withdraw(&first, None);
        });
        old.pe(2, |survivors| survivors.withdraw(&first, None));
        for decision in old.pes(&[1, 2], |survivors| agree(survivors, soon(20_000))) {
            let decision = decision.expect("the PEs agree");
            assert_eq!(decision.members, pes(&[1, 2]));
            assert!(decision.attempt() > first.attempt());
        }
    });
}

#[test]
fn failed_agreement_names_the_absent_pe_and_can_be_repeated() {
    let old = Old::new(4, &[1]);
    let late = old.pes(&[0, 2], |survivors| agree(survivors, soon(3000 + 200 * u64::from(survivors.me().get()))));
    for outcome in late {
        let Err(Disagreement::Late { waited, missing }) = outcome else { panic!("{outcome:?}") };
        assert_eq!(missing, pes(&[3]), "PE 3 did not call");
        assert!(waited >= Duration::from_millis(3000));
    }
    // PEs 0 and 2 call again, and PE 3 calls for the first time.
    for decision in old.pes(&[0, 2, 3], |survivors| agree(survivors, soon(20_000))) {
        assert_eq!(decision.expect("the PEs agree").members, pes(&[0, 2, 3]));
    }
}

#[test]
fn agreement_timeout_names_the_hung_leader_on_each_pe() {
    let old = Old::new(3, &[]);
    let given_up = AtomicBool::new(false);
    let stopped = |_: u64, _: &[Pe]| {
        while !given_up.load(Ordering::Acquire) {
            thread::yield_now();
        }
        Err(())
    };
    thread::scope(|scope| {
        scope.spawn(|| old.pe(0, |survivors| survivors.agree(soon(60_000), || Ok(()), stopped)));
        let first = scope.spawn(|| old.pe(2, |survivors| agree(survivors, soon(3000))));
        // PE 2 has already given up when PE 1 gives up.
        let second = old.pe(1, |survivors| agree(survivors, soon(5000)));
        given_up.store(true, Ordering::Release);
        for outcome in [first.join().expect("no PE panics"), second] {
            let Err(Disagreement::Late { missing, .. }) = outcome else { panic!("{outcome:?}") };
            assert_eq!(missing, pes(&[0]));
        }
    });
}

#[test]
fn agreement_timeout_names_the_hung_leader_on_each_retry() {
    let old = Old::new(3, &[]);
    let (is_stopped, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let wait_for = |flag: &AtomicBool| {
        while !flag.load(Ordering::Acquire) {
            thread::sleep(Duration::from_millis(1));
        }
    };
    let stop = || {
        is_stopped.store(true, Ordering::Release);
        wait_for(&over);
        Err(())
    };
    let again = |pe: usize, first: u64| {
        let old = &old;
        move || {
            let twice = [first, 3000].map(|time| old.pe(pe, |survivors| agree(survivors, soon(time))));
            // This PE still runs when the last PE gives up.
            thread::sleep(Duration::from_millis(300));
            twice
        }
    };
    let outcomes = thread::scope(|scope| {
        scope.spawn(|| old.pe(0, |survivors| survivors.agree(soon(60_000), stop, |_, _| Ok(Ticket::NONE))));
        // If the other PEs arrived first, the leader would decide and never wait.
        wait_for(&is_stopped);
        let threads = [scope.spawn(again(1, 3000)), scope.spawn(again(2, 4000))];
        let outcomes = threads.map(|thread| thread.join().expect("no PE panics"));
        over.store(true, Ordering::Release);
        outcomes
    });
    for outcome in outcomes.into_iter().flatten() {
        let Err(Disagreement::Late { missing, .. }) = outcome else { panic!("{outcome:?}") };
        assert_eq!(missing, pes(&[0]));
    }
}

#[test]
fn pe_that_is_not_in_the_new_job_gets_an_error() {
    let old = Old::new(2, &[1]);
    old.pe(0, |survivors| {
        let decision = agree(survivors, soon(20_000)).expect("PE 0 is the only survivor");
        survivors.complete(&decision);
    });
    // PE 1 is alive. A correct `has_ended` never returns `true` for a PE that is alive.
    let outcome = old.pe(1, |survivors| agree(survivors, soon(20_000)));
    assert!(matches!(outcome, Err(Disagreement::Left(pe)) if pe == Pe::new(0)), "{outcome:?}");
}

#[test]
fn error_from_a_callback_ends_the_agreement() {
    let old = Old::new(2, &[0]);
    old.pe(1, |survivors| {
        let failed = survivors.agree(soon(20_000), || Ok(()), |_, _| Err("no memory"));
        assert!(matches!(failed, Err(Disagreement::Failed("no memory"))), "{failed:?}");
    });
    let old = Old::new(2, &[]);
    old.pe(1, |survivors| {
        let failed = survivors.agree(soon(20_000), || Err("aborted"), |_, _| Ok(Ticket::NONE));
        assert!(matches!(failed, Err(Disagreement::Failed("aborted"))), "{failed:?}");
    });
}

#[test]
fn members_exchange_data_in_the_new_job() {
    let old = Old::new(5, &[0, 3]);
    let met = old.pes(&[1, 2, 4], |survivors| {
        let (rendezvous, decision) = joined(survivors, &old, &Mutex::default());
        let rendezvous = rendezvous.expect("the PE joins");
        survivors.complete(&decision);
        let numbers = rendezvous.exchange("numbers", &[survivors.me().get() as u8]).expect("all PEs call");
        rendezvous.leave().expect("the PE leaves");
        numbers
    });
    assert!(met.iter().all(|numbers| *numbers == [[1], [2], [4]]), "{met:?}");
}

/// Agrees on a new job and joins it. A PE in `dying` ends instead of joining.
fn joined(
    survivors: &Survivors<'_>,
    old: &Old,
    dying: &Mutex<Vec<usize>>,
) -> (Result<peerweave_bootstrap::Rendezvous, BootstrapError>, Decision) {
    let mut server = None;
    let lead = |_: u64, members: &[Pe]| -> Result<Ticket, BootstrapError> {
        let ticket = Ticket::random()?;
        server = Some(ticket.serve(members.len() as u32)?);
        Ok(ticket)
    };
    let decision = survivors.agree(soon(20_000), || Ok(()), lead).expect("the PEs agree");
    let server: Option<Server> = server;
    if dying.lock().unwrap().contains(&survivors.me().index()) {
        drop(server);
        old.end(survivors.me().index());
        return (
            Err(BootstrapError::Protocol { call: "test", source: peerweave_bootstrap::proto::ProtocolError::Magic }),
            decision,
        );
    }
    (survivors.join(&decision, server, soon(20_000), Duration::from_secs(20)), decision)
}

#[test]
fn member_that_ends_before_joining_is_reported() {
    // The first member runs the server.
    for dying in [0, 1, 2] {
        let old = Old::new(3, &[]);
        let list = Mutex::new(vec![dying]);
        let start = Instant::now();
        let outcomes = old.pes(&[0, 1, 2], |survivors| {
            let (outcome, decision) = joined(survivors, &old, &list);
            let outcome = outcome.map(|_| ()).map_err(|error| (error, survivors.is_broken(&decision)));
            survivors.withdraw(&decision, None);
            outcome
        });
        assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
        for (pe, outcome) in outcomes.into_iter().enumerate().filter(|(pe, _)| *pe != dying) {
            let Err((BootstrapError::PeLost { pe: lost, .. }, true)) = outcome else { panic!("PE {pe}: {outcome:?}") };
            assert_eq!(lost, Pe::new(dying as u32));
        }
    }
}
