/* prefill_mma.cu - the prefill kernel on tensor cores: 16-bit tensors of one dtype, for the head sizes of the large models.
 * A block of eight warps takes 128 queries of one head and segment, a warp 16 of them. Keys and values come by cp.async,
 * one buffer each: values arrive while scores are computed, the next keys while values are added.
 * Numeric: products of 16-bit numbers (weights rounded to them), f32 sums, softmax in base 2 with the running maximum; a
 * query's bits depend on its own keys only. Rows past the end are zero; a key that a query does not see has weight zero, and a tile
 * that a mask cuts and that holds a value that is not finite is added without tensor cores, query by query.
 * SPDX-License-Identifier: MIT */
#include <backplane/cuda/mma.cuh>

#include "attn.cuh"

namespace
{

constexpr int WARPS = 8, THREADS = WARPS * 32, ROWS = WARPS * 16;

/* QK, V: numbers of a query and of a value; TILE: keys at a time. Pitches are an odd number of 16 bytes, so that eight rows
 * meet all banks. */
template <class T, int QK, int V, int TILE> struct room {
    static constexpr int QK_PITCH = QK + 8, V_PITCH = V + 8;
    T queries[ROWS][QK_PITCH];
    T keys[TILE][QK_PITCH];
    T values[TILE][V_PITCH];
};

/* Starts the copy of rows [0, n) of a tile of N from `first`; rows past n are zero. */
template <class T, int N, int WIDTH, int PITCH>
__device__ __forceinline__ void copy_tile(T (&to)[N][PITCH], const attn_rows &t, int64_t first, int head, int n)
{
    constexpr int CHUNKS = WIDTH / 8;
    static_assert(N * CHUNKS % THREADS == 0, "every thread copies as much");
#pragma unroll
    for (int i = 0; i < N * CHUNKS / THREADS; ++i) {
        const int chunk = i * THREADS + static_cast<int>(threadIdx.x), row = chunk / CHUNKS, col = chunk % CHUNKS * 8;
        const unsigned char *src = row_at(t, first + (row < n ? row : 0), head) + col * 2;
        bp_cuda::cp_async_16(&to[row][col], src, row < n);
    }
}

/* What a thread keeps of its two queries (lane / 4 and lane / 4 + 8 of the warp): the maximum, and its share of the sum. */
struct running {
    float max[2], sum[2];
};

/* Scores to weights, in place; `seen` of each query: keys of this tile that it sees. Shrinks the sums so far. */
template <int TILES, int OUTS>
__device__ __forceinline__ void softmax_step(float (&s)[TILES][4], float (&acc)[OUTS][4], running *own, const int (&seen)[2],
                                             float scale, int lane)
{
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float max = own->max[r];
#pragma unroll
        for (int n = 0; n < TILES; ++n) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int key = n * 8 + lane % 4 * 2 + i;
                float &v = s[n][2 * r + i];
                v = key < seen[r] ? v * scale : -INFINITY;
                max = fmaxf(max, v);
            }
        }
        max = bp_cuda::warp_max<4>(max);
        const float zero = max == -INFINITY ? 0.0f : max, shrink = max == -INFINITY ? 1.0f : exp2f(own->max[r] - max);
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < TILES; ++n) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float &v = s[n][2 * r + i];
                v = exp2f(v - zero);
                sum += v;
            }
        }
        own->sum[r] = own->sum[r] * shrink + sum;
        own->max[r] = max;
#pragma unroll
        for (int n = 0; n < OUTS; ++n) acc[n][2 * r] *= shrink, acc[n][2 * r + 1] *= shrink;
    }
}

/* The warp's scores of one tile. Tensor cores cut what they add to a sum instead of rounding it, always towards zero: over
 * all of QK that would show in the LSE, so every GROUP steps begin at zero and are added up in f32. */
