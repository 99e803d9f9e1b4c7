/* model_hparams.c - numbers of the model: tensors first, then every key that repeats one of them is held against it.
 * Not here: experts (model_experts.c), rope and softmax scale (model_rope.c).
 * Order of trust: a shape cannot lie about what is stored, a key can. SPDX-License-Identifier: MIT */
#include "model/model_priv.h"

int32_t bpi_model_limit(const char *where, const char *what, uint64_t v, uint64_t limit,
                        struct bp_error *err)
{
    if (v <= limit) return BP_OK;
    return bpi_fail(err, BP_E_LIMIT, "model", where, "%llu %s; at most %llu are supported",
                    (unsigned long long)v, what, (unsigned long long)limit);
}

int32_t bpi_model_limit_key(const struct bpi_model *m, uint32_t key, const char *what,
                            uint64_t limit, struct bp_error *err)
{
    char name[128];
    bpi_model_key_name(m, key, name, sizeof name);
    if (m->key[key].u <= limit) return BP_OK;
    return bpi_fail(err, BP_E_LIMIT, "model", name, "key %s is %u; at most %llu %s are supported",
                    name, m->key[key].u, (unsigned long long)limit, what);
}

int32_t bpi_model_expect(struct bpi_model *m, uint32_t key, uint64_t value,
                         const struct bpi_gguf_tensor *t, const char *what, struct bp_error *err)
{
    const struct bpi_key_value *k = &m->key[key];
    char dims[96], name[128];
    bpi_dims_text(t, dims, sizeof dims);
    if (!k->found) {
        bpi_model_note_key(m, BPI_REPORT_ASSUMED, key, "absent: %llu (%s), from tensor %s %s",
                           (unsigned long long)value, what, t->name, dims);
        return BP_OK;
    }
    if (k->u == value) return BP_OK;
    bpi_model_key_name(m, key, name, sizeof name);
    return bpi_fail(err, BP_E_FORMAT, "model", name,
                    "key %s is %u, but tensor %s %s makes it %llu (%s); one of them is wrong: "
                    "convert the model again",
                    name, k->u, t->name, dims, (unsigned long long)value, what);
}

static int32_t bad_dims(const struct bpi_gguf_tensor *t, const char *why, struct bp_error *err)
{
    char dims[96];
    bpi_dims_text(t, dims, sizeof dims);
    return bpi_fail(err, BP_E_FORMAT, "model", t->name, "tensor %s is %s; %s", t->name, dims, why);
}

/* Every dimension that becomes a number of hp: between 1 and 2^31 - 1, so that products of two fit 64 bits. */
static int32_t check_dims(const struct bpi_model *m, struct bp_error *err)
{
    size_t n = ((size_t)m->hp.n_layer + 1) * BPI_W_COUNT;
    for (size_t i = 0; i < n; ++i) {
        const struct bpi_gguf_tensor *t = m->tensor[i];
        for (uint32_t d = 0; t != NULL && d < 4; ++d) {
            if (t->ne[d] < 1) return bad_dims(t, "every dimension has to be at least 1", err);
            BP_TRY(bpi_model_limit(t->name, "entries in one dimension of a tensor",
                                   (uint64_t)t->ne[d], INT32_MAX, err));
        }
    }
    return BP_OK;
}

static int32_t derive_vocab(struct bpi_model *m, struct bp_error *err)
{
    const struct bpi_gguf_tensor *t = bpi_model_tensor(m, BPI_W_TOKEN_EMBD, 0);
    struct bpi_hparams *hp = &m->hp;
    hp->n_embd = (uint32_t)t->ne[0];
    hp->n_vocab = (uint32_t)t->ne[1];
    BP_TRY(bpi_model_expect(m, BPI_K_EMBD, hp->n_embd, t, "n_embd", err));
    if (m->key[BPI_K_VOCAB].found)
        BP_TRY(bpi_model_expect(m, BPI_K_VOCAB, hp->n_vocab, t, "n_vocab", err));
    const struct bpi_gguf_kv *tokens = bpi_gguf_find(m->gguf, "tokenizer.ggml.tokens");
    if (tokens != NULL && tokens->kind == BPI_GGUF_ARRAY && tokens->count > hp->n_vocab)
        return bpi_fail(err, BP_E_FORMAT, "model", "tokenizer.ggml.tokens",
                        "key tokenizer.ggml.tokens has %llu entries, but tensor %s has %u rows; "
                        "every token needs a row",
                        (unsigned long long)tokens->count, t->name, hp->n_vocab);
    if (tokens != NULL && tokens->kind == BPI_GGUF_ARRAY && tokens->count < hp->n_vocab)
        bpi_model_note(m, BPI_REPORT_NOTE, t->name, "%llu rows have no token: padding",
                       (unsigned long long)(hp->n_vocab - tokens->count));
    if (bpi_model_tensor(m, BPI_W_OUTPUT, 0) == NULL)
        bpi_model_note(m, BPI_REPORT_NOTE, "output.weight",
                       "absent: tied, token_embd.weight serves");
    return BP_OK;
}

