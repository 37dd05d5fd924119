//! Checks views of symmetric memory: ranges, elements of another type, handles by offset and by
//! address, and the addresses of other PEs' copies.
//!
//! Public functions are `inline`, so that only the tests that call them compile them for all types.

use crate::check::one_sided::neighbour;
use crate::data::sample::{Sample, movable};
use peerweave::{MisuseKind, Rank, SymOffset, Symmetric, Team, World, bf16};

/// Returns the bits of a rank's copy, read at the address that the team returns. This process must
/// be able to read the memory of devices, as it can with the fake driver.
fn read_at_address<T: Sample>(team: &Team, all: &Symmetric<T>, rank: Rank) -> Vec<u64> {
    let of_host = team.peer_ptr(all, rank).unwrap().map(|first| first.cast_const());
    let of_device = team.peer_device_address(all, rank).unwrap();
    assert_eq!(of_device.is_some(), all.device_address().is_some());
    let of_device = of_device.map(|first| std::ptr::with_exposed_provenance(first as usize));
    assert!(of_host.is_none() || of_device.is_none());
    let first = of_host.or(of_device).expect("the memory of all PEs is mapped");
    // SAFETY: the elements are live, and no PE writes them until the next barrier.
    unsafe { std::slice::from_raw_parts(first, all.len()) }.iter().map(|x| x.bits()).collect()
}

/// Writes to this rank's part of every rank's buffer, through ranges and casts. Then reads the
/// buffers of all ranks by their addresses.
fn put_and_read<T: Sample>(world: &World, team: &Team, bytes: &Symmetric<u8>) {
    let stream = world.stream().unwrap();
    let (me, n) = (team.my_rank().index(), team.size());
    let all = bytes.cast::<T>().unwrap();
    let len = all.len() / n;
    let value = |rank: usize, i: usize| movable::<T>(7, rank, i);
    let mine: Vec<T> = (0..len).map(|i| value(me, i)).collect();
    let part = all.range(me * len..(me + 1) * len).unwrap();
    for to in 0..n {
        let to = Rank::new(to as u32);
        team.put_blocking(&mine[..1], &all.range(me * len..=me * len).unwrap(), to).unwrap();
        team.put_blocking(&mine[1..], &part.range(1..).unwrap(), to).unwrap();
    }
    team.barrier_blocking().unwrap();
    let expected: Vec<u64> = (0..n * len).map(|i| value(i / len, i % len).bits()).collect();
    for rank in (0..n as u32).map(Rank::new) {
        assert_eq!(read_at_address(team, &all, rank), expected, "rank {rank}");
    }
    team.barrier_blocking().unwrap();
    // A range and a clone of it are operands of stream-ordered calls. The all-gather is refused,
    // because its operands overlap.
    let kept = (*part).clone();
    team.all_gather(&stream, &part, &all).unwrap_err();
    team.broadcast_in_place(&stream, &kept.range(..1).unwrap(), Rank::new(0)).unwrap();
    stream.synchronize().unwrap();
    team.barrier_blocking().unwrap();
}

/// Checks that ranges, casts and addresses name the same bytes on all ranks of a team of all PEs.
///
/// # Panics
/// If a result is wrong.
#[inline]
pub fn name_the_same_bytes(world: &World, team: &Team) {
    const WORDS: usize = 24;
    let words = world.alloc_zeroed::<u64>(WORDS * world.n_pes()).unwrap();
    let bytes = words.cast::<u8>().unwrap();
    put_and_read::<u8>(world, team, &bytes);
    put_and_read::<bf16>(world, team, &bytes);
    put_and_read::<i32>(world, team, &bytes);
    put_and_read::<f64>(world, team, &bytes);
    let half = words.range(..WORDS / 2).unwrap();
    (*half).clone().release().unwrap_err();
    bytes.release().unwrap();
    assert!(half.is_released() && half.load(0).is_err());
}

/// Returns the address of this PE's copy, for the host or for its device.
fn address_of(all: &Symmetric<u32>) -> *const u32 {
    match all.device_address() {
        Some((address, _)) => std::ptr::without_provenance(address as usize),
        None => all.as_ptr().unwrap(),
    }
}

/// Checks that a handle made from an offset or an address names the elements there. Invalid offsets
/// and addresses must be refused.
///
/// # Panics
/// If a result is wrong.
#[inline]
pub fn are_found_by_offset_and_address(world: &World) {
    let (team, me) = (world.team(), world.my_pe().get());
    let x = world.alloc_zeroed::<u32>(8).unwrap();
    let right = neighbour(team, 1);
    let left = (me + world.n_pes() as u32 - 1) % world.n_pes() as u32;
    // Elements are put to the right rank through handles made from an offset or an address.
    let part = world.symmetric_at::<u32>(x.slice(2..).unwrap().offset(), 6).unwrap();
    team.put_blocking(&[me, 1, 2], &part.slice(..3).unwrap(), right).unwrap();
    let wide = world.symmetric_at::<u64>(x.offset().plus(24), 1).unwrap();
    team.p_blocking(&wide, 0, 5 | u64::from(me) << 32, right).unwrap();
    let second = world.symmetric_of(address_of(&x).wrapping_add(1), 1).unwrap();
    team.put_blocking(&[7], &second, right).unwrap();
    team.barrier_blocking().unwrap();
    assert_eq!(x.to_vec().unwrap(), [0, 7, left, 1, 2, 0, 5, left]);
    assert_eq!(wide.load(0).unwrap(), 5 | u64::from(left) << 32);
    assert_eq!(second.offset(), x.offset().plus(4));

    let refused = |found: peerweave::Result<Symmetric<u32>>, wrong: &str| {
        let error = found.unwrap_err();
        assert!(matches!(error.misuse(), Some(MisuseKind::Value { argument, .. }) if *argument == wrong), "{error}");
    };
    refused(world.symmetric_at(x.offset(), 9), "offset");
    refused(world.symmetric_at(x.offset().plus(2), 1), "offset");
    refused(world.symmetric_at(SymOffset(u64::MAX - 3), 1), "offset");
    refused(world.symmetric_of(address_of(&x), 9), "offset");
    refused(world.symmetric_of(std::ptr::null(), 1), "address");
    refused(world.symmetric_of(&raw const me, 1), "address");
    team.barrier_blocking().unwrap();
    let (at, first) = (x.offset(), address_of(&x));
    x.release().unwrap();
    assert!(part.is_released() && wide.is_released() && second.is_released());
    refused(world.symmetric_at(at, 1), "offset");
    refused(world.symmetric_of(first, 1), "address");
}
