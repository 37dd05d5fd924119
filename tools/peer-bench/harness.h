/* The parts that both peer programs share: options, rewriting of inputs, timing, checking of
 * values, output. The calls of MPI and OpenSHMEM are in peer_mpi.c and peer_shmem.c.
 * Invariant: a timed section contains calls of the measured library and nothing else. */
#ifndef PEER_BENCH_HARNESS_H
#define PEER_BENCH_HARNESS_H

#include <stddef.h>
#include <stdint.h>

enum op_kind {
    OP_BARRIER,
    OP_ALL_REDUCE,
    OP_REDUCE_SCATTER,
    OP_ALL_GATHER,
    OP_ALL_GATHER_V, /* rank r contributes all of its part if r is even, otherwise a third less */
    OP_ALL_TO_ALL,
    OP_ALL_TO_ALL_V, /* to a rank at an odd distance on the ring a third less than to a rank at an even distance */
    OP_BROADCAST,
    OP_PUT,       /* PE 0 writes into the memory of PE 1; each call is complete at the target */
    OP_PUT_STRIDED, /* PE 0 writes every other element to every other element of PE 1; complete at the end of a batch */
    OP_GET,       /* PE 0 reads from the memory of PE 1; each call is complete */
    OP_P,         /* PE 0 writes P_ELEMENTS elements of PE 1 in turn, the value n to the nth; complete at the end of a batch */
    OP_FETCH_ADD, /* PE 0 adds to one 64-bit word of PE 1 */
    OP_PING_PONG, /* PE 0 and PE 1 exchange a 64-bit sequence number; half a round trip is reported */
};

enum { P_ELEMENTS = 512 };

struct op {
    const char *name;
    enum op_kind kind;
    /* Makes `calls` calls in a row, each with `bytes` bytes. */
    void (*run)(size_t bytes, long calls);
};

/* The interface of one library to the harness. `ops` ends with an entry whose name is NULL. */
struct peer {
    const char *name;
    char version[256];
    int rank, pes;
    const struct op *ops;

    /* This PE's input, and the memory of its result. For OP_FETCH_ADD, `dst` is the counter.
     * `prepare` sets both pointers. */
    void *src, *dst;
    void (*prepare)(const struct op *op, size_t max_bytes);

    /* Makes data that peers wrote into `dst` readable with plain loads. Called after a barrier. May
     * be NULL. */
    void (*settle)(void);
    long bad_pongs; /* number of sequence numbers that OP_PING_PONG did not expect */
    void (*barrier)(void);
    double (*max)(double);
};

/* Returns the number of elements that `rank` contributes to an all-gather-v with parts of at most
 * `part` elements. */
int gathered_count(int part, int rank);

/* Returns the number of elements that a rank sends in an all-to-all-v to the rank at this distance
 * on the ring of `pes` ranks. */
int exchanged_count(int part, int distance, int pes);

/* Runs the operation that the command line names. PE 0 prints JSON lines. Returns the exit status. */
int harness_main(struct peer *peer, int argc, char **argv);

/* Prints `what` and ends the process. Called for errors after which no measurement is valid. */
_Noreturn void fail(const char *what, ...);

#endif
