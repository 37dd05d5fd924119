//! Device communicators: the struct that kernels take, in the layout of the NCCL version for which
//! the kernels were compiled. Also the properties of a communicator.
//!
//! Kernels, GIN and CFT are not supported. Invariant: no byte outside the caller's version of the
//! struct is written, and a version newer than the library is refused.

use core::ffi::{c_int, c_void};

use super::teams::{self, ResourceRequirements};
use crate::abi::{Header, MAGIC, Out, Result, Team, invalid, misuse, not_null};
use crate::call::exports;
use crate::comm::{Comm, CommPtr};
use crate::groups::exchange::{everybody, exchange, next_control};
use crate::groups::{Job, group};
use crate::settings;

/// `ncclCommProperties_t`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Properties {
    header: Header,
    rank: c_int,
    ranks: c_int,
    cuda_device: c_int,
    nvml_device: c_int,
    device_api: bool,
    multimem: bool,
    gin_type: c_int,
    lsa_teams: c_int,
    host_rma: bool,
    railed_gin_type: c_int,
    comm_hash: u64,
    gin_min_stride: c_int,
    gin_connection: c_int,
    gin_support: [bool; 64],
    device_comm_bytes: usize,
    cft: [bool; 3],
}

/// `ncclDevCommRequirements_t`, with bytes for booleans because the program writes them.
#[derive(Clone, Copy)]
#[repr(C)]
struct Requirements {
    header: Header,
    resources: *mut ResourceRequirements,
    teams: *mut TeamRequirements,
    lsa_multimem: u8,
    barriers: c_int,
    lsa_barriers: c_int,
    rail_gin_barriers: c_int,
    lla2a_blocks: c_int,
    lla2a_slots: c_int,
    gin_force: u8,
    gin_contexts: c_int,
    gin_signals: c_int,
    gin_counters: c_int,
    gin_connection: c_int,
    gin_exclusive: u8,
    gin_queue_depth: c_int,
    gin_traffic_class: c_int,
    world_gin_barriers: c_int,
    gin_strong_signals: u8,
    gin_va_signals: u8,
    gin_custom_stride: c_int,
    gin_type: c_int,
    use_runtime_version: u8,
    cft_caps: c_int,
    cft_barriers: c_int,
}

/// `ncclTeamRequirements_t`.
#[repr(C)]
struct TeamRequirements {
    next: *mut TeamRequirements,
    team: Team,
    multimem: u8,
    out_multimem: *mut usize,
}

/// First fields of all layouts of `ncclDevComm` since 2.30.3; older ones lack the first two.
#[derive(Clone, Copy)]
#[repr(C)]
struct Head {
    magic: u32,
    version: u32,
    rank: c_int,
    ranks: c_int,
    ranks_rcp32: u32,
    lsa_rank: c_int,
    lsa_size: c_int,
    lsa_size_rcp32: u32,
    window_table: usize,
    resource_window: usize,
    resource_base: usize,
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<Properties>() == 152);
    assert!(offset_of!(Properties, comm_hash) == 56);
    assert!(offset_of!(Properties, device_comm_bytes) == 136);
    assert!(size_of::<Requirements>() == 120);
    assert!(offset_of!(Requirements, use_runtime_version) == 104);
    assert!(offset_of!(Requirements, gin_connection) == 72);
    assert!(size_of::<TeamRequirements>() == 32);
    assert!(offset_of!(Head, window_table) == 32);
};

/// Size of `ncclDevComm` in the newest version that this library implements, in bytes.
const DEVICE_COMM_BYTES: usize = 248;
/// First version whose device communicators contain their layout version.
const HAS_MAGIC: u32 = 23003;
/// The version that introduced the newest layout.
const NEWEST_LAYOUT: u32 = 23200;

fn check_version(header: &Header, what: &str) -> Result {
    header.check(MAGIC, what)?;
    let checked = std::env::var("NCCL_ENABLE_VERSION_CHECK").map_or(true, |text| text != "0");
    if checked && i64::from(header.version) > i64::from(settings::get().version) {
        return misuse(format!("NCCL library is too old: {what} is of version {}", header.version));
    }
    Ok(())
}

/// Returns 2^32 divided by a number. Kernels multiply by this instead of dividing by the number.
fn reciprocal(of: c_int) -> u32 {
    (0x1_0000_0000_u64 / of as u64).min(u64::from(u32::MAX)) as u32
}

