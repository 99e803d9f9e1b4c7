/* gemv.cuh - products of repacked weights with up to 24 columns, in one pass over the weights: y = W x for 1 to 8 tokens.
 * Codes become bf16 in registers and are multiplied on the tensor cores (m16n8k16): exact products, f32 sums over at most 32
 * columns, which are then scaled and added in f32 registers. An f32 activation is three bf16 columns that add up to it
 * exactly, so nothing is rounded before the sums. Each warp has a ring of steps in shared memory and copies ahead into it:
 * a warp has six counters for loads to registers and waits for all loads of a counter, so that prefetching into registers
 * waits for what it has just begun. x comes from the first cache.
 * Each warp leaves its sum of each strip in shared memory, and the block adds those of its warps (line.cuh says who has
 * which).
 * Determinism: all of these are added in the order of the columns, and cut in a way that does not depend on the number of
 * tokens: a row has the same bits in every batch that comes here. (One token goes to one.cuh where its type has that.)
 * Not here: how many blocks (plan.c). SPDX-License-Identifier: MIT */
#ifndef QUANT_GGUF_GEMV_CUH
#define QUANT_GGUF_GEMV_CUH

#include "line.cuh"
#include "planes.cuh"

#include "backplane/cuda/host.h"

namespace gemv
{

using planes::step;

struct args {
    line::args line;
    const __nv_bfloat16 *x;
    int64_t x_ld;
    int32_t parts, n_col;
};

/* d = a b, nothing else: what an accumulator of zeros would give. */
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, "
        "{%0, %1, %2, %3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* The lane's eight values of x for group G of a step; x is at its first one. */
template <bool SUB16> __device__ __forceinline__ uint4 load_x(const __nv_bfloat16 *x, int G)
{
    if constexpr (!SUB16) return *reinterpret_cast<const uint4 *>(x + 32 * G);
    const uint2 a = *reinterpret_cast<const uint2 *>(x + 32 * G);
    const uint2 b = *reinterpret_cast<const uint2 *>(x + 32 * G + 16);
    return make_uint4(a.x, a.y, b.x, b.y);
}

/* acc += scale * d - min * ones, for the rows g (d[0], d[1]) and g + 8. */
template <class S>
__device__ __forceinline__ void add_scaled(float (&acc)[4], const float (&d)[4], const S &s, int G,
                                           int sub)
{
    const float s0 = s.h[0].scale(G, sub), s1 = s.h[1].scale(G, sub);
    acc[0] = fmaf(s0, d[0], acc[0]);
    acc[1] = fmaf(s0, d[1], acc[1]);
    acc[2] = fmaf(s1, d[2], acc[2]);
    acc[3] = fmaf(s1, d[3], acc[3]);
}
template <class S>
__device__ __forceinline__ void take_min(float (&acc)[4], const float (&d)[4], const S &s, int G,
                                         int sub)
{
    const float m0 = -s.h[0].min(G, sub), m1 = -s.h[1].min(G, sub);
    acc[0] = fmaf(m0, d[0], acc[0]);
    acc[1] = fmaf(m0, d[1], acc[1]);
    acc[2] = fmaf(m1, d[2], acc[2]);
    acc[3] = fmaf(m1, d[3], acc[3]);
}

/* One group of 32 columns. x[t]: this lane's column of tile t, or NULL. */
template <uint32_t TYPE, int TILES, int G>
__device__ __forceinline__ void group(const step<TYPE> &s, const uint32_t (&ones)[4],
                                      const uint4 (&x)[TILES], float (&acc)[TILES][4],
                                      float (&plain)[TILES][4])
{
    using H = typename step<TYPE>::H;
    uint32_t a[step<TYPE>::PARTS][2][4];
#pragma unroll
    for (int p = 0; p < step<TYPE>::PARTS; ++p) {
        s.template fragment<G, 0>(a[p][0], p);
        s.template fragment<G, 1>(a[p][1], p);
    }
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
        if constexpr (H::NONE) { /* added over a whole step */
#pragma unroll
            for (int p = 0; p < step<TYPE>::PARTS; ++p) {
                mma(plain[t], a[p][0], x[t].x, x[t].y);
                mma(plain[t], a[p][1], x[t].z, x[t].w);
            }
        } else if constexpr (H::SUB16) {
            float d[4] = {0, 0, 0, 0}, e[4] = {0, 0, 0, 0};
            mma(d, a[0][0], x[t].x, x[t].y);
            mma(e, a[0][1], x[t].z, x[t].w);
            add_scaled(acc[t], d, s, G, 0);
            add_scaled(acc[t], e, s, G, 1);
            if constexpr (H::MIN) {
                float m[4] = {0, 0, 0, 0}, n[4] = {0, 0, 0, 0};
                mma(m, ones, x[t].x, x[t].y);
                mma(n, ones, x[t].z, x[t].w);
                take_min(acc[t], m, s, G, 0);
                take_min(acc[t], n, s, G, 1);
            }
        } else {
            float d[4] = {0, 0, 0, 0};
            mma(d, a[0][0], x[t].x, x[t].y);
            mma(d, a[0][1], x[t].z, x[t].w);
            add_scaled(acc[t], d, s, G, 0);
            if constexpr (H::MIN) {
                float m[4] = {0, 0, 0, 0};
                mma(m, ones, x[t].x, x[t].y);
                mma(m, ones, x[t].z, x[t].w);
                take_min(acc[t], m, s, G, 0);
            }
        }
    }
}
/* The groups of a step. */
template <uint32_t TYPE, int TILES, int G = 0>
__device__ __forceinline__ void groups(const step<TYPE> &s, const uint32_t (&ones)[4],
                                       const __nv_bfloat16 *x, int64_t tile_ld, int n_tile,
                                       float (&acc)[TILES][4], float (&plain)[TILES][4])
{
    if constexpr (G < step<TYPE>::GROUPS) {
        uint4 v[TILES];
#pragma unroll
        for (int t = 0; t < TILES; ++t)
            v[t] = t == 0 || t < n_tile ? load_x<step<TYPE>::H::SUB16>(x + t * tile_ld, G)
                                        : make_uint4(0, 0, 0, 0);
        group<TYPE, TILES, G>(s, ones, v, acc, plain);
        groups<TYPE, TILES, G + 1>(s, ones, x, tile_ld, n_tile, acc, plain);
    }
}

