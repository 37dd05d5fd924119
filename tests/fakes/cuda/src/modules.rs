//! Modules and kernels. There is no compiler: a kernel is a host function that the program has
//! registered under the kernel's name. Parameter lists are in [`crate::entries`], work without
//! kernels in [`crate::work`]. Invariant: an image is loaded only if every kernel in it is
//! registered, so that no kernel is silently skipped.

use core::ffi::{c_char, c_int, c_uint, c_void};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use crate::abi::{Code, CuStream, In, LaunchConfig, Out, Result};
use crate::calls;
use crate::calls::{exports, functions};
use crate::context::{Context, current};
use crate::driver::driver;
use crate::entries::{self, Parameter};
use crate::stream;
use crate::sync::lock;
use crate::work::Work;

/// The arguments of a registered function: the shape of the grid, and the addresses of the
/// parameters.
#[repr(C)]
pub(crate) struct FakeLaunch {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    n_parameters: c_uint,
    parameters: *const *const c_void,
    device: c_int,
}

type HostKernel = unsafe extern "C" fn(*const FakeLaunch);

static REGISTERED: Mutex<BTreeMap<String, HostKernel>> = Mutex::new(BTreeMap::new());

functions! {
    /// Fake only: registers a function for kernels of this name in images that are loaded later; it
    /// runs once for each launch, on the stream's thread.
    fn peerweave_fake_kernel(name: In<c_char>, function: Option<HostKernel>) {
        lock(&REGISTERED).insert(name.text()?, function.ok_or(Code::INVALID_VALUE)?);
        Ok(())
    }
}

/// A loaded image.
pub(crate) struct Module {
    context: Arc<Context>,
    functions: Vec<(String, usize)>,
    unloaded: Arc<AtomicBool>,
}

/// One kernel of a module.
pub(crate) struct Function {
    context: Arc<Context>,
    kernel: HostKernel,
    parameters: Vec<Parameter>,
    /// The limit that `cuFuncSetAttribute` has set.
    dynamic_shared_bytes: AtomicU32,
    unloaded: Arc<AtomicBool>,
}

/// A kernel with its arguments, which can run any number of times.
pub(crate) struct Launched {
    function: Arc<Function>,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    arguments: Vec<Vec<u8>>,
}

/// Shared memory that a block may use without an attribute.
const SHARED_BYTES: u32 = 49152;
const SHARED_BYTES_OPT_IN: u32 = 232_448;
const THREADS_PER_BLOCK: u32 = 1024;
const THREADS_PER_MULTIPROCESSOR: u32 = 2048;
const BLOCKS_PER_MULTIPROCESSOR: u32 = 32;
const SHARED_BYTES_PER_MULTIPROCESSOR: u32 = 233_472;
const MULTIPROCESSORS: u64 = 132;

const COOPERATIVE: c_uint = 2;
const PROGRAMMATIC_STREAM_SERIALIZATION: c_uint = 6;

fn load(out: &Out<usize>, image: &In<c_char>) -> Result {
    out.required()?;
    let context = current()?;
    if image.address() == 0 {
        return Err(Code::INVALID_VALUE);
    }
    // No machine code can run on the simulated device.
    if !matches!(image.get()?.cast_unsigned(), b'\t' | b'\n' | b'\r' | b' '..=b'~') {
        return Err(Code::NO_BINARY_FOR_GPU);
    }
    let entries = entries::of(&image.text()?).ok_or(Code::INVALID_PTX)?;
    let registered = lock(&REGISTERED).clone();
    if entries.is_empty() || entries.iter().any(|entry| !registered.contains_key(&entry.name)) {
        return Err(Code::NO_BINARY_FOR_GPU);
    }
    let unloaded = Arc::new(AtomicBool::new(false));
    let functions = entries.into_iter().map(|entry| {
        let function = Function {
            context: Arc::clone(&context),
            kernel: registered[&entry.name],
            parameters: entry.parameters,
            dynamic_shared_bytes: AtomicU32::new(SHARED_BYTES),
            unloaded: Arc::clone(&unloaded),
        };
        Ok((entry.name, driver()?.functions.add(function)))
    });
    let functions = functions.collect::<Result<Vec<_>>>()?;
    out.set(driver()?.modules.add(Module { context, functions, unloaded }))
}

fn function(handle: usize) -> Result<Arc<Function>> {
    driver()?.functions.get(handle).ok_or(Code::INVALID_HANDLE)
}

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
    let stream = stream::resolve(config.stream)?;
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
    stream.submit(Work::Kernel(Arc::new(Launched {
        function,
        grid: config.grid,
        block: config.block,
        shared_bytes: config.shared_bytes,
        arguments,
    })))
}

