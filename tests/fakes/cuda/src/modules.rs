//! What needs a compiler and a GPU: modules, kernels, their occupancy. All of it is refused, by the code that says why.
//! Work that needs no kernel is in [`crate::work`].
//! Invariant: no function here says success, so that no program believes that a kernel ran.

use crate::abi::Code;
use crate::driver::driver;

/// Functions that take an image: there is none that this device can run.
macro_rules! no_image {
    ($($since:literal $name:ident($($arg:ident: $type:ty),*);)*) => {
        exports! { $($since fn $name($($arg: $type),*) {
            driver()?;
            let _ = ($($arg,)*);
            Err(Code::NO_BINARY_FOR_GPU)
        })* }
    };
}

no_image! {
    2000 cuModuleLoad(module: usize, path: usize);
    2000 cuModuleLoadData(module: usize, image: usize);
    2010 cuModuleLoadDataEx(module: usize, image: usize, count: u32, options: usize, values: usize);
    2000 cuModuleLoadFatBinary(module: usize, image: usize);
    12000 cuLibraryLoadData(library: usize, image: usize, options: usize, values: usize, count: u32, more: usize, data: usize, last: u32);
    2000 cuModuleUnload(module: usize);
    2000 cuModuleGetFunction(function: usize, module: usize, name: usize);
    3020 cuModuleGetGlobal_v2(pointer: usize, bytes: usize, module: usize, name: usize);
    4000 cuLaunchKernel(
        function: usize, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32,
        stream: usize, params: usize, extra: usize
    );
    11060 cuLaunchKernelEx(config: usize, function: usize, params: usize, extra: usize);
    9000 cuLaunchCooperativeKernel(
        function: usize, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32,
        stream: usize, params: usize
    );
    2020 cuFuncGetAttribute(value: usize, attribute: i32, function: usize);
    9000 cuFuncSetAttribute(function: usize, attribute: i32, value: i32);
    2020 cuFuncSetCacheConfig(function: usize, config: i32);
    6050 cuOccupancyMaxActiveBlocksPerMultiprocessor(count: usize, function: usize, threads: i32, shared: usize);
    7000 cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(count: usize, function: usize, threads: i32, shared: usize, flags: u32);
    6050 cuOccupancyMaxPotentialBlockSize(grid: usize, block: usize, function: usize, size: usize, shared: usize, limit: i32);
    7000 cuOccupancyMaxPotentialBlockSizeWithFlags(
        grid: usize, block: usize, function: usize, size: usize, shared: usize, limit: i32, flags: u32
    );
    10020 cuOccupancyAvailableDynamicSMemPerBlock(bytes: usize, function: usize, blocks: i32, threads: i32);
    11070 cuOccupancyMaxPotentialClusterSize(size: usize, function: usize, config: usize);
    11070 cuOccupancyMaxActiveClusters(count: usize, function: usize, config: usize);
}
