// One-sided operations between two GPUs by NVSHMEM's device functions, in the rows of
// `check device --part bench` and of one_sided.cu. A block has the fastest of 128, 256, 512 and
// 1024 threads. With NVSHMEM 3.8 or later and NVSHMEM_TMA_POLICY=ENABLE, the rows "lent" give NVSHMEM
// shared memory, so that it may make bulk copies.
//
// The program starts both PEs itself. N is the folder of NVSHMEM's wheel:
//   nvcc -std=c++17 -O3 -arch=sm_90 -rdc=true -I N/include
//     -o nvshmem_one_sided nvshmem_one_sided.cu
//     N/lib/libnvshmem_device.a -Xlinker N/lib/libnvshmem_host.so.3 -lcuda
//   NVSHMEM_DISABLE_NVLS=1 ./nvshmem_one_sided
#include <cuda_runtime.h>
#include <nvshmem.h>
#include <nvshmemx.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

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

using u64 = unsigned long long;

enum Scope { THREAD, WARP, BLOCK };
constexpr int WARM_UP = 20;
constexpr int SHARED_BYTES = 64 << 10;
constexpr size_t BYTES = 32 << 20;

#if NVSHMEM_VENDOR_MAJOR_VERSION > 3 || NVSHMEM_VENDOR_MINOR_VERSION >= 8
#define CAN_LEND 1
#else
#define CAN_LEND 0
#endif

__device__ __forceinline__ u64 now() { u64 t; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)); return t; }

template <int SCOPE> __device__ __forceinline__ bool leads() { return SCOPE == THREAD || threadIdx.x == 0; }
template <int SCOPE> __device__ __forceinline__ void sync() {
    if (SCOPE == WARP) __syncwarp();
    if (SCOPE == BLOCK) __syncthreads();
}

extern __shared__ __align__(1024) unsigned char memory[];

__device__ __forceinline__ void lend(int bytes) {
#if CAN_LEND
    if (bytes) nvshmemx_give_smem(memory, bytes);
    __syncthreads();
#endif
}

__device__ __forceinline__ void take_back(int bytes) {
#if CAN_LEND
    __syncthreads();
    if (bytes) nvshmemx_release_smem();
#endif
}

// As in NVSHMEM's own latency tests: one thread makes non-blocking puts, groups make blocking puts,
// and gets are followed by a quiet. Without a quiet, repeated gets would return data from the
// cache.
template <int SCOPE> __global__ void __launch_bounds__(1024) put(char* to, const char* from, size_t bytes, int n, int lent, u64* ns) {
    lend(lent);
    u64 start = 0;
    for (int k = -WARM_UP; k < n; k++) {
        if (k == 0) start = now();
        if (SCOPE == THREAD && threadIdx.x == 0) nvshmem_putmem_nbi(to, from, bytes, 1);
        if (SCOPE == WARP) nvshmemx_putmem_warp(to, from, bytes, 1);
        if (SCOPE == BLOCK) nvshmemx_putmem_block(to, from, bytes, 1);
        sync<SCOPE>();
        if (threadIdx.x == 0) nvshmem_quiet();
        sync<SCOPE>();
    }
    if (threadIdx.x == 0) *ns = (now() - start) / n;
    take_back(lent);
}

template <int SCOPE> __global__ void __launch_bounds__(1024) get(char* to, const char* from, size_t bytes, int n, int lent, u64* ns) {
    lend(lent);
    u64 start = 0;
    for (int k = -WARM_UP; k < n; k++) {
        if (k == 0) start = now();
        if (SCOPE == THREAD && threadIdx.x == 0) nvshmem_getmem_nbi(to, from, bytes, 1);
        if (SCOPE == WARP) nvshmemx_getmem_nbi_warp(to, from, bytes, 1);
        if (SCOPE == BLOCK) nvshmemx_getmem_nbi_block(to, from, bytes, 1);
        sync<SCOPE>();
        if (threadIdx.x == 0) nvshmem_quiet();
        sync<SCOPE>();
    }
    if (threadIdx.x == 0) *ns = (now() - start) / n;
    take_back(lent);
}