impl Launched {
    pub(crate) fn run(&self, context: &Context) -> Result {
        if self.function.unloaded.load(Ordering::Acquire) {
            return Err(Code::ILLEGAL_ADDRESS);
        }
        // Parameters begin at multiples of 16 bytes, as in the constant bank.
        let aligned: Vec<Vec<u128>> = self.arguments.iter().map(|bytes| aligned(bytes)).collect();
        let places: Vec<*const c_void> = aligned.iter().map(|argument| argument.as_ptr().cast()).collect();
        let launch = FakeLaunch {
            grid: self.grid,
            block: self.block,
            shared_bytes: self.shared_bytes,
            n_parameters: places.len() as c_uint,
            parameters: places.as_ptr(),
            device: context.device as c_int,
        };
        let kernel = self.function.kernel;
        // SAFETY: who registered the function promised that it may be called with what this
        // kernel's launches have.
        calls::as_host_function(|| unsafe { kernel(&raw const launch) });
        Ok(())
    }
}

fn aligned(bytes: &[u8]) -> Vec<u128> {
    let word = |chunk: &[u8]| {
        let mut word = [0; 16];
        word[..chunk.len()].copy_from_slice(chunk);
        u128::from_ne_bytes(word)
    };
    bytes.chunks(16).map(word).collect()
}

exports! {
    2000 fn cuModuleLoadData(module: Out<usize>, image: In<c_char>) {
        load(&module, &image)
    }

    2010 fn cuModuleLoadDataEx(module: Out<usize>, image: In<c_char>, count: u32, options: usize, values: usize) {
        let _ = (count, options, values);
        load(&module, &image)
    }

    2000 fn cuModuleUnload(module: usize) {
        let driver = driver()?;
        let found = driver.modules.get(module).ok_or(Code::INVALID_HANDLE)?;
        if !Arc::ptr_eq(&current()?, &found.context) {
            return Err(Code::INVALID_CONTEXT);
        }
        driver.modules.remove(module);
        found.unloaded.store(true, Ordering::Release);
        found.functions.iter().for_each(|(_, function)| drop(driver.functions.remove(*function)));
        Ok(())
    }

    2000 fn cuModuleGetFunction(out: Out<usize>, module: usize, name: In<c_char>) {
        let module = driver()?.modules.get(module).ok_or(Code::INVALID_HANDLE)?;
        let name = name.text()?;
        out.set(module.functions.iter().find(|function| function.0 == name).ok_or(Code::NOT_FOUND)?.1)
    }

    3020 fn cuModuleGetGlobal_v2(pointer: Out<u64>, bytes: Out<usize>, module: usize, name: In<c_char>) {
        let _ = (pointer, bytes, name.text()?);
        driver()?.modules.get(module).ok_or(Code::INVALID_HANDLE)?;
        Err(Code::NOT_FOUND)
    }

    12040 fn cuFuncLoad(handle: usize) {
        function(handle).map(drop)
    }

    12040 fn cuFuncGetParamInfo(handle: usize, index: usize, offset: Out<usize>, bytes: Out<usize>) {
        let function = function(handle)?;
        let parameter = function.parameters.get(index).ok_or(Code::INVALID_VALUE)?;
        bytes.set_if_wanted(parameter.bytes);
        offset.set(parameter.offset)
    }

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

    2020 fn cuFuncGetAttribute(value: Out<c_int>, attribute: c_int, handle: usize) {
        let function = function(handle)?;
        value.set(match attribute {
            0 => THREADS_PER_BLOCK as c_int,
            1..=3 => 0,
            4 => 32,
            8 => function.dynamic_shared_bytes.load(Ordering::Relaxed) as c_int,
            _ => return Err(Code::INVALID_VALUE),
        })
    }

    9000 fn cuFuncSetAttribute(handle: usize, attribute: c_int, value: c_int) {
        let function = function(handle)?;
        let value = u32::try_from(value).map_err(|_| Code::INVALID_VALUE)?;
        if attribute != 8 || value > SHARED_BYTES_OPT_IN {
            return Err(Code::INVALID_VALUE);
        }
        function.dynamic_shared_bytes.store(value, Ordering::Relaxed);
        Ok(())
    }

    6050 fn cuOccupancyMaxActiveBlocksPerMultiprocessor(count: Out<c_int>, handle: usize, threads: c_int, shared_bytes: usize) {
        function(handle)?;
        count.set(resident(threads.unsigned_abs(), shared_bytes as u32) as c_int)
    }
}

/// Functions that no test calls.
mod refused {
    use crate::abi::Code;
    use crate::calls::exports;
    use crate::driver::driver;

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
}

/// The exports of the inner module.
pub(crate) const REFUSED: &[crate::calls::Symbol] = refused::SYMBOLS;
