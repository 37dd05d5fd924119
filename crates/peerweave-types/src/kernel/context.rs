//! The context that a kernel receives: tables for access to peers, and memory for failure reports.
//!
//! The context is plain data with a fixed layout. The host writes the context to device memory, and
//! kernels read it there. Addresses are 64-bit numbers; this module dereferences no pointer.
//! Invariant: whenever a layout in this file changes, [`KernelContext::VERSION`] changes too. The
//! launch and the kernel compare the version.

use crate::{Pe, SymOffset};

/// The context of a kernel: the number of its PE, the tables of peers and teams, the deadline of
/// its waits, and the memory in which it reports failures.
///
/// The context lies in device memory, so a replayed graph reads the current content. All addresses
/// in the context are valid in kernels on that device. Kernels must not write the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct KernelContext {
    /// The [`Self::VERSION`] of the library that wrote the context. The launch and the kernel's
    /// entry point compare this number with the version for which they were compiled.
    pub version: u32,
    /// Number of this PE.
    pub my_pe: u32,
    /// Number of PEs in the job.
    pub n_pes: u32,
    /// Index of this PE among the PEs of its node.
    pub node_pe: u32,
    /// Number of PEs on this PE's node.
    pub node_n_pes: u32,
    /// Number of entries in the table at [`Self::teams`].
    pub n_teams: u32,
    /// Capabilities of the device and the job: the bitwise or of `KernelContext::CAN_*` values.
    pub capabilities: u32,
    /// Unused; 0.
    pub reserved: u32,
    /// Size of the symmetric heap of each PE, in bytes.
    pub heap_bytes: u64,
    /// Address of the [`PeerEntry`]s, one for each PE of the job.
    pub peers: u64,
    /// Address of the [`TeamEntry`]s. Entry 0 is the team of all PEs.
    pub teams: u64,
    /// Address of the [`KernelStatus`], which kernels write and the host reads.
    pub status: u64,
    /// Address of the abort word, which has 32 bits. While the word is not 0, waits fail. The host,
    /// or a failed kernel of this PE, sets the word.
    pub abort: u64,
    /// Maximum duration of a wait, in nanoseconds of the device's global timer.
    pub deadline_ns: u64,
    /// Address of a multicast mapping of the symmetric heap, or 0 if there is no such mapping. One
    /// store to the mapping writes to the heaps of all PEs.
    pub multicast: u64,
    /// Address of the table of PEs that have left the job, or 0 if there is no table. The first
    /// word is the number of PEs that have left. The other words contain one bit for each PE of the
    /// job. The bit is set if the PE has left. Only kernels that run on the host read the table.
    pub gone: u64,
}

impl KernelContext {
    /// The version of the layouts of the types in this file: the context, its tables and the
    /// status.
    pub const VERSION: u32 = 0x7077_0001;

    /// Distance between the signal words of consecutive ranks of a team, in bytes. The distance is
    /// two cache lines, because prefetchers load pairs of cache lines.
    pub const SIGNAL_LINE_BYTES: u64 = 128;

    /// The bit of [`Self::capabilities`] that is set if NVSHMEM's device library is linked into the
    /// kernels that use this context.
    pub const CAN_NETWORK: u32 = 1;
}

/// How a kernel accesses the memory of a PE: through a mapping, through NVSHMEM, or not at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct PeerEntry {
    /// Address at which this device accesses the PE's symmetric heap; 0 if the heap is not mapped.
    /// In the entry of the kernel's own PE, the address is never 0.
    pub base: u64,
    /// Index of the PE among the PEs of its node.
    pub node_pe: u32,
    /// How the PE is accessed: [`Self::MAPPED`], [`Self::NETWORK`] or [`Self::UNREACHABLE`].
    pub transport: u32,
}

impl PeerEntry {
    /// The value of [`Self::transport`] if the PE cannot be reached.
    pub const UNREACHABLE: u32 = 0;
    /// The value of [`Self::transport`] if the PE is accessed by loads and stores at
    /// [`Self::base`].
    pub const MAPPED: u32 = 1;
    /// The value of [`Self::transport`] if the PE is accessed through NVSHMEM's device library.
    pub const NETWORK: u32 = 2;
}

/// A team, as described in a kernel's context.
///
/// Every member's heap contains `slots * size` signal lines at the offset `sync`. A signal line is
/// [`KernelContext::SIGNAL_LINE_BYTES`] bytes of memory that contain one signal word. Block `s` of
/// a kernel uses the lines of slot `s`. In slot `s`, rank `r` writes line `r`, and the PE that owns
/// the heap waits for that line. The lines are initially zero.
///
/// `epochs` is the address of `slots` words in this device's private memory. Word `s` counts the
/// synchronisations that slot `s` has completed. The words are initially zero, and the host never
/// writes them between launches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct TeamEntry {
    /// The rank of this PE in the team, or [`Self::NOT_A_MEMBER`].
    pub my_rank: u32,
    /// Number of ranks in the team.
    pub size: u32,
    /// Address of an array of `u32` with the PE number of each member, in rank order.
    pub members: u64,
    /// Offset of the team's signal lines in every member's heap. The members synchronise through
    /// these lines.
    pub sync: SymOffset,
    /// Address of an array with one `u64` for each synchronisation slot: the number of
    /// synchronisations that the slot has completed (the epoch).
    pub epochs: u64,
    /// Number of synchronisation slots. Block `s` of a kernel uses slot `s`, so only blocks with an
    /// index less than this number can synchronise with the team.
    pub slots: u32,
    /// NVSHMEM's handle for the team, or [`Self::NO_HANDLE`] if NVSHMEM does not know the team.
    pub nvshmem_team: i32,
    /// 1 if the heap of every member is mapped; otherwise 0.
    pub all_mapped: u32,
    /// Unused; 0.
    pub reserved: u32,
}

