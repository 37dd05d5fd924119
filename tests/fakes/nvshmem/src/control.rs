//! The memory that all PEs of a job share besides their heaps: their data, and a slot for the
//! exchanges of each team.
//!
//! `meet` implements the exchanges. Invariant: zeroed memory is a valid initial state, and it stays
//! mapped as long as the process lives.

use core::cell::UnsafeCell;
use core::ffi::c_void;
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use crate::abi::{Code, Result, UniqueId, fail, invalid, word};

/// Maximum number of PEs of a job.
pub(crate) const MAX_PES: usize = 32;
/// Maximum number of teams of a job, including the predefined ones.
pub(crate) const MAX_TEAMS: usize = 512;
/// Index of the first team that is not predefined.
pub(crate) const FIRST_MADE: usize = 8;

/// The data of one PE.
#[repr(C)]
pub(crate) struct Card {
    /// 0 unused, 1 being written, 2 written.
    pub(crate) state: AtomicU32,
    pub(crate) process: AtomicU32,
    pub(crate) heap_bytes: AtomicU64,
    pub(crate) uuid: [AtomicU64; 2],
    pub(crate) version: AtomicU64,
    pub(crate) algorithms: AtomicU64,
}

/// The data of a member in an exchange.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Record {
    /// Name of the exchange, the same on all members.
    pub(crate) name: [u8; 64],
    /// The arguments that must be the same on all members.
    pub(crate) same: [u64; 6],
    /// Data of each member.
    pub(crate) own: [u64; 4],
}

/// The state of one member in a channel.
#[repr(C)]
pub(crate) struct Member {
    /// Number of exchanges that the member has joined.
    pub(crate) count: AtomicU64,
    /// The member's data in the last two exchanges: a member that is one exchange ahead must not
    /// overwrite data that others still read.
    pub(crate) records: [UnsafeCell<Record>; 2],
}

/// Slot of a team's exchanges.
#[repr(C)]
pub(crate) struct TeamSlot {
    pub(crate) used: AtomicU32,
    /// Number of members that have destroyed the team.
    pub(crate) left: AtomicU32,
    /// One channel for setup calls, one for collectives.
    pub(crate) channels: [[Member; MAX_PES]; 2],
}

/// A slot by which the members of a team created by id find each other.
#[repr(C)]
pub(crate) struct IdSlot {
    pub(crate) id: AtomicU64,
    /// PE of each member plus one, by index.
    pub(crate) members: [AtomicI32; MAX_PES],
    /// The team's slot plus one.
    pub(crate) team: AtomicU32,
    pub(crate) left: AtomicU32,
}

/// The whole shared memory.
#[repr(C)]
pub(crate) struct Control {
    /// Number of PEs; 0 until one sets it.
    pub(crate) ranks: AtomicI32,
    /// The exit status plus one after a global exit.
    pub(crate) exit: AtomicI32,
    pub(crate) cards: [Card; MAX_PES],
    pub(crate) ids: [IdSlot; 32],
    pub(crate) teams: [TeamSlot; MAX_TEAMS],
}

// SAFETY: shared is mapped memory, with threads and with other processes; everything in it is
// atomic but the records, which are synchronised by their member's count: written by that member
// alone before it counts a meeting, read by others after that (`meet`). The test
// `collectives_move_and_compute_in_stream_order`, with three processes, would catch a mistake.
unsafe impl Sync for Control {}

const PREFIX: &str = "peerweave-fake-nvshmem:";
const MAGIC: &[u8; 8] = b"pwfakenv";

fn system<T>(what: &str) -> Result<T> {
    fail(Code::INTERNAL, format!("{what}: {}", std::io::Error::last_os_error()))
}

/// Returns a random number.
pub(crate) fn random() -> u64 {
    let mut bytes = [0; 8];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.unwrap_or_else(|error| crate::log::undefined(&format!("/dev/urandom: {error}")));
    u64::from_ne_bytes(bytes) | 1
}

