// One-sided operations between two mapped GPUs, written directly in CUDA C++ with the guarantees of
// Peerweave's operations: a put reads its source from memory and a get writes its target to memory,
// a signal releases, an atomic operation acquires and releases, a barrier counts its epochs in
// memory, and bulk copies are ordered with the accesses of threads. The measured times are lower
// bounds for operations with these guarantees.
//
// nvcc -std=c++17 -O3 -arch=sm_90 -o one_sided one_sided.cu && ./one_sided
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                           \
    do {                                                                                      \
        cudaError_t error_ = (call);                                                          \
        if (error_ != cudaSuccess) {                                                          \
            printf("%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error_));            \
            exit(1);                                                                          \
        }                                                                                     \
    } while (0)

using u32 = uint32_t;
using u64 = unsigned long long;

enum Scope { THREAD, WARP, BLOCK };
static const std::vector<int> BLOCKS = {128, 256, 512, 1024};
constexpr int WARM_UP = 20;
constexpr u64 MANY_LOOKS = 1ull << 24;

__device__ __forceinline__ u64 now() { u64 t; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)); return t; }
__device__ __forceinline__ void fence() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
__device__ __forceinline__ void store_release(u64* p, u64 v) { asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
__device__ __forceinline__ void store_relaxed(u64* p, u64 v) { asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
__device__ __forceinline__ u64 load_acquire(const u64* p) { u64 v; asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory"); return v; }
__device__ __forceinline__ u64 load_epoch(const u64* p) { u64 v; asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory"); return v; }
__device__ __forceinline__ void store_epoch(u64* p, u64 v) { asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }

template <class T> __device__ __forceinline__ T load(const T* p, bool far);
template <> __device__ __forceinline__ uint4 load(const uint4* p, bool far) {
    uint4 v;
    if (far) asm volatile("ld.relaxed.sys.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    else v = *p;
    return v;
}
template <> __device__ __forceinline__ u64 load(const u64* p, bool far) {
    u64 v;
    if (far) asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    else v = *p;
    return v;
}
template <> __device__ __forceinline__ u32 load(const u32* p, bool far) {
    u32 v;
    if (far) asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    else v = *p;
    return v;
}
template <class T> __device__ __forceinline__ void store(T* p, T v) { *p = v; }
template <> __device__ __forceinline__ void store(uint4* p, uint4 v) { asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory"); }

template <int SCOPE> __device__ __forceinline__ int rank() { return SCOPE == THREAD ? 0 : threadIdx.x; }
template <int SCOPE> __device__ __forceinline__ int size() { return SCOPE == THREAD ? 1 : SCOPE == WARP ? 32 : blockDim.x; }
template <int SCOPE> __device__ __forceinline__ void sync() {
    if (SCOPE == WARP) __syncwarp();
    if (SCOPE == BLOCK) __syncthreads();
}

// Copies one word, or vectors with eight accesses of each thread in flight.
template <int SCOPE, class T> __device__ __forceinline__ void copy(void* to, const void* from, int bytes, bool far) {
    T* t = (T*)to;
    const T* f = (const T*)from;
    int n = bytes / sizeof(T), i = rank<SCOPE>(), step = size<SCOPE>();
    for (; i + 7 * step < n; i += 8 * step) {
        T v[8];
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] = load(f + i + k * step, far);
#pragma unroll
        for (int k = 0; k < 8; k++) store(t + i + k * step, v[k]);
    }
    for (; i < n; i += step) store(t + i, load(f + i, far));
}

template <int SCOPE, class T> __global__ void __launch_bounds__(1024) put(void* to, const void* from, int bytes, int n, u64* ns) {
    u64 start = 0;
    for (int k = -WARM_UP; k < n; k++) {
        if (k == 0) start = now();
        copy<SCOPE, T>(to, from, bytes, false);
        sync<SCOPE>();
        if (rank<SCOPE>() == 0) fence();
        sync<SCOPE>();
    }
    if (threadIdx.x == 0) *ns = (now() - start) / n;
}

template <int SCOPE, class T> __global__ void __launch_bounds__(1024) get(void* to, const void* from, int bytes, int n, u64* ns) {
    u64 start = 0;
    for (int k = -WARM_UP; k < n; k++) {
        if (k == 0) start = now();
        copy<SCOPE, T>(to, from, bytes, true);
        sync<SCOPE>();
    }
    if (threadIdx.x == 0) *ns = (now() - start) / n;
}

// One thread copies through shared memory. `proxies` orders the thread's own accesses before the
// accesses of the copy unit.
__device__ __forceinline__ void bulk(void* to, const void* from, u32 bytes, u32 buffer, u32 barrier, u32& parity, bool proxies) {
    if (proxies) asm volatile("fence.proxy.async.global;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(buffer), "l"(from), "r"(bytes), "r"(barrier) : "memory");
    u32 done = 0;
    while (!done) asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}" : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    parity ^= 1;
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(buffer), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

__global__ void bulk_copies(void* to, const void* from, int bytes, int n, u64* ns, bool proxies, bool fences) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ __align__(8) u64 word;
    u32 barrier = (u32)__cvta_generic_to_shared(&word), buffer = (u32)__cvta_generic_to_shared(memory), parity = 0;
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(barrier) : "memory");
    __syncthreads();
    u64 start = 0;
    for (int k = -WARM_UP; k < n; k++) {
        if (k == 0) start = now();
        if (threadIdx.x == 0) {
            bulk(to, from, bytes, buffer, barrier, parity, proxies);
            if (fences) fence();
        }
    }
    if (threadIdx.x == 0) *ns = (now() - start) / n;
}

template <int SCOPE, class T> __global__ void __launch_bounds__(1024) ping_pong(void* to, const void* from, u64* theirs, u64* mine, int bytes, int n, bool first, u64* ns) {
    u64 start = 0;
    for (int k = 1; k <= n + WARM_UP; k++) {
        if (k == WARM_UP + 1) start = now();
        for (int half = 0; half < 2; half++) {
            if ((half == 0) == first) {
                copy<SCOPE, T>(to, from, bytes, false);
                sync<SCOPE>();
                if (rank<SCOPE>() == 0) store_release(theirs, k);
            } else {
                if (rank<SCOPE>() == 0)
                    for (u64 looks = 0; load_acquire(mine) < (u64)k && looks < MANY_LOOKS; looks++) {}
                sync<SCOPE>();
            }
        }
    }
    if (threadIdx.x == 0) *ns = (now() - start) / n;
}

template <bool STRONG> __global__ void atomics(u64* word, int n, u64* ns) {
    u64 sum = 0, start = 0;
    for (int k = -WARM_UP; k < n; k++) {
        if (k == 0) start = now();
        u64 v;
        if (STRONG) asm volatile("atom.acq_rel.sys.global.add.u64 %0, [%1], %2;" : "=l"(v) : "l"(word), "l"(1 + (sum & 1)) : "memory");
        else asm volatile("atom.relaxed.sys.global.add.u64 %0, [%1], %2;" : "=l"(v) : "l"(word), "l"(1 + (sum & 1)) : "memory");
        sum += v;
    }
    *ns = (now() - start) / n;
    ns[1] = sum;
}

// A barrier of two GPUs, called by one thread of each GPU. EPOCHS: 0 counts in a register, 1 counts
// in memory before the wait, 2 counts in memory after the wait.
template <int EPOCHS> __global__ void barrier(u64* theirs, u64* mine, u64* epochs, int n, u64* ns) {
    u64 start = 0;
    for (int k = 1; k <= n + WARM_UP; k++) {
        if (k == WARM_UP + 1) start = now();
        u64 epoch = EPOCHS ? load_epoch(epochs) + 1 : k;
        fence();
        store_relaxed(theirs, epoch);
        if (EPOCHS == 1) store_epoch(epochs, epoch);
        for (u64 looks = 0; load_acquire(mine) < epoch && looks < MANY_LOOKS; looks++) {}
        if (EPOCHS == 2) store_epoch(epochs, epoch);
    }
    *ns = (now() - start) / n;
}

// Blocks are not equally fast, so the time is measured from the first start of a block to the last
// end.
__device__ __forceinline__ void write_times(u64* ns, u64 start) {
    __syncthreads();
    if (threadIdx.x == 0) {
        ns[2 * blockIdx.x] = start;
        ns[2 * blockIdx.x + 1] = now();
    }
}

__global__ void __launch_bounds__(1024) vector_bandwidth(uint4* to, const uint4* from, size_t vectors, int n, bool far, u64* ns) {
    u64 start = now();
    size_t each = vectors / gridDim.x, first = each * blockIdx.x;
    int mine = blockIdx.x + 1 == gridDim.x ? vectors - first : each;
    for (int k = 0; k < n; k++) copy<BLOCK, uint4>(to + first, from + first, mine * 16, far);
    fence();
    write_times(ns, start);
}

// One thread of each of four warps moves pieces of 16 KiB through two buffers.
__global__ void bulk_bandwidth(char* to, const char* from, size_t bytes, int n, u64* ns) {
    constexpr u32 PIECE = 16384;
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ __align__(8) u64 words[8];
    int warp = threadIdx.x / 32, warps = blockDim.x / 32;
    u64 start = now();
    if (threadIdx.x % 32 == 0) {
        u32 word[2], buffer[2], parity[2] = {0, 0};
        for (int b = 0; b < 2; b++) {
            word[b] = (u32)__cvta_generic_to_shared(&words[2 * warp + b]);
            buffer[b] = (u32)__cvta_generic_to_shared(memory + (2 * warp + b) * PIECE);
            asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(word[b]) : "memory");
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        size_t pieces = bytes / PIECE, owners = (size_t)gridDim.x * warps, me = (size_t)blockIdx.x * warps + warp;
        size_t first = pieces * me / owners, last = pieces * (me + 1) / owners;
        auto load = [&](size_t piece, int b) {
            asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(word[b]), "r"(PIECE) : "memory");
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(buffer[b]), "l"(from + piece * PIECE), "r"(PIECE), "r"(word[b]) : "memory");
        };
        for (int k = 0; k < n; k++) {
            asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
            if (first < last) load(first, 0);
            for (size_t p = first; p < last; p++) {
                int b = (p - first) & 1;
                if (p + 1 < last) {
                    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
                    load(p + 1, b ^ 1);
                }
                u32 done = 0;
                while (!done) asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}" : "=r"(done) : "r"(word[b]), "r"(parity[b]) : "memory");
                parity[b] ^= 1;
                asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to + p * PIECE), "r"(buffer[b]), "r"(PIECE) : "memory");
                asm volatile("cp.async.bulk.commit_group;" ::: "memory");
            }
        }
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        fence();
    }
    write_times(ns, start);
}

