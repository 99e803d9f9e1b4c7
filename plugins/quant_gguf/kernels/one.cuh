/* one.cuh - products of repacked weights with one token, y = W x: what a decode step is made of. Codes stay whole numbers
 * and are multiplied as bytes on the tensor cores (m16n8k32, m16n8k16), x as whole numbers too: a step of 256 columns is
 * X * 2^-k, X below 2^30 and k such that the largest uses all of it. X is four digits from -128 to 127, each a column of
 * the product, whose sums are exact. Where a format's scales are whole numbers as well, so are the sums of a step; only what
 * is put together after that is f32. A bf16 number within 2^22 of the largest of its step is exact, and any other is off by
 * 2^-31 of the largest.
 * A block turns x into digits by itself, with its norm, while the first weights are on their way: no launch before this one.
 * Each warp has a ring of steps in shared memory and copies ahead into it. Shared memory decides how deep it is, and the
 * device how much of that there is; where x does not fit, gemv.cuh takes over.
 * Determinism: all sums in the order of the columns, cut as line.cuh says.
 * Not here: several tokens (gemv.cuh), how many blocks (plan.c). SPDX-License-Identifier: MIT */
#ifndef QUANT_GGUF_ONE_CUH
#define QUANT_GGUF_ONE_CUH

#include "line.cuh"
#include "planes.cuh"

#include "backplane/cuda/convert.cuh"
#include "backplane/cuda/host.h"

