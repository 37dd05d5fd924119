//! Copies and fills. Invariant: addresses are checked before an operation is enqueued.

use core::ffi::{c_int, c_uint};
use std::sync::Arc;

use crate::abi::{Code, Copy2d, CuContext, CuHost, CuPtr, CuStream, In, Result};
use crate::calls::exports;
use crate::machine::current::{by_handle, current};
use crate::memory::address::Need;
use crate::memory::transfer::{self, Copy, Fill, Source};
use crate::streams::captures;
use crate::streams::refusals::forbid_legacy;
use crate::streams::stream::{Run, Stream, legacy, resolve};
use crate::streams::submit::{submit, synchronize};
use crate::work::piece::Work;

/// The sides of a copy that may be pageable memory of the host.
#[derive(Clone, Copy)]
struct Sides {
    to_host: bool,
    from_host: bool,
}

const DEVICE_TO_DEVICE: Sides = Sides { to_host: false, from_host: false };
const HOST_TO_DEVICE: Sides = Sides { to_host: false, from_host: true };
const DEVICE_TO_HOST: Sides = Sides { to_host: true, from_host: false };
const ANY: Sides = Sides { to_host: true, from_host: true };

fn check(stream: &Arc<Stream>, copy: &Copy, sides: Sides) -> Result {
    let Source::Address(from) = copy.from else { return Ok(()) };
    let device = stream.context.device;
    for row in 0..copy.rows {
        let to = copy.to + row * copy.to_pitch;
        transfer::check(copy.writer.unwrap_or(device), to, copy.row_bytes, Need::Write, sides.to_host)?;
        let from = from + row * copy.from_pitch;
        transfer::check(copy.reader.unwrap_or(device), from, copy.row_bytes, Need::Read, sides.from_host)?;
    }
    Ok(())
}

/// Enqueues a copy. Waits only if the target is pageable host memory, as the driver does.
fn order(stream: CuStream, mut copy: Copy, sides: Sides) -> Result {
    let current = current()?;
    let stream = resolve(stream)?;
    drop(current);
    stream.context.check()?;
    check(&stream, &copy, sides)?;
    if copy.row_bytes == 0 {
        return Ok(());
    }
    let captured = captures::position(&stream)?.is_some();
    if let Source::Address(from) = copy.from
        && sides.from_host
        && !captured
        && transfer::is_pageable(from)
    {
        // Like the driver, reads pageable memory before the call returns.
        let bytes = ((copy.rows - 1) * copy.from_pitch + copy.row_bytes) as usize;
        // SAFETY: the caller promised that the source of the copy is readable.
        let staged: Arc<[u8]> = unsafe { core::slice::from_raw_parts(from as *const u8, bytes) }.into();
        copy.from = Source::Staged(staged);
    }
    let wait = sides.to_host && !captured && transfer::is_pageable(copy.to);
    submit(&stream, Work::Copy(copy))?;
    if wait { synchronize(&stream) } else { Ok(()) }
}

/// Copies on the legacy stream, and waits until the copy is complete. Like the driver, does not
/// wait if both sides are device memory.
fn order_and_wait(copy: Copy, sides: Sides) -> Result {
    let stream = legacy()?;
    forbid_legacy(&stream)?;
    stream.context.check()?;
    check(&stream, &copy, sides)?;
    if copy.row_bytes == 0 {
        return Ok(());
    }
    let number = stream.push(Run::Work(Work::Copy(copy)));
    if sides.to_host || sides.from_host {
        stream.wait_until(number);
        return stream.context.check();
    }
    Ok(())
}

fn flat(to: u64, from: u64, bytes: usize) -> Copy {
    Copy::flat(to, Source::Address(from), bytes as u64)
}

fn peer(to: CuPtr, to_context: CuContext, from: CuPtr, from_context: CuContext, bytes: usize) -> Result<Copy> {
    let mut copy = flat(to, from, bytes);
    copy.writer = Some(by_handle(to_context)?.device);
    copy.reader = Some(by_handle(from_context)?.device);
    Ok(copy)
}

/// Returns the address of one side of a copy, and whether that side may be host memory. `kind` is a
/// `CUmemorytype`: 1 host, 2 device, 4 unified.
fn side(kind: c_int, host: usize, device: CuPtr) -> Result<(u64, bool)> {
    match kind {
        1 => Ok((host as u64, true)),
        2 => Ok((device, false)),
        4 => Ok((device, true)),
        _ => Err(Code::NOT_SUPPORTED), // arrays are for textures
    }
}

fn rows(copy: &In<Copy2d>) -> Result<(Copy, Sides)> {
    let given = copy.get()?;
    let (to, to_host) = side(given.dst_kind, given.dst_host, given.dst_device)?;
    let (from, from_host) = side(given.src_kind, given.src_host, given.src_device)?;
    let pitch = |pitch: usize| if pitch == 0 { given.width } else { pitch };
    let (to_pitch, from_pitch) = (pitch(given.dst_pitch), pitch(given.src_pitch));
    if given.dst_x + given.width > to_pitch || given.src_x + given.width > from_pitch {
        return Err(Code::INVALID_VALUE);
    }
    let copy = Copy {
        to: to + (given.dst_y * to_pitch + given.dst_x) as u64,
        from: Source::Address(from + (given.src_y * from_pitch + given.src_x) as u64),
        row_bytes: if given.height == 0 { 0 } else { given.width as u64 },
        rows: given.height as u64,
        to_pitch: to_pitch as u64,
        from_pitch: from_pitch as u64,
        writer: None,
        reader: None,
    };
    Ok((copy, Sides { to_host, from_host }))
}

