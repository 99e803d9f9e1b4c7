/* quantize_plan.c - which type every tensor gets, and the metadata of the new file.
 * Not here: encoding and writing (quantize_write.c).
 * Sources: fallbacks, what is kept and the mixes' rules for output and ffn_down from llama.cpp src/llama-quant.cpp; the
 * better types of attention in models with experts from ik_llama.cpp src/llama-quantize.cpp; both restated.
 * Threads: pure but for allocation. SPDX-License-Identifier: MIT */
#include "quantize/quantize.h"

#include <string.h>
#include "block/block.h"

#define DOMAIN "quantize"

/* ---- targets ---- */

// clang-format off
/* X(NAME, type, number in general.file_type, mixed). The numbers are llama.cpp's; where it only knows mixes, the one
 * that is nearest. */
#define TARGET_MAP(X)                \
    X(F32,    F32,    0,  false)     \
    X(F16,    F16,    1,  false)     \
    X(BF16,   BF16,   32, false)     \
    X(Q4_0,   Q4_0,   2,  false)     \
    X(Q4_1,   Q4_1,   3,  false)     \
    X(Q5_0,   Q5_0,   8,  false)     \
    X(Q5_1,   Q5_1,   9,  false)     \
    X(Q8_0,   Q8_0,   7,  false)     \
    X(Q2_K,   Q2_K,   10, false)     \
    X(Q3_K,   Q3_K,   11, false)     \
    X(Q4_K,   Q4_K,   14, false)     \
    X(Q5_K,   Q5_K,   16, false)     \
    X(Q6_K,   Q6_K,   18, false)     \
    X(IQ4_NL, IQ4_NL, 25, false)     \
    X(IQ4_XS, IQ4_XS, 30, false)     \
    X(Q4_K_M, Q4_K,   15, true)      \
    X(Q5_K_M, Q5_K,   17, true)

static const struct bpi_quantize_target targets[] = {
#define ROW(name, type, number, mixed) {#name, BP_GGUF_##type, number, mixed},
    TARGET_MAP(ROW)
#undef ROW
};

/* Each name brings its separator along; the reader skips the first one. */
#define NAME(name, ...) ", " #name
static const char target_names[] = TARGET_MAP(NAME);
#undef NAME

/* What a type gives way to where rows are no whole number of its blocks. Types that are not here give way to F16, which
 * has no blocks. */
static const struct { uint32_t from, to; } fallbacks[] = {
    {BP_GGUF_Q2_K, BP_GGUF_IQ4_NL}, {BP_GGUF_Q3_K, BP_GGUF_IQ4_NL}, {BP_GGUF_IQ4_XS, BP_GGUF_IQ4_NL},
    {BP_GGUF_Q4_K, BP_GGUF_Q5_0},   {BP_GGUF_Q5_K, BP_GGUF_Q5_1},   {BP_GGUF_Q6_K, BP_GGUF_Q8_0},
};
// clang-format on

static char upper(char c)
{
    return c >= 'a' && c <= 'z' ? (char)(c - 'a' + 'A') : c;
}

const struct bpi_quantize_target *bpi_quantize_target(const char *name)
{
    for (size_t i = 0; i < BPI_ARRAY_LEN(targets); ++i) {
        const char *a = targets[i].name, *b = name;
        while (*a != '\0' && *a == upper(*b)) {
            ++a;
            ++b;
        }
        if (*a == '\0' && *b == '\0') return &targets[i];
    }
    return NULL;
}

const char *bpi_quantize_names(void)
{
    return target_names + 2;
}

/* ---- names ---- */

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

/* "blk.12.ffn_down.weight": its number, and in *rest what follows; false for names outside of blocks. */
static bool block_of(const char *name, uint32_t *out, const char **rest)
{
    uint32_t n = 0;
    const char *p = name + 4;
    if (strncmp(name, "blk.", 4) != 0 || *p < '0' || *p > '9') return false;
    for (; *p >= '0' && *p <= '9'; ++p) {
        n = 10 * n + (uint32_t)(*p - '0');
        if (n > 1000000) return false;
    }
    if (*p != '.') return false;
    *out = n;
    *rest = p + 1;
    return true;
}

/* ---- one tensor ---- */

static bool is_integer(uint32_t type)
{
    return type == BP_GGUF_I8 || type == BP_GGUF_I16 || type == BP_GGUF_I32 || type == BP_GGUF_I64;
}

