// Puts this PE's number into `dst` of the next PE, signals that PE, and waits for the signal of the
// previous PE. Runs on one thread.
#include "peerweave.cuh"

using namespace peerweave;

extern "C" __global__ void ring_cpp(const Context* ctx, SymSlice<int> dst, SymSlice<u64> arrived) {
    const u32 me = ctx->my_pe, n = ctx->n_pes;
    p(ctx, dst, int(me), (me + 1) % n);
    signal_set(ctx, arrived, 1, (me + 1) % n);
    signal_wait_at_least(ctx, arrived, 1, (me + n - 1) % n);
}
