//! Checks the death of a PE: a PE kills itself while kernels of the other PEs wait for this PE.
//! Each other PE must get an error that names the dead PE, and the GPUs of the other PEs must stay
//! usable.

use std::time::{Duration, Instant};

use peerweave_cuda::{CudaError, Gpu};
use peerweave_test_kernels::{count_up, wait_for_ever, wait_for_ever_block};

use super::basics::same;
use super::rows::Rows;

pub(crate) fn run(gpu: &Gpu, table: &mut Rows, victim: u32) {
    table.check("a PE dies while kernels of other PEs wait for this PE", || {
        let (signal, own, stream) = (gpu.alloc::<u64>(1)?, gpu.alloc::<u64>(64)?, gpu.stream()?);
        // Loads all kernels before a kernel waits.
        gpu.load(&wait_for_ever::KERNEL)?;
        gpu.load(&wait_for_ever_block::KERNEL)?;
        stream.launch(&count_up::KERNEL, 1, 64, (own.slice(), 0))?;
        stream.wait()?;
        gpu.barrier("kill")?;
        if gpu.pe().get() == victim {
            std::thread::sleep(Duration::from_millis(300));
            std::process::abort();
        }
        let start = Instant::now();
        // In the first kernel, one thread of each block waits for the victim. In the second kernel,
        // every thread waits for the victim.
        stream.launch(&wait_for_ever_block::KERNEL, 2, 72, (signal.slice(), victim))?;
        stream.launch(&wait_for_ever::KERNEL, 1, 32, (signal.slice(), victim))?;
        let error = stream.wait().err().ok_or("the wait succeeded, expected an error because the PE is dead")?;
        println!("{}: the wait failed after {:.0} ms: {error}", gpu.pe(), start.elapsed().as_secs_f64() * 1e3);
        same("the PE that the error names", error.pe().map(|pe| pe.get()), Some(victim))?;
        same("the wait ended within twice the deadline", start.elapsed() <= 2 * gpu.deadline(), true)?;
        same("the error says that a PE is lost", matches!(error, CudaError::PeLost { .. }), true)?;
        let again = stream.launch(&wait_for_ever::KERNEL, 1, 32, (signal.slice(), victim)).err();
        same("a launch after the failed wait is refused", matches!(again, Some(CudaError::Failed { .. })), true)
    });
    table.check("the GPU is usable after the failed wait", || {
        let context = gpu.context();
        let stream = peerweave_driver::PrivateStream::new(context)?;
        let mut memory = peerweave_driver::DeviceMemory::<u32>::zeroed(&stream, 1024)?;
        memory.copy_from(&stream, &[7; 1024])?;
        same("elements", memory.to_vec(&stream)?, vec![7; 1024])
    });
}
