//! A kernel of a loaded module: its parameters, its resident blocks, and its launch.
//!
//! A launch first checks the shape and the arguments. For a cooperative grid, the launch also
//! checks that all blocks can be resident at once. If the stream is being captured, the launch
//! passes the owners of the memory to the graph, and the graph keeps them alive. Finally, the
//! launch enqueues the kernel.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use peerweave_types::Dim3;

use super::api::{LaunchApi, RawAttribute, RawConfig, api, done};
use super::arguments::{Arguments, FEW};
use super::config::LaunchConfig;
use super::module::{Loaded, Module};
use crate::cudarc::driver::CudaStream;
use crate::cudarc::driver::sys::CUdevice_attribute as Attribute;
use crate::cudarc::driver::sys::CUfunction;
use crate::library::bind;
use crate::library::launch_error::LaunchError;
use crate::{CudaCode, Driver, DriverError, Keep, is_capturing, keep_in_graph, refuse_capture_begun, refuse_per_thread};

/// Shared memory per block, in bytes, that the driver allows by default. For a kernel that needs
/// more, this crate raises the limit.
const SHARED_BYTES: u32 = 48 << 10;
/// Number of the attribute `CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK`. The next three constants are
/// the numbers of `..._SHARED_SIZE_BYTES`, `..._NUM_REGS` and `..._MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const MAX_THREADS: c_int = 0;
const STATIC_SHARED: c_int = 1;
const REGISTERS: c_int = 4;
const MAX_DYNAMIC_SHARED: c_int = 8;

/// Offset and length of a kernel's parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Parameter {
    /// Offset from the start of the parameters, in bytes.
    pub offset: usize,
    /// Length of the parameter in bytes.
    pub bytes: usize,
}

/// A kernel in a loaded module. The value keeps the module loaded. Clones are handles to the same
/// kernel.
#[derive(Clone)]
pub struct LoadedKernel {
    module: Arc<Loaded>,
    kernel: Arc<Kernel>,
}

struct Kernel {
    function: Function,
    name: String,
    /// The parameters; `None` if the driver does not report them.
    parameters: Option<Vec<Parameter>>,
    max_threads: u32,
    static_shared_bytes: u32,
    registers: u32,
    multiprocessors: u32,
    max_shared_bytes: u32,
    is_cooperative: bool,
    /// The limit of dynamic shared memory, in bytes, that this crate has set in the driver for this
    /// kernel. 0 before the first change.
    allowed_shared_bytes: AtomicU32,
}

struct Function(CUfunction);

// SAFETY: the shared value is a handle of the driver, which synchronises calls with it from any
// thread. The test `kernel_is_launched_from_several_threads` would catch a violation.
unsafe impl Send for Function {}
// SAFETY: the shared value is the same handle, and the driver synchronises calls with it. The test
// `kernel_is_launched_from_several_threads` would catch a violation.
unsafe impl Sync for Function {}

