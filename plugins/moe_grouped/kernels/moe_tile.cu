/* moe_tile.cu - many tokens: tiles of tokens that go to the same expert, on the tensor cores.
 * A block takes 128 rows of weights (64 of gate with the same 64 of up, or 128 of down) times one tile of tokens, 128
 * columns at a time. Quantized weights enter the products as whole numbers, which bf16 holds exactly; each span of columns
 * with one scale is summed on its own and then scaled in f32, so weights are not rounded. Offsets (Q4_K, Q5_K) multiply
 * the sum of x over the span, which one more product, with ones for weights, gives in the place where it is needed.
 * Types without a reader of their own are decoded and rounded to bf16. All sums are f32.
 * x is bf16, or f16 or f32 cut into two or three parts of bf16, which hold 16 or 24 bits of it; h is bf16 or f32.
 * gate and up rows alternate by 8, so that the thread with the sum of a gate row also has that of up. The next weights
 * are on their way while others are multiplied.
 * A row of x meets its own sums only, so what is in it (NaN, or zeros past the end of a tile) stays with its token.
 * Not here: f32 and f16 with types without a reader (moe_many.cu), few tokens (moe_few.cu), the tiles (moe_sort.cu).
 * SPDX-License-Identifier: MIT */
#include "moe_kernels.h"

#include <cuda_runtime.h>
#include <math.h>

#include "backplane/cuda/convert.cuh"
#include "backplane/cuda/host.h"
#include "backplane/cuda/mma.cuh"
#include "moe_decode.cuh"
#include "moe_tile.cuh"

