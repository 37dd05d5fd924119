//! Windows: memory that every rank of a communicator has registered, and one-sided operations on
//! it.
//!
//! Access from kernels is not emulated. Invariant: the handle of a window is never reused, so that
//! the use of a deregistered window is detected; it ends the process, because in NCCL its behaviour
//! is undefined.

use core::ffi::{c_int, c_uint, c_void};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use crate::abi::{Code, Result, Stream, WaitSignalDesc, fail, invalid, misuse};
use crate::comm::{self, Comm, CommPtr, Out, not_null, undefined};
use crate::compute::DType;
use crate::derive;
use crate::execute::{Work, read, write};
use crate::mailbox::{self, Channel, Slot};
use crate::settings::{self, Noop};
use crate::{collectives, counters, group};

/// One rank's view of a window.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    /// The communicator's handle, as a number.
    comm: usize,
    /// The window's number in its communicator, the same in all ranks.
    number: u64,
    pub(crate) base: usize,
    pub(crate) bytes: usize,
    is_symmetric: bool,
    /// Address and length of each rank's memory in its process.
    places: Vec<(usize, usize)>,
    /// An address range for kernels only; 0 without multicast.
    multimem: usize,
}

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

static WINDOWS: LazyLock<Mutex<HashMap<usize, Arc<Window>>>> = LazyLock::new(Mutex::default);

fn windows() -> MutexGuard<'static, HashMap<usize, Arc<Window>>> {
    WINDOWS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the number of windows.
pub(crate) fn count() -> i64 {
    windows().len() as i64
}

/// Removes a communicator's windows and returns their number.
pub(crate) fn forget_all(comm: CommPtr) -> usize {
    let mut all = windows();
    let before = all.len();
    all.retain(|_, window| window.comm != comm.address());
    before - all.len()
}

/// Returns the window of a handle, which must be registered.
pub(crate) fn find(window: *mut c_void) -> Result<Arc<Window>> {
    not_null(window, "window")?;
    match windows().get(&window.addr()) {
        Some(window) => Ok(Arc::clone(window)),
        None => undefined("use of a deregistered window"),
    }
}

fn of(comm: &'static Comm, window: *mut c_void) -> Result<Arc<Window>> {
    let window = find(window)?;
    if window.comm == comm.handle().address() { Ok(window) } else { invalid("the window belongs to another communicator") }
}

/// Returns the size of the LSA teams: blocks of ranks of one process, if all blocks have the same
/// size.
pub(crate) fn lsa_size(comm: &Comm) -> i32 {
    let addresses = &comm.who().addresses;
    let block = addresses.iter().take_while(|address| *address == &addresses[0]).count();
    let mut blocks: Vec<_> = addresses.chunks(block).map(|chunk| (chunk.len(), chunk)).collect();
    let even = blocks.iter().all(|(length, chunk)| *length == block && chunk.iter().all(|address| *address == chunk[0]));
    blocks.sort_by_key(|(_, chunk)| chunk[0].clone());
    let distinct = blocks.windows(2).all(|pair| pair[0].1[0] != pair[1].1[0]);
    if even && distinct { block as i32 } else { 1 }
}

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
    let number = derive::next_control(comm);
    let run = move || {
        let own = [(base as u64).to_le_bytes(), (bytes as u64).to_le_bytes()].concat();
        let all = derive::exchange(comm, &derive::everybody(comm), number, &own, &|| comm.stopped())?;
        let word = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes")) as usize;
        let places = all.iter().map(|bytes| (word(bytes, 0), word(bytes, 8))).collect();
        let rank = comm.who().rank;
        let handle = Handle { host: std::ptr::null(), base, lsa_rank: rank % lsa_size(comm), world_rank: rank, rest: [0; 9] };
        let handle: *mut c_void = std::ptr::from_mut(Box::leak(Box::new(handle))).cast();
        let multimem = reserve(bytes);
        let window = Window { comm: comm.handle().address(), number, base, bytes, is_symmetric, places, multimem };
        windows().insert(handle.addr(), Arc::new(window));
        // Nobody may put into a window before its owner knows it.
        derive::exchange(comm, &derive::everybody(comm), number | 1 << 62, &[], &|| comm.stopped())?;
        out.set(handle);
        Ok(())
    };
    group::submit_job_silently(group::Job {
        comm: None,
        parent: Some(comm),
        handle: Out(std::ptr::null_mut()),
        run: Box::new(run),
    })
}

/// An operation on another rank's window or signals.
#[derive(Clone, Debug)]
pub(crate) enum OneSided {
    Put { from: usize, bytes: usize, peer: i32, window: u64, offset: usize, signal: i32, context: i32 },
    Signal { peer: i32, signal: i32, context: i32 },
    Wait(Vec<WaitSignalDesc>),
}

impl OneSided {
    /// Returns whether it does not wait for other ranks.
    pub(crate) fn is_outgoing(&self) -> bool {
        !matches!(self, Self::Wait(_))
    }
}

