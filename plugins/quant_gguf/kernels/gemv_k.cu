/* gemv_k.cu - products of repacked weights: the types with super-blocks of 256. SPDX-License-Identifier: MIT */
#include "gemv_types.h"

#include "gemv.cuh"

template int32_t gemv::launch<BP_GGUF_Q2_K>(const qg_gemv &, cudaStream_t);
template int32_t gemv::launch<BP_GGUF_Q3_K>(const qg_gemv &, cudaStream_t);
template int32_t gemv::launch<BP_GGUF_Q4_K>(const qg_gemv &, cudaStream_t);
template int32_t gemv::launch<BP_GGUF_Q5_K>(const qg_gemv &, cudaStream_t);
template int32_t gemv::launch<BP_GGUF_Q6_K>(const qg_gemv &, cudaStream_t);
template int32_t gemv::launch<BP_GGUF_IQ4_XS>(const qg_gemv &, cudaStream_t);