struct Gpu {
    char *memory, *source;
    u64 *flags, *ns;
    cudaStream_t stream;
} gpus[2];

constexpr size_t BYTES = 32 << 20;

static double result(int gpu, int blocks = 1) {
    std::vector<u64> values(blocks);
    CHECK(cudaSetDevice(gpu));
    CHECK(cudaGetLastError());
    CHECK(cudaStreamSynchronize(gpus[gpu].stream));
    CHECK(cudaMemcpy(values.data(), gpus[gpu].ns, 8 * blocks, cudaMemcpyDeviceToHost));
    return *std::max_element(values.begin(), values.end()) * 1e-3;
}

// Returns the GB/s of kernels that write their start and end times. `launch` takes the number of
// repetitions; its first call is the warm-up.
template <class L> static double bandwidth(int blocks, L launch) {
    double rate = 0;
    for (int n : {2, 20}) {
        launch(n);
        result(0);
        std::vector<u64> times(2 * blocks);
        CHECK(cudaMemcpy(times.data(), gpus[0].ns, 16 * blocks, cudaMemcpyDeviceToHost));
        u64 first = ~0ull, last = 0;
        for (int b = 0; b < blocks; b++) {
            first = std::min(first, times[2 * b]);
            last = std::max(last, times[2 * b + 1]);
        }
        rate = (double)BYTES * n / (last - first);
    }
    return rate;
}

