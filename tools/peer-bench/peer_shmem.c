/* The operations of OpenSHMEM 1.4 (from Open MPI) for the harness. Every buffer is symmetric.
 * harness.c has the timing and the checks. OpenSHMEM has no reduce-scatter. The program ends with
 * _exit after a barrier, because the Debian build of 4.1.4 crashes in shmem_finalize. */
#include "harness.h"

#include <shmem.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { SYNC_WORDS = SHMEM_REDUCE_SYNC_SIZE + SHMEM_COLLECT_SYNC_SIZE + SHMEM_BCAST_SYNC_SIZE + SHMEM_ALLTOALL_SYNC_SIZE };

static struct peer self;
static long *sync_words[2];
static float *reduce_work;
static double *reported; /* one per PE */
static int64_t *mailbox;

/* Two synchronization arrays, used alternately, as the standard advises for collectives in a row.
 * */
static long *next_sync(void)
{
    static int turn;
    return sync_words[turn ^= 1];
}

static size_t count_of(size_t bytes)
{
    return bytes / sizeof(float);
}

static void barrier(size_t bytes, long calls)
{
    (void)bytes;
    for (long i = 0; i < calls; i++)
        shmem_barrier_all();
}

static void all_reduce(size_t bytes, long calls)
{
    for (long i = 0; i < calls; i++)
        shmem_float_sum_to_all(self.dst, self.src, (int)count_of(bytes), 0, 0, self.pes, reduce_work, next_sync());
}

static void all_gather(size_t bytes, long calls)
{
    for (long i = 0; i < calls; i++)
        shmem_fcollect32(self.dst, self.src, count_of(bytes) / (size_t)self.pes, 0, 0, self.pes, next_sync());
}

static void all_gather_v(size_t bytes, long calls)
{
    size_t mine = (size_t)gathered_count((int)count_of(bytes) / self.pes, self.rank);
    for (long i = 0; i < calls; i++)
        shmem_collect32(self.dst, self.src, mine, 0, 0, self.pes, next_sync());
}

static void all_to_all(size_t bytes, long calls)
{
    for (long i = 0; i < calls; i++)
        shmem_alltoall32(self.dst, self.src, count_of(bytes) / (size_t)self.pes, 0, 0, self.pes, next_sync());
}

static void broadcast(size_t bytes, long calls)
{
    for (long i = 0; i < calls; i++)
        shmem_broadcast32(self.dst, self.src, count_of(bytes), 0, 0, 0, self.pes, next_sync());
}

static void put(size_t bytes, long calls)
{
    for (long i = 0; i < calls; i++) {
        shmem_putmem(self.dst, self.src, bytes, 1);
        shmem_quiet();
    }
}

static void put_strided(size_t bytes, long calls)
{
    for (long i = 0; i < calls; i++)
        shmem_float_iput(self.dst, self.src, 2, 2, count_of(bytes), 1);
    shmem_quiet();
}

static void p(size_t bytes, long calls)
{
    (void)bytes;
    for (long i = 0; i < calls; i++)
        shmem_int64_p((int64_t *)self.dst + i % P_ELEMENTS, i % P_ELEMENTS + 1, 1);
    shmem_quiet();
}

static void get(size_t bytes, long calls)
{
    for (long i = 0; i < calls; i++)
        shmem_getmem(self.dst, self.src, bytes, 1);
}

static void fetch_add(size_t bytes, long calls)
{
    (void)bytes;
    for (long i = 0; i < calls; i++)
        (void)shmem_long_atomic_fetch_add(self.dst, 1, 1);
}

static void ping_pong(size_t bytes, long calls)
{
    static int64_t sent;
    (void)bytes;
    for (long i = 0; i < calls; i++) {
        sent++;
        if (self.rank == 0)
            shmem_int64_p(mailbox, sent, 1);
        shmem_int64_wait_until(mailbox, SHMEM_CMP_GE, sent);
        self.bad_pongs += *(volatile int64_t *)mailbox != sent;
        if (self.rank == 1)
            shmem_int64_p(mailbox, sent, 0);
    }
}

static void *symmetric(size_t bytes)
{
    void *memory = shmem_align(4096, bytes);
    if (!memory)
        fail("the symmetric heap has no %zu free bytes; set SHMEM_SYMMETRIC_SIZE to a larger size", bytes);
    memset(memory, 0, bytes);
    return memory;
}

static void prepare(const struct op *op, size_t max_bytes)
{
    size_t work = count_of(max_bytes) / 2 + 1;
    if (work < SHMEM_REDUCE_MIN_WRKDATA_SIZE)
        work = SHMEM_REDUCE_MIN_WRKDATA_SIZE;
    self.src = symmetric(max_bytes);
    self.dst = symmetric(max_bytes);
    if (op->kind == OP_ALL_REDUCE)
        reduce_work = symmetric(work * sizeof *reduce_work);
}

static double max(double mine)
{
    double most = mine;
    shmem_barrier_all(); /* all PEs have read the last values */
    for (int pe = 0; pe < self.pes; pe++)
        shmem_double_p(&reported[self.rank], mine, pe);
    shmem_barrier_all();
    for (int pe = 0; pe < self.pes; pe++)
        most = reported[pe] > most ? reported[pe] : most;
    return most;
}

static const struct op ops[] = {
    {"barrier", OP_BARRIER, barrier},
    {"all-reduce", OP_ALL_REDUCE, all_reduce},
    {"all-gather", OP_ALL_GATHER, all_gather},
    {"all-gather-v", OP_ALL_GATHER_V, all_gather_v},
    {"all-to-all", OP_ALL_TO_ALL, all_to_all},
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
    int major, minor;
    char vendor[SHMEM_MAX_NAME_LEN];

    shmem_init();
    self = (struct peer){.name = "openshmem", .ops = ops, .prepare = prepare, .barrier = shmem_barrier_all, .max = max};
    self.rank = shmem_my_pe();
    self.pes = shmem_n_pes();
    shmem_info_get_version(&major, &minor);
    shmem_info_get_name(vendor);
    vendor[strcspn(vendor, ",\"\\\n")] = 0;
    snprintf(self.version, sizeof self.version, "OpenSHMEM %d.%d of %.200s", major, minor, vendor);

    for (int k = 0; k < 2; k++) {
        sync_words[k] = shmem_malloc(SYNC_WORDS * sizeof(long));
        for (int i = 0; i < SYNC_WORDS; i++)
            sync_words[k][i] = SHMEM_SYNC_VALUE;
    }
    reported = shmem_malloc((size_t)self.pes * sizeof *reported);
    mailbox = shmem_malloc(64);
    *mailbox = 0;
    _exit(harness_main(&self, argc, argv));
}
