//! Checks streams, tickets and the memory that a queue holds, on a backend that queues operations
//! until the test runs them.

use peerweave_core::backend::Op;
use peerweave_core::noop::{Call, Noop};
use peerweave_core::{Buffer, Compare, Error, Misuse, MisuseKind, Pe, PeerCause, Rank, ReduceOp, World};
use std::sync::Arc;
use std::time::Duration;

const SHORT: Duration = Duration::from_millis(10);
const ME: Rank = Rank::new(0);

fn held() -> (Arc<Noop>, World) {
    let noop = Noop::new(0, 1);
    let world = World::new(noop.clone()).unwrap();
    noop.hold_streams(true);
    (noop, world)
}

fn peer_died() -> Error {
    let team = peerweave_core::TeamName { id: peerweave_core::backend::TeamId::WORLD, size: 1 };
    Error::Peer { call: "put", team, pe: Pe::new(0), cause: PeerCause::Died }
}

#[test]
fn stream_runs_operations_in_the_order_of_the_calls() {
    let (noop, world) = held();
    let (team, stream) = (world.team(), world.stream().unwrap());
    let (x, y) = (world.alloc_zeroed::<i32>(2).unwrap(), world.alloc_zeroed::<i32>(2).unwrap());
    let source = Buffer::from(vec![1, 2]);
    let put = team.put(&stream, &source, &x, ME).unwrap();
    let reduce = team.all_reduce(&stream, &x, &y, ReduceOp::Sum).unwrap();
    let old = team.atomic_fetch_add(&stream, &y, 0, 10, ME).unwrap();
    assert!(!put.is_complete() && !stream.is_idle());
    assert_eq!(y.to_vec().unwrap(), [0, 0]);
    assert!(noop.run_next());
    assert!(put.is_complete() && !reduce.is_complete());
    noop.run_all();
    assert!(reduce.is_complete() && stream.is_idle());
    assert_eq!(old.wait().unwrap(), 1);
    assert_eq!(y.to_vec().unwrap(), [11, 2]);
    stream.synchronize().unwrap();
}

#[test]
fn queued_operations_keep_buffers_alive_until_completion() {
    let (noop, world) = held();
    let (team, stream) = (world.team(), world.stream().unwrap());
    let (source, dest) = (Buffer::from(vec![1.0f32, 2.0]), Buffer::zeroed(2));
    let ticket = team.all_reduce(&stream, &source, &dest, ReduceOp::Sum).unwrap();
    let source = source.into_vec().expect_err("the queue also holds the buffer");
    drop(source);
    noop.run_all();
    ticket.wait().unwrap();
    assert_eq!(dest.into_vec().unwrap(), [1.0, 2.0]);
}

#[test]
fn operation_that_completes_immediately_holds_no_buffers() {
    let noop = Noop::new(0, 1);
    let world = World::new(noop.clone()).unwrap();
    let (team, stream) = (world.team(), world.stream().unwrap());
    let (source, dest) = (Buffer::from(vec![1u8]), Buffer::zeroed(1));
    let ticket = team.all_reduce(&stream, &source, &dest, ReduceOp::Sum).unwrap();
    assert!(ticket.is_complete());
    assert!(source.into_vec().is_ok() && dest.into_vec().is_ok());
    drop(ticket);
}

#[test]
fn queued_group_keeps_the_buffers_of_its_operations_alive() {
    let (noop, world) = held();
    let (team, stream) = (world.team(), world.stream().unwrap());
    let dest = Buffer::<u32>::zeroed(3);
    let ticket = {
        let source = Buffer::from(vec![1u32, 2, 3]);
        team.group(&stream, |g| {
            g.recv(&dest, ME)?;
            g.send(&source, ME)
        })
        .unwrap()
    };
    let dest = dest.into_vec().expect_err("the queue also holds the buffer");
    noop.run_all();
    ticket.wait().unwrap();
    assert_eq!(dest.into_vec().unwrap(), [1, 2, 3]);
}

#[test]
fn buffer_dropped_while_in_use_is_reported_as_leaked() {
    let (noop, world) = held();
    let (team, stream) = (world.team(), world.stream().unwrap());
    let x = world.alloc_zeroed::<u8>(4).unwrap();
    team.all_reduce_in_place(&stream, &x, ReduceOp::Sum).unwrap();
    drop(x);
    noop.run_all();
    let report = world.finalize().unwrap();
    assert!(report.leaked[0].dropped, "{report}");
}

