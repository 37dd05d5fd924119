//! Teams and collectives.

mod common;

use common::*;

#[test]
fn collectives_return_exact_results_in_stream_order() {
    fakes().run_many(3, |me| {
        let rank = me.rank as i32;
        let stream = init(&me);
        let source = symmetric(&[[rank + 1, 10 * rank], [rank, -rank], [7, 8]].concat());
        let target = symmetric(&[0_i32; 18]);
        assert_eq!(nvshmemx_int32_sum_reduce_on_stream(0, target, source, 2, stream), 0);
        finish(stream);
        assert_eq!(read::<i32>(target, 2), [6, 30]);
        assert_eq!(nvshmemx_int32_max_reducescatter_on_stream(0, target, source, 2, stream), 0);
        finish(stream);
        assert_eq!(read::<i32>(target, 2), [[3, 20], [2, 0], [7, 8]][me.rank]);
        assert_eq!(nvshmemx_int32_fcollect_on_stream(0, target, source, 2, stream), 0);
        finish(stream);
        assert_eq!(read::<i32>(target, 6), [1, 0, 2, 10, 3, 20]);
        assert_eq!(nvshmemx_int32_alltoall_on_stream(0, target, source, 2, stream), 0);
        finish(stream);
        let parts = |from: i32| [[from + 1, 10 * from], [from, -from], [7, 8]][me.rank];
        assert_eq!(read::<i32>(target, 6), [parts(0), parts(1), parts(2)].concat());
        assert_eq!(nvshmemx_int32_broadcast_on_stream(0, target, source, 2, 1, stream), 0);
        finish(stream);
        assert_eq!(read::<i32>(target, 2), [2, 10]);
        assert_eq!(nvshmem_int32_sum_reduce(0, source, source, 6), 0);
        assert_eq!(read::<i32>(source, 6), [6, 30, 3, -3, 21, 24], "result of the in-place reductions that the host called");
        assert_eq!(nvshmem_fcollectmem(0, target, source, 3), 0);
        assert_eq!(nvshmemx_int32_broadcast_on_stream(0, target, source, 2, 3, stream), 1, "the team has no rank 3 as root");
        nvshmem_barrier_all();
    });
}

#[test]
fn uint32_xor_reduce_and_bfloat16_sum_reduce_are_exact() {
    fakes().run_many(2, |me| {
        let stream = init(&me);
        let memory = symmetric(&[0xF0F0_F0F0_u32 >> me.rank; 4]);
        assert_eq!(nvshmemx_uint32_xor_reduce_on_stream(0, memory, memory, 4, stream), 0);
        finish(stream);
        assert_eq!(read::<u32>(memory, 4), [0xF0F0_F0F0 ^ (0xF0F0_F0F0 >> 1); 4]);
        // The values are 1.5 and 2.0 as bfloat16, and their sum is 3.5.
        let halves = symmetric(&[[0x3FC0_u16, 0x4000][me.rank]; 3]);
        assert_eq!(nvshmemx_bfloat16_sum_reduce_on_stream(0, halves, halves, 3, stream), 0);
        finish(stream);
        assert_eq!(read::<u16>(halves, 3), [0x4060; 3]);
        nvshmem_barrier_all();
    });
}

