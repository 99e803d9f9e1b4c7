/* moe_many.cu - many tokens with f32 or f16 activations and weights that bf16 does not hold: tiles of tokens that go to the
 * same expert, all in f32, because h can be larger than f16 holds. A block takes 64 rows of weights (32 of gate with the
 * same 32 of up, or 64 of down) times one tile of tokens; weights are decoded once per tile into shared memory, 128 columns
 * at a time. gate and up rows alternate by 16, so that the thread with the sum of a gate row also has that of up.
 * A row of x meets its own sums only, so what is in it (NaN, or zeros past the end of a tile) stays with its token.
 * Also here: the launches of both kinds of tiles, and the columns of h that down reads and nobody else writes.
 * Not here: all else of many tokens (moe_tile.cu), few tokens (moe_few.cu), the tiles (moe_sort.cu).
 * SPDX-License-Identifier: MIT */
#include "moe_kernels.h"

#include <cuda_runtime.h>

#include "backplane/cuda/convert.cuh"
#include "backplane/cuda/host.h"
#include "moe_decode.cuh"
#include "moe_tile.cuh"

namespace
{

constexpr int THREADS = 256;
constexpr int ROWS = 64, HALF = 16;
constexpr int COLS = 128; /* of weights and x in shared memory at a time: both runs of every chunk lie in them */
constexpr int STRIDE = COLS + 4; /* rows that are read together begin in different banks */

template <int TOK> constexpr int smem_bytes()
{
    return (ROWS + TOK) * STRIDE * 4 + TOK * 4;
}
static_assert(smem_bytes<MOE_TILE_MANY>() <= BP_CUDA_SMEM_MAX, "a window of weights and of x must fit");

/* 16 weights of a run to shared memory. */
__device__ __forceinline__ void store_run(float *to, const float *q, float d, float m)
{
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        float4 v;
        v.x = __fadd_rn(__fmul_rn(d, q[4 * i]), m);
        v.y = __fadd_rn(__fmul_rn(d, q[4 * i + 1]), m);
        v.z = __fadd_rn(__fmul_rn(d, q[4 * i + 2]), m);
        v.w = __fadd_rn(__fmul_rn(d, q[4 * i + 3]), m);
        reinterpret_cast<float4 *>(to)[i] = v;
    }
}

template <uint32_t TYPE>
__device__ __forceinline__ void stage_chunk(float *to, const uint8_t *row, int cols, int chunk, int col)
{
    using Reader = moe::Chunk<TYPE>;
    Reader c;
    moe::Runs r;
    c.load(row, cols, chunk);
    c.unpack(chunk, r);
    store_run(to + Reader::column(chunk, 0) - col, r.q, r.d[0], r.m[0]);
    store_run(to + Reader::column(chunk, 1) - col, r.q + 16, r.d[1], r.m[1]);
}

/* Columns [col, col + COLS) of rows of weights, decoded. Row s of shared memory is row `first` + s of down, or one of gate
 * or up. What does not exist is zero: rows past the last, and whole chunks at the end of a row, where chunks and columns
 * have the same order. */
template <bool INNER>
__device__ __forceinline__ void stage_weights(const moe_call &c, int expert, int first, int col, float *w)
{
    for (int i = static_cast<int>(threadIdx.x); i < ROWS * 4; i += THREADS) {
        const int s = i / 4, chunk = col / 32 + i % 4;
        const moe_mat &m = !INNER ? c.e.down : s / HALF % 2 == 0 ? c.e.gate : c.e.up;
        const int at = INNER ? first + s / (2 * HALF) * HALF + s % HALF : first + s;
        const uint8_t *row = m.data + expert * m.expert_bytes + at * m.row_bytes;
        float *to = w + s * STRIDE;
        float v[32] = {};
        switch (at < m.rows && chunk * 32 < m.cols ? m.type : ~0u) {
        case BP_GGUF_Q4_K: stage_chunk<BP_GGUF_Q4_K>(to, row, m.cols, chunk, col); continue;
        case BP_GGUF_Q5_K: stage_chunk<BP_GGUF_Q5_K>(to, row, m.cols, chunk, col); continue;
        case BP_GGUF_Q6_K: stage_chunk<BP_GGUF_Q6_K>(to, row, m.cols, chunk, col); continue;
        case BP_GGUF_Q8_0: stage_chunk<BP_GGUF_Q8_0>(to, row, m.cols, chunk, col); continue;
        case BP_GGUF_BF16: stage_chunk<BP_GGUF_BF16>(to, row, m.cols, chunk, col); continue;
        case ~0u: break;
        default: moe::decode32(m.type, row, m.cols, chunk, v); break;
        }
        store_run(to + i % 4 * 32, v, 1.0f, 0.0f);
        store_run(to + i % 4 * 32 + 16, v + 16, 1.0f, 0.0f);
    }
}

