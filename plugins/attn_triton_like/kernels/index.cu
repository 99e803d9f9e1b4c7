/* index.cu - the lightning index: scores of a row's keys, and the exact choice of its top_k largest.
 * Numeric: scores in f32, heads added in a fixed order; the choice is exact on them: all 32 bits are decided, by counts of
 * digits, or bit by bit where a block holds the whole row in registers; ties to the lowest position, NaN below every number
 * (taken only when nothing else is left, as the reference does).
 * A row's bits depend on its own keys only. SPDX-License-Identifier: MIT */
#include <backplane/cuda/mma.cuh>

#include "attn.cuh"

namespace
{

constexpr int WARPS = 8, THREADS = WARPS * 32, TILE = 32, GROUP = 4;
static_assert(TILE == WARPS * GROUP, "keys and queries come the same way");

__host__ __device__ constexpr int q_pitch(int width)
{
    return (width + 3) / 4 * 4;
}
constexpr int smem_bytes(int n_head, int width)
{
    return (GROUP * WARPS * q_pitch(width) + TILE * (q_pitch(width) | 1) + WARPS * TILE + n_head) * 4;
}
static_assert(smem_bytes(ATTN_MAX_INDEX_HEADS, ATTN_MAX_INDEX) <= BP_CUDA_SMEM_MAX, "a group of heads and a tile of keys");

/* Keys of a row that are scored: all of them, or none when all will be chosen and nobody wants to see scores. */
__device__ __forceinline__ int scored_keys(const attn_select &a, int64_t row)
{
    const int n = a.row_kv_len[row];
    return n > static_cast<int>(a.top_k) || (a.n_scores > 0 && n > 0) ? n : 0;
}

/* A block takes TILE keys of one row: lane = key, a warp GROUP heads at a time. Queries come to shared memory in groups of
 * WARPS * GROUP heads. */
__global__ void __launch_bounds__(THREADS, 1) scores_kernel(const attn_select a)
{
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int64_t row = static_cast<int64_t>(a.first_row) + blockIdx.y;
    const int32_t seq = load_now(a.row_seq + row);
    const int n = scored_keys(a, row), at = static_cast<int>(blockIdx.x) * TILE;
    float *out = static_cast<float *>(a.scores.data) + blockIdx.y * a.scores.row;
    if (at >= n) {
        if (threadIdx.x < TILE && at + lane < a.n_scores) out[at + lane] = -INFINITY;
        return;
    }
    const int width = static_cast<int>(a.width), full = q_pitch(width), pitch = full | 1;
    const int n_head = static_cast<int>(a.n_head);
    float *q = reinterpret_cast<float *>(shared_memory()), *keys = q + GROUP * WARPS * full;
    float *sums = keys + TILE * pitch, *w = sums + WARPS * TILE;
    const int32_t *table = a.block_table + seq * a.table_stride;
    const unsigned char *src[GROUP];
#pragma unroll
    for (int r = 0; r < GROUP; ++r) {
        const int key = at + warp * GROUP + r;
        const uint32_t block = static_cast<uint32_t>(key) / a.pool.block_tok;
        const unsigned char *first = a.pool.data + table[key < n ? block : 0] * a.pool.block_bytes;
        src[r] = key < n ? first + (key - block * a.pool.block_tok) * a.pool.row_bytes : nullptr;
    }
    load_rows(keys + warp * GROUP * pitch, pitch, src, a.pool.dtype, width, lane);
    for (int i = width + lane; i < full; i += 32) {
        for (int r = 0; r < GROUP; ++r) keys[(warp * GROUP + r) * pitch + i] = 0.0f;
    }
    for (int h = static_cast<int>(threadIdx.x); h < n_head; h += THREADS)
        w[h] = *(reinterpret_cast<const float *>(row_at(a.w, row, 0)) + h);
    float score = 0.0f;
    for (int h0 = 0; h0 < n_head; h0 += GROUP * WARPS) {
        __syncthreads();
#pragma unroll
        for (int r = 0; r < GROUP; ++r) {
            const int h = h0 + warp * GROUP + r;
            src[r] = h < n_head ? row_at(a.q, row, h) : nullptr;
        }
        load_rows(q + warp * GROUP * full, full, src, a.q.dtype, width, lane);
        for (int i = width + lane; i < full; i += 32) {
            for (int r = 0; r < GROUP; ++r) q[(warp * GROUP + r) * full + i] = 0.0f;
        }
        __syncthreads();
        float dot[GROUP][4] = {}; /* four sums each: one alone loses digits */
        const float *key = keys + lane * pitch, *mine = q + warp * GROUP * full;
        for (int i = 0; i < full; i += 4) {
            const float k0 = key[i], k1 = key[i + 1], k2 = key[i + 2], k3 = key[i + 3];
#pragma unroll
            for (int g = 0; g < GROUP; ++g) {
                const float4 v = *reinterpret_cast<const float4 *>(mine + g * full + i);
                dot[g][0] += v.x * k0;
                dot[g][1] += v.y * k1;
                dot[g][2] += v.z * k2;
                dot[g][3] += v.w * k3;
            }
        }
#pragma unroll
        for (int g = 0; g < GROUP; ++g) {
            const int h = h0 + warp * GROUP + g;
            const float d = (dot[g][0] + dot[g][1]) + (dot[g][2] + dot[g][3]);
            if (h < n_head) score += w[h] * (d < 0.0f ? 0.0f : d); /* NaN passes */
        }
    }
    sums[warp * TILE + lane] = score;
    __syncthreads();
    if (warp != 0) return;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < WARPS; ++i) sum += sums[i * TILE + lane];
    if (at + lane < n) out[at + lane] = sum * a.scale;
    else if (at + lane < a.n_scores) out[at + lane] = -INFINITY;
}

