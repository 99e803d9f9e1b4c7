/* measure.h - how far logits and hidden states are from golden ones. NaN in either makes every maximum NaN, and stays.
 * SPDX-License-Identifier: MIT */
#ifndef CLI_MEASURE_H
#define CLI_MEASURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <backplane/types.h>

struct measure_flip { /* a row whose likeliest token differs */
    uint32_t row;
    int32_t golden_id, our_id;
    double gap; /* between the two best golden logits */
};

struct measure {
    double max_abs, kl_sum, max_kl; /* of logits; KL(golden || ours) per row */
    uint64_t rows, agree, steps;
    struct measure_flip *flips;
    size_t n_flips, cap_flips;
    double max_flip_gap;     /* -1 without flips; golden gaps above it all agree */
    uint32_t greedy_match, greedy_total;
    bool greedy_off;         /* a difference was seen */
    double greedy_gap;       /* our gap between our token and the golden one at the first difference; -1 without */
    uint32_t n_hidden;
    double *hidden_max;      /* (n_hidden) */
    uint64_t *hidden_rows;   /* (n_hidden) rows compared */
};

/* BP_OK or BP_E_NOMEM. */
int32_t measure_begin(struct measure *m, uint32_t n_hidden, uint32_t greedy_total);
void measure_end(struct measure *m);
int32_t measure_row(struct measure *m, uint32_t row, const float *golden, const float *ours, uint32_t n);
/* Counts whether our likeliest token is golden_id; returns ours. */
int32_t measure_greedy(struct measure *m, const float *ours, uint32_t n, int32_t golden_id);
/* Row `row` of an f32 tensor (rows outermost) against golden[0..n). */
void measure_hidden(struct measure *m, uint32_t level, const float *golden, const struct bp_tensor *ours, uint32_t row,
                    uint32_t n);
/* Adds what can be pooled: not flips and hidden states. sum may be zeroed. */
void measure_merge(struct measure *sum, const struct measure *m);

double measure_mean_kl(const struct measure *m); /* NaN without rows */
double measure_agree(const struct measure *m);   /* fraction; NaN without rows */
/* *max = the larger one; a NaN on either side stays. */
void measure_max(double *max, double v);

#endif