__global__ void p_and_quiet(u64* to, int n, u64* ns) {
    u64 start = 0;
    for (int k = -WARM_UP; k < n; k++) {
        if (k == 0) start = now();
        nvshmem_uint64_p((uint64_t*)to, k, 1);
        nvshmem_quiet();
    }
    *ns = (now() - start) / n;
}

__global__ void g(const u64* from, int n, u64* ns) {
    u64 start = 0, sum = 0;
    for (int k = -WARM_UP; k < n; k++) {
        if (k == 0) start = now();
        sum += nvshmem_uint64_g((const uint64_t*)from + (sum & 1), 1);
        nvshmem_quiet();
    }
    ns[1] = sum;
    *ns = (now() - start) / n;
}

template <int SCOPE> __global__ void __launch_bounds__(1024) ping_pong(char* to, const char* from, uint64_t* flag, size_t bytes, int n, int me, int lent, u64* ns) {
    lend(lent);
    u64 start = 0;
    for (int k = 1; k <= n + WARM_UP; k++) {
        if (k == WARM_UP + 1) start = now();
        for (int half = 0; half < 2; half++) {
            if (half == me) {
                if (SCOPE == THREAD && threadIdx.x == 0) nvshmem_putmem_signal_nbi(to, from, bytes, flag, k, NVSHMEM_SIGNAL_SET, 1 - me);
                if (SCOPE == WARP) nvshmemx_putmem_signal_nbi_warp(to, from, bytes, flag, k, NVSHMEM_SIGNAL_SET, 1 - me);
                if (SCOPE == BLOCK) nvshmemx_putmem_signal_nbi_block(to, from, bytes, flag, k, NVSHMEM_SIGNAL_SET, 1 - me);
            } else {
                if (leads<SCOPE>() && threadIdx.x == 0) nvshmem_uint64_wait_until(flag, NVSHMEM_CMP_GE, k);
                sync<SCOPE>();
            }
        }
    }
    if (threadIdx.x == 0) {
        nvshmem_quiet();
        *ns = (now() - start) / n;
    }
    take_back(lent);
}

__global__ void atomics(uint64_t* word, int n, u64* ns) {
    u64 sum = 0, start = 0;
    for (int k = -WARM_UP; k < n; k++) {
        if (k == 0) start = now();
        sum += nvshmem_uint64_atomic_fetch_add(word, 1 + (sum & 1), 1);
    }
    ns[1] = sum;
    *ns = (now() - start) / n;
}

template <int SCOPE> __global__ void barriers(int n, u64* ns) {
    u64 start = 0;
    for (int k = -WARM_UP; k < n; k++) {
        if (k == 0) start = now();
        if (SCOPE == THREAD) nvshmem_barrier(NVSHMEM_TEAM_WORLD);
        if (SCOPE == WARP) nvshmemx_barrier_warp(NVSHMEM_TEAM_WORLD);
        if (SCOPE == BLOCK) nvshmemx_barrier_block(NVSHMEM_TEAM_WORLD);
    }
    if (threadIdx.x == 0) *ns = (now() - start) / n;
}

template <bool GET> __global__ void __launch_bounds__(1024) bandwidth(char* to, const char* from, size_t bytes, int n, int lent, u64* ns) {
    lend(lent);
    u64 start = now();
    size_t each = bytes / gridDim.x / 16 * 16, first = each * blockIdx.x;
    size_t mine = blockIdx.x + 1 == gridDim.x ? bytes - first : each;
    for (int k = 0; k < n; k++) {
        if (GET) nvshmemx_getmem_nbi_block(to + first, from + first, mine, 1);
        else nvshmemx_putmem_nbi_block(to + first, from + first, mine, 1);
        // Without a quiet, repeated gets would return data from the cache.
        if (GET || k + 1 == n) {
            __syncthreads();
            if (threadIdx.x == 0) nvshmem_quiet();
            __syncthreads();
        }
    }
    if (threadIdx.x == 0) {
        ns[2 * blockIdx.x] = start;
        ns[2 * blockIdx.x + 1] = now();
    }
    take_back(lent);
}

static int me;
static char *target, *source;
static uint64_t *flags;
static u64* ns;
static const std::vector<int> BLOCKS = {128, 256, 512, 1024};