fn read_requirements(from: *const c_void) -> Result<Requirements> {
    not_null(from, "reqs")?;
    // SAFETY: the pointer is not null, and every version's struct begins with this header.
    let header = unsafe { from.cast::<Header>().read() };
    check_version(&header, "ncclDevCommRequirements_t")?;
    let mut all = Requirements {
        header,
        resources: std::ptr::null_mut(),
        teams: std::ptr::null_mut(),
        lsa_multimem: 0,
        barriers: 0,
        lsa_barriers: 0,
        rail_gin_barriers: 0,
        lla2a_blocks: 0,
        lla2a_slots: 0,
        gin_force: 0,
        gin_contexts: 4,
        gin_signals: 0,
        gin_counters: 0,
        gin_connection: 0,
        gin_exclusive: 0,
        gin_queue_depth: 0,
        gin_traffic_class: c_int::MIN,
        world_gin_barriers: 0,
        gin_strong_signals: 1,
        gin_va_signals: 1,
        gin_custom_stride: 1,
        gin_type: 0,
        use_runtime_version: 0,
        cft_caps: 0,
        cft_barriers: 0,
    };
    let length = header.size.min(size_of::<Requirements>());
    // SAFETY: the program's struct is as long as it says, and ours is not shorter than what is
    // copied.
    unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut all).cast(), length) };
    let counts = [
        all.barriers,
        all.lsa_barriers,
        all.rail_gin_barriers,
        all.lla2a_blocks,
        all.lla2a_slots,
        all.gin_contexts,
        all.gin_signals,
        all.gin_counters,
        all.gin_queue_depth,
        all.world_gin_barriers,
        all.cft_barriers,
    ];
    if let Some(count) = counts.into_iter().find(|count| *count < 0) {
        return invalid(format!("a negative count {count} in ncclDevCommRequirements_t"));
    }
    Ok(all)
}

/// Assigns every resource its offset, and returns their total size.
fn place_resources(all: &Requirements, lsa: Team) -> Result<usize> {
    let mut bytes = (3 + lsa.ranks as usize) * (all.lsa_barriers + all.barriers) as usize * 4;
    bytes += all.lla2a_blocks as usize * (1 + 2 * all.lla2a_slots as usize) * 16;
    let mut next = all.resources;
    while !next.is_null() {
        // SAFETY: the program promises a list of valid requirements.
        let one = unsafe { next.read() };
        if one.gin_signals > 0 || one.gin_counters > 0 {
            return invalid("GIN resources require a GIN connection type");
        }
        if one.bytes > 0 {
            // Handles count in units of 128 bytes.
            bytes = bytes.next_multiple_of(one.align.max(128));
            if !one.out_buffer.is_null() {
                Out(one.out_buffer).set((bytes / 128) as u32);
            }
            bytes += one.bytes;
        }
        next = one.next;
    }
    Ok(bytes)
}

fn place_multimem(all: &Requirements) -> Result {
    let supported = settings::get().multimem;
    if all.lsa_multimem != 0 && !supported {
        return misuse("multimem is not supported by this communicator");
    }
    let mut next = all.teams;
    while !next.is_null() {
        // SAFETY: the program promises a list of valid requirements.
        let one = unsafe { next.read() };
        if one.multimem != 0 && !supported {
            return misuse("multimem is not supported by this communicator");
        }
        if !one.out_multimem.is_null() {
            Out(one.out_multimem).set(if one.multimem != 0 { 1 } else { 0 });
        }
        next = one.next;
    }
    Ok(())
}

