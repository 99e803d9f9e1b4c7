/* decisions.h - what was chosen for every slot, and what each candidate said: written while binding, read by tools.
 * Not here: choosing (session_bind.c, session_kv.c). The public face is in tools.h.
 * SPDX-License-Identifier: MIT */
#ifndef BPI_DECISIONS_H
#define BPI_DECISIONS_H

#include "engine/engine.h"
#include "loader/loader.h"
#include "backplane/slot_mla.h"

enum { BPI_NO_ROW = UINT32_MAX };

/* The answers to one problem. */
struct bpi_answers {
    const char *slot, *iface, *what; /* what: one word for the problem among others of its slot, or "" */
    int32_t layer;                   /* -1 outside of layers */
    const struct bpi_candidate *cands;
    size_t n_cands;
    int32_t chosen; /* -1: nobody */
    bool on_host;
    const struct bp_workspace *ws; /* of the chosen one; NULL: none */
    uint64_t file_bytes;
};

int32_t bpi_decisions_create(struct bp_decisions **out, struct bp_error *err);
/* Keeps answers; equal ones of neighbouring layers share a row. *out_row (may be NULL): the row, BPI_NO_ROW when too
 * many different answers were given and this one was only counted. */
int32_t bpi_decisions_note(struct bp_decisions *d, const struct bpi_loader *l, const struct bpi_config *config,
                           const struct bpi_answers *a, uint32_t *out_row, struct bp_error *err);
/* What a prepared weight takes. */
void bpi_decisions_weight(struct bp_decisions *d, uint32_t row, uint64_t n_bytes);
int32_t bpi_decisions_kv(struct bp_decisions *d, int32_t layer, const struct bp_kv_layout *latent,
                         const struct bp_kv_layout *index, struct bp_error *err);
/* asked: engine.device; why: a sentence or "". */
int32_t bpi_decisions_device(struct bp_decisions *d, const struct bp_device *device, const char *asked,
                             const char *why, struct bp_error *err);
/* The same of engine.act; dtype: "" when binding failed. */
int32_t bpi_decisions_act(struct bp_decisions *d, const char *asked, const char *dtype, const char *why,
                          struct bp_error *err);
/* why: a sentence or "". */
int32_t bpi_decisions_dtype(struct bp_decisions *d, const char *asked, const char *dtype, const char *why,
                            struct bp_error *err);

#endif