namespace
{

using bf16 = __nv_bfloat16;

constexpr int WARPS = 8, THREADS = WARPS * 32;
constexpr int ROWS = 128, COLS = 128, HALF = 8;
constexpr int STRIDE = COLS + 8; /* rows that are read together begin in different banks */
constexpr uint32_t ANY = ~0u;    /* types are looked up at run time */

/* Code for sm_120 takes a few registers more, which is too many in one place. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
constexpr bool TIGHT = true;
#else
constexpr bool TIGHT = false;
#endif

/* Columns with one scale. Zero: weights are what they are, without one. */
template <uint32_t TYPE>
constexpr int SPAN_OF = TYPE == BP_GGUF_Q6_K ? 16 : TYPE == ANY || TYPE == BP_GGUF_BF16 ? 0 : 32;
template <uint32_t TYPE> constexpr bool HAS_OFFSET = TYPE == BP_GGUF_Q4_K || TYPE == BP_GGUF_Q5_K;

template <uint32_t TYPE, int TOK, int PARTS> struct Shared {
    static constexpr int SPANS = SPAN_OF<TYPE> == 0 ? 1 : COLS / SPAN_OF<TYPE>;
    bf16 w[ROWS * STRIDE], x[PARTS][TOK * STRIDE];
    float2 scale[SPANS][ROWS]; /* scale and offset of each row's span */
    int from[TOK];             /* row of x of each token, -1: none */
};
static_assert(sizeof(Shared<BP_GGUF_Q6_K, MOE_TILE_MANY, 3>) <= BP_CUDA_SMEM_MAX, "one window must fit");

/* ---- weights: a thread has the same chunk of each window in two rows ---- */

/* Two weights as bf16: bytes A and A + 1 of v, both below 128, minus zero. 0x43 on top makes 128 + byte of it. */
template <int A> __device__ __forceinline__ uint32_t two_of(uint32_t v, uint32_t minus)
{
    const uint32_t pair = __byte_perm(v, 0x43434343u, A == 0 ? 0x4140 : 0x4342);
    const __nv_bfloat162 r = __hsub2(*reinterpret_cast<const __nv_bfloat162 *>(&pair),
                                     *reinterpret_cast<const __nv_bfloat162 *>(&minus));
    return *reinterpret_cast<const uint32_t *>(&r);
}

/* Eight weights of two words of bytes. Signed bytes: 128 + the lower seven bits, minus 128, or 256 with the sign. */
template <bool SIGN, int ZERO> __device__ __forceinline__ uint4 eight_of(uint32_t a, uint32_t b)
{
    constexpr uint32_t MINUS = 0x43004300u + ZERO * 0x10001u;
    uint4 r;
    if constexpr (SIGN) {
        const uint32_t sa = a & 0x80808080u, sb = b & 0x80808080u;
        r.x = two_of<0>(a & 0x7f7f7f7fu, __byte_perm(sa, 0x43434343u, 0x4140));
        r.y = two_of<2>(a & 0x7f7f7f7fu, __byte_perm(sa, 0x43434343u, 0x4342));
        r.z = two_of<0>(b & 0x7f7f7f7fu, __byte_perm(sb, 0x43434343u, 0x4140));
        r.w = two_of<2>(b & 0x7f7f7f7fu, __byte_perm(sb, 0x43434343u, 0x4342));
    } else {
        r.x = two_of<0>(a, MINUS);
        r.y = two_of<2>(a, MINUS);
        r.z = two_of<0>(b, MINUS);
        r.w = two_of<2>(b, MINUS);
    }
    return r;
}

template <uint32_t TYPE> struct Stage {
    moe::Chunk<TYPE> c;

    __device__ __forceinline__ void load(const uint8_t *row, uint32_t, int cols, int chunk)
    {
        c.load(row, cols, chunk);
    }
    /* To row `to` of the window; j: which chunk of it, chunk: which of the row. */
    template <class S> __device__ __forceinline__ void put(S &sh, int row, int j, int chunk) const
    {
        using Reader = moe::Chunk<TYPE>;
        constexpr int SPAN = SPAN_OF<TYPE>;
        moe::Words w;
        c.words(chunk, w);
#pragma unroll
        for (int run = 0; run < 2; ++run) {
            const int col = Reader::column(j, run);
            uint4 *to = reinterpret_cast<uint4 *>(sh.w + row * STRIDE + col);
            to[0] = eight_of<Reader::SIGN, Reader::ZERO>(w.q[4 * run], w.q[4 * run + 1]);
            to[1] = eight_of<Reader::SIGN, Reader::ZERO>(w.q[4 * run + 2], w.q[4 * run + 3]);
            if (col % SPAN == 0) sh.scale[col / SPAN][row] = make_float2(w.d[run], Reader::OFFSET ? w.m[run] : 0.0f);
        }
    }
};

template <> struct Stage<BP_GGUF_BF16> {
    moe::Chunk<BP_GGUF_BF16> c;

    __device__ __forceinline__ void load(const uint8_t *row, uint32_t, int cols, int chunk)
    {
        c.load(row, cols, chunk);
    }
    template <class S> __device__ __forceinline__ void put(S &sh, int row, int j, int) const
    {
#pragma unroll
        for (int i = 0; i < 4; ++i) reinterpret_cast<uint4 *>(sh.w + row * STRIDE + j * 32)[i] = c.v[i];
    }
};

template <> struct Stage<ANY> {
    const uint8_t *row;
    uint32_t type;
    int cols;

    __device__ __forceinline__ void load(const uint8_t *r, uint32_t t, int n, int)
    {
        row = r;
        type = t;
        cols = n;
    }
    template <class S> __device__ __forceinline__ void put(S &sh, int to, int j, int chunk) const
    {
        float v[32];
        moe::decode32(type, row, cols, chunk, v);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            uint4 q;
            q.x = bp_cuda::pack<bf16>(v[8 * i], v[8 * i + 1]);
            q.y = bp_cuda::pack<bf16>(v[8 * i + 2], v[8 * i + 3]);
            q.z = bp_cuda::pack<bf16>(v[8 * i + 4], v[8 * i + 5]);
            q.w = bp_cuda::pack<bf16>(v[8 * i + 6], v[8 * i + 7]);
            reinterpret_cast<uint4 *>(sh.w + to * STRIDE + j * 32)[i] = q;
        }
    }
};

/* Zeros where there is no weight: rows past the last, columns past the end. Columns are missing in whole chunks at the
 * end of a row only, where chunks and columns have the same order. */
