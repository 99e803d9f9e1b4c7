/* decode_mma.cu - the decode kernel on tensor cores: 16-bit cache and activations of one dtype, 512 latents and 64 rotated
 * numbers, which is what every large model has.
 * A block of eight warps takes 16 heads of an item, or 32 where there are more (M = 1 or 2 tiles of heads). Cached rows
 * come by cp.async, TILE keys at a time into one of STAGES buffers: two everywhere; four for 32 heads where a block may
 * have that much shared memory, because a block that is alone on a multiprocessor has to keep more of them under way. A row
 * serves as key and, its first 512 numbers, as value. Scores: a warp multiplies a quarter of the width with half of the
 * keys, its part of the queries stays in registers; the four quarters are added in shared memory. Softmax: a warp owns 2 M
 * heads. Values: a warp owns 64 latents.
 * Numeric: products of 16-bit numbers (weights rounded to them), f32 sums, softmax in base 2 with the running maximum; an
 * order of sums that depends on the row's keys and its number of parts only. Keys past the end and skipped entries are zero
 * rows of weight zero: nothing of what lies there is read. SPDX-License-Identifier: MIT */
#include <backplane/cuda/mma.cuh>

#include "decode.cuh"

namespace
{

constexpr int WARPS = 8, THREADS = WARPS * 32, TILE = 32;
constexpr int LATENT = 512, WIDTH = 576, SLICES = 4, STEPS = WIDTH / SLICES / 16;
constexpr int PITCH = WIDTH + 8;     /* an odd number of 16 bytes: eight rows meet all banks */
constexpr int PART_PITCH = TILE + 8; /* of partial scores, and of weights */
constexpr int MINE = LATENT / WARPS / 8; /* tiles of eight latents of a warp */
constexpr int CHUNKS = WIDTH / 8;        /* copies of 16 bytes in a row */
static_assert(WIDTH % (SLICES * 16) == 0 && TILE * CHUNKS % THREADS == 0 && TILE == 32, "the split of work");

template <class T, int M, int STAGES> struct room {
    static constexpr int HEADS = 16 * M;
    T keys[STAGES][TILE][PITCH];
    float parts[SLICES][HEADS][PART_PITCH];
    T weights[HEADS][PART_PITCH];
    float shrink[HEADS], inv[HEADS];
    int64_t at[STAGES + 1][TILE]; /* where a tile's rows lie in the pool, -1: nowhere */
};
static_assert(sizeof(room<__half, 2, 2>) <= BP_CUDA_SMEM_MAX, "one block on every chip");
static_assert(2 * (sizeof(room<__half, 1, 2>) + 1024) <= 233472, "two blocks of one tile on sm_90");

/* Blocks on a multiprocessor, which limits registers: sm_120 has shared memory for one only. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
constexpr int MOST_BLOCKS = 1;
#else
constexpr int MOST_BLOCKS = 2;
#endif

/* Where key `at` lies; -1 past the end and for skipped entries. */
__device__ __forceinline__ int64_t key_offset(const attn_decode &a, const row_keys &k, int32_t at, int32_t end)
{
    const unsigned char *row = at < end ? key_row(a.pool, k, at) : nullptr;
    return row != nullptr ? row - a.pool.data : -1;
}

/* Starts the copy of a tile whose rows lie at `at`. */
template <class T>
__device__ __forceinline__ void copy_tile(const attn_decode &a, T (&keys)[TILE][PITCH], const int64_t (&at)[TILE])
{
#pragma unroll
    for (int i = 0; i < TILE * CHUNKS / THREADS; ++i) {
        const int chunk = i * THREADS + static_cast<int>(threadIdx.x), row = chunk / CHUNKS, col = chunk % CHUNKS * 8;
        const int64_t from = at[row];
        const unsigned char *src = a.pool.data + (from < 0 ? 0 : from) + col * 2;
        bp_cuda::cp_async_16(&keys[row][col], src, from >= 0);
    }
    bp_cuda::cp_async_commit();
}

/* The warp's slice of the queries of 16 heads as fragments; heads that do not exist are zero. */
__device__ __forceinline__ void load_queries(uint32_t (&q)[STEPS][4], const attn_decode &a, int32_t row, int head0,
                                             int slice, int lane)
{
    const int n_head = static_cast<int>(a.n_head), g = head0 + lane / 4;
    const bool lo = g < n_head, hi = g + 8 < n_head;
    const unsigned char *q_lo = lo ? row_at(a.q, row, g) : nullptr, *q_hi = hi ? row_at(a.q, row, g + 8) : nullptr;
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
        const int col = slice * STEPS * 16 + s * 16 + lane % 4 * 2;
        q[s][0] = lo ? *reinterpret_cast<const uint32_t *>(q_lo + col * 2) : 0u;
        q[s][1] = hi ? *reinterpret_cast<const uint32_t *>(q_hi + col * 2) : 0u;
        q[s][2] = lo ? *reinterpret_cast<const uint32_t *>(q_lo + (col + 8) * 2) : 0u;
        q[s][3] = hi ? *reinterpret_cast<const uint32_t *>(q_hi + (col + 8) * 2) : 0u;
    }
}

