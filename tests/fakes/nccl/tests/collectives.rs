//! Computes every collective with every type and operator.

mod common;

use common::*;

const I32: i32 = 2;
const F32: i32 = 7;

#[test]
fn every_collective_has_the_expected_result() {
    fakes().run(|| {
        const N: i32 = 4;
        ranks(N, |rank, comm, stream| {
            let mine = [rank * 10, rank * 10 + 1];
            let all: Vec<i32> = (0..N).flat_map(|rank| [rank * 10, rank * 10 + 1]).collect();
            let run = |call: &dyn Fn(usize, usize) -> i32, input: &[i32], output: usize| {
                let (send, receive) = (buffer(input), buffer(&vec![-1_i32; output]));
                ok(call(send, receive));
                assert_eq!(cuStreamSynchronize(stream), 0);
                read::<i32>(receive, output)
            };
            assert_eq!(run(&|s, r| ncclAllReduce(s, r, 2, I32, 0, comm, stream), &mine, 2), [60, 64]);
            assert_eq!(run(&|s, r| ncclAllReduce(s, r, 2, I32, 2, comm, stream), &mine, 2), [30, 31]);
            assert_eq!(run(&|s, r| ncclAllReduce(s, r, 2, I32, 3, comm, stream), &mine, 2), [0, 1]);
            assert_eq!(run(&|s, r| ncclAllReduce(s, r, 2, I32, 4, comm, stream), &mine, 2), [15, 16]);
            assert_eq!(run(&|s, r| ncclAllReduce(s, r, 2, I32, 1, comm, stream), &mine, 2), [0, 11 * 21 * 31]);
            let reduced = run(&|s, r| ncclReduce(s, r, 2, I32, 0, 2, comm, stream), &mine, 2);
            assert_eq!(reduced, if rank == 2 { [60, 64] } else { [-1, -1] });
            assert_eq!(run(&|s, r| ncclBroadcast(s, r, 2, I32, 3, comm, stream), &mine, 2), [30, 31]);
            assert_eq!(run(&|s, r| ncclAllGather(s, r, 2, I32, comm, stream), &mine, 8), all);
            let gathered = run(&|s, r| ncclGather(s, r, 2, I32, 1, comm, stream), &mine, 8);
            assert_eq!(gathered, if rank == 1 { all.clone() } else { vec![-1; 8] });
            let own = &all[rank as usize * 2..][..2];
            assert_eq!(run(&|s, r| ncclScatter(s, r, 2, I32, 1, comm, stream), &all, 2), own);
            let own: Vec<i32> = own.iter().map(|value| value * N).collect();
            assert_eq!(run(&|s, r| ncclReduceScatter(s, r, 2, I32, 0, comm, stream), &all, 2), own);
            let to_each: Vec<i32> = (0..N).map(|to| rank * 100 + to).collect();
            let from_each: Vec<i32> = (0..N).map(|from| from * 100 + rank).collect();
            assert_eq!(run(&|s, r| ncclAlltoAll(s, r, 1, I32, comm, stream), &to_each, 4), from_each);
            ok(ncclCommDestroy(comm));
        });
        assert_eq!(count("communicators"), 0);
    });
}

#[test]
fn in_place_collectives_have_the_expected_result() {
    fakes().run(|| {
        ranks(2, |rank, comm, stream| {
            let sum = buffer(&[rank as f32 + 1.0; 3]);
            ok(ncclAllReduce(sum, sum, 3, F32, 0, comm, stream));
            let copied = buffer(&[rank + 5]);
            ok(ncclBcast(copied, 1, I32, 1, comm, stream));
            let gathered = buffer(&[rank, rank + 10]);
            ok(ncclAllGather(gathered + 4 * rank as usize, gathered, 1, I32, comm, stream));
            assert_eq!(cuStreamSynchronize(stream), 0);
            assert_eq!(read::<f32>(sum, 3), [3.0; 3]);
            assert_eq!(read::<i32>(copied, 1), [6]);
            assert_eq!(read::<i32>(gathered, 2), [0, 11]);
            ok(ncclCommDestroy(comm));
        });
    });
}

/// Returns the bytes of `value`, a number from 1 to 6, in NCCL's type `dtype`.
fn bytes_of(dtype: i32, value: u8) -> Vec<u8> {
    match dtype {
        0 | 1 => vec![value],
        2 | 3 => u32::from(value).to_le_bytes().to_vec(),
        4 | 5 => u64::from(value).to_le_bytes().to_vec(),
        6 => [[0, 0x3c], [0, 0x40], [0, 0x42], [0, 0x44], [0, 0x45], [0, 0x46]][usize::from(value) - 1].to_vec(),
        7 => f32::from(value).to_le_bytes().to_vec(),
        8 => f64::from(value).to_le_bytes().to_vec(),
        9 => f32::from(value).to_le_bytes()[2..].to_vec(),
        10 => vec![[0x38, 0x40, 0x44, 0x48, 0x4a, 0x4c][usize::from(value) - 1]],
        11 => vec![[0x3c, 0x40, 0x42, 0x44, 0x45, 0x46][usize::from(value) - 1]],
        other => panic!("unexpected type {other}, expected 0 to 11"),
    }
}