#[test]
fn handles_can_be_dropped_while_operations_are_queued() {
    let (noop, world) = held();
    let stream = world.stream().unwrap();
    let x = world.alloc_zeroed::<u8>(4).unwrap();
    let ticket = world.team().all_reduce_in_place(&stream, &x, ReduceOp::Sum).unwrap();
    drop((x, stream, world));
    assert!(Arc::strong_count(&noop) > 1, "pending operations hold the backend");
    noop.run_all();
    ticket.wait().unwrap();
    drop(ticket);
    assert_eq!(Arc::strong_count(&noop), 1);
}

#[test]
fn element_puts_and_gets_run_in_stream_order() {
    let (noop, world) = held();
    let (team, stream) = (world.team(), world.stream().unwrap());
    let x = world.alloc_zeroed::<peerweave_core::bf16>(3).unwrap();
    let value = peerweave_core::bf16::from_f32(1.5);
    noop.take_calls();
    let before = team.g(&stream, &x, 1, ME).unwrap();
    team.p(&stream, &x, 1, value, ME).unwrap();
    let after = team.g(&stream, &x, 1, ME).unwrap();
    assert!(!after.is_complete());
    let calls = noop.take_calls();
    let [Call::Submit(Op::GetElement(_)), Call::Submit(Op::PutElement(put)), Call::Submit(Op::GetElement(get))] = &calls[..]
    else {
        panic!("the backend got {calls:?}, expected g, p and g")
    };
    assert_eq!(
        (put.element_bytes, put.target, &put.bits.to_ne_bytes()[..2]),
        (2, get.source, &value.to_bits().to_ne_bytes()[..])
    );
    noop.run_all();
    assert_eq!((before.wait().unwrap().to_f32(), after.wait().unwrap()), (0.0, value));
    noop.hold_streams(false);
    assert_eq!(team.g(&stream, &x, 1, ME).unwrap().wait().unwrap(), value);
}

#[test]
fn copies_and_fills_run_in_stream_order() {
    let (noop, world) = held();
    let (stream, x) = (world.stream().unwrap(), world.alloc_zeroed::<i32>(5).unwrap());
    let (mine, back) = (Buffer::from(vec![1, 2]), Buffer::zeroed(5));
    stream.fill(&x, 0x0102).unwrap();
    stream.copy(&mine, &x.slice(1..3).unwrap()).unwrap();
    let copied = stream.copy(&x, &back).unwrap();
    assert_eq!((x.to_vec().unwrap(), copied.is_complete()), (vec![0; 5], false));
    assert!(mine.into_vec().is_err(), "the queue also holds the buffer");
    noop.run_all();
    assert_eq!(back.to_vec(), [0x0102, 1, 2, 0x0102, 0x0102]);
    let overlapping = stream.copy(&x.slice(..3).unwrap(), &x.slice(2..).unwrap()).unwrap_err();
    assert!(matches!(overlapping.misuse(), Some(MisuseKind::Overlap { first: "source", second: "dest", .. })));
    let longer = stream.copy(&x, &back.slice(..4).unwrap()).unwrap_err();
    assert!(matches!(longer.misuse(), Some(MisuseKind::Length { argument: "dest", found: 4, expected: 5 })));
}

#[test]
fn adopt_stream_refuses_a_stream_of_another_backend() {
    use peerweave_core::backend::Backend;
    let (noop, world) = held();
    let stream = world.adopt_stream(noop.stream().unwrap()).unwrap();
    let ticket = world.team().barrier(&stream).unwrap();
    noop.run_all();
    ticket.wait().unwrap();
    let foreign = world.adopt_stream(Noop::new(0, 1).stream().unwrap()).unwrap_err();
    assert!(matches!(foreign.misuse(), Some(MisuseKind::ForeignQueue { what: "stream" })));
}

#[test]
fn pending_ticket_times_out_and_can_be_waited_for_again() {
    let (noop, world) = held();
    let stream = world.stream().unwrap();
    let ticket = world.team().barrier(&stream).unwrap();
    assert!(matches!(ticket.wait_within(SHORT), Err(Error::Timeout(_))));
    assert!(matches!(stream.synchronize_within(SHORT), Err(Error::Timeout(_))));
    noop.run_all();
    ticket.wait().unwrap();
    ticket.wait_within(Duration::ZERO).unwrap();
}

#[test]
fn ticket_can_be_awaited_on_another_thread() {
    let (noop, world) = held();
    let stream = world.stream().unwrap();
    let ticket = world.team().barrier(&stream).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| ticket.wait());
        scope.spawn(|| noop.run_all());
        waiting.join().unwrap().unwrap();
    });
}

