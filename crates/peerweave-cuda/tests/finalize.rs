//! Tests that a world on GPUs can be finalized while several threads use the world.
#![cfg(target_os = "linux")]

mod common;

use std::sync::Barrier;
use std::time::Duration;

use peerweave_core::{Error, MisuseKind, Rank, Result, World};
use peerweave_cuda::{Cuda, GpuOptions};
use peerweave_fakes::Fakes;

use common::pes_that_may_fail;

/// Repeats a call until the call fails, and returns the error.
fn until_it_fails(mut call: impl FnMut() -> Result<()>) -> Error {
    loop {
        if let Err(error) = call() {
            return error;
        }
    }
}

#[test]
fn finalize_waits_for_the_calls_of_other_threads() {
    Fakes::new().cuda().run(|| {
        let options = GpuOptions::new(4 << 20).deadline(Duration::from_secs(60)).slots(4);
        pes_that_may_fail(2, options, |gpu| {
            let world = World::new(Cuda::new(gpu.expect("the GPU is set up")).expect("the backend is created"))
                .expect("the world is created");
            let (x, stream) = (world.alloc_zeroed::<u64>(8).unwrap(), world.stream().unwrap());
            let right = Rank::new((world.my_pe().get() + 1) % 2);
            let ready = Barrier::new(4);
            let errors = std::thread::scope(|scope| {
                let (team, x, world, stream, ready) = (world.team(), &x, &world, &stream, &ready);
                let threads = [
                    scope.spawn(move || {
                        ready.wait();
                        until_it_fails(|| team.p_blocking(x, 0, 1, right))
                    }),
                    scope.spawn(move || {
                        ready.wait();
                        until_it_fails(|| team.atomic_inc_blocking(x, 1, right))
                    }),
                    scope.spawn(move || {
                        ready.wait();
                        until_it_fails(|| {
                            team.put(stream, &x.slice(..2)?, &x.slice(2..4)?, right)?;
                            world.fence_blocking()
                        })
                    }),
                ];
                ready.wait();
                team.sync_blocking().unwrap();
                let _ = world.finalize().expect("every PE ends the job");
                threads.map(|thread| thread.join().unwrap())
            });
            for error in errors {
                assert!(matches!(error.misuse(), Some(MisuseKind::Finalized)), "{error}");
            }
            let again = world.finalize().unwrap_err();
            assert!(matches!(again.misuse(), Some(MisuseKind::Finalized)), "{again}");
        });
    });
}