/* Rows of x, or of h, which is f32. */
struct Input {
    const void *x;
    int64_t stride;
    uint32_t dtype;
    int n;     /* columns that exist */
    bool wide; /* 4 elements at a time are aligned */
};

/* Columns [col, col + COLS) of the tile's rows of x. from: row of each token, -1: none; what does not exist is zero. */
template <int TOK> __device__ __forceinline__ void stage_x(const Input &in, const int *from, int col, float *xs)
{
    for (int i = static_cast<int>(threadIdx.x); i < TOK * (COLS / 4); i += THREADS) {
        const int tok = i / (COLS / 4), at = i % (COLS / 4) * 4, row = from[tok], left = row >= 0 ? in.n - col - at : 0;
        const int64_t p = (row >= 0 ? row : 0) * in.stride + col + at;
        float v[4] = {};
        if (in.wide && left >= 4) {
            bp_cuda::load_any_vec(v, in.x, in.dtype, p);
        } else {
#pragma unroll
            for (int k = 0; k < 4; ++k)
                if (k < left) v[k] = bp_cuda::load_any(in.x, in.dtype, p + k);
        }
        *reinterpret_cast<float4 *>(xs + tok * STRIDE + at) = make_float4(v[0], v[1], v[2], v[3]);
    }
}

/* 16 x 16 threads, each 4 rows, 16 apart, x TOK / 16 tokens. */
template <int TOK> __device__ __forceinline__ void add_products(const float *w, const float *x, float (&acc)[4][TOK / 16])
{
    constexpr int N = TOK / 16;
    const float *wl = w + threadIdx.x / 16 * STRIDE, *xl = x + threadIdx.x % 16 * STRIDE;
#pragma unroll 2
    for (int k = 0; k < COLS; k += 4) {
        float4 a[4], b[N];
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = *reinterpret_cast<const float4 *>(wl + i * 16 * STRIDE + k);
#pragma unroll
        for (int j = 0; j < N; ++j) b[j] = *reinterpret_cast<const float4 *>(xl + j * 16 * STRIDE + k);
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int j = 0; j < N; ++j) {
                acc[i][j] = fmaf(a[i].x, b[j].x, acc[i][j]);
                acc[i][j] = fmaf(a[i].y, b[j].y, acc[i][j]);
                acc[i][j] = fmaf(a[i].z, b[j].z, acc[i][j]);
                acc[i][j] = fmaf(a[i].w, b[j].w, acc[i][j]);
            }
    }
}

