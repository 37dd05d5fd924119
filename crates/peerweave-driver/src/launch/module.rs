//! Loading and unloading modules.
//!
//! Invariant: a module is unloaded once, in its context. Before that, all handles and graphs have
//! released the module, and the streams that ran its kernels have completed.

use std::ffi::{CString, c_int, c_void};
use std::fmt;
use std::sync::Arc;

use super::api::{api, done};
use super::kernel::LoadedKernel;
use crate::cudarc::driver::CudaContext;
use crate::cudarc::driver::sys::{CUdeviceptr, CUfunction, CUmodule};
use crate::library::bind;
use crate::library::launch_error::LaunchError;
use crate::streams::reaper;
use crate::{CudaCode, CudaError, DriverError, Keep, Streams, relaxed};

/// The code from which [`Module::load`] loads a module.
#[derive(Clone, Copy)]
pub enum Image<'a> {
    /// PTX text, which the driver compiles. The PTX version must not be newer than the newest
    /// version that the driver supports.
    Ptx(&'a str),
    /// Machine code: a cubin or a fatbin.
    Binary(&'a [u8]),
}

/// A CUDA module that is loaded in one context. Clones are handles to the same module.
#[derive(Clone)]
pub struct Module(pub(super) Arc<Loaded>);

pub(super) struct Loaded {
    module: RawModule,
    pub(super) context: Arc<CudaContext>,
    /// Streams on which kernels of the module were launched.
    pub(super) streams: Streams,
}

#[derive(Clone, Copy)]
struct RawModule(CUmodule);

// SAFETY: the shared value is a handle of the driver, which synchronises calls with it from any
// thread. In the test `module_is_unloaded_only_after_the_kernels_have_run` another thread
// unloads the module, so the test would catch a violation.
unsafe impl Send for RawModule {}
// SAFETY: the shared value is the same handle, and the driver synchronises calls with it. The test
// `module_is_unloaded_only_after_the_kernels_have_run` would catch a violation.
unsafe impl Sync for RawModule {}

impl Module {
    /// Loads an image in a context. If the image is PTX, the driver compiles the image during this
    /// call.
    ///
    /// [`kernel`](Self::kernel) loads a kernel before the first launch of that kernel. If the first
    /// launch had to load the kernel, the launch could wait for kernels that are running. A running
    /// kernel may in turn wait for this PE, which would be a deadlock.
    ///
    /// # Errors
    /// [`LaunchError::Image`] with the driver's log if the driver refuses the image, or another
    /// error of the driver.
    pub fn load(context: &Arc<CudaContext>, image: Image<'_>) -> Result<Self, DriverError> {
        /// The options `CU_JIT_ERROR_LOG_BUFFER` and `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`.
        const OPTIONS: [c_int; 2] = [5, 6];
        const LOG_BYTES: usize = 16 << 10;
        let api = api()?;
        bind(context)?;
        let text;
        let bytes = match image {
            Image::Ptx(ptx) => {
                text = zero_ended("Module::load", ptx)?;
                text.as_bytes_with_nul()
            }
            Image::Binary(bytes) => bytes,
        };
        if bytes.len() < 2 {
            let error = CudaError::new("Module::load", CudaCode::INVALID_VALUE);
            return Err(LaunchError::Image { error, log: "the image is empty".into() }.into());
        }
        let mut log = vec![0_u8; LOG_BYTES];
        let mut options = OPTIONS;
        // The second value is the length of the log, passed as a number in place of a pointer.
        let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), std::ptr::without_provenance_mut(LOG_BYTES)];
        let (options, values) = (options.as_mut_ptr(), values.as_mut_ptr());
        let mut module: CUmodule = std::ptr::null_mut();
        // SAFETY: the pointer is to a live handle. PTX ends in a zero byte, and a binary image has
        // its length in its header. There are two options, and the log has as many bytes as the
        // second option says.
        let code = relaxed(|| unsafe { api.cuModuleLoadDataEx(&raw mut module, bytes.as_ptr().cast(), 2, options, values) })?;
        if code != CudaCode::SUCCESS {
            let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
            let log = String::from_utf8_lossy(&log[..end]).trim_end().to_owned();
            return Err(LaunchError::Image { error: CudaError::new("cuModuleLoadDataEx", code), log }.into());
        }
        let context = Arc::clone(context);
        Ok(Self(Arc::new(Loaded { module: RawModule(module), context, streams: Streams::new() })))
    }

    /// Loads the kernel `name` of the module, and returns a handle for launching the kernel.
    ///
    /// # Errors
    /// [`LaunchError::NoKernel`] if the module has no kernel of this name, or another error of the
    /// driver.
    pub fn kernel(&self, name: &str) -> Result<LoadedKernel, DriverError> {
        let text = zero_ended("Module::kernel", name)?;
        bind(&self.0.context)?;
        let mut function: CUfunction = std::ptr::null_mut();
        let api = api()?;
        // SAFETY: the pointer is to a live handle, the module is loaded, and the name ends in a
        // zero byte.
        let code = relaxed(|| unsafe { api.cuModuleGetFunction(&raw mut function, self.0.module.0, text.as_ptr()) })?;
        if code == CudaCode::NOT_FOUND {
            return Err(LaunchError::NoKernel { kernel: name.to_owned() }.into());
        }
        CudaError::check("cuModuleGetFunction", code)?;
        // SAFETY: the kernel is of a loaded module of this context, and the handle keeps the module
        // loaded.
        unsafe { LoadedKernel::new(Arc::clone(&self.0), function, name) }
    }

    /// Returns the address of the variable `name` in the module, and its length in bytes. Returns
    /// `None` if the module has no variable of this name. The address is valid while the module is
    /// loaded.
    ///
    /// # Errors
    /// An error of the driver.
    pub fn global(&self, name: &str) -> Result<Option<(CUdeviceptr, usize)>, DriverError> {
        let text = zero_ended("Module::global", name)?;
        bind(&self.0.context)?;
        let (mut address, mut bytes) = (0, 0);
        // SAFETY: the pointers are to live integers, the module is loaded, and the name ends in a
        // zero byte.
        match unsafe { api()?.cuModuleGetGlobal_v2(&raw mut address, &raw mut bytes, self.0.module.0, text.as_ptr()) }? {
            CudaCode::NOT_FOUND => Ok(None),
            code => done("cuModuleGetGlobal_v2", Ok(code)).map(|()| Some((address, bytes))),
        }
    }

    /// Returns the driver's handle of the module. The handle is valid as long as a clone of this
    /// [`Module`] or an owner from [`keep`](Self::keep) lives.
    pub fn raw(&self) -> CUmodule {
        self.0.module.0
    }

    /// Returns a handle that keeps the module loaded, for example for a graph that contains
    /// launches.
    pub fn keep(&self) -> Keep {
        Arc::<Loaded>::clone(&self.0)
    }

    /// Returns the context in which the module is loaded.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.0.context
    }
}

fn zero_ended(call: &'static str, text: &str) -> Result<CString, DriverError> {
    CString::new(text.trim_end_matches('\0')).map_err(|_| CudaError::new(call, CudaCode::INVALID_VALUE).into())
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let module = self.module;
        let unload = move || {
            // Moves the whole `RawModule`, because the pointer in it is not `Send`.
            let whole: RawModule = module;
            // SAFETY: `Module::load` loaded the module, the last handle was dropped, and the
            // streams that ran its kernels have completed.
            let code = api().and_then(|api| done("cuModuleUnload", relaxed(|| unsafe { api.cuModuleUnload(whole.0) })));
            if let Err(error) = code {
                tracing::warn!(%error, "a module was not unloaded");
            }
        };
        reaper::retire(&self.context, self.streams.all(), Box::new(unload));
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Module({:p} on device {})", self.0.module.0, self.0.context.ordinal())
    }
}
