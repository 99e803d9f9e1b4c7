/* model_edit.h - a zoo model written anew with a few changes, so that each fault a file can have is one row of a table.
 * Uses the GGUF writer, so every file is a well-formed container: what is refused, is refused by core/model.
 * Threads: one. SPDX-License-Identifier: MIT */
#ifndef BP_TEST_MODEL_EDIT_H
#define BP_TEST_MODEL_EDIT_H

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "harness/models.h"
#include "model/model_priv.h"

/* Key names without the architecture in front; those with "general." or "tokenizer." stand as they are. A tensor name that
 * begins with a star means every tensor that ends so, one that ends with a star every tensor that begins so. */
enum edit_op {
    ED_END = 0,
    ED_DROP_KEY,
    ED_U32,      /* v */
    ED_F32,      /* f */
    ED_BOOL,     /* v */
    ED_STR,      /* s */
    ED_ARR_BOOL, /* s: "1,0,0" */
    ED_ARR_I32,
    ED_TOKENS, /* v entries of tokenizer.ggml.tokens */
    ED_DROP,
    ED_RENAME, /* s: new name */
    ED_COPY,   /* s: second name */
    ED_SHAPE,  /* s: "64,160"; the data becomes zeros */
    ED_TYPE,   /* v; the data becomes zeros */
    ED_POKE,   /* f into element 0 of an F32 tensor */
    ED_PREFIX, /* s before every name */
    ED_FLAT,   /* k_b and v_b lose their third dimension */
    ED_JOINT, /* k_b and v_b become kv_b, in the blocks whose names match; v = 1: the pair stays as well */
    ED_FUSE, /* gate_exps and up_exps become gate_up_exps, likewise */
    ED_ADD   /* a new F32 tensor: s numbers, all of them v; "16!": the last one v - 1 */
};
struct edit {
    uint32_t op;
    const char *name;
    double v;
    const char *s;
};
enum { ED_MAX = 8, ED_BLOBS = 4096 };

struct editor {
    struct bpi_gguf *src;
    struct bpi_gguf_writer *w;
    const struct edit *edits; /* ends with ED_END */
    bool used[ED_MAX];        /* an edit that matched nothing is a mistake in the test */
    char arch[32];
    void *blob[ED_BLOBS]; /* data that lives until the file is saved */
    size_t n_blob;
};

static inline void *ed_blob(struct editor *e, size_t n)
{
    ck_assert_uint_lt(e->n_blob, ED_BLOBS);
    void *p = calloc(1, n > 0 ? n : 1);
    ck_assert_ptr_nonnull(p);
    e->blob[e->n_blob++] = p;
    return p;
}

static inline bool ed_match(const char *pattern, const char *name)
{
    size_t n = strlen(pattern), len = strlen(name);
    if (n > 1 && pattern[n - 1] == '*') return strncmp(pattern, name, n - 1) == 0;
    if (pattern[0] != '*') return strcmp(pattern, name) == 0;
    n -= 1;
    return len >= n && strcmp(name + len - n, pattern + 1) == 0;
}

static inline void ed_key(const struct editor *e, const char *name, char out[160])
{
    bool whole = strncmp(name, "general.", 8) == 0 || strncmp(name, "tokenizer.", 10) == 0;
    snprintf(out, 160, whole ? "%s%s" : "%s.%s", whole ? "" : e->arch, name);
}

static inline void ed_put_array(struct editor *e, const char *key, uint32_t elem_kind,
                                const char *list)
{
    int64_t values[64];
    uint64_t n = 0;
    for (const char *p = list; *p != '\0' && n < 64;) {
        char *end;
        values[n++] = strtoll(p, &end, 10);
        p = *end == ',' ? end + 1 : end;
    }
    size_t size = elem_kind == BPI_GGUF_BOOL ? 1 : 4;
    unsigned char *bytes = ed_blob(e, n * size);
    for (uint64_t i = 0; i < n; ++i) {
        int32_t v = (int32_t)values[i];
        memcpy(bytes + i * size, &v, size);
    }
    struct bpi_gguf_kv kv = {{key, strlen(key)}, BPI_GGUF_ARRAY, elem_kind, n, bytes, n * size};
    ck_assert_int_eq(bpi_gguf_put_copy(e->w, &kv), BP_OK);
}

static inline void ed_put_tokens(struct editor *e, const char *key, uint64_t n)
{
    unsigned char *bytes = ed_blob(e, n * 8);
    struct bpi_gguf_kv kv = {{key, strlen(key)}, BPI_GGUF_ARRAY, BPI_GGUF_STRING, n, bytes, n * 8};
    ck_assert_int_eq(bpi_gguf_put_copy(e->w, &kv), BP_OK);
}

