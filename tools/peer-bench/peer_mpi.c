/* The operations of Open MPI for the harness: collectives on private buffers, and one-sided calls on
 * an allocated window, which corresponds to a symmetric allocation. harness.c has the timing and the
 * checks. */
#include "harness.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct peer self;
static MPI_Win window = MPI_WIN_NULL;

static int count_of(size_t bytes)
{
    return (int)(bytes / sizeof(float));
}

static void barrier(size_t bytes, long calls)
{
    (void)bytes;
    for (long i = 0; i < calls; i++)
        MPI_Barrier(MPI_COMM_WORLD);
}

static void all_reduce(size_t bytes, long calls)
{
    for (long i = 0; i < calls; i++)
        MPI_Allreduce(self.src, self.dst, count_of(bytes), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void reduce_scatter(size_t bytes, long calls)
{
    for (long i = 0; i < calls; i++)
        MPI_Reduce_scatter_block(self.src, self.dst, count_of(bytes) / self.pes, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

/* Has the same result as reduce-scatter, but calls MPI_Reduce_scatter, which takes a count for each
 * rank. Open MPI uses different algorithms for MPI_Reduce_scatter. */
static void reduce_scatter_counts(size_t bytes, long calls)
{
    int counts[1024];
    if (self.pes > 1024)
        fail("reduce-scatter-counts: %d PEs, expected at most 1024", self.pes);
    for (int r = 0; r < self.pes; r++)
        counts[r] = count_of(bytes) / self.pes;
    for (long i = 0; i < calls; i++)
        MPI_Reduce_scatter(self.src, self.dst, counts, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void all_gather(size_t bytes, long calls)
{
    int block = count_of(bytes) / self.pes;
    for (long i = 0; i < calls; i++)
        MPI_Allgather(self.src, block, MPI_FLOAT, self.dst, block, MPI_FLOAT, MPI_COMM_WORLD);
}

static void all_gather_v(size_t bytes, long calls)
{
    int counts[1024], offsets[1024], block = count_of(bytes) / self.pes;
    if (self.pes > 1024)
        fail("all-gather-v: %d PEs, expected at most 1024", self.pes);
    for (int r = 0, at = 0; r < self.pes; at += counts[r++]) {
        counts[r] = gathered_count(block, r);
        offsets[r] = at;
    }
    for (long i = 0; i < calls; i++)
        MPI_Allgatherv(self.src, counts[self.rank], MPI_FLOAT, self.dst, counts, offsets, MPI_FLOAT, MPI_COMM_WORLD);
}

static void all_to_all_v(size_t bytes, long calls)
{
    /* Between any two ranks the counts are the same in both directions. */
    int counts[1024], offsets[1024], block = count_of(bytes) / self.pes;
    if (self.pes > 1024)
        fail("all-to-all-v: %d PEs, expected at most 1024", self.pes);
    for (int r = 0, at = 0; r < self.pes; at += counts[r++]) {
        counts[r] = exchanged_count(block, (r + self.pes - self.rank) % self.pes, self.pes);
        offsets[r] = at;
    }
    for (long i = 0; i < calls; i++)
        MPI_Alltoallv(self.src, counts, offsets, MPI_FLOAT, self.dst, counts, offsets, MPI_FLOAT, MPI_COMM_WORLD);
}

static void all_to_all(size_t bytes, long calls)
{
    int block = count_of(bytes) / self.pes;
    for (long i = 0; i < calls; i++)
        MPI_Alltoall(self.src, block, MPI_FLOAT, self.dst, block, MPI_FLOAT, MPI_COMM_WORLD);
}

static void broadcast(size_t bytes, long calls)
{
    for (long i = 0; i < calls; i++)
        MPI_Bcast(self.src, count_of(bytes), MPI_FLOAT, 0, MPI_COMM_WORLD);
}

static void put(size_t bytes, long calls)
{
    for (long i = 0; i < calls; i++) {
        MPI_Put(self.src, (int)bytes, MPI_BYTE, 1, 0, (int)bytes, MPI_BYTE, window);
        MPI_Win_flush(1, window);
    }
}

static void put_strided(size_t bytes, long calls)
{
    static MPI_Datatype every_other = MPI_DATATYPE_NULL;
    if (every_other == MPI_DATATYPE_NULL) {
        MPI_Type_vector(count_of(bytes), 1, 2, MPI_FLOAT, &every_other);
        MPI_Type_commit(&every_other);
    }
    for (long i = 0; i < calls; i++)
        MPI_Put(self.src, 1, every_other, 1, 0, 1, every_other, window);
    MPI_Win_flush(1, window);
}

static void p(size_t bytes, long calls)
{
    /* A source must not change before the flush, and MPI does not order puts to one address. */
    static int64_t numbers[P_ELEMENTS];
    (void)bytes;
    for (int i = 0; i < P_ELEMENTS; i++)
        numbers[i] = i + 1;
    for (long i = 0; i < calls; i++)
        MPI_Put(&numbers[i % P_ELEMENTS], 1, MPI_INT64_T, 1, i % P_ELEMENTS * 8, 1, MPI_INT64_T, window);
    MPI_Win_flush(1, window);
}

static void get(size_t bytes, long calls)
{
    for (long i = 0; i < calls; i++) {
        MPI_Get(self.dst, (int)bytes, MPI_BYTE, 1, 0, (int)bytes, MPI_BYTE, window);
        MPI_Win_flush(1, window);
    }
}

static void fetch_add(size_t bytes, long calls)
{
    int64_t one = 1, before;
    (void)bytes;
    for (long i = 0; i < calls; i++) {
        MPI_Fetch_and_op(&one, &before, MPI_INT64_T, 1, 0, MPI_SUM, window);
        MPI_Win_flush(1, window);
    }
}

static void ping_pong(size_t bytes, long calls)
{
    static int64_t sent;
    (void)bytes;
    for (long i = 0; i < calls; i++) {
        int64_t received = 0;
        sent++;
        if (self.rank == 0)
            MPI_Send(&sent, 1, MPI_INT64_T, 1, 0, MPI_COMM_WORLD);
        MPI_Recv(&received, 1, MPI_INT64_T, 1 - self.rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (self.rank == 1)
            MPI_Send(&sent, 1, MPI_INT64_T, 0, 0, MPI_COMM_WORLD);
        self.bad_pongs += received != sent;
    }
}

static void *private_buffer(size_t bytes)
{
    void *buffer = NULL;
    if (posix_memalign(&buffer, 4096, bytes))
        fail("cannot allocate %zu bytes", bytes);
    memset(buffer, 0, bytes);
    return buffer;
}

static void prepare(const struct op *op, size_t max_bytes)
{
    self.src = private_buffer(max_bytes);
    self.dst = op->kind == OP_BROADCAST ? self.src : private_buffer(max_bytes);
    if (op->kind < OP_PUT || op->kind == OP_PING_PONG)
        return;
    void *shared;
    MPI_Win_allocate((MPI_Aint)max_bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &shared, &window);
    memset(shared, 0, max_bytes);
    MPI_Win_lock_all(MPI_MODE_NOCHECK, window);
    if (op->kind == OP_GET)
        self.src = shared;
    else
        self.dst = shared;
}

static void settle(void)
{
    if (window != MPI_WIN_NULL)
        MPI_Win_sync(window);
}

static void plain_barrier(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
}

static double max(double mine)
{
    double all;
    MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return all;
}

static const struct op ops[] = {
    {"barrier", OP_BARRIER, barrier},
    {"all-reduce", OP_ALL_REDUCE, all_reduce},
    {"reduce-scatter", OP_REDUCE_SCATTER, reduce_scatter},
    {"reduce-scatter-counts", OP_REDUCE_SCATTER, reduce_scatter_counts},
    {"all-gather", OP_ALL_GATHER, all_gather},
    {"all-gather-v", OP_ALL_GATHER_V, all_gather_v},
    {"all-to-all", OP_ALL_TO_ALL, all_to_all},
    {"all-to-all-v", OP_ALL_TO_ALL_V, all_to_all_v},
    {"broadcast", OP_BROADCAST, broadcast},
    {"put", OP_PUT, put},
    {"put-strided", OP_PUT_STRIDED, put_strided},
    {"get", OP_GET, get},
    {"p", OP_P, p},
    {"fetch-add", OP_FETCH_ADD, fetch_add},
    {"ping-pong", OP_PING_PONG, ping_pong},
    {0},
};

int main(int argc, char **argv)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;

    MPI_Init(&argc, &argv);
    self = (struct peer){.name = "openmpi", .ops = ops, .prepare = prepare, .settle = settle, .barrier = plain_barrier, .max = max};
    MPI_Comm_rank(MPI_COMM_WORLD, &self.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &self.pes);
    MPI_Get_library_version(version, &length);
    version[strcspn(version, ",\"\\\n")] = 0;
    snprintf(self.version, sizeof self.version, "%s", version);

    int status = harness_main(&self, argc, argv);
    if (window != MPI_WIN_NULL) {
        MPI_Win_unlock_all(window);
        MPI_Win_free(&window);
    }
    MPI_Finalize();
    return status;
}
