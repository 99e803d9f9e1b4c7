/* kit_bench.c - see kit_bench.h. SPDX-License-Identifier: MIT */
#include "kit_bench.h"

#include <string.h>

/* Tables must reach every slot of the interface that is not marked optional; a wrapper's need not. */
static bool whole_table(struct kit_bench *b)
{
    const struct kit_iface *f = kit_iface_of(b->iface);
    const struct bp_op_base *vt = b->own.vt;
    const size_t first = offsetof(struct bp_op_base, supports);
    if (vt->iface == NULL || strcmp(vt->iface, b->iface) != 0)
        return kit_fail(b->kit, "3.7", b->iface, "op table", NULL,
                        "the table says it is of interface `%s`",
                        vt->iface != NULL ? vt->iface : "(null)");
    if (b->subject.desc->kind == BP_KIND_WRAPPER) return true;
    if (vt->h.size < f->table_bytes)
        return kit_fail(b->kit, "3.7", b->iface, "op table", NULL,
                        "the table has %u bytes, the interface needs %u", vt->h.size,
                        f->table_bytes);
    for (size_t at = first; at < f->table_bytes; at += sizeof(void *)) {
        void *fn;
        memcpy(&fn, (const unsigned char *)vt + at, sizeof fn);
        if (fn == NULL)
            return kit_fail(b->kit, "3.7", b->iface, "op table", NULL, "slot %zu is NULL",
                            (at - first) / sizeof(void *));
    }
    return true;
}

bool kit_bench_open(struct kit *k, struct kit_bench *b, const char *iface, uint32_t copy)
{
    memset(b, 0, sizeof *b);
    b->kit = k;
    b->iface = iface;
    if (!kit_open_subject(k, &b->subject)) return false;
    if (!kit_open_reference(k, &b->reference)) {
        kit_bench_close(b);
        return false;
    }
    const bool wrapper = b->subject.desc->kind == BP_KIND_WRAPPER;
    if (!kit_make_op(k, &b->reference, iface, NULL, &b->ref_op) ||
        !kit_make_op(k, &b->subject, iface, wrapper ? &b->ref_op : NULL, &b->own) ||
        !whole_table(b)) {
        kit_bench_close(b);
        return false;
    }
    b->op = b->own;
    b->bare = wrapper ? b->ref_op : b->own;
    if (wrapper) {
        if (!kit_flatten(&b->flat, iface, &b->own, &b->ref_op, KIT_COPY_NONE)) {
            kit_note(k, iface, "wrappers of this interface are not checked");
            kit_bench_close(b);
            return false;
        }
        b->op = b->flat.op;
    }
    if (copy != KIT_COPY_NONE) {
        if (!kit_flatten(&b->pass, iface, &b->op, NULL, copy)) {
            kit_bench_close(b);
            return false;
        }
        b->op = b->pass.op;
    }
    return true;
}

void kit_bench_close(struct kit_bench *b)
{
    kit_drop_op(b->kit, &b->subject, &b->own);
    kit_drop_op(b->kit, &b->reference, &b->ref_op);
    if (b->subject.open) {
        kit_close(b->kit, &b->subject);
        kit_host_done(&b->subject.host);
    }
    if (b->reference.open) {
        kit_close(b->kit, &b->reference);
        kit_host_done(&b->reference.host);
    }
    b->own = b->ref_op = (struct bp_op_ref){NULL, NULL};
}
