//! Initialization and finalization: ids, attributes, connection of the PEs, the heap, the
//! predefined teams; and queries that are allowed before.
//!
//! MPI, SHMEM and PMI are not emulated. Invariant: either all PEs of a job are initialized, or no
//! initialization returns success.

use core::ffi::{c_char, c_int, c_void};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};

use crate::abi::{
    Code, Fail, InitArgs, InitAttr, Result, UniqueId, UniqueIdArgs, WITH_ID, WITH_MPI, WITH_SHMEM, fail, invalid, word,
};
use crate::control::{self, Card, Control, MAX_PES};
use crate::log::{complain, undefined};
use crate::meet::{Channel, Team, record, wait_for};
use crate::memory::{Memory, Region};
use crate::version::INIT_LAYOUT_2;
use crate::world::{Growth, Parts, State, World, state};
use crate::{call, counters, driver, settings, teams};

/// NVSHMEM's own variables, read once: when an id is created or when NVSHMEM starts, whichever is
/// first.
static OPTIONS: LazyLock<HashMap<String, String>> =
    LazyLock::new(|| std::env::vars().filter(|(name, _)| name.starts_with("NVSHMEM_")).collect());

fn option(name: &str) -> Option<String> {
    OPTIONS.get(name).filter(|text| !text.is_empty()).cloned()
}

/// Parses a number of bytes with a unit, as NVSHMEM does.
fn bytes_of(name: &str) -> Result<Option<u64>> {
    let Some(text) = option(name) else { return Ok(None) };
    let split = text.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(text.len());
    let shift = match text[split..].trim().to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" => 10,
        "M" | "MB" => 20,
        "G" | "GB" => 30,
        "T" | "TB" => 40,
        _ => return invalid(format!("{name}={text}")),
    };
    let number: Option<u64> = text[..split].parse().ok();
    number.and_then(|number| number.checked_mul(1 << shift)).map(Some).map_or_else(|| invalid(format!("{name}={text}")), Ok)
}

fn is_on(name: &str) -> bool {
    option(name).is_some_and(|text| !matches!(text.as_str(), "0" | "n" | "no" | "false"))
}

fn heap_bytes() -> Result<usize> {
    let wanted = match settings::get().heap_bytes {
        Some(bytes) => bytes,
        None => bytes_of("NVSHMEM_SYMMETRIC_SIZE")?.unwrap_or(1 << 30),
    };
    match usize::try_from(wanted.max(1)).ok().and_then(|bytes| bytes.checked_next_multiple_of(driver::GRANULARITY)) {
        Some(bytes) => Ok(bytes),
        None => invalid("the size of the symmetric heap"),
    }
}

fn check_words(attr: &InitAttr) -> Result {
    let layouts: &[c_int] = if settings::get().version >= INIT_LAYOUT_2 { &[1, 2] } else { &[1] };
    let fits = |found: c_int, bytes: usize| layouts.iter().any(|layout| found == word(*layout, bytes));
    if !fits(attr.version, size_of::<InitAttr>()) || !fits(attr.args.version, size_of::<InitArgs>()) {
        return invalid(format!(
            "the version words {} and {} of the attributes are not those of this library",
            attr.version, attr.args.version
        ));
    }
    if attr.args.uid.version != word(1, size_of::<UniqueIdArgs>()) {
        return invalid(format!("the version word {} of the id's arguments is not supported", attr.args.uid.version));
    }
    Ok(())
}

/// Determines the PEs' shared memory, this PE, and the number of PEs.
fn bootstrap(flags: u32, attr: &InitAttr) -> Result<(&'static Control, c_int, c_int)> {
    if flags & WITH_ID != 0 {
        let UniqueIdArgs { id, rank, ranks, .. } = attr.args.uid;
        if id.is_null() {
            return invalid("the unique id is null");
        }
        // SAFETY: guaranteed by the caller: it points to an id.
        let id = unsafe { id.read() };
        if id.version != word(1, size_of::<UniqueId>()) {
            return invalid(format!("the version word {} of the unique id is not supported", id.version));
        }
        return Ok((control::of_id(&id)?, rank, ranks));
    }
    if flags & (WITH_MPI | WITH_SHMEM) != 0 {
        return fail(Code::NOT_SUPPORTED, "the bootstrap plug-ins of MPI and SHMEM are not available");
    }
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    match (&settings::get().directory, number("PMI_RANK"), number("PMI_SIZE")) {
        (Some(directory), Some(rank), Some(ranks)) => Ok((control::of_directory(directory)?, rank, ranks)),
        _ => fail(Code::INTERNAL, "no launcher: PMI_RANK, PMI_SIZE and PEERWEAVE_FAKE_NVSHMEM_DIR are not set"),
    }
}

