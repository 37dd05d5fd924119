//! The shape of an exchange, and its checks.

use crate::dispatch;
use crate::layout::{MAX_LOCAL_EXPERTS, MAX_RANKS, MAX_TOP_K};
use peerweave_core::{Error, Misuse, MisuseKind};

/// Size in bytes of a line, the unit in which kernels move tokens and results.
pub(crate) const LINE: usize = 16;

/// The sizes of an exchange, which must be the same on all ranks.
///
/// ```
/// use peerweave_moe::Shape;
///
/// // A layer for decoding: 256 experts, 8 of them for each token. A token has 7168 elements and 56
/// // scales. Each rank sends at most 128 tokens.
/// let shape = Shape::new(256, 8, 7168, 128).scales(56);
/// assert_eq!(shape.max_rows(4), 4 * 128 * 8);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub(crate) experts: usize,
    pub(crate) top_k: usize,
    pub(crate) hidden: usize,
    pub(crate) max_tokens: usize,
    pub(crate) scales: usize,
    pub(crate) launch: Option<[u32; 2]>,
}

impl Shape {
    /// Returns the shape of an exchange with a total of `experts` experts on all ranks. Each token
    /// has `top_k` experts. Tokens and results have `hidden` elements. A rank sends at most
    /// `max_tokens` tokens in one dispatch.
    pub fn new(experts: usize, top_k: usize, hidden: usize, max_tokens: usize) -> Self {
        Self { experts, top_k, hidden, max_tokens, scales: 0, launch: None }
    }

    /// Sets the number of scales of type `f32` that are sent with each token, such as the scales of
    /// blocks of 8-bit floats.
    #[must_use]
    pub fn scales(mut self, scales: usize) -> Self {
        self.scales = scales;
        self
    }

    /// Limits each kernel to `blocks` blocks of `threads` threads, so that other kernels can run at
    /// the same time. The default on GPUs is 256 blocks of 512 threads. The default on the host
    /// backend, where the threads of a kernel run one at a time, is one block of one thread.
    #[must_use]
    pub fn launch(mut self, blocks: u32, threads: u32) -> Self {
        self.launch = Some([blocks, threads]);
        self
    }

    /// Returns the maximum number of rows that one rank can receive in one dispatch, in a team of
    /// `ranks` ranks.
    pub fn max_rows(&self, ranks: usize) -> usize {
        ranks * self.max_tokens * self.top_k.min(self.experts.checked_div(ranks).unwrap_or(0))
    }

    /// Checks the shape for a team of `ranks` ranks. Each element of a token has `token_bytes`
    /// bytes, and each element of a result has `result_bytes` bytes.
    pub(crate) fn check(&self, ranks: usize, token_bytes: usize, result_bytes: usize) -> Result<(), Error> {
        let wrong = |argument, found: usize, expected| Err(value("moe", argument, found.to_string(), expected));
        if ranks > MAX_RANKS {
            return wrong("team", ranks, "at most 64 ranks");
        }
        if self.experts == 0 || !self.experts.is_multiple_of(ranks) {
            return wrong("experts", self.experts, "a positive multiple of the number of ranks in the team");
        }
        if self.experts / ranks > MAX_LOCAL_EXPERTS {
            return wrong("experts", self.experts, "at most 512 experts on each rank");
        }
        if self.top_k == 0 || self.top_k > MAX_TOP_K {
            return wrong("top_k", self.top_k, "1 to 32 experts for each token");
        }
        if self.top_k > self.experts {
            return wrong("top_k", self.top_k, "at most the number of experts, because the experts of a token are distinct");
        }
        if self.hidden == 0 || !self.hidden.saturating_mul(token_bytes).is_multiple_of(LINE) {
            return wrong("hidden", self.hidden, "at least 1 element, and a token size that is a multiple of 16 bytes");
        }
        if !self.hidden.saturating_mul(result_bytes).is_multiple_of(LINE) {
            return wrong("hidden", self.hidden, "a result size that is a multiple of 16 bytes");
        }
        if !self.scales.saturating_mul(size_of::<f32>()).is_multiple_of(LINE) {
            return wrong("scales", self.scales, "a multiple of 4 scales");
        }
        if self.max_tokens == 0 {
            return wrong("max_tokens", self.max_tokens, "at least 1 token");
        }
        if self.launch.is_some_and(|[blocks, threads]| blocks == 0 || threads == 0 || threads > dispatch::THREADS) {
            let found = self.launch.map(|[blocks, threads]| format!("{blocks} blocks of {threads} threads"));
            return Err(value("moe", "launch", found.unwrap_or_default(), "at least 1 block of 1 to 512 threads"));
        }
        // Rows, lines of a rank and entries are counted by 32-bit numbers.
        let entries = self.max_tokens.checked_mul(self.top_k).and_then(|entries| entries.checked_mul(ranks));
        if entries.is_none_or(|entries| entries >= u32::MAX as usize) {
            return wrong("max_tokens", self.max_tokens, "max_tokens * top_k * (number of ranks) to be less than 2^32 - 1");
        }
        let is_too_long = |elements: usize, bytes: usize| elements.saturating_mul(bytes) / LINE >= u32::MAX as usize / 2;
        if is_too_long(self.hidden, token_bytes.max(result_bytes)) {
            return wrong("hidden", self.hidden, "a token size and a result size below 34359738352 bytes");
        }
        if is_too_long(self.scales, size_of::<f32>()) {
            return wrong("scales", self.scales, "fewer than 8589934588 scales");
        }
        Ok(())
    }
}

/// Returns the error for a wrong value of an argument.
pub(crate) fn value(call: &'static str, argument: &'static str, found: String, expected: &'static str) -> Error {
    Misuse { call, kind: MisuseKind::Value { argument, found, expected } }.into()
}
