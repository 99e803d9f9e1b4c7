/* moe_few.cu - few tokens: for each pair one product of a matrix and a row of x. A warp takes four rows of weights at a
 * time (two of gate with the same two of up, or four of down), a lane 32 columns of each per step; x lies in shared memory
 * in the order in which lanes read it, so that reading it meets no bank twice.
 * The expert is read from the ids on the device; the grid depends on sizes only.
 * Numeric: weights are exact. With Q4_K, Q5_K, Q6_K and Q8_0 x is cut into runs of 16 whole numbers of 15 bits (16-bit
 * activations) or 31 (f32), whose products are exact; all else is f32. The order of sums depends on the sizes only: a
 * pair's bits do not depend on the others.
 * Not here: more tokens (moe_many.cu). SPDX-License-Identifier: MIT */
#include "moe_kernels.h"

#include <cuda_runtime.h>
#include <math.h>

#include "backplane/cuda/convert.cuh"
#include "backplane/cuda/reduce.cuh"
#include "moe_decode.cuh"
#include "moe_tile.cuh"

namespace
{

constexpr int WARPS = 8, THREADS = WARPS * 32;
constexpr int STREAMS = 4;       /* rows of weights that a warp reads at a time */
constexpr int WINDOW = 8192;     /* columns of x in shared memory at a time */
constexpr uint32_t ANY = ~0u;    /* the type is looked up at run time */


/* What a lane reads of a row. ANY keeps its place and decodes when it multiplies. */
template <uint32_t TYPE> struct Weights {
    moe::Chunk<TYPE> c;
    static __device__ __forceinline__ int column(int chunk, int run)
    {
        return moe::Chunk<TYPE>::column(chunk, run);
    }
    __device__ __forceinline__ void load(uint32_t, const uint8_t *row, int cols, int chunk)
    {
        c.load(row, cols, chunk);
    }
};

template <> struct Weights<ANY> {
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

/* ---- x in shared memory, in the order in which lanes read it ---- */

/* Products of f32: chunk i of a step is lane i's, 4 numbers at a time, columns in order. */
template <uint32_t TYPE, int PLANES> struct Input {
    float4 v[WINDOW / 4];

    __device__ __forceinline__ void fill(const Source &src, int first, int n_chunk)
    {
        for (int i = threadIdx.x; i < (n_chunk + 31) / 32 * 256; i += THREADS) {
            const int chunk = i / 256 * 32 + i % 32, j = i / 32 % 8;
            if (chunk < n_chunk) v[i] = load_x(src, (first + chunk) * 32 + j * 4);
        }
    }
    __device__ __forceinline__ void add(const Weights<TYPE> (&w)[STREAMS], int chunk, int step, float (&acc)[STREAMS]) const
    {
        const float4 *x = v + step * 256 + threadIdx.x % 32;
        if constexpr (TYPE == ANY) {
#pragma unroll
            for (int s = 0; s < STREAMS; ++s) {
                float q[32];
                moe::decode32(w[s].type, w[s].row, w[s].cols, chunk, q);
#pragma unroll
                for (int j = 0; j < 8; ++j) add_four(acc[s], q + 4 * j, x[j * 32]);
            }
        } else {
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                const float4 f = x[j * 32];
#pragma unroll
                for (int s = 0; s < STREAMS; ++s) {
                    float q[4];
                    w[s].c.four(j, q);
                    add_four(acc[s], q, f);
                }
            }
        }
    }
    static __device__ __forceinline__ void add_four(float &acc, const float *q, const float4 &f)
    {
        acc = fmaf(q[0], f.x, acc);
        acc = fmaf(q[1], f.y, acc);
        acc = fmaf(q[2], f.z, acc);
        acc = fmaf(q[3], f.w, acc);
    }
};

/* Products of whole numbers: a run of x is X * 2^-k, X below 2^(8 PLANES - 2), k such that the run's largest number uses
 * all of it. X is PLANES digits from -128 to 127, each a byte, which dp4a multiplies with four weights at a time; sums are
 * exact until they are put together. Two digits hold every bf16 number within 2^6 of the largest exactly, and four every
 * f32 within 2^6. */
template <int PLANES> struct Digits {
    static constexpr int STEPS = WINDOW / 1024;
    uint4 q[STEPS * 2 * PLANES * 32];
    float2 f[STEPS * 2 * 32]; /* 2^-k (NaN when the run holds one), and the run's sum */

    static __device__ __forceinline__ uint32_t digits(float v, float by)
    {
        constexpr uint32_t CARRY = PLANES == 2 ? 0x80u : 0x808080u;
        return (static_cast<uint32_t>(__float2int_rn(v * by)) + CARRY) ^ CARRY;
    }
    __device__ __forceinline__ void put(int at, const float (&v)[16])
    {
        float top = 0.0f, sum = 0.0f;
        bool finite = true;
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            top = fmaxf(top, fabsf(v[i]));
            finite = finite && fabsf(v[i]) < INFINITY;
        }
        const int e = max(static_cast<int>(__float_as_uint(top) >> 23) - 127, -90), k = 8 * PLANES - 3 - e;
        const float by = __uint_as_float(static_cast<uint32_t>(k + 127) << 23);
        uint32_t p[PLANES][4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            uint32_t z[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) z[j] = digits(v[4 * i + j], by);
            sum += (v[4 * i] + v[4 * i + 1]) + (v[4 * i + 2] + v[4 * i + 3]);
#pragma unroll
            for (int pair = 0; pair < PLANES / 2; ++pair) {
                const uint32_t a = __byte_perm(z[0], z[1], pair == 0 ? 0x5140 : 0x7362);
                const uint32_t b = __byte_perm(z[2], z[3], pair == 0 ? 0x5140 : 0x7362);
                p[2 * pair][i] = __byte_perm(a, b, 0x5410);
                p[2 * pair + 1][i] = __byte_perm(a, b, 0x7632);
            }
        }
        const int base = at / 32 * PLANES * 32 + at % 32;
#pragma unroll
        for (int i = 0; i < PLANES; ++i) q[base + i * 32] = make_uint4(p[i][0], p[i][1], p[i][2], p[i][3]);
        f[at] = make_float2(finite ? __uint_as_float(static_cast<uint32_t>(127 - k) << 23) : NAN, sum);
    }
};