static void clear() {
    for (int g = 0; g < 2; g++) {
        CHECK(cudaSetDevice(g));
        CHECK(cudaMemset(gpus[g].flags, 0, 4096));
        CHECK(cudaDeviceSynchronize());
    }
}

// Returns the microseconds of the fastest number of threads of the scope. `time` takes this number.
template <int SCOPE, class F> static double fastest(F time) {
    if (SCOPE != BLOCK) return time(SCOPE == THREAD ? 1 : 32);
    double best = 1e9;
    for (int threads : BLOCKS) best = std::min(best, time(threads));
    return best;
}

template <int SCOPE, class T> static double time_copy(bool is_get, int bytes) {
    CHECK(cudaSetDevice(0));
    return fastest<SCOPE>([&](int threads) {
        const int n = 500;
        if (is_get) get<SCOPE, T><<<1, threads, 0, gpus[0].stream>>>(gpus[0].memory, gpus[1].source, bytes, n, gpus[0].ns);
        else put<SCOPE, T><<<1, threads, 0, gpus[0].stream>>>(gpus[1].memory, gpus[0].source, bytes, n, gpus[0].ns);
        return result(0);
    });
}

template <int SCOPE, class T> static double time_ping_pong(int bytes) {
    return fastest<SCOPE>([&](int threads) {
        clear();
        for (int g = 0; g < 2; g++) {
            CHECK(cudaSetDevice(g));
            ping_pong<SCOPE, T><<<1, threads, 0, gpus[g].stream>>>(gpus[1 - g].memory, gpus[g].source, gpus[1 - g].flags, gpus[g].flags, bytes, 300, g == 0, gpus[g].ns);
        }
        result(1);
        return result(0);
    });
}

template <int EPOCHS> static double time_barrier() {
    clear();
    for (int g = 0; g < 2; g++) {
        CHECK(cudaSetDevice(g));
        barrier<EPOCHS><<<1, 1, 0, gpus[g].stream>>>(gpus[1 - g].flags + 64, gpus[g].flags + 64, gpus[g].flags + 256, 1000, gpus[g].ns);
    }
    return std::max(result(0), result(1));
}

