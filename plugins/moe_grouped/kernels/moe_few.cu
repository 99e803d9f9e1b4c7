/* moe_few.cu - few tokens: for each pair one product of a matrix and a row of x. A warp takes four rows of weights at a
 * time (two of gate with the same two of up, or four of down), a lane 32 columns of each per step; x lies in shared memory
 * in the order in which lanes read it, so that reading it meets no bank twice.
 * The expert is read from the ids on the device; the grid depends on sizes only.
 * Numeric: f32 products and sums, in an order that depends on the sizes only: a pair's bits do not depend on the others.
 * Not here: more tokens (moe_many.cu). SPDX-License-Identifier: MIT */
#include "moe_kernels.h"

#include <cuda_runtime.h>
#include <math.h>

#include "backplane/cuda/convert.cuh"
#include "backplane/cuda/reduce.cuh"
#include "moe_decode.cuh"

namespace
{

constexpr int WARPS = 8, THREADS = WARPS * 32;
constexpr int STREAMS = 4;       /* rows of weights that a warp reads at a time */
constexpr int WINDOW = 8192;     /* columns of x in shared memory at a time */
constexpr uint32_t ANY = ~0u;    /* the type is looked up at run time */

static_assert(WINDOW * 4 <= 48 * 1024, "x must fit in static shared memory");

/* Products of a chunk with x in the chunk's order. sum[i] is the sum of x over run i. */
template <uint32_t TYPE> struct Dot {
    using Reader = moe::Chunk<TYPE>;
    Reader c;
    static __device__ __forceinline__ int column(int chunk, int run)
    {
        return Reader::column(chunk, run);
    }
    __device__ __forceinline__ void load(uint32_t, const uint8_t *row, int cols, int chunk)
    {
        c.load(row, cols, chunk);
    }
    __device__ __forceinline__ float dot(int chunk, const float (&x)[32], const float (&sum)[2]) const
    {
        moe::Runs r;
        float a[2] = {0.0f, 0.0f};
        c.unpack(chunk, r);
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            a[0] = fmaf(r.q[i], x[i], a[0]);
            a[1] = fmaf(r.q[16 + i], x[16 + i], a[1]);
        }
        float v = fmaf(r.d[0], a[0], r.d[1] * a[1]);
        if constexpr (Reader::OFFSET) v = fmaf(r.m[0], sum[0], fmaf(r.m[1], sum[1], v));
        return v;
    }
};

template <> struct Dot<ANY> {
    const uint8_t *row;
    uint32_t type;
    int cols;
    static __device__ __forceinline__ int column(int chunk, int run)
    {
        return chunk * 32 + run * 16;
    }
    __device__ __forceinline__ void load(uint32_t t, const uint8_t *r, int n, int)
    {
        type = t;
        row = r;
        cols = n;
    }
    __device__ __forceinline__ float dot(int chunk, const float (&x)[32], const float (&)[2]) const
    {
        float w[32], a = 0.0f;
        moe::decode32(type, row, cols, chunk, w);
#pragma unroll
        for (int i = 0; i < 32; ++i) a = fmaf(w[i], x[i], a);
        return a;
    }
};

/* Where a pair's x comes from. Columns from n on are zero. */
struct Source {
    const void *p;
    uint32_t dtype;
    int n;
    bool wide; /* 4 elements at a time are aligned */
};

__device__ __forceinline__ float4 load_x(const Source &s, int col)
{
    float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (s.wide && col + 4 <= s.n) {
        bp_cuda::load_any_vec(v, s.p, s.dtype, col);
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (col + i < s.n) v[i] = bp_cuda::load_any(s.p, s.dtype, col + i);
    }
    return make_float4(v[0], v[1], v[2], v[3]);
}