template <uint32_t TYPE, int PLANES> struct DigitInput : Digits<PLANES> {
    __device__ __forceinline__ void fill(const Source &src, int first, int n_chunk)
    {
        for (int i = threadIdx.x; i < (n_chunk + 31) / 32 * 64; i += THREADS) {
            const int chunk = i / 64 * 32 + i % 32;
            float v[16];
            if (chunk >= n_chunk) continue;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float4 t = load_x(src, Weights<TYPE>::column(first + chunk, i / 32 % 2) + j * 4);
                v[4 * j] = t.x;
                v[4 * j + 1] = t.y;
                v[4 * j + 2] = t.z;
                v[4 * j + 3] = t.w;
            }
            this->put(i, v);
        }
    }
    __device__ __forceinline__ void add(const Weights<TYPE> (&w)[STREAMS], int chunk, int step, float (&acc)[STREAMS]) const
    {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int at = (step * 2 + r) * 32 + threadIdx.x % 32;
            const float2 f = this->f[at];
            uint4 x[PLANES];
#pragma unroll
            for (int i = 0; i < PLANES; ++i) x[i] = this->q[at / 32 * PLANES * 32 + at % 32 + i * 32];
#pragma unroll
            for (int s = 0; s < STREAMS; ++s) add_run(acc[s], w[s], chunk, r, f, x);
        }
    }
    static __device__ __forceinline__ void add_run(float &acc, const Weights<TYPE> &w, int chunk, int r, float2 f,
                                                   const uint4 (&x)[PLANES])
    {
        using Reader = moe::Chunk<TYPE>;
        moe::Words b;
        int n[PLANES];
        w.c.words(chunk, b);
#pragma unroll
        for (int i = 0; i < PLANES; ++i) {
            n[i] = 0;
#pragma unroll
            for (int j = 0; j < 4; ++j)
                n[i] = __dp4a(static_cast<int>(b.q[4 * r + j]), static_cast<int>(moe::word_of(x[i], j)), n[i]);
        }
        float all = static_cast<float>(n[1] * 256 + n[0]);
        if constexpr (PLANES == 4) all = fmaf(static_cast<float>(n[3] * 256 + n[2]), 65536.0f, all);
        acc = fmaf(b.d[r] * f.x, all, acc);
        if constexpr (Reader::OFFSET) acc = fmaf(b.m[r], f.y, acc);
        if constexpr (Reader::ZERO != 0) acc = fmaf(b.d[r] * -Reader::ZERO, f.y, acc);
    }
};
template <uint32_t TYPE> struct Input<TYPE, 2> : DigitInput<TYPE, 2> {};
template <uint32_t TYPE> struct Input<TYPE, 4> : DigitInput<TYPE, 4> {};