/// Returns the device to initialize, and its context.
fn device(attr: &InitAttr) -> Result<(c_int, usize)> {
    let wanted = if attr.args.version == word(2, size_of::<InitArgs>()) { attr.args.device } else { -1 };
    if wanted >= 0 {
        return Ok(driver::device_of_ordinal(wanted)?);
    }
    driver::current_device()?.map_or_else(|| fail(Code::GPU_NOT_SELECTED, "no context is current, and no device was passed"), Ok)
}

fn version_number() -> u64 {
    let version = settings::get().version;
    (version.0 * 10_000 + version.1 * 100 + version.2) as u64
}

/// Returns a digest of the settings that determine the algorithms of collectives and the number of
/// teams.
fn algorithms() -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    const NAMES: [&str; 7] =
        ["MAX_TEAMS", "DISABLE_NCCL", "REDUCE_ALGO", "BCAST_ALGO", "FCOLLECT_ALGO", "REDUCESCATTER_ALGO", "MAX_CTAS"];
    let mut hasher = DefaultHasher::new();
    NAMES.iter().for_each(|name| option(&format!("NVSHMEM_{name}")).hash(&mut hasher));
    hasher.finish()
}

/// Registers this PE and waits for all PEs; checks their processes and whether GPUs are shared.
fn join(control: &'static Control, pe: c_int, ranks: c_int, device: c_int, bytes: usize) -> Result<(Vec<u32>, bool)> {
    if !(1..=MAX_PES as c_int).contains(&ranks) || !(0..ranks).contains(&pe) {
        return invalid(format!("PE {pe} does not exist in a job of {ranks} PEs"));
    }
    let before = control.ranks.compare_exchange(0, ranks, Ordering::AcqRel, Ordering::Acquire);
    if let Err(others) = before
        && others != ranks
    {
        return invalid(format!("this PE reports {ranks} PEs, other PEs report {others}"));
    }
    let card = &control.cards[pe as usize];
    if card.state.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return invalid(format!("PE {pe} has joined already"));
    }
    let uuid = driver::uuid(device)?;
    card.process.store(std::process::id(), Ordering::Relaxed);
    card.heap_bytes.store(bytes as u64, Ordering::Relaxed);
    for (half, place) in uuid.chunks_exact(8).zip(&card.uuid) {
        place.store(u64::from_ne_bytes(half.try_into().expect("eight bytes")), Ordering::Relaxed);
    }
    card.version.store(version_number(), Ordering::Relaxed);
    card.algorithms.store(algorithms(), Ordering::Relaxed);
    card.state.store(2, Ordering::Release);
    let cards = &control.cards[..ranks as usize];
    for (other, card) in cards.iter().enumerate() {
        wait_for(control, || card.state.load(Ordering::Acquire) == 2, || format!("PE {other} to initialise NVSHMEM"));
    }
    let heap = |card: &Card| card.heap_bytes.load(Ordering::Relaxed);
    if let Some(other) = cards.iter().position(|card| heap(card) != heap(&cards[0])) {
        return fail(
            Code::SYMMETRY,
            format!("PE {other} has a heap of {} bytes, PE 0 has one of {} bytes", heap(&cards[other]), heap(&cards[0])),
        );
    }
    let version = |card: &Card| card.version.load(Ordering::Relaxed);
    if let Some(other) = cards.iter().position(|card| version(card) != version(&cards[0])) {
        return fail(Code::INTERNAL, format!("PE {other} has another version of NVSHMEM than PE 0"));
    }
    let algorithm = |card: &Card| card.algorithms.load(Ordering::Relaxed);
    if let Some(other) = cards.iter().position(|card| algorithm(card) != algorithm(&cards[0])) {
        // NVSHMEM does not see it: the first collective never ends.
        undefined(&format!("PE {other} has different settings for collectives or for the number of teams than PE 0"));
    }
    let uuid = |card: &Card| [0, 1].map(|half: usize| card.uuid[half].load(Ordering::Relaxed));
    let shared = (0..cards.len()).find(|other| cards[..*other].iter().any(|card| uuid(card) == uuid(&cards[*other])));
    if let Some(other) = shared
        && !settings::get().share_gpu
    {
        return fail(Code::NOT_SUPPORTED, format!("PE {other} uses the GPU of another PE"));
    }
    Ok((cards.iter().map(|card| card.process.load(Ordering::Relaxed)).collect(), shared.is_some()))
}

