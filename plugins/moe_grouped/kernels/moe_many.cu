/* moe_many.cu - many tokens: tiles of tokens that go to the same expert. A block takes 128 rows of weights (64 in f32)
 * times one tile of tokens; weights are decoded once per tile into shared memory, 128 columns at a time.
 * bf16 activations: products of bf16 on the tensor cores, sums in f32, h in bf16. f32 and f16: all f32, because h can be
 * larger than f16 holds.
 * gate and up share a tile, rows interleaved such that the thread with the sum of a gate row also has that of up.
 * A row of x meets its own sums only, so what is in it (NaN, or zeros past the end of a tile) stays with its token.
 * Not here: few tokens (moe_few.cu), the tiles (moe_sort.cu). SPDX-License-Identifier: MIT */
#include "moe_kernels.h"

#include <cuda_runtime.h>
#include <math.h>

#include "backplane/cuda/convert.cuh"
#include "backplane/cuda/host.h"
#include "moe_decode.cuh"

namespace
{

constexpr int THREADS = 256;
constexpr int COLS = 128; /* of weights and x in shared memory at a time: both runs of every chunk lie in them */

using bf16 = __nv_bfloat16;

template <class T> struct Shape;
/* 8 elements of padding: rows that are read together begin in different banks. */
template <> struct Shape<bf16> {
    static constexpr int ROWS = 128, HALF = 8, STRIDE = COLS + 8;
};
template <> struct Shape<float> {
    static constexpr int ROWS = 64, HALF = 16, STRIDE = COLS + 4;
};

template <class T, int TOK> constexpr int smem_bytes()
{
    return (Shape<T>::ROWS + TOK) * Shape<T>::STRIDE * static_cast<int>(sizeof(T)) + TOK * 4;
}
static_assert(smem_bytes<bf16, MOE_TILE_MANY>() <= BP_CUDA_SMEM_MAX, "two tiles must fit");
static_assert(smem_bytes<float, MOE_TILE_MANY>() <= BP_CUDA_SMEM_MAX, "two tiles must fit");

/* What a block works on. */
struct Tile {
    int expert, first, n; /* pairs list[first .. first + n) */
    int row;              /* first row of weights: of gate and of up, or of down */
    const void *x;
    int64_t x_stride;
    uint32_t x_dtype;
    int n_col; /* columns of x that exist */
};

__device__ __forceinline__ int pair_of(const moe_call &c, int at)
{
    return c.list != nullptr ? c.list[at] : at;
}

__device__ __forceinline__ bool find_tile(const moe_call &c, int at, Tile &t)
{
    if (c.tiles == nullptr) {
        const int n = c.n_tok * c.n_used, first = at * c.tile_tok;
        t.expert = 0;
        t.first = first;
        t.n = n - first < c.tile_tok ? n - first : c.tile_tok;
    } else {
        const int4 v = reinterpret_cast<const int4 *>(c.tiles)[at];
        t.expert = v.x;
        t.first = v.y;
        t.n = v.z;
    }
    return t.n > 0;
}

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
__device__ __forceinline__ uint32_t two(float a, float b)
{
    const __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<const uint32_t *>(&v);
}
__device__ __forceinline__ void store_run(bf16 *to, const float *q, float d, float m)
{
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        uint4 v;
        v.x = two(fmaf(d, q[8 * i], m), fmaf(d, q[8 * i + 1], m));
        v.y = two(fmaf(d, q[8 * i + 2], m), fmaf(d, q[8 * i + 3], m));
        v.z = two(fmaf(d, q[8 * i + 4], m), fmaf(d, q[8 * i + 5], m));
        v.w = two(fmaf(d, q[8 * i + 6], m), fmaf(d, q[8 * i + 7], m));
        reinterpret_cast<uint4 *>(to)[i] = v;
    }
}

/* Row of weights behind row s of shared memory; NULL: none. INNER interleaves HALF rows of gate and of up. */
template <class T, bool INNER>
__device__ __forceinline__ const uint8_t *weight_row(const moe_call &c, const Tile &t, int s, uint32_t *type, int *cols)
{
    constexpr int HALF = Shape<T>::HALF;
    const moe_mat &m = !INNER ? c.e.down : s / HALF % 2 == 0 ? c.e.gate : c.e.up;
    const int row = INNER ? t.row + s / (2 * HALF) * HALF + s % HALF : t.row + s;
    *type = m.type;
    *cols = m.cols;
    return row < m.rows ? m.data + t.expert * m.expert_bytes + row * m.row_bytes : nullptr;
}