#[test]
fn every_type_and_operator_has_the_expected_result() {
    fakes().run(|| {
        ranks(2, |rank, comm, stream| {
            for dtype in 0..12 {
                // The results for 2 and 4 are 6, 8, 4, 2 and 3; only values up to 6 are in the
                // table above.
                for (op, wanted) in [(0, 6), (2, 4), (3, 2), (4, 3)] {
                    let data = buffer(&bytes_of(dtype, if rank == 0 { 2 } else { 4 }));
                    ok(ncclAllReduce(data, data, 1, dtype, op, comm, stream));
                    assert_eq!(cuStreamSynchronize(stream), 0);
                    let wanted = bytes_of(dtype, wanted);
                    assert_eq!(read::<u8>(data, wanted.len()), wanted, "type {dtype}, operator {op}");
                }
                let data = buffer(&bytes_of(dtype, if rank == 0 { 2 } else { 3 }));
                ok(ncclAllReduce(data, data, 1, dtype, 1, comm, stream));
                let mut own = -1;
                let factor = bytes_of(dtype, if rank == 0 { 2 } else { 1 });
                ok(ncclRedOpCreatePreMulSum(&mut own, factor.as_ptr().cast(), dtype, 1, comm));
                let multiplied = buffer(&bytes_of(dtype, 2));
                ok(ncclAllReduce(multiplied, multiplied, 1, dtype, own, comm, stream));
                assert_eq!(cuStreamSynchronize(stream), 0);
                let wanted = bytes_of(dtype, 6);
                assert_eq!(read::<u8>(data, wanted.len()), wanted, "type {dtype}, product");
                assert_eq!(read::<u8>(multiplied, wanted.len()), wanted, "type {dtype}, multiplied");
                ok(ncclRedOpDestroy(own, comm));
                assert_eq!(ncclRedOpDestroy(own, comm), 4);
                assert_eq!(ncclAllReduce(data, data, 1, dtype, own, comm, stream), 4);
            }
            ok(ncclCommDestroy(comm));
        });
    });
}

#[test]
fn reduction_factor_in_device_memory_is_read_at_execution() {
    fakes().run(|| {
        ranks(1, |_, comm, stream| {
            let (factor, data) = (buffer(&[3.0_f32]), buffer(&[2.0_f32]));
            let mut own = -1;
            ok(ncclRedOpCreatePreMulSum(&mut own, std::ptr::with_exposed_provenance(factor), F32, 0, comm));
            assert_eq!(
                ncclAllReduce(data, data, 1, I32, own, comm, stream),
                4,
                "the type of the operator differs from that of the call"
            );
            assert_eq!(cuMemcpyHtoD_v2(factor, [5.0_f32].as_ptr().cast(), 4), 0);
            ok(ncclAllReduce(data, data, 1, F32, own, comm, stream));
            assert_eq!(cuStreamSynchronize(stream), 0);
            assert_eq!(read::<f32>(data, 1), [10.0]);
            ok(ncclCommDestroy(comm));
        });
    });
}

#[test]
fn captured_collective_runs_at_each_graph_launch() {
    fakes().run(|| {
        ranks(2, |rank, comm, stream| {
            let data = buffer(&[rank + 1]);
            assert_eq!(cuStreamBeginCapture_v2(stream, 1), 0);
            ok(ncclAllReduce(data, data, 1, I32, 0, comm, stream));
            let (mut graph, mut exec) = (0, 0);
            assert_eq!(cuStreamEndCapture(stream, &mut graph), 0);
            assert_eq!(cuGraphInstantiateWithFlags(&mut exec, graph, 0), 0);
            assert_eq!(read::<i32>(data, 1), [rank + 1], "a captured collective must not run before a graph launch");
            for _ in 0..3 {
                assert_eq!(cuGraphLaunch(exec, stream), 0);
            }
            assert_eq!(cuStreamSynchronize(stream), 0);
            assert_eq!(read::<i32>(data, 1), [12]);
            assert!(count("graph_launches") > 0);
            assert_eq!(cuGraphExecDestroy(exec), 0);
            assert_eq!(cuGraphDestroy(graph), 0);
            ok(ncclCommDestroy(comm));
        });
        assert_eq!(count("graph_launches"), 0);
    });
}

#[test]
fn calls_with_invalid_arguments_return_nccl_invalid_argument() {
    fakes().run(|| {
        ranks(1, |_, comm, stream| {
            let data = buffer(&[1_i32]);
            assert_eq!(ncclAllReduce(data, data, 1, I32, 0, 0, stream), 4);
            assert_eq!(ncclAllReduce(data, data, 1, 12, 0, comm, stream), 4);
            assert_eq!(last_error(), "invalid type 12");
            assert_eq!(ncclAllReduce(data, data, 1, I32, 9, comm, stream), 4);
            assert_eq!(ncclAllReduce(data, data, 1, I32, -1, comm, stream), 4);
            assert_eq!(ncclBroadcast(data, data, 1, I32, 1, comm, stream), 4);
            assert!(last_error().contains("0..1 range"), "{}", last_error());
            assert_eq!(ncclBroadcast(data, data, 1, I32, -1, comm, stream), 4);
            assert_eq!(ncclAllReduce(data, data, usize::MAX, I32, 0, comm, stream), 4);
            assert_eq!(ncclAllReduce(0, data, 1, I32, 0, comm, stream), 4);
            assert_eq!(ncclSend(data, 1, I32, 1, comm, stream), 4);
            ok(ncclAllReduce(data, data, 0, I32, 0, comm, stream));
            ok(ncclCommDestroy(comm));
        });
    });
}
