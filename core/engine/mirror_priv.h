/* mirror_priv.h - what the files of mirror.h share. SPDX-License-Identifier: MIT */
#ifndef BPI_MIRROR_PRIV_H
#define BPI_MIRROR_PRIV_H

#include "engine/session_priv.h"

/* Which step buffer does p lie in, and where? False: in none of them. */
bool bpi_mirror_buffer(const struct bp_session *s, const void *p, uint32_t *out_number, uint64_t *out_offset);
/* Turns a tensor of a's call into b's at the same place. */
int32_t bpi_mirror_translate(const struct bp_session *a, const struct bp_session *b, int32_t layer, struct bp_tensor *t,
                             struct bp_error *err);
/* The site of b for a product of a; *first: number of the call's first weight in it. NULL: no product, or unknown. */
const struct bpi_site *bpi_call_site(const struct bp_session *a, const struct bp_session *b, const struct bpi_call *c,
                                     uint32_t *first);
/* The weights that b needs for a call; nothing where it is no mirror. */
int32_t bpi_mirror_weights(const struct bp_session *a, struct bp_session *b, const struct bpi_call *c,
                           struct bp_error *err);
/* Rows of positions [pos, pos + n) of a sequence, in b's layout. BP_DECLINED: a layout that only its provider reads. */
int32_t bpi_mirror_copy_rows(const struct bp_session *a, struct bp_session *b, uint32_t layer, bool index, uint32_t seq,
                             uint32_t pos, uint32_t n, struct bp_error *err);
/* Fills c->tap; site: the last product's tap, kept between calls. */
void bpi_call_name(const struct bp_session *s, struct bpi_call *c, char *site, size_t cap);
void bpi_call_cost(const struct bp_session *s, struct bpi_call *c);

#endif
