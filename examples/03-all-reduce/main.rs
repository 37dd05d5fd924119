//! Reduces elements over all PEs: blocking on ordinary slices, then enqueued on a stream over
//! symmetric memory.
#![forbid(unsafe_code)]

use peerweave::{Error, ReduceOp, World};

/// Number of elements of each PE in the enqueued all-reduces.
const COUNT: usize = 1 << 20;

fn main() -> Result<(), Error> {
    let world = World::from_env()?;
    let team = world.team();
    let (me, n) = (u64::from(team.my_rank().get()), team.size() as u64);
    let say = |line: String| {
        if me == 0 {
            println!("{line}");
        }
    };

    // The blocking form takes slices, arrays and vectors. Every rank gets the same result, to the
    // last bit.
    let mine = [me + 1, 10 * (me + 1)];
    for op in [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max] {
        let mut all = [0; 2];
        team.all_reduce_blocking(&mine, &mut all, op)?;
        let expected = match op {
            ReduceOp::Sum => n * (n + 1) / 2,
            ReduceOp::Min => 1,
            _ => n,
        };
        assert_eq!(all, [expected, 10 * expected]);
        say(format!("{op} of [r + 1, 10 (r + 1)] over the ranks r: {all:?}"));
    }

    // In place: the buffer holds the operand of this rank, then the result.
    let mut mean = [me as f64];
    team.all_reduce_in_place_blocking(&mut mean, ReduceOp::Avg)?;
    assert_eq!(mean[0], (n - 1) as f64 / 2.0);
    say(format!("mean of the ranks: {:.1}", mean[0]));

    // Without `_blocking`, calls return at once and the stream runs them in order. The stream keeps
    // the buffers alive, so it takes no borrowed slices. Symmetric memory is fastest, since peers
    // read it in place.
    let stream = world.stream()?;
    let (given, sum) = (world.alloc::<f32>(COUNT)?, world.alloc::<f32>(COUNT)?);
    given.fill(1.0)?;
    team.all_reduce(&stream, &given, &sum, ReduceOp::Sum)?; // n
    team.all_reduce_in_place(&stream, &sum, ReduceOp::Sum)?; // n times n
    let last = team.all_reduce_in_place(&stream, &sum, ReduceOp::Max)?; // equal on all ranks, so unchanged
    last.wait()?; // and all earlier operations of the stream
    assert!(sum.to_vec()?.iter().all(|&x| x == (n * n) as f32));
    say(format!("{COUNT} elements, three all-reduces in one stream: each is {}", n * n));

    given.release()?;
    sum.release()?;
    assert!(world.finalize()?.is_clean());
    Ok(())
}
