//! Tests of splits, launches with teams, and the destruction of teams that do not contain all PEs,
//! over the fake driver.
#![cfg(target_os = "linux")]

mod common;

use std::time::Duration;

use peerweave_cuda::{CudaError, Gpu, GpuOptions, Team};
use peerweave_driver::cudarc::driver::sys::{CUgraphInstantiate_flags as Flags, CUstreamCaptureMode as Mode};
use peerweave_test_kernels::{meet_in_team, sum_in_team};
use peerweave_types::{FailureKind, KernelTeam, Pe, Rank, TeamShape};

use common::{fakes, pes};

fn options() -> GpuOptions {
    GpuOptions::new(1 << 20).deadline(Duration::from_secs(60)).slots(4).teams(3)
}

/// Returns the team of the PEs with the same parity as this PE, in descending order.
fn parity(gpu: &Gpu) -> Team {
    let me = gpu.pe().get();
    gpu.split(Some((me % 2).into()), -i64::from(me)).expect("all PEs split").expect("a color was given")
}

#[test]
fn team_members_can_synchronize_and_reduce() {
    for n in [1, 2, 3, 5] {
        fakes().run(|| {
            pes(n, options(), |gpu| {
                let (me, team) = (gpu.pe().get(), parity(gpu));
                let members: Vec<Pe> = (0..n).rev().filter(|pe| pe % 2 == me % 2).map(Pe::new).collect();
                assert_eq!(team.members(), members);
                assert_eq!(
                    team.rank(),
                    Rank::new(members.iter().position(|pe| pe.get() == me).expect("this PE is a member") as u32)
                );
                let (word, stream) =
                    (gpu.alloc::<u64>(1).expect("the memory is allocated"), gpu.stream().expect("the stream is created"));
                let (to, from) = (
                    gpu.alloc::<u32>(70).expect("the memory is allocated"),
                    gpu.alloc::<u32>(70).expect("the memory is allocated"),
                );
                from.write(&stream, 0, &[me + 1; 70]).expect("the elements are written");
                gpu.barrier("written").expect("all PEs arrive");
                let args = (team.kernel_team(), word.slice(), 5);
                stream.launch(&meet_in_team::KERNEL, 1, 32, args).expect("the kernel is launched");
                let args = (team.kernel_team(), to.slice(), from.slice());
                stream.launch(&sum_in_team::KERNEL, 1, 64, args).expect("the kernel is launched");
                let expected: u32 = members.iter().map(|pe| pe.get() + 1).sum();
                assert_eq!(word.read(&stream).expect("the work completes"), [5 * u64::from(expected)]);
                assert_eq!(to.read(&stream).expect("the work completes"), [expected; 70]);
                team.destroy().expect("the team is not in use");
            });
        });
    }
}

#[test]
fn split_strided_returns_a_team_only_to_members_of_the_team() {
    fakes().run(|| {
        pes(4, options(), |gpu| {
            let back = TeamShape { start: 3, stride: -2, size: 2 };
            let team = gpu.split_strided(back).expect("all PEs split");
            let members = team.as_ref().map(|team| team.members().to_vec());
            assert_eq!(members, (gpu.pe().get() % 2 == 1).then(|| vec![Pe::new(3), Pe::new(1)]));
            let beyond = TeamShape { start: 0, stride: 1, size: 5 };
            let error = gpu.split_strided(beyond).expect_err("the split fails, because there are only four PEs");
            assert!(matches!(error, CudaError::Misuse { call: "Gpu::split_strided", .. }), "{error}");
        });
    });
}

#[test]
fn team_that_reuses_a_team_number_reaches_only_its_members() {
    fakes().run(|| {
        pes(3, options(), |gpu| {
            let (word, stream) =
                (gpu.alloc::<u64>(1).expect("the memory is allocated"), gpu.stream().expect("the stream is created"));
            let mut total = 0;
            // Each round has a team of two PEs and a team of one PE, with different members.
            for round in 0..8 {
                let color = u64::from((gpu.pe().get() + round).is_multiple_of(3));
                let team = gpu.split(Some(color), 0).expect("a number is free").expect("a color was given");
                assert_eq!(team.kernel_team(), KernelTeam::new(1));
                let args = (team.kernel_team(), word.slice(), round + 1);
                stream.launch(&meet_in_team::KERNEL, 1, 32, args).expect("the kernel is launched");
                let sum: u64 = team.members().iter().map(|pe| u64::from(pe.get()) + 1).sum();
                total += sum * u64::from(round + 1);
                assert_eq!(word.read(&stream).expect("the work completes"), [total], "round {round}");
                team.destroy().expect("the team is not in use");
            }
        });
    });
}

