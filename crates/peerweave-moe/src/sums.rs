//! Sums of lines in `f32`, for each element type of the results.
//!
//! A GPU thread has a few lines in registers, and adds up the elements of each line. On the host, a
//! batch of consecutive lines is an array of elements, and the compiler vectorises the loops over
//! this array. GPU and host add the same numbers in the same order, and round the sums in the same
//! way.

use crate::line::{BATCH, Batch};
use core::marker::PhantomData;
use peerweave_device::gpu::{self, Vector};

/// Maximum number of elements in a 16-byte line.
const MOST: usize = 8;

/// An element type of the results of experts, with its conversions to and from `f32`.
pub(crate) trait Class {
    /// The type that holds the bits of an element.
    #[cfg(not(target_arch = "nvptx64"))]
    type Bits: Copy;

    /// Converts the elements of a 16-byte line to `f32`. Values after the last element are 0.
    fn unpack(line: Vector) -> [f32; MOST];
    /// Converts `f32` values to elements, and packs the elements into a 16-byte line. Each value is
    /// rounded to nearest, ties to even.
    fn pack(values: [f32; MOST]) -> Vector;

    /// Converts an element to `f32`.
    #[cfg(not(target_arch = "nvptx64"))]
    fn widen(bits: Self::Bits) -> f32;
    /// Converts an `f32` value to an element. The value is rounded to nearest, ties to even.
    #[cfg(not(target_arch = "nvptx64"))]
    fn narrow(value: f32) -> Self::Bits;
}

/// Converts the elements of a line to `f32`. The line has four words of 32 bits. `values` converts
/// one word to two values.
#[inline(always)]
fn words(line: Vector, values: impl Fn(u32) -> [f32; 2]) -> [f32; MOST] {
    let [a, b] = values(line[0] as u32);
    let [c, d] = values((line[0] >> 32) as u32);
    let [e, f] = values(line[1] as u32);
    let [g, h] = values((line[1] >> 32) as u32);
    [a, b, c, d, e, f, g, h]
}

/// The inverse of [`words`]: converts eight values to a line. `pair` converts two consecutive
/// values to one word of 32 bits.
#[inline(always)]
fn line([a, b, c, d, e, f, g, h]: [f32; MOST], pair: impl Fn([f32; 2]) -> u32) -> Vector {
    let half = |low: u32, high: u32| u64::from(low) | (u64::from(high) << 32);
    [half(pair([a, b]), pair([c, d])), half(pair([e, f]), pair([g, h]))]
}

pub(crate) struct BFloat16;
pub(crate) struct Float16;
pub(crate) struct Float32;

impl Class for BFloat16 {
    #[cfg(not(target_arch = "nvptx64"))]
    type Bits = u16;

    #[inline(always)]
    fn unpack(from: Vector) -> [f32; MOST] {
        words(from, |pair| [f32::from_bits(pair << 16), f32::from_bits(pair & 0xffff_0000)])
    }
    #[inline(always)]
    fn pack(values: [f32; MOST]) -> Vector {
        line(values, gpu::bf16_pair)
    }

    #[cfg(not(target_arch = "nvptx64"))]
    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        f32::from_bits(u32::from(bits) << 16)
    }
    #[cfg(not(target_arch = "nvptx64"))]
    #[inline(always)]
    fn narrow(value: f32) -> u16 {
        gpu::bf16_bits(value)
    }
}

impl Class for Float16 {
    #[cfg(not(target_arch = "nvptx64"))]
    type Bits = u16;

    #[inline(always)]
    fn unpack(from: Vector) -> [f32; MOST] {
        words(from, gpu::f16_values)
    }
    #[inline(always)]
    fn pack(values: [f32; MOST]) -> Vector {
        line(values, gpu::f16_pair)
    }

    #[cfg(not(target_arch = "nvptx64"))]
    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        peerweave_types::f16::from_bits(bits).to_f32()
    }
    #[cfg(not(target_arch = "nvptx64"))]
    #[inline(always)]
    fn narrow(value: f32) -> u16 {
        peerweave_types::f16::from_f32(value).to_bits()
    }
}

impl Class for Float32 {
    #[cfg(not(target_arch = "nvptx64"))]
    type Bits = u32;

