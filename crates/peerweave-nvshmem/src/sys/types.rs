//! NVSHMEM's structs and constants. Most structs start with a version word. New NVSHMEM versions
//! add fields only in the padding.

use std::ffi::{c_char, c_int, c_long, c_uint, c_void};

use peerweave_types::nvshmem::{self, compare, signal_op};
use peerweave_types::{Compare, SignalOp};

use crate::Version;

/// Returns the version word of a struct, which encodes its layout number and its size in bytes.
pub const fn version_word(layout: c_int, bytes: usize) -> c_int {
    (layout << 16) + bytes as c_int
}

/// A team's handle.
pub type nvshmem_team_t = i32;
/// The id that all members pass to create a team without a parent team.
pub type nvshmemx_team_uniqueid_t = u64;
/// A queue pair's handle.
pub type nvshmemx_qp_handle_t = c_int;
/// Handle of a region of the program in which NVSHMEM may batch transfers.
pub type nvshmemx_region_handle_t = u64;

/// The id by which PEs connect.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct nvshmemx_uniqueid_t {
    /// Version word, which encodes the layout number and the size of the struct.
    pub version: c_int,
    /// Data that only NVSHMEM interprets.
    pub internal: [c_char; 124],
}

impl nvshmemx_uniqueid_t {
    /// An id whose data is all zeros.
    pub const EMPTY: Self = Self { version: version_word(1, size_of::<Self>()), internal: [0; 124] };
}

/// The arguments for a bootstrap in which the PEs find each other by a unique id.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct nvshmemx_uniqueid_args_t {
    /// Version word, which encodes the layout number and the size of the struct.
    pub version: c_int,
    /// Pointer to the id.
    pub id: *mut nvshmemx_uniqueid_t,
    /// Number of this PE; -1 if unset.
    pub myrank: c_int,
    /// Number of PEs; -1 if unset.
    pub nranks: c_int,
}

/// Arguments of the initialisation.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct nvshmemx_init_args_t {
    /// Version word, which encodes the layout number and the size of the struct.
    pub version: c_int,
    /// The arguments for a bootstrap in which the PEs find each other by a unique id.
    pub uid_args: nvshmemx_uniqueid_args_t,
    /// Ordinal of the device; -1 selects the device of the current CUDA context. In layout 1, this
    /// field is padding.
    pub cuda_device_id: c_int,
    /// Reserved.
    pub content: [c_char; 92],
}

/// Attributes of the initialisation.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct nvshmemx_init_attr_t {
    /// Version word, which encodes the layout number and the size of the struct.
    pub version: c_int,
    /// A pointer to an `MPI_Comm`, for the bootstrap by MPI.
    pub mpi_comm: *mut c_void,
    /// The arguments of the initialisation, except the communicator.
    pub args: nvshmemx_init_args_t,
}

/// The first NVSHMEM version that uses layout 2 of the initialisation structs, in which
/// `cuda_device_id` is a field. Earlier versions use layout 1.
pub const INIT_LAYOUT_2: Version = Version::new(3, 6, 5);

impl nvshmemx_init_attr_t {
    /// Returns attributes without any value set. The attributes have the layout that NVSHMEM of
    /// version `library` reads.
    pub const fn unset(library: Version) -> Self {
        let layout = if library.at_least(INIT_LAYOUT_2) { 2 } else { 1 };
        // In layout 1 the bytes of the device are padding, which must be zero.
        let cuda_device_id = if layout == 2 { -1 } else { 0 };
        let uid_args = nvshmemx_uniqueid_args_t {
            version: version_word(1, size_of::<nvshmemx_uniqueid_args_t>()),
            id: std::ptr::null_mut(),
            myrank: -1,
            nranks: -1,
        };
        Self {
            version: version_word(layout, size_of::<Self>()),
            mpi_comm: std::ptr::null_mut(),
            args: nvshmemx_init_args_t {
                version: version_word(layout, size_of::<nvshmemx_init_args_t>()),
                uid_args,
                cuda_device_id,
                content: [0; 92],
            },
        }
    }
}

/// Options of a team.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct nvshmem_team_config_t {
    /// Version word, which encodes the layout number and the size of the struct.
    pub version: c_int,
    /// Number of communication contexts; -1 if unset.
    pub num_contexts: c_int,
    /// The id of the team; all bits are 1 if the team has no id.
    pub uniqueid: nvshmemx_team_uniqueid_t,
    /// Reserved.
    pub padding: [c_char; 48],
}

impl nvshmem_team_config_t {
    /// A configuration in which no option is set.
    pub const UNSET: Self =
        Self { version: version_word(2, size_of::<Self>()), num_contexts: -1, uniqueid: u64::MAX, padding: [0; 48] };
}

/// Attributes of a region of the program in which NVSHMEM may batch transfers.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct nvshmemx_region_attrs_t {
    /// Bit mask of `NVSHMEMX_REGION_HINT_*` values; 0 if there are no hints.
    pub hints: u32,
    /// Reserved.
    pub reserved: [c_char; 60],
}

