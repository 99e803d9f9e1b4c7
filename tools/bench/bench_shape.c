/* bench_shape.c - a GGUF of random weights in address space: the header and small tensors are memory of their own, large
 * ones are mapped to the same few MiB of valid blocks again and again, so that a layer of a large model needs none.
 * Types: the large matrices as asked for, k_b, v_b and kv_a Q8_0, the head Q6_K, norms, router and biases F32.
 * No tokenizer. Threads: one. SPDX-License-Identifier: MIT */
#include "bench_priv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ALIGN = 4096, MAX_TENSORS = 4096, HEADER = 1 << 20, N_PATTERNS = 8, OWN = 1 << 20 };

/* Sizes of a model: models.md of the design lists them, and where they come from. */
struct sizes {
    struct bench_shape s;
    const char *arch;
    uint32_t vocab, n_embd, n_head, q_lora, kv_lora, nope, rope, v, n_ff, n_expert, n_used,
        n_ff_exp, n_group, n_group_used, index_heads, index_dim, top_k;
    float rope_base;
};

// clang-format off
static const struct sizes shapes[] = {
    {{"deepseek-v3", 61, 3}, "deepseek2", 129280, 7168, 128, 1536, 512, 128, 64, 128, 18432, 256, 8, 2048, 8, 4, 0, 0, 0, 1e4f},
    {{"glm-5", 78, 3}, "glm-dsa", 154880, 6144, 64, 2048, 512, 192, 64, 256, 12288, 256, 8, 2048, 1, 1, 32, 128, 2048, 1e6f},
    {{"tiny", 6, 1}, "deepseek2", 512, 256, 4, 256, 64, 64, 32, 64, 512, 8, 2, 256, 1, 1, 0, 0, 0, 1e4f},
};
// clang-format on

const char *bench_shape_names(void)
{
    return "deepseek-v3, glm-5, tiny";
}

const struct bench_shape *bench_shape_find(const char *name)
{
    for (size_t i = 0; i < BENCH_LEN(shapes); ++i) {
        if (strcmp(shapes[i].s.name, name) == 0) return &shapes[i].s;
    }
    return NULL;
}

enum fill { FILL_BLOCKS, FILL_RANDOM, FILL_ONE, FILL_ZERO };

struct tensor {
    uint64_t offset, n_bytes; /* in the data section */
    double size;
    uint32_t type, fill;
};

struct writer {
    const struct sizes *z;
    unsigned char *header; /* (HEADER) */
    uint64_t n, n_data;
    uint64_t at_counts; /* where the number of tensors and of keys stand */
    uint32_t n_kv, n_tensor;
    struct tensor tensors[MAX_TENSORS];
    struct bench_pattern patterns[N_PATTERNS];
    uint32_t n_pattern;
    uint64_t seed;
    bool full;
    struct bench_cost *cost;
};

static void put(struct writer *w, const void *p, uint64_t n)
{
    if (w->n + n > HEADER) {
        w->full = true;
        return;
    }
    memcpy(w->header + w->n, p, n);
    w->n += n;
}

static void put_u32(struct writer *w, uint32_t v)
{
    put(w, &v, sizeof v);
}

static void put_u64(struct writer *w, uint64_t v)
{
    put(w, &v, sizeof v);
}

static void put_text(struct writer *w, const char *s)
{
    put_u64(w, strlen(s));
    put(w, s, strlen(s));
}

enum { KIND_U32 = 4, KIND_F32 = 6, KIND_BOOL = 7, KIND_STRING = 8 }; /* of the format */

/* Keys that begin with '.' are the architecture's. */
static void key(struct writer *w, const char *name, uint32_t kind)
{
    char full[96];
    snprintf(full, sizeof full, "%s%s", name[0] == '.' ? w->z->arch : "", name);
    put_text(w, full);
    put_u32(w, kind);
    w->n_kv++;
}

static void key_u32(struct writer *w, const char *name, uint32_t v)
{
    key(w, name, KIND_U32);
    put_u32(w, v);
}

static void key_f32(struct writer *w, const char *name, float v)
{
    key(w, name, KIND_F32);
    put(w, &v, sizeof v);
}

static void key_text(struct writer *w, const char *name, const char *v)
{
    key(w, name, KIND_STRING);
    put_text(w, v);
}

