/* gguf_types.h - sizes of every tensor type of the format, once, for the container and for core/block.
 * Not here: what the bits mean (core/block). Header only, so core/block needs no more of this room than this table.
 * Source: sizes from ggml @ d99724f (ggml-common.h). SPDX-License-Identifier: MIT */
#ifndef BPI_GGUF_TYPES_H
#define BPI_GGUF_TYPES_H

#include "backplane/types.h"

/* X(NAME, elements per block, bytes per block): BP_GGUF_<NAME> is the number, "<NAME>" the printed name.
 * Numbers that are missing here (4, 5, 31-33, 36-38) were removed from the format. */
// clang-format off
#define BPI_GGUF_TYPE_MAP(X) \
    X(F32,       1,   4)     \
    X(F16,       1,   2)     \
    X(Q4_0,     32,  18)     \
    X(Q4_1,     32,  20)     \
    X(Q5_0,     32,  22)     \
    X(Q5_1,     32,  24)     \
    X(Q8_0,     32,  34)     \
    X(Q8_1,     32,  36)     \
    X(Q2_K,    256,  84)     \
    X(Q3_K,    256, 110)     \
    X(Q4_K,    256, 144)     \
    X(Q5_K,    256, 176)     \
    X(Q6_K,    256, 210)     \
    X(Q8_K,    256, 292)     \
    X(IQ2_XXS, 256,  66)     \
    X(IQ2_XS,  256,  74)     \
    X(IQ3_XXS, 256,  98)     \
    X(IQ1_S,   256,  50)     \
    X(IQ4_NL,   32,  18)     \
    X(IQ3_S,   256, 110)     \
    X(IQ2_S,   256,  82)     \
    X(IQ4_XS,  256, 136)     \
    X(I8,        1,   1)     \
    X(I16,       1,   2)     \
    X(I32,       1,   4)     \
    X(I64,       1,   8)     \
    X(F64,       1,   8)     \
    X(IQ1_M,   256,  56)     \
    X(BF16,      1,   2)     \
    X(TQ1_0,   256,  54)     \
    X(TQ2_0,   256,  66)     \
    X(MXFP4,    32,  17)     \
    X(NVFP4,    64,  36)     \
    X(Q1_0,    128,  18)     \
    X(Q2_0,     64,  18)
// clang-format on

#endif
