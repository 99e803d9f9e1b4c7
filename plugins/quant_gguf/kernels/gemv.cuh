/* gemv.cuh - products of repacked weights with up to 24 columns, in one pass over the weights: y = W x for 1 to 8 tokens.
 * A warp owns a strip of 16 rows and every n-th step of its columns. Codes become bf16 in registers and are multiplied on
 * the tensor cores (m16n8k16): exact products, f32 sums over at most 32 columns, which are then scaled and added in f32
 * registers. An f32 activation is three bf16 columns that add up to it exactly, so nothing is rounded before the sums.
 * The next step is loaded while the present one is computed; x comes from the first cache.
 * Determinism: warps, blocks and parts are added in a fixed order that does not depend on the number of tokens, so a row
 * has the same bits in every batch. Blocks that share a strip meet through a counter; the last one adds.
 * Not here: which shape gets how many warps and blocks (plan.c). SPDX-License-Identifier: MIT */
#ifndef QUANT_GGUF_GEMV_CUH
#define QUANT_GGUF_GEMV_CUH

#include "launch.h"
#include "planes.cuh"

#include "backplane/cuda/convert.cuh"
#include "backplane/cuda/host.h"

namespace gemv
{

using planes::step;

struct job {
    const unsigned char *w;
    void *y;
    uint32_t *counters;
    int64_t pitch, y_stride;
    int32_t rows, strips, first_unit;
    float scale;
};
struct args {
    job jobs[QG_MAX_W];
    const __nv_bfloat16 *x;
    const void *residual;
    float *partial;
    int64_t x_ld, residual_stride;
    int32_t n_steps, n_tok, parts, n_col;
    int32_t warps, splits; /* warps: a power of two */
    uint32_t n_job, silu, y_dtype, residual_dtype;
};

/* d = a b, nothing else: what an accumulator of zeros would give. */
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* The lane's eight values of x for group G of a step and 8 columns of tile t. */
template <bool SUB16> __device__ __forceinline__ uint4 load_x(const __nv_bfloat16 *x, int G, int j)
{
    if constexpr (!SUB16) return *reinterpret_cast<const uint4 *>(x + 32 * G + 8 * j);
    const uint2 a = *reinterpret_cast<const uint2 *>(x + 32 * G + 4 * j);
    const uint2 b = *reinterpret_cast<const uint2 *>(x + 32 * G + 16 + 4 * j);
    return make_uint4(a.x, a.y, b.x, b.y);
}

/* acc += scale * d - min * ones, for the rows g (d[0], d[1]) and g + 8. */
template <class S> __device__ __forceinline__ void add_scaled(float (&acc)[4], const float (&d)[4], const S &s, int G, int sub)
{
    const float s0 = s.h[0].scale(G, sub), s1 = s.h[1].scale(G, sub);
    acc[0] = fmaf(s0, d[0], acc[0]);
    acc[1] = fmaf(s0, d[1], acc[1]);
    acc[2] = fmaf(s1, d[2], acc[2]);
    acc[3] = fmaf(s1, d[3], acc[3]);
}
template <class S> __device__ __forceinline__ void take_min(float (&acc)[4], const float (&d)[4], const S &s, int G, int sub)
{
    const float m0 = -s.h[0].min(G, sub), m1 = -s.h[1].min(G, sub);
    acc[0] = fmaf(m0, d[0], acc[0]);
    acc[1] = fmaf(m0, d[1], acc[1]);
    acc[2] = fmaf(m1, d[2], acc[2]);
    acc[3] = fmaf(m1, d[3], acc[3]);
}

/* One group of 32 columns. x[t]: this lane's column of tile t, or NULL. */
template <uint32_t TYPE, int TILES, int G>
__device__ __forceinline__ void group(const step<TYPE> &s, const uint32_t (&ones)[4], const uint4 (&x)[TILES],
                                      float (&acc)[TILES][4], float (&plain)[TILES][4])
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
/* The groups of a step; what they have used is loaded for the next one at once, so that nearly a whole step is always on its
 * way. ahead: bytes to the next step, 0 after the last. (A pointer that is NULL after the last does not do: ptxas 13.0.88
 * puts too few cycles between clearing it with CS2R and testing it, and the kernel reads at 0.) */
template <uint32_t TYPE, int TILES, int G = 0>
__device__ __forceinline__ void groups(step<TYPE> &s, const uint32_t (&ones)[4], const unsigned char *next, int ahead,
                                       const __nv_bfloat16 *x, int64_t tile_ld, int n_tile, float (&acc)[TILES][4], float (&plain)[TILES][4])
{
    if constexpr (G < step<TYPE>::GROUPS) {
        const int lane = static_cast<int>(threadIdx.x) & 31;
        uint4 v[TILES];
#pragma unroll
        for (int t = 0; t < TILES; ++t)
            v[t] = t < n_tile ? load_x<step<TYPE>::H::SUB16>(x + t * tile_ld, G, lane & 3) : make_uint4(0, 0, 0, 0);
        group<TYPE, TILES, G>(s, ones, v, acc, plain);
        if (ahead != 0) s.template refill<G>(next);
        groups<TYPE, TILES, G + 1>(s, ones, next, ahead, x, tile_ld, n_tile, acc, plain);
    }
}

/* All steps of one warp. */
template <uint32_t TYPE, int TILES>
__device__ __forceinline__ void run_steps(const args &g, const unsigned char *strip, int begin, int end, int by,
                                          float (&acc)[TILES][4])
{
    using S = step<TYPE>;
    if (begin >= end) return;
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const unsigned char *p = strip + static_cast<int64_t>(begin) * S::BYTES + lane * 16;
    S now;
    now.begin();
    now.load(p, lane);
    uint32_t ones[4]; /* kept in registers, where a format has minima */
#pragma unroll
    for (int i = 0; i < 4; ++i) ones[i] = S::H::MIN ? planes::opaque(0x3f803f80u) : 0;
    /* Tiles of eight columns that have this lane's one. */
    const int n_tile = (g.n_col - (lane >> 2) + 7) / 8;
    const __nv_bfloat16 *x = g.x + (lane >> 2) * g.x_ld + static_cast<int64_t>(begin) * S::K;
    for (int at = begin; at < end; at += by) {
        const int ahead = at + by < end ? by * S::BYTES : 0;
        float plain[TILES][4] = {};
        now.open();
        p += ahead;
        if (ahead != 0) now.load_scales(p, lane);
        groups<TYPE, TILES>(now, ones, p, ahead, x, 8 * g.x_ld, n_tile, acc, plain);
        if constexpr (S::H::NONE) {
#pragma unroll
            for (int t = 0; t < TILES; ++t) {
#pragma unroll
                for (int i = 0; i < 4; ++i) acc[t][i] += plain[t][i];
            }
        }
        x += by * S::K;
    }
}

/* ---- the end of a block ---- */

__device__ __forceinline__ float silu(float v)
{
    return v == -INFINITY ? 0.0f : v / (1.0f + expf(-v));
}

/* Where local strip l of unit u is. */
__device__ __forceinline__ void place(const args &g, int unit, int l, int &which, int &strip)
{
    const int per = QG_WARPS / g.warps;
    if (g.silu != 0) {
        which = l & 1;
        strip = unit * (per / 2) + (l >> 1);
        return;
    }
    which = 0;
    while (which + 1 < static_cast<int>(g.n_job) && unit >= g.jobs[which + 1].first_unit) ++which;
    strip = (unit - g.jobs[which].first_unit) * per + l;
}

constexpr int RED_ROWS = 17; /* 16 and one to spread them over the banks */

/* The sum of one output over the warps of its strip, and over the parts of x, the smallest first. */
template <int TILES>
__device__ __forceinline__ float sum_warps(const args &g, const float (&red)[QG_WARPS][8 * TILES][RED_ROWS], int l, int tok, int row)
{
    float v = 0.0f;
    for (int p = g.parts - 1; p >= 0; --p) {
        float part = 0.0f;
        for (int w = 0; w < g.warps; ++w) part += red[l * g.warps + w][tok * g.parts + p][row];
        v += part;
    }
    return v;
}
__device__ __forceinline__ void write(const args &g, int which, int64_t row, int tok, float v)
{
    const job &j = g.jobs[which];
    if (g.residual != nullptr && which == 0)
        v += bp_cuda::load_any(g.residual, g.residual_dtype, tok * g.residual_stride + row);
    bp_cuda::store_any(j.y, g.y_dtype, tok * j.y_stride + row, v);
}

/* out(l, tok, row): the whole sum of an output, not yet scaled. */
template <class F> __device__ __forceinline__ void finish(const args &g, int unit, F out)
{
    const int per = QG_WARPS / g.warps, pairs = g.silu != 0 ? per / 2 : per;
    for (int i = static_cast<int>(threadIdx.x); i < pairs * g.n_tok * QG_STRIP; i += QG_WARPS * 32) {
        const int row = i % QG_STRIP, tok = i / QG_STRIP % g.n_tok, l = i / QG_STRIP / g.n_tok * (g.silu != 0 ? 2 : 1);
        int which, strip;
        place(g, unit, l, which, strip);
        const int64_t at = static_cast<int64_t>(strip) * QG_STRIP + row;
        if (at >= g.jobs[which].rows) continue;
        float v = out(l, tok, row) * g.jobs[which].scale;
        if (g.silu != 0) v = silu(v) * (out(l + 1, tok, row) * g.jobs[1].scale);
        write(g, which, at, tok, v);
    }
}

/* As many blocks as leave enough registers. */
constexpr bool is_large(uint32_t type)
{
    return type == BP_GGUF_Q8_0 || type == BP_GGUF_Q5_K || type == BP_GGUF_Q6_K || type == BP_GGUF_Q4_1 || type == BP_GGUF_Q5_1 || type == BP_GGUF_IQ4_XS || type == BP_GGUF_NVFP4;
}
template <uint32_t TYPE, int TILES> constexpr int blocks_per_sm()
{
    return TILES > 1 ? 2 : is_large(TYPE) ? 2 : 3;
}
template <uint32_t TYPE, int TILES>
__global__ void __launch_bounds__(QG_WARPS * 32, blocks_per_sm<TYPE, TILES>()) gemv_kernel(const __grid_constant__ args g)
{
    __shared__ float red[QG_WARPS][8 * TILES][RED_ROWS];
    __shared__ uint32_t last;
    static_assert(sizeof red + sizeof last <= BP_CUDA_SMEM_MAX, "fits every chip");
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) & 31;
    const int unit = static_cast<int>(blockIdx.x) / g.splits, split = static_cast<int>(blockIdx.x) % g.splits;
    const int per = QG_WARPS / g.warps, l = warp / g.warps;
    float acc[TILES][4] = {};
    int which, strip;
    place(g, unit, l, which, strip);
    if (strip < g.jobs[which].strips) {
        const int begin = static_cast<int>(static_cast<int64_t>(g.n_steps) * split / g.splits);
        const int end = static_cast<int>(static_cast<int64_t>(g.n_steps) * (split + 1) / g.splits);
        run_steps<TYPE, TILES>(g, g.jobs[which].w + strip * g.jobs[which].pitch, begin + warp % g.warps, end, g.warps, acc);
    }
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) red[warp][8 * t + 2 * (lane & 3) + (i & 1)][(lane >> 2) + 8 * (i >> 1)] = acc[t][i];
    }
    __syncthreads();
    if (g.splits == 1) {
        finish(g, unit, [&](int at, int tok, int row) { return sum_warps<TILES>(g, red, at, tok, row); });
        return;
    }
    /* Each block leaves its part; whoever comes last adds them all, in order. */
    const int n = per * g.n_tok * QG_STRIP;
    float *const parts = g.partial + static_cast<int64_t>(unit) * g.splits * n;
    for (int i = static_cast<int>(threadIdx.x); i < n; i += QG_WARPS * 32)
        parts[split * n + i] = sum_warps<TILES>(g, red, i / QG_STRIP / g.n_tok, i / QG_STRIP % g.n_tok, i % QG_STRIP);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t *counter = g.jobs[which].counters + strip;
        last = atomicAdd(counter, 1u) == static_cast<uint32_t>(g.splits - 1) ? 1u : 0u;
        if (last != 0) *counter = 0;
    }
    __syncthreads();
    if (last == 0) return;
    __threadfence();
    finish(g, unit, [&](int at, int tok, int row) {
        float v = 0.0f;
        for (int s = 0; s < g.splits; ++s) v += __ldcg(parts + s * n + (at * g.n_tok + tok) * QG_STRIP + row);
        return v;
    });
}

