//! Checks kernel launches with the smallest kernels: writes to the heap, puts with signals,
//! barriers, replayed graphs and teams. Also checks that launches with wrong arguments are refused.

use peerweave_cuda::{CudaError, Gpu, LaunchConfig};
use peerweave_driver::DriverError;
use peerweave_driver::launch::LaunchError;
use peerweave_test_kernels::{barriers, count_up, meet_in_team, ring, sum_in_team};

use super::Outcome;
use super::rows::Rows;

pub(crate) fn run(gpu: &Gpu, table: &mut Rows) {
    // Loads all kernels before a kernel runs. Loading may wait for a running kernel, and on a GPU
    // that PEs share, that kernel may wait for this PE.
    table.check("load the kernels for the basic checks", || {
        gpu.load_crate(ring::KERNEL.ptx())?;
        Ok(gpu.barrier("basics loaded")?)
    });
    table.check("a kernel writes memory of its own PE", || local(gpu));
    table.check("each PE sends a put and a signal to the next PE in 100 launches", || around(gpu));
    table.check("1000 barriers in one kernel", || meet(gpu, 1000));
    table.check("wrong arguments are refused before the launch", || refused(gpu));
    table.check("a graph of barriers is replayed 10 times", || replayed(gpu));
    table.check("teams of all PEs, of one PE, and of even or odd PEs", || teams(gpu));
}

/// Returns an error unless two values are equal.
pub(crate) fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Outcome {
    if found == expected { Ok(()) } else { Err(format!("{what}: found {found:?}, expected {expected:?}").into()) }
}

/// Launches a kernel that does not communicate with other PEs, and checks its result.
pub(crate) fn local(gpu: &Gpu) -> Outcome {
    let (memory, stream) = (gpu.alloc::<u64>(100_000)?, gpu.stream()?);
    stream.launch(&count_up::KERNEL, 8, 128, (memory.slice(), 5))?;
    same("elements", memory.read(&stream)?, (5..100_005).collect())?;
    Ok(gpu.free(memory)?)
}

fn before(gpu: &Gpu) -> u64 {
    u64::from((gpu.pe().get() + gpu.n_pes() - 1) % gpu.n_pes())
}

fn around(gpu: &Gpu) -> Outcome {
    let (word, signal, stream) = (gpu.alloc::<u64>(1)?, gpu.alloc::<u64>(1)?, gpu.stream()?);
    for round in 1..=100 {
        stream.launch(&ring::KERNEL, 1, 1, (word.slice(), signal.slice(), round))?;
    }
    same("word", word.read(&stream)?, vec![10 * before(gpu) + 7])?;
    same("signal", signal.read(&stream)?[0] >= 100, true)?;
    gpu.barrier("around")?;
    gpu.free(word)?;
    Ok(gpu.free(signal)?)
}

fn meet(gpu: &Gpu, rounds: u32) -> Outcome {
    let stream = gpu.stream()?;
    stream.launch(&barriers::KERNEL, 1, 32, (rounds,))?;
    Ok(stream.wait()?)
}

fn teams(gpu: &Gpu) -> Outcome {
    let (me, n) = (gpu.pe().get(), gpu.n_pes());
    let (word, stream) = (gpu.alloc::<u64>(1)?, gpu.stream()?);
    let (to, from) = (gpu.alloc::<u32>(1000)?, gpu.alloc::<u32>(1000)?);
    from.write(&stream, 0, &[me + 1; 1000])?;
    gpu.load(&meet_in_team::KERNEL)?;
    gpu.load(&sum_in_team::KERNEL)?;
    gpu.barrier("teams loaded")?;
    let mut total = 0;
    let colors: [fn(u32) -> u32; 4] = [|_| 0, |pe| pe, |pe| pe % 2, |_| 0];
    for color in colors {
        let team = gpu
            .split(Some(u64::from(color(me))), -i64::from(me))?
            .ok_or("split with a color returned no team, expected a team")?;
        let sum: u32 = (0..n).filter(|pe| color(*pe) == color(me)).map(|pe| pe + 1).sum();
        stream.launch(&meet_in_team::KERNEL, 1, 64, (team.kernel_team(), word.slice(), 100))?;
        stream.launch(&sum_in_team::KERNEL, 1, 256, (team.kernel_team(), to.slice(), from.slice()))?;
        total += 100 * u64::from(sum);
        same("the counter to which all members of the team add", word.read(&stream)?, vec![total])?;
        same("the sum over all members of the team", to.read(&stream)?, vec![sum; 1000])?;
        gpu.barrier("teams")?;
        team.destroy()?;
    }
    gpu.free(to)?;
    gpu.free(from)?;
    Ok(gpu.free(word)?)
}

fn launch_error(error: &Option<CudaError>) -> Option<&LaunchError> {
    match error {
        Some(CudaError::Driver(DriverError::Launch(error))) => Some(error),
        _ => None,
    }
}

fn refused(gpu: &Gpu) -> Outcome {
    let (memory, stream) = (gpu.alloc::<u64>(16)?, gpu.stream()?);
    let slice = memory.slice();
    let large = LaunchConfig::new(1, 1).shared_bytes(1 << 20);
    let error = stream.launch_with(&count_up::KERNEL, large, (slice, 0)).err();
    same(
        "a launch with too much shared memory is refused",
        matches!(launch_error(&error), Some(LaunchError::Shape { .. })),
        true,
    )?;
    let crowd = LaunchConfig::new(1 << 20, 1024).cooperative();
    let error = stream.launch_with(&count_up::KERNEL, crowd, (slice, 0)).err();
    same(
        "a grid that cannot be resident is refused",
        matches!(launch_error(&error), Some(LaunchError::NotResident { .. })),
        true,
    )?;
    gpu.free(memory)?;
    let error = stream.launch(&count_up::KERNEL, 1, 1, (slice, 0)).err();
    same("a launch with freed memory is refused", matches!(error, Some(CudaError::Misuse { .. })), true)
}

fn replayed(gpu: &Gpu) -> Outcome {
    use peerweave_driver::cudarc::driver::sys::{CUgraphInstantiate_flags as Flags, CUstreamCaptureMode as Mode};
    let (memory, stream) = (gpu.alloc::<u64>(64)?, gpu.stream()?);
    // Loads the kernels before the capture, because loading cannot be captured into a graph.
    stream.launch(&barriers::KERNEL, 1, 32, (1,))?;
    stream.launch(&count_up::KERNEL, 1, 64, (memory.slice(), 0))?;
    stream.wait()?;
    stream.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    let captured =
        stream.launch(&barriers::KERNEL, 1, 32, (3,)).and_then(|()| stream.launch(&count_up::KERNEL, 1, 64, (memory.slice(), 9)));
    let graph = stream.end_capture(Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)?;
    captured?;
    let graph = graph.ok_or("the capture returned no graph")?;
    for _ in 0..10 {
        graph.launch()?;
    }
    same("elements", memory.read(&stream)?, (9..73).collect())?;
    // Barriers must also work after the replays, which have advanced the epochs of the barriers.
    meet(gpu, 3)
}