#[test]
fn failed_operation_skips_later_ones_and_fails_synchronize_once() {
    let (noop, world) = held();
    let (team, stream) = (world.team(), world.stream().unwrap());
    let failing = team.barrier(&stream).unwrap();
    let behind = team.barrier(&stream).unwrap();
    noop.fail_next(peer_died());
    noop.run_all();
    assert!(matches!(failing.wait(), Err(Error::Peer { .. })));
    let skipped = behind.wait().unwrap_err();
    assert!(matches!(skipped, Error::Skipped { .. }));
    assert_eq!(skipped.blamed(), [Pe::new(0)]);
    assert!(matches!(stream.synchronize(), Err(Error::Peer { .. })));
    stream.synchronize().expect("the failure was already returned");
}

#[test]
fn dropping_a_ticket_does_not_cancel_or_await_the_operation() {
    let (noop, world) = held();
    let (stream, x) = (world.stream().unwrap(), world.alloc_zeroed::<u64>(1).unwrap());
    drop(world.team().atomic_inc(&stream, &x, 0, ME).unwrap());
    assert_eq!(x.load(0).unwrap(), 0);
    noop.run_all();
    assert_eq!(x.load(0).unwrap(), 1);
}

#[test]
fn event_completes_after_earlier_operations() {
    let (noop, world) = held();
    let (team, stream, other) = (world.team(), world.stream().unwrap(), world.stream().unwrap());
    let start = stream.record().unwrap();
    assert!(start.is_complete(), "no operation precedes the event");
    team.barrier(&stream).unwrap();
    let end = stream.record().unwrap();
    other.wait_event(&end).unwrap();
    assert!(!end.is_complete());
    assert_eq!(end.elapsed_since(&start), None);
    assert!(matches!(end.wait_within(SHORT), Err(Error::Timeout(_))));
    noop.run_all();
    end.wait().unwrap();
    assert!(end.elapsed_since(&start).is_some());
    assert_eq!(start.elapsed_since(&end).filter(|elapsed| !elapsed.is_zero()), None);
    assert_eq!(end.elapsed_since(&World::new(Noop::new(0, 1)).unwrap().stream().unwrap().record().unwrap()), None);
}

#[test]
fn ticket_of_a_wait_returns_the_result_of_the_wait() {
    let (noop, world) = held();
    let (team, stream, words) = (world.team(), world.stream().unwrap(), world.alloc_zeroed::<u64>(3).unwrap());
    let signal = words.signal(1).unwrap();
    team.signal(&stream, signal.set(5), ME).unwrap();
    let value = team.wait_until(&stream, &signal, Compare::Ge, 5).unwrap();
    let any = team.wait_until_any(&stream, &words, None, Compare::Gt, 0).unwrap();
    let some = team.wait_until_some(&stream, &words, None, Compare::Eq, 0).unwrap();
    let all = team.wait_until_all(&stream, &words, Some(&[false, true, false]), Compare::Eq, 0).unwrap();
    let nobody = team.wait_until_any(&stream, &words, Some(&[true; 3]), Compare::Eq, 0).unwrap();
    noop.run_all();
    assert_eq!((value.wait().unwrap(), any.wait().unwrap(), some.wait().unwrap()), (5, Some(1), vec![0, 2]));
    all.wait().unwrap();
    assert_eq!(nobody.wait().unwrap(), None);
    assert_eq!(team.signal_fetch(&signal).unwrap(), 5);
}

#[test]
fn buffer_release_waits_for_pending_operations() {
    let (noop, world) = held();
    let (team, stream, x) = (world.team(), world.stream().unwrap(), world.alloc_zeroed::<u8>(4).unwrap());
    let ticket = team.all_reduce_in_place(&stream, &x, ReduceOp::Sum).unwrap();
    let clone = x.clone();
    x.release().unwrap();
    ticket.wait().unwrap();
    let refused = team.all_reduce_in_place(&stream, &clone, ReduceOp::Sum).unwrap_err();
    assert!(matches!(refused, Error::Misuse(Misuse { kind: MisuseKind::Released { .. }, .. })));
    assert!(clone.is_released());
    assert!(matches!(&noop.take_calls()[..], [Call::Allocate(_), Call::Submit(Op::Collective(_)), Call::Release(_)]));
}

/// A thread that reads a buffer while a worker writes it gets a mixture of old and new values. CI
/// also runs this test under ThreadSanitizer.
#[test]
fn buffer_can_be_read_while_an_operation_writes_the_buffer() {
    let (noop, world) = held();
    let (team, stream) = (world.team(), world.stream().unwrap());
    let (ones, target) = (Buffer::from(vec![1u8; 1000]), Buffer::zeroed(1000));
    team.all_reduce(&stream, &ones, &target, ReduceOp::Sum).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| noop.run_all());
        for _ in 0..20 {
            assert!(target.to_vec().iter().all(|&x| x <= 1));
        }
    });
    stream.synchronize().unwrap();
    assert_eq!(target.to_vec(), [1; 1000]);
}