/// Runs a one-sided operation; `None` if it was stopped.
pub(crate) fn run(comm: &Comm, work: &OneSided) -> Option<()> {
    let mut message = Vec::new();
    let head =
        |message: &mut Vec<u8>, words: [u64; 4]| words.iter().for_each(|word| message.extend_from_slice(&word.to_le_bytes()));
    let peer = match work {
        OneSided::Put { from, bytes, peer, window, offset, signal, context } => {
            head(&mut message, [*window, *offset as u64, *signal as u64, *context as u64]);
            message.extend_from_slice(&read(*from, *bytes));
            *peer
        }
        OneSided::Signal { peer, signal, context } => {
            head(&mut message, [0, 0, *signal as u64, *context as u64]);
            *peer
        }
        OneSided::Wait(wanted) => return wait(comm, wanted),
    };
    comm.send(peer, Channel::OneSided, 0, message.into());
    Some(())
}

fn wait(comm: &Comm, wanted: &[WaitSignalDesc]) -> Option<()> {
    for one in wanted {
        let key = (one.peer, one.signal, one.context);
        let came = || {
            let mut state = comm.state();
            let count = state.signals.entry(key).or_default();
            let enough = *count >= one.count as u64;
            if enough {
                *count -= one.count as u64;
            }
            enough
        };
        let got = std::cell::Cell::new(false);
        mailbox::wait_until(
            &|| {
                got.set(came());
                got.get() || comm.stopped()
            },
            None,
        );
        if !got.get() {
            return None;
        }
    }
    Some(())
}

/// Handles a put or signal for a rank of this process.
pub(crate) fn apply(slot: Slot, bytes: &[u8]) {
    let word = |index: usize| u64::from_le_bytes(bytes[index * 8..index * 8 + 8].try_into().expect("eight bytes"));
    let matches = |comm: &&Comm| comm.members.get().is_some_and(|members| members.id == slot.comm && members.rank == slot.to);
    let Some(comm) = comm::live().into_iter().find(matches) else { return };
    let data = &bytes[32..];
    if !data.is_empty() {
        let all = windows();
        let found = all.values().find(|window| window.comm == comm.handle().address() && window.number == word(0));
        let Some(window) = found else { undefined("a put into a deregistered window") };
        // The sender has checked the bounds. The lock prevents the window from being deregistered
        // during the write.
        write(window.base + word(1) as usize, data);
    }
    *comm.state().signals.entry((slot.from, word(2) as i32, word(3) as i32)).or_default() += 1;
    mailbox::interrupt();
}

fn check_signal(comm: &Comm, peer: c_int, signal: c_int, context: c_int) -> Result {
    collectives::check_peer(comm, peer, "peer")?;
    if signal < 0 || signal >= comm.config.num_rma_sig {
        return invalid(format!("invalid signal index {signal} (the communicator has {} signals)", comm.config.num_rma_sig));
    }
    if context < 0 || context >= comm.config.num_rma_ctx {
        return invalid(format!("invalid context {context} (the communicator has {} contexts)", comm.config.num_rma_ctx));
    }
    Ok(())
}

fn pointer(window: &Window, offset: usize, place: Option<usize>, out: *mut *mut c_void) -> Result {
    not_null(out, "outPtr")?;
    if offset >= window.bytes {
        return invalid(format!("offset {offset} is not in the window of {} bytes", window.bytes));
    }
    Out(out).set(place.map_or(std::ptr::null_mut(), |base| std::ptr::with_exposed_provenance_mut(base + offset)));
    Ok(())
}

