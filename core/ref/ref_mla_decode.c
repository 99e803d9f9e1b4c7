/* ref_mla_decode.c - "bp.mla.decode" of the reference backend: absorbed queries against the latent pool.
 * An item is one row and up to GROUP of its heads, so that a cached row is converted once for several heads. Keys are
 * taken in steps counted from the row's first key (dense) or from the first entry of its list that is not -1 (sparse);
 * a list of all positions therefore gives the very bits of a dense row.
 * Threads: one call per instance; a call uses the host's threads. SPDX-License-Identifier: MIT */
#include "ref/ref_mla.h"

#include <inttypes.h>

enum { GROUP = 4, STEP = BPI_REF_MLA_STEP };

struct job {
    const struct bpi_ref *ref;
    const struct bp_mla_decode_args *a;
    struct bpi_ref_mla_pool pool;
    int64_t n_head, n_group, latent, width; /* C, C + R */
};

/* What an item keeps in its slice. */
struct parts {
    float *part;  /* [width] */
    double *q;    /* [GROUP][width] */
    double *acc;  /* [GROUP][latent] */
    float *cells; /* [STEP][width]; used when the pool is not plain f32 */
    double scores[GROUP][STEP];
    const float *rows[STEP];
};

static uint64_t slice_bytes(uint64_t latent, uint64_t width)
{
    return bpi_ref_mla_align(sizeof(struct parts)) + bpi_ref_mla_align(width * sizeof(float)) +
           bpi_ref_mla_align(GROUP * width * sizeof(double)) +
           bpi_ref_mla_align(GROUP * latent * sizeof(double)) +
           bpi_ref_mla_align(STEP * width * sizeof(float));
}

static struct parts *cut(const struct job *j, unsigned char *scratch)
{
    const uint64_t width = (uint64_t)j->width, latent = (uint64_t)j->latent;
    struct parts *p = (struct parts *)scratch;
    scratch += bpi_ref_mla_align(sizeof *p);
    p->part = (float *)scratch;
    scratch += bpi_ref_mla_align(width * sizeof(float));
    p->q = (double *)scratch;
    scratch += bpi_ref_mla_align(GROUP * width * sizeof(double));
    p->acc = (double *)scratch;
    scratch += bpi_ref_mla_align(GROUP * latent * sizeof(double));
    p->cells = (float *)scratch;
    return p;
}

/* Keys of a row. `list` is NULL for dense rows. */
struct keys {
    const int32_t *list;
    int64_t n, at; /* entries or positions, and the next one */
    int64_t seq;
};

static struct keys row_keys(const struct bp_mla_decode_args *a, int64_t row)
{
    const struct bp_mla_decode_meta *m = a->meta;
    struct keys k = {.n = m->row_kv_len_host[row], .seq = m->row_seq_host[row]};
    if (k.n <= 0) return (struct keys){.n = 0}; /* padding, whatever its list says */
    if (a->idx.data == NULL) return k;
    const int32_t n_list = *(const int32_t *)bpi_ref_at(&a->idx_len, row, 0, 0);
    if (n_list < 0) return k;
    k.n = n_list;
    k.list = bpi_ref_at(&a->idx, row, 0, 0);
    return k;
}

/* Pointers to the next keys, at most STEP; 0 when there are none left. */
static uint32_t next_keys(const struct job *j, struct keys *k, struct parts *p)
{
    const bool plain = j->pool.dtype == BP_DT_F32 && j->ref->round == BPI_REF_ROUND_NONE;
    uint32_t n = 0;
    for (; k->at < k->n && n < STEP; ++k->at) {
        int64_t slot;
        if (k->list == NULL)
            slot = bpi_ref_mla_slot(j->a->meta->common, k->seq, k->at);
        else
            slot = k->list[k->at];
        if (slot < 0) continue;
        const void *cell = bpi_ref_mla_pool_row(&j->pool, slot);
        p->rows[n] = plain ? cell : p->cells + n * j->width;
        if (!plain) {
            bpi_ref_load(p->cells + n * j->width, cell, j->pool.dtype, j->width, j->ref->round);
        }
        ++n;
    }
    return n;
}

