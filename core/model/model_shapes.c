/* model_shapes.c - every tensor that is used against the shape its row of the table gives.
 * Rows write shapes as small expressions ("Q H*(P+R)"), so that messages can show the very rule that was broken.
 * SPDX-License-Identifier: MIT */
#include "model/model_priv.h"

#include <stdio.h>
#include <string.h>

/* The number behind a letter of the table; 0 for a letter that this model has no use for. */
static uint64_t symbol(const struct bpi_hparams *hp, char c)
{
    switch (c) {
    case 'E':
        return hp->n_embd;
    case 'N':
        return hp->n_vocab;
    case 'H':
        return hp->n_head;
    case 'P':
        return hp->nope;
    case 'R':
        return hp->rope;
    case 'V':
        return hp->v_dim;
    case 'C':
        return hp->kv_lora;
    case 'Q':
        return hp->q_lora;
    case 'D':
        return hp->n_ff;
    case 'X':
        return hp->n_expert;
    case 'F':
        return hp->n_ff_exp;
    case 'S':
        return hp->n_ff_shared;
    case 'J':
        return hp->n_index_head;
    case 'I':
        return hp->index_dim;
    default:
        return c >= '0' && c <= '9' ? (uint64_t)(c - '0') : 0;
    }
}

/* product := atom { '*' atom }, atom := letter | digit | '(' letter '+' letter ')'. Every dimension is below 2^31 and no
 * row multiplies more than two of them, so 64 bits hold the result. */
static uint64_t product(const struct bpi_hparams *hp, const char **p)
{
    uint64_t v = 1;
    for (;;) {
        if (**p == '(') {
            v *= symbol(hp, (*p)[1]) + symbol(hp, (*p)[3]);
            *p += 5;
        } else {
            v *= symbol(hp, *(*p)++);
        }
        if (**p != '*') return v;
        ++*p;
    }
}

static uint64_t sum(const struct bpi_hparams *hp, const char **p)
{
    uint64_t v = product(hp, p);
    while (**p == '+') {
        ++*p;
        v += product(hp, p);
    }
    return v;
}

uint32_t bpi_shape_eval(const struct bpi_hparams *hp, const char *shape, int64_t ne[4])
{
    uint32_t n = 0;
    for (uint32_t d = 0; d < 4; ++d) ne[d] = 1;
    for (const char *p = shape; *p != '\0' && n < 4;) {
        ne[n++] = (int64_t)sum(hp, &p);
        if (*p == ' ') ++p;
    }
    return n;
}

static bool same(const int64_t a[4], const int64_t b[4])
{
    return memcmp(a, b, 4 * sizeof a[0]) == 0;
}

static int32_t check_shape(const struct bpi_model *m, const struct bpi_gguf_tensor *t,
                           uint32_t role, struct bp_error *err)
{
    const char *shape = bpi_tensor_specs(NULL)[role].shape;
    struct bpi_gguf_tensor want = {.n_dim = 0};
    want.n_dim = bpi_shape_eval(&m->hp, shape, want.ne);
    if (same(t->ne, want.ne)) return BP_OK;
    if (bpi_role_rules[role].when == BPI_WHEN_KV_SPLIT) {
        /* The other writer's form: heads joined with the dimension before them, same bytes. */
        int64_t flat[4] = {want.ne[0], want.ne[1] * want.ne[2], 1, 1};
        if (same(t->ne, flat)) return BP_OK;
    }
    char got[96], wanted[96];
    bpi_dims_text(t, got, sizeof got);
    bpi_dims_text(&want, wanted, sizeof wanted);
    return bpi_fail(err, BP_E_FORMAT, "model", t->name, "tensor %s is %s; %s (%s) was expected",
                    t->name, got, wanted, shape);
}

int32_t bpi_model_check_shapes(const struct bpi_model *m, struct bp_error *err)
{
    for (uint32_t role = 0; role <= BPI_W_OUTPUT; ++role) {
        const struct bpi_gguf_tensor *t = bpi_model_tensor(m, role, 0);
        if (t != NULL) BP_TRY(check_shape(m, t, role, err));
    }
    for (uint32_t layer = 0; layer < m->hp.n_layer; ++layer) {
        for (uint32_t role = BPI_W_OUTPUT + 1; role < BPI_W_COUNT; ++role) {
            const struct bpi_gguf_tensor *t = bpi_model_tensor(m, role, layer);
            if (t != NULL) BP_TRY(check_shape(m, t, role, err));
        }
    }
    return BP_OK;
}
