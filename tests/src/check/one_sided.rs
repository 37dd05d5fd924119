//! Checks puts and gets of every type, from and to buffers of every kind: whole, single elements,
//! and at strides.
//!
//! Public functions are `inline`, so that only the tests that call them compile them for all types.

use crate::data::memory::{Kind, Mem, arena_len};
use crate::data::sample::{Sample, hash, movable};
use peerweave::{Buffer, DType, F8E4M3, F8E5M2, Rank, Stream, Strides, Symmetric, Team, World, bf16, f16};

/// Returns the rank that is `distance` ranks after this one. The last rank is followed by rank 0.
pub fn neighbour(team: &Team, distance: usize) -> Rank {
    Rank::new(((team.my_rank().index() + distance) % team.size()) as u32)
}

/// Checks every type in a team. PEs that are not in the team pass `None`. `lens` has the numbers of
/// elements of the buffers; each is limited to the number that fits into `bytes` bytes.
///
/// # Panics
/// If a result is wrong.
#[inline]
pub fn every_type(world: &World, team: Option<&Team>, lens: &[usize], bytes: usize) {
    for dtype in DType::ALL {
        let run = match dtype {
            DType::I8 => moves::<i8>,
            DType::U8 => moves::<u8>,
            DType::I16 => moves::<i16>,
            DType::U16 => moves::<u16>,
            DType::I32 => moves::<i32>,
            DType::U32 => moves::<u32>,
            DType::I64 => moves::<i64>,
            DType::U64 => moves::<u64>,
            DType::F16 => moves::<f16>,
            DType::BF16 => moves::<bf16>,
            DType::F32 => moves::<f32>,
            DType::F64 => moves::<f64>,
            DType::F8E4M3 => moves::<F8E4M3>,
            DType::F8E5M2 => moves::<F8E5M2>,
            other => panic!("unknown element type {other}"),
        };
        run(world, team, lens, bytes);
    }
}

fn moves<T: Sample>(world: &World, team: Option<&Team>, lens: &[usize], bytes: usize) {
    let longest = bytes / size_of::<T>();
    let arenas = [0; 3].map(|_| world.alloc::<T>(arena_len(longest)).expect("the heap has enough memory"));
    let stream = world.stream().expect("a stream can be created");
    if let Some(team) = team {
        let me = team.my_rank().index();
        for (i, len) in lens.iter().map(|len| *len.min(&longest)).enumerate() {
            for (j, kind) in Kind::ALL.into_iter().enumerate() {
                let seed = hash(&[i as u64, j as u64, T::DTYPE as u64]);
                let distance = seed as usize % team.size();
                let (to, from) = (neighbour(team, distance), neighbour(team, team.size() - distance));
                let mine: Vec<T> = (0..len).map(|i| movable(seed, me, i)).collect();
                let source = Mem::new(kind, &arenas[0], seed as usize % 13, &mine);
                let target = Mem::new(Kind::Symmetric, &arenas[1], seed as usize % 29, &vec![T::default(); len]);
                let dest = target.symmetric();
                team.barrier_blocking().unwrap();
                let on_stream = seed & 1 == 0 && kind != Kind::Slice;
                match (kind, on_stream) {
                    (Kind::Slice, _) => team.put_blocking(source.slice(), dest, to).unwrap(),
                    (Kind::Symmetric, false) => team.put_blocking(source.symmetric(), dest, to).unwrap(),
                    (Kind::Symmetric, true) => team.put(&stream, source.symmetric(), dest, to).unwrap().wait().unwrap(),
                    (Kind::Buffer, false) => team.put_blocking(source.buffer(), dest, to).unwrap(),
                    (Kind::Buffer, true) => team.put(&stream, source.buffer(), dest, to).unwrap().wait().unwrap(),
                }
                team.barrier_blocking().unwrap();
                let theirs: Vec<T> = (0..len).map(|i| movable(seed, from.index(), i)).collect();
                same(&target.contents().unwrap(), &theirs, "put");

                // `to` now has this PE's data; a get reads it back.
                let mut back = Mem::new(kind, &arenas[2], seed as usize % 17, &vec![T::default(); len]);
                match (kind, on_stream) {
                    (Kind::Slice, _) => team.get_blocking(dest, back.slice_mut(), to).unwrap(),
                    (Kind::Symmetric, false) => team.get_blocking(dest, back.symmetric(), to).unwrap(),
                    (Kind::Symmetric, true) => team.get(&stream, dest, back.symmetric(), to).unwrap().wait().unwrap(),
                    (Kind::Buffer, false) => team.get_blocking(dest, back.buffer(), to).unwrap(),
                    (Kind::Buffer, true) => team.get(&stream, dest, back.buffer(), to).unwrap().wait().unwrap(),
                }
                same(&back.contents().unwrap(), &mine, "get");

                if len > 0 {
                    let at = seed as usize % len;
                    let value = movable::<T>(seed, 1000 + me, 0);
                    team.barrier_blocking().unwrap();
                    if on_stream {
                        team.p(&stream, dest, at, value, to).unwrap().wait().unwrap();
                        assert_eq!(team.g(&stream, dest, at, to).unwrap().wait().unwrap().bits(), value.bits());
                    } else {
                        team.p_blocking(dest, at, value, to).unwrap();
                        assert_eq!(team.g_blocking(dest, at, to).unwrap().bits(), value.bits());
                    }
                    team.barrier_blocking().unwrap();
                }
                strided(team, &stream, &arenas, seed, len);
            }
        }
    }
    for arena in arenas {
        arena.release().expect("all PEs release the memory");
    }
}