static inline void ed_put_key(struct editor *e, const struct edit *d)
{
    char key[160];
    ed_key(e, d->name, key);
    switch (d->op) {
    case ED_U32:
        bpi_gguf_put_u32(e->w, key, (uint32_t)d->v);
        break;
    case ED_F32:
        bpi_gguf_put_f32(e->w, key, (float)d->v);
        break;
    case ED_BOOL:
        bpi_gguf_put_bool(e->w, key, d->v != 0);
        break;
    case ED_STR:
        bpi_gguf_put_str(e->w, key, d->s, strlen(d->s));
        break;
    case ED_ARR_BOOL:
        ed_put_array(e, key, BPI_GGUF_BOOL, d->s);
        break;
    case ED_ARR_I32:
        ed_put_array(e, key, BPI_GGUF_I32, d->s);
        break;
    case ED_TOKENS:
        ed_put_tokens(e, key, (uint64_t)d->v);
        break;
    default:
        break;
    }
}

static inline void ed_keys(struct editor *e)
{
    for (uint64_t i = 0; i < bpi_gguf_n_kv(e->src); ++i) {
        const struct bpi_gguf_kv *kv = bpi_gguf_kv_at(e->src, i);
        bool keep = true;
        for (uint32_t j = 0; e->edits[j].op != ED_END; ++j) {
            char key[160];
            if (e->edits[j].op > ED_TOKENS) continue;
            ed_key(e, e->edits[j].name, key);
            if (strlen(key) != kv->key.n || memcmp(key, kv->key.data, kv->key.n) != 0) continue;
            keep = false;
            e->used[j] = true;
        }
        if (keep) ck_assert_int_eq(bpi_gguf_put_copy(e->w, kv), BP_OK);
    }
    for (uint32_t j = 0; e->edits[j].op != ED_END; ++j) {
        if (e->edits[j].op > ED_TOKENS || e->edits[j].op == ED_DROP_KEY) continue;
        ed_put_key(e, &e->edits[j]);
        e->used[j] = true;
    }
}

/* kv_b from the pair, as models.md 4.4 relates them: key rows are the transpose of k_b, value rows are v_b's own. */
static inline void ed_put_joint(struct editor *e, const char *k_name)
{
    char name[80];
    size_t stem = strlen(k_name) - strlen("attn_k_b.weight");
    snprintf(name, sizeof name, "%.*sattn_v_b.weight", (int)stem, k_name);
    const struct bpi_gguf_tensor *k = bpi_gguf_tensor(e->src, k_name),
                                 *v = bpi_gguf_tensor(e->src, name);
    ck_assert(k->type == BP_GGUF_BF16 && v->type == BP_GGUF_BF16);
    int64_t P = k->ne[0], C = k->ne[1], H = k->ne[2], V = v->ne[1], ne[4] = {C, H * (P + V), 1, 1};
    const uint16_t *ks = (const uint16_t *)k->data, *vs = (const uint16_t *)v->data;
    uint64_t n_bytes = (uint64_t)(ne[0] * ne[1]) * 2;
    uint16_t *out = ed_blob(e, n_bytes);
    for (int64_t h = 0; h < H; ++h)
        for (int64_t c = 0; c < C; ++c) {
            for (int64_t p = 0; p < P; ++p)
                out[(h * (P + V) + p) * C + c] = ks[p + P * (c + C * h)];
            for (int64_t r = 0; r < V; ++r)
                out[(h * (P + V) + P + r) * C + c] = vs[c + C * (r + V * h)];
        }
    snprintf(name, sizeof name, "%.*sattn_kv_b.weight", (int)stem, k_name);
    bpi_gguf_put_tensor(e->w, name, BP_GGUF_BF16, 2, ne, out, n_bytes);
}

static inline void ed_put_fused(struct editor *e, const char *gate_name)
{
    char name[80];
    size_t stem = strlen(gate_name) - strlen("ffn_gate_exps.weight");
    snprintf(name, sizeof name, "%.*sffn_up_exps.weight", (int)stem, gate_name);
    const struct bpi_gguf_tensor *g = bpi_gguf_tensor(e->src, gate_name),
                                 *u = bpi_gguf_tensor(e->src, name);
    int64_t ne[4] = {g->ne[0], 2 * g->ne[1], g->ne[2], 1};
    size_t half = (size_t)(g->n_bytes / (uint64_t)g->ne[2]);
    unsigned char *out = ed_blob(e, 2 * g->n_bytes);
    for (int64_t x = 0; x < g->ne[2]; ++x) {
        memcpy(out + 2 * x * (int64_t)half, g->data + x * (int64_t)half, half);
        memcpy(out + (2 * x + 1) * (int64_t)half, u->data + x * (int64_t)half, half);
    }
    snprintf(name, sizeof name, "%.*sffn_gate_up_exps.weight", (int)stem, gate_name);
    bpi_gguf_put_tensor(e->w, name, g->type, 3, ne, out, 2 * g->n_bytes);
}