namespace one
{

using planes::step;

constexpr int MOST_WARPS = QG_ONE_WARPS, DIGITS = 4;
constexpr int SEGMENTS = 3; /* most strips that a warp sees: plan.c gives it at most twice the steps of one */
constexpr int DEEPEST = 2;  /* steps of a ring: more of them only wait in line, measured on an H200 */

struct args {
    const void *x;
    const float *norm_w; /* NULL: no norm */
    int32_t cols, skip;  /* of x; zeros before and behind it, as the weight has them */
    uint32_t x_dtype, wide; /* wide 1: runs of four begin at whole vectors; 2: and x is whole steps of them */
    float eps;
    int32_t depth; /* of the rings */
    line::args line;
};

struct room {
    float sums[MOST_WARPS][SEGMENTS][QG_STRIP];
    int2 range[MOST_WARPS]; /* first and last strip of a warp; last < first: none */
    uint32_t mine[2];
    float norm[MOST_WARPS];
};
constexpr int ROOM = static_cast<int>((sizeof(room) + 15) / 16 * 16);

/* One step of x in shared memory. digit: of each group of 32 columns, the lowest first, as the lanes of a column read them.
 * low: of each digit's sum over a run of columns that share a minimum the low byte and the rest, by run. */
template <bool MIN> struct cut {
    uint2 digit[8][DIGITS][4];
    uint32_t low[MIN ? 8 : 0][4];
};
template <> struct cut<false> {
    uint2 digit[8][DIGITS][4];
};
/* Behind the steps: what is 1 in X, NaN where a step is not finite. */
template <uint32_t TYPE> __host__ __device__ constexpr int fixed_bytes(int n_steps)
{
    return ROOM + n_steps * static_cast<int>(sizeof(cut<step<TYPE>::H::MIN>)) + (n_steps + 3) / 4 * 16;
}

/* ---- x ---- */

__device__ __forceinline__ void load_four(const args &g, int col, float *v)
{
    const int k = col - g.skip;
    float four[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (g.wide != 0 && k >= 0 && k + 4 <= g.cols) {
        bp_cuda::load_any_vec(four, g.x, g.x_dtype, k);
    } else {
#pragma unroll 1
        for (int i = max(0, -k); i < min(4, g.cols - k); ++i) {
            const float one = bp_cuda::load_any(g.x, g.x_dtype, k + i);
#pragma unroll
            for (int n = 0; n < 4; ++n) four[n] = n == i ? one : four[n];
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = four[i];
}

/* The norm's factor, for all threads. */
static __device__ __noinline__ float root_of(const args &g, float *room)
{
    float sum = 0.0f;
    for (int k = static_cast<int>(threadIdx.x) * 4; k < g.cols; k += static_cast<int>(blockDim.x) * 4) {
        float v[4];
        load_four(g, k + g.skip, v);
#pragma unroll
        for (int i = 0; i < 4; ++i) sum = fmaf(v[i], v[i], sum);
    }
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int w = 0; w < static_cast<int>(blockDim.x) / 32; ++w) sum += room[w];
    return 1.0f / sqrtf(sum / static_cast<float>(g.cols) + g.eps);
}
__device__ __forceinline__ void norm(const args &g, int col, float root, float *v)
{
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int k = col + i - g.skip;
        if (k >= 0 && k < g.cols) v[i] *= root * g.norm_w[k];
    }
}

/* Byte d of four words. */
__device__ __forceinline__ uint32_t gather(uint32_t a, uint32_t b, uint32_t c, uint32_t e, uint32_t d)
{
    const uint32_t pick = d | (4u + d) << 4;
    return __byte_perm(__byte_perm(a, b, pick), __byte_perm(c, e, pick), 0x5410u);
}

/* Sums of digits, two packed in a word, over the four lanes of a group; lane j keeps digit j. */
__device__ __forceinline__ int sum_of_digit(const int (&of)[2], int j)
{
    int pair[2] = {of[0], of[1]};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        pair[i] += __shfl_xor_sync(0xffffffffu, pair[i], 1);
        pair[i] += __shfl_xor_sync(0xffffffffu, pair[i], 2);
    }
    const int both = j < 2 ? pair[0] : pair[1], low = static_cast<short>(both & 0xffff);
    return (j & 1) == 0 ? low : (both - low) / 65536;
}
__device__ __forceinline__ void put_low(uint32_t (&low)[8][4], int digit, int run, int sum)
{
    const int rest = (sum + 128) >> 8;
    reinterpret_cast<signed char *>(low[2 * digit])[run] = static_cast<signed char>(sum - rest * 256);
    reinterpret_cast<signed char *>(low[2 * digit + 1])[run] = static_cast<signed char>(rest);
}

/* A warp turns a step of x into digits; lane 4 G + j has the eight columns that lanes j have of group G. */
template <uint32_t TYPE>
__device__ __forceinline__ void cut_step(float (&v)[8], cut<step<TYPE>::H::MIN> &to, float &unit, int lane)
{
    using S = step<TYPE>;
    const int G = lane >> 2, j = lane & 3;
    uint32_t top = 0, x[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) top = max(top, __float_as_uint(v[i]) & 0x7fffffffu);
    top = __reduce_max_sync(0xffffffffu, top);
    const uint32_t exponent = max(top >> 23, 30u); /* below 2^-97 fewer bits are used */
    const float by = __uint_as_float((283u - exponent) << 23);
#pragma unroll
    for (int i = 0; i < 8; ++i)
        x[i] = (static_cast<uint32_t>(__float2int_rn(v[i] * by)) + 0x808080u) ^ 0x808080u;
    constexpr bool SUMS = S::H::MIN;
    int sum[2][2] = {}; /* of a word's digits: two packed in one */
#pragma unroll
    for (uint32_t d = 0; d < DIGITS; ++d) {
        uint2 w;
        w.x = gather(x[S::byte_of(0, 0)], x[S::byte_of(0, 1)], x[S::byte_of(0, 2)], x[S::byte_of(0, 3)], d);
        w.y = gather(x[S::byte_of(1, 0)], x[S::byte_of(1, 1)], x[S::byte_of(1, 2)], x[S::byte_of(1, 3)], d);
        to.digit[G][d][j] = w;
        if constexpr (SUMS) {
            const int by = (d & 1) == 0 ? 1 : 65536, a = __dp4a(static_cast<int>(w.x), 0x01010101, 0) * by,
                      b = __dp4a(static_cast<int>(w.y), 0x01010101, 0) * by;
            sum[0][0] += d < 2 ? a : 0;
            sum[0][1] += d < 2 ? 0 : a;
            sum[1][0] += d < 2 ? b : 0;
            sum[1][1] += d < 2 ? 0 : b;
        }
    }
    if constexpr (SUMS && S::H::SUB16) {
        put_low(to.low, j, 2 * G, sum_of_digit(sum[0], j));
        put_low(to.low, j, 2 * G + 1, sum_of_digit(sum[1], j));
    } else if constexpr (SUMS) {
        const int both[2] = {sum[0][0] + sum[1][0], sum[0][1] + sum[1][1]};
        put_low(to.low, j, G, sum_of_digit(both, j));
    }
    if (lane == 0) unit = top >= 0x7f800000u ? NAN : __uint_as_float((exponent - 29u) << 23);
}
/* Eight numbers as they lie in memory, of whole steps: they are fetched long before they are cut. */
struct eight {
    uint4 run[2]; /* of 16 bits only x and y */
};
template <uint32_t TYPE> __device__ __forceinline__ eight fetch(const args &g, int k, int lane)
{
    eight out = {};
    if (k >= g.line.n_steps) return out;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int at = k * step<TYPE>::K + planes::column_of<step<TYPE>::H::SUB16>(lane >> 2, lane & 3, 4 * h);
        if (g.x_dtype == BP_DT_F32) {
            out.run[h] = *reinterpret_cast<const uint4 *>(static_cast<const float *>(g.x) + at);
        } else {
            const uint2 v = *reinterpret_cast<const uint2 *>(static_cast<const uint16_t *>(g.x) + at);
            out.run[h] = make_uint4(v.x, v.y, 0, 0);
        }
    }
    return out;
}
__device__ __forceinline__ void decode(const eight &from, uint32_t dtype, float (&v)[8])
{
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const uint4 w = from.run[h];
        float *const out = v + 4 * h;
        if (dtype == BP_DT_BF16) {
            out[0] = __uint_as_float(w.x << 16);
            out[1] = __uint_as_float(w.x & 0xffff0000u);
            out[2] = __uint_as_float(w.y << 16);
            out[3] = __uint_as_float(w.y & 0xffff0000u);
        } else if (dtype == BP_DT_F16) {
            out[0] = planes::low_half(w.x);
            out[1] = planes::high_half(w.x);
            out[2] = planes::low_half(w.y);
            out[3] = planes::high_half(w.y);
        } else {
            out[0] = __uint_as_float(w.x);
            out[1] = __uint_as_float(w.y);
            out[2] = __uint_as_float(w.z);
            out[3] = __uint_as_float(w.w);
        }
    }
}

