//! Loads the modules of kernels on this GPU.
//!
//! The PTX of a crate is loaded in parts. A part has one or more kernels, and is loaded when one of
//! its kernels is first used. So a job waits only for the compilation of the kernels that it
//! launches.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use peerweave_device::launch::{PtxImage, PtxVariant};
use peerweave_device::network::Function;
use peerweave_driver::DriverError;
use peerweave_driver::launch::{Image, LaunchError, LoadedKernel, Module};
use peerweave_nvshmem::ModuleGuard;

use super::Inner;
use super::parts::Parts;
use crate::error::CudaError;

/// The kernels that were loaded on a GPU, and the crates that contain them.
#[derive(Default)]
pub(crate) struct Modules {
    /// Loaded kernels. The key is the address of the kernel's PTX image, the kernel's name, and
    /// whether the kernel belongs to the variant that calls NVSHMEM.
    kernels: Mutex<HashMap<(usize, &'static str, bool), LoadedKernel>>,
    /// One entry for each distinct PTX text. All kernels of one crate have the same PTX text, so
    /// they share one entry, even if their [`PtxImage`] values differ.
    crates: Mutex<Vec<Arc<Crate>>>,
}

/// The PTX of a crate in one variant, with the modules that were loaded from it.
struct Crate {
    text: &'static str,
    parts: Parts<'static>,
    /// For each part of the PTX, the module that was loaded from the part; `None` before the part
    /// is loaded.
    modules: Vec<Mutex<Option<Loaded>>>,
    /// The wrapper functions by which the kernels of the module's crate call NVSHMEM. `None` if
    /// this crate is not linked with NVSHMEM.
    wrappers: Option<Vec<&'static Function>>,
}

struct Loaded {
    module: Module,
    /// Dropping this guard unregisters the module from NVSHMEM before the module is unloaded.
    /// `None` if the module is not linked with NVSHMEM.
    _guard: Option<ModuleGuard>,
}

impl Modules {
    /// Returns the [`Crate`] of `variant`: the record of the PTX text and of the modules that were
    /// loaded from this text. The first call for a PTX text creates the record.
    fn find(&self, variant: &'static PtxVariant) -> Result<Arc<Crate>, CudaError> {
        let mut crates = self.crates.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = crates.iter().find(|there| std::ptr::eq(there.text, variant.text) || there.text == variant.text) {
            return Ok(Arc::clone(found));
        }
        let parts = Parts::new(variant.text);
        let wrappers = variant.network.then(|| peerweave_link::nvshmem::used_by(variant.text)).transpose()?;
        let modules = (0..parts.len()).map(|_| Mutex::default()).collect();
        let new = Arc::new(Crate { text: variant.text, parts, modules, wrappers });
        crates.push(Arc::clone(&new));
        Ok(new)
    }
}

impl Inner {
    /// Returns the kernel `name` of the crate to which the PTX image belongs. A crate's PTX is
    /// loaded in parts. The first call for a kernel loads the part that contains the kernel. If
    /// this part calls NVSHMEM, the call first links the part with NVSHMEM.
    pub(crate) fn kernel(&self, image: &'static PtxImage, name: &'static str) -> Result<LoadedKernel, CudaError> {
        self.find(image, name, self.network)
    }

    /// Like [`kernel`](Self::kernel), but always loads the PTX variant without NVSHMEM. For kernels
    /// that never call NVSHMEM.
    pub(crate) fn entry(&self, image: &'static PtxImage, name: &'static str) -> Result<LoadedKernel, CudaError> {
        self.find(image, name, false)
    }

    fn find(&self, image: &'static PtxImage, name: &'static str, network: bool) -> Result<LoadedKernel, CudaError> {
        let key = (std::ptr::from_ref(image).addr(), name, network);
        let kernels = || self.modules.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = kernels().get(&key) {
            return Ok(kernel.clone());
        }
        let kernels_of = self.modules.find(self.variant(image, name, network)?)?;
        let part = kernels_of.parts.of(name).ok_or_else(|| LaunchError::NoKernel { kernel: name.to_owned() });
        let kernel = self.part(&kernels_of, part.map_err(DriverError::from)?)?.kernel(name)?;
        Ok(kernels().entry(key).or_insert(kernel).clone())
    }

    /// Loads all kernels of a crate, one after the other. Several threads would not be faster,
    /// because the driver compiles one kernel at a time in a process.
    pub(crate) fn load_all(&self, image: &'static PtxImage) -> Result<(), CudaError> {
        let all = self.modules.find(self.variant(image, "the kernels of a crate", self.network)?)?;
        let mut kernels: Vec<(usize, &'static str)> = all.parts.kernels().map(|(name, part)| (part, name)).collect();
        kernels.sort_unstable();
        // PEs of one machine begin at different parts. So each PE finds parts that other PEs have
        // compiled in the caches on disk.
        let first = self.rendezvous.pe().index() * kernels.len() / self.rendezvous.n_pes() as usize;
        kernels.rotate_left(first);
        // The driver loads a module without its functions. The first launch of a function would
        // load the function, and this load waits for running kernels. So this call loads all
        // functions.
        kernels.into_iter().try_for_each(|(_, name)| self.find(image, name, self.network).map(drop))
    }

    fn variant(&self, image: &'static PtxImage, name: &'static str, network: bool) -> Result<&'static PtxVariant, CudaError> {
        image.select(self.arch.number(), network).map_err(|reason| CudaError::NoPtx { kernel: name, reason })
    }

    /// Returns the module for one part of a crate's PTX. The first call loads the module.
    fn part(&self, of: &Crate, part: usize) -> Result<Module, CudaError> {
        let mut loaded = of.modules[part].lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(loaded) = &*loaded {
            return Ok(loaded.module.clone());
        }
        let new = self.load(&of.parts.text(part), of.wrappers.as_deref())?;
        Ok(loaded.insert(new).module.clone())
    }

    /// Loads PTX as a module. If `wrappers` is not `None`, first links the PTX with NVSHMEM's
    /// device library.
    fn load(&self, text: &str, wrappers: Option<&[&'static Function]>) -> Result<Loaded, CudaError> {
        let Some((nvshmem, wrappers)) = self.heap.nvshmem().zip(wrappers) else {
            return Ok(Loaded { module: Module::load(&self.context, Image::Ptx(text))?, _guard: None });
        };
        let files = peerweave_link::nvshmem::DeviceLibrary::beside(nvshmem.library().path())?;
        files.check_host(nvshmem.library().version())?;
        let linked = files.part_linker(self.arch, text, wrappers)?.link()?;
        let module = Module::load(&self.context, Image::Binary(&linked.cubin))?;
        // SAFETY: the module was just loaded in NVSHMEM's context, and stays loaded while
        // `module.keep()` lives.
        let guard = unsafe { nvshmem.init_module(module.raw(), module.keep()) }?;
        Ok(Loaded { module, _guard: Some(guard) })
    }
}