template <class T, int QK, int V, int TILE>
__device__ __forceinline__ void scores_of(room<T, QK, V, TILE> &m, float (&s)[TILE / 8][4], int warp, int lane)
{
    constexpr int GROUP = 4;
    static_assert(QK % (GROUP * 16) == 0, "whole groups");
#pragma unroll
    for (int n = 0; n < TILE / 8; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
    const T *query = &m.queries[warp * 16 + lane % 16][lane / 16 * 8];
    const T *key = &m.keys[lane / 16 * 8 + lane % 8][lane / 8 % 2 * 8];
#pragma unroll 1
    for (int k = 0; k < QK; k += GROUP * 16) {
        uint32_t q[GROUP][4];
#pragma unroll
        for (int g = 0; g < GROUP; ++g) bp_cuda::ldmatrix_x4(q[g], query + k + g * 16);
#pragma unroll
        for (int n = 0; n < TILE / 8; n += 2) {
            float part[2][4] = {};
#pragma unroll
            for (int g = 0; g < GROUP; ++g) {
                uint32_t b[4];
                bp_cuda::ldmatrix_x4(b, key + n * 8 * room<T, QK, V, TILE>::QK_PITCH + k + g * 16);
                bp_cuda::mma<T>(part[0], q[g], b[0], b[1]);
                bp_cuda::mma<T>(part[1], q[g], b[2], b[3]);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) s[n][i] += part[0][i], s[n + 1][i] += part[1][i];
        }
    }
}

template <class T, int QK, int V, int TILE>
__device__ __forceinline__ void add_values(room<T, QK, V, TILE> &m, const float (&s)[TILE / 8][4], float (&acc)[V / 8][4],
                                           int lane)
{
    const T *value = &m.values[lane % 16][lane / 16 * 8];
#pragma unroll
    for (int k = 0; k < TILE; k += 16) {
        const float(&lo)[4] = s[k / 8], (&hi)[4] = s[k / 8 + 1];
        const uint32_t p[4] = {bp_cuda::pack<T>(lo[0], lo[1]), bp_cuda::pack<T>(lo[2], lo[3]),
                               bp_cuda::pack<T>(hi[0], hi[1]), bp_cuda::pack<T>(hi[2], hi[3])};
#pragma unroll
        for (int n = 0; n < V / 8; n += 2) {
            uint32_t b[4];
            bp_cuda::ldmatrix_x4_trans(b, value + k * room<T, QK, V, TILE>::V_PITCH + n * 8);
            bp_cuda::mma<T>(acc[n], p, b[0], b[1]);
            bp_cuda::mma<T>(acc[n + 1], p, b[2], b[3]);
        }
    }
}

/* Zero times NaN is NaN, so values that are not finite must not meet weights of queries that do not see them. Is there any in
 * this tile? */
template <class T, int N, int WIDTH, int PITCH>
__device__ __forceinline__ bool not_finite(const T (&values)[N][PITCH])
{
    bool found = false;
    for (int i = static_cast<int>(threadIdx.x); i < N * WIDTH; i += THREADS)
        found |= !isfinite(bp_cuda::to_f32(values[i / WIDTH][i % WIDTH]));
    return __syncthreads_or(found) != 0;
}

/* The slow way for such a tile: weights and values one by one, as far as each query sees. Weights are rounded as the tensor
 * cores get them. */
template <class T, int QK, int V, int TILE>
__device__ __forceinline__ void add_values_slowly(room<T, QK, V, TILE> &m, const float (&s)[TILE / 8][4],
                                               float (&acc)[V / 8][4], const int (&seen)[2], int lane)
{
#pragma unroll
    for (int n = 0; n < TILE / 8; ++n) {
        for (int j = 0; j < 8; ++j) { /* key n * 8 + j: its weight is with the lane of this group of four that has j */
            const int key = n * 8 + j;
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const float even = __shfl_sync(FULL_WARP, s[n][2 * r], lane / 4 * 4 + j / 2);
                const float odd = __shfl_sync(FULL_WARP, s[n][2 * r + 1], lane / 4 * 4 + j / 2);
                const float p = bp_cuda::to_f32(bp_cuda::from_f32<T>(j % 2 == 0 ? even : odd));
                if (key >= seen[r]) continue;
#pragma unroll
                for (int d = 0; d < V / 8; ++d) {
                    acc[d][2 * r] += p * bp_cuda::to_f32(m.values[key][d * 8 + lane % 4 * 2]);
                    acc[d][2 * r + 1] += p * bp_cuda::to_f32(m.values[key][d * 8 + lane % 4 * 2 + 1]);
                }
            }
        }
    }
}

