//! Wire format of the rendezvous: length-prefixed frames, and their decoder for untrusted data.
//!
//! This module performs no input or output. [`Server`](crate::Server) and
//! [`Rendezvous`](crate::Rendezvous) send and receive the frames. A frame starts with the length of
//! its other bytes as a `u32`. The next byte encodes the kind of the frame. The remaining bytes are
//! the fields of this kind. Integers are little-endian. Text and blobs have a `u32` length prefix.
//!
//! Invariant: the decoder allocates no more than the limits allow and never panics. The encoding is
//! canonical: a decoded frame encodes to the same bytes.

use peerweave_types::Pe;

use crate::error::Loss;
use crate::job::token::{TOKEN_LEN_BYTES, Token};

mod codec;

pub use codec::decode;

pub use crate::error::{ProtocolError, Refusal};
pub use crate::limits::*;

/// Length of a complete hello in bytes. Also the maximum number of bytes that the server reads from
/// a connection before the connection has identified itself.
pub const HELLO_FRAME_LEN_BYTES: usize = 4 + 1 + MAGIC.len() + 2 + 4 + 4 + 4 + TOKEN_LEN_BYTES;

/// ID of the request to join. This request completes when all PEs have joined.
pub const JOIN_REQUEST: u64 = 0;
/// Flag in the request ID of a collective call. The other bits are the number of the call: each PE
/// counts its collective calls from 0.
pub const ROUND_BIT: u64 = 1 << 63;

/// The first frame of a connection, which identifies the PE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The PE that connects.
    pub pe: u32,
    /// Number of PEs in the job, as this PE knows it.
    pub n_pes: u32,
    /// Process ID of the PE, in the PE's own PID namespace.
    pub pid: u32,
    /// The job's secret.
    pub token: Token,
}

/// A collective call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// All PEs wait for each other.
    Barrier,
    /// Every PE sends a blob and receives all blobs.
    Exchange,
}

impl Collective {
    /// Returns the name of the [`Rendezvous`](crate::Rendezvous) method that makes this call.
    pub fn name(self) -> &'static str {
        match self {
            Self::Barrier => "barrier",
            Self::Exchange => "exchange",
        }
    }
}

/// The reason why a request fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A PE's connection closed unexpectedly.
    Disconnected {
        /// The PE that was lost.
        pe: u32,
    },
    /// A PE has left.
    Left {
        /// The PE that left.
        pe: u32,
    },
    /// The launcher reported that a PE is lost, for example because the PE's process ended.
    Reported {
        /// The PE that was lost.
        pe: u32,
        /// The launcher's message.
        why: String,
    },
    /// A PE has left the job, or its connection has closed, after a failure of other PEs. Either
    /// the PE had waited for the other PEs until a timeout, or the PE had named one other PE as the
    /// cause.
    GaveUp {
        /// The PE that has left the job, or whose connection has closed.
        pe: u32,
        /// The PEs that caused `pe` to give up, in ascending order: either the PEs for which `pe`
        /// had waited until a timeout, or the one PE that `pe` had named as the cause.
        missing: Vec<u32>,
    },
    /// Two PEs made different calls.
    Mismatch {
        /// The first of the two PEs that made different calls.
        one: u32,
        /// The call that `one` made.
        one_call: String,
        /// The second of the two PEs that made different calls.
        other: u32,
        /// The call that `other` made.
        other_call: String,
    },
    /// The server's memory for stored values and pending exchanges is full.
    StoreFull {
        /// Size, in bytes, that the stored data would have after the request.
        len_bytes: u64,
        /// The limit in bytes.
        limit_bytes: u64,
    },
    /// The owner of the server is stopping the server.
    Closing,
}

impl Fault {
    /// Converts this fault to the reason why a PE is lost. Must be called only if [`Self::pe`]
    /// returns a PE.
    pub(crate) fn loss(&self) -> Loss {
        match self {
            Self::Left { .. } => Loss::Left,
            Self::GaveUp { missing, .. } => Loss::GaveUp { missing: missing.iter().copied().map(Pe::new).collect() },
            Self::Reported { why, .. } => Loss::Reported(why.clone()),
            Self::Disconnected { .. } | Self::Mismatch { .. } | Self::StoreFull { .. } | Self::Closing => Loss::Disconnected,
        }
    }

    /// Returns the lost PE. Returns `None` if the fault is not the loss of a PE.
    pub fn pe(&self) -> Option<u32> {
        match self {
            Self::Disconnected { pe } | Self::Left { pe } | Self::Reported { pe, .. } | Self::GaveUp { pe, .. } => Some(*pe),
            Self::Mismatch { .. } | Self::StoreFull { .. } | Self::Closing => None,
        }
    }
}

