//! Checks the functions that return addresses of the windows of other ranks. The CUDA driver copies
//! from and to these addresses.
//!
//! Multicast is disabled, so `peerweave-nccl` must refuse a request for a multicast address before
//! NCCL is called.

use std::sync::Arc;

use peerweave_driver::cudarc::driver::result;
use peerweave_driver::{CudaStream, DeviceMemory, bind};
use peerweave_nccl::{Config, NcclError, Rank, WindowKind};

use super::windows::{alloc, window};
use super::{Outcome, Part, moved};

const LEN: usize = 100_003;

/// Copies `len` words of 4 bytes between addresses that the device of this rank can access, and
/// waits until the copy is complete.
///
/// # Safety
/// Both ranges are mapped for the device until the copy is complete. Until then, no other access
/// writes the range at `from`, or reads or writes the range at `to`.
unsafe fn copy(part: &Part<'_>, stream: &Arc<CudaStream>, to: u64, from: u64, len: usize) -> Outcome {
    bind(&part.all.context)?;
    // SAFETY: the caller guarantees that both ranges are mapped, and that no other access conflicts
    // with the copy.
    unsafe { result::memcpy_dtod_async(to, from, 4 * len, stream.cu_stream()) }?;
    Ok(stream.synchronize()?)
}

pub(super) fn all(part: &Part<'_>) -> Outcome {
    let comm = part.communicator(&Config::new())?;
    let (n, rank, stream) = (comm.n_ranks(), comm.rank().index(), &part.stream);
    let mut memory = alloc::<u32>(part, 2 * LEN)?;
    let registered = window(&comm, &memory, WindowKind::SYMMETRIC)?;
    let mut values = moved::<u32>(rank, LEN);
    values.resize(2 * LEN, 0);
    memory.copy_from(stream, &values)?;
    part.check(registered.user_address()? == memory.address(), || {
        "user_address differs from the address of the memory".to_owned()
    });
    part.meet()?;
    let team = comm.lsa_team()?;
    part.note(format!("rank 0: LSA team {team:?}, address of the window {:#x}", memory.address()));
    let mine = DeviceMemory::from_slice(stream, &vec![0u32; LEN])?;
    for peer in 0..n {
        for offset in [0, 1, LEN / 2, LEN - 1] {
            part.step(&format!("reading the elements of rank {peer}, from index {offset} to the end"));
            let address = registered.peer_pointer(Rank::new(peer as u32), offset)?;
            let reached = team.and_then(|team| team.index_of(Rank::new(peer as u32)));
            part.check(address.is_some() == reached.is_some(), || {
                format!("the pointer to rank {peer} is {address:x?}, expected a pointer only for the ranks of {team:?}")
            });
            let Some(address) = address else { continue };
            if let Some(index) = reached {
                part.check(registered.lsa_pointer(index, offset)? == Some(address), || {
                    format!("lsa_pointer for index {index} differs from peer_pointer for rank {peer}")
                });
            }
            let len = LEN - offset;
            // SAFETY: the window is registered, has that length and is filled; its first half is
            // not written. The other memory belongs to this function.
            unsafe { copy(part, stream, mine.address(), address, len) }?;
            let found = mine.slice(0..len)?.to_vec(stream)?;
            part.same(&found, &moved::<u32>(peer, LEN)[offset..], || {
                format!("elements of rank {peer}, from index {offset} to the end")
            });
        }
        part.step(&format!("writing to rank {peer}"));
        let place = LEN + rank * (LEN / n);
        if let Some(address) = registered.peer_pointer(Rank::new(peer as u32), place)? {
            let word = DeviceMemory::from_slice(stream, &[(1000 + 100 * rank + peer) as u32])?;
            // SAFETY: the range is inside the window, where only this rank writes; other ranks read
            // only after all ranks have synchronised.
            unsafe { copy(part, stream, address, word.address(), 1) }?;
        }
    }
    part.meet()?;
    let written = memory.to_vec(stream)?;
    for from in 0..n {
        let expected = (1000 + 100 * from + rank) as u32;
        let reached = team.is_some_and(|team| team.index_of(Rank::new(from as u32)).is_some());
        let found = written[LEN + from * (LEN / n)];
        part.check(!reached || found == expected, || format!("the word that rank {from} wrote is {found}, expected {expected}"));
    }
    part.step("refused arguments");
    part.refused("peer_pointer for a rank that does not exist", registered.peer_pointer(Rank::new(n as u32), 0), |error| {
        error.misuse_kind().is_some()
    });
    part.refused(
        "peer_pointer for an offset beyond the end of the window",
        registered.peer_pointer(Rank::new(0), 2 * LEN),
        |error| error.misuse_kind().is_some(),
    );
    let disabled = |error: &NcclError| matches!(error, NcclError::MulticastDisabled(_));
    part.refused("lsa_multimem_pointer", registered.lsa_multimem_pointer(0), disabled);
    part.refused("multimem_endpoint", registered.multimem_endpoint(0), disabled);
    if part.has("fabric endpoints", "ncclGetPeerDeviceLeInfo") {
        let endpoint = registered.peer_endpoint(Rank::new(0), 0);
        let typed = matches!(&endpoint, Ok(_) | Err(NcclError::Nccl(_)));
        part.check(typed, || format!("peer_endpoint returned {endpoint:?}, expected an endpoint or an error from NCCL"));
        part.note(format!("peer_endpoint returned {endpoint:?}"));
    }
    part.meet()?;
    part.step("finalize");
    registered.deregister(stream, super::DEADLINE)?;
    Ok(comm.finalize(super::DEADLINE)?)
}