template <class T, int QK, int V, int TILE>
__global__ void __launch_bounds__(THREADS, 1) prefill_mma_kernel(const attn_prefill a)
{
    using room_t = room<T, QK, V, TILE>;
    static_assert(sizeof(room_t) <= BP_CUDA_SMEM_MAX, "one block on every chip");
    room_t &m = *reinterpret_cast<room_t *>(shared_memory());
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int head = static_cast<int>(blockIdx.y), seg = static_cast<int>(blockIdx.z);
    const int64_t q0 = a.cu_q[seg], k0 = a.cu_k[seg];
    const int n_q = a.cu_q[seg + 1] - static_cast<int>(q0), n_k = a.cu_k[seg + 1] - static_cast<int>(k0);
    /* The last tiles see the most keys: they begin first. */
    const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * ROWS;
    if (first >= n_q) return;
    const int last = first + ROWS < n_q ? first + ROWS : n_q;
    const int end = a.causal != 0 ? n_k - n_q + last : n_k; /* keys that the last query sees */
    const int all = a.causal != 0 ? n_k - n_q + first + 1 : n_k; /* that the first one sees, so all of them do */
    const int mine = first + warp * 16 + lane / 4;
    int sees[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) sees[r] = mine + 8 * r >= n_q ? 0 : a.causal != 0 ? n_k - n_q + mine + 8 * r + 1 : n_k;
    const float scale = a.scale * LOG2_E;
    copy_tile<T, ROWS, QK>(m.queries, a.q, q0 + first, head, n_q - first);
    if (end > 0) copy_tile<T, TILE, QK>(m.keys, a.k, k0, head, n_k);
    bp_cuda::cp_async_commit();
    running own = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
    float acc[V / 8][4] = {};
    for (int at = 0; at < end; at += TILE) {
        bp_cuda::cp_async_wait<0>();
        __syncthreads(); /* the keys are there, and nobody reads the values before any more */
        copy_tile<T, TILE, V>(m.values, a.v, k0 + at, head, n_k - at);
        bp_cuda::cp_async_commit();
        float s[TILE / 8][4];
        scores_of(m, s, warp, lane);
        const int seen[2] = {sees[0] - at, sees[1] - at};
        softmax_step(s, acc, &own, seen, scale, lane);
        bp_cuda::cp_async_wait<0>();
        __syncthreads(); /* the values are there, and nobody reads the keys any more */
        if (at + TILE < end) copy_tile<T, TILE, QK>(m.keys, a.k, k0 + at + TILE, head, n_k - at - TILE);
        bp_cuda::cp_async_commit();
        /* Tiles that some query sees in part; in the others every weight belongs to a key that is seen. */
        if (at + TILE > all && not_finite<T, TILE, V>(m.values)) add_values_slowly(m, s, acc, seen, lane);
        else add_values(m, s, acc, lane);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const float sum = bp_cuda::warp_sum<4>(own.sum[r]), inv = sum == 0.0f ? 0.0f : 1.0f / sum;
        if (mine + 8 * r >= n_q) continue;
        unsigned char *out = row_at(a.out, q0 + mine + 8 * r, head);
#pragma unroll
        for (int n = 0; n < V / 8; ++n) {
            *reinterpret_cast<uint32_t *>(out + (n * 8 + lane % 4 * 2) * 2) =
                bp_cuda::pack<T>(acc[n][2 * r] * inv, acc[n][2 * r + 1] * inv);
        }
        if (lane % 4 == 0 && a.lse.data != nullptr) {
            const float lse = sum == 0.0f ? -INFINITY : own.max[r] * LN_2 + logf(sum);
            *reinterpret_cast<float *>(row_at(a.lse, q0 + mine + 8 * r, head)) = lse;
        }
    }
}

template <class T, int QK, int V, int TILE> int32_t start_prefill(const attn_prefill *a, void *stream)
{
    const dim3 grid((a->max_q + ROWS - 1) / ROWS, a->n_head, a->n_seg);
    return start(prefill_mma_kernel<T, QK, V, TILE>, grid, THREADS, sizeof(room<T, QK, V, TILE>), stream, *a);
}

template <class T> int32_t choose_size(const attn_prefill *a, void *stream)
{
    if (a->qk_dim == 192) return start_prefill<T, 192, 128, 64>(a, stream);
    return start_prefill<T, 256, 256, 32>(a, stream);
}

} // namespace

int32_t attn_start_prefill_mma(const attn_prefill *a, void *stream)
{
    return a->q.dtype == BP_DT_F16 ? choose_size<__half>(a, stream) : choose_size<__nv_bfloat16>(a, stream);
}

int32_t attn_prefill_mma_serves(uint32_t qk_dim, uint32_t v_dim)
{
    return (qk_dim == 192 && v_dim == 128) || (qk_dim == 256 && v_dim == 256);
}
