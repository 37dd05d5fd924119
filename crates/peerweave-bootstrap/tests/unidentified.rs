//! Tests of connections that do not belong to a PE of the job. Such a connection affects no other
//! connection.

#![cfg(target_os = "linux")]

mod common;

use std::io::{ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::thread;
use std::time::Duration;

use common::{LONG, Party, eventually};
use peerweave_bootstrap::proto::{Collective, Frame, Hello, ROUND_BIT, decode};
use peerweave_bootstrap::{Endpoint, Pe, Refusal, ServerOptions, Token};

fn connect(party: &Party) -> UnixStream {
    let Endpoint::Unix(name) = party.server.endpoint() else { panic!("not a Unix socket") };
    let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

fn hello(party: &Party, pe: u32) -> Hello {
    Hello { pe, n_pes: party.n_pes, pid: 1, token: party.token }
}

/// Returns all bytes that the server sends until it closes the connection.
fn rest(mut stream: UnixStream) -> Vec<u8> {
    let mut said = Vec::new();
    match stream.read_to_end(&mut said) {
        // The server may close the connection before it has read all bytes of this test.
        Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("{error}"),
        _ => said,
    }
}

/// Runs a job of 4 PEs. The last PE joins after `unidentified` has made its connections.
fn with_unidentified(options: ServerOptions, unidentified: impl FnOnce(&Party)) {
    let party = Party::with(4, Endpoint::random_unix().unwrap(), options);
    thread::scope(|scope| {
        let job = scope.spawn(|| {
            party.run(0..3, |rendezvous| {
                let blobs = rendezvous.exchange("undisturbed", rendezvous.pe().to_string().as_bytes()).unwrap();
                assert_eq!(blobs, [b"PE 0", b"PE 1", b"PE 2", b"PE 3"]);
                rendezvous.leave().unwrap();
            })
        });
        unidentified(&party);
        let last = party.join(3, LONG).unwrap();
        last.exchange("undisturbed", b"PE 3").unwrap();
        last.leave().unwrap();
        job.join().unwrap();
    });
    party.until(|state| state.left.len() == 4);
}

#[test]
fn connection_that_sends_invalid_data_is_dropped() {
    with_unidentified(ServerOptions::default(), |party| {
        for garbage in [
            &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
            &[0; 64],
            &[0xff; 4096],
            b"SSH-2.0-OpenSSH_9.6\r\n",
            // The length and the kind are right, but the magic number is wrong.
            &[55, 0, 0, 0, 1, b'p', b'e', b'e', b'X'],
        ] {
            let mut stream = connect(party);
            // The server may close the connection before all bytes are written.
            let _ = stream.write_all(garbage);
            assert_eq!(rest(stream), b"", "{garbage:?}");
        }
        party.until(|state| state.dropped_connections >= 5);
    });
}

#[test]
fn frame_other_than_hello_closes_an_unidentified_connection() {
    with_unidentified(ServerOptions::default(), |party| {
        for frame in [
            Frame::Leave,
            Frame::Check { request: 1 },
            Frame::Put { request: 1, key: "k".into(), value: vec![0; 100] },
            Frame::Enter { request: ROUND_BIT, collective: Collective::Barrier, label: "undisturbed".into(), blob: vec![] },
            Frame::Welcome,
            Frame::Done { request: 0 },
        ] {
            let mut stream = connect(party);
            let _ = stream.write_all(&frame.to_bytes());
            assert_eq!(rest(stream), b"", "{frame:?}");
        }
    });
}

#[test]
fn client_with_a_wrong_token_is_refused_and_dropped() {
    with_unidentified(ServerOptions::default(), |party| {
        let mut stream = connect(party);
        let wrong = Hello { token: Token::random().unwrap(), ..hello(party, 3) };
        stream.write_all(&Frame::Hello(wrong).to_bytes()).unwrap();
        let (frame, _) = decode(&rest(stream)).unwrap().unwrap();
        assert_eq!(frame, Frame::Refused { reason: Refusal::Token });
    });
}

#[test]
fn client_with_a_different_version_is_refused_and_dropped() {
    with_unidentified(ServerOptions::default(), |party| {
        let mut bytes = Frame::Hello(hello(party, 3)).to_bytes();
        bytes[13] += 1;
        let mut stream = connect(party);
        stream.write_all(&bytes).unwrap();
        let (frame, _) = decode(&rest(stream)).unwrap().unwrap();
        assert_eq!(frame, Frame::Refused { reason: Refusal::Version });
    });
}

#[test]
fn connections_without_a_timely_hello_are_dropped() {
    let options = ServerOptions { hello_within: Duration::from_secs(3), ..ServerOptions::default() };
    with_unidentified(options, |party| {
        let silent = connect(party);
        let mut half = connect(party);
        half.write_all(&Frame::Hello(hello(party, 3)).to_bytes()[..30]).unwrap();
        let mut slow = connect(party);
        let bytes = Frame::Hello(hello(party, 3)).to_bytes();
        let mut sent = 0;
        // At one byte every 200 ms, the whole hello would take more than ten seconds.
        while sent < bytes.len() && slow.write_all(&bytes[sent..=sent]).is_ok() {
            sent += 1;
            thread::sleep(Duration::from_millis(200));
        }
        assert!(sent < bytes.len(), "the server accepted the whole slow hello");
        for stream in [silent, half, slow] {
            assert_eq!(rest(stream), b"");
        }
        assert_eq!(party.server.state().dropped_connections, 3);
    });
}

#[test]
fn oldest_of_too_many_unidentified_connections_are_dropped() {
    let options = ServerOptions { max_unidentified: 8, ..ServerOptions::default() };
    with_unidentified(options, |party| {
        let crowd: Vec<UnixStream> = (0..200).map(|_| connect(party)).collect();
        let is_open = |stream: &&UnixStream| {
            stream.set_nonblocking(true).unwrap();
            matches!((&**stream).read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
        };
        eventually("the end of most connections", || crowd.iter().filter(is_open).count() <= 8 + 4);
        assert!(party.server.state().dropped_connections >= 200 - 8 - 4);
    });
}

#[test]
fn barrier_error_names_a_member_that_breaks_the_protocol() {
    let breaches: [Vec<u8>; 4] = [
        vec![0xff; 64],
        Frame::Welcome.to_bytes(),
        // The first invalid frame has a round that is not the next round of this PE.
        Frame::Enter { request: ROUND_BIT | 7, collective: Collective::Barrier, label: "x".into(), blob: vec![] }.to_bytes(),
        // The second invalid frame is longer than the limit.
        vec![0, 0, 0x20, 0, 2],
    ];
    for breach in breaches {
        let party = Party::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut stream = connect(&party);
                stream.write_all(&Frame::Hello(hello(&party, 1)).to_bytes()).unwrap();
                party.until(|state| state.joined.len() == 2);
                let _ = stream.write_all(&breach);
                rest(stream);
            });
            let rendezvous = party.join(0, LONG).unwrap();
            assert_eq!(rendezvous.barrier("x").unwrap_err().blamed(), [Pe::new(1)]);
        });
    }
}

