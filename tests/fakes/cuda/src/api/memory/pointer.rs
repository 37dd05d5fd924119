//! Queries about an address: kind of memory, device, range. Invariant: the result agrees with the
//! check of a copy that uses the address.

use core::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use crate::abi::{Code, CuContext, CuPool, CuPtr, In, Out, Result};
use crate::calls::exports;
use crate::machine::current::current;
use crate::machine::driver::driver;
use crate::memory::address::{DeviceRange, HostRange, Kind, MappedRange, Range, change, read};

const HOST: c_uint = 1;
const DEVICE: c_uint = 2;

fn device_of(range: &Range) -> c_int {
    let ordinal = match &range.kind {
        // A multicast object, and memory of a device that this process does not see, have no
        // device: the driver's number for this case is -2.
        Kind::Mapped(mapped) => return mapped.allocation.physical.device.map_or(-2, |device| device as c_int),
        Kind::Device(memory) => memory.device,
        Kind::Host(memory) => memory.device,
        Kind::Imported { device, .. } => *device,
    };
    ordinal as c_int
}

/// Writes the value of an attribute in the attribute's type.
fn answer(range: &Range, attribute: c_int, address: CuPtr, out: &Out<c_void>) -> Result {
    let mapped = match &range.kind {
        Kind::Mapped(mapped) => Some(mapped),
        _ => None,
    };
    match attribute {
        // CONTEXT: virtual memory belongs to no context.
        1 => out.cast::<CuContext>().set(CuContext(match &range.kind {
            Kind::Device(memory) => memory.context,
            Kind::Host(memory) => memory.context,
            Kind::Imported { context, .. } => *context,
            Kind::Mapped(_) => 0,
        })),
        // MEMORY_TYPE
        2 => out.cast::<c_uint>().set(if matches!(range.kind, Kind::Host(_)) { HOST } else { DEVICE }),
        // DEVICE_POINTER
        3 => out.cast::<CuPtr>().set(address),
        // HOST_POINTER
        4 => match &range.kind {
            Kind::Host(_) => out.cast::<u64>().set(address),
            Kind::Device(memory) if memory.managed => out.cast::<u64>().set(address),
            _ => Err(Code::INVALID_VALUE),
        },
        // SYNC_MEMOPS
        6 => out.cast::<u8>().set(0),
        // BUFFER_ID, MEMORY_BLOCK_ID
        7 | 20 => out.cast::<u64>().set(range.id),
        // IS_MANAGED
        8 => out.cast::<u8>().set(u8::from(matches!(&range.kind, Kind::Device(memory) if memory.managed))),
        // DEVICE_ORDINAL
        9 => out.cast::<c_int>().set(device_of(range)),
        // IS_LEGACY_CUDA_IPC_CAPABLE
        10 => out.cast::<u8>().set(u8::from(
            matches!(&range.kind, Kind::Device(memory) if !memory.managed && memory.pool.is_none() && !memory.of_graph),
        )),
        // RANGE_START_ADDR, RANGE_SIZE: for mapped memory, the range is the whole reservation.
        11 | 12 => {
            let map_range = (range.base, range.size);
            let (base, size) = if mapped.is_some() { reservation_of(range).unwrap_or(map_range) } else { map_range };
            out.cast::<u64>().set(if attribute == 11 { base } else { size })
        }
        // MAPPED
        13 => out.cast::<u8>().set(1),
        // ALLOWED_HANDLE_TYPES
        14 => out.cast::<u64>().set(mapped.map_or(0, |mapped| mapped.allocation.physical.handle_types as u64)),
        // IS_GPU_DIRECT_RDMA_CAPABLE
        15 => out.cast::<u8>().set(0),
        // ACCESS_FLAGS of the current context
        16 => {
            let device = current()?.device;
            out.cast::<c_uint>().set(mapped.map_or(3, |mapped| mapped.access.get(&device).copied().unwrap_or(0)))
        }
        // MEMPOOL_HANDLE
        17 => out.cast::<CuPool>().set(CuPool(match &range.kind {
            Kind::Device(memory) => memory.pool.unwrap_or(0),
            _ => 0,
        })),
        // MAPPING_SIZE, MAPPING_BASE_ADDR
        18 => out.cast::<u64>().set(range.size),
        19 => out.cast::<u64>().set(range.base),
        _ => Err(Code::INVALID_VALUE),
    }
}

fn reservation_of(range: &Range) -> Option<(u64, u64)> {
    // The caller does not hold the lock of the map, so that this function can lock the map again.
    change().reservation(range.base, range.size)
}

/// Returns the size of an attribute's value in bytes. `cuPointerGetAttributes` zeroes this many
/// bytes of an unknown value.
fn width(attribute: c_int) -> usize {
    match attribute {
        2 | 9 | 16 => 4,
        6 | 8 | 10 | 13 | 15 => 1,
        _ => 8,
    }
}

exports! {
    4000 fn cuPointerGetAttribute(data: Out<c_void>, attribute: c_int, address: CuPtr) {
        data.required()?;
        driver()?;
        let range = copy_of(address).ok_or(Code::INVALID_VALUE)?;
        answer(&range, attribute, address, &data)
    }

    7000 fn cuPointerGetAttributes(count: c_uint, attributes: In<c_int>, data: In<Out8>, address: CuPtr) {
        driver()?;
        let range = copy_of(address);
        for (attribute, out) in attributes.array(count as usize)?.into_iter().zip(data.array(count as usize)?) {
            let out = out.out();
            let known = range.as_ref().is_some_and(|range| answer(range, attribute, address, &out).is_ok());
            if !known {
                // Unlike the query of one attribute, this function returns zero instead of an
                // error.
                let value = if attribute == 9 { -2_i32 as u32 } else { 0 };
                match width(attribute) {
                    1 => out.cast::<u8>().set(0)?,
                    4 => out.cast::<u32>().set(value)?,
                    _ => out.cast::<u64>().set(0)?,
                }
            }
        }
        Ok(())
    }

    6000 fn cuPointerSetAttribute(value: In<c_uint>, attribute: c_int, address: CuPtr) {
        // SYNC_MEMOPS is the only attribute that can be set. Setting it has no effect here.
        value.get()?;
        if attribute != 6 {
            return Err(Code::INVALID_VALUE);
        }
        driver()?;
        copy_of(address).map(|_| ()).ok_or(Code::INVALID_VALUE)
    }
}

/// An element of a caller's array of output pointers.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct Out8(*mut c_void);

impl Out8 {
    fn out(self) -> Out<c_void> {
        Out::from_array_element(self.0)
    }
}

/// Returns a copy of the range that contains an address, and does not keep the map locked.
fn copy_of(address: CuPtr) -> Option<Range> {
    let map = read();
    let range = map.find(address)?;
    let kind = match &range.kind {
        Kind::Device(memory) => Kind::Device(DeviceRange { ..*memory }),
        Kind::Host(memory) => Kind::Host(HostRange { ..*memory }),
        Kind::Imported { device, context, .. } => Kind::Device(DeviceRange {
            device: *device,
            context: *context,
            pool: None,
            managed: false,
            charged_bytes: 0,
            freeing: false,
            // Imported memory cannot be shared a second time, like memory of a graph.
            of_graph: true,
        }),
        Kind::Mapped(mapped) => Kind::Mapped(MappedRange {
            allocation: Arc::clone(&mapped.allocation),
            handle: mapped.handle,
            offset: mapped.offset,
            access: mapped.access.clone(),
        }),
    };
    Some(Range { base: range.base, size: range.size, id: range.id, kind })
}