/// One message of the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Client: joins the job.
    Hello(Hello),
    /// Client: enters a collective call. Answered by `Done`. In an exchange, one `Part` for each PE
    /// precedes `Done`.
    Enter {
        /// ID of the request: the number of the collective call, with [`ROUND_BIT`] set.
        request: u64,
        /// Kind of the collective call.
        collective: Collective,
        /// Label of the call, the same on every PE.
        label: String,
        /// Blob of this PE; empty in a barrier.
        blob: Vec<u8>,
    },
    /// Client: stores a value. Answered by `Done`.
    Put {
        /// ID of the request, chosen by the client.
        request: u64,
        /// The key under which the value is stored.
        key: String,
        /// The value to store.
        value: Vec<u8>,
    },
    /// Client: reads a value. Answered by `Value`, or by `Absent` if the key has no value and
    /// `wait` is false.
    Get {
        /// ID of the request, chosen by the client.
        request: u64,
        /// The key to read.
        key: String,
        /// Whether to wait until the key has a value.
        wait: bool,
    },
    /// Client: removes a key and its value. Answered by `Done`, even if the key does not exist.
    Remove {
        /// ID of the request, chosen by the client.
        request: u64,
        /// The key to remove.
        key: String,
    },
    /// Client: asks whether any PE is lost. Answered by `Done` if no PE is lost, otherwise by
    /// `Failed`.
    Check {
        /// ID of the request, chosen by the client.
        request: u64,
    },
    /// Client: cancels a request whose deadline has passed. Answered by `Late`, unless the request
    /// has already been answered.
    Cancel {
        /// ID of the request to cancel.
        request: u64,
    },
    /// Client: is about to end because of another PE, and names that PE. If this connection closes,
    /// the server reports the named PE as the cause.
    Blame {
        /// The PE that the client names as the cause.
        pe: u32,
    },
    /// Client: ends the job. All PEs exit with this exit code. Answered by `Aborted`.
    Abort {
        /// Exit code for every process in the job.
        code: u8,
    },
    /// Client: leaves the job.
    Leave,
    /// Server: accepts a hello.
    Welcome,
    /// Server: refuses a hello.
    Refused {
        /// The reason for the refusal.
        reason: Refusal,
    },
    /// Server: the blob of one PE in an exchange. The parts are sent in the order of the PEs.
    Part {
        /// ID of the request: the number of the collective call, with [`ROUND_BIT`] set.
        request: u64,
        /// The bytes that one PE passed to the exchange.
        blob: Vec<u8>,
    },
    /// Server: the request is complete.
    Done {
        /// ID of the request that this frame answers.
        request: u64,
    },
    /// Server: the value of a key.
    Value {
        /// ID of the request that this frame answers.
        request: u64,
        /// The value of the key that the client asked for.
        value: Vec<u8>,
    },
    /// Server: the key has no value.
    Absent {
        /// ID of the request that this frame answers.
        request: u64,
    },
    /// Server: the request was cancelled before it completed.
    Late {
        /// ID of the request that this frame answers.
        request: u64,
        /// PEs that had not arrived, in ascending order.
        missing: Vec<u32>,
    },
    /// Server: the request cannot complete.
    Failed {
        /// ID of the request that this frame answers.
        request: u64,
        /// The reason why the request cannot complete.
        fault: Fault,
    },
    /// Server: a PE is lost. Sent to all PEs without a request, so that every PE knows the cause
    /// even if the server dies.
    Lost {
        /// The PE that is lost, and the reason why the PE is lost.
        fault: Fault,
    },
    /// Server: a PE has ended the job. Sent once to all PEs, without a request.
    Aborted {
        /// The PE that was first to end the job.
        pe: u32,
        /// Exit code of the job.
        code: u8,
    },
}

impl Frame {
    /// Returns the name of the frame's kind, for error messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Hello(_) => "hello",
            Self::Enter { .. } => "enter",
            Self::Put { .. } => "put",
            Self::Get { .. } => "get",
            Self::Remove { .. } => "remove",
            Self::Check { .. } => "check",
            Self::Cancel { .. } => "cancel",
            Self::Blame { .. } => "root cause",
            Self::Abort { .. } => "abort",
            Self::Leave => "leave",
            Self::Welcome => "welcome",
            Self::Refused { .. } => "refused",
            Self::Part { .. } => "part",
            Self::Done { .. } => "done",
            Self::Value { .. } => "value",
            Self::Absent { .. } => "absent",
            Self::Late { .. } => "late",
            Self::Failed { .. } => "failed",
            Self::Lost { .. } => "lost",
            Self::Aborted { .. } => "aborted",
        }
    }

    /// Appends the frame to `out`.
    ///
    /// # Panics
    /// If the frame is longer than [`MAX_FRAME_LEN_BYTES`]; callers check the length first.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend([0; 4]);
        codec::encode(self, out);
        let len_bytes = out.len() - start - 4;
        assert!(
            len_bytes <= MAX_FRAME_LEN_BYTES,
            "a {} frame has {len_bytes} bytes, expected at most {MAX_FRAME_LEN_BYTES}",
            self.kind()
        );
        out[start..start + 4].copy_from_slice(&(len_bytes as u32).to_le_bytes());
    }

    /// Returns the frame as bytes.
    ///
    /// # Panics
    /// As for [`encode`](Self::encode).
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode(&mut out);
        out
    }
}

/// Truncates `text` to [`MAX_DETAIL_LEN_BYTES`] bytes, at a character boundary.
pub(crate) fn cut(text: &str) -> String {
    let mut end = text.len().min(MAX_DETAIL_LEN_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}
