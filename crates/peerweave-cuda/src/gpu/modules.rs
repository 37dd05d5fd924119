//! The crates of kernels loaded on this GPU: each is loaded once, in the variant for the device.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use peerweave_device::launch::PtxImage;
use peerweave_driver::launch::{Image, LoadedKernel, Module};
use peerweave_link::{Arch, Linked};
use peerweave_nvshmem::ModuleGuard;

use super::Inner;
use crate::error::CudaError;

/// Loaded crates by the address of the crate's image.
#[derive(Default)]
pub(crate) struct Modules(Mutex<HashMap<usize, Loaded>>);

struct Loaded {
    module: Module,
    /// Unregisters the module from NVSHMEM before it is unloaded.
    _guard: Option<ModuleGuard>,
}

impl Inner {
    /// Returns a kernel of a crate. The first call for a crate loads all of its kernels, and links
    /// them if they call NVSHMEM.
    pub(crate) fn kernel(&self, image: &'static PtxImage, name: &'static str) -> Result<LoadedKernel, CudaError> {
        let key = std::ptr::from_ref(image).addr();
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = kernels.get(&(key, name)) {
            return Ok(kernel.clone());
        }
        let mut modules = self.modules.0.lock().unwrap_or_else(PoisonError::into_inner);
        let module = match modules.get(&key) {
            Some(loaded) => loaded.module.clone(),
            None => {
                let loaded = self.load(image, name)?;
                let module = loaded.module.clone();
                modules.insert(key, loaded);
                module
            }
        };
        let kernel = module.kernel(name)?;
        kernels.insert((key, name), kernel.clone());
        Ok(kernel)
    }

    /// Returns a kernel of a crate that does not use the network, loaded without the crate's other
    /// kernels. The driver compiles about a megabyte of PTX per second, and a program uses few
    /// kernels of a large crate.
    pub(crate) fn entry(&self, image: &'static PtxImage, name: &'static str) -> Result<LoadedKernel, CudaError> {
        let key = std::ptr::from_ref(image).addr();
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = kernels.get(&(key, name)) {
            return Ok(kernel.clone());
        }
        let variant = image.select(self.arch.number(), false).map_err(|reason| CudaError::NoPtx { kernel: name, reason })?;
        let kernel = Module::load(&self.context, Image::Ptx(&only(variant.text, name)))?.kernel(name)?;
        kernels.insert((key, name), kernel.clone());
        Ok(kernel)
    }

    fn load(&self, image: &'static PtxImage, name: &'static str) -> Result<Loaded, CudaError> {
        let sm = self.arch.number();
        let variant = image.select(sm, self.network).map_err(|reason| CudaError::NoPtx { kernel: name, reason })?;
        let Some(nvshmem) = self.heap.nvshmem().filter(|_| self.network) else {
            return Ok(Loaded { module: Module::load(&self.context, Image::Ptx(variant.text))?, _guard: None });
        };
        let linked = link(nvshmem, self.arch, variant.text)?;
        let module = Module::load(&self.context, Image::Binary(&linked.cubin))?;
        // SAFETY: the module was just loaded in NVSHMEM's context, and stays so while what keeps it
        // lives.
        let guard = unsafe { nvshmem.init_module(module.raw(), module.keep()) }?;
        Ok(Loaded { module, _guard: Some(guard) })
    }
}

/// Returns PTX text with only one of its entries. Keeps everything that an entry may use:
/// declarations, variables and functions. They begin and end with a line, as entries do.
fn only(text: &str, entry: &str) -> String {
    let mut out = String::with_capacity(text.len() / 16);
    let mut is_left_out = false;
    for line in text.lines() {
        if let Some((_, declared)) = line.split_once(".entry ") {
            let name = declared.split(|c: char| c == '(' || c.is_whitespace()).next();
            is_left_out = name != Some(entry);
        }
        if !is_left_out {
            out.push_str(line);
            out.push('\n');
        }
        if line == "}" {
            is_left_out = false;
        }
    }
    out
}

/// Links PTX that calls NVSHMEM with the device library of the NVSHMEM version loaded in this
/// process.
fn link(nvshmem: &peerweave_nvshmem::Context, arch: Arch, ptx: &str) -> Result<Linked, CudaError> {
    let files = peerweave_link::nvshmem::DeviceLibrary::beside(nvshmem.library().path())?;
    files.check_host(nvshmem.library().version())?;
    Ok(files.link(arch, ptx)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_requested_entry_is_kept() {
        let text = ".version 8.4\n.func f(\n)\n{\n\tret;\n}\n.visible .entry a(\n)\n{\n{ call f; }\n}\n.visible .entry a_b(\n)\n{\n\tret;\n}\n.extern .shared .align 128 .b8 s[];\n";
        let expected = ".version 8.4\n.func f(\n)\n{\n\tret;\n}\n.visible .entry a(\n)\n{\n{ call f; }\n}\n.extern .shared .align 128 .b8 s[];\n";
        assert_eq!(only(text, "a"), expected);
    }
}
