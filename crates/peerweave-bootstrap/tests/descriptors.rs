//! Tests of passing file descriptors among PEs that are threads. The PEs map the same file.

#![cfg(target_os = "linux")]

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{LONG, PASSES, Party, SOON, eventually};
use peerweave_bootstrap::{BootstrapError, Endpoint, Job, Options, Pe, Rendezvous, ServerOptions};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{FdFlags, fcntl_getfd};

fn pes(indices: impl IntoIterator<Item = u32>) -> Vec<Pe> {
    indices.into_iter().map(Pe::new).collect()
}

fn memory(content: &[u8]) -> OwnedFd {
    let file = File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
    file.write_all_at(content, 0).unwrap();
    file.into()
}

fn content(fd: impl AsFd) -> Vec<u8> {
    let file = File::from(fd.as_fd().try_clone_to_owned().unwrap());
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn shared_descriptor_reaches_all_members() {
    let party = Party::new(4);
    // The leader need not be PE 0.
    let members = pes([2, 0, 3, 1]);
    party.run(0..4, |rendezvous| {
        for round in 0..3u8 {
            let mine = (rendezvous.pe() == members[0]).then(|| memory(&[round; 100]));
            let shared = rendezvous.share_descriptor(&members, mine).unwrap();
            assert_eq!(content(&shared), [round; 100]);
            assert!(fcntl_getfd(&shared).unwrap().contains(FdFlags::CLOEXEC));
            let shared = File::from(shared);
            rendezvous.barrier("before writing").unwrap();
            shared.write_all_at(&[0xAA], u64::from(rendezvous.pe().get())).unwrap();
            rendezvous.barrier("written").unwrap();
            assert_eq!(content(&shared)[..5], [0xAA, 0xAA, 0xAA, 0xAA, round]);
        }
    });
}

#[test]
fn disjoint_groups_pass_descriptors_at_the_same_time() {
    let party = Party::new(4);
    party.run(0..4, |rendezvous| {
        let machine = rendezvous.pe().get() / 2;
        let members = pes([2 * machine, 2 * machine + 1]);
        let mine = (rendezvous.pe() == members[0]).then(|| memory(&[machine as u8]));
        assert_eq!(content(rendezvous.share_descriptor(&members, mine).unwrap()), [machine as u8]);
        // The PE leaves properly, because the other group may not have finished.
        rendezvous.leave().unwrap();
    });
}

#[test]
fn exchanged_descriptors_arrive_in_member_order() {
    // 70 descriptors do not fit in one message.
    let party = Party::new(70);
    let members = pes((0..70).rev());
    party.run(0..70, |rendezvous| {
        let mine = memory(&[rendezvous.pe().get() as u8]);
        let all = rendezvous.exchange_descriptors(&members, mine).unwrap();
        let contents: Vec<Vec<u8>> = all.iter().map(content).collect();
        assert_eq!(contents, members.iter().map(|pe| vec![pe.get() as u8]).collect::<Vec<_>>());
        rendezvous.leave().unwrap();
    });
}

#[test]
fn sole_member_receives_the_descriptor_that_it_passed() {
    let alone = Rendezvous::join(&Job::single(), Options::default()).unwrap();
    let members = pes([0]);
    assert_eq!(content(alone.share_descriptor(&members, Some(memory(b"mine"))).unwrap()), b"mine");
    assert_eq!(content(&alone.exchange_descriptors(&members, memory(b"mine")).unwrap()[0]), b"mine");
}

#[test]
fn invalid_member_lists_and_descriptor_arguments_are_refused() {
    let party = Party::new(2);
    party.run(0..2, |rendezvous| {
        let me = rendezvous.pe();
        for members in [pes([]), pes([1 - me.get()]), pes([0, 1, 1]), pes([0, 1, 2])] {
            let error = rendezvous.exchange_descriptors(&members, memory(b"")).unwrap_err();
            assert!(matches!(error, BootstrapError::Misuse { what: "members", .. }), "{error}");
        }
        let both = pes([0, 1]);
        let wrong = (me != both[0]).then(|| memory(b""));
        let error = rendezvous.share_descriptor(&both, wrong).unwrap_err();
        assert!(matches!(error, BootstrapError::Misuse { what: "fd", .. }), "{error}");
    });
}

#[test]
fn missing_member_is_named_in_the_timeout() {
    let party = Party::new(4);
    let members = pes(0..4);
    party.try_run(0..4, PASSES, |joined| {
        let rendezvous = joined.unwrap();
        rendezvous.barrier("start").unwrap();
        if rendezvous.pe() == Pe::new(3) {
            return party.until(|state| state.left.len() == 3);
        }
        match rendezvous.exchange_descriptors(&members, memory(b"")).unwrap_err() {
            BootstrapError::Timeout { missing, .. } => assert_eq!(missing, pes([3])),
            other => panic!("{other}"),
        }
        rendezvous.leave().unwrap();
    });
}

#[test]
fn repeated_exchanges_do_not_fill_the_key_value_store() {
    let options = ServerOptions { max_stored_bytes: 1000, ..ServerOptions::default() };
    let party = Party::with(2, Endpoint::random_unix().unwrap(), options);
    let members = pes(0..2);
    party.run(0..2, |rendezvous| {
        for _ in 0..100 {
            rendezvous.exchange_descriptors(&members, memory(b"")).unwrap();
            let mine = (rendezvous.pe() == members[0]).then(|| memory(b""));
            rendezvous.share_descriptor(&members, mine).unwrap();
        }
        rendezvous.barrier("end").unwrap();
    });
}

#[test]
fn missing_leader_is_named_in_the_timeout() {
    let party = Party::new(3);
    let members = pes(0..3);
    party.try_run(0..3, PASSES, |joined| {
        let rendezvous = joined.unwrap();
        rendezvous.barrier("start").unwrap();
        if rendezvous.pe() == members[0] {
            return party.until(|state| state.left.len() == 2);
        }
        match rendezvous.exchange_descriptors(&members, memory(b"")).unwrap_err() {
            BootstrapError::Timeout { missing, .. } => assert_eq!(missing, pes([0])),
            other => panic!("{other}"),
        }
        rendezvous.leave().unwrap();
    });
}

#[test]
fn timed_out_exchanges_do_not_fill_the_key_value_store() {
    let options = ServerOptions { max_stored_bytes: 400, ..ServerOptions::default() };
    let party = Party::with(3, Endpoint::random_unix().unwrap(), options);
    let members = pes(0..3);
    let called = AtomicUsize::new(0);
    party.try_run(0..3, PASSES, |joined| {
        let rendezvous = joined.unwrap();
        if rendezvous.pe() == Pe::new(2) {
            return party.until(|state| state.left.len() == 2);
        }
        for round in 0..4 {
            // The two PEs start each round together.
            called.fetch_add(1, Ordering::SeqCst);
            eventually("the other PE", || called.load(Ordering::SeqCst) >= 2 * (round + 1));
            match rendezvous.exchange_descriptors(&members, memory(b"")).unwrap_err() {
                BootstrapError::Timeout { missing, .. } => assert_eq!(missing, pes([2])),
                other => panic!("round {round}: {other}"),
            }
        }
        rendezvous.leave().unwrap();
    });
}

#[test]
fn exchange_error_names_a_member_that_died() {
    // The dead member is the leader first, then another member.
    for dead in [0, 2] {
        let party = Party::new(3);
        let members = pes(0..3);
        let told = AtomicUsize::new(0);
        party.run(0..3, |rendezvous| {
            rendezvous.barrier("start").unwrap();
            if rendezvous.pe() == Pe::new(dead) {
                return;
            }
            let start = Instant::now();
            let error = rendezvous.exchange_descriptors(&members, memory(b"")).unwrap_err();
            assert!(matches!(error, BootstrapError::PeLost { pe, .. } if pe == Pe::new(dead)), "{error}");
            assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
            // This PE stays until the other PE has seen the first loss. If this PE left earlier, it
            // would be the first loss.
            told.fetch_add(1, Ordering::SeqCst);
            eventually("the error of the other PE", || told.load(Ordering::SeqCst) == 2);
        });
    }
}

/// Returns the names of the listening sockets of this crate on this machine.
fn sockets() -> Vec<String> {
    let all = std::fs::read_to_string("/proc/net/unix").unwrap();
    let names = all.lines().filter(|line| line.contains(" 00010000 ")).filter_map(|line| line.rsplit_once('@'));
    names.map(|(_, name)| name.to_owned()).filter(|name| name.starts_with("peerweave-")).collect()
}

#[test]
fn unidentified_connections_get_no_descriptors() {
    let party = Party::new(3);
    let members = pes(0..3);
    party.run(0..3, |rendezvous| {
        if rendezvous.pe() == Pe::new(2) {
            // The leader waits for this PE, so one of the open sockets belongs to the leader. This
            // PE opens all kinds of unidentified connections.
            let unidentified = Mutex::new(Vec::new());
            // This hello is that of this PE, except for the token.
            let impostor = [b"peerw-fd".as_slice(), &[0; 32], &2u32.to_le_bytes()].concat();
            let connect_to_all = || {
                let mut unidentified = unidentified.lock().unwrap();
                for name in sockets() {
                    for garbage in [&b""[..], b"x", b"peerw-fd", &[0; 44], &[0xff; 4096], &impostor] {
                        let address = SocketAddr::from_abstract_name(&name).unwrap();
                        let Ok(mut stream) = UnixStream::connect_addr(&address) else { continue };
                        let _ = stream.write_all(garbage);
                        unidentified.push(stream);
                    }
                }
                unidentified.len()
            };
            // A socket of another test may count as the leader's, and may end meanwhile.
            eventually("the sockets of the server and the leader", || sockets().len() >= 2 && connect_to_all() >= 10);
            let shared = rendezvous.share_descriptor(&members, None).unwrap();
            assert_eq!(content(shared), b"shared");
            for mut connection in unidentified.into_inner().unwrap() {
                connection.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
                let mut said = Vec::new();
                let _ = connection.read_to_end(&mut said);
                assert_eq!(said, b"");
            }
        } else {
            let mine = (rendezvous.pe() == members[0]).then(|| memory(b"shared"));
            assert_eq!(content(rendezvous.share_descriptor(&members, mine).unwrap()), b"shared");
        }
        rendezvous.barrier("end").unwrap();
    });
}

#[test]
fn many_unidentified_connections_do_not_block_members() {
    let party = Party::new(2);
    let members = pes(0..2);
    party.run(0..2, |rendezvous| {
        if rendezvous.pe() == Pe::new(0) {
            assert_eq!(content(rendezvous.share_descriptor(&members, Some(memory(b"shared"))).unwrap()), b"shared");
            return rendezvous.barrier("end").unwrap();
        }
        eventually("the socket of the leader", || sockets().len() >= 2);
        let names = sockets();
        let connect = |name: &String| UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).unwrap()).ok();
        let crowd: Vec<UnixStream> = (0..100).flat_map(|_| names.iter().filter_map(connect)).collect();
        let start = Instant::now();
        assert_eq!(content(rendezvous.share_descriptor(&members, None).unwrap()), b"shared");
        assert!(start.elapsed() < LONG / 2);
        drop(crowd);
        rendezvous.barrier("end").unwrap();
    });
}

#[test]
fn server_socket_closes_at_shutdown_after_descriptor_sharing() {
    let party = Party::new(2);
    let members = pes(0..2);
    let names = party.run(0..2, |rendezvous| {
        let mine = (rendezvous.pe() == members[0]).then(|| memory(b""));
        let key = "during";
        if rendezvous.pe() == Pe::new(1) {
            eventually("the socket of the leader", || sockets().len() >= 2);
            rendezvous.put(key, sockets().join("\n").as_bytes()).unwrap();
        }
        rendezvous.share_descriptor(&members, mine).unwrap();
        rendezvous.barrier("end").unwrap();
        String::from_utf8(rendezvous.get(key).unwrap()).unwrap()
    });
    let peerweave_bootstrap::Endpoint::Unix(server) = party.server.endpoint().clone() else { panic!("not a Unix socket") };
    assert!(names[0].contains(&server));
    drop(party);
    common::eventually("the end of the server's socket", || !common::socket_exists(&server));
}
