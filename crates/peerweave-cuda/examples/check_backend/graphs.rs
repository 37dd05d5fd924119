//! Checks collectives, puts, signals and waits in graphs.

use std::sync::Arc;
use std::time::Duration;

use peerweave_bootstrap::Job;
use peerweave_core::{Compare, Rank, World};
use peerweave_cuda::{Cuda, CudaOptions};
use peerweave_driver::PrivateStream;
use peerweave_driver::cudarc::driver::sys::{CUgraphInstantiate_flags as Flags, CUstreamCaptureMode as Mode};

use crate::Outcome;
use crate::calls::{KINDS, Operands};

/// Replays a graph of each call 20 times, alternating with the same call in a stream.
pub(crate) fn run(job: &Job, deadline: Duration) -> Outcome {
    let mut options = CudaOptions::default();
    (options.deadline, options.heap_bytes) = (deadline, Some(64 << 20));
    let cuda = Cuda::join(job, &options)?;
    let own = PrivateStream::new(cuda.context())?;
    let stream: Arc<_> = Arc::clone(&own);
    let wrapped = cuda.wrap_stream(Arc::clone(&stream))?;
    let world = World::new(cuda)?;
    let (queue, on) = (world.adopt_stream(wrapped)?, Operands::new(&world)?);
    let (team, n) = (world.team(), world.n_pes() as u32);
    let right = Rank::new((world.my_pe().get() + 1) % n);
    let mut lines = Vec::new();
    for kind in 0..=KINDS {
        for len in [1, 300, 20_000] {
            let call = || -> Outcome {
                if kind < KINDS {
                    return Ok(on.enqueue(team, &queue, kind, len)?);
                }
                // Every PE puts to the next PE, signals the next PE, waits for the signal of the
                // previous PE, and decrements its own signal.
                let word = on.words.signal(0)?;
                team.put_signal(&queue, &on.x.slice(..len)?, &on.y.slice(..len)?, word.add(1), right)?;
                team.wait_until(&queue, &word, Compare::Ge, 1)?;
                team.atomic_add(&queue, &on.words, 0, u64::MAX, team.my_rank())?;
                team.barrier(&queue)?;
                Ok(())
            };
            let check = || if kind < KINDS { on.check(kind, len) } else { on.check_put(len) };
            call()?;
            queue.synchronize()?;
            check()?;
            stream.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
            for _ in 0..3 {
                call()?;
            }
            let graph = stream
                .end_capture(Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)?
                .ok_or("the capture returned no graph")?;
            for _ in 0..20 {
                on.y.fill(-1.0)?;
                team.barrier_blocking()?;
                graph.launch()?;
                call()?;
                queue.synchronize()?;
                check()?;
            }
            drop(graph);
        }
        lines.push(kind);
    }
    let Operands { x, y, halves, words, .. } = on;
    drop((queue, stream, own));
    x.release()?;
    y.release()?;
    halves.release()?;
    words.release()?;
    let _ = world.finalize()?;
    println!(
        "PE {}: results of {} kinds of calls, 3 lengths each, 20 replays of graphs of 3 calls, are correct",
        job.pe.get(),
        lines.len()
    );
    Ok(())
}
