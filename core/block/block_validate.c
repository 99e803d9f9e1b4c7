/* block_validate.c - bpi_block_validate: finds numbers in blocks that no encoder writes and no model survives.
 * Not here: sizes and offsets in a file (core/gguf). Integers in a block may be anything: every pattern has a value.
 * Source: the fields that ggml @ d99724f looks at when it validates rows, and the NaN of NVFP4's scales besides.
 * Threads: pure. SPDX-License-Identifier: MIT */
#include "block/block.h"

#include "base/base.h"
#include "block/block_priv.h"

enum what { SCALE, MINIMUM, SUM, VALUE };

static const char *const reasons[][2] = {
    [SCALE] = {"its scale is NaN", "its scale is infinite"},
    [MINIMUM] = {"its minimum is NaN", "its minimum is infinite"},
    [SUM] = {"its sum is NaN", "its sum is infinite"},
    [VALUE] = {"the value is NaN", "the value is infinite"},
};

/* NULL for a finite number of `bits`, whose exponent field is `exp` and whose fraction is `man`. */
static inline const char *check(uint64_t bits, uint64_t exp, uint64_t man, enum what what)
{
    if ((bits & exp) != exp) return NULL;
    return reasons[what][(bits & man) == 0];
}

static inline const char *check_half(const unsigned char *p, enum what what)
{
    return check(load_u16(p), 0x7c00, 0x3ff, what);
}

/* A half at `at`, and another one of meaning `what` at `at2` unless that is negative. */
static const char *check_halves(const unsigned char *p, int at, int at2, enum what what)
{
    const char *reason = check_half(p + at, SCALE);
    return reason == NULL && at2 >= 0 ? check_half(p + at2, what) : reason;
}

static const char *check_float(uint32_t type, const unsigned char *p)
{
    uint64_t wide;
    switch (type) {
    case BP_GGUF_F16:
        return check_half(p, VALUE);
    case BP_GGUF_BF16:
        return check(load_u16(p), 0x7f80, 0x7f, VALUE);
    case BP_GGUF_F32:
        return check(load_u32(p), 0x7f800000u, 0x7fffff, VALUE);
    default: /* F64 */
        memcpy(&wide, p, sizeof wide);
        return check(wide, UINT64_C(0x7ff) << 52, (UINT64_C(1) << 52) - 1, VALUE);
    }
}

static const char *check_special(uint32_t type, const unsigned char *p)
{
    switch (type) {
    case BP_GGUF_IQ1_M:
        return check(bpi_block_iq1_m_half(p), 0x7c00, 0x3ff, SCALE);
    case BP_GGUF_Q8_K:
        return check(load_u32(p), 0x7f800000u, 0x7fffff, SCALE);
    case BP_GGUF_MXFP4:
        if (p[0] == 255) return reasons[SCALE][0];
        return p[0] >= 253 ? "its scale is too large for a float" : NULL;
    case BP_GGUF_NVFP4:
        for (int i = 0; i < 4; ++i)
            if ((p[i] & 0x7f) == 0x7f) return reasons[SCALE][0];
        return NULL;
    default:
        return NULL;
    }
}

static const char *check_block(uint32_t type, const unsigned char *p)
{
    // clang-format off
    switch (type) {
    case BP_GGUF_F16:
    case BP_GGUF_BF16:
    case BP_GGUF_F32:
    case BP_GGUF_F64:     return check_float(type, p);
    case BP_GGUF_Q4_0:
    case BP_GGUF_Q5_0:
    case BP_GGUF_Q8_0:
    case BP_GGUF_Q1_0:
    case BP_GGUF_Q2_0:
    case BP_GGUF_IQ1_S:
    case BP_GGUF_IQ2_XXS:
    case BP_GGUF_IQ2_XS:
    case BP_GGUF_IQ2_S:
    case BP_GGUF_IQ3_XXS:
    case BP_GGUF_IQ3_S:
    case BP_GGUF_IQ4_NL:
    case BP_GGUF_IQ4_XS:  return check_halves(p, 0, -1, SCALE);
    case BP_GGUF_Q8_1:    return check_halves(p, 0, 2, SUM);
    case BP_GGUF_Q4_1:
    case BP_GGUF_Q5_1:
    case BP_GGUF_Q4_K:
    case BP_GGUF_Q5_K:    return check_halves(p, 0, 2, MINIMUM);
    case BP_GGUF_Q2_K:    return check_halves(p, 80, 82, MINIMUM);
    case BP_GGUF_Q3_K:    return check_halves(p, 108, -1, SCALE);
    case BP_GGUF_Q6_K:    return check_halves(p, 208, -1, SCALE);
    case BP_GGUF_TQ1_0:   return check_halves(p, 52, -1, SCALE);
    case BP_GGUF_TQ2_0:   return check_halves(p, 64, -1, SCALE);
    default:              return check_special(type, p);
    }
    // clang-format on
}

/* Runs of plain values in vector code: adding one to the lowest bit of the exponent field carries into the sign's place
 * if and only if the field is all ones. */
enum { RUN = 64 };

static bool finite_run_16(const unsigned char *restrict p, uint16_t one)
{
    uint16_t v[RUN], carry = 0;
    memcpy(v, p, sizeof v);
    for (int i = 0; i < RUN; ++i) carry |= (uint16_t)((v[i] & 0x7fffu) + one);
    return (carry & 0x8000u) == 0;
}

static bool finite_run_32(const unsigned char *restrict p)
{
    uint32_t v[RUN], carry = 0;
    memcpy(v, p, sizeof v);
    for (int i = 0; i < RUN; ++i) carry |= (v[i] & 0x7fffffffu) + 0x00800000u;
    return (carry & 0x80000000u) == 0;
}

/* How many of the first n values are good at a glance. */
static uint64_t good_at_once(uint32_t type, const unsigned char *p, uint64_t n)
{
    uint64_t i = 0;
    switch (type) {
    case BP_GGUF_F16:
        while (i + RUN <= n && finite_run_16(p + 2 * i, 0x400)) i += RUN;
        return i;
    case BP_GGUF_BF16:
        while (i + RUN <= n && finite_run_16(p + 2 * i, 0x80)) i += RUN;
        return i;
    case BP_GGUF_F32:
        while (i + RUN <= n && finite_run_32(p + 4 * i)) i += RUN;
        return i;
    case BP_GGUF_I8:
    case BP_GGUF_I16:
    case BP_GGUF_I32:
    case BP_GGUF_I64:
        return n;
    default:
        return 0;
    }
}

const char *bpi_block_validate(uint32_t type, const void *bytes, uint64_t n_bytes,
                               uint64_t *first_bad_block)
{
    const struct bpi_block_info *info = bpi_block_info(type);
    *first_bad_block = 0;
    if (info == NULL) return "its type is unknown";
    const uint64_t n = n_bytes / info->block_bytes;
    const unsigned char *p = bytes;
    for (uint64_t b = good_at_once(type, p, n); b < n; ++b) {
        const char *reason = check_block(type, p + b * info->block_bytes);
        if (reason == NULL) continue;
        *first_bad_block = b;
        return reason;
    }
    *first_bad_block = n;
    return n_bytes % info->block_bytes != 0 ? "it is cut off" : NULL;
}
