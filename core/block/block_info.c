/* block_info.c - the table of tensor types, and the checked entries to the decoders and encoders.
 * Not here: the decoders (block_float.c, block_q.c, block_k.c, ...) and encoders (block_encode_*.c).
 * To add a decoder: write it in its family's file, declare it in block_priv.h, add its row to DECODED_MAP. With an
 * encoder, declared in block_encode.h, the row belongs to BOTH_MAP.
 * Threads: all functions are pure. SPDX-License-Identifier: MIT */
#include "block/block.h"

#include <float.h>
#include <math.h>

#include "base/base.h"
#include "block/block_encode.h"
#include "block/block_priv.h"
#include "gguf/gguf_types.h"

// clang-format off
/* X(NAME, suffix of its functions, largest magnitude): types that can be decoded and encoded. The magnitude is what
 * still rounds to a finite value, or the largest half times the largest integers beside it (of the minima, where the
 * format has them). */
#define MAX_HALF 65504.0f
#define BOTH_MAP(X)                          \
    X(F32,    f32,    FLT_MAX)               \
    X(F16,    f16,    0x1.ffdffep15f)        \
    X(BF16,   bf16,   0x1.fefffep127f)       \
    X(Q4_0,   q4_0,   MAX_HALF * 8)          \
    X(Q4_1,   q4_1,   MAX_HALF)              \
    X(Q5_0,   q5_0,   MAX_HALF * 16)         \
    X(Q5_1,   q5_1,   MAX_HALF)              \
    X(Q8_0,   q8_0,   MAX_HALF * 127)        \
    X(Q2_K,   q2_k,   MAX_HALF * 15)         \
    X(Q3_K,   q3_k,   MAX_HALF * 32 * 4)     \
    X(Q4_K,   q4_k,   MAX_HALF * 63)         \
    X(Q5_K,   q5_k,   MAX_HALF * 63)         \
    X(Q6_K,   q6_k,   MAX_HALF * 128 * 32)   \
    X(IQ4_NL, iq4_nl, MAX_HALF * 127)        \
    X(IQ4_XS, iq4_xs, MAX_HALF * 32 * 127)

/* X(NAME, suffix): types that can only be decoded. */
#define DECODED_MAP(X)   \
    X(F64,     f64)      \
    X(IQ2_XXS, iq2_xxs)  \
    X(IQ2_XS,  iq2_xs)   \
    X(IQ2_S,   iq2_s)    \
    X(IQ3_XXS, iq3_xxs)  \
    X(IQ3_S,   iq3_s)    \
    X(IQ1_S,   iq1_s)    \
    X(IQ1_M,   iq1_m)    \
    X(MXFP4,   mxfp4)    \
    X(NVFP4,   nvfp4)    \
    X(TQ1_0,   tq1_0)    \
    X(TQ2_0,   tq2_0)    \
    X(Q1_0,    q1_0)     \
    X(Q2_0,    q2_0)

/* X(NAME): types whose sizes are known but whose contents are not read: activation formats and integers. */
#define LISTED_MAP(X) X(Q8_1) X(Q8_K) X(I8) X(I16) X(I32) X(I64)

enum {
#define SIZES(name, elems, bytes) ELEMS_##name = elems, BYTES_##name = bytes,
    BPI_GGUF_TYPE_MAP(SIZES)
#undef SIZES
};

struct entry {
    struct bpi_block_info info;
    void (*decode)(const unsigned char *restrict src, uint64_t n_blocks, float *restrict dst);
    void (*encode)(const float *src, const float *weights, uint64_t n_blocks, unsigned char *dst);
};

