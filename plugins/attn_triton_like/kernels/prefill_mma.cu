/* prefill_mma.cu - the prefill kernel on tensor cores: 16-bit tensors of one dtype, for the head sizes of the large models.
 * A block of four warps takes 64 or 128 queries of one head and segment, a warp 16 of them or, where registers allow, 32,
 * which halves its reads of keys and values. These come by cp.async, one buffer each: values arrive while scores are
 * computed, the next keys while values are added. Two blocks on a multiprocessor overlap what each does in turn.
 * Numeric: products of 16-bit numbers (weights rounded to them), f32 sums, softmax in base 2 with the running maximum; a
 * query's bits depend on its own keys only. Rows past the end are zero; a key that a query does not see has weight zero,
 * and a tile that a mask cuts and that holds a value that is not finite is added without tensor cores, query by query.
 * SPDX-License-Identifier: MIT */
#include <backplane/cuda/mma.cuh>

#include "attn.cuh"

namespace
{

constexpr int WARPS = 4, THREADS = WARPS * 32;

/* QK, V: numbers of a query and of a value; TILE: keys at a time; M: tiles of 16 queries of a warp. Pitches are an odd
 * number of 16 bytes, so that eight rows meet all banks. */
template <class T_, int QK_, int V_, int TILE_, int M_> struct shape {
    using T = T_;
    static constexpr int QK = QK_, V = V_, TILE = TILE_, M = M_, ROWS = WARPS * 16 * M;
    static constexpr int QK_PITCH = QK + 8, V_PITCH = V + 8;
    static constexpr int SCORES = TILE / 8, OUTS = V / 8; /* tiles of eight */
};
template <class S> struct room {
    typename S::T queries[S::ROWS][S::QK_PITCH];
    typename S::T keys[S::TILE][S::QK_PITCH];
    typename S::T values[S::TILE][S::V_PITCH];
};

/* Starts the copy of rows [0, n) of a tile of N from `first`; rows past n are zero. Eight threads take a row, every
 * sixteenth row one of them, so that a thread keeps one address. */
template <int N, int WIDTH, class T, int PITCH>
__device__ __forceinline__ void copy_tile(T (&to)[N][PITCH], const attn_rows &t, int64_t first, int head, int n)
{
    constexpr int ROWS = THREADS / 8;
    static_assert(N % ROWS == 0 && WIDTH % 64 == 0, "every thread copies as much");
    const int row = static_cast<int>(threadIdx.x) / 8, col = static_cast<int>(threadIdx.x) % 8 * 8;
    const T *src = reinterpret_cast<const T *>(row_at(t, first + row, head)) + col;
#pragma unroll
    for (int i = 0; i < N / ROWS; ++i) {
        const bool valid = row + i * ROWS < n;
        const T *from = valid ? src + i * ROWS * t.row : static_cast<const T *>(t.data);
#pragma unroll
        for (int j = 0; j < WIDTH; j += 64) bp_cuda::cp_async_16(&to[row + i * ROWS][col + j], from + j, valid);
    }
}

/* What a thread keeps of its two queries (lane / 4 and lane / 4 + 8 of the warp): the maximum, and its share of the sum. */
struct running {
    float max[2], sum[2];
};

/* Scores to weights, in place. The first of the two queries sees `seen` keys of this tile, the second `more` of them.
 * Shrinks the sums so far. */
template <int TILES, int OUTS>
__device__ __forceinline__ void softmax_step(float (&s)[TILES][4], float (&acc)[OUTS][4], running *own, int seen, int more,
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
                v = key < seen + r * more ? v * scale : -INFINITY;
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
template <class S>
__device__ __forceinline__ void scores_of(room<S> &r, float (&s)[S::M][S::SCORES][4], int warp, int lane)
{
    constexpr int GROUP = S::M == 1 ? 4 : 2;
    static_assert(S::QK % (GROUP * 16) == 0, "whole groups");
#pragma unroll
    for (int m = 0; m < S::M; ++m) {
#pragma unroll
        for (int n = 0; n < S::SCORES; ++n) s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0.0f;
    }
    const typename S::T *query = &r.queries[warp * 16 * S::M + lane % 16][lane / 16 * 8];
    const typename S::T *key = &r.keys[lane / 16 * 8 + lane % 8][lane / 8 % 2 * 8];
#pragma unroll 1
    for (int k = 0; k < S::QK; k += GROUP * 16) {
        uint32_t q[GROUP][S::M][4];
#pragma unroll
        for (int g = 0; g < GROUP; ++g) {
#pragma unroll
            for (int m = 0; m < S::M; ++m) bp_cuda::ldmatrix_x4(q[g][m], query + m * 16 * S::QK_PITCH + k + g * 16);
        }
#pragma unroll
        for (int n = 0; n < S::SCORES; n += 2) {
            float part[S::M][2][4] = {};
#pragma unroll
            for (int g = 0; g < GROUP; ++g) {
                uint32_t b[4];
                bp_cuda::ldmatrix_x4(b, key + n * 8 * S::QK_PITCH + k + g * 16);
#pragma unroll
                for (int m = 0; m < S::M; ++m) {
                    bp_cuda::mma<typename S::T>(part[m][0], q[g][m], b[0], b[1]);
                    bp_cuda::mma<typename S::T>(part[m][1], q[g][m], b[2], b[3]);
                }
            }
#pragma unroll
            for (int m = 0; m < S::M; ++m) {
#pragma unroll
                for (int i = 0; i < 4; ++i) s[m][n][i] += part[m][0][i], s[m][n + 1][i] += part[m][1][i];
            }
        }
    }
}

template <class S>
__device__ __forceinline__ void add_values(room<S> &r, const float (&s)[S::M][S::SCORES][4], float (&acc)[S::M][S::OUTS][4],
                                           int lane)
{
    using T = typename S::T;
    const T *value = &r.values[lane % 16][lane / 16 * 8];
#pragma unroll
    for (int k = 0; k < S::TILE; k += 16) {
        uint32_t p[S::M][4];
#pragma unroll
        for (int m = 0; m < S::M; ++m) {
            const float(&lo)[4] = s[m][k / 8], (&hi)[4] = s[m][k / 8 + 1];
            p[m][0] = bp_cuda::pack<T>(lo[0], lo[1]);
            p[m][1] = bp_cuda::pack<T>(lo[2], lo[3]);
            p[m][2] = bp_cuda::pack<T>(hi[0], hi[1]);
            p[m][3] = bp_cuda::pack<T>(hi[2], hi[3]);
        }
#pragma unroll
        for (int n = 0; n < S::OUTS; n += 2) {
            uint32_t b[4];
            bp_cuda::ldmatrix_x4_trans(b, value + k * S::V_PITCH + n * 8);
#pragma unroll
            for (int m = 0; m < S::M; ++m) {
                bp_cuda::mma<T>(acc[m][n], p[m], b[0], b[1]);
                bp_cuda::mma<T>(acc[m][n + 1], p[m], b[2], b[3]);
            }
        }
    }
}

/* Zero times NaN is NaN, so values that are not finite must not meet weights of queries that do not see them. Is there any
 * in this tile? */
template <int N, int WIDTH, class T, int PITCH>
__device__ __forceinline__ bool not_finite(const T (&values)[N][PITCH])
{
    bool found = false;
    for (int i = static_cast<int>(threadIdx.x); i < N * WIDTH; i += THREADS)
        found |= !isfinite(bp_cuda::to_f32(values[i / WIDTH][i % WIDTH]));
    return __syncthreads_or(found) != 0;
}

/* The slow way for such a tile: weights and values one by one, as far as each query sees. Weights are rounded as the tensor
 * cores get them. */
template <class S>
__device__ __forceinline__ void add_values_slowly(room<S> &r, const float (&s)[S::SCORES][4], float (&acc)[S::OUTS][4],
                                                  int seen, int more, int lane)
{
#pragma unroll
    for (int n = 0; n < S::SCORES; ++n) {
        for (int j = 0; j < 8; ++j) { /* key n * 8 + j: its weight is with the lane of this group of four that has j */
            const int key = n * 8 + j;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float even = __shfl_sync(FULL_WARP, s[n][2 * i], lane / 4 * 4 + j / 2);
                const float odd = __shfl_sync(FULL_WARP, s[n][2 * i + 1], lane / 4 * 4 + j / 2);
                const float p = bp_cuda::to_f32(bp_cuda::from_f32<typename S::T>(j % 2 == 0 ? even : odd));
                if (key >= seen + i * more) continue;
#pragma unroll
                for (int d = 0; d < S::OUTS; ++d) {
                    acc[d][2 * i] += p * bp_cuda::to_f32(r.values[key][d * 8 + lane % 4 * 2]);
                    acc[d][2 * i + 1] += p * bp_cuda::to_f32(r.values[key][d * 8 + lane % 4 * 2 + 1]);
                }
            }
        }
    }
}

/* A tile of 16 queries at its end: rows `mine` and `mine` + 8 of the segment are this thread's. */
template <class S>
__device__ __forceinline__ void store(const attn_prefill &a, const running &own, const float (&acc)[S::OUTS][4], int64_t q0,
                                      int n_q, int head, int mine, int lane)
{
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float sum = bp_cuda::warp_sum<4>(own.sum[i]), inv = sum == 0.0f ? 0.0f : 1.0f / sum;
        if (mine + 8 * i >= n_q) continue;
        unsigned char *out = row_at(a.out, q0 + mine + 8 * i, head);
#pragma unroll
        for (int n = 0; n < S::OUTS; ++n) {
            *reinterpret_cast<uint32_t *>(out + (n * 8 + lane % 4 * 2) * 2) =
                bp_cuda::pack<typename S::T>(acc[n][2 * i] * inv, acc[n][2 * i + 1] * inv);
        }
        if (lane % 4 == 0 && a.lse.data != nullptr) {
            const float lse = sum == 0.0f ? -INFINITY : own.max[i] * LN_2 + logf(sum);
            *reinterpret_cast<float *>(row_at(a.lse, q0 + mine + 8 * i, head)) = lse;
        }
    }
}

