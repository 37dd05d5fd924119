//! Allocates and frees plain device memory, synchronously or in stream order.

use core::ffi::c_uint;
use std::sync::Arc;

use crate::abi::{Code, CuPool, CuPtr, CuStream, Out, Result};
use crate::calls::exports;
use crate::machine::context::{CONTEXTS, Context};
use crate::machine::current::current;
use crate::machine::driver::driver;
use crate::machine::features::has_pools;
use crate::machine::pool::POOLS;
use crate::memory::address::{Kind, change};
use crate::memory::plain::{GraphMemory, Wanted, allocate, remove};
use crate::streams::captures;
use crate::streams::refusals::outside_capture;
use crate::streams::stream::{Run, resolve};
use crate::streams::submit::{submit, synchronize_context};
use crate::sync::lock;
use crate::work::piece::Work;

/// Returns the properties of memory that belongs to the current context.
fn of_current(context: &Context, bytes: usize, managed: bool) -> Wanted {
    Wanted { bytes, device: context.device, context: context.handle, pool: None, managed, of_graph: false }
}

fn allocate_in_order(out: &Out<CuPtr>, bytes: usize, pool: Option<CuPool>, stream: CuStream) -> Result {
    out.required()?;
    let driver = driver()?;
    if !has_pools() {
        return Err(Code::NOT_SUPPORTED);
    }
    let stream = resolve(stream)?;
    stream.context.check()?;
    let device = stream.context.device;
    let pool = pool.map_or_else(|| *lock(&driver.devices[device].current_pool), |pool| pool.0);
    let device = POOLS.find(pool)?.device;
    let captured = captures::position(&stream)?.is_some();
    let wanted = Wanted { bytes, device, context: stream.context.handle, pool: Some(pool), managed: false, of_graph: captured };
    let (base, id) = allocate(&wanted)?;
    if captured {
        submit(&stream, Work::GraphAlloc(Arc::new(GraphMemory { base, id })))?;
    }
    out.set(base)
}

exports! {
    3020 fn cuMemAlloc_v2(pointer: Out<CuPtr>, bytes: usize) {
        pointer.required()?;
        let context = outside_capture()?;
        let wanted = of_current(&context, bytes, false);
        pointer.set(allocate(&wanted)?.0)
    }

    3020 fn cuMemAllocPitch_v2(pointer: Out<CuPtr>, pitch: Out<usize>, width: usize, height: usize, element_bytes: c_uint) {
        pointer.required()?;
        if !matches!(element_bytes, 4 | 8 | 16) {
            return Err(Code::INVALID_VALUE);
        }
        let context = outside_capture()?;
        let row = width.checked_next_multiple_of(512).ok_or(Code::INVALID_VALUE)?;
        let bytes = row.checked_mul(height).ok_or(Code::OUT_OF_MEMORY)?;
        let wanted = of_current(&context, bytes, false);
        pitch.set(row)?;
        pointer.set(allocate(&wanted)?.0)
    }

    6000 fn cuMemAllocManaged(pointer: Out<CuPtr>, bytes: usize, flags: c_uint) {
        pointer.required()?;
        if !matches!(flags, 1 | 2) {
            return Err(Code::INVALID_VALUE);
        }
        let context = outside_capture()?;
        let wanted = of_current(&context, bytes, true);
        pointer.set(allocate(&wanted)?.0)
    }

    3020 fn cuMemFree_v2(pointer: CuPtr) {
        if pointer == 0 {
            return Ok(());
        }
        let current = outside_capture()?;
        let driver = driver()?;
        let owner = {
            let map = change();
            let range = map.ranges.get(&pointer).ok_or(Code::INVALID_VALUE)?;
            match &range.kind {
                Kind::Device(memory) if !memory.freeing && !memory.of_graph => memory.context,
                _ => return Err(Code::INVALID_VALUE),
            }
        };
        // Like the driver, waits for the device before memory is freed.
        if let Some(owner) = CONTEXTS.get(owner) {
            synchronize_context(&owner)?;
        }
        if owner != current.handle {
            synchronize_context(&current)?;
        }
        remove(driver, &mut change(), pointer);
        Ok(())
    }

    11020 fn cuMemAllocAsync(pointer: Out<CuPtr>, bytes: usize, stream: CuStream) {
        allocate_in_order(&pointer, bytes, None, stream)
    }

    11020 fn cuMemAllocFromPoolAsync(pointer: Out<CuPtr>, bytes: usize, pool: CuPool, stream: CuStream) {
        allocate_in_order(&pointer, bytes, Some(pool), stream)
    }

    11020 fn cuMemFreeAsync(pointer: CuPtr, stream: CuStream) {
        let stream = resolve(stream)?;
        stream.context.check()?;
        if pointer == 0 {
            return Err(Code::INVALID_VALUE);
        }
        if captures::position(&stream)?.is_some() {
            if !captures::has_graph_memory(&stream, |memory| memory.base == pointer) {
                return Err(Code::INVALID_VALUE);
            }
            return submit(&stream, Work::GraphFree);
        }
        let id = {
            let mut map = change();
            let range = map.ranges.get_mut(&pointer).ok_or(Code::INVALID_VALUE)?;
            match &mut range.kind {
                Kind::Device(memory) if !memory.freeing && !memory.of_graph => memory.freeing = true,
                _ => return Err(Code::INVALID_VALUE),
            }
            range.id
        };
        stream.push(Run::Work(Work::Free { address: pointer, id }));
        Ok(())
    }

    3020 fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let context = current()?;
        let device = &driver()?.devices[context.device];
        free.set(device.free_bytes() as usize)?;
        total.set(device.total_bytes as usize)
    }

    3020 fn cuMemGetAddressRange_v2(base: Out<CuPtr>, size: Out<usize>, pointer: CuPtr) {
        current()?;
        let map = change();
        let range = map.find(pointer).ok_or(Code::NOT_FOUND)?;
        base.set_if_wanted(range.base);
        size.set_if_wanted(range.size as usize);
        Ok(())
    }
}
