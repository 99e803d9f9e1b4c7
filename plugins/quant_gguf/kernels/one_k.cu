/* one_k.cu - products of repacked weights with one token: the types with super-blocks of 256.
 * SPDX-License-Identifier: MIT */
#include "gemv_types.h"

#include "one.cuh"

#define QG_INSTANCE(NAME)                                                                          \
    template int32_t one::launch<BP_GGUF_##NAME>(const qg_gemv &, cudaStream_t);                   \
    template int32_t one::warps_of<BP_GGUF_##NAME>(int64_t, int32_t);
QG_ONE_K_MAP(QG_INSTANCE)
