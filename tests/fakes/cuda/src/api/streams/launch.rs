//! Launches of kernels, and the number of blocks that run at the same time.

use core::ffi::{c_int, c_uint};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::module::function;
use crate::abi::{Code, CuStream, In, LaunchConfig, Out, Result};
use crate::calls::exports;
use crate::streams::stream::resolve;
use crate::streams::submit::submit;
use crate::work::kernel::{Launched, THREADS_PER_BLOCK};
use crate::work::piece::Work;

const THREADS_PER_MULTIPROCESSOR: u32 = 2048;
const BLOCKS_PER_MULTIPROCESSOR: u32 = 32;
const SHARED_BYTES_PER_MULTIPROCESSOR: u32 = 233_472;
const MULTIPROCESSORS: u64 = 132;

const COOPERATIVE: c_uint = 2;
const PROGRAMMATIC_STREAM_SERIALIZATION: c_uint = 6;

/// Returns the number of blocks that run on a multiprocessor at the same time.
fn resident(threads: u32, shared_bytes: u32) -> u32 {
    if threads == 0 || threads > THREADS_PER_BLOCK {
        return 0;
    }
    let by_shared = SHARED_BYTES_PER_MULTIPROCESSOR / (shared_bytes + 1024);
    (THREADS_PER_MULTIPROCESSOR / threads.next_multiple_of(32)).min(BLOCKS_PER_MULTIPROCESSOR).min(by_shared)
}

fn launch(config: LaunchConfig, handle: usize, parameters: &In<usize>) -> Result {
    let function = function(handle)?;
    let stream = resolve(config.stream)?;
    if !Arc::ptr_eq(&stream.context, &function.context) {
        return Err(Code::INVALID_HANDLE);
    }
    if function.unloaded.load(Ordering::Acquire) {
        return Err(Code::INVALID_HANDLE);
    }
    let count = |dimensions: [c_uint; 3]| dimensions.iter().map(|dimension| u64::from(*dimension)).product::<u64>();
    let threads = count(config.block);
    let within = |dimensions: [c_uint; 3], limits: [c_uint; 3]| {
        dimensions.iter().zip(limits).all(|(dimension, limit)| (1..=limit).contains(dimension))
    };
    let is_shape = within(config.grid, [i32::MAX as u32, 65535, 65535]) && within(config.block, [1024, 1024, 64]);
    if !is_shape || threads > u64::from(THREADS_PER_BLOCK) {
        return Err(Code::INVALID_VALUE);
    }
    if config.shared_bytes > function.dynamic_shared_bytes.load(Ordering::Relaxed) {
        return Err(Code::INVALID_VALUE);
    }
    for attribute in In::from_address(config.attributes).array(config.n_attributes as usize)? {
        match attribute.id {
            COOPERATIVE if attribute.value[0] as u32 != 0 => {
                if count(config.grid) > u64::from(resident(threads as u32, config.shared_bytes)) * MULTIPROCESSORS {
                    return Err(Code::COOPERATIVE_LAUNCH_TOO_LARGE);
                }
            }
            COOPERATIVE | PROGRAMMATIC_STREAM_SERIALIZATION => {}
            _ => return Err(Code::NOT_SUPPORTED),
        }
    }
    let places = parameters.array(function.parameters.len())?;
    let arguments = places
        .iter()
        .zip(&function.parameters)
        .map(|(place, parameter)| In::<u8>::from_address(*place as *const u8).array(parameter.bytes));
    let arguments = arguments.collect::<Result<Vec<_>>>()?;
    submit(
        &stream,
        Work::Kernel(Arc::new(Launched {
            function,
            grid: config.grid,
            block: config.block,
            shared_bytes: config.shared_bytes,
            arguments,
        })),
    )
}

exports! {
    11060 fn cuLaunchKernelEx(config: In<LaunchConfig>, handle: usize, parameters: In<usize>, extra: usize) {
        if extra != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        launch(config.get()?, handle, &parameters)
    }

    4000 fn cuLaunchKernel(
        handle: usize, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared_bytes: u32,
        stream: CuStream, parameters: In<usize>, extra: usize
    ) {
        if extra != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let config = LaunchConfig { grid, block, shared_bytes, stream, attributes: core::ptr::null(), n_attributes: 0 };
        launch(config, handle, &parameters)
    }

    6050 fn cuOccupancyMaxActiveBlocksPerMultiprocessor(count: Out<c_int>, handle: usize, threads: c_int, shared_bytes: usize) {
        function(handle)?;
        count.set(resident(threads.unsigned_abs(), shared_bytes as u32) as c_int)
    }
}