/* ---- scores on tensor cores ---- */

constexpr int MMA_KEYS = WARPS * 16, MMA_HEADS = 64, MMA_WIDTH = 128;
constexpr int MMA_PITCH = MMA_WIDTH + 8; /* an odd number of 16 bytes: eight rows meet all banks */

template <class T> struct mma_room {
    T keys[MMA_KEYS][MMA_PITCH];
    T queries[MMA_HEADS][MMA_PITCH];
    float weights[MMA_HEADS];
};
static_assert(sizeof(mma_room<__half>) <= BP_CUDA_SMEM_MAX, "one block on every chip");

/* Sixteen heads' part of the scores of 16 keys: w relu(q . k), added to each key's sum. */
template <class T>
__device__ __forceinline__ void add_heads(mma_room<T> &m, float (&score)[2][2], int head, int warp, int lane)
{
    float d[2][4] = {};
    const T *query = &m.queries[head + lane % 16][lane / 16 * 8];
    const T *key = &m.keys[warp * 16 + lane / 16 * 8 + lane % 8][lane / 8 % 2 * 8];
#pragma unroll
    for (int k = 0; k < MMA_WIDTH; k += 16) {
        uint32_t q[4], b[4];
        bp_cuda::ldmatrix_x4(q, query + k);
        bp_cuda::ldmatrix_x4(b, key + k);
        bp_cuda::mma<T>(d[0], q, b[0], b[1]);
        bp_cuda::mma<T>(d[1], q, b[2], b[3]);
    }
    const float lo = m.weights[head + lane / 4], hi = m.weights[head + lane / 4 + 8];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) { /* NaN passes */
            score[n][i] += lo * (d[n][i] < 0.0f ? 0.0f : d[n][i]) + hi * (d[n][i + 2] < 0.0f ? 0.0f : d[n][i + 2]);
        }
    }
}