int main() {
    for (int g = 0; g < 2; g++) {
        CHECK(cudaSetDevice(g));
        CHECK(cudaDeviceEnablePeerAccess(1 - g, 0));
        CHECK(cudaMalloc(&gpus[g].memory, BYTES));
        CHECK(cudaMalloc(&gpus[g].source, BYTES));
        CHECK(cudaMalloc(&gpus[g].flags, 4096));
        CHECK(cudaMalloc(&gpus[g].ns, 8 * 512));
        CHECK(cudaMemset(gpus[g].source, 1, BYTES));
        CHECK(cudaStreamCreateWithFlags(&gpus[g].stream, cudaStreamNonBlocking));
        CHECK(cudaDeviceSynchronize());
    }
    CHECK(cudaSetDevice(0));
    CHECK(cudaFuncSetAttribute(bulk_copies, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536));
    CHECK(cudaFuncSetAttribute(bulk_bandwidth, cudaFuncAttributeMaxDynamicSharedMemorySize, 131072));

    printf("us; bytes: put and fence thread/warp/block | get thread/warp/block | bulk put, without/with the fence of proxies | bulk get\n");
    for (int bytes : {8, 16, 256, 1024, 4096, 32768}) {
        printf("%6d:", bytes);
        for (bool is_get : {false, true}) {
            if (bytes == 8) printf(" %6.2f %6.2f %6.2f |", time_copy<THREAD, u64>(is_get, 8), time_copy<WARP, u64>(is_get, 8), time_copy<BLOCK, u64>(is_get, 8));
            else printf(" %6.2f %6.2f %6.2f |", time_copy<THREAD, uint4>(is_get, bytes), time_copy<WARP, uint4>(is_get, bytes), time_copy<BLOCK, uint4>(is_get, bytes));
        }
        for (bool is_get : {false, true}) {
            for (bool proxies : {false, true}) {
                if (bytes < 16) continue;
                CHECK(cudaSetDevice(0));
                bulk_copies<<<1, 32, bytes, gpus[0].stream>>>(is_get ? gpus[0].memory : gpus[1].memory, is_get ? gpus[1].source : gpus[0].source, bytes, 500, gpus[0].ns, proxies, !is_get);
                printf(" %6.2f", result(0));
            }
            printf(" |");
        }
        printf("\n");
    }
    printf("put-signal ping-pong, round trip; bytes: thread/warp/block\n");
    printf("%6d: %6.2f %6.2f %6.2f\n", 4, time_ping_pong<THREAD, u32>(4), time_ping_pong<WARP, u32>(4), time_ping_pong<BLOCK, u32>(4));
    for (int bytes : {16, 1024, 4096, 32768}) printf("%6d: %6.2f %6.2f %6.2f\n", bytes, time_ping_pong<THREAD, uint4>(bytes), time_ping_pong<WARP, uint4>(bytes), time_ping_pong<BLOCK, uint4>(bytes));
    CHECK(cudaSetDevice(0));
    atomics<true><<<1, 1, 0, gpus[0].stream>>>(gpus[1].flags + 128, 500, gpus[0].ns);
    double strong = result(0);
    atomics<false><<<1, 1, 0, gpus[0].stream>>>(gpus[1].flags + 128, 500, gpus[0].ns);
    printf("fetching atomic: acquire and release %.2f, relaxed %.2f\n", strong, result(0));
    printf("barrier: epoch in a register %.2f, in memory and counted before the wait %.2f, after it %.2f\n", time_barrier<0>(), time_barrier<1>(), time_barrier<2>());
    printf("GB/s of 32 MiB; blocks: put and get by vectors, put and get by bulk copies\n");
    for (int blocks : {16, 32, 132}) {
        CHECK(cudaSetDevice(0));
        printf("%6d:", blocks);
        for (bool is_get : {false, true}) {
            void* to = is_get ? gpus[0].memory : gpus[1].memory;
            const void* from = is_get ? gpus[1].source : gpus[0].source;
            printf(" %7.1f", bandwidth(blocks, [&](int n) { vector_bandwidth<<<blocks, 1024, 0, gpus[0].stream>>>((uint4*)to, (const uint4*)from, BYTES / 16, n, is_get, gpus[0].ns); }));
        }
        for (bool is_get : {false, true}) {
            void* to = is_get ? gpus[0].memory : gpus[1].memory;
            const void* from = is_get ? gpus[1].source : gpus[0].source;
            printf(" %7.1f", bandwidth(blocks, [&](int n) { bulk_bandwidth<<<blocks, 128, 131072, gpus[0].stream>>>((char*)to, (const char*)from, BYTES, n, gpus[0].ns); }));
        }
        printf("\n");
    }
}
