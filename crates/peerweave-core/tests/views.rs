//! Checks handles to symmetric memory that are made from an offset or address, and signal words
//! that borrow a handle. Also checks single elements and `&mut` variables as buffers.

use peerweave_core::noop::Noop;
use peerweave_core::{Compare, MisuseKind, Rank, ReduceOp, SymOffset, Team, World};

const ME: Rank = Rank::new(0);

fn world() -> World {
    World::new(Noop::new(0, 1)).unwrap()
}

#[test]
fn handle_made_from_an_offset_accesses_the_requested_elements() {
    let world = world();
    let x = world.alloc_zeroed::<u32>(8).unwrap();
    x.copy_from(&[0, 1, 2, 3, 4, 5, 6, 7]).unwrap();
    let part = world.symmetric_at::<u32>(x.slice(2..).unwrap().offset(), 6).unwrap();
    assert_eq!(part.to_vec().unwrap(), [2, 3, 4, 5, 6, 7]);
    let wide = world.symmetric_at::<u64>(x.offset(), 4).unwrap();
    assert_eq!(wide.load(1).unwrap(), 2 | 3 << 32);
    let from_address = world.symmetric_of(x.as_ptr().unwrap().wrapping_add(7), 1).unwrap();
    assert_eq!(from_address.to_vec().unwrap(), [7]);
    assert_eq!(world.symmetric_at::<u32>(x.offset(), 0).unwrap().len(), 0);
}

#[test]
fn handle_to_elements_outside_one_allocation_is_refused() {
    let world = world();
    let (x, y) = (world.alloc::<u64>(8).unwrap(), world.alloc::<u64>(8).unwrap());
    let refused = |at: SymOffset, len: usize, why: &str| {
        let error = world.symmetric_at::<u64>(at, len).unwrap_err();
        assert!(matches!(error.misuse(), Some(MisuseKind::Value { argument: "offset", .. })), "{error}");
        assert!(error.to_string().contains(why), "{error}");
    };
    let within = "expected elements within one allocation that was not released";
    refused(x.offset(), 9, within);
    refused(x.offset().plus(8), 8, within);
    refused(x.offset().plus(4), 1, "expected a multiple of the alignment of the elements");
    refused(x.offset(), usize::MAX, within);
    refused(x.offset(), usize::MAX / 8, within);
    refused(SymOffset(u64::MAX - 7), 1, within);
    let (first, last) = (x.offset().0.min(y.offset().0), x.offset().0.max(y.offset().0));
    refused(SymOffset(first), ((last - first) / 8 + 8) as usize, within);
    let gone = x.offset();
    x.release().unwrap();
    refused(gone, 8, within);
    assert!(world.symmetric_at::<u64>(y.offset(), 8).is_ok());
    for address in [std::ptr::null(), &raw const last, std::ptr::without_provenance(usize::MAX - 7)] {
        let error = world.symmetric_of(address, 1).unwrap_err();
        assert!(matches!(error.misuse(), Some(MisuseKind::Value { argument: "address", .. })), "{error}");
    }
    let _ = world.finalize().unwrap();
    assert_eq!(world.symmetric_at::<u64>(y.offset(), 8).unwrap_err().misuse(), Some(&MisuseKind::Finalized));
}

#[test]
fn handle_made_from_an_offset_can_release_a_leaked_buffer() {
    let world = world();
    let x = world.alloc_zeroed::<i32>(5).unwrap();
    x.store(4, 9).unwrap();
    let at = x.offset();
    drop(x);
    let (found, again) = (world.symmetric_at::<i32>(at, 5).unwrap(), world.symmetric_at::<i32>(at, 5).unwrap());
    assert_eq!(again.load(4).unwrap(), 9);
    found.release().unwrap();
    assert!(again.is_released(), "both handles refer to one allocation");
    assert!(world.finalize().unwrap().is_clean());
}

#[test]
fn leak_report_says_if_a_handle_made_from_an_offset_is_alive() {
    for alive in [false, true] {
        let world = world();
        let at = world.alloc::<u8>(5).unwrap().offset();
        let found = world.symmetric_at::<u8>(at, 5).unwrap();
        let kept = alive.then_some(found);
        assert_eq!(world.finalize().unwrap().leaked[0].dropped, !alive);
        drop(kept);
    }
}

#[test]
fn signal_update_is_valid_after_its_signal_handle_is_dropped() {
    let world = world();
    let words = world.alloc_zeroed::<u64>(2).unwrap();
    let update = words.signal(1).unwrap().set(5);
    let signal = words.signal(1).unwrap();
    world.team().signal_blocking(update, ME).unwrap();
    world.team().signal_blocking(signal.add(2), ME).unwrap();
    world.team().signal_blocking(signal.add(3), ME).unwrap();
    assert_eq!(world.team().wait_until_blocking(&words.signal(1).unwrap(), Compare::Ge, 10).unwrap(), 10);
    let clone = words.clone();
    words.release().unwrap();
    let error = world.team().signal_fetch(&clone.signal(1).unwrap()).unwrap_err();
    assert_eq!(error.misuse(), Some(&MisuseKind::Released { argument: "dest" }));
    assert!(world.finalize().unwrap().is_clean());
}

#[test]
fn reference_to_one_element_acts_as_a_buffer_of_length_one() {
    let world = world();
    let (team, x) = (world.team(), world.alloc_zeroed::<f32>(1).unwrap());
    let (mine, mut back) = (1.5f32, 0.0);
    team.put_blocking(&mine, &x, ME).unwrap();
    team.get_blocking(&x, &mut back, ME).unwrap();
    assert_eq!(back, 1.5);
    let mut copy = 0.0;
    team.reduce_blocking(&mine, &mut copy, ReduceOp::Sum, ME).unwrap();
    team.broadcast_blocking(Some(&mine), &mut copy, ME).unwrap();
    let wide = world.alloc::<f32>(2).unwrap();
    let error = team.put_blocking(&mine, &wide, ME).unwrap_err();
    assert!(matches!(error.misuse(), Some(MisuseKind::Length { found: 1, expected: 2, .. })), "{error}");
}

#[test]
fn mutable_slice_can_be_passed_to_several_calls() {
    fn twice(team: &Team, mut buffer: &mut [u32]) {
        team.all_reduce_in_place_blocking(&mut buffer, ReduceOp::Sum).unwrap();
        team.broadcast_in_place_blocking(&mut *buffer, ME).unwrap();
        team.broadcast_in_place_blocking(buffer, ME).unwrap();
    }
    let world = world();
    let mut values = [3, 4];
    twice(world.team(), &mut values);
    assert_eq!(values, [3, 4]);
}
