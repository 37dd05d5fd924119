/* Options, rewriting, timing, checking and output; see harness.h. */
#define _GNU_SOURCE
#include "harness.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_BATCHES = 101, MAX_SIZES = 64, MIN_CALLS = 3, MAX_CALLS = 2000000 };

struct options {
    const char *op;
    size_t sizes[MAX_SIZES];
    int size_count;
    int batches;
    double batch_seconds;
    long calls; /* per batch; 0 = as many as run in the duration of a batch */
    bool dirty;
    long long start_ns; /* CLOCK_REALTIME when the launcher was started, for `init` */
};

static struct peer *peer;

void fail(const char *what, ...)
{
    va_list args;
    va_start(args, what);
    fprintf(stderr, "peer-bench: ");
    vfprintf(stderr, what, args);
    fprintf(stderr, "\n");
    va_end(args);
    _exit(2);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double clock_cost_ns(void)
{
    double start = seconds(), end = start;
    for (int i = 0; i < 10000; i++)
        end = seconds();
    return (end - start) / 10000 * 1e9;
}

/* ---- Values -------------------------------------------------------------------------------------
 * Small integers, so that every sum is exact in f32. Values repeat after 17 elements. 17 is prime,
 * so a block that is shifted by a power of two has different values. Values depend on `round`, so
 * that the result of an earlier call is wrong. */

static inline float value(uint32_t rank, uint32_t index, uint32_t round)
{
    return (float)((index + 7 * rank + round) % 17);
}

static bool is_source(enum op_kind kind)
{
    switch (kind) {
    case OP_BROADCAST:
    case OP_PUT:
    case OP_PUT_STRIDED:
        return peer->rank == 0;
    case OP_GET:
        return peer->rank == 1;
    case OP_BARRIER:
    case OP_P:
    case OP_FETCH_ADD:
    case OP_PING_PONG:
        return false;
    default:
        return true;
    }
}

static size_t source_bytes(enum op_kind kind, size_t bytes)
{
    if (kind == OP_PUT_STRIDED)
        return 2 * bytes;
    return kind == OP_ALL_GATHER || kind == OP_ALL_GATHER_V ? bytes / (size_t)peer->pes : bytes;
}

int gathered_count(int part, int rank)
{
    return rank % 2 ? part - part / 3 : part;
}

int exchanged_count(int part, int distance, int pes)
{
    int near = distance < pes - distance ? distance : pes - distance;
    return near % 2 ? part - part / 3 : part;
}

/* Rewrites the whole input with ordinary stores, so that its lines are modified in this PE's cache,
 * as after a computation. */
static void rewrite(enum op_kind kind, size_t bytes, uint32_t round)
{
    if (!is_source(kind))
        return;
    float *input = peer->src;
    uint32_t count = (uint32_t)(source_bytes(kind, bytes) / sizeof *input);
    for (uint32_t i = 0; i < count; i++)
        input[i] = value((uint32_t)peer->rank, i, round);
}

static long count_wrong(enum op_kind kind, size_t bytes, uint32_t round)
{
    const float *result = peer->dst;
    uint32_t pes = (uint32_t)peer->pes, rank = (uint32_t)peer->rank;
    uint32_t count = (uint32_t)(bytes / sizeof *result), block = count / pes;
    long wrong = 0;

    if (peer->settle)
        peer->settle();
    switch (kind) {
    case OP_BARRIER:
    case OP_P:
    case OP_FETCH_ADD:
        return 0; /* these operations have their own checks */
    case OP_PING_PONG:
        return peer->bad_pongs;
    case OP_ALL_REDUCE:
    case OP_REDUCE_SCATTER: {
        uint32_t first = kind == OP_REDUCE_SCATTER ? rank * block : 0;
        uint32_t length = kind == OP_REDUCE_SCATTER ? block : count;
        for (uint32_t i = 0; i < length; i++) {
            float sum = 0;
            for (uint32_t r = 0; r < pes; r++)
                sum += value(r, first + i, round);
            wrong += result[i] != sum;
        }
        return wrong;
    }
    case OP_ALL_GATHER:
    case OP_ALL_TO_ALL: {
        uint32_t first = kind == OP_ALL_TO_ALL ? rank * block : 0;
        for (uint32_t r = 0; r < pes; r++)
            for (uint32_t i = 0; i < block; i++)
                wrong += result[r * block + i] != value(r, first + i, round);
        return wrong;
    }
    case OP_ALL_GATHER_V:
        for (uint32_t r = 0, at = 0; r < pes; r++)
            for (uint32_t i = 0; i < (uint32_t)gathered_count((int)block, (int)r); i++)
                wrong += result[at++] != value(r, i, round);
        return wrong;
    case OP_ALL_TO_ALL_V:
        for (uint32_t r = 0, at = 0; r < pes; r++) {
            uint32_t from = 0;
            for (uint32_t before = 0; before < rank; before++)
                from += (uint32_t)exchanged_count((int)block, (int)((before + pes - r) % pes), (int)pes);
            for (uint32_t i = 0; i < (uint32_t)exchanged_count((int)block, (int)((rank + pes - r) % pes), (int)pes); i++)
                wrong += result[at++] != value(r, from + i, round);
        }
        return wrong;
    case OP_PUT_STRIDED:
        /* The skipped elements must keep the bits that check_one_call wrote. */
        for (uint32_t i = 0; rank == 1 && i < 2 * count - 1; i++)
            wrong += i % 2 ? ((const uint32_t *)result)[i] != UINT32_MAX : result[i] != value(0, i, round);
        return wrong;
    case OP_BROADCAST:
        for (uint32_t i = 0; rank != 0 && i < count; i++)
            wrong += result[i] != value(0, i, round);
        return wrong;
    case OP_PUT:
        for (uint32_t i = 0; rank == 1 && i < count; i++)
            wrong += result[i] != value(0, i, round);
        return wrong;
    case OP_GET:
        for (uint32_t i = 0; rank == 0 && i < count; i++)
            wrong += result[i] != value(1, i, round);
        return wrong;
    }
    return -1;
}

/* Each PE in turn arrives 5 ms late, and no other PE may leave the barrier before the late PE has
 * arrived. Compares times of all PEs, so all PEs must be on one machine. */
static long barrier_leavers(const struct op *op)
{
    long early = 0;
    for (int late = 0; late < peer->pes; late++) {
        peer->barrier();
        if (peer->rank == late)
            usleep(5000);
        double entered = seconds();
        op->run(0, 1);
        double left = seconds();
        early += left < peer->max(peer->rank == late ? entered : 0);
    }
    return early;
}

static long lost_adds(const struct op *op)
{
    enum { ADDS = 1000 };
    if (peer->rank == 1)
        *(volatile int64_t *)peer->dst = 0;
    if (peer->settle)
        peer->settle();
    peer->barrier();
    if (peer->rank == 0)
        op->run(sizeof(int64_t), ADDS);
    peer->barrier();
    if (peer->settle)
        peer->settle();
    return peer->rank == 1 ? labs((long)(ADDS - *(volatile int64_t *)peer->dst)) : 0;
}

static long lost_elements(const struct op *op)
{
    long lost = 0;
    peer->barrier();
    if (peer->rank == 0)
        op->run(sizeof(int64_t), P_ELEMENTS);
    peer->barrier();
    if (peer->settle)
        peer->settle();
    for (long i = 0; peer->rank == 1 && i < P_ELEMENTS; i++)
        lost += ((volatile int64_t *)peer->dst)[i] != i + 1;
    return lost;
}

static bool takes_part(enum op_kind kind)
{
    switch (kind) {
    case OP_PUT:
    case OP_PUT_STRIDED:
    case OP_P:
    case OP_GET:
    case OP_FETCH_ADD:
        return peer->rank == 0;
    case OP_PING_PONG:
        return peer->rank < 2;
    default:
        return true;
    }
}

static long check_one_call(const struct op *op, size_t bytes, uint32_t round)
{
    if (op->kind == OP_BARRIER)
        return barrier_leavers(op);
    if (op->kind == OP_FETCH_ADD)
        return lost_adds(op);
    if (op->kind == OP_P)
        return lost_elements(op);
    /* A broadcast of MPI has one buffer, so the root's buffer holds the input and must not be
     * cleared. */
    if (peer->dst != peer->src || !is_source(op->kind))
        memset(peer->dst, 0xff, op->kind == OP_PUT_STRIDED ? 2 * bytes : bytes);
    if (peer->settle)
        peer->settle();
    rewrite(op->kind, bytes, round);
    peer->barrier();
    if (takes_part(op->kind))
        op->run(bytes, 1);
    peer->barrier();
    return count_wrong(op->kind, bytes, round);
}

/* ---- Timing ---------------------------------------------------------------------------------- */

/* Returns the seconds that this PE spent in `calls` calls. A dirty run rewrites the inputs before
 * each call and times each call separately. */
static double timed(const struct op *op, size_t bytes, long calls, bool dirty, uint32_t *round)
{
    bool active = takes_part(op->kind);
    double spent = 0;

    if (!dirty) {
        double start = seconds();
        if (active)
            op->run(bytes, calls);
        spent = active ? seconds() - start : 0;
        peer->barrier();
        return spent;
    }
    for (long i = 0; i < calls; i++) {
        rewrite(op->kind, bytes, ++*round);
        peer->barrier();
        double start = seconds();
        if (active) {
            op->run(bytes, 1);
            spent += seconds() - start;
        }
        /* After a collective or a completed put, the owner may write its input. After a get, another
         * PE may still read the input. */
        if (op->kind == OP_GET)
            peer->barrier();
    }
    return spent;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Doubles the number of calls until the calls take 2 ms, then scales the number to the duration of a
 * batch. Every PE uses the maximum time over all PEs, so that all PEs compute the same number. */
static long calls_per_batch(const struct op *op, size_t bytes, const struct options *o, uint32_t *round)
{
    long calls = MIN_CALLS;
    for (;;) {
        double spent = peer->max(timed(op, bytes, calls, o->dirty, round));
        if (spent >= 0.002 || calls >= MAX_CALLS) {
            double wanted = o->batch_seconds / (spent / (double)calls);
            return wanted < MIN_CALLS ? MIN_CALLS : wanted > MAX_CALLS ? MAX_CALLS : (long)wanted;
        }
        calls *= 2;
    }
}

static void measure(const struct op *op, size_t bytes, const struct options *o)
{
    double batch[MAX_BATCHES], sorted[MAX_BATCHES];
    uint32_t round = 1;
    /* A ping-pong call is two messages; the time of one message is reported. */
    double scale = op->kind == OP_PING_PONG ? 0.5e6 : 1e6;

    long wrong = check_one_call(op, bytes, round);
    long calls = o->calls ? o->calls : calls_per_batch(op, bytes, o, &round);
    timed(op, bytes, calls < 100 ? calls : 100, o->dirty, &round);
    for (int b = 0; b < o->batches; b++) {
        peer->barrier();
        batch[b] = peer->max(timed(op, bytes, calls, o->dirty, &round) / (double)calls) * scale;
    }
    wrong += count_wrong(op->kind, bytes, round);
    peer->barrier();
    double most_wrong = peer->max((double)wrong);
    if (peer->rank != 0)
        return;

    memcpy(sorted, batch, sizeof batch);
    qsort(sorted, (size_t)o->batches, sizeof *sorted, by_value);
    printf("{\"peer\":\"%s\",\"op\":\"%s\",\"pes\":%d,\"size\":%zu,\"dirty\":%s,\"calls_per_batch\":%ld,\"median_us\":%.4f,"
           "\"min_us\":%.4f,\"max_us\":%.4f,\"nwrong\":%.0f,\"batch_us\":[",
           peer->name, op->name, peer->pes, bytes, o->dirty ? "true" : "false", calls, sorted[o->batches / 2], sorted[0],
           sorted[o->batches - 1], most_wrong);
    for (int b = 0; b < o->batches; b++)
        printf("%s%.4f", b ? "," : "", batch[b]);
    printf("]}\n");
    fflush(stdout);
}

/* ---- Command line ---------------------------------------------------------------------------- */

static void usage(void)
{
    fprintf(stderr, "usage: %s OP [--sizes BYTES,BYTES,...] [--batches N] [--batch-ms MS] [--calls N] [--dirty] [--t0 NS]\n"
                    "OP: init",
            program_invocation_short_name);
    for (const struct op *op = peer->ops; op->name; op++)
        fprintf(stderr, " %s", op->name);
    fprintf(stderr, "\n");
    _exit(2);
}

static double positive(const char *option, const char *text)
{
    char *end;
    errno = 0;
    double number = strtod(text, &end);
    if (errno || end == text || *end || !(number > 0))
        fail("%s: expected a number above 0, got \"%s\"", option, text);
    return number;
}

static void parse_sizes(struct options *o, const char *text)
{
    while (*text) {
        char *end;
        errno = 0;
        unsigned long long bytes = strtoull(text, &end, 10);
        if (errno || end == text || (*end && *end != ',') || o->size_count == MAX_SIZES)
            fail("--sizes: expected up to %d byte counts separated by commas, got \"%s\"", MAX_SIZES, text);
        o->sizes[o->size_count++] = bytes;
        text = *end ? end + 1 : end;
    }
}

static struct options parse(int argc, char **argv)
{
    static const struct option known[] = {
        {"sizes", required_argument, 0, 's'}, {"batches", required_argument, 0, 'b'}, {"batch-ms", required_argument, 0, 'm'},
        {"calls", required_argument, 0, 'c'}, {"dirty", no_argument, 0, 'd'},         {"t0", required_argument, 0, 't'},
        {0, 0, 0, 0},
    };
    struct options o = {.batches = 7, .batch_seconds = 0.03};
    int c;
    while ((c = getopt_long(argc, argv, "", known, NULL)) != -1) {
        switch (c) {
        case 's': parse_sizes(&o, optarg); break;
        case 'b': o.batches = (int)positive("--batches", optarg); break;
        case 'm': o.batch_seconds = positive("--batch-ms", optarg) / 1e3; break;
        case 'c': o.calls = (long)positive("--calls", optarg); break;
        case 'd': o.dirty = true; break;
        case 't': o.start_ns = (long long)strtoll(optarg, NULL, 10); break;
        default: usage();
        }
    }
    if (optind != argc - 1)
        usage();
    o.op = argv[optind];
    if (o.batches > MAX_BATCHES)
        fail("--batches: expected at most %d, got %d", MAX_BATCHES, o.batches);
    return o;
}

static const struct op *find_op(const struct options *o)
{
    for (const struct op *op = peer->ops; op->name; op++)
        if (!strcmp(op->name, o->op))
            return op;
    usage();
    return NULL;
}

static void check_sizes(const struct op *op, struct options *o)
{
    bool divided = op->kind >= OP_REDUCE_SCATTER && op->kind <= OP_ALL_TO_ALL_V;
    size_t unit = sizeof(float) * (divided ? (size_t)peer->pes : 1);

    if (op->kind >= OP_PUT && peer->pes < 2)
        fail("%s: needs 2 PEs, got %d", op->name, peer->pes);
    if (op->kind == OP_BARRIER || op->kind >= OP_P) {
        if (o->dirty)
            fail("%s: has no input that could be rewritten, drop --dirty", op->name);
        o->size_count = 1;
        o->sizes[0] = op->kind == OP_BARRIER ? 0 : sizeof(int64_t);
        return;
    }
    if (!o->size_count)
        fail("%s: --sizes is missing", op->name);
    for (int i = 0; i < o->size_count; i++)
        if (o->sizes[i] == 0 || o->sizes[i] % unit)
            fail("%s: with %d PEs the size must be a multiple of %zu bytes, got %zu", op->name, peer->pes, unit, o->sizes[i]);
}

int harness_main(struct peer *p, int argc, char **argv)
{
    peer = p;
    peer->barrier();
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    struct options o = parse(argc, argv);

    if (peer->rank == 0)
        printf("{\"peer\":\"%s\",\"version\":\"%s\",\"clock_ns\":%.1f}\n", peer->name, peer->version, clock_cost_ns());
    if (!strcmp(o.op, "init")) {
        if (!o.start_ns)
            fail("init: --t0 is missing");
        if (peer->rank == 0)
            printf("{\"peer\":\"%s\",\"op\":\"init\",\"pes\":%d,\"first_barrier_ms\":%.3f}\n", peer->name, peer->pes,
                   (double)(t.tv_sec * 1000000000LL + t.tv_nsec - o.start_ns) / 1e6);
    } else {
        const struct op *op = find_op(&o);
        size_t largest = 0;
        check_sizes(op, &o);
        for (int i = 0; i < o.size_count; i++)
            largest = o.sizes[i] > largest ? o.sizes[i] : largest;
        if (op->kind == OP_PUT_STRIDED)
            largest *= 2;
        peer->prepare(op, largest < 4096 ? 4096 : largest);
        peer->barrier();
        for (int i = 0; i < o.size_count; i++)
            measure(op, o.sizes[i], &o);
    }
    if (peer->rank == 0) {
        printf("{\"peer\":\"%s\",\"done\":true}\n", peer->name);
        fflush(stdout);
    }
    peer->barrier();
    return 0;
}