impl TeamEntry {
    /// The value of [`Self::my_rank`] if this PE is not a member of the team.
    pub const NOT_A_MEMBER: u32 = u32::MAX;
    /// The value of [`Self::nvshmem_team`] if NVSHMEM does not know the team.
    pub const NO_HANDLE: i32 = -1;

    /// Returns the size, in bytes, of the signal lines that a team of `size` ranks with `slots`
    /// slots has in the heap of each member. There is one signal line for each rank and slot.
    #[inline]
    pub const fn sync_bytes(size: u32, slots: u32) -> u64 {
        size as u64 * slots as u64 * KernelContext::SIGNAL_LINE_BYTES
    }

    /// Returns the offset of the signal line that `rank` writes when block `slot` of a kernel
    /// synchronises with the team. The offset is the same in the heap of every member.
    #[inline]
    pub const fn line(&self, slot: u32, rank: u32) -> SymOffset {
        SymOffset(self.sync.0 + (slot as u64 * self.size as u64 + rank as u64) * KernelContext::SIGNAL_LINE_BYTES)
    }
}

/// The report of a kernel's first failure. The host can read the report while the kernel runs.
///
/// The first thread that fails changes `claimed` from 0 to 1, writes the other fields, and finally
/// stores `kind` with release order. After reading the report, the host clears all fields, and
/// clears `claimed` last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct KernelStatus {
    /// The [`FailureKind`] as a number; 0 while no thread has failed.
    pub kind: u32,
    /// The [`KernelOp`] that failed, as a number.
    pub operation: u32,
    /// The PE that is missing or unreachable; [`Self::NONE`] if the report names no PE.
    pub pe: u32,
    /// The number of the team; [`Self::NONE`] if the report names no team.
    pub team: u32,
    /// The expected value, for example of a signal word, an epoch or a number of bytes.
    pub expected: u64,
    /// The value that was found instead of [`Self::expected`], or the code that the kernel passed
    /// to `Context::exit`.
    pub found: u64,
    /// Linear index of the block that failed first (x fastest, then y, then z).
    pub block: u32,
    /// Linear index, in its block, of the thread that failed first.
    pub thread: u32,
    /// Whether a report exists: 0 means no. A thread sets this field to 1 when it starts to write
    /// the report. The host sets the field to 0 when it clears the report.
    pub claimed: u32,
    /// Unused; 0.
    pub reserved: u32,
}

impl KernelStatus {
    /// The value of [`Self::pe`] or [`Self::team`] if the report names no PE or no team.
    pub const NONE: u32 = u32::MAX;

    /// Returns the PE that the report names as missing or unreachable. Returns `None` if the report
    /// names no PE.
    #[inline]
    pub const fn missing_pe(&self) -> Option<Pe> {
        if self.pe == Self::NONE { None } else { Some(Pe::new(self.pe)) }
    }
}

/// Declares an enum for failure reports. Its values have 32-bit numbers from 1 on, and kernels
/// write these numbers. The enum has a function that converts a number back to a value.
macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $number:literal, $text:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$variant_doc])* $variant = $number,)*
        }

        impl $name {
            /// All values of this enum, in the order of their declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Converts a number that a kernel has written to a value of this enum. Returns `None`
            /// if no value has this number.
            pub const fn from_number(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(match self {
                    $(Self::$variant => $text,)*
                })
            }
        }
    };
}

numbered! {
    /// The reason why an operation in a kernel failed.
    FailureKind {
        /// A wait lasted longer than the context's deadline.
        Deadline = 1, "deadline passed";
        /// The operation stopped waiting, because the host or a failed thread of this PE set the
        /// abort word.
        Aborted = 2, "aborted";
        /// The kernel has no access to the memory of the PE: the memory is not mapped, and NVSHMEM
        /// is not available for the PE.
        Unreachable = 3, "PE is not reachable";
        /// The operation names a PE, a team or a member that does not exist.
        NoSuchPeer = 4, "no such PE or team";
        /// An offset lies outside the symmetric heap.
        OutOfRange = 5, "offset is outside the symmetric heap";
        /// The index of the block is not less than the team's number of synchronisation slots, so
        /// the block cannot synchronise with the team.
        NoSlot = 6, "the launch has more blocks than the team has synchronisation slots";
        /// A different version of the library wrote the context.
        Version = 7, "the kernel context has the layout of a different peerweave version";
        /// A call that requires equal lengths, such as `put_checked`, got different lengths.
        LengthMismatch = 8, "lengths differ";
        /// The kernel called `Context::exit` with a code.
        Exit = 9, "failure reported by the kernel";
    }
}

