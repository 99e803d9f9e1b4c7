/* engine.h - how the files of core/engine that implement backplane.h and tools.h see their opaque objects.
 * Not for other rooms but compare and doctor. SPDX-License-Identifier: MIT */
#ifndef BPI_ENGINE_H
#define BPI_ENGINE_H

#include "backplane/backplane.h"
#include "backplane/tools.h"
#include "base/base.h"
#include "base/pool.h"
#include "config/config.h"
#include "gguf/gguf.h"
#include "model/model.h"
#include "token/token.h"

enum { BPI_MAX_LINKED = 16 };
struct bp_config {
    struct bpi_config *c;
    struct bpi_buf range; /* text handed out by bp_config_entry */
    bp_plugin_query_fn plugins[BPI_MAX_LINKED];
    uint32_t n_plugins;
};

struct bp_model {
    struct bpi_model *m;       /* owns the GGUF */
    struct bpi_token *t;       /* NULL: the file's tokenizer is not supported, see token_err */
    struct bp_error token_err; /* why t is NULL; a model without text still computes on ids */
    char *path;
    struct bpi_log log;  /* of bp_model_open's callbacks, for what text functions notice */
    uint32_t n_sessions; /* open on this model */
};

struct bp_file {
    struct bpi_gguf *g;
    struct bpi_arena arena; /* NUL-terminated copies */
    const char *arch;
    const char **keys; /* (n_kv) */
    char (*kinds)[24]; /* (n_kv) "arr[string]" */
};

/* The log that a config and callbacks describe. */
struct bpi_log bpi_engine_log(const struct bp_config *c, const struct bp_callbacks *cb);

/* The words of engine.device, of which auto is cuda:0 as long as nobody knows better (session_device.c). */
struct bp_device_problem;
int32_t bpi_device_words(const char *text, struct bp_device_problem *out, struct bp_error *err);
/* With engine.device = auto: does this failure mean that there is no device to use, so that the host is? Anything else -
 * memory that ran out, a device that is lost - is told. */
bool bpi_device_is_absent(int32_t rc);

/* The container behind an open file (api_file.c). */
const struct bpi_gguf *bpi_engine_gguf(const struct bp_file *f);

/* Logits that the sampler reads in one pick. */
uint32_t bpi_sampler_n_vocab(const struct bp_sampler *s);
/* ln of the sum of exp(logit), in double, the same bits for any pool (NULL: the caller's thread). NaN anywhere gives NaN. */
double bpi_log_sum_exp(struct bpi_pool *pool, const float *logits, uint32_t n);
/* bp_top_logprobs with that sum known. */
uint32_t bpi_top_logprobs(const float *logits, uint32_t n_vocab, uint32_t k, double norm, struct bp_token_prob *out);

#endif
