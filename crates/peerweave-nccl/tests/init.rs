//! Tests of creating communicators: one by one, together, with several ids, and by growing. Also
//! tests failed creation.
#![cfg(target_os = "linux")]
#![allow(missing_docs, reason = "scenarios are named, not documented")]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::*;
use peerweave_nccl::{Communicator, Config, Nccl, NcclError, Rank, Switch, UniqueId};

#[test]
fn grown_communicator_contains_old_and_new_ranks() {
    fakes(3).run(|| {
        let nccl = Nccl::load().expect("the fake library is found");
        let ids = std::sync::Mutex::new(None::<UniqueId>);
        let made = std::sync::Condvar::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let id = made
                    .wait_while(ids.lock().expect("the thread does not panic"), |id| id.is_none())
                    .expect("the thread does not panic")
                    .expect("the id is created");
                let context = peerweave_driver::context(2).expect("the fake has this device");
                let joined = Communicator::builder()
                    .nccl(nccl)
                    .deadline(DEADLINE)
                    .join(&context, 3, &id, Rank::new(2))
                    .expect("all ranks join");
                assert_eq!(
                    sum(&joined, &context.new_stream().expect("a stream is created")).expect("the all-reduce succeeds"),
                    6.0
                );
            });
            ranks(2, &Config::new(), |comm, stream| {
                let id = (comm.rank() == Rank::new(0)).then(|| comm.grow_id().expect("an id is created"));
                if let Some(id) = id {
                    *ids.lock().expect("the thread does not panic") = Some(id);
                    made.notify_all();
                }
                let grown = comm.grow(3, id.as_ref()).expect("all ranks join");
                assert_eq!((grown.rank(), grown.n_ranks()), (comm.rank(), 3));
                assert_eq!(sum(&grown, &stream).expect("the all-reduce succeeds"), 6.0);
            });
        });
        nothing_is_left();
    });
}

#[test]
fn scalable_init_accepts_more_than_one_unique_id() {
    fakes(4).run(|| {
        let nccl = Nccl::load().expect("the fake library is found");
        let ids = [nccl.unique_id().expect("an id is created"), nccl.unique_id().expect("an id is created")];
        std::thread::scope(|scope| {
            for (rank, context) in contexts(4).into_iter().enumerate() {
                scope.spawn(move || {
                    let made = Communicator::builder().nccl(nccl).deadline(DEADLINE).init_rank_scalable(
                        &context,
                        4,
                        &ids,
                        Rank::new(rank as u32),
                    );
                    let comm = made.expect("all ranks join");
                    assert_eq!(sum(&comm, &context.default_stream()).expect("the all-reduce succeeds"), 10.0);
                });
            }
        });
        for id in &ids {
            // Each id has already connected a part of the ranks, so no id can be used again.
            let again = Communicator::builder().nccl(nccl).deadline(DEADLINE).init_rank(&device(0), 1, id, Rank::new(0));
            assert_eq!(again.expect_err("the id was already used").code().map(|code| code.get()), Some(6));
        }
        nothing_is_left();
    });
}

#[test]
fn several_ranks_of_one_thread_join_one_communicator() {
    fakes(4).run(|| {
        let nccl = Nccl::load().expect("the fake library is found");
        let (id, contexts) = (nccl.unique_id().expect("an id is created"), contexts(4));
        std::thread::scope(|scope| {
            // Two threads, each with two ranks, not in the order of the devices.
            for mine in [[0, 3], [2, 1]] {
                let contexts = &contexts;
                scope.spawn(move || {
                    let members = mine.map(|n| (Arc::clone(&contexts[n]), Rank::new(n as u32)));
                    let made = Communicator::builder()
                        .nccl(nccl)
                        .deadline(DEADLINE)
                        .init_ranks(&members, 4, &id)
                        .expect("all ranks join");
                    assert_eq!(
                        made.iter().map(|comm| (comm.rank(), comm.cuda_device())).collect::<Vec<_>>(),
                        mine.map(|n| (Rank::new(n as u32), n))
                    );
                    let streams: Vec<_> = made.iter().map(|comm| comm.context().default_stream()).collect();
                    let members: Vec<_> = made.into_iter().zip(streams).collect();
                    let mut values: Vec<_> =
                        members.iter().map(|(comm, stream)| floats(stream, &[comm.rank().get() as f32])).collect();
                    sum_together(&members, &mut values);
                    for ((_, stream), values) in members.iter().zip(&values) {
                        assert_eq!(value(values, stream), 6.0);
                    }
                });
            }
        });
        nothing_is_left();
    });
}

#[test]
fn init_that_nccl_never_completes_fails_at_the_deadline() {
    fakes(2).env("PEERWEAVE_FAKE_NCCL_INIT_STUCK", "*").run(|| {
        let start = Instant::now();
        let error = Communicator::builder()
            .nccl(Nccl::load().expect("the fake library is found"))
            .config(Config::new().blocking(Switch::Off))
            .deadline(Duration::from_millis(200))
            .init_all(&contexts(2));
        let NcclError::Timeout(timeout) = error.expect_err("the initialization never ends") else { panic!("expected a timeout") };
        assert_eq!(timeout.call, "init_all");
        assert!((Duration::from_millis(200)..Duration::from_secs(20)).contains(&start.elapsed()));
        nothing_is_left();
    });
}