/* acc[s] += row s of weights times x, for the lane's columns. All threads of the block take part. */
template <uint32_t TYPE>
__device__ __forceinline__ void products(const Source &src, const uint8_t *const (&rows)[STREAMS],
                                         const uint32_t (&types)[STREAMS], int cols, float4 *xs, float (&acc)[STREAMS])
{
    const int lane = threadIdx.x & 31;
    for (int base = 0; base < cols; base += WINDOW) {
        const int n_chunk = (cols - base < WINDOW ? cols - base : WINDOW) / 32;
        const int n_step = (n_chunk + 31) / 32, first = base / 32;
        if (base > 0) __syncthreads(); /* the window before has been read */
        for (int i = threadIdx.x; i < n_step * 256; i += THREADS) {
            const int chunk = i / 256 * 32 + i % 32, j = i / 32 % 8;
            if (chunk < n_chunk) xs[i] = load_x(src, Dot<TYPE>::column(first + chunk, j / 4) + j % 4 * 4);
        }
        __syncthreads();
        for (int step = 0; step < n_step; ++step) {
            const int chunk = step * 32 + lane;
            if (chunk >= n_chunk) break;
            Dot<TYPE> w[STREAMS];
#pragma unroll
            for (int s = 0; s < STREAMS; ++s) w[s].load(types[s], rows[s], cols, first + chunk);
            float x[32], sum[2] = {0.0f, 0.0f};
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                const float4 v = xs[step * 256 + j * 32 + lane];
                x[4 * j] = v.x;
                x[4 * j + 1] = v.y;
                x[4 * j + 2] = v.z;
                x[4 * j + 3] = v.w;
                sum[j / 4] += (v.x + v.y) + (v.z + v.w);
            }
#pragma unroll
            for (int s = 0; s < STREAMS; ++s) acc[s] += w[s].dot(first + chunk, x, sum);
        }
    }
#pragma unroll
    for (int s = 0; s < STREAMS; ++s) acc[s] = bp_cuda::warp_sum(acc[s]);
}

/* The expert of a pair, -1: none of ours. */
__device__ __forceinline__ int expert_of(const moe_call &c, int pair)
{
    if (c.ids == nullptr) return 0;
    const int id = c.ids[static_cast<int64_t>(pair / c.n_used) * c.ids_stride + pair % c.n_used] - c.e.begin;
    return id >= 0 && id < c.e.n ? id : -1;
}

__device__ __forceinline__ const uint8_t *row_of(const moe_mat &m, int expert, int row)
{
    const int r = row < 0 ? 0 : row < m.rows ? row : m.rows - 1; /* results of rows outside are not used */
    return m.data + expert * m.expert_bytes + r * m.row_bytes;
}

/* -inf gives 0 and not -inf / inf, which is NaN. */
__device__ __forceinline__ float silu(float v)
{
    return v == -INFINITY ? 0.0f : v / (1.0f + expf(-v));
}

/* h of one pair, all columns that down reads; those outside of n_ff are zero. */
template <uint32_t TYPE> __global__ void __launch_bounds__(THREADS, 2) few_inner(moe_call c)
{
    __shared__ float4 xs[WINDOW / 4];
    const int pair = static_cast<int>(blockIdx.y), expert = expert_of(c, pair);
    if (expert < 0) return;
    const int at = (static_cast<int>(blockIdx.x) * WARPS + static_cast<int>(threadIdx.x) / 32) * 2;
    const int64_t x_at = static_cast<int64_t>(pair / c.n_used) * c.x_stride;
    const int size = c.x_dtype == BP_DT_F32 ? 4 : 2;
    Source src;
    src.p = static_cast<const uint8_t *>(c.x) + x_at * size;
    src.dtype = c.x_dtype;
    src.n = c.e.n_embd;
    src.wide = (reinterpret_cast<uintptr_t>(src.p) & (4 * size - 1)) == 0;
    const uint8_t *rows[STREAMS];
    uint32_t types[STREAMS];
    float acc[STREAMS] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        rows[i] = row_of(c.e.gate, expert, at + i - c.e.left);
        rows[2 + i] = row_of(c.e.up, expert, at + i - c.e.left);
        types[i] = c.e.gate.type;
        types[2 + i] = c.e.up.type;
    }
    products<TYPE>(src, rows, types, c.e.gate.cols, xs, acc);
    const int i = threadIdx.x & 31;
    if (i >= 2 || at + i >= c.e.width) return;
    const int row = at + i - c.e.left;
    const float g = (i == 0 ? acc[0] : acc[1]) * c.e.gate.scale, u = (i == 0 ? acc[2] : acc[3]) * c.e.up.scale;
    static_cast<float *>(c.h)[static_cast<int64_t>(pair) * c.e.width + at + i] =
        row >= 0 && row < c.e.n_ff ? silu(g) * u : 0.0f;
}

