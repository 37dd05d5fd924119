/* What the two peer programs share: options, rewriting of inputs, timing, checking of values, output.
 * Not here: any call of MPI or OpenSHMEM, those are in peer_mpi.c and peer_shmem.c.
 * Invariant: the library under measurement runs inside a timed section, and nothing else does. */
#ifndef PEER_BENCH_HARNESS_H
#define PEER_BENCH_HARNESS_H

#include <stddef.h>
#include <stdint.h>

enum op_kind {
    OP_BARRIER,
    OP_ALL_REDUCE,
    OP_REDUCE_SCATTER,
    OP_ALL_GATHER,
    OP_ALL_TO_ALL,
    OP_BROADCAST,
    OP_PUT,       /* PE 0 into the memory of PE 1, each call completed at the target */
    OP_GET,       /* PE 0 from the memory of PE 1, each call completed */
    OP_FETCH_ADD, /* PE 0 on one 64-bit word of PE 1 */
    OP_PING_PONG, /* PE 0 and PE 1, one 64-bit sequence number; reported is half a round trip */
};

struct op {
    const char *name;
    enum op_kind kind;
    /* `calls` calls on messages of `bytes` bytes, back to back. */
    void (*run)(size_t bytes, long calls);
};

/* One library, as the harness sees it. `ops` ends with an entry whose name is NULL. */
struct peer {
    const char *name;
    char version[256];
    int rank, pes;
    const struct op *ops;

    /* Set by `prepare`: where this PE's input lies, where its result arrives, and for OP_FETCH_ADD the counter in `dst`. */
    void *src, *dst;
    void (*prepare)(const struct op *op, size_t max_bytes);

    /* Makes what peers wrote into `dst` readable with plain loads (a barrier has been passed before). May be NULL. */
    void (*settle)(void);
    long bad_pongs; /* OP_PING_PONG counts here what came out of sequence */
    void (*barrier)(void);
    double (*max)(double);
};

/* Runs what the command line asks for and prints JSON lines on PE 0. Returns the exit status. */
int harness_main(struct peer *peer, int argc, char **argv);

/* Prints `what` and ends the process; for conditions after which no measurement can be trusted. */
_Noreturn void fail(const char *what, ...);

#endif
