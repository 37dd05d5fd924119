//! Wrong calls, and ranks that do not take part.

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
    let error = found.expect_err("a wrong call");
    assert!(error.to_string().starts_with("moe"), "{error}");
    error.misuse().unwrap_or_else(|| panic!("{error}")).clone()
}

#[test]
fn wrong_shapes_are_misuse() {
    let world = World::from_env().unwrap();
    let stream = world.stream().unwrap();
    for (shape, argument) in [
        (Shape::new(0, 1, 8, 1), "experts"),
        (Shape::new(513, 1, 8, 1), "experts"),
        (Shape::new(4, 0, 8, 1), "top_k"),
        (Shape::new(4, 33, 8, 1), "top_k"),
        (Shape::new(4, 1, 0, 1), "hidden"),
        (Shape::new(4, 1, 4, 1), "hidden"),
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
fn experts_that_cannot_be_divided_are_misuse() {
    for outcome in on_threads(3, |world| {
        let stream = world.stream()?;
        Moe::<bf16, bf16>::new(&world, world.team(), &stream, Shape::new(4, 1, 8, 1)).map(|_| ())
    })
    .unwrap()
    {
        assert_eq!(kind(outcome).to_string(), "`experts` is 4, expected a positive multiple of the ranks of the team");
    }
}

#[test]
fn wrong_calls_are_misuse_and_correct_ones_follow() {
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

    // The order of calls.
    let out_of_order = |found: Result<()>| match kind(found) {
        MisuseKind::Value { argument: "self", found, .. } => found,
        other => panic!("{other}"),
    };
    assert_eq!(out_of_order(all.moe.combine(&all.results, &all.outputs).map(|_| ())), "expecting dispatch_send");
    assert_eq!(out_of_order(all.moe.dispatch_receive(&good).map(|_| ())), "expecting dispatch_send");
    all.moe.dispatch_send(&tokens).unwrap();
    assert_eq!(out_of_order(all.moe.dispatch_send(&tokens).map(|_| ())), "expecting dispatch_receive");
    all.moe.dispatch_receive(&good).unwrap();
    assert_eq!(kind(all.moe.combine_send(&all.outputs).map(|_| ())), length("results", 16, all.moe.max_rows() * HIDDEN));
    all.moe.combine_send(&all.results).unwrap();
    assert_eq!(out_of_order(all.moe.dispatch_send(&tokens).map(|_| ())), "expecting combine_receive");
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
fn different_shapes_are_a_mismatch_on_all_pes() {
    let shape = Shape::new(6, 2, 16, 4);
    for (other, difference) in [
        (Shape::new(12, 2, 16, 4), "12 experts"),
        (Shape::new(6, 1, 16, 4), "1 for each token"),
        (Shape::new(6, 2, 32, 4), "32 elements"),
        (Shape::new(6, 2, 16, 3), "at most 3 tokens"),
        (shape.scales(4), "4 scales"),
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
            let error = outcome.expect_err("shapes differ");
            let Error::Mismatch(mismatch) = &error else { panic!("PE {pe}: {error}") };
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
fn wrong_experts_fail_the_kernel() {
    for (experts, code) in [
        ([0, 4, 1, 2], NO_SUCH_EXPERT | 4),
        ([0, -2, 1, 2], NO_SUCH_EXPERT | u64::from(-2_i32 as u32)),
        ([0, 1, 3, 3], REPEATED_EXPERT | 3),
    ] {
        let world = World::from_env().unwrap();
        let stream = world.stream().unwrap();
        let mut all = Exchange::new(&world, &stream).unwrap();
        all.experts.copy_from(&experts).unwrap();
        let tokens = Tokens { rows: &all.rows, scales: None, experts: &all.experts, weights: &all.weights };
        let error = all.moe.dispatch_send(&tokens).unwrap().wait().unwrap_err();
        let Error::Kernel(failure) = &error else { panic!("{error}") };
        assert_eq!(failure.kind, Some(FailureKind::Exit), "{error}");
        assert!(error.to_string().contains(&code.to_string()), "{error}, expected the code {code}");
    }
}

/// The deadline of waits.
const DEADLINE: Duration = Duration::from_secs(2);

/// Longer than a wait up to the deadline takes.
const SOON: Duration = Duration::from_secs(20);

#[test]
fn rank_that_leaves_is_named_by_the_others() {
    let outcomes = World::builder()
        .deadline(DEADLINE)
        .on_threads(3, |world| {
            let stream = world.stream().unwrap();
            let mut all = Exchange::new(&world, &stream).unwrap();
            if world.my_pe().get() == 1 {
                return Ok(()); // drops its world
            }
            let start = Instant::now();
            let tokens = Tokens { rows: &all.rows, scales: None, experts: &all.experts, weights: &all.weights };
            let received = Received { rows: &all.received, scales: None, offsets: &all.offsets };
            let outcome = all.moe.dispatch(&tokens, &received).and_then(|ticket| ticket.wait());
            assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
            outcome
        })
        .unwrap();
    for pe in [0, 2] {
        let error = outcomes[pe].as_ref().expect_err("a rank is gone");
        assert_eq!(error.blamed().iter().map(|pe| pe.get()).collect::<Vec<_>>(), [1], "PE {pe}: {error}");
    }
}
