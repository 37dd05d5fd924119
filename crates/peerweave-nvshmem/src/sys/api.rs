//! NVSHMEM's untyped functions, each with the first library version that exports it.
//!
//! These functions check no arguments. Functions that launch kernels with co-resident blocks are
//! not declared, because they accept only kernels of the CUDA runtime API.

use std::ffi::{c_char, c_int, c_long, c_uint, c_void};

use peerweave_driver::cudarc::driver::sys::{CUlibrary, CUmodule, CUstream};

use super::types::*;

peerweave_dylib::bindings! {
    /// The untyped functions of one NVSHMEM library. Each function is resolved at its first call.
    pub struct Api {
        // Versions and names.

        /// Returns the version of the NVSHMEM library.
        "3.3.24" fn nvshmemx_vendor_get_version_info(major: *mut c_int, minor: *mut c_int, patch: *mut c_int);
        /// Returns the version of the OpenSHMEM specification.
        "3.3.24" fn nvshmem_info_get_version(major: *mut c_int, minor: *mut c_int);
        /// Returns the library's name, at most [`NVSHMEM_MAX_NAME_LEN`] bytes.
        "3.3.24" fn nvshmem_info_get_name(name: *mut c_char);

        // Initialisation and end.

        /// Returns the state of NVSHMEM's initialisation.
        "3.3.24" fn nvshmemx_init_status() -> c_int;
        /// Initialises NVSHMEM. All PEs must make this call.
        "3.3.24" fn nvshmemx_hostlib_init_attr(flags: c_uint, attr: *mut nvshmemx_init_attr_t) -> c_int;
        /// Finalises NVSHMEM. All PEs must make this call. Ends the process on failure.
        "3.3.24" fn nvshmemx_hostlib_finalize();
        /// Creates an id. Loads the plug-in for ids and opens a socket.
        "3.3.24" fn nvshmemx_get_uniqueid(id: *mut nvshmemx_uniqueid_t) -> c_int;
        /// Fills in the initialisation attributes for a bootstrap by an id.
        "3.3.24" fn nvshmemx_set_attr_uniqueid_args(
            rank: c_int, n_ranks: c_int, id: *const nvshmemx_uniqueid_t, attr: *mut nvshmemx_init_attr_t,
        ) -> c_int;
        /// Fills in the initialisation attributes for a bootstrap by MPI.
        "3.3.24" fn nvshmemx_set_attr_mpi_comm_args(mpi_comm: *mut c_void, attr: *mut nvshmemx_init_attr_t) -> c_int;
        /// Returns the supported thread level of OpenSHMEM.
        "3.3.24" fn nvshmem_query_thread(provided: *mut c_int);
        /// Ends the processes of all PEs.
        "3.3.24" fn nvshmem_global_exit(status: c_int);
        /// Returns the number of this PE.
        "3.3.24" fn nvshmem_my_pe() -> c_int;
        /// Returns the number of PEs.
        "3.3.24" fn nvshmem_n_pes() -> c_int;

        // Memory.

        /// Allocates symmetric memory. All PEs must make this call.
        "3.3.24" fn nvshmem_malloc(bytes: usize) -> *mut c_void;
        /// Allocates symmetric memory filled with zeros. All PEs must make this call.
        "3.3.24" fn nvshmem_calloc(count: usize, bytes: usize) -> *mut c_void;
        /// Allocates aligned symmetric memory. All PEs must make this call.
        "3.3.24" fn nvshmem_align(alignment: usize, bytes: usize) -> *mut c_void;
        /// Frees symmetric memory. All PEs must make this call.
        "3.3.24" fn nvshmem_free(address: *mut c_void);
        /// Returns the address at which the memory of a PE is mapped in this process, or null.
        "3.3.24" fn nvshmem_ptr(address: *const c_void, pe: c_int) -> *mut c_void;
        /// Returns the multicast address of the memory of a team's PEs, or null.
        "3.3.24" fn nvshmemx_mc_ptr(team: nvshmem_team_t, address: *const c_void) -> *mut c_void;
        /// Registers memory that this PE uses in network transfers.
        "3.3.24" fn nvshmemx_buffer_register(address: *mut c_void, bytes: usize) -> c_int;
        /// Unregisters memory that `nvshmemx_buffer_register` registered.
        "3.3.24" fn nvshmemx_buffer_unregister(address: *mut c_void) -> c_int;
        /// Unregisters all memory that `nvshmemx_buffer_register` registered.
        "3.3.24" fn nvshmemx_buffer_unregister_all();
        /// Makes existing memory symmetric. All PEs must make this call.
        "3.3.24" fn nvshmemx_buffer_register_symmetric(address: *mut c_void, bytes: usize, flags: c_int) -> *mut c_void;
        /// Makes existing memory symmetric at an address near `preferred`. All PEs must make this
        /// call.
        "3.6.5" fn nvshmemx_buffer_register_symmetric_at_preferred_address(
            address: *mut c_void, bytes: usize, preferred: *mut c_void, flags: c_int,
        ) -> *mut c_void;
        /// Unregisters symmetric memory. All PEs must make this call.
        "3.3.24" fn nvshmemx_buffer_unregister_symmetric(address: *mut c_void, bytes: usize) -> c_int;

        // Teams.

        /// Returns this PE's rank in a team, or -1 if this PE is not a member.
        "3.3.24" fn nvshmem_team_my_pe(team: nvshmem_team_t) -> c_int;
        /// Returns the number of PEs of a team.
        "3.3.24" fn nvshmem_team_n_pes(team: nvshmem_team_t) -> c_int;
        /// Returns a team's options.
        "3.3.24" fn nvshmem_team_get_config(team: nvshmem_team_t, config: *mut nvshmem_team_config_t);
        /// Takes the rank of a PE in the team `source`, and returns the rank of the same PE in the
        /// team `target`. Returns -1 if the PE is not a member of `target`.
        "3.3.24" fn nvshmem_team_translate_pe(source: nvshmem_team_t, rank: c_int, target: nvshmem_team_t) -> c_int;
        /// Creates a team of `count` PEs: every `stride`-th PE from `start`. All PEs of the parent
        /// must make this call.
        "3.3.24" fn nvshmem_team_split_strided(
            parent: nvshmem_team_t, start: c_int, stride: c_int, count: c_int, config: *const nvshmem_team_config_t,
            mask: c_long, team: *mut nvshmem_team_t,
        ) -> c_int;
        /// Arranges the parent's PEs in rows of `xrange` PEs, and creates a team for each row and
        /// each column. All PEs of the parent must make this call.
        "3.3.24" fn nvshmem_team_split_2d(
            parent: nvshmem_team_t, xrange: c_int, x_config: *const nvshmem_team_config_t, x_mask: c_long,
            x_team: *mut nvshmem_team_t, y_config: *const nvshmem_team_config_t, y_mask: c_long, y_team: *mut nvshmem_team_t,
        ) -> c_int;
        /// Creates an id for a team that has no parent team.
        "3.3.24" fn nvshmemx_team_get_uniqueid(id: *mut nvshmemx_team_uniqueid_t) -> c_int;
        /// Creates a team of the PEs that pass the same id. All these PEs must make this call.
        "3.3.24" fn nvshmemx_team_init(
            team: *mut nvshmem_team_t, config: *mut nvshmem_team_config_t, mask: c_long, n_pes: c_int, rank: c_int,
        ) -> c_int;
        /// Destroys a team. All PEs of the team must make this call.
        "3.3.24" fn nvshmem_team_destroy(team: nvshmem_team_t);
        /// Synchronises the PEs of a team.
        "3.3.24" fn nvshmem_team_sync(team: nvshmem_team_t) -> c_int;

        // Order and synchronisation.

        /// Completes the same transfers as `nvshmem_quiet`, then synchronises the PEs of a team.
        "3.3.24" fn nvshmem_barrier(team: nvshmem_team_t) -> c_int;
        /// Completes the same transfers as `nvshmem_quiet`, then synchronises all PEs.
        "3.3.24" fn nvshmem_barrier_all();
        /// Synchronises all PEs.
        "3.3.24" fn nvshmem_sync_all();
        /// Completes the same transfers as `nvshmemx_quiet_on_stream`, then synchronises the PEs of
        /// a team. Both happen in stream order.
        "3.3.24" fn nvshmemx_barrier_on_stream(team: nvshmem_team_t, stream: CUstream) -> c_int;
        /// Completes the same transfers as `nvshmemx_quiet_on_stream`, then synchronises all PEs.
        /// Both happen in stream order.
        "3.3.24" fn nvshmemx_barrier_all_on_stream(stream: CUstream);
        /// Synchronises the PEs of a team, in stream order.
        "3.3.24" fn nvshmemx_team_sync_on_stream(team: nvshmem_team_t, stream: CUstream) -> c_int;
        /// Synchronises all PEs, in stream order.
        "3.3.24" fn nvshmemx_sync_all_on_stream(stream: CUstream);
        /// Completes this PE's earlier transfers that have no stream, and its `nbi` transfers.
        "3.3.24" fn nvshmem_quiet();
        /// Orders earlier puts before later puts to the same PE.
        "3.3.24" fn nvshmem_fence();
        /// Completes this PE's earlier transfers on `stream`, and all `nbi` transfers of this PE.
        /// The call takes effect in stream order.
        "3.3.24" fn nvshmemx_quiet_on_stream(stream: CUstream);
        /// Waits until the sources of earlier puts may be overwritten.
        "3.8.0" fn nvshmemx_flush();
        /// Waits until the sources of earlier puts may be overwritten, in stream order.
        "3.8.0" fn nvshmemx_flush_on_stream(stream: CUstream);

        // Signals.

        /// Returns the value of a signal word of this PE.
        "3.3.24" fn nvshmem_signal_fetch(signal: *mut u64) -> u64;
        /// Sets a signal word of a PE or adds to the word, in stream order.
        "3.3.24" fn nvshmemx_signal_op_on_stream(signal: *mut u64, value: u64, op: c_int, pe: c_int, stream: CUstream);
        /// Waits until a signal word of this PE satisfies a comparison, in stream order.
        "3.3.24" fn nvshmemx_signal_wait_until_on_stream(signal: *mut u64, compare: c_int, value: u64, stream: CUstream);
        /// Sets the counter of counted writes to 0. A counted write adds the number of bytes that
        /// it has delivered to the counter.
        "3.8.0" fn nvshmemx_signal_counted_reset(signal: *mut u64);

        // Transfers by bytes and by width.

        /// Writes bytes to a PE.
        "3.3.24" fn nvshmem_putmem(target: *mut c_void, source: *const c_void, count: usize, pe: c_int);
        /// Starts a write of bytes to a PE. A quiet completes the transfer.
        "3.3.24" fn nvshmem_putmem_nbi(target: *mut c_void, source: *const c_void, count: usize, pe: c_int);
        /// Writes bytes to a PE, in stream order.
        "3.3.24" fn nvshmemx_putmem_on_stream(
            target: *mut c_void, source: *const c_void, count: usize, pe: c_int, stream: CUstream,
        );
        /// Starts a write of bytes to a PE, in stream order. A quiet completes the transfer.
        "3.3.24" fn nvshmemx_putmem_nbi_on_stream(
            target: *mut c_void, source: *const c_void, count: usize, pe: c_int, stream: CUstream,
        );
        /// Reads bytes from a PE.
        "3.3.24" fn nvshmem_getmem(target: *mut c_void, source: *const c_void, count: usize, pe: c_int);
        /// Starts a read of bytes from a PE. A quiet completes the transfer.
        "3.3.24" fn nvshmem_getmem_nbi(target: *mut c_void, source: *const c_void, count: usize, pe: c_int);
        /// Reads bytes from a PE, in stream order.
        "3.3.24" fn nvshmemx_getmem_on_stream(
            target: *mut c_void, source: *const c_void, count: usize, pe: c_int, stream: CUstream,
        );
        /// Starts a read of bytes from a PE, in stream order. A quiet completes the transfer.
        "3.3.24" fn nvshmemx_getmem_nbi_on_stream(
            target: *mut c_void, source: *const c_void, count: usize, pe: c_int, stream: CUstream,
        );
        /// Writes bytes to a PE, then signals the PE, in stream order.
        "3.3.24" fn nvshmemx_putmem_signal_on_stream(
            target: *mut c_void, source: *const c_void, count: usize, signal: *mut u64, value: u64, op: c_int, pe: c_int,
            stream: CUstream,
        );
        /// Starts a write of bytes to a PE, in stream order. NVSHMEM signals the target PE after
        /// the write. A quiet completes the write and the signal.
        "3.3.24" fn nvshmemx_putmem_signal_nbi_on_stream(
            target: *mut c_void, source: *const c_void, count: usize, signal: *mut u64, value: u64, op: c_int, pe: c_int,
            stream: CUstream,
        );
        /// Writes 8-bit elements to a PE.
        "3.3.24" fn nvshmem_put8(target: *mut c_void, source: *const c_void, count: usize, pe: c_int);
        /// Starts a write of 8-bit elements to a PE. A quiet completes the transfer.
        "3.3.24" fn nvshmem_put8_nbi(target: *mut c_void, source: *const c_void, count: usize, pe: c_int);
        /// Writes 8-bit elements to a PE, in stream order.
        "3.3.24" fn nvshmemx_put8_on_stream(target: *mut c_void, source: *const c_void, count: usize, pe: c_int, stream: CUstream);
        /// Starts a write of 8-bit elements to a PE, in stream order. A quiet completes the
        /// transfer.
        "3.3.24" fn nvshmemx_put8_nbi_on_stream(
            target: *mut c_void, source: *const c_void, count: usize, pe: c_int, stream: CUstream,
        );
        /// Writes 8-bit elements to a PE, with strides.
        "3.3.24" fn nvshmem_iput8(
            target: *mut c_void, source: *const c_void, target_stride: isize, source_stride: isize, count: usize, pe: c_int,
        );
        /// Writes 8-bit elements to a PE, with strides, in stream order.
        "3.3.24" fn nvshmemx_iput8_on_stream(
            target: *mut c_void, source: *const c_void, target_stride: isize, source_stride: isize, count: usize, pe: c_int,
            stream: CUstream,
        );
        /// Reads 8-bit elements from a PE.
        "3.3.24" fn nvshmem_get8(target: *mut c_void, source: *const c_void, count: usize, pe: c_int);
        /// Starts a read of 8-bit elements from a PE. A quiet completes the transfer.
        "3.3.24" fn nvshmem_get8_nbi(target: *mut c_void, source: *const c_void, count: usize, pe: c_int);
        /// Reads 8-bit elements from a PE, in stream order.
        "3.3.24" fn nvshmemx_get8_on_stream(target: *mut c_void, source: *const c_void, count: usize, pe: c_int, stream: CUstream);
        /// Starts a read of 8-bit elements from a PE, in stream order. A quiet completes the
        /// transfer.
        "3.3.24" fn nvshmemx_get8_nbi_on_stream(
            target: *mut c_void, source: *const c_void, count: usize, pe: c_int, stream: CUstream,
        );
        /// Reads 8-bit elements from a PE, with strides.
        "3.3.24" fn nvshmem_iget8(
            target: *mut c_void, source: *const c_void, target_stride: isize, source_stride: isize, count: usize, pe: c_int,
        );
        /// Reads 8-bit elements from a PE, with strides, in stream order.
        "3.3.24" fn nvshmemx_iget8_on_stream(
            target: *mut c_void, source: *const c_void, target_stride: isize, source_stride: isize, count: usize, pe: c_int,
            stream: CUstream,
        );
        /// Writes 8-bit elements to a PE, then signals the PE, in stream order.
        "3.3.24" fn nvshmemx_put8_signal_on_stream(
            target: *mut c_void, source: *const c_void, count: usize, signal: *mut u64, value: u64, op: c_int, pe: c_int,
            stream: CUstream,
        );
        /// Starts a write of 8-bit elements to a PE, in stream order. NVSHMEM signals the target PE
        /// after the write. A quiet completes the write and the signal.
        "3.3.24" fn nvshmemx_put8_signal_nbi_on_stream(
            target: *mut c_void, source: *const c_void, count: usize, signal: *mut u64, value: u64, op: c_int, pe: c_int,
            stream: CUstream,
        );
        /// Writes 16-bit elements to a PE.
        "3.3.24" fn nvshmem_put16(target: *mut c_void, source: *const c_void, count: usize, pe: c_int);
        /// Starts a write of 16-bit elements to a PE. A quiet completes the transfer.
        "3.3.24" fn nvshmem_put16_nbi(target: *mut c_void, source: *const c_void, count: usize, pe: c_int);
        /// Writes 16-bit elements to a PE, in stream order.
        "3.3.24" fn nvshmemx_put16_on_stream(target: *mut c_void, source: *const c_void, count: usize, pe: c_int, stream: CUstream);
        /// Starts a write of 16-bit elements to a PE, in stream order. A quiet completes the
        /// transfer.
        "3.3.24" fn nvshmemx_put16_nbi_on_stream(
            target: *mut c_void, source: *const c_void, count: usize, pe: c_int, stream: CUstream,
        );
        /// Writes 16-bit elements to a PE, with strides.
        "3.3.24" fn nvshmem_iput16(
            target: *mut c_void, source: *const c_void, target_stride: isize, source_stride: isize, count: usize, pe: c_int,
        );
        /// Writes 16-bit elements to a PE, with strides, in stream order.
        "3.3.24" fn nvshmemx_iput16_on_stream(
            target: *mut c_void, source: *const c_void, target_stride: isize, source_stride: isize, count: usize, pe: c_int,
            stream: CUstream,
        );
        /// Reads 16-bit elements from a PE.
        "3.3.24" fn nvshmem_get16(target: *mut c_void, source: *const c_void, count: usize, pe: c_int);
        /// Starts a read of 16-bit elements from a PE. A quiet completes the transfer.
        "3.3.24" fn nvshmem_get16_nbi(target: *mut c_void, source: *const c_void, count: usize, pe: c_int);
        /// Reads 16-bit elements from a PE, in stream order.
        "3.3.24" fn nvshmemx_get16_on_stream(target: *mut c_void, source: *const c_void, count: usize, pe: c_int, stream: CUstream);
        /// Starts a read of 16-bit elements from a PE, in stream order. A quiet completes the
        /// transfer.
        "3.3.24" fn nvshmemx_get16_nbi_on_stream(
            target: *mut c_void, source: *const c_void, count: usize, pe: c_int, stream: CUstream,
        );
        /// Reads 16-bit elements from a PE, with strides.
        "3.3.24" fn nvshmem_iget16(
            target: *mut c_void, source: *const c_void, target_stride: isize, source_stride: isize, count: usize, pe: c_int,
        );
        /// Reads 16-bit elements from a PE, with strides, in stream order.
        "3.3.24" fn nvshmemx_iget16_on_stream(
            target: *mut c_void, source: *const c_void, target_stride: isize, source_stride: isize, count: usize, pe: c_int,
            stream: CUstream,
        );
        /// Writes 16-bit elements to a PE, then signals the PE, in stream order.
        "3.3.24" fn nvshmemx_put16_signal_on_stream(
            target: *mut c_void, source: *const c_void, count: usize, signal: *mut u64, value: u64, op: c_int, pe: c_int,
            stream: CUstream,
        );
        /// Starts a write of 16-bit elements to a PE, in stream order. NVSHMEM signals the target
        /// PE after the write. A quiet completes the write and the signal.
        "3.3.24" fn nvshmemx_put16_signal_nbi_on_stream(
            target: *mut c_void, source: *const c_void, count: usize, signal: *mut u64, value: u64, op: c_int, pe: c_int,
            stream: CUstream,
        );
        /// Writes 32-bit elements to a PE.
        "3.3.24" fn nvshmem_put32(target: *mut c_void, source: *const c_void, count: usize, pe: c_int);
        /// Starts a write of 32-bit elements to a PE. A quiet completes the transfer.
        "3.3.24" fn nvshmem_put32_nbi(target: *mut c_void, source: *const c_void, count: usize, pe: c_int);
        /// Writes 32-bit elements to a PE, in stream order.
        "3.3.24" fn nvshmemx_put32_on_stream(target: *mut c_void, source: *const c_void, count: usize, pe: c_int, stream: CUstream);
        /// Starts a write of 32-bit elements to a PE, in stream order. A quiet completes the
        /// transfer.
        "3.3.24" fn nvshmemx_put32_nbi_on_stream(
            target: *mut c_void, source: *const c_void, count: usize, pe: c_int, stream: CUstream,
        );
        /// Writes 32-bit elements to a PE, with strides.
        "3.3.24" fn nvshmem_iput32(
            target: *mut c_void, source: *const c_void, target_stride: isize, source_stride: isize, count: usize, pe: c_int,
        );
        /// Writes 32-bit elements to a PE, with strides, in stream order.
        "3.3.24" fn nvshmemx_iput32_on_stream(
            target: *mut c_void, source: *const c_void, target_stride: isize, source_stride: isize, count: usize, pe: c_int,
            stream: CUstream,
        );
        /// Reads 32-bit elements from a PE.
        "3.3.24" fn nvshmem_get32(target: *mut c_void, source: *const c_void, count: usize, pe: c_int);
        /// Starts a read of 32-bit elements from a PE. A quiet completes the transfer.
        "3.3.24" fn nvshmem_get32_nbi(target: *mut c_void, source: *const c_void, count: usize, pe: c_int);
        /// Reads 32-bit elements from a PE, in stream order.
        "3.3.24" fn nvshmemx_get32_on_stream(target: *mut c_void, source: *const c_void, count: usize, pe: c_int, stream: CUstream);
        /// Starts a read of 32-bit elements from a PE, in stream order. A quiet completes the
        /// transfer.
        "3.3.24" fn nvshmemx_get32_nbi_on_stream(
            target: *mut c_void, source: *const c_void, count: usize, pe: c_int, stream: CUstream,
        );
        /// Reads 32-bit elements from a PE, with strides.
        "3.3.24" fn nvshmem_iget32(
            target: *mut c_void, source: *const c_void, target_stride: isize, source_stride: isize, count: usize, pe: c_int,
        );
        /// Reads 32-bit elements from a PE, with strides, in stream order.
        "3.3.24" fn nvshmemx_iget32_on_stream(
            target: *mut c_void, source: *const c_void, target_stride: isize, source_stride: isize, count: usize, pe: c_int,
            stream: CUstream,
        );
        /// Writes 32-bit elements to a PE, then signals the PE, in stream order.
        "3.3.24" fn nvshmemx_put32_signal_on_stream(
            target: *mut c_void, source: *const c_void, count: usize, signal: *mut u64, value: u64, op: c_int, pe: c_int,
            stream: CUstream,
        );
        /// Starts a write of 32-bit elements to a PE, in stream order. NVSHMEM signals the target
        /// PE after the write. A quiet completes the write and the signal.
        "3.3.24" fn nvshmemx_put32_signal_nbi_on_stream(
            target: *mut c_void, source: *const c_void, count: usize, signal: *mut u64, value: u64, op: c_int, pe: c_int,
            stream: CUstream,
        );
        /// Writes 64-bit elements to a PE.
        "3.3.24" fn nvshmem_put64(target: *mut c_void, source: *const c_void, count: usize, pe: c_int);
        /// Starts a write of 64-bit elements to a PE. A quiet completes the transfer.
        "3.3.24" fn nvshmem_put64_nbi(target: *mut c_void, source: *const c_void, count: usize, pe: c_int);
        /// Writes 64-bit elements to a PE, in stream order.
        "3.3.24" fn nvshmemx_put64_on_stream(target: *mut c_void, source: *const c_void, count: usize, pe: c_int, stream: CUstream);
        /// Starts a write of 64-bit elements to a PE, in stream order. A quiet completes the
        /// transfer.
        "3.3.24" fn nvshmemx_put64_nbi_on_stream(
            target: *mut c_void, source: *const c_void, count: usize, pe: c_int, stream: CUstream,
        );
        /// Writes 64-bit elements to a PE, with strides.
        "3.3.24" fn nvshmem_iput64(
            target: *mut c_void, source: *const c_void, target_stride: isize, source_stride: isize, count: usize, pe: c_int,
        );
        /// Writes 64-bit elements to a PE, with strides, in stream order.
        "3.3.24" fn nvshmemx_iput64_on_stream(
            target: *mut c_void, source: *const c_void, target_stride: isize, source_stride: isize, count: usize, pe: c_int,
            stream: CUstream,
        );
        /// Reads 64-bit elements from a PE.
        "3.3.24" fn nvshmem_get64(target: *mut c_void, source: *const c_void, count: usize, pe: c_int);
        /// Starts a read of 64-bit elements from a PE. A quiet completes the transfer.
        "3.3.24" fn nvshmem_get64_nbi(target: *mut c_void, source: *const c_void, count: usize, pe: c_int);
        /// Reads 64-bit elements from a PE, in stream order.
        "3.3.24" fn nvshmemx_get64_on_stream(target: *mut c_void, source: *const c_void, count: usize, pe: c_int, stream: CUstream);
        /// Starts a read of 64-bit elements from a PE, in stream order. A quiet completes the
        /// transfer.
        "3.3.24" fn nvshmemx_get64_nbi_on_stream(
            target: *mut c_void, source: *const c_void, count: usize, pe: c_int, stream: CUstream,
        );
        /// Reads 64-bit elements from a PE, with strides.
        "3.3.24" fn nvshmem_iget64(
            target: *mut c_void, source: *const c_void, target_stride: isize, source_stride: isize, count: usize, pe: c_int,
        );
        /// Reads 64-bit elements from a PE, with strides, in stream order.
        "3.3.24" fn nvshmemx_iget64_on_stream(
            target: *mut c_void, source: *const c_void, target_stride: isize, source_stride: isize, count: usize, pe: c_int,
            stream: CUstream,
        );
        /// Writes 64-bit elements to a PE, then signals the PE, in stream order.
        "3.3.24" fn nvshmemx_put64_signal_on_stream(
            target: *mut c_void, source: *const c_void, count: usize, signal: *mut u64, value: u64, op: c_int, pe: c_int,
            stream: CUstream,
        );
        /// Starts a write of 64-bit elements to a PE, in stream order. NVSHMEM signals the target
        /// PE after the write. A quiet completes the write and the signal.
        "3.3.24" fn nvshmemx_put64_signal_nbi_on_stream(
            target: *mut c_void, source: *const c_void, count: usize, signal: *mut u64, value: u64, op: c_int, pe: c_int,
            stream: CUstream,
        );
        /// Writes 128-bit elements to a PE.
        "3.3.24" fn nvshmem_put128(target: *mut c_void, source: *const c_void, count: usize, pe: c_int);
        /// Starts a write of 128-bit elements to a PE. A quiet completes the transfer.
        "3.3.24" fn nvshmem_put128_nbi(target: *mut c_void, source: *const c_void, count: usize, pe: c_int);
        /// Writes 128-bit elements to a PE, in stream order.
        "3.3.24" fn nvshmemx_put128_on_stream(
            target: *mut c_void, source: *const c_void, count: usize, pe: c_int, stream: CUstream,
        );
        /// Starts a write of 128-bit elements to a PE, in stream order. A quiet completes the
        /// transfer.
        "3.3.24" fn nvshmemx_put128_nbi_on_stream(
            target: *mut c_void, source: *const c_void, count: usize, pe: c_int, stream: CUstream,
        );
        /// Writes 128-bit elements to a PE, with strides.
        "3.3.24" fn nvshmem_iput128(
            target: *mut c_void, source: *const c_void, target_stride: isize, source_stride: isize, count: usize, pe: c_int,
        );
        /// Writes 128-bit elements to a PE, with strides, in stream order.
        "3.3.24" fn nvshmemx_iput128_on_stream(
            target: *mut c_void, source: *const c_void, target_stride: isize, source_stride: isize, count: usize, pe: c_int,
            stream: CUstream,
        );
        /// Reads 128-bit elements from a PE.
        "3.3.24" fn nvshmem_get128(target: *mut c_void, source: *const c_void, count: usize, pe: c_int);
        /// Starts a read of 128-bit elements from a PE. A quiet completes the transfer.
        "3.3.24" fn nvshmem_get128_nbi(target: *mut c_void, source: *const c_void, count: usize, pe: c_int);
        /// Reads 128-bit elements from a PE, in stream order.
        "3.3.24" fn nvshmemx_get128_on_stream(
            target: *mut c_void, source: *const c_void, count: usize, pe: c_int, stream: CUstream,
        );
        /// Starts a read of 128-bit elements from a PE, in stream order. A quiet completes the
        /// transfer.
        "3.3.24" fn nvshmemx_get128_nbi_on_stream(
            target: *mut c_void, source: *const c_void, count: usize, pe: c_int, stream: CUstream,
        );
        /// Reads 128-bit elements from a PE, with strides.
        "3.3.24" fn nvshmem_iget128(
            target: *mut c_void, source: *const c_void, target_stride: isize, source_stride: isize, count: usize, pe: c_int,
        );
        /// Reads 128-bit elements from a PE, with strides, in stream order.
        "3.3.24" fn nvshmemx_iget128_on_stream(
            target: *mut c_void, source: *const c_void, target_stride: isize, source_stride: isize, count: usize, pe: c_int,
            stream: CUstream,
        );
        /// Writes 128-bit elements to a PE, then signals the PE, in stream order.
        "3.3.24" fn nvshmemx_put128_signal_on_stream(
            target: *mut c_void, source: *const c_void, count: usize, signal: *mut u64, value: u64, op: c_int, pe: c_int,
            stream: CUstream,
        );
        /// Starts a write of 128-bit elements to a PE, then a signal to the same PE, in stream
        /// order. A quiet completes the write and the signal.
        "3.3.24" fn nvshmemx_put128_signal_nbi_on_stream(
            target: *mut c_void, source: *const c_void, count: usize, signal: *mut u64, value: u64, op: c_int, pe: c_int,
            stream: CUstream,
        );

        // Collectives by bytes.

        /// Exchanges data among the PEs of a team. Each PE sends `bytes` bytes to every PE, and
        /// receives `bytes` bytes from every PE.
        "3.3.24" fn nvshmem_alltoallmem(team: nvshmem_team_t, target: *mut c_void, source: *const c_void, bytes: usize) -> c_int;
        /// Exchanges data among the PEs of a team, in stream order. Each PE sends `bytes` bytes to
        /// every PE, and receives `bytes` bytes from every PE.
        "3.3.24" fn nvshmemx_alltoallmem_on_stream(
            team: nvshmem_team_t, target: *mut c_void, source: *const c_void, bytes: usize, stream: CUstream,
        ) -> c_int;
        /// Concatenates data from all PEs of a team, `bytes` bytes from each PE. Every PE of the
        /// team receives the result.
        "3.3.24" fn nvshmem_fcollectmem(team: nvshmem_team_t, target: *mut c_void, source: *const c_void, bytes: usize) -> c_int;
        /// Concatenates data from all PEs of a team, `bytes` bytes from each PE, in stream order.
        /// Every PE of the team receives the result.
        "3.3.24" fn nvshmemx_fcollectmem_on_stream(
            team: nvshmem_team_t, target: *mut c_void, source: *const c_void, bytes: usize, stream: CUstream,
        ) -> c_int;
        /// Copies `bytes` bytes from the root's source to every PE of a team.
        "3.3.24" fn nvshmem_broadcastmem(
            team: nvshmem_team_t, target: *mut c_void, source: *const c_void, bytes: usize, root: c_int,
        ) -> c_int;
        /// Copies `bytes` bytes from the root's source to every PE of a team, in stream order.
        "3.3.24" fn nvshmemx_broadcastmem_on_stream(
            team: nvshmem_team_t, target: *mut c_void, source: *const c_void, bytes: usize, root: c_int, stream: CUstream,
        ) -> c_int;

        // Modules, launches, regions, queue pairs.

        /// Passes the state of NVSHMEM's device functions to a module.
        "3.3.24" fn nvshmemx_cumodule_init(module: CUmodule) -> c_int;
        /// Removes NVSHMEM's state from a module.
        "3.3.24" fn nvshmemx_cumodule_finalize(module: CUmodule) -> c_int;
        /// Passes the state of NVSHMEM's device functions to a CUDA library.
        "3.3.24" fn nvshmemx_culibrary_init(library: CUlibrary) -> c_int;
        /// Removes NVSHMEM's state from a CUDA library.
        "3.3.24" fn nvshmemx_culibrary_finalize(library: CUlibrary) -> c_int;
        /// Begins a region of the program in which NVSHMEM may batch transfers.
        "3.8.0" fn nvshmemx_region_start(
            handle: *mut nvshmemx_region_handle_t, attributes: *const nvshmemx_region_attrs_t,
        ) -> c_int;
        /// Ends a region of the program in which NVSHMEM may batch transfers.
        "3.8.0" fn nvshmemx_region_stop(handle: nvshmemx_region_handle_t) -> c_int;
        /// Stores 1 in `active` if a region for batched transfers has begun and not ended, and has
        /// all hints in `hints`. Otherwise stores 0.
        "3.8.0" fn nvshmemx_region_is_active(hints: u32, active: *mut c_int) -> c_int;
        /// Creates queue pairs for kernels.
        "3.6.5" fn nvshmemx_qp_create(count: c_int, handles: *mut *mut nvshmemx_qp_handle_t) -> c_int;
    }
}