/* ---- host ---- */

inline args make_args(const qg_gemv &q)
{
    args g = {};
    const int per = QG_WARPS / static_cast<int>(q.warps);
    int units = 0;
    for (uint32_t i = 0; i < q.n_w; ++i) {
        const qg_weight &w = *q.w[i];
        job &j = g.jobs[i];
        j.w = w.data;
        j.counters = w.counters;
        j.pitch = w.pitch;
        j.rows = static_cast<int32_t>(w.rows);
        j.strips = static_cast<int32_t>((w.rows + QG_STRIP - 1) / QG_STRIP);
        j.first_unit = units;
        j.scale = w.scale;
        if (q.silu == 0) units += (j.strips + per - 1) / per;
        if (q.silu != 0 && i == 1) continue;
        j.y = q.y[i].data;
        j.y_stride = q.y[i].stride[0];
    }
    g.x = static_cast<const __nv_bfloat16 *>(q.x);
    g.x_ld = q.x_ld;
    g.partial = q.partial;
    g.residual = q.residual.data;
    g.residual_stride = q.residual.stride[0];
    g.residual_dtype = q.residual.dtype;
    g.n_steps = static_cast<int32_t>(q.w[0]->n_steps);
    g.n_tok = static_cast<int32_t>(q.n_tok);
    g.parts = static_cast<int32_t>(q.parts);
    g.n_col = g.n_tok * g.parts;
    g.warps = static_cast<int32_t>(q.warps);
    g.splits = static_cast<int32_t>(q.splits);
    g.n_job = q.n_w;
    g.silu = q.silu;
    g.y_dtype = q.y[0].dtype;
    return g;
}
inline int units_of(const args &g)
{
    const int per = QG_WARPS / g.warps;
    if (g.silu != 0) return (g.jobs[0].strips + per / 2 - 1) / (per / 2);
    const job &end = g.jobs[g.n_job - 1];
    return end.first_unit + (end.strips + per - 1) / per;
}
template <uint32_t TYPE> int32_t launch(const qg_gemv &q, cudaStream_t stream)
{
    const args g = make_args(q);
    const unsigned blocks = static_cast<unsigned>(units_of(g) * g.splits);
    if (blocks == 0) return static_cast<int32_t>(cudaSuccess);
    if (g.n_col <= 8) gemv_kernel<TYPE, 1><<<blocks, QG_WARPS * 32, 0, stream>>>(g);
    else gemv_kernel<TYPE, 3><<<blocks, QG_WARPS * 32, 0, stream>>>(g);
    return static_cast<int32_t>(cudaGetLastError());
}

} // namespace gemv
#endif
