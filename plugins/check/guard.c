/* guard.c - canaries. Outputs that share no byte with another tensor of the call are written into memory of this
 * wrapper, with guard bytes before and behind and all ones inside (a NaN in every float), and copied out afterwards: so
 * neither a write past an output nor an element left unwritten goes unseen. The memory lies behind the inner op's
 * scratch and is asked for through workspace(). Where an output cannot be moved - it is INOUT, or laid over an input,
 * or there is no room - nothing outside of it may be read either, because it might be the end of a mapping; only the
 * gaps between its own rows are compared. Threads: as the wrapped slot. SPDX-License-Identifier: MIT */
#include "check.h"

enum { ALIGN = 64, CANARY = 0xa5, UNWRITTEN = 0xff };

/* ---- how much memory ---- */

/* One output of up to a * b * c elements with its guards. */
static void add_output(struct bp_area *area, uint64_t a, uint64_t b, uint64_t c, uint64_t bytes)
{
    if (a != 0 && b > UINT64_MAX / a) area->bad = 1;
    if (area->bad == 0 && a * b != 0 && c > UINT64_MAX / (a * b)) area->bad = 1;
    (void)bp_area_take(area, area->bad == 0 ? a * b * c : 0, bytes);
    (void)bp_area_take(area, 2 * CHECK_GUARD_BYTES, 1);
}

static void add_dense(struct bp_area *area, const struct bp_dense_problem *p)
{
    if (!BP_HAS(p, struct bp_dense_problem, k)) return;
    const uint64_t width = p->width > 0 ? (uint64_t)p->width : 0;
    if (p->op == BP_DENSE_OP_TOPK || p->op == BP_DENSE_OP_ARGMAX) {
        add_output(area, p->max_rows, p->k, 1, 4);
        add_output(area, p->max_rows, p->k, 1, 4);
    } else if (p->op != BP_DENSE_OP_MATMUL) { /* its batch is not in the problem */
        add_output(area, p->max_rows, width, 1, (uint64_t)bp_dtype_bytes(p->y_dtype));
    }
}

static void add_quant(struct bp_area *area, const struct bp_quant_problem *p)
{
    if (!BP_HAS(p, struct bp_quant_problem, epilogue) || p->w == NULL) return;
    for (uint32_t i = 0; i < p->n_w; ++i) {
        const struct bp_quant_shape *w =
            (const struct bp_quant_shape *)(const void *)((const unsigned char *)p->w +
                                                          (uint64_t)i * p->w_stride);
        const int64_t n = p->op == BP_QUANT_OP_DEQUANTIZE ? w->cols : w->rows;
        add_output(area, p->max_tok, n > 0 ? (uint64_t)n : 0, 1,
                   (uint64_t)bp_dtype_bytes(p->y_dtype));
    }
}

static void add_mla(struct bp_area *area, const char *iface, const struct bp_mla_problem *p)
{
    if (!BP_HAS(p, struct bp_mla_problem, top_k)) return;
    const uint64_t act = (uint64_t)bp_dtype_bytes(p->act_dtype), h = p->n_head;
    const uint64_t rows = p->max_rows > p->max_tok ? p->max_rows : p->max_tok;
    if (strcmp(iface, "bp.mla.common") == 0) { /* gather, expand and absorb never run at once */
        struct bp_area expand, absorb;
        bp_area_count(&expand);
        bp_area_count(&absorb);
        add_output(&expand, p->max_slab, h, (uint64_t)p->nope_dim + p->rope_dim, act);
        add_output(&expand, p->max_slab, h, p->v_dim, act);
        add_output(&absorb, rows, h, p->kv_rank > p->v_dim ? p->kv_rank : p->v_dim, act);
        add_output(area, p->max_slab, p->kv_rank, 1, act);
        add_output(area, p->max_slab, p->rope_dim, 1, act);
        if (expand.used > area->used) area->used = expand.used;
        if (absorb.used > area->used) area->used = absorb.used;
        area->bad |= expand.bad | absorb.bad;
    } else if (strcmp(iface, "bp.mla.prefill") == 0) {
        add_output(area, p->max_tok, h, p->v_dim, act);
        add_output(area, p->max_tok, h, 1, 4);
    } else if (strcmp(iface, "bp.mla.decode") == 0) {
        add_output(area, rows, h, p->kv_rank, act);
        add_output(area, rows, h, 1, 4);
    } else if (strcmp(iface, "bp.mla.index") == 0) {
        add_output(area, rows, p->top_k, 1, 4);
        add_output(area, rows, 1, 1, 4);
    }
}

static void add_moe(struct bp_area *area, const struct bp_moe_problem *p)
{
    if (!BP_HAS(p, struct bp_moe_problem, y_dtype)) return;
    if (p->op == BP_MOE_OP_ROUTE) {
        add_output(area, p->max_tok, p->n_expert_used, 1, 4);
        add_output(area, p->max_tok, p->n_expert_used, 1, 4);
    } else {
        add_output(area, p->max_tok, p->n_embd > 0 ? (uint64_t)p->n_embd : 0, 1, 4);
    }
}