#[test]
fn init_with_a_missing_rank_fails_at_the_deadline() {
    fakes(2).run(|| {
        let nccl = Nccl::load().expect("the fake library is found");
        let (id, context) = (nccl.unique_id().expect("an id is created"), contexts(1).remove(0));
        let builder = Communicator::builder().nccl(nccl).config(Config::new().blocking(Switch::Off));
        let error = builder.deadline(Duration::from_millis(300)).init_rank(&context, 2, &id, Rank::new(0));
        assert!(matches!(error, Err(NcclError::Timeout(_))), "{error:?}");
        nothing_is_left();
    });
}

#[test]
fn failed_init_is_an_error_and_leaks_nothing() {
    fakes(2).env("PEERWEAVE_FAKE_NCCL_FAIL", "ncclCommInitRankConfig:2=3").run(|| {
        let made = Communicator::builder()
            .nccl(Nccl::load().expect("the fake library is found"))
            .deadline(DEADLINE)
            .init_all(&contexts(2));
        assert_eq!(made.expect_err("the second rank fails").code().map(|code| code.get()), Some(3));
        nothing_is_left();
    });
}

#[test]
fn failed_init_of_one_rank_does_not_wait_for_other_ranks() {
    fakes(2).run(|| {
        let (nccl, contexts) = (Nccl::load().expect("the fake library is found"), contexts(2));
        // Both contexts are made current before NCCL is called, and each context again for the call
        // of its rank.
        fail_driver("cuCtxSetCurrent:4=709");
        let start = Instant::now();
        let error =
            Communicator::builder().nccl(nccl).deadline(DEADLINE).init_all(&contexts).expect_err("the second rank cannot start");
        assert!(matches!(error, NcclError::Cuda(_)), "{error}");
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
        assert_eq!(counted("communicators"), 0, "the first rank was aborted");
        Communicator::builder().nccl(nccl).deadline(DEADLINE).init_all(&contexts).expect("the thread is in no group");
    });
}

#[test]
fn blocking_init_fails_at_the_deadline_and_leaks_nothing() {
    fakes(2).run(|| {
        let nccl = Nccl::load().expect("the fake library is found");
        let (id, contexts, config) =
            (nccl.unique_id().expect("an id is created"), contexts(2), Config::new().blocking(Switch::On));
        let start = Instant::now();
        let error = Communicator::builder().nccl(nccl).config(config.clone()).deadline(Duration::from_millis(300)).init_rank(
            &contexts[0],
            2,
            &id,
            Rank::new(0),
        );
        let NcclError::Timeout(timeout) = error.expect_err("rank 1 does not join") else { panic!("expected a timeout") };
        assert_eq!(timeout.call, "init_rank");
        assert!((Duration::from_millis(300)..Duration::from_secs(20)).contains(&start.elapsed()));
        // NCCL's call continues. The communicator that it creates when rank 1 arrives has no owner.
        let late = Communicator::builder()
            .nccl(nccl)
            .config(config.clone())
            .deadline(DEADLINE)
            .init_rank(&contexts[1], 2, &id, Rank::new(1))
            .expect("rank 0 still waits in NCCL");
        late.abort(DEADLINE).expect("the communicator ends");
        drop(late);
        nothing_is_left();
    });
}

#[test]
fn blocking_communicators_can_be_used_on_another_thread() {
    fakes(2).run(|| {
        let contexts = contexts(2);
        contexts[1].bind_to_thread().expect("the context is current");
        let members = all_in(&contexts, &Config::new().blocking(Switch::On));
        assert_eq!(members.iter().map(|(comm, _)| comm.cuda_device()).collect::<Vec<_>>(), [0, 1]);
        let mut values: Vec<_> = members.iter().map(|(_, stream)| floats(stream, &[1.0])).collect();
        sum_together(&members, &mut values);
        for ((_, stream), values) in members.iter().zip(&values) {
            assert_eq!(value(values, stream), 2.0);
        }
        let made = members.into_iter().map(|(comm, _)| comm).collect();
        Communicator::finalize_all(made, DEADLINE).expect("the communicators end");
        nothing_is_left();
    });
}

#[test]
fn failed_blocking_init_returns_the_error() {
    fakes(2).env("PEERWEAVE_FAKE_NCCL_FAIL", "ncclCommInitRankConfig:2=3").run(|| {
        let (nccl, config) = (Nccl::load().expect("the fake library is found"), Config::new().blocking(Switch::On));
        let made = Communicator::builder().nccl(nccl).config(config.clone()).deadline(DEADLINE).init_all(&contexts(2));
        assert_eq!(made.expect_err("the second rank fails").code().map(|code| code.get()), Some(3));
    });
}