/* One tensor through all edits; false when it is not to be written. */
static inline bool ed_tensor(struct editor *e, struct bpi_gguf_tensor *t, char *name, size_t cap)
{
    bool keep = true;
    for (uint32_t j = 0; e->edits[j].op != ED_END; ++j) {
        const struct edit *d = &e->edits[j];
        bool any = d->op == ED_PREFIX || d->op == ED_FLAT;
        if (d->op <= ED_TOKENS || d->op == ED_ADD || (!any && !ed_match(d->name, t->name)))
            continue;
        e->used[j] = true;
        bool is_k = ed_match("*.attn_k_b.weight", t->name),
             is_v = ed_match("*.attn_v_b.weight", t->name);
        bool is_gate = ed_match("*.ffn_gate_exps.weight", t->name),
             is_up = ed_match("*.ffn_up_exps.weight", t->name);
        if (d->op == ED_DROP) keep = false;
        if (d->op == ED_RENAME) snprintf(name, cap, "%s", d->s);
        if (d->op == ED_PREFIX) snprintf(name, cap, "%s%s", d->s, t->name);
        if (d->op == ED_COPY)
            bpi_gguf_put_tensor(e->w, d->s, t->type, t->n_dim, t->ne, t->data, t->n_bytes);
        if (d->op == ED_FLAT && (is_k || is_v)) {
            t->n_dim = 2;
            t->ne[1] *= t->ne[2];
            t->ne[2] = 1;
        }
        if (d->op == ED_JOINT && is_k) ed_put_joint(e, t->name);
        if (d->op == ED_JOINT && (is_k || is_v)) keep = keep && d->v == 1;
        if (d->op == ED_FUSE && is_gate) ed_put_fused(e, t->name);
        if (d->op == ED_FUSE && (is_gate || is_up)) keep = keep && d->v == 1;
        if (d->op == ED_SHAPE) {
            t->n_dim = 0;
            for (const char *p = d->s; *p != '\0';) {
                char *end;
                t->ne[t->n_dim++] = strtoll(p, &end, 10);
                p = *end == ',' ? end + 1 : end;
            }
            for (uint32_t k = t->n_dim; k < 4; ++k) t->ne[k] = 1;
        }
        if (d->op == ED_TYPE) t->type = (uint32_t)d->v;
        if (d->op == ED_SHAPE || d->op == ED_TYPE) {
            uint64_t n_elem = (uint64_t)(t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]);
            ck_assert(bpi_block_bytes(t->type, n_elem, &t->n_bytes));
            t->data = ed_blob(e, t->n_bytes);
        }
        if (d->op == ED_POKE) {
            ck_assert_uint_eq(t->type, BP_GGUF_F32);
            float f = (float)d->v;
            unsigned char *copy = ed_blob(e, t->n_bytes);
            memcpy(copy, t->data, t->n_bytes);
            memcpy(copy, &f, 4);
            t->data = copy;
        }
    }
    return keep;
}

static inline void ed_add(struct editor *e, const struct edit *d)
{
    char *end;
    int64_t ne[4] = {strtoll(d->s, &end, 10), 1, 1, 1};
    float *v = ed_blob(e, (size_t)ne[0] * sizeof *v);
    for (int64_t i = 0; i < ne[0]; ++i) v[i] = (float)d->v;
    if (*end == '!') v[ne[0] - 1] -= 1.0f;
    ck_assert_int_eq(bpi_gguf_put_tensor(e->w, d->name, BP_GGUF_F32, 1, ne, v, (uint64_t)ne[0] * 4),
                     BP_OK);
}

static inline void ed_tensors(struct editor *e)
{
    for (uint64_t i = 0; i < bpi_gguf_n_tensors(e->src); ++i) {
        struct bpi_gguf_tensor t = *bpi_gguf_tensor_at(e->src, i);
        char name[160];
        snprintf(name, sizeof name, "%s", t.name);
        if (!ed_tensor(e, &t, name, sizeof name)) continue;
        ck_assert_int_eq(bpi_gguf_put_tensor(e->w, name, t.type, t.n_dim, t.ne, t.data, t.n_bytes),
                         BP_OK);
    }
    for (uint32_t j = 0; e->edits[j].op != ED_END; ++j) {
        if (e->edits[j].op != ED_ADD) continue;
        ed_add(e, &e->edits[j]);
        e->used[j] = true;
    }
}