/* All of x, by all warps. Each has AWAY of its steps on their way; odd shapes are read as they are cut. */
constexpr int AWAY = 4;
template <uint32_t TYPE> __device__ __forceinline__ void fetch_first(const args &g, eight (&away)[AWAY], int lane)
{
    const int n_warp = static_cast<int>(blockDim.x) / 32, warp = static_cast<int>(threadIdx.x) / 32;
    if (g.wide != 2) return;
#pragma unroll
    for (int i = 0; i < AWAY; ++i) away[i] = fetch<TYPE>(g, warp + i * n_warp, lane);
}
template <uint32_t TYPE>
__device__ __forceinline__ void cut_all(const args &g, room &r, cut<step<TYPE>::H::MIN> *to, float *unit,
                                        eight (&away)[AWAY], int lane)
{
    using S = step<TYPE>;
    const int n_warp = static_cast<int>(blockDim.x) / 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int a = planes::column_of<S::H::SUB16>(lane >> 2, lane & 3, 0),
              b = planes::column_of<S::H::SUB16>(lane >> 2, lane & 3, 4);
    const float root = g.norm_w != nullptr ? root_of(g, r.norm) : 1.0f;
#pragma unroll 1
    for (int k = warp; k < g.line.n_steps; k += n_warp) {
        float v[8];
        if (g.wide == 2) {
            decode(away[0], g.x_dtype, v);
#pragma unroll
            for (int i = 0; i + 1 < AWAY; ++i) away[i] = away[i + 1];
            away[AWAY - 1] = fetch<TYPE>(g, k + AWAY * n_warp, lane);
        } else {
            load_four(g, k * S::K + a, v);
            load_four(g, k * S::K + b, v + 4);
        }
        if (g.norm_w != nullptr) {
            norm(g, k * S::K + a, root, v);
            norm(g, k * S::K + b, root, v + 4);
        }
        cut_step<TYPE>(v, to[k], unit[k], lane);
    }
}