template <class T, uint32_t TYPE>
__device__ __forceinline__ void stage_chunk(T *to, const uint8_t *row, int cols, int chunk, int col)
{
    using Reader = moe::Chunk<TYPE>;
    Reader c;
    moe::Runs r;
    c.load(row, cols, chunk);
    c.unpack(chunk, r);
    store_run(to + Reader::column(chunk, 0) - col, r.q, r.d[0], r.m[0]);
    store_run(to + Reader::column(chunk, 1) - col, r.q + 16, r.d[1], r.m[1]);
}

/* Columns [col, col + COLS) of the tile's rows of weights, decoded. */
template <class T, bool INNER> __device__ __forceinline__ void stage_weights(const moe_call &c, const Tile &t, int col, T *w)
{
    constexpr int ROWS = Shape<T>::ROWS, STRIDE = Shape<T>::STRIDE;
#pragma unroll
    for (int i = static_cast<int>(threadIdx.x); i < ROWS * 4; i += THREADS) {
        const int s = i / 4, chunk = col / 32 + i % 4;
        uint32_t type;
        int cols;
        const uint8_t *row = weight_row<T, INNER>(c, t, s, &type, &cols);
        T *to = w + s * STRIDE;
        if (row == nullptr || chunk * 32 >= cols) {
            const float zero[16] = {};
            /* Whole chunks are missing only at the end, where column order and chunk order agree. */
            store_run(to + i % 4 * 32, zero, 0.0f, 0.0f);
            store_run(to + i % 4 * 32 + 16, zero, 0.0f, 0.0f);
            continue;
        }
        switch (type) {
        case BP_GGUF_Q4_K: stage_chunk<T, BP_GGUF_Q4_K>(to, row, cols, chunk, col); break;
        case BP_GGUF_Q5_K: stage_chunk<T, BP_GGUF_Q5_K>(to, row, cols, chunk, col); break;
        case BP_GGUF_Q6_K: stage_chunk<T, BP_GGUF_Q6_K>(to, row, cols, chunk, col); break;
        case BP_GGUF_Q8_0: stage_chunk<T, BP_GGUF_Q8_0>(to, row, cols, chunk, col); break;
        case BP_GGUF_BF16: stage_chunk<T, BP_GGUF_BF16>(to, row, cols, chunk, col); break;
        default: {
            float v[32];
            moe::decode32(type, row, cols, chunk, v);
            store_run(to + i % 4 * 32, v, 1.0f, 0.0f);
            store_run(to + i % 4 * 32 + 16, v + 16, 1.0f, 0.0f);
            break;
        }
        }
    }
}

/* Columns [col, col + COLS) of the tile's rows of x; rows and columns that do not exist are zero. from: row of x of each
 * token, -1 for none. */
template <class T, int TOK> __device__ __forceinline__ void stage_x(const Tile &t, const int *from, int col, T *xs)
{
    constexpr int STRIDE = Shape<T>::STRIDE, WIDE = 16 / static_cast<int>(sizeof(T));
    const bool same = sizeof(T) == 2 || t.x_dtype == BP_DT_F32; /* no conversion; bf16 tiles have bf16 x only */
    const bool aligned = (reinterpret_cast<uintptr_t>(t.x) & 15) == 0 && t.x_stride % WIDE == 0;
    for (int i = static_cast<int>(threadIdx.x); i < TOK * (COLS / WIDE); i += THREADS) {
        const int tok = i / (COLS / WIDE), at = i % (COLS / WIDE) * WIDE, row = from[tok];
        T *to = xs + tok * STRIDE + at;
        const int left = row >= 0 ? t.n_col - col - at : 0;
        if (same && aligned && left >= WIDE) {
            *reinterpret_cast<uint4 *>(to) =
                *reinterpret_cast<const uint4 *>(static_cast<const T *>(t.x) + row * t.x_stride + col + at);
            continue;
        }
#pragma unroll
        for (int k = 0; k < WIDE; ++k) {
            const float v = k < left ? bp_cuda::load_any(t.x, t.x_dtype, row * t.x_stride + col + at + k) : 0.0f;
            to[k] = bp_cuda::from_f32<T>(v);
        }
    }
}

__device__ __forceinline__ float silu(float v)
{
    return v == -INFINITY ? 0.0f : v / (1.0f + expf(-v));
}

/* ---- products of a tile: acc of a thread, and which row and token each belongs to ---- */

__device__ __forceinline__ void load_matrix(uint32_t (&r)[4], const bf16 *p)
{
    const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(p));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}

