//! Checks that no operation returns with the upper halves of vector registers in use. SSE code of
//! the caller would otherwise be slow until the next `vzeroupper`.
//!
//! `peerweave-host` tests each kernel on every instruction set. This file tests the operations that
//! users call.

use peerweave::{Buffer, Compare, Rank, ReduceOp, Result, Strides, World};
use peerweave_tests::repeat::acts::act;
use peerweave_tests::run::vector_state::{clean, is_observable, upper_halves_in_use};
use peerweave_tests::{Job, Seat, named};
use std::process::ExitCode;

fn main() -> ExitCode {
    peerweave_tests::main(named![operations], named![operations_zero_the_upper_halves_of_vector_registers])
}

/// Runs each operation with clean registers and records the operations that leave upper halves in
/// use.
#[derive(Default)]
struct Check {
    dirty: Vec<String>,
}

impl Check {
    fn run(&mut self, name: &str, operation: impl FnOnce() -> Result<()>) {
        clean();
        let result = operation();
        if upper_halves_in_use() {
            self.dirty.push(name.to_owned());
        }
        clean();
        result.unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    fn act(&mut self, world: &World, name: &str) {
        let act = act(world, name).unwrap_or_else(|error| panic!("{name}: {error}"));
        self.run(name, act);
    }
}

/// Operations of [`act`] for operands of a number of bytes.
const SIZED: [&str; 8] = ["Scan", "ExclusiveScan", "AllGatherV", "GatherV", "ScatterV", "AllToAllV", "strided", "functions"];

/// Operations of [`act`] without a number of bytes.
const UNSIZED: [&str; 11] = [
    "atomics",
    "wait16",
    "wait_vector",
    "wait_on_stream",
    "test",
    "quiet",
    "context",
    "lock",
    "exchange_counts",
    "kernel_barrier",
    "kernel_signal:4096",
];

fn operations(seat: &Seat) {
    let mut check = Check::default();
    let mut world: Option<World> = None;
    check.run("joining", || {
        world = Some(seat.try_join()?);
        Ok(())
    });
    let world = world.expect("this PE has joined");
    let team = world.team();
    let n = team.size();
    let right = Rank::new((team.my_rank().get() + 1) % n as u32);
    let left = Rank::new((team.my_rank().get() + n as u32 - 1) % n as u32);
    let stream = world.stream().unwrap();
    for len in [1, 2, 3, 8, 13, 100, 1000, 20_000, 150_000] {
        let all = len * n;
        let (x, y, words) =
            (world.alloc::<f64>(all).unwrap(), world.alloc::<f64>(all).unwrap(), world.alloc_zeroed::<u64>(8).unwrap());
        let (xs, ys) = (x.slice(0..len).unwrap(), y.slice(0..len).unwrap());
        let (signal, private, mut received) = (words.signal(1).unwrap(), vec![1.0f64; all], vec![0.0f64; all]);
        let strides = Strides { count: len.div_ceil(2), source: 2, dest: 2 };
        let mut at = |what: &str, operation: &mut dyn FnMut() -> Result<()>| check.run(&format!("{what} of {len}"), operation);
        at("fill", &mut || x.fill(3.0));
        at("copy_from", &mut || y.copy_from(&private));
        at("to_vec", &mut || x.to_vec().map(drop));
        at("store and load", &mut || x.store(0, 2.0).and_then(|()| x.load(0).map(drop)));
        at("barrier", &mut || team.barrier_blocking());
        at("sync", &mut || team.sync_blocking());
        at("put", &mut || team.put_blocking(&private[..len], &xs, right));
        at("put from symmetric", &mut || team.put_blocking(&ys, &xs, right));
        at("put_strided", &mut || team.put_strided_blocking(&private[..len], &xs, strides, right));
        at("get", &mut || team.get_blocking(&xs, &mut received[..len], right));
        at("p", &mut || team.p_blocking(&x, 0, 1.0, right));
        at("g", &mut || team.g_blocking(&x, 0, right).map(drop));
        at("put_signal", &mut || team.put_signal_blocking(&private[..len], &xs, signal.add(1), right));
        at("wait_until", &mut || team.wait_until_blocking(&signal, Compare::Ge, 1).map(drop));
        at("atomic_fetch_add", &mut || team.atomic_fetch_add_blocking(&words, 0, 1, right).map(drop));
        at("fence", &mut || world.fence_blocking());
        at("quiet", &mut || world.quiet_blocking());
        at("all_reduce", &mut || team.all_reduce_blocking(&xs, &ys, ReduceOp::Sum));
        at("all_reduce of private memory", &mut || team.all_reduce_blocking(&private, &mut received, ReduceOp::Max));
        at("reduce", &mut || team.reduce_blocking(&xs, &ys, ReduceOp::Avg, Rank::new(0)));
        at("reduce_scatter", &mut || team.reduce_scatter_blocking(&x, &ys, ReduceOp::Min));
        at("broadcast", &mut || team.broadcast_in_place_blocking(&x, Rank::new(0)));
        at("all_gather", &mut || team.all_gather_blocking(&xs, &y));
        at("all_gather of private memory", &mut || team.all_gather_blocking(&private[..len], &mut received));
        at("gather", &mut || team.gather_blocking(&xs, &y, Rank::new(0)));
        at("scatter", &mut || team.scatter_blocking(&x, &ys, Rank::new(0)));
        at("all_to_all", &mut || team.all_to_all_blocking(&x, &y));
        at("all_to_all of private memory", &mut || team.all_to_all_blocking(&private, &mut received));
        at("send and recv", &mut || {
            team.group_blocking(|group| {
                group.send(&private[..len], right)?;
                group.recv(&mut received[..len], left)
            })
        });
        at("all_reduce on a stream", &mut || team.all_reduce(&stream, &xs, &ys, ReduceOp::Sum)?.wait());
        let buffer = Buffer::from(vec![1u8; len]);
        at("all_reduce of bytes on a stream", &mut || team.all_reduce_in_place(&stream, &buffer, ReduceOp::Sum)?.wait());
        at("a 16-bit reduction", &mut || {
            let mut halves = vec![peerweave::f16::from_f32(1.0); len];
            team.all_reduce_in_place_blocking(&mut halves, ReduceOp::Sum)
        });
        at("split", &mut || team.split(Some(0), 0)?.map_or(Ok(()), |made| made.destroy()));
        at("alloc_zeroed and release", &mut || world.alloc_zeroed::<f64>(len)?.release());
        at("describe", &mut || {
            drop(world.describe());
            Ok(())
        });
        [x, y].into_iter().for_each(|buffer| buffer.release().unwrap());
        words.release().unwrap();
    }
    // The root of these operations is rank 1.
    if n > 1 {
        for bytes in [40, 8000, 1_200_000] {
            for (kind, place) in SIZED.into_iter().flat_map(|kind| ["private", "symmetric"].map(|place| (kind, place))) {
                check.act(&world, &format!("{kind}:{bytes}:{place}"));
            }
        }
        UNSIZED.into_iter().for_each(|kind| check.act(&world, kind));
    }
    check.run("team_of", || world.team_of(team.members())?.destroy());
    check.run("finalize", || world.finalize().map(drop));
    assert!(check.dirty.is_empty(), "upper halves in use after: {:#?}", check.dirty);
}

fn operations_zero_the_upper_halves_of_vector_registers() {
    if !is_observable() {
        println!("    not run: this processor does not report which halves are in use");
        return;
    }
    for n_pes in [1, 2, 3] {
        Job::new("operations", n_pes).on_threads();
        Job::new("operations", n_pes).on_processes();
        Job::new("operations", n_pes).without_attach().on_processes();
    }
}
