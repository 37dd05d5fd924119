//! Connects the PEs of a job: by an id, or by a launcher.
//!
//! Invariant: PEs that disagree are not connected.

use core::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

use peerweave_fake_common::driver;

use super::id;
use super::options::algorithms;
use crate::abi::structs::{InitAttr, UniqueId, UniqueIdArgs, WITH_ID, WITH_MPI, WITH_SHMEM, word};
use crate::abi::{Code, Result, fail, invalid};
use crate::call::undefined;
use crate::peers::control::{Card, MAX_PES};
use crate::peers::{Control, wait_for};
use crate::settings;

/// Returns the memory that all PEs share, the number of this PE, and the number of PEs.
pub(super) fn bootstrap(flags: u32, attr: &InitAttr) -> Result<(&'static Control, c_int, c_int)> {
    if flags & WITH_ID != 0 {
        let UniqueIdArgs { id, rank, ranks, .. } = attr.args.uid;
        if id.is_null() {
            return invalid("the unique id is null");
        }
        // SAFETY: the caller guarantees that `id` points to an id.
        let id = unsafe { id.read() };
        if id.version != word(1, size_of::<UniqueId>()) {
            return invalid(format!("the version word {} of the unique id is not supported", id.version));
        }
        return Ok((id::of_id(&id)?, rank, ranks));
    }
    if flags & (WITH_MPI | WITH_SHMEM) != 0 {
        return fail(Code::NOT_SUPPORTED, "the bootstrap plug-ins of MPI and SHMEM are not available");
    }
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    match (&settings::get().directory, number("PMI_RANK"), number("PMI_SIZE")) {
        (Some(directory), Some(rank), Some(ranks)) => Ok((id::of_directory(directory)?, rank, ranks)),
        _ => fail(Code::INTERNAL, "no launcher: expected PMI_RANK, PMI_SIZE and PEERWEAVE_FAKE_NVSHMEM_DIR to be set"),
    }
}

fn version_number() -> u64 {
    let version = settings::get().version;
    (version.0 * 10_000 + version.1 * 100 + version.2) as u64
}

/// Registers this PE and waits for all PEs. Returns their processes, and whether PEs share a GPU.
pub(super) fn join(control: &'static Control, pe: c_int, ranks: c_int, device: c_int, bytes: usize) -> Result<(Vec<u32>, bool)> {
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
        return invalid(format!("PE {pe} has already joined this job"));
    }
    let uuid = driver::uuid(device)?;
    card.process.store(std::process::id(), Ordering::Relaxed);
    card.heap_bytes.store(bytes as u64, Ordering::Relaxed);
    for (half, place) in uuid.chunks_exact(8).zip(&card.uuid) {
        place.store(u64::from_ne_bytes(half.try_into().expect("half of a UUID has eight bytes")), Ordering::Relaxed);
    }
    card.version.store(version_number(), Ordering::Relaxed);
    card.algorithms.store(algorithms(), Ordering::Relaxed);
    card.state.store(2, Ordering::Release);
    let cards = &control.cards[..ranks as usize];
    for (other, card) in cards.iter().enumerate() {
        wait_for(control, || card.state.load(Ordering::Acquire) == 2, || format!("PE {other} to initialise NVSHMEM"));
    }
    let read = |value: &AtomicU64| value.load(Ordering::Relaxed);
    let differs = |of: fn(&Card) -> &AtomicU64| cards.iter().position(|card| read(of(card)) != read(of(&cards[0])));
    if let Some(other) = differs(|card| &card.heap_bytes) {
        let [theirs, first] = [other, 0].map(|pe| read(&cards[pe].heap_bytes));
        return fail(Code::SYMMETRY, format!("PE {other} has a heap of {theirs} bytes, PE 0 has one of {first} bytes"));
    }
    if let Some(other) = differs(|card| &card.version) {
        return fail(Code::INTERNAL, format!("PE {other} and PE 0 have different versions of NVSHMEM"));
    }
    if let Some(other) = differs(|card| &card.algorithms) {
        // NVSHMEM does not detect the difference, and its first collective never ends.
        undefined(&format!("PE {other} has different settings for collectives or for the number of teams than PE 0"));
    }
    let uuid = |card: &Card| card.uuid.each_ref().map(read);
    let shared = (0..cards.len()).find(|other| cards[..*other].iter().any(|card| uuid(card) == uuid(&cards[*other])));
    if let Some(other) = shared
        && !settings::get().share_gpu
    {
        return fail(Code::NOT_SUPPORTED, format!("PE {other} uses the GPU of another PE, expected one GPU for each PE"));
    }
    Ok((cards.iter().map(|card| card.process.load(Ordering::Relaxed)).collect(), shared.is_some()))
}