static void write_keys(struct writer *w, uint32_t n_layer, uint32_t n_dense, uint32_t n_ctx)
{
    const struct sizes *z = w->z;
    const unsigned char yes = 1;
    key_text(w, "general.architecture", z->arch);
    key_text(w, "general.name", z->s.name);
    key_u32(w, "general.alignment", ALIGN);
    key_u32(w, ".block_count", n_layer);
    key_u32(w, ".context_length", n_ctx);
    key_u32(w, ".embedding_length", z->n_embd);
    key_u32(w, ".feed_forward_length", z->n_ff);
    key_u32(w, ".attention.head_count", z->n_head);
    key_u32(w, ".attention.head_count_kv", 1);
    key_f32(w, ".rope.freq_base", z->rope_base);
    key_f32(w, ".attention.layer_norm_rms_epsilon", 1e-6f);
    key_u32(w, ".vocab_size", z->vocab);
    key_u32(w, ".leading_dense_block_count", n_dense);
    key_u32(w, ".attention.q_lora_rank", z->q_lora);
    key_u32(w, ".attention.kv_lora_rank", z->kv_lora);
    key_u32(w, ".attention.key_length", z->kv_lora + z->rope);
    key_u32(w, ".attention.value_length", z->kv_lora);
    key_u32(w, ".attention.key_length_mla", z->nope + z->rope);
    key_u32(w, ".attention.value_length_mla", z->v);
    key_u32(w, ".rope.dimension_count", z->rope);
    key_u32(w, ".expert_count", z->n_expert);
    key_u32(w, ".expert_used_count", z->n_used);
    key_u32(w, ".expert_shared_count", 1);
    key_u32(w, ".expert_feed_forward_length", z->n_ff_exp);
    key_f32(w, ".expert_weights_scale", 2.5f);
    key(w, ".expert_weights_norm", KIND_BOOL);
    put(w, &yes, 1);
    key_u32(w, ".expert_gating_func", 2);
    key_u32(w, ".expert_group_count", z->n_group);
    key_u32(w, ".expert_group_used_count", z->n_group_used);
    if (z->index_heads == 0) return;
    key_u32(w, ".attention.indexer.head_count", z->index_heads);
    key_u32(w, ".attention.indexer.key_length", z->index_dim);
    key_u32(w, ".attention.indexer.top_k", z->top_k);
}

/* layer < 0: outside of layers. */
static void tensor(struct writer *w, int32_t layer, const char *name, uint32_t type, uint32_t fill,
                   int64_t ne0, int64_t ne1, int64_t ne2)
{
    char full[64];
    const uint32_t n_dim = ne2 > 1 ? 3 : ne1 > 0 ? 2 : 1;
    const int64_t ne[3] = {ne0, ne1 > 0 ? ne1 : 1, ne2};
    if (w->n_tensor == MAX_TENSORS) {
        w->full = true;
        return;
    }
    if (layer < 0)
        snprintf(full, sizeof full, "%s", name);
    else
        snprintf(full, sizeof full, "blk.%d.%s", layer, name);
    put_text(w, full);
    put_u32(w, n_dim);
    for (uint32_t i = 0; i < n_dim; ++i) put_u64(w, (uint64_t)ne[i]);
    put_u32(w, type);
    put_u64(w, w->n_data);
    const uint64_t n = bench_weight_bytes(type, ne[0], ne[1], ne[2] > 0 ? ne[2] : 1);
    w->tensors[w->n_tensor++] = (struct tensor){w->n_data, n, 1.0 / sqrt((double)ne0), type, fill};
    w->n_data += (n + ALIGN - 1) / ALIGN * ALIGN;
    bench_cost_add(w->cost, full, n, (uint64_t)(ne[0] * ne[1] * (ne[2] > 0 ? ne[2] : 1)));
}

