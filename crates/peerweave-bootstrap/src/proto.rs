//! The wire format of the rendezvous: length-prefixed frames, and the pure decoder that strangers' bytes go through.
//!
//! No input or output here: see [`Server`](crate::Server) and [`Rendezvous`](crate::Rendezvous). A frame is a `u32` length of what follows, one byte
//! of kind, then the kind's fields; integers are little-endian, text and blobs carry a `u32` length.
//!
//! Invariant: the decoder allocates nothing that the limits below do not allow, never panics, and is canonical: what it
//! accepts encodes back to the very same bytes.

use crate::error::Refusal;
use crate::token::{TOKEN_LEN_BYTES, Token};

mod codec;

pub use codec::decode;

/// First bytes of every hello.
pub const MAGIC: [u8; 8] = *b"peerweav";
/// Version of this protocol.
pub const VERSION: u16 = 3;
/// The most PEs of a job.
pub const MAX_PES: u32 = 65_536;
/// The longest blob of an exchange and value of the key-value store, in bytes.
pub const MAX_BLOB_LEN_BYTES: usize = 1 << 20;
/// The longest key or label, in bytes.
pub const MAX_KEY_LEN_BYTES: usize = 256;
/// The longest explanation that a frame carries, in bytes.
pub const MAX_DETAIL_LEN_BYTES: usize = 512;
/// The longest frame without its length prefix, in bytes: a blob and its label, or a list of all PEs.
pub const MAX_FRAME_LEN_BYTES: usize = MAX_BLOB_LEN_BYTES + 1024;
/// Length of a whole hello in bytes. It is all that the server ever reads from whom it does not know.
pub const HELLO_FRAME_LEN_BYTES: usize = 4 + 1 + MAGIC.len() + 2 + 4 + 4 + 4 + TOKEN_LEN_BYTES;

/// The request that a join waits on: everybody has joined.
pub const JOIN_REQUEST: u64 = 0;
/// Set in the request of a collective call, whose other bits are the number of the round.
pub const ROUND_BIT: u64 = 1 << 63;

/// What bytes can be wrong in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The length prefix is 0 or more than a frame may have.
    #[error("a frame of {len_bytes} bytes, the limit is {MAX_FRAME_LEN_BYTES}")]
    FrameLength {
        /// What the prefix says.
        len_bytes: u32,
    },
    /// No frame has this kind.
    #[error("a frame of unknown kind {kind}")]
    Kind {
        /// The byte that says the kind.
        kind: u8,
    },
    /// A hello does not begin as one of ours does.
    #[error("a hello without the magic bytes")]
    Magic,
    /// A hello of another version.
    #[error("a hello of version {found}, this is version {VERSION}")]
    Version {
        /// The version it says.
        found: u16,
    },
    /// A field does not fit into the frame, or has a value that it may not have.
    #[error("the field {field} of a frame is wrong")]
    Field {
        /// The field.
        field: &'static str,
    },
    /// The frame has bytes after its last field.
    #[error("a frame with {len_bytes} bytes too many")]
    Trailing {
        /// How many.
        len_bytes: usize,
    },
    /// The frame is well formed and makes no sense at this point.
    #[error("a {kind} frame out of place")]
    OutOfPlace {
        /// The frame's kind in words.
        kind: &'static str,
    },
}

/// The first frame of a connection: who connects and why it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Who connects.
    pub pe: u32,
    /// How many PEs it thinks the job has.
    pub n_pes: u32,
    /// Its process, as it sees itself.
    pub pid: u32,
    /// The job's secret.
    pub token: Token,
}

/// What the PEs do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// Everybody waits for everybody.
    Barrier,
    /// Everybody gives a blob and gets all of them.
    Exchange,
}

impl Collective {
    /// The name of the client's call.
    pub fn name(self) -> &'static str {
        match self {
            Self::Barrier => "barrier",
            Self::Exchange => "exchange",
        }
    }
}

/// Why a request fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A PE's connection closed without a farewell.
    Disconnected {
        /// Who.
        pe: u32,
    },
    /// A PE has left in order.
    Left {
        /// Who.
        pe: u32,
    },
    /// A PE is lost as its launcher says.
    Reported {
        /// Who.
        pe: u32,
        /// The launcher's words.
        why: String,
    },
    /// A PE has gone because its own wait had expired.
    GaveUp {
        /// Who.
        pe: u32,
        /// Whom it had waited for, ascending.
        missing: Vec<u32>,
    },
    /// Two PEs called different things.
    Mismatch {
        /// The first.
        one: u32,
        /// What it called.
        one_call: String,
        /// The second.
        other: u32,
        /// What that one called.
        other_call: String,
    },
    /// The server keeps no more than `limit_bytes`.
    StoreFull {
        /// What the request would have taken, in bytes.
        len_bytes: u64,
        /// The limit in bytes.
        limit_bytes: u64,
    },
    /// The server's owner ends it.
    Closing,
}

