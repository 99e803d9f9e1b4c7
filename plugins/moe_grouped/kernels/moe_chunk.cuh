/* moe_chunk.cuh - how a thread reads 32 weights of a row: the chunk. A chunk is two runs of 16 columns, chosen such that
 * the bytes of one chunk lie together and lanes with consecutive chunks read consecutive addresses, 16 bytes at a time.
 * Each run has one scale d and one offset m: weight = d * q + m, with q a small whole number.
 * Rows of Q6_K are split into planes [low 4 bits][high 2 bits][scales][d], rows of Q8_0 into [quants][d]: in the file
 * their blocks are not a multiple of 4 bytes long.
 * Source: block layouts as core/block states them. SPDX-License-Identifier: MIT */
#ifndef MOE_CHUNK_CUH
#define MOE_CHUNK_CUH

#ifdef __CUDACC__ /* a test compiles this file for the host and defines what it uses of CUDA */
#include <cuda_fp16.h>
#endif
#include <stdint.h>

#include "backplane/types.h"

namespace moe
{

__device__ __forceinline__ uint4 load16(const uint8_t *p)
{
    return __ldg(reinterpret_cast<const uint4 *>(p));
}

__device__ __forceinline__ float half_of(uint32_t bits)
{
    return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

/* Byte k of v plus bias, where bias is what 2^23 + byte stands for: exact for bytes. */
template <int K> __device__ __forceinline__ float byte_float(uint32_t v, float bias)
{
    return __uint_as_float(__byte_perm(v, 0x4b000000u, 0x7440u + K)) - bias;
}

__device__ __forceinline__ void bytes4(float *q, uint32_t v, float bias)
{
    q[0] = byte_float<0>(v, bias);
    q[1] = byte_float<1>(v, bias);
    q[2] = byte_float<2>(v, bias);
    q[3] = byte_float<3>(v, bias);
}

constexpr float PLAIN = 8388608.0f; /* 2^23 */

__device__ __forceinline__ uint32_t word_of(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* What unpack() gives: q[0..15] of the first run, q[16..31] of the second. */
struct Runs {
    float q[32], d[2], m[2];
};

/* The same with whole numbers as bytes: weight = d * (byte - ZERO) + m, bytes signed where SIGN, else below 128. */
struct Words {
    uint32_t q[8];
    float d[2], m[2];
};

/* load(row, cols, chunk), words(chunk, Words &), unpack(chunk, Runs &), column(chunk, run). OFFSET: is there an m? */
template <uint32_t TYPE> struct Chunk;

template <class C> __device__ __forceinline__ void unpack_words(const C &c, int chunk, Runs &r)
{
    Words w;
    c.words(chunk, w);
    constexpr float BIAS = PLAIN + C::ZERO + (C::SIGN ? 128 : 0);
#pragma unroll
    for (int i = 0; i < 8; ++i) bytes4(r.q + 4 * i, C::SIGN ? w.q[i] ^ 0x80808080u : w.q[i], BIAS);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        r.d[i] = w.d[i];
        r.m[i] = C::OFFSET ? w.m[i] : 0.0f;
    }
}

/* Byte `at` of v, which is below 2^23 / 256: the place may differ from lane to lane. */
__device__ __forceinline__ float any_byte_float(uint32_t v, uint32_t at)
{
    return __uint_as_float(__byte_perm(v, 0x4b000000u, 0x7440u + at)) - PLAIN;
}

/* Scales of Q4_K and Q5_K: 6 bits each for the 8 sub-blocks; this chunk has sub-blocks 2g and 2g + 1. Of the last four the
 * low bits lie in c and the high ones in a and b. */
__device__ __forceinline__ void scales_k(const uint4 &head, int chunk, Words &r)
{
    const int g = (chunk >> 1) & 3;
    const uint32_t at = (g & 1) * 2, low = g < 2 ? 0x3f3f3f3fu : 0x0f0f0f0fu, high = g < 2 ? 0u : 0x30303030u;
    const uint32_t a = head.y, b = head.z, c = head.w;
    const uint32_t sc = ((g < 2 ? a : c) & low) | ((a >> 2) & high);
    const uint32_t mn = ((g < 2 ? b : c >> 4) & low) | ((b >> 2) & high);
    const float d = half_of(head.x & 0xffffu), min = -half_of(head.x >> 16);
    r.d[0] = d * any_byte_float(sc, at);
    r.d[1] = d * any_byte_float(sc, at + 1);
    r.m[0] = min * any_byte_float(mn, at);
    r.m[1] = min * any_byte_float(mn, at + 1);
}

template <> struct Chunk<BP_GGUF_Q4_K> {
    static constexpr bool OFFSET = true, SIGN = false;
    static constexpr int ZERO = 0;
    uint4 head, q;
    static __device__ __forceinline__ int column(int chunk, int run)
    {
        return (chunk >> 1) * 64 + (chunk & 1) * 16 + run * 32;
    }
    __device__ __forceinline__ void load(const uint8_t *row, int cols, int chunk)
    {
        (void)cols;
        const uint8_t *block = row + static_cast<int64_t>(chunk >> 3) * 144;
        head = load16(block);
        q = load16(block + 16 + (chunk & 7) * 16);
    }
    __device__ __forceinline__ void words(int chunk, Words &r) const
    {
        scales_k(head, chunk, r);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            r.q[i] = word_of(q, i) & 0x0f0f0f0fu;
            r.q[4 + i] = (word_of(q, i) >> 4) & 0x0f0f0f0fu;
        }
    }
    __device__ __forceinline__ void unpack(int chunk, Runs &r) const
    {
        unpack_words(*this, chunk, r);
    }
};

template <> struct Chunk<BP_GGUF_Q5_K> {
    static constexpr bool OFFSET = true, SIGN = false;
    static constexpr int ZERO = 0;
    uint4 head, high, q;
    static __device__ __forceinline__ int column(int chunk, int run)
    {
        return Chunk<BP_GGUF_Q4_K>::column(chunk, run);
    }
    __device__ __forceinline__ void load(const uint8_t *row, int cols, int chunk)
    {
        (void)cols;
        const uint8_t *block = row + static_cast<int64_t>(chunk >> 3) * 176;
        head = load16(block);
        high = load16(block + 16 + (chunk & 1) * 16);
        q = load16(block + 48 + (chunk & 7) * 16);
    }
    __device__ __forceinline__ void words(int chunk, Words &r) const
    {
        const int bit = ((chunk >> 1) & 3) * 2;
        scales_k(head, chunk, r);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint32_t w = word_of(q, i), h = word_of(high, i) >> bit;
            r.q[i] = (w & 0x0f0f0f0fu) | ((h & 0x01010101u) << 4);
            r.q[4 + i] = ((w >> 4) & 0x0f0f0f0fu) | ((h & 0x02020202u) << 3);
        }
    }
    __device__ __forceinline__ void unpack(int chunk, Runs &r) const
    {
        unpack_words(*this, chunk, r);
    }
};