template <uint32_t TYPE, class S> __device__ __forceinline__ void put_nothing(S &sh, int row, int j)
{
#pragma unroll
    for (int i = 0; i < 4; ++i) reinterpret_cast<uint4 *>(sh.w + row * STRIDE + j * 32)[i] = make_uint4(0, 0, 0, 0);
    for (int i = j; i < S::SPANS; i += 4) sh.scale[i][row] = make_float2(0.0f, 0.0f);
}

/* ---- x ---- */

struct Input {
    const void *x;
    int64_t stride;
    uint32_t dtype;
    int n;     /* columns that exist */
    bool wide; /* 8 elements at a time are aligned */
};

/* Eight numbers as PARTS of bf16, each what those before it leave. */
template <int PARTS, int TOK, class S> __device__ __forceinline__ void put_parts(S &sh, int at, float (&v)[8])
{
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
        uint32_t q[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            q[k] = bp_cuda::pack<bf16>(v[2 * k], v[2 * k + 1]);
            v[2 * k] -= __uint_as_float(q[k] << 16);
            v[2 * k + 1] -= __uint_as_float(q[k] & 0xffff0000u);
        }
        *reinterpret_cast<uint4 *>(sh.x[p] + at) = make_uint4(q[0], q[1], q[2], q[3]);
    }
}

template <int TOK, int PARTS, class S> __device__ __forceinline__ void stage_x(const Input &in, S &sh, int col)
{
    for (int i = static_cast<int>(threadIdx.x); i < TOK * (COLS / 8); i += THREADS) {
        const int tok = i / (COLS / 8), at = i % (COLS / 8) * 8, row = sh.from[tok], left = row >= 0 ? in.n - col - at : 0;
        const int64_t p = (row >= 0 ? row : 0) * in.stride + col + at;
        if (PARTS == 1 && left <= 0) { /* no copy of nothing: it would need an aligned address, too */
            *reinterpret_cast<uint4 *>(sh.x[0] + tok * STRIDE + at) = make_uint4(0, 0, 0, 0);
            continue;
        }
        if (PARTS == 1 && in.wide && left >= 8) {
            bp_cuda::cp_async_16(sh.x[0] + tok * STRIDE + at, static_cast<const bf16 *>(in.x) + p, true);
            continue;
        }
        float v[8] = {};
        if (PARTS > 1 && in.wide && left >= 8) {
            bp_cuda::load_any_vec(v, in.x, in.dtype, p);
        } else {
#pragma unroll
            for (int k = 0; k < 8; ++k)
                if (k < left) v[k] = bp_cuda::load_any(in.x, in.dtype, p + k);
        }
        put_parts<PARTS, TOK>(sh, tok * STRIDE + at, v);
    }
    if (PARTS == 1) bp_cuda::cp_async_commit();
}

/* ---- products: warps lie 4 x 2 over 32 rows x 32 tokens each, or 8 x 1 over 16 rows x 16 tokens ---- */