/// Makes a strided put, followed by a strided get of the same data.
fn strided<T: Sample>(team: &Team, stream: &Stream, arenas: &[Symmetric<T>; 3], seed: u64, len: usize) {
    let me = team.my_rank().index();
    let (to, from) = (neighbour(team, 1), neighbour(team, team.size() - 1));
    let [source_stride, dest_stride] = [1 + (seed >> 8) as usize % 4, 1 + (seed >> 16) as usize % 5];
    let count = len.min(5000) / 5;
    let span = |stride: usize| count.saturating_sub(1) * stride + usize::from(count > 0);
    let mine: Vec<T> = (0..span(source_stride)).map(|i| movable(seed, 50 + me, i)).collect();
    let before: Vec<T> = (0..span(dest_stride)).map(|i| movable(seed, 99, i)).collect();
    let target = Mem::new(Kind::Symmetric, &arenas[1], 3, &before);
    let source = Mem::new(Kind::Buffer, &arenas[0], 1, &mine);
    team.barrier_blocking().unwrap();
    let strides = Strides { count, source: source_stride, dest: dest_stride };
    if seed & 2 == 0 {
        team.put_strided_blocking(source.buffer(), target.symmetric(), strides, to).unwrap();
    } else {
        team.put_strided(stream, source.buffer(), target.symmetric(), strides, to).unwrap().wait().unwrap();
    }
    team.barrier_blocking().unwrap();
    let mut expected = before;
    (0..count).for_each(|i| expected[i * dest_stride] = movable(seed, 50 + from.index(), i * source_stride));
    same(&target.contents().unwrap(), &expected, "put_strided");

    let mut back: Vec<T> = mine.iter().map(|_| T::default()).collect();
    let strides = Strides { count, source: dest_stride, dest: source_stride };
    team.get_strided_blocking(target.symmetric(), &mut back, strides, to).unwrap();
    for (i, element) in back.iter().enumerate() {
        let expected = if i % source_stride == 0 { mine[i] } else { T::default() };
        assert_eq!(element.bits(), expected.bits(), "get_strided, element {i}");
    }
    let again = Buffer::<T>::zeroed(mine.len());
    team.get_strided(stream, target.symmetric(), &again, strides, to).unwrap().wait().unwrap();
    same(&again.to_vec(), &back, "get_strided on a stream");
    team.barrier_blocking().unwrap();
}

fn same<T: Sample>(found: &[T], expected: &[T], what: &str) {
    assert_eq!(found.len(), expected.len());
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!(found.bits() == expected.bits(), "{what}: element {i} of {} is {found:?}, expected {expected:?}", T::DTYPE);
    }
}
