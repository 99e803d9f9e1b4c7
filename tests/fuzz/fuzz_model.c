/* fuzz_model.c - any bytes as a model file: opening refuses them with a sentence, or every number and pointer that the
 * model gives is safe to use. Not here: the container's own faults (fuzz_gguf.c finds those faster).
 * SPDX-License-Identifier: MIT */
#include "model/model.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok)
{
    if (!ok) abort();
}

/* Shares lie inside the tensor, follow one another, and all their bytes are there. */
static uint64_t walk_raw(const struct bpi_model *m, uint32_t role, uint32_t layer)
{
    struct bp_raw r;
    uint64_t sum = 0;
    for (uint32_t rank = 0; rank < 3; ++rank) {
        if (!bpi_model_raw(m, role, layer, rank, 3, &r)) return 0;
        for (uint32_t d = 0; d < 4; ++d)
            require(0 <= r.begin[d] && r.begin[d] <= r.end[d] && r.end[d] <= r.ne[d]);
    }
    const unsigned char *bytes = r.data;
    for (uint64_t i = 0; i < r.n_bytes; i += 512) sum += bytes[i];
    return sum + (r.n_bytes > 0 ? bytes[r.n_bytes - 1] : 0) + strlen(r.name);
}

static void walk_model(const struct bpi_model *m)
{
    const struct bpi_hparams *hp = bpi_model_hparams(m);
    volatile uint64_t sum = 0;
    require(hp->n_layer > 0 && hp->n_layer <= BPI_MODEL_MAX_LAYERS && hp->n_head > 0 &&
            hp->n_head <= BPI_MODEL_MAX_HEADS);
    require(hp->n_embd > 0 && hp->n_vocab > 0 && hp->kv_lora > 0 && hp->nope > 0 && hp->v_dim > 0);
    require(hp->rope > 0 && hp->rope % 2 == 0 && hp->n_dense <= hp->n_layer && hp->n_group > 0);
    require(isfinite(hp->attn_scale) && hp->attn_scale > 0 && isfinite(hp->rope_mag) &&
            hp->rope_mag > 0);
    require(hp->n_dense == hp->n_layer ||
            (hp->n_expert > 0 && hp->n_expert_used > 0 && hp->n_ff_exp > 0 &&
             hp->n_expert_used <= hp->n_expert && hp->n_expert % hp->n_group == 0));
    require(!hp->sparse || (hp->top_k > 0 && hp->index_dim >= hp->rope && hp->n_index_head > 0 &&
                            bpi_model_index_full(m, 0)));
    for (uint32_t layer = 0; layer < hp->n_layer; ++layer) {
        for (uint32_t role = 0; role < BPI_W_COUNT; ++role) {
            size_t n;
            const float *v = bpi_model_vec(m, role, layer, &n);
            for (size_t i = 0; i < n; ++i) require(isfinite(v[i]));
            sum = sum + walk_raw(m, role, layer);
        }
    }
    for (size_t i = 0; i < bpi_model_report_n(m); ++i)
        sum = sum + strlen(bpi_model_report(m, i)->name) + strlen(bpi_model_report(m, i)->text);
    if (hp->rope > 4096) return;
    double f[2048];
    bpi_model_rope_freqs(hp, f);
    for (uint32_t i = 0; i < hp->rope / 2; ++i) require(isfinite(f[i]) && f[i] >= 0);
}

static void ignore(void *ctx, const struct bpi_report_entry *e)
{
    *(size_t *)ctx += strlen(e->name) + strlen(e->text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bpi_gguf *g = NULL;
    if (bpi_gguf_open_memory(data, size, "fuzz", &g, NULL) != BP_OK) return 0;
    struct bp_error err = BP_ERROR_INIT;
    size_t text = 0;
    int32_t rc = bpi_model_survey(g, NULL, ignore, &text, &err);
    require(rc == err.code);
    bpi_error_clear(&err);
    struct bpi_model *m = NULL;
    rc = bpi_model_open(g, NULL, &m, &err);
    require(rc == err.code && (rc == BP_OK) == (m != NULL) &&
            (rc == BP_OK) == (err.msg[0] == '\0'));
    if (m != NULL)
        walk_model(m);
    else
        bpi_gguf_close(g);
    bpi_model_close(m);
    return 0;
}