/* ---- products ---- */

/* d = a b. Lane 4 g + j has rows g and g + 8 of a, column g of b, and of d rows g, g + 8 and columns 2 j, 2 j + 1. */
__device__ __forceinline__ void mma(int (&d)[4], const uint32_t (&a)[2], const uint32_t (&a8)[2], uint2 b)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %10, %10, %10};\n"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a8[0]), "r"(a[1]), "r"(a8[1]), "r"(b.x), "r"(b.y), "r"(0));
}
__device__ __forceinline__ void mma(int (&d)[4], uint32_t a, uint32_t a8, uint32_t b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};\n"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a), "r"(a8), "r"(b), "r"(0));
}

/* Of this lane: acc of rows g, g, g + 8, g + 8 and digits 2 j, 2 j + 1; low: of those rows and digit j, what minima take
 * away. */
struct totals {
    float acc[4], low[2];
};
/* Sums of a step: whole numbers where scales are, else f32. */
template <bool WHOLE> struct sums;
template <> struct sums<true> {
    int v[4];
    template <class S> __device__ __forceinline__ void add(const int (&d)[4], const S &s, int G, int sub)
    {
        const int s0 = s.h[0].whole(G, sub), s1 = s.h[1].whole(G, sub);
        v[0] += s0 * d[0];
        v[1] += s0 * d[1];
        v[2] += s1 * d[2];
        v[3] += s1 * d[3];
    }
    template <class S> __device__ __forceinline__ void end(totals &t, const S &s, float unit) const
    {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            t.acc[i] = fmaf(s.h[i >> 1].unit() * unit, static_cast<float>(v[i]), t.acc[i]);
    }
};
template <> struct sums<false> {
    float v[4];
    template <class S> __device__ __forceinline__ void add(const int (&d)[4], const S &s, int G, int sub)
    {
        const float s0 = s.h[0].scale(G, sub), s1 = s.h[1].scale(G, sub);
        v[0] = fmaf(s0, static_cast<float>(d[0]), v[0]);
        v[1] = fmaf(s0, static_cast<float>(d[1]), v[1]);
        v[2] = fmaf(s1, static_cast<float>(d[2]), v[2]);
        v[3] = fmaf(s1, static_cast<float>(d[3]), v[3]);
    }
    template <class S> __device__ __forceinline__ void end(totals &t, const S &, float unit) const
    {
#pragma unroll
        for (int i = 0; i < 4; ++i) t.acc[i] = fmaf(unit, v[i], t.acc[i]);
    }
};

/* digit: at this lane's first word. */
template <uint32_t TYPE, int G = 0>
__device__ __forceinline__ void groups(const step<TYPE> &s, const uint2 *digit, sums<step<TYPE>::H::WHOLE> &sum)
{
    if constexpr (G < step<TYPE>::GROUPS) {
        using S = step<TYPE>;
        const uint2 b = digit[G * DIGITS * 4];
        uint32_t a[2], a8[2];
        S::C::template four<G>(s.q, 0, a);
        S::C::template four<G>(s.q, 1, a8);
        int d[4];
        if constexpr (S::H::SUB16) {
            mma(d, a[0], a8[0], b.x);
            sum.add(d, s, G, 0);
            mma(d, a[1], a8[1], b.y);
            sum.add(d, s, G, 1);
        } else {
            mma(d, a, a8, b);
            sum.add(d, s, G, 0);
        }
        groups<TYPE, G + 1>(s, digit, sum);
    }
}
/* Minima are the rows of one more product, with the digits' sums. */
template <uint32_t TYPE>
__device__ __forceinline__ void minima(const step<TYPE> &s, const cut<true> &x, float unit, int lane, totals &t)
{
    int d[4];
    mma(d, s.h[0].lows(lane & 3), s.h[1].lows(lane & 3), x.low[lane >> 2][lane & 3]);
#pragma unroll
    for (int i = 0; i < 2; ++i)
        t.low[i] = fmaf(s.h[i].low_unit() * unit, static_cast<float>(d[2 * i] + 256 * d[2 * i + 1]), t.low[i]);
}

