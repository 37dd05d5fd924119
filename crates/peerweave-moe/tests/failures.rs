//! Tests of wrong calls, and of ranks that leave.

use peerweave::{Error, FailureKind, MisuseKind, Result, Stream, Symmetric, World, bf16, on_threads};
use peerweave_moe::{Moe, NO_SUCH_EXPERT, REPEATED_EXPERT, Received, Shape, Tokens};
use std::time::{Duration, Instant};

const HIDDEN: usize = 8;
const TOKENS: usize = 2;
const TOP_K: usize = 2;

/// An exchange of 4 experts for each rank, with the memory of its calls.
struct Exchange {
    moe: Moe<bf16, f32>,
    rows: Symmetric<bf16>,
    experts: Symmetric<i32>,
    weights: Symmetric<f32>,
    received: Symmetric<bf16>,
    offsets: Symmetric<u32>,
    results: Symmetric<f32>,
    outputs: Symmetric<f32>,
}

impl Exchange {
    fn new(world: &World, stream: &Stream) -> Result<Self> {
        let moe = Moe::new(world, world.team(), stream, Shape::new(4 * world.n_pes(), TOP_K, HIDDEN, TOKENS))?;
        let all = Self {
            rows: world.alloc(TOKENS * HIDDEN)?,
            experts: world.alloc_zeroed(TOKENS * TOP_K)?,
            weights: world.alloc_zeroed(TOKENS * TOP_K)?,
            received: world.alloc(moe.max_rows() * HIDDEN)?,
            offsets: world.alloc(5)?,
            results: world.alloc(moe.max_rows() * HIDDEN)?,
            outputs: world.alloc(TOKENS * HIDDEN)?,
            moe,
        };
        all.experts.copy_from(&[0, 1, 2, -1])?;
        Ok(all)
    }
}

fn kind(found: Result<()>) -> MisuseKind {
    let error = found.expect_err("the call fails, because an argument is wrong");
    assert!(error.to_string().starts_with("moe"), "{error}");
    error.misuse().unwrap_or_else(|| panic!("{error}, expected a misuse")).clone()
}

#[test]
fn invalid_exchange_shapes_are_misuse() {
    let world = World::from_env().unwrap();
    let stream = world.stream().unwrap();
    for (shape, argument) in [
        (Shape::new(0, 1, 8, 1), "experts"),
        (Shape::new(513, 1, 8, 1), "experts"),
        (Shape::new(4, 0, 8, 1), "top_k"),
        (Shape::new(4, 33, 8, 1), "top_k"),
        (Shape::new(4, 5, 8, 1), "top_k"),
        (Shape::new(4, 1, 0, 1), "hidden"),
        (Shape::new(4, 1, 4, 1), "hidden"),
        (Shape::new(4, 1, 1 << 40, 1), "hidden"),
        (Shape::new(4, 1, 8, 1).scales(1 << 40), "scales"),
        (Shape::new(4, 1, 8, 0), "max_tokens"),
        (Shape::new(4, 2, 8, usize::MAX), "max_tokens"),
        (Shape::new(4, 1, 8, 1).scales(3), "scales"),
        (Shape::new(4, 1, 8, 1).launch(0, 1), "launch"),
        (Shape::new(4, 1, 8, 1).launch(1, 513), "launch"),
    ] {
        let found = kind(Moe::<bf16, f32>::new(&world, world.team(), &stream, shape).map(|_| ()));
        assert!(matches!(&found, MisuseKind::Value { argument: found, .. } if *found == argument), "{shape:?}: {found}");
    }
}

#[test]
fn expert_count_not_divisible_by_ranks_is_misuse() {
    for outcome in on_threads(3, |world| {
        let stream = world.stream()?;
        Moe::<bf16, bf16>::new(&world, world.team(), &stream, Shape::new(4, 1, 8, 1)).map(|_| ())
    })
    .unwrap()
    {
        assert_eq!(kind(outcome).to_string(), "`experts` is 4, expected a positive multiple of the number of ranks in the team");
    }
}