static void row_item(void *arg, uint64_t item, unsigned char *scratch)
{
    const struct job *j = arg;
    const struct bp_mla_decode_args *a = j->a;
    const int64_t row = (int64_t)(item / (uint64_t)j->n_group);
    const int64_t head = (int64_t)(item % (uint64_t)j->n_group) * GROUP;
    const uint32_t n = (uint32_t)(j->n_head - head < GROUP ? j->n_head - head : GROUP);
    struct parts *p = cut(j, scratch);
    struct keys keys = row_keys(a, row);
    struct bpi_ref_mla_soft soft[GROUP];
    for (uint32_t i = 0; i < n; ++i) {
        bpi_ref_mla_soft_begin(&soft[i], p->acc + i * j->latent, j->latent);
        if (keys.n == 0)
            continue; /* a padded row's query may be anything, signalling NaN included */
        bpi_ref_mla_load_d(p->q + i * j->width, p->part, bpi_ref_at(&a->q, row, head + i, 0),
                           a->q.dtype, j->width, j->ref->round);
    }
    for (uint32_t n_key; (n_key = next_keys(j, &keys, p)) > 0;) {
        bpi_ref_mla_dots(p->q, n, p->rows, n_key, j->width, p->scores[0], STEP);
        for (uint32_t i = 0; i < n; ++i) {
            for (uint32_t s = 0; s < n_key; ++s) p->scores[i][s] *= (double)a->scale;
            bpi_ref_mla_soft_step(&soft[i], p->scores[i], p->rows, n_key);
        }
    }
    for (uint32_t i = 0; i < n; ++i) {
        double lse = bpi_ref_mla_soft_end(&soft[i]);
        bpi_ref_store(bpi_ref_at(&a->out, row, head + i, 0), a->out.dtype, soft[i].acc, j->latent,
                      j->ref->round);
        if (a->lse.data == NULL) continue;
        *(float *)bpi_ref_at(&a->lse, row, head + i, 0) = (float)lse;
    }
}

/* Every key of every row lies in the pool; *out_keys counts them. */
static int32_t check_rows(const struct job *j, uint64_t *out_keys, const char *op,
                          struct bp_error *err)
{
    const struct bp_mla_decode_args *a = j->a;
    const struct bp_mla_decode_meta *m = a->meta;
    *out_keys = 0;
    for (int64_t row = 0; row < (int64_t)m->n_row_padded; ++row) {
        if (a->idx.data != NULL && m->row_kv_len_host[row] > 0) {
            const int64_t n = *(const int32_t *)bpi_ref_at(&a->idx_len, row, 0, 0);
            if (n < -1 || n > a->idx.dim[1]) {
                return bpi_fail(err, BP_E_ARG, "ref", op,
                                "row %" PRId64 " has idx_len %" PRId64 ", and a list holds -1 (all "
                                "keys) to %" PRId64,
                                row, n, a->idx.dim[1]);
            }
        }
        const struct keys k = row_keys(a, row);
        *out_keys += (uint64_t)k.n;
        if (k.list == NULL) {
            BP_TRY(bpi_ref_mla_check_keys(m->common, &j->pool, k.seq, 0, k.n, op, err));
            continue;
        }
        for (int64_t i = 0; i < k.n; ++i) {
            if (k.list[i] < 0 || bpi_ref_mla_slot_ok(&j->pool, k.list[i])) continue;
            return bpi_fail(err, BP_E_ARG, "ref", op,
                            "row %" PRId64 " lists token slot %d, and the pool has %" PRId64
                            " blocks of %u tokens",
                            row, k.list[i], j->pool.n_block, j->pool.block_tok);
        }
    }
    return BP_OK;
}