fn create(comm: &'static Comm, all: &Requirements, out: *mut c_void) -> Result {
    let wants_gin = all.gin_signals + all.gin_counters + all.rail_gin_barriers + all.world_gin_barriers > 0;
    if all.gin_connection == 0 && (wants_gin || all.barriers > 0 && comm.who().lsa_size() < comm.who().ranks()) {
        return invalid("GIN resources require a GIN connection type");
    }
    if all.gin_connection != 0 || all.gin_force != 0 {
        return misuse("GIN is not supported");
    }
    if all.cft_caps != 0 || all.cft_barriers > 0 {
        return misuse("CFT is not supported");
    }
    place_multimem(all)?;
    let lsa = teams::lsa(comm);
    let bytes = place_resources(all, lsa)?;
    let own = settings::get().version as u32;
    let version = if all.use_runtime_version != 0 { own } else { all.header.version.min(own) };
    let number = next_control(comm);
    let out = Out(out.cast::<u8>());
    let description = [bytes as u64, u64::from(version)].map(u64::to_le_bytes).concat();
    let run = move || {
        // Captures the whole value, not only its pointer field, so that the closure may run on
        // another thread.
        let out = &out;
        let others = exchange(comm, &everybody(comm), number, &description, &|| comm.stopped())?;
        if others.iter().any(|other| other[..] != description[..]) {
            return invalid("ranks disagree on the requirements of a device communicator");
        }
        let buffer = vec![0; bytes.div_ceil(8).max(1)];
        let who = comm.who();
        let head = Head {
            magic: MAGIC,
            version,
            rank: who.rank,
            ranks: who.ranks(),
            ranks_rcp32: reciprocal(who.ranks()),
            lsa_rank: lsa.rank,
            lsa_size: lsa.ranks,
            lsa_size_rcp32: reciprocal(lsa.ranks),
            window_table: 0,
            resource_window: 0,
            resource_base: buffer.as_ptr().expose_provenance(),
        };
        let skipped = if version >= HAS_MAGIC { 0 } else { 8 };
        let known = if version >= NEWEST_LAYOUT { size_of::<Head>() } else { 32 };
        let whole = if version >= NEWEST_LAYOUT { DEVICE_COMM_BYTES } else { 32 - skipped };
        // SAFETY: the program promises the struct of the version that it asked for, of which this
        // is at most the length.
        unsafe {
            out.0.write_bytes(0, whole);
            std::ptr::copy_nonoverlapping((&raw const head).cast::<u8>().add(skipped), out.0, known - skipped);
        }
        comm.state().device_comms.push(buffer);
        Ok(())
    };
    group::submit_job_silently(Job { comm: None, parent: Some(comm), handle: Out(std::ptr::null_mut()), run: Box::new(run) })
}

exports! {
    /// Returns the properties of a communicator.
    fn ncclCommQueryProperties(comm: CommPtr, props: *mut c_void) {
        let comm = comm.ready()?;
        not_null(props, "props")?;
        // SAFETY: the pointer is not null, and every version's struct begins with this header.
        let header = unsafe { props.cast::<Header>().read() };
        check_version(&header, "ncclCommProperties_t")?;
        let who = comm.who();
        let version = settings::get().version;
        let all = Properties {
            header,
            rank: who.rank,
            ranks: who.ranks(),
            cuda_device: comm.device,
            nvml_device: comm.device,
            device_api: true,
            multimem: settings::get().multimem,
            gin_type: 0,
            lsa_teams: who.ranks() / comm.who().lsa_size(),
            host_rma: true,
            railed_gin_type: 0,
            comm_hash: who.id as u64,
            gin_min_stride: 1,
            gin_connection: 0,
            gin_support: [false; 64],
            device_comm_bytes: if version >= 23100 { DEVICE_COMM_BYTES } else { 0 },
            cft: [false; 3],
        };
        // The oldest form has 40 bytes: the type of GIN is a byte after the flags, and the number
        // of teams in its place.
        let longest = if header.version < 22907 { 40 } else { size_of::<Properties>() };
        let gin_type = if longest == 40 { all.lsa_teams } else { all.gin_type };
        let all = Properties { gin_type, ..all };
        let length = header.size.min(longest);
        if length > size_of::<Header>() {
            // SAFETY: the program's struct is as long as it says, and ours is not shorter.
            unsafe { std::ptr::copy_nonoverlapping((&raw const all).cast::<u8>().add(16), props.cast::<u8>().add(16), length - 16) };
        }
        Ok(())
    }

    /// Creates a device communicator. Collective.
    fn ncclDevCommCreate(comm: CommPtr, reqs: *const c_void, out_dev_comm: *mut c_void) {
        let comm = comm.usable()?;
        not_null(out_dev_comm, "outDevComm")?;
        create(comm, &read_requirements(reqs)?, out_dev_comm)
    }

    /// Destroys a device communicator.
    fn ncclDevCommDestroy(comm: CommPtr, dev_comm: *const c_void) {
        let comm = comm.ready()?;
        not_null(dev_comm, "devComm")?;
        // The program may pass a copy, so any device communicator of this communicator is removed.
        match comm.state().device_comms.pop() {
            Some(_) => Ok(()),
            None => invalid("the communicator has no such device communicator"),
        }
    }
}