/* head_count_kv is n_head in files with the joint kv_b, 1 in those with the split form, and means nothing to us. */
static int32_t check_heads_kv(const struct bpi_model *m, struct bp_error *err)
{
    const struct bpi_key_value *kv = &m->key[BPI_K_HEADS_KV];
    char name[128];
    bpi_model_key_name(m, BPI_K_HEADS_KV, name, sizeof name);
    if (!kv->found || ((kv->u == 1 || kv->u == m->hp.n_head) &&
                       bpi_model_key_uniform(m, BPI_K_HEADS_KV, UINT64_MAX)))
        return BP_OK;
    return bpi_fail(
        err, BP_E_FORMAT, "model", name,
        "key %s is %u; latent attention has 1 (split form) or as many as heads (%u, joint form)",
        name, kv->u, m->hp.n_head);
}

static int32_t derive_heads(struct bpi_model *m, struct bp_error *err)
{
    struct bpi_hparams *hp = &m->hp;
    char name[128];
    bpi_model_key_name(m, BPI_K_HEADS, name, sizeof name);
    hp->n_head = m->key[BPI_K_HEADS].u;
    BP_TRY(bpi_model_limit_key(m, BPI_K_HEADS, "attention heads", BPI_MODEL_MAX_HEADS, err));
    if (!bpi_model_key_uniform(m, BPI_K_HEADS, UINT64_MAX))
        return bpi_fail(
            err, BP_E_UNSUPPORTED, "model", name,
            "key %s differs from layer to layer; one head count for all layers is supported", name);
    /* The split form stores heads as a dimension of their own, and then a wrong key should be named itself. */
    const struct bpi_gguf_tensor *k_b = bpi_model_tensor(m, BPI_W_ATTN_K_B, 0);
    if (k_b != NULL && k_b->ne[2] > 1)
        BP_TRY(bpi_model_expect(m, BPI_K_HEADS, (uint64_t)k_b->ne[2], k_b, "heads", err));
    return check_heads_kv(m, err);
}

static int32_t bad_heads(const struct bpi_model *m, const struct bpi_gguf_tensor *t,
                         const char *why, struct bp_error *err)
{
    char name[128], dims[96];
    bpi_model_key_name(m, BPI_K_HEADS, name, sizeof name);
    bpi_dims_text(t, dims, sizeof dims);
    return bpi_fail(err, BP_E_FORMAT, "model", name, "key %s is %u, but tensor %s is %s: %s", name,
                    m->hp.n_head, t->name, dims, why);
}

/* Widths of one head. Old files give them as key_length and value_length; new ones as *_mla, and key_length is then the
 * width of the cached latent. */
