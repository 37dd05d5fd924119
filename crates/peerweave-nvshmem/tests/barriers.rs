//! Tests that barriers complete earlier puts of every kind. Also tests teams with a negative
//! stride.
#![cfg(target_os = "linux")]

mod common;

use std::time::{Duration, Instant};

use common::{SHORT, by_network, fakes, misuse, start, start_within};
use peerweave_nvshmem::{Context, MisuseKind, NvshmemError, TeamConfig};
use peerweave_types::Pe;

/// Returns fakes with a slow network, which delivers puts of the host at the next quiet or after 10
/// s.
fn slow_network() -> peerweave_fakes::Fakes {
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_NETWORK_DELAY_MS", "10000")
}

/// Each PE puts data from the host to the next PE, and then calls `barrier`. After the barrier,
/// each PE compares the data in its memory.
fn put_is_seen_after(child: &peerweave_fakes::Child, barrier: impl Fn(&Context)) {
    let here = by_network(child);
    let (target, source) = (here.context.alloc_zeroed::<u64>(8), here.context.alloc::<u64>(8));
    let (target, source) = (target.expect("the memory is allocated"), source.expect("the memory is allocated"));
    for round in 1..=3 {
        source.copy_from(&here.stream, &[round; 8]).expect("the copy completes");
        here.context.put_blocking(&target, &source, here.next()).expect("the put is sent");
        barrier(&here.context);
        assert_eq!(target.to_vec(&here.stream).expect("the copy completes"), [round; 8], "the barrier did not complete the put");
        here.context.world().sync_blocking().expect("all PEs have compared the data");
    }
    here.context.free(source).expect("all PEs free the memory");
    here.context.free(target).expect("all PEs free the memory");
    here.end();
}

#[test]
fn blocking_barrier_completes_puts_of_the_host() {
    slow_network().run_many(2, |child| {
        put_is_seen_after(&child, |context| context.world().barrier_blocking().expect("all PEs make the call"));
    });
}

#[test]
fn barrier_all_completes_puts_of_the_host() {
    slow_network().run_many(2, |child| {
        put_is_seen_after(&child, |context| context.barrier_all_blocking().expect("all PEs make the call"));
    });
}

#[test]
fn host_quiet_completes_puts_of_the_host() {
    slow_network().run_many(2, |child| {
        put_is_seen_after(&child, |context| {
            context.quiet_blocking().expect("the quiet completes");
            context.world().sync_blocking().expect("all PEs make the call");
        });
    });
}

#[test]
fn barrier_all_completes_nbi_puts_enqueued_on_a_stream() {
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_NBI_DELAY_MS", "10000").run_many(2, |child| {
        let here = start(&child);
        let (target, source) = (here.context.alloc_zeroed::<u64>(8), here.context.alloc::<u64>(8));
        let (target, source) = (target.expect("the memory is allocated"), source.expect("the memory is allocated"));
        source.copy_from(&here.stream, &[7; 8]).expect("the copy completes");
        here.context.put_nbi(&target, &source, here.next(), &here.stream).expect("the work is enqueued");
        here.stream.synchronize().expect("the stream completes");
        here.context.barrier_all_blocking().expect("all PEs make the call");
        assert_eq!(target.to_vec(&here.stream).expect("the copy completes"), [7; 8]);
        here.context.free(source).expect("all PEs free the memory");
        here.context.free(target).expect("all PEs free the memory");
        here.end();
    });
}

#[test]
fn barrier_all_times_out_if_a_pe_is_missing() {
    fakes().run_many(2, |child| {
        let here = start_within(&child, SHORT);
        if child.rank == 0 {
            let began = Instant::now();
            let error = here.context.barrier_all_blocking().expect_err("PE 1 does not make the call");
            assert!(matches!(error, NvshmemError::Timeout(_)), "{error}");
            assert!(began.elapsed() < SHORT + Duration::from_secs(15), "{:?}", began.elapsed());
            assert!(matches!(here.context.barrier_all_blocking(), Err(NvshmemError::Dead { .. })));
        }
        child.meet("given up");
    });
}

#[test]
fn split_with_negative_stride_selects_descending_ranks() {
    fakes().run_many(4, |child| {
        let here = start(&child);
        let world = here.context.world();
        let reversed =
            world.split_strided(3, -1, 4, TeamConfig::default()).expect("the team is split").expect("every PE is a member");
        assert_eq!(reversed.members(), [3, 2, 1, 0].map(Pe::new));
        assert_eq!(reversed.rank().get(), 3 - child.rank as u32);
        reversed.barrier_blocking().expect("all PEs make the call");
        let some = world.split_strided(3, -2, 2, TeamConfig::default()).expect("the team is split");
        assert_eq!(
            some.as_ref().map(|team| team.members().to_vec()),
            (child.rank % 2 == 1).then(|| [3, 1].map(Pe::new).to_vec())
        );
        if let Some(some) = some {
            some.barrier_blocking().expect("both members make the call");
            some.destroy().expect("all PEs destroy the team");
        }
        // Splits a team for which NVSHMEM has no stride.
        let again = reversed.split_strided(3, -1, 3, TeamConfig::default()).expect("the team is split");
        assert_eq!(again.map(|team| team.members().to_vec()), (child.rank < 3).then(|| [0, 1, 2].map(Pe::new).to_vec()));
        reversed.destroy().expect("all PEs destroy the team");
        here.context.finalize().expect("all PEs finalize NVSHMEM");
    });
}

#[test]
fn split_with_ranks_outside_the_team_is_refused() {
    fakes().run_many(2, |child| {
        let here = start(&child);
        let split = |start, stride, count| {
            misuse(here.context.world().split_strided(start, stride, count, TeamConfig::default()).map(drop))
        };
        assert!(matches!(split(1, -1, 3), MisuseKind::Value { what: "the rank of the last member", found: -1, .. }));
        assert!(matches!(split(2, -1, 2), MisuseKind::Rank { what: "the start", found: 2, ranks: 2 }));
        assert!(matches!(split(0, 1, 3), MisuseKind::Rank { what: "the last member", found: 2, ranks: 2 }));
        assert!(matches!(split(0, 0, 1), MisuseKind::Value { what: "the stride", found: 0, .. }));
        assert!(matches!(split(0, i32::MIN, u32::MAX), MisuseKind::Value { what: "the rank of the last member", .. }));
        assert!(matches!(split(0, 1, 0), MisuseKind::Value { what: "the count", .. }));
        here.end();
    });
}
