//! Checks contexts: every operation, their order, and that a quiet completes only the operations of
//! its own context.

use peerweave::{Buffer, Compare, Context, Error, Pe, PeerCause, Rank, Result, Strides, Symmetric, World};
use std::time::{Duration, Instant};

/// Calls every operation of a context with the next rank as target, and checks the results.
fn every_operation(world: &World, context: &Context) {
    let team = context.team();
    let n = team.size() as u32;
    let (right, left) = (Rank::new((team.my_rank().get() + 1) % n), Rank::new((team.my_rank().get() + n - 1) % n));
    let (data, counters) = (world.alloc_zeroed::<i32>(12).unwrap(), world.alloc_zeroed::<u64>(4).unwrap());
    let me = team.my_rank().get() as i32;
    world.team().barrier_blocking().unwrap();

    context.put(&Buffer::from(vec![me, 1, 2, 3]), &data.slice(..4).unwrap(), right).unwrap();
    context.p(&data, 4, -me, right).unwrap();
    let every_other = Strides { count: 3, source: 1, dest: 2 };
    context.put_strided(&Buffer::from(vec![7, 8, 9]), &data.slice(5..10).unwrap(), every_other, right).unwrap();
    context.fence().unwrap();
    context.signal(counters.signal(0).unwrap().add(3), right).unwrap();
    context.put_signal(&Buffer::from(vec![5, 6]), &data.slice(10..).unwrap(), counters.signal(1).unwrap().set(9), right).unwrap();
    context.atomic_add(&counters, 2, 40, right).unwrap();
    let old = context.atomic_fetch_add(&counters, 2, 2, right).unwrap();
    context.quiet().unwrap();
    assert_eq!(old.wait().unwrap(), 40, "operations of a context run in the order of the calls");

    // Checks the data from the left rank. After the signal, all data put before it has arrived.
    team.wait_until_blocking(&counters.signal(0).unwrap(), Compare::Eq, 3).unwrap();
    let left = left.get() as i32;
    assert_eq!(data.slice(..10).unwrap().to_vec().unwrap(), [left, 1, 2, 3, -left, 7, 0, 8, 0, 9]);
    team.wait_until_blocking(&counters.signal(1).unwrap(), Compare::Eq, 9).unwrap();
    assert_eq!(data.slice(10..).unwrap().to_vec().unwrap(), [5, 6]);

    // Reads back what this PE has put to the right rank.
    let (mine, odd) = (Buffer::<i32>::zeroed(4), Buffer::<i32>::zeroed(3));
    context.get(&data.slice(..4).unwrap(), &mine, right).unwrap();
    let back = Strides { count: 3, source: 2, dest: 1 };
    context.get_strided(&data.slice(5..10).unwrap(), &odd, back, right).unwrap();
    assert_eq!(context.g(&data, 4, right).unwrap().wait().unwrap(), -me);
    let swapped = context.atomic_compare_swap(&counters, 2, 42, 1, right).unwrap();
    context.quiet().unwrap();
    assert_eq!((mine.to_vec(), odd.to_vec()), (vec![me, 1, 2, 3], vec![7, 8, 9]));
    assert_eq!(swapped.wait().unwrap(), 42);
    world.team().barrier_blocking().unwrap();
    data.release().unwrap();
    counters.release().unwrap();
}

/// Checks every operation of contexts of the world and of a team of every other PE.
///
/// # Panics
/// If a result is wrong.
pub fn all_operations(world: &World) {
    every_operation(world, &world.team().context().unwrap());
    let part = world.team().split(Some(u64::from(world.my_pe().get() % 2)), 0).unwrap().unwrap();
    every_operation(world, &part.context().unwrap());
    part.destroy().unwrap();
}

/// Checks that the quiet of a context does not wait for another context. The stream of that other
/// context waits for a signal that is sent only after the quiet.
///
/// # Panics
/// If a result is wrong.
pub fn quiet_is_of_its_own_context(world: &World) {
    let (team, me) = (world.team(), world.team().my_rank());
    let (data, word) = (world.alloc_zeroed::<u32>(2).unwrap(), world.alloc_zeroed::<u64>(1).unwrap());
    let (held, free) = (team.context().unwrap(), team.context().unwrap());
    let wait = team.wait_until(held.stream(), &word.signal(0).unwrap(), Compare::Eq, 1).unwrap();
    held.p(&data, 0, 1, me).unwrap();
    free.p(&data, 1, 2, me).unwrap();
    free.quiet().unwrap();
    assert!(!wait.is_complete());
    assert_eq!(data.to_vec().unwrap(), [0, 2], "the put of the other context must wait for the signal");
    free.signal(word.signal(0).unwrap().set(1), me).unwrap();
    held.quiet().unwrap();
    assert_eq!(data.to_vec().unwrap(), [1, 2]);
    team.barrier_blocking().unwrap();
    data.release().unwrap();
    word.release().unwrap();
}