static int32_t check_lengths(struct bpi_model *m, const struct bpi_gguf_tensor *q,
                             const struct bpi_gguf_tensor *o, struct bp_error *err)
{
    const struct bpi_hparams *hp = &m->hp;
    const struct bpi_gguf_tensor *kv_a = bpi_model_tensor(m, BPI_W_ATTN_KV_A, 0);
    bool k_mla = m->key[BPI_K_KEY_LEN_MLA].found, v_mla = m->key[BPI_K_VALUE_LEN_MLA].found;
    uint32_t key_dim = hp->nope + hp->rope, latent = hp->kv_lora + hp->rope;
    if (k_mla != v_mla) {
        char have[128], lack[128];
        bpi_model_key_name(m, k_mla ? BPI_K_KEY_LEN_MLA : BPI_K_VALUE_LEN_MLA, have, sizeof have);
        bpi_model_key_name(m, k_mla ? BPI_K_VALUE_LEN_MLA : BPI_K_KEY_LEN_MLA, lack, sizeof lack);
        return bpi_fail(err, BP_E_FORMAT, "model", lack,
                        "key %s is missing, but %s is there; both or neither were "
                        "expected",
                        lack, have);
    }
    if (k_mla) {
        BP_TRY(bpi_model_expect(m, BPI_K_KEY_LEN_MLA, key_dim, q, "nope + rope of a head", err));
        BP_TRY(bpi_model_expect(m, BPI_K_VALUE_LEN_MLA, hp->v_dim, o, "v_dim of a head", err));
        if (m->key[BPI_K_KEY_LEN].found)
            BP_TRY(bpi_model_expect(m, BPI_K_KEY_LEN, latent, kv_a, "kv_lora + rope", err));
        if (m->key[BPI_K_VALUE_LEN].found)
            BP_TRY(bpi_model_expect(m, BPI_K_VALUE_LEN, hp->kv_lora,
                                    bpi_model_tensor(m, BPI_W_ATTN_KV_A_NORM, 0), "kv_lora", err));
        return BP_OK;
    }
    if (m->key[BPI_K_KEY_LEN].u == latent && m->key[BPI_K_VALUE_LEN].u == hp->kv_lora) {
        bpi_model_note_key(m, BPI_REPORT_ASSUMED, BPI_K_KEY_LEN_MLA,
                           "absent: %u, from tensor %s; key_length %u is the width of the latent",
                           key_dim, q->name, latent);
        bpi_model_note_key(m, BPI_REPORT_ASSUMED, BPI_K_VALUE_LEN_MLA, "absent: %u, from tensor %s",
                           hp->v_dim, o->name);
        return BP_OK;
    }
    BP_TRY(bpi_model_expect(m, BPI_K_KEY_LEN, key_dim, q, "nope + rope of a head", err));
    return bpi_model_expect(m, BPI_K_VALUE_LEN, hp->v_dim, o, "v_dim of a head", err);
}

static int32_t derive_attention(struct bpi_model *m, struct bp_error *err)
{
    struct bpi_hparams *hp = &m->hp;
    const struct bpi_gguf_tensor *norm = bpi_model_tensor(m, BPI_W_ATTN_KV_A_NORM, 0);
    const struct bpi_gguf_tensor *kv_a = bpi_model_tensor(m, BPI_W_ATTN_KV_A, 0);
    const struct bpi_gguf_tensor *q =
        bpi_model_tensor(m, m->q_plain ? BPI_W_ATTN_Q : BPI_W_ATTN_Q_B, 0);
    const struct bpi_gguf_tensor *o = bpi_model_tensor(m, BPI_W_ATTN_OUTPUT, 0);
    hp->kv_lora = (uint32_t)norm->ne[0];
    BP_TRY(bpi_model_expect(m, BPI_K_KV_LORA, hp->kv_lora, norm, "kv_lora", err));
    if (kv_a->ne[1] <= norm->ne[0])
        return bad_dims(kv_a, "more rows than kv_lora were expected, the rest is rope", err);
    hp->rope = (uint32_t)(kv_a->ne[1] - norm->ne[0]);
    BP_TRY(bpi_model_expect(m, BPI_K_ROPE_DIM, hp->rope, kv_a, "rope, rows beyond kv_lora", err));
    if (hp->rope % 2 != 0)
        return bad_dims(kv_a, "the rows beyond kv_lora are rotated in pairs and have to be even",
                        err);
    if (!m->q_plain) {
        const struct bpi_gguf_tensor *q_a = bpi_model_tensor(m, BPI_W_ATTN_Q_A, 0);
        hp->q_lora = (uint32_t)q_a->ne[1];
        BP_TRY(bpi_model_expect(m, BPI_K_Q_LORA, hp->q_lora, q_a, "q_lora", err));
    }
    if (q->ne[1] % hp->n_head != 0 || q->ne[1] / hp->n_head <= (int64_t)hp->rope)
        return bad_heads(m, q, "its rows have to be the heads times more than the rope dimensions",
                         err);
    if (o->ne[0] % hp->n_head != 0)
        return bad_heads(m, o, "its columns have to be a multiple of the heads", err);
    hp->nope = (uint32_t)(q->ne[1] / hp->n_head) - hp->rope;
    hp->v_dim = (uint32_t)(o->ne[0] / hp->n_head);
    return check_lengths(m, q, o, err);
}