static u64 first_word() {
    u64 value;
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(&value, ns, 8, cudaMemcpyDeviceToHost));
    return value;
}

static std::vector<int> shapes(int scope) { return scope == THREAD ? std::vector<int>{1} : scope == WARP ? std::vector<int>{32} : BLOCKS; }

// Returns the microseconds of the fastest block. Only PE 0 calls this function.
template <class L> static double fastest(int scope, L launch) {
    double best = 1e9;
    for (int threads : shapes(scope)) {
        launch(threads);
        best = std::min(best, first_word() * 1e-3);
    }
    return best;
}

template <int SCOPE> static double time_copy(bool is_get, size_t bytes, int lent) {
    CHECK(cudaFuncSetAttribute(put<SCOPE>, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES));
    CHECK(cudaFuncSetAttribute(get<SCOPE>, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES));
    return fastest(SCOPE, [&](int threads) {
        if (is_get) get<SCOPE><<<1, threads, lent>>>(target, source, bytes, 500, lent, ns);
        else put<SCOPE><<<1, threads, lent>>>(target, source, bytes, 500, lent, ns);
    });
}

static void copies(int lent) {
    if (me != 0) return;
    printf("%sbytes: put and quiet thread/warp/block | get and quiet thread/warp/block (us)\n", lent ? "lent; " : "");
    for (size_t bytes : {8, 16, 256, 1024, 4096, 32768}) {
        printf("%6zu:", bytes);
        for (bool is_get : {false, true}) {
            printf(" %6.2f %6.2f %6.2f |", time_copy<THREAD>(is_get, bytes, lent), time_copy<WARP>(is_get, bytes, lent), time_copy<BLOCK>(is_get, bytes, lent));
        }
        printf("\n");
    }
}

template <int SCOPE> static double time_ping_pong(size_t bytes, int lent) {
    CHECK(cudaFuncSetAttribute(ping_pong<SCOPE>, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES));
    double best = 1e9;
    for (int threads : shapes(SCOPE)) {
        CHECK(cudaMemset(flags, 0, 64));
        CHECK(cudaDeviceSynchronize());
        nvshmem_barrier_all();
        ping_pong<SCOPE><<<1, threads, lent>>>(target, source, flags, bytes, 300, me, lent, ns);
        best = std::min(best, first_word() * 1e-3);
        nvshmem_barrier_all();
    }
    return best;
}

static void ping_pongs(int lent) {
    if (me == 0) printf("%sput-signal ping-pong, round trip; bytes: thread/warp/block (us)\n", lent ? "lent; " : "");
    for (size_t bytes : {4, 16, 1024, 4096, 32768}) {
        double thread = time_ping_pong<THREAD>(bytes, lent), warp = time_ping_pong<WARP>(bytes, lent), block = time_ping_pong<BLOCK>(bytes, lent);
        if (me == 0) printf("%6zu: %6.2f %6.2f %6.2f\n", bytes, thread, warp, block);
    }
}

template <int SCOPE> static double time_barrier() {
    double best = 1e9;
    for (int threads : shapes(SCOPE)) {
        nvshmem_barrier_all();
        barriers<SCOPE><<<1, threads>>>(1000, ns);
        best = std::min(best, first_word() * 1e-3);
    }
    return best;
}

template <bool GET> static double rate(int blocks, int lent) {
    CHECK(cudaFuncSetAttribute(bandwidth<GET>, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES));
    double best = 0;
    for (int threads : {512, 1024}) {
        for (int n : {2, 20}) {
            bandwidth<GET><<<blocks, threads, lent>>>(target, source, BYTES, n, lent, ns);
            first_word();
            std::vector<u64> times(2 * blocks);
            CHECK(cudaMemcpy(times.data(), ns, 16 * blocks, cudaMemcpyDeviceToHost));
            u64 first = ~0ull, last = 0;
            for (int b = 0; b < blocks; b++) {
                first = std::min(first, times[2 * b]);
                last = std::max(last, times[2 * b + 1]);
            }
            if (n == 20) best = std::max(best, (double)BYTES * n / (last - first));
        }
    }
    return best;
}

