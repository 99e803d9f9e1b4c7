/* norm.cu - rms (after an addition, if wanted) and layernorm: one block per row, which is read once from memory
 * and kept in registers up to KEEP vectors a thread; what a wider row has beyond that is read again.
 * Numeric: sums in f32, in an order that depends on the width only, so a row's bits do not depend on other rows;
 * no approximate reciprocal. A sum that is stored in x is rounded to x's dtype first, as if two ops had run.
 * Not here: which problems are served (dense.c). SPDX-License-Identifier: MIT */
#include "kernels.h"

#include <backplane/cuda/convert.cuh>
#include <backplane/cuda/reduce.cuh>

namespace
{

using namespace bp_cuda;

constexpr int THREADS = 512, KEEP = 4, MANY = 128;

template <class T> __device__ T *row_of(const dc_rows &r, int64_t row)
{
    return static_cast<T *>(r.data) + row * r.stride;
}

/* v += the addition's vector; the sum is stored, rounded to X, and v is what was stored. */
template <class X, int VEC>
__device__ void add_and_store(float (&v)[VEC], const float (&other)[VEC], X *to)
{
#pragma unroll
    for (int i = 0; i < VEC; ++i) v[i] = to_f32(from_f32<X>(v[i] + other[i]));
    store_vec(to, v);
}

/* All that a thread keeps is asked for before any of it is used, so that it waits for memory once. FEW rows: the
 * weights too, since nothing else hides their way; many rows: two blocks on a multiprocessor do, for which those
 * registers are needed. */
template <class X, int VEC, bool FEW>
__global__ void __launch_bounds__(THREADS, FEW ? 1 : 2) rms_kernel(dc_norm a)
{
    __shared__ float room[THREADS / 32];
    const int64_t first = static_cast<int64_t>(threadIdx.x) * VEC,
                  step = static_cast<int64_t>(THREADS) * VEC;
    for (int64_t row = blockIdx.x; row < a.n_rows; row += gridDim.x) {
        X *x = row_of<X>(a.x, row);
        const int64_t add = row * a.add.stride;
        float kept[KEEP][VEC], sum = 0;
#pragma unroll
        for (int i = 0; i < KEEP; ++i) {
            if (first + i * step < a.width) load_vec(kept[i], x + first + i * step);
        }
        if (a.add.data != nullptr) {
            float other[FEW ? KEEP : 1][VEC];
            if constexpr (FEW) {
#pragma unroll
                for (int i = 0; i < KEEP; ++i) {
                    const int64_t at = first + i * step;
                    if (at < a.width) load_any_vec(other[i], a.add.data, a.add.dtype, add + at);
                }
            }
#pragma unroll
            for (int i = 0; i < KEEP; ++i) {
                const int64_t at = first + i * step;
                if (at >= a.width) break;
                if constexpr (!FEW) load_any_vec(other[0], a.add.data, a.add.dtype, add + at);
                add_and_store(kept[i], other[FEW ? i : 0], x + at);
            }
        }
#pragma unroll
        for (int i = 0; i < KEEP; ++i) {
            if (first + i * step >= a.width) break;
#pragma unroll
            for (int j = 0; j < VEC; ++j) sum = fmaf(kept[i][j], kept[i][j], sum);
        }
        for (int64_t at = first + KEEP * step; at < a.width; at += step) {
            float v[VEC], other[VEC];
            load_vec(v, x + at);
            if (a.add.data != nullptr) {
                load_any_vec(other, a.add.data, a.add.dtype, add + at);
                add_and_store(v, other, x + at);
            }
#pragma unroll
            for (int j = 0; j < VEC; ++j) sum = fmaf(v[j], v[j], sum);
        }
        float w[FEW ? KEEP : 1][VEC]; /* on its way while the block adds up */
        if constexpr (FEW) {
#pragma unroll
            for (int i = 0; i < KEEP; ++i) {
                if (first + i * step < a.width) load_vec(w[i], a.w + first + i * step);
            }
        }
        const float mean = block_sum<THREADS>(sum, room) / static_cast<float>(a.width);
        const float inv = 1.0f / sqrtf(mean + a.eps);
        const auto write = [&](float(&v)[VEC], const float(&by)[VEC], int64_t at) {
#pragma unroll
            for (int j = 0; j < VEC; ++j) v[j] = v[j] * inv * by[j];
            store_any_vec(a.y.data, a.y.dtype, row * a.y.stride + at, v);
        };
#pragma unroll
        for (int i = 0; i < KEEP; ++i) {
            const int64_t at = first + i * step;
            if (at >= a.width) break;
            if constexpr (!FEW) load_vec(w[0], a.w + at);
            write(kept[i], w[FEW ? i : 0], at);
        }
        for (int64_t at = first + KEEP * step; at < a.width; at += step) {
            float v[VEC], by[VEC];
            load_vec(v, x + at);
            load_vec(by, a.w + at);
            write(v, by, at);
        }
    }
}

/* The variance is a second pass over what is kept: the difference of two large sums would lose what it is
 * about. */
template <int VEC> __global__ void __launch_bounds__(THREADS) layernorm_kernel(dc_norm a)
{
    __shared__ float room[THREADS / 32];
    const int64_t first = static_cast<int64_t>(threadIdx.x) * VEC,
                  step = static_cast<int64_t>(THREADS) * VEC;
    const float n = static_cast<float>(a.width);
    for (int64_t row = blockIdx.x; row < a.n_rows; row += gridDim.x) {
        const int64_t x = row * a.x.stride;
        float mean = 0, var = 0;
        for (int64_t at = first; at < a.width; at += step) {
            float v[VEC];
            load_any_vec(v, a.x.data, a.x.dtype, x + at);
#pragma unroll
            for (int j = 0; j < VEC; ++j) mean += v[j];
        }
        mean = block_sum<THREADS>(mean, room) / n;
        for (int64_t at = first; at < a.width; at += step) {
            float v[VEC];
            load_any_vec(v, a.x.data, a.x.dtype, x + at);
#pragma unroll
            for (int j = 0; j < VEC; ++j) var = fmaf(v[j] - mean, v[j] - mean, var);
        }
        const float inv = 1.0f / sqrtf(block_sum<THREADS>(var, room) / n + a.eps);
        for (int64_t at = first; at < a.width; at += step) {
            float v[VEC], w[VEC], b[VEC];
            load_any_vec(v, a.x.data, a.x.dtype, x + at);
            load_vec(w, a.w + at);
            load_vec(b, a.b + at);
#pragma unroll
            for (int j = 0; j < VEC; ++j) v[j] = fmaf((v[j] - mean) * inv, w[j], b[j]);
            store_any_vec(a.y.data, a.y.dtype, row * a.y.stride + at, v);
        }
    }
}

unsigned blocks(int64_t n_rows)
{
    return static_cast<unsigned>(n_rows < INT32_MAX ? n_rows : INT32_MAX);
}

} // namespace

int32_t dc_start_rms(const dc_norm *a, void *stream)
{
    const auto s = static_cast<cudaStream_t>(stream);
    with_float(a->x.dtype, [&](auto x) {
        using X = decltype(x);
        if (a->wide == 0)
            rms_kernel<X, 1, false><<<blocks(a->n_rows), THREADS, 0, s>>>(*a);
        else if (a->n_rows > MANY)
            rms_kernel<X, 4, false><<<blocks(a->n_rows), THREADS, 0, s>>>(*a);
        else
            rms_kernel<X, 4, true><<<blocks(a->n_rows), THREADS, 0, s>>>(*a);
    });
    return cudaGetLastError();
}

int32_t dc_start_layernorm(const dc_norm *a, void *stream)
{
    const auto s = static_cast<cudaStream_t>(stream);
    if (a->wide != 0)
        layernorm_kernel<4><<<blocks(a->n_rows), THREADS, 0, s>>>(*a);
    else
        layernorm_kernel<1><<<blocks(a->n_rows), THREADS, 0, s>>>(*a);
    return cudaGetLastError();
}