uint64_t check_guard_bytes(const char *iface, const void *problem)
{
    struct bp_area area;
    bp_area_count(&area);
    if (strcmp(iface, "bp.dense") == 0) add_dense(&area, problem);
    if (strcmp(iface, "bp.quant") == 0) add_quant(&area, problem);
    if (strncmp(iface, "bp.mla.", 7) == 0) add_mla(&area, iface, problem);
    if (strcmp(iface, "bp.moe") == 0) add_moe(&area, problem);
    return area.bad == 0 ? area.used : 0;
}

/* ---- moving outputs ---- */

/* One output that was moved. */
struct moved {
    const struct bp_tensor *port; /* where it belongs */
    struct bp_tensor own;         /* where the inner op writes it */
    unsigned char *begin, *end;   /* guards included */
};

struct guarded {
    struct moved moved[CHECK_MAX_PORTS];
    uint32_t n;
    struct bp_area area;
    /* Copies by the length that the caller states: fields of newer minors go along. */
    union {
        unsigned char bytes[CHECK_MAX_ARGS];
        uint64_t align;
    } args, outs;
    union {
        unsigned char bytes[CHECK_MAX_LAUNCH];
        struct bp_launch l;
    } launch;
};

static int stands_alone(const struct check_call *c, uint32_t at)
{
    for (uint32_t i = 0; i < c->n_port; ++i) {
        if (i != at && check_overlap(&c->port[at], &c->port[i])) return 0;
    }
    return 1;
}

/* The port that *field is, if it is one that can be moved. */
static const struct bp_tensor *port_of(struct check_call *c, const struct bp_tensor *field)
{
    for (uint32_t i = 0; i < c->n_port; ++i) {
        const struct bp_tensor *t = &c->port[i];
        if (t->access != BP_OUT || t->data != field->data || check_span(t) == 0) continue;
        if (stands_alone(c, i)) return t;
        c->o->n_aliased++;
        return NULL;
    }
    return NULL;
}

static void move_output(struct check_call *c, struct guarded *g, struct bp_tensor *field)
{
    const struct bp_tensor *port = field->data != NULL ? port_of(c, field) : NULL;
    if (port == NULL || g->n == CHECK_MAX_PORTS) return;
    const uint64_t span = check_span(port), padded = (span + ALIGN - 1) & ~(uint64_t)(ALIGN - 1);
    unsigned char *p = bp_area_take(&g->area, padded + 2 * CHECK_GUARD_BYTES, 1);
    if (p == NULL) {
        g->area.bad = 0; /* the next one may be smaller */
        c->o->n_no_room++;
        return;
    }
    struct moved *m = &g->moved[g->n++];
    m->port = port;
    m->begin = p;
    m->end = p + padded + 2 * CHECK_GUARD_BYTES;
    memset(m->begin, CANARY, (size_t)(m->end - m->begin));
    memset(m->begin + CHECK_GUARD_BYTES, UNWRITTEN, span);
    field->data = m->begin + CHECK_GUARD_BYTES;
    m->own = *port;
    m->own.data = field->data;
    c->o->n_guarded++;
}

/* The products of one matmul lie in an array of their own. */
static void move_products(struct check_call *c, struct guarded *g)
{
    struct bp_quant_matmul_args *a = (struct bp_quant_matmul_args *)(void *)g->args.bytes;
    const uint64_t stride = a->out_stride != 0 ? a->out_stride : sizeof *a->outs;
    if (a->outs == NULL || a->n_out > CHECK_MAX_ARGS || a->n_out * stride > CHECK_MAX_ARGS) return;
    memcpy(g->outs.bytes, a->outs, a->n_out * stride);
    a->outs = (struct bp_matmul_out *)(void *)g->outs.bytes;
    for (uint32_t i = 0; i < a->n_out; ++i) {
        struct bp_matmul_out *out =
            (struct bp_matmul_out *)(void *)(g->outs.bytes + (uint64_t)i * stride);
        move_output(c, g, &out->y);
    }
}

/* Memory behind the inner op's scratch, with a launch that ends before it. 0: there is none. */
static int find_room(struct check_call *c, struct guarded *g)
{
    const struct check_op *o = c->o;
    const struct bp_hdr *args = c->args;
    if (!o->plugin->guards || o->guard_bytes == 0 || c->l == NULL || c->l->scratch == NULL ||
        !BP_HAS(c->l, struct bp_launch, layer) || c->l->h.size > CHECK_MAX_LAUNCH ||
        args->size > CHECK_MAX_ARGS || c->l->scratch_bytes < o->inner_bytes + o->guard_bytes)
        return 0;
    const uint64_t at = (c->l->scratch_bytes - o->guard_bytes) & ~(uint64_t)(ALIGN - 1);
    if (at < o->inner_bytes) return 0;
    memcpy(g->args.bytes, c->args, args->size);
    memcpy(g->launch.bytes, c->l, c->l->h.size);
    g->launch.l.scratch_bytes = at;
    bp_area_of(&g->area, (unsigned char *)c->l->scratch + at, c->l->scratch_bytes - at);
    return 1;
}