/// Returns the start time of a process, which together with its number identifies it forever;
/// `None` if the process has ended.
fn process_start(process: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name may hold spaces and brackets: fields are counted behind the last bracket.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Opens a file of a process, which may be another one.
pub(crate) fn open_of_process(process: u32, fd: i32) -> Result<OwnedFd> {
    let path = format!("/proc/{process}/fd/{fd}");
    let opened = OpenOptions::new().read(true).write(true).open(&path);
    opened.map(OwnedFd::from).or_else(|error| fail(Code::INTERNAL, format!("{path}: {error}")))
}

fn set_length(file: &OwnedFd) -> Result {
    // SAFETY: an open descriptor and a length.
    match unsafe { libc::ftruncate(file.as_raw_fd(), size_of::<Control>() as libc::off_t) } {
        0 => Ok(()),
        _ => system("the length of shared memory"),
    }
}

/// Creates an id for memory of this process, which must live until all PEs have connected.
pub(crate) fn new_id() -> Result<UniqueId> {
    let random = random();
    let name = CString::new(format!("{PREFIX}{random:016x}")).expect("the text contains no zero byte");
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return system("shared memory");
    }
    // SAFETY: the kernel has just given this descriptor to nobody else.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    set_length(&file)?;
    let process = std::process::id();
    let start = process_start(process).unwrap_or_default();
    let mut internal = [0; 124];
    internal[..8].copy_from_slice(MAGIC);
    internal[8..12].copy_from_slice(&process.to_ne_bytes());
    // The file stays open until the process ends, because other PEs can connect at any time.
    internal[12..16].copy_from_slice(&file.into_raw_fd().to_ne_bytes());
    internal[16..24].copy_from_slice(&start.to_ne_bytes());
    internal[24..32].copy_from_slice(&random.to_ne_bytes());
    Ok(UniqueId { version: word(1, size_of::<UniqueId>()), internal })
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the length is that of an id")
}

/// Returns the shared memory of the job with a unique id.
pub(crate) fn of_id(id: &UniqueId) -> Result<&'static Control> {
    let bytes = &id.internal;
    if &bytes[..8] != MAGIC {
        return invalid("the unique id was not created by nvshmemx_get_uniqueid");
    }
    let process = u32::from_ne_bytes(number(bytes, 8));
    let fd = i32::from_ne_bytes(number(bytes, 12));
    let start = u64::from_ne_bytes(number(bytes, 16));
    let random = u64::from_ne_bytes(number(bytes, 24));
    if process_start(process) != Some(start) {
        return fail(Code::INTERNAL, "the process that created the unique id has ended");
    }
    let file = open_of_process(process, fd)?;
    let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap_or_default();
    if !link.to_string_lossy().contains(&format!("{PREFIX}{random:016x}")) {
        return fail(Code::INTERNAL, "the memory that the unique id names no longer exists");
    }
    map(&file)
}

/// Returns the memory of a job that a launcher started, from a directory that its processes share.
pub(crate) fn of_directory(directory: &str) -> Result<&'static Control> {
    let path = std::path::Path::new(directory).join("peerweave-fake-nvshmem");
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    let file = file.map(OwnedFd::from).or_else(|error| fail(Code::INTERNAL, format!("{}: {error}", path.display())))?;
    set_length(&file)?;
    map(&file)
}

fn map(file: &OwnedFd) -> Result<&'static Control> {
    let address = map_bytes(file, size_of::<Control>())?;
    // SAFETY: this many bytes are mapped there forever, page-aligned, and any bytes that PEs of
    // this library write are valid.
    Ok(unsafe { &*(address as *const Control) })
}

/// Maps bytes of a file for this process, and returns the address.
pub(crate) fn map_bytes(file: &OwnedFd, bytes: usize) -> Result<usize> {
    // SAFETY: the kernel chooses free addresses.
    let address = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED | libc::MAP_NORESERVE, file.as_raw_fd(), 0)
    };
    if address == libc::MAP_FAILED { system("mapping shared memory") } else { Ok(address.addr()) }
}

/// Unmaps bytes that [`map_bytes`] mapped.
pub(crate) fn unmap_bytes(address: usize, bytes: usize) {
    // SAFETY: the bytes were mapped by `map_bytes`, and whoever used them has been waited for.
    unsafe { libc::munmap(address as *mut c_void, bytes) };
}

/// Reserves addresses that fault when they are accessed, instead of multicast memory.
pub(crate) fn reserve(bytes: usize) -> Result<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: the kernel chooses free addresses.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
    if address == libc::MAP_FAILED { system("reserving addresses") } else { Ok(address.addr()) }
}

impl Control {
    /// Allocates a free slot for a team, and clears it.
    pub(crate) fn take_team(&self) -> Option<usize> {
        (FIRST_MADE..MAX_TEAMS).find(|index| {
            let slot = &self.teams[*index];
            let free = slot.used.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            if free {
                slot.left.store(0, Ordering::Relaxed);
                for member in slot.channels.iter().flatten() {
                    member.count.store(0, Ordering::Relaxed);
                }
            }
            free
        })
    }
}
