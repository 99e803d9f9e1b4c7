/* rows.cu - products of weights that stay blocks (F32, and the types that are not tuned): one block of threads for a row
 * and up to eight tokens, f32 throughout; the input as these and the tensor-core products read it; and the end of products
 * that a library computed.
 * Determinism: fixed orders, which do not depend on the number of tokens. SPDX-License-Identifier: MIT */
#include "gemv_types.h"
#include "launch.h"

#include "backplane/cuda/block.cuh"
#include "backplane/cuda/convert.cuh"
#include "backplane/cuda/reduce.cuh"

namespace
{

constexpr int THREADS = 256;

__device__ __forceinline__ float silu(float v)
{
    return v == -INFINITY ? 0.0f : v / (1.0f + expf(-v));
}

/* ---- input ---- */

/* One block for a token and PART columns; with a norm each block adds up the whole row, in the same order. */
constexpr int PART = 2048;

__global__ void __launch_bounds__(THREADS) stage_kernel(const qg_stage s, int parts_of_row)
{
    __shared__ float room[THREADS / 32];
    const int64_t tok = blockIdx.x / parts_of_row,
                  begin = blockIdx.x % parts_of_row * static_cast<int64_t>(PART);
    const int64_t end = begin + PART < s.ld ? begin + PART : s.ld;
    const int64_t x0 = tok * s.x_stride;
    float root = 1.0f;
    if (s.norm_w != nullptr) {
        float sum = 0.0f;
        for (int64_t k = threadIdx.x; k < s.cols; k += THREADS) {
            const float v = bp_cuda::load_any(s.x, s.x_dtype, x0 + k);
            sum = fmaf(v, v, sum);
        }
        sum = bp_cuda::block_sum<THREADS>(sum, room);
        root = 1.0f / sqrtf(sum / static_cast<float>(s.cols) + s.eps);
    }
    for (int64_t c = begin + threadIdx.x; c < end; c += THREADS) {
        const int64_t k = c - s.skip;
        float v = 0.0f;
        if (k >= 0 && k < s.cols) {
            v = bp_cuda::load_any(s.x, s.x_dtype, x0 + k);
            if (s.norm_w != nullptr) {
                v = v * root * s.norm_w[k];
                if (s.round == BP_DT_BF16) v = __bfloat162float(__float2bfloat16_rn(v));
                if (s.round == BP_DT_F16) v = __half2float(__float2half_rn(v));
            }
        }
        if (s.plain != 0) {
            bp_cuda::store_any(s.out, s.round, tok * s.ld + c, v);
            continue;
        }
        if (s.parts == 0) {
            static_cast<float *>(s.out)[tok * s.ld + c] = v;
            continue;
        }
        /* Eight bits at a time, cut off: what is left is exact. Infinity and NaN are all in the first. */
        float rest = v;
        for (uint32_t p = 0; p < s.parts; ++p) {
            float top = __uint_as_float(__float_as_uint(rest) & 0xffff0000u);
            if (p == 0 && v != v) top = __uint_as_float(0x7fc00000u);
            static_cast<uint16_t *>(s.out)[(tok * s.parts + p) * s.ld + c] =
                static_cast<uint16_t>(__float_as_uint(top) >> 16);
            rest = isinf(v) || v != v ? 0.0f : rest - top;
        }
    }
}

/* ---- products ---- */

struct row_args {
    qg_weight w[2];
    const float *x;
    struct {
        void *data;
        int64_t stride;
        uint32_t dtype;
    } y, residual;
    int64_t x_ld;
    int32_t n_tok;
};

/* This thread's part of one row's products with all tokens: runs of eight columns, dealt out in turn. */
template <uint32_t TYPE>
__device__ __forceinline__ void row_part(const qg_weight &w, int64_t row, const row_args &a,
                                         float (&sum)[QG_MAX_TOK])
{
    const unsigned char *p = w.data + row * w.pitch;
    for (int64_t c = 8 * static_cast<int64_t>(threadIdx.x); c < w.cover; c += 8 * THREADS) {
        float v[8];
        if constexpr (bp::block<TYPE>::n >= 8) {
            bp::block<TYPE>::row_at8(p, c, v);
        } else if constexpr (
            TYPE ==
            BP_GGUF_F32) { /* rows are padded with zeros to whole runs, at multiples of 16 */
            bp_cuda::load_vec(v, reinterpret_cast<const float *>(p) + c);
        } else {
            for (int i = 0; i < 8; ++i)
                v[i] = c + i < w.cover ? bp::block<TYPE>::row_at(p, c + i) : 0.0f;
        }
#pragma unroll
        for (int t = 0; t < QG_MAX_TOK; ++t) {
            if (t >= a.n_tok) break;
            float x[8];
            bp_cuda::load_vec(x, a.x + t * a.x_ld + c);
#pragma unroll
            for (int i = 0; i < 8; ++i) sum[t] = fmaf(v[i], x[i], sum[t]);
        }
    }
}

template <uint32_t TYPE, bool SILU>
__global__ void __launch_bounds__(THREADS) rows_kernel(const __grid_constant__ row_args a)
{
    __shared__ float room[THREADS / 32];
    const int64_t row = blockIdx.x;
    float first[QG_MAX_TOK] = {}, second[QG_MAX_TOK] = {};
    row_part<TYPE>(a.w[0], row, a, first);
    if (SILU) row_part<TYPE>(a.w[1], row, a, second);
#pragma unroll
    for (int t = 0; t < QG_MAX_TOK; ++t) {
        if (t >= a.n_tok) break;
        float v = bp_cuda::block_sum<THREADS>(first[t], room) * a.w[0].scale;
        if (SILU) v = silu(v) * (bp_cuda::block_sum<THREADS>(second[t], room) * a.w[1].scale);
        if (threadIdx.x != 0) continue;
        if (a.residual.data != nullptr)
            v += bp_cuda::load_any(a.residual.data, a.residual.dtype, t * a.residual.stride + row);
        bp_cuda::store_any(a.y.data, a.y.dtype, t * a.y.stride + row, v);
    }
}

template <uint32_t TYPE> int32_t rows(const row_args &a, bool silu_mul, cudaStream_t stream)
{
    const unsigned blocks = static_cast<unsigned>(a.w[0].rows);
    if (blocks == 0) return static_cast<int32_t>(cudaSuccess);
    if (silu_mul)
        rows_kernel<TYPE, true><<<blocks, THREADS, 0, stream>>>(a);
    else
        rows_kernel<TYPE, false><<<blocks, THREADS, 0, stream>>>(a);
    return static_cast<int32_t>(cudaGetLastError());
}

int32_t rows_of_type(const row_args &a, bool silu_mul, cudaStream_t s)
{
#define QG_CASE(NAME)                                                                              \
    case BP_GGUF_##NAME:                                                                           \
        return rows<BP_GGUF_##NAME>(a, silu_mul, s);
    switch (a.w[0].type) {
        QG_BLOCKS_MAP(QG_CASE)
    default:
        return static_cast<int32_t>(cudaErrorInvalidValue);
    }
#undef QG_CASE
}

/* ---- the end of a product ---- */

__global__ void __launch_bounds__(THREADS) finish_kernel(const __grid_constant__ qg_finish f)
{
    const int64_t width = f.y.dim[1], n = f.y.dim[0] * width,
                  by = static_cast<int64_t>(gridDim.x) * THREADS;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; i < n; i += by) {
        const int64_t t = i / width, c = i % width;
        float v = f.a[t * f.ab_stride + c] * f.scale_a;
        if (f.b != nullptr) v = silu(v) * (f.b[t * f.ab_stride + c] * f.scale_b);
        if (f.residual.data != nullptr)
            v += bp_cuda::load_any(f.residual.data, f.residual.dtype, t * f.residual.stride[0] + c);
        bp_cuda::store_any(f.y.data, f.y.dtype, t * f.y.stride[0] + c, v);
    }
}

} // namespace