#[test]
fn teams_from_strided_and_2d_splits_contain_the_expected_pes() {
    fakes().run_many(4, |me| {
        let rank = me.rank as i32;
        let stream = init(&me);
        assert_eq!([0, 1, 2, 3, 4, 5].map(nvshmem_team_n_pes), [4, 4, 4, 1, 1, 4]);
        assert_eq!((nvshmem_team_my_pe(0), nvshmem_team_my_pe(-1)), (rank, -1));
        let mut odd = 99;
        let mut config = TeamConfig::new();
        config.contexts = 3;
        assert_eq!(nvshmem_team_split_strided(0, 1, 2, 2, &config, 1, &mut odd), 0);
        if rank % 2 == 0 {
            assert_eq!(odd, -1);
        } else {
            assert_eq!((nvshmem_team_my_pe(odd), nvshmem_team_n_pes(odd)), (rank / 2, 2));
            assert_eq!(nvshmem_team_translate_pe(odd, 1, 0), 3);
            assert_eq!(nvshmem_team_translate_pe(0, 2, odd), -1);
            let mut found = TeamConfig::new();
            nvshmem_team_get_config(odd, &mut found);
            assert_eq!(found.contexts, 3);
        }
        let (mut row, mut column) = (-1, -1);
        let none = std::ptr::null();
        assert_eq!(nvshmem_team_split_2d(0, 2, none, 0, &mut row, none, 0, &mut column), 0);
        assert_eq!([row, column].map(nvshmem_team_n_pes), [2, 2]);
        assert_eq!([row, column].map(nvshmem_team_my_pe), [rank % 2, rank / 2]);
        let (source, target) = (symmetric(&[rank]), symmetric(&[0_i32]));
        assert_eq!(nvshmemx_int32_sum_reduce_on_stream(row, target, source, 1, stream), 0);
        finish(stream);
        assert_eq!(read::<i32>(target, 1), [if rank < 2 { 1 } else { 5 }]);
        assert_eq!(nvshmemx_int32_sum_reduce_on_stream(column, target, source, 1, stream), 0);
        finish(stream);
        assert_eq!(read::<i32>(target, 1), [if rank % 2 == 0 { 2 } else { 4 }]);
        if rank % 2 == 1 {
            assert_eq!((nvshmem_team_sync(odd), nvshmemx_barrier_on_stream(odd, stream)), (0, 0));
            finish(stream);
            nvshmem_team_destroy(odd);
        }
        nvshmem_team_destroy(column);
        nvshmem_team_destroy(row);
        assert_eq!(count("teams"), 0);
        assert_eq!(nvshmem_team_split_strided(0, 1, 2, 3, none, 0, &mut odd), 1, "the members go beyond the team");
        nvshmemx_hostlib_finalize();
        assert_eq!(count("left_behind"), 2, "two allocations were not freed");
    });
}

#[test]
fn team_can_be_created_from_a_unique_id_without_a_parent_team() {
    fakes().run_many(3, |me| {
        let rank = me.rank as i32;
        init(&me);
        let words = symmetric(&[0_u64]);
        if rank == 2 {
            let mut id = 0;
            assert_eq!(nvshmemx_team_get_uniqueid(&mut id), 0);
            write(words, &[id]);
        }
        nvshmem_barrier_all();
        for _ in 0..3 {
            if rank != 1 {
                let theirs = nvshmem_ptr(words, 2);
                let mut config = TeamConfig::new();
                config.id = read::<u64>(theirs, 1)[0];
                let mut team = -1;
                // PE 2 has rank 0 in the new team.
                assert_eq!(nvshmemx_team_init(&mut team, &mut config, 2, 2, 1 - rank / 2), 0);
                assert_eq!((nvshmem_team_my_pe(team), nvshmem_team_translate_pe(team, 0, 0)), (1 - rank / 2, 2));
                assert_eq!(nvshmem_barrier(team), 0);
                nvshmem_team_destroy(team);
            }
        }
        nvshmem_barrier_all();
    });
}

#[test]
fn destroying_a_team_allows_a_new_team_at_the_team_limit() {
    fakes().env("NVSHMEM_MAX_TEAMS", "10").run_many(2, |me| {
        init(&me);
        let split = || {
            let mut team = -1;
            (nvshmem_team_split_strided(0, 0, 1, 2, std::ptr::null(), 0, &mut team), team)
        };
        let made: Vec<_> = (0..5).map(|_| split()).collect();
        assert_eq!(made.iter().map(|(code, _)| *code).collect::<Vec<_>>(), [0, 0, 0, 7, 7]);
        nvshmem_team_destroy(made[1].1);
        let (code, team) = split();
        assert_eq!(code, 0);
        assert!(made.iter().all(|(_, other)| *other != team), "a handle was reused");
    });
}