template <class S> __global__ void __launch_bounds__(THREADS, 2) prefill_mma_kernel(const attn_prefill a)
{
    constexpr int TILE = S::TILE, M = S::M;
    static_assert(sizeof(room<S>) <= BP_CUDA_SMEM_MAX, "one block on every chip");
    room<S> &r = *reinterpret_cast<room<S> *>(shared_memory());
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int head = static_cast<int>(blockIdx.y), seg = static_cast<int>(blockIdx.z);
    const int64_t q0 = a.cu_q[seg], k0 = a.cu_k[seg];
    const int n_q = a.cu_q[seg + 1] - static_cast<int>(q0), n_k = a.cu_k[seg + 1] - static_cast<int>(k0);
    /* The last tiles see the most keys: they begin first. */
    const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * S::ROWS;
    if (first >= n_q) return;
    const int last = first + S::ROWS < n_q ? first + S::ROWS : n_q;
    const int end = a.causal != 0 ? n_k - n_q + last : n_k;      /* keys that the last query sees */
    const int all = a.causal != 0 ? n_k - n_q + first + 1 : n_k; /* that the first one sees, so all of them do */
    const int mine = first + warp * 16 * M + lane / 4;
    const float scale = a.scale * LOG2_E;
    copy_tile<S::ROWS, S::QK>(r.queries, a.q, q0 + first, head, n_q - first);
    if (end > 0) copy_tile<TILE, S::QK>(r.keys, a.k, k0, head, n_k);
    bp_cuda::cp_async_commit();
    running own[M];
    float acc[M][S::OUTS][4] = {};
#pragma unroll
    for (int m = 0; m < M; ++m) own[m] = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
    for (int at = 0; at < end; at += TILE) {
        bp_cuda::cp_async_wait<0>();
        __syncthreads(); /* the keys are there, and nobody reads the values before any more */
        copy_tile<TILE, S::V>(r.values, a.v, k0 + at, head, n_k - at);
        bp_cuda::cp_async_commit();
        float s[M][S::SCORES][4];
        scores_of(r, s, warp, lane);
        /* Keys of this tile that queries row and row + 8 see; those of rows past the end do not matter. */
        const int seen = (a.causal != 0 ? n_k - n_q + mine + 1 : n_k) - at, more = a.causal != 0 ? 8 : 0;
#pragma unroll
        for (int m = 0; m < M; ++m) softmax_step(s[m], acc[m], &own[m], seen + 2 * m * more, more, scale, lane);
        bp_cuda::cp_async_wait<0>();
        __syncthreads(); /* the values are there, and nobody reads the keys any more */
        if (at + TILE < end) copy_tile<TILE, S::QK>(r.keys, a.k, k0 + at + TILE, head, n_k - at - TILE);
        bp_cuda::cp_async_commit();
        /* Tiles that some query sees in part; in the others every weight belongs to a key that is seen. */
        if (at + TILE > all && not_finite<TILE, S::V>(r.values)) {
#pragma unroll
            for (int m = 0; m < M; ++m) add_values_slowly<S>(r, s[m], acc[m], seen + 2 * m * more, more, lane);
        } else {
            add_values(r, s, acc, lane);
        }
    }
#pragma unroll
    for (int m = 0; m < M; ++m) store<S>(a, own[m], acc[m], q0, n_q, head, mine + m * 16, lane);
}

template <class S> int32_t start_prefill(const attn_prefill *a, void *stream)
{
    const dim3 grid((a->max_q + S::ROWS - 1) / S::ROWS, a->n_head, a->n_seg);
    return start(prefill_mma_kernel<S>, grid, THREADS, sizeof(room<S>), stream, *a);
}

template <class T> int32_t choose_size(const attn_prefill *a, void *stream)
{
    if (a->qk_dim == 192) return start_prefill<shape<T, 192, 128, 32, 2>>(a, stream);
    return start_prefill<shape<T, 256, 256, 32, 1>>(a, stream);
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
