//! The header for kernels in CUDA C++, and the assertions that compare the layouts of its structs
//! with the layouts of the structs in Rust.

use std::mem::{align_of, offset_of};

use peerweave_device::types::{FailureKind, KernelContext, KernelOp, KernelStatus, PeerEntry, TeamEntry};

/// The text of `peerweave.cuh`, without the assertions that [`peerweave_cuh`] adds.
pub const PEERWEAVE_CUH: &str = include_str!("../../include/peerweave.cuh");

/// C++ text that defines the macro `PEERWEAVE_OFFSET`. The macro expands to the offset of a field
/// in a struct, which is a constant. NVRTC 13.1 and older have no `__builtin_offsetof`. Every NVRTC
/// has `__INTADDR__`, an older form of the same builtin.
const OFFSET: &str = "
#ifdef __CUDACC_RTC__
#define PEERWEAVE_OFFSET(type, field) __INTADDR__(&(((type*)0)->field))
#else
#define PEERWEAVE_OFFSET(type, field) __builtin_offsetof(type, field)
#endif
";

macro_rules! fields {
    ($text:ident, $rust:ident as $cpp:literal: $($field:ident),*) => {
        $text.push_str(&format!("static_assert(sizeof(peerweave::{0}) == {1} && alignof(peerweave::{0}) == {2}, \"size of {0}\");\n", $cpp, size_of::<$rust>(), align_of::<$rust>()));
        $($text.push_str(&format!(
            "static_assert(PEERWEAVE_OFFSET(peerweave::{0}, {1}) == {2}, \"offset of {0}::{1}\");\n",
            $cpp, stringify!($field), offset_of!($rust, $field),
        ));)*
    };
}

/// Returns the text of `peerweave.cuh` with compile-time assertions. The assertions compare the
/// header with the host's definitions. They check the size and alignment of each struct, the
/// offsets of the fields that kernels use, and the values of constants. Pass the text to
/// [`Source::header`](crate::Source::header).
///
/// ```
/// use peerweave_link::{Source, peerweave_cuh};
///
/// let source = Source::new("mine.cu", "#include \"peerweave.cuh\"").header("peerweave.cuh", peerweave_cuh());
/// assert_eq!(source.name(), "mine.cu");
/// ```
pub fn peerweave_cuh() -> String {
    let mut text = format!("{PEERWEAVE_CUH}{OFFSET}");
    fields!(text, KernelContext as "Context": version, my_pe, n_pes, node_pe, node_n_pes, n_teams, capabilities, heap_bytes, peers, teams, status, abort,
        deadline_ns, multicast, gone);
    fields!(text, PeerEntry as "PeerEntry": base, node_pe, transport);
    fields!(text, TeamEntry as "TeamEntry": my_rank, size, members, sync, epochs, slots, nvshmem_team, all_mapped);
    fields!(text, KernelStatus as "Status": kind, operation, pe, team, expected, found, block, thread, claimed);
    for (name, number) in [
        ("DEADLINE", FailureKind::Deadline as u32),
        ("ABORTED", FailureKind::Aborted as u32),
        ("UNREACHABLE", FailureKind::Unreachable as u32),
        ("NO_SUCH_PEER", FailureKind::NoSuchPeer as u32),
        ("OUT_OF_RANGE", FailureKind::OutOfRange as u32),
        ("NO_SLOT", FailureKind::NoSlot as u32),
        ("WRONG_VERSION", FailureKind::Version as u32),
        ("OP_ENTRY", KernelOp::Entry as u32),
        ("OP_P", KernelOp::P as u32),
        ("OP_G", KernelOp::G as u32),
        ("OP_PUT", KernelOp::Put as u32),
        ("OP_SIGNAL_OP", KernelOp::SignalOp as u32),
        ("OP_SIGNAL_WAIT", KernelOp::SignalWaitUntil as u32),
        ("OP_BARRIER", KernelOp::Barrier as u32),
        ("MAPPED", PeerEntry::MAPPED),
        ("NONE", KernelStatus::NONE),
    ] {
        text.push_str(&format!("static_assert(peerweave::{name} == {number}u, \"value of {name}\");\n"));
    }
    text.push_str("#undef PEERWEAVE_OFFSET\n");
    text
}