// Ends the program if the target of this PE differs from the source of PE 0 after a put.
static void verify() {
    CHECK(cudaMemset(target, 0, BYTES));
    CHECK(cudaDeviceSynchronize());
    nvshmem_barrier_all();
    if (me == 0) {
        put<BLOCK><<<1, 256>>>(target, source, 32768, 1, 0, ns);
        first_word();
    }
    nvshmem_barrier_all();
    if (me == 1) {
        std::vector<unsigned char> found(32768);
        CHECK(cudaMemcpy(found.data(), target, found.size(), cudaMemcpyDeviceToHost));
        for (unsigned char byte : found)
            if (byte != 0x11) {
                printf("PE 1: found %#x after a put, expected 0x11\n", byte);
                exit(1);
            }
    }
    nvshmem_barrier_all();
}

static int pe(nvshmemx_uniqueid_t* id, volatile int* has_id) {
    CHECK(cudaSetDevice(me));
    CHECK(cudaFree(0));
    if (me == 0) {
        nvshmemx_get_uniqueid(id);
        __sync_synchronize();
        *has_id = 1;
    }
    while (!*has_id) usleep(1000);
    __sync_synchronize();
    nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
    nvshmemx_set_attr_uniqueid_args(me, 2, id, &attributes);
    if (nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attributes) != 0) return 1;
    target = (char*)nvshmem_malloc(BYTES);
    source = (char*)nvshmem_malloc(BYTES);
    flags = (uint64_t*)nvshmem_malloc(4096);
    CHECK(cudaMalloc(&ns, 8 * 512));
    CHECK(cudaMemset(source, 0x11 * (me + 1), BYTES));
    CHECK(cudaMemset(flags, 0, 4096));
    CHECK(cudaDeviceSynchronize());
    verify();
    const char* policy = getenv("NVSHMEM_TMA_POLICY");
    std::vector<int> lents = {0};
    if (CAN_LEND && policy && policy[0] != 'D') lents.push_back(SHARED_BYTES);
    if (me == 0) printf("NVSHMEM %d.%d.%d, NVSHMEM_TMA_POLICY %s\n", NVSHMEM_VENDOR_MAJOR_VERSION, NVSHMEM_VENDOR_MINOR_VERSION, NVSHMEM_VENDOR_PATCH_VERSION, policy ? policy : "is not set");
    for (int lent : lents) {
        copies(lent);
        nvshmem_barrier_all();
        ping_pongs(lent);
        fflush(stdout);
    }
    if (me == 0) {
        p_and_quiet<<<1, 1>>>((u64*)target, 500, ns);
        double p = first_word() * 1e-3;
        g<<<1, 1>>>((u64*)source, 500, ns);
        double found = first_word() * 1e-3;
        atomics<<<1, 1>>>(flags + 128, 500, ns);
        printf("p and quiet %.2f, g and quiet %.2f, fetching atomic %.2f (us)\n", p, found, first_word() * 1e-3);
    }
    nvshmem_barrier_all();
    double thread = time_barrier<THREAD>(), warp = time_barrier<WARP>(), block = time_barrier<BLOCK>();
    if (me == 0) {
        printf("barrier of 2 GPUs: thread %.2f, warp %.2f, block %.2f (us)\n", thread, warp, block);
        for (int lent : lents) {
            printf("%sGB/s of 32 MiB; blocks: put get\n", lent ? "lent; " : "");
            for (int blocks : {16, 32, 132}) printf("%6d: %7.1f %7.1f\n", blocks, rate<false>(blocks, lent), rate<true>(blocks, lent));
        }
    }
    nvshmem_barrier_all();
    fflush(stdout);
    nvshmem_free(target);
    nvshmem_free(source);
    nvshmem_free(flags);
    nvshmem_finalize();
    return 0;
}

int main() {
    struct Shared {
        nvshmemx_uniqueid_t id;
        volatile int has_id;
    };
    auto* shared = (Shared*)mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared->id = NVSHMEMX_UNIQUEID_INITIALIZER;
    pid_t children[2];
    for (me = 0; me < 2; me++) {
        children[me] = fork();
        if (children[me] == 0) exit(pe(&shared->id, &shared->has_id));
    }
    int failed = 0;
    for (pid_t child : children) {
        int status;
        waitpid(child, &status, 0);
        failed |= status != 0;
    }
    return failed;
}
