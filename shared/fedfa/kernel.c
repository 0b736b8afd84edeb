/* The loops over a model's numbers that fedfa/kernel.py calls; its numpy versions are the
 * specification, bit for bit. Hence -ffp-contract=off: a fused multiply-add rounds once less. */

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>

/* One library for every x86-64: the loader picks the copy that this processor can run. */
#if defined(__x86_64__) && defined(__GLIBC__)
#define EVERY_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define EVERY_PROCESSOR
#endif
#define INLINE static inline __attribute__((always_inline))

enum { ABI = 1, TILE = 16, LANES = 32, BLOCK = 65536, MOST_THREADS = 16 };

typedef struct {
    float *out;
    const float *previous;
    const float *const *vectors;
    const double *weights;
    size_t num_vectors;
    double divisor, step, keep;
} Sum;

typedef struct {
    double *totals; /* of each block */
    const float *values;
    const float *origin; /* or NULL */
    size_t size;
} Squares;

typedef struct {
    void (*run)(const void *task, size_t start, size_t stop);
    const void *task;
    size_t start, stop;
} Share;

int fedfa_kernel_abi(void) { return ABI; }

/* The sums of n elements, which stay in registers where n is the constant TILE. */
INLINE void sum_tile(const Sum *sum, size_t at, size_t n)
{
    double total[TILE] = {0.0};
    for (size_t i = 0; i < sum->num_vectors; i++) {
        const float *vector = sum->vectors[i] + at;
        const double weight = sum->weights[i];
        for (size_t j = 0; j < n; j++)
            total[j] += weight * (double)vector[j];
    }
    for (size_t j = 0; j < n; j++)
        total[j] = total[j] / sum->divisor * sum->step;
    if (sum->keep != 0.0)
        for (size_t j = 0; j < n; j++)
            total[j] += sum->keep * (double)sum->previous[at + j];
    for (size_t j = 0; j < n; j++)
        sum->out[at + j] = (float)total[j];
}

EVERY_PROCESSOR
static void sum_range(const void *task, size_t start, size_t stop)
{
    const Sum sum = *(const Sum *)task; /* a copy: nothing that `out` could alias */
    size_t at = start;
    for (; stop - at >= TILE; at += TILE)
        sum_tile(&sum, at, TILE);
    sum_tile(&sum, at, stop - at);
}

/* Lane l takes elements l, l + LANES, ... of a block; then the lanes are added in order. */
INLINE double lane_squares(const float *values, const float *origin, size_t size)
{
    double lanes[LANES] = {0.0};
    size_t at = 0;
    for (; size - at >= LANES; at += LANES)
        for (size_t l = 0; l < LANES; l++) {
            const double x = (double)values[at + l] - (origin ? (double)origin[at + l] : 0.0);
            lanes[l] += x * x;
        }
    for (size_t l = 0; l < size - at; l++) {
        const double x = (double)values[at + l] - (origin ? (double)origin[at + l] : 0.0);
        lanes[l] += x * x;
    }
    double total = 0.0;
    for (size_t l = 0; l < LANES; l++)
        total += lanes[l];
    return total;
}

EVERY_PROCESSOR
static double block_squares(const float *values, const float *origin, size_t size)
{
    return origin ? lane_squares(values, origin, size) : lane_squares(values, NULL, size);
}

static void squares_range(const void *task, size_t start, size_t stop)
{
    const Squares *squares = task;
    for (size_t block = start; block < stop; block++) {
        const size_t at = block * BLOCK;
        const size_t size = squares->size - at < BLOCK ? squares->size - at : BLOCK;
        squares->totals[block] = block_squares(
            squares->values + at, squares->origin ? squares->origin + at : NULL, size);
    }
}

static void *run_share(void *argument)
{
    const Share *share = argument;
    share->run(share->task, share->start, share->stop);
    return NULL;
}

/* Equal shares of [0, size), one of them for the caller; without a thread it does them all. */
static void in_threads(void (*run)(const void *, size_t, size_t), const void *task, size_t size,
                       int num_threads)
{
    pthread_t threads[MOST_THREADS];
    int is_running[MOST_THREADS] = {0};
    Share shares[MOST_THREADS];
    const int n = num_threads < 1 ? 1 : num_threads < MOST_THREADS ? num_threads : MOST_THREADS;
    for (int i = 0; i < n; i++)
        shares[i] = (Share){run, task, size / n * i, i == n - 1 ? size : size / n * (i + 1)};
    for (int i = 1; i < n; i++)
        is_running[i] = pthread_create(&threads[i], NULL, run_share, &shares[i]) == 0;
    for (int i = 0; i < n; i++)
        if (!is_running[i])
            run_share(&shares[i]);
    for (int i = 1; i < n; i++)
        if (is_running[i])
            pthread_join(threads[i], NULL);
}

/* out = keep * previous + step * (sum_i weights[i] * vectors[i]) / divisor */
void fedfa_weighted_sum(float *out, const float *previous, const float *const *vectors,
                        const double *weights, size_t num_vectors, double divisor, double step,
                        double keep, size_t size, int num_threads)
{
    const Sum sum = {out, previous, vectors, weights, num_vectors, divisor, step, keep};
    in_threads(sum_range, &sum, size, num_threads);
}

/* sum_j (values[j] - origin[j])^2, or sum_j values[j]^2 where origin is NULL; blocks in order.
 * totals: room for one number for each block. */
double fedfa_squares(double *totals, const float *values, const float *origin, size_t size,
                     int num_threads)
{
    const size_t num_blocks = (size + BLOCK - 1) / BLOCK;
    const Squares squares = {totals, values, origin, size};
    in_threads(squares_range, &squares, num_blocks, num_threads);
    double total = 0.0;
    for (size_t block = 0; block < num_blocks; block++)
        total += totals[block];
    return total;
}