/* Rows [col, col + n_col) of down for one pair. */
template <uint32_t TYPE> __global__ void __launch_bounds__(THREADS, 2) few_outer(moe_call c)
{
    __shared__ float4 xs[WINDOW / 4];
    const int pair = static_cast<int>(blockIdx.y), expert = expert_of(c, pair);
    if (expert < 0) return;
    const int at = (static_cast<int>(blockIdx.x) * WARPS + static_cast<int>(threadIdx.x) / 32) * STREAMS;
    Source src;
    src.p = static_cast<const float *>(c.h) + static_cast<int64_t>(pair) * c.e.width;
    src.dtype = BP_DT_F32;
    src.n = c.e.width;
    src.wide = true; /* width is a multiple of 32 */
    const uint8_t *rows[STREAMS];
    uint32_t types[STREAMS];
    float acc[STREAMS] = {};
#pragma unroll
    for (int i = 0; i < STREAMS; ++i) {
        rows[i] = row_of(c.e.down, expert, c.col + at + i);
        types[i] = c.e.down.type;
    }
    products<TYPE>(src, rows, types, c.e.down.cols, xs, acc);
    const int i = threadIdx.x & 31;
    if (i >= STREAMS || at + i >= c.n_col) return;
    const float v = i == 0 ? acc[0] : i == 1 ? acc[1] : i == 2 ? acc[2] : acc[3];
    c.part[static_cast<int64_t>(pair) * c.n_col + at + i] = v * c.e.down.scale;
}

uint32_t kind_of(uint32_t type)
{
    switch (type) {
    case BP_GGUF_Q4_K:
    case BP_GGUF_Q5_K:
    case BP_GGUF_Q6_K:
    case BP_GGUF_Q8_0:
    case BP_GGUF_BF16:
        return type;
    default:
        return ANY;
    }
}

} // namespace

int32_t moe_launch_few_inner(const moe_call *c, void *stream)
{
    const int per_block = WARPS * 2;
    const dim3 grid(static_cast<unsigned>((c->e.width + per_block - 1) / per_block),
                    static_cast<unsigned>(c->n_tok * c->n_used));
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
    switch (c->e.gate.type == c->e.up.type ? kind_of(c->e.gate.type) : ANY) {
    case BP_GGUF_Q4_K: few_inner<BP_GGUF_Q4_K><<<grid, THREADS, 0, s>>>(*c); break;
    case BP_GGUF_Q5_K: few_inner<BP_GGUF_Q5_K><<<grid, THREADS, 0, s>>>(*c); break;
    case BP_GGUF_Q6_K: few_inner<BP_GGUF_Q6_K><<<grid, THREADS, 0, s>>>(*c); break;
    case BP_GGUF_Q8_0: few_inner<BP_GGUF_Q8_0><<<grid, THREADS, 0, s>>>(*c); break;
    case BP_GGUF_BF16: few_inner<BP_GGUF_BF16><<<grid, THREADS, 0, s>>>(*c); break;
    default: few_inner<ANY><<<grid, THREADS, 0, s>>>(*c); break;
    }
    return static_cast<int32_t>(cudaGetLastError());
}

int32_t moe_launch_few_outer(const moe_call *c, void *stream)
{
    const int per_block = WARPS * STREAMS;
    const dim3 grid(static_cast<unsigned>((c->n_col + per_block - 1) / per_block),
                    static_cast<unsigned>(c->n_tok * c->n_used));
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
    switch (kind_of(c->e.down.type)) {
    case BP_GGUF_Q4_K: few_outer<BP_GGUF_Q4_K><<<grid, THREADS, 0, s>>>(*c); break;
    case BP_GGUF_Q5_K: few_outer<BP_GGUF_Q5_K><<<grid, THREADS, 0, s>>>(*c); break;
    case BP_GGUF_Q6_K: few_outer<BP_GGUF_Q6_K><<<grid, THREADS, 0, s>>>(*c); break;
    case BP_GGUF_Q8_0: few_outer<BP_GGUF_Q8_0><<<grid, THREADS, 0, s>>>(*c); break;
    case BP_GGUF_BF16: few_outer<BP_GGUF_BF16><<<grid, THREADS, 0, s>>>(*c); break;
    default: few_outer<ANY><<<grid, THREADS, 0, s>>>(*c); break;
    }
    return static_cast<int32_t>(cudaGetLastError());
}