/* Most strips that a warp sees: plan.c gives it at most twice the steps of one. */
constexpr int SEGMENTS = 3;
constexpr int RED_ROWS = 17; /* 16 and one to spread them over the banks */
template <int TILES> struct shared {
    float sums[QG_WARPS][SEGMENTS][8 * TILES][RED_ROWS];
    int first[QG_WARPS], last[QG_WARPS]; /* strips of a warp; last < first: none */
    uint32_t mine[2];                    /* 1: this block finishes its first, last unit for all */
};

/* Steps of a warp's ring: three where they fit beside the sums on every chip. */
template <uint32_t TYPE, int TILES> struct ring {
    static constexpr int sums = static_cast<int>(sizeof(shared<TILES>) + 15) / 16 * 16;
    static constexpr int fit = (BP_CUDA_SMEM_MAX - sums) / (QG_WARPS * step<TYPE>::BYTES);
    static constexpr int depth = fit < 3 ? fit : 3, bytes = depth * step<TYPE>::BYTES;
    static constexpr int smem = sums + QG_WARPS * bytes;
    static_assert(depth >= 1 && smem <= BP_CUDA_SMEM_MAX, "fits every chip");
};

template <int TILES>
__device__ __forceinline__ void leave(shared<TILES> &room, int warp, int segment,
                                      float (&acc)[TILES][4])
{
    const int lane = static_cast<int>(threadIdx.x) & 31;
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            room.sums[warp][segment][8 * t + 2 * (lane & 3) + (i & 1)][(lane >> 2) + 8 * (i >> 1)] =
                acc[t][i];
            acc[t][i] = 0.0f;
        }
    }
}

/* Steps [begin, end) of the line, by one warp. */
template <uint32_t TYPE, int TILES>
__device__ __forceinline__ void run_steps(const args &g, shared<TILES> &room, unsigned char *own,
                                          int begin, int end)
{
    using S = step<TYPE>;
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) / 32;
    int v = begin / g.line.n_steps, k = begin - v * g.line.n_steps, segment = 0;
    if (lane == 0) {
        room.first[warp] = v;
        room.last[warp] = begin < end ? (end - 1) / g.line.n_steps : v - 1;
    }
    if (begin >= end) return;
    constexpr int DEPTH = ring<TYPE, TILES>::depth;
    const int64_t place = S::place(g.line.jobs[0].pitch, lane); /* weights of a call lie alike */
    S now;
    now.begin(g.line.jobs[0].pitch);
    /* What is copied next, and where: step `copied`, which is `left` before the end of strip `strip`. */
    int copied = begin, strip = v, left = g.line.n_steps - k;
    const unsigned char *p = line::data_of(g.line, v) + static_cast<int64_t>(k) * S::AHEAD + place;
    const auto copy_one = [&](int slot) {
        if (copied < end) {
            now.copy(own + slot * S::BYTES, p, lane);
            ++copied;
            p += S::AHEAD;
            if (--left == 0 && copied < end) {
                p = line::data_of(g.line, ++strip) + place;
                left = g.line.n_steps;
            }
        }
        planes::close_copies();
    };
    for (int i = 0; i < DEPTH - 1; ++i) copy_one(i);
    int slot = 0, free_slot = DEPTH - 1;
    uint32_t ones[4]; /* kept in registers, where a format has minima */
