/* test_moe_chunk.cpp - the readers of moe_grouped's kernels, compiled for the host: rows of random blocks, packed as the
 * device has them, must give exactly what core/block decodes, each column once.
 * SPDX-License-Identifier: MIT */
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <backplane/sdk_tensor.h>

/* What the readers use of CUDA. */
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
struct uint4 {
    uint32_t x, y, z, w;
};
template <class T> static T __ldg(const T *p)
{
    if (reinterpret_cast<uintptr_t>(p) % sizeof(T) != 0) {
        std::printf("a load of %zu bytes is not aligned\n", sizeof(T));
        std::exit(1);
    }
    return *p;
}
static float __uint_as_float(uint32_t v)
{
    return bp_bits_f32(v);
}
static uint16_t __ushort_as_half(unsigned short v)
{
    return v;
}
static float __half2float(uint16_t v)
{
    return bp_f16_f32(v);
}
static float __fmul_rn(float a, float b)
{
    return a * b;
}
static uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t select)
{
    const uint64_t both = static_cast<uint64_t>(y) << 32 | x;
    uint32_t r = 0;
    for (int i = 0; i < 4; ++i) r |= static_cast<uint32_t>(both >> 8 * (select >> 4 * i & 7) & 0xff) << 8 * i;
    return r;
}

#include "kernels/moe_decode.cuh"

extern "C" int32_t bpi_block_decode(uint32_t type, const void *src, uint64_t n_elems, float *dst);

static int n_bad;

static bool same(float a, float b)
{
    return a == b || (std::isnan(a) && std::isnan(b));
}

template <uint32_t TYPE> static void check_type(const char *name, int n_block)
{
    const int elems = bp_block_elems(TYPE), size = bp_block_size(TYPE);
    const int cols = (n_block * elems + 31) / 32 * 32;
    const int row_bytes = (cols / elems * size + 15) / 16 * 16;
    std::vector<uint8_t> file(static_cast<size_t>(n_block * size));
    std::vector<uint4> memory(static_cast<size_t>(row_bytes) / 16);
    std::vector<float> want(static_cast<size_t>(cols), 0.0f);
    uint8_t *row = reinterpret_cast<uint8_t *>(memory.data());
    for (uint8_t &b : file) b = static_cast<uint8_t>(std::rand() >> 7);
    if (bpi_block_decode(TYPE, file.data(), static_cast<uint64_t>(n_block) * elems, want.data()) != 0) ++n_bad;
    for (int i = 0; i < row_bytes; ++i) {
        const int64_t from = moe::source_of(TYPE, n_block, n_block * size, i);
        row[i] = from >= 0 ? file[static_cast<size_t>(from)] : 0;
    }
    std::vector<int> seen(static_cast<size_t>(cols), 0);
    for (int chunk = 0; chunk < cols / 32; ++chunk) {
        moe::Chunk<TYPE> c;
        moe::Runs r;
        float natural[32];
        c.load(row, cols, chunk);
        c.unpack(chunk, r);
        moe::decode32(TYPE, row, cols, chunk, natural);
        for (int i = 0; i < 32; ++i) {
            const int at = moe::Chunk<TYPE>::column(chunk, i / 16) + i % 16;
            const float product = r.d[i / 16] * r.q[i], got = product + r.m[i / 16];
            if (at < 0 || at >= cols || seen[static_cast<size_t>(at)]++ != 0 || !same(got, want[static_cast<size_t>(at)]) ||
                !same(natural[i], want[static_cast<size_t>(chunk * 32 + i)])) {
                std::printf("%s: column %d of chunk %d is %g, natural %g, want %g\n", name, at, chunk, got, natural[i],
                            want[static_cast<size_t>(chunk * 32 + i)]);
                ++n_bad;
                return;
            }
        }
    }
}

int main()
{
    const unsigned seed = 20261201;
    std::printf("seed %u\n", seed);
    std::srand(seed);
    for (int n = 1; n <= 9; ++n) {
        check_type<BP_GGUF_Q4_K>("Q4_K", n);
        check_type<BP_GGUF_Q5_K>("Q5_K", n);
        check_type<BP_GGUF_Q6_K>("Q6_K", n);
        check_type<BP_GGUF_Q8_0>("Q8_0", n);
        check_type<BP_GGUF_BF16>("BF16", n * 7);
    }
    return n_bad != 0;
}