/* Small, or so that an error in them reaches every later number: never worth the bits. */
static bool is_kept(const struct bpi_gguf_tensor *t)
{
    bool vector = t->ne[1] == 1 && t->ne[2] == 1 && t->ne[3] == 1;
    return vector || is_integer(t->type) || !ends_with(t->name, ".weight") ||
           ends_with(t->name, "_norm.weight") || ends_with(t->name, "ffn_gate_inp.weight") ||
           ends_with(t->name, "indexer.proj.weight");
}

/* The first and the last eighth of the layers, and every third one between. */
static bool wants_more_bits(uint32_t block, uint32_t n_blocks)
{
    uint32_t eighth = n_blocks / 8;
    return block < eighth || block >= 7 * n_blocks / 8 || (block - eighth) % 3 == 2;
}

/* What the mix makes of a weight whose rows fit any type. */
static uint32_t mixed_type(const struct bpi_quantize_target *target,
                           const struct bpi_quantize_facts *facts, const char *name)
{
    uint32_t block = 0, one_up = target->type == BP_GGUF_Q4_K ? BP_GGUF_Q5_K : BP_GGUF_Q6_K;
    const char *rest = "";
    if (strcmp(name, facts->tied ? "token_embd.weight" : "output.weight") == 0) return BP_GGUF_Q6_K;
    if (!block_of(name, &block, &rest)) return target->type;
    bool more = wants_more_bits(block, facts->n_blocks);
    if (strncmp(rest, "indexer.", 8) == 0) rest += 8;
    if (strncmp(rest, "ffn_down", 8) == 0) return more ? BP_GGUF_Q6_K : target->type;
    if (strcmp(rest, "attn_qkv.weight") == 0) return one_up;
    /* Next to the experts these are small, and all of the context passes through them. */
    if (facts->moe) {
        if (strncmp(rest, "attn_k", 6) == 0 || strcmp(rest, "attn_v.weight") == 0)
            return BP_GGUF_Q8_0;
        if (strcmp(rest, "attn_output.weight") == 0) return BP_GGUF_Q5_K;
    }
    if (strcmp(rest, "attn_v.weight") == 0 || strcmp(rest, "attn_kv_b.weight") == 0)
        return more ? BP_GGUF_Q6_K : target->type;
    return target->type;
}

static bool fits(uint32_t type, int64_t row)
{
    return row % bpi_block_info(type)->block_elems == 0;
}

static uint32_t fitting_type(uint32_t type, int64_t row)
{
    if (fits(type, row)) return type;
    for (size_t i = 0; i < BPI_ARRAY_LEN(fallbacks); ++i) {
        if (fallbacks[i].from == type && fits(fallbacks[i].to, row)) return fallbacks[i].to;
    }
    return BP_GGUF_F16;
}

struct bpi_quantize_row bpi_quantize_choose(const struct bpi_quantize_target *target,
                                            const struct bpi_quantize_facts *facts,
                                            const struct bpi_gguf_tensor *t)
{
    struct bpi_quantize_row row = {.src = t, .to = target->type, .why = BPI_QUANTIZE_ASKED};
    bool to_f32 = target->type == BP_GGUF_F32 && bpi_block_info(t->type)->can_decode;
    if (to_f32) return row; /* loses nothing, so nothing need be kept from it */
    if (is_kept(t)) {
        row.to = t->type;
        row.why = BPI_QUANTIZE_KEPT;
        return row;
    }
    uint32_t wanted = target->mixed ? mixed_type(target, facts, t->name) : target->type;
    row.to = fitting_type(wanted, t->ne[0]);
    if (row.to != wanted)
        row.why = BPI_QUANTIZE_FALLBACK;
    else if (wanted != target->type)
        row.why = BPI_QUANTIZE_RAISED;
    return row;
}

/* ---- the file ---- */

static struct bpi_quantize_facts gather(const struct bpi_gguf *g)
{
    struct bpi_quantize_facts f = {.tied = bpi_gguf_tensor(g, "output.weight") == NULL};
    for (uint64_t i = 0; i < bpi_gguf_n_tensors(g); ++i) {
        const struct bpi_gguf_tensor *t = bpi_gguf_tensor_at(g, i);
        uint32_t block = 0;
        const char *rest = "";
        if (!block_of(t->name, &block, &rest)) continue;
        if (block >= f.n_blocks) f.n_blocks = block + 1;
        if (ends_with(rest, "_exps.weight") && t->ne[2] >= 8) f.moe = true;
    }
    return f;
}