impl Fault {
    /// The PE that is lost, where the fault is a loss.
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
    /// Client: let me in.
    Hello(Hello),
    /// Client: a collective call, answered by `Part`s and `Done`.
    Enter {
        /// The round, with [`ROUND_BIT`].
        request: u64,
        /// Which call.
        collective: Collective,
        /// Its label, the same on every PE.
        label: String,
        /// This PE's blob; empty in a barrier.
        blob: Vec<u8>,
    },
    /// Client: store a value, answered by `Done`.
    Put {
        /// Chosen by the client.
        request: u64,
        /// Under which key.
        key: String,
        /// What.
        value: Vec<u8>,
    },
    /// Client: read a value, answered by `Value`, or by `Absent` if it does not wait.
    Get {
        /// Chosen by the client.
        request: u64,
        /// Which key.
        key: String,
        /// Whether to answer only once there is a value.
        wait: bool,
    },
    /// Client: forget a key and its value, answered by `Done` whether there was one or not.
    Remove {
        /// Chosen by the client.
        request: u64,
        /// Which key.
        key: String,
    },
    /// Client: is everybody still there? Answered by `Done` or `Failed`.
    Check {
        /// Chosen by the client.
        request: u64,
    },
    /// Client: my deadline has passed. Answered by `Late`, unless the answer is under way already.
    Cancel {
        /// The request that waits.
        request: u64,
    },
    /// Client: if my connection closes, it is because of another PE.
    Blame {
        /// That PE.
        pe: u32,
    },
    /// Client: farewell.
    Leave,
    /// Server: you are in.
    Welcome,
    /// Server: you are not.
    Refused {
        /// Why.
        reason: Refusal,
    },
    /// Server: the blob of one PE in an exchange, in the order of the PEs.
    Part {
        /// The round.
        request: u64,
        /// Its blob.
        blob: Vec<u8>,
    },
    /// Server: the request is complete.
    Done {
        /// Which.
        request: u64,
    },
    /// Server: the value under the key.
    Value {
        /// Of which request.
        request: u64,
        /// What.
        value: Vec<u8>,
    },
    /// Server: there is no such key yet.
    Absent {
        /// Of which request.
        request: u64,
    },
    /// Server: the request is cancelled, and these PEs were what it waited for.
    Late {
        /// Which.
        request: u64,
        /// Who had not arrived, ascending.
        missing: Vec<u32>,
    },
    /// Server: the request cannot complete.
    Failed {
        /// Which.
        request: u64,
        /// Why.
        fault: Fault,
    },
    /// Server: a PE is lost. Sent unasked to all PEs, so that they know of it even after the server has gone.
    Lost {
        /// Which, and how.
        fault: Fault,
    },
}

impl Frame {
    /// The kind in words, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Hello(_) => "hello",
            Self::Enter { .. } => "enter",
            Self::Put { .. } => "put",
            Self::Get { .. } => "get",
            Self::Remove { .. } => "remove",
            Self::Check { .. } => "check",
            Self::Cancel { .. } => "cancel",
            Self::Blame { .. } => "blame",
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
        }
    }

    /// Appends the frame to `out`.
    ///
    /// # Panics
    /// If the frame is longer than [`MAX_FRAME_LEN_BYTES`]: the callers of this crate check lengths before.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend([0; 4]);
        codec::encode(self, out);
        let len_bytes = out.len() - start - 4;
        assert!(len_bytes <= MAX_FRAME_LEN_BYTES, "a {} frame of {len_bytes} bytes", self.kind());
        out[start..start + 4].copy_from_slice(&(len_bytes as u32).to_le_bytes());
    }

    /// The frame's bytes.
    ///
    /// # Panics
    /// As [`encode`](Self::encode).
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode(&mut out);
        out
    }
}

/// Cuts `text` to what a frame carries, at a character's border.
pub(crate) fn cut(text: &str) -> String {
    let mut end = text.len().min(MAX_DETAIL_LEN_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}