static void write_attention(struct writer *w, int32_t l, uint32_t type)
{
    const struct sizes *z = w->z;
    const int64_t e = z->n_embd, h = z->n_head, c = z->kv_lora;
    tensor(w, l, "attn_norm.weight", BP_GGUF_F32, FILL_ONE, e, 0, 0);
    tensor(w, l, "attn_q_a.weight", type, FILL_BLOCKS, e, z->q_lora, 0);
    tensor(w, l, "attn_q_a_norm.weight", BP_GGUF_F32, FILL_ONE, z->q_lora, 0, 0);
    tensor(w, l, "attn_q_b.weight", type, FILL_BLOCKS, z->q_lora, h * (z->nope + z->rope), 0);
    tensor(w, l, "attn_kv_a_mqa.weight", BP_GGUF_Q8_0, FILL_BLOCKS, e, c + z->rope, 0);
    tensor(w, l, "attn_kv_a_norm.weight", BP_GGUF_F32, FILL_ONE, c, 0, 0);
    tensor(w, l, "attn_k_b.weight", BP_GGUF_Q8_0, FILL_BLOCKS, z->nope, c, h);
    tensor(w, l, "attn_v_b.weight", BP_GGUF_Q8_0, FILL_BLOCKS, c, z->v, h);
    tensor(w, l, "attn_output.weight", type, FILL_BLOCKS, h * z->v, e, 0);
    if (z->index_heads == 0) return;
    tensor(w, l, "indexer.k_norm.weight", BP_GGUF_F32, FILL_ONE, z->index_dim, 0, 0);
    tensor(w, l, "indexer.k_norm.bias", BP_GGUF_F32, FILL_ZERO, z->index_dim, 0, 0);
    tensor(w, l, "indexer.proj.weight", BP_GGUF_BF16, FILL_BLOCKS, e, z->index_heads, 0);
    tensor(w, l, "indexer.attn_k.weight", BP_GGUF_Q8_0, FILL_BLOCKS, e, z->index_dim, 0);
    tensor(w, l, "indexer.attn_q_b.weight", BP_GGUF_Q8_0, FILL_BLOCKS, z->q_lora,
           (int64_t)z->index_heads * z->index_dim, 0);
}

static void write_ffn(struct writer *w, int32_t l, bool dense, uint32_t type)
{
    const struct sizes *z = w->z;
    const int64_t e = z->n_embd, f = dense ? z->n_ff : z->n_ff_exp, n = z->n_expert;
    tensor(w, l, "ffn_norm.weight", BP_GGUF_F32, FILL_ONE, e, 0, 0);
    if (dense) {
        tensor(w, l, "ffn_gate.weight", type, FILL_BLOCKS, e, f, 0);
        tensor(w, l, "ffn_up.weight", type, FILL_BLOCKS, e, f, 0);
        tensor(w, l, "ffn_down.weight", type, FILL_BLOCKS, f, e, 0);
        return;
    }
    tensor(w, l, "ffn_gate_inp.weight", BP_GGUF_F32, FILL_RANDOM, e, n, 0);
    tensor(w, l, "exp_probs_b.bias", BP_GGUF_F32, FILL_ZERO, n, 0, 0);
    tensor(w, l, "ffn_gate_exps.weight", type, FILL_BLOCKS, e, f, n);
    tensor(w, l, "ffn_up_exps.weight", type, FILL_BLOCKS, e, f, n);
    tensor(w, l, "ffn_down_exps.weight", type, FILL_BLOCKS, f, e, n);
    tensor(w, l, "ffn_gate_shexp.weight", type, FILL_BLOCKS, e, f, 0);
    tensor(w, l, "ffn_up_shexp.weight", type, FILL_BLOCKS, e, f, 0);
    tensor(w, l, "ffn_down_shexp.weight", type, FILL_BLOCKS, f, e, 0);
}

static void write_header(struct writer *w, uint32_t n_dense, uint32_t n_moe, uint32_t type,
                         uint32_t n_ctx)
{
    const struct sizes *z = w->z;
    const uint32_t n_layer = n_dense + n_moe;
    put(w, "GGUF", 4);
    put_u32(w, 3);
    w->at_counts = w->n;
    put_u64(w, 0);
    put_u64(w, 0);
    write_keys(w, n_layer, n_dense, n_ctx);
    tensor(w, -1, "token_embd.weight", type, FILL_BLOCKS, z->n_embd, z->vocab, 0);
    for (uint32_t l = 0; l < n_layer; ++l) {
        write_attention(w, (int32_t)l, type);
        write_ffn(w, (int32_t)l, l < n_dense, type);
    }
    tensor(w, -1, "output_norm.weight", BP_GGUF_F32, FILL_ONE, z->n_embd, 0, 0);
    tensor(w, -1, "output.weight", BP_GGUF_Q6_K, FILL_BLOCKS, z->n_embd, z->vocab, 0);
    if (w->full) return;
    const uint64_t counts[2] = {w->n_tensor, w->n_kv};
    memcpy(w->header + w->at_counts, counts, sizeof counts);
    w->n = (w->n + ALIGN - 1) / ALIGN * ALIGN;
}