static bool key_is(const struct bpi_gguf_kv *kv, const char *key)
{
    return kv->key.n == strlen(key) && memcmp(kv->key.data, key, kv->key.n) == 0;
}

/* The source's records in their order: what this file says about itself is set anew, where it stood or at the end, and
 * what was said about shards is left out. Failures stick to the writer. */
static void copy_metadata(const struct bpi_quantize_plan *p)
{
    static const char type_key[] = "general.file_type";
    static const char version_key[] = "general.quantization_version";
    bool has_type = false, has_version = false;
    for (uint64_t i = 0; i < bpi_gguf_n_kv(p->g); ++i) {
        const struct bpi_gguf_kv *kv = bpi_gguf_kv_at(p->g, i);
        if (key_is(kv, type_key)) {
            has_type = true;
            (void)bpi_gguf_put_u32(p->writer, type_key, p->target->file_type);
        } else if (key_is(kv, version_key)) {
            has_version = true;
            (void)bpi_gguf_put_u32(p->writer, version_key, 2);
        } else if (kv->key.n < 6 || memcmp(kv->key.data, "split.", 6) != 0) {
            (void)bpi_gguf_put_copy(p->writer, kv);
        }
    }
    if (!has_type) (void)bpi_gguf_put_u32(p->writer, type_key, p->target->file_type);
    if (!has_version) (void)bpi_gguf_put_u32(p->writer, version_key, 2);
}

static int32_t plan_tensor(struct bpi_quantize_plan *p, const struct bpi_quantize_facts *facts,
                           const struct bpi_gguf_tensor *t, struct bp_error *err)
{
    struct bpi_quantize_row row = bpi_quantize_choose(p->target, facts, t);
    uint64_t n = 1;
    for (int d = 0; d < 4; ++d) {
        if (!bpi_mul_u64(n, (uint64_t)t->ne[d], &n))
            return bpi_fail(err, BP_E_LIMIT, DOMAIN, t->name, "the tensor has too many values");
    }
    if (row.to != t->type && !bpi_block_info(t->type)->can_decode)
        return bpi_fail(err, BP_E_UNSUPPORTED, DOMAIN, t->name,
                        "values of type %s cannot be read, so they cannot become %s",
                        bpi_block_info(t->type)->name, bpi_block_info(row.to)->name);
    if (!bpi_block_bytes(row.to, n, &row.n_bytes))
        return bpi_fail(err, BP_E_LIMIT, DOMAIN, t->name, "as %s the tensor is too large",
                        bpi_block_info(row.to)->name);
    p->rows[p->n_rows++] = row;
    (void)bpi_gguf_put_shape(p->writer, t->name, row.to, t->n_dim, t->ne);
    return BP_OK;
}

int32_t bpi_quantize_plan(const struct bpi_gguf *g, const struct bpi_quantize_target *target,
                          struct bpi_quantize_plan *out, struct bp_error *err)
{
    const struct bpi_quantize_facts facts = gather(g);
    const uint64_t n = bpi_gguf_n_tensors(g);
    int32_t rc;
    *out = (struct bpi_quantize_plan){.g = g, .target = target};
    out->rows = bpi_calloc(n, sizeof *out->rows);
    if (out->rows == NULL) {
        rc = bpi_fail_nomem(err, DOMAIN, n * sizeof *out->rows);
        goto fail;
    }
    BP_TRY_GOTO(rc, bpi_gguf_writer_create(&out->writer, err), fail);
    copy_metadata(out);
    for (uint64_t i = 0; i < n; ++i)
        BP_TRY_GOTO(rc, plan_tensor(out, &facts, bpi_gguf_tensor_at(g, i), err), fail);
    BP_TRY_GOTO(rc, bpi_gguf_writer_status(out->writer, err), fail);
    out->file_bytes = bpi_gguf_writer_bytes(out->writer);
    return BP_OK;
fail:
    bpi_quantize_plan_free(out);
    return rc;
}

void bpi_quantize_plan_free(struct bpi_quantize_plan *p)
{
    bpi_gguf_writer_destroy(p->writer);
    bpi_free(p->rows);
    *p = (struct bpi_quantize_plan){0};
}
