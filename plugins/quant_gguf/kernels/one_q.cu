/* one_q.cu - products of repacked weights with one token: the types with blocks of 32, and the choice by type.
 * SPDX-License-Identifier: MIT */
#include "gemv_types.h"

#include "one.cuh"

/* In the other file, so that they are compiled side by side. */
#define QG_ELSEWHERE(NAME)                                                                         \
    extern template int32_t one::launch<BP_GGUF_##NAME>(const qg_gemv &, cudaStream_t);            \
    extern template int32_t one::warps_of<BP_GGUF_##NAME>(int64_t, int32_t);
QG_ONE_K_MAP(QG_ELSEWHERE)

extern "C" int32_t qg_one_launch(const qg_gemv *g, void *stream)
{
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
#define QG_CASE(NAME)                                                                              \
    case BP_GGUF_##NAME:                                                                           \
        return one::launch<BP_GGUF_##NAME>(*g, s);
    switch (g->w[0]->type) {
        QG_ONE_K_MAP(QG_CASE)
        QG_ONE_Q_MAP(QG_CASE)
    default:
        return static_cast<int32_t>(cudaErrorInvalidValue);
    }
#undef QG_CASE
}

extern "C" int32_t qg_one_warps(uint32_t type, int64_t n_steps, int64_t smem)
{
    if (n_steps > (1 << 20)) return 0; /* far more than shared memory holds */
#define QG_CASE(NAME)                                                                              \
    case BP_GGUF_##NAME:                                                                           \
        return one::warps_of<BP_GGUF_##NAME>(smem, static_cast<int32_t>(n_steps));
    switch (type) {
        QG_ONE_K_MAP(QG_CASE)
        QG_ONE_Q_MAP(QG_CASE)
    default:
        return 0;
    }
#undef QG_CASE
}