__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* visit(s, tok, first, second): sums of shared row s and of its partner, which is s + HALF. */
template <class T, int TOK> struct Product;

/* 8 warps: TOK 64 as 4 x 2 of 32 rows x 32 tokens, TOK 16 as 8 x 1 of 16 rows x 16 tokens. */
template <int TOK> struct Product<bf16, TOK> {
    static constexpr int WIDE = TOK == MOE_TILE_MANY ? 2 : 1; /* warps along tokens */
    static constexpr int M = 128 / (8 / WIDE) / 16, N = TOK / WIDE / 8;
    float acc[M][N][4];

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int i = 0; i < M * N * 4; ++i) acc[i / (N * 4)][i / 4 % N][i % 4] = 0.0f;
    }
    __device__ __forceinline__ void add(const bf16 *w, const bf16 *x)
    {
        constexpr int STRIDE = Shape<bf16>::STRIDE;
        const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
        const bf16 *wl = w + (warp / WIDE * M * 16 + lane % 16) * STRIDE + lane / 16 * 8;
        const bf16 *xl = x + (warp % WIDE * N * 8 + lane / 16 * 8 + lane % 8) * STRIDE + lane / 8 % 2 * 8;
#pragma unroll
        for (int k = 0; k < COLS; k += 16) {
            uint32_t a[M][4], b[N / 2][4];
#pragma unroll
            for (int i = 0; i < M; ++i) load_matrix(a[i], wl + i * 16 * STRIDE + k);
#pragma unroll
            for (int i = 0; i < N / 2; ++i) load_matrix(b[i], xl + i * 16 * STRIDE + k);
#pragma unroll
            for (int i = 0; i < M; ++i)
#pragma unroll
                for (int j = 0; j < N; ++j) mma(acc[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
        }
    }
    template <class F> __device__ __forceinline__ void visit(F &&f) const
    {
        const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
#pragma unroll
        for (int i = 0; i < M; ++i)
#pragma unroll
            for (int j = 0; j < N; ++j)
#pragma unroll
                for (int k = 0; k < 2; ++k) {
                    const int s = (warp / WIDE * M + i) * 16 + lane / 4;
                    f(s, (warp % WIDE * N + j) * 8 + lane % 4 * 2 + k, acc[i][j][k], acc[i][j][2 + k]);
                }
    }
};

/* 16 x 16 threads, each 4 rows x TOK / 16 tokens. */
template <int TOK> struct Product<float, TOK> {
    static constexpr int N = TOK / 16;
    float acc[4][N];

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int i = 0; i < 4 * N; ++i) acc[i / N][i % N] = 0.0f;
    }
    __device__ __forceinline__ void add(const float *w, const float *x)
    {
        constexpr int STRIDE = Shape<float>::STRIDE;
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
    template <class F> __device__ __forceinline__ void visit(F &&f) const
    {
#pragma unroll
        for (int i = 0; i < 4; i += 2)
#pragma unroll
            for (int j = 0; j < N; ++j)
                f(static_cast<int>(threadIdx.x) / 16 + i * 16, static_cast<int>(threadIdx.x) % 16 + j * 16, acc[i][j],
                  acc[i + 1][j]);
    }
};

/* ---- kernels ---- */

template <class T> __device__ __forceinline__ void put_h(const moe_call &c, int64_t pair, int at, float v)
{
    static_cast<T *>(c.h)[pair * c.e.width + at] = bp_cuda::from_f32<T>(v);
}