#[test]
fn member_that_never_reads_is_dropped() {
    let options = ServerOptions { max_unread_bytes: 4 << 20, ..ServerOptions::default() };
    let party = Party::with(2, Endpoint::random_unix().unwrap(), options);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = connect(&party);
            stream.write_all(&Frame::Hello(hello(&party, 1)).to_bytes()).unwrap();
            let value = vec![0; 1 << 20];
            stream.write_all(&Frame::Put { request: 1, key: "k".into(), value }.to_bytes()).unwrap();
            for request in 2..100 {
                if stream.write_all(&Frame::Get { request, key: "k".into(), wait: false }.to_bytes()).is_err() {
                    break;
                }
            }
            party.until(|state| !state.lost.is_empty());
        });
        let rendezvous = party.join(0, LONG).unwrap();
        for _ in 0..10 {
            rendezvous.try_get("another").unwrap();
        }
        assert_eq!(rendezvous.get("never").unwrap_err().blamed(), [Pe::new(1)]);
    });
}

#[test]
fn frames_sent_in_single_bytes_are_decoded() {
    let party = Party::new(1);
    let mut stream = connect(&party);
    let mut bytes = Frame::Hello(hello(&party, 0)).to_bytes();
    Frame::Put { request: 5, key: "k".into(), value: b"v".to_vec() }.encode(&mut bytes);
    Frame::Get { request: 6, key: "k".into(), wait: true }.encode(&mut bytes);
    Frame::Leave.encode(&mut bytes);
    for byte in bytes {
        stream.write_all(&[byte]).unwrap();
    }
    let said = rest(stream);
    let mut at = 0;
    for expected in [
        Frame::Welcome,
        Frame::Done { request: 0 },
        Frame::Done { request: 5 },
        Frame::Value { request: 6, value: b"v".to_vec() },
    ] {
        let (frame, used) = decode(&said[at..]).unwrap().unwrap();
        assert_eq!(frame, expected);
        at += used;
    }
    assert_eq!(at, said.len());
    eventually("the departure of one PE", || party.server.state().left.len() == 1);
}