extern "C" int32_t qg_stage_launch(const qg_stage *s, void *stream)
{
    const int parts = static_cast<int>((s->ld + PART - 1) / PART);
    const int64_t blocks = parts * s->n_tok;
    if (blocks == 0) return static_cast<int32_t>(cudaSuccess);
    stage_kernel<<<static_cast<unsigned>(blocks), THREADS, 0, static_cast<cudaStream_t>(stream)>>>(
        *s, parts);
    return static_cast<int32_t>(cudaGetLastError());
}

extern "C" int32_t qg_rows_launch(const qg_gemv *g, void *stream)
{
    const uint32_t n = g->silu != 0 ? 1 : g->n_w;
    for (uint32_t i = 0; i < n; ++i) {
        row_args a = {};
        a.w[0] = *g->w[i];
        if (g->silu != 0) a.w[1] = *g->w[1];
        a.x = static_cast<const float *>(g->x);
        a.x_ld = g->x_ld;
        a.n_tok = static_cast<int32_t>(g->n_tok);
        a.y.data = g->y[i].data;
        a.y.stride = g->y[i].stride[0];
        a.y.dtype = g->y[i].dtype;
        if (i == 0) {
            a.residual.data = g->residual.data;
            a.residual.stride = g->residual.stride[0];
            a.residual.dtype = g->residual.dtype;
        }
        const int32_t e = rows_of_type(a, g->silu != 0, static_cast<cudaStream_t>(stream));
        if (e != 0) return e;
    }
    return static_cast<int32_t>(cudaSuccess);
}

extern "C" int32_t qg_finish_launch(const qg_finish *f, void *stream)
{
    const int64_t n = f->y.dim[0] * f->y.dim[1], blocks = (n + THREADS - 1) / THREADS;
    if (n == 0) return static_cast<int32_t>(cudaSuccess);
    finish_kernel<<<static_cast<unsigned>(blocks < 8192 ? blocks : 8192), THREADS, 0,
                    static_cast<cudaStream_t>(stream)>>>(*f);
    return static_cast<int32_t>(cudaGetLastError());
}