static int32_t derive_dense(struct bpi_model *m, struct bp_error *err)
{
    struct bpi_hparams *hp = &m->hp;
    if (hp->n_dense == 0) return BP_OK;
    const struct bpi_gguf_tensor *gate = bpi_model_tensor(m, BPI_W_FFN_GATE, 0);
    hp->n_ff = (uint32_t)gate->ne[1];
    BP_TRY(bpi_model_expect(m, BPI_K_FF, hp->n_ff, gate, "n_ff", err));
    if (bpi_model_key_uniform(m, BPI_K_FF, hp->n_dense)) return BP_OK;
    char name[128];
    bpi_model_key_name(m, BPI_K_FF, name, sizeof name);
    return bpi_fail(
        err, BP_E_UNSUPPORTED, "model", name,
        "key %s differs among the %u dense layers; one width for all of them is supported", name,
        hp->n_dense);
}

static int32_t derive_index(struct bpi_model *m, struct bp_error *err)
{
    struct bpi_hparams *hp = &m->hp;
    hp->index_rope_style = m->arch->index_rope_style;
    hp->index_eps = 1e-6f; /* of the reference models; no key carries it */
    if (!hp->sparse) return BP_OK;
    const struct bpi_gguf_tensor *norm = bpi_model_tensor(m, BPI_W_INDEX_K_NORM, 0);
    const struct bpi_gguf_tensor *proj = bpi_model_tensor(m, BPI_W_INDEX_PROJ, 0);
    if (m->q_plain)
        return bpi_fail(err, BP_E_UNSUPPORTED, "model", "blk.0.attn_q.weight",
                        "the index takes compressed queries, but the file has blk.0.attn_q.weight; "
                        "set model.indexer to "
                        "off for dense attention");
    hp->index_dim = (uint32_t)norm->ne[0];
    hp->n_index_head = (uint32_t)proj->ne[1];
    BP_TRY(
        bpi_model_expect(m, BPI_K_INDEX_DIM, hp->index_dim, norm, "width of an index head", err));
    BP_TRY(bpi_model_expect(m, BPI_K_INDEX_HEADS, hp->n_index_head, proj, "index heads", err));
    BP_TRY(bpi_model_limit(proj->name, "index heads", hp->n_index_head, BPI_MODEL_MAX_HEADS, err));
    if (hp->index_dim < hp->rope)
        return bad_dims(
            norm,
            "an index head has to be at least as wide as the rope dimensions, which come first",
            err);
    BP_TRY(bpi_model_require(m, BPI_K_INDEX_TOP_K, "sparse attention", err));
    hp->top_k = m->key[BPI_K_INDEX_TOP_K].u;
    return bpi_model_limit_key(m, BPI_K_INDEX_TOP_K, "selected keys", BPI_MODEL_MAX_CTX, err);
}

int32_t bpi_model_derive(struct bpi_model *m, struct bp_error *err)
{
    struct bpi_hparams *hp = &m->hp;
    BP_TRY(check_dims(m, err));
    hp->n_ctx_train = m->key[BPI_K_CONTEXT].u;
    BP_TRY(bpi_model_limit_key(m, BPI_K_CONTEXT, "tokens of context", BPI_MODEL_MAX_CTX, err));
    hp->rms_eps = m->key[BPI_K_RMS_EPS].f;
    if (m->key[BPI_K_TEMP_SCALE].found && m->key[BPI_K_TEMP_SCALE].f != 0)
        return bpi_fail(err, BP_E_UNSUPPORTED, "model", "attention.temperature_scale",
                        "key attention.temperature_scale is %g; attention whose temperature grows "
                        "with the position is "
                        "not supported",
                        (double)m->key[BPI_K_TEMP_SCALE].f);
    BP_TRY(derive_vocab(m, err));
    BP_TRY(derive_heads(m, err));
    BP_TRY(derive_attention(m, err));
    BP_TRY(derive_dense(m, err));
    BP_TRY(bpi_model_derive_experts(m, err));
    BP_TRY(derive_index(m, err));
    return bpi_model_derive_rope(m, err);
}