numbered! {
    /// An operation in a kernel. The report of a failure names the operation that failed.
    KernelOp {
        /// The kernel's entry point, which checks the version of the context.
        Entry = 1, "entry";
        /// The operation `p`: a put of one element.
        P = 2, "p";
        /// The operation `g`: a get of one element.
        G = 3, "g";
        /// The operation `put` in any form.
        Put = 4, "put";
        /// The operation `get` in any form.
        Get = 5, "get";
        /// The operation `put_signal` in any form.
        PutSignal = 6, "put_signal";
        /// The operation `iput`: a strided put.
        Iput = 7, "iput";
        /// The operation `iget`: a strided get.
        Iget = 8, "iget";
        /// The operation `signal_op`: an update of a signal word.
        SignalOp = 9, "signal_op";
        /// The operation `signal_wait_until`.
        SignalWaitUntil = 10, "signal_wait_until";
        /// The operation `wait_until`.
        WaitUntil = 11, "wait_until";
        /// The operation `wait_until_any`.
        WaitUntilAny = 12, "wait_until_any";
        /// The operation `wait_until_all`.
        WaitUntilAll = 13, "wait_until_all";
        /// The operation `wait_until_some`.
        WaitUntilSome = 14, "wait_until_some";
        /// An atomic operation.
        Atomic = 15, "atomic operation";
        /// The operation `sync` in any form.
        Sync = 16, "sync";
        /// The operation `barrier` in any form.
        Barrier = 17, "barrier";
        /// The operation `broadcast`.
        Broadcast = 18, "broadcast";
        /// The operation `fcollect`: an all-gather.
        Fcollect = 19, "fcollect";
        /// The operation `alltoall`.
        Alltoall = 20, "alltoall";
        /// The operation `reduce`.
        Reduce = 21, "reduce";
        /// The operation `reducescatter`.
        ReduceScatter = 22, "reducescatter";
        /// A bulk copy: a copy by the GPU's copy unit (TMA) through the shared memory of a thread
        /// block.
        BulkCopy = 23, "bulk copy";
        /// A load or a store, through a view, in the symmetric memory of the kernel's own PE.
        Local = 24, "access to local memory";
        /// The operation `exit`, which a kernel calls to report a failure of its own.
        Exit = 25, "exit";
        /// The collective kernel `all_reduce`.
        AllReduce = 26, "all_reduce";
        /// The collective kernel `all_gather`.
        AllGather = 27, "all_gather";
        /// The collective kernel `all_to_all`.
        AllToAll = 28, "all_to_all";
        /// The collective kernel `gather`.
        Gather = 29, "gather";
        /// The collective kernel `scatter`.
        Scatter = 30, "scatter";
        /// The collective kernel that sends and receives a message between two PEs.
        SendRecv = 31, "send and receive";
        /// The collective kernels `scan` and `exclusive_scan`.
        Scan = 32, "scan";
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::{align_of, offset_of};

    #[test]
    fn kernel_context_structs_keep_their_size_and_offsets() {
        assert_eq!((size_of::<KernelContext>(), align_of::<KernelContext>()), (96, 16));
        assert_eq!(offset_of!(KernelContext, version), 0);
        assert_eq!(offset_of!(KernelContext, heap_bytes), 32);
        assert_eq!(offset_of!(KernelContext, multicast), 80);
        assert_eq!((size_of::<PeerEntry>(), offset_of!(PeerEntry, transport)), (16, 12));
        assert_eq!((size_of::<TeamEntry>(), offset_of!(TeamEntry, nvshmem_team)), (48, 36));
        assert_eq!((size_of::<KernelStatus>(), offset_of!(KernelStatus, claimed)), (48, 40));
    }

    #[test]
    fn enum_value_converted_to_a_number_and_back_is_unchanged() {
        for kind in FailureKind::ALL {
            assert_eq!(FailureKind::from_number(*kind as u32), Some(*kind));
        }
        for op in KernelOp::ALL {
            assert_eq!(KernelOp::from_number(*op as u32), Some(*op));
        }
        assert_eq!(FailureKind::from_number(0), None);
        assert_eq!(KernelOp::from_number(0), None);
    }

    #[test]
    fn signal_words_of_a_team_are_128_bytes_apart() {
        let team = TeamEntry { size: 3, slots: 2, sync: SymOffset(4096), ..TeamEntry::default() };
        let mut next = 4096;
        for slot in 0..2 {
            for rank in 0..3 {
                assert_eq!(team.line(slot, rank).0, next);
                next += 128;
            }
        }
        assert_eq!(next - 4096, TeamEntry::sync_bytes(3, 2));
    }
}
