//! The layer of the mixture-of-experts example: its routing, its tokens in two formats, and what
//! its experts compute.

use crate::SplitMix64;
use peerweave::{Element, F8E4M3, bf16};

/// Number of successive elements of a token that have one scale in common, if the elements have 8
/// bits.
pub const SCALED: usize = 128;

/// The largest number of the 8-bit format.
const LARGEST: f32 = 448.0;

/// A layer of experts, and the tokens of each PE.
#[derive(Clone, Copy, Debug)]
pub struct Layer {
    /// Number of experts on all PEs together.
    pub experts: usize,
    /// Number of experts to which each token is sent.
    pub top_k: usize,
    /// Number of elements of a token.
    pub hidden: usize,
    /// Number of tokens of each PE.
    pub tokens: usize,
    /// Number of PEs.
    pub n_pes: usize,
}

/// A number format of the elements of tokens.
pub trait Format: Element + PartialEq + std::fmt::Debug {
    /// The name of the format in the output of the example.
    const NAME: &'static str;
    /// Number of scales of a token of `hidden` elements.
    fn scales(hidden: usize) -> usize;
    /// Converts a token. Returns its elements and its scales.
    fn encode(token: &[f32]) -> (Vec<Self>, Vec<f32>);
    /// Converts an element to a number, with the scale of the element.
    fn decode(self, scale: f32) -> f32;
}

impl Format for bf16 {
    const NAME: &'static str = "bf16";

    fn scales(_: usize) -> usize {
        0
    }

    fn encode(token: &[f32]) -> (Vec<Self>, Vec<f32>) {
        (token.iter().map(|value| Self::from_f32(*value)).collect(), Vec::new())
    }

    fn decode(self, _: f32) -> f32 {
        self.to_f32()
    }
}

impl Format for F8E4M3 {
    const NAME: &'static str = "fp8";

    fn scales(hidden: usize) -> usize {
        hidden / SCALED
    }

    fn encode(token: &[f32]) -> (Vec<Self>, Vec<f32>) {
        let scale = |part: &[f32]| part.iter().fold(1e-6f32, |most, value| most.max(value.abs())) / LARGEST;
        let scales: Vec<f32> = token.chunks(SCALED).map(scale).collect();
        let encoded = token.iter().enumerate().map(|(index, value)| to_8_bits(value / scales[index / SCALED]));
        (encoded.collect(), scales)
    }

    fn decode(self, scale: f32) -> f32 {
        let bits = self.to_bits();
        let (exponent, fraction) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
        let size = if exponent == 0 { fraction / 512.0 } else { (1.0 + fraction / 8.0) * 2f32.powi(exponent - 7) };
        scale * if bits & 128 == 0 { size } else { -size }
    }
}

/// Rounds a number of at most [`LARGEST`] to the nearest number with 4 bits of exponent and 3 bits
/// of fraction.
fn to_8_bits(value: f32) -> F8E4M3 {
    let size = value.abs().min(LARGEST);
    let exponent = (size.to_bits() >> 23) as i32 - 127;
    // The distance between neighbouring numbers. All numbers below 2 to the -6 have the same
    // distance.
    let step = 2f32.powi(exponent.max(-6) - 3);
    let steps = (size / step).round_ties_even() as u32;
    // Eight more steps are the next exponent, so rounding up may carry into the exponent.
    let bits = if exponent < -6 { steps } else { steps + 8 * (exponent + 6) as u32 };
    F8E4M3::from_bits(bits as u8 | if value < 0.0 { 128 } else { 0 })
}

impl Layer {
    /// Returns the experts of each token of a PE, in the order of the tokens, and the weights of
    /// these experts. The weights of a token add up to 1.
    pub fn routing(&self, pe: usize) -> (Vec<i32>, Vec<f32>) {
        let mut random = SplitMix64::new(1 + pe as u64);
        let (mut experts, mut weights) = (Vec::new(), Vec::new());
        for _ in 0..self.tokens {
            let mut chosen: Vec<i32> = Vec::new();
            while chosen.len() < self.top_k {
                let expert = (random.next_u64() % self.experts as u64) as i32;
                if !chosen.contains(&expert) {
                    chosen.push(expert);
                }
            }
            let scores: Vec<f32> = chosen.iter().map(|_| 0.1 + random.next_f64() as f32).collect();
            let total: f32 = scores.iter().sum();
            experts.extend(chosen);
            weights.extend(scores.iter().map(|score| score / total));
        }
        (experts, weights)
    }

    /// Returns the tokens of a PE and their scales.
    pub fn encoded<T: Format>(&self, pe: usize) -> (Vec<T>, Vec<f32>) {
        let mut random = SplitMix64::new(1_000_000 + pe as u64);
        let (mut rows, mut scales) = (Vec::new(), Vec::new());
        for _ in 0..self.tokens {
            let token: Vec<f32> = (0..self.hidden).map(|_| 2.0 * random.next_f64() as f32 - 1.0).collect();
            let (row, of_row) = T::encode(&token);
            rows.extend(row);
            scales.extend(of_row);
        }
        (rows, scales)
    }