/// Checks that no operation is lost, whether threads have a context each or share one.
///
/// # Panics
/// If a result is wrong.
pub fn threads_use_contexts(world: &World) {
    const ADDS: u64 = 50;
    let team = world.team();
    let counter = world.alloc_zeroed::<u64>(1).unwrap();
    let (shared, right) = (team.context().unwrap(), Rank::new((team.my_rank().get() + 1) % team.size() as u32));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (shared, counter) = (&shared, &counter);
            scope.spawn(move || {
                let own = if thread % 2 == 0 { shared.clone() } else { team.context().unwrap() };
                (0..ADDS).for_each(|_| own.atomic_add(counter, 0, 1, right).unwrap());
                own.quiet().unwrap();
            });
        }
    });
    team.barrier_blocking().unwrap();
    assert_eq!(counter.load(0).unwrap(), 4 * ADDS);
    counter.release().unwrap();
}

/// Checks that a context refuses operations after `finalize`.
///
/// # Panics
/// If an operation is not refused.
pub fn no_use_after_finalize(world: World) {
    let (context, buffer) = (world.team().context().unwrap(), world.alloc_zeroed::<u32>(1).unwrap());
    assert!(!world.finalize().unwrap().is_clean());
    let rank = context.team().my_rank();
    let errors: [Result<(), Error>; 4] =
        [context.quiet(), context.fence(), context.p(&buffer, 0, 1, rank), context.team().context().map(drop)];
    for error in errors {
        assert!(error.as_ref().is_err_and(|error| error.misuse().is_some()), "{error:?}");
    }
}

/// The operations of a context that PEs repeat until one PE dies. Their target is the PE that dies,
/// except for `put_to_another`. `put_signal` and `atomic` change words, by the host or by a kernel.
/// `wait` waits for a word that no PE changes.
pub const REPEATED: [&str; 7] = ["put", "put_to_another", "put_strided", "get", "put_signal", "atomic", "wait"];

/// Repeats one of [`REPEATED`], each time with a quiet of the context, until the operation or the
/// quiet fails.
fn repeat(context: &Context, how: &str, data: &Symmetric<u32>, words: &Symmetric<u64>, victim: Rank) -> Error {
    let one = Buffer::from(vec![1, 2]);
    let another = Rank::new((victim.get() + 1) % context.team().size() as u32);
    let issue = || -> Result<()> {
        match how {
            "put" => context.put(&one, data, victim),
            "put_to_another" => context.put(&one, data, another),
            "put_strided" => context.put_strided(&one, data, Strides { count: 2, source: 1, dest: 1 }, victim),
            "get" => context.get(data, &one, victim),
            "put_signal" => context.put_signal(&one, data, words.signal(1)?.add(1), victim),
            "atomic" => context.atomic_fetch_add(words, 1, 1, victim).map(drop),
            // Nothing changes this word.
            "wait" => context.team().wait_until(context.stream(), &words.signal(0)?, Compare::Eq, 1).map(drop),
            other => panic!("unknown operation {other}"),
        }
    };
    let start = Instant::now();
    loop {
        // The error is that of a refused operation, or the quiet's error for an earlier operation.
        if let Err(error) = issue().and_then(|()| context.quiet()) {
            return error;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{how}: the death was not reported within 20 s");
    }
}

/// Checks that the quiet of a context names a PE that dies while all PEs use contexts. Every
/// survivor must get that error within 20 s, from each later quiet and from other contexts too.
///
/// `victim` is the rank of the PE that dies. That PE calls `die`, which returns before the PE dies.
/// This function returns on the survivors.
///
/// # Panics
/// If a result is wrong.
pub fn quiet_names_the_dead(world: &World, how: &str, victim: Rank, die: impl FnOnce()) {
    let team = world.team();
    let (data, words) = (world.alloc_zeroed::<u32>(2).unwrap(), world.alloc_zeroed::<u64>(2).unwrap());
    let (context, other) = (team.context().unwrap(), team.context().unwrap());
    for context in [&context, &other] {
        context.p(&data, 0, 1, victim).unwrap();
        context.quiet().unwrap();
    }
    team.barrier_blocking().unwrap();
    let start = Instant::now();
    if team.my_rank() == victim {
        die();
        let how = if how == "wait" { "put" } else { how };
        panic!("this PE was expected to die, but its operation returned: {}", repeat(&context, how, &data, &words, Rank::new(0)));
    }
    let victim_pe = Pe::new(victim.get());
    let is_named = |error: &Error| assert_eq!(error.blamed(), [victim_pe], "{how}: {error}");
    let error = repeat(&context, how, &data, &words, victim);
    assert!(matches!(error, Error::Peer { cause: PeerCause::Died, .. }), "{how}: {error}");
    is_named(&error);
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "the death was reported after {:?}, expected less than 20 s",
        start.elapsed()
    );
    // Both contexts name the victim again, and so does a new context.
    for context in [context, other, team.context().unwrap()] {
        is_named(&repeat(&context, "put", &data, &words, victim));
    }
    // The quiet of the world names the victim too. On the host, only about one in a thousand calls
    // checks for dead PEs.
    let start = Instant::now();
    let error = loop {
        if let Err(error) = world.quiet_blocking() {
            break error;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "the quiet of the world did not report the death within 20 s");
    };
    is_named(&error);
    data.to_vec().expect("the memory of this PE is accessible");
}