/* Writes `model` (a file that bp_test_model finds) with the edits and opens the result. */
static inline struct bpi_gguf *edited_gguf(const char *model, const struct edit *edits)
{
    static const struct edit none[1] = {{ED_END, NULL, 0, NULL}};
    struct editor e = {.edits = edits != NULL ? edits : none};
    struct bp_error err = BP_ERROR_INIT;
    const char *path = bp_test_model(model);
    ck_assert_msg(path != NULL, "no model file %s", model);
    ck_assert_msg(bpi_gguf_open(path, &e.src, &err) == BP_OK, "%s: %s", model, err.msg);
    struct bpi_span arch;
    ck_assert_int_eq(bpi_gguf_get_str(e.src, "general.architecture", &arch, NULL, &err), BP_OK);
    snprintf(e.arch, sizeof e.arch, "%.*s", (int)arch.n, arch.data);
    ck_assert_int_eq(bpi_gguf_writer_create(&e.w, &err), BP_OK);
    ed_keys(&e);
    ed_tensors(&e);
    for (uint32_t j = 0; e.edits[j].op != ED_END; ++j)
        ck_assert_msg(e.used[j], "edit %u (%s) matched nothing in %s", j, e.edits[j].name, model);

    char out[64];
    snprintf(out, sizeof out, "model_edit.%ld.gguf", (long)getpid());
    ck_assert_msg(bpi_gguf_writer_save(e.w, out, &err) == BP_OK, "%s", err.msg);
    bpi_gguf_writer_destroy(e.w);
    bpi_gguf_close(e.src);
    for (size_t i = 0; i < e.n_blob; ++i) free(e.blob[i]);
    struct bpi_gguf *g = NULL;
    ck_assert_msg(bpi_gguf_open(out, &g, &err) == BP_OK, "%s", err.msg);
    unlink(out); /* the mapping keeps it */
    return g;
}

/* settings: "model.indexer=off", several separated by blanks, or NULL. */
static inline struct bpi_config *test_config(const char *settings)
{
    struct bpi_config *c = NULL;
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_int_eq(bpi_config_create(&c, &err), BP_OK);
    char copy[256];
    snprintf(copy, sizeof copy, "%s", settings != NULL ? settings : "");
    char *rest = copy;
    for (char *one = strtok_r(rest, " ", &rest); one != NULL; one = strtok_r(NULL, " ", &rest))
        ck_assert_msg(bpi_config_set(c, one, &err) == BP_OK, "%s", err.msg);
    return c;
}

static inline struct bpi_model *edited_model(const char *model, const struct edit *edits,
                                             const char *settings)
{
    struct bpi_gguf *g = edited_gguf(model, edits);
    struct bpi_config *c = test_config(settings);
    struct bpi_model *m = NULL;
    struct bp_error err = BP_ERROR_INIT;
    int32_t rc = bpi_model_open(g, c, &m, &err);
    ck_assert_msg(rc == BP_OK, "%s: %s: %s", model, err.where, err.msg);
    bpi_config_destroy(c);
    return m;
}

/* The first report line of a kind whose name ends with `name` and whose text contains `text`; NULL when there is none. */
static inline const struct bpi_report_entry *find_line(const struct bpi_model *m, uint32_t kind,
                                                       const char *name, const char *text)
{
    char pattern[160];
    snprintf(pattern, sizeof pattern, "*%s", name);
    for (size_t i = 0; i < bpi_model_report_n(m); ++i) {
        const struct bpi_report_entry *r = bpi_model_report(m, i);
        if (r->kind == kind && ed_match(pattern, r->name) && strstr(r->text, text) != NULL)
            return r;
    }
    return NULL;
}

static inline void print_report(const struct bpi_model *m)
{
    for (size_t i = 0; i < bpi_model_report_n(m); ++i) {
        const struct bpi_report_entry *r = bpi_model_report(m, i);
        fprintf(stderr, "  %u %s: %s\n", r->kind, r->name, r->text);
    }
}

#define ASSERT_LINE(m, kind, name, text)                                                           \
    do {                                                                                           \
        if (find_line(m, kind, name, text) == NULL) {                                              \
            print_report(m);                                                                       \
            ck_abort_msg("no line of kind %d for %s with '%s'", kind, name, text);                 \
        }                                                                                          \
    } while (0)

/* Fails on NaN. */
#define ASSERT_NEAR(got, want, rel)                                                                \
    ck_assert_msg(fabs((got) - (want)) <= (rel)*fabs(want), "%.12g, wanted %.12g", (double)(got),  \
                  (double)(want))

static inline int run_cases(const char *name, void (*add)(TCase *), double timeout)
{
    Suite *s = suite_create(name);
    TCase *tc = tcase_create(name);
    tcase_set_timeout(tc, timeout);
    add(tc);
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#endif
