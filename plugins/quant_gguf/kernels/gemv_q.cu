/* gemv_q.cu - products of repacked weights: the types with blocks of 32, and the choice by type.
 * SPDX-License-Identifier: MIT */
#include "gemv_types.h"

#include "gemv.cuh"

/* In other files, so that they are compiled side by side. */
extern template int32_t gemv::launch<BP_GGUF_Q2_K>(const qg_gemv &, cudaStream_t);
extern template int32_t gemv::launch<BP_GGUF_Q3_K>(const qg_gemv &, cudaStream_t);
extern template int32_t gemv::launch<BP_GGUF_Q4_K>(const qg_gemv &, cudaStream_t);
extern template int32_t gemv::launch<BP_GGUF_Q5_K>(const qg_gemv &, cudaStream_t);
extern template int32_t gemv::launch<BP_GGUF_Q6_K>(const qg_gemv &, cudaStream_t);
extern template int32_t gemv::launch<BP_GGUF_IQ4_XS>(const qg_gemv &, cudaStream_t);

extern "C" int32_t qg_gemv_launch(const qg_gemv *g, void *stream)
{
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
#define QG_CASE(NAME)                                                                              \
    case BP_GGUF_##NAME:                                                                           \
        return gemv::launch<BP_GGUF_##NAME>(*g, s);
    switch (g->w[0]->type) {
        QG_PLANES_MAP(QG_CASE)
        QG_ROWS_MAP(QG_CASE)
    default:
        return static_cast<int32_t>(cudaErrorInvalidValue);
    }
#undef QG_CASE
}

extern "C" int32_t qg_blocks_per_sm(uint32_t type)
{
#define QG_CASE(NAME)                                                                              \
    case BP_GGUF_##NAME:                                                                           \
        return gemv::blocks_per_sm<BP_GGUF_##NAME, 1>();
    switch (type) {
        QG_PLANES_MAP(QG_CASE)
        QG_ROWS_MAP(QG_CASE)
    default:
        return 1;
    }
#undef QG_CASE
}
