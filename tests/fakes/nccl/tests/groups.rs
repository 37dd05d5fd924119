//! Groups, point-to-point calls, several communicators and streams in one thread.

mod common;

use common::*;

const I32: i32 = 2;

/// Creates the communicators of the first devices by one call.
fn all(count: i32) -> Vec<Handle> {
    use_device(0);
    let mut comms = vec![0; count as usize];
    ok(ncclCommInitAll(comms.as_mut_ptr(), count, std::ptr::null()));
    comms
}

#[test]
fn one_thread_runs_a_grouped_all_reduce_on_all_devices() {
    fakes().run(|| {
        let comms = all(4);
        let mut streams = Vec::new();
        let mut data = Vec::new();
        for device in 0..4 {
            use_device(device);
            streams.push(stream());
            data.push(buffer(&[device + 1]));
        }
        use_device(0);
        ok(ncclGroupStart());
        for rank in 0..4 {
            ok(ncclAllReduce(data[rank], data[rank], 1, I32, 0, comms[rank], streams[rank]));
        }
        assert!(
            data.iter().enumerate().all(|(rank, data)| read::<i32>(*data, 1) == [rank as i32 + 1]),
            "no operation runs before the end of the group"
        );
        ok(ncclGroupEnd());
        for rank in 0..4 {
            assert_eq!(cuStreamSynchronize(streams[rank]), 0);
            assert_eq!(read::<i32>(data[rank], 1), [10]);
            let (mut count, mut me, mut device) = (0, 0, 0);
            ok(ncclCommCount(comms[rank], &mut count));
            ok(ncclCommUserRank(comms[rank], &mut me));
            ok(ncclCommCuDevice(comms[rank], &mut device));
            assert_eq!((count, me, device), (4, rank as i32, rank as i32));
            ok(ncclCommFinalize(comms[rank]));
            assert_eq!(ncclAllReduce(data[rank], data[rank], 1, I32, 0, comms[rank], streams[rank]), 5);
            ok(ncclCommDestroy(comms[rank]));
        }
        assert_eq!(count("communicators"), 0);
    });
}

#[test]
fn one_thread_creates_all_ranks_in_a_group() {
    fakes().run(|| {
        let mut id = UniqueId([0; 128]);
        ok(ncclGetUniqueId(&mut id));
        let mut comms = [0; 3];
        ok(ncclGroupStart());
        for (rank, comm) in comms.iter_mut().enumerate() {
            use_device(rank as i32);
            ok(ncclCommInitRank(comm, 3, id, rank as i32));
        }
        ok(ncclGroupEnd());
        for comm in comms {
            ok(ncclCommDestroy(comm));
        }
        let mut late = 0;
        assert_eq!(ncclCommInitRank(&mut late, 1, id, 0), 6, "a unique id can be used only once");
        assert_eq!(late, 0);
        assert_eq!(ncclCommInitRank(&mut late, 1, UniqueId([7; 128]), 0), 4);
        assert_eq!(ncclCommInitRank(&mut late, 2, id, 2), 4);
    });
}

#[test]
fn grouped_sends_and_receives_around_a_ring_complete() {
    fakes().run(|| {
        ranks(3, |rank, comm, stream| {
            let (from, to) = (buffer(&[rank, rank * 2]), buffer(&[-1, -1]));
            for _ in 0..3 {
                ok(ncclGroupStart());
                ok(ncclSend(from, 2, I32, (rank + 1) % 3, comm, stream));
                ok(ncclRecv(to, 2, I32, (rank + 2) % 3, comm, stream));
                ok(ncclGroupEnd());
            }
            assert_eq!(cuStreamSynchronize(stream), 0);
            let left = (rank + 2) % 3;
            assert_eq!(read::<i32>(to, 2), [left, left * 2]);
            assert_eq!(ncclSend(from, 2, I32, rank, comm, stream), 5, "no rank receives");
            ok(ncclGroupStart());
            ok(ncclSend(from, 2, I32, rank, comm, stream));
            ok(ncclRecv(to, 2, I32, rank, comm, stream));
            ok(ncclGroupEnd());
            assert_eq!(cuStreamSynchronize(stream), 0);
            assert_eq!(read::<i32>(to, 2), [rank, rank * 2]);
            ok(ncclCommDestroy(comm));
        });
    });
}

