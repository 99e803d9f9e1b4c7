/* element.cu - embed, rope, silu_mul and add: each element, or pair of elements, from its own inputs alone.
 * An output may be an input: a thread reads all that it replaces before it writes.
 * Numeric: f32, one rounding at the end. Not here: which problems are served (dense.c).
 * SPDX-License-Identifier: MIT */
#include "kernels.h"

#include <backplane/cuda/block.cuh>
#include <backplane/cuda/convert.cuh>
#include <backplane/slot_dense.h>

namespace
{

using namespace bp_cuda;

constexpr int THREADS = 256;
constexpr int64_t MAX_GRID_Y = 65535;

unsigned grid_x(int64_t n)
{
    const int64_t blocks = (n + THREADS - 1) / THREADS;
    return static_cast<unsigned>(blocks < 1 ? 1 : blocks < INT32_MAX ? blocks : INT32_MAX);
}
unsigned grid_y(int64_t n)
{
    return static_cast<unsigned>(n < MAX_GRID_Y ? n : MAX_GRID_Y);
}

/* -inf gives 0 and not -inf / inf, which is NaN. */
__device__ float silu(float v)
{
    return v == -INFINITY ? 0.0f : v / (1.0f + expf(-v));
}

template <bool SILU> __device__ float join(float a, float b)
{
    return SILU ? silu(a) * b : a + b;
}

/* VEC elements a thread where a and b have one dtype and all rows are aligned; both are asked for before either is
 * used. */
template <class T, int VEC, bool SILU>
__global__ void __launch_bounds__(THREADS) pair_kernel(dc_pair p)
{
    const int64_t first = (static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x) * VEC;
    const int64_t step = static_cast<int64_t>(gridDim.x) * THREADS * VEC;
    for (int64_t row = blockIdx.y; row < p.n_rows; row += gridDim.y) {
        for (int64_t at = first; at < p.width; at += step) {
            float a[VEC], b[VEC];
            load_vec(a, static_cast<const T *>(p.a.data) + row * p.a.stride + at);
            load_vec(b, static_cast<const T *>(p.b.data) + row * p.b.stride + at);
#pragma unroll
            for (int i = 0; i < VEC; ++i) a[i] = join<SILU>(a[i], b[i]);
            store_any_vec(p.y.data, p.y.dtype, row * p.y.stride + at, a);
        }
    }
}
template <bool SILU> __global__ void __launch_bounds__(THREADS) pair_any_kernel(dc_pair p)
{
    const int64_t first = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    const int64_t step = static_cast<int64_t>(gridDim.x) * THREADS;
    for (int64_t row = blockIdx.y; row < p.n_rows; row += gridDim.y) {
        for (int64_t at = first; at < p.width; at += step) {
            const float a = load_any(p.a.data, p.a.dtype, row * p.a.stride + at);
            const float b = load_any(p.b.data, p.b.dtype, row * p.b.stride + at);
            store_any(p.y.data, p.y.dtype, row * p.y.stride + at, join<SILU>(a, b));
        }
    }
}

/* Four pairs a thread; the heads of a token are one line of pairs. A position that the table lacks gives NaN. */
template <class T> __global__ void __launch_bounds__(THREADS) rope_kernel(dc_rope_args r)
{
    const uint32_t n = static_cast<uint32_t>(r.n_heads * r.half / 4),
                   half = static_cast<uint32_t>(r.half);
    for (int64_t row = blockIdx.y; row < r.n_rows; row += gridDim.y) {
        const int64_t position = r.positions[row * r.position_stride];
        const bool known = position >= 0 && position < r.n_pos;
        for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < n; i += gridDim.x * THREADS) {
            const uint32_t head = 4 * i / half, at = 4 * i % half;
            const T *x = static_cast<const T *>(r.x) + row * r.x_row + head * r.x_head;
            const int64_t y = row * r.y_row + head * r.y_head;
            float a[4], b[4], c[4] = {NAN, NAN, NAN, NAN}, s[4] = {NAN, NAN, NAN, NAN}, pairs[8];
            if (r.style == BP_ROPE_HALF) {
                load_vec(a, x + at);
                load_vec(b, x + at + half);
            } else {
                load_vec(pairs, x + 2 * at);
            }
            if (known) {
                load_vec(c, r.cos_table + position * r.cos_stride + at);
                load_vec(s, r.sin_table + position * r.sin_stride + at);
            }
            if (r.style == BP_ROPE_HALF) {
                float first[4], second[4];
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    first[k] = a[k] * c[k] - b[k] * s[k];
                    second[k] = a[k] * s[k] + b[k] * c[k];
                }
                store_any_vec(r.y, r.y_dtype, y + at, first);
                store_any_vec(r.y, r.y_dtype, y + at + half, second);
            } else {
                float turned[8];
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    turned[2 * k] = pairs[2 * k] * c[k] - pairs[2 * k + 1] * s[k];
                    turned[2 * k + 1] = pairs[2 * k] * s[k] + pairs[2 * k + 1] * c[k];
                }
                store_any_vec(r.y, r.y_dtype, y + 2 * at, turned);
            }
        }
    }
}

