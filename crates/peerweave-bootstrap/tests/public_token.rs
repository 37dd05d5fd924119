//! Tests of the warning that a token is derived from public values. The warning is printed once per
//! process, so each test runs in a copy of this program.

#![cfg(target_os = "linux")]

use std::net::TcpListener;
use std::process::Command;
use std::thread;
use std::time::Duration;

use peerweave_bootstrap::{Endpoint, Job, Options, Rendezvous, Served, Token};

/// Set in the copies of this program.
const COPY: &str = "PEERWEAVE_TEST_PUBLIC_TOKEN";

const WARNING: &str = "is derived from public values";

/// Joins and leaves a job of two PEs, whose token is derived from public values.
fn join_and_leave(endpoint: &Endpoint) {
    let token = Token::derived_from("job 7 on node-1");
    thread::scope(|scope| {
        for pe in 0..2 {
            scope.spawn(move || {
                let job =
                    Job { served: Served::ByPe0, token_is_public: true, ..Job::on_one_machine(pe, 2, endpoint.clone(), token) };
                let options = Options { deadline: Duration::from_secs(60), ..Options::default() };
                Rendezvous::join(&job, options).expect("both PEs join").leave().expect("both PEs leave");
            });
        }
    });
}

fn unused_address() -> Endpoint {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("the listener has an address").port();
    Endpoint::Tcp("127.0.0.1".into(), port)
}

/// Runs a test in a copy of this program. Returns how often the copy printed the warning.
fn warnings_of(test: &str) -> usize {
    let program = std::env::current_exe().expect("the path of this program is known");
    let output = Command::new(program).args([test, "--exact", "--nocapture"]).env(COPY, "1").output().expect("a copy starts");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    text.matches(WARNING).count()
}

#[test]
fn two_tcp_servers_with_a_derived_token_print_only_one_warning() {
    if std::env::var_os(COPY).is_some() {
        return (0..2).for_each(|_| join_and_leave(&unused_address()));
    }
    assert_eq!(warnings_of("two_tcp_servers_with_a_derived_token_print_only_one_warning"), 1);
}

#[test]
fn unix_socket_server_with_a_derived_token_prints_no_warning() {
    if std::env::var_os(COPY).is_some() {
        return join_and_leave(&Endpoint::random_unix().expect("the system provides random numbers"));
    }
    assert_eq!(warnings_of("unix_socket_server_with_a_derived_token_prints_no_warning"), 0);
}