template <> struct Chunk<BP_GGUF_Q6_K> {
    static constexpr bool OFFSET = false, SIGN = false;
    static constexpr int ZERO = 32;
    uint4 low, high;
    uint32_t scale; /* two signed bytes, and d above them */
    static __device__ __forceinline__ int column(int chunk, int run)
    {
        return (chunk >> 2) * 128 + (chunk & 3) * 16 + run * 64;
    }
    __device__ __forceinline__ void load(const uint8_t *row, int cols, int chunk)
    {
        const int n_block = cols >> 8, block = chunk >> 3, half = (chunk >> 2) & 1;
        const uint8_t *highs = row + n_block * 128, *scales = highs + n_block * 64, *ds = scales + n_block * 16;
        low = load16(row + chunk * 16);
        high = load16(highs + block * 64 + half * 32 + (chunk & 1) * 16);
        const uint8_t *s = scales + block * 16 + half * 8 + (chunk & 3);
        scale = static_cast<uint32_t>(__ldg(s)) | static_cast<uint32_t>(__ldg(s + 4)) << 8 |
                static_cast<uint32_t>(__ldg(reinterpret_cast<const unsigned short *>(ds + block * 2))) << 16;
    }
    __device__ __forceinline__ void words(int chunk, Words &r) const
    {
        const int shift = chunk & 2;
        const float d = half_of(scale >> 16);
        r.d[0] = d * byte_float<0>(scale ^ 0x80u, PLAIN + 128.0f);
        r.d[1] = d * byte_float<1>(scale ^ 0x8000u, PLAIN + 128.0f);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint32_t w = word_of(low, i), h = word_of(high, i) >> shift;
            r.q[i] = (w & 0x0f0f0f0fu) | ((h & 0x03030303u) << 4);
            r.q[4 + i] = ((w >> 4) & 0x0f0f0f0fu) | (h & 0x30303030u);
        }
    }
    __device__ __forceinline__ void unpack(int chunk, Runs &r) const
    {
        unpack_words(*this, chunk, r);
    }
};