impl LoadedKernel {
    /// Creates a handle to the kernel `function` and reads the kernel's properties. Also makes the
    /// driver load the kernel now, if the driver supports this.
    ///
    /// # Safety
    /// `function` is a kernel of `module`.
    pub(super) unsafe fn new(module: Arc<Loaded>, function: CUfunction, name: &str) -> Result<Self, DriverError> {
        let api = api()?;
        // SAFETY: the caller promises that the function is of a loaded module. A driver without
        // `cuFuncLoad` either loads every kernel with its module or has no means to load a kernel
        // early.
        if let Ok(code) = unsafe { api.cuFuncLoad(function) } {
            done("cuFuncLoad", Ok(code))?;
        }
        let attribute = |attribute: c_int| {
            let mut value = 0;
            // SAFETY: the pointer is to a live integer, and the function is live.
            let code = unsafe { api.cuFuncGetAttribute(&raw mut value, attribute, function) };
            done("cuFuncGetAttribute", code).map(|()| value.unsigned_abs())
        };
        let of_device =
            |attribute| Ok::<_, DriverError>(Driver::get()?.attribute(module.context.ordinal(), attribute)?.unsigned_abs());
        let kernel = Kernel {
            name: name.to_owned(),
            parameters: parameters(api, function)?,
            max_threads: attribute(MAX_THREADS)?,
            static_shared_bytes: attribute(STATIC_SHARED)?,
            registers: attribute(REGISTERS)?,
            multiprocessors: of_device(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            max_shared_bytes: of_device(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            is_cooperative: of_device(Attribute::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH)? != 0,
            allowed_shared_bytes: AtomicU32::new(0),
            function: Function(function),
        };
        Ok(Self { module, kernel: Arc::new(kernel) })
    }

    /// Returns the kernel's name in the module.
    pub fn name(&self) -> &str {
        &self.kernel.name
    }

    /// Returns the kernel's module.
    pub fn module(&self) -> Module {
        Module(Arc::clone(&self.module))
    }

    /// Returns the kernel's parameters, in order. Returns `None` if the driver is older than CUDA
    /// 12.4, because such a driver does not report parameters. In this case, a launch does not
    /// compare the arguments with the parameters.
    pub fn parameters(&self) -> Option<&[Parameter]> {
        self.kernel.parameters.as_deref()
    }

    /// Returns the maximum number of threads per block. The maximum depends on the resources that
    /// the kernel uses, such as registers.
    pub fn max_threads(&self) -> u32 {
        self.kernel.max_threads
    }

    /// Returns the size of the kernel's static shared memory per block, in bytes.
    pub fn static_shared_bytes(&self) -> u32 {
        self.kernel.static_shared_bytes
    }

    /// Returns the number of registers that each thread of the kernel uses.
    pub fn registers(&self) -> u32 {
        self.kernel.registers
    }

    /// Returns the number of blocks that can be resident at once on an idle device. Each block has
    /// the shape `block` and uses `shared_bytes` bytes of dynamic shared memory.
    ///
    /// # Errors
    /// [`LaunchError::Shape`] for an invalid shape, or an error of the driver.
    pub fn resident_blocks(&self, block: impl Into<Dim3>, shared_bytes: u32) -> Result<u64, DriverError> {
        let config = LaunchConfig::new(1, block).shared_bytes(shared_bytes);
        self.check_shape(&config)?;
        bind(&self.module.context)?;
        self.allow_shared(&config)?;
        let mut blocks = 0;
        let threads = config.block.count() as c_int;
        // SAFETY: the pointer is to a live integer, and the function is live.
        let code = unsafe {
            let function = self.kernel.function.0;
            api()?.cuOccupancyMaxActiveBlocksPerMultiprocessor(&raw mut blocks, function, threads, shared_bytes as usize)
        };
        done("cuOccupancyMaxActiveBlocksPerMultiprocessor", code)?;
        Ok(u64::from(blocks.unsigned_abs()) * u64::from(self.kernel.multiprocessors))
    }

    /// Enqueues the kernel on a stream. On a stream that is being captured, the launch becomes a
    /// node of the graph, and the graph keeps the module and `keep` alive.
    ///
    /// `keep` lists the owners of the memory to which the arguments refer. This call uses `keep`
    /// only if the stream is being captured. If the stream is not being captured, record the stream
    /// at the owner of the memory, for example by [`Streams::note`](crate::Streams::note).
    ///
    /// # Errors
    /// These errors are returned before anything is enqueued: [`LaunchError::Count`],
    /// [`LaunchError::Argument`], [`LaunchError::Shape`], [`LaunchError::NotResident`],
    /// [`DriverError::WrongDevice`], [`DriverError::PerThreadStream`]. The driver can also return
    /// an error for the launch itself. [`DriverError::CaptureBegun`] if another thread began to
    /// capture the stream during the call.
    ///
    /// # Safety
    /// The kernel's accesses with these arguments are sound. The memory to which the arguments
    /// refer stays allocated until the kernel has ended. If the stream is being captured, the
    /// memory also stays allocated while `keep` lives. No other access to the memory races with the
    /// kernel.
    pub unsafe fn launch(
        &self,
        stream: &Arc<CudaStream>,
        config: &LaunchConfig,
        arguments: &Arguments<'_>,
        keep: Vec<Keep>,
    ) -> Result<(), DriverError> {
        let is_captured = is_capturing(stream)?;
        // SAFETY: guaranteed by the caller.
        unsafe { self.launch_into(stream, config, arguments, is_captured.then_some(keep)) }
    }

    /// Like [`launch`](Self::launch), but the caller already knows whether the stream is being
    /// captured. If the stream is being captured, the caller passes `Some` as `keep`, with the
    /// owners of the memory to which the arguments refer. The graph keeps these owners alive.
    /// Otherwise, the caller passes `None`.
    ///
    /// # Errors
    /// As for [`launch`](Self::launch).
    ///
    /// # Safety
    /// As for [`launch`](Self::launch).
    pub unsafe fn launch_into(
        &self,
        stream: &Arc<CudaStream>,
        config: &LaunchConfig,
        arguments: &Arguments<'_>,
        keep: Option<Vec<Keep>>,
    ) -> Result<(), DriverError> {
        let call = "launch";
        refuse_per_thread(call, stream)?;
        let (found, expected) = (stream.context().ordinal(), self.module.context.ordinal());
        if found != expected {
            return Err(DriverError::WrongDevice { call, found, expected });
        }
        self.check_shape(config)?;
        self.check_arguments(arguments)?;
        self.check_residency(config)?;
        self.module.streams.note(stream);
        let is_captured = keep.is_some();
        if let Some(mut keep) = keep {
            keep.push(Arc::<Loaded>::clone(&self.module));
            keep_in_graph(stream, keep)?;
        }
        bind(&self.module.context)?;
        self.allow_shared(config)?;
        let (mut attributes, mut n_attributes) = ([RawAttribute::on(0), RawAttribute::on(0)], 0);
        for (wanted, id) in [(config.cooperative, RawAttribute::COOPERATIVE), (config.programmatic, RawAttribute::PROGRAMMATIC)] {
            if wanted {
                attributes[n_attributes] = RawAttribute::on(id);
                n_attributes += 1;
            }
        }
        let raw = RawConfig {
            grid: [config.grid.x, config.grid.y, config.grid.z],
            block: [config.block.x, config.block.y, config.block.z],
            shared_bytes: config.shared_bytes,
            stream: stream.cu_stream(),
            attributes: attributes.as_ptr(),
            n_attributes: n_attributes as u32,
        };
        let mut few: [*mut c_void; FEW] = [std::ptr::null_mut(); FEW];
        let mut many: Vec<*mut c_void> = Vec::new();
        let addresses = arguments.places().iter().map(|place| place.address.cast_mut());
        let places = if arguments.len() <= FEW {
            few.iter_mut().zip(addresses).for_each(|(to, address)| *to = address);
            few.as_mut_ptr()
        } else {
            many.extend(addresses);
            many.as_mut_ptr()
        };
        // SAFETY: the function is of a loaded module of this context, and the configuration and its
        // attributes are live. If the driver reports the parameters, `check_arguments` has compared
        // the arguments with the parameters. The driver only reads the arguments. The caller
        // guarantees that the kernel's accesses are sound.
        let code = unsafe { api()?.cuLaunchKernelEx(&raw const raw, self.kernel.function.0, places, std::ptr::null_mut()) };
        done("cuLaunchKernelEx", code)?;
        // If a capture began during this call, the graph would keep neither the module nor the
        // memory.
        if is_captured { Ok(()) } else { refuse_capture_begun(call, stream) }
    }

    fn check_shape(&self, config: &LaunchConfig) -> Result<(), LaunchError> {
        let refused = |what, found: String, expected: String| {
            Err(LaunchError::Shape { kernel: self.kernel.name.clone(), what, found, expected })
        };
        let limits = [("the grid", config.grid, [i32::MAX as u32, 65535, 65535]), ("the block", config.block, [1024, 1024, 64])];
        for (what, shape, limit) in limits {
            let within = [shape.x, shape.y, shape.z].iter().zip(limit).all(|(size, limit)| (1..=limit).contains(size));
            if !within {
                let [x, y, z] = limit;
                let expected = format!("from 1 x 1 x 1 to {x} x {y} x {z}");
                return refused(what, format!("{} x {} x {}", shape.x, shape.y, shape.z), expected);
            }
        }
        if config.block.count() > u64::from(self.kernel.max_threads) {
            let Kernel { max_threads, registers, .. } = &*self.kernel;
            let expected = format!("at most {max_threads}, because each thread of the kernel uses {registers} registers");
            return refused("the number of threads of a block", config.block.count().to_string(), expected);
        }
        let room = self.kernel.max_shared_bytes.saturating_sub(self.kernel.static_shared_bytes);
        if config.shared_bytes > room {
            let used = self.kernel.static_shared_bytes;
            let expected = format!("at most {room} bytes, because the kernel uses {used} bytes of static shared memory");
            return refused("dynamic shared memory", format!("{} bytes", config.shared_bytes), expected);
        }
        Ok(())
    }

    fn check_arguments(&self, arguments: &Arguments<'_>) -> Result<(), LaunchError> {
        let Some(parameters) = &self.kernel.parameters else { return Ok(()) };
        let (kernel, found, expected) = (|| self.kernel.name.clone(), arguments.len(), parameters.len());
        if found != expected {
            return Err(LaunchError::Count { kernel: kernel(), found, expected });
        }
        let mut end: usize = 0;
        for (index, (place, parameter)) in arguments.places().iter().zip(parameters).enumerate() {
            let offset = end.next_multiple_of(place.alignment);
            if place.bytes != parameter.bytes || offset != parameter.offset {
                return Err(LaunchError::Argument {
                    kernel: kernel(),
                    index,
                    found_bytes: place.bytes,
                    found_offset: offset,
                    expected_bytes: parameter.bytes,
                    expected_offset: parameter.offset,
                });
            }
            end = offset + place.bytes;
        }
        Ok(())
    }

    fn check_residency(&self, config: &LaunchConfig) -> Result<(), DriverError> {
        if !config.cooperative {
            return Ok(());
        }
        let kernel = || self.kernel.name.clone();
        if !self.kernel.is_cooperative {
            let expected = "a device that supports cooperative launches".into();
            return Err(LaunchError::Shape {
                kernel: kernel(),
                what: "the device",
                found: "a device that does not support cooperative launches".into(),
                expected,
            }
            .into());
        }
        let (found, expected) = (config.grid.count(), self.resident_blocks(config.block, config.shared_bytes)?);
        if found > expected {
            return Err(LaunchError::NotResident { kernel: kernel(), found, expected }.into());
        }
        Ok(())
    }

    /// Raises the driver's limit of dynamic shared memory for this kernel, if a launch with
    /// `config` needs more. Never lowers the limit.
    fn allow_shared(&self, config: &LaunchConfig) -> Result<(), DriverError> {
        let allowed = &self.kernel.allowed_shared_bytes;
        let wanted = config.shared_bytes;
        if wanted + self.kernel.static_shared_bytes <= SHARED_BYTES || wanted <= allowed.load(Ordering::Acquire) {
            return Ok(());
        }
        // The limit is set to its maximum, so that two threads cannot lower each other's limit.
        let room = self.kernel.max_shared_bytes - self.kernel.static_shared_bytes;
        // SAFETY: the function is live, and the driver checks the value.
        let code = unsafe { api()?.cuFuncSetAttribute(self.kernel.function.0, MAX_DYNAMIC_SHARED, room as c_int) };
        done("cuFuncSetAttribute", code)?;
        allowed.store(room, Ordering::Release);
        Ok(())
    }
}

/// Returns the parameters of a kernel; `None` if the driver does not report them.
fn parameters(api: &LaunchApi, function: CUfunction) -> Result<Option<Vec<Parameter>>, DriverError> {
    /// Upper bound for the number of parameters of a kernel. All parameters together have at most
    /// 32764 bytes, and each parameter has at least one byte.
    const MOST: usize = 32764;
    let mut all = Vec::new();
    for index in 0..=MOST {
        let (mut offset, mut bytes) = (0, 0);
        // SAFETY: the pointers are to live integers, and the function is live.
        match unsafe { api.cuFuncGetParamInfo(function, index, &raw mut offset, &raw mut bytes) } {
            Ok(CudaCode::SUCCESS) => all.push(Parameter { offset, bytes }),
            // This result marks the end of the parameters. compute-sanitizer reports the call as an
            // error. Drivers before CUDA 13.2 have no function for the number of parameters.
            Ok(CudaCode::INVALID_VALUE) => break,
            Ok(code) => return done("cuFuncGetParamInfo", Ok(code)).map(|()| None),
            Err(_) => return Ok(None),
        }
    }
    Ok(Some(all))
}

impl fmt::Debug for LoadedKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LoadedKernel({} on device {})", self.kernel.name, self.module.context.ordinal())
    }
}