template <uint32_t TYPE, int TOK, int PARTS> struct Product {
    static constexpr int WIDE = TOK == MOE_TILE_MANY ? 2 : 1;
    static constexpr int M = ROWS / (WARPS / WIDE) / 16, N = TOK / WIDE / 8;
    float acc[M][N][4];

    __device__ __forceinline__ int row() const
    {
        return static_cast<int>(threadIdx.x) / 32 / WIDE * M * 16;
    }
    __device__ __forceinline__ int tok() const
    {
        return static_cast<int>(threadIdx.x) / 32 % WIDE * N * 8;
    }
    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int i = 0; i < M * N * 4; ++i) acc[i / (N * 4)][i / 4 % N][i % 4] = 0.0f;
    }
    template <class S> __device__ __forceinline__ void add(const S &sh)
    {
        constexpr int SPAN = SPAN_OF<TYPE> == 0 ? 16 : SPAN_OF<TYPE>, STEPS = SPAN / 16;
        const int lane = threadIdx.x & 31;
        const int w_at = (row() + lane % 16) * STRIDE + lane / 16 * 8;
        const int x_at = (tok() + lane / 16 * 8 + lane % 8) * STRIDE + lane / 8 % 2 * 8;
#pragma unroll 1
        for (int span = 0; span < COLS / SPAN; ++span) {
            uint32_t a[STEPS][M][4];
#pragma unroll
            for (int k = 0; k < STEPS; ++k)
#pragma unroll
                for (int i = 0; i < M; ++i) bp_cuda::ldmatrix_x4(a[k][i], sh.w + w_at + i * 16 * STRIDE + span * SPAN + k * 16);
#pragma unroll
            for (int j = 0; j < N; j += 2) {
                uint32_t b[PARTS][STEPS][4];
#pragma unroll
                for (int p = 0; p < PARTS; ++p)
#pragma unroll
                    for (int k = 0; k < STEPS; ++k)
                        bp_cuda::ldmatrix_x4(b[p][k], sh.x[p] + x_at + j * 8 * STRIDE + span * SPAN + k * 16);
                if constexpr (SPAN_OF<TYPE> == 0) {
#pragma unroll
                    for (int i = 0; i < M; ++i) multiply(acc[i][j], acc[i][j + 1], a, i, b);
                } else {
                    scaled(sh, span, j, a, b);
                }
            }
        }
    }
    /* The two tiles of tokens in b times rows i of a; the small parts of x first. */
    template <int STEPS>
    static __device__ __forceinline__ void multiply(float (&one)[4], float (&other)[4], const uint32_t (&a)[STEPS][M][4], int i,
                                                    const uint32_t (&b)[PARTS][STEPS][4])
    {
#pragma unroll
        for (int p = PARTS - 1; p >= 0; --p)
#pragma unroll
            for (int k = 0; k < STEPS; ++k) {
                bp_cuda::mma<bf16>(one, a[k][i], b[p][k][0], b[p][k][1]);
                bp_cuda::mma<bf16>(other, a[k][i], b[p][k][2], b[p][k][3]);
            }
    }
    template <class S, int STEPS>
    __device__ __forceinline__ void scaled(const S &sh, int span, int j, const uint32_t (&a)[STEPS][M][4],
                                           const uint32_t (&b)[PARTS][STEPS][4])
    {
        float sum[2][4] = {};
        if constexpr (HAS_OFFSET<TYPE>) {
            const uint32_t ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
#pragma unroll
            for (int p = PARTS - 1; p >= 0; --p)
#pragma unroll
                for (int k = 0; k < STEPS; ++k) {
                    bp_cuda::mma<bf16>(sum[0], ones, b[p][k][0], b[p][k][1]);
                    bp_cuda::mma<bf16>(sum[1], ones, b[p][k][2], b[p][k][3]);
                }
        }
#pragma unroll
        for (int i = 0; i < M; ++i) {
            float part[2][4] = {};
            multiply(part[0], part[1], a, i, b);
            const int at = row() + i * 16 + static_cast<int>(threadIdx.x & 31) / 4;
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                const float2 s = sh.scale[span][at + r / 2 * 8];
#pragma unroll
                for (int n = 0; n < 2; ++n) {
                    acc[i][j + n][r] = fmaf(s.x, part[n][r], acc[i][j + n][r]);
                    /* All rows of the sum of x are the same. */
                    if constexpr (HAS_OFFSET<TYPE>) acc[i][j + n][r] = fmaf(s.y, sum[n][r % 2], acc[i][j + n][r]);
                }
            }
        }
    }
    /* f(s, tok, first, second): the sums of row s of shared memory and of row s + 8. */
    template <class F> __device__ __forceinline__ void visit(F &&f) const
    {
        const int lane = threadIdx.x & 31;
#pragma unroll
        for (int i = 0; i < M; ++i)
#pragma unroll
            for (int j = 0; j < N; ++j)
#pragma unroll
                for (int k = 0; k < 2; ++k)
                    f(row() + i * 16 + lane / 4, tok() + j * 8 + lane % 4 * 2 + k, acc[i][j][k], acc[i][j][2 + k]);
    }
};

/* ---- the kernel; blocks: x: rows of weights, y: tiles ---- */