#[test]
fn send_outside_a_group_waits_for_the_receiver() {
    fakes().run(|| {
        let comms = all(2);
        let (first, second) = (stream(), {
            use_device(1);
            stream()
        });
        let data = buffer(&[5]);
        ok(ncclSend(data, 1, I32, 1, comms[0], first));
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert_ne!(cuStreamQuery(first), 0, "a send is complete before its receive was posted");
        let to = buffer(&[0]);
        ok(ncclRecv(to, 1, I32, 0, comms[1], second));
        assert_eq!((cuStreamSynchronize(first), cuStreamSynchronize(second)), (0, 0));
        assert_eq!(read::<i32>(to, 1), [5]);
        comms.into_iter().for_each(|comm| ok(ncclCommDestroy(comm)));
    });
}

#[test]
fn group_with_a_failed_call_fails_and_launches_nothing() {
    fakes().run(|| {
        let comm = all(1)[0];
        let (stream, data) = (stream(), buffer(&[3]));
        let mut own = -1;
        ok(ncclRedOpCreatePreMulSum(&mut own, [2_i32].as_ptr().cast(), I32, 1, comm));
        ok(ncclGroupStart());
        ok(ncclGroupStart());
        ok(ncclAllReduce(data, data, 1, I32, own, comm, stream));
        assert_eq!(ncclBroadcast(data, data, 1, I32, 1, comm, stream), 4);
        ok(ncclGroupEnd());
        assert_eq!(ncclGroupEnd(), 4);
        assert_eq!(cuStreamSynchronize(stream), 0);
        assert_eq!(read::<i32>(data, 1), [3]);
        assert_eq!(ncclGroupEnd(), 5);
        ok(ncclAllReduce(data, data, 1, I32, own, comm, stream));
        assert_eq!(cuStreamSynchronize(stream), 0);
        assert_eq!(read::<i32>(data, 1), [6]);
        ok(ncclCommDestroy(comm));
        assert_eq!(count("left_behind"), 1, "only the operator was not destroyed");
    });
}

#[test]
fn simulated_group_returns_a_time_and_launches_nothing() {
    #[repr(C)]
    struct Info(usize, u32, u32, f32);
    fn simulated(comms: &[Handle]) -> (f32, Vec<i32>) {
        let mut info = Info(24, 0x7468_5283, 23203, -1.0);
        let mut places = Vec::new();
        for device in 0..comms.len() {
            use_device(device as i32);
            places.push((stream(), buffer(&[3]), buffer(&[0])));
        }
        ok(ncclGroupStart());
        for ((stream, from, to), comm) in places.iter().zip(comms) {
            ok(ncclAllReduce(*from, *to, 1, I32, 0, *comm, *stream));
        }
        ok(ncclGroupSimulateEnd((&raw mut info).cast()));
        let results = places.iter().map(|(stream, _, to)| {
            assert_eq!(cuStreamSynchronize(*stream), 0);
            read::<i32>(*to, 1)[0]
        });
        let results = results.collect();
        info.1 = 0xcafe_beef;
        ok(ncclGroupStart());
        assert_eq!(ncclGroupSimulateEnd((&raw mut info).cast()), 4);
        ok(ncclGroupEnd());
        (info.3, results)
    }
    fakes().run(|| {
        let (two, one) = (all(2), all(1));
        let (time, results) = simulated(&two);
        assert!(time > 0.0);
        assert_eq!(results, [0, 0]);
        assert_eq!(simulated(&one), (-1.0, vec![3]));
        two.into_iter().chain(one).for_each(|comm| ok(ncclCommDestroy(comm)));
    });
}

#[test]
fn group_on_two_streams_completes_in_both_streams() {
    fakes().run(|| {
        ranks(2, |rank, comm, first| {
            let second = stream();
            let (from, to) = (buffer(&[rank]), buffer(&[-1]));
            let peer = 1 - rank;
            for _ in 0..5 {
                ok(ncclGroupStart());
                ok(ncclSend(from, 1, I32, peer, comm, first));
                ok(ncclRecv(to, 1, I32, peer, comm, second));
                ok(ncclGroupEnd());
                assert_eq!(cuStreamSynchronize(second), 0);
                assert_eq!(read::<i32>(to, 1), [peer]);
            }
            // Outside a group the operations of two streams run in the order of the calls.
            let data = buffer(&[rank + 1]);
            for turn in 0..6 {
                ok(ncclAllReduce(data, data, 1, I32, 0, comm, if turn % 2 == 0 { first } else { second }));
            }
            assert_eq!((cuStreamSynchronize(first), cuStreamSynchronize(second)), (0, 0));
            assert_eq!(read::<i32>(data, 1), [3 * 32]);
            ok(ncclCommDestroy(comm));
        });
    });
}
