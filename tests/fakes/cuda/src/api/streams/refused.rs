//! Functions that exist, but always fail, because no test needs their effects.

use crate::abi::Code;
use crate::calls::exports;
use crate::machine::driver::driver;

macro_rules! refused {
    ($($since:literal $name:ident($($arg:ident: $type:ty),*);)*) => {
        exports! { $($since fn $name($($arg: $type),*) {
            driver()?;
            let _ = ($($arg,)*);
            Err(Code::NO_BINARY_FOR_GPU)
        })* }
    };
}

refused! {
    2000 cuModuleLoad(module: usize, path: usize);
    2000 cuModuleLoadFatBinary(module: usize, image: usize);
    12000 cuLibraryLoadData(library: usize, image: usize, options: usize, values: usize, count: u32, more: usize, data: usize, last: u32);
    9000 cuLaunchCooperativeKernel(
        function: usize, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32,
        stream: usize, params: usize
    );
    2020 cuFuncSetCacheConfig(function: usize, config: i32);
    7000 cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(count: usize, function: usize, threads: i32, shared: usize, flags: u32);
    6050 cuOccupancyMaxPotentialBlockSize(grid: usize, block: usize, function: usize, size: usize, shared: usize, limit: i32);
    7000 cuOccupancyMaxPotentialBlockSizeWithFlags(
        grid: usize, block: usize, function: usize, size: usize, shared: usize, limit: i32, flags: u32
    );
    10020 cuOccupancyAvailableDynamicSMemPerBlock(bytes: usize, function: usize, blocks: i32, threads: i32);
    11070 cuOccupancyMaxPotentialClusterSize(size: usize, function: usize, config: usize);
    11070 cuOccupancyMaxActiveClusters(count: usize, function: usize, config: usize);
}
