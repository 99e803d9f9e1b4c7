/* gemv_types.h - the types that are repacked for the tensor-core products. SPDX-License-Identifier: MIT */
#ifndef QUANT_GGUF_GEMV_TYPES_H
#define QUANT_GGUF_GEMV_TYPES_H

#define QG_PLANES_MAP(X)                                                                           \
    X(Q8_0) X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(IQ4_NL) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K)      \
    X(IQ4_XS) X(MXFP4) X(NVFP4)
/* Those of them that have a kernel for one token. */
#define QG_ONE_K_MAP(X) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K) X(IQ4_XS)
#define QG_ONE_Q_MAP(X) X(Q8_0) X(Q4_0) X(IQ4_NL)
/* Those that are rows for them as they are. */
#define QG_ROWS_MAP(X) X(BF16) X(F16)

/* The others, which stay blocks. */
#define QG_BLOCKS_MAP(X)                                                                           \
    X(F32) X(F64) X(IQ2_XXS) X(IQ2_XS) X(IQ2_S) X(IQ3_XXS) X(IQ3_S) X(IQ1_S) X(IQ1_M) X(TQ1_0)     \
    X(TQ2_0) X(Q1_0) X(Q2_0)

#endif
