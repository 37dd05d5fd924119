//! Tests of lost PEs: the errors of all PEs name the right PE if the server ends, if a PE is late,
//! or if many connections flood the server.

#![cfg(target_os = "linux")]

mod common;

use std::io::Write;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{LONG, PASSES, Party, SOON, eventually};
use peerweave_bootstrap::proto::{Frame, Hello};
use peerweave_bootstrap::{BootstrapError, Endpoint, Job, Loss, Options, Pe, Rendezvous, Served, Server, ServerOptions, Token};

/// Returns the job of PE `pe` of `n_pes`, whose server PE 0 runs.
fn served_by_pe0(pe: u32, n_pes: u32, endpoint: &Endpoint, token: Token) -> Job {
    Job { served: Served::ByPe0, ..Job::on_one_machine(pe, n_pes, endpoint.clone(), token) }
}

fn join(job: &Job, deadline: Duration) -> Result<Rendezvous, BootstrapError> {
    Rendezvous::join(job, Options { deadline, ..Options::default() })
}

fn connect(endpoint: &Endpoint) -> std::io::Result<UnixStream> {
    let Endpoint::Unix(name) = endpoint else { panic!("not a Unix socket") };
    UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)
}

/// Connects as a PE when the server exists. Sends only a hello.
fn say_hello(endpoint: &Endpoint, pe: u32, n_pes: u32, token: Token) -> UnixStream {
    let start = Instant::now();
    let mut stream = loop {
        match connect(endpoint) {
            Ok(stream) => break stream,
            Err(error) => assert!(start.elapsed() < LONG, "{error}"),
        }
        thread::sleep(Duration::from_millis(1));
    };
    stream.write_all(&Frame::Hello(Hello { pe, n_pes, pid: 1, token }).to_bytes()).unwrap();
    stream
}

#[test]
fn barrier_error_names_the_first_lost_pe_even_without_a_server() {
    let (endpoint, token) = (Endpoint::random_unix().unwrap(), Token::random().unwrap());
    let pe = |pe| join(&served_by_pe0(pe, 3, &endpoint, token), LONG).unwrap();
    let server_ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let first = pe(0);
            assert_eq!(first.barrier("all").unwrap_err().blamed(), [Pe::new(1)]);
            drop(first);
            server_ended.store(true, Ordering::Release);
        });
        scope.spawn(|| drop(pe(1)));
        let slow = pe(2);
        eventually("the end of the server", || server_ended.load(Ordering::Acquire));
        assert_eq!(slow.barrier("all").unwrap_err().blamed(), [Pe::new(1)]);
    });
}

#[test]
fn error_of_a_late_join_names_the_lost_pe() {
    let (endpoint, token) = (Endpoint::random_unix().unwrap(), Token::random().unwrap());
    thread::scope(|scope| {
        let holder = scope.spawn(|| join(&served_by_pe0(0, 3, &endpoint, token), LONG).map(drop));
        drop(say_hello(&endpoint, 1, 3, token));
        thread::sleep(Duration::from_millis(100));
        let start = Instant::now();
        let late = join(&served_by_pe0(2, 3, &endpoint, token), LONG).unwrap_err();
        assert_eq!(late.blamed(), [Pe::new(1)], "{late}");
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        assert_eq!(holder.join().unwrap().unwrap_err().blamed(), [Pe::new(1)]);
    });
}

#[test]
fn join_fails_soon_after_the_loss_of_a_pe() {
    let (endpoint, token) = (Endpoint::random_unix().unwrap(), Token::random().unwrap());
    thread::scope(|scope| {
        let holder = scope.spawn(|| join(&served_by_pe0(0, 3, &endpoint, token), LONG).map(drop));
        drop(say_hello(&endpoint, 1, 3, token));
        let start = Instant::now();
        assert_eq!(holder.join().unwrap().unwrap_err().blamed(), [Pe::new(1)]);
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    });
}

