//! Windows: memory that every rank of a communicator has registered.
//!
//! Module `operations` has the one-sided calls. Invariant: a window is complete when all ranks have
//! registered their memory.

use core::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::abi::{Out, Result, invalid, not_null};
use crate::call::exports;
use crate::comm::window::{Window, of, windows};
use crate::comm::{Comm, CommPtr};
use crate::groups::exchange::{everybody, exchange, next_control};
use crate::groups::{Job, group};
use crate::settings;

/// The struct to which a handle points, as NCCL's handle points to a struct for kernels.
#[repr(C)]
struct Handle {
    host: *const c_void,
    base: usize,
    lsa_rank: c_int,
    world_rank: c_int,
    rest: [u64; 9],
}

const _: () = assert!(size_of::<Handle>() == 96);

/// `NCCL_WIN_COLL_SYMMETRIC`.
const SYMMETRIC: c_int = 1;

/// Reserves addresses that fault if they are accessed.
fn reserve(bytes: usize) -> usize {
    if !settings::get().multimem {
        return 0;
    }
    // SAFETY: a new mapping without access, at an address that the system chooses.
    let start =
        unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
    if start == libc::MAP_FAILED { 0 } else { start.addr() }
}

fn unreserve(window: &Window) {
    if window.multimem != 0 {
        // SAFETY: the range was mapped by `reserve` and belongs to this window alone.
        unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(window.multimem), window.bytes) };
    }
}

fn register(comm: &'static Comm, base: usize, bytes: usize, is_symmetric: bool, out: Out<*mut c_void>) -> Result {
    let number = next_control(comm);
    let run = move || {
        let own = [(base as u64).to_le_bytes(), (bytes as u64).to_le_bytes()].concat();
        let all = exchange(comm, &everybody(comm), number, &own, &|| comm.stopped())?;
        let word =
            |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("a word has eight bytes")) as usize;
        let places = all.iter().map(|bytes| (word(bytes, 0), word(bytes, 8))).collect();
        let rank = comm.who().rank;
        let handle =
            Handle { host: std::ptr::null(), base, lsa_rank: rank % comm.who().lsa_size(), world_rank: rank, rest: [0; 9] };
        let handle: *mut c_void = std::ptr::from_mut(Box::leak(Box::new(handle))).cast();
        let multimem = reserve(bytes);
        let window = Window { comm: comm.handle().address(), number, base, bytes, is_symmetric, places, multimem };
        windows().insert(handle.addr(), Arc::new(window));
        // No rank may put into a window before its owner knows it.
        exchange(comm, &everybody(comm), number | 1 << 62, &[], &|| comm.stopped())?;
        out.set(handle);
        Ok(())
    };
    group::submit_job_silently(Job { comm: None, parent: Some(comm), handle: Out(std::ptr::null_mut()), run: Box::new(run) })
}

exports! {
    /// Registers memory of all ranks as a window. Returns null with success if windows are not
    /// supported.
    fn ncclCommWindowRegister(comm: CommPtr, buff: *mut c_void, size: usize, win: *mut *mut c_void, win_flags: c_int) {
        let comm = comm.usable()?;
        not_null(win, "win")?;
        not_null(buff, "buff")?;
        if size == 0 || win_flags & !0xf != 0 {
            return invalid(format!("invalid window: {size} bytes with flags {win_flags:#x}"));
        }
        if !buff.addr().is_multiple_of(4096) {
            return invalid("Window address must be suitably aligned.");
        }
        Out(win).set(std::ptr::null_mut());
        if settings::get().null_window {
            return Ok(());
        }
        register(comm, buff.expose_provenance(), size, win_flags & SYMMETRIC != 0, Out(win))
    }

    /// Deregisters a window; null is allowed.
    fn ncclCommWindowDeregister(comm: CommPtr, win: *mut c_void) {
        let comm = comm.ready()?;
        if win.is_null() {
            return Ok(());
        }
        let window = of(comm, win)?;
        comm.drain();
        windows().remove(&win.addr());
        unreserve(&window);
        Ok(())
    }

    /// Returns the memory that this rank has registered.
    fn ncclWinGetUserPtr(comm: CommPtr, win: *mut c_void, out_user_ptr: *mut *mut c_void) {
        let comm = comm.ready()?;
        not_null(out_user_ptr, "outUserPtr")?;
        Out(out_user_ptr).set(std::ptr::with_exposed_provenance_mut(of(comm, win)?.base));
        Ok(())
    }
}
