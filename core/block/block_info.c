/* block_info.c - the table of tensor types, and the checked entry to the decoders.
 * Not here: the decoders (block_float.c, block_q.c, block_k.c, block_iq4.c).
 * To add a decoder: write it in its family's file, declare it in block_priv.h, move its row from LISTED to DECODED.
 * Threads: all functions are pure. SPDX-License-Identifier: MIT */
#include "block/block.h"

#include "base/base.h"
#include "block/block_priv.h"
#include "gguf/gguf_types.h"

// clang-format off
/* X(NAME, decoder): types that bpi_block_decode serves. */
#define DECODED_MAP(X)               \
    X(F32,    bpi_block_decode_f32)  \
    X(F16,    bpi_block_decode_f16)  \
    X(BF16,   bpi_block_decode_bf16) \
    X(F64,    bpi_block_decode_f64)  \
    X(Q4_0,   bpi_block_decode_q4_0) \
    X(Q4_1,   bpi_block_decode_q4_1) \
    X(Q5_0,   bpi_block_decode_q5_0) \
    X(Q5_1,   bpi_block_decode_q5_1) \
    X(Q8_0,   bpi_block_decode_q8_0) \
    X(Q2_K,   bpi_block_decode_q2_k) \
    X(Q3_K,   bpi_block_decode_q3_k) \
    X(Q4_K,   bpi_block_decode_q4_k) \
    X(Q5_K,   bpi_block_decode_q5_k) \
    X(Q6_K,   bpi_block_decode_q6_k) \
    X(IQ4_NL, bpi_block_decode_iq4_nl) \
    X(IQ4_XS, bpi_block_decode_iq4_xs) \
    X(IQ2_XXS, bpi_block_decode_iq2_xxs) \
    X(IQ2_XS, bpi_block_decode_iq2_xs) \
    X(IQ2_S,  bpi_block_decode_iq2_s) \
    X(IQ3_XXS, bpi_block_decode_iq3_xxs) \
    X(IQ3_S,  bpi_block_decode_iq3_s) \
    X(IQ1_S,  bpi_block_decode_iq1_s) \
    X(IQ1_M,  bpi_block_decode_iq1_m) \
    X(MXFP4,  bpi_block_decode_mxfp4) \
    X(NVFP4,  bpi_block_decode_nvfp4) \
    X(TQ1_0,  bpi_block_decode_tq1_0) \
    X(TQ2_0,  bpi_block_decode_tq2_0) \
    X(Q1_0,   bpi_block_decode_q1_0) \
    X(Q2_0,   bpi_block_decode_q2_0)

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
};

#define INFO(name, can) {#name, BP_GGUF_##name, ELEMS_##name, BYTES_##name, can}
static const struct entry types[BP_GGUF_COUNT] = {
#define DECODED(name, fn) [BP_GGUF_##name] = {INFO(name, true), fn},
#define LISTED(name) [BP_GGUF_##name] = {INFO(name, false), NULL},
    DECODED_MAP(DECODED)
    LISTED_MAP(LISTED)
#undef DECODED
#undef LISTED
};

/* Each name brings its separator along; the reader skips the first one. */
#define NAME(name, fn) ", " #name
static const char decoded_names[] = DECODED_MAP(NAME);
#undef NAME

/* A type of the container that is in neither list above would be refused as unknown here. */
enum {
#define ONE(...) +1
    N_CONTAINER = BPI_GGUF_TYPE_MAP(ONE),
    N_HERE = DECODED_MAP(ONE) LISTED_MAP(ONE)
#undef ONE
};
BP_STATIC_ASSERT(N_CONTAINER == N_HERE, "a type is missing from DECODED_MAP and LISTED_MAP");
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
