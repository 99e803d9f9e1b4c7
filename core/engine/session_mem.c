/* session_mem.c - memory that a session gets from its device slot and gives back as a whole.
 * SPDX-License-Identifier: MIT */
#include "engine/session_priv.h"
#include <string.h>

int32_t bpi_session_alloc(struct bp_session *s, uint32_t mem, uint64_t n_bytes, uint64_t *account,
                          void **out, struct bp_error *err)
{
    *out = NULL;
    if (s->n_mems == s->cap_mems) {
        uint32_t cap = s->cap_mems == 0 ? 64 : 2 * s->cap_mems;
        struct bpi_mem *grown = bpi_realloc(s->mems, cap, sizeof(*grown));
        if (grown == NULL) return bpi_fail_nomem(err, "engine", cap * sizeof(*grown));
        s->mems = grown;
        s->cap_mems = cap;
    }
    if (n_bytes == 0) n_bytes = 1; /* a buffer of an empty shape still has an address */
    BP_TRY(BPI_RUN(s->device_op, -1, bp_device_ops, alloc, mem, n_bytes, out));
    s->mems[s->n_mems++] = (struct bpi_mem){
        .p = *out,
        .n_bytes = n_bytes,
        .kind = mem,
        .twin = mem != BP_MEM_DEVICE || account == &s->memory.scratch ? BPI_TWIN_NONE
                : account == &s->memory.weights                       ? BPI_TWIN_FIXED
                                                                      : BPI_TWIN_COPIED};
    *account += n_bytes;
    return BP_OK;
}

int32_t bpi_session_copy(struct bp_session *s, void *dst, const void *src, uint64_t n_bytes,
                         uint32_t dir, struct bp_error *err)
{
    return BPI_RUN(s->device_op, -1, bp_device_ops, copy, dst, src, n_bytes, dir, s->stream);
}

int32_t bpi_session_sync(struct bp_session *s, struct bp_error *err)
{
    return BPI_RUN(s->device_op, -1, bp_device_ops, stream_sync, s->stream);
}

void bpi_session_free_all(struct bp_session *s)
{
    for (uint32_t i = s->n_mems; i > 0; --i)
        BPI_CALL(s->device_op, bp_device_ops, free, s->mems[i - 1].kind, s->mems[i - 1].p);
    bpi_free(s->mems);
    s->mems = NULL;
    s->n_mems = s->cap_mems = 0;
}