#[test]
fn exchange_is_usable_after_calls_that_return_misuse() {
    let world = World::from_env().unwrap();
    let stream = world.stream().unwrap();
    let mut all = Exchange::new(&world, &stream).unwrap();
    let good = Received { rows: &all.received, scales: None, offsets: &all.offsets };
    let bytes = world.alloc::<bf16>(TOKENS * HIDDEN + 1).unwrap();
    let shifted = bytes.slice(1..).unwrap();
    let short_rows = all.rows.slice(..HIDDEN).unwrap();
    let odd_experts = all.experts.slice(..3).unwrap();
    let many = world.alloc_zeroed::<i32>((TOKENS + 1) * TOP_K).unwrap();
    let short_weights = all.weights.slice(..1).unwrap();
    let scales = world.alloc::<f32>(8).unwrap();
    let tokens = Tokens { rows: &all.rows, scales: None, experts: &all.experts, weights: &all.weights };
    let length = |argument, found, expected| MisuseKind::Length { argument, found, expected };
    for (tokens, expected) in [
        (Tokens { rows: &short_rows, ..tokens }, length("rows", 8, 16)),
        (Tokens { weights: &short_weights, ..tokens }, length("weights", 1, 4)),
        (Tokens { scales: Some(&scales), ..tokens }, length("scales", 8, 0)),
        (
            Tokens { experts: &many, ..tokens },
            MisuseKind::Limit { argument: "experts", found: 3, max: 2, limit: "max_tokens of the shape" },
        ),
    ] {
        let moe = &mut all.moe;
        assert_eq!(kind(moe.dispatch_send(&tokens).map(|_| ())), expected);
    }
    for tokens in [Tokens { experts: &odd_experts, ..tokens }, Tokens { rows: &shifted, ..tokens }] {
        assert!(matches!(kind(all.moe.dispatch_send(&tokens).map(|_| ())), MisuseKind::Value { .. }));
    }
    let short_offsets = all.offsets.slice(..4).unwrap();
    let found = kind(all.moe.dispatch(&tokens, &Received { offsets: &short_offsets, ..good }).map(|_| ()));
    assert_eq!(found, length("offsets", 4, 5));
    let found = kind(all.moe.dispatch(&tokens, &Received { rows: &all.rows, ..good }).map(|_| ()));
    assert_eq!(found, length("rows", 16, all.moe.max_rows() * HIDDEN));

    // Calls that are out of order.
    let out_of_order = |found: Result<()>| match kind(found) {
        MisuseKind::Value { argument: "self", found, .. } => found,
        other => panic!("{other}, expected a call that is out of order"),
    };
    assert_eq!(
        out_of_order(all.moe.combine(&all.results, &all.outputs).map(|_| ())),
        "an exchange whose next call must be dispatch_send"
    );
    assert_eq!(out_of_order(all.moe.dispatch_receive(&good).map(|_| ())), "an exchange whose next call must be dispatch_send");
    all.moe.dispatch_send(&tokens).unwrap();
    assert_eq!(out_of_order(all.moe.dispatch_send(&tokens).map(|_| ())), "an exchange whose next call must be dispatch_receive");
    all.moe.dispatch_receive(&good).unwrap();
    assert_eq!(kind(all.moe.combine_send(&all.outputs).map(|_| ())), length("results", 16, all.moe.max_rows() * HIDDEN));
    all.moe.combine_send(&all.results).unwrap();
    assert_eq!(out_of_order(all.moe.dispatch_send(&tokens).map(|_| ())), "an exchange whose next call must be combine_receive");
    let short_outputs = all.outputs.slice(..HIDDEN).unwrap();
    assert_eq!(kind(all.moe.combine_receive(&short_outputs).map(|_| ())), length("outputs", 8, 16));
    all.moe.combine_receive(&all.outputs).unwrap().wait().unwrap();

    let released = world.alloc::<bf16>(TOKENS * HIDDEN).unwrap();
    let handle = released.clone();
    released.release().unwrap();
    let found = kind(all.moe.dispatch_send(&Tokens { rows: &handle, ..tokens }).map(|_| ()));
    assert_eq!(found, MisuseKind::Released { argument: "rows" });
    all.moe.release().unwrap();
}

