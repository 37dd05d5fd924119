//! Loads images as modules, finds kernels in modules, and gets and sets attributes of kernels.

use core::ffi::{c_char, c_int};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::abi::{Code, In, Out, Result};
use crate::calls::{exports, functions};
use crate::machine::current::current;
use crate::machine::driver::driver;
use crate::work::kernel::{self, FUNCTIONS, Function, HostKernel, MODULES, Module, THREADS_PER_BLOCK};

const SHARED_BYTES_OPT_IN: u32 = 232_448;

fn load(module: &Out<usize>, image: &In<c_char>) -> Result {
    module.required()?;
    let context = current()?;
    if image.address() == 0 {
        return Err(Code::INVALID_VALUE);
    }
    // No machine code can run on the simulated device.
    if !matches!(image.get()?.cast_unsigned(), b'\t' | b'\n' | b'\r' | b' '..=b'~') {
        return Err(Code::NO_BINARY_FOR_GPU);
    }
    module.set(kernel::load(&context, &image.text()?)?)
}

/// Returns a kernel by its handle.
pub(super) fn function(handle: usize) -> Result<Arc<Function>> {
    driver()?;
    FUNCTIONS.find(handle)
}

fn module_by_handle(handle: usize) -> Result<Arc<Module>> {
    driver()?;
    MODULES.find(handle)
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
        let found = module_by_handle(module)?;
        if !Arc::ptr_eq(&current()?, &found.context) {
            return Err(Code::INVALID_CONTEXT);
        }
        found.unload(module);
        Ok(())
    }

    2000 fn cuModuleGetFunction(out: Out<usize>, module: usize, name: In<c_char>) {
        let module = module_by_handle(module)?;
        let name = name.text()?;
        out.set(module.functions.iter().find(|function| function.0 == name).ok_or(Code::NOT_FOUND)?.1)
    }

    3020 fn cuModuleGetGlobal_v2(pointer: Out<u64>, bytes: Out<usize>, module: usize, name: In<c_char>) {
        let _ = (pointer, bytes, name.text()?);
        module_by_handle(module)?;
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
}

functions! {
    /// Fake only: registers a function for kernels of this name in images that are loaded later.
    /// The function runs once for each launch, on the stream's thread.
    fn peerweave_fake_kernel(name: In<c_char>, function: Option<HostKernel>) {
        kernel::register(name.text()?, function.ok_or(Code::INVALID_VALUE)?);
        Ok(())
    }
}
