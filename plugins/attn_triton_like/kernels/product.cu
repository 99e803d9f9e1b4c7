/* product.cu - products with the up-projections of all heads for a few rows, or for any number of rows where dtypes differ
 * or cuBLAS does not serve; and the decoding of up-projections when they are prepared.
 * Numeric: f32 accumulation in an order that depends on the shapes only; a row's bits do not depend on other rows.
 * SPDX-License-Identifier: MIT */
#include "attn.cuh"

#include <backplane/cuda/block.cuh>

namespace
{

constexpr int WARPS = 8, THREADS = WARPS * 32;
constexpr int PART = 512;   /* inputs of x that lie in shared memory at a time */
constexpr int ROWS = 4;     /* outputs of a warp (plain) */
constexpr int COLUMNS = 16; /* threads across outputs (transposed) */

/* Inputs [at, at + n) of rows [first, first + TOK) of x, as f32; rows past the end are zero. */
template <int TOK>
__device__ void load_x(float (&part)[TOK][PART], const attn_product &a, int64_t first, int head, int at, int n)
{
    for (int t = 0; t < TOK; ++t) {
        const bool real = first + t < a.n_row;
        const unsigned char *x = real ? row_at(a.x, first + t, head) : nullptr;
        for (int i = static_cast<int>(threadIdx.x); i < n; i += THREADS)
            part[t][i] = real ? load_any(x, a.x.dtype, at + i) : 0.0f;
    }
}

/* y = W x: a warp takes ROWS rows of W, its lanes run along them. */
template <class T, int VEC, int TOK> __global__ void __launch_bounds__(THREADS, 2) plain_kernel(const attn_product a)
{
    __shared__ float part[TOK][PART];
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int n_in = static_cast<int>(a.n_in), n_out = static_cast<int>(a.n_out), head = static_cast<int>(blockIdx.y);
    const int row0 = (static_cast<int>(blockIdx.x) * WARPS + warp) * ROWS;
    const int64_t first = static_cast<int64_t>(blockIdx.z) * TOK;
    const T *w = static_cast<const T *>(a.w) + head * a.w_head;
    float acc[ROWS][TOK] = {};
    for (int at = 0; at < n_in; at += PART) {
        const int n = n_in - at < PART ? n_in - at : PART;
        __syncthreads();
        load_x(part, a, first, head, at, n);
        __syncthreads();
        for (int i = lane * VEC; i < n; i += 32 * VEC) {
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                float v[VEC] = {};
                if (row0 + r < n_out) bp_cuda::load_vec(v, w + (row0 + r) * a.ld + at + i);
#pragma unroll
                for (int t = 0; t < TOK; ++t) {
#pragma unroll
                    for (int k = 0; k < VEC; ++k) acc[r][t] += v[k] * part[t][i + k];
                }
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int t = 0; t < TOK; ++t) {
            const float sum = bp_cuda::warp_sum(acc[r][t]);
            if (lane == 0 && row0 + r < n_out && first + t < a.n_row)
                store_any(row_at(a.y, first + t, head), a.y.dtype, row0 + r, sum);
        }
    }
}

/* y = W^T x: COLUMNS threads side by side take VEC outputs each, the others of the block every sixteenth row of W. */
template <class T, int VEC, int TOK> __global__ void __launch_bounds__(THREADS, 2) transposed_kernel(const attn_product a)
{
    constexpr int GROUPS = THREADS / COLUMNS, WIDTH = COLUMNS * VEC;
    __shared__ float part[TOK][PART];
    __shared__ float sums[WARPS][WIDTH];
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int column = static_cast<int>(threadIdx.x) % COLUMNS, group = static_cast<int>(threadIdx.x) / COLUMNS;
    const int n_in = static_cast<int>(a.n_in), n_out = static_cast<int>(a.n_out), head = static_cast<int>(blockIdx.y);
    const int out0 = static_cast<int>(blockIdx.x) * WIDTH, out = out0 + column * VEC;
    const int64_t first = static_cast<int64_t>(blockIdx.z) * TOK;
    const T *w = static_cast<const T *>(a.w) + head * a.w_head;
    float acc[TOK][VEC] = {};
    for (int at = 0; at < n_in; at += PART) {
        const int n = n_in - at < PART ? n_in - at : PART;
        __syncthreads();
        load_x(part, a, first, head, at, n);
        __syncthreads();
        for (int i = group; i < n && out < n_out; i += GROUPS) {
            float v[VEC];
            bp_cuda::load_vec(v, w + (at + i) * a.ld + out);
#pragma unroll
            for (int t = 0; t < TOK; ++t) {
#pragma unroll
                for (int k = 0; k < VEC; ++k) acc[t][k] += v[k] * part[t][i];
            }
        }
    }
#pragma unroll
    for (int t = 0; t < TOK; ++t) {
        __syncthreads();
#pragma unroll
        for (int k = 0; k < VEC; ++k) {
            const float both = acc[t][k] + __shfl_xor_sync(FULL_WARP, acc[t][k], COLUMNS);
            if (lane < COLUMNS) sums[warp][column * VEC + k] = both;
        }
        __syncthreads();
        for (int i = static_cast<int>(threadIdx.x); i < WIDTH; i += THREADS) {
            float sum = 0.0f;
            for (int g = 0; g < WARPS; ++g) sum += sums[g][i];
            if (out0 + i < n_out && first + t < a.n_row)
                store_any(row_at(a.y, first + t, head), a.y.dtype, out0 + i, sum);
        }
    }
}

template <class T, int VEC, int TOK> int32_t start_product(const attn_product *a, void *stream)
{
    const uint32_t tiles = (a->n_row + TOK - 1) / TOK;
    const uint32_t each = a->transposed != 0 ? COLUMNS * VEC : WARPS * ROWS;
    const dim3 grid((a->n_out + each - 1) / each, a->n_head, tiles);
    if (a->transposed != 0) return start(transposed_kernel<T, VEC, TOK>, grid, THREADS, 0, stream, *a);
    return start(plain_kernel<T, VEC, TOK>, grid, THREADS, 0, stream, *a);
}

template <class T, int VEC> int32_t choose_product(const attn_product *a, void *stream)
{
    constexpr uint32_t BYTES = VEC * sizeof(T);
    const uint32_t run = a->transposed != 0 ? a->n_out : a->n_in; /* what lies side by side in W */
    const bool wide = reinterpret_cast<uintptr_t>(a->w) % BYTES == 0 && run % VEC == 0 && a->ld % VEC == 0 &&
                      a->w_head % VEC == 0;
    if (!wide) return start_product<T, 1, 8>(a, stream);
    return a->n_row == 1 ? start_product<T, VEC, 1>(a, stream) : start_product<T, VEC, 8>(a, stream);
}

/* ---- decoding ---- */

__global__ void __launch_bounds__(THREADS) decode_weights_kernel(const attn_decode_weights a)
{
    const uint64_t step = static_cast<uint64_t>(gridDim.x) * THREADS;
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * THREADS + threadIdx.x; i < a.n; i += step) {
        const int64_t row = static_cast<int64_t>(i) / a.row_len, at = static_cast<int64_t>(i) % a.row_len;
        const int64_t head = row / a.head_rows, r = row % a.head_rows;
        float v = bp_block_row_at(a.type, static_cast<const unsigned char *>(a.src), static_cast<int64_t>(i));
        if (a.scale != 1.0f) v *= a.scale;
        const int64_t to = head * a.head_out + (a.transposed != 0 ? at * a.ld + r : r * a.ld + at);
        store_any(a.dst, a.dst_dtype, to, v);
    }
}

} // namespace