/* Blocks: x: rows of weights, y: tiles. */
template <int TOK, bool INNER> __global__ void __launch_bounds__(THREADS) many_kernel(const __grid_constant__ moe_call c)
{
    extern __shared__ float4 shared[];
    float *w = reinterpret_cast<float *>(shared), *xs = w + ROWS * STRIDE;
    int *from = reinterpret_cast<int *>(xs + TOK * STRIDE);
    moe::Tile t;
    if (!moe::find_tile(c, static_cast<int>(blockIdx.y), t)) return;
    const int first = static_cast<int>(blockIdx.x) * (INNER ? ROWS / 2 : ROWS) + (INNER ? 0 : c.col);
    Input in;
    in.x = INNER ? c.x : c.h;
    in.stride = INNER ? c.x_stride : c.e.width;
    in.dtype = INNER ? c.x_dtype : static_cast<uint32_t>(BP_DT_F32);
    in.n = INNER ? c.e.n_embd : c.e.width;
    in.wide = (reinterpret_cast<uintptr_t>(in.x) & 15) == 0 && in.stride % 4 == 0;
    for (int i = threadIdx.x; i < TOK; i += THREADS)
        from[i] = i >= t.n ? -1 : INNER ? moe::pair_of(c, t.first + i) / c.n_used : moe::pair_of(c, t.first + i);
    float acc[4][TOK / 16] = {};
    const int cols = INNER ? c.e.gate.cols : c.e.down.cols;
    for (int col = 0; col < cols; col += COLS) {
        __syncthreads(); /* the columns before have been read, and `from` is written */
        stage_x<TOK>(in, from, col, xs);
        stage_weights<INNER>(c, t.expert, first, col, w);
        __syncthreads();
        add_products<TOK>(w, xs, acc);
    }
#pragma unroll
    for (int j = 0; j < TOK / 16; ++j) {
        const int tok = static_cast<int>(threadIdx.x) % 16 + j * 16;
        if (tok >= t.n) break;
        const int64_t pair = moe::pair_of(c, t.first + tok);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (INNER) {
                const int row = first + static_cast<int>(threadIdx.x) / 16 + i / 2 * HALF;
                if (i % 2 == 0 && row < c.e.n_ff)
                    static_cast<float *>(c.h)[pair * c.e.width + c.e.left + row] =
                        moe::silu(acc[i][j] * c.e.gate.scale) * (acc[(i + 1) % 4][j] * c.e.up.scale);
            } else {
                const int row = first + static_cast<int>(threadIdx.x) / 16 + i * 16 - c.col;
                if (row < c.n_col) c.part[pair * c.n_col + row] = acc[i][j] * c.e.down.scale;
            }
        }
    }
}

/* Columns of h that down reads and n_ff does not have: zero. */
__global__ void __launch_bounds__(THREADS) pad_kernel(const __grid_constant__ moe_call c)
{
    const int n = c.e.width - c.e.n_ff;
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= static_cast<int64_t>(c.n_tok) * c.n_used * n) return;
    const int k = static_cast<int>(i % n);
    const int64_t at = i / n * c.e.width + (k < c.e.left ? k : k + c.e.n_ff);
    if (c.half != 0) static_cast<uint16_t *>(c.h)[at] = 0;
    else static_cast<float *>(c.h)[at] = 0.0f;
}

template <int TOK, bool INNER> int32_t start(const moe_call &c, cudaStream_t s)
{
    const int own = INNER ? ROWS / 2 : ROWS, n = INNER ? c.e.n_ff : c.n_col;
    const dim3 grid(static_cast<unsigned>((n + own - 1) / own), static_cast<unsigned>(c.n_tile));
    const cudaError_t e = cudaFuncSetAttribute(many_kernel<TOK, INNER>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                               smem_bytes<TOK>());
    if (e != cudaSuccess) {
        (void)cudaGetLastError(); /* it is told here, and the next launch shall not find it */
        return static_cast<int32_t>(e);
    }
    many_kernel<TOK, INNER><<<grid, THREADS, smem_bytes<TOK>(), s>>>(c);
    return static_cast<int32_t>(cudaGetLastError());
}

template <bool INNER> int32_t start_any(const moe_call &c, cudaStream_t s)
{
    if (moe_tile_serves(&c, INNER) != 0) return moe_launch_tile(&c, INNER, s);
    return c.tile_tok == MOE_TILE_MANY ? start<MOE_TILE_MANY, INNER>(c, s) : start<MOE_TILE_FEW, INNER>(c, s);
}

} // namespace

int32_t moe_launch_many_inner(const moe_call *routed, const moe_call *shared, void *stream)
{
    const moe_call *calls[] = {routed, shared};
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
    for (const moe_call *c : calls) {
        if (c == nullptr) continue;
        const int64_t n = static_cast<int64_t>(c->n_tok) * c->n_used * (c->e.width - c->e.n_ff);
        const unsigned grid = static_cast<unsigned>((n + THREADS - 1) / THREADS);
        if (n > 0) pad_kernel<<<grid, THREADS, 0, s>>>(*c);
        const int32_t rc = start_any<true>(*c, s);
        if (rc != 0) return rc;
    }
    return 0;
}

int32_t moe_launch_many_outer(const moe_call *routed, const moe_call *shared, void *stream)
{
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
    int32_t rc = routed != nullptr ? start_any<false>(*routed, s) : 0;
    if (rc == 0 && shared != nullptr) rc = start_any<false>(*shared, s);
    return rc;
}