/// Initialises after the PEs are connected.
fn begin(attr: &InitAttr, (control, pe, ranks): (&'static Control, c_int, c_int)) -> Result<World> {
    let (device, context) = device(attr)?;
    let bytes = heap_bytes()?;
    let max_teams = match option("NVSHMEM_MAX_TEAMS") {
        None => 128,
        Some(text) => text.parse().or_else(|_| invalid(format!("NVSHMEM_MAX_TEAMS={text}")))?,
    };
    let (processes, shares_gpu) = join(control, pe, ranks, device, bytes)?;
    let remote = option("NVSHMEM_REMOTE_TRANSPORT").unwrap_or_default();
    if ranks > 1 && is_on("NVSHMEM_DISABLE_P2P") && remote == "none" {
        return fail(Code::INTERNAL, "there is no transport to other PEs");
    }
    let growth = match is_on("NVSHMEM_DISABLE_CUDA_VMM") {
        true => Growth::Fixed,
        false => Growth::By(bytes_of("NVSHMEM_CUMEM_GRANULARITY")?.map_or(512 << 20, |step| step as usize)),
    };
    let team = Arc::new(Team::new(control, 0, 0, (0..ranks).collect(), pe));
    let map = || {
        let mut turn = team.turn(Channel::Setup);
        let made = driver::create(device, bytes);
        let all = turn.meet(record(&[bytes as u64], &[u64::from(made.is_ok())]));
        let handle = made.or_else(|failure| fail(Code::OUT_OF_MEMORY, Fail::from(failure).text))?;
        if let Some(other) = all.iter().position(|theirs| theirs.own[0] == 0) {
            return fail(Code::OUT_OF_MEMORY, format!("PE {other} has no memory for the symmetric heap"));
        }
        Region::map(&mut turn, &processes, pe as usize, device, handle, bytes, 0)
    };
    let mut heap = driver::with_context(context, map)?;
    if is_on("NVSHMEM_DISABLE_P2P") {
        for (other, peer) in heap.peers.iter_mut().enumerate().filter(|(other, _)| *other != pe as usize) {
            if let Some(given) = peer.given.take() {
                driver::unmap(given, bytes)
                    .map_err(Fail::from)
                    .or_else(|failure| fail(failure.code, format!("PE {other}: {}", failure.text)))?;
            }
        }
    }
    let multicast = settings::get().multicast && !is_on("NVSHMEM_DISABLE_NVLS");
    let multicast = if multicast { control::reserve(bytes)? } else { 0 };
    let memory = Memory { live: true, regions: vec![Some(heap)], multicast, ..Memory::default() };
    let world = World::new(Parts { pe, ranks, device, context, processes, control, team, max_teams, shares_gpu, growth }, memory);
    teams::predefine(&world);
    Ok(world)
}

/// Finalizes a job on this PE, after all PEs have called it.
fn end(world: &World) -> Result {
    world.quiet();
    world.teams().values().for_each(|team| team.idle());
    world.team.turn(Channel::Setup).meet(record(&[], &[]));
    let mut memory = world.change_memory();
    memory.live = false;
    let left = memory.allocations.len() + memory.registered.len() + memory.regions.iter().flatten().count() - 1;
    counters::LEFT_BEHIND.fetch_add(left as u64 + teams::made(world) as u64, Ordering::Relaxed);
    let regions = std::mem::take(&mut memory.regions);
    memory.allocations.clear();
    memory.registered.clear();
    let unmap = || regions.into_iter().flatten().try_for_each(|region| region.unmap(world.pe as usize));
    driver::with_context(world.context, unmap)
}

fn name() -> String {
    let version = settings::get().version;
    format!("NVSHMEM v{}.{}.{}", version.0, version.1, version.2)
}

exports! {
    fn nvshmemx_get_uniqueid(id: *mut UniqueId) -> c_int {
        call::code(|| {
            if id.is_null() {
                return invalid("the unique id is null");
            }
            LazyLock::force(&OPTIONS);
            let new = control::new_id()?;
            // SAFETY: guaranteed by the caller: it points to room for an id.
            unsafe { id.write(new) };
            Ok(())
        })
    }

    fn nvshmemx_set_attr_uniqueid_args(rank: c_int, ranks: c_int, id: *const UniqueId, attr: *mut InitAttr) -> c_int {
        call::code(|| {
            if id.is_null() || attr.is_null() {
                return invalid("a null pointer");
            }
            // SAFETY: guaranteed by the caller: it points to attributes.
            let attr = unsafe { &mut *attr };
            attr.args.uid.id = id.cast_mut();
            attr.args.uid.rank = rank;
            attr.args.uid.ranks = ranks;
            Ok(())
        })
    }

    fn nvshmemx_set_attr_mpi_comm_args(communicator: *mut c_void, attr: *mut InitAttr) -> c_int {
        call::code(|| {
            if communicator.is_null() || attr.is_null() {
                return invalid("a null pointer");
            }
            // SAFETY: guaranteed by the caller: it points to attributes.
            unsafe { (*attr).mpi_comm = communicator };
            Ok(())
        })
    }

    fn nvshmemx_hostlib_init_attr(flags: u32, attr: *mut InitAttr) -> c_int {
        call::code(|| {
            if attr.is_null() {
                return invalid("no attributes");
            }
            // SAFETY: guaranteed by the caller: it points to attributes.
            let attr = unsafe { &*attr };
            if settings::get().any_rule {
                call::would_be(attr.args.uid.rank);
                if let Some(code) = call::rules("nvshmemx_hostlib_init_attr") {
                    return fail(code, "an injected fault");
                }
                call::take_effect().suffer();
            }
            check_words(attr)?;
            if let State::Live(_, times) = &mut *state() {
                *times += 1;
                return Ok(());
            }
            if let State::Bootstrapped(..) = &*state() {
                undefined("nvshmemx_hostlib_init_attr: other PEs do not continue a start that failed after the PEs had connected");
            }
            LazyLock::force(&OPTIONS);
            let met = bootstrap(flags, attr)?;
            let begun = begin(attr, met);
            let (_, pe, ranks) = met;
            *state() = match begun {
                Ok(world) => State::Live(Arc::new(world), 1),
                // Like NVSHMEM: prints the failure, and returns success.
                Err(failure) => {
                    complain(&format!("{}, continuing", failure.text));
                    State::Bootstrapped(pe, ranks)
                }
            };
            Ok(())
        })
    }

    fn nvshmemx_hostlib_finalize() {
        let world = crate::world::live();
        call::take_effect().suffer();
        if let State::Live(_, times) = &mut *state() {
            *times -= 1;
            if *times > 0 {
                return;
            }
        }
        call::or_abort(end(&world));
        *state() = State::Finalized;
    }

    fn nvshmemx_init_status() -> c_int {
        match &*state() {
            State::Live(world, _) if world.shares_gpu => 3,
            State::Live(..) => 2,
            State::Bootstrapped(..) => 1,
            State::Idle | State::Finalized => 0,
        }
    }

    fn nvshmem_query_thread(provided: *mut c_int) {
        const SERIALIZED: c_int = 2;
        // SAFETY: guaranteed by the caller: it points to a number.
        unsafe { provided.write(SERIALIZED) };
    }

    fn nvshmem_global_exit(status: c_int) {
        if let Some(world) = crate::world::peek() {
            complain(&format!("PE {} ends all PEs with status {status}", world.pe));
            world.control.exit.store(status + 1, Ordering::Release);
        }
        std::process::exit(status);
    }

    fn nvshmem_my_pe() -> c_int {
        if let State::Bootstrapped(pe, _) = &*state() {
            return *pe;
        }
        crate::world::live().pe
    }

    fn nvshmem_n_pes() -> c_int {
        if let State::Bootstrapped(_, ranks) = &*state() {
            return *ranks;
        }
        crate::world::live().ranks
    }

    fn nvshmem_info_get_version(major: *mut c_int, minor: *mut c_int) {
        // SAFETY: guaranteed by the caller: they point to numbers.
        unsafe {
            major.write(1);
            minor.write(3);
        }
    }

    fn nvshmem_info_get_name(text: *mut c_char) {
        let name = name();
        // SAFETY: guaranteed by the caller: there is room for a name, which is longer than this
        // one.
        unsafe {
            std::ptr::copy_nonoverlapping(name.as_ptr().cast(), text, name.len());
            text.add(name.len()).write(0);
        }
    }

    fn nvshmemx_vendor_get_version_info(major: *mut c_int, minor: *mut c_int, patch: *mut c_int) {
        let version = settings::get().version;
        // SAFETY: guaranteed by the caller: they point to numbers.
        unsafe {
            major.write(version.0);
            minor.write(version.1);
            patch.write(version.2);
        }
    }
}