template <> struct Chunk<BP_GGUF_Q8_0> {
    static constexpr bool OFFSET = false, SIGN = true;
    static constexpr int ZERO = 0;
    uint4 a, b;
    uint32_t scale;
    static __device__ __forceinline__ int column(int chunk, int run)
    {
        return chunk * 32 + run * 16;
    }
    __device__ __forceinline__ void load(const uint8_t *row, int cols, int chunk)
    {
        a = load16(row + chunk * 32);
        b = load16(row + chunk * 32 + 16);
        scale = __ldg(reinterpret_cast<const unsigned short *>(row + cols) + chunk);
    }
    __device__ __forceinline__ void words(int chunk, Words &r) const
    {
        (void)chunk;
        r.d[0] = r.d[1] = half_of(scale);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            r.q[i] = word_of(a, i);
            r.q[4 + i] = word_of(b, i);
        }
    }
    __device__ __forceinline__ void unpack(int chunk, Runs &r) const
    {
        unpack_words(*this, chunk, r);
    }
};

template <> struct Chunk<BP_GGUF_BF16> {
    static constexpr bool OFFSET = false;
    uint4 v[4];
    static __device__ __forceinline__ int column(int chunk, int run)
    {
        return chunk * 32 + run * 16;
    }
    __device__ __forceinline__ void load(const uint8_t *row, int cols, int chunk)
    {
        (void)cols;
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = load16(row + static_cast<int64_t>(chunk) * 64 + i * 16);
    }
    /* Columns 4j to 4j + 3 of the chunk. */
    __device__ __forceinline__ void four(int j, float *q) const
    {
        const uint32_t a = word_of(v[j / 2], j % 2 * 2), b = word_of(v[j / 2], j % 2 * 2 + 1);
        q[0] = __uint_as_float(a << 16);
        q[1] = __uint_as_float(a & 0xffff0000u);
        q[2] = __uint_as_float(b << 16);
        q[3] = __uint_as_float(b & 0xffff0000u);
    }
    __device__ __forceinline__ void unpack(int chunk, Runs &r) const
    {
        (void)chunk;
        r.d[0] = r.d[1] = 1.0f;
        r.m[0] = r.m[1] = 0.0f;
#pragma unroll
        for (int j = 0; j < 8; ++j) four(j, r.q + 4 * j);
    }
};

/* Where byte `at` of a device row comes from in a row of n blocks of the file; -1: padding. plain: bytes of a row that
 * stays as it is. */
__device__ __forceinline__ int64_t source_of(uint32_t type, int64_t n, int64_t plain, int64_t at)
{
    if (type == BP_GGUF_Q6_K) {
        if (at < n * 128) return at / 128 * 210 + at % 128;
        at -= n * 128;
        if (at < n * 64) return at / 64 * 210 + 128 + at % 64;
        at -= n * 64;
        if (at < n * 16) return at / 16 * 210 + 192 + at % 16;
        at -= n * 16;
        return at < n * 2 ? at / 2 * 210 + 208 + at % 2 : -1;
    }
    if (type == BP_GGUF_Q8_0) {
        if (at < n * 32) return at / 32 * 34 + 2 + at % 32;
        at -= n * 32;
        return at < n * 2 ? at / 2 * 34 + at % 2 : -1;
    }
    return at < plain ? at : -1;
}

} // namespace moe
#endif