template <uint32_t TYPE, int TOK, int PARTS, bool INNER>
__global__ void __launch_bounds__(THREADS, 2) tile_kernel(const __grid_constant__ moe_call c)
{
    constexpr int OWN = INNER ? ROWS / 2 : ROWS;
    /* Where registers allow it. */
    constexpr bool AHEAD = PARTS == 1 && sizeof(Stage<TYPE>) <= 36 && !(TIGHT && HAS_OFFSET<TYPE> && TOK == MOE_TILE_MANY);
    extern __shared__ uint4 shared[];
    Shared<TYPE, TOK, PARTS> &sh = *reinterpret_cast<Shared<TYPE, TOK, PARTS> *>(shared);
    moe::Tile t;
    if (!moe::find_tile(c, static_cast<int>(blockIdx.y), t)) return;
    const int first = static_cast<int>(blockIdx.x) * OWN + (INNER ? 0 : c.col);
    for (int i = threadIdx.x; i < TOK; i += THREADS)
        sh.from[i] = i >= t.n ? -1 : INNER ? moe::pair_of(c, t.first + i) / c.n_used : moe::pair_of(c, t.first + i);
    Input in;
    in.x = INNER ? c.x : c.h;
    in.stride = INNER ? c.x_stride : c.e.width;
    in.dtype = INNER ? c.x_dtype : static_cast<uint32_t>(PARTS == 1 ? BP_DT_BF16 : BP_DT_F32);
    in.n = INNER ? c.e.n_embd : c.e.width;
    in.wide = (reinterpret_cast<uintptr_t>(in.x) & 15) == 0 && in.stride % 8 == 0;

    /* Eight lanes have eight rows, so that their stores meet no bank twice; the four groups have the window's chunks. */
    const int lane = threadIdx.x & 31, j = lane / 8;
    const int cols = INNER ? c.e.gate.cols : c.e.down.cols;
    const uint8_t *rows[2];
    uint32_t types[2];
    int at[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        at[i] = static_cast<int>(threadIdx.x) / 32 * 8 + lane % 8 + i * 64;
        const moe_mat &m = !INNER ? c.e.down : at[i] / HALF % 2 == 0 ? c.e.gate : c.e.up;
        const int row = INNER ? first + at[i] / (2 * HALF) * HALF + at[i] % HALF : first + at[i];
        types[i] = m.type;
        rows[i] = row < m.rows ? m.data + t.expert * m.expert_bytes + row * m.row_bytes : nullptr;
    }
    Stage<TYPE> w[2];
    Product<TYPE, TOK, PARTS> product;
    product.clear();
    if (AHEAD && j * 32 < cols) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
            if (rows[i] != nullptr) w[i].load(rows[i], types[i], cols, j);
    }
    for (int col = 0; col < cols; col += COLS) {
        const int chunk = col / 32 + j;
        __syncthreads(); /* the window before has been read, and `from` is written */
        stage_x<TOK, PARTS>(in, sh, col);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (rows[i] == nullptr || chunk * 32 >= cols) {
                put_nothing<TYPE>(sh, at[i], j);
                continue;
            }
            if (!AHEAD) w[i].load(rows[i], types[i], cols, chunk);
            w[i].put(sh, at[i], j, chunk);
        }
        if (AHEAD && (chunk + 4) * 32 < cols) {
#pragma unroll
            for (int i = 0; i < 2; ++i)
                if (rows[i] != nullptr) w[i].load(rows[i], types[i], cols, chunk + 4);
        }
        if (PARTS == 1) bp_cuda::cp_async_wait<0>();
        __syncthreads();
        product.add(sh);
    }
    product.visit([&](int s, int tok, float one, float other) {
        if (tok >= t.n) return;
        const int64_t pair = moe::pair_of(c, t.first + tok);
        if (INNER) {
            const int row = first + s / (2 * HALF) * HALF + s % HALF;
            const float h = moe::silu(one * c.e.gate.scale) * (other * c.e.up.scale);
            const int64_t to = pair * c.e.width + c.e.left + row;
            if (row >= c.e.n_ff) return;
            if (PARTS == 1) static_cast<bf16 *>(c.h)[to] = __float2bfloat16_rn(h);
            else static_cast<float *>(c.h)[to] = h;
        } else {
            float *to = c.part + pair * c.n_col - c.col + first;
            if (first + s < c.col + c.n_col) to[s] = one * c.e.down.scale;
            if (first + s + HALF < c.col + c.n_col) to[s + HALF] = other * c.e.down.scale;
        }
    });
}

