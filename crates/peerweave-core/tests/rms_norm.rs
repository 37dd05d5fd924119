//! Checks all-reduce with residual and RMSNorm on the recording backend: wrong calls, the operation
//! that the backend gets, the memory that a queue holds, and the result with one PE.

use peerweave_core::backend::{CollectiveKind, NormScale, Op, Place, Quantization};
use peerweave_core::noop::{Call, Noop};
use peerweave_core::{Buffer, DType, F8E4M3, Result, RmsNorm, RowScales, Stream, Symmetric, World, bf16};
use std::sync::Arc;

/// The handles of PE 1 of 3.
struct Scene {
    noop: Arc<Noop>,
    world: World,
    stream: Stream,
    /// Has 12 elements: three rows of four.
    x: Symmetric<f32>,
    residual: Symmetric<f32>,
    y: Symmetric<f32>,
    small: Symmetric<i8>,
    weight: Symmetric<f32>,
    scales: Symmetric<f32>,
    released: Symmetric<f32>,
    foreign: Symmetric<f32>,
}

impl Scene {
    fn new() -> Result<Self> {
        let noop = Noop::new(1, 3);
        let world = World::new(noop.clone())?;
        let stream = world.stream()?;
        let [x, residual, y, released] = [(); 4].map(|()| world.alloc_zeroed(12).unwrap());
        let (small, weight, scales) = (world.alloc_zeroed(12)?, world.alloc_zeroed(4)?, world.alloc_zeroed(3)?);
        released.clone().release()?;
        let foreign = World::new(Noop::new(1, 3))?.alloc_zeroed(12)?;
        noop.take_calls();
        Ok(Self { noop, world, stream, x, residual, y, small, weight, scales, released, foreign })
    }

    /// Makes a call with these operands.
    fn call(&self, x: &Symmetric<f32>, residual: &Symmetric<f32>, y: &Symmetric<f32>, weight: &Symmetric<f32>) -> Result<()> {
        self.world.team().all_reduce_rms_norm_blocking(x, residual, y, RmsNorm::new(weight))
    }

    /// Makes a quantised call with this scale.
    fn by(&self, scale: f32) -> Result<()> {
        let norm = RmsNorm::new(&self.weight);
        self.world.team().all_reduce_rms_norm_quantized_blocking(&self.x, &self.residual, &self.small, norm, scale)
    }

    fn with(&self, epsilon: f32) -> Result<()> {
        let norm = RmsNorm::new(&self.weight).epsilon(epsilon);
        self.world.team().all_reduce_rms_norm_in_place(&self.stream, &self.x, &self.residual, norm).map(drop)
    }
}

type Wrong = fn(&Scene) -> Result<()>;