/* Partial scores of all heads and 16 keys over the warp's slice. */
template <class T, int M, int STAGES>
__device__ __forceinline__ void partial_scores(room<T, M, STAGES> &r, const uint32_t (&q)[M][STEPS][4], int stage,
                                               int slice, int half, int lane)
{
    float s[M][2][4] = {};
    const T *key = &r.keys[stage][half * 16 + lane / 16 * 8 + lane % 8][slice * STEPS * 16 + lane / 8 % 2 * 8];
#pragma unroll
    for (int i = 0; i < STEPS; ++i) {
        uint32_t b[4];
        bp_cuda::ldmatrix_x4(b, key + i * 16);
#pragma unroll
        for (int m = 0; m < M; ++m) {
            bp_cuda::mma<T>(s[m][0], q[m][i], b[0], b[1]);
            bp_cuda::mma<T>(s[m][1], q[m][i], b[2], b[3]);
        }
    }
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            const int head = m * 16 + lane / 4, col = half * 16 + n * 8 + lane % 4 * 2;
            *reinterpret_cast<float2 *>(&r.parts[slice][head][col]) = make_float2(s[m][n][0], s[m][n][1]);
            *reinterpret_cast<float2 *>(&r.parts[slice][head + 8][col]) = make_float2(s[m][n][2], s[m][n][3]);
        }
    }
}

/* What a half warp keeps of a head: the maximum, and this lane's share of the sum. */
struct running {
    float max, sum;
};

/* Half a warp a head, two keys a lane. */
template <class T, int M, int STAGES>
__device__ __forceinline__ void softmax_step(room<T, M, STAGES> &r, running *own, const int64_t (&at)[TILE], float scale,
                                             int head, int lane)
{
    const int key = lane % 16 * 2;
    float2 s = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < SLICES; ++i) {
        const float2 v = *reinterpret_cast<const float2 *>(&r.parts[i][head][key]);
        s.x += v.x, s.y += v.y;
    }
    const bool first = at[key] >= 0, second = at[key + 1] >= 0;
    s.x = first ? s.x * scale : -INFINITY;
    s.y = second ? s.y * scale : -INFINITY;
    const float max = fmaxf(own->max, bp_cuda::warp_max<16>(fmaxf(s.x, s.y)));
    /* Without any key so far everything stays zero. A NaN score is a key: its weight is NaN, and so is the row. */
    const float zero = max == -INFINITY ? 0.0f : max, shrink = max == -INFINITY ? 1.0f : exp2f(own->max - max);
    const float p0 = first ? exp2f(s.x - zero) : 0.0f, p1 = second ? exp2f(s.y - zero) : 0.0f;
    own->sum = own->sum * shrink + (p0 + p1);
    own->max = max;
    *reinterpret_cast<uint32_t *>(&r.weights[head][key]) = bp_cuda::pack<T>(p0, p1);
    if (lane % 16 == 0) r.shrink[head] = shrink;
}

