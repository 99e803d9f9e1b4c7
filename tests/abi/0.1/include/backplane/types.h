/* types.h - statuses, errors, dtypes, tensors: what every other public header stands on.
 * Not here: any function that does work; this header is data and inline arithmetic only.
 * Growth: ABI structs begin with struct bp_hdr; `size` is the end of the last field the writer knows; fields are
 * only appended; a field past `size` reads as zero. struct bp_hdr and struct bp_tensor are frozen (used by value).
 * SPDX-License-Identifier: MIT */
#ifndef BP_TYPES_H
#define BP_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define BP_STATIC_ASSERT(cond, msg) static_assert(cond, msg)
#define BP_EXTERN_C_BEGIN extern "C" {
#define BP_EXTERN_C_END }
#else
#define BP_STATIC_ASSERT(cond, msg) _Static_assert(cond, msg)
#define BP_EXTERN_C_BEGIN
#define BP_EXTERN_C_END
#endif

BP_EXTERN_C_BEGIN

BP_STATIC_ASSERT(sizeof(void *) == 8 && sizeof(float) == 4, "LP64 only");

/* End of field f in struct T, in bytes: what goes into bp_hdr.size. */
#define BP_END(T, f) ((uint32_t)(offsetof(T, f) + sizeof(((T *)0)->f)))
/* Does *p reach as far as field f? Ask before reading a field that a later minor added. */
#define BP_HAS(p, T, f) ((p) != NULL && (p)->h.size >= BP_END(T, f))
/* Every ABI struct ends without padding, so an appended field is always visible in `size`. */
#define BP_NOPAD(T, last) BP_STATIC_ASSERT(sizeof(T) == BP_END(T, last), #T ": implicit tail padding")

/* Statuses: one table gives code, name and text. Values are never reused. Codes travel as int32_t.
 * BP_DECLINED is no failure: "a valid request that this provider does not serve". */
#define BP_STATUS_MAP(X)                                                                           \
    X(OK, 0, "no error")                                                                           \
    X(DECLINED, -1, "valid, but not served by this provider")                                      \
    X(E_ARG, -2, "invalid argument")                                                               \
    X(E_NOMEM, -3, "out of host memory")                                                           \
    X(E_DEVMEM, -4, "out of device memory")                                                        \
    X(E_IO, -5, "file cannot be read or written")                                                  \
    X(E_FORMAT, -6, "malformed input")                                                             \
    X(E_UNSUPPORTED, -7, "well-formed, but not supported")                                         \
    X(E_CONFIG, -8, "invalid configuration")                                                       \
    X(E_ABI, -9, "plugin ABI mismatch")                                                            \
    X(E_DEVICE, -10, "device error")                                                               \
    X(E_DEVICE_LOST, -11, "device lost")                                                           \
    X(E_TIMEOUT, -12, "timed out")                                                                 \
    X(E_ABORTED, -13, "stopped on request")                                                        \
    X(E_NUMERIC, -14, "NaN or infinity in the computation")                                        \
    X(E_LIMIT, -15, "a stated limit was reached")                                                  \
    X(E_INTERNAL, -16, "internal error")

enum bp_status {
#define BP_STATUS_ENUM(name, value, text) BP_##name = value,
    BP_STATUS_MAP(BP_STATUS_ENUM)
#undef BP_STATUS_ENUM
};

/* Return early on failure. The only two control-flow macros of the project. */
#define BP_TRY(expr)                                                                               \
    do {                                                                                           \
        int32_t bp_try_rc_ = (expr);                                                               \
        if (bp_try_rc_ != BP_OK) return bp_try_rc_;                                                \
    } while (0)
#define BP_TRY_GOTO(rc, expr, label)                                                               \
    do {                                                                                           \
        (rc) = (expr);                                                                             \
        if ((rc) != BP_OK) goto label;                                                             \
    } while (0)

/* Extension chained behind a header. id = bp_id("vendor.dotted.name"). A receiver that does not know an extension
 * flagged CRITICAL must fail with BP_DECLINED and reason EXT. */
struct bp_ext {
    uint32_t size, flags;
    uint64_t id;
    const struct bp_ext *next;
};
enum { BP_EXT_CRITICAL = 1 };

/* Frozen: first member of every ABI struct. */
struct bp_hdr {
    uint32_t size;  /* BP_END(struct, last field the writer knows) */
    uint32_t flags; /* zero unless a struct says otherwise */
    const struct bp_ext *next;
};
BP_STATIC_ASSERT(sizeof(struct bp_hdr) == 16, "bp_hdr is frozen");
/* Initialiser of a header: struct bp_x x = {.h = BP_HDR(struct bp_x, last_field)}; */
#define BP_HDR(T, last)                                                                            \
    {                                                                                              \
        BP_END(T, last), 0u, NULL                                                                  \
    }

/* One error, owned by the caller, NULL allowed wherever one is taken. Nothing in it needs freeing. Slow paths fill
 * it; hot paths return a status only. `msg` is one sentence: what, where, what was expected, what to do. */