template <uint32_t TYPE, int TOK, int PARTS, bool INNER> int32_t start(const moe_call &c, cudaStream_t s)
{
    const int own = INNER ? ROWS / 2 : ROWS, n = INNER ? c.e.n_ff : c.n_col;
    const dim3 grid(static_cast<unsigned>((n + own - 1) / own), static_cast<unsigned>(c.n_tile));
    constexpr int N_BYTES = static_cast<int>(sizeof(Shared<TYPE, TOK, PARTS>));
    const cudaError_t e = cudaFuncSetAttribute(tile_kernel<TYPE, TOK, PARTS, INNER>,
                                               cudaFuncAttributeMaxDynamicSharedMemorySize, N_BYTES);
    if (e != cudaSuccess) {
        (void)cudaGetLastError(); /* it is told here, and the next launch shall not find it */
        return static_cast<int32_t>(e);
    }
    tile_kernel<TYPE, TOK, PARTS, INNER><<<grid, THREADS, N_BYTES, s>>>(c);
    return static_cast<int32_t>(cudaGetLastError());
}

template <uint32_t TYPE, int PARTS, bool INNER> int32_t start_size(const moe_call &c, cudaStream_t s)
{
    if (c.tile_tok == MOE_TILE_MANY) return start<TYPE, MOE_TILE_MANY, PARTS, INNER>(c, s);
    return start<TYPE, MOE_TILE_FEW, PARTS, INNER>(c, s);
}

template <uint32_t TYPE, bool INNER> int32_t start_parts(const moe_call &c, cudaStream_t s)
{
    if (c.half != 0) return start_size<TYPE, 1, INNER>(c, s);
    if constexpr (TYPE == ANY) return static_cast<int32_t>(cudaErrorInvalidValue); /* rounds weights: see moe_tile_serves */
    else return c.x_dtype == BP_DT_F16 ? start_size<TYPE, 2, INNER>(c, s) : start_size<TYPE, 3, INNER>(c, s);
}

uint32_t type_of(const moe_call &c, bool inner)
{
    const uint32_t type = !inner ? c.e.down.type : c.e.gate.type == c.e.up.type ? c.e.gate.type : ANY;
    switch (type) {
    case BP_GGUF_Q4_K:
    case BP_GGUF_Q5_K:
    case BP_GGUF_Q6_K:
    case BP_GGUF_Q8_0:
    case BP_GGUF_BF16: return type;
    default: return ANY;
    }
}

template <bool INNER> int32_t start_type(const moe_call &c, cudaStream_t s)
{
    switch (type_of(c, INNER)) {
    case BP_GGUF_Q4_K: return start_parts<BP_GGUF_Q4_K, INNER>(c, s);
    case BP_GGUF_Q5_K: return start_parts<BP_GGUF_Q5_K, INNER>(c, s);
    case BP_GGUF_Q6_K: return start_parts<BP_GGUF_Q6_K, INNER>(c, s);
    case BP_GGUF_Q8_0: return start_parts<BP_GGUF_Q8_0, INNER>(c, s);
    case BP_GGUF_BF16: return start_parts<BP_GGUF_BF16, INNER>(c, s);
    default: return start_parts<ANY, INNER>(c, s);
    }
}

} // namespace

int32_t moe_tile_serves(const moe_call *c, int32_t inner)
{
    return c->half != 0 || type_of(*c, inner != 0) != ANY;
}

int32_t moe_launch_tile(const moe_call *c, int32_t inner, void *stream)
{
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
    return inner != 0 ? start_type<true>(*c, s) : start_type<false>(*c, s);
}