    /// Returns the number of experts of each PE.
    pub fn local_experts(&self) -> usize {
        self.experts / self.n_pes
    }

    /// Returns the factor by which an expert multiplies its tokens.
    pub fn factor(&self, expert: usize) -> f32 {
        1.0 + expert as f32 / self.experts as f32
    }

    /// Returns the results of the experts of one PE for the received rows. `offsets` has the offset
    /// of the rows of each expert, as the dispatch returned it.
    pub fn compute<T: Format>(&self, pe: usize, rows: &[T], scales: &[f32], offsets: &[u32]) -> Vec<bf16> {
        let per_row = T::scales(self.hidden);
        let mut results = vec![bf16::ZERO; rows.len()];
        for (index, range) in offsets.windows(2).enumerate() {
            let factor = self.factor(pe * self.local_experts() + index);
            for element in range[0] as usize * self.hidden..range[1] as usize * self.hidden {
                let (row, column) = (element / self.hidden, element % self.hidden);
                let scale = if per_row == 0 { 1.0 } else { scales[row * per_row + column / SCALED] };
                results[element] = bf16::from_f32(factor * rows[element].decode(scale));
            }
        }
        results
    }

    /// Returns whether the experts of a PE have received exactly the expected rows, in the order of
    /// experts, PEs and tokens.
    pub fn are_rows_of<T: Format>(&self, pe: usize, rows: &[T], scales: &[f32], offsets: &[u32]) -> bool {
        let (hidden, per_row, local) = (self.hidden, T::scales(self.hidden), self.local_experts());
        let all: Vec<_> = (0..self.n_pes).map(|from| (self.routing(from).0, self.encoded::<T>(from))).collect();
        let mut row = 0;
        for (expert, first) in offsets[..local].iter().enumerate() {
            if *first as usize != row {
                return false;
            }
            for (experts, (tokens, token_scales)) in &all {
                let is_chosen = |chosen: &i32| *chosen as usize == pe * local + expert;
                for (index, _) in experts.iter().enumerate().filter(|(_, chosen)| is_chosen(chosen)) {
                    let token = index / self.top_k;
                    let is_same = rows[row * hidden..][..hidden] == tokens[token * hidden..][..hidden]
                        && scales[row * per_row..][..per_row] == token_scales[token * per_row..][..per_row];
                    if !is_same {
                        return false;
                    }
                    row += 1;
                }
            }
        }
        offsets[local] as usize == row
    }

    /// Compares the outputs of a PE with outputs that this function computes without communication.
    /// Returns the largest difference relative to the expected output.
    pub fn difference<T: Format>(&self, pe: usize, outputs: &[bf16]) -> f32 {
        let ((experts, weights), (rows, scales)) = (self.routing(pe), self.encoded::<T>(pe));
        let per_row = T::scales(self.hidden);
        let mut largest = 0.0f32;
        for (element, found) in outputs.iter().enumerate() {
            let (token, column) = (element / self.hidden, element % self.hidden);
            let scale = if per_row == 0 { 1.0 } else { scales[token * per_row + column / SCALED] };
            let value = rows[element].decode(scale);
            let of_token = token * self.top_k..(token + 1) * self.top_k;
            let expected: f32 = of_token.map(|index| weights[index] * self.factor(experts[index] as usize) * value).sum();
            let difference = (found.to_f32() - expected).abs() / expected.abs().max(1e-6);
            largest = if difference.is_nan() { f32::INFINITY } else { largest.max(difference) };
        }
        largest
    }

    /// Returns the number of rows that a PE sends to each PE. Without `once`, a token is sent once
    /// for each of its experts. With `once`, a token is sent once to each PE that has some of its
    /// experts.
    pub fn sent(&self, pe: usize, once: bool) -> Vec<usize> {
        let mut counts = vec![0; self.n_pes];
        for chosen in self.routing(pe).0.chunks(self.top_k) {
            let mut ranks: Vec<usize> = chosen.iter().map(|expert| *expert as usize / self.local_experts()).collect();
            ranks.sort_unstable();
            if once {
                ranks.dedup();
            }
            ranks.into_iter().for_each(|rank| counts[rank] += 1);
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversion_of_f32_to_8_bits_rounds_to_nearest() {
        for bits in 0..=0x7e {
            let value = F8E4M3::from_bits(bits).decode(1.0);
            assert_eq!(to_8_bits(value).to_bits(), bits, "{value}");
            assert_eq!(to_8_bits(-value).to_bits() & 127, bits, "-{value}");
            let next = F8E4M3::from_bits(bits + 1).decode(1.0);
            if bits < 0x7e {
                assert_eq!(to_8_bits(value + 0.4 * (next - value)).to_bits(), bits, "above {value}");
                assert_eq!(to_8_bits(value + 0.6 * (next - value)).to_bits(), bits + 1, "below {next}");
            }
        }
        assert_eq!(to_8_bits(LARGEST).to_bits(), 0x7e);
    }
}
