/* prefill_fma.cu - the prefill kernel for every pair of dtypes and every width, in plain f32 arithmetic.
 * A block takes ROWS queries of one head and segment; queries and TILE keys at a time lie in shared memory as f32, and the
 * values then take the keys' place. A warp owns four queries: scores with lane = key, values with lane = dimension.
 * Numeric: f32, softmax in base e (base 2 costs a rounding of every score) with the running maximum; a query's bits depend
 * on its own keys only. A key that a query does not see is never multiplied, whatever it holds.
 * SPDX-License-Identifier: MIT */
#include "attn.cuh"

namespace
{

constexpr int WARPS = 8, THREADS = WARPS * 32, MINE = 4, ROWS = WARPS * MINE, TILE = 32;

/* Queries lie `q_pitch` apart (a multiple of 4, for wide reads), keys and values an odd number. */
__host__ __device__ constexpr int q_pitch(int qk)
{
    return (qk + 3) / 4 * 4;
}
__host__ __device__ constexpr int k_pitch(int qk, int v)
{
    return (q_pitch(qk) > v ? q_pitch(qk) : v) | 1;
}
constexpr int smem_bytes(int qk, int v)
{
    return (ROWS * q_pitch(qk) + TILE * k_pitch(qk, v)) * 4;
}
static_assert(smem_bytes(ATTN_MAX_HEAD, ATTN_MAX_HEAD) <= BP_CUDA_SMEM_MAX, "queries and one tile of the widest heads");

/* Rows [0, n) of a tile of ROWS, the rest zero; `width` numbers, zero up to `full`. A warp takes MINE of them. */
__device__ void load_tile(float *dst, int pitch, const attn_rows &t, int64_t first, int head, int n, int width, int full)
{
    const int lane = static_cast<int>(threadIdx.x) % 32, row = static_cast<int>(threadIdx.x) / 32 * MINE;
    const unsigned char *src[MINE];
    float *to = dst + row * pitch;
#pragma unroll
    for (int r = 0; r < MINE; ++r) src[r] = row + r < n ? row_at(t, first + row + r, head) : nullptr;
    load_rows(to, pitch, src, t.dtype, width, lane);
    for (int i = width + lane; i < full; i += 32) {
#pragma unroll
        for (int r = 0; r < MINE; ++r) to[r * pitch + i] = 0.0f;
    }
}
static_assert(TILE == ROWS, "queries, keys and values come the same way");

/* Scores of MINE queries with the key of this lane. A sum over a whole head would lose digits that show in f32, so BLOCK
 * numbers at a time are summed, in four parts, and added up. */
__device__ void scores_of(float (&s)[MINE], const float *q, int pitch, const float *key, int n)
{
    constexpr int BLOCK = 32;
#pragma unroll
    for (int r = 0; r < MINE; ++r) s[r] = 0.0f;
    for (int i0 = 0; i0 < n; i0 += BLOCK) {
        const int end = i0 + BLOCK < n ? i0 + BLOCK : n;
        float part[MINE][4] = {};
#pragma unroll 2
        for (int i = i0; i < end; i += 4) {
            const float k0 = key[i], k1 = key[i + 1], k2 = key[i + 2], k3 = key[i + 3];
#pragma unroll
            for (int r = 0; r < MINE; ++r) {
                const float4 v = *reinterpret_cast<const float4 *>(q + r * pitch + i);
                part[r][0] += v.x * k0;
                part[r][1] += v.y * k1;
                part[r][2] += v.z * k2;
                part[r][3] += v.w * k3;
            }
        }
#pragma unroll
        for (int r = 0; r < MINE; ++r) s[r] += (part[r][0] + part[r][1]) + (part[r][2] + part[r][3]);
    }
}

/* DIMS: dimensions of v that a lane adds up. */
template <int DIMS> __global__ void __launch_bounds__(THREADS, DIMS <= 8 ? 2 : 1) prefill_fma_kernel(const attn_prefill a)
{
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int head = static_cast<int>(blockIdx.y), seg = static_cast<int>(blockIdx.z);
    const int64_t q0 = a.cu_q[seg], k0 = a.cu_k[seg];
    const int n_q = a.cu_q[seg + 1] - static_cast<int>(q0), n_k = a.cu_k[seg + 1] - static_cast<int>(k0);
    /* The last tiles see the most keys: they begin first. */
    const int tile = static_cast<int>(gridDim.x - 1 - blockIdx.x), first = tile * ROWS;
    if (first >= n_q) return;
    const int qk = static_cast<int>(a.qk_dim), n_v = static_cast<int>(a.v_dim);
    const int qp = q_pitch(qk), kp = k_pitch(qk, n_v);
    float *q = reinterpret_cast<float *>(shared_memory()), *keys = q + ROWS * qp;
    load_tile(q, qp, a.q, q0 + first, head, n_q - first, qk, qp);
    int sees[MINE]; /* keys that each query of this warp sees */
    float max[MINE], sum[MINE], acc[MINE][DIMS] = {};
#pragma unroll
    for (int r = 0; r < MINE; ++r) {
        const int at = first + warp * MINE + r;
        sees[r] = at >= n_q ? 0 : a.causal != 0 ? n_k - n_q + at + 1 : n_k;
        max[r] = -INFINITY;
        sum[r] = 0.0f;
    }
    const int last = first + ROWS < n_q ? first + ROWS : n_q;
    const int end = a.causal != 0 ? n_k - n_q + last : n_k;
    for (int at = 0; at < end; at += TILE) {
        __syncthreads(); /* the queries are there; nobody reads the values before any more */
        load_tile(keys, kp, a.k, k0 + at, head, n_k - at, qk, qp);
        __syncthreads();
        float p[MINE];
        scores_of(p, q + warp * MINE * qp, qp, keys + lane * kp, qp);
#pragma unroll
        for (int r = 0; r < MINE; ++r) {
            const bool seen = at + lane < sees[r];
            const float s = seen ? p[r] * a.scale : -INFINITY, now = fmaxf(max[r], bp_cuda::warp_max(s));
            p[r] = seen ? expf(s - (now == -INFINITY ? 0.0f : now)) : 0.0f;
            const float shrink = now == -INFINITY ? 1.0f : expf(max[r] - now);
            sum[r] = sum[r] * shrink + bp_cuda::warp_sum(p[r]);
            max[r] = now;
#pragma unroll
            for (int d = 0; d < DIMS; ++d) acc[r][d] *= shrink;
        }
        float part[MINE][DIMS] = {}; /* of this tile: one sum over all keys would lose digits */
        __syncthreads(); /* the keys have been read */
        load_tile(keys, kp, a.v, k0 + at, head, n_k - at, n_v, n_v);
        __syncthreads();
        const int n = end - at < TILE ? end - at : TILE;
        for (int k = 0; k < n; ++k) {
            float v[DIMS];
#pragma unroll
            for (int d = 0; d < DIMS; ++d) v[d] = lane + 32 * d < n_v ? keys[k * kp + lane + 32 * d] : 0.0f;
#pragma unroll
            for (int r = 0; r < MINE; ++r) {
                const float w = __shfl_sync(FULL_WARP, p[r], k);
                if (at + k >= sees[r]) continue; /* a NaN there is not this query's */
#pragma unroll
                for (int d = 0; d < DIMS; ++d) part[r][d] += w * v[d];
            }
        }
#pragma unroll
        for (int r = 0; r < MINE; ++r) {
#pragma unroll
            for (int d = 0; d < DIMS; ++d) acc[r][d] += part[r][d];
        }
    }
#pragma unroll
    for (int r = 0; r < MINE; ++r) {
        const int row = first + warp * MINE + r;
        if (row >= n_q) continue;
        const float inv = sum[r] == 0.0f ? 0.0f : 1.0f / sum[r];
        unsigned char *out = row_at(a.out, q0 + row, head);
#pragma unroll
        for (int d = 0; d < DIMS; ++d) {
            if (lane + 32 * d < n_v) store_any(out, a.out.dtype, lane + 32 * d, acc[r][d] * inv);
        }
        if (lane == 0 && a.lse.data != nullptr) {
            const float lse = sum[r] == 0.0f ? -INFINITY : max[r] + logf(sum[r]);
            *reinterpret_cast<float *>(row_at(a.lse, q0 + row, head)) = lse;
        }
    }
}

} // namespace

int32_t attn_start_prefill_fma(const attn_prefill *a, void *stream)
{
    const dim3 grid((a->max_q + ROWS - 1) / ROWS, a->n_head, a->n_seg);
    const size_t smem = static_cast<size_t>(smem_bytes(static_cast<int>(a->qk_dim), static_cast<int>(a->v_dim)));
    if (a->v_dim <= 128) return start(prefill_fma_kernel<4>, grid, THREADS, smem, stream, *a);
    if (a->v_dim <= 256) return start(prefill_fma_kernel<8>, grid, THREADS, smem, stream, *a);
    return start(prefill_fma_kernel<(ATTN_MAX_HEAD + 31) / 32>, grid, THREADS, smem, stream, *a);
}
