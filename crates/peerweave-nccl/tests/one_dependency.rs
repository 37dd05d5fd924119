//! Tests that typical programs need only this crate as a dependency: the program of the README, and
//! a program that uses more of the crate.
#![cfg(target_os = "linux")]

use peerweave_fakes::Fakes;

/// The program of the README, unchanged.
mod two_gpus {
    include!("one_dependency/two_gpus.rs");

    pub(super) fn run() -> Result<()> {
        main()
    }
}

/// A program for all GPUs that uses only the prelude and the re-exports.
mod by_prelude {
    use std::time::Duration;

    use peerweave_nccl::cudarc::driver::result;
    use peerweave_nccl::prelude::*;

    pub(super) fn run() -> Result<()> {
        let deadline = Duration::from_secs(60);
        let devices = peerweave_nccl::driver::Driver::get()?.device_count()?;
        let made = Communicator::builder().config(Config::new().name("prelude")).deadline(deadline).on_devices(0..devices)?;
        assert_eq!(result::device::get_count().expect("cudarc can be called"), devices as i32);
        let nccl: Nccl = made[0].nccl();
        let streams: Vec<_> = made.iter().map(|rank| rank.context().default_stream()).collect();
        let sends =
            streams.iter().map(|stream| DeviceMemory::from_slice(stream, &[2.0f32, 3.0])).collect::<Result<Vec<_>, _>>()?;
        let mut slices: Vec<CudaSlice<f32>> =
            streams.iter().map(|stream| stream.alloc_zeros(2).expect("memory is allocated")).collect();
        nccl.group(|group| {
            for (((rank, stream), send), recv) in made.iter().zip(&streams).zip(&sends).zip(&mut slices) {
                group.all_reduce(rank, stream, send, recv, ReduceOp::default())?;
            }
            Ok(())
        })?;
        for ((rank, stream), sum) in made.iter().zip(&streams).zip(&slices) {
            rank.wait(stream, deadline)?;
            assert_eq!(stream.clone_dtoh(sum).expect("the memory can be read"), [2.0 * devices as f32, 3.0 * devices as f32]);
        }
        Communicator::finalize_all(made, deadline)
    }
}

#[test]
fn all_reduce_example_on_two_gpus_has_ten_lines_of_code() {
    let program = include_str!("one_dependency/two_gpus.rs");
    let lines = program.lines().filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with("//"));
    assert_eq!(lines.count(), 10);
    let readme = include_str!("../README.md");
    let shown = program.split_once("use peerweave_nccl").expect("the program imports the crate").1;
    assert!(readme.contains(shown.trim_end()), "the README shows the same program");
    Fakes::new().cuda().nccl().env("PEERWEAVE_FAKE_CUDA_DEVICES", "2").run(|| {
        two_gpus::run().expect("the program succeeds");
    });
}

#[test]
fn prelude_is_sufficient_for_a_typical_program() {
    Fakes::new().cuda().nccl().env("PEERWEAVE_FAKE_CUDA_DEVICES", "3").run(|| {
        by_prelude::run().expect("the program succeeds");
    });
}