#define INFO(name, dec, enc, max) {#name, BP_GGUF_##name, ELEMS_##name, BYTES_##name, dec, enc, max}
static const struct entry types[BP_GGUF_COUNT] = {
#define BOTH(name, fn, max) \
    [BP_GGUF_##name] = {INFO(name, true, true, max), bpi_block_decode_##fn, bpi_block_encode_##fn},
#define DECODED(name, fn) [BP_GGUF_##name] = {INFO(name, true, false, 0), bpi_block_decode_##fn, NULL},
#define LISTED(name) [BP_GGUF_##name] = {INFO(name, false, false, 0), NULL, NULL},
    BOTH_MAP(BOTH)
    DECODED_MAP(DECODED)
    LISTED_MAP(LISTED)
#undef BOTH
#undef DECODED
#undef LISTED
};

/* Each name brings its separator along; the reader skips the first one. */
#define NAME(name, ...) ", " #name
static const char decoded_names[] = BOTH_MAP(NAME) DECODED_MAP(NAME);
#undef NAME

/* A type of the container that is in none of the lists above would be refused as unknown here. */
enum {
#define ONE(...) +1
    N_CONTAINER = BPI_GGUF_TYPE_MAP(ONE),
    N_HERE = BOTH_MAP(ONE) DECODED_MAP(ONE) LISTED_MAP(ONE)
#undef ONE
};
BP_STATIC_ASSERT(N_CONTAINER == N_HERE, "a type is missing from the lists above");
// clang-format on

static const struct entry *find_entry(uint32_t type)
{
    if (type >= BP_GGUF_COUNT || types[type].info.block_elems == 0) return NULL;
    return &types[type];
}

const struct bpi_block_info *bpi_block_info(uint32_t type)
{
    const struct entry *e = find_entry(type);
    return e != NULL ? &e->info : NULL;
}

/* Of the C locale, whatever the process's locale is. */
static char upper(char c)
{
    return c >= 'a' && c <= 'z' ? (char)(c - 'a' + 'A') : c;
}

static bool same_name(const char *a, const char *b)
{
    while (*a != '\0' && upper(*a) == upper(*b)) {
        ++a;
        ++b;
    }
    return *a == '\0' && *b == '\0';
}

const struct bpi_block_info *bpi_block_by_name(const char *name)
{
    for (uint32_t t = 0; t < BP_GGUF_COUNT; ++t) {
        const struct entry *e = find_entry(t);
        if (e != NULL && same_name(e->info.name, name)) return &e->info;
    }
    return NULL;
}

const char *bpi_block_supported_names(void)
{
    return decoded_names + 2;
}

bool bpi_block_bytes(uint32_t type, uint64_t n_elems, uint64_t *out_bytes)
{
    const struct entry *e = find_entry(type);
    if (e == NULL || n_elems % e->info.block_elems != 0) return false;
    return bpi_mul_u64(n_elems / e->info.block_elems, e->info.block_bytes, out_bytes);
}

int32_t bpi_block_decode(uint32_t type, const void *src, uint64_t n_elems, float *dst)
{
    const struct entry *e = find_entry(type);
    if (e == NULL || e->decode == NULL) return BP_E_UNSUPPORTED;
    if (n_elems % e->info.block_elems != 0) return BP_E_ARG;
    if (n_elems == 0) return BP_OK;
    if (src == NULL || dst == NULL) return BP_E_ARG;
    e->decode(src, n_elems / e->info.block_elems, dst);
    return BP_OK;
}

int32_t bpi_block_encode(uint32_t type, const float *src, uint64_t n_elems, const float *importance,
                         void *dst)
{
    const struct entry *e = find_entry(type);
    if (e == NULL || e->encode == NULL) return BP_E_UNSUPPORTED;
    if (n_elems % e->info.block_elems != 0) return BP_E_ARG;
    if (n_elems == 0) return BP_OK;
    if (src == NULL || dst == NULL) return BP_E_ARG;
    /* Before anything is written. A NaN fails both comparisons. */
    for (uint64_t i = 0; i < n_elems; ++i)
        if (!(fabsf(src[i]) <= e->info.max_abs)) return BP_E_NUMERIC;
    for (uint64_t i = 0; importance != NULL && i < n_elems; ++i)
        if (!(importance[i] >= 0.0f && importance[i] <= FLT_MAX)) return BP_E_NUMERIC;
    e->encode(src, importance, n_elems / e->info.block_elems, dst);
    return BP_OK;
}