#[test]
fn exchange_creation_fails_on_all_pes_if_the_shapes_differ() {
    let shape = Shape::new(6, 2, 16, 4);
    for (other, difference) in [
        (Shape::new(12, 2, 16, 4), "12 experts"),
        (Shape::new(6, 1, 16, 4), "1 experts for each token"),
        (Shape::new(6, 2, 32, 4), "32 elements"),
        (Shape::new(6, 2, 16, 3), "at most 3 tokens"),
        (shape.scales(4), "4 scales"),
        (Shape::new(6, 0, 16, 4), "0 experts for each token"),
        (shape.launch(0, 32), "this shape is invalid"),
    ] {
        let outcomes = on_threads(3, |world| {
            let stream = world.stream()?;
            let mine = if world.my_pe().get() == 1 { other } else { shape };
            let outcome = Moe::<bf16, f32>::new(&world, world.team(), &stream, mine).map(drop);
            // Nothing was allocated, and the world can be used.
            world.team().barrier_blocking()?;
            assert!(world.finalize()?.is_clean());
            outcome
        })
        .unwrap();
        for (pe, outcome) in outcomes.into_iter().enumerate() {
            let error = outcome.expect_err("the call fails, because the shapes differ");
            let Error::Mismatch(mismatch) = &error else { panic!("PE {pe}: {error}, expected a mismatch") };
            assert_eq!(mismatch.pe.get(), if pe == 1 { 0 } else { 1 }, "PE {pe}: {error}");
            assert!(error.to_string().contains(difference), "PE {pe}: {error}");
        }
    }
}

#[test]
fn missing_scales_are_misuse() {
    let world = World::from_env().unwrap();
    let stream = world.stream().unwrap();
    let mut moe = Moe::<bf16, f32>::new(&world, world.team(), &stream, Shape::new(4, 1, 8, 1).scales(4)).unwrap();
    let (rows, experts) = (world.alloc::<bf16>(8).unwrap(), world.alloc_zeroed::<i32>(1).unwrap());
    let weights = world.alloc_zeroed::<f32>(1).unwrap();
    let tokens = Tokens { rows: &rows, scales: None, experts: &experts, weights: &weights };
    assert!(matches!(kind(moe.dispatch_send(&tokens).map(|_| ())), MisuseKind::Missing { argument: "scales", .. }));
}

#[test]
fn overlapping_buffers_of_a_dispatch_are_misuse() {
    let world = World::from_env().unwrap();
    let stream = world.stream().unwrap();
    let mut all = Exchange::new(&world, &stream).unwrap();
    let tokens = Tokens { rows: &all.rows, scales: None, experts: &all.experts, weights: &all.weights };
    let within = all.received.cast::<u32>().unwrap().slice(..5).unwrap();
    let found = kind(all.moe.dispatch(&tokens, &Received { rows: &all.received, scales: None, offsets: &within }).map(|_| ()));
    assert_eq!(found, MisuseKind::Overlap { first: "rows", second: "offsets", advice: "pass separate buffers" });

    // Memory that is read first may be overwritten: tokens by the received rows, and results by the
    // outputs.
    let rows = all.received.slice(..TOKENS * HIDDEN).unwrap();
    rows.copy_from(&[bf16::from_f32(3.0); TOKENS * HIDDEN]).unwrap();
    all.weights.fill(1.0).unwrap();
    let tokens = Tokens { rows: &rows, scales: None, experts: &all.experts, weights: &all.weights };
    let received = Received { rows: &all.received, scales: None, offsets: &all.offsets };
    all.moe.dispatch(&tokens, &received).unwrap().wait().unwrap();
    assert!(all.received.slice(..3 * HIDDEN).unwrap().to_vec().unwrap().iter().all(|x| x.to_f32() == 3.0));
    all.results.fill(2.0).unwrap();
    let outputs = all.results.slice(..TOKENS * HIDDEN).unwrap();
    all.moe.combine(&all.results, &outputs).unwrap().wait().unwrap();
    assert_eq!(outputs.to_vec().unwrap(), [[4.0; HIDDEN], [2.0; HIDDEN]].concat());
    all.moe.release().unwrap();
}

