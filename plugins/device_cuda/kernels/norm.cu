/* norm.cu - rms (after an addition, if wanted) and layernorm: one block per row, which is read once from memory and kept in
 * registers up to DC_KEEP vectors a thread; what a wider row has beyond that is read again.
 * Numeric: sums in f32, in an order that depends on the width only, so a row's bits do not depend on other rows; no
 * approximate reciprocal. A sum that is stored in x is rounded to x's dtype first, as if two ops had run.
 * Not here: which problems are served (dense.c). SPDX-License-Identifier: MIT */
#include "kernels.h"

#include <backplane/cuda/convert.cuh>
#include <backplane/cuda/reduce.cuh>

namespace
{

using namespace bp_cuda;

constexpr int THREADS = 512, KEEP = 4;

/* Reads vectors of VEC elements of one row, adds what is to be added and stores the sum. */
template <int VEC> struct row_reader {
    void *x;
    const void *add;
    uint32_t x_dtype, add_dtype;
    int64_t x_at, add_at;

    __device__ row_reader(const dc_norm &a, int64_t row)
        : x(a.x.data), add(a.add.data), x_dtype(a.x.dtype), add_dtype(a.add.dtype),
          x_at(row * a.x.stride), add_at(row * a.add.stride)
    {
    }
    __device__ void read(float (&v)[VEC], int64_t at) const
    {
        load_any_vec(v, x, x_dtype, x_at + at);
    }
    __device__ void read_and_add(float (&v)[VEC], int64_t at) const
    {
        read(v, at);
        if (add == nullptr) return;
        float other[VEC];
        load_any_vec(other, add, add_dtype, add_at + at);
#pragma unroll
        for (int i = 0; i < VEC; ++i) v[i] += other[i];
        store_any_vec(x, x_dtype, x_at + at, v);
        if (x_dtype == BP_DT_F32) return;
#pragma unroll
        for (int i = 0; i < VEC; ++i)
            v[i] = x_dtype == BP_DT_F16 ? to_f32(from_f32<__half>(v[i]))
                                        : to_f32(from_f32<__nv_bfloat16>(v[i]));
    }
};

template <int VEC> __global__ void __launch_bounds__(THREADS) rms_kernel(dc_norm a)
{
    __shared__ float room[THREADS / 32];
    const int64_t first = static_cast<int64_t>(threadIdx.x) * VEC,
                  step = static_cast<int64_t>(THREADS) * VEC;
    for (int64_t row = blockIdx.x; row < a.n_rows; row += gridDim.x) {
        const row_reader<VEC> x(a, row);
        float kept[KEEP][VEC], sum = 0;
#pragma unroll
        for (int i = 0; i < KEEP; ++i) {
            if (first + i * step >= a.width) break;
            x.read_and_add(kept[i], first + i * step);
#pragma unroll
            for (int j = 0; j < VEC; ++j) sum = fmaf(kept[i][j], kept[i][j], sum);
        }
        for (int64_t at = first + KEEP * step; at < a.width; at += step) {
            float v[VEC];
            x.read_and_add(v, at);
#pragma unroll
            for (int j = 0; j < VEC; ++j) sum = fmaf(v[j], v[j], sum);
        }
        const float inv =
            1.0f / sqrtf(block_sum<THREADS>(sum, room) / static_cast<float>(a.width) + a.eps);
        const auto write = [&](float(&v)[VEC], int64_t at) {
            float w[VEC];
            load_vec(w, a.w + at);
#pragma unroll
            for (int j = 0; j < VEC; ++j) v[j] = v[j] * inv * w[j];
            store_any_vec(a.y.data, a.y.dtype, row * a.y.stride + at, v);
        };
#pragma unroll
        for (int i = 0; i < KEEP; ++i) {
            if (first + i * step >= a.width) break;
            write(kept[i], first + i * step);
        }
        for (int64_t at = first + KEEP * step; at < a.width; at += step) {
            float v[VEC];
            x.read(v, at);
            write(v, at);
        }
    }
}

/* The variance is a second pass over what is kept: the difference of two large sums would lose what it is about. */
template <int VEC> __global__ void __launch_bounds__(THREADS) layernorm_kernel(dc_norm a)
{
    __shared__ float room[THREADS / 32];
    const int64_t first = static_cast<int64_t>(threadIdx.x) * VEC,
                  step = static_cast<int64_t>(THREADS) * VEC;
    const float n = static_cast<float>(a.width);
    for (int64_t row = blockIdx.x; row < a.n_rows; row += gridDim.x) {
        const row_reader<VEC> x(a, row);
        float mean = 0, var = 0;
        for (int64_t at = first; at < a.width; at += step) {
            float v[VEC];
            x.read(v, at);
#pragma unroll
            for (int j = 0; j < VEC; ++j) mean += v[j];
        }
        mean = block_sum<THREADS>(mean, room) / n;
        for (int64_t at = first; at < a.width; at += step) {
            float v[VEC];
            x.read(v, at);
#pragma unroll
            for (int j = 0; j < VEC; ++j) var = fmaf(v[j] - mean, v[j] - mean, var);
        }
        const float inv = 1.0f / sqrtf(block_sum<THREADS>(var, room) / n + a.eps);
        for (int64_t at = first; at < a.width; at += step) {
            float v[VEC], w[VEC], b[VEC];
            x.read(v, at);
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
    if (a->wide != 0)
        rms_kernel<4><<<blocks(a->n_rows), THREADS, 0, s>>>(*a);
    else
        rms_kernel<1><<<blocks(a->n_rows), THREADS, 0, s>>>(*a);
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
