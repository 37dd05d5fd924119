//! Tests of the end of a job by one of its PEs. Every PE is notified of the PE that ended the job
//! and of the exit code, even while it is busy. A thread that waits for the end of the job ends
//! when its PE leaves.

mod common;

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use common::{LONG, Party, SOON};
use peerweave_bootstrap::{Aborted, Endpoint, Job, Options, Pe, Rendezvous, Served, Token};

/// Returns the membership, and a channel that receives the abort of the job.
fn watched(rendezvous: Rendezvous) -> (Arc<Rendezvous>, Receiver<Aborted>) {
    let (said, aborted) = channel();
    let rendezvous = Arc::new(rendezvous);
    let then = move |aborted| said.send(aborted).expect("the test waits for the message");
    rendezvous.when_aborted(then).expect("the thread starts");
    (rendezvous, aborted)
}

#[test]
fn abort_reaches_pes_that_make_no_calls() {
    for n_pes in [2, 3, 8] {
        let party = Party::new(n_pes);
        let ended = party.run(0..n_pes, |rendezvous| {
            let (rendezvous, aborted) = watched(rendezvous);
            let own = (rendezvous.pe().get() == n_pes - 1).then(|| rendezvous.abort(7));
            (own, aborted.recv_timeout(SOON).expect("the PE is notified of the end of the job"))
        });
        let expected = Aborted { by: Pe::new(n_pes - 1), code: 7 };
        assert!(ended.iter().all(|(own, seen)| *seen == expected && own.is_none_or(|own| own == expected)), "{ended:?}");
    }
}

#[test]
fn all_pes_are_notified_of_the_first_of_two_aborts() {
    for _ in 0..10 {
        let party = Party::new(4);
        let together = Barrier::new(2);
        let ended = party.run(0..4, |rendezvous| {
            let (rendezvous, aborted) = watched(rendezvous);
            let pe = rendezvous.pe().get();
            let own = (pe < 2).then(|| {
                together.wait();
                rendezvous.abort(10 + pe as u8)
            });
            (own, aborted.recv_timeout(SOON).expect("the PE is notified of the end of the job"))
        });
        let first = ended[0].1;
        assert_eq!(u32::from(first.code), 10 + first.by.get(), "{ended:?}");
        assert!(ended.iter().all(|(own, seen)| *seen == first && own.is_none_or(|own| own == first)), "{ended:?}");
    }
}

#[test]
fn abort_by_pe_0_arrives_before_the_server_of_pe_0_ends() {
    let (endpoint, token) = (Endpoint::random_unix().unwrap(), Token::random().unwrap());
    let job = |pe| Job { served: Served::ByPe0, ..Job::on_one_machine(pe, 3, endpoint.clone(), token) };
    let join = |pe| Rendezvous::join(&job(pe), Options { deadline: LONG, ..Options::default() }).unwrap();
    let ended: Vec<_> = std::thread::scope(|scope| {
        let pes: Vec<_> = (0..3)
            .map(|pe| {
                scope.spawn(move || {
                    let (rendezvous, aborted) = watched(join(pe));
                    if pe == 0 {
                        rendezvous.abort(0);
                        // The server ends, as it does when the process exits.
                        drop(rendezvous);
                    }
                    aborted.recv_timeout(SOON).expect("the PE is notified of the end of the job")
                })
            })
            .collect();
        pes.into_iter().map(|pe| pe.join().unwrap()).collect()
    });
    assert_eq!(ended, [Aborted { by: Pe::new(0), code: 0 }; 3]);
}

#[test]
fn abort_callback_is_not_called_if_the_pe_leaves_the_job() {
    let party = Party::new(2);
    let ended = party.run(0..2, |rendezvous| {
        let (rendezvous, aborted) = watched(rendezvous);
        rendezvous.barrier("together").unwrap();
        match rendezvous.pe().get() {
            0 => Arc::into_inner(rendezvous).expect("the thread holds no membership").leave().unwrap(),
            _ => drop(rendezvous),
        }
        // The sender is dropped when the thread ends.
        aborted.recv_timeout(SOON)
    });
    assert_eq!(ended, [Err(RecvTimeoutError::Disconnected); 2]);
    party.until(|state| state.joined.is_empty());
}

#[test]
fn requests_succeed_while_a_thread_waits_for_an_abort() {
    let party = Party::new(3);
    party.run(0..3, |rendezvous| {
        let (rendezvous, aborted) = watched(rendezvous);
        for round in 0..200u32 {
            let all = rendezvous.exchange("round", &round.to_le_bytes()).unwrap();
            assert_eq!(all, vec![round.to_le_bytes().to_vec(); 3]);
        }
        assert_eq!(aborted.recv_timeout(Duration::ZERO), Err(RecvTimeoutError::Timeout));
        rendezvous.barrier("end").unwrap();
    });
}

#[test]
fn abort_callback_is_not_called_in_a_job_of_one_pe() {
    let (rendezvous, aborted) = watched(Rendezvous::join(&Job::single(), Options::default()).unwrap());
    assert_eq!(rendezvous.abort(9), Aborted { by: Pe::new(0), code: 9 });
    assert_eq!(aborted.recv_timeout(SOON), Err(RecvTimeoutError::Disconnected));
}