#pragma unroll
    for (int i = 0; i < 4; ++i) ones[i] = S::H::MIN ? planes::opaque(0x3f803f80u) : 0;
    /* Tiles of eight columns that have this lane's one. In the first tile a lane without one computes another's again, which
     * nobody reads: cheaper than zeros. */
    const int col = lane >> 2, n_tile = (g.n_col - col + 7) / 8;
    const __nv_bfloat16 *x =
        g.x + min(col, g.n_col - 1) * g.x_ld + k * S::K + (S::H::SUB16 ? 4 : 8) * (lane & 3);
    float acc[TILES][4] = {};
#pragma unroll 1
    for (int at = begin; at < end; ++at) {
        const bool ends = ++k == g.line.n_steps;
        float plain[TILES][4] = {};
        copy_one(free_slot);
        planes::await_copies<DEPTH - 1>();
        __syncwarp(); /* scales were copied by other lanes */
        now.load(own + slot * S::BYTES, lane);
        now.open();
        free_slot = slot;
        slot = slot + 1 == DEPTH ? 0 : slot + 1;
        groups<TYPE, TILES>(now, ones, x, 8 * g.x_ld, n_tile, acc, plain);
        __syncwarp(); /* all have read what is overwritten next */
        if constexpr (S::H::NONE) {
#pragma unroll
            for (int t = 0; t < TILES; ++t) {
#pragma unroll
                for (int i = 0; i < 4; ++i) acc[t][i] += plain[t][i];
            }
        }
        x += S::K;
        if (!ends) continue;
        leave(room, warp, segment++, acc);
        x -= g.line.n_steps * S::K;
        k = 0;
        ++v;
    }
    if (k != 0) leave(room, warp, segment, acc);
}

/* This block's sum of one row of strip v and one token: over its warps, and over the parts of x, the smallest first. */
template <int TILES>
__device__ __forceinline__ float sum_warps(const args &g, const shared<TILES> &room, int v, int tok,
                                           int row)
{
    float sum = 0.0f;
    for (int p = g.parts - 1; p >= 0; --p) {
        float part = 0.0f;
#pragma unroll
        for (int w = 0; w < QG_WARPS; ++w) {
            const int segment = v - room.first[w];
            if (segment >= 0 && v <= room.last[w])
                part += room.sums[w][segment][tok * g.parts + p][row];
        }
        sum += part;
    }
    return sum;
}

/* What registers and the shared memory of sm_90 hold; sm_120 has memory for one. */
template <uint32_t TYPE, int TILES> constexpr int blocks_per_sm()
{
    return 2;
}
template <uint32_t TYPE, int TILES>
__global__ void __launch_bounds__(QG_WARPS * 32, blocks_per_sm<TYPE, TILES>())
    gemv_kernel(const __grid_constant__ args g)
{
    extern __shared__ __align__(16) unsigned char memory[];
    shared<TILES> &room = *reinterpret_cast<shared<TILES> *>(memory);
    const int begin = line::first_step(g.line, static_cast<int>(blockIdx.x)),
              end = line::first_step(g.line, static_cast<int>(blockIdx.x) + 1);
    const int warp = static_cast<int>(threadIdx.x) / 32, n = end - begin;
    unsigned char *const own = memory + ring<TYPE, TILES>::sums + warp * ring<TYPE, TILES>::bytes;
    run_steps<TYPE, TILES>(g, room, own, begin + n * warp / QG_WARPS,
                           begin + n * (warp + 1) / QG_WARPS);
    __syncthreads();
    line::end_block(g.line, room.mine, begin, end,
                    [&](int v, int tok, int row) { return sum_warps(g, room, v, tok, row); });
}

/* ---- host ---- */

template <uint32_t TYPE, int TILES>
int32_t start(const args &g, uint32_t blocks, cudaStream_t stream)
{
    constexpr int smem = ring<TYPE, TILES>::smem;
    const cudaError_t e = cudaFuncSetAttribute(gemv_kernel<TYPE, TILES>,
                                               cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        return static_cast<int32_t>(e);
    }
    gemv_kernel<TYPE, TILES><<<blocks, QG_WARPS * 32, smem, stream>>>(g);
    return static_cast<int32_t>(cudaGetLastError());
}
template <uint32_t TYPE> int32_t launch(const qg_gemv &q, cudaStream_t stream)
{
    args g = {};
    if (!line::make_args(g.line, q)) return static_cast<int32_t>(cudaSuccess);
    g.x = static_cast<const __nv_bfloat16 *>(q.x);
    g.x_ld = q.x_ld;
    g.parts = static_cast<int32_t>(q.parts);
    g.n_col = g.line.n_tok * g.parts;
    return g.n_col <= 8 ? start<TYPE, 1>(g, q.blocks, stream) : start<TYPE, 3>(g, q.blocks, stream);
}

} // namespace gemv
#endif