int32_t attn_start_product(const attn_product *a, void *stream)
{
    /* Rows of a call in blockIdx.z: at most 65,535 groups of eight. */
    const uint32_t most = 65535u * 8u;
    attn_product part = *a;
    for (uint32_t at = 0; at < a->n_row; at += most) {
        int32_t e = cudaErrorInvalidValue;
        const int64_t x_bytes = a->x.dtype == BP_DT_F32 ? 4 : 2, y_bytes = a->y.dtype == BP_DT_F32 ? 4 : 2;
        part.n_row = a->n_row - at < most ? a->n_row - at : most;
        part.x.data = static_cast<unsigned char *>(a->x.data) + at * a->x.row * x_bytes;
        part.y.data = static_cast<unsigned char *>(a->y.data) + at * a->y.row * y_bytes;
        if (a->w_dtype == BP_DT_F32) e = choose_product<float, 4>(&part, stream);
        else if (a->w_dtype == BP_DT_F16) e = choose_product<__half, 8>(&part, stream);
        else if (a->w_dtype == BP_DT_BF16) e = choose_product<__nv_bfloat16, 8>(&part, stream);
        if (e != cudaSuccess) return e;
    }
    return cudaSuccess;
}

int32_t attn_start_decode_weights(const attn_decode_weights *a, void *stream)
{
    const uint64_t n_block = (a->n + THREADS - 1) / THREADS, most = 1 << 16;
    return start(decode_weights_kernel, dim3(static_cast<unsigned>(n_block < most ? n_block : most)), THREADS, 0, stream,
                 *a);
}

uint32_t attn_type_block(uint32_t type, uint32_t *n_bytes)
{
    *n_bytes = static_cast<uint32_t>(bp_block_size(type));
    return static_cast<uint32_t>(bp_block_elems(type));
}