/* acc = shrink * acc + weights * values over the warp's latents. */
template <class T, int M, int STAGES>
__device__ __forceinline__ void add_values(room<T, M, STAGES> &r, float (&acc)[M][MINE][4], int stage, int warp, int lane)
{
#pragma unroll
    for (int m = 0; m < M; ++m) {
        const float lo = r.shrink[m * 16 + lane / 4], hi = r.shrink[m * 16 + lane / 4 + 8];
#pragma unroll
        for (int n = 0; n < MINE; ++n)
            acc[m][n][0] *= lo, acc[m][n][1] *= lo, acc[m][n][2] *= hi, acc[m][n][3] *= hi;
    }
#pragma unroll
    for (int k = 0; k < TILE; k += 16) {
        uint32_t p[M][4];
#pragma unroll
        for (int m = 0; m < M; ++m) bp_cuda::ldmatrix_x4(p[m], &r.weights[m * 16 + lane % 16][k + lane / 16 * 8]);
#pragma unroll
        for (int n = 0; n < MINE; n += 2) {
            uint32_t b[4];
            bp_cuda::ldmatrix_x4_trans(b, &r.keys[stage][k + lane % 16][warp * MINE * 8 + n * 8 + lane / 16 * 8]);
#pragma unroll
            for (int m = 0; m < M; ++m) {
                bp_cuda::mma<T>(acc[m][n], p[m], b[0], b[1]);
                bp_cuda::mma<T>(acc[m][n + 1], p[m], b[2], b[3]);
            }
        }
    }
}

/* Two latents of one head: to the output, or to the part's place. */
template <class T>
__device__ __forceinline__ void store_pair(const attn_decode &a, const attn_item &item, int head, int col, float x, float y)
{
    if (head >= static_cast<int>(a.n_head)) return;
    if (item.n_split == 1)
        *reinterpret_cast<uint32_t *>(row_at(a.out, item.row, head) + col * 2) = bp_cuda::pack<T>(x, y);
    else
        *reinterpret_cast<float2 *>(part_row(a, item.part, head) + col) = make_float2(x, y);
}

template <class T, int M, int STAGES>
__device__ __forceinline__ void store(room<T, M, STAGES> &r, const attn_decode &a, const attn_item &item,
                                      const running (&own)[M], const float (&acc)[M][MINE][4], int head0, int warp, int lane)
{
#pragma unroll
    for (int m = 0; m < M; ++m) {
        const int mine = m * 16 + warp * 2 + lane / 16, head = head0 + mine;
        const float sum = bp_cuda::warp_sum<16>(own[m].sum), lse = lse_of(own[m].max * LN_2, sum);
        if (lane % 16 != 0) continue;
        r.inv[mine] = sum == 0.0f ? 0.0f : 1.0f / sum;
        if (head >= static_cast<int>(a.n_head)) continue;
        if (item.n_split > 1) a.part_lse[static_cast<int64_t>(item.part) * a.n_head + head] = lse;
        else if (a.lse.data != nullptr) *reinterpret_cast<float *>(row_at(a.lse, item.row, head)) = lse;
    }
    __syncthreads();
#pragma unroll
    for (int m = 0; m < M; ++m) {
        const int g = m * 16 + lane / 4;
        const float lo = r.inv[g], hi = r.inv[g + 8];
#pragma unroll
        for (int n = 0; n < MINE; ++n) {
            const int col = warp * MINE * 8 + n * 8 + lane % 4 * 2;
            store_pair<T>(a, item, head0 + g, col, acc[m][n][0] * lo, acc[m][n][1] * lo);
            store_pair<T>(a, item, head0 + g + 8, col, acc[m][n][2] * hi, acc[m][n][3] * hi);
        }
    }
}

