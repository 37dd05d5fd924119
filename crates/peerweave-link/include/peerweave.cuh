// Types and functions for kernels in CUDA C++. The first parameter of such a kernel is `const
// peerweave::Context*`, the same context that kernels in Rust receive.
//
// PEs whose memory is mapped are accessed by loads and stores. An access to a PE whose memory is
// not mapped is a failure. The host reports the failure when it waits for the kernel. Layouts and
// numbers are copied from the crate peerweave-types. `peerweave_link::peerweave_cuh` adds
// assertions that compare the copies with the originals.
#pragma once

namespace peerweave {

using u32 = unsigned int;
using u64 = unsigned long long;

struct alignas(16) Context {
    u32 version, my_pe, n_pes, node_pe, node_n_pes, n_teams, capabilities, reserved;
    u64 heap_bytes, peers, teams, status, abort, deadline_ns, multicast, gone;
};

struct alignas(16) PeerEntry {
    u64 base;
    u32 node_pe, transport;
};

struct alignas(16) TeamEntry {
    u32 my_rank, size;
    u64 members, sync, epochs;
    u32 slots;
    int nvshmem_team;
    u32 all_mapped, reserved;
};

struct alignas(16) Status {
    u32 kind, operation, pe, team;
    u64 expected, found;
    u32 block, thread, claimed, reserved;
};

// `len` elements at the same offset of every PE's symmetric heap.
template <typename T>
struct SymSlice {
    u64 offset, len;
};

// `len` elements at an address of this GPU.
template <typename T>
struct DeviceSlice {
    T* address;
    u64 len;
};

enum Failure : u32 { DEADLINE = 1, ABORTED = 2, UNREACHABLE = 3, NO_SUCH_PEER = 4, OUT_OF_RANGE = 5, NO_SLOT = 6, WRONG_VERSION = 7 };
enum Operation : u32 { OP_ENTRY = 1, OP_P = 2, OP_G = 3, OP_PUT = 4, OP_SIGNAL_OP = 9, OP_SIGNAL_WAIT = 10, OP_BARRIER = 17 };
constexpr u32 NONE = 0xffffffffu;
constexpr u32 MAPPED = 1;

namespace detail {
__device__ inline void store_relaxed(u32* p, u32 v) { asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
__device__ inline void store_relaxed(u64* p, u64 v) { asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
__device__ inline void store_release(u32* p, u32 v) { asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
__device__ inline void store_release(u64* p, u64 v) { asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
__device__ inline void add_release(u64* p, u64 v) { asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
__device__ inline u32 load_relaxed(const u32* p) {
    u32 v;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ inline u64 load_acquire(const u64* p) {
    u64 v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ inline void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
__device__ inline u64 now_ns() {
    u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}
__device__ inline u32 thread_rank() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
__device__ inline u32 block_rank() { return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z); }
// Returns the time between two readings of the abort word in a wait, in nanoseconds. The word may
// be in host memory, from which a GPU reads for one warp at a time, in about 0.65 us. The returned
// time is four times as long as one reading by all warps of the grid, and at least 0.1 ms.
__device__ inline u64 abort_ns() {
    const u64 blocks = u64(gridDim.x) * gridDim.y * gridDim.z, ns = blocks * blockDim.x * blockDim.y * blockDim.z * 80;
    return ns < 100000 ? 100000 : ns > 25000000 ? 25000000 : ns;
}
}  // namespace detail

// Reports a failure, and ends all waits of this PE. If a failure has already been reported, that
// report is kept. Always returns false.
__device__ inline bool fail(const Context* ctx, u32 kind, u32 operation, u32 pe, u64 expected, u64 found) {
    auto* status = reinterpret_cast<Status*>(ctx->status);
    if (atomicCAS_system(&status->claimed, 0u, 1u) == 0) {
        detail::store_relaxed(&status->operation, operation);
        detail::store_relaxed(&status->pe, pe);
        detail::store_relaxed(&status->team, NONE);
        detail::store_relaxed(&status->block, detail::block_rank());
        detail::store_relaxed(&status->thread, detail::thread_rank());
        detail::store_relaxed(&status->expected, expected);
        detail::store_relaxed(&status->found, found);
        detail::store_release(&status->kind, kind);
        detail::store_relaxed(reinterpret_cast<u32*>(ctx->abort), 1u);
    }
    return false;
}

// Returns the address of the first element of a slice in the memory of a PE. Reports a failure and
// returns null if the PE does not exist, if its memory is not mapped, or if the slice lies outside
// the heap.
template <typename T>
__device__ inline T* at(const Context* ctx, SymSlice<T> slice, u32 pe, u32 operation = OP_PUT) {
    if (pe >= ctx->n_pes) return fail(ctx, NO_SUCH_PEER, operation, pe, ctx->n_pes, pe), nullptr;
    if (slice.offset > ctx->heap_bytes || slice.len > (ctx->heap_bytes - slice.offset) / sizeof(T))
        return fail(ctx, OUT_OF_RANGE, operation, pe, ctx->heap_bytes, slice.offset), nullptr;
    const PeerEntry& entry = reinterpret_cast<const PeerEntry*>(ctx->peers)[pe];
    if (entry.transport != MAPPED) return fail(ctx, UNREACHABLE, operation, pe, MAPPED, entry.transport), nullptr;
    return reinterpret_cast<T*>(entry.base + slice.offset);
}

// Returns the address of the first element of a slice in this PE's own memory.
template <typename T>
__device__ inline T* local(const Context* ctx, SymSlice<T> slice) {
    return at(ctx, slice, ctx->my_pe);
}

// Writes one element to a PE: the first element of `to`. The write is complete after the next
// quiet.
template <typename T>
__device__ inline void p(const Context* ctx, SymSlice<T> to, T value, u32 pe) {
    if (T* target = to.len ? at(ctx, to, pe, OP_P) : nullptr) *const_cast<volatile T*>(target) = value;
}

// Returns one element of a PE: the first element of `from`. Returns zero if the element cannot be
// read.
template <typename T>
__device__ inline T g(const Context* ctx, SymSlice<T> from, u32 pe) {
    T* source = from.len ? at(ctx, from, pe, OP_G) : nullptr;
    return source ? *const_cast<volatile T*>(source) : T{};
}

// Copies elements of this PE to the memory of another PE. All threads of the block call this
// function. If the lengths differ, the shorter length is used. The copy is complete after the next
// quiet.
template <typename T>
__device__ inline void put_block(const Context* ctx, SymSlice<T> to, SymSlice<T> from, u32 pe) {
    T *target = at(ctx, to, pe), *source = local(ctx, from);
    const u64 len = to.len < from.len ? to.len : from.len, step = blockDim.x * blockDim.y * blockDim.z;
    if (target && source)
        for (u64 i = detail::thread_rank(); i < len; i += step) target[i] = source[i];
    __syncthreads();
}

// Completes the earlier writes of this thread before its later accesses.
__device__ inline void quiet(const Context*) { detail::fence_system(); }

// Sets a signal word of a PE. A waiter that sees the new value also sees all earlier writes of this
// thread.
__device__ inline void signal_set(const Context* ctx, SymSlice<u64> signal, u64 value, u32 pe) {
    if (u64* word = at(ctx, signal, pe, OP_SIGNAL_OP)) detail::store_release(word, value);
}

// Adds to a signal word of a PE. A waiter that sees the new value also sees all earlier writes of
// this thread.
__device__ inline void signal_add(const Context* ctx, SymSlice<u64> signal, u64 value, u32 pe) {
    if (u64* word = at(ctx, signal, pe, OP_SIGNAL_OP)) detail::add_release(word, value);
}

// Waits until a word in the memory of this GPU is at least `value`. Returns false after the
// context's deadline, or if the host or a failure of another thread has ended the wait.
__device__ inline bool wait_at_least(const Context* ctx, const u64* word, u64 value, u32 operation, u32 from) {
    const u64 start = detail::now_ns();
    u64 asked = start;  // time of the last reading of the abort word
    for (u32 looks = 1;; looks++) {
        const u64 found = detail::load_acquire(word);
        if (found >= value) return true;
        if (looks % 64) continue;
        const u64 now = detail::now_ns();
        const bool late = now - start > ctx->deadline_ns;
        if (now - asked < detail::abort_ns() && !late) continue;
        asked = now;
        if (detail::load_relaxed(reinterpret_cast<const u32*>(ctx->abort))) return fail(ctx, ABORTED, operation, from, value, found);
        if (late) return fail(ctx, DEADLINE, operation, from, value, found);
    }
}

// Waits until a signal word of this PE is at least `value`. The report of a failure names `from` as
// the missing PE.
__device__ inline bool signal_wait_at_least(const Context* ctx, SymSlice<u64> signal, u64 value, u32 from = NONE) {
    const u64* word = at(ctx, signal, ctx->my_pe, OP_SIGNAL_WAIT);
    return word && wait_at_least(ctx, word, value, OP_SIGNAL_WAIT, from);
}

// Waits until all PEs have called this function. Earlier writes of all PEs are then visible. All
// threads of the block call this function and get the same result. PEs that run a kernel in Rust
// may call the barrier of that kernel instead, from the block with the same index.
__device__ inline bool barrier_all_block(const Context* ctx) {
    constexpr u64 LINE_BYTES = 128;
    const TeamEntry& team = *reinterpret_cast<const TeamEntry*>(ctx->teams);
    const u32 slot = detail::block_rank(), step = blockDim.x * blockDim.y * blockDim.z;
    __syncthreads();
    if (slot >= team.slots) return fail(ctx, NO_SLOT, OP_BARRIER, NONE, team.slots, slot);
    u64* epoch_word = reinterpret_cast<u64*>(team.epochs) + slot;
    const u64 epoch = *const_cast<volatile u64*>(epoch_word) + 1;
    const auto line = [&](u32 rank) { return SymSlice<u64>{team.sync + (u64(slot) * team.size + rank) * LINE_BYTES, 1}; };
    const u32* members = reinterpret_cast<const u32*>(team.members);
    bool met = true;
    for (u32 rank = detail::thread_rank(); rank < team.size; rank += step) {
        u64* theirs = at(ctx, line(team.my_rank), members[rank], OP_BARRIER);
        if (theirs) detail::store_release(theirs, epoch);
        met = met && theirs;
    }
    for (u32 rank = detail::thread_rank(); met && rank < team.size; rank += step)
        met = wait_at_least(ctx, local(ctx, line(rank)), epoch, OP_BARRIER, members[rank]);
    met = !__syncthreads_or(!met);
    if (met && detail::thread_rank() == 0) *const_cast<volatile u64*>(epoch_word) = epoch;
    __syncthreads();
    return met;
}

}  // namespace peerweave