fn owner(window: &Window) -> &'static Comm {
    let found = comm::live().into_iter().find(|comm| comm.handle().address() == window.comm);
    found.unwrap_or_else(|| undefined("use of a destroyed communicator's window"))
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

    /// Returns the address at which a kernel of this rank accesses the memory of a rank with direct
    /// access.
    fn ncclGetLsaDevicePointer(window: *mut c_void, offset: usize, lsa_rank: c_int, out_ptr: *mut *mut c_void) {
        let window = find(window)?;
        let comm = owner(&window);
        let size = lsa_size(comm);
        if lsa_rank < 0 || lsa_rank >= size {
            return invalid(format!("invalid LSA rank {lsa_rank} in a team of {size} ranks"));
        }
        let first = comm.who().rank / size * size;
        pointer(&window, offset, Some(window.places[(first + lsa_rank) as usize].0), out_ptr)
    }

    /// Returns the address at which a kernel accesses the memory of a rank of the communicator;
    /// null without direct access.
    fn ncclGetPeerDevicePointer(window: *mut c_void, offset: usize, peer: c_int, out_ptr: *mut *mut c_void) {
        let window = find(window)?;
        let comm = owner(&window);
        collectives::check_peer(comm, peer, "peer")?;
        let size = lsa_size(comm);
        let reachable = peer / size == comm.who().rank / size;
        pointer(&window, offset, reachable.then(|| window.places[peer as usize].0), out_ptr)
    }

    /// Returns the multicast address of all ranks with direct access; null without multicast.
    fn ncclGetLsaMultimemDevicePointer(window: *mut c_void, offset: usize, out_ptr: *mut *mut c_void) {
        let window = find(window)?;
        pointer(&window, offset, (window.multimem != 0).then_some(window.multimem), out_ptr)
    }

    /// Returns the multicast address of a team by its handle.
    fn ncclGetMultimemDevicePointer(window: *mut c_void, offset: usize, multimem: usize, out_ptr: *mut *mut c_void) {
        let window = find(window)?;
        pointer(&window, offset, (window.multimem != 0 && multimem != 0).then_some(window.multimem), out_ptr)
    }

    /// Returns endpoints of hardware that this library does not emulate.
    fn ncclGetMultimemDeviceLeInfo(window: *mut c_void, _offset: usize, _le_id: *mut c_uint, _le_offset: *mut usize) {
        find(window)?;
        misuse("CFT is not supported")
    }

    /// Returns an error, like [`ncclGetMultimemDeviceLeInfo`].
    fn ncclGetCftDeviceLeInfo(window: *mut c_void, _offset: usize, _peer: c_int, _team: crate::abi::Team, _le_id: *mut c_uint,
        _le_offset: *mut usize) {
        find(window)?;
        misuse("CFT is not supported")
    }

    /// Returns an error, like [`ncclGetMultimemDeviceLeInfo`].
    fn ncclGetPeerDeviceLeInfo(window: *mut c_void, _offset: usize, _peer: c_int, _le_id: *mut c_uint, _le_offset: *mut usize) {
        find(window)?;
        misuse("CFT is not supported")
    }

    /// Writes into a rank's window and signals it.
    fn ncclPutSignal(localbuff: *const c_void, count: usize, datatype: c_int, peer: c_int, peer_win: *mut c_void,
        peer_win_offset: usize, sig_idx: c_int, ctx: c_int, flags: c_uint, comm: CommPtr, stream: Stream) {
        counters::COLLECTIVES.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if settings::get().noop != Noop::Off {
            return collectives::without_work(comm, stream);
        }
        let comm = comm.usable()?;
        check_signal(comm, peer, sig_idx, ctx)?;
        let window = of(comm, peer_win)?;
        let Some(bytes) = DType::from_number(datatype)?.size().checked_mul(count) else {
            return invalid(format!("count {count} is too large"));
        };
        let size = window.places[peer as usize].1;
        if flags != 0 || peer_win_offset.checked_add(bytes).is_none_or(|end| end > size) {
            return invalid(format!("{bytes} bytes at {peer_win_offset} are not in the peer's window of {size} bytes (flags {flags})"));
        }
        if bytes > 0 {
            not_null(localbuff, "localbuff")?;
        }
        let from = localbuff.expose_provenance();
        if !window.is_symmetric {
            return invalid("ncclPutSignal requires a window registered for RMA");
        }
        let holds = |own: &Window| {
            own.comm == window.comm && own.is_symmetric && own.base <= from && from + bytes <= own.base + own.bytes
        };
        if !windows().values().any(|own| holds(own)) {
            return invalid("the source of ncclPutSignal is in no symmetric window");
        }
        let put = OneSided::Put { from, bytes, peer, window: window.number, offset: peer_win_offset, signal: sig_idx, context: ctx };
        collectives::submit(comm, stream, Work::OneSided(put), None)
    }

    /// Signals a rank.
    fn ncclSignal(peer: c_int, sig_idx: c_int, ctx: c_int, flags: c_uint, comm: CommPtr, stream: Stream) {
        let comm = comm.usable()?;
        check_signal(comm, peer, sig_idx, ctx)?;
        if flags != 0 {
            return invalid(format!("invalid flags {flags}"));
        }
        collectives::submit(comm, stream, Work::OneSided(OneSided::Signal { peer, signal: sig_idx, context: ctx }), None)
    }

    /// Waits for signals, and consumes them.
    fn ncclWaitSignal(n_desc: c_int, signal_descs: *const WaitSignalDesc, comm: CommPtr, stream: Stream) {
        let comm = comm.usable()?;
        if n_desc < 1 {
            return invalid(format!("invalid number of signal descriptors: {n_desc}"));
        }
        not_null(signal_descs, "signalDescs")?;
        // SAFETY: the program promises this many descriptors there.
        let wanted = unsafe { std::slice::from_raw_parts(signal_descs, n_desc as usize) }.to_vec();
        for one in &wanted {
            check_signal(comm, one.peer, one.signal, one.context)?;
            if one.count < 1 {
                return fail(Code::InvalidArgument, format!("invalid number of signals to wait for: {}", one.count));
            }
        }
        collectives::submit(comm, stream, Work::OneSided(OneSided::Wait(wanted)), None)
    }
}