static int32_t fail_write(const struct check_call *c, const struct bp_tensor *port,
                          const char *what, uint64_t n_bytes, const char *then)
{
    struct bp_text t;
    const int32_t rc = check_fail(c, BP_E_INTERNAL, &t);
    bp_text_add(&t, "the call wrote ");
    bp_text_add(&t, what);
    bp_text_add(&t, port->name);
    if (n_bytes != 0) {
        bp_text_add(&t, ", ");
        bp_text_u64(&t, n_bytes);
        bp_text_add(&t, then);
    }
    bp_text_add(&t, "; choose another provider for this slot and report it to the author");
    return rc;
}

/* Bytes inside of the span that belong to no row: 1 + their hash, or with `expect` 1 + how many differ from it. */
static uint64_t gaps(const struct bp_tensor *t, int expect)
{
    const int64_t bytes = bp_dtype_bytes(t->dtype);
    const unsigned char *at = t->data;
    uint64_t result = 1;
    if (t->stride[t->ndim - 1] != 1) return 1; /* numbers apart from each other: not looked at */
    for (struct bp_rows r = bp_rows_of(t); bp_rows_next(&r);) {
        const unsigned char *row = r.p;
        for (; at < row; ++at) {
            if (expect >= 0) {
                result += *at != expect;
            } else {
                result = (result ^ *at) * UINT64_C(0x100000001b3);
            }
        }
        if (row + r.n * bytes > at) at = row + r.n * bytes;
    }
    return result != 0 ? result : 1;
}

static int32_t check_moved(const struct check_call *c, const struct moved *m)
{
    const unsigned char *data = m->begin + CHECK_GUARD_BYTES, *behind = data + check_span(m->port);
    for (const unsigned char *p = behind; p < m->end; ++p) {
        if (*p != CANARY)
            return fail_write(c, m->port, "behind the end of output ", (uint64_t)(p - behind) + 1,
                              " bytes past it");
    }
    for (const unsigned char *p = data; p-- > m->begin;) {
        if (*p != CANARY)
            return fail_write(c, m->port, "before the begin of output ", (uint64_t)(data - p),
                              " bytes ahead of it");
    }
    if (gaps(&m->own, UNWRITTEN) != 1)
        return fail_write(c, m->port, "between the rows of output ", 0, "");
    return BP_OK;
}

static void copy_out(const struct moved *m)
{
    const int64_t bytes = bp_dtype_bytes(m->port->dtype), step = m->port->stride[m->port->ndim - 1];
    struct bp_rows from = bp_rows_of(&m->own), to = bp_rows_of(m->port);
    while (bp_rows_next(&from) && bp_rows_next(&to)) {
        if (step == 1) {
            memcpy(to.p, from.p, (size_t)(to.n * bytes));
            continue;
        }
        for (int64_t i = 0; i < to.n; ++i)
            memcpy((unsigned char *)to.p + i * step * bytes,
                   (const unsigned char *)from.p + i * step * bytes, (size_t)bytes);
    }
}

/* ---- outputs that stay where they are ---- */

static int has_gaps(const struct check_call *c, const struct guarded *g, uint32_t at)
{
    const struct bp_tensor *t = &c->port[at];
    if (t->access == BP_IN || t->layout_id != 0 || check_span(t) == 0) return 0;
    for (uint32_t i = 0; i < g->n; ++i) {
        if (g->moved[i].port == t) return 0;
    }
    for (uint32_t i = 0; i < c->n_port; ++i) { /* another output may well lie in its gaps */
        if (i != at && c->port[i].access != BP_IN && check_overlap(t, &c->port[i])) return 0;
    }
    return 1;
}

int32_t check_guarded_call(struct check_call *c)
{
    struct guarded g;
    const struct bp_launch *l = c->l;
    const void *args = c->args;
    g.n = 0;
    if (find_room(c, &g)) {
        l = &g.launch.l;
        args = g.args.bytes;
        for (uint32_t i = 0; i < c->slot->n_out; ++i) {
            move_output(c, &g, (struct bp_tensor *)(void *)(g.args.bytes + c->slot->out[i]));
        }
        if (c->slot->op == BP_QUANT_OP_MATMUL && strcmp(c->o->iface, "bp.quant") == 0)
            move_products(c, &g);
    } else {
        c->o->n_no_room++;
    }
    for (uint32_t i = 0; i < c->n_port; ++i) {
        if (!c->o->plugin->guards || !has_gaps(c, &g, i)) continue;
        c->gap_hash[i] = gaps(&c->port[i], -1);
        c->o->n_gaps++;
    }
    int32_t rc = c->slot->call(c->o, l, args, c->err);
    if (rc != BP_OK) return rc;
    for (uint32_t i = 0; i < g.n; ++i) {
        BP_TRY(check_moved(c, &g.moved[i]));
        copy_out(&g.moved[i]);
    }
    for (uint32_t i = 0; i < c->n_port; ++i) {
        if (c->gap_hash[i] != 0 && gaps(&c->port[i], -1) != c->gap_hash[i])
            return fail_write(c, &c->port[i], "between the rows of output ", 0, "");
    }
    return BP_OK;
}
