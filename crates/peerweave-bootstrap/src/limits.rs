//! Version and limits of the wire format.

/// First bytes of every hello.
pub const MAGIC: [u8; 8] = *b"peerweav";
/// Version of this protocol.
pub const VERSION: u16 = 4;
/// Maximum number of PEs of a job.
pub const MAX_PES: u32 = 65_536;
/// Maximum length of a blob of an exchange and of a value of the key-value store, in bytes.
pub const MAX_BLOB_LEN_BYTES: usize = 1 << 20;
/// Maximum length of a key or label, in bytes.
pub const MAX_KEY_LEN_BYTES: usize = 256;
/// Maximum length of an error message in a frame, in bytes.
pub const MAX_DETAIL_LEN_BYTES: usize = 512;
/// Maximum length of a frame without its length prefix, in bytes. This is enough for a blob and its
/// label, or for a list of all PEs.
pub const MAX_FRAME_LEN_BYTES: usize = MAX_BLOB_LEN_BYTES + 1024;