static int32_t decode_run(void *self, const struct bp_launch *l, const struct bp_mla_decode_args *a,
                          struct bp_error *err)
{
    static const char op[] = "mla.decode run";
    const struct bp_mla_decode_meta *m = a->meta;
    const int64_t n_row = m->n_row_padded;
    uint64_t n_key;
    if (n_row == 0) return BP_OK;
    struct job j = {.ref = self, .a = a, .n_head = a->q.dim[1]};
    j.width = a->q.dim[2];
    j.latent = a->out.dim[2];
    j.n_group = (j.n_head + GROUP - 1) / GROUP;
    BP_TRY(bpi_ref_mla_port(&a->q, "q", BP_DT_NONE, n_row, j.n_head, j.width, op, err));
    BP_TRY(bpi_ref_mla_port(&a->out, "out", BP_DT_NONE, n_row, j.n_head, j.latent, op, err));
    if (a->lse.data != NULL) {
        BP_TRY(bpi_ref_mla_port(&a->lse, "lse", BP_DT_F32, n_row, j.n_head, 0, op, err));
    }
    if (a->idx.data != NULL) {
        BP_TRY(bpi_ref_mla_port(&a->idx, "idx", BP_DT_I32, n_row, a->idx.dim[1], 0, op, err));
        BP_TRY(bpi_ref_mla_port(&a->idx_len, "idx_len", BP_DT_I32, n_row, 0, 0, op, err));
    }
    if (j.latent > j.width) {
        return bpi_fail(err, BP_E_ARG, "ref", op,
                        "out has %" PRId64 " latents, and a query has only %" PRId64 " numbers",
                        j.latent, j.width);
    }
    BP_TRY(bpi_ref_mla_pool_open(&a->pool, "mla", j.width, m->common->block_tok, op, &j.pool, err));
    BP_TRY(check_rows(&j, &n_key, op, err));
    uint64_t work = n_key * (uint64_t)(j.n_head * (j.width + j.latent));
    return bpi_ref_mla_each(j.ref, l, (uint64_t)(n_row * j.n_group),
                            slice_bytes((uint64_t)j.latent, (uint64_t)j.width), work, row_item, &j,
                            op, err);
}

/* A row's keys are walked by one thread: there is no work to split in advance. */
static int32_t decode_plan(void *self, const struct bp_launch *l,
                           const struct bp_mla_decode_meta *m, struct bp_error *err)
{
    (void)self;
    (void)l;
    (void)m;
    (void)err;
    return BP_OK;
}

static int32_t decode_supports(void *self, const void *problem, struct bp_verdict *v)
{
    (void)self;
    struct bp_mla_problem p;
    bpi_ref_mla_check_problem(problem, &p, true, v);
    bpi_ref_mla_check_latent(&p, true, v);
    bpi_ref_verdict_done(v);
    return BP_OK;
}

static int32_t decode_workspace(void *self, const void *problem_max, struct bp_workspace *out,
                                struct bp_error *err)
{
    (void)self;
    const struct bp_mla_problem *p = problem_max;
    const uint64_t n_row = p->max_rows > p->max_tok ? p->max_rows : p->max_tok;
    uint64_t scratch_bytes;
    if (!bpi_ref_mla_scratch(n_row * p->n_head,
                             slice_bytes(p->kv_rank, (uint64_t)p->kv_rank + p->rope_dim),
                             &scratch_bytes)) {
        return bpi_fail(err, BP_E_LIMIT, "ref", "mla.decode workspace",
                        "the scratch of this problem overflows a 64-bit size");
    }
    bpi_ref_mla_workspace(out, scratch_bytes);
    return BP_OK;
}

static int32_t decode_tensors(void *self, uint32_t slot, const void *args, struct bp_tensor *t,
                              uint32_t *n)
{
    (void)self;
    const struct bp_mla_decode_args *a = args;
    struct bp_tensor ports[6];
    uint32_t count = 0;
    if (slot != BP_MLA_DECODE_OP_RUN) return BP_E_ARG;
    ports[count++] = bpi_ref_port(&a->q, "q", BP_IN);
    ports[count++] = bpi_ref_port(&a->pool, "pool", BP_IN);
    ports[count++] = bpi_ref_port(&a->out, "out", BP_OUT);
    if (a->lse.data != NULL) ports[count++] = bpi_ref_port(&a->lse, "lse", BP_OUT);
    if (a->idx.data != NULL) {
        ports[count++] = bpi_ref_port(&a->idx, "idx", BP_IN);
        ports[count++] = bpi_ref_port(&a->idx_len, "idx_len", BP_IN);
    }
    bpi_ref_list(ports, count, t, n);
    return BP_OK;
}

const struct bp_op_base *bpi_ref_mla_decode_ops(void)
{
    static const struct bp_mla_decode_ops ops = {
        .base = {.h = BP_HDR(struct bp_mla_decode_ops, run),
                 .iface = "bp.mla.decode",
                 .iface_major = 0,
                 .iface_minor = 1,
                 .supports = decode_supports,
                 .workspace = decode_workspace,
                 .tensors = decode_tensors},
        .plan = decode_plan,
        .run = decode_run,
    };
    return &ops.base;
}