/// Enqueues a fill. `on` is the stream of an asynchronous fill; `None` means the legacy stream.
fn fill(on: Option<CuStream>, to: CuPtr, pattern: u32, element_bytes: u64, elements: usize, rows: usize, pitch: usize) -> Result {
    current()?;
    let stream = match on {
        Some(stream) => resolve(stream)?,
        None => {
            let stream = legacy()?;
            forbid_legacy(&stream)?;
            stream
        }
    };
    if !to.is_multiple_of(element_bytes) || (rows > 1 && pitch < elements * element_bytes as usize) {
        return Err(Code::INVALID_VALUE);
    }
    let bytes = (elements as u64).checked_mul(element_bytes).ok_or(Code::INVALID_VALUE)?;
    for row in 0..rows as u64 {
        transfer::check(stream.context.device, to + row * pitch as u64, bytes, Need::Write, false)?;
    }
    submit(
        &stream,
        Work::Fill(Fill { to, pattern, element_bytes, elements: elements as u64, rows: rows as u64, pitch: pitch as u64 }),
    )
}

exports! {
    4000 fn cuMemcpy(to: CuPtr, from: CuPtr, bytes: usize) {
        order_and_wait(flat(to, from, bytes), ANY)
    }

    4000 fn cuMemcpyAsync(to: CuPtr, from: CuPtr, bytes: usize, stream: CuStream) {
        order(stream, flat(to, from, bytes), ANY)
    }

    3020 fn cuMemcpyHtoD_v2(to: CuPtr, from: CuHost, bytes: usize) {
        order_and_wait(flat(to, from.0 as u64, bytes), HOST_TO_DEVICE)
    }

    3020 fn cuMemcpyHtoDAsync_v2(to: CuPtr, from: CuHost, bytes: usize, stream: CuStream) {
        order(stream, flat(to, from.0 as u64, bytes), HOST_TO_DEVICE)
    }

    3020 fn cuMemcpyDtoH_v2(to: CuHost, from: CuPtr, bytes: usize) {
        order_and_wait(flat(to.0 as u64, from, bytes), DEVICE_TO_HOST)
    }

    3020 fn cuMemcpyDtoHAsync_v2(to: CuHost, from: CuPtr, bytes: usize, stream: CuStream) {
        order(stream, flat(to.0 as u64, from, bytes), DEVICE_TO_HOST)
    }

    3020 fn cuMemcpyDtoD_v2(to: CuPtr, from: CuPtr, bytes: usize) {
        order_and_wait(flat(to, from, bytes), DEVICE_TO_DEVICE)
    }

    3020 fn cuMemcpyDtoDAsync_v2(to: CuPtr, from: CuPtr, bytes: usize, stream: CuStream) {
        order(stream, flat(to, from, bytes), DEVICE_TO_DEVICE)
    }

    4000 fn cuMemcpyPeer(to: CuPtr, to_context: CuContext, from: CuPtr, from_context: CuContext, bytes: usize) {
        order_and_wait(peer(to, to_context, from, from_context, bytes)?, DEVICE_TO_DEVICE)
    }

    4000 fn cuMemcpyPeerAsync(
        to: CuPtr, to_context: CuContext, from: CuPtr, from_context: CuContext, bytes: usize, stream: CuStream,
    ) {
        order(stream, peer(to, to_context, from, from_context, bytes)?, DEVICE_TO_DEVICE)
    }

    3020 fn cuMemcpy2D_v2(copy: In<Copy2d>) {
        let (copy, sides) = rows(&copy)?;
        order_and_wait(copy, sides)
    }

    3020 fn cuMemcpy2DUnaligned_v2(copy: In<Copy2d>) {
        let (copy, sides) = rows(&copy)?;
        order_and_wait(copy, sides)
    }

    3020 fn cuMemcpy2DAsync_v2(copy: In<Copy2d>, stream: CuStream) {
        let (copy, sides) = rows(&copy)?;
        order(stream, copy, sides)
    }

    3020 fn cuMemsetD8_v2(to: CuPtr, value: u8, count: usize) {
        fill(None, to, u32::from(value), 1, count, 1, 0)
    }

    3020 fn cuMemsetD16_v2(to: CuPtr, value: u16, count: usize) {
        fill(None, to, u32::from(value), 2, count, 1, 0)
    }

    3020 fn cuMemsetD32_v2(to: CuPtr, value: c_uint, count: usize) {
        fill(None, to, value, 4, count, 1, 0)
    }

    3020 fn cuMemsetD8Async(to: CuPtr, value: u8, count: usize, stream: CuStream) {
        fill(Some(stream), to, u32::from(value), 1, count, 1, 0)
    }

    3020 fn cuMemsetD16Async(to: CuPtr, value: u16, count: usize, stream: CuStream) {
        fill(Some(stream), to, u32::from(value), 2, count, 1, 0)
    }

    3020 fn cuMemsetD32Async(to: CuPtr, value: c_uint, count: usize, stream: CuStream) {
        fill(Some(stream), to, value, 4, count, 1, 0)
    }

    3020 fn cuMemsetD2D8_v2(to: CuPtr, pitch: usize, value: u8, width: usize, height: usize) {
        fill(None, to, u32::from(value), 1, width, height, pitch)
    }

    3020 fn cuMemsetD2D8Async(to: CuPtr, pitch: usize, value: u8, width: usize, height: usize, stream: CuStream) {
        fill(Some(stream), to, u32::from(value), 1, width, height, pitch)
    }

    3020 fn cuMemsetD2D32_v2(to: CuPtr, pitch: usize, value: c_uint, width: usize, height: usize) {
        fill(None, to, value, 4, width, height, pitch)
    }

    3020 fn cuMemsetD2D32Async(to: CuPtr, pitch: usize, value: c_uint, width: usize, height: usize, stream: CuStream) {
        fill(Some(stream), to, value, 4, width, height, pitch)
    }
}