/* The digits come together. Columns 4 to 7 were digits 0 to 3 again. */
template <uint32_t TYPE> __device__ __forceinline__ void leave(room &r, int warp, int segment, int lane, totals &t)
{
    constexpr float SMALL = 1.0f / static_cast<float>(1 << step<TYPE>::C::SHIFT);
    const int j = lane & 3;
    const float low_digit = __uint_as_float((127u + 8u * static_cast<uint32_t>(j)) << 23), /* 2^8j, 2^16j */
        digit = j == 0 ? 1.0f : 65536.0f;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        float sum = j < 2 ? fmaf(t.acc[2 * i + 1], 256.0f, t.acc[2 * i]) * (digit * SMALL) : 0.0f;
        sum = fmaf(-low_digit, t.low[i], sum);
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (j == 0) r.sums[warp][segment][(lane >> 2) + 8 * i] = sum;
        t.acc[2 * i] = t.acc[2 * i + 1] = t.low[i] = 0.0f;
    }
}

/* For the oldest step of a ring. */
__device__ __forceinline__ void await(int depth)
{
    if (depth == 1)
        planes::await_copies<0>();
    else
        planes::await_copies<DEEPEST - 1>();
}

/* Copies a warp's steps [at, end) of the line one after another. */
template <uint32_t TYPE> struct feed {
    using S = step<TYPE>;
    const unsigned char *p;
    int64_t place;
    int at, end, strip, left;

    __device__ __forceinline__ feed(const args &g, int begin, int stop, int lane)
        : p(nullptr), place(S::place(g.line.jobs[0].pitch, lane)), at(begin), end(stop),
          strip(begin / g.line.n_steps), left(0)
    {
        const int k = begin - strip * g.line.n_steps;
        left = g.line.n_steps - k;
        if (at < end) p = line::data_of(g.line, strip) + static_cast<int64_t>(k) * S::AHEAD + place;
    }
    __device__ __forceinline__ void next(const args &g, const S &s, unsigned char *to, int lane)
    {
        if (at < end) {
            s.copy(to, p, lane);
            p += S::AHEAD;
            if (++at < end && --left == 0) {
                p = line::data_of(g.line, ++strip) + place;
                left = g.line.n_steps;
            }
        }
        planes::close_copies();
    }
};

template <uint32_t TYPE> __global__ void __launch_bounds__(MOST_WARPS * 32, 1) one_kernel(const __grid_constant__ args g)
{
    using S = step<TYPE>;
    extern __shared__ __align__(16) unsigned char memory[];
    room &r = *reinterpret_cast<room *>(memory);
    cut<S::H::MIN> *const x = reinterpret_cast<cut<S::H::MIN> *>(memory + ROOM);
    float *const unit = reinterpret_cast<float *>(x + g.line.n_steps);
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) / 32,
              n_warp = static_cast<int>(blockDim.x) / 32;
    unsigned char *const ring = memory + fixed_bytes<TYPE>(g.line.n_steps) + warp * g.depth * S::BYTES;
    const int first = line::first_step(g.line, static_cast<int>(blockIdx.x)),
              stop = line::first_step(g.line, static_cast<int>(blockIdx.x) + 1), n = stop - first;
    const int begin = first + n * warp / n_warp, end = first + n * (warp + 1) / n_warp;
    /* x before the weights, so that it does not wait behind them. */
    eight away[AWAY] = {};
    fetch_first<TYPE>(g, away, lane);
    feed<TYPE> in(g, begin, end, lane);
    S now;
    now.begin(g.line.jobs[0].pitch);
    /* One step each on its way while x is cut: what waits behind more of them (code, too) takes microseconds to come. */
    in.next(g, now, ring, lane);
    int v = begin / g.line.n_steps, k = begin - v * g.line.n_steps, segment = 0, slot = 0;
    if (lane == 0) r.range[warp] = make_int2(v, begin < end ? (end - 1) / g.line.n_steps : v - 1);
    cut_all<TYPE>(g, r, x, unit, away, lane);
