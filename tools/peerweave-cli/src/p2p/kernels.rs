//! The kernels of the probe in one context: loaded from PTX, launched with typed arguments.
//!
//! Invariant: the module stays loaded until the streams of its kernels have completed.

use std::ffi::{CStr, c_uint, c_void};
use std::sync::Arc;

use peerweave_driver::cudarc::driver::sys::{CUfunction, CUmodule};
use peerweave_driver::{CudaContext, CudaStream, Streams, retire};

use crate::error::VmmError;
use crate::raw;

/// The PTX, zero-terminated for the driver.
const TEXT: &str = concat!(include_str!("kernels.ptx"), "\0");

pub(super) struct Kernels {
    module: Module,
    copy: CUfunction,
    ping: CUfunction,
    context: Arc<CudaContext>,
    streams: Streams,
}

#[derive(Clone, Copy)]
struct Module(CUmodule);

// SAFETY: the shared value is a handle of the driver, whose functions may be called from any
// thread. Ownership synchronises: `Kernels` owns it and passes it once to the thread that unloads.
// The program tools/peerweave-check would catch a violation on GPUs in the test of the probe, which
// another thread unloads; the fake driver has no kernels.
unsafe impl Send for Module {}

impl Kernels {
    pub(super) fn load(context: &Arc<CudaContext>) -> Result<Self, VmmError> {
        raw::bind(context)?;
        let mut module: CUmodule = std::ptr::null_mut();
        // SAFETY: the pointer is to a live handle, and the text ends in a zero byte.
        let code = unsafe { raw::extra()?.cuModuleLoadData(&raw mut module, TEXT.as_ptr().cast()) };
        raw::done("cuModuleLoadData", code)?;
        let mut kernels = Self {
            module: Module(module),
            copy: std::ptr::null_mut(),
            ping: std::ptr::null_mut(),
            context: Arc::clone(context),
            streams: Streams::new(),
        };
        let function = |name: &CStr| {
            let mut function: CUfunction = std::ptr::null_mut();
            // SAFETY: the pointer is to a live handle, the module is loaded, and the name ends in a
            // zero byte.
            let code = unsafe { raw::extra()?.cuModuleGetFunction(&raw mut function, module, name.as_ptr()) };
            raw::done("cuModuleGetFunction", code).map(|()| function)
        };
        kernels.copy = function(c"peerweave_probe_copy")?;
        kernels.ping = function(c"peerweave_probe_ping")?;
        Ok(kernels)
    }

    /// Copies `pieces` of 16 bytes. The caller has recorded the stream, so both ranges stay mapped
    /// for this device until the kernel has completed.
    pub(super) fn copy(
        &self,
        stream: &Arc<CudaStream>,
        mut target: u64,
        mut source: u64,
        mut pieces: u64,
        shape: (u32, u32),
    ) -> Result<(), VmmError> {
        let arguments: [*mut c_void; 3] = [(&raw mut target).cast(), (&raw mut source).cast(), (&raw mut pieces).cast()];
        self.launch(self.copy, stream, shape, &arguments)
    }

    /// Launches one side of a ping-pong.
    #[allow(clippy::too_many_arguments, reason = "the arguments are the kernel's")]
    pub(super) fn ping(
        &self,
        stream: &Arc<CudaStream>,
        mut mine: u64,
        mut theirs: u64,
        first: bool,
        mut rounds: u32,
        mut limit: u32,
        mut failed: u64,
    ) -> Result<(), VmmError> {
        let mut first = u32::from(first);
        let arguments: [*mut c_void; 6] = [
            (&raw mut mine).cast(),
            (&raw mut theirs).cast(),
            (&raw mut first).cast(),
            (&raw mut rounds).cast(),
            (&raw mut limit).cast(),
            (&raw mut failed).cast(),
        ];
        self.launch(self.ping, stream, (1, 1), &arguments)
    }

    fn launch(
        &self,
        function: CUfunction,
        stream: &Arc<CudaStream>,
        (blocks, threads): (c_uint, c_uint),
        arguments: &[*mut c_void],
    ) -> Result<(), VmmError> {
        self.streams.note(stream);
        raw::bind(&self.context)?;
        let (one, none) = (1, std::ptr::null_mut());
        let arguments = arguments.as_ptr().cast_mut();
        // SAFETY: the function is of a loaded module of this context, the arguments are of the
        // kernel's types in its order and are read before the call returns.
        let code = unsafe {
            raw::extra()?.cuLaunchKernel(function, blocks, one, one, threads, one, one, 0, stream.cu_stream(), arguments, none)
        };
        raw::done("cuLaunchKernel", code)
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        let module = self.module;
        retire(
            &self.context,
            self.streams.all(),
            Box::new(move || {
                // Moves the whole value, not the pointer in it, which is not `Send`.
                let whole: Module = module;
                // SAFETY: this value loaded the module, and the streams of its kernels have
                // completed.
                let code = raw::extra().map(|extra| unsafe { extra.cuModuleUnload(whole.0) });
                if let Err(error) = code.and_then(|code| raw::done("cuModuleUnload", code)) {
                    tracing::warn!(%error, "the probe's kernels were not unloaded");
                }
            }),
        );
    }
}