#[test]
fn error_of_a_wrong_expert_names_the_pe_and_the_expert_count() {
    for (experts, message) in [
        ([0, 4, 1, 2], "a token of PE 0 has expert 4, expected a number in 0..4, or -1 for no expert"),
        ([0, -2, 1, 2], "a token of PE 0 has expert -2, expected a number in 0..4, or -1 for no expert"),
        ([0, 1, 3, 3], "a token of PE 0 lists expert 3 twice, expected each of the 4 experts at most once"),
    ] {
        // The error is returned by the ticket of the half, by the ticket of the whole dispatch, and
        // by the stream.
        for way in 0..3 {
            let world = World::from_env().unwrap();
            let stream = world.stream().unwrap();
            let mut all = Exchange::new(&world, &stream).unwrap();
            all.experts.copy_from(&experts).unwrap();
            let tokens = Tokens { rows: &all.rows, scales: None, experts: &all.experts, weights: &all.weights };
            let received = Received { rows: &all.received, scales: None, offsets: &all.offsets };
            let (error, call) = match way {
                0 => (all.moe.dispatch_send(&tokens).unwrap().wait().unwrap_err(), "moe_dispatch_send"),
                1 => (all.moe.dispatch(&tokens, &received).unwrap().wait().unwrap_err(), "moe_dispatch"),
                _ => {
                    let _ = all.moe.dispatch(&tokens, &received).unwrap();
                    (all.moe.explain(stream.synchronize().unwrap_err()), "moe_dispatch_send")
                }
            };
            let Error::Kernel(failure) = &error else { panic!("{error}, expected the failure of a kernel") };
            assert_eq!(failure.kind, Some(FailureKind::Exit), "{error}");
            let kind = failure.exit_code.map(|code| code >> 32 << 32);
            assert!([Some(NO_SUCH_EXPERT), Some(REPEATED_EXPERT)].contains(&kind), "{kind:?}");
            assert_eq!(error.to_string(), format!("{call}: {message}"));
        }
    }
}

/// A time that is much longer than the detection of a PE that leaves, and much shorter than the
/// deadline.
const SOON: Duration = Duration::from_secs(20);

/// Runs a dispatch from which PE 1 leaves with `leave`. Returns the outcome of each PE.
fn one_leaves(n_pes: usize, leave: impl Fn(Exchange, World) + Sync) -> Vec<Result<()>> {
    let program = |world: World| {
        let stream = world.stream().unwrap();
        let mut all = Exchange::new(&world, &stream).unwrap();
        if world.my_pe().get() == 1 {
            leave(all, world);
            return Ok(());
        }
        let start = Instant::now();
        let tokens = Tokens { rows: &all.rows, scales: None, experts: &all.experts, weights: &all.weights };
        let received = Received { rows: &all.received, scales: None, offsets: &all.offsets };
        let outcome = all.moe.dispatch(&tokens, &received).and_then(|ticket| ticket.wait());
        assert!(start.elapsed() < SOON, "the calls took {:?}", start.elapsed());
        outcome
    };
    World::builder().deadline(Duration::from_secs(60)).on_threads(n_pes, program).unwrap()
}

#[test]
fn dispatch_fails_before_the_deadline_if_a_rank_leaves() {
    for n_pes in [2, 3, 8] {
        let outcomes = one_leaves(n_pes, |_, _| {}); // PE 1 drops its world
        for pe in (0..n_pes).filter(|pe| *pe != 1) {
            let error = outcomes[pe].as_ref().expect_err("the dispatch fails, because PE 1 has left");
            let text = format!("moe_dispatch on the world ({n_pes} PEs): PE 1 left the job");
            assert_eq!(error.to_string(), text, "PE {pe}");
        }
    }
}

#[test]
fn tokens_arrive_if_the_sender_leaves_after_dispatch_send() {
    let outcomes = one_leaves(3, |mut all, _world| {
        let tokens = Tokens { rows: &all.rows, scales: None, experts: &all.experts, weights: &all.weights };
        all.moe.dispatch_send(&tokens).unwrap().wait().unwrap();
    });
    outcomes.into_iter().for_each(|outcome| outcome.expect("the dispatch succeeds, because PE 1 has sent its tokens"));
}