static int32_t pattern_of(struct writer *w, uint32_t type, struct bench_pattern **out,
                          struct bp_error *err)
{
    for (uint32_t i = 0; i < w->n_pattern; ++i) {
        *out = &w->patterns[i];
        if ((*out)->type == type) return BP_OK;
    }
    if (w->n_pattern == N_PATTERNS)
        return bench_fail(err, BP_E_INTERNAL, "shape", "too many types");
    *out = &w->patterns[w->n_pattern];
    BP_TRY(bench_pattern_make(*out, &w->seed, type, 1.0 / 64, err));
    w->n_pattern++;
    return BP_OK;
}

static int32_t fill_tensor(struct writer *w, const struct tensor *t, unsigned char *at,
                           struct bp_error *err)
{
    struct bench_pattern *p;
    const float one = 1.0f;
    switch (t->fill) {
    case FILL_ONE:
        for (uint64_t i = 0; i < t->n_bytes; i += sizeof one) memcpy(at + i, &one, sizeof one);
        return BP_OK;
    case FILL_ZERO:
        return BP_OK;
    case FILL_RANDOM: /* no two rows alike, however many */
        for (uint64_t i = 0; i < t->n_bytes; i += OWN)
            BP_TRY(bench_fill_blocks(&w->seed, t->type, t->size, at + i,
                                     t->n_bytes - i < OWN ? t->n_bytes - i : OWN, err));
        return BP_OK;
    default:
        if (t->n_bytes < OWN)
            return bench_fill_blocks(&w->seed, t->type, t->size, at, t->n_bytes, err);
        BP_TRY(pattern_of(w, t->type, &p, err));
        return bench_pattern_map(p, at, t->n_bytes, err);
    }
}

static int32_t fill_image(struct writer *w, struct bench_image *out, struct bp_error *err)
{
    out->n = w->n + w->n_data;
    out->bytes = out->priv = bench_reserve(out->n);
    if (out->priv == NULL)
        return bench_fail(err, BP_E_NOMEM, "shape", "no address space for %llu bytes",
                          (unsigned long long)out->n);
    unsigned char *bytes = out->priv;
    memcpy(bytes, w->header, w->n);
    for (uint32_t i = 0; i < w->n_tensor; ++i)
        BP_TRY(fill_tensor(w, &w->tensors[i], bytes + w->n + w->tensors[i].offset, err));
    return BP_OK;
}

static int32_t type_named(const char *name, uint32_t *out, struct bp_error *err)
{
    for (uint32_t t = 0; t < BP_GGUF_COUNT; ++t) {
        const char *known;
        uint32_t elems, bytes;
        if (bp_block_shape(t, &known, &elems, &bytes) != BP_OK || strcmp(known, name) != 0)
            continue;
        *out = t;
        return BP_OK;
    }
    return bench_fail(err, BP_E_ARG, "--type", "there is no tensor type '%.40s'; Q4_K is one",
                      name);
}

int32_t bench_image_make(const struct bench_shape *s, uint32_t n_dense, uint32_t n_moe,
                         const char *type, uint32_t n_ctx, struct bench_image *out,
                         struct bp_error *err)
{
    uint32_t t = 0;
    *out = (struct bench_image){0};
    BP_TRY(type_named(type, &t, err));
    struct writer *w = calloc(1, sizeof *w);
    if (w == NULL || (w->header = malloc(HEADER)) == NULL) {
        free(w);
        return bench_fail(err, BP_E_NOMEM, "shape", "out of memory");
    }
    memset(w->header, 0, HEADER);
    w->seed = 20240607;
    w->cost = &out->cost;
    for (size_t i = 0; i < BENCH_LEN(shapes); ++i) {
        if (&shapes[i].s == s) w->z = &shapes[i];
    }
    out->cost.used = w->z->n_used;
    out->cost.experts = w->z->n_expert;
    write_header(w, n_dense, n_moe, t, n_ctx);
    int32_t rc =
        w->full ? bench_fail(err, BP_E_ARG, "--layers", "%u layers are too many", n_dense + n_moe)
                : fill_image(w, out, err);
    for (uint32_t i = 0; i < w->n_pattern; ++i) bench_pattern_free(&w->patterns[i]);
    free(w->header);
    free(w);
    if (rc != BP_OK) bench_image_free(out);
    return rc;
}

void bench_image_free(struct bench_image *im)
{
    if (im->priv != NULL) (void)munmap(im->priv, im->n);
    *im = (struct bench_image){0};
}
