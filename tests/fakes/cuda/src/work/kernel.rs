//! Kernels, and the modules that contain them. There is no compiler: a kernel is a host function
//! that the program has registered under the kernel's name. Invariant: an image is loaded only if
//! every kernel in it is registered, so that no kernel is silently skipped.

use core::ffi::{c_int, c_uint, c_void};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use super::ptx::{self, Parameter};
use crate::abi::{Code, Result};
use crate::calls::as_host_function;
use crate::machine::context::Context;
use crate::sync::lock;
use crate::table::Table;

/// All kernels of loaded modules.
pub(crate) static FUNCTIONS: Table<Function> = Table::new(0x59, Code::INVALID_HANDLE);
/// All loaded modules.
pub(crate) static MODULES: Table<Module> = Table::new(0x5a, Code::INVALID_HANDLE);

/// The greatest number of threads of a block.
pub(crate) const THREADS_PER_BLOCK: u32 = 1024;
/// Shared memory that a block may use without an attribute.
const SHARED_BYTES: u32 = 49152;

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

/// A host function that stands in for a kernel.
pub(crate) type HostKernel = unsafe extern "C" fn(*const FakeLaunch);

/// The registered functions, by the names of kernels.
static REGISTERED: Mutex<BTreeMap<String, HostKernel>> = Mutex::new(BTreeMap::new());

/// A loaded image.
pub(crate) struct Module {
    pub(crate) context: Arc<Context>,
    pub(crate) functions: Vec<(String, usize)>,
    pub(crate) unloaded: Arc<AtomicBool>,
}

/// One kernel of a module.
pub(crate) struct Function {
    pub(crate) context: Arc<Context>,
    pub(crate) kernel: HostKernel,
    pub(crate) parameters: Vec<Parameter>,
    /// The limit that `cuFuncSetAttribute` has set.
    pub(crate) dynamic_shared_bytes: AtomicU32,
    pub(crate) unloaded: Arc<AtomicBool>,
}

/// A kernel with its arguments, which can run any number of times.
pub(crate) struct Launched {
    pub(crate) function: Arc<Function>,
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) shared_bytes: c_uint,
    pub(crate) arguments: Vec<Vec<u8>>,
}

/// Registers a function for kernels of this name in images that are loaded later.
pub(crate) fn register(name: String, function: HostKernel) {
    lock(&REGISTERED).insert(name, function);
}

/// Loads an image with the kernels of a PTX text, and returns its handle.
pub(crate) fn load(context: &Arc<Context>, text: &str) -> Result<usize> {
    let entries = ptx::entries(text).ok_or(Code::INVALID_PTX)?;
    let registered = lock(&REGISTERED).clone();
    if entries.is_empty() || entries.iter().any(|entry| !registered.contains_key(&entry.name)) {
        return Err(Code::NO_BINARY_FOR_GPU);
    }
    let unloaded = Arc::new(AtomicBool::new(false));
    let functions = entries.into_iter().map(|entry| {
        let function = Function {
            context: Arc::clone(context),
            kernel: registered[&entry.name],
            parameters: entry.parameters,
            dynamic_shared_bytes: AtomicU32::new(SHARED_BYTES),
            unloaded: Arc::clone(&unloaded),
        };
        (entry.name, FUNCTIONS.add(function))
    });
    let functions = functions.collect();
    Ok(MODULES.add(Module { context: Arc::clone(context), functions, unloaded }))
}

impl Module {
    /// Removes the module and its functions. Queued launches of these functions fail.
    pub(crate) fn unload(&self, handle: usize) {
        MODULES.remove(handle);
        self.unloaded.store(true, Ordering::Release);
        for (_, function) in &self.functions {
            FUNCTIONS.remove(*function);
        }
    }
}

impl Launched {
    pub(crate) fn run(&self, device: usize) -> Result {
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
            device: device as c_int,
        };
        let kernel = self.function.kernel;
        // SAFETY: the caller that registered the function promised that it may be called with the
        // arguments of this kernel's launches.
        as_host_function(|| unsafe { kernel(&raw const launch) });
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
