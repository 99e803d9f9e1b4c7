/* token_pieces.h - collects the pieces of a splitter as their ends, so that a text is known to be covered without gaps.
 * For tests of the check library. SPDX-License-Identifier: MIT */
#ifndef BP_TEST_TOKEN_PIECES_H
#define BP_TEST_TOKEN_PIECES_H

#include <check.h>
#include <stdlib.h>
#include "token/token.h"

struct pieces {
    const char *text;
    size_t at;
    size_t *end;
    size_t n, cap;
};

static inline void pieces_add_end(struct pieces *p, size_t end)
{
    if (p->n == p->cap) {
        p->cap = p->cap > 0 ? p->cap * 2 : 64;
        p->end = realloc(p->end, p->cap * sizeof *p->end);
        if (p->end == NULL) ck_abort_msg("out of memory");
    }
    p->end[p->n++] = end;
}

static inline int32_t pieces_collect(void *ctx, const char *piece, size_t n)
{
    struct pieces *p = ctx;
    /* Not ck_assert: it writes to a file each time, and there are millions of pieces. */
    if (n == 0 || piece != p->text + p->at) return BP_E_INTERNAL;
    p->at += n;
    pieces_add_end(p, p->at);
    return BP_OK;
}

static inline void pieces_split(const char *pre, const char *text, size_t n, struct pieces *p)
{
    p->text = text;
    p->at = p->n = 0;
    int32_t rc = bpi_pretok_split(pre, text, n, pieces_collect, p);
    if (rc != BP_OK || p->at != n) ck_abort_msg("%s: %d, covered %zu of %zu", pre, rc, p->at, n);
}

#endif