#[test]
fn split_without_a_free_team_number_fails_on_all_pes() {
    fakes().run(|| {
        pes(2, options(), |gpu| {
            let teams: Vec<Team> = (0..3).map(|_| parity(gpu)).collect();
            let numbers: Vec<u32> = teams.iter().map(|team| team.kernel_team().index()).collect();
            assert_eq!(numbers, [1, 2, 3]);
            let error = gpu.split(Some(0), 0).expect_err("the split fails, because three numbers are in use");
            assert_eq!(
                error.to_string(),
                "Gpu::split: the number of teams is 4, expected at most 3 (GpuOptions::teams) that exist on any PE of this \
                 call; destroy a team first (Team::destroy)"
            );
            // After only PE 0 has destroyed a team, the number of the team is still in use on PE 1.
            let mut teams = teams;
            if gpu.pe() == Pe::new(0) {
                teams.remove(1).destroy().expect("the team is not in use");
            }
            assert!(gpu.split(Some(0), 0).is_err());
            if gpu.pe() == Pe::new(1) {
                teams.remove(1).destroy().expect("the team is not in use");
            }
            let team = gpu.split(Some(0), 0).expect("the number is free on all PEs").expect("a color was given");
            assert_eq!((team.kernel_team(), team.size()), (KernelTeam::new(2), 2));
        });
    });
}

#[test]
fn split_strided_fails_on_all_pes_if_the_shapes_differ() {
    fakes().run(|| {
        pes(2, options(), |gpu| {
            let shape = TeamShape { start: 0, stride: 1, size: 1 + gpu.pe().get() };
            let error = gpu.split_strided(shape).expect_err("the split fails, because the shapes differ");
            assert!(error.to_string().contains("the call of this PE is Gpu::split_strided"), "{error}");
            gpu.split_strided(TeamShape { start: 0, stride: 1, size: 2 })
                .expect("the shapes are equal")
                .expect("all PEs are members");
        });
    });
}

#[test]
fn launch_with_a_destroyed_team_is_refused() {
    fakes().run(|| {
        pes(2, options(), |gpu| {
            let (word, stream) =
                (gpu.alloc::<u64>(1).expect("the memory is allocated"), gpu.stream().expect("the stream is created"));
            let team = parity(gpu);
            let number = team.kernel_team();
            team.destroy().expect("the team is not in use");
            let args = (number, word.slice(), 1);
            let error =
                stream.launch(&meet_in_team::KERNEL, 1, 1, args).expect_err("the launch fails, because the team was destroyed");
            assert_eq!(
                error.to_string(),
                "launch: the team is number 1, expected a team of this GPU that has not been destroyed"
            );
        });
    });
}

#[test]
fn team_used_by_a_graph_cannot_be_destroyed() {
    fakes().run(|| {
        pes(2, options(), |gpu| {
            let (word, stream) =
                (gpu.alloc::<u64>(1).expect("the memory is allocated"), gpu.stream().expect("the stream is created"));
            let team = gpu.split(Some(7), 0).expect("all PEs split").expect("a color was given");
            stream.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("the capture begins");
            let args = (team.kernel_team(), word.slice(), 2);
            stream.launch(&meet_in_team::KERNEL, 1, 32, args).expect("the call is captured");
            let graph = stream.end_capture(Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
            let graph = graph.expect("the capture ends").expect("the capture returns a graph");
            for _ in 0..3 {
                graph.launch().expect("the graph is launched");
            }
            assert_eq!(word.read(&stream).expect("the work completes"), [3 * 2 * 3]);
            gpu.barrier("read").expect("all PEs arrive");
            let error = team.destroy().expect_err("the call fails, because the graph uses the team");
            assert!(error.to_string().contains("a team that no graph"), "{error}");
            graph.launch().expect("the graph is launched");
            assert_eq!(word.read(&stream).expect("the work completes"), [4 * 2 * 3]);
        });
    });
}

#[test]
fn kernel_error_names_the_missing_member_and_the_team() {
    fakes().run(|| {
        pes(3, options().deadline(Duration::from_secs(3)), |gpu| {
            let (word, stream) =
                (gpu.alloc::<u64>(1).expect("the memory is allocated"), gpu.stream().expect("the stream is created"));
            let team = gpu.split((gpu.pe().get() > 0).then_some(0), 0).expect("all PEs split");
            if gpu.pe() == Pe::new(2) {
                let args = (team.as_ref().expect("a color was given").kernel_team(), word.slice(), 1);
                stream.launch(&meet_in_team::KERNEL, 1, 32, args).expect("the kernel is launched");
                let error = stream.wait().expect_err("the wait fails, because PE 1 does not arrive");
                let CudaError::Kernel { failure, .. } = &error else { panic!("{error}, expected the failure of a kernel") };
                let found = (failure.kind, failure.pe, failure.team);
                assert_eq!(found, (Some(FailureKind::Deadline), Some(Pe::new(1)), Some(1)), "{error}");
            }
            gpu.recover().expect("all PEs arrive");
            if let Some(team) = &team {
                let args = (team.kernel_team(), word.slice(), 2);
                stream.launch(&meet_in_team::KERNEL, 1, 32, args).expect("the kernel is launched");
                stream.wait().expect("both members reach the barrier");
            }
        });
    });
}