/* One pair a thread, whatever the alignment. */
__global__ void __launch_bounds__(THREADS) rope_any_kernel(dc_rope_args r)
{
    const int64_t n = r.n_heads * r.half, step = static_cast<int64_t>(gridDim.x) * THREADS;
    for (int64_t row = blockIdx.y; row < r.n_rows; row += gridDim.y) {
        const int64_t position = r.positions[row * r.position_stride];
        const bool known = position >= 0 && position < r.n_pos;
        for (int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; i < n;
             i += step) {
            const int64_t head = i / r.half, at = i % r.half;
            const int64_t x = row * r.x_row + head * r.x_head, y = row * r.y_row + head * r.y_head;
            const float c = known ? r.cos_table[position * r.cos_stride + at] : NAN;
            const float s = known ? r.sin_table[position * r.sin_stride + at] : NAN;
            const bool halves = r.style == BP_ROPE_HALF;
            const int64_t one = halves ? at : 2 * at, two = halves ? at + r.half : 2 * at + 1;
            const float a = load_any(r.x, r.x_dtype, x + one),
                        b = load_any(r.x, r.x_dtype, x + two);
            store_any(r.y, r.y_dtype, y + one, a * c - b * s);
            store_any(r.y, r.y_dtype, y + two, a * s + b * c);
        }
    }
}

/* Eight elements of a stored row from `at` on, a multiple of eight; they lie in one block. */
__device__ void decode_eight(uint32_t type, const unsigned char *row, int64_t at, float *out){
#define DECODE(TYPE) bp::block<TYPE>::row_at8(row, at, out)
    BP_BLOCK_SWITCH(type, DECODE)
#undef DECODE
}

/* Eight elements per thread. An id that the table lacks gives NaN. */
__global__ void __launch_bounds__(THREADS) embed_kernel(dc_embed_args e)
{
    const int64_t step = static_cast<int64_t>(gridDim.x) * THREADS * 8;
    for (int64_t row = blockIdx.y; row < e.n_rows; row += gridDim.y) {
        const int64_t id = e.ids[row * e.id_stride];
        const bool known = id >= 0 && id < e.n_vocab;
        const unsigned char *from = e.table + (known ? id : 0) * e.row_bytes;
        for (int64_t at = (static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x) * 8;
             at < e.width; at += step) {
            const int64_t n = e.width - at < 8 ? e.width - at : 8, stored = e.skip + at;
            float v[8];
            if (!known) {
                for (int i = 0; i < 8; ++i) v[i] = NAN;
            } else if (n == 8 && stored % 8 == 0) {
                decode_eight(e.type, from, stored, v);
            } else {
#pragma unroll 1
                for (int i = 0; i < n; ++i) v[i] = bp_block_row_at(e.type, from, stored + i);
            }
            for (int i = 0; i < n; ++i)
                store_any(e.y.data, e.y.dtype, row * e.y.stride + at + i, v[i] * e.scale);
        }
    }
}

} // namespace

/* Four elements a thread give a decode step more threads; eight of 16 bits are better where there is enough to
 * do. */
template <bool SILU> static void start_pair(const dc_pair &p, cudaStream_t s)
{
    const bool eight = p.wide != 0 && p.a.dtype != BP_DT_F32 && p.n_rows * p.width >= 1 << 20;
    const dim3 grid(grid_x(p.width / (p.wide == 0 ? 1 : eight ? 8 : 4)), grid_y(p.n_rows));
    if (p.wide == 0) {
        pair_any_kernel<SILU><<<grid, THREADS, 0, s>>>(p);
    } else if (!eight) {
        with_float(p.a.dtype,
                   [&](auto t) { pair_kernel<decltype(t), 4, SILU><<<grid, THREADS, 0, s>>>(p); });
    } else if (p.a.dtype == BP_DT_F16) {
        pair_kernel<__half, 8, SILU><<<grid, THREADS, 0, s>>>(p);
    } else {
        pair_kernel<__nv_bfloat16, 8, SILU><<<grid, THREADS, 0, s>>>(p);
    }
}

int32_t dc_start_pair(const dc_pair *p, void *stream)
{
    if (p->silu != 0)
        start_pair<true>(*p, static_cast<cudaStream_t>(stream));
    else
        start_pair<false>(*p, static_cast<cudaStream_t>(stream));
    return cudaGetLastError();
}

int32_t dc_start_rope(const dc_rope_args *r, void *stream)
{
    const auto s = static_cast<cudaStream_t>(stream);
    const dim3 grid(grid_x(r->n_heads * r->half / (r->wide != 0 ? 4 : 1)), grid_y(r->n_rows));
    if (r->wide != 0)
        with_float(r->x_dtype,
                   [&](auto t) { rope_kernel<decltype(t)><<<grid, THREADS, 0, s>>>(*r); });
    else
        rope_any_kernel<<<grid, THREADS, 0, s>>>(*r);
    return cudaGetLastError();
}

int32_t dc_start_embed(const dc_embed_args *e, void *stream)
{
    const dim3 grid(grid_x((e->width + 7) / 8), grid_y(e->n_rows));
    embed_kernel<<<grid, THREADS, 0, static_cast<cudaStream_t>(stream)>>>(*e);
    return cudaGetLastError();
}

int32_t dc_probe(void)
{
    cudaFuncAttributes a;
    const cudaError_t e = cudaFuncGetAttributes(&a, embed_kernel);
    (void)cudaGetLastError();
    return e;
}