macro_rules! constants {
    ($($(#[$attribute:meta])* $name:ident: $type:ty = $value:expr;)*) => {
        $($(#[$attribute])* pub const $name: $type = $value;)*

        /// Returns the names and values of the constants that this module declares.
        pub fn constants() -> Vec<(&'static str, i64)> {
            vec![$((stringify!($name), i64::try_from($name).unwrap_or(i64::MAX))),*]
        }
    };
}

constants! {
    /// Flag of the initialisation: the PEs are threads.
    NVSHMEMX_INIT_THREAD_PES: c_uint = 1;
    /// Flag of the initialisation: the PEs connect by an MPI communicator.
    NVSHMEMX_INIT_WITH_MPI_COMM: c_uint = 2;
    /// Flag of the initialisation: the PEs connect by OpenSHMEM.
    NVSHMEMX_INIT_WITH_SHMEM: c_uint = 4;
    /// Flag of the initialisation: the PEs connect by an id.
    NVSHMEMX_INIT_WITH_UNIQUEID: c_uint = 8;

    /// The value that represents no team.
    NVSHMEM_TEAM_INVALID: nvshmem_team_t = -1;
    /// The team of all PEs.
    NVSHMEM_TEAM_WORLD: nvshmem_team_t = nvshmem::TEAM_WORLD;
    /// The team of the PEs whose memory is mapped in this process.
    NVSHMEM_TEAM_SHARED: nvshmem_team_t = nvshmem::TEAM_SHARED;
    /// The team of the PEs on this machine.
    NVSHMEMX_TEAM_NODE: nvshmem_team_t = nvshmem::TEAM_NODE;
    /// The team of the PEs that have the same index on their machines.
    NVSHMEMX_TEAM_SAME_MYPE_NODE: nvshmem_team_t = 3;

    /// Signal operation: stores the value in the signal word.
    NVSHMEM_SIGNAL_SET: c_int = signal_op(SignalOp::Set);
    /// Signal operation: adds the value to the signal word.
    NVSHMEM_SIGNAL_ADD: c_int = signal_op(SignalOp::Add);

    /// The comparison `==`.
    NVSHMEM_CMP_EQ: c_int = compare(Compare::Eq);
    /// The comparison `!=`.
    NVSHMEM_CMP_NE: c_int = compare(Compare::Ne);
    /// The comparison `>`.
    NVSHMEM_CMP_GT: c_int = compare(Compare::Gt);
    /// The comparison `<=`.
    NVSHMEM_CMP_LE: c_int = compare(Compare::Le);
    /// The comparison `<`.
    NVSHMEM_CMP_LT: c_int = compare(Compare::Lt);
    /// The comparison `>=`.
    NVSHMEM_CMP_GE: c_int = compare(Compare::Ge);

    /// NVSHMEM is not initialised.
    NVSHMEM_STATUS_NOT_INITIALIZED: c_int = 0;
    /// The PEs are connected, but NVSHMEM is not initialised.
    NVSHMEM_STATUS_IS_BOOTSTRAPPED: c_int = 1;
    /// NVSHMEM is initialised.
    NVSHMEM_STATUS_IS_INITIALIZED: c_int = 2;
    /// NVSHMEM is initialised. Several PEs share a GPU, and only some calls are supported.
    NVSHMEM_STATUS_LIMITED_MPG: c_int = 3;
    /// NVSHMEM is initialised. Several PEs share a GPU, and all calls are supported.
    NVSHMEM_STATUS_FULL_MPG: c_int = 4;

    /// Mask bit: the caller has set the number of contexts in the team configuration.
    NVSHMEM_TEAM_CONFIG_MASK_NUM_CONTEXTS: c_long = 1;
    /// Mask bit: the caller has set the id in the team configuration.
    NVSHMEM_TEAM_CONFIG_MASK_UNIQUEID: c_long = 2;

    /// The call succeeded.
    NVSHMEMX_SUCCESS: c_int = 0;
    /// An argument is invalid.
    NVSHMEMX_ERROR_INVALID_VALUE: c_int = 1;
    /// The device or the symmetric heap has too little memory.
    NVSHMEMX_ERROR_OUT_OF_MEMORY: c_int = 2;
    /// The call is not supported.
    NVSHMEMX_ERROR_NOT_SUPPORTED: c_int = 3;
    /// The arguments of the PEs differ.
    NVSHMEMX_ERROR_SYMMETRY: c_int = 4;
    /// No device is selected.
    NVSHMEMX_ERROR_GPU_NOT_SELECTED: c_int = 5;
    /// A kernel whose blocks must be co-resident could not be launched.
    NVSHMEMX_ERROR_COLLECTIVE_LAUNCH_FAILED: c_int = 6;
    /// NVSHMEM has an internal error.
    NVSHMEMX_ERROR_INTERNAL: c_int = 7;

    /// Maximum length, in bytes, of the library name that `nvshmem_info_get_name` returns.
    NVSHMEM_MAX_NAME_LEN: usize = 256;
}