/* A block takes MMA_KEYS keys of one row, a warp 16 of them; queries come in groups of MMA_HEADS heads. */
template <class T> __global__ void __launch_bounds__(THREADS, 1) scores_mma_kernel(const attn_select a)
{
    constexpr int CHUNKS = MMA_WIDTH / 8;
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int64_t row = static_cast<int64_t>(a.first_row) + blockIdx.y;
    const int32_t seq = load_now(a.row_seq + row);
    const int n = scored_keys(a, row), at = static_cast<int>(blockIdx.x) * MMA_KEYS, n_head = static_cast<int>(a.n_head);
    float *out = static_cast<float *>(a.scores.data) + blockIdx.y * a.scores.row;
    if (at >= n) {
        for (int i = at + static_cast<int>(threadIdx.x); i < at + MMA_KEYS && i < a.n_scores; i += THREADS)
            out[i] = -INFINITY;
        return;
    }
    mma_room<T> &m = *reinterpret_cast<mma_room<T> *>(shared_memory());
    const int32_t *table = a.block_table + seq * a.table_stride;
    for (int i = static_cast<int>(threadIdx.x); i < MMA_KEYS * CHUNKS; i += THREADS) {
        const int k = i / CHUNKS, col = i % CHUNKS * 8, key = at + k < n ? at + k : n - 1;
        const uint32_t block = static_cast<uint32_t>(key) / a.pool.block_tok;
        const unsigned char *src =
            a.pool.data + table[block] * a.pool.block_bytes + (key - block * a.pool.block_tok) * a.pool.row_bytes;
        bp_cuda::cp_async_16(&m.keys[k][col], src + col * 2, at + k < n);
    }
    float score[2][2] = {};
    for (int h0 = 0; h0 < n_head; h0 += MMA_HEADS) {
        __syncthreads();
        for (int i = static_cast<int>(threadIdx.x); i < MMA_HEADS * CHUNKS; i += THREADS) {
            const int h = i / CHUNKS, col = i % CHUNKS * 8, real = h0 + h < n_head ? h0 + h : 0;
            bp_cuda::cp_async_16(&m.queries[h][col], row_at(a.q, row, real) + col * 2, h0 + h < n_head);
        }
        bp_cuda::cp_async_commit();
        /* A head that does not exist has products of 0 and weight 0. */
        if (threadIdx.x < MMA_HEADS) {
            const int h = h0 + static_cast<int>(threadIdx.x);
            m.weights[threadIdx.x] = h < n_head ? *(reinterpret_cast<const float *>(row_at(a.w, row, 0)) + h) : 0.0f;
        }
        bp_cuda::cp_async_wait<0>();
        __syncthreads();
        for (int h = 0; h < MMA_HEADS && h0 + h < n_head; h += 16) add_heads(m, score, h, warp, lane);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        float &v = score[i / 2][i % 2];
#pragma unroll
        for (int step = 4; step < 32; step *= 2) v += __shfl_xor_sync(FULL_WARP, v, step);
    }
    if (lane >= 4) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int key = at + warp * 16 + i / 2 * 8 + lane * 2 + i % 2;
        if (key < n) out[key] = score[i / 2][i % 2] * a.scale;
        else if (key < a.n_scores) out[key] = -INFINITY;
    }
}

/* ---- choice ---- */

constexpr int PICK_WARPS = 32, PICK_THREADS = PICK_WARPS * 32, OWN = 4;
/* Bits of a key that one pass decides: 11, 11 and 10. */
constexpr int DIGIT = 11, BINS = 1 << DIGIT;
static_assert(OWN * PICK_THREADS < 65536, "counts of a stretch fit in 16 bits");

struct pick_room {
    uint32_t count[BINS];
    uint32_t warp[PICK_WARPS]; /* how many each warp keeps of a stretch: larger ones low, equal ones high */
    uint32_t digit, larger;
};

/* How often each digit occurs, `n_bit` bits at `shift`, among keys whose higher bits are `prefix`. Several scores are asked
 * for at a time: one block alone has to hide the latency of memory. */
__device__ void count_digits(pick_room &room, const float *scores, int n, int shift, int n_bit, uint32_t prefix)
{
    constexpr int AHEAD = 8;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (int i = static_cast<int>(threadIdx.x); i < BINS; i += PICK_THREADS) room.count[i] = 0;
    __syncthreads();
    for (int i0 = 0; i0 < n; i0 += AHEAD * PICK_THREADS) {
        float v[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) {
            const int i = i0 + j * PICK_THREADS + static_cast<int>(threadIdx.x);
            v[j] = i < n ? scores[i] : 0.0f;
        }
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) {
            const uint32_t key = bp_cuda::order_key(v[j]), digit = key >> shift & ((1u << n_bit) - 1u);
            const bool in = i0 + j * PICK_THREADS + static_cast<int>(threadIdx.x) < n &&
                            (shift + n_bit == 32 || key >> (shift + n_bit) == prefix);
            const unsigned lanes = __ballot_sync(FULL_WARP, in);
            if (lanes == 0) continue;
            /* Many keys are equal where relu cut them: what all lanes share is counted once. */
            const int leader = __ffs(static_cast<int>(lanes)) - 1;
            const uint32_t shared = __shfl_sync(FULL_WARP, digit, leader);
            if (__all_sync(FULL_WARP, !in || digit == shared)) {
                if (lane == leader) atomicAdd(&room.count[digit], static_cast<uint32_t>(__popc(lanes)));
            } else if (in) {
                atomicAdd(&room.count[digit], 1u);
            }
        }
    }
    __syncthreads();
}

/* Of what this thread counts (mine), the sum over the threads before it; a barrier lies inside, and room.warp holds each
 * warp's sum after it. */
__device__ __forceinline__ uint32_t before_thread(pick_room &room, uint32_t mine)
{
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    uint32_t upto = mine;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const uint32_t v = __shfl_up_sync(FULL_WARP, upto, static_cast<unsigned>(step));
        if (lane >= step) upto += v;
    }
    if (lane == 31) room.warp[warp] = upto;
    __syncthreads();
    return upto - mine + __reduce_add_sync(FULL_WARP, lane < warp ? room.warp[lane] : 0u);
}