/* A chunk of each row, if the rows have it. */
template <uint32_t TYPE>
__device__ __forceinline__ void load_rows(Weights<TYPE> (&w)[STREAMS], const uint32_t (&types)[STREAMS],
                                          const uint8_t *const (&rows)[STREAMS], int cols, int chunk, int end)
{
    if (chunk >= end) return;
#pragma unroll
    for (int s = 0; s < STREAMS; ++s) w[s].load(types[s], rows[s], cols, chunk);
}

/* acc[s] = row s of weights times x. All threads of the block take part. */
template <uint32_t TYPE, int PLANES>
__device__ __forceinline__ void products(const Source &src, const uint8_t *const (&rows)[STREAMS],
                                         const uint32_t (&types)[STREAMS], int cols, Input<TYPE, PLANES> &in,
                                         float (&acc)[STREAMS])
{
    /* Where registers allow it: the next weights are on their way while others are multiplied, the first while x is read. */
    constexpr bool AHEAD = PLANES == 2 && sizeof(Weights<TYPE>) <= 36;
    const int lane = threadIdx.x & 31, end = cols / 32;
    Weights<TYPE> w[STREAMS], next[STREAMS];
    if (AHEAD) load_rows<TYPE>(w, types, rows, cols, lane, end);
    for (int base = 0; base < cols; base += WINDOW) {
        const int n_chunk = (cols - base < WINDOW ? cols - base : WINDOW) / 32, first = base / 32;
        if (base > 0) __syncthreads(); /* the window before has been read */
        in.fill(src, first, n_chunk);
        __syncthreads();
        int chunk = lane;
        if constexpr (AHEAD) {
#pragma unroll 1
            for (; chunk < n_chunk; chunk += 32) {
                load_rows<TYPE>(next, types, rows, cols, first + chunk + 32, end);
                in.add(w, first + chunk, chunk / 32, acc);
#pragma unroll
                for (int s = 0; s < STREAMS; ++s) w[s] = next[s];
            }
        } else {
#pragma unroll 1
            for (; chunk < n_chunk; chunk += 32) {
                load_rows<TYPE>(w, types, rows, cols, first + chunk, end);
                in.add(w, first + chunk, chunk / 32, acc);
            }
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

/* h of one pair, all columns that down reads; those outside of n_ff are zero. Blocks from n on in y are pairs of the
 * second call. */
template <uint32_t TYPE, int PLANES>
__global__ void __launch_bounds__(THREADS, 2)
    few_inner(const __grid_constant__ moe_call first, const __grid_constant__ moe_call second, int n)
{
    __shared__ Input<TYPE, PLANES> in;
    const moe_call &c = static_cast<int>(blockIdx.y) < n ? first : second;
    const int pair = static_cast<int>(blockIdx.y) - (static_cast<int>(blockIdx.y) < n ? 0 : n);
    const int at = (static_cast<int>(blockIdx.x) * WARPS + static_cast<int>(threadIdx.x) / 32) * 2;
    const int expert = expert_of(c, pair);
    if (expert < 0 || static_cast<int>(blockIdx.x) * WARPS * 2 >= c.e.width) return;
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
    products<TYPE, PLANES>(src, rows, types, c.e.gate.cols, in, acc);
    const int i = threadIdx.x & 31;
    if (i >= 2 || at + i >= c.e.width) return;
    const int row = at + i - c.e.left;
    const float g = (i == 0 ? acc[0] : acc[1]) * c.e.gate.scale, u = (i == 0 ? acc[2] : acc[3]) * c.e.up.scale;
    static_cast<float *>(c.h)[static_cast<int64_t>(pair) * c.e.width + at + i] =
        row >= 0 && row < c.e.n_ff ? moe::silu(g) * u : 0.0f;
}

/* Rows [col, col + n_col) of down for one pair. */
template <uint32_t TYPE, int PLANES>
__global__ void __launch_bounds__(THREADS, 2)
    few_outer(const __grid_constant__ moe_call first, const __grid_constant__ moe_call second, int n)
{
    __shared__ Input<TYPE, PLANES> in;
    const moe_call &c = static_cast<int>(blockIdx.y) < n ? first : second;
    const int pair = static_cast<int>(blockIdx.y) - (static_cast<int>(blockIdx.y) < n ? 0 : n);
    const int expert = expert_of(c, pair);
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
    products<TYPE, PLANES>(src, rows, types, c.e.down.cols, in, acc);
    const int i = threadIdx.x & 31;
    if (i >= STREAMS || at + i >= c.n_col) return;
    const float v = i == 0 ? acc[0] : i == 1 ? acc[1] : i == 2 ? acc[2] : acc[3];
    c.part[static_cast<int64_t>(pair) * c.n_col + at + i] = v * c.e.down.scale;
}

static_assert(sizeof(Input<BP_GGUF_BF16, 0>) <= 48 * 1024, "x must fit in static shared memory");
static_assert(sizeof(Input<BP_GGUF_Q4_K, 4>) <= 48 * 1024, "x must fit in static shared memory");

/* One launch: the pairs of a, then those of b, if there is one. */
struct Launch {
    const moe_call *a, *b;
    dim3 grid;
    cudaStream_t stream;
};

template <bool INNER, uint32_t TYPE, int PLANES> void start(const Launch &l)
{
    const int n = l.a->n_tok * l.a->n_used;
    const moe_call &second = l.b != nullptr ? *l.b : *l.a;
    if constexpr (INNER) few_inner<TYPE, PLANES><<<l.grid, THREADS, 0, l.stream>>>(*l.a, second, n);
    else few_outer<TYPE, PLANES><<<l.grid, THREADS, 0, l.stream>>>(*l.a, second, n);
}

template <bool INNER, uint32_t TYPE> void start_digits(const Launch &l)
{
    if (l.a->x_dtype == BP_DT_F32) start<INNER, TYPE, 4>(l);
    else start<INNER, TYPE, 2>(l);
}

template <bool INNER> uint32_t type_of(const moe_call &c)
{
    if (!INNER) return c.e.down.type;
    return c.e.gate.type == c.e.up.type ? c.e.gate.type : ANY;
}

template <bool INNER> int32_t launch(const moe_call *a, const moe_call *b, void *stream)
{
    const int per_block = INNER ? WARPS * 2 : WARPS * STREAMS;
    int n = INNER ? a->e.width : a->n_col, n_pair = a->n_tok * a->n_used;
    if (b != nullptr && INNER && b->e.width > n) n = b->e.width;
    if (b != nullptr) n_pair += b->n_tok * b->n_used;
    Launch l;
    l.a = a;
    l.b = b;
    l.grid = dim3(static_cast<unsigned>((n + per_block - 1) / per_block), static_cast<unsigned>(n_pair));
    l.stream = static_cast<cudaStream_t>(stream);
    switch (type_of<INNER>(*a)) {
    case BP_GGUF_Q4_K: start_digits<INNER, BP_GGUF_Q4_K>(l); break;
    case BP_GGUF_Q5_K: start_digits<INNER, BP_GGUF_Q5_K>(l); break;
    case BP_GGUF_Q6_K: start_digits<INNER, BP_GGUF_Q6_K>(l); break;
    case BP_GGUF_Q8_0: start_digits<INNER, BP_GGUF_Q8_0>(l); break;
    case BP_GGUF_BF16: start<INNER, BP_GGUF_BF16, 0>(l); break;
    default: start<INNER, ANY, 0>(l); break;
    }
    return static_cast<int32_t>(cudaGetLastError());
}

/* Both in one launch when one kernel serves both: the shared expert alone would not fill the device. */
template <bool INNER> int32_t launch_both(const moe_call *routed, const moe_call *shared, void *stream)
{
    if (routed == nullptr || shared == nullptr) {
        const moe_call *one = routed != nullptr ? routed : shared;
        return one != nullptr ? launch<INNER>(one, nullptr, stream) : 0;
    }
    if (type_of<INNER>(*routed) == type_of<INNER>(*shared)) return launch<INNER>(routed, shared, stream);
    const int32_t rc = launch<INNER>(routed, nullptr, stream);
    return rc != 0 ? rc : launch<INNER>(shared, nullptr, stream);
}

} // namespace

int32_t moe_launch_few_inner(const moe_call *routed, const moe_call *shared, void *stream)
{
    return launch_both<true>(routed, shared, stream);
}

int32_t moe_launch_few_outer(const moe_call *routed, const moe_call *shared, void *stream)
{
    return launch_both<false>(routed, shared, stream);
}
