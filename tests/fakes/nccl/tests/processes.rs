//! Ranks in several processes, one of which may die.

mod common;

use std::time::Duration;

use common::*;
use peerweave_fakes::Child;

const I32: i32 = 2;

/// Creates the communicator of a process's rank, on the device with the same number.
fn join(me: &Child) -> (Handle, Handle) {
    use_device(me.rank as i32);
    let mut id = UniqueId([0; 128]);
    if me.rank == 0 {
        ok(ncclGetUniqueId(&mut id));
        me.put_file("id", &id.0);
    } else {
        id.0.copy_from_slice(&std::fs::read(me.file("id")).expect("the file with the id can be read"));
    }
    let mut comm = 0;
    ok(ncclCommInitRankScalable(&mut comm, me.count as i32, me.rank as i32, 1, &id, std::ptr::null()));
    (comm, stream())
}

#[test]
fn communication_across_processes_gives_exact_results() {
    fakes().run_many(3, |me| {
        let rank = me.rank as i32;
        let (comm, stream) = join(&me);
        let big = vec![rank + 1; 300_000];
        let data = buffer(&big);
        ok(ncclAllReduce(data, data, big.len(), I32, 0, comm, stream));
        let (from, to) = (buffer(&[rank]), buffer(&[-1]));
        ok(ncclGroupStart());
        ok(ncclSend(from, 1, I32, (rank + 1) % 3, comm, stream));
        ok(ncclRecv(to, 1, I32, (rank + 2) % 3, comm, stream));
        ok(ncclGroupEnd());
        assert_eq!(cuStreamSynchronize(stream), 0);
        assert_eq!(read::<i32>(data, big.len()), vec![6; big.len()]);
        assert_eq!(read::<i32>(to, 1), [(rank + 2) % 3]);
        let mut child = 0;
        ok(ncclCommSplit(comm, rank / 2, 0, &mut child, std::ptr::null()));
        let few = buffer(&[1]);
        ok(ncclAllReduce(few, few, 1, I32, 0, child, stream));
        assert_eq!(cuStreamSynchronize(stream), 0);
        assert_eq!(read::<i32>(few, 1), [if rank == 2 { 1 } else { 2 }]);
        ok(ncclCommDestroy(child));
        ok(ncclCommDestroy(comm));
    });
}

#[test]
fn puts_reach_another_process() {
    fakes().run_many(2, |me| {
        let rank = me.rank as i32;
        let (comm, stream) = join(&me);
        let (mut memory, mut window) = (0, 0);
        ok(ncclMemAlloc(&mut memory, 4096));
        ok(ncclCommWindowRegister(comm, memory, 4096, &mut window, 1));
        let mut peer = 1;
        ok(ncclGetPeerDevicePointer(window, 0, 1 - rank, &mut peer));
        assert_eq!(peer, 0, "another process's memory is not reachable from a kernel");
        let from = memory + 40;
        write(from, rank + 40);
        ok(ncclPutSignal(from, 1, I32, 1 - rank, window, 8, 0, 0, 0, comm, stream));
        ok(ncclWaitSignal(1, &[1, 1 - rank, 0, 0], comm, stream));
        assert_eq!(cuStreamSynchronize(stream), 0);
        assert_eq!(read::<i32>(memory + 8, 1), [41 - rank]);
        me.meet("done");
        ok(ncclCommWindowDeregister(comm, window));
        ok(ncclMemFree(memory));
        ok(ncclCommDestroy(comm));
    });
}

#[test]
fn process_can_exit_before_peers_complete_a_broadcast() {
    fakes().run_many(3, |me| {
        let (comm, stream) = join(&me);
        let data = buffer(&vec![me.rank as i32; 500_000]);
        ok(ncclBroadcast(data, data, 500_000, I32, 0, comm, stream));
        assert_eq!(cuStreamSynchronize(stream), 0);
        assert_eq!(read::<i32>(data, 500_000), vec![0; 500_000]);
    });
}

fn lose_one(me: &Child) -> Option<(Handle, Handle)> {
    let (comm, stream) = join(me);
    let data = buffer(&[1]);
    ok(ncclAllReduce(data, data, 1, I32, 0, comm, stream));
    assert_eq!(cuStreamSynchronize(stream), 0);
    me.meet("joined");
    (me.rank != 1).then_some((comm, stream))
}

#[test]
fn wait_for_a_dead_process_hangs_until_an_abort() {
    fakes().run_many(3, |me| {
        let Some((comm, stream)) = lose_one(&me) else { return };
        let lost = buffer(&[1]);
        ok(ncclAllReduce(lost, lost, 1, I32, 0, comm, stream));
        std::thread::sleep(Duration::from_millis(100));
        assert_ne!(cuStreamQuery(stream), 0);
        assert_eq!(async_state(comm), 0, "over shared memory, the death of a process is not reported");
        let mut small = 0;
        ok(ncclCommShrink(comm, [1].as_ptr(), 1, &mut small, std::ptr::null(), 1));
        let data = buffer(&[1]);
        ok(ncclAllReduce(data, data, 1, I32, 0, small, stream));
        assert_eq!(cuStreamSynchronize(stream), 0);
        assert_eq!(read::<i32>(data, 1), [2]);
        me.put_file(&format!("over.{}", me.rank), b"");
        me.wait_for_file(if me.rank == 0 { "over.2" } else { "over.0" });
        ok(ncclCommAbort(comm));
        ok(ncclCommDestroy(small));
    });
}

#[test]
fn process_death_can_be_reported_as_an_asynchronous_error() {
    fakes().env("PEERWEAVE_FAKE_NCCL_DEATH", "error").run_many(3, |me| {
        let Some((comm, stream)) = lose_one(&me) else { return };
        eventually(|| async_state(comm) == 6);
        let data = buffer(&[1]);
        assert_eq!(ncclAllReduce(data, data, 1, I32, 0, comm, stream), 6);
        ok(ncclCommAbort(comm));
        assert_eq!(cuStreamSynchronize(stream), 0);
    });
}