/* The digit at which the counts, summed from the largest digit down, reach k; how many are larger goes to room, too. Thread
 * t takes the t-th one or two digits from above. */
__device__ void find_digit(pick_room &room, int n_bit, uint32_t k, uint32_t larger)
{
    static_assert(BINS == 2 * PICK_THREADS, "one or two digits of a thread");
    const bool two = n_bit == DIGIT;
    const int top = (1 << n_bit) - 1 - static_cast<int>(threadIdx.x) * (two ? 2 : 1);
    const uint32_t first = top >= 0 ? room.count[top] : 0u, second = two ? room.count[top - 1] : 0u, mine = first + second;
    const uint32_t before = larger + before_thread(room, mine);
    if (before >= k || before + mine < k) return;
    const bool is_first = before + first >= k;
    room.digit = static_cast<uint32_t>(is_first ? top : top - 1);
    room.larger = is_first ? before : before + first;
}

/* The k-th largest key, and how many are larger. Whole numbers are counted, so the order of threads does not matter. */
__device__ uint32_t kth_largest(pick_room &room, const float *scores, int n, uint32_t k, uint32_t *out_larger)
{
    uint32_t prefix = 0, larger = 0;
    for (int end = 32; end > 0;) { /* bits below `end` are open */
        const int n_bit = end > DIGIT ? DIGIT : end, shift = end - n_bit;
        count_digits(room, scores, n, shift, n_bit, prefix);
        find_digit(room, n_bit, k, larger);
        __syncthreads();
        prefix = prefix << n_bit | room.digit;
        larger = room.larger;
        end = shift;
        __syncthreads();
    }
    *out_larger = larger;
    return prefix;
}

/* The row's choice when each thread holds N of its keys: the k-th largest is found bit by bit, by the number of keys that
 * are at least as large, which costs a barrier or three and no memory. Bits below one that leaves exactly k need no look. */
template <int N>
__device__ void pick_short(pick_room &room, const attn_select &a, const float *scores, const int32_t *table, int n,
                           uint32_t k, int32_t *idx)
{
    const int i = static_cast<int>(threadIdx.x) * N; /* this thread's neighbours i .. i + N */
    uint32_t key[N], slot[N], least = 0, mine = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) {
        key[j] = i + j < n ? bp_cuda::order_key(scores[i + j]) : 0u;
        const uint32_t at = static_cast<uint32_t>(i + j), block = at / a.pool.block_tok;
        slot[j] = i + j < n ? static_cast<uint32_t>(table[block]) * a.pool.block_tok + (at - block * a.pool.block_tok) : 0u;
    }
    const auto count = [&](uint32_t than) { /* keys >= than, which is not 0: keys that do not exist are */
        uint32_t own = 0;
#pragma unroll
        for (int j = 0; j < N; ++j) own += key[j] >= than ? 1u : 0u;
        uint32_t all = static_cast<uint32_t>(__syncthreads_count(static_cast<int>(own & 1u)));
        if (N > 1) {
            all += 2u * static_cast<uint32_t>(__syncthreads_count(static_cast<int>(own & 2u)));
            all += 4u * static_cast<uint32_t>(__syncthreads_count(static_cast<int>(own & 4u)));
        }
        return all;
    };
    static_assert(N == 1 || N == 4, "a thread's count has three bits");
    for (int bit = 31; bit >= 0; --bit) {
        const uint32_t than = least | 1u << bit, all = count(than);
        if (all >= k) least = than;
        if (all == k) break;
    }
    const uint32_t larger = least == 0xffffffffu ? 0u : count(least + 1), quota = k - larger;
#pragma unroll
    for (int j = 0; j < N; ++j)
        if (i + j < n) mine += key[j] > least ? 1u : key[j] == least ? 1u << 16 : 0u;
    const uint32_t before = before_thread(room, mine);
    uint32_t larger_before = before & 0xffffu, equal_before = before >> 16;
#pragma unroll
    for (int j = 0; j < N; ++j) {
        if (i + j >= n || key[j] < least) continue;
        const bool tie = key[j] == least;
        if (!tie || equal_before < quota) idx[larger_before + min(equal_before, quota)] = static_cast<int32_t>(slot[j]);
        if (tie) ++equal_before;
        else ++larger_before;
    }
}

