/* ref_verdict.c - what every slot of the reference backend needs around its arithmetic: verdicts, port lists, memory.
 * Threads: any. SPDX-License-Identifier: MIT */
#include "ref/ref_priv.h"

#include <string.h>

void *bpi_ref_alloc(struct bpi_ref *ref, uint64_t n, uint64_t elem_bytes)
{
    uint64_t n_bytes;
    if (!bpi_mul_u64(n, elem_bytes, &n_bytes)) return NULL;
    return ref->host->mem_alloc(ref->host->ctx, n_bytes, 64);
}

void bpi_ref_free(struct bpi_ref *ref, void *p)
{
    ref->host->mem_free(ref->host->ctx, p);
}

void bpi_ref_refuse(struct bp_verdict *v, uint32_t code, const char *field, int64_t got,
                    int64_t want_lo, int64_t want_hi, const char *text)
{
    uint32_t at = v->n_reasons++;
    v->level = BP_V_NO;
    if (v->reasons == NULL || at >= v->cap_reasons) return;
    /* The caller's struct may be longer than ours: it says how far apart its elements are. */
    uint64_t stride = v->reason_stride != 0 ? v->reason_stride : sizeof(struct bp_reason);
    struct bp_reason *r = (struct bp_reason *)((unsigned char *)v->reasons + at * stride);
    struct bp_reason mine = {.code = code, .critical = 1};
    mine.got = got;
    mine.want_lo = want_lo;
    mine.want_hi = want_hi;
    (void)strncpy(mine.field, field, sizeof mine.field - 1);
    (void)strncpy(mine.text, text, sizeof mine.text - 1);
    memcpy(r, &mine, stride < sizeof mine ? stride : sizeof mine);
}

void bpi_ref_check_header(struct bp_verdict *v, const struct bp_hdr *h, uint32_t n_bytes)
{
    if (h->size < n_bytes) {
        bpi_ref_refuse(v, BP_R_ABI, "h.size", h->size, n_bytes, UINT32_MAX,
                       "the problem struct is shorter than 0.1");
    }
    for (const struct bp_ext *e = h->next; e != NULL; e = e->next) {
        if ((e->flags & BP_EXT_CRITICAL) != 0) {
            bpi_ref_refuse(v, BP_R_EXT, "h.next", (int64_t)e->id, 0, 0,
                           "a critical extension that ref does not know");
        }
    }
}

void bpi_ref_verdict_done(struct bp_verdict *v)
{
    v->capture = BP_CAPTURE_NONE;
    v->determinism = BP_DET_BATCH;
    v->cost_us = -1.0;
    v->level = v->n_reasons == 0 ? BP_V_YES : BP_V_NO;
}

void bpi_ref_list(const struct bp_tensor *ports, uint32_t count, struct bp_tensor *t, uint32_t *n)
{
    uint32_t fill = *n < count ? *n : count;
    for (uint32_t i = 0; i < fill; ++i) t[i] = ports[i];
    *n = count;
}

struct bp_tensor bpi_ref_port(const struct bp_tensor *t, const char *name, uint32_t access)
{
    struct bp_tensor port = *t;
    port.name = name;
    port.access = access;
    return port;
}