/* Blocks: x: rows of weights, y: tiles. */
template <class T, int TOK, bool INNER> __global__ void __launch_bounds__(THREADS) many_kernel(moe_call c)
{
    constexpr int ROWS = Shape<T>::ROWS, HALF = Shape<T>::HALF, OWN = INNER ? ROWS / 2 : ROWS;
    extern __shared__ uint4 shared[];
    T *w = reinterpret_cast<T *>(shared), *xs = w + ROWS * Shape<T>::STRIDE;
    int *from = reinterpret_cast<int *>(xs + TOK * Shape<T>::STRIDE);
    Tile t;
    if (!find_tile(c, static_cast<int>(blockIdx.y), t)) return;
    t.row = static_cast<int>(blockIdx.x) * OWN + (INNER ? 0 : c.col);
    t.x = INNER ? c.x : c.h;
    t.x_stride = INNER ? c.x_stride : c.e.width;
    t.x_dtype = INNER ? c.x_dtype : sizeof(T) == 2 ? BP_DT_BF16 : BP_DT_F32;
    t.n_col = INNER ? c.e.n_embd : c.e.width;
    for (int i = threadIdx.x; i < TOK; i += THREADS)
        from[i] = i >= t.n ? -1 : INNER ? pair_of(c, t.first + i) / c.n_used : pair_of(c, t.first + i);
    Product<T, TOK> product;
    product.clear();
    const int cols = INNER ? c.e.gate.cols : c.e.down.cols;
    for (int col = 0; col < cols; col += COLS) {
        __syncthreads(); /* the columns before have been read, and `from` is written */
        stage_x<T, TOK>(t, from, col, xs);
        stage_weights<T, INNER>(c, t, col, w);
        __syncthreads();
        product.add(w, xs);
    }
    product.visit([&](int s, int tok, float first, float second) {
        if (tok >= t.n) return;
        const int64_t pair = pair_of(c, t.first + tok);
        if (INNER) {
            const int row = t.row + s / (2 * HALF) * HALF + s % HALF;
            if (row < c.e.n_ff)
                put_h<T>(c, pair, c.e.left + row, silu(first * c.e.gate.scale) * (second * c.e.up.scale));
        } else {
            float *to = c.part + pair * c.n_col - c.col + t.row;
            if (t.row + s < c.col + c.n_col) to[s] = first * c.e.down.scale;
            if (t.row + s + HALF < c.col + c.n_col) to[s + HALF] = second * c.e.down.scale;
        }
    });
}

/* Columns of h that down reads and n_ff does not have: zero. */
template <class T> __global__ void __launch_bounds__(THREADS) pad_kernel(moe_call c)
{
    const int n = c.e.width - c.e.n_ff;
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= static_cast<int64_t>(c.n_tok) * c.n_used * n) return;
    const int at = static_cast<int>(i % n);
    put_h<T>(c, i / n, at < c.e.left ? at : at + c.e.n_ff, 0.0f);
}

template <class T, int TOK, bool INNER> void launch(const moe_call &c, cudaStream_t s)
{
    const int own = INNER ? Shape<T>::ROWS / 2 : Shape<T>::ROWS, n = INNER ? c.e.n_ff : c.n_col;
    const dim3 grid(static_cast<unsigned>((n + own - 1) / own), static_cast<unsigned>(c.n_tile));
    many_kernel<T, TOK, INNER><<<grid, THREADS, smem_bytes<T, TOK>(), s>>>(c);
}

template <bool INNER> int32_t launch_any(const moe_call &c, cudaStream_t s)
{
    const bool many = c.tile_tok == MOE_TILE_MANY;
    if (c.half != 0 && many) launch<bf16, MOE_TILE_MANY, INNER>(c, s);
    else if (c.half != 0) launch<bf16, MOE_TILE_FEW, INNER>(c, s);
    else if (many) launch<float, MOE_TILE_MANY, INNER>(c, s);
    else launch<float, MOE_TILE_FEW, INNER>(c, s);
    return static_cast<int32_t>(cudaGetLastError());
}

template <class T, int TOK> cudaError_t allow()
{
    cudaError_t e = cudaFuncSetAttribute(many_kernel<T, TOK, true>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         smem_bytes<T, TOK>());
    if (e == cudaSuccess)
        e = cudaFuncSetAttribute(many_kernel<T, TOK, false>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 smem_bytes<T, TOK>());
    return e;
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
        if (n > 0 && c->half != 0) pad_kernel<bf16><<<grid, THREADS, 0, s>>>(*c);
        else if (n > 0) pad_kernel<float><<<grid, THREADS, 0, s>>>(*c);
        const int32_t rc = launch_any<true>(*c, s);
        if (rc != 0) return rc;
    }
    return 0;
}

int32_t moe_launch_many_outer(const moe_call *routed, const moe_call *shared, void *stream)
{
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
    int32_t rc = routed != nullptr ? launch_any<false>(*routed, s) : 0;
    if (rc == 0 && shared != nullptr) rc = launch_any<false>(*shared, s);
    return rc;
}

int32_t moe_kernels_init(void)
{
    cudaError_t e = allow<bf16, MOE_TILE_MANY>();
    if (e == cudaSuccess) e = allow<bf16, MOE_TILE_FEW>();
    if (e == cudaSuccess) e = allow<float, MOE_TILE_MANY>();
    if (e == cudaSuccess) e = allow<float, MOE_TILE_FEW>();
    if (e != cudaSuccess) (void)cudaGetLastError();
    return static_cast<int32_t>(e);
}