    #[inline(always)]
    fn unpack(line: Vector) -> [f32; MOST] {
        let value = |bits: u64| f32::from_bits(bits as u32);
        [value(line[0]), value(line[0] >> 32), value(line[1]), value(line[1] >> 32), 0.0, 0.0, 0.0, 0.0]
    }
    #[inline(always)]
    fn pack(values: [f32; MOST]) -> Vector {
        let bits = |index: usize| u64::from(values[index].to_bits());
        [bits(0) | (bits(1) << 32), bits(2) | (bits(3) << 32)]
    }

    #[cfg(not(target_arch = "nvptx64"))]
    #[inline(always)]
    fn widen(bits: u32) -> f32 {
        f32::from_bits(bits)
    }
    #[cfg(not(target_arch = "nvptx64"))]
    #[inline(always)]
    fn narrow(value: f32) -> u32 {
        value.to_bits()
    }
}

/// Sums in `f32`, one for each element position in a batch of lines. Each call of [`Self::add`]
/// adds the elements of one more batch to the sums.
pub(crate) struct Sums<C> {
    /// `values[i][j]` is the sum for element `j` of line `i`. If the lines are consecutive
    /// ([`Batch::is_piece`]), the sums are stored in the same order, but without gaps for lines
    /// that have fewer than [`MOST`] elements.
    values: [[f32; MOST]; BATCH],
    class: PhantomData<C>,
}

impl<C: Class> Sums<C> {
    /// Returns sums that are all 0.
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self { values: [[0.0; MOST]; BATCH], class: PhantomData }
    }

    /// Applies the function `scaled` to each element of `lines`, and adds the results to the sums.
    #[inline(always)]
    pub(crate) fn add(&mut self, batch: Batch, lines: &[Vector; BATCH], scaled: impl Fn(f32) -> f32) {
        #[cfg(not(target_arch = "nvptx64"))]
        if batch.is_piece() {
            return host::add::<C>(self.values.as_flattened_mut(), batch.piece(lines), scaled);
        }
        batch.each(|index| {
            let values = C::unpack(lines[index]);
            for element in 0..MOST {
                self.values[index][element] += scaled(values[element]);
            }
        });
    }

    /// Rounds the sums to the element type of the results, and writes the rounded sums to `lines`.
    #[inline(always)]
    pub(crate) fn round(&self, batch: Batch, lines: &mut [Vector; BATCH]) {
        #[cfg(not(target_arch = "nvptx64"))]
        if batch.is_piece() {
            return host::round::<C>(self.values.as_flattened(), batch.piece_mut(lines));
        }
        batch.each(|index| lines[index] = C::pack(self.values[index]));
    }
}

/// Adds up consecutive lines on the host. The code consists of simple loops over elements, which
/// the compiler vectorises.
#[cfg(not(target_arch = "nvptx64"))]
mod host {
    use super::{Class, Vector};
    use crate::piece::vectorised;

    /// Number of elements of type `B` in a line of 16 bytes.
    const fn per_line<B>() -> usize {
        const { assert!(align_of::<B>() <= align_of::<Vector>() && size_of::<Vector>().is_multiple_of(size_of::<B>())) };
        size_of::<Vector>() / size_of::<B>()
    }

    #[inline(always)]
    fn add_all<C: Class>(sums: &mut [f32], lines: &[Vector], scaled: impl Fn(f32) -> f32) {
        // SAFETY: the slice has the same bytes, and every bit pattern is a valid element;
        // `per_line` has checked the alignment.
        let elements: &[C::Bits] =
            unsafe { core::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * per_line::<C::Bits>()) };
        for (sum, element) in sums.iter_mut().zip(elements) {
            *sum += scaled(C::widen(*element));
        }
    }

    #[inline(always)]
    fn round_all<C: Class>(sums: &[f32], lines: &mut [Vector]) {
        // SAFETY: as in `add_all`.
        let elements: &mut [C::Bits] =
            unsafe { core::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * per_line::<C::Bits>()) };
        for (element, sum) in elements.iter_mut().zip(sums) {
            *element = C::narrow(*sum);
        }
    }

    /// Applies the function `scaled` to each element of `lines`, and adds the results to the sums.
    #[inline(always)]
    pub(super) fn add<C: Class>(sums: &mut [f32], lines: &[Vector], scaled: impl Fn(f32) -> f32) {
        vectorised(|| add_all::<C>(sums, lines, scaled));
    }

    /// Rounds the sums to the element type of the results, and writes the rounded sums to `lines`.
    #[inline(always)]
    pub(super) fn round<C: Class>(sums: &[f32], lines: &mut [Vector]) {
        vectorised(|| round_all::<C>(sums, lines));
    }
}