const TABLE: &[(&str, Wrong)] = &[
    ("`weight` is 0 elements, expected 1 to 16777215 elements (the length of a row)", |s| {
        s.call(&s.x, &s.residual, &s.y, &s.weight.slice(..0)?)
    }),
    ("`input` is 12 elements, expected a multiple of the length of `weight` (the length of a row)", |s| {
        s.call(&s.x, &s.residual, &s.y, &s.world.alloc_zeroed(5)?)
    }),
    ("`residual` has 8 elements, expected 12", |s| s.call(&s.x, &s.residual.slice(..8)?, &s.y, &s.weight)),
    ("`output` has 8 elements, expected 12", |s| s.call(&s.x, &s.residual, &s.y.slice(..8)?, &s.weight)),
    ("`scales` has 2 elements, expected 3", |s| {
        let (norm, scales) = (RmsNorm::new(&s.weight), s.scales.slice(..2)?);
        let team = s.world.team();
        team.all_reduce_rms_norm_quantized(&s.stream, &s.x, &s.residual, &s.small, norm, RowScales(&scales)).map(drop)
    }),
    ("`epsilon` is 0, expected a positive, finite number that is not subnormal", |s| s.with(0.0)),
    ("`epsilon` is -1, expected a positive, finite number that is not subnormal", |s| s.with(-1.0)),
    ("`epsilon` is NaN, expected a positive, finite number that is not subnormal", |s| s.with(f32::NAN)),
    ("`epsilon` is inf, expected a positive, finite number that is not subnormal", |s| s.with(f32::INFINITY)),
    ("`scale` is 0, expected a positive, finite number whose inverse is finite", |s| s.by(0.0)),
    ("`scale` is -2, expected a positive, finite number whose inverse is finite", |s| s.by(-2.0)),
    ("`scale` is inf, expected a positive, finite number whose inverse is finite", |s| s.by(f32::INFINITY)),
    ("`input` and `output` overlap: use the in-place form, or separate buffers", |s| s.call(&s.x, &s.residual, &s.x, &s.weight)),
    ("`input` and `residual` overlap: pass separate buffers", |s| s.call(&s.x, &s.x, &s.y, &s.weight)),
    ("`residual` and `output` overlap: pass separate buffers", |s| s.call(&s.x, &s.residual, &s.residual, &s.weight)),
    ("`residual` and `weight` overlap: pass separate buffers", |s| s.call(&s.x, &s.residual, &s.y, &s.residual.slice(4..8)?)),
    ("`output` and `weight` overlap: pass separate buffers", |s| s.call(&s.x, &s.residual, &s.y, &s.y.slice(..4)?)),
    ("`buffer` and `residual` overlap: pass separate buffers", |s| {
        s.world.team().all_reduce_rms_norm_in_place_blocking(&s.x, &s.x, RmsNorm::new(&s.weight))
    }),
    ("`buffer` and `weight` overlap: pass separate buffers", |s| {
        s.world.team().all_reduce_rms_norm_in_place_blocking(&s.x, &s.residual, RmsNorm::new(&s.x.slice(..4)?))
    }),
    ("`weight` and `scales` overlap: pass separate buffers", |s| {
        let (norm, scales) = (RmsNorm::new(&s.weight), RowScales(&s.weight.slice(..3)?));
        s.world.team().all_reduce_rms_norm_quantized_blocking(&s.x, &s.residual, &s.small, norm, scales)
    }),
    ("`input` was released", |s| s.call(&s.released, &s.residual, &s.y, &s.weight)),
    ("`weight` was released", |s| s.call(&s.x, &s.residual, &s.y, &s.released)),
    ("`residual` belongs to another world", |s| s.call(&s.x, &s.foreign, &s.y, &s.weight)),
    ("the stream belongs to another world", |s| {
        let stream = World::new(Noop::new(0, 1))?.stream()?;
        s.world.team().all_reduce_rms_norm(&stream, &s.x, &s.residual, &s.y, RmsNorm::new(&s.weight)).map(drop)
    }),
];

#[test]
fn invalid_rms_norm_call_fails_before_the_backend_is_called() {
    for &(expected, wrong) in TABLE {
        let scene = Scene::new().unwrap();
        let error = wrong(&scene).expect_err(expected);
        let message = error.to_string();
        let (call, what) = message.split_once(": ").unwrap();
        assert_eq!(what, expected);
        assert!(call.starts_with("all_reduce_rms_norm") && error.misuse().is_some(), "{message}");
        let calls = scene.noop.take_calls();
        assert!(calls.iter().all(|call| matches!(call, Call::Allocate(_))), "{expected}: {calls:?}");
    }
}

#[test]
fn rms_norm_accepts_input_and_weight_in_the_same_memory() {
    let s = Scene::new().unwrap();
    let row = |of: &Symmetric<f32>| of.slice(..4).unwrap();
    s.call(&row(&s.x), &row(&s.residual), &row(&s.y), &row(&s.x)).unwrap();
    // Empty buffers overlap nothing.
    let none = s.x.slice(..0).unwrap();
    s.call(&none, &none, &none, &s.weight).unwrap();
}

