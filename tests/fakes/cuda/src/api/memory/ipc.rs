//! Legacy IPC between processes: handles of plain memory, and of events. Invariant: the handle of a
//! process that has ended opens nothing.

use core::ffi::c_uint;
use std::os::fd::OwnedFd;

use crate::abi::{Code, CuEvent, CuPtr, Handle64, Out, Result};
use crate::calls::exports;
use crate::machine::current::current;
use crate::machine::driver::driver;
use crate::memory::address::{Kind, Range, change, next_id};
use crate::os::ProcessFile;
use crate::os::mapping::{self, PAGE_BYTES};
use crate::streams::refusals::outside_capture;
use crate::streams::submit::synchronize_context;
use crate::sync::lock;
use crate::work::event::{EVENTS, Event};
use crate::work::shared_event::SharedEvent;

const MEMORY: u64 = 0x706d_656d;
const EVENT: u64 = 0x7065_7674;

/// Content of the 64 bytes of a `CUipcMemHandle` or `CUipcEventHandle`.
struct Ticket {
    kind: u64,
    file: ProcessFile,
    offset: u64,
    size: u64,
    device: u64,
    id: u64,
}

impl Ticket {
    fn of_this_process(kind: u64, fd: i32, offset: u64, size: u64, device: usize, id: u64) -> Result<Ticket> {
        let file = ProcessFile::of_this_process(fd)?;
        Ok(Ticket { kind, file, offset, size, device: device as u64, id })
    }

    fn to_bytes(&self) -> [u8; 64] {
        let ProcessFile { pid, start, fd } = self.file;
        let words = [self.kind, u64::from(pid), start, fd as u64, self.offset, self.size, self.device, self.id];
        let mut bytes = [0; 64];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: &[u8; 64], kind: u64) -> Result<Ticket> {
        let word = |index: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[index * 8..][..8]);
            u64::from_le_bytes(word)
        };
        if word(0) != kind {
            return Err(Code::INVALID_VALUE);
        }
        Ok(Ticket {
            kind,
            file: ProcessFile { pid: word(1) as u32, start: word(2), fd: word(3) as i32 },
            offset: word(4),
            size: word(5),
            device: word(6),
            id: word(7),
        })
    }

    /// Opens the file that the ticket names, if the process that exported the file is alive.
    fn open(&self) -> Result<OwnedFd> {
        self.file.open().ok_or(Code::INVALID_VALUE)
    }
}

exports! {
    4010 fn cuIpcGetMemHandle(handle: Out<Handle64>, pointer: CuPtr) {
        handle.required()?;
        let driver = driver()?;
        current()?;
        let map = change();
        let range = map.find(pointer).ok_or(Code::INVALID_VALUE)?;
        let Kind::Device(memory) = &range.kind else { return Err(Code::INVALID_VALUE) };
        if memory.managed || memory.pool.is_some() || memory.of_graph || memory.freeing {
            return Err(Code::INVALID_VALUE);
        }
        let (fd, offset) = lock(&driver.devices[memory.device].arena).locate(range.base).ok_or(Code::INVALID_VALUE)?;
        let ticket = Ticket::of_this_process(MEMORY, fd, offset, range.size, driver.slot(memory.device), range.id)?;
        handle.set(Handle64 { bytes: ticket.to_bytes() })
    }

    11000 fn cuIpcOpenMemHandle_v2(pointer: Out<CuPtr>, handle: Handle64, flags: c_uint) {
        pointer.required()?;
        // LAZY_ENABLE_PEER_ACCESS is required.
        if flags != 1 {
            return Err(Code::INVALID_VALUE);
        }
        let context = outside_capture()?;
        let driver = driver()?;
        let ticket = Ticket::from_bytes(&handle.bytes, MEMORY)?;
        // A process cannot open a handle that it has exported itself.
        if ticket.file.pid == std::process::id() {
            return Err(Code::INVALID_CONTEXT);
        }
        let slot = ticket.device as usize;
        let device = driver.ordinal_of(slot).ok_or(Code::INVALID_DEVICE)?;
        if device != context.device && !driver.can_access_peer(driver.slot(context.device), slot) {
            return Err(Code::PEER_ACCESS_UNSUPPORTED);
        }
        let mut map = change();
        // A process that opens the same memory again gets the same address, and the number of opens
        // is counted.
        for range in map.ranges.values_mut() {
            if let Kind::Imported { key, opened, context: of, .. } = &mut range.kind
                && *key == handle.bytes
                && *of == context.handle
            {
                *opened += 1;
                return pointer.set(range.base);
            }
        }
        let file = ticket.open()?;
        let length = ticket.size.next_multiple_of(PAGE_BYTES);
        let base = mapping::map(None, length, libc::PROT_READ | libc::PROT_WRITE, Some((&file, ticket.offset)))?;
        let kind = Kind::Imported {
            device, context: context.handle, mapping: (base, length), opened: 1, key: handle.bytes, _file: file,
        };
        map.insert(Range { base, size: ticket.size, id: next_id(), kind });
        pointer.set(base)
    }

    4010 fn cuIpcCloseMemHandle(pointer: CuPtr) {
        let context = outside_capture()?;
        let last = {
            let mut map = change();
            match map.ranges.get_mut(&pointer).map(|range| &mut range.kind) {
                Some(Kind::Imported { opened, .. }) => {
                    *opened -= 1;
                    *opened == 0
                }
                _ => return Err(Code::INVALID_VALUE),
            }
        };
        if last {
            synchronize_context(&context)?;
            let mut map = change();
            if let Some(Range { kind: Kind::Imported { mapping, .. }, .. }) = map.ranges.remove(&pointer) {
                mapping::unmap(mapping.0, mapping.1);
            }
        }
        Ok(())
    }

    4010 fn cuIpcGetEventHandle(handle: Out<Handle64>, event: CuEvent) {
        driver()?;
        let event = EVENTS.find(event.0)?;
        let shared = event.shared.as_ref().ok_or(Code::INVALID_VALUE)?;
        let ticket = Ticket::of_this_process(EVENT, shared.descriptor(), 0, PAGE_BYTES, shared.device, 0)?;
        handle.set(Handle64 { bytes: ticket.to_bytes() })
    }

    4010 fn cuIpcOpenEventHandle(event: Out<CuEvent>, handle: Handle64) {
        event.required()?;
        let context = current()?;
        let ticket = Ticket::from_bytes(&handle.bytes, EVENT)?;
        let shared = SharedEvent::over(ticket.open()?, ticket.device as usize)?;
        // DISABLE_TIMING and INTERPROCESS, like the exported event.
        event.set(CuEvent(EVENTS.add(Event::new(context, 6, Some(shared)))))
    }
}
