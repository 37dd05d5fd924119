//! Compares the results of every collective, type and reduction with expected results, for every
//! kind of initialisation.
#![cfg(target_os = "linux")]
#![allow(missing_docs, reason = "scenarios are named, not documented")]

mod common;
mod matrix;

use std::sync::Arc;

use common::*;
use matrix::{Check, Member};
use peerweave_nccl::{Communicator, Config, Nccl, NcclError, Switch};
use peerweave_types::{F8E4M3, F8E5M2};

fn passed(check: &Check<'_>) {
    let (passed, failed) = check.totals();
    assert!(
        failed == 0 && passed > 0,
        "{failed} checks failed and {passed} passed, expected only passed checks: {:#?}",
        check.failures
    );
}

fn in_one_process(devices: usize, checks: impl FnOnce(&mut Check<'_>) -> Result<(), NcclError>) {
    let members: Vec<_> = all(devices).into_iter().map(|(comm, stream)| Member { comm, stream }).collect();
    let mut check = Check::new(Nccl::load().expect("the fake library is found"), &members, false);
    checks(&mut check).expect("all calls succeed");
    passed(&check);
    Communicator::finalize_all(members.into_iter().map(|member| member.comm).collect(), DEADLINE).expect("all communicators end");
    nothing_is_left();
}

/// Checks one type of each kind. Other tests check all types, with up to four ranks and the newest
/// version of NCCL.
fn some_types(check: &mut Check<'_>) -> Result<(), NcclError> {
    check.of_type::<f32>(13)?;
    check.of_type::<F8E4M3>(13)?;
    check.of_type::<F8E5M2>(13)
}

#[test]
fn collectives_on_one_to_three_ranks_have_expected_results() {
    for devices in [1, 2, 3] {
        fakes(devices).run(|| in_one_process(devices, |check| check.all(13)));
    }
}

#[test]
fn collectives_on_eight_ranks_have_expected_results() {
    fakes(8).run(|| in_one_process(8, some_types));
}

#[test]
fn collectives_with_one_thread_per_rank_have_expected_results() {
    fakes(4).run(|| {
        ranks(4, &Config::new(), |comm, stream| {
            let members = [Member { comm, stream }];
            let mut check = Check::new(members[0].comm.nccl(), &members, true);
            check.all(7).expect("all calls succeed");
            passed(&check);
        });
        nothing_is_left();
    });
}

#[test]
fn collectives_on_blocking_communicators_have_expected_results() {
    fakes(2).run(|| {
        ranks(2, &Config::new().blocking(Switch::On), |comm, stream| {
            let members = [Member { comm, stream }];
            let mut check = Check::new(members[0].comm.nccl(), &members, true);
            check.of_type::<f32>(5).expect("all calls succeed");
            passed(&check);
        });
        nothing_is_left();
    });
}

#[test]
fn processes_with_one_rank_each_connect_through_a_rendezvous() {
    fakes(3).run_many(3, |child| {
        let rendezvous = rendezvous(&child);
        let nccl = Nccl::load().expect("the fake library is found");
        let context = device(child.rank);
        let comm =
            Communicator::builder().nccl(nccl).deadline(DEADLINE).from_rendezvous(&context, &rendezvous).expect("all ranks join");
        assert_eq!((comm.rank().index(), comm.n_ranks()), (child.rank, child.count));
        let members = [Member { stream: context.new_stream().expect("a stream is created"), comm }];
        let mut check = Check::new(nccl, &members, true);
        check.all(5).expect("all calls succeed");
        passed(&check);
        let [Member { comm, .. }] = members;
        comm.finalize(DEADLINE).expect("all communicators end");
        Arc::into_inner(rendezvous)
            .expect("the communicator does not keep the rendezvous alive")
            .leave()
            .expect("all processes leave");
    });
}

#[test]
fn collectives_with_nccl_2_19_to_2_30_have_expected_results() {
    // Before NCCL 2.28, all-to-all, gather and scatter are composed of sends and receives. Before
    // NCCL 2.24.3, 8-bit floats are transferred as bytes.
    for version in ["2.19.3", "2.22.3", "2.27.7", "2.28.9", "2.30.7"] {
        fakes_of(3, version).run(|| {
            assert_eq!(Nccl::load().expect("the fake library is found").version().to_string(), version);
            in_one_process(3, some_types);
        });
    }
}