struct bp_error {
    struct bp_hdr h;
    int32_t code;    /* enum bp_status */
    int32_t native;  /* errno, CUresult, ...; 0 if none */
    char domain[16]; /* "gguf", "config", a provider's name */
    char where[96];  /* file, key, tensor, layer, op; too long: "..." and the end */
    char msg[512];
};
BP_NOPAD(struct bp_error, msg);
#define BP_ERROR_INIT                                                                              \
    {                                                                                              \
        .h = BP_HDR(struct bp_error, msg)                                                          \
    }

/* FNV-1a 64 of a dotted lower-case name: ids of layouts and extensions, so nobody needs a central enum. */
static inline uint64_t bp_id(const char *name)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (; *name != '\0'; ++name) {
        hash ^= (uint64_t)(unsigned char)*name;
        hash *= UINT64_C(0x100000001b3);
    }
    return hash;
}

/* Element types of plain tensors. */
enum bp_dtype {
    BP_DT_NONE = 0,
    BP_DT_F32 = 1,
    BP_DT_F16 = 2,
    BP_DT_BF16 = 3,
    BP_DT_I32 = 4,
    BP_DT_I64 = 5,
    BP_DT_U8 = 6,    /* raw bytes: cache pools, packed formats */
    BP_DT_U32 = 7
};

/* Tensor types of GGUF files, with the numbers the format gives them (ggml enum ggml_type @ d99724f). */
enum bp_gguf_type {
    BP_GGUF_F32 = 0, BP_GGUF_F16 = 1, BP_GGUF_Q4_0 = 2, BP_GGUF_Q4_1 = 3, BP_GGUF_Q5_0 = 6, BP_GGUF_Q5_1 = 7,
    BP_GGUF_Q8_0 = 8, BP_GGUF_Q8_1 = 9, BP_GGUF_Q2_K = 10, BP_GGUF_Q3_K = 11, BP_GGUF_Q4_K = 12, BP_GGUF_Q5_K = 13,
    BP_GGUF_Q6_K = 14, BP_GGUF_Q8_K = 15, BP_GGUF_IQ2_XXS = 16, BP_GGUF_IQ2_XS = 17, BP_GGUF_IQ3_XXS = 18,
    BP_GGUF_IQ1_S = 19, BP_GGUF_IQ4_NL = 20, BP_GGUF_IQ3_S = 21, BP_GGUF_IQ2_S = 22, BP_GGUF_IQ4_XS = 23,
    BP_GGUF_I8 = 24, BP_GGUF_I16 = 25, BP_GGUF_I32 = 26, BP_GGUF_I64 = 27, BP_GGUF_F64 = 28, BP_GGUF_IQ1_M = 29,
    BP_GGUF_BF16 = 30, BP_GGUF_TQ1_0 = 34, BP_GGUF_TQ2_0 = 35, BP_GGUF_MXFP4 = 39, BP_GGUF_NVFP4 = 40,
    BP_GGUF_Q1_0 = 41, BP_GGUF_Q2_0 = 42,
    BP_GGUF_COUNT = 43
};

/* A plain tensor. Frozen: passed by value and in arrays.
 * Shapes are written outermost first: (n_tok, n_embd) has dim[0] = n_tok, dim[1] = n_embd. Strides count elements;
 * the innermost stride is 1 unless an op says otherwise. data == NULL means "not given". */
struct bp_tensor {
    void *data;
    const void *scale; /* inline scales live in the layout; this is for formats with a separate array, else NULL */
    uint32_t dtype;    /* enum bp_dtype */
    uint32_t ndim;     /* 0..4 */
    uint32_t access;   /* enum bp_access; filled by tensors(), ignored by ops */
    uint32_t reserved0;
    uint64_t layout_id; /* bp_id of an opaque layout, 0 = strided as described here */
    const char *name;   /* port name, static string; filled by tensors() */
    int64_t dim[4], stride[4];
    uint64_t reserved[2];
};
BP_NOPAD(struct bp_tensor, reserved);
BP_STATIC_ASSERT(sizeof(struct bp_tensor) == 128, "bp_tensor is frozen");

enum bp_access { BP_IN = 1, BP_OUT = 2, BP_INOUT = 3 };

/* Weight bytes exactly as a GGUF file holds them, and the part of them that this rank owns.
 * ne[] is in file order: ne[0] is contiguous and is the matmul's input length. [begin, end) select the shard per
 * file dimension; begin[0] and end[0] are multiples of the type's block, or the owner masks what is not his. */
struct bp_raw {
    struct bp_hdr h;
    const void *data;  /* first byte of the whole tensor, at least 32-byte aligned within the file */
    uint64_t n_bytes;  /* bytes of the whole tensor */
    uint32_t type;     /* enum bp_gguf_type */
    uint32_t n_dim;    /* 1..4 */
    int64_t ne[4];     /* missing dimensions are 1 */
    int64_t begin[4], end[4];
    const char *name;  /* tensor name, for messages; lives as long as the model */
    float scale;       /* companion scale that multiplies every element; 1 when the file has none */
    uint32_t reserved;
};
BP_NOPAD(struct bp_raw, reserved);

BP_EXTERN_C_END
#endif
