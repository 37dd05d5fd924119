//! All functions of NCCL, each with the first version of the library that exports the function.
//!
//! These functions make no checks. The profiling entry points (`pnccl...`) and the inline functions
//! of headers are not declared.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::requirements::*;
use super::types::*;

peerweave_dylib::bindings! {
    /// The functions of one NCCL library. Each function is resolved at its first call.
    pub struct Api {
        // Version, ids, errors.

        /// Returns the library's version as a number.
        "2.0.0" fn ncclGetVersion(version: *mut c_int) -> ncclResult_t;
        /// Creates an id for a new communicator. Opens a listening socket.
        "2.0.0" fn ncclGetUniqueId(uniqueId: *mut ncclUniqueId) -> ncclResult_t;
        /// Creates an id with which new ranks join a communicator.
        "2.29.2" fn ncclCommGetUniqueId(comm: ncclComm_t, uniqueId: *mut ncclUniqueId) -> ncclResult_t;
        /// Returns the description of a result code. The text is valid as long as the library is
        /// loaded.
        "2.0.0" fn ncclGetErrorString(result: ncclResult_t) -> *const c_char;
        /// Returns the message for the last error, or null. The message is valid until the next
        /// error.
        "2.13.4" fn ncclGetLastError(comm: ncclComm_t) -> *const c_char;
        /// Returns the state of a communicator.
        "2.4.2" fn ncclCommGetAsyncError(comm: ncclComm_t, asyncError: *mut ncclResult_t) -> ncclResult_t;
        /// Makes the library read the environment variables for its log again. NVIDIA has
        /// deprecated this function.
        "2.24.3" fn ncclResetDebugInit();
        /// Makes the library read the environment variables for its log again. Replaces the
        /// deprecated `ncclResetDebugInit`. No header declares this function.
        "2.28.3" fn ncclResetDebugInitInternal();

        // Lifecycle.

        /// Creates a communicator. All ranks must make this call.
        "2.0.0" fn ncclCommInitRank(comm: *mut ncclComm_t, nranks: c_int, commId: ncclUniqueId, rank: c_int) -> ncclResult_t;
        /// Creates a communicator whose ranks are all in this process.
        "2.0.0" fn ncclCommInitAll(comm: *mut ncclComm_t, ndev: c_int, devlist: *const c_int) -> ncclResult_t;
        /// Creates a communicator with a configuration. All ranks must make this call.
        "2.14.3" fn ncclCommInitRankConfig(
            comm: *mut ncclComm_t, nranks: c_int, commId: ncclUniqueId, rank: c_int, config: *mut ncclConfig_t,
        ) -> ncclResult_t;
        /// Creates a communicator with several ids, for many ranks. All ranks must make this call.
        "2.23.4" fn ncclCommInitRankScalable(
            newcomm: *mut ncclComm_t, nranks: c_int, myrank: c_int, nId: c_int, commIds: *mut ncclUniqueId,
            config: *mut ncclConfig_t,
        ) -> ncclResult_t;
        /// Splits a communicator into several communicators, each with some of the original ranks.
        /// All ranks must make this call.
        "2.18.1" fn ncclCommSplit(
            comm: ncclComm_t, color: c_int, key: c_int, newcomm: *mut ncclComm_t, config: *mut ncclConfig_t,
        ) -> ncclResult_t;
        /// Creates a communicator without the excluded ranks. All remaining ranks must make this
        /// call.
        "2.27.3" fn ncclCommShrink(
            comm: ncclComm_t, excludeRanksList: *mut c_int, excludeRanksCount: c_int, newcomm: *mut ncclComm_t,
            config: *mut ncclConfig_t, shrinkFlags: c_int,
        ) -> ncclResult_t;
        /// Creates a communicator with additional ranks. All old and new ranks must make this call.
        "2.29.2" fn ncclCommGrow(
            comm: ncclComm_t, nRanks: c_int, uniqueId: *const ncclUniqueId, rank: c_int, newcomm: *mut ncclComm_t,
            config: *mut ncclConfig_t,
        ) -> ncclResult_t;
        /// Waits until issued work is complete. All ranks must make this call.
        "2.14.3" fn ncclCommFinalize(comm: ncclComm_t) -> ncclResult_t;
        /// Frees a communicator.
        "2.0.0" fn ncclCommDestroy(comm: ncclComm_t) -> ncclResult_t;
        /// Ends running work, and frees a communicator.
        "2.4.2" fn ncclCommAbort(comm: ncclComm_t) -> ncclResult_t;
        /// Ends running work. After this call, the communicator can only be split, shrunk or freed.
        "2.28.7" fn ncclCommRevoke(comm: ncclComm_t, revokeFlags: c_int) -> ncclResult_t;
        /// Suspends a communicator. Releases the device memory that a suspended communicator does
        /// not need.
        "2.29.7" fn ncclCommSuspend(comm: ncclComm_t, flags: c_int) -> ncclResult_t;
        /// Resumes a suspended communicator. Allocates the device memory that the suspension has
        /// released.
        "2.29.7" fn ncclCommResume(comm: ncclComm_t) -> ncclResult_t;

        // Queries of a communicator.

        /// Returns the number of ranks in a communicator.
        "2.0.0" fn ncclCommCount(comm: ncclComm_t, count: *mut c_int) -> ncclResult_t;
        /// Returns the CUDA ordinal of the device that this rank uses.
        "2.0.0" fn ncclCommCuDevice(comm: ncclComm_t, device: *mut c_int) -> ncclResult_t;
        /// Returns this rank's number in a communicator.
        "2.0.0" fn ncclCommUserRank(comm: ncclComm_t, rank: *mut c_int) -> ncclResult_t;
        /// Returns a statistic of a communicator's memory.
        "2.29.7" fn ncclCommMemStats(comm: ncclComm_t, stat: ncclCommMemStat_t, value: *mut u64) -> ncclResult_t;
        /// Returns the capabilities of a communicator. The version in the struct selects the
        /// layout.
        "2.29.2" fn ncclCommQueryProperties(comm: ncclComm_t, props: *mut ncclCommProperties_t) -> ncclResult_t;

        // Collectives.

        /// Reduces over all ranks. All ranks get the result.
        "2.0.0" fn ncclAllReduce(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, op: ncclRedOp_t,
            comm: ncclComm_t, stream: CUstream,
        ) -> ncclResult_t;
        /// Copies the root's send buffer to the receive buffers of all ranks.
        "2.2.0" fn ncclBroadcast(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, root: c_int,
            comm: ncclComm_t, stream: CUstream,
        ) -> ncclResult_t;
        /// Reduces over all ranks. The root gets the result.
        "2.0.0" fn ncclReduce(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, op: ncclRedOp_t,
            root: c_int, comm: ncclComm_t, stream: CUstream,
        ) -> ncclResult_t;
        /// Concatenates the send buffers in rank order on all ranks.
        "2.0.0" fn ncclAllGather(
            sendbuff: *const c_void, recvbuff: *mut c_void, sendcount: usize, datatype: ncclDataType_t, comm: ncclComm_t,
            stream: CUstream,
        ) -> ncclResult_t;
        /// Reduces over all ranks. Each rank gets its part of the result.
        "2.0.0" fn ncclReduceScatter(
            sendbuff: *const c_void, recvbuff: *mut c_void, recvcount: usize, datatype: ncclDataType_t, op: ncclRedOp_t,
            comm: ncclComm_t, stream: CUstream,
        ) -> ncclResult_t;
        /// Exchanges parts between all ranks: each rank sends one part of its send buffer to each
        /// rank.
        "2.28.3" fn ncclAlltoAll(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, comm: ncclComm_t,
            stream: CUstream,
        ) -> ncclResult_t;
        /// Concatenates the send buffers in rank order on the root.
        "2.28.3" fn ncclGather(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, root: c_int,
            comm: ncclComm_t, stream: CUstream,
        ) -> ncclResult_t;
        /// Sends one part of the root's buffer to each rank.
        "2.28.3" fn ncclScatter(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, root: c_int,
            comm: ncclComm_t, stream: CUstream,
        ) -> ncclResult_t;
        /// Copies the root's buffer to the buffers of all ranks, in place.
        "2.0.0" fn ncclBcast(
            buff: *mut c_void, count: usize, datatype: ncclDataType_t, root: c_int, comm: ncclComm_t, stream: CUstream,
        ) -> ncclResult_t;

        // Collectives with a configuration for the call.

        /// Like `ncclAllReduce`, with a configuration.
        "2.31.0" fn ncclAllReduceConfig(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, op: ncclRedOp_t,
            comm: ncclComm_t, stream: CUstream, config: *const ncclCollConfig_t,
        ) -> ncclResult_t;
        /// Like `ncclBroadcast`, with a configuration.
        "2.31.0" fn ncclBroadcastConfig(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, root: c_int,
            comm: ncclComm_t, stream: CUstream, config: *const ncclCollConfig_t,
        ) -> ncclResult_t;
        /// Like `ncclReduce`, with a configuration.
        "2.31.0" fn ncclReduceConfig(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, op: ncclRedOp_t,
            root: c_int, comm: ncclComm_t, stream: CUstream, config: *const ncclCollConfig_t,
        ) -> ncclResult_t;
        /// Like `ncclAllGather`, with a configuration.
        "2.31.0" fn ncclAllGatherConfig(
            sendbuff: *const c_void, recvbuff: *mut c_void, sendcount: usize, datatype: ncclDataType_t, comm: ncclComm_t,
            stream: CUstream, config: *const ncclCollConfig_t,
        ) -> ncclResult_t;
        /// Like `ncclReduceScatter`, with a configuration.
        "2.31.0" fn ncclReduceScatterConfig(
            sendbuff: *const c_void, recvbuff: *mut c_void, recvcount: usize, datatype: ncclDataType_t, op: ncclRedOp_t,
            comm: ncclComm_t, stream: CUstream, config: *const ncclCollConfig_t,
        ) -> ncclResult_t;
        /// Like `ncclAlltoAll`, with a configuration.
        "2.31.0" fn ncclAlltoAllConfig(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, comm: ncclComm_t,
            stream: CUstream, config: *const ncclCollConfig_t,
        ) -> ncclResult_t;
        /// Like `ncclGather`, with a configuration.
        "2.31.0" fn ncclGatherConfig(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, root: c_int,
            comm: ncclComm_t, stream: CUstream, config: *const ncclCollConfig_t,
        ) -> ncclResult_t;
        /// Like `ncclScatter`, with a configuration.
        "2.31.0" fn ncclScatterConfig(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, root: c_int,
            comm: ncclComm_t, stream: CUstream, config: *const ncclCollConfig_t,
        ) -> ncclResult_t;

        // Point-to-point operations, one-sided operations, groups.

        /// Sends a buffer to a rank. That rank must receive the data with `ncclRecv`.
        "2.7.3" fn ncclSend(
            sendbuff: *const c_void, count: usize, datatype: ncclDataType_t, peer: c_int, comm: ncclComm_t, stream: CUstream,
        ) -> ncclResult_t;
        /// Receives into a buffer from a rank. That rank must send the data with `ncclSend`.
        "2.7.3" fn ncclRecv(
            recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, peer: c_int, comm: ncclComm_t, stream: CUstream,
        ) -> ncclResult_t;
        /// Writes to a peer's window, and then increments a signal on the peer.
        "2.29.2" fn ncclPutSignal(
            localbuff: *const c_void, count: usize, datatype: ncclDataType_t, peer: c_int, peerWin: ncclWindow_t,
            peerWinOffset: usize, sigIdx: c_int, ctx: c_int, flags: c_uint, comm: ncclComm_t, stream: CUstream,
        ) -> ncclResult_t;
        /// Increments a signal on a peer.
        "2.29.2" fn ncclSignal(
            peer: c_int, sigIdx: c_int, ctx: c_int, flags: c_uint, comm: ncclComm_t, stream: CUstream,
        ) -> ncclResult_t;
        /// Waits until peers have incremented signals on this rank.
        "2.29.2" fn ncclWaitSignal(
            nDesc: c_int, signalDescs: *mut ncclWaitSignalDesc_t, comm: ncclComm_t, stream: CUstream,
        ) -> ncclResult_t;
        /// Starts a group on this thread.
        "2.0.0" fn ncclGroupStart() -> ncclResult_t;
        /// Ends the group on this thread, and launches the calls in the group.
        "2.0.0" fn ncclGroupEnd() -> ncclResult_t;
        /// Ends the group on this thread. Estimates the duration of the calls in the group instead
        /// of launching the calls.
        "2.22.3" fn ncclGroupSimulateEnd(simInfo: *mut ncclSimInfo_t) -> ncclResult_t;

        // Memory, registration, windows.

        /// Allocates device memory that supports all of NCCL's algorithms.
        "2.19.1" fn ncclMemAlloc(ptr: *mut *mut c_void, size: usize) -> ncclResult_t;
        /// Frees memory that `ncclMemAlloc` allocated.
        "2.19.1" fn ncclMemFree(ptr: *mut c_void) -> ncclResult_t;
        /// Registers a buffer on this rank only. Other ranks need not make this call.
        "2.19.1" fn ncclCommRegister(comm: ncclComm_t, buff: *mut c_void, size: usize, handle: *mut *mut c_void) -> ncclResult_t;
        /// Unregisters a buffer.
        "2.19.1" fn ncclCommDeregister(comm: ncclComm_t, handle: *mut c_void) -> ncclResult_t;
        /// Registers a window. All ranks must make this call. If windows are not supported, returns
        /// success and stores a null window.
        "2.27.3" fn ncclCommWindowRegister(
            comm: ncclComm_t, buff: *mut c_void, size: usize, win: *mut ncclWindow_t, winFlags: c_int,
        ) -> ncclResult_t;
        /// Unregisters a window on this rank only. Other ranks need not make this call.
        "2.27.3" fn ncclCommWindowDeregister(comm: ncclComm_t, win: ncclWindow_t) -> ncclResult_t;
        /// Returns the address of the memory that was registered as a window.
        "2.29.2" fn ncclWinGetUserPtr(comm: ncclComm_t, win: ncclWindow_t, outUserPtr: *mut *mut c_void) -> ncclResult_t;
        /// Returns the address at which kernels load and store in a rank's window, given the rank's
        /// index in the LSA team.
        "2.29.2" fn ncclGetLsaDevicePointer(
            window: ncclWindow_t, offset: usize, lsaRank: c_int, outPtr: *mut *mut c_void,
        ) -> ncclResult_t;
        /// Returns the multicast address of a location in a window, for the LSA team.
        "2.29.2" fn ncclGetLsaMultimemDevicePointer(
            window: ncclWindow_t, offset: usize, outPtr: *mut *mut c_void,
        ) -> ncclResult_t;
        /// Returns the multicast address of a location in a window, for a given team.
        "2.29.2" fn ncclGetMultimemDevicePointer(
            window: ncclWindow_t, offset: usize, multimem: ncclMultimemHandle_t, outPtr: *mut *mut c_void,
        ) -> ncclResult_t;
        /// Returns the address at which kernels load and store in a rank's window, or null if
        /// kernels cannot access the window in this way.
        "2.29.2" fn ncclGetPeerDevicePointer(
            window: ncclWindow_t, offset: usize, peer: c_int, outPtr: *mut *mut c_void,
        ) -> ncclResult_t;
        /// Returns the fabric address of a location in a rank's window: a logical endpoint and an
        /// offset. `peerCft` is the rank's index in the fabric team `cftTeam`.
        "2.31.1" fn ncclGetCftDeviceLeInfo(
            window: ncclWindow_t, offset: usize, peerCft: c_int, cftTeam: ncclTeam_t, leId: *mut u32, leOffset: *mut usize,
        ) -> ncclResult_t;
        /// Returns the fabric's multicast address of a location in a window: a logical endpoint and
        /// an offset.
        "2.31.1" fn ncclGetMultimemDeviceLeInfo(
            window: ncclWindow_t, offset: usize, leId: *mut u32, leOffset: *mut usize,
        ) -> ncclResult_t;
        /// Returns the fabric address of a location in a rank's window: a logical endpoint and an
        /// offset. `peerWorld` is the rank in the communicator.
        "2.31.1" fn ncclGetPeerDeviceLeInfo(
            window: ncclWindow_t, offset: usize, peerWorld: c_int, leId: *mut u32, leOffset: *mut usize,
        ) -> ncclResult_t;

        // Custom reductions.

        /// Creates a sum in which each rank's elements are first multiplied by a scalar.
        "2.11.4" fn ncclRedOpCreatePreMulSum(
            op: *mut ncclRedOp_t, scalar: *mut c_void, datatype: ncclDataType_t, residence: ncclScalarResidence_t,
            comm: ncclComm_t,
        ) -> ncclResult_t;
        /// Frees a reduction.
        "2.11.4" fn ncclRedOpDestroy(op: ncclRedOp_t, comm: ncclComm_t) -> ncclResult_t;

        // Device communicators.

        /// Creates a device communicator. The version in `reqs` determines the layout of the device
        /// communicator. All ranks must make this call.
        "2.28.3" fn ncclDevCommCreate(
            comm: ncclComm_t, reqs: *const ncclDevCommRequirements_t, outDevComm: *mut c_void,
        ) -> ncclResult_t;
        /// Frees a device communicator.
        "2.28.3" fn ncclDevCommDestroy(comm: ncclComm_t, devComm: *const c_void) -> ncclResult_t;
        /// Writes to `outReq` a description of the resources that LSA barriers need. LSA barriers
        /// are barriers among ranks that access each other's memory by loads and stores.
        "2.28.3" fn ncclLsaBarrierCreateRequirement(
            team: ncclTeam_t, nBarriers: c_int, outHandle: *mut ncclLsaBarrierHandle_t,
            outReq: *mut ncclDevResourceRequirements_t,
        ) -> ncclResult_t;
        /// Writes to `outReq` a description of the resources that barriers over the network need.
        "2.28.7" fn ncclGinBarrierCreateRequirement(
            comm: ncclComm_t, team: ncclTeam_t, nBarriers: c_int, outHandle: *mut ncclGinBarrierHandle_t,
            outReq: *mut ncclDevResourceRequirements_t,
        ) -> ncclResult_t;
        /// Returns the number of slots that an all-to-all of short messages needs.
        "2.28.3" fn ncclLLA2ACalcSlots(maxElts: c_int, maxEltSize: c_int) -> c_int;
        /// Writes to `outReq` a description of the resources that an all-to-all of short messages
        /// needs.
        "2.28.3" fn ncclLLA2ACreateRequirement(
            nBlocks: c_int, nSlots: c_int, outHandle: *mut ncclLLA2AHandle_t, outReq: *mut ncclDevResourceRequirements_t,
        ) -> ncclResult_t;
        /// Writes to `outReq` a description of the resources that network outboxes (send buffers)
        /// need. NCCL's headers for Linux do not declare this function.
        "2.29.7" fn ncclGinOutboxCreateRequirement(
            nBlocks: c_int, sizeLog2: c_int, outHandle: *mut c_void, outReq: *mut ncclDevResourceRequirements_t,
        ) -> ncclResult_t;
        /// Writes to `outReq` a description of the resources that network inboxes (receive buffers)
        /// of an all-to-all need. NCCL's headers for Linux do not declare this function.
        "2.29.7" fn ncclGinInboxA2ACreateRequirement(
            peers: ncclTeam_t, nBlocks: c_int, sizeLog2: c_int, outHandle: *mut c_void,
            outReq: *mut ncclDevResourceRequirements_t,
        ) -> ncclResult_t;

        // Teams.

        /// Returns the team that consists of all ranks.
        "2.28.3" fn ncclTeamWorld(comm: ncclComm_t) -> ncclTeam_t;
        /// Returns the LSA team: the ranks that access each other by loads and stores.
        "2.28.3" fn ncclTeamLsa(comm: ncclComm_t) -> ncclTeam_t;
        /// Returns the rail team: the ranks that have the same index in their LSA teams as this
        /// rank has in its own LSA team.
        "2.28.3" fn ncclTeamRail(comm: ncclComm_t) -> ncclTeam_t;
        /// Returns the fabric team that `mode` selects.
        "2.31.0" fn ncclTeamCft(comm: ncclComm_t, mode: ncclCftTeamMode_t) -> ncclTeam_t;
        /// Returns the team of the ranks that the fabric's multicast reaches.
        "2.31.0" fn ncclTeamCftMultimem(comm: ncclComm_t) -> ncclTeam_t;
        /// Converts an index in a team to the rank in the communicator.
        "2.28.3" fn ncclTeamRankToWorld(comm: ncclComm_t, team: ncclTeam_t, rank: c_int) -> c_int;
        /// Converts an index in a team to the index in the LSA team.
        "2.28.3" fn ncclTeamRankToLsa(comm: ncclComm_t, team: ncclTeam_t, rank: c_int) -> c_int;

        // Parameters.

        /// Returns the handle of a parameter, given the parameter's name.
        "2.30.3" fn ncclParamBind(out: *mut ncclParamHandle_t, key: *const c_char) -> ncclResult_t;
        /// Returns a parameter as `i8`.
        "2.30.3" fn ncclParamGetI8(h: ncclParamHandle_t, out: *mut i8) -> ncclResult_t;
        /// Returns a parameter as `i16`.
        "2.30.3" fn ncclParamGetI16(h: ncclParamHandle_t, out: *mut i16) -> ncclResult_t;
        /// Returns a parameter as `i32`.
        "2.30.3" fn ncclParamGetI32(h: ncclParamHandle_t, out: *mut i32) -> ncclResult_t;
        /// Returns a parameter as `i64`.
        "2.30.3" fn ncclParamGetI64(h: ncclParamHandle_t, out: *mut i64) -> ncclResult_t;
        /// Returns a parameter as `u8`.
        "2.30.3" fn ncclParamGetU8(h: ncclParamHandle_t, out: *mut u8) -> ncclResult_t;
        /// Returns a parameter as `u16`.
        "2.30.3" fn ncclParamGetU16(h: ncclParamHandle_t, out: *mut u16) -> ncclResult_t;
        /// Returns a parameter as `u32`.
        "2.30.3" fn ncclParamGetU32(h: ncclParamHandle_t, out: *mut u32) -> ncclResult_t;
        /// Returns a parameter as `u64`.
        "2.30.3" fn ncclParamGetU64(h: ncclParamHandle_t, out: *mut u64) -> ncclResult_t;
        /// Returns a parameter as text. The text is valid until this thread's next query.
        "2.30.3" fn ncclParamGetStr(h: ncclParamHandle_t, out: *mut *const c_char) -> ncclResult_t;
        /// Returns a parameter as bytes.
        "2.30.3" fn ncclParamGet(h: ncclParamHandle_t, out: *mut c_void, maxLen: c_int, len: *mut c_int) -> ncclResult_t;
        /// Returns a parameter as text, given the parameter's name. The text is valid until this
        /// thread's next query.
        "2.30.3" fn ncclParamGetParameter(key: *const c_char, value: *mut *const c_char, valueLen: *mut c_int) -> ncclResult_t;
        /// Returns the names of parameters. The names are valid until this thread's next query.
        "2.30.3" fn ncclParamGetAllParameterKeys(table: *mut *mut *const c_char, tableLen: *mut c_int) -> ncclResult_t;
        /// Prints parameters to standard output.
        "2.30.3" fn ncclParamDumpAll();

        // Security.

        /// Selects whether the library encrypts the data on its sockets.
        "2.32.0" fn ncclSetEncryption(config: *const ncclEncryptionConfig_t) -> ncclResult_t;
    }
}
