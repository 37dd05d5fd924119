//! Version and limits of the wire format.

/// First bytes of every hello.
pub const MAGIC: [u8; 8] = *b"peerweav";
/// Version of the wire format between PEs and the rendezvous server. The server refuses other
/// versions.
pub const VERSION: u16 = 4;
/// Maximum number of PEs in a job.
pub const MAX_PES: u32 = 65_536;
/// Maximum length, in bytes, of a blob in an exchange and of a value in the key-value store.
pub const MAX_BLOB_LEN_BYTES: usize = 1 << 20;
/// Maximum length of a key or label, in bytes.
pub const MAX_KEY_LEN_BYTES: usize = 256;
/// Maximum length of an error message in a frame, in bytes.
pub const MAX_DETAIL_LEN_BYTES: usize = 512;
/// Maximum length of a frame without its length prefix, in bytes. A frame of this length can hold a
/// blob and its label, or a list of all PEs.
pub const MAX_FRAME_LEN_BYTES: usize = MAX_BLOB_LEN_BYTES + 1024;