template <class T, int M, int STAGES>
__global__ void __launch_bounds__(THREADS, M == 1 ? MOST_BLOCKS : 1) decode_mma_kernel(const attn_decode a)
{
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    /* Blocks of one item's heads stand side by side, so that its keys are read from memory once. */
    constexpr int HEADS = room<T, M, STAGES>::HEADS;
    const uint32_t n_block = (a.n_head + HEADS - 1) / HEADS, number = blockIdx.x / n_block;
    const attn_item item = item_at(a, number);
    if (number >= a.plan->n_item) return;
    const int head0 = static_cast<int>(blockIdx.x % n_block) * HEADS, slice = warp % SLICES, half = warp / SLICES;
    const row_keys keys = keys_of(a, item.row);
    const int32_t each = part_keys(keys.n, item.n_split), begin = item.split * each;
    const int32_t end = begin + each < keys.n ? begin + each : keys.n;
    if (item.split > 0 && begin >= end) return; /* the combining kernel counts the parts that are not empty */
    room<T, M, STAGES> &r = *reinterpret_cast<room<T, M, STAGES> *>(shared_memory());
    const float scale = a.scale * LOG2_E;
    static_assert(STAGES <= WARPS, "a warp looks up the rows of one tile");
    if (warp < STAGES) r.at[warp][lane] = key_offset(a, keys, begin + warp * TILE + lane, end);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) copy_tile(a, r.keys[i], r.at[i]);
    uint32_t q[M][STEPS][4];
#pragma unroll
    for (int m = 0; m < M; ++m) load_queries(q[m], a, item.row, head0 + m * 16, slice, lane);
    float acc[M][MINE][4] = {};
    running own[M];
#pragma unroll
    for (int m = 0; m < M; ++m) own[m] = {-INFINITY, 0.0f};
    /* Tile number n lies in buffer n % STAGES, its rows' places in r.at[n % (STAGES + 1)]. */
    int stage = 0, here = 0;
    for (int32_t at = begin; at < end; at += TILE) {
        bp_cuda::cp_async_wait<STAGES - 2>();
        __syncthreads(); /* the tile is there, and nobody reads the one before any more */
        copy_tile(a, r.keys[stage == 0 ? STAGES - 1 : stage - 1], r.at[(here + STAGES - 1) % (STAGES + 1)]);
        int64_t offset = -1; /* asked for early: it is needed a tile later */
        if (warp == 0) offset = key_offset(a, keys, at + STAGES * TILE + lane, end);
        partial_scores(r, q, stage, slice, half, lane);
        __syncthreads();
#pragma unroll
        for (int m = 0; m < M; ++m) softmax_step(r, &own[m], r.at[here], scale, m * 16 + warp * 2 + lane / 16, lane);
        __syncthreads();
        if (warp == 0) r.at[here == 0 ? STAGES : here - 1][lane] = offset;
        add_values(r, acc, stage, warp, lane);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        here = here == STAGES ? 0 : here + 1;
    }
    bp_cuda::cp_async_wait<0>(); /* of tiles past the end, which are zeros */
    store(r, a, item, own, acc, head0, warp, lane);
}

template <class T, int M, int STAGES> int32_t start_decode(const attn_decode *a, void *stream)
{
    using room_t = room<T, M, STAGES>;
    const dim3 grid((a->n_head + room_t::HEADS - 1) / room_t::HEADS * a->n_item);
    return start(decode_mma_kernel<T, M, STAGES>, grid, THREADS, sizeof(room_t), stream, *a);
}

template <class T> int32_t choose_heads(const attn_decode *a, void *stream)
{
    if (a->n_head <= 16) return start_decode<T, 1, 2>(a, stream);
    if (a->most_smem >= sizeof(room<T, 2, 4>)) return start_decode<T, 2, 4>(a, stream);
    return start_decode<T, 2, 2>(a, stream);
}

} // namespace

int32_t attn_start_decode_mma(const attn_decode *a, void *stream)
{
    return a->pool.dtype == BP_DT_F16 ? choose_heads<__half>(a, stream) : choose_heads<__nv_bfloat16>(a, stream);
}