#[test]
fn backend_receives_the_operands_and_parameters_of_rms_norm() {
    let s = Scene::new().unwrap();
    let (team, norm) = (s.world.team(), RmsNorm::new(&s.weight).epsilon(0.5));
    team.all_reduce_rms_norm(&s.stream, &s.x, &s.residual, &s.y, norm).unwrap();
    team.all_reduce_rms_norm_in_place_blocking(&s.x, &s.residual, norm).unwrap();
    team.all_reduce_rms_norm_quantized(&s.stream, &s.x, &s.residual, &s.small, norm, RowScales(&s.scales)).unwrap();
    team.all_reduce_rms_norm_quantized_blocking(&s.x, &s.residual, &s.small, norm, 0.25).unwrap();
    let calls = s.noop.take_calls();
    let [
        Call::Submit(Op::Collective(plain)),
        Call::Run(Op::Collective(in_place)),
        Call::Submit(Op::Collective(rows)),
        Call::Run(Op::Collective(one)),
    ] = &calls[..]
    else {
        panic!("the backend got {calls:?}, expected four norms")
    };
    for op in [plain, in_place, rows, one] {
        assert_eq!((op.kind, op.dtype, op.count), (CollectiveKind::AllReduceRmsNorm, DType::F32, 12));
        assert_eq!(op.send, Some(Place::Symmetric(s.x.offset())));
        let norm = op.rms_norm().expect("the operation has a norm");
        assert_eq!((norm.hidden, norm.epsilon, norm.element_bytes), (4, 0.5, 4));
        assert_eq!(norm.residual, Place::Symmetric(s.residual.offset()));
        assert_eq!(norm.weight, Place::Symmetric(s.weight.offset()));
    }
    assert_eq!((plain.recv, in_place.recv), (Some(Place::Symmetric(s.y.offset())), in_place.send));
    assert!(plain.rms_norm().expect("the operation has a norm").quantization.is_none());
    let quantization = |op: &peerweave_core::backend::Collective| {
        op.rms_norm().and_then(|norm| norm.quantization).expect("the norm is quantised")
    };
    let Quantization { dtype: DType::I8, scale: NormScale::Rows(scales) } = quantization(rows) else {
        panic!("expected row scales: {rows:?}")
    };
    assert_eq!(scales, Place::Symmetric(s.scales.offset()));
    let Quantization { dtype: DType::I8, scale: NormScale::Static(scale) } = quantization(one) else {
        panic!("expected a static scale: {one:?}")
    };
    assert_eq!(scale, 0.25);
    assert_eq!(plain.shape().to_string(), "all_reduce_rms_norm of 12 elements of f32 in rows of 4 elements with epsilon 0.5");
    let text = "all_reduce_rms_norm of 12 elements of f32 in rows of 4 elements with epsilon 0.5, quantized to i8 with one scale for each row";
    assert_eq!(rows.shape().to_string(), text);
}

#[test]
fn stream_keeps_rms_norm_buffers_alive_until_completion() {
    let noop = Noop::new(0, 1);
    let world = World::new(noop.clone()).unwrap();
    let stream = world.stream().unwrap();
    noop.hold_streams(true);
    let buffer = |values: &[f32]| -> Buffer<f32> { values.iter().copied().collect() };
    let (x, weight) = (buffer(&[1.0, 4.0]), buffer(&[1.0, 1.0]));
    let (residual, scales) = (buffer(&[0.0, 0.0]), buffer(&[0.0]));
    let output = Buffer::<F8E4M3>::zeroed(2);
    let held = [x.clone(), weight.clone(), residual.clone(), scales.clone()];
    let ticket = {
        let norm = RmsNorm::new(&weight);
        world.team().all_reduce_rms_norm_quantized(&stream, &x, &residual, &output, norm, RowScales(&scales)).unwrap()
    };
    drop((x, weight, residual, scales));
    // `into_vec` succeeds only if the buffer has one owner.
    let held = held.map(|buffer| buffer.into_vec().expect_err("the queue also holds the buffer"));
    noop.run_all();
    ticket.wait().unwrap();
    let [x, weight, residual, scales] = held.map(|buffer| buffer.into_vec().expect("the buffer has no other owner"));
    assert_eq!((&x[..], &weight[..], &residual[..]), (&[1.0, 4.0][..], &[1.0; 2][..], &[1.0, 4.0][..]));
    let root = 8.5_f32.sqrt();
    assert!((scales[0] * 448.0 * root / 4.0 - 1.0).abs() < 1e-5, "{scales:?}");
    assert_eq!(output.to_vec().iter().map(|y| y.to_f32()).collect::<Vec<_>>(), [112.0, 448.0]);
}

#[test]
fn rms_norm_on_a_single_pe_matches_the_formula() {
    let world = World::new(Noop::new(0, 1)).unwrap();
    let number = |value: f32| bf16::from_f32(value);
    let (input, weight) = ([1.0, 2.0, 0.0, 0.0].map(number), [1.0, 2.0].map(number));
    let (mut residual, mut output) = ([2.0, 2.0, 1.0, -1.0].map(number), [number(7.0); 4]);
    world.team().all_reduce_rms_norm_blocking(&input, &mut residual, &mut output, RmsNorm::new(&weight)).unwrap();
    assert_eq!(residual, [3.0, 4.0, 1.0, -1.0].map(number));
    let root = 12.5_f32.sqrt();
    assert_eq!(output, [3.0 / root, 8.0 / root, 1.0, -2.0].map(number));
}
