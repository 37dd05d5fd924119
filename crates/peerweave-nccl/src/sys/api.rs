//! Every function of NCCL, each with the first library that exports it.
//!
//! Nothing here checks. The profiling entry points (`pnccl...`) are not bound, nor is what headers
//! define inline.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::requirements::*;
use super::types::*;

peerweave_dylib::bindings! {
    /// The functions of one libnccl, each resolved at its first call.
    pub struct Api {
        // Version, ids, errors.

        /// The library's version, encoded.
        "2.0.0" fn ncclGetVersion(version: *mut c_int) -> ncclResult_t;
        /// A new id. Opens a listening socket.
        "2.0.0" fn ncclGetUniqueId(uniqueId: *mut ncclUniqueId) -> ncclResult_t;
        /// An id for ranks that shall join.
        "2.29.2" fn ncclCommGetUniqueId(comm: ncclComm_t, uniqueId: *mut ncclUniqueId) -> ncclResult_t;
        /// What a code means. The text lives as long as the library.
        "2.0.0" fn ncclGetErrorString(result: ncclResult_t) -> *const c_char;
        /// The text of the last error. Null or valid until the next.
        "2.13.4" fn ncclGetLastError(comm: ncclComm_t) -> *const c_char;
        /// The state of a communicator.
        "2.4.2" fn ncclCommGetAsyncError(comm: ncclComm_t, asyncError: *mut ncclResult_t) -> ncclResult_t;
        /// Reads the variables of logging again. Deprecated by the vendor.
        "2.24.3" fn ncclResetDebugInit();
        /// The same, under the name that stays. No header declares it.
        "2.28.3" fn ncclResetDebugInitInternal();

        // Lifecycle.

        /// Makes a communicator. Collective.
        "2.0.0" fn ncclCommInitRank(comm: *mut ncclComm_t, nranks: c_int, commId: ncclUniqueId, rank: c_int) -> ncclResult_t;
        /// Makes all communicators of one process.
        "2.0.0" fn ncclCommInitAll(comm: *mut ncclComm_t, ndev: c_int, devlist: *const c_int) -> ncclResult_t;
        /// Makes a configured communicator. Collective.
        "2.14.3" fn ncclCommInitRankConfig(
            comm: *mut ncclComm_t, nranks: c_int, commId: ncclUniqueId, rank: c_int, config: *mut ncclConfig_t,
        ) -> ncclResult_t;
        /// Makes a communicator of many ranks, with several ids. Collective.
        "2.23.4" fn ncclCommInitRankScalable(
            newcomm: *mut ncclComm_t, nranks: c_int, myrank: c_int, nId: c_int, commIds: *mut ncclUniqueId,
            config: *mut ncclConfig_t,
        ) -> ncclResult_t;
        /// Makes communicators of subsets. Collective.
        "2.18.1" fn ncclCommSplit(
            comm: ncclComm_t, color: c_int, key: c_int, newcomm: *mut ncclComm_t, config: *mut ncclConfig_t,
        ) -> ncclResult_t;
        /// Makes a communicator without some ranks. Collective over the others.
        "2.27.3" fn ncclCommShrink(
            comm: ncclComm_t, excludeRanksList: *mut c_int, excludeRanksCount: c_int, newcomm: *mut ncclComm_t,
            config: *mut ncclConfig_t, shrinkFlags: c_int,
        ) -> ncclResult_t;
        /// Makes a communicator with more ranks. Collective over old and new.
        "2.29.2" fn ncclCommGrow(
            comm: ncclComm_t, nRanks: c_int, uniqueId: *const ncclUniqueId, rank: c_int, newcomm: *mut ncclComm_t,
            config: *mut ncclConfig_t,
        ) -> ncclResult_t;
        /// Completes what was issued. Collective.
        "2.14.3" fn ncclCommFinalize(comm: ncclComm_t) -> ncclResult_t;
        /// Frees a communicator.
        "2.0.0" fn ncclCommDestroy(comm: ncclComm_t) -> ncclResult_t;
        /// Ends what runs, and frees a communicator.
        "2.4.2" fn ncclCommAbort(comm: ncclComm_t) -> ncclResult_t;
        /// Ends what runs, and keeps the communicator for split and shrink.
        "2.28.7" fn ncclCommRevoke(comm: ncclComm_t, revokeFlags: c_int) -> ncclResult_t;
        /// Gives memory of the device back.
        "2.29.7" fn ncclCommSuspend(comm: ncclComm_t, flags: c_int) -> ncclResult_t;
        /// Takes the memory again.
        "2.29.7" fn ncclCommResume(comm: ncclComm_t) -> ncclResult_t;

        // What a communicator is.

        /// How many ranks.
        "2.0.0" fn ncclCommCount(comm: ncclComm_t, count: *mut c_int) -> ncclResult_t;
        /// Which device.
        "2.0.0" fn ncclCommCuDevice(comm: ncclComm_t, device: *mut c_int) -> ncclResult_t;
        /// Which rank.
        "2.0.0" fn ncclCommUserRank(comm: ncclComm_t, rank: *mut c_int) -> ncclResult_t;
        /// One statistic of its memory.
        "2.29.7" fn ncclCommMemStats(comm: ncclComm_t, stat: ncclCommMemStat_t, value: *mut u64) -> ncclResult_t;
        /// What it can do. The struct is that of the version in it.
        "2.29.2" fn ncclCommQueryProperties(comm: ncclComm_t, props: *mut ncclCommProperties_t) -> ncclResult_t;

        // Collectives.

        /// Reduces over all ranks; all get the result.
        "2.0.0" fn ncclAllReduce(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, op: ncclRedOp_t,
            comm: ncclComm_t, stream: CUstream,
        ) -> ncclResult_t;
        /// Copies from the root to all.
        "2.2.0" fn ncclBroadcast(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, root: c_int,
            comm: ncclComm_t, stream: CUstream,
        ) -> ncclResult_t;
        /// Reduces over all ranks; the root gets the result.
        "2.0.0" fn ncclReduce(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, op: ncclRedOp_t,
            root: c_int, comm: ncclComm_t, stream: CUstream,
        ) -> ncclResult_t;
        /// All get what all sent, in order of ranks.
        "2.0.0" fn ncclAllGather(
            sendbuff: *const c_void, recvbuff: *mut c_void, sendcount: usize, datatype: ncclDataType_t, comm: ncclComm_t,
            stream: CUstream,
        ) -> ncclResult_t;
        /// Reduces over all ranks; each gets its part of the result.
        "2.0.0" fn ncclReduceScatter(
            sendbuff: *const c_void, recvbuff: *mut c_void, recvcount: usize, datatype: ncclDataType_t, op: ncclRedOp_t,
            comm: ncclComm_t, stream: CUstream,
        ) -> ncclResult_t;
        /// Each sends a part to each.
        "2.28.3" fn ncclAlltoAll(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, comm: ncclComm_t,
            stream: CUstream,
        ) -> ncclResult_t;
        /// The root gets what all sent, in order of ranks.
        "2.28.3" fn ncclGather(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, root: c_int,
            comm: ncclComm_t, stream: CUstream,
        ) -> ncclResult_t;
        /// Each gets its part of what the root sends.
        "2.28.3" fn ncclScatter(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, root: c_int,
            comm: ncclComm_t, stream: CUstream,
        ) -> ncclResult_t;
        /// Copies from the root to all, in place.
        "2.0.0" fn ncclBcast(
            buff: *mut c_void, count: usize, datatype: ncclDataType_t, root: c_int, comm: ncclComm_t, stream: CUstream,
        ) -> ncclResult_t;

        // Collectives with a configuration of their own.

        /// As `ncclAllReduce`, configured.
        "2.31.0" fn ncclAllReduceConfig(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, op: ncclRedOp_t,
            comm: ncclComm_t, stream: CUstream, config: *const ncclCollConfig_t,
        ) -> ncclResult_t;
        /// As `ncclBroadcast`, configured.
        "2.31.0" fn ncclBroadcastConfig(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, root: c_int,
            comm: ncclComm_t, stream: CUstream, config: *const ncclCollConfig_t,
        ) -> ncclResult_t;
        /// As `ncclReduce`, configured.
        "2.31.0" fn ncclReduceConfig(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, op: ncclRedOp_t,
            root: c_int, comm: ncclComm_t, stream: CUstream, config: *const ncclCollConfig_t,
        ) -> ncclResult_t;
        /// As `ncclAllGather`, configured.
        "2.31.0" fn ncclAllGatherConfig(
            sendbuff: *const c_void, recvbuff: *mut c_void, sendcount: usize, datatype: ncclDataType_t, comm: ncclComm_t,
            stream: CUstream, config: *const ncclCollConfig_t,
        ) -> ncclResult_t;
        /// As `ncclReduceScatter`, configured.
        "2.31.0" fn ncclReduceScatterConfig(
            sendbuff: *const c_void, recvbuff: *mut c_void, recvcount: usize, datatype: ncclDataType_t, op: ncclRedOp_t,
            comm: ncclComm_t, stream: CUstream, config: *const ncclCollConfig_t,
        ) -> ncclResult_t;
        /// As `ncclAlltoAll`, configured.
        "2.31.0" fn ncclAlltoAllConfig(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, comm: ncclComm_t,
            stream: CUstream, config: *const ncclCollConfig_t,
        ) -> ncclResult_t;
        /// As `ncclGather`, configured.
        "2.31.0" fn ncclGatherConfig(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, root: c_int,
            comm: ncclComm_t, stream: CUstream, config: *const ncclCollConfig_t,
        ) -> ncclResult_t;
        /// As `ncclScatter`, configured.
        "2.31.0" fn ncclScatterConfig(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, root: c_int,
            comm: ncclComm_t, stream: CUstream, config: *const ncclCollConfig_t,
        ) -> ncclResult_t;

        // Two sides, one side, groups.

        /// Sends to a rank that receives.
        "2.7.3" fn ncclSend(
            sendbuff: *const c_void, count: usize, datatype: ncclDataType_t, peer: c_int, comm: ncclComm_t, stream: CUstream,
        ) -> ncclResult_t;
        /// Receives from a rank that sends.
        "2.7.3" fn ncclRecv(
            recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, peer: c_int, comm: ncclComm_t, stream: CUstream,
        ) -> ncclResult_t;
        /// Writes into a peer's window, then signals.
        "2.29.2" fn ncclPutSignal(
            localbuff: *const c_void, count: usize, datatype: ncclDataType_t, peer: c_int, peerWin: ncclWindow_t,
            peerWinOffset: usize, sigIdx: c_int, ctx: c_int, flags: c_uint, comm: ncclComm_t, stream: CUstream,
        ) -> ncclResult_t;
        /// Signals a peer.
        "2.29.2" fn ncclSignal(
            peer: c_int, sigIdx: c_int, ctx: c_int, flags: c_uint, comm: ncclComm_t, stream: CUstream,
        ) -> ncclResult_t;
        /// Waits for signals.
        "2.29.2" fn ncclWaitSignal(
            nDesc: c_int, signalDescs: *mut ncclWaitSignalDesc_t, comm: ncclComm_t, stream: CUstream,
        ) -> ncclResult_t;
        /// Opens a group of this thread.
        "2.0.0" fn ncclGroupStart() -> ncclResult_t;
        /// Launches the group of this thread.
        "2.0.0" fn ncclGroupEnd() -> ncclResult_t;
        /// Estimates the group of this thread instead of launching it.
        "2.22.3" fn ncclGroupSimulateEnd(simInfo: *mut ncclSimInfo_t) -> ncclResult_t;

        // Memory, registration, windows.

        /// Memory of the device that suits all of NCCL's ways.
        "2.19.1" fn ncclMemAlloc(ptr: *mut *mut c_void, size: usize) -> ncclResult_t;
        /// Frees it.
        "2.19.1" fn ncclMemFree(ptr: *mut c_void) -> ncclResult_t;
        /// Registers a buffer. Local.
        "2.19.1" fn ncclCommRegister(comm: ncclComm_t, buff: *mut c_void, size: usize, handle: *mut *mut c_void) -> ncclResult_t;
        /// Undoes it.
        "2.19.1" fn ncclCommDeregister(comm: ncclComm_t, handle: *mut c_void) -> ncclResult_t;
        /// Registers a window. Collective. Success with a null window means that it is not
        /// supported here.
        "2.27.3" fn ncclCommWindowRegister(
            comm: ncclComm_t, buff: *mut c_void, size: usize, win: *mut ncclWindow_t, winFlags: c_int,
        ) -> ncclResult_t;
        /// Undoes it. Local.
        "2.27.3" fn ncclCommWindowDeregister(comm: ncclComm_t, win: ncclWindow_t) -> ncclResult_t;
        /// The address that a window was registered with.
        "2.29.2" fn ncclWinGetUserPtr(comm: ncclComm_t, win: ncclWindow_t, outUserPtr: *mut *mut c_void) -> ncclResult_t;
        /// The address of a rank's window that loads and stores reach, by its index in the LSA
        /// team.
        "2.29.2" fn ncclGetLsaDevicePointer(
            window: ncclWindow_t, offset: usize, lsaRank: c_int, outPtr: *mut *mut c_void,
        ) -> ncclResult_t;
        /// The address of the multicast of the LSA team.
        "2.29.2" fn ncclGetLsaMultimemDevicePointer(
            window: ncclWindow_t, offset: usize, outPtr: *mut *mut c_void,
        ) -> ncclResult_t;
        /// The address of a team's multicast.
        "2.29.2" fn ncclGetMultimemDevicePointer(
            window: ncclWindow_t, offset: usize, multimem: ncclMultimemHandle_t, outPtr: *mut *mut c_void,
        ) -> ncclResult_t;
        /// The address of a rank's window, null where loads and stores do not reach it.
        "2.29.2" fn ncclGetPeerDevicePointer(
            window: ncclWindow_t, offset: usize, peer: c_int, outPtr: *mut *mut c_void,
        ) -> ncclResult_t;
        /// The fabric's name of a rank's window, by its index in a fabric team.
        "2.31.1" fn ncclGetCftDeviceLeInfo(
            window: ncclWindow_t, offset: usize, peerCft: c_int, cftTeam: ncclTeam_t, leId: *mut u32, leOffset: *mut usize,
        ) -> ncclResult_t;
        /// The fabric's name of a multicast.
        "2.31.1" fn ncclGetMultimemDeviceLeInfo(
            window: ncclWindow_t, offset: usize, leId: *mut u32, leOffset: *mut usize,
        ) -> ncclResult_t;
        /// The fabric's name of a rank's window.
        "2.31.1" fn ncclGetPeerDeviceLeInfo(
            window: ncclWindow_t, offset: usize, peerWorld: c_int, leId: *mut u32, leOffset: *mut usize,
        ) -> ncclResult_t;

        // Reductions of one's own.

        /// A sum of products with a scalar.
        "2.11.4" fn ncclRedOpCreatePreMulSum(
            op: *mut ncclRedOp_t, scalar: *mut c_void, datatype: ncclDataType_t, residence: ncclScalarResidence_t,
            comm: ncclComm_t,
        ) -> ncclResult_t;
        /// Frees it.
        "2.11.4" fn ncclRedOpDestroy(op: ncclRedOp_t, comm: ncclComm_t) -> ncclResult_t;

        // Device communicators.

        /// Makes a device communicator, of the layout of the version in the requirements.
        /// Collective.
        "2.28.3" fn ncclDevCommCreate(
            comm: ncclComm_t, reqs: *const ncclDevCommRequirements_t, outDevComm: *mut c_void,
        ) -> ncclResult_t;
        /// Frees it.
        "2.28.3" fn ncclDevCommDestroy(comm: ncclComm_t, devComm: *const c_void) -> ncclResult_t;
        /// What barriers by loads and stores need.
        "2.28.3" fn ncclLsaBarrierCreateRequirement(
            team: ncclTeam_t, nBarriers: c_int, outHandle: *mut ncclLsaBarrierHandle_t,
            outReq: *mut ncclDevResourceRequirements_t,
        ) -> ncclResult_t;
        /// What barriers over the network need.
        "2.28.7" fn ncclGinBarrierCreateRequirement(
            comm: ncclComm_t, team: ncclTeam_t, nBarriers: c_int, outHandle: *mut ncclGinBarrierHandle_t,
            outReq: *mut ncclDevResourceRequirements_t,
        ) -> ncclResult_t;
        /// How many slots an all-to-all of short messages needs.
        "2.28.3" fn ncclLLA2ACalcSlots(maxElts: c_int, maxEltSize: c_int) -> c_int;
        /// What an all-to-all of short messages needs.
        "2.28.3" fn ncclLLA2ACreateRequirement(
            nBlocks: c_int, nSlots: c_int, outHandle: *mut ncclLLA2AHandle_t, outReq: *mut ncclDevResourceRequirements_t,
        ) -> ncclResult_t;
        /// What outboxes over the network need. No header for Linux declares it.
        "2.29.7" fn ncclGinOutboxCreateRequirement(
            nBlocks: c_int, sizeLog2: c_int, outHandle: *mut c_void, outReq: *mut ncclDevResourceRequirements_t,
        ) -> ncclResult_t;
        /// What inboxes over the network need. No header for Linux declares it.
        "2.29.7" fn ncclGinInboxA2ACreateRequirement(
            peers: ncclTeam_t, nBlocks: c_int, sizeLog2: c_int, outHandle: *mut c_void,
            outReq: *mut ncclDevResourceRequirements_t,
        ) -> ncclResult_t;

        // Teams.

        /// All ranks.
        "2.28.3" fn ncclTeamWorld(comm: ncclComm_t) -> ncclTeam_t;
        /// The ranks that loads and stores reach.
        "2.28.3" fn ncclTeamLsa(comm: ncclComm_t) -> ncclTeam_t;
        /// The ranks with the same index in their LSA teams.
        "2.28.3" fn ncclTeamRail(comm: ncclComm_t) -> ncclTeam_t;
        /// The ranks of the fabric.
        "2.31.0" fn ncclTeamCft(comm: ncclComm_t, mode: ncclCftTeamMode_t) -> ncclTeam_t;
        /// The ranks that the fabric's multicast reaches.
        "2.31.0" fn ncclTeamCftMultimem(comm: ncclComm_t) -> ncclTeam_t;
        /// A team's rank in the communicator.
        "2.28.3" fn ncclTeamRankToWorld(comm: ncclComm_t, team: ncclTeam_t, rank: c_int) -> c_int;
        /// A team's rank in the LSA team.
        "2.28.3" fn ncclTeamRankToLsa(comm: ncclComm_t, team: ncclTeam_t, rank: c_int) -> c_int;

        // Parameters.

        /// A parameter by its name.
        "2.30.3" fn ncclParamBind(out: *mut ncclParamHandle_t, key: *const c_char) -> ncclResult_t;
        /// Its value as `i8`.
        "2.30.3" fn ncclParamGetI8(h: ncclParamHandle_t, out: *mut i8) -> ncclResult_t;
        /// Its value as `i16`.
        "2.30.3" fn ncclParamGetI16(h: ncclParamHandle_t, out: *mut i16) -> ncclResult_t;
        /// Its value as `i32`.
        "2.30.3" fn ncclParamGetI32(h: ncclParamHandle_t, out: *mut i32) -> ncclResult_t;
        /// Its value as `i64`.
        "2.30.3" fn ncclParamGetI64(h: ncclParamHandle_t, out: *mut i64) -> ncclResult_t;
        /// Its value as `u8`.
        "2.30.3" fn ncclParamGetU8(h: ncclParamHandle_t, out: *mut u8) -> ncclResult_t;
        /// Its value as `u16`.
        "2.30.3" fn ncclParamGetU16(h: ncclParamHandle_t, out: *mut u16) -> ncclResult_t;
        /// Its value as `u32`.
        "2.30.3" fn ncclParamGetU32(h: ncclParamHandle_t, out: *mut u32) -> ncclResult_t;
        /// Its value as `u64`.
        "2.30.3" fn ncclParamGetU64(h: ncclParamHandle_t, out: *mut u64) -> ncclResult_t;
        /// Its value as text, valid until this thread asks again.
        "2.30.3" fn ncclParamGetStr(h: ncclParamHandle_t, out: *mut *const c_char) -> ncclResult_t;
        /// Its value as bytes.
        "2.30.3" fn ncclParamGet(h: ncclParamHandle_t, out: *mut c_void, maxLen: c_int, len: *mut c_int) -> ncclResult_t;
        /// A value by name, as text, valid until this thread asks again.
        "2.30.3" fn ncclParamGetParameter(key: *const c_char, value: *mut *const c_char, valueLen: *mut c_int) -> ncclResult_t;
        /// All names, valid until this thread asks again.
        "2.30.3" fn ncclParamGetAllParameterKeys(table: *mut *mut *const c_char, tableLen: *mut c_int) -> ncclResult_t;
        /// Writes all parameters to the library's log.
        "2.30.3" fn ncclParamDumpAll();

        // Security.

        /// How the library's sockets are encrypted.
        "2.32.0" fn ncclSetEncryption(config: *const ncclEncryptionConfig_t) -> ncclResult_t;
    }
}
