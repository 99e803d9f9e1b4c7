/* kit_problem.h - random problems of every interface, edges first. SPDX-License-Identifier: MIT */
#ifndef KIT_PROBLEM_H
#define KIT_PROBLEM_H

#include "cases/kit_rng.h"
#include "kit.h"

enum { KIT_MAX_SIZES = 16 };

struct kit_problem {
    union {
        struct bp_hdr h;
        struct bp_device_problem device;
        struct bp_dense_problem dense;
        struct bp_quant_problem quant;
        struct bp_mla_problem mla;
        struct bp_moe_problem moe;
        struct bp_coll_problem coll;
    } p;
    struct bp_quant_shape shapes[4];
    uint32_t n_bytes; /* of the problem's struct */
};
/* Texts of a problem for findings. */
void kit_problem_text(const char *iface, const struct kit_problem *p, char *out, size_t cap);
/* turn 0, 1, ...: the first ones are plain and served by most; later ones are edges and nonsense. */
void kit_problem_make(const char *iface, struct kit_rng *rng, uint32_t turn, struct kit_problem *out);
/* Makes one size smaller, in place. false when there is nothing to make smaller. */
bool kit_problem_shrink(const char *iface, struct kit_rng *rng, struct kit_problem *p);
/* quant.w must point into the struct that is handed over. */
void kit_problem_link(struct kit_problem *p, const char *iface);

#endif