#[test]
fn server_reports_lost_pes_to_idle_pes_in_order_of_loss() {
    let party = Party::new(3);
    let mut pes = party.run(0..3, |rendezvous| rendezvous);
    assert!(pes[0].losses().is_empty());
    drop(pes.pop());
    eventually("the loss of PE 2", || !pes[0].losses().is_empty());
    drop(pes.pop());
    eventually("the loss of PE 1", || pes[0].losses().len() == 2);
    let lost: Vec<u32> = pes[0].losses().iter().map(|(pe, _)| pe.get()).collect();
    assert_eq!(lost, [2, 1]);
    assert_eq!(party.server.first_loss().map(|(pe, _)| pe), Some(Pe::new(2)));
}

#[test]
fn join_at_an_address_in_use_fails_before_the_deadline() {
    let (endpoint, token) = (Endpoint::random_unix().unwrap(), Token::random().unwrap());
    let _other = Server::bind(&endpoint, Token::random().unwrap(), 2, ServerOptions::default()).unwrap();
    let start = Instant::now();
    let error = join(&served_by_pe0(0, 2, &endpoint, token), LONG).unwrap_err();
    assert!(error.to_string().contains("in use"), "{error}");
    assert!(error.to_string().contains("PE 0 has already joined"), "{error}");
    assert!(start.elapsed() < LONG / 3, "{:?}", start.elapsed());
}

/// Runs `body` while six threads connect to the server as often as they can, without sending data.
fn under_a_flood<R>(endpoint: &Endpoint, body: impl FnOnce() -> R) -> R {
    let (over, made) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    if connect(endpoint).is_ok() {
                        made.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        eventually("a flood of connections", || made.load(Ordering::Relaxed) > 1000);
        // Ends the threads also if `body` panics.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        over.store(true, Ordering::Relaxed);
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[test]
fn flood_of_connections_does_not_block_barriers_or_shutdown() {
    let party = Party::new(2);
    let endpoint = party.server.endpoint().clone();
    let pes = party.run(0..2, |rendezvous| rendezvous);
    under_a_flood(&endpoint, || {
        for round in 0..20 {
            let start = Instant::now();
            thread::scope(|scope| {
                scope.spawn(|| pes[1].barrier(&round.to_string()).unwrap());
                pes[0].barrier(&round.to_string()).unwrap();
            });
            assert!(start.elapsed() < SOON, "a barrier took {:?}", start.elapsed());
        }
        let start = Instant::now();
        drop(party);
        assert!(start.elapsed() < SOON, "the server took {:?} to end", start.elapsed());
    });
}

#[test]
fn pes_join_under_a_flood_of_connections() {
    let party = Party::new(3);
    let endpoint = party.server.endpoint().clone();
    under_a_flood(&endpoint, || {
        let start = Instant::now();
        party.run(0..3, |rendezvous| rendezvous.barrier("joined").unwrap());
        assert!(start.elapsed() < SOON, "the join took {:?}", start.elapsed());
    });
}

#[test]
fn join_error_names_the_absent_pe_despite_many_connections() {
    let party = Party::new(3);
    let endpoint = party.server.endpoint().clone();
    under_a_flood(&endpoint, || {
        let start = Instant::now();
        let errors = party.try_run(0..2, PASSES, |joined| joined.map(drop).expect_err("PE 2 does not join"));
        assert!(errors.iter().all(|error| error.blamed() == [Pe::new(2)]), "{errors:?}");
        assert!(start.elapsed() < PASSES + SOON, "the join took {:?}", start.elapsed());
    });
}

#[test]
fn error_names_the_root_cause_that_a_lost_pe_reported() {
    let party = Party::new(4);
    let mut pes = party.run(0..4, |rendezvous| rendezvous);
    let gone = pes.remove(1);
    gone.report_root_cause(Pe::new(3));
    drop(gone);
    assert_eq!(pes[0].barrier("all").unwrap_err().blamed(), [Pe::new(3)]);
    let first = party.server.first_loss();
    assert_eq!(first, Some((Pe::new(1), Loss::GaveUp { missing: vec![Pe::new(3)] })));
}