#pragma unroll 1
    for (int i = 1; i < g.depth; ++i) in.next(g, now, ring + i * S::BYTES, lane);
    __syncthreads();
    totals t = {};
#pragma unroll 1
    for (int at = begin; at < end; ++at) {
        unsigned char *const here = ring + slot * S::BYTES;
        await(g.depth);
        __syncwarp(); /* scales were copied by other lanes */
        now.load(here, lane);
        now.open();
        __syncwarp(); /* all have read what is overwritten next */
        in.next(g, now, here, lane);
        slot = slot + 1 == g.depth ? 0 : slot + 1;
        sums<S::H::WHOLE> sum = {};
        groups<TYPE>(now, &x[k].digit[0][lane >> 2 & 3][lane & 3], sum);
        sum.end(t, now, unit[k]);
        if constexpr (S::H::MIN) minima<TYPE>(now, x[k], unit[k], lane, t);
        if (++k < g.line.n_steps) continue;
        leave<TYPE>(r, warp, segment++, lane, t);
        k = 0;
    }
    if (begin < end && k != 0) leave<TYPE>(r, warp, segment, lane, t);
    __syncthreads();
    line::end_block(g.line, r.mine, first, stop, [&](int strip, int, int row) {
        float sum = 0.0f;
#pragma unroll 4
        for (int w = 0; w < n_warp; ++w) {
            const int segment = strip - r.range[w].x;
            const bool has = segment >= 0 && strip <= r.range[w].y;
            const float part = r.sums[w][has ? segment : 0][row];
            sum += has ? part : 0.0f;
        }
        return sum;
    });
}

/* ---- host ---- */

/* Steps of a ring for so many warps; 0: not even one. */
template <uint32_t TYPE> int32_t depth_of(int64_t smem, int32_t n_steps, int32_t n_warp)
{
    const int64_t depth = (smem - fixed_bytes<TYPE>(n_steps)) / (n_warp * step<TYPE>::BYTES);
    return static_cast<int32_t>(depth < 1 ? 0 : depth < DEEPEST ? depth : DEEPEST);
}
/* Warps of a block, one on each multiprocessor: as many as have a ring. A step is in registers while the next one comes. */
template <uint32_t TYPE> int32_t warps_of(int64_t smem, int32_t n_steps)
{
    for (int32_t n = MOST_WARPS; n >= MOST_WARPS / 4; n /= 2)
        if (depth_of<TYPE>(smem, n_steps, n) >= 1) return n;
    return 0;
}

template <uint32_t TYPE> int32_t launch(const qg_gemv &q, cudaStream_t stream)
{
    args g = {};
    if (!line::make_args(g.line, q)) return static_cast<int32_t>(cudaSuccess);
    g.x = q.x;
    g.x_dtype = q.x_dtype;
    g.norm_w = q.norm_w;
    g.eps = q.eps;
    g.cols = static_cast<int32_t>(q.w[0]->cols);
    g.skip = static_cast<int32_t>(q.w[0]->skip);
    g.wide = q.wide == 0 || g.skip % 4 != 0 ? 0 : g.skip == 0 && g.cols == g.line.n_steps * step<TYPE>::K ? 2 : 1;
    const int n_warp = warps_of<TYPE>(q.smem, g.line.n_steps);
    g.depth = depth_of<TYPE>(q.smem, g.line.n_steps, n_warp);
    const int bytes = fixed_bytes<TYPE>(g.line.n_steps) + n_warp * g.depth * step<TYPE>::BYTES;
    static_assert(fixed_bytes<TYPE>(28) + MOST_WARPS / 2 * step<TYPE>::BYTES <= BP_CUDA_SMEM_MAX,
                  "7168 columns fit every chip");
    cudaError_t e = cudaFuncSetAttribute(one_kernel<TYPE>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (e == cudaSuccess)
        e = cudaFuncSetAttribute(one_kernel<TYPE>, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared);
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        return static_cast<int32_t>(e);
    }
    one_kernel<TYPE><<<q.blocks, n_warp * 32, static_cast<size_t>(bytes), stream>>>(g);
    return static_cast<int32_t>(cudaGetLastError());
}

} // namespace one
#endif