/* The row's choice from memory, OWN keys of a thread at a time. */
__device__ void pick_long(pick_room &room, const attn_select &a, const float *scores, const int32_t *table, int n,
                          uint32_t k, int32_t *idx)
{
    uint32_t larger;
    const uint32_t least = kth_largest(room, scores, n, k, &larger);
    const uint32_t quota = k - larger; /* how many of those that tie stay: the first */
    uint32_t n_larger = 0, n_equal = 0; /* in the stretches before */
    for (int i0 = 0; i0 < n && n_larger + min(n_equal, quota) < k; i0 += OWN * PICK_THREADS) {
        const int i = i0 + static_cast<int>(threadIdx.x) * OWN; /* this thread's neighbours i .. i + OWN */
        uint32_t key[OWN], mine = 0;                            /* larger ones low, equal ones high */
#pragma unroll
        for (int j = 0; j < OWN; ++j) {
            key[j] = i + j < n ? bp_cuda::order_key(scores[i + j]) : 0;
            if (i + j < n) mine += key[j] > least ? 1u : key[j] == least ? 1u << 16 : 0u;
        }
        const uint32_t before = before_thread(room, mine);
        const uint32_t all = __reduce_add_sync(FULL_WARP, room.warp[threadIdx.x % 32]);
        uint32_t larger_before = n_larger + (before & 0xffffu), equal_before = n_equal + (before >> 16);
#pragma unroll
        for (int j = 0; j < OWN; ++j) {
            if (i + j >= n || key[j] < least) continue;
            const bool tie = key[j] == least;
            if (!tie || equal_before < quota) {
                const uint32_t block = static_cast<uint32_t>(i + j) / a.pool.block_tok;
                const int64_t slot = static_cast<int64_t>(table[block]) * a.pool.block_tok + (i + j) % a.pool.block_tok;
                idx[larger_before + min(equal_before, quota)] = static_cast<int32_t>(slot);
            }
            if (tie) ++equal_before;
            else ++larger_before;
        }
        n_larger += all & 0xffffu;
        n_equal += all >> 16;
        __syncthreads();
    }
}

/* A block takes one row. */
__global__ void __launch_bounds__(PICK_THREADS) topk_kernel(const attn_select a)
{
    __shared__ pick_room room;
    static_assert(PICK_WARPS == 32, "a lane holds a warp's count");
    const int64_t row = static_cast<int64_t>(a.first_row) + blockIdx.x;
    const int32_t seq = load_now(a.row_seq + row);
    const int n = a.row_kv_len[row];
    int32_t *idx = static_cast<int32_t *>(a.idx.data) + row * a.idx.row;
    const uint32_t k = a.top_k;
    uint32_t kept = 0;
    if (threadIdx.x == 0) a.idx_len[row * a.idx_len_stride] = n > static_cast<int>(k) ? static_cast<int32_t>(k) : -1;
    if (n > static_cast<int>(k)) {
        const float *scores = static_cast<const float *>(a.scores.data) + blockIdx.x * a.scores.row;
        const int32_t *table = a.block_table + seq * a.table_stride;
        if (n <= PICK_THREADS) pick_short<1>(room, a, scores, table, n, k, idx);
        else if (n <= OWN * PICK_THREADS) pick_short<OWN>(room, a, scores, table, n, k, idx);
        else pick_long(room, a, scores, table, n, k, idx);
        kept = k;
    }
    for (int64_t i = kept + threadIdx.x; i < a.n_idx; i += PICK_THREADS) idx[i] = -1;
}

} // namespace

int32_t attn_start_scores(const attn_select *a, void *stream)
{
    const int64_t n = a->n_scores > static_cast<int64_t>(a->max_kv) ? a->n_scores : static_cast<int64_t>(a->max_kv);
    const dim3 grid(static_cast<unsigned>((n + TILE - 1) / TILE), a->n_row);
    const int smem = smem_bytes(static_cast<int>(a->n_head), static_cast<int>(a->width));
    return start(scores_kernel, grid, THREADS, static_cast<size_t>(smem), stream, *a);
}

int32_t attn_start_scores_mma(const attn_select *a, void *stream)
{
    const int64_t n = a->n_scores > static_cast<int64_t>(a->max_kv) ? a->n_scores : static_cast<int64_t>(a->max_kv);
    const dim3 grid(static_cast<unsigned>((n + MMA_KEYS - 1) / MMA_KEYS), a->n_row);
    if (a->pool.dtype == BP_DT_F16)
        return start(scores_mma_kernel<__half>, grid, THREADS, sizeof(mma_room<__half>), stream, *a);
    return start(scores_mma_kernel<__nv_bfloat16>, grid, THREADS, sizeof(mma_room<__half>), stream, *a);
}

int32_t attn_start_topk(const attn_select *a, void *stream)
{
    return start(topk_kernel, dim3(a->n_row), PICK_THREADS, 0, stream, *a);
}
